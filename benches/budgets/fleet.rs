//! 10,000 nodes that reconnect at once: real state machines and real MQTT over TCP, rows in memory.
//!
//! The nodes share identical rows, so that the memory measured is the cloud side's.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use anyhow::Context as _;
use edgesync_object::{ObjectKey, ResourceVersion, kinds};
use edgesync_protocol::apply::Totals;
use edgesync_protocol::change::Uid;
use edgesync_protocol::digest::{Epoch, Tally};
use tokio::sync::watch;

use crate::objects::object;
use crate::processes::FleetSite;
use crate::table::Table;
use edgesync_testkit::line::Endpoint;
use edgesync_testkit::node::{Memory, session};

const NODES: usize = 10_000;
const OBJECTS: usize = 5;
/// Objects that ten rules place on each node.
const SHARED: usize = 1000;
/// Objects placed on one node each, per node.
const OWN: usize = 10;
const TIMEOUT: Duration = Duration::from_secs(300);
/// Time for which renewals are measured.
const RENEWING: Duration = Duration::from_secs(40);

/// Connects all nodes at once. Returns the time until the last one is in sync.
pub(crate) async fn storm(
    endpoint: &Endpoint,
    memories: &mut Vec<Memory>,
    stay: impl AsyncFnOnce(),
) -> anyhow::Result<Duration> {
    let (in_sync, nodes) = (Arc::new(AtomicUsize::new(0)), memories.len());
    let (go, gone) = watch::channel(false);
    let start = Instant::now();
    let mut tasks = tokio::task::JoinSet::new();
    for (n, mut memory) in memories.drain(..).enumerate() {
        let (endpoint, in_sync, gone) = (endpoint.clone(), in_sync.clone(), gone.clone());
        tasks.spawn(async move {
            let node = format!("node-{n:05}");
            let result = session(&node, &endpoint, &mut memory, &in_sync, gone).await;
            (memory, result.with_context(|| node))
        });
    }
    let mut ticks = tokio::time::interval(Duration::from_millis(5));
    while in_sync.load(Ordering::Relaxed) < nodes && start.elapsed() < TIMEOUT {
        ticks.tick().await;
    }
    let time = start.elapsed();
    let reached = in_sync.load(Ordering::Relaxed);
    stay().await;
    go.send_replace(true);
    while let Some(done) = tasks.join_next().await {
        let (memory, result) = done?;
        if reached < nodes {
            result?;
        }
        memories.push(memory);
    }
    anyhow::ensure!(reached == nodes, "only {reached} of {nodes} nodes are in sync after {time:?}");
    Ok(time)
}

/// Returns nodes that hold nothing, and are in sync with so many objects.
pub(crate) fn new_nodes(wanted: usize) -> Vec<Memory> {
    let totals = |n: usize| Totals { epoch: Epoch(1 + n as u128), ..Totals::default() };
    let memory = |n| Memory { totals: totals(n), wanted: wanted as u64, ..Memory::default() };
    (0..NODES).map(memory).collect()
}

pub(crate) fn reconnect_storm(table: &mut Table) -> anyhow::Result<()> {
    let site = FleetSite::new()?;
    for n in 0..OBJECTS {
        site.create(&object(n, 0))?;
    }
    let mut memories = new_nodes(OBJECTS);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let first = runtime.block_on(storm(&site.endpoint()?, &mut memories, async || ()))?;
    table
        .figure("10,000 new nodes with 5 objects each, all in sync", format!("{:.1} s", first.as_secs_f64()));
    // Nodes end in any order; names must match epochs again.
    memories.sort_by_key(|memory| memory.totals.epoch.0);
    let mut spent = (Duration::ZERO, 0);
    let renew = async || {
        // The first renewals are part of the storm.
        tokio::time::sleep(Duration::from_secs(20)).await;
        let before = site.cloud_spent();
        tokio::time::sleep(RENEWING).await;
        let after = site.cloud_spent();
        spent = (after.0 - before.0, after.1 - before.1);
    };
    let again = runtime.block_on(storm(&site.endpoint()?, &mut memories, renew))?;
    let memory = site.cloud_rss_peak();
    let what = "10,000 nodes in sync reconnecting at once";
    table.figure(what, format!("all in sync after {:.1} s", again.as_secs_f64()));
    let megabytes = memory as f64 / 1e6;
    table.budget("  cloud memory, peak", format!("{megabytes:.0} MB"), "≤ 400 MB", megabytes <= 400.0);
    let share = spent.0.as_secs_f64() / RENEWING.as_secs_f64() * 100.0;
    let what = "10,000 nodes renewing their Leases every 10 s: CPU of the cloud side";
    table.figure(what, format!("{share:.1} % of one core"));
    let written = spent.1 as f64 / RENEWING.as_secs_f64() / 1e3;
    table.figure("  written to disk", format!("{written:.0} KB/s"));
    Ok(())
}

/// Measures 10,000 nodes that hold the same 1,000 objects, placed by ten rules.
pub(crate) fn shared_objects(table: &mut Table) -> anyhow::Result<()> {
    shared_objects_at(FleetSite::with_rules(&ten_rules())?, table)
}

/// Measures the same over TLS, each node with its own certificate.
pub(crate) fn shared_objects_over_tls(table: &mut Table) -> anyhow::Result<()> {
    shared_objects_at(FleetSite::with_tls(&ten_rules())?, table)
}

fn ten_rules() -> String {
    let rule = |n: usize| {
        format!("[[placement]]\nnodes = {{ names = [\"*\"] }}\nobjects = {{ selector = \"part=p{n}\" }}\n")
    };
    (0..10).map(rule).collect()
}

/// The nodes' records go directly to the database. Rows for each held object would be ten million,
/// and the cloud does not read them for a node in sync.
fn shared_objects_at(mut site: FleetSite, table: &mut Table) -> anyhow::Result<()> {
    for n in 0..SHARED {
        let mut object = object(n, 0);
        object["metadata"]["labels"]["part"] = format!("p{}", n % 10).into();
        site.create(&object)?;
    }
    let mut rows = HashMap::new();
    for (plural, word) in [("configmaps", "cm"), ("secrets", "secret"), ("pods", "pod")] {
        let kind = kinds::by_word(word).context("a kind that is built in")?.resource();
        for item in site.list(plural)? {
            let field = |name: &str| item["metadata"][name].as_str().unwrap_or_default().to_owned();
            let key = kind.key(&field("namespace"), &field("name"));
            rows.insert(field("uid").into(), (ResourceVersion::new(field("resourceVersion")), key));
        }
    }
    anyhow::ensure!(rows.len() == SHARED, "{} objects exist", rows.len());
    let shared = Arc::new(rows);
    let mut memories: Vec<Memory> = (0..NODES).map(|n| holding(&shared, Epoch(1 + n as u128))).collect();
    site.while_stopped(|database| record(database, &memories))?;
    let quiet = site.cloud_anonymous();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let object = site.list("configmaps")?.swap_remove(0);
    let mut changed = (Duration::ZERO, 0);
    let change = async || changed = change_one(&site, object).await.unwrap_or_default();
    let again = runtime.block_on(storm(&site.endpoint()?, &mut memories, change))?;
    let what = "10,000 nodes with 1,000 objects each, by ten placement rules, reconnecting at once";
    table.figure(what, format!("all in sync after {:.1} s", again.as_secs_f64()));
    let peak = site.cloud_rss_peak() as f64 / 1e6;
    table.figure("  cloud memory before, anonymous", format!("{:.0} MB", quiet as f64 / 1e6));
    table.budget("  cloud memory, peak", format!("{peak:.0} MB"), "≤ 400 MB", peak <= 400.0);
    let (time, held) = changed;
    anyhow::ensure!(held == NODES as u64, "only {held} nodes are recorded to hold the change");
    table
        .figure("  one changed object, until recorded for all nodes", format!("{:.1} s", time.as_secs_f64()));
    Ok(())
}

/// Returns a node that holds all objects, with confirmation.
fn holding(shared: &Arc<HashMap<Uid, (ResourceVersion, ObjectKey)>>, epoch: Epoch) -> Memory {
    let mut tally = Tally::default();
    for (uid, (version, _)) in shared.iter() {
        tally.add(epoch, uid, version);
    }
    let Tally { count, digest } = tally;
    let totals = Totals { epoch, revision: count, count, digest };
    Memory { shared: shared.clone(), wanted: count, totals, confirmed: count, ..Memory::default() }
}

/// Writes the nodes' records to the database.
fn record(database: &std::path::Path, memories: &[Memory]) -> anyhow::Result<()> {
    let mut conn = rusqlite::Connection::open(database)?;
    let tx = conn.transaction()?;
    let incarnation: String = tx.query_row("SELECT incarnation FROM meta", [], |row| row.get(0))?;
    for (n, memory) in memories.iter().enumerate() {
        let Totals { epoch, revision, count, digest } = memory.totals;
        tx.execute(
            "INSERT INTO nodes (name, epoch, confirmed, incarnation, last_seen, held_count, held_digest, epochs)
             VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, '[]')",
            (
                format!("node-{n:05}"),
                epoch.to_string(),
                revision,
                &incarnation,
                jiff::Timestamp::now().to_string(),
                count,
                digest.to_string(),
            ),
        )?;
    }
    Ok(tx.commit()?)
}

/// Changes an object that all nodes hold. Returns the time until all have reported it, and how many
/// have.
async fn change_one(site: &FleetSite, mut object: serde_json::Value) -> anyhow::Result<(Duration, u64)> {
    object["data"] = serde_json::json!({ "changed": "yes" });
    let start = Instant::now();
    let client = site.client();
    client.put::<serde_json::Value>(&object_path(&object), &object).await?;
    loop {
        let metrics = client.text("/metrics").await?;
        let held =
            metrics.lines().find_map(|line| line.strip_prefix("edgesync_cloud_reported_objects_total "));
        let held = held.and_then(|held| held.parse().ok()).unwrap_or_default();
        if held >= NODES as u64 || start.elapsed() > TIMEOUT {
            return Ok((start.elapsed(), held));
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

pub(crate) fn object_path(object: &serde_json::Value) -> String {
    format!(
        "{}/{}",
        crate::processes::collection(object),
        object["metadata"]["name"].as_str().unwrap_or_default()
    )
}

/// Measures 10,000 new nodes with ten objects each that name them.
pub(crate) fn own_objects(table: &mut Table) -> anyhow::Result<()> {
    let site = FleetSite::with_rules("")?;
    for n in 0..NODES * OWN {
        let mut object = object(n / 10 * 10, 0);
        object["metadata"]["name"] = format!("own-{n:06}").into();
        object["metadata"]["namespace"] = "own".into();
        object["kind"] = "ConfigMap".into();
        object["metadata"]["labels"]["edgesync.io/node"] = format!("node-{:05}", n / OWN).into();
        site.create(&object)?;
    }
    let mut memories = new_nodes(OWN);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let first = runtime.block_on(storm(&site.endpoint()?, &mut memories, async || ()))?;
    let what = "10,000 new nodes with 10 objects of their own each";
    table.figure(what, format!("all in sync after {:.1} s", first.as_secs_f64()));
    let peak = site.cloud_rss_peak() as f64 / 1e6;
    table.budget("  cloud memory, peak", format!("{peak:.0} MB"), "≤ 400 MB", peak <= 400.0);
    Ok(())
}
