//! Traffic of an idle node: all bytes passed to TCP in both directions.

use std::time::{Duration, Instant};

use serde_json::Value;

use crate::processes::Site;
use crate::table::Table;

/// Observation time of idle nodes; extrapolated to a day.
const WATCHED: Duration = Duration::from_secs(180);
/// Time for the nodes to become idle.
const SETTLE: Duration = Duration::from_secs(20);

fn bytes(status: &Value) -> f64 {
    let number = |field: &str| status["link"][field].as_f64().unwrap_or(0.0);
    number("bytesIn") + number("bytesOut")
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
    let status = |number: usize| site.get_from(number, "/edgesync/v1/status");
    let before = [bytes(&status(0)?), bytes(&status(1)?)];
    let start = Instant::now();
    std::thread::park_timeout(WATCHED);
    for (number, (interval, budget, limit)) in nodes.iter().enumerate() {
        let after = bytes(&status(number)?);
        let day = (after - before[number]) / start.elapsed().as_secs_f64() * 86_400.0;
        let what = format!("idle traffic per day (TCP payload, both directions), Lease every {interval}");
        table.budget(&what, format!("{:.0} KB", day / 1e3), budget, day <= *limit);
    }
    let traffic = site.get_from(0, "/edgesync/v1/traffic")?;
    let leases =
        traffic["total"]["frames"].as_array().into_iter().flatten().find(|frame| frame["type"] == "Lease");
    if let Some((bytes, messages)) =
        leases.and_then(|frame| Some((frame["bytes"].as_f64()?, frame["messages"].as_f64()?)))
    {
        let size = bytes / messages;
        table.budget("  a Lease, payload", format!("{size:.0} bytes"), "≤ 150 bytes", size <= 150.0);
    }
    Ok(())
}
