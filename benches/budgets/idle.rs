//! Traffic of an idle node: all bytes passed to TCP in both directions.

use std::time::{Duration, Instant};

use anyhow::Context as _;
use edgesync_admin::Route;
use edgesync_admin::agent::{AgentStatus, Traffic};

use crate::processes::Site;
use crate::table::Table;

/// Observation time of idle nodes; extrapolated to a day.
const WATCHED: Duration = Duration::from_secs(180);
/// Time for the nodes to become idle.
const SETTLE: Duration = Duration::from_secs(20);

fn bytes(site: &Site, number: usize) -> anyhow::Result<f64> {
    let link = site.ask_other::<AgentStatus>(number, Route::Status)?.link;
    Ok((link.bytes_in + link.bytes_out) as f64)
}

/// Measures two nodes at once: one renews its Lease every 10 s, the other every 60 s.
pub(crate) fn traffic(table: &mut Table) -> anyhow::Result<()> {
    let site = Site::new()?;
    site.create(0..100)?;
    let nodes = [("10s", "≤ 1.8 MB", 1.8e6), ("60s", "≤ 350 KB", 350e3)];
    let mut agents = Vec::new();
    for (number, (interval, ..)) in nodes.iter().enumerate() {
        agents.push(
            site.another_agent(number, &format!("[lease]\ninterval = \"{interval}\"\nduration = \"4m\"\n"))?,
        );
    }
    std::thread::park_timeout(SETTLE);
    let before = [bytes(&site, 0)?, bytes(&site, 1)?];
    let start = Instant::now();
    std::thread::park_timeout(WATCHED);
    for (number, (interval, budget, limit)) in nodes.iter().enumerate() {
        let after = bytes(&site, number)?;
        let day = (after - before[number]) / start.elapsed().as_secs_f64() * 86_400.0;
        let what = format!("idle traffic per day (TCP payload, both directions), Lease every {interval}");
        table.budget(&what, format!("{:.0} KB", day / 1e3), budget, day <= *limit);
    }
    let traffic: Traffic = site.ask_other(0, Route::Traffic)?;
    let renewals = traffic.total.span.frames.iter().find(|frame| frame.frame == "Renew");
    let renewals = renewals.context("no Lease was renewed")?;
    let size = renewals.bytes as f64 / renewals.messages as f64;
    table.budget(
        "  a renewal of the Lease, payload",
        format!("{size:.0} bytes"),
        "≤ 100 bytes",
        size <= 100.0,
    );
    Ok(())
}
