//! The cost of an object on a node: rate, time, processor time, memory, bytes written.

use std::time::{Duration, Instant};

use anyhow::Context as _;
use edgesync_testkit::proxy::{Proxy, Way};

use crate::objects::object;
use crate::processes::{
    Process, Site, collection, connect, cpu, irreclaimable, memory_peak, mib, proc_number, until, written,
};
use crate::table::Table;

/// Objects of a bulk load.
pub(crate) const OBJECTS: usize = 10_000;
/// Objects that are updated, and updates, one after another.
pub(crate) const UPDATED: usize = 2_000;
/// Changes whose time is taken, and their objects.
pub(crate) const CHANGES: usize = 500;
pub(crate) const CHANGED: usize = 100;

/// The resources that a process has used so far.
pub(crate) struct Used {
    cpu: Duration,
    written: u64,
}

/// The resources that a process has used, for each of some objects.
pub(crate) struct Cost {
    /// Processor time, in milliseconds.
    pub(crate) cpu: f64,
    /// Written to disk, in thousands of bytes.
    pub(crate) written: f64,
}

impl Used {
    pub(crate) fn by(process: &Process) -> Self {
        Self { cpu: cpu(process), written: written(process) }
    }

    /// Returns the resources that a process has used since, divided by a number of objects.
    pub(crate) fn since(&self, process: &Process, objects: usize) -> Cost {
        let now = Self::by(process);
        Cost {
            cpu: now.cpu.saturating_sub(self.cpu).as_secs_f64() * 1e3 / objects as f64,
            written: now.written.saturating_sub(self.written) as f64 / objects as f64 / 1e3,
        }
    }
}

/// The bulk load of a node that held nothing.
pub(crate) struct Bulk {
    /// Objects per second, from the start of the agent until all are persisted and reported.
    pub(crate) rate: f64,
    /// Cost of an object, including the checkpoints after the load.
    pub(crate) cost: Cost,
    /// Resident memory while it lasted, and seconds after it, in KiB.
    pub(crate) peak: u64,
    pub(crate) idle: u64,
    /// The part of the latter that cannot be reclaimed, in KiB.
    kept: u64,
}

/// Measures [`OBJECTS`] objects of 1 KB to an empty node, through mosquitto.
pub(crate) fn load() -> anyhow::Result<Bulk> {
    let site = Site::new()?;
    site.create(0..OBJECTS)?;
    let start = Instant::now();
    let agent = site.agent()?;
    site.wait_in_sync(OBJECTS)?;
    let rate = OBJECTS as f64 / start.elapsed().as_secs_f64();
    let nothing = Used { cpu: Duration::ZERO, written: 0 };
    let loaded = nothing.since(&agent, OBJECTS);
    let peak = memory_peak(&agent) / 1024;
    // Idle means a few seconds without activity: memory is released, the log is checkpointed.
    std::thread::park_timeout(Duration::from_secs(5));
    let cost = Cost { cpu: loaded.cpu, ..nothing.since(&agent, OBJECTS) };
    let idle = proc_number(&agent, "status", "VmRSS:");
    Ok(Bulk { rate, cost, peak, idle, kept: irreclaimable(&agent) })
}

pub(crate) fn bulk_through_mosquitto(table: &mut Table) -> anyhow::Result<()> {
    let Bulk { rate, cost, peak, idle, kept } = load()?;
    let what = "end to end through mosquitto, persisted and reported";
    let measured = table.of_mosquitto(rate);
    let met = rate >= 30_000.0 && rate >= 0.65 * table.bare_mosquitto;
    table.budget(what, measured, "≥ 30,000/s and 65 % (KubeEdge: 145–186/s)", met);
    let measured = format!("{:.3} ms", cost.cpu);
    table.budget("agent CPU per object, bulk", measured, "≤ 0.018 ms (EdgeCore: 0.75)", cost.cpu <= 0.018);
    table.figure("agent RSS, peak", mib(peak));
    table.figure("agent RSS, idle", mib(idle));
    table.figure("  of it not reclaimable", mib(kept));
    let what = "written to disk per object, bulk";
    table.budget(what, format!("{:.1} KB", cost.written), "≤ 3 KB", cost.written <= 3.0);
    Ok(())
}

/// Measures [`UPDATED`] changes one after another, each reported before the next.
pub(crate) fn updates() -> anyhow::Result<Cost> {
    let site = Site::new()?;
    site.create(0..UPDATED)?;
    let agent = site.agent()?;
    site.wait_in_sync(UPDATED)?;
    // The checkpoint of the initial objects' log must not count for the updates.
    std::thread::park_timeout(Duration::from_secs(1));
    let before = Used::by(&agent);
    for n in 0..UPDATED {
        site.replace((n * 7919) % UPDATED, 1 + n as u64)?;
        until("the change is reported", || (site.node()?.pending() == Some(0)).then_some(()))?;
    }
    site.wait_in_sync(UPDATED)?;
    Ok(before.since(&agent, UPDATED))
}

pub(crate) fn single_updates(table: &mut Table) -> anyhow::Result<()> {
    let Cost { cpu, written } = updates()?;
    let what = "written to disk per object, single updates";
    table.budget(what, format!("{written:.1} KB"), "≤ 7 KB (EdgeCore: 65)", written <= 7.0);
    let what = "agent CPU per single update";
    table.budget(what, format!("{cpu:.2} ms"), "≤ 0.15 ms (EdgeCore: 1.8)", cpu <= 0.15);
    Ok(())
}

/// Returns the median and the 95th percentile of times in milliseconds.
pub(crate) fn percentiles(mut times: Vec<f64>) -> (f64, f64) {
    times.sort_by(f64::total_cmp);
    let at = |percent| times.get(times.len() * percent / 100).copied().unwrap_or_default();
    (at(50), at(95))
}

/// Returns the number of a ConfigMap to change, and its path at the node. The spec of a Pod is
/// immutable.
fn changed(n: usize) -> (usize, String) {
    let number = n * 10 % CHANGED;
    let object = object(number, 0);
    let name = object["metadata"]["name"].as_str().unwrap_or_default().to_owned();
    (number, format!("{}/{name}", collection(&object)))
}

/// Measures from [`CHANGES`] changes on the cloud side to the rows on the node: the median and the
/// 95th percentile, in milliseconds.
pub(crate) fn delays() -> anyhow::Result<(f64, f64)> {
    let site = Site::new()?;
    site.create(0..CHANGED)?;
    let _agent = site.agent()?;
    site.wait_in_sync(CHANGED)?;
    let mut times = Vec::with_capacity(CHANGES);
    for n in 0..CHANGES {
        let (number, path) = changed(n);
        let start = Instant::now();
        let content = site.replace(number, 2 + n as u64)?["data"].clone();
        while site.edge_get(&path)?["data"] != content {}
        times.push(start.elapsed().as_secs_f64() * 1e3);
    }
    Ok(percentiles(times))
}

/// Measures when a change passes each part on its way, with a proxy on both sides of the broker:
/// the API answers, the message leaves the cloud side, it reaches the agent, the row is there.
/// Returns the medians since the request, in milliseconds.
fn parts_of_delay() -> anyhow::Result<[f64; 4]> {
    let site = Site::with_cloud_line()?;
    site.create(0..CHANGED)?;
    let _agent = site.agent_on_the_line()?;
    connect(site.line(), true);
    site.wait_in_sync(CHANGED)?;
    let of_cloud = site.cloud_line().context("the cloud side has a line")?;
    let mut times = [const { Vec::new() }; 4];
    for n in 0..CHANGES {
        let (number, path) = changed(n);
        of_cloud.take_pieces();
        site.line().take_pieces();
        let start = Instant::now();
        let content = site.replace(number, 2 + n as u64)?["data"].clone();
        let answered = Instant::now();
        while site.edge_get(&path)?["data"] != content {}
        let stored = Instant::now();
        let passed = |line: &Proxy, way| {
            let pieces = line.take_pieces().into_iter().filter(|piece| piece.way == way);
            // Acknowledgements and confirmations are smaller.
            let object = pieces.max_by_key(|piece| piece.bytes);
            object.map(|piece| piece.at).context("the object did not pass the line")
        };
        let moments = [answered, passed(of_cloud, Way::Up)?, passed(site.line(), Way::Down)?, stored];
        for (times, moment) in times.iter_mut().zip(moments) {
            times.push(moment.duration_since(start).as_secs_f64() * 1e3);
        }
        until("the change is reported", || (site.node()?.pending() == Some(0)).then_some(()))?;
    }
    Ok(times.map(|times| percentiles(times).0))
}

pub(crate) fn latency(table: &mut Table) -> anyhow::Result<()> {
    let (p50, p95) = delays()?;
    let what = "change (HTTP request sent) to row on the edge, p50 / p95";
    let met = p50 <= 0.9 && p95 <= 1.3;
    table.budget(what, format!("{p50:.1} / {p95:.1} ms"), "≤ 0.9 / 1.3 ms (EdgeCore: 5.8 / 8.7)", met);
    let [answered, sent, received, stored] = parts_of_delay()?;
    let mut part = |what, time: f64| table.figure(what, format!("{time:.1} ms"));
    part("  with a proxy on both sides of the broker, p50: the API answers after", answered);
    part("  the message leaves the cloud side after", sent);
    part("  it reaches the agent after", received);
    part("  the row is there after", stored);
    Ok(())
}
