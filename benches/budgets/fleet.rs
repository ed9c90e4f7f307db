//! 10,000 nodes that come back at once: real machines and real MQTT over TCP, rows in memory.
//!
//! What thousands of nodes hold alike they share, so that it is the cloud side whose memory is measured.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use anyhow::Context as _;
use edgesync::object::{Budget, ObjectKey, ResourceVersion, kinds};
use edgesync::sync::change::{Put, Uid};
use edgesync::sync::digest::{Epoch, Tally};
use edgesync::sync::edge::{Commit, EdgeConfig, EdgeEffect, EdgeMachine};
use edgesync::sync::frame::{DEFAULT_MAX_FRAME, DEFAULT_MAX_OBJECT, Received};
use edgesync::sync::replica::{self, Applied, Held, Rows, Totals};
use tokio::sync::watch;

use crate::line::{Endpoint, Line};
use crate::objects::object;
use crate::processes::FleetSite;
use crate::table::Table;

const NODES: usize = 10_000;
const OBJECTS: usize = 5;
/// Objects that ten rules place on each node.
const SHARED: usize = 1000;
/// Objects of each node's own.
const OWN: usize = 10;
const PATIENCE: Duration = Duration::from_secs(300);
/// How long renewals are measured.
const RENEWING: Duration = Duration::from_secs(40);

/// What one simulated node holds: it outlives its connection.
#[derive(Default)]
pub(crate) struct Memory {
    /// What all nodes hold, unless it is in `rows`.
    shared: Arc<HashMap<Uid, (ResourceVersion, ObjectKey)>>,
    rows: HashMap<Uid, (ResourceVersion, ObjectKey)>,
    /// How many objects the node is to hold.
    wanted: u64,
    totals: Totals,
    confirmed: u64,
    incarnation: Option<String>,
}

impl Memory {
    /// Of a node with this file that is to hold so many objects beside what it shares.
    pub(crate) fn new(
        shared: Arc<HashMap<Uid, (ResourceVersion, ObjectKey)>>,
        totals: Totals,
        wanted: u64,
    ) -> Self {
        Self { shared, totals, wanted, ..Self::default() }
    }
}

impl Rows for Memory {
    type Row = Uid;
    type Error = std::convert::Infallible;

    fn by_uid(&mut self, uid: &str) -> Result<Option<Held<Uid>>, Self::Error> {
        let row = self.rows.get_key_value(uid).or_else(|| self.shared.get_key_value(uid));
        Ok(row.map(|(uid, (version, key))| Held {
            row: uid.clone(),
            uid: uid.clone(),
            version: version.clone(),
            key: key.clone(),
        }))
    }

    fn by_name(&mut self, key: &ObjectKey) -> Result<Option<Held<Uid>>, Self::Error> {
        let row = self.rows.iter().find(|(_, (_, held))| held == key);
        let row = row.or_else(|| self.shared.iter().find(|(_, (_, held))| held == key));
        let uid = row.map(|(uid, _)| uid.clone());
        uid.map_or(Ok(None), |uid| self.by_uid(&uid))
    }

    fn put(&mut self, _: u64, put: &Put, _: Option<Uid>) -> Result<(), Self::Error> {
        self.rows.insert(put.uid.clone(), (put.version.clone(), put.key()));
        Ok(())
    }

    fn remove(&mut self, _: u64, held: Held<Uid>) -> Result<(), Self::Error> {
        self.rows.remove(&held.uid);
        Ok(())
    }
}

async fn told_to_go(go: &mut watch::Receiver<bool>) {
    // Without a sender there is nothing left to wait for either.
    let _ = go.wait_for(|go| *go).await;
}

/// Waits until a deadline of a machine; for ever if there is none.
async fn until(origin: Instant, deadline: Option<Duration>) {
    match deadline {
        Some(deadline) => tokio::time::sleep_until((origin + deadline).into()).await,
        None => std::future::pending().await,
    }
}

/// One connection of a node: until it is told to go.
pub(crate) async fn session(
    node: &str,
    endpoint: &Endpoint,
    memory: &mut Memory,
    in_sync: &AtomicUsize,
    mut go: watch::Receiver<bool>,
) -> anyhow::Result<()> {
    let mut line = Line::open(endpoint, node).await?;
    let origin = Instant::now();
    let random = || uuid::Uuid::new_v4().as_u64_pair().0;
    let config = EdgeConfig {
        node: node.into(),
        agent: "bench".into(),
        max_frame: DEFAULT_MAX_FRAME,
        max_object: DEFAULT_MAX_OBJECT,
        hello_timeout: Duration::from_secs(60),
        report_timeout: Duration::from_secs(60),
        retry_max: Duration::from_secs(60),
        report_attempts: 5,
        max_applying: 8,
        lease_interval: Duration::from_secs(10),
        lease_duration: Duration::from_secs(40),
    };
    let mut machine = EdgeMachine::new(config, memory.totals, memory.confirmed, memory.incarnation.clone());
    machine.connected(Duration::ZERO, usize::MAX, random());
    let acquired = jiff::Timestamp::now().as_microsecond();
    let up = format!("edgesync/v1/nodes/{node}/up");
    let mut counted = false;
    loop {
        loop {
            if let Some(effect) = machine.poll_effect() {
                match effect {
                    EdgeEffect::Apply { token, changes } => {
                        let (mut totals, mut applied) = (memory.totals, Applied::default());
                        for change in &changes {
                            replica::apply(memory, &mut totals, change, &mut applied)?;
                        }
                        let before = std::mem::replace(&mut memory.totals, totals).revision;
                        machine.applied(
                            origin.elapsed(),
                            token,
                            Ok(Commit { before, totals, applied }),
                            random(),
                        );
                    }
                    EdgeEffect::Confirm(revision) => memory.confirmed = revision,
                    EdgeEffect::SetIncarnation(incarnation) => memory.incarnation = Some(incarnation),
                    EdgeEffect::RenewLease => {
                        let renewed = jiff::Timestamp::now().as_microsecond();
                        machine.renew(origin.elapsed(), acquired, renewed, random());
                    }
                    _ => {}
                }
            } else if let Some(frame) = machine.poll_frame(origin.elapsed()) {
                machine.link_progress(origin.elapsed(), 0, 0);
                line.publish(&up, &frame.encode(1024)?).await?;
            } else {
                break;
            }
        }
        if !counted && machine.in_sync() && memory.totals.count == memory.wanted {
            counted = true;
            in_sync.fetch_add(1, Ordering::Relaxed);
        }
        let message = tokio::select! {
            message = line.message() => message?,
            () = told_to_go(&mut go) => return Ok(()),
            () = until(origin, machine.deadline()) => {
                machine.tick(origin.elapsed(), random());
                continue;
            }
        };
        if let Some(payload) = message {
            let frame = Received::decode(&payload, &mut Budget::of(1 << 20), 1 << 23)?;
            machine.received(origin.elapsed(), frame, random());
        }
    }
}

/// Connects all nodes at once; the time until the last one is in sync.
async fn storm(
    endpoint: &Endpoint,
    memories: &mut Vec<Memory>,
    stay: impl AsyncFnOnce(),
) -> anyhow::Result<Duration> {
    let in_sync = Arc::new(AtomicUsize::new(0));
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
    while in_sync.load(Ordering::Relaxed) < NODES && start.elapsed() < PATIENCE {
        ticks.tick().await;
    }
    let time = start.elapsed();
    let reached = in_sync.load(Ordering::Relaxed);
    stay().await;
    go.send_replace(true);
    while let Some(done) = tasks.join_next().await {
        let (memory, result) = done?;
        if reached < NODES {
            result?;
        }
        memories.push(memory);
    }
    anyhow::ensure!(reached == NODES, "only {reached} of {NODES} nodes are in sync after {time:?}");
    Ok(time)
}

pub(crate) fn reconnect_storm(table: &mut Table) -> anyhow::Result<()> {
    let site = FleetSite::new()?;
    for n in 0..OBJECTS {
        site.create(&object(n, 0))?;
    }
    let epoch = |n: usize| Totals { epoch: Epoch(1 + n as u128), ..Totals::default() };
    let memory = |n| Memory { totals: epoch(n), wanted: OBJECTS as u64, ..Memory::default() };
    let mut memories: Vec<Memory> = (0..NODES).map(memory).collect();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let first = runtime.block_on(storm(&site.endpoint()?, &mut memories, async || ()))?;
    table
        .figure("10,000 new nodes with 5 objects each, all in sync", format!("{:.1} s", first.as_secs_f64()));
    // Memories come back in the order in which their nodes ended; names must fit epochs again.
    memories.sort_by_key(|memory| memory.totals.epoch.0);
    let mut spent = (Duration::ZERO, 0);
    let renew = async || {
        // The first renewals come all at once, with the storm.
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
    let what = "10,000 nodes renewing their Leases every 10 s: processor of the cloud";
    table.figure(what, format!("{share:.1} % of one core"));
    let written = spent.1 as f64 / RENEWING.as_secs_f64() / 1e3;
    table.figure("  written to its disk", format!("{written:.0} KB/s"));
    Ok(())
}

/// 10,000 nodes that hold the same 1,000 objects, placed by ten rules.
pub(crate) fn shared_objects(table: &mut Table) -> anyhow::Result<()> {
    shared_objects_at(FleetSite::with_rules(&ten_rules())?, table)
}

/// The same over TLS, each node with a certificate of its own.
pub(crate) fn shared_objects_over_tls(table: &mut Table) -> anyhow::Result<()> {
    shared_objects_at(FleetSite::with_tls(&ten_rules())?, table)
}

fn ten_rules() -> String {
    let rule = |n: usize| {
        format!("[[placement]]\nnodes = {{ names = [\"*\"] }}\nobjects = {{ selector = \"part=p{n}\" }}\n")
    };
    (0..10).map(rule).collect()
}

/// That the nodes were recorded to hold them is written into the database beside their records, which would be ten
/// million rows: nobody reads those of a node in sync.
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
    anyhow::ensure!(rows.len() == SHARED, "{} objects are there", rows.len());
    let shared = Arc::new(rows);
    let mut memories: Vec<Memory> = (0..NODES).map(|n| holding(&shared, Epoch(1 + n as u128))).collect();
    site.while_stopped(|database| record(database, &memories))?;
    let quiet = site.cloud_anonymous();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let object = site.list("configmaps")?.swap_remove(0);
    let mut changed = (Duration::ZERO, 0);
    let change = async || changed = change_one(&site, object).await.unwrap_or_default();
    let again = runtime.block_on(storm(&site.endpoint()?, &mut memories, change))?;
    let what = "10,000 nodes with 1,000 objects each, by ten rules, reconnecting at once";
    table.figure(what, format!("all in sync after {:.1} s", again.as_secs_f64()));
    let peak = site.cloud_rss_peak() as f64 / 1e6;
    table.figure("  cloud memory before, anonymous", format!("{:.0} MB", quiet as f64 / 1e6));
    table.budget("  cloud memory, peak", format!("{peak:.0} MB"), "≤ 400 MB", peak <= 400.0);
    let (time, held) = changed;
    anyhow::ensure!(held == NODES as u64, "only {held} nodes were recorded to hold the change");
    table
        .figure("  one of them changed, until recorded of all nodes", format!("{:.1} s", time.as_secs_f64()));
    Ok(())
}

/// A node that holds all of this, and was confirmed to.
fn holding(shared: &Arc<HashMap<Uid, (ResourceVersion, ObjectKey)>>, epoch: Epoch) -> Memory {
    let mut tally = Tally::default();
    for (uid, (version, _)) in shared.iter() {
        tally.add(epoch, uid, version);
    }
    let Tally { count, digest } = tally;
    let totals = Totals { epoch, revision: count, count, digest };
    Memory { shared: shared.clone(), wanted: count, totals, confirmed: count, ..Memory::default() }
}

/// Writes that the nodes were recorded to hold what they hold.
fn record(database: &std::path::Path, memories: &[Memory]) -> anyhow::Result<()> {
    let mut conn = rusqlite::Connection::open(database)?;
    let tx = conn.transaction()?;
    let incarnation: String = tx.query_row("SELECT incarnation FROM meta", [], |row| row.get(0))?;
    for (n, memory) in memories.iter().enumerate() {
        let Totals { epoch, revision, count, digest } = memory.totals;
        tx.execute(
            "INSERT INTO nodes (name, epoch, confirmed, incarnation, last_seen, held_count, held_digest)
             VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7)",
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

/// Changes an object that all nodes hold: the time until it is recorded of all, and of how many it was.
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
        if held >= NODES as u64 || start.elapsed() > PATIENCE {
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

/// 10,000 new nodes with ten objects each that name them.
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
    let memory = |n: usize| Memory {
        totals: Totals { epoch: Epoch(1 + n as u128), ..Totals::default() },
        wanted: OWN as u64,
        ..Memory::default()
    };
    let mut memories: Vec<Memory> = (0..NODES).map(memory).collect();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let first = runtime.block_on(storm(&site.endpoint()?, &mut memories, async || ()))?;
    let what = "10,000 new nodes with 10 objects of their own each";
    table.figure(what, format!("all in sync after {:.1} s", first.as_secs_f64()));
    let peak = site.cloud_rss_peak() as f64 / 1e6;
    table.budget("  cloud memory, peak", format!("{peak:.0} MB"), "≤ 400 MB", peak <= 400.0);
    Ok(())
}
