//! Attacks of a local account of a device, and of modified files.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::time::Duration;

use edgesync_protocol::digest::{Digest, Epoch};
use edgesync_protocol::frame::{DEFAULT_MAX_FRAME, DEFAULT_MAX_OBJECT, Hello, Report, Up};
use serde_json::{Value, json};
use tokio::net::{TcpStream, UnixStream};
use tokio::sync::oneshot;
use tokio::time::{Instant, timeout};

use edgesync_testkit::site::fleet::{Fleet, in_sync};
use edgesync_testkit::site::{
    Agent, Cloud, Forger, PATIENCE, Site, config_map, eventually, same_on_both_sides,
};
use edgesync_testkit::timing::{assert_within, within};

/// Maximum duration of a request, on a busy machine.
const SECONDS: Duration = Duration::from_secs(10);

/// Shorter than the timeout of a local client's first request, so that waiting for idle connections
/// to expire fails the test.
const SOON: Duration = Duration::from_secs(8);
/// Idle connections at a time.
const IDLE: usize = 2600;

/// Returns the TCP address of the agent's API.
fn tcp(agent: &Agent) -> SocketAddr {
    let kubeconfig = std::fs::read_to_string(agent.database.with_file_name("kubeconfig")).unwrap();
    let server = kubeconfig.lines().find_map(|line| line.trim().strip_prefix("server: ")).unwrap();
    server.rsplit(['/', '@']).next().unwrap().parse().unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn idle_local_connections_leave_the_node_api_to_other_users() {
    let site = Site::new();
    let cloud = Cloud::start(&site).await;
    let agent = Agent::start(&site, "edge-1", cloud.mqtt).await;
    cloud.apply([config_map(1)]).await;
    same_on_both_sides(&cloud, &agent).await;
    let begun = Instant::now();
    let mut idle = (Vec::new(), Vec::new());
    for _ in 0..200 {
        idle.0.push(UnixStream::connect(&agent.socket).await.unwrap());
        idle.1.push(TcpStream::connect(tcp(&agent)).await.unwrap());
    }
    assert!(within("root's socket answers", SECONDS, agent.get(&config_map(1))).await.is_some());
    assert_within(begun.elapsed(), SOON);
}

/// Opens [`IDLE`] idle connections, and replaces each one that is closed.
async fn hold_idle_connections(addresses: [SocketAddr; 2], many: oneshot::Sender<()>) {
    let (mut idle, mut many) = (VecDeque::new(), Some(many));
    loop {
        for address in addresses {
            idle.extend(
                timeout(SECONDS, TcpStream::connect(address)).await.unwrap_or_else(|late| Err(late.into())),
            );
        }
        if idle.len() >= IDLE {
            idle.drain(..2);
            many.take().map(|many| many.send(()));
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn idle_connections_block_neither_joins_nor_sync() {
    let site = Site::new();
    let fleet = Fleet::embedded(&site, |_| {}).await;
    let mut good = fleet.device(&site, "edge-good").await;
    good.run_as_configured().await;
    in_sync(&good).await;
    let (many, came) = oneshot::channel();
    let idle = tokio::spawn(hold_idle_connections([fleet.cloud.mqtt, fleet.joining], many));
    within("the idle connections are open", PATIENCE, came).await.unwrap();
    let begun = Instant::now();
    let mut new = fleet.device(&site, "edge-new").await;
    new.run_as_configured().await;
    in_sync(&new).await;
    fleet.cloud.apply([config_map(1)]).await;
    for agent in [&good, &new] {
        same_on_both_sides(&fleet.cloud, agent).await;
    }
    assert_within(begun.elapsed(), 2 * SECONDS);
    assert_eq!(fleet.cloud.counters("edge-good").await.hellos, 1, "the good node has noticed");
    idle.abort();
}

#[tokio::test]
async fn events_of_local_programs_create_no_cloud_namespaces() {
    let site = Site::new();
    let cloud = Cloud::start(&site).await;
    let agent = Agent::start(&site, "edge-1", cloud.mqtt).await;
    let event = |namespace: &str, regarding: Value| {
        json!({
            "apiVersion": "events.k8s.io/v1", "kind": "Event", "metadata": { "name": "invented", "namespace": namespace },
            "eventTime": "2026-11-22T00:00:00.000000Z", "reportingController": "c", "reportingInstance": "i",
            "action": "A", "reason": "R", "type": "Normal", "regarding": regarding,
        })
    };
    let path = |namespace: &str| format!("/apis/events.k8s.io/v1/namespaces/{namespace}/events");
    let client = agent.client();
    for n in 0..20 {
        let namespace = format!("invented-{n}");
        let regarding = json!({ "kind": "ConfigMap", "namespace": namespace, "name": "m" });
        client.post::<Value>(&path(&namespace), &event(&namespace, regarding)).await.unwrap();
    }
    let regarding = json!({ "kind": "Node", "name": "edge-1" });
    client.post::<Value>(&path("default"), &event("default", regarding)).await.unwrap();
    eventually("what came last is in the cloud", PATIENCE, async || {
        cloud.client().get::<Value>(&format!("{}/invented", path("default"))).await.ok()
    })
    .await;
    let namespaces: Value = cloud.client().get("/api/v1/namespaces").await.unwrap();
    assert!(!namespaces.to_string().contains("invented"), "{namespaces}");
}

#[tokio::test]
async fn node_supplied_text_forges_no_log_lines() {
    const NODE: &str = "edge-rogue";
    let forged = "\r\n2026-11-22T00:00:00.000000Z  INFO forged: all is well message=forged \u{1b}[2J";
    let site = Site::new();
    let cloud = Cloud::start(&site).await;
    cloud.apply([config_map(1)]).await;
    let placed = cloud.get(&config_map(1)).await["metadata"].clone();
    let mut forger = Forger::start(NODE, cloud.mqtt, &format!("edgesync/v1/nodes/{NODE}/down")).await;
    let up = format!("edgesync/v1/nodes/{NODE}/up");
    let hello = Hello {
        node: NODE.into(),
        agent: forged.into(),
        session: "s".into(),
        epoch: Epoch(7),
        revision: 0,
        confirmed: None,
        count: 0,
        digest: Digest(0),
        incarnation: None,
        max_frame: DEFAULT_MAX_FRAME,
        max_object: DEFAULT_MAX_OBJECT,
        partial: None,
        patches: false,
        lease: None,
        metered: None,
    };
    forger.send(&up, &Up::Hello(hello).encode(1024).unwrap()).await;
    forger.receive().await;
    let rejected = json!([{ "uid": placed["uid"], "resourceVersion": placed["resourceVersion"], "reason": "Invalid", "message": forged }]);
    let mut report = serde_json::to_value(Report { session: "s".into(), ..Report::default() }).unwrap();
    report["type"] = "Report".into();
    report["protocol"] = 1.into();
    report["rejected"] = rejected;
    forger.send(&up, report.to_string().as_bytes()).await;
    let line = cloud.process.logged("all is well", 0).await;
    assert!(line.contains("rejected an object") && !line.contains('\u{1b}'), "{line}");
    assert!(!cloud.process.log().iter().any(|line| line.starts_with("2026-11-22T00:00:00.000000Z")));
}

#[tokio::test]
async fn agent_without_its_required_credential_refuses_to_start() {
    let site = Site::new();
    let cloud = Cloud::start(&site).await;
    let mut agent = Agent::new(&site, "edge-1", cloud.mqtt);
    let credentials = site.path("credentials");
    std::fs::create_dir(&credentials).unwrap();
    std::fs::write(credentials.join("edgesync-seal"), [7; 32]).unwrap();
    agent.process.env("CREDENTIALS_DIRECTORY", credentials.display());
    agent.settings.set("seal.require_credential", "true");
    agent.run().await;
    agent.stop().await;
    std::fs::rename(credentials.join("edgesync-seal"), site.path("elsewhere")).unwrap();
    agent.process.start();
    let status = agent.process.ended(PATIENCE).await;
    assert!(!status.success(), "{status}");
    agent.process.logged("`seal.require_credential` is set", 0).await;
    std::fs::rename(site.path("elsewhere"), credentials.join("edgesync-seal")).unwrap();
    agent.run().await;
    let seal = agent.status().await.store.seal;
    assert!(seal.as_ref().is_some_and(|seal| seal.wrapped), "{seal:?}");
}
