//! Networks that permit little, in namespaces of their own: real programs join and sync, or name
//! the obstacle.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

use std::net::SocketAddr;
use std::process::Output;

use edgesync_testkit::authority::{Authority, HOUR};
use edgesync_testkit::netns::{CLOUD, CLOUD_V6, Families, Networks, Side};
use edgesync_testkit::{haproxy, programs, site};
use site::fleet::{Fleet, ended, in_sync, output_text};
use site::{Agent, Cloud, PATIENCE, Process, Settings, Site, config_map, eventually, same_on_both_sides};

const NAME: &str = "cloud.example";
/// Port of the cloud side behind a proxy that has port 443.
const BEHIND: u16 = 10443;

/// A cloud side and its devices in two networks that a cable joins.
struct Plant {
    fleet: Fleet,
    site: Site,
    networks: Networks,
}

impl Plant {
    /// Starts a cloud side with one port for all services, and the endpoint's own; `None`, with a
    /// notice, if this machine permits no networks.
    async fn start(families: Families, change: impl FnOnce(&mut Settings)) -> Option<Self> {
        let networks = Networks::new(families)?;
        let site = Site::new();
        let mut cloud = Cloud::new(&site);
        cloud.settings.text("listen.address", ":443").set("enrollment.names", &format!("[\"{NAME}\"]"));
        cloud.settings.text("broker.listen", "0.0.0.0:8883");
        cloud.settings.text("api.listen", "off").text("enrollment.listen", "off");
        change(&mut cloud.settings);
        let config = site.path("cloud.toml");
        let arguments = ["run", "--config", config.to_str().unwrap()];
        cloud.process = networks.process(Side::Cloud, "the cloud side", programs::cloud(), &arguments);
        cloud.run().await;
        let fleet = Fleet { cloud, joining: SocketAddr::from(([192, 0, 2, 1], 443)) };
        Some(Self { fleet, site, networks })
    }

    /// Creates a device in its network, which has not joined.
    fn device(&self, node: &str) -> Agent {
        let mut agent = self.fleet.new_device(&self.site, node);
        // An address that answers nothing must not take longer than the rest of the test.
        agent.settings.text("link.connect_timeout", "5s");
        agent.write_config();
        let config = agent.config().to_str().unwrap().to_owned();
        let arguments = ["run", "--config", config.as_str()];
        let name = format!("the agent of {node}");
        agent.process = self.networks.process(Side::Device, &name, programs::device(), &arguments);
        agent
    }

    /// Runs `edgesync join` of a device at port 443 of a host.
    async fn join(&self, agent: &Agent, host: &str) -> Output {
        let token = self.fleet.token(&["--node", &agent.node]).await;
        let mut command = self.networks.command(Side::Device, programs::device());
        let cloud = format!("https://{host}:443");
        command.args(["join", "--cloud", &cloud, "--node", &agent.node, "--config"]).arg(agent.config());
        command.env("EDGESYNC_JOIN_TOKEN", token);
        ended(command).await
    }

    /// Joins a device, which then syncs a change over this address of the broker.
    async fn joins_and_syncs(&self, agent: &mut Agent, host: &str, broker: &str) {
        let output = self.join(agent, host).await;
        let text = output_text(&output);
        assert!(output.status.success() && text.contains(&format!("{broker}: connected")), "{text}");
        agent.run_as_configured().await;
        in_sync(agent).await;
        self.fleet.cloud.apply([config_map(1)]).await;
        assert_eq!(same_on_both_sides(&self.fleet.cloud, agent).await, 1);
        assert_eq!(agent.status().await.link.broker, broker);
    }

    /// Starts a haproxy at port 443 of the cloud's network.
    async fn haproxy(&self, config: &str) -> Process {
        let path = self.site.path("haproxy.cfg");
        std::fs::write(&path, config).unwrap();
        let arguments = ["-db", "-f", path.to_str().unwrap()];
        let mut process = self.networks.process(Side::Cloud, "haproxy", "haproxy", &arguments);
        process.start();
        eventually("haproxy, of its package, listens", PATIENCE, async || {
            assert!(process.runs(), "haproxy ended: {:?}", process.log());
            self.networks.has_listener(Side::Cloud, 443).then_some(())
        })
        .await;
        process
    }
}

fn behind() -> SocketAddr {
    SocketAddr::from(([127, 0, 0, 1], BEHIND))
}

#[tokio::test]
async fn only_port_443_serves_join_and_sync() {
    let Some(plant) = Plant::start(Families::Both, |_| {}).await else { return };
    plant.networks.set_hosts(&format!("{CLOUD} {NAME}\n"));
    plant.networks.permit_port_443_only();
    let mut agent = plant.device("edge-1");
    // The first address of the broker, at port 8883, answers nothing.
    plant.joins_and_syncs(&mut agent, NAME, "mqtts://cloud.example:443").await;
    let mut check = plant.networks.command(Side::Device, programs::device());
    check.arg("check").arg("--config").arg(agent.config());
    let text = output_text(&ended(check).await);
    for part in [
        "mqtts://cloud.example:443 reachable",
        "connect to mqtts://cloud.example:8883: no response within",
        "many networks allow port 443 only",
    ] {
        assert!(text.contains(part), "{part}: {text}");
    }
}

#[tokio::test]
async fn last_good_address_is_enough_without_a_name_server() {
    let Some(plant) = Plant::start(Families::Both, |_| {}).await else { return };
    plant.networks.set_hosts(&format!("{CLOUD} {NAME}\n"));
    let mut agent = plant.device("edge-1");
    plant.joins_and_syncs(&mut agent, NAME, "mqtts://cloud.example:8883").await;
    agent.stop().await;
    plant.networks.set_hosts("");
    plant.fleet.cloud.apply([config_map(2)]).await;
    agent.run_as_configured().await;
    assert_eq!(same_on_both_sides(&plant.fleet.cloud, &agent).await, 2);
    agent.process.logged("name does not resolve, using its last good address", 0).await;

    let output = plant.join(&plant.device("edge-2"), NAME).await;
    let text = output_text(&output);
    assert!(!output.status.success() && text.contains("resolve host name 'cloud.example'"), "{text}");
    assert!(text.contains("check the name, and the DNS of this device"), "{text}");
}

#[tokio::test]
async fn only_ipv6_serves_join_and_sync_past_a_dead_broker() {
    // Nothing listens at the first one.
    let brokers = "[\"mqtts://cloud.example:9\", \"wss://cloud.example\"]";
    let plant = Plant::start(Families::V6, |settings| {
        settings.set("enrollment.broker_urls", brokers);
    });
    let Some(plant) = plant.await else { return };
    plant.networks.set_hosts(&format!("{CLOUD_V6} {NAME}\n"));
    let mut agent = plant.device("edge-1");
    plant.joins_and_syncs(&mut agent, NAME, "wss://cloud.example:443").await;
}

#[tokio::test]
async fn haproxy_that_chooses_by_name_serves_join_and_sync() {
    let plant = Plant::start(Families::Both, |settings| {
        settings.text("listen.address", behind());
        settings.set("listen.join_names", "[\"join.example\"]");
        settings.set("listen.mqtt_names", "[\"mqtt.example\"]");
        settings.set("enrollment.broker_urls", "[\"mqtts://mqtt.example:443\"]");
    });
    let Some(plant) = plant.await else { return };
    plant.networks.set_hosts(&format!("{CLOUD} join.example mqtt.example\n"));
    let names = [("join.example", behind()), ("mqtt.example", behind())];
    let _haproxy = plant.haproxy(&haproxy::by_name("0.0.0.0:443", &names)).await;
    plant.networks.permit_port_443_only();
    let mut agent = plant.device("edge-1");
    plant.joins_and_syncs(&mut agent, "join.example", "mqtts://mqtt.example:443").await;
}

#[tokio::test]
async fn join_names_the_issuer_of_a_proxy_that_ends_tls() {
    let plant = Plant::start(Families::Both, |settings| {
        settings.text("listen.address", behind());
    });
    let Some(plant) = plant.await else { return };
    plant.networks.set_hosts(&format!("{CLOUD} {NAME}\n"));
    let certificate = plant.site.path("proxy.pem");
    let identity = Authority::new().server_for(&[NAME], -HOUR, HOUR);
    std::fs::write(&certificate, identity.to_pem()).unwrap();
    let _haproxy = plant.haproxy(&haproxy::terminating("0.0.0.0:443", &certificate, behind())).await;
    let output = plant.join(&plant.device("edge-1"), NAME).await;
    let text = output_text(&output);
    let expected = "certificate of cloud.example is signed by another CA than the one this node joined: \
                    issuer 'test authority'";
    assert!(!output.status.success() && text.contains(expected), "{text}");
}
