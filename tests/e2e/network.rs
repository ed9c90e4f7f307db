//! Networks that permit little, in namespaces of their own: real programs join and sync, or name
//! the obstacle.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

use std::net::SocketAddr;
use std::os::unix::fs::PermissionsExt as _;
use std::process::Output;
use std::time::Duration;

use edgesync_testkit::authority::{Authority, HOUR};
use edgesync_testkit::netns::{CLOUD, CLOUD_V6, Families, Networks, Side};
use edgesync_testkit::{haproxy, http_proxy, mitmproxy, programs, site};
use http_proxy::{Login, PASSWORD, USER};
use site::fleet::{Fleet, ended, in_sync, output_text, stored};
use site::{Agent, Cloud, PATIENCE, Process, Settings, Site, config_map, eventually, same_on_both_sides};

const NAME: &str = "cloud.example";
/// Port of the cloud side behind a proxy that has port 443.
const BEHIND: u16 = 10443;
/// Port of an HTTP proxy.
const PROXY: u16 = 3128;

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
        self.device_with(node, |_| {})
    }

    /// The same with a changed configuration.
    fn device_with(&self, node: &str, change: impl FnOnce(&mut Settings)) -> Agent {
        let mut agent = self.fleet.new_device(&self.site, node);
        // An address that answers nothing must not take longer than the rest of the test.
        agent.settings.text("link.connect_timeout", "5s");
        change(&mut agent.settings);
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

    /// Runs `edgesync check` of a device.
    async fn check(&self, agent: &Agent) -> String {
        let mut check = self.networks.command(Side::Device, programs::device());
        check.arg("check").arg("--config").arg(agent.config());
        output_text(&ended(check).await)
    }

    /// Starts a haproxy at port 443 of the cloud's network.
    async fn haproxy(&self, config: &str) -> Process {
        let path = self.site.path("haproxy.cfg");
        std::fs::write(&path, config).unwrap();
        self.networks.start_listening("haproxy", &["-db", "-f", path.to_str().unwrap()], 443).await
    }

    /// Asserts that the join of a new device is refused with this sentence.
    async fn refuses_join(&self, agent: &Agent, expected: &str) {
        let text = output_text(&self.join(agent, NAME).await);
        assert!(!text.starts_with("exit status: 0") && text.contains(expected), "{expected}: {text}");
    }
}

/// Returns the address of an HTTP proxy in the cloud's network.
pub(super) fn proxy_address() -> SocketAddr {
    SocketAddr::from(([192, 0, 2, 1], PROXY))
}

fn behind() -> SocketAddr {
    SocketAddr::from(([127, 0, 0, 1], BEHIND))
}

#[tokio::test]
async fn only_port_443_serves_join_and_sync() {
    let Some(plant) = Plant::start(Families::Both, |_| {}).await else { return };
    plant.networks.set_hosts(&format!("{CLOUD} {NAME}\n"));
    plant.networks.permit_only(443);
    let mut agent = plant.device("edge-1");
    // The first address of the broker, at port 8883, answers nothing.
    plant.joins_and_syncs(&mut agent, NAME, "mqtts://cloud.example:443").await;
    let text = plant.check(&agent).await;
    for part in [
        "mqtts://cloud.example:443 reachable",
        "connect to mqtts://cloud.example:8883: no response within",
        "many networks allow port 443 only",
    ] {
        assert!(text.contains(part), "{part}: {text}");
    }
}

/// A full handshake takes twice as much, and so does a report that is repeated without need. The
/// bound allows for acknowledgements of their own, which a busy machine sends: `cargo bench -- ip`
/// has the figure.
#[tokio::test]
async fn check_in_in_sync_takes_less_than_4096_ip_bytes() {
    let names = format!("[\"{CLOUD}\"]");
    let plant = Plant::start(Families::Both, |settings| {
        settings.set("enrollment.names", &names);
    });
    let Some(plant) = plant.await else { return };
    plant.networks.leave_only_ipv4();
    let mut agent = plant.device_with("edge-1", |settings| {
        settings.text("link.broker", format!("mqtts://{CLOUD}:8883")).text("link.connect", "every 24h");
    });
    let output = plant.join(&agent, CLOUD).await;
    assert!(output.status.success(), "{}", output_text(&output));
    agent.run_as_configured().await;
    let away_after = async |agent: &Agent, connections: u64| {
        let is_over = async || {
            let link = agent.status().await.link;
            let is_away = !link.is_connected() && link.next_check_in.is_some();
            (is_away && link.connections == connections).then_some(())
        };
        eventually("the check-in is over", PATIENCE, is_over).await;
    };
    away_after(&agent, 1).await;
    let before = plant.networks.ip_bytes(Side::Device);
    let mut sync = plant.networks.command(Side::Device, programs::device());
    sync.arg("sync").arg("--socket").arg(&agent.socket);
    let output = ended(sync).await;
    assert!(output.status.success(), "{}", output_text(&output));
    away_after(&agent, 2).await;
    let bytes = plant.networks.ip_bytes(Side::Device) - before;
    // Without a reconnect it would be nothing.
    assert!((1500..=4096).contains(&bytes), "{bytes} bytes");
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
    plant.networks.permit_only(443);
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
    let expected = "certificate of cloud.example is signed by another CA than the one this node joined: \
                    issuer 'test authority'";
    plant.refuses_join(&plant.device("edge-1"), expected).await;
}

/// The node's certificate ends at the proxy, so the last step of the join lacks it.
#[tokio::test]
async fn join_behind_a_proxy_with_a_cloud_certificate_is_refused() {
    let plant = Plant::start(Families::Both, |settings| {
        settings.text("listen.address", behind());
    });
    let Some(plant) = plant.await else { return };
    plant.networks.set_hosts(&format!("{CLOUD} {NAME}\n"));
    let certificate = plant.site.path("pki").join("server.pem");
    let _haproxy = plant.haproxy(&haproxy::terminating("0.0.0.0:443", &certificate, behind())).await;
    plant.refuses_join(&plant.device("edge-1"), "no client certificate of a node").await;
}

#[tokio::test]
async fn only_an_http_proxy_serves_join_and_sync() {
    let Some(plant) = Plant::start(Families::Both, |_| {}).await else { return };
    // The device has no name server: the proxy resolves the name.
    plant.networks.set_hosts(&format!("{CLOUD} {NAME}\n"));
    plant.networks.permit_only(PROXY);
    let config = plant.site.path("tinyproxy.conf");
    std::fs::write(&config, http_proxy::tinyproxy(proxy_address(), 443, Login::None)).unwrap();
    let arguments = ["-d", "-c", config.to_str().unwrap()];
    let mut proxy = plant.networks.start_listening("tinyproxy", &arguments, PROXY).await;
    plant.refuses_join(&plant.device("edge-0"), "no response within").await;
    let mut agent = plant.device_with("edge-1", |settings| {
        settings.text("link.proxy", format!("http://{}", proxy_address()));
    });
    // It permits no other port than 443, so the first address of the broker is refused.
    plant.joins_and_syncs(&mut agent, NAME, "mqtts://cloud.example:443").await;
    let text = plant.check(&agent).await;
    let way = format!("mqtts://cloud.example:443 reachable through http://{}", proxy_address());
    assert!(text.contains(&way) && text.contains("does not allow cloud.example:8883"), "{text}");
    proxy.kill();

    let directory = plant.site.path("squid");
    std::fs::create_dir(&directory).unwrap();
    for path in [&directory, directory.parent().unwrap()] {
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o755)).unwrap();
    }
    let config = http_proxy::squid(&directory, proxy_address(), 443, CLOUD.parse().unwrap());
    let arguments = ["-N", "-f", config.to_str().unwrap()];
    let _proxy = plant.networks.start_listening("squid", &arguments, PROXY).await;
    let password = plant.site.path("proxy.password");
    std::fs::write(&password, PASSWORD).unwrap();
    let with_name = |settings: &mut Settings| {
        settings.text("link.proxy", format!("http://{USER}@{}", proxy_address()));
    };
    let refused = plant.device_with("edge-2", |settings| {
        settings.text("link.proxy", format!("http://{}", proxy_address()));
    });
    plant.refuses_join(&refused, "requires a user name and a password (HTTP status 407)").await;
    plant.refuses_join(&plant.device_with("edge-2", with_name), "refused user 'me' (HTTP status 407)").await;
    let mut agent = plant.device_with("edge-2", |settings| {
        with_name(settings);
        settings.text("link.proxy_password_file", password.display());
    });
    plant.joins_and_syncs(&mut agent, NAME, "mqtts://cloud.example:443").await;
}

#[tokio::test]
async fn inspecting_proxy_is_refused_by_its_issuer() {
    let Some(program) = mitmproxy::program() else { return };
    let Some(plant) = Plant::start(Families::Both, |_| {}).await else { return };
    plant.networks.set_hosts(&format!("{CLOUD} {NAME}\n"));
    // This one has joined before the proxy was in its way.
    let mut agent = plant.device("edge-1");
    plant.joins_and_syncs(&mut agent, NAME, "mqtts://cloud.example:8883").await;
    agent.stop().await;

    let ca = plant.site.path("mitmproxy");
    let arguments = mitmproxy::arguments(proxy_address(), &ca);
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let _proxy = plant.networks.start_listening(program.to_str().unwrap(), &arguments, PROXY).await;
    plant.networks.permit_only(PROXY);
    let proxy = format!("http://{}", proxy_address());
    let refused = format!(
        "certificate of cloud.example is signed by another CA than the one this node joined: issuer '{}'",
        mitmproxy::ISSUER
    );
    let new = plant.device_with("edge-2", |settings| {
        settings.text("link.proxy", &proxy);
    });
    plant.refuses_join(&new, &refused).await;
    let written = std::fs::read_dir(plant.site.path("edge-2").join("identity"));
    assert_eq!(written.map_or(0, Iterator::count), 0, "an identity was written");

    // `edgesync join` has written the configuration of the other one.
    let config = agent.config().to_owned();
    let joined = std::fs::read_to_string(&config).unwrap();
    let through = |more: &str| {
        let link = format!("[link]\nproxy = \"{proxy}\"\n{more}");
        std::fs::write(&config, joined.replacen("[link]\n", &link, 1)).unwrap();
    };
    through("");
    let text = plant.check(&agent).await;
    assert!(text.contains(&refused) && text.contains("have the connection passed through"), "{text}");
    agent.run_as_configured().await;
    has_cause(&agent, &refused).await;
    agent.stop().await;

    // With its CA configured on purpose the device accepts the proxy, which has no certificate of
    // the node to present: the cloud side lets no node in.
    through(&format!("ca_file = {:?}\n", mitmproxy::ca_file(&ca)));
    agent.run_as_configured().await;
    has_cause(&agent, "node certificate (O=system:nodes) required").await;
    assert_eq!(plant.fleet.cloud.counters("edge-1").await.hellos, 1, "of the direct connection");
}

/// Waits until the agent reports a cause with these words, and asserts that it is not connected.
async fn has_cause(agent: &Agent, words: &str) {
    let has = |cause: &String| cause.contains(words);
    agent
        .until(words, |status| !status.link.is_connected() && status.link.cause.as_ref().is_some_and(has))
        .await;
}

#[tokio::test]
async fn certificate_is_renewed_without_a_name_server() {
    let plant = Plant::start(Families::Both, |settings| {
        settings.text("enrollment.certificate_lifetime", "1m");
    });
    let Some(plant) = plant.await else { return };
    plant.networks.set_hosts(&format!("{CLOUD} {NAME}\n"));
    let mut agent = plant.device("edge-1");
    plant.joins_and_syncs(&mut agent, NAME, "mqtts://cloud.example:8883").await;
    agent.stop().await;
    let before = stored(&agent).identity.certificate().serial().to_owned();
    plant.networks.set_hosts("");
    agent.run_as_configured().await;
    in_sync(&agent).await;
    eventually("the certificate is renewed", Duration::from_secs(90), async || {
        (agent.status().await.identity?.renewals > 0).then_some(())
    })
    .await;
    assert_ne!(stored(&agent).identity.certificate().serial(), before);
}
