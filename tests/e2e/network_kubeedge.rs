//! A CloudCore behind networks that permit little: the device joins and syncs a change.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

use std::net::SocketAddr;
use std::path::Path;
use std::process::Output;

use edgesync_testkit::cloudcore::{Options, Scripted};
use edgesync_testkit::netns::{CLOUD, CLOUD_V6, Families, Networks, Side};
use edgesync_testkit::{haproxy, http_proxy, programs, site};
use http_proxy::Login;
use serde_json::{Value, json};
use site::fleet::{ended, output_text};
use site::{Agent, PATIENCE, Process, Settings, Site, eventually};
use tokio::net::{TcpStream, UnixListener};
use tokio::task::JoinSet;

use super::network::proxy_address;

const NODE: &str = "edge-1";
const HELD: &str = "/api/v1/namespaces/lab/configmaps/web-conf";

/// A CloudCore that a device reaches at port 443 of another network, by two names.
struct Plant {
    core: Scripted,
    site: Site,
    networks: Networks,
    _haproxy: Process,
    _relays: JoinSet<()>,
}

/// Passes connections to a Unix socket, which all networks reach, on to an address.
fn relay(relays: &mut JoinSet<()>, path: &Path, server: SocketAddr) {
    let listener = UnixListener::bind(path).unwrap();
    relays.spawn(async move {
        let mut open = JoinSet::new();
        while let Ok((mut client, _)) = listener.accept().await {
            open.spawn(async move {
                let Ok(mut server) = TcpStream::connect(server).await else { return };
                let _ = tokio::io::copy_bidirectional(&mut client, &mut server).await;
            });
        }
    });
}

impl Plant {
    /// Starts a CloudCore, and a haproxy at port 443 that passes TLS on to it by name; `None`, with
    /// a notice, if this machine permits no networks.
    async fn start(families: Families) -> Option<Self> {
        let networks = Networks::new(families)?;
        let (site, core, mut relays) = (Site::new(), Scripted::start(Options::default()), JoinSet::new());
        let (sessions, joins) = (site.path("sessions.sock"), site.path("joins.sock"));
        relay(&mut relays, &sessions, core.address());
        relay(&mut relays, &joins, core.join_address());
        let servers = [("core.example", &sessions), ("join.example", &joins)];
        let servers = servers.map(|(name, path)| (name, format!("unix@{}", path.display())));
        let address = match families {
            Families::Both => "0.0.0.0:443".to_owned(),
            Families::V6 => format!("[{CLOUD_V6}]:443"),
        };
        let config = site.path("haproxy.cfg");
        std::fs::write(&config, haproxy::by_name(&address, &servers)).unwrap();
        let arguments = ["-db", "-f", config.to_str().unwrap()];
        let haproxy = networks.start_listening("haproxy", &arguments, 443).await;
        Some(Self { core, site, networks, _haproxy: haproxy, _relays: relays })
    }

    /// Creates a device in its network, which has not joined.
    fn device(&self, change: impl FnOnce(&mut Settings)) -> Agent {
        let mut agent = Agent::new(&self.site, NODE, Site::address());
        agent.settings.remove("link.broker").text("lease.interval", "1s");
        // An address that answers nothing must not take longer than the rest of the test.
        agent.settings.text("link.connect_timeout", "5s");
        change(&mut agent.settings);
        agent.write_config();
        let config = agent.config().to_str().unwrap().to_owned();
        let arguments = ["run", "--config", config.as_str()];
        agent.process = self.networks.process(Side::Device, "the agent", programs::device(), &arguments);
        agent
    }

    async fn join(&self, agent: &Agent) -> Output {
        let mut command = self.networks.command(Side::Device, programs::device());
        command.args(["join", "--cloud", "https://join.example:443", "--node", NODE]);
        command.args(["--cloudcore", "wss://core.example:443", "--config"]).arg(agent.config());
        command.env("EDGESYNC_JOIN_TOKEN", self.core.token());
        ended(command).await
    }

    /// Joins a device, which then syncs a change.
    async fn joins_and_syncs(&self, agent: &mut Agent) {
        let output = self.join(agent).await;
        let text = output_text(&output);
        assert!(output.status.success() && text.contains("wss://core.example:443: connected"), "{text}");
        agent.run_as_configured().await;
        self.core.apply(json!({
            "apiVersion": "v1", "kind": "Pod", "metadata": {"name": "web", "namespace": "lab"},
            "spec": {
                "nodeName": NODE, "containers": [{"name": "c", "image": "registry.invalid/web:1"}],
                "volumes": [{"name": "v", "configMap": {"name": "web-conf"}}],
            },
        }));
        for value in ["1", "2"] {
            self.syncs(agent, value).await;
        }
        assert_eq!(self.core.violations(), Vec::<String>::new());
    }

    /// Changes an object, and waits until the device holds it.
    async fn syncs(&self, agent: &Agent, value: &str) {
        self.core.apply(json!({
            "apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "web-conf", "namespace": "lab"},
            "data": {"k": value},
        }));
        eventually(&format!("the device holds the value {value}"), PATIENCE, async || {
            let held: Value = agent.client().get(HELD).await.ok()?;
            (held["data"]["k"] == value).then_some(())
        })
        .await;
    }
}

#[tokio::test]
async fn only_port_443_serves_a_cloud_core_also_without_dns() {
    let Some(plant) = Plant::start(Families::Both).await else { return };
    plant.networks.set_hosts(&format!("{CLOUD} core.example join.example\n"));
    plant.networks.permit_only(443);
    let mut agent = plant.device(|_| {});
    plant.joins_and_syncs(&mut agent).await;
    agent.stop().await;
    plant.networks.set_hosts("");
    agent.run_as_configured().await;
    plant.syncs(&agent, "3").await;
    agent.process.logged("name does not resolve, using its last good address", 0).await;
}

#[tokio::test]
async fn only_ipv6_serves_a_cloud_core_past_a_dead_address() {
    let Some(plant) = Plant::start(Families::V6).await else { return };
    // The system prefers the first one: its prefix is the longer one of the device's address.
    plant.networks.set_hosts(&format!("2001:db8::3 core.example\n{CLOUD_V6} core.example join.example\n"));
    plant.joins_and_syncs(&mut plant.device(|_| {})).await;
}

#[tokio::test]
async fn only_an_http_proxy_serves_a_cloud_core() {
    let Some(plant) = Plant::start(Families::Both).await else { return };
    plant.networks.set_hosts(&format!("{CLOUD} core.example join.example\n"));
    let config = plant.site.path("tinyproxy.conf");
    std::fs::write(&config, http_proxy::tinyproxy(proxy_address(), 443, Login::None)).unwrap();
    let arguments = ["-d", "-c", config.to_str().unwrap()];
    let port = proxy_address().port();
    let _proxy = plant.networks.start_listening("tinyproxy", &arguments, port).await;
    plant.networks.permit_only(port);
    let mut agent = plant.device(|settings| {
        settings.text("link.proxy", format!("http://{}", proxy_address()));
    });
    plant.joins_and_syncs(&mut agent).await;
}
