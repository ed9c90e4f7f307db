//! 10,000 nodes and more that reconnect at once: real state machines and real MQTT over TCP, rows
//! in memory.
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
use rustix::process::{Resource, Rlimit};
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
/// The most nodes of all, and files that are open for something else.
const LARGEST: usize = 100_000;
const RESERVED: usize = 1000;
const TIMEOUT: Duration = Duration::from_secs(300);
/// Time for which renewals are measured.
const RENEWING: Duration = Duration::from_secs(40);

/// Connects all nodes at once. Returns the time until the last one is in sync.
pub(crate) async fn storm(
    endpoint: &Endpoint,
    memories: &mut Vec<Memory>,
    stay: impl AsyncFnOnce(),
) -> anyhow::Result<Duration> {
    storm_at(std::slice::from_ref(endpoint), memories, stay).await
}

/// Like [`storm`], with the nodes spread over several endpoints.
pub(crate) async fn storm_at(
    endpoints: &[Endpoint],
    memories: &mut Vec<Memory>,
    stay: impl AsyncFnOnce(),
) -> anyhow::Result<Duration> {
    let (in_sync, nodes) = (Arc::new(AtomicUsize::new(0)), memories.len());
    let (go, gone) = watch::channel(false);
    let start = Instant::now();
    let mut tasks = tokio::task::JoinSet::new();
    for (n, mut memory) in memories.drain(..).enumerate() {
        let (in_sync, gone) = (in_sync.clone(), gone.clone());
        let endpoint = endpoints.get(n % endpoints.len().max(1)).context("an endpoint")?.clone();
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
    memories(NODES, wanted)
}

/// Like [`new_nodes`], for any number of nodes.
pub(crate) fn memories(nodes: usize, wanted: usize) -> Vec<Memory> {
    let totals = |n: usize| Totals { epoch: Epoch(1 + n as u128), ..Totals::default() };
    (0..nodes).map(|n| Memory { totals: totals(n), wanted: wanted as u64, ..Memory::default() }).collect()
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
    show_shared(FleetSite::with_rules(&ten_rules())?, table)
}

/// Measures the same over TLS, each node with its own certificate.
pub(crate) fn shared_objects_over_tls(table: &mut Table) -> anyhow::Result<()> {
    show_shared(FleetSite::with_tls(&ten_rules())?, table)
}

fn show_shared(mut site: FleetSite, table: &mut Table) -> anyhow::Result<()> {
    let endpoint = site.endpoint()?;
    let found = reconnect_shared(&mut site, &endpoint, NODES, None)?;
    let what = "10,000 nodes with 1,000 objects each, by ten placement rules, reconnecting at once";
    table.figure(what, format!("all in sync after {:.1} s", found.in_sync.as_secs_f64()));
    table.figure("  cloud memory before, anonymous", format!("{:.0} MB", found.before / 1e6));
    let peak = found.peak / 1e6;
    table.budget("  cloud memory, peak", format!("{peak:.0} MB"), "≤ 400 MB", peak <= 400.0);
    let changed = found.changed.as_secs_f64();
    table.figure("  one changed object, until recorded for all nodes", format!("{changed:.1} s"));
    Ok(())
}

fn ten_rules() -> String {
    let rule = |n: usize| {
        format!("[[placement]]\nnodes = {{ names = [\"*\"] }}\nobjects = {{ selector = \"part=p{n}\" }}\n")
    };
    (0..10).map(rule).collect()
}

/// Measures 10, 30 and 100 thousand nodes, or as many as this user may open connections for.
pub(crate) fn many_nodes(table: &mut Table) -> anyhow::Result<()> {
    let permitted = may_open(LARGEST + RESERVED);
    for wanted in [10_000, 30_000, LARGEST] {
        let nodes = wanted.min(permitted.saturating_sub(RESERVED));
        let mut site = FleetSite::for_many(nodes, &ten_rules())?;
        let endpoint = Endpoint { sources: 16, ..site.endpoint()? };
        let minute = Duration::from_secs(60);
        let found = reconnect_shared(&mut site, &endpoint, nodes, Some(minute))?;
        let is_largest = nodes == LARGEST;
        let mut row = |what: &str, measured: String, budget: &str, met: bool| {
            let what = format!("{nodes} nodes{what}");
            if is_largest {
                table.budget(&what, measured, budget, met);
            } else {
                table.figure(&what, measured);
            }
        };
        let time = found.in_sync.as_secs_f64();
        let what = " with 1,000 objects each, by ten rules, reconnecting at once: all in sync";
        row(what, format!("{time:.1} s"), "≤ 90 s", time <= 90.0);
        let resident = found.resident / 1e9;
        row(", connected: cloud memory", format!("{resident:.2} GB"), "≤ 2 GB", resident <= 2.0);
        let each = (found.resident - found.alone) / nodes as f64 / 1e3;
        row(": of it for each node", format!("{each:.1} KB"), "≤ 12 KB", each <= 12.0);
        let share = found.renewing * 100.0;
        let what = ", Leases every 60 s: CPU of the cloud side";
        row(what, format!("{share:.1} % of one core"), "≤ 15 %", share <= 15.0);
        let time = found.changed.as_secs_f64();
        let what = ": one changed object, until recorded for all";
        row(what, format!("{time:.1} s"), "≤ 15 s", time <= 15.0);
        if nodes < wanted {
            table.figure("more nodes: not measured, open files of this user", permitted.to_string());
            break;
        }
    }
    Ok(())
}

/// Raises the limit of open files of this process, and of those that it starts, to so many, or as
/// far as this user may. Returns the limit.
pub(crate) fn may_open(files: usize) -> usize {
    let limit = rustix::process::getrlimit(Resource::Nofile);
    let Some(maximum) = limit.maximum else { return files };
    for wanted in [maximum.max(files as u64), maximum] {
        let raised = Rlimit { current: Some(wanted), maximum: Some(wanted) };
        if rustix::process::setrlimit(Resource::Nofile, raised).is_ok() {
            return usize::try_from(wanted).unwrap_or(files);
        }
    }
    limit.current.and_then(|current| usize::try_from(current).ok()).unwrap_or(files)
}

/// Measurements of nodes that hold the same objects. Sizes are in bytes.
struct Shared {
    /// Anonymous memory of the cloud side without a connection.
    before: f64,
    /// Resident memory without a connection, at most, and with all nodes connected.
    alone: f64,
    peak: f64,
    resident: f64,
    /// Until the last node is in sync, and until a change is recorded for all.
    in_sync: Duration,
    changed: Duration,
    /// Share of a core that the cloud side needs while nothing but Leases is sent.
    renewing: f64,
}

/// Lets nodes that hold [`SHARED`] objects reconnect at once, and then changes one of these. Their
/// records go directly to the database: rows for each held object would be millions, and the cloud
/// does not read them for a node in sync. With an interval of Leases, two of these are observed.
fn reconnect_shared(
    site: &mut FleetSite,
    endpoint: &Endpoint,
    nodes: usize,
    lease: Option<Duration>,
) -> anyhow::Result<Shared> {
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
    let memory = |n| Memory { lease, ..holding(&shared, Epoch(1 + n as u128)) };
    let mut memories: Vec<Memory> = (0..nodes).map(memory).collect();
    site.while_stopped(|database| record(database, &memories))?;
    let (before, alone) = (site.cloud_anonymous() as f64, site.cloud_rss() as f64);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let object = site.list("configmaps")?.swap_remove(0);
    let (mut renewing, mut resident, mut changed) = (0.0, 0.0, Err(anyhow::anyhow!("no change was made")));
    let site = &*site;
    let connected = async || {
        if let Some(interval) = lease {
            // The first renewals follow the connects.
            tokio::time::sleep(interval).await;
            let (start, used) = (Instant::now(), site.cloud_spent().0);
            tokio::time::sleep(interval * 2).await;
            renewing = (site.cloud_spent().0 - used).as_secs_f64() / start.elapsed().as_secs_f64();
        }
        resident = site.cloud_rss() as f64;
        changed = change_one(site, object, nodes).await;
    };
    let in_sync = runtime.block_on(storm(endpoint, &mut memories, connected))?;
    let peak = site.cloud_rss_peak() as f64;
    Ok(Shared { before, alone, peak, resident, in_sync, changed: changed?, renewing })
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

/// Changes an object that all nodes hold. Returns the time until all have reported it.
async fn change_one(
    site: &FleetSite,
    mut object: serde_json::Value,
    nodes: usize,
) -> anyhow::Result<Duration> {
    object["data"] = serde_json::json!({ "changed": "yes" });
    let start = Instant::now();
    let client = site.client();
    client.put::<serde_json::Value>(&object_path(&object), &object).await?;
    loop {
        let metrics = client.text("/metrics").await?;
        let held =
            metrics.lines().find_map(|line| line.strip_prefix("edgesync_cloud_reported_objects_total "));
        let held: usize = held.and_then(|held| held.parse().ok()).unwrap_or_default();
        if held >= nodes {
            return Ok(start.elapsed());
        }
        anyhow::ensure!(start.elapsed() < TIMEOUT, "only {held} nodes are recorded to hold the change");
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
