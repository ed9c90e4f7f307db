//! The generated files for an external broker, with a real mosquitto and its clients.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

use std::path::PathBuf;
use std::time::Duration;

use edgesync_cloud_store::{CloudOptions, CloudStore};
use edgesync_enrollment::broker_config::{BrokerConfig, Flavor, files};
use edgesync_enrollment::{EnrollmentOptions, EnrollmentRole, EnrollmentService};
use edgesync_object::Labels;
use edgesync_testkit::fleet::node_name;
use edgesync_testkit::mosquitto::{Mosquitto, client, free_address};
use edgesync_testkit::timing::PATIENCE;
use edgesync_transport::tls::{Identity, Key};

const HOUR: Duration = Duration::from_secs(3600);

/// An enrollment service with its CA, and a mosquitto that runs with the generated files.
struct Scene {
    // Ends before the directory that it uses.
    broker: Mosquitto,
    service: EnrollmentService,
    dir: tempfile::TempDir,
}

impl Scene {
    async fn new() -> Self {
        let (dir, service) = enrollment().await;
        let address = free_address();
        let directory = dir.path().join("broker");
        std::fs::create_dir(&directory).unwrap();
        let config = BrokerConfig {
            flavor: Flavor::Mosquitto,
            directory: directory.to_str().unwrap().into(),
            names: vec![address.ip().to_string(), "broker.example".into()],
            port: address.port(),
            prefix: "edgesync/v1".into(),
            max_packet: (256 << 10) + 2048,
        };
        for (name, content) in files(&service, &config).unwrap() {
            std::fs::write(directory.join(name), content).unwrap();
        }
        let broker = Mosquitto::start_from(address, &directory.join("mosquitto.conf"));
        Self { broker, service, dir }
    }

    /// Returns the path of a file that the broker reads.
    fn file(&self, name: &str) -> PathBuf {
        self.dir.path().join("broker").join(name)
    }

    /// Runs a client of mosquitto. Returns whether it succeeded, and its output.
    fn client(&self, program: &str, identity: Option<&Identity>, arguments: &[&str]) -> (bool, String) {
        let (ca, pem) = (self.file("ca.crt"), tempfile::NamedTempFile::new_in(self.dir.path()).unwrap());
        let (ca, path) = (ca.to_str().unwrap(), pem.path().to_str().unwrap());
        let mut all = vec!["--cafile", ca];
        if let Some(identity) = identity {
            std::fs::write(pem.path(), identity.to_pem()).unwrap();
            all.extend(["--cert", path, "--key", path]);
        }
        all.extend(arguments);
        let (code, output, errors) = client(program, self.broker.address(), &all);
        (code == Some(0), output + &errors)
    }

    /// Publishes with QoS 1 and returns whether the broker allowed it.
    fn publishes(&self, identity: &Identity, more: &[&str], topic: &str) -> bool {
        let message = ["-q", "1", "-t", topic, "-m", topic];
        let (_, text) = self.client("mosquitto_pub", Some(identity), &[&message[..], more].concat());
        let refused = text.contains("Not authorized");
        assert!(refused || text.is_empty(), "{topic}: {text}");
        !refused
    }

    /// Returns whether a client with this certificate can connect.
    fn connects(&self, identity: Option<&Identity>) -> bool {
        self.client("mosquitto_pub", identity, &["-t", "x", "-m", "x"]).0
    }

    /// Reads up to `count` retained messages of these topics.
    fn reads(&self, identity: &Identity, topics: &[&str], count: usize) -> String {
        let (count, limit) = (count.to_string(), PATIENCE.as_secs().to_string());
        let mut arguments = vec!["-W", limit.as_str(), "-C", count.as_str(), "-F", "%p"];
        arguments.extend(topics.iter().flat_map(|topic| ["-t", topic]));
        self.client("mosquitto_sub", Some(identity), &arguments).1
    }
}

/// Opens an enrollment service in a new directory.
async fn enrollment() -> (tempfile::TempDir, EnrollmentService) {
    let dir = tempfile::tempdir().unwrap();
    let store = CloudStore::open(&dir.path().join("cloud.db"), &CloudOptions::default()).unwrap();
    let options = EnrollmentOptions {
        directory: dir.path().join("pki"),
        names: vec!["cloud.example".into()],
        broker: "mqtts://:8883".into(),
        brokers: Vec::new(),
        prefix: "edgesync/v1".into(),
        lifetime: HOUR,
        grace: HOUR,
        external: false,
        role: EnrollmentRole::Whole,
    };
    let service = EnrollmentService::open(options, store).await.unwrap();
    (dir, service)
}

/// Joins a node with a new token.
async fn joined(service: &EnrollmentService, node: &str) -> Identity {
    let node = &node_name(node);
    let token = service.enrollment().create_token(Some(node), HOUR, 1, Labels::new()).await.unwrap().token;
    let (_, bearer) = token.split_once('.').unwrap();
    let key = Key::generate().unwrap();
    let certificate = service.join(bearer, node, &key.node_request(node).unwrap()).await.unwrap();
    Identity::new("the answer", vec![certificate], key).unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn mosquitto_identifies_nodes_by_their_certificates() {
    let scene = Scene::new().await;
    let (a, b) = (joined(&scene.service, "edge-a").await, joined(&scene.service, "edge-b").await);
    let cloud = scene.service.cloud_identity().unwrap();
    let topic = |end: &str| format!("edgesync/v1/{end}");
    let forged: &[&str] = &["-i", "edge-b"];
    let cases: &[(&Identity, &[&str], &str, bool)] = &[
        (&a, &[], "nodes/edge-a/up", true),
        (&a, &["-r"], "nodes/edge-a/presence", true),
        (&a, &[], "nodes/edge-a/down", false),
        (&a, &[], "nodes/edge-b/up", false),
        (&a, forged, "nodes/edge-b/up", false),
        (&a, &["-u", "edge-b"], "nodes/edge-b/up", false),
        (&a, forged, "nodes/edge-a/up", true),
        (&a, &["-r"], "nodes/edge-b/presence", false),
        (&a, &["-r"], "cloud", false),
        (&a, &[], "nodes/edge-a/up/more", false),
        (&b, &["-r"], "nodes/edge-b/presence", true),
        (&cloud, &["-r"], "nodes/edge-a/down", true),
        (&cloud, &["-r"], "nodes/edge-b/down", true),
        (&cloud, &["-r"], "cloud", true),
        (&cloud, &[], "nodes/edge-a/up", false),
        (&cloud, &[], "nodes/edge-a/presence", false),
    ];
    for &(who, more, end, allowed) in cases {
        assert_eq!(scene.publishes(who, more, &topic(end)), allowed, "{end} {more:?}");
    }
    // Retained messages of others arrive first, if at all.
    let foreign = [
        topic("nodes/edge-b/down"),
        topic("nodes/edge-b/presence"),
        topic("nodes/+/presence"),
        topic("cloud"),
    ];
    let foreign: Vec<&str> = foreign.iter().map(String::as_str).collect();
    let read = scene.reads(&a, &foreign, 2);
    assert_eq!(read, format!("{}\n{}\n", topic("nodes/edge-a/presence"), topic("cloud")));
    let read = scene.reads(&a, &[&topic("nodes/+/down")], 1);
    assert_eq!(read, topic("nodes/edge-a/down\n"));
    let read = scene.reads(&cloud, &[&topic("nodes/+/presence"), &topic("cloud")], 3);
    for end in ["nodes/edge-a/presence", "nodes/edge-b/presence", "cloud"] {
        assert!(read.contains(&topic(end)), "{read}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn mosquitto_requires_an_unrevoked_certificate_of_this_ca() {
    let scene = Scene::new().await;
    let (a, b) = (joined(&scene.service, "edge-a").await, joined(&scene.service, "edge-b").await);
    let (_elsewhere, other) = enrollment().await;
    let foreign = joined(&other, "edge-a").await;
    let own = ["server.crt", "server.key"].map(|name| std::fs::read_to_string(scene.file(name)).unwrap());
    let server = Identity::from_pem("the broker", &own.concat()).unwrap();
    assert!(scene.connects(Some(&a)) && scene.connects(Some(&b)));
    assert!(!scene.connects(None));
    assert!(!scene.connects(Some(&foreign)));
    assert!(!scene.connects(Some(&server)), "a server is no client");
    scene.service.revoke_node(&node_name("edge-a")).await.unwrap();
    std::fs::write(scene.file("revoked.crl"), scene.service.revocation_list().unwrap()).unwrap();
    scene.broker.reload();
    assert!(!scene.connects(Some(&a)));
    assert!(scene.connects(Some(&b)));
    let again = joined(&scene.service, "edge-a").await;
    assert!(scene.connects(Some(&again)));
}
