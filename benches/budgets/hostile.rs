//! One compromised node, and idle connections of strangers, beside 200 good nodes: the effect on
//! these. The same node behind mosquitto, beside nodes that connect.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use anyhow::Context as _;
use edgesync_api::Client;
use edgesync_object::{Budget, ObjectRef, ResourceVersion};
use edgesync_protocol::apply::Totals;
use edgesync_protocol::digest::{Digest, Epoch};
use edgesync_protocol::frame::{DEFAULT_MAX_FRAME, DEFAULT_MAX_OBJECT, Hello, Item, Received, Report, Up};
use serde_json::{Value, json};
use tokio::net::TcpStream;
use tokio::sync::watch;

use crate::fleet::object_path;
use crate::objects::object;
use crate::processes::{FleetSite, Site, until};
use crate::table::Table;
use crate::tls::join;
use edgesync_testkit::line::{Endpoint, Line};
use edgesync_testkit::node::{Memory, session};

const NODES: usize = 200;
/// Changes of an object that all good nodes hold.
const CHANGES: usize = 40;
/// Objects that the hostile node invents in each frame.
const INVENTED: u64 = 1500;
/// Idle connections opened in each tenth of a second.
const IDLE: usize = 20;
const JOINS: usize = 10;
/// Nodes that connect behind mosquitto, one after another.
const WELCOMES: usize = 40;
const TIMEOUT: Duration = Duration::from_secs(120);

/// Measurements of the good nodes.
struct Measured {
    /// Time from a change to all nodes' reports, in the order of the changes.
    changes: Vec<Duration>,
    /// Time from TCP connect to the end of the MQTT handshake.
    connects: Vec<Duration>,
    /// Run time of `edgesync join`.
    joins: Vec<Duration>,
}

pub(crate) fn figures(table: &mut Table) -> anyhow::Result<()> {
    let site = FleetSite::new()?;
    let shared = object(0, 0);
    site.create(&shared)?;
    let shared = site.list("configmaps")?.pop().context("the object exists")?;
    let endpoint = site.endpoint()?;
    let attacks = Arc::new([AtomicBool::new(false), AtomicBool::new(false)]);
    let sent = Arc::new(AtomicU64::new(0));
    let (go, gone) = watch::channel(false);
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build()?;
    runtime.block_on(good_nodes(&endpoint, &gone))?;
    runtime.spawn(floods(endpoint.clone(), Arc::clone(&attacks), Arc::clone(&sent)));
    let addresses = [endpoint.address, SocketAddr::from((Ipv4Addr::LOCALHOST, site.joining()))];
    runtime.spawn(idles(addresses, Arc::clone(&attacks)));
    let quiet = runtime.block_on(watch_changes(&site, &shared, &endpoint))?;
    let before = site.cloud_rss_peak();
    show(table, "200 good nodes alone", &quiet);
    table.figure("  cloud memory, peak", megabytes(before));
    attacks[0].store(true, Ordering::Relaxed);
    let flooded = runtime.block_on(watch_changes(&site, &shared, &endpoint))?;
    attacks[0].store(false, Ordering::Relaxed);
    let after = site.cloud_rss_peak();
    let what = format!(
        "beside a node that sends {:.0} MB of invented objects",
        sent.load(Ordering::Relaxed) as f64 / 1e6
    );
    show(table, &what, &flooded);
    let grown = after.saturating_sub(before);
    table.budget("  cloud memory, peak, added by it", megabytes(grown), "≤ 64 MB", grown <= 64_000_000);
    let (usual, worst) = (middle(&quiet.changes), middle(&flooded.changes));
    let met = worst <= usual * 2 + Duration::from_millis(20);
    table.budget("  a change on all nodes, p50", milliseconds(worst), "≤ 2 × alone + 20 ms", met);
    attacks[1].store(true, Ordering::Relaxed);
    let idle = runtime.block_on(watch_changes(&site, &shared, &endpoint))?;
    show(table, "beside 200 idle connections a second to each port", &idle);
    let worst = idle.connects.iter().max().copied().unwrap_or_default();
    let met = worst <= Duration::from_secs(3);
    table.budget("  a node connects, slowest", milliseconds(worst), "≤ 3 s", met);
    let worst = idle.joins.iter().max().copied().unwrap_or_default();
    table.budget("  a node joins, slowest", milliseconds(worst), "≤ 3 s", worst <= Duration::from_secs(3));
    go.send_replace(true);
    runtime.shutdown_background();
    behind_mosquitto(table)
}

/// Measures how long new nodes wait for their Welcome behind mosquitto: without other nodes, and
/// beside the hostile one.
fn behind_mosquitto(table: &mut Table) -> anyhow::Result<()> {
    let site = Site::new()?;
    let endpoint = site.broker();
    let attacks = Arc::new([AtomicBool::new(false), AtomicBool::new(false)]);
    let sent = Arc::new(AtomicU64::new(0));
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build()?;
    let quiet = runtime.block_on(welcomes(&endpoint, "alone"))?;
    runtime.spawn(floods(endpoint.clone(), Arc::clone(&attacks), Arc::clone(&sent)));
    attacks[0].store(true, Ordering::Relaxed);
    until("the hostile node sends", || (sent.load(Ordering::Relaxed) > 0).then_some(()))?;
    let flooded = runtime.block_on(welcomes(&endpoint, "beside"))?;
    let slowest = |times: &[Duration]| times.iter().max().copied().unwrap_or_default();
    let shown =
        |times: &[Duration]| format!("{}, {}", milliseconds(middle(times)), milliseconds(slowest(times)));
    table.figure("behind mosquitto: a node is welcomed, p50 / slowest", shown(&quiet));
    let what = format!(
        "  beside a node that sends {:.0} MB of invented objects, p50 / slowest",
        sent.load(Ordering::Relaxed) as f64 / 1e6
    );
    let met = slowest(&flooded) <= slowest(&quiet) * 2 + Duration::from_millis(100);
    table.budget(&what, shown(&flooded), "slowest ≤ 2 × alone + 100 ms", met);
    runtime.shutdown_background();
    Ok(())
}

/// Connects nodes without objects, one after another. Returns their times from Hello to Welcome.
async fn welcomes(endpoint: &Endpoint, prefix: &str) -> anyhow::Result<Vec<Duration>> {
    let mut times = Vec::new();
    for number in 0..WELCOMES {
        let node = format!("{prefix}-{number}");
        let mut line = Line::open(endpoint, &node).await?;
        let epoch = Epoch(1 + u128::from(uuid::Uuid::new_v4().as_u64_pair().0));
        let hello =
            Hello { count: 0, digest: Digest::default(), revision: 0, ..hello(&node, "first", epoch) };
        let start = Instant::now();
        line.publish(&format!("edgesync/v1/nodes/{node}/up"), &Up::Hello(hello).encode(1024)?).await?;
        loop {
            let message = tokio::time::timeout(TIMEOUT, line.message()).await.context("no Welcome")??;
            let Some(payload) = message else { continue };
            let frame = Received::decode(&payload, &mut Budget::of(1 << 20), 1 << 23)?;
            if matches!(frame, Received::Welcome(_)) {
                break;
            }
        }
        times.push(start.elapsed());
    }
    Ok(times)
}

fn megabytes(bytes: u64) -> String {
    format!("{:.0} MB", bytes as f64 / 1e6)
}

fn milliseconds(time: Duration) -> String {
    format!("{:.1} ms", time.as_secs_f64() * 1e3)
}

fn middle(times: &[Duration]) -> Duration {
    let mut times = times.to_vec();
    times.sort();
    times.get(times.len() / 2).copied().unwrap_or_default()
}

fn show(table: &mut Table, what: &str, measured: &Measured) {
    let slowest = |times: &[Duration]| times.iter().max().copied().unwrap_or_default();
    table.figure(
        &format!("{what}: a change on all nodes, p50 / slowest"),
        format!("{}, {}", milliseconds(middle(&measured.changes)), milliseconds(slowest(&measured.changes))),
    );
    table.figure(
        "  a node connects, p50 / slowest",
        format!(
            "{}, {}",
            milliseconds(middle(&measured.connects)),
            milliseconds(slowest(&measured.connects))
        ),
    );
    table.figure(
        "  a node joins, p50 / slowest",
        format!("{}, {}", milliseconds(middle(&measured.joins)), milliseconds(slowest(&measured.joins))),
    );
}

/// Connects the good nodes, and waits until they are in sync.
async fn good_nodes(endpoint: &Endpoint, gone: &watch::Receiver<bool>) -> anyhow::Result<()> {
    let in_sync = Arc::new(AtomicUsize::new(0));
    for n in 0..NODES {
        let (endpoint, in_sync, gone) = (endpoint.clone(), Arc::clone(&in_sync), gone.clone());
        tokio::spawn(async move {
            let totals = Totals { epoch: Epoch(1 + n as u128), ..Totals::default() };
            let mut memory = Memory { totals, wanted: 1, ..Memory::default() };
            session(&format!("node-{n:03}"), &endpoint, &mut memory, &in_sync, gone).await
        });
    }
    let start = Instant::now();
    while in_sync.load(Ordering::Relaxed) < NODES {
        anyhow::ensure!(start.elapsed() < TIMEOUT, "the good nodes are not in sync");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    Ok(())
}

/// Repeatedly changes the object that all nodes hold.
async fn watch_changes(site: &FleetSite, shared: &Value, endpoint: &Endpoint) -> anyhow::Result<Measured> {
    let client = site.client();
    let mut measured = Measured { changes: Vec::new(), connects: Vec::new(), joins: Vec::new() };
    let joiner = tempfile::tempdir()?;
    let config = joiner.path().join("edge.toml");
    let path = joiner.path().display();
    std::fs::write(
        &config,
        format!(
            "[node]\nname = \"edge-1\"\n[store]\npath = \"{path}/edge.db\"\n[api]\nsocket = \"{path}/edge.sock\"\n"
        ),
    )?;
    for number in 0..CHANGES {
        let mut object: Value = client.get(&object_path(shared)).await?;
        object["data"] = json!({ "changed": format!("{number} {}", uuid::Uuid::new_v4()) });
        let start = Instant::now();
        let changed: Value = client.put(&object_path(shared), &object).await?;
        let version = changed["metadata"]["resourceVersion"].as_str().context("it has a version")?.to_owned();
        until_recorded(&client, shared, &version, start).await?;
        measured.changes.push(start.elapsed());
        let start = Instant::now();
        Line::open(endpoint, &format!("visitor-{number}")).await?;
        measured.connects.push(start.elapsed());
    }
    for _ in 0..JOINS {
        measured.joins.push(join(&config, &site.api(), site.joining())?);
    }
    Ok(measured)
}

/// Waits until all good nodes have reported a version.
async fn until_recorded(
    client: &Client,
    shared: &Value,
    version: &str,
    start: Instant,
) -> anyhow::Result<()> {
    // Records of the hostile node are in another namespace.
    let namespace = shared["metadata"]["namespace"].as_str().unwrap_or_default();
    let syncs = format!("/apis/reliablesyncs.kubeedge.io/v1alpha1/namespaces/{namespace}/objectsyncs");
    loop {
        let list: Value = client.get(&syncs).await?;
        let items = list["items"].as_array().map(Vec::as_slice).unwrap_or_default();
        let holds = |item: &&Value| item["status"]["objectResourceVersion"] == version;
        if items.iter().filter(holds).count() >= NODES {
            return Ok(());
        }
        anyhow::ensure!(start.elapsed() < TIMEOUT, "a change did not reach all nodes");
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}

/// The hostile node: sends Hello and then invented objects as fast as possible; reconnects when
/// disconnected.
async fn floods(endpoint: Endpoint, attacks: Arc<[AtomicBool; 2]>, sent: Arc<AtomicU64>) {
    for life in 0_u64.. {
        while !attacks[0].load(Ordering::Relaxed) {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        let _ = flood(&endpoint, life, &attacks[0], &sent).await;
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

async fn flood(
    endpoint: &Endpoint,
    life: u64,
    continues: &AtomicBool,
    sent: &AtomicU64,
) -> anyhow::Result<()> {
    const UP: &str = "edgesync/v1/nodes/hostile/up";
    let mut line = Line::open(endpoint, "hostile").await?;
    let session = format!("life-{life}");
    let hello = hello("hostile", &session, Epoch(1 << 64 | u128::from(life)));
    line.publish(UP, &Up::Hello(hello).encode(1024)?).await?;
    for page in 0_u64.. {
        if !continues.load(Ordering::Relaxed) {
            return Ok(());
        }
        let objects = (0..INVENTED).map(|n| invented(life << 32 | (page * INVENTED + n))).collect();
        let report =
            Report { session: session.clone(), from: page, to: page + 1, objects, ..Report::default() };
        let bytes = Up::Report(report).encode(usize::MAX)?;
        line.publish(UP, &bytes).await?;
        sent.fetch_add(bytes.len() as u64, Ordering::Relaxed);
        // The endpoint stops reading unless its messages are read.
        while let Ok(said) = tokio::time::timeout(Duration::from_millis(1), line.message()).await {
            said?;
        }
    }
    Ok(())
}

/// The Hello of a node with a million objects.
fn hello(node: &str, session: &str, epoch: Epoch) -> Hello {
    Hello {
        node: node.into(),
        agent: "bench".into(),
        session: session.to_owned(),
        epoch,
        revision: 1 << 40,
        confirmed: Some(0),
        count: 1_000_000,
        digest: Digest(7),
        incarnation: None,
        max_frame: DEFAULT_MAX_FRAME,
        max_object: DEFAULT_MAX_OBJECT,
        partial: None,
        patches: false,
        lease: None,
        metered: None,
    }
}

fn invented(number: u64) -> Item {
    let name = format!("invented-{number:x}");
    let object = ObjectRef {
        api_version: "v1".into(),
        kind: "ConfigMap".into(),
        namespace: "nobody".into(),
        name: name.as_str().into(),
    };
    Item { uid: name.into(), resource_version: ResourceVersion::from(1), object: Some(object) }
}

/// Opens connections to the endpoint and to the enrollment service, which stay idle.
async fn idles(addresses: [SocketAddr; 2], attacks: Arc<[AtomicBool; 2]>) {
    let mut open = std::collections::VecDeque::new();
    loop {
        tokio::time::sleep(Duration::from_millis(100)).await;
        if attacks[1].load(Ordering::Relaxed) {
            for address in addresses {
                for _ in 0..IDLE {
                    open.extend(TcpStream::connect(address).await);
                }
            }
            let most = 4000_usize;
            open.drain(..open.len().saturating_sub(most));
        }
    }
}
