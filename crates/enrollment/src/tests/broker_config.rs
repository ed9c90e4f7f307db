//! The generated files, run with a real mosquitto.

use super::*;
use crate::broker_config::{BrokerConfig, Flavor, files};
use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};

// The tests of this crate do not build the rest of the kit.
#[allow(dead_code, unreachable_pub, reason = "a part of the kit")]
#[path = "../../../testkit/src/mosquitto.rs"]
mod support;

const INSTALL: &str = "mosquitto is needed for this test: apt-get install mosquitto mosquitto-clients";

fn broker_config(flavor: Flavor, directory: &Path, address: SocketAddr) -> BrokerConfig {
    BrokerConfig {
        flavor,
        directory: directory.to_str().unwrap().into(),
        names: vec![address.ip().to_string(), "broker.example".into()],
        port: address.port(),
        prefix: "edgesync/v1".into(),
        max_packet: (256 << 10) + 2048,
    }
}

/// A mosquitto that runs with the generated files, except for its address. Killed when dropped.
struct Broker {
    address: SocketAddr,
    directory: PathBuf,
    child: Child,
    log: Receiver<String>,
}

impl Broker {
    fn start(fixture: &Fixture) -> Self {
        let directory = fixture.dir.path().join("broker");
        std::fs::create_dir(&directory).unwrap();
        let address = support::free_address();
        let port = address.port();
        for (name, content) in
            files(&fixture.service, &broker_config(Flavor::Mosquitto, &directory, address)).unwrap()
        {
            let listen = format!("listener {port} {}", address.ip());
            let content = content.replace(&format!("listener {port}"), &listen);
            std::fs::write(directory.join(name), content).unwrap();
        }
        let config = directory.join("mosquitto.conf");
        // Started as root it would switch to a user who cannot read the directory of the test.
        let more = std::fs::read_to_string(&config).unwrap() + "user root\n";
        std::fs::write(&config, more).unwrap();
        let mut child = Command::new("mosquitto")
            .arg("-c")
            .arg(config)
            .env("PATH", format!("{}:/usr/sbin:/usr/local/sbin", std::env::var("PATH").unwrap_or_default()))
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .expect(INSTALL);
        let lines = BufReader::new(child.stderr.take().unwrap()).lines();
        let (sender, log) = channel();
        std::thread::spawn(move || {
            lines.map_while(std::result::Result::ok).try_for_each(|line| sender.send(line))
        });
        let broker = Self { address, directory, child, log };
        broker.wait_for(" running");
        broker
    }

    /// Reads the log up to a line with these words.
    fn wait_for(&self, words: &str) {
        let mut seen = Vec::new();
        while !seen.last().is_some_and(|line: &String| line.contains(words)) {
            match self.log.recv_timeout(Duration::from_secs(20)) {
                Ok(line) => seen.push(line),
                Err(_) => panic!("mosquitto does not say {words:?}: {seen:#?}"),
            }
        }
    }

    /// Runs a client of mosquitto. Returns whether it succeeded, and its output.
    fn client(&self, program: &str, identity: Option<&Identity>, arguments: &[&str]) -> (bool, String) {
        let mut command = support::client_command(program, self.address, arguments);
        command.arg("--cafile").arg(self.directory.join("ca.crt"));
        let pem = tempfile::NamedTempFile::new_in(&self.directory).unwrap();
        if let Some(identity) = identity {
            std::fs::write(pem.path(), identity.to_pem()).unwrap();
            command.arg("--cert").arg(pem.path()).arg("--key").arg(pem.path());
        }
        let output = command.output().expect(INSTALL);
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        (output.status.success(), text(&output.stdout) + &text(&output.stderr))
    }

    /// Publishes with QoS 1 and returns whether the broker allowed it.
    fn publishes(&self, identity: &Identity, more: &[&str], topic: &str) -> bool {
        let message = ["-q", "1", "-t", topic, "-m", topic];
        let (_, text) = self.client("mosquitto_pub", Some(identity), &[&message[..], more].concat());
        let refused = text.contains("Not authorized");
        assert!(refused || text.is_empty(), "{topic}: {text}");
        !refused
    }

    /// Whether a client with this certificate can connect.
    fn connects(&self, identity: Option<&Identity>) -> bool {
        self.client("mosquitto_pub", identity, &["-t", "x", "-m", "x"]).0
    }

    /// Reads up to `count` retained messages of these topics.
    fn reads(&self, identity: &Identity, topics: &[&str], count: usize) -> String {
        let count = count.to_string();
        let mut arguments = vec!["-W", "20", "-C", count.as_str(), "-F", "%p"];
        arguments.extend(topics.iter().flat_map(|topic| ["-t", topic]));
        self.client("mosquitto_sub", Some(identity), &arguments).1
    }
}

impl Drop for Broker {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn mosquitto_identifies_nodes_by_their_certificates() {
    let fixture = fixture().await;
    let (a, b) = (fixture.joined("edge-a").await, fixture.joined("edge-b").await);
    let cloud = fixture.service.cloud_identity().unwrap();
    let broker = Broker::start(&fixture);
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
        assert_eq!(broker.publishes(who, more, &topic(end)), allowed, "{end} {more:?}");
    }
    // Retained messages of others arrive first, if at all.
    let foreign = [
        topic("nodes/edge-b/down"),
        topic("nodes/edge-b/presence"),
        topic("nodes/+/presence"),
        topic("cloud"),
    ];
    let foreign: Vec<&str> = foreign.iter().map(String::as_str).collect();
    let read = broker.reads(&a, &foreign, 2);
    assert_eq!(read, format!("{}\n{}\n", topic("nodes/edge-a/presence"), topic("cloud")));
    let read = broker.reads(&a, &[&topic("nodes/+/down")], 1);
    assert_eq!(read, topic("nodes/edge-a/down\n"));
    let read = broker.reads(&cloud, &[&topic("nodes/+/presence"), &topic("cloud")], 3);
    for end in ["nodes/edge-a/presence", "nodes/edge-b/presence", "cloud"] {
        assert!(read.contains(&topic(end)), "{read}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn mosquitto_requires_an_unrevoked_certificate_of_this_ca() {
    let fixture = fixture().await;
    let (a, b) = (fixture.joined("edge-a").await, fixture.joined("edge-b").await);
    let foreign = self::fixture().await.joined("edge-a").await;
    let broker = Broker::start(&fixture);
    assert!(broker.connects(Some(&a)) && broker.connects(Some(&b)));
    assert!(!broker.connects(None));
    assert!(!broker.connects(Some(&foreign)));
    assert!(!broker.connects(Some(&fixture.service.server_identity())), "a server is no client");
    fixture.service.revoke_node(&node_name("edge-a")).await.unwrap();
    std::fs::copy(fixture.file("revoked.crl"), broker.directory.join("revoked.crl")).unwrap();
    let hangup = Command::new("kill").args(["-HUP", &broker.child.id().to_string()]).status().unwrap();
    assert!(hangup.success());
    broker.wait_for("Reloading config");
    assert!(!broker.connects(Some(&a)));
    assert!(broker.connects(Some(&b)));
    let again = fixture.joined("edge-a").await;
    assert!(broker.connects(Some(&again)));
}

#[tokio::test]
async fn files_for_emqx_name_all_generated_files() {
    let fixture = fixture().await;
    let config =
        broker_config(Flavor::Emqx, Path::new("/etc/emqx/edgesync"), "127.0.0.1:8883".parse().unwrap());
    let files = files(&fixture.service, &config).unwrap();
    let names: Vec<_> = files.keys().map(String::as_str).collect();
    assert_eq!(names, ["acl.conf", "ca.crt", "emqx.conf", "revoked.crl", "server.crt", "server.key"]);
    let config = &files["emqx.conf"];
    for words in
        ["peer_cert_as_username = cn", "no_match = deny", "fail_if_no_peer_cert = true", "not tested"]
    {
        assert!(config.contains(words), "{words}");
    }
    assert_eq!(config.matches('{').count(), config.matches('}').count());
    assert!(files["acl.conf"].contains("{allow, all, publish, [\"edgesync/v1/nodes/${username}/up\""));
    assert!(files["acl.conf"].trim_end().ends_with("{deny, all}."));
}

#[tokio::test]
async fn values_with_a_meaning_in_the_files_are_refused() {
    let fixture = fixture().await;
    let good = broker_config(Flavor::Mosquitto, Path::new("/etc/m"), "127.0.0.1:8883".parse().unwrap());
    assert!(files(&fixture.service, &good).is_ok());
    for bad in [
        BrokerConfig { directory: "/etc/a\nallow_anonymous true".into(), ..good.clone() },
        BrokerConfig { directory: "relative".into(), ..good.clone() },
        BrokerConfig { prefix: "a\npattern write #".into(), ..good.clone() },
        BrokerConfig { prefix: "a/%u".into(), ..good.clone() },
        BrokerConfig { prefix: String::new(), ..good.clone() },
        BrokerConfig { names: Vec::new(), ..good.clone() },
        BrokerConfig { names: vec!["a b".into()], ..good.clone() },
        BrokerConfig { port: 0, ..good.clone() },
    ] {
        assert_eq!(files(&fixture.service, &bad).unwrap_err().code, 400, "{bad:?}");
    }
}
