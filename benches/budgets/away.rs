//! Nodes that are away as planned: what they cost the cloud side.

use std::time::{Duration, Instant};

use anyhow::Context as _;

use crate::fleet::{new_nodes, storm};
use crate::objects::object;
use crate::processes::{FleetSite, until_polled};
use crate::table::Table;

const NODES: usize = 10_000;
const OBJECTS: usize = 5;
/// Absence that the nodes announce, in seconds.
const ABSENCE: u32 = 6 * 3600;
/// Time for the cloud side to write the Leases of nodes that have left, twice its default.
const WRITING: Duration = Duration::from_secs(10);
/// Time for which the cloud side is observed.
const WATCHED: Duration = Duration::from_secs(60);

/// Returns the number of nodes in a state.
fn count(site: &FleetSite, state: &str) -> Option<usize> {
    let metrics = site.runtime().block_on(site.client().text("/metrics")).ok()?;
    let prefix = format!("edgesync_cloud_nodes{{state=\"{state}\"}} ");
    metrics.lines().find_map(|line| line.strip_prefix(&prefix))?.parse().ok()
}

fn all_away(site: &FleetSite) -> anyhow::Result<()> {
    let is_reached = || (count(site, "away")? == NODES).then_some(());
    until_polled(Duration::from_millis(200), "all nodes are away", is_reached)
}

/// Measures the cloud side with nodes that have all checked in and left. A restart shows what it
/// keeps of them, without the memory of the sessions before.
pub(crate) fn figures(table: &mut Table) -> anyhow::Result<()> {
    let mut site = FleetSite::new()?;
    for number in 0..OBJECTS {
        site.create(&object(number, 0))?;
    }
    site.while_stopped(|_| Ok(()))?;
    std::thread::park_timeout(WRITING);
    let empty = site.cloud_anonymous();
    let mut memories = new_nodes(OBJECTS);
    for memory in &mut memories {
        memory.absence = Some(ABSENCE);
    }
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let time = runtime.block_on(storm(&site.endpoint()?, &mut memories, async || ()))?;
    table.figure("10,000 new nodes check in at once and leave", format!("{:.1} s", time.as_secs_f64()));
    all_away(&site)?;
    std::thread::park_timeout(WRITING);
    site.while_stopped(|_| Ok(()))?;
    all_away(&site)?;
    std::thread::park_timeout(WRITING);
    let before = site.cloud_spent();
    let start = Instant::now();
    std::thread::park_timeout(WATCHED);
    let (cpu, written) = site.cloud_spent();
    let seconds = start.elapsed().as_secs_f64();
    let away = count(&site, "away").context("the metrics have no nodes")?;
    let what = "  a minute later, after a restart of the cloud side: away, as planned";
    table.budget(what, away.to_string(), "all", away == NODES);
    let bytes = site.cloud_anonymous().saturating_sub(empty) as f64 / NODES as f64;
    let what = "  cloud memory for a node that is away";
    table.budget(what, format!("{bytes:.0} bytes"), "≤ 4 KB", bytes <= 4096.0);
    let share = (cpu - before.0).as_secs_f64() / seconds * 100.0;
    table.budget("  CPU of the cloud side", format!("{share:.2} % of one core"), "≤ 0.5 %", share <= 0.5);
    let rate = (written - before.1) as f64 / seconds / 1e3;
    table.budget("  written to disk", format!("{rate:.1} KB/s"), "≤ 1 KB/s", rate <= 1.0);
    Ok(())
}
