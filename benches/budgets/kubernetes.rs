//! Replicas over a real Kubernetes API server: their throughput, their cost, and a failover.
//!
//! Requires the binaries of `tests/cluster/run prepare`.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};
use edgesync_admin::Route;
use edgesync_admin::agent::AgentStatus;
use edgesync_api::{Address, Client, collection_path};
use edgesync_object::{kinds, yaml};
use serde_json::{Value, json};

use crate::fleet::{memories, storm};
use crate::objects::object;
use crate::processes::{FleetSite, Process, cpu, edge_program, free_port, spawn, until};
use crate::table::Table;
use edgesync_testkit::authority::{Authority, HOUR, subject};
use edgesync_testkit::site::ask;
use edgesync_transport::tls::{self, Clock};

/// Objects created to compare rates.
const OBJECTS: usize = 4000;
const WORKERS: usize = 16;
/// Changes that are timed.
const CHANGES: usize = 200;
/// Nodes of a large replica, and objects placed on one node each, per node.
const NODES: usize = 1000;
const OWN: usize = 100;
/// Nodes that fail over to another replica, and objects that all of them hold.
const MOVING: usize = 5000;
pub(crate) const SHARED: usize = 20;

const KINDS: [&str; 4] = [
    include_str!("../../packaging/kubernetes/crds/placements.yaml"),
    include_str!("../../packaging/kubernetes/crds/clusterplacements.yaml"),
    include_str!("../../packaging/kubernetes/crds/objectsyncs.yaml"),
    include_str!("../../packaging/kubernetes/crds/clusterobjectsyncs.yaml"),
];

/// A kube-apiserver with its etcd.
pub(crate) struct Server {
    apiserver: Process,
    etcd: Process,
    pub(crate) kubeconfig: PathBuf,
    address: Address,
    tls: tls::Client,
    runtime: tokio::runtime::Runtime,
    _directory: tempfile::TempDir,
}

fn programs() -> anyhow::Result<PathBuf> {
    let version = include_str!("../../tests/cluster/version").trim();
    let cache = || {
        let home = std::env::var_os("HOME").map(|home| Path::new(&home).join(".cache"));
        let cache = std::env::var_os("XDG_CACHE_HOME").map(PathBuf::from).or(home)?;
        Some(cache.join(format!("edgesync-tests/kubernetes-{version}")))
    };
    let configured = std::env::var_os("EDGESYNC_TEST_KUBERNETES").map(PathBuf::from);
    let path = configured.or_else(cache).context("neither HOME nor XDG_CACHE_HOME is set")?;
    if !path.join("kube-apiserver").is_file() {
        bail!("needs kube-apiserver in {}: tests/cluster/run prepare", path.display());
    }
    Ok(path)
}

impl Server {
    pub(crate) fn start() -> anyhow::Result<Self> {
        let (programs, directory) = (programs()?, tempfile::tempdir()?);
        let file = |name: &str| directory.path().join(name).display().to_string();
        let (clients, peers, port) = (free_port(), free_port(), free_port());
        let etcd = run(
            &programs,
            "etcd",
            &[
                ("data-dir", file("etcd")),
                ("listen-client-urls", format!("http://127.0.0.1:{clients}")),
                ("advertise-client-urls", format!("http://127.0.0.1:{clients}")),
                ("listen-peer-urls", format!("http://127.0.0.1:{peers}")),
                ("initial-advertise-peer-urls", format!("http://127.0.0.1:{peers}")),
                ("initial-cluster", format!("default=http://127.0.0.1:{peers}")),
                ("quota-backend-bytes", (8_u64 << 30).to_string()),
            ],
        )?;
        let key = ["req", "-x509", "-newkey", "rsa:2048", "-nodes", "-subj", "/CN=tokens", "-keyout"];
        let mut openssl = Command::new("openssl");
        openssl.args(key).args([&file("tokens.key"), "-out", &file("tokens.pem")]).stderr(Stdio::null());
        anyhow::ensure!(openssl.status()?.success(), "openssl created no key");
        std::fs::write(file("users.csv"), "secret,admin,1,system:masters\n")?;
        let authority = Authority::new();
        std::fs::write(file("ca.pem"), authority.to_pem())?;
        std::fs::write(file("server.pem"), authority.server_identity().to_pem())?;
        let apiserver = run(
            &programs,
            "kube-apiserver",
            &[
                ("etcd-servers", format!("http://127.0.0.1:{clients}")),
                ("bind-address", "127.0.0.1".into()),
                ("advertise-address", "127.0.0.1".into()),
                ("secure-port", port.to_string()),
                ("tls-cert-file", file("server.pem")),
                ("tls-private-key-file", file("server.pem")),
                ("client-ca-file", file("ca.pem")),
                ("token-auth-file", file("users.csv")),
                ("service-account-issuer", "https://kubernetes.default.svc".into()),
                ("service-account-key-file", file("tokens.pem")),
                ("service-account-signing-key-file", file("tokens.key")),
                ("service-cluster-ip-range", "10.0.0.0/24".into()),
                ("endpoint-reconciler-type", "none".into()),
                ("disable-admission-plugins", "ServiceAccount".into()),
            ],
        )?;
        let kubeconfig = directory.path().join("kubeconfig");
        let config = json!({
            "apiVersion": "v1", "kind": "Config", "current-context": "c",
            "clusters": [{"name": "k", "cluster": {"server": format!("https://127.0.0.1:{port}"), "insecure-skip-tls-verify": true}}],
            "contexts": [{"name": "c", "context": {"cluster": "k", "user": "u"}}],
            "users": [{"name": "u", "user": {"token": "secret"}}],
        });
        std::fs::write(&kubeconfig, config.to_string())?;
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build()?;
        let identity = authority.issue(&subject("admin", "system:masters"), &[], -HOUR, HOUR);
        let tls = tls::Client::new(&authority.trust(), Some(&identity), Clock::system([]))?;
        let address = Address::Tls { host: "127.0.0.1".into(), port };
        let server = Self { apiserver, etcd, kubeconfig, address, tls, runtime, _directory: directory };
        let ready = || server.runtime.block_on(server.client().text("/readyz")).ok();
        until("the API server is ready", ready)?;
        server.create_prerequisites()?;
        Ok(server)
    }

    /// Returns a client with a separate connection.
    pub(crate) fn client(&self) -> Client {
        Client::with_tls(self.address.clone(), self.tls.clone())
    }

    /// Creates the required kinds and namespaces.
    fn create_prerequisites(&self) -> anyhow::Result<()> {
        for text in KINDS {
            self.create(&yaml::parse(text)?)?;
        }
        for name in ["edgesync", "edgesync-ca", "rates", "own", "shared"] {
            self.create(&json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}}))?;
        }
        let serves = |group: &str, plurals: [&str; 2]| {
            let client = self.client();
            let path = format!("/apis/{group}/v1alpha1");
            let served: Value = self.runtime.block_on(client.get(&path)).ok()?;
            let kinds = served["resources"].as_array()?;
            plurals.iter().all(|plural| kinds.iter().any(|kind| kind["name"] == *plural)).then_some(())
        };
        until("the kinds are served", || {
            serves("edgesync.io", ["placements", "clusterplacements"])?;
            serves("reliablesyncs.kubeedge.io", ["objectsyncs", "clusterobjectsyncs"])
        })
    }

    pub(crate) fn create(&self, object: &Value) -> anyhow::Result<()> {
        self.runtime.block_on(self.client().post::<Value>(&path_of(object), object))?;
        Ok(())
    }

    /// Returns the processor time used so far.
    pub(crate) fn spent(&self) -> Duration {
        cpu(&self.apiserver) + cpu(&self.etcd)
    }

    /// Creates objects as fast as the server accepts them. Returns the time.
    pub(crate) fn create_all(&self, objects: impl Iterator<Item = Value>) -> anyhow::Result<Duration> {
        let (objects, next) = (Arc::new(objects.collect::<Vec<_>>()), Arc::new(AtomicUsize::new(0)));
        let start = Instant::now();
        self.runtime.block_on(async {
            let mut tasks = tokio::task::JoinSet::new();
            for _ in 0..WORKERS {
                let (client, objects, next) = (self.client(), objects.clone(), next.clone());
                tasks.spawn(async move {
                    while let Some(object) = objects.get(next.fetch_add(1, Ordering::Relaxed)) {
                        client.post::<Value>(&path_of(object), object).await?;
                    }
                    anyhow::Ok(())
                });
            }
            while let Some(done) = tasks.join_next().await {
                done??;
            }
            anyhow::Ok(start.elapsed())
        })
    }
}

fn run(programs: &Path, name: &str, arguments: &[(&str, String)]) -> anyhow::Result<Process> {
    let arguments = arguments.iter().map(|(name, value)| format!("--{name}={value}"));
    let mut command = Command::new(programs.join(name));
    command.args(arguments).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    Process::start(command).with_context(|| format!("starting {name}"))
}

/// Returns the path of an object's collection.
fn path_of(object: &Value) -> String {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let namespace = text(&object["metadata"]["namespace"]);
    let resource = kinds::guess(&text(&object["apiVersion"]), &text(&object["kind"]), !namespace.is_empty());
    collection_path(&resource, Some(&namespace))
}

/// Returns a ConfigMap of about 1 KB.
pub(crate) fn config_map(namespace: &str, name: &str, n: usize) -> Value {
    let mut object = object(n * 10, 0);
    object["metadata"]["namespace"] = namespace.into();
    object["metadata"]["name"] = name.into();
    object
}

pub(crate) fn placement(name: &str, namespace: &str, nodes: &str) -> Value {
    json!({
        "apiVersion": "edgesync.io/v1alpha1", "kind": "Placement", "metadata": {"name": name, "namespace": namespace},
        "spec": {"objects": {"kinds": ["configmaps"]}, "nodes": {"names": [nodes]}},
    })
}

pub(crate) fn figures(table: &mut Table) -> anyhow::Result<()> {
    let server = Server::start()?;
    through(&server, table)?;
    large(&server, table)?;
    failover(&server, table)
}

/// Starts an agent in a directory, with the files in it.
fn node(directory: &Path, site: &FleetSite) -> anyhow::Result<Process> {
    let path = directory.display();
    let config = directory.join("edge.toml");
    std::fs::write(
        &config,
        format!(
            "[node]\nname = \"edge-1\"\n[store]\npath = \"{path}/edge.db\"\n[link]\nbroker = \"mqtt://{}\"\nbackoff_min = \"50ms\"\n\
         [api]\nsocket = \"{path}/edge.sock\"\nlisten = \"127.0.0.1:0\"\n[log]\nformat = \"text\"\nlevel = \"warn\"\n",
            site.endpoint()?.address
        ),
    )?;
    spawn(edge_program(), &config, &directory.join("edge.log"))
}

/// Measures from the cluster to a node's row, beside the API server alone.
fn through(server: &Server, table: &mut Table) -> anyhow::Result<()> {
    let each = |spent: Duration| spent.as_secs_f64() * 1e3 / OBJECTS as f64;
    let begun = server.spent();
    let alone = (0..OBJECTS).map(|n| config_map("default", &format!("alone-{n}"), n));
    let alone = OBJECTS as f64 / server.create_all(alone)?.as_secs_f64();
    let of_server = each(server.spent() - begun);
    table.figure("creates at the API server alone", format!("{alone:.0}/s"));
    table.figure("  CPU of API server and etcd per create", format!("{of_server:.2} ms"));

    server.create(&placement("rates", "rates", "edge-1"))?;
    let site = FleetSite::over_cluster(&server.kubeconfig, "")?;
    let directory = tempfile::tempdir()?;
    let agent = node(directory.path(), &site)?;
    let socket = directory.path().join("edge.sock");
    let edge = || Client::new(Address::Unix(socket.clone()));
    let status = || -> Option<AgentStatus> { server.runtime.block_on(ask(&edge(), Route::Status)).ok() };
    let total = || Some(status()?.objects.total);
    until("the agent is in sync", || status()?.sync.in_sync.then_some(()))?;
    let objects = (0..OBJECTS).map(|n| config_map("rates", &format!("c-{n}"), n));
    let begun = (server.spent(), site.cloud_spent().0, cpu(&agent));
    let start = Instant::now();
    let created = OBJECTS as f64 / server.create_all(objects)?.as_secs_f64();
    until("the node holds all of them", || (total()? == OBJECTS as u64).then_some(()))?;
    let arrived = OBJECTS as f64 / start.elapsed().as_secs_f64();
    table.figure("creates while a replica watches, with one node", format!("{created:.0}/s"));
    let (of_server, of_replica, of_agent) =
        (each(server.spent() - begun.0), each(site.cloud_spent().0 - begun.1), each(cpu(&agent) - begun.2));
    let what = "  CPU of API server and etcd, replica, agent per create";
    table.figure(what, format!("{of_server:.2}, {of_replica:.2}, {of_agent:.2} ms"));
    let share = 100.0 * arrived / created;
    let what = "from the cluster to the rows of the node, at the same time";
    table.budget(what, format!("{arrived:.0}/s = {share:.0} %"), "≥ 80 %", share >= 80.0);
    // Its rate without competition for the processors.
    until("all nodes are in sync", || status()?.sync.in_sync.then_some(()))?;
    drop((agent, site));
    std::fs::remove_file(directory.path().join("edge.db"))?;
    let site = FleetSite::over_cluster(&server.kubeconfig, "")?;
    let start = Instant::now();
    let agent = node(directory.path(), &site)?;
    until("the node holds all of them again", || (total()? == OBJECTS as u64).then_some(()))?;
    let refilled = OBJECTS as f64 / start.elapsed().as_secs_f64();
    let what = "a new node at a new replica, existing objects";
    table.figure(what, format!("{refilled:.0}/s"));

    let client = server.client();
    let mut times = Vec::new();
    for n in 0..CHANGES {
        let (name, value) = (format!("c-{n}"), format!("changed-{n}"));
        let mut changed = config_map("rates", &name, n);
        changed["data"]["endpoint"] = value.as_str().into();
        let path = format!("/api/v1/namespaces/rates/configmaps/{name}");
        let begun = Instant::now();
        server.runtime.block_on(client.put::<Value>(&path, &changed))?;
        until("the change arrives", || {
            let held = server.runtime.block_on(edge().get::<Value>(&path)).ok()?;
            (held["data"]["endpoint"] == value).then_some(())
        })?;
        times.push(begun.elapsed().as_secs_f64() * 1e3);
    }
    times.sort_by(f64::total_cmp);
    let at = |share: usize| times[(times.len() - 1) * share / 100];
    let what = "from a request to the API server to the row of the node, p50 / p95";
    table.figure(what, format!("{:.1} / {:.1} ms", at(50), at(95)));
    drop(agent);
    Ok(())
}

/// Measures a replica with 100,000 objects of 1 KB and 1,000 nodes.
fn large(server: &Server, table: &mut Table) -> anyhow::Result<()> {
    let object = |n: usize| {
        let mut object = config_map("own", &format!("own-{n}"), n);
        object["metadata"]["labels"]["edgesync.io/node"] = format!("node-{:05}", n / OWN).into();
        object
    };
    server.create_all((0..NODES * OWN).map(object))?;
    let site = FleetSite::over_cluster(&server.kubeconfig, "")?;
    let mut nodes = memories(NODES, OWN);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let time = runtime.block_on(storm(&site.endpoint()?, &mut nodes, async || ()))?;
    let what = "1,000 new nodes with 100 objects of their own each, all in sync";
    table.figure(what, format!("{:.1} s", time.as_secs_f64()));
    let peak = site.cloud_rss_peak() as f64 / 1e6;
    table.budget("  memory of the replica, peak", format!("{peak:.0} MB"), "≤ 400 MB", peak <= 400.0);
    Ok(())
}

/// Measures 5,000 nodes that fail over from a killed replica to another one.
fn failover(server: &Server, table: &mut Table) -> anyhow::Result<()> {
    server.create(&placement("shared", "shared", "node-*"))?;
    server.create_all((0..SHARED).map(|n| config_map("shared", &format!("s-{n}"), n)))?;
    let (one, other) =
        (FleetSite::over_cluster(&server.kubeconfig, "")?, FleetSite::over_cluster(&server.kubeconfig, "")?);
    // The first nodes have objects of their own, too.
    let mut nodes = memories(MOVING, SHARED);
    nodes.iter_mut().take(NODES).for_each(|node| node.wanted += OWN as u64);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(storm(&one.endpoint()?, &mut nodes, async || ()))?;
    drop(one);
    nodes.sort_by_key(|node| node.totals.epoch.0);
    let time = runtime.block_on(storm(&other.endpoint()?, &mut nodes, async || ()))?;
    let what = "5,000 nodes whose replica is killed: all in sync at another";
    table.figure(what, format!("{:.1} s", time.as_secs_f64()));
    let metrics = other.runtime().block_on(other.client().text("/metrics"))?;
    let count = |name: &str| {
        let line = metrics.lines().find_map(|line| line.strip_prefix(name)).unwrap_or_default();
        line.trim().parse::<f64>().unwrap_or(f64::NAN)
    };
    let sent = count("edgesync_cloud_sent_objects_total ");
    table.budget("  objects sent again", format!("{sent:.0}"), "0", sent == 0.0);
    let bytes = |way: &str| count(&format!("edgesync_cloud_endpoint_{way}_bytes_total ")) / MOVING as f64;
    let (down, up) = (bytes("sent"), bytes("received"));
    table.figure("  TCP payload per node, down / up", format!("{down:.0} / {up:.0} bytes"));
    Ok(())
}
