//! 50 open browser pages beside 10,000 nodes: their cost for the cloud side, while nothing changes
//! and during a roll-out to all nodes.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::Context as _;
use edgesync_admin::cloud::{Rollout, RolloutTarget};
use edgesync_admin::{RolloutSubject, Route};
use edgesync_protocol::apply::Totals;
use edgesync_protocol::digest::Epoch;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::UnixStream;
use tokio::task::JoinSet;

use crate::fleet::{object_path, storm};
use crate::objects::object;
use crate::processes::FleetSite;
use crate::table::Table;
use edgesync_testkit::node::Memory;
use edgesync_testkit::site::ask;

const NODES: usize = 10_000;
const PAGES: usize = 50;
/// Duration of a measurement.
const MEASURED: Duration = Duration::from_secs(20);
/// Maximum processor share of the pages while nothing changes, in percent of a core.
const QUIET_LIMIT: f64 = 10.0;
/// Maximum memory of the pages, in bytes.
const MEMORY_LIMIT: u64 = 100_000_000;
const TIMEOUT: Duration = Duration::from_secs(300);

/// Results of the measurement.
#[derive(Default)]
struct Measured {
    alone: f64,
    quiet: f64,
    added: u64,
    first: u64,
    changed: Duration,
    lines: u64,
}

/// A page: reads the stream like a browser, and discards it.
async fn page(socket: &Path, read: Arc<AtomicU64>) -> anyhow::Result<()> {
    let mut stream = UnixStream::connect(socket).await?;
    let path = Route::Summary.path();
    let request = format!("GET {path}?watch=1 HTTP/1.1\r\nHost: localhost\r\n\r\n");
    stream.write_all(request.as_bytes()).await?;
    let mut buffer = vec![0; 64 << 10];
    loop {
        let length = stream.read(&mut buffer).await?;
        anyhow::ensure!(length > 0, "the stream ended");
        read.fetch_add(length as u64, Ordering::Relaxed);
    }
}

/// Returns the cloud side's share of a core, in percent.
async fn share(site: &FleetSite) -> f64 {
    let before = site.cloud_spent().0;
    tokio::time::sleep(MEASURED).await;
    (site.cloud_spent().0 - before).as_secs_f64() / MEASURED.as_secs_f64() * 100.0
}

async fn measure(site: &FleetSite, mut object: Value) -> anyhow::Result<Measured> {
    let mut measured = Measured::default();
    // The first renewals are part of the storm.
    tokio::time::sleep(MEASURED).await;
    measured.alone = share(site).await;
    let memory = site.cloud_rss();
    let read = Arc::new(AtomicU64::new(0));
    let mut pages = JoinSet::new();
    for _ in 0..PAGES {
        let (socket, read) = (site.api(), Arc::clone(&read));
        pages.spawn(async move { page(&socket, read).await });
    }
    tokio::time::sleep(Duration::from_secs(5)).await;
    measured.first = read.swap(0, Ordering::Relaxed) / PAGES as u64;
    measured.quiet = share(site).await;
    read.store(0, Ordering::Relaxed);
    object["data"] = json!({ "changed": "yes" });
    let (client, start) = (site.client(), Instant::now());
    client.put::<Value>(&object_path(&object), &object).await?;
    let uid = object["metadata"]["uid"].as_str().context("a UID")?;
    let route = Route::Rollout(RolloutSubject::Object(uid));
    let changed: Value = client.get(&object_path(&object)).await?;
    let changed = changed["metadata"]["resourceVersion"].as_str().context("a version")?;
    loop {
        let rollout: Rollout = ask(&client, route).await?;
        let is_of_change = matches!(&rollout.of, RolloutTarget::Object { version, .. } if version == changed);
        if is_of_change && rollout.holding == NODES {
            break;
        }
        anyhow::ensure!(start.elapsed() < TIMEOUT, "the roll-out did not end: {}", rollout.holding);
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
    measured.changed = start.elapsed();
    measured.lines = read.load(Ordering::Relaxed) / PAGES as u64;
    measured.added = site.cloud_rss().saturating_sub(memory);
    if let Some(ended) = pages.try_join_next() {
        ended?.context("a page")?;
    }
    Ok(measured)
}

/// Measures all figures of pages.
pub(crate) fn figures(table: &mut Table) -> anyhow::Result<()> {
    let site = FleetSite::new()?;
    site.create(&object(0, 0))?;
    let epoch = |n: usize| Totals { epoch: Epoch(1 + n as u128), ..Totals::default() };
    let mut memories: Vec<Memory> =
        (0..NODES).map(|n| Memory { totals: epoch(n), wanted: 1, ..Memory::default() }).collect();
    let plural = ["configmaps", "secrets", "pods"].into_iter();
    let made = plural.flat_map(|plural| site.list(plural).unwrap_or_default()).next().context("no object")?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let mut measured = Ok(Measured::default());
    let stay = async || measured = measure(&site, made).await;
    runtime.block_on(storm(&site.endpoint()?, &mut memories, stay))?;
    let Measured { alone, quiet, added, first, changed, lines } = measured?;
    let pages = quiet - alone;
    table.figure(
        "10,000 nodes in sync, no page open: CPU of the cloud side",
        format!("{alone:.1} % of one core"),
    );
    table.budget("  added by 50 open pages", format!("{pages:.1} %"), "≤ 10 %", pages <= QUIET_LIMIT);
    let megabytes = format!("{:.0} MB", added as f64 / 1e6);
    table.budget(
        "  memory added, including a roll-out to all nodes",
        megabytes,
        "≤ 100 MB",
        added <= MEMORY_LIMIT,
    );
    table.figure("  sent to a page when it opens", format!("{:.0} KB", first as f64 / 1e3));
    table.figure(
        "a new version on all 10,000 nodes, as 50 pages show it",
        format!("{:.1} s", changed.as_secs_f64()),
    );
    table.figure("  sent to each page meanwhile", format!("{:.0} KB", lines as f64 / 1e3));
    Ok(())
}
