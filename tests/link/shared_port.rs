//! One TLS listener for MQTT, MQTT over WebSocket, joining and the API: clients with each ALPN
//! and name, independent programs, and what each service demands of a certificate.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use bytes::BytesMut;
use edgesync_api::{Access, Limits, Listener, Role, Server, own_uid};
use edgesync_broker::{Broker, BrokerOptions, Channel, FleetEvents, SharedSource};
use edgesync_cloud_store::{CloudOptions, CloudStore};
use edgesync_enrollment::{EnrollmentOptions, EnrollmentRole, EnrollmentService, service};
use edgesync_fleet::objects::CloudObjects;
use edgesync_object::Labels;
use edgesync_testkit::alpn::{self, Connection, Offer};
use edgesync_testkit::fleet::{PATIENCE, message, node_name};
use edgesync_testkit::log::log;
use edgesync_testkit::mosquitto::client_command;
use edgesync_testkit::serving::Echo;
use edgesync_testkit::timing::within;
use edgesync_transport::link::wire;
use edgesync_transport::shared::{Routes, Service, SharedCounters, SharedListener, SharedOptions};
use edgesync_transport::tls::{Certificate, Identity, Key, NODES};
use edgesync_transport::websocket::{Role as Side, WebSocket};
use rcgen::{CertificateParams, DnType, ExtendedKeyUsagePurpose, Issuer, KeyPair, date_time_ymd};
use rumqttc::v5::mqttbytes::v5::{Connect, Packet};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::task::JoinSet;
use tracing::Level;

const HOUR: Duration = Duration::from_secs(3600);
const NAMES: [&str; 4] = ["cloud.example", "mqtt.example", "join.example", "api.example"];
const HTTP: &[&str] = &["http/1.1"];
const MQTT: &[&str] = &["mqtt"];
const NONE: &[&str] = &[];
/// Reason codes of a CONNACK.
const SUCCESS: u8 = 0;
const NOT_AUTHORIZED: u8 = 0x87;
const UPGRADE: &str = "GET /mqtt HTTP/1.1\r\nHost: cloud.example\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\
                       Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\
                       Sec-WebSocket-Protocol: mqtt\r\n\r\n";

/// A cloud side without a fleet, whose services share an address.
struct Site {
    address: SocketAddr,
    enrollment: EnrollmentService,
    broker: Broker,
    counters: Arc<SharedCounters>,
    events: FleetEvents,
    dir: tempfile::TempDir,
    _tasks: JoinSet<()>,
}

impl Site {
    async fn new(services: &[Service]) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let store = CloudStore::open(&dir.path().join("cloud.db"), &CloudOptions::default()).unwrap();
        let options = EnrollmentOptions {
            directory: dir.path().join("pki"),
            names: NAMES.map(str::to_owned).to_vec(),
            broker: "mqtts://:443".into(),
            brokers: vec!["wss://:443/mqtt".parse().unwrap()],
            prefix: "edgesync/v1".into(),
            lifetime: HOUR,
            grace: 24 * HOUR,
            external: false,
            role: EnrollmentRole::Whole,
        };
        let enrollment = EnrollmentService::open(options, store.clone()).await.unwrap();
        let mut listener = SharedListener::bind("127.0.0.1:0".parse().unwrap()).await.unwrap();
        let (address, counters) = (listener.address(), listener.counters());
        let mut tasks = JoinSet::new();
        tasks.spawn(service::serve_shared(listener.inlet(Service::Join), enrollment.clone()));
        let access = Access::certificates(enrollment.operators(), own_uid());
        let objects = Arc::new(CloudObjects::new(store).await.unwrap());
        let server = Server::new(objects, Echo, access, Limits::cloud());
        let api = Listener::shared(listener.inlet(Service::Api), enrollment.api_tls());
        tasks.spawn(async move { server.serve(api, std::future::pending()).await });
        let shared = SharedSource { inlet: listener.inlet(Service::Mqtt), tls: enrollment.endpoint_tls() };
        let (broker, events) = Broker::open(None, Some(shared), BrokerOptions::default()).await.unwrap();
        assert_eq!(broker.address(), address);
        let names = NAMES.iter().skip(1).zip([Service::Mqtt, Service::Join, Service::Api]);
        let routes = Routes {
            services: services.to_vec(),
            names: names.map(|(name, service)| ((*name).to_owned(), service)).collect(),
            join_paths: service::PATHS,
        };
        tasks.spawn(listener.serve(SharedOptions {
            routes,
            mqtt: enrollment.endpoint_tls(),
            api: enrollment.api_tls(),
            open: enrollment.joining_tls(),
        }));
        Self { address, enrollment, broker, counters, events, dir, _tasks: tasks }
    }

    async fn all() -> Self {
        Self::new(&[Service::Mqtt, Service::Join, Service::Api]).await
    }

    fn file(&self, name: &str) -> PathBuf {
        self.dir.path().join("pki").join(name)
    }

    async fn joined(&self, node: &str) -> Identity {
        let name = node_name(node);
        let token =
            self.enrollment.enrollment().create_token(Some(&name), HOUR, 1, Labels::new()).await.unwrap();
        let (_, bearer) = token.token.split_once('.').unwrap();
        let key = Key::generate().unwrap();
        let certificate =
            self.enrollment.join(bearer, &name, &key.node_request(node).unwrap()).await.unwrap();
        Identity::new("the answer", vec![certificate], key).unwrap()
    }

    /// Returns a node whose certificate of this CA expired two hours ago, within the grace.
    fn expired(&self, node: &str) -> Identity {
        let read = |name: &str| std::fs::read_to_string(self.file(name)).unwrap();
        let ca_key = KeyPair::from_pem(&read("ca.key")).unwrap();
        let issuer = Issuer::from_ca_cert_pem(&read("ca.crt"), ca_key).unwrap();
        let now = u64::try_from(jiff::Timestamp::now().as_second()).unwrap();
        let ago = |hours: u32| date_time_ymd(1970, 1, 1) + Duration::from_secs(now) - hours * HOUR;
        let mut params = CertificateParams::default();
        params.distinguished_name = rcgen::DistinguishedName::new();
        params.distinguished_name.push(DnType::OrganizationName, NODES);
        params.distinguished_name.push(DnType::CommonName, node);
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
        (params.not_before, params.not_after) = (ago(4), ago(2));
        let key = KeyPair::generate().unwrap();
        let pem = params.signed_by(&key, &issuer).unwrap().pem();
        let chain = Certificate::all_from_pem(node, &pem).unwrap();
        Identity::new(node, chain, Key::from_pem(node, &key.serialize_pem()).unwrap()).unwrap()
    }

    async fn open(
        &self,
        name: &str,
        protocols: &[&str],
        identity: Option<&Identity>,
    ) -> std::io::Result<Connection> {
        let offer = Offer { name, protocols, identity };
        let trust = self.enrollment.trust();
        within("the handshake", PATIENCE, alpn::connect(self.address, &trust, offer)).await
    }

    /// Sends a request and returns the whole response; empty if the connection fails.
    async fn get(&self, name: &str, protocols: &[&str], identity: Option<&Identity>, path: &str) -> String {
        let Ok(mut stream) = self.open(name, protocols, identity).await else { return String::new() };
        let request = format!("GET {path} HTTP/1.1\r\nHost: {name}\r\nConnection: close\r\n\r\n");
        let mut response = Vec::new();
        if stream.write_all(request.as_bytes()).await.is_ok() {
            // A server may end TLS without a close_notify.
            let _ = within("the response", PATIENCE, stream.read_to_end(&mut response)).await;
        }
        String::from_utf8_lossy(&response).into_owned()
    }

    /// Connects with MQTT inside a WebSocket and returns the reason code of the CONNACK.
    async fn over_web_socket(&self, identity: Option<&Identity>, node: &str) -> Option<u8> {
        let stream = self.open("cloud.example", HTTP, identity).await.ok()?;
        connack(&mut upgraded(stream).await?, node).await
    }
}

/// Requests a WebSocket; `None` if the connection ends before the answer.
async fn upgraded(mut stream: Connection) -> Option<WebSocket<Connection>> {
    stream.write_all(UPGRADE.as_bytes()).await.ok()?;
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.push(within("the upgrade", PATIENCE, stream.read_u8()).await.ok()?);
    }
    let head = String::from_utf8(head).unwrap();
    assert!(head.starts_with("HTTP/1.1 101 "), "{head}");
    Some(WebSocket::new(stream, Side::Client, BytesMut::new()))
}

/// Sends a CONNECT and returns the reason code of the answer; `None` if the connection ends.
async fn connack<S: AsyncRead + AsyncWrite + Unpin>(stream: &mut S, node: &str) -> Option<u8> {
    let connect = Connect { keep_alive: 60, client_id: node.to_owned(), clean_start: true, properties: None };
    let mut packet = BytesMut::new();
    wire::encode(&Packet::Connect(connect, None, None), &mut packet, u32::MAX).unwrap();
    stream.write_all(&packet).await.ok()?;
    stream.flush().await.ok()?;
    let mut byte = async || within("the CONNACK", PATIENCE, stream.read_u8()).await.ok();
    assert_eq!(byte().await?, 0x20);
    // The remaining length has one byte more for each byte with the highest bit.
    while byte().await? & 0x80 != 0 {}
    let _flags = byte().await?;
    byte().await
}

#[tokio::test]
async fn each_protocol_reaches_its_service_on_one_port() {
    let site = Site::all().await;
    let node = site.joined("edge-1").await;
    let operator = site.enrollment.new_operator("ada", Role::View, HOUR).await.unwrap();
    let both: &[&str] = &["h2", "mqtt"];
    for (protocols, expected) in [(MQTT, Some("mqtt")), (both, Some("mqtt")), (NONE, None)] {
        let mut stream = site.open("cloud.example", protocols, Some(&node)).await.unwrap();
        assert_eq!(alpn::chosen(&stream).as_deref(), expected, "{protocols:?}");
        assert_eq!(connack(&mut stream, "edge-1").await, Some(SUCCESS), "{protocols:?}");
    }
    assert_eq!(site.over_web_socket(Some(&node), "edge-1").await, Some(SUCCESS));
    for protocols in [HTTP, &["h2", "http/1.1"], NONE] {
        let ca = site.get("cloud.example", protocols, None, "/ca.crt").await;
        assert!(ca.starts_with("HTTP/1.1 200 ") && ca.contains("application/octet-stream"), "{ca}");
        let version = site.get("cloud.example", protocols, Some(&operator), "/version").await;
        assert!(version.starts_with("HTTP/1.1 200 ") && version.contains("gitVersion"), "{version}");
        let joined = site.get("cloud.example", protocols, Some(&node), "/edgesync/v1/join").await;
        assert!(joined.contains("\"brokers\":[\"wss://:443/mqtt\"]"), "{joined}");
    }
    let traffic = site.broker.traffic();
    assert_eq!((traffic.accepted, traffic.connected), (4, 4));
    // Four handshakes: their bytes count too.
    assert!(traffic.bytes_in > 2000 && traffic.bytes_out > 2000, "{traffic:?}");
    let port = site.counters.counts();
    assert_eq!((port.accepted, port.passed, port.refused, port.over_limit), (13, 13, 0, 0));
}

#[tokio::test]
async fn messages_pass_through_a_web_socket() {
    let mut site = Site::all().await;
    let node = site.joined("edge-1").await;
    let stream = site.open("cloud.example", HTTP, Some(&node)).await.unwrap();
    let mut socket = upgraded(stream).await.unwrap();
    assert_eq!(connack(&mut socket, "edge-1").await, Some(SUCCESS));
    let topic = "edgesync/v1/nodes/edge-1/up";
    let large = vec![7; 200_000];
    let publish = rumqttc::v5::mqttbytes::v5::Publish::new(
        topic,
        rumqttc::v5::mqttbytes::QoS::AtMostOnce,
        large.clone(),
        None,
    );
    let mut packet = BytesMut::new();
    wire::encode(&Packet::Publish(publish), &mut packet, u32::MAX).unwrap();
    socket.write_all(&packet).await.unwrap();
    socket.flush().await.unwrap();
    let (from, channel, payload) = message(&mut site.events).await;
    assert_eq!((from.as_str(), channel, payload), ("edge-1", Channel::Up, large));
}

#[tokio::test]
async fn protocols_that_nobody_speaks_get_an_alert_and_a_line() {
    let (_logging, mut lines) = log(Level::INFO);
    let site = Site::all().await;
    let refused = site.open("cloud.example", &["h2", "acme-tls/1"], None).await.unwrap_err().to_string();
    assert!(refused.contains("NoApplicationProtocol"), "{refused}");
    let line = loop {
        let line = within("a line", PATIENCE, lines.recv()).await.unwrap();
        if line.contains("shared port refused") {
            break line;
        }
    };
    assert!(line.contains("the client offers h2, acme-tls/1 (ALPN)"), "{line}");
    assert!(line.contains("this port speaks mqtt and http/1.1"), "{line}");
    let port = site.counters.counts();
    assert_eq!((port.accepted, port.passed, port.refused), (1, 0, 1));
}

#[tokio::test]
async fn services_demand_what_the_handshake_does_not() {
    let site = Site::all().await;
    let expired = site.expired("edge-old");
    // No client gets a TLS connection for MQTT without a valid certificate.
    for identity in [None, Some(&expired)] {
        // With TLS 1.3 a client learns the refusal after its own part of the handshake.
        let code = match site.open("cloud.example", MQTT, identity).await {
            Ok(mut stream) => connack(&mut stream, "edge-old").await,
            Err(_) => None,
        };
        assert_eq!(code, None);
    }
    for identity in [None, Some(&expired)] {
        let mut plain = site.open("cloud.example", NONE, identity).await.unwrap();
        assert_eq!(connack(&mut plain, "edge-old").await, Some(NOT_AUTHORIZED));
        assert_eq!(site.over_web_socket(identity, "edge-old").await, Some(NOT_AUTHORIZED));
        for path in ["/version", "/healthz", "/page/", "/api/v1/namespaces/default/secrets", "/nothing"] {
            let refused = site.get("cloud.example", HTTP, identity, path).await;
            assert!(refused.starts_with("HTTP/1.1 401 "), "{path}: {refused}");
            assert!(refused.contains("client certificate of an operator required"), "{refused}");
        }
    }
    let refused = site.get("cloud.example", HTTP, Some(&expired), "/edgesync/v1/join").await;
    assert!(refused.starts_with("HTTP/1.1 403 ") && refused.contains("renew it first"), "{refused}");
    assert_eq!(site.broker.traffic().connected, 0);
}

/// Between its handshake and its first bytes a connection belongs to no service.
#[tokio::test]
async fn revocation_after_the_handshake_counts_for_every_service() {
    let site = Site::all().await;
    for protocols in [NONE, MQTT] {
        let node = site.joined(if protocols.is_empty() { "edge-a" } else { "edge-b" }).await;
        let name = node.certificate().node().unwrap().to_owned();
        let mut stream = site.open("cloud.example", protocols, Some(&node)).await.unwrap();
        let socket = site.open("cloud.example", HTTP, Some(&node)).await.unwrap();
        let mut join = site.open("cloud.example", HTTP, Some(&node)).await.unwrap();
        site.enrollment.revoke_node(&node_name(&name)).await.unwrap();
        for revoked in site.enrollment.nodes_to_disconnect().await {
            site.broker.disconnect(&revoked);
        }
        assert!(connack(&mut stream, &name).await.is_some_and(|code| code != SUCCESS), "{name}");
        let mut socket = upgraded(socket).await.unwrap();
        assert!(connack(&mut socket, &name).await.is_some_and(|code| code != SUCCESS), "{name}");
        join.write_all(b"GET /edgesync/v1/join HTTP/1.1\r\nHost: a\r\n\r\n").await.unwrap();
        let mut answer = Vec::new();
        let _ = within("the answer", PATIENCE, join.read_to_end(&mut answer)).await;
        assert!(answer.is_empty(), "{}", String::from_utf8_lossy(&answer));
    }
    assert_eq!(site.broker.traffic().connected, 0);
}

#[tokio::test]
async fn revoked_operator_of_an_open_connection_is_refused() {
    let site = Site::all().await;
    let operator = site.enrollment.new_operator("ada", Role::View, HOUR).await.unwrap();
    let mut stream = site.open("cloud.example", HTTP, Some(&operator)).await.unwrap();
    site.enrollment.revoke_operators("ada").await.unwrap();
    let mut answer = Vec::new();
    stream.write_all(b"GET /api/v1/nodes HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n").await.unwrap();
    let _ = within("the answer", PATIENCE, stream.read_to_end(&mut answer)).await;
    let answer = String::from_utf8_lossy(&answer);
    assert!(answer.starts_with("HTTP/1.1 40") && !answer.contains("NodeList"), "{answer}");
}

#[tokio::test]
async fn host_names_tell_services_apart_without_alpn() {
    let site = Site::all().await;
    let node = site.joined("edge-1").await;
    let operator = site.enrollment.new_operator("ada", Role::View, HOUR).await.unwrap();
    let mut stream = site.open("mqtt.example", NONE, Some(&node)).await.unwrap();
    assert_eq!(connack(&mut stream, "edge-1").await, Some(SUCCESS));
    assert!(site.get("join.example", NONE, None, "/ca.crt").await.starts_with("HTTP/1.1 200 "));
    assert!(site.get("api.example", NONE, Some(&operator), "/version").await.starts_with("HTTP/1.1 200 "));
    assert_eq!(site.get("api.example", NONE, None, "/version").await, "", "the handshake requires it");
    for (name, path) in [("api.example", "/ca.crt"), ("join.example", "/version")] {
        let refused = site.get(name, NONE, Some(&operator), path).await;
        assert!(
            refused.starts_with("HTTP/1.1 404 ") && refused.contains("under this host name"),
            "{refused}"
        );
    }
    assert!(site.open("join.example", MQTT, Some(&node)).await.is_err());
}

#[tokio::test]
async fn service_that_is_not_shared_is_not_reachable() {
    let site = Site::new(&[Service::Join]).await;
    let node = site.joined("edge-1").await;
    let operator = site.enrollment.new_operator("ada", Role::View, HOUR).await.unwrap();
    assert!(site.get("cloud.example", HTTP, None, "/ca.crt").await.starts_with("HTTP/1.1 200 "));
    for path in ["/version", "/mqtt"] {
        let refused = site.get("cloud.example", HTTP, Some(&operator), path).await;
        assert!(refused.starts_with("HTTP/1.1 404 ") && refused.contains("not served"), "{refused}");
    }
    let mut stream = site.open("cloud.example", NONE, Some(&node)).await.unwrap();
    assert_eq!(connack(&mut stream, "edge-1").await, None);
}

#[tokio::test]
async fn plain_http_is_told_that_the_port_has_tls() {
    let site = Site::all().await;
    let mut plain = TcpStream::connect(site.address).await.unwrap();
    plain.write_all(b"GET /ca.crt HTTP/1.1\r\nHost: a\r\n\r\n").await.unwrap();
    let mut answer = String::new();
    within("the answer", PATIENCE, plain.read_to_string(&mut answer)).await.unwrap();
    assert!(answer.starts_with("HTTP/1.1 400 ") && answer.contains("use https://"), "{answer}");
}

/// Runs a program to its end and returns its code and output.
fn run(mut command: Command) -> (Option<i32>, String) {
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    // The services answer on other threads.
    let output = tokio::task::block_in_place(|| command.output())
        .expect("openssl, curl and mosquitto-clients are needed for this test: install them with apt-get");
    let text = [output.stdout, output.stderr].concat();
    (output.status.code(), String::from_utf8_lossy(&text).into_owned())
}

fn written(directory: &Path, name: &str, identity: &Identity) -> String {
    let path = directory.join(name);
    std::fs::write(&path, identity.to_pem()).unwrap();
    path.to_str().unwrap().to_owned()
}

#[tokio::test(flavor = "multi_thread")]
async fn independent_programs_reach_their_services() {
    let mut site = Site::all().await;
    let operator = site.enrollment.new_operator("ada", Role::View, HOUR).await.unwrap();
    let operator = written(site.dir.path(), "operator.pem", &operator);
    let node = written(site.dir.path(), "node.pem", &site.joined("edge-1").await);
    let ca = site.file("ca.crt");
    let curl = |path: &str, more: &[&str]| {
        let mut curl = Command::new("curl");
        curl.args(["--silent", "--show-error", "--max-time", "60", "--cacert"]).arg(&ca).args(more);
        curl.arg(format!("https://127.0.0.1:{}{path}", site.address.port()));
        run(curl)
    };
    let shown = ["--cert", operator.as_str(), "--key", operator.as_str()];
    for version in [&["--http1.1"][..], &["--no-alpn"], &["--http2"]] {
        let (code, text) = curl("/version", &[version, &shown].concat());
        assert!(code == Some(0) && text.contains("gitVersion"), "{version:?}: {text}");
        let (code, text) = curl("/edgesync/v1/join", version);
        assert!(code == Some(0) && text.contains("no client certificate of a node"), "{version:?}: {text}");
    }
    let openssl = |protocol: &str, more: &[&str]| {
        let mut openssl = Command::new("openssl");
        openssl.args(["s_client", "-connect", &site.address.to_string(), "-alpn", protocol, "-CAfile"]);
        openssl.arg(&ca).args(more);
        run(openssl).1
    };
    let with_node = ["-cert", node.as_str(), "-key", node.as_str()];
    let text = openssl("mqtt", &with_node);
    assert!(text.contains("ALPN protocol: mqtt"), "{text}");
    let text = openssl("h2,http/1.1", &[]);
    assert!(text.contains("ALPN protocol: http/1.1"), "{text}");
    let text = openssl("h2", &[]);
    assert!(text.contains("no application protocol"), "{text}");
    let ca = ca.to_str().unwrap();
    for more in [&["--tls-alpn", "mqtt"][..], &[]] {
        let fixed = ["--cafile", ca, "--cert", &node, "--key", &node, "-i", "edge-1", "-q", "1"];
        let topic = ["-t", "edgesync/v1/nodes/edge-1/up", "-m", "hello"];
        let arguments = [&fixed[..], &topic, more].concat();
        let (code, text) = run(client_command("mosquitto_pub", site.address, &arguments));
        assert_eq!(code, Some(0), "{more:?}: {text}");
    }
    for _ in 0..2 {
        let (from, channel, payload) = message(&mut site.events).await;
        assert_eq!((from.as_str(), channel, payload), ("edge-1", Channel::Up, b"hello".to_vec()));
    }
}
