//! The Leases of 10,000 nodes that renew every 10 s: the cost of writing them in the cloud.

use std::fs;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use edgesync_cloud_store::{CloudOptions, CloudStore, LeaseRenewal, NodeChange};
use edgesync_object::NodeName;
use edgesync_protocol::node::NodeReport;
use jiff::Timestamp;
use serde_json::json;

use crate::table::Table;

const NODES: usize = 10_000;
/// Interval of each node's renewals; [`BATCHES`] writes per interval. Both are the defaults.
const RENEWAL: Duration = Duration::from_secs(10);
const BATCHES: usize = 2;
const ROUNDS: usize = 10;
/// Nodes that register concurrently.
const TOGETHER: usize = 100;

fn name(number: usize) -> anyhow::Result<NodeName> {
    NodeName::parse(&format!("station-{number:05}.hamburg.example")).map_err(anyhow::Error::msg)
}

fn report(number: usize) -> anyhow::Result<NodeReport> {
    Ok(serde_json::from_value(json!({
        "labels": {"kubernetes.io/hostname": name(number)?, "kubernetes.io/arch": "arm64", "kubernetes.io/os": "linux",
            "node-role.kubernetes.io/edge": "", "site": format!("site-{}", number % 100)},
        "status": {
            "nodeInfo": {"architecture": "arm64", "operatingSystem": "linux", "kernelVersion": "6.1.0-rpi8-rpi-v8",
                "osImage": "Debian GNU/Linux 12 (bookworm)", "machineID": "0123456789abcdef0123456789abcdef"},
            "capacity": {"cpu": "4", "memory": "512Mi"}, "addresses": [{"type": "Hostname", "address": name(number)?}]},
        "conditions": [{"type": "edgesync.io/StoreHealthy", "status": "True", "reason": "Writable"}],
    }))?)
}

fn renewal(number: usize, round: usize) -> anyhow::Result<LeaseRenewal> {
    let at = |second: usize| Timestamp::from_second(1_795_000_000 + i64::try_from(second)?).context("a time");
    Ok(LeaseRenewal {
        node: name(number)?,
        seconds: 40,
        acquired: at(0)?,
        renewed: at(round * 10)?,
        transitions: 0,
        next: None,
    })
}

/// Returns the processor time of all threads of this process.
fn cpu() -> anyhow::Result<Duration> {
    let mut nanos = 0;
    for task in fs::read_dir("/proc/self/task")? {
        // A thread may have ended meanwhile.
        let text = fs::read_to_string(task?.path().join("schedstat")).unwrap_or_default();
        nanos += text.split(' ').next().and_then(|field| field.parse().ok()).unwrap_or(0);
    }
    Ok(Duration::from_nanos(nanos))
}

/// Returns the bytes that this process has written to disk.
fn written() -> anyhow::Result<u64> {
    let io = fs::read_to_string("/proc/self/io")?;
    let line = io.lines().find_map(|line| line.strip_prefix("write_bytes: "));
    Ok(line.context("/proc/self/io has no write_bytes")?.parse()?)
}

/// Registers nodes in groups, each node with its Lease, interleaved as in practice.
async fn register(store: &CloudStore) -> anyhow::Result<()> {
    for first in (0..NODES).step_by(TOGETHER) {
        let mut changes = Vec::new();
        for number in first..first + TOGETHER {
            let report = Some(report(number)?);
            changes.push(NodeChange { node: name(number)?, report, conditions: Vec::new() });
        }
        store.change_nodes(changes).await?;
        let leases: anyhow::Result<_> = (first..first + TOGETHER).map(|number| renewal(number, 0)).collect();
        store.renew_leases(leases?).await?;
    }
    Ok(())
}

/// Writes the renewals of a round in batches, each with another part of the nodes.
async fn round(store: &CloudStore, round: usize, batches: usize) -> anyhow::Result<Vec<Duration>> {
    let mut times = Vec::new();
    for batch in 0..batches {
        let due: anyhow::Result<Vec<_>> =
            (batch..NODES).step_by(batches).map(|number| renewal(number, round)).collect();
        let due = due?;
        let started = Instant::now();
        store.renew_leases(due).await?;
        times.push(started.elapsed());
    }
    Ok(times)
}

/// Measures all figures of Leases.
pub(crate) fn figures(table: &mut Table) -> anyhow::Result<()> {
    tokio::runtime::Builder::new_current_thread().build()?.block_on(measure(table))
}

async fn measure(table: &mut Table) -> anyhow::Result<()> {
    let directory = tempfile::tempdir()?;
    let path = directory.path().join("cloud.db");
    let mut options = CloudOptions::default();
    options.engine.cache_kib = 8 << 10;
    let store = CloudStore::open(&path, &options)?;
    register(&store).await?;
    let (cpu_before, written_before) = (cpu()?, written()?);
    let mut times = Vec::new();
    for number in 1..=ROUNDS {
        times.extend(round(&store, number, BATCHES).await?);
    }
    let seconds = RENEWAL.as_secs_f64() * ROUNDS as f64;
    let busy = (cpu()? - cpu_before).as_secs_f64() / seconds * 100.0;
    let bytes = (written()? - written_before) as f64 / seconds / 1000.0;
    times.sort();
    let median = times.get(times.len() / 2).copied().unwrap_or_default();
    let longest = times.last().copied().unwrap_or_default();
    let ms = |time: Duration| format!("{:.0} ms", time.as_secs_f64() * 1000.0);
    table.figure("10,000 Leases every 10 s, written every 5 s: share of one core", format!("{busy:.2} %"));
    table.figure("  a transaction, median / longest", format!("{}, {}", ms(median), ms(longest)));
    table.figure("  written to disk", format!("{bytes:.0} kB/s"));
    let all = round(&store, ROUNDS + 1, 1).await?;
    table.figure("  all 10,000 in one transaction", ms(all.first().copied().unwrap_or_default()));
    let started = Instant::now();
    let known = store.registered().await?;
    anyhow::ensure!((known.nodes.len(), known.leases.len()) == (NODES, NODES), "not all are registered");
    table.figure("  reading 10,000 Nodes and Leases at the start", ms(started.elapsed()));
    store.close().await;
    Ok(())
}
