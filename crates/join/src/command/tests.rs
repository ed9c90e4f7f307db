use std::os::unix::fs::PermissionsExt as _;
use std::sync::Arc;
use std::time::Duration;

use tempfile::TempDir;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

use super::*;
use crate::tests::authority::{Authority, time};
use crate::tests::service::{Asked, Service, cloud, cloud_now, reply, server_identity, token};
use edgesync_admin::agent::{AgentStatus, LinkState};
use edgesync_admin::samples;
use edgesync_broker::{Broker, BrokerOptions, FleetEvent, FleetEvents};
use edgesync_transport::link::Topics;
use edgesync_transport::tls::{ClientRule, Server};

/// A device with its files.
struct Device {
    directory: TempDir,
}

impl Device {
    /// Creates a device whose configuration contains `words` and the path of the database.
    fn new(words: &str) -> Self {
        let device = Self { directory: tempfile::tempdir().unwrap() };
        let text = format!(
            "[store]\npath = {}\n[api]\nsocket = {} # here\n{words}",
            settings::string(device.path("lib/edgesync.db").to_str().unwrap()),
            settings::string(device.path("e.sock").to_str().unwrap())
        );
        std::fs::write(device.config(), text).unwrap();
        std::fs::create_dir(device.path("lib")).unwrap();
        device
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    fn config(&self) -> PathBuf {
        self.path("edgesync.toml")
    }

    fn text(&self) -> String {
        std::fs::read_to_string(self.config()).unwrap()
    }

    fn loaded(&self) -> Config {
        config::parse::<Config>(&self.config(), &self.text(), []).unwrap().config
    }

    /// Starts an agent that reports a status.
    fn agent_with_status(&self, status: &AgentStatus) -> tokio::task::JoinHandle<()> {
        let status = serde_json::to_string(status).unwrap();
        let path = self.path("e.sock");
        let _ = std::fs::remove_file(&path);
        let listener = tokio::net::UnixListener::bind(path).unwrap();
        let answer = format!(
            "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n{status}",
            status.len()
        );
        tokio::spawn(async move {
            while let Ok((mut stream, _)) = listener.accept().await {
                let answer = answer.clone();
                tokio::spawn(async move {
                    if stream.read(&mut [0; 4096]).await.is_ok_and(|bytes| bytes > 0) {
                        stream.write_all(answer.as_bytes()).await.unwrap();
                    }
                });
            }
        })
    }

    fn sets(&self) -> Vec<String> {
        files::Disk::names(&RealDisk, &self.path("lib/identity")).unwrap()
    }

    fn options(&self, service: &Service, authority: &Authority, node: Option<&str>) -> JoinOptions {
        JoinOptions {
            cloud: service.url.clone(),
            token: token(authority),
            node: node.map(str::to_owned),
            config: self.config(),
            cloudcore: None,
            force: false,
        }
    }
}

/// A cloud with its broker.
struct Cloud {
    authority: Arc<Authority>,
    service: Service,
    events: FleetEvents,
    _broker: Broker,
}

impl Cloud {
    async fn start() -> Self {
        let authority = Arc::new(Authority::new("ca"));
        let rule = ClientRule {
            trust: Trust::new(vec![authority.ca.clone()]),
            revoked: Arc::default(),
            required: true,
            expired_grace: Duration::ZERO,
        };
        let tls = Server::new(&server_identity(&authority), &rule, Clock::of(cloud_now, [])).unwrap();
        let topics = Topics::new("plant/v1").unwrap();
        let options = BrokerOptions { topics, tls: Some(tls), ..BrokerOptions::default() };
        let (broker, events) = Broker::bind("127.0.0.1:0".parse().unwrap(), options).await.unwrap();
        let address = format!("mqtts://:{}", broker.address().port());
        let service = Service::of_cloud(Arc::clone(&authority), &address).await;
        Self { authority, service, events, _broker: broker }
    }

    /// Returns the node that the broker accepted.
    async fn accepted_node(&mut self) -> String {
        loop {
            if let FleetEvent::NodeConnected { node, .. } = self.events.recv().await.unwrap() {
                return node.to_string();
            }
        }
    }

    fn asked(&self) -> usize {
        self.service.asked().len()
    }
}

async fn join_at(options: &JoinOptions, now: fn() -> Timestamp) -> (Result<(), JoinError>, String) {
    let mut out = Vec::new();
    let result = run_at(options, now, &mut out).await;
    (result, String::from_utf8(out).unwrap())
}

async fn join(options: &JoinOptions) -> (Result<(), JoinError>, String) {
    join_at(options, cloud_now).await
}

#[tokio::test]
async fn second_join_only_tests_the_connection() {
    let (mut cloud, device) = (Cloud::start().await, Device::new("[log]\nlevel = \"debug\" # mine\n"));
    std::fs::set_permissions(device.config(), std::fs::Permissions::from_mode(0o640)).unwrap();
    let options = device.options(&cloud.service, &cloud.authority, Some("pump-7"));
    let (result, said) = join(&options).await;
    result.unwrap();
    assert_eq!(cloud.accepted_node().await, "pump-7");
    for words in [
        "pump-7",
        "connected",
        "edgesync run --config",
        "edgesync check --config",
        "edgesync status --socket",
    ] {
        assert!(said.contains(words), "{words}: {said}");
    }
    assert!(!said.contains("signature") && !said.contains("\nclock"), "{said}");

    let (config, text) = (device.loaded(), device.text());
    assert_eq!(config.node.name, "pump-7");
    assert!(config.peer().tls && config.peer().host == "127.0.0.1" && config.link.prefix == "plant/v1");
    assert_eq!(config.identity.cloud, Some(cloud.service.url.clone()));
    assert!(text.contains("level = \"debug\" # mine") && text.contains("# here"), "{text}");
    assert!(!text.contains("signature"), "{text}");
    let set = config.identity.directory.unwrap();
    assert!(set.starts_with(device.path("lib/identity")));
    assert_eq!(
        std::fs::metadata(set.join(files::IDENTITY_FILE)).unwrap().permissions().mode() & 0o777,
        0o600
    );
    assert_eq!(std::fs::metadata(device.config()).unwrap().permissions().mode() & 0o777, 0o640);

    let asked = cloud.asked();
    let (result, said) = join(&JoinOptions { node: None, ..options.clone() }).await;
    result.unwrap();
    assert_eq!(cloud.accepted_node().await, "pump-7");
    assert!(said.contains("already joined") && said.contains("connected"), "{said}");
    assert_eq!(
        (cloud.asked(), device.text()),
        (asked + 1, text.clone()),
        "only whether it is still a member"
    );

    // The connection of a running agent is left alone, and the agent is asked for its state.
    let agent = device.agent_with_status(&samples::status());
    let (result, said) = join(&options).await;
    result.unwrap();
    assert!(said.contains("connected by the running agent"), "{said}");
    agent.abort();
    let mut revoked = samples::status();
    revoked.link.state = LinkState::Disconnected;
    revoked.link.cause = Some("the certificate was revoked".to_owned());
    let mut removed = samples::status();
    removed.cloud.removed = true;
    for (status, words) in [(revoked, "was revoked"), (removed, "node admit pump-7")] {
        let agent = device.agent_with_status(&status);
        let (result, _) = join(&options).await;
        let error = result.unwrap_err().to_string();
        assert!(error.contains(words), "{error}");
        agent.abort();
    }
    let _agent = device.agent_with_status(&samples::status());

    let (result, said) = join(&JoinOptions { force: true, ..options }).await;
    result.unwrap();
    assert!(said.contains("the new identity") && !said.contains("systemctl"), "{said}");
    assert!(cloud.asked() > asked && device.text() != text);
    assert_eq!(device.sets().len(), 1);
}

#[tokio::test]
async fn other_identity_is_replaced_only_by_force() {
    let (cloud, other, device) = (Cloud::start().await, Cloud::start().await, Device::new(""));
    let first = device.options(&cloud.service, &cloud.authority, Some("a"));
    join(&first).await.0.unwrap();
    let renamed = device.options(&cloud.service, &cloud.authority, Some("b"));
    let moved = device.options(&other.service, &other.authority, Some("a"));
    for options in [renamed, moved] {
        join(&JoinOptions { force: true, ..first.clone() }).await.0.unwrap();
        let text = device.text();
        let error = join(&options).await.0.unwrap_err().to_string();
        assert!(
            error.contains("already joined") && error.contains("'a'") && error.contains("--force"),
            "{error}"
        );
        assert_eq!(device.text(), text);
        join(&JoinOptions { force: true, ..options.clone() }).await.0.unwrap();
        assert_eq!(Some(device.loaded().node.name), options.node);
        assert_eq!(device.loaded().identity.cloud, Some(options.cloud));
        assert_eq!(device.sets().len(), 1);
    }
}

/// Forwards connections to the port of a broker, as a load balancer does.
async fn balancer(port: u16) -> (u16, tokio::task::JoinHandle<()>) {
    let listener = tokio::net::TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
    let own = listener.local_addr().unwrap().port();
    let forward = tokio::spawn(async move {
        while let Ok((mut client, _)) = listener.accept().await {
            let mut broker = tokio::net::TcpStream::connect(("127.0.0.1", port)).await.unwrap();
            tokio::spawn(async move { tokio::io::copy_bidirectional(&mut client, &mut broker).await });
        }
    });
    (own, forward)
}

#[tokio::test]
async fn broker_of_the_operator_stays_and_is_reported() {
    let mut cloud = Cloud::start().await;
    let (port, _forward) = balancer(cloud._broker.address().port()).await;
    let address = format!("mqtts://127.0.0.1:{port}");
    let device = Device::new(&format!("[link]\nbroker = \"{address}\" # the balancer\n"));
    let options = device.options(&cloud.service, &cloud.authority, Some("a"));
    for force in [false, true] {
        let (result, said) = join(&JoinOptions { force, ..options.clone() }).await;
        result.unwrap();
        assert_eq!(cloud.accepted_node().await, "a");
        assert_eq!(device.loaded().link.broker.to_string(), address);
        assert!(device.text().contains("# the balancer"), "{}", device.text());
        let note = format!("link.broker stays {address}; the cloud has mqtts://127.0.0.1:");
        assert!(said.contains(&note) && said.contains("--force"), "{said}");
    }
    // The address leads to the old cloud.
    let other = Cloud::start().await;
    let moved = device.options(&other.service, &other.authority, Some("a"));
    let (result, said) = join(&JoinOptions { force: true, ..moved }).await;
    result.unwrap();
    let port = other._broker.address().port();
    let announced = format!("mqtts://127.0.0.1:{port}");
    assert_eq!(device.loaded().link.broker.to_string(), announced);
    assert!(said.contains(&format!("link.broker was {address}, replaced by {announced}")), "{said}");
}

#[test]
fn addresses_of_the_configuration_are_kept_or_reported() {
    let membership = |prefix: &str| Membership {
        node: "a".into(),
        broker: "mqtts://:8883".into(),
        brokers: Vec::new(),
        prefix: prefix.into(),
        time: String::new(),
        removed: false,
    };
    let route = |text: &str, membership: Option<&Membership>, cloudcore: Option<&str>| {
        let device = Device::new(text);
        let state = DeviceState::read(&device.config(), Some("a")).unwrap();
        let options = JoinOptions {
            cloud: "https://cloud.example:10002".parse().unwrap(),
            token: token(&Authority::new("ca")),
            node: None,
            config: device.config(),
            cloudcore: cloudcore.map(|url| CloudCoreUrl::parse(url).unwrap()),
            force: false,
        };
        let mut out = Vec::new();
        let route = route_of(&state, membership, &options, &mut out).unwrap();
        let peer = match route {
            Route::Mqtt { broker, prefix } => format!("{broker} {prefix}"),
            Route::KubeEdge(url) => url.to_string(),
        };
        (peer, String::from_utf8(out).unwrap())
    };
    let announced = "mqtts://cloud.example:8883";
    for text in ["", "[link]\nbroker = \"mqtts://cloud.example\"\n"] {
        assert_eq!(route(text, Some(&membership("p")), None), (format!("{announced} p"), String::new()));
    }
    let (peer, said) = route("[link]\nprefix = \"q\"\n", Some(&membership("p")), None);
    assert!(peer == format!("{announced} p") && said.contains("link.prefix was q, replaced by p"), "{said}");
    let elsewhere = "[kubeedge]\nurl = \"wss://balancer.example:443\"\n";
    let (peer, said) = route(elsewhere, None, None);
    assert!(peer == "wss://balancer.example:443" && said.contains("kubeedge.url stays"), "{peer}: {said}");
    let (peer, said) = route(elsewhere, None, Some("wss://other.example"));
    assert!(peer == "wss://other.example:10000" && said.contains("replaced by"), "{peer}: {said}");
}

#[test]
fn new_device_gets_the_documented_configuration() {
    // The database's default path applies, so only the text is created.
    let path = Path::new("/nonexistent/edgesync.toml");
    let before = DeviceState::read(path, Some("pump-7")).unwrap();
    assert!(before.member.is_none());
    assert_eq!(before.root, Path::new("/var/lib/edgesync/identity"));
    let broker = Brokers::parse(["mqtts://cloud.example"]).unwrap();
    let route = Route::Mqtt { broker, prefix: "edgesync/v1".into() };
    let url: JoinUrl = "https://cloud.example".parse().unwrap();
    let text = configuration(&before, "pump-7", &route, Path::new("/d"), &url).unwrap();
    assert!(
        text.contains("\nname = \"pump-7\"\n") && text.contains("# Every key is listed with its default")
    );
    let config = config::parse::<Config>(path, &text, []).unwrap().config;
    assert_eq!(config.identity.directory.as_deref(), Some(Path::new("/d")));
}

#[test]
fn device_switches_to_a_cloud_core_and_back() {
    let device = Device::new("[node]\nname = \"x\" # mine\n");
    let before = DeviceState::read(&device.config(), Some("pump-7")).unwrap();
    let url: JoinUrl = "https://[::1]:10002".parse().unwrap();
    let route = Route::KubeEdge(CloudCoreUrl::at(&url.host));
    let text = configuration(&before, "pump-7", &route, Path::new("/d"), &url).unwrap();
    let config = config::parse::<Config>(&device.config(), &text, []).unwrap().config;
    assert_eq!(
        (config.link_type, config.peer().to_string()),
        (LinkType::KubeEdge, "wss://[::1]:10000".into())
    );
    assert_eq!((config.node.name.as_str(), config.identity.cloud), ("pump-7", Some(url.clone())));

    std::fs::write(device.config(), &text).unwrap();
    let before = DeviceState::read(&device.config(), None).unwrap();
    let broker = Brokers::parse(["mqtts://cloud.example"]).unwrap();
    let route = Route::Mqtt { broker, prefix: "p".into() };
    let text = configuration(&before, "pump-7", &route, Path::new("/d"), &url).unwrap();
    let loaded = config::parse::<Config>(&device.config(), &text, []).unwrap();
    assert_eq!(loaded.config.peer().to_string(), "mqtts://cloud.example:8883");
}

/// Runs the command on a node that joins a CloudCore whose WebSocket does not answer.
async fn join_cloud_core(device: &Device, runs: bool) -> (Result<(), JoinError>, String, Service) {
    let authority = Arc::new(Authority::new("ca"));
    let service = Service::of_cloud_core(Arc::clone(&authority)).await;
    let free = tokio::net::TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
    let cloudcore = CloudCoreUrl::parse(&format!("wss://{}", free.local_addr().unwrap())).unwrap();
    drop(free);
    let _agent = runs.then(|| std::os::unix::net::UnixListener::bind(device.path("e.sock")).unwrap());
    let mut options = device.options(&service, &authority, Some("pump-7"));
    options.cloudcore = Some(cloudcore);
    let (result, said) = join(&options).await;
    (result, said, service)
}

#[tokio::test]
async fn join_opens_no_second_session_at_a_cloud_core() {
    let device = Device::new("");
    std::fs::write(device.path("lib/edgesync.db"), "").unwrap();
    let (result, said, service) = join_cloud_core(&device, true).await;
    result.unwrap();
    for words in
        ["the cloud is a CloudCore", "not tested, because the agent is running", "objects of another cloud"]
    {
        assert!(said.contains(words), "{words}: {said}");
    }
    assert_eq!(device.loaded().link_type, LinkType::KubeEdge);
    let asked = service.asked();
    let paths = asked.iter().map(|asked| asked.question.path.as_str()).collect::<Vec<_>>();
    assert_eq!(paths, ["/ca.crt", "/edgesync/v1/join", "/edge.crt"]);
    assert_eq!(asked[2].question.header("nodename"), Some("pump-7"));
}

#[tokio::test]
async fn silent_cloud_core_is_reported_after_the_install() {
    let device = Device::new("");
    let (result, said, _service) = join_cloud_core(&device, false).await;
    let error = result.unwrap_err();
    assert!(error.is_unreachable() && error.to_string().contains("wss://127.0.0.1"), "{error}");
    assert!(!said.contains("objects of another cloud"), "{said}");
    assert!(device.loaded().identity.directory.is_some());
}

#[tokio::test]
async fn cloud_core_address_is_refused_for_edgesync_cloud() {
    let (cloud, device) = (Cloud::start().await, Device::new(""));
    let mut options = device.options(&cloud.service, &cloud.authority, Some("a"));
    options.cloudcore = Some(CloudCoreUrl::at("cloud.example"));
    let before = device.text();
    let error = join(&options).await.0.unwrap_err().to_string();
    assert!(error.contains("omit --cloudcore"), "{error}");
    assert_eq!(device.text(), before);
}

fn in_1970() -> Timestamp {
    time("1970-01-01T00:00:09Z")
}

fn years_ahead() -> Timestamp {
    time("2049-01-01T00:00:00Z")
}

#[tokio::test]
async fn device_in_1970_joins_and_gets_a_warning() {
    let (mut cloud, device) = (Cloud::start().await, Device::new(""));
    let options = device.options(&cloud.service, &cloud.authority, Some("pump-7"));
    let (result, said) = join_at(&options, in_1970).await;
    result.unwrap();
    assert_eq!(cloud.accepted_node().await, "pump-7");
    let words = ": 1970-01-01T00:00:09Z, 56 years behind the cloud's: 2026-11-21T12:00:00Z";
    assert!(said.contains(words) && said.contains("the node can connect"), "{said}");
    join_at(&options, in_1970).await.0.unwrap();
}

#[tokio::test]
async fn clock_years_ahead_is_reported() {
    let (cloud, device) = (Cloud::start().await, Device::new(""));
    let options = device.options(&cloud.service, &cloud.authority, Some("pump-7"));
    let before = device.text();
    let (result, _) = join_at(&options, years_ahead).await;
    let error = result.unwrap_err();
    assert!(matches!(error, JoinError::Clock { cloud: Some(_), .. }), "{error:?}");
    let text = error.to_string();
    assert!(text.contains("2049-01-01T00:00:00Z") && text.contains("years ahead of the cloud's"), "{text}");
    assert!(error.advice().unwrap().contains("set the clock"));
    assert_eq!(device.text(), before);
}

/// Starts a service that answers one path with `answer` and others as usual.
async fn service(authority: &Arc<Authority>, path: &'static str, code: u16, body: &'static str) -> Service {
    let answering = Arc::clone(authority);
    Service::start(authority, &server_identity(authority), move |asked: &Asked| {
        match asked.question.path == path {
            true => reply(code, body),
            false => cloud(&answering, "mqtts://:1", asked),
        }
    })
    .await
}

#[tokio::test]
async fn refusals_leave_the_device_unchanged() {
    let authority = Arc::new(Authority::new("ca"));
    let membership = r#"{"node":"b","broker":"mqtts://:1","prefix":"p","time":"2026-11-21T12:00:00Z"}"#;
    let no_broker = r#"{"node":"a","broker":"ftp://x","prefix":"p","time":"2026-11-21T12:00:00Z"}"#;
    let no_prefix = r#"{"node":"a","broker":"mqtts://:1","prefix":"p/#","time":"2026-11-21T12:00:00Z"}"#;
    for (path, code, body, words) in [
        ("/edge.crt", 401, "the token has been used up", "used up"),
        ("/edge.crt", 409, "another device has the name 'a'", "another device"),
        ("/edgesync/v1/join", 200, membership, "another node than 'a'"),
        ("/edgesync/v1/join", 200, no_broker, "check enrollment.broker_url there"),
        ("/edgesync/v1/join", 200, no_prefix, "link.prefix"),
    ] {
        let device = Device::new("");
        let before = device.text();
        let service = service(&authority, path, code, body).await;
        let (result, _) = join(&device.options(&service, &authority, Some("a"))).await;
        let error = result.unwrap_err();
        assert!(error.to_string().contains(words), "{error}");
        assert!(!error.is_unreachable(), "{error}");
        assert_eq!(device.text(), before);
        assert_eq!(device.sets(), Vec::<String>::new());
        let left = std::fs::read_dir(device.directory.path()).unwrap().count();
        assert_eq!(left, 2, "the configuration and lib");
    }
}

#[tokio::test]
async fn silent_broker_is_reported_after_the_install() {
    let authority = Arc::new(Authority::new("ca"));
    let free = tokio::net::TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
    let broker = format!("mqtts://:{}", free.local_addr().unwrap().port());
    drop(free);
    let service = Service::of_cloud(Arc::clone(&authority), &broker).await;
    let device = Device::new("");
    let (result, said) = join(&device.options(&service, &authority, Some("a"))).await;
    let error = result.unwrap_err();
    assert!(error.is_unreachable() && error.to_string().contains("identity installed"), "{error}");
    assert!(said.contains("identity") && device.loaded().identity.directory.is_some());
}

/// A server that answers in place of the cloud receives nothing that admits a device.
#[tokio::test]
async fn token_is_not_sent_to_another_cloud() {
    let (authority, other) = (Authority::new("ca"), Arc::new(Authority::new("ca")));
    let service = Service::of_cloud(other, "mqtts://:1").await;
    let device = Device::new("");
    let error = join(&device.options(&service, &authority, Some("a"))).await.0.unwrap_err();
    assert!(matches!(error, JoinError::Call(CallError::OtherCa { .. })), "{error:?}");
    let asked = service.asked();
    let paths: Vec<&str> = asked.iter().map(|asked| asked.question.path.as_str()).collect();
    assert_eq!(paths, ["/ca.crt"]);
    assert_eq!(asked[0].question.header("authorization"), None);
    assert!(asked[0].question.body.is_empty());
}

#[tokio::test]
async fn broker_of_another_authority_is_refused() {
    let (authority, other) = (Arc::new(Authority::new("ca")), Cloud::start().await);
    let broker = format!("mqtts://:{}", other._broker.address().port());
    let service = Service::of_cloud(Arc::clone(&authority), &broker).await;
    let device = Device::new("");
    let error = join(&device.options(&service, &authority, Some("a"))).await.0.unwrap_err();
    assert!(matches!(error, JoinError::Broker { .. }), "{error:?}");
}

#[tokio::test]
async fn certificate_for_other_names_is_reported_with_them() {
    let authority = Arc::new(Authority::new("ca"));
    let from = time("2026-11-01T00:00:00Z");
    let identity = authority.server(&["cloud.example"], from, time("2027-11-01T00:00:00Z"));
    let answering = Arc::clone(&authority);
    let service =
        Service::start(&authority, &identity, move |asked| cloud(&answering, "mqtts://:1", asked)).await;
    let device = Device::new("");
    let error = join(&device.options(&service, &authority, Some("a"))).await.0.unwrap_err();
    assert!(error.to_string().contains("cloud.example"), "{error}");
    let advice = error.advice().unwrap();
    assert!(advice.contains("cloud.example") && advice.contains("enrollment.names"), "{advice}");
}

#[test]
fn node_name_comes_from_argument_token_or_configuration() {
    assert_eq!(choose_name(Some("a"), None, "c").unwrap(), "a");
    assert_eq!(choose_name(Some("a"), Some("a"), "c").unwrap(), "a");
    assert_eq!(choose_name(None, Some("b"), "c").unwrap(), "b");
    assert_eq!(choose_name(None, None, "c").unwrap(), "c");
    let error = choose_name(Some("a"), Some("b"), "c").unwrap_err().to_string();
    assert!(error.contains("for node 'b', not for 'a'") && error.contains("--node a"), "{error}");
    assert!(choose_name(Some("A b"), None, "c").is_err());
}

#[test]
fn broker_without_a_host_is_at_the_service() {
    for (said, host, expected) in [
        ("mqtts://:8883", "cloud.example", "mqtts://cloud.example:8883"),
        ("mqtts://:8884", "fd00::1", "mqtts://[fd00::1]:8884"),
        ("mqtts://broker.example", "cloud.example", "mqtts://broker.example:8883"),
    ] {
        let membership = Membership {
            node: "a".into(),
            broker: said.into(),
            brokers: Vec::new(),
            prefix: "p".into(),
            time: String::new(),
            removed: false,
        };
        let asked = JoinUrl { host: host.into(), port: 10002 };
        assert_eq!(broker_of(&membership, &asked).unwrap().to_string(), expected);
    }
}

/// Starts a proxy whose names are all this machine. Returns its port and the requested peers.
async fn forwarding_proxy() -> (u16, Arc<std::sync::Mutex<Vec<String>>>) {
    let listener = tokio::net::TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let requested: Arc<std::sync::Mutex<Vec<String>>> = Arc::default();
    let kept = Arc::clone(&requested);
    tokio::spawn(async move {
        while let Ok((mut client, _)) = listener.accept().await {
            let kept = Arc::clone(&kept);
            tokio::spawn(async move {
                let mut head = Vec::new();
                while !head.ends_with(b"\r\n\r\n") {
                    head.push(client.read_u8().await.unwrap());
                }
                let head = String::from_utf8(head).unwrap();
                let peer = head.split(' ').nth(1).unwrap().to_owned();
                let port: u16 = peer.rsplit(':').next().unwrap().parse().unwrap();
                kept.lock().unwrap().push(peer);
                let mut server = tokio::net::TcpStream::connect(("127.0.0.1", port)).await.unwrap();
                client.write_all(b"HTTP/1.1 200 Connection established\r\n\r\n").await.unwrap();
                let _ = tokio::io::copy_bidirectional(&mut client, &mut server).await;
            });
        }
    });
    (port, requested)
}

#[tokio::test]
async fn device_joins_through_a_proxy() {
    let mut cloud = Cloud::start().await;
    let (proxy, requested) = forwarding_proxy().await;
    let line = format!("proxy = \"http://127.0.0.1:{proxy}\" # of the plant\n");
    let device = Device::new(&format!("[link]\n{line}"));
    // The name does not exist: only the proxy resolves it.
    let url = JoinUrl { host: "cloud.example".into(), port: cloud.service.url.port };
    let options = JoinOptions {
        cloud: url.clone(),
        ..device.options(&cloud.service, &cloud.authority, Some("pump-7"))
    };
    let (result, said) = join(&options).await;
    result.unwrap();
    assert_eq!(cloud.accepted_node().await, "pump-7");
    assert!(said.contains("connected"), "{said}");
    assert!(device.text().contains(&line), "{}", device.text());
    let broker = format!("cloud.example:{}", cloud._broker.address().port());
    let requested = requested.lock().unwrap().clone();
    assert!(requested.contains(&format!("cloud.example:{}", url.port)), "{requested:?}");
    assert_eq!(requested.last(), Some(&broker), "{requested:?}");
}

#[test]
fn advertised_list_is_written_in_its_order() {
    let device =
        Device::new("[link] # ours\nkeepalive = \"60s\" # metered\nproxy = \"http://proxy.example:3128\"\n");
    let state = DeviceState::read(&device.config(), Some("a")).unwrap();
    let membership = r#"{"node":"a","broker":"mqtts://:8883","brokers":["wss://:443/mqtt","mqtts://:8883"],"prefix":"p","time":""}"#;
    let membership: Membership = serde_json::from_str(membership).unwrap();
    let url: JoinUrl = "https://cloud.example".parse().unwrap();
    let broker = broker_of(&membership, &url).unwrap();
    assert_eq!(broker.to_string(), "wss://cloud.example:443/mqtt, mqtts://cloud.example:8883");
    let route = Route::Mqtt { broker: broker.clone(), prefix: "p".into() };
    let text = configuration(&state, "a", &route, Path::new("/d"), &url).unwrap();
    let config = config::parse::<Config>(&device.config(), &text, []).unwrap().config;
    assert_eq!(config.link.broker, broker);
    // The rest of [link] is the operator's.
    for line in
        ["[link] # ours\n", "keepalive = \"60s\" # metered\n", "proxy = \"http://proxy.example:3128\"\n"]
    {
        assert!(text.contains(line), "{text}");
    }
    // Written by an operator, the list stays, also over several lines.
    let own = "[link]\nbroker = [\n  \"mqtts://own.example\", # balancer\n  \"wss://own.example\",\n]\n";
    let device = Device::new(own);
    let state = DeviceState::read(&device.config(), Some("a")).unwrap();
    let mut out = Vec::new();
    let options = JoinOptions {
        cloud: url.clone(),
        token: token(&Authority::new("ca")),
        node: None,
        config: device.config(),
        cloudcore: None,
        force: false,
    };
    let route = route_of(&state, Some(&membership), &options, &mut out).unwrap();
    let said = String::from_utf8(out).unwrap();
    assert!(
        said.contains("link.broker stays mqtts://own.example:8883, wss://own.example:443/mqtt"),
        "{said}"
    );
    let text = configuration(&state, "a", &route, Path::new("/d"), &url).unwrap();
    assert!(text.contains("  \"mqtts://own.example\", # balancer\n  \"wss://own.example\",\n]\n"), "{text}");
}

#[test]
fn incomplete_configuration_is_accepted_before_joining() {
    let device = Device::new("[link]\nbroker = \"mqtts://cloud.example\"\n");
    assert!(config::parse::<Config>(&device.config(), &device.text(), []).is_err());
    let before = DeviceState::read(&device.config(), Some("a")).unwrap();
    assert!(before.member.is_none() && before.config.identity.directory.is_none());
    let wrong = Device::new("[link]\nkeepalive = 7\n");
    let error = DeviceState::read(&wrong.config(), Some("a")).err().unwrap();
    assert!(
        matches!(&error, JoinError::Config(errors) if errors.to_string().contains("keepalive")),
        "{error}"
    );
}

#[test]
fn lost_identity_counts_as_none() {
    let device = Device::new("[identity]\ndirectory = \"/nonexistent/identity\"\n");
    assert!(DeviceState::read(&device.config(), None).unwrap().member.is_none());
}
