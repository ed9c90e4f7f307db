//! Isolation of nodes: the reach of an enrolled or unknown client with every kind of credential,
//! against the embedded endpoint and against mosquitto with the configuration that the cloud side
//! prints.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

use edgesync_testkit::mosquitto;
use edgesync_testkit::site;
use std::net::SocketAddr;
use std::process::Command;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use edgesync_testkit::timing::within;
use edgesync_transport::link::{Cause, LinkEvent, LinkHandle};
use edgesync_transport::tls::{Certificate, Identity, Key, Trust};
use mosquitto::Mosquitto;
use site::fleet::{Caller, Fleet, ended, in_sync, mosquitto_files, output_text, stored};
use site::{Agent, PATIENCE, Site, config_map, eventually, steadily};
use tokio::sync::mpsc::Receiver;

/// A broker, the cloud behind it, and two nodes: the attacker `edge-a` and the victim `edge-b`.
struct Scene {
    site: Site,
    fleet: Fleet,
    mosquitto: Option<Mosquitto>,
    broker: SocketAddr,
    trust: Trust,
    own: Identity,
    victim: Agent,
    objects: AtomicUsize,
}

impl Scene {
    async fn embedded() -> Self {
        let site = Site::new();
        let fleet = Fleet::embedded(&site, |_| {}).await;
        let broker = fleet.cloud.mqtt;
        Self::with(site, fleet, None, broker).await
    }

    async fn mosquitto() -> Self {
        let site = Site::new();
        let broker = mosquitto::free_address();
        let fleet = Fleet::behind(&site, broker, |_| {}).await;
        mosquitto_files(&fleet, &site.path("mosquitto"), broker).await;
        let mosquitto = Mosquitto::start_from(broker, &site.path("mosquitto/mosquitto.conf"));
        Self::with(site, fleet, Some(mosquitto), broker).await
    }

    async fn with(site: Site, fleet: Fleet, mosquitto: Option<Mosquitto>, broker: SocketAddr) -> Self {
        let attacker = fleet.device(&site, "edge-a").await;
        let mut victim = fleet.device(&site, "edge-b").await;
        victim.run_as_configured().await;
        in_sync(&victim).await;
        let files = stored(&attacker);
        let objects = AtomicUsize::new(0);
        Self {
            trust: Trust::new(files.ca),
            own: files.identity,
            site,
            fleet,
            mosquitto,
            broker,
            victim,
            objects,
        }
    }

    fn call(
        &self,
        client_id: &str,
        username: Option<&str>,
        identity: Option<&Identity>,
        listens: &[String],
    ) -> (LinkHandle, Receiver<LinkEvent>) {
        let trust = Some(&self.trust);
        Caller { broker: self.broker, client_id, username, trust, identity, listens }.call()
    }

    /// Connects the attacker under its own name.
    async fn attacker(&self) -> (LinkHandle, Receiver<LinkEvent>) {
        let (link, mut events) = self.call("edge-a", None, Some(&self.own), &[topic("edge-a", "down")]);
        connected(&mut events).await;
        (link, events)
    }

    /// Checks that the victim stays connected and receives objects.
    async fn unharmed(&self, what: &str) {
        let connections = self.victim.status().await.link.connections;
        assert_eq!(connections, 1, "{what}: the victim was disconnected");
        let object = config_map(self.objects.fetch_add(1, Ordering::Relaxed));
        self.fleet.cloud.apply([object.clone()]).await;
        eventually(what, PATIENCE, async || self.victim.get(&object).await).await;
    }
}

fn topic(node: &str, last: &str) -> String {
    format!("edgesync/v1/nodes/{node}/{last}")
}

async fn next(events: &mut Receiver<LinkEvent>) -> LinkEvent {
    within("an event comes", PATIENCE, events.recv()).await.expect("the link has ended")
}

async fn connected(events: &mut Receiver<LinkEvent>) {
    match next(events).await {
        LinkEvent::Connected { .. } => {}
        other => panic!("{other:?} instead of a connection"),
    }
}

/// Returns the cause of a refused connection.
async fn refusal(events: &mut Receiver<LinkEvent>) -> Cause {
    match next(events).await {
        LinkEvent::Disconnected { cause, .. } => cause,
        other => panic!("{other:?} instead of a refusal"),
    }
}

async fn assert_publishes_nowhere_else(scene: &Scene) {
    for target in [
        topic("edge-b", "up"),
        topic("edge-b", "presence"),
        topic("edge-b", "down"),
        topic("edge-a", "down"),
        "edgesync/v1/cloud".to_owned(),
        "anything".to_owned(),
    ] {
        let (link, mut events) = scene.attacker().await;
        link.try_publish(&target, b"{}".to_vec(), true).unwrap();
        // Refused as a message, or with the whole connection.
        match next(&mut events).await {
            LinkEvent::Rejected { topic, .. } => assert_eq!(topic, target),
            LinkEvent::Disconnected { cause, .. } => {
                assert!(matches!(cause, Cause::NotAuthorized { .. } | Cause::Closed), "{target}: {cause}");
            }
            other => panic!("{target}: {other:?}"),
        }
    }
    scene.unharmed("publishing elsewhere").await;
}

async fn assert_receives_nothing_else(scene: &Scene) {
    for filter in [
        topic("edge-b", "down"),
        topic("edge-b", "up"),
        topic("edge-b", "presence"),
        topic("edge-b", "#"),
        topic("+", "down"),
        "edgesync/v1/nodes/#".to_owned(),
        "edgesync/#".to_owned(),
        "#".to_owned(),
        "$share/all/edgesync/v1/nodes/edge-b/down".to_owned(),
    ] {
        let (_link, mut events) = scene.call("edge-a", None, Some(&scene.own), std::slice::from_ref(&filter));
        match next(&mut events).await {
            LinkEvent::Disconnected { cause: Cause::SubscriptionRefused { .. }, .. } => {}
            // mosquitto grants every subscription, but delivers only readable topics.
            LinkEvent::Connected { .. } if scene.mosquitto.is_some() => {
                assert_receives_only_its_own(scene, &mut events, &filter).await;
            }
            other => panic!("{filter}: {other:?}"),
        }
    }
}

/// Checks that no message to the victim arrives here.
async fn assert_receives_only_its_own(scene: &Scene, events: &mut Receiver<LinkEvent>, filter: &str) {
    scene.unharmed(&format!("listening {}", filter.len())).await;
    while let Ok(event) = events.try_recv() {
        if let LinkEvent::Message { topic, .. } = event {
            assert!(
                topic.starts_with("edgesync/v1/nodes/edge-a/") || topic == "edgesync/v1/cloud",
                "{filter}: {topic}"
            );
        }
    }
}

/// Uses A's certificate with B's name as client id or user: the broker refuses it or treats it as
/// A.
async fn assert_forged_names_are_refused(scene: &Scene) {
    for (client_id, username) in [("edge-b", None), ("edge-a", Some("edge-b")), ("edge-b", Some("edge-b"))] {
        let (link, mut events) =
            scene.call(client_id, username, Some(&scene.own), &[topic("edge-a", "down")]);
        if let LinkEvent::Connected { .. } = next(&mut events).await {
            link.try_publish(&topic("edge-b", "up"), b"{}".to_vec(), false).unwrap();
            let refused = next(&mut events).await;
            assert!(
                matches!(refused, LinkEvent::Rejected { .. } | LinkEvent::Disconnected { .. }),
                "{refused:?}"
            );
        }
    }
    scene.unharmed("a forged name").await;
}

/// Connects without a certificate, with one of another authority, and without TLS.
async fn assert_unknown_clients_are_refused(scene: &Scene) {
    let foreign = foreign("edge-b");
    for identity in [None, Some(&foreign)] {
        let (_link, mut events) = scene.call("edge-b", Some("edge-b"), identity, &[topic("edge-b", "down")]);
        let cause = refusal(&mut events).await;
        assert!(matches!(cause, Cause::Tls { .. }), "{identity:?}: {cause:?}");
    }
    let plain = Caller {
        broker: scene.broker,
        client_id: "edge-b",
        username: None,
        trust: None,
        identity: None,
        listens: &[],
    };
    let (_link, mut events) = plain.call();
    refusal(&mut events).await;
    scene.unharmed("who is no node").await;
}

/// Checks that a frame on the own topic which names another node is refused and counted.
async fn assert_foreign_frames_are_counted(scene: &Scene) {
    let (link, _events) = scene.attacker().await;
    let hello = br#"{"type":"Hello","protocol":1,"node":"edge-b","agent":"x","session":"s","epoch":"00000000000000000000000000000001","revision":0,"count":0,"digest":"00000000000000000000000000000000","maxFrame":65536,"maxObject":65536}"#;
    link.try_publish(&topic("edge-a", "up"), hello.to_vec(), false).unwrap();
    eventually("the frame is counted", PATIENCE, async || {
        (*scene.fleet.cloud.bad_frames().await.get("node")? > 0).then_some(())
    })
    .await;
    scene.unharmed("another name in a frame").await;
}

/// Checks that the connection with a revoked certificate ends or is ignored, and that a new one is
/// refused.
async fn assert_revoked_node_is_refused(scene: &mut Scene) {
    let (link, mut events) = scene.attacker().await;
    let output = scene.fleet.command(&["node", "revoke", "edge-a"]).await;
    assert!(
        output.status.success() && output_text(&output).contains("1 certificate revoked"),
        "{}",
        output_text(&output)
    );
    if let Some(mosquitto) = &mut scene.mosquitto {
        link.try_publish(&topic("edge-a", "up"), b"{}".to_vec(), false).unwrap();
        eventually("it is not listened to", PATIENCE, async || {
            (*scene.fleet.cloud.bad_frames().await.get("revoked")? > 0).then_some(())
        })
        .await;
        // The operator installs the new revocation list.
        let renewed = scene.site.path("renewed");
        mosquitto_files(&scene.fleet, &renewed, scene.broker).await;
        std::fs::copy(renewed.join("revoked.crl"), scene.site.path("mosquitto/revoked.crl")).unwrap();
        mosquitto.restart();
    }
    loop {
        match next(&mut events).await {
            LinkEvent::Disconnected { cause: Cause::Tls { .. }, .. } => break,
            LinkEvent::Disconnected { .. } => {}
            other => panic!("{other:?}"),
        }
    }
    steadily("it stays out", Duration::from_millis(500), async || {
        while let Ok(event) = events.try_recv() {
            if !matches!(event, LinkEvent::Disconnected { .. }) {
                return false;
            }
        }
        true
    })
    .await;
    // Neither a renewal nor an old token enrolls the node again; a new token does.
    let device = scene.fleet.new_device(&scene.site, "edge-a");
    let token = scene.fleet.token(&["--node", "edge-a"]).await;
    let output = scene.fleet.join(&device, &token, &["--force"]).await;
    assert!(output.status.success(), "{}", output_text(&output));
}

/// Issues a node certificate from an unknown authority.
fn foreign(node: &str) -> Identity {
    use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair};
    let mut ca = CertificateParams::new(Vec::new()).unwrap();
    ca.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let issuer = Issuer::new(ca, KeyPair::generate().unwrap());
    let mut params = CertificateParams::new(Vec::new()).unwrap();
    params.distinguished_name.push(DnType::CommonName, node);
    params.distinguished_name.push(DnType::OrganizationName, edgesync_transport::tls::NODES);
    let key = KeyPair::generate().unwrap();
    let certificate = params.signed_by(&key, &issuer).unwrap();
    let chain = vec![Certificate::from_der("the test's", certificate.der()).unwrap()];
    Identity::new("the test's", chain, Key::from_pem("the test's", &key.serialize_pem()).unwrap()).unwrap()
}

async fn all(mut scene: Scene) {
    assert_publishes_nowhere_else(&scene).await;
    assert_receives_nothing_else(&scene).await;
    assert_forged_names_are_refused(&scene).await;
    assert_unknown_clients_are_refused(&scene).await;
    assert_foreign_frames_are_counted(&scene).await;
    assert_revoked_node_is_refused(&mut scene).await;
}

#[tokio::test]
async fn embedded_endpoint_isolates_nodes_from_each_other() {
    all(Scene::embedded().await).await;
}

#[tokio::test]
async fn mosquitto_isolates_nodes_from_each_other() {
    all(Scene::mosquitto().await).await;
}

/// The image has no tar, so `kubectl cp` copies no files out of a Pod.
#[tokio::test]
async fn printed_files_of_a_broker_are_split_as_documented() {
    let site = Site::new();
    let broker = mosquitto::free_address();
    let fleet = Fleet::behind(&site, broker, |_| {}).await;
    let directory = site.path("broker");
    let (installed, name) = (directory.to_str().unwrap(), broker.ip().to_string());
    let port = broker.port().to_string();
    let words = ["broker-config", "mosquitto", "--installed", installed, "--name", &name, "--port", &port];
    let printed = fleet.command(&words).await;
    assert!(printed.status.success(), "{}", output_text(&printed));

    std::fs::write(site.path("printed"), &printed.stdout).unwrap();
    std::fs::create_dir(&directory).unwrap();
    let document = include_str!("../../docs/kubernetes.md");
    let split = document.lines().find(|line| line.trim_start().starts_with("awk '")).unwrap();
    let mut shell = Command::new("sh");
    shell.args(["-c", &format!("{split} <printed")]).current_dir(directory.parent().unwrap());
    let output = ended(shell).await;
    assert!(output.status.success(), "{}", output_text(&output));
    let _mosquitto = Mosquitto::start_from(broker, &directory.join("mosquitto.conf"));
    let mut agent = fleet.device(&site, "edge-1").await;
    agent.run_as_configured().await;
    in_sync(&agent).await;
}
