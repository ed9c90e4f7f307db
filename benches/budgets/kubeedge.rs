//! The link to a CloudCore, with a peer that answers at once: the edge's share of KubeEdge's 150 to
//! 230 messages per second. One message is in flight at a time, as with CloudCore, over TLS with
//! certificates on both sides.

use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use edgesync_admin::Route;
use edgesync_admin::agent::{AgentStatus, LinkStatus, Verification};
use edgesync_api::{Address, Client};
use futures::{SinkExt as _, StreamExt as _};
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, DnType, IsCa, KeyPair};
use serde_json::{Value, json};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{mpsc, oneshot};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer};
use tokio_rustls::rustls::server::WebPkiClientVerifier;
use tokio_rustls::rustls::{RootCertStore, ServerConfig};
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::Message;

use crate::processes::{cpu, edge_program, memory_peak, mib, proc_number, spawn, until, written};
use crate::table::Table;
use edgesync_testkit::cloudcore::{Options, Scripted};
use edgesync_testkit::site::ask;

/// Objects of each round.
const OBJECTS: usize = 10_000;
/// Bytes of a message with a ConfigMap: as in the measurements of EdgeCore.
const MESSAGE: usize = 869;
/// Time for the agent to become idle.
const SETTLE: Duration = Duration::from_secs(20);

type Socket = WebSocketStream<tokio_rustls::server::TlsStream<TcpStream>>;

/// Results of a round of messages.
struct Round {
    /// Times from message to acknowledgement, in milliseconds, sorted.
    latencies: Vec<f64>,
    time: Duration,
}

enum Command {
    Push {
        operation: &'static str,
        version: u64,
        done: oneshot::Sender<anyhow::Result<Round>>,
    },
    /// Closes the connection. Then `Carried` returns the bytes of messages of the next one, up and
    /// down.
    Reconnect(oneshot::Sender<()>),
    Carried(oneshot::Sender<(usize, usize)>),
}

/// A peer in a separate thread.
struct Peer {
    address: SocketAddr,
    commands: mpsc::UnboundedSender<Command>,
}

impl Peer {
    fn start(config: ServerConfig) -> anyhow::Result<Self> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let listener = runtime.block_on(TcpListener::bind("127.0.0.1:0"))?;
        let address = listener.local_addr()?;
        let (commands, mut receiver) = mpsc::unbounded_channel();
        let acceptor = TlsAcceptor::from(Arc::new(config));
        std::thread::spawn(move || {
            runtime.block_on(async move {
                let mut lasts = (None, 0);
                while let Ok((stream, _)) = listener.accept().await {
                    // The requester sees a dropped answer. A killed agent sends no close frame.
                    if let Err(error) = session(&acceptor, stream, &mut receiver, &mut lasts).await {
                        eprintln!("the peer: {error:#}");
                    }
                    if receiver.is_closed() {
                        return;
                    }
                }
            });
        });
        Ok(Self { address, commands })
    }

    fn push(&self, operation: &'static str, version: u64) -> anyhow::Result<Round> {
        self.ask(|done| Command::Push { operation, version, done })?
    }

    fn ask<T>(&self, command: impl FnOnce(oneshot::Sender<T>) -> Command) -> anyhow::Result<T> {
        let (answer, answered) = oneshot::channel();
        self.commands.send(command(answer)).ok().context("the peer ended")?;
        answered.blocking_recv().context("the connection broke")
    }
}

/// Bytes of a connection's messages, up and down; the Lease and the objects' version, which outlive
/// it.
#[derive(Default)]
struct Carried(usize, usize, Option<Value>, u64);

async fn session(
    acceptor: &TlsAcceptor,
    stream: TcpStream,
    commands: &mut mpsc::UnboundedReceiver<Command>,
    lasts: &mut (Option<Value>, u64),
) -> anyhow::Result<()> {
    stream.set_nodelay(true)?;
    let mut socket = tokio_tungstenite::accept_async(acceptor.accept(stream).await?).await?;
    let mut carried = Carried(0, 0, lasts.0.take(), lasts.1);
    loop {
        tokio::select! {
            message = socket.next() => match message {
                Some(message) => {
                    take(&mut socket, &mut carried, message?).await?;
                    *lasts = (carried.2.clone(), carried.3);
                }
                None => return Ok(()),
            },
            command = commands.recv() => match command {
                Some(Command::Push { operation, version, done }) => {
                    let _ = done.send(push(&mut socket, &mut carried, operation, version).await);
                }
                Some(Command::Reconnect(done)) => {
                    *lasts = (carried.2.clone(), carried.3);
                    let _ = done.send(());
                    return Ok(());
                }
                Some(Command::Carried(answer)) => _ = answer.send((carried.0, carried.1)),
                None => return Ok(()),
            },
        }
    }
}

/// Sends one object after the other, each after the acknowledgement of the one before.
async fn push(
    socket: &mut Socket,
    carried: &mut Carried,
    operation: &str,
    version: u64,
) -> anyhow::Result<Round> {
    let mut latencies = Vec::with_capacity(OBJECTS);
    let start = Instant::now();
    for number in 0..OBJECTS {
        let id = format!("00000000-0000-4000-8000-{:012x}", version * 1_000_000 + number as u64);
        let text = config_map(&id, operation, number, version);
        carried.1 += text.len();
        let sent = Instant::now();
        socket.send(Message::text(text)).await?;
        loop {
            let message = socket.next().await.context("the agent disconnected")??;
            if take(socket, carried, message).await?.is_some_and(|parent| parent == id) {
                break;
            }
        }
        latencies.push(sent.elapsed().as_secs_f64() * 1000.0);
    }
    carried.3 = version;
    let time = start.elapsed();
    latencies.sort_by(f64::total_cmp);
    Ok(Round { latencies, time })
}

fn config_map(id: &str, operation: &str, number: usize, version: u64) -> String {
    let resource_version = (version * 100_000 + number as u64).to_string();
    let message = |filler: &str| {
        let content = json!({
            "kind": "ConfigMap", "apiVersion": "v1",
            "metadata": {
                "name": format!("settings-{number:06}"), "namespace": "plant",
                "uid": format!("00000000-0000-4000-9000-{number:012x}"), "resourceVersion": resource_version,
                "creationTimestamp": "2026-11-21T01:40:24Z",
            },
            "data": { "station.properties": filler, "version": version.to_string() },
        });
        json!({
            "header": { "msg_id": id, "timestamp": 1_795_225_224_439_u64, "resourceversion": resource_version },
            "route": {
                "source": "edgecontroller", "group": "resource", "operation": operation,
                "resource": format!("plant/configmap/settings-{number:06}"),
            },
            "content": content,
        })
        .to_string()
    };
    let filler: String =
        (0..).map(|at| char::from(b'a' + ((number + at * 7) % 26) as u8)).take(MESSAGE).collect();
    let rest = MESSAGE.saturating_sub(message("").len() + 1);
    message(&filler[..rest]) + "\n"
}

/// Answers a node's queries and writes like CloudCore. Returns the acknowledged message, if it is
/// an acknowledgement.
async fn take(
    socket: &mut Socket,
    carried: &mut Carried,
    message: Message,
) -> anyhow::Result<Option<String>> {
    let Message::Text(text) = message else { return Ok(None) };
    carried.0 += text.len();
    let message: Value = serde_json::from_str(text.as_str())?;
    let field = |part: &str, name: &str| message[part][name].as_str().unwrap_or_default().to_owned();
    let (operation, resource) = (field("route", "operation"), field("route", "resource"));
    if operation == "response" {
        return Ok(Some(field("header", "parent_msg_id")));
    }
    let kind = resource.split('/').nth(1).unwrap_or_default();
    if (kind, operation.as_str()) == ("configmap", "query") {
        let number =
            resource.rsplit('-').next().and_then(|number| number.parse().ok()).context(resource.clone())?;
        let id = uuid::Uuid::new_v4().to_string();
        let mut answer: Value = serde_json::from_str(&config_map(&id, "response", number, carried.3))?;
        answer["header"]["parent_msg_id"] = message["header"]["msg_id"].clone();
        let text = answer.to_string() + "\n";
        carried.1 += text.len();
        socket.send(Message::text(text)).await?;
        return Ok(None);
    }
    let mut object = message["content"].clone();
    let content = match (kind, operation.as_str()) {
        ("lease", "query") if carried.2.is_some() => json!({ "Object": carried.2, "Err": null }),
        ("lease", "query") => json!({ "Object": null, "Err": { "ErrStatus": {
            "metadata": {}, "status": "Failure", "message": "not found", "reason": "NotFound", "code": 404,
        } } }),
        ("lease" | "node", _) => {
            object["metadata"]["uid"] = json!("5b0e5bd3-2f3e-4a43-9a35-5d0a6f6a7f10");
            object["metadata"]["resourceVersion"] = json!("1");
            if kind == "lease" {
                carried.2 = Some(object.clone());
            }
            json!({ "Object": object, "Err": null })
        }
        ("nodepatch", _) => json!({ "Object": { "metadata": {
            "name": "edge-1", "uid": "5b0e5bd3-2f3e-4a43-9a35-5d0a6f6a7f10", "resourceVersion": "1",
        } }, "Err": null }),
        _ => return Ok(None),
    };
    let answer = json!({
        "header": {
            "msg_id": uuid::Uuid::new_v4().to_string(), "parent_msg_id": message["header"]["msg_id"],
            "timestamp": 1_795_225_224_439_u64,
        },
        "route": { "source": "edgecontroller", "group": "resource", "operation": "response", "resource": resource },
        "content": content,
    });
    let text = answer.to_string() + "\n";
    carried.1 += text.len();
    socket.send(Message::text(text)).await?;
    Ok(None)
}

/// Creates a CA and the peer's TLS configuration, and writes the node's identity as `edgesync join`
/// does.
fn certificates(identity: &Path) -> anyhow::Result<ServerConfig> {
    let mut params = CertificateParams::new(Vec::new())?;
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    params.distinguished_name.push(DnType::CommonName, "KubeEdge");
    let ca = CertifiedIssuer::self_signed(params, KeyPair::generate()?)?;
    let server_key = KeyPair::generate()?;
    let server = CertificateParams::new(vec!["127.0.0.1".to_owned()])?.signed_by(&server_key, &ca)?;
    let node_key = KeyPair::generate()?;
    let mut params = CertificateParams::new(Vec::new())?;
    params.distinguished_name.push(DnType::OrganizationName, "system:nodes");
    params.distinguished_name.push(DnType::CommonName, "system:node:edge-1");
    let node = params.signed_by(&node_key, &ca)?;
    std::fs::create_dir(identity)?;
    std::fs::write(identity.join("ca.crt"), ca.pem())?;
    std::fs::write(identity.join("node.pem"), node_key.serialize_pem() + &node.pem())?;
    let mut roots = RootCertStore::empty();
    roots.add(ca.der().clone())?;
    let provider = Arc::new(tokio_rustls::rustls::crypto::ring::default_provider());
    let clients =
        WebPkiClientVerifier::builder_with_provider(Arc::new(roots), Arc::clone(&provider)).build()?;
    let key = PrivateKeyDer::from(PrivatePkcs8KeyDer::from(server_key.serialize_der()));
    Ok(ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()?
        .with_client_cert_verifier(clients)
        .with_single_cert(vec![server.der().clone()], key)?)
}

/// Measures inserts, updates, memory, disk and a reconnect; then a lost database and a restart of
/// CloudCore.
pub(crate) fn figures(table: &mut Table) -> anyhow::Result<()> {
    edge_program();
    messages(table)?;
    recovery(table)
}

fn messages(table: &mut Table) -> anyhow::Result<()> {
    let directory = tempfile::tempdir()?;
    let root = directory.path();
    let peer = Peer::start(certificates(&root.join("identity"))?)?;
    let config = root.join("edge.toml");
    std::fs::write(&config, configuration(root, &format!("wss://{}", peer.address)))?;
    let agent = spawn(edge_program(), &config, &root.join("edge.log"))?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let status = || -> Option<AgentStatus> {
        let client = Client::new(Address::Unix(root.join("edge.sock")));
        runtime.block_on(ask(&client, Route::Status)).ok()
    };
    let in_sync = |connections: u64| {
        until("the node is in sync", || {
            let status = status()?;
            (status.link.connections >= connections && status.sync.in_sync).then_some(())
        })
    };
    in_sync(1)?;
    for (operation, version, edgecore) in
        [("insert", 1, "145 (without its rate limit)"), ("update", 2, "182–186")]
    {
        let (bytes, used) = (written(&agent), cpu(&agent));
        let round = peer.push(operation, version)?;
        let rate = OBJECTS as f64 / round.time.as_secs_f64();
        let what = format!("CloudCore without delay: {operation}s stored and acknowledged, one at a time");
        table.figure(&what, format!("{rate:.0}/s (EdgeCore: {edgecore})"));
        let (p50, p95) = (round.latencies[OBJECTS / 2], round.latencies[OBJECTS * 95 / 100]);
        table.figure("  message to acknowledgement, p50 / p95", format!("{p50:.2} / {p95:.2} ms"));
        let each = (written(&agent) - bytes) as f64 / OBJECTS as f64 / 1000.0;
        table.figure("  written to disk per object", format!("{each:.1} KB (EdgeCore: 65)"));
        let spent = (cpu(&agent) - used).as_secs_f64() * 1000.0 / OBJECTS as f64;
        table.figure("  agent CPU per object", format!("{spent:.3} ms (EdgeCore: 0.75)"));
    }
    table.figure("  agent RSS, peak", mib(memory_peak(&agent) / 1024));
    std::thread::park_timeout(SETTLE);
    table.figure(
        "agent RSS, idle with 10,000 objects, CloudCore over TLS",
        format!("{} (EdgeCore: 80)", mib(proc_number(&agent, "status", "VmRSS:"))),
    );
    peer.ask(Command::Reconnect)?;
    in_sync(2)?;
    let (up, down) = peer.ask(Command::Carried)?;
    table.figure(
        "reconnect to CloudCore without changes: messages up + down",
        format!("{up} + {down} bytes (EdgeCore with its handshake: 720 + 129)"),
    );
    // All objects are compared by queries, because this peer has no dynamic controller.
    let socket = root.join("edge.sock");
    let round = std::thread::scope(|scope| {
        let verified = scope.spawn(|| {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
            let client = Client::new(Address::Unix(socket));
            anyhow::Ok(runtime.block_on(ask::<Verification>(&client, Route::Verify))?)
        });
        until("the comparison asks", || (status()?.kubeedge?.counters.asked > 16).then_some(()))?;
        let round = peer.push("update", 3);
        verified.join().ok().context("the comparison")??;
        round
    })?;
    let p99 = round.latencies[OBJECTS * 99 / 100];
    let p50 = round.latencies[OBJECTS / 2];
    table.figure(
        "message to acknowledgement while 10,000 rows are compared without a pause, p50 / p99",
        format!("{p50:.2} / {p99:.2} ms"),
    );
    Ok(())
}

/// Measures recovery with the tests' scripted CloudCore and its dynamic controller.
fn recovery(table: &mut Table) -> anyhow::Result<()> {
    let directory = tempfile::tempdir()?;
    let root = directory.path();
    let cloud = Scripted::start(Options { plain: true, ..Options::default() });
    for number in 0..OBJECTS {
        let text = config_map("", "insert", number, 1);
        cloud.apply(serde_json::from_str::<Value>(&text)?["content"].take());
    }
    let config = root.join("edge.toml");
    let text = configuration(root, &cloud.url())
        .replace("[identity]", "fetch = [\"plant/configmap/*\"]\n[identity]")
        .replace(&format!("directory = \"{}/identity\"\n", root.display()), "");
    std::fs::write(&config, text)?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let status = || -> Option<AgentStatus> {
        let client = Client::new(Address::Unix(root.join("edge.sock")));
        runtime.block_on(ask(&client, Route::Status)).ok()
    };
    let has_all = || status().filter(|status| status.objects.total >= OBJECTS as u64);
    let in_sync = || has_all().filter(|status| status.sync.in_sync);
    let agent = spawn(edge_program(), &config, &root.join("edge.log"))?;
    until("the node is in sync", in_sync)?;
    // Initial events of the watch.
    until("the outbox is empty", || cloud.with(|core, _| core.waiting("edge-1") == 0).then_some(()))?;
    drop(agent);
    for file in std::fs::read_dir(root)? {
        let file = file?.path();
        if file.file_name().is_some_and(|name| name.to_string_lossy().starts_with("edge.db")) {
            std::fs::remove_file(file)?;
        }
    }
    let from = Instant::now();
    let _agent = spawn(edge_program(), &config, &root.join("edge.log"))?;
    until("the rows are refilled", has_all)?;
    let back = from.elapsed().as_secs_f64();
    until("the node is in sync", in_sync)?;
    let said = from.elapsed().as_secs_f64();
    table.figure(
        "lost database of 10,000 objects, with CloudCore: rows refilled, in sync",
        format!("{back:.1} s, {said:.1} s after the start (EdgeCore: never)"),
    );
    for what in ["soon afterwards", "later"] {
        let before = until("the node is connected", in_sync)?;
        let connections = before.link.connections;
        cloud.restart();
        let is_back = || in_sync().filter(|status| status.link.connections > connections);
        let after = until("the node is connected again", is_back)?;
        let moved = |bytes: fn(&LinkStatus) -> u64| bytes(&after.link).saturating_sub(bytes(&before.link));
        table.figure(
            &format!("restart of CloudCore without changes, {what}: bytes up + down until in sync"),
            format!(
                "{} + {} (EdgeCore: 720 + 129)",
                moved(|link| link.bytes_out),
                moved(|link| link.bytes_in)
            ),
        );
        std::thread::park_timeout(SETTLE);
    }
    Ok(())
}

/// Returns the configuration of an agent with all files in one directory.
fn configuration(root: &Path, url: &str) -> String {
    format!(
        "[node]\nname = \"edge-1\"\n[store]\npath = \"{0}/edge.db\"\n\
         [link]\ntype = \"kubeedge\"\nbackoff_min = \"50ms\"\nbackoff_max = \"200ms\"\n\
         [kubeedge]\nurl = \"{url}\"\n[identity]\ndirectory = \"{0}/identity\"\n\
         [api]\nsocket = \"{0}/edge.sock\"\nlisten = \"127.0.0.1:0\"\n[log]\nformat = \"text\"\n",
        root.display()
    )
}
