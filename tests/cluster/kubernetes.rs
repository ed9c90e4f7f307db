//! A real kube-apiserver with its own etcd, in the directory of a test, with RBAC and
//! authentication by certificates and ServiceAccount tokens.
//!
//! ```text
//! let site = Site::new();
//! let mut kubernetes = Kubernetes::start(&site).await;
//! let admin = Kubectl::with_kubeconfig(&site, "admin", &kubernetes.admin);
//! kubernetes.crash().await;
//! ```
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

use std::ffi::OsString;
use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use edgesync_api::{Address, Client};
use edgesync_transport::tls::{self, Identity};
use serde_json::{Value, json};

use edgesync_testkit::authority::{Authority, HOUR, subject};
use edgesync_testkit::kubectl::cache;
use edgesync_testkit::site::{Process, Site, eventually};

/// Maximum time for a start, on a busy machine.
const START: Duration = Duration::from_secs(90);
/// The group of administrators.
const MASTERS: &str = "system:masters";

/// A running API server and its etcd; both are killed when this is dropped.
pub(crate) struct Kubernetes {
    // The server is dropped before its store.
    pub(crate) server: Process,
    etcd: Process,
    /// The kubeconfig of an administrator.
    pub(crate) admin: PathBuf,
    /// The address of the server.
    pub(crate) address: SocketAddr,
    /// The address of etcd.
    store: SocketAddr,
    authority: Authority,
    identity: Identity,
    directory: PathBuf,
    /// A client with the administrator's rights.
    pub(crate) client: Client,
}

impl Kubernetes {
    /// Starts both processes and waits until the server is ready.
    pub(crate) async fn start(site: &Site) -> Self {
        Self::start_with(site, &[]).await
    }

    /// Starts both processes with additional arguments of the server.
    pub(crate) async fn start_with(site: &Site, more: &[&str]) -> Self {
        let programs = programs();
        let directory = site.path("kubernetes");
        fs::create_dir(&directory).unwrap();
        let (authority, address, store) = (Authority::new(), Site::address(), Site::address());
        write_credentials(&directory, &authority, address);

        let etcd = etcd_arguments(&directory, store, Site::address());
        let etcd = Process::with_arguments("etcd", &programs.join("etcd"), etcd);
        let mut server = server_arguments(&directory, address, store);
        server.extend(more.iter().map(OsString::from));
        let server = Process::with_arguments("kube-apiserver", &programs.join("kube-apiserver"), server);
        let identity = authority.issue(&subject("admin", MASTERS), &[], -HOUR, HOUR);
        let tls = Address::Tls { host: address.ip().to_string(), port: address.port() };
        let client = Client::with_tls(tls, authority.client(&identity));
        let admin = directory.join("admin.kubeconfig");
        let mut kubernetes =
            Self { server, etcd, admin, address, store, authority, identity, directory, client };
        kubernetes.admin_by("admin", &format!("https://{address}"));
        kubernetes.etcd.start();
        kubernetes.run().await;
        kubernetes
    }

    /// Starts the killed server at the same address with the data of etcd.
    pub(crate) async fn run(&mut self) {
        self.server.start();
        let Self { server, etcd, client, .. } = self;
        eventually("the API server is ready", START, async || {
            assert!(etcd.runs(), "etcd has ended");
            assert!(server.runs(), "kube-apiserver has ended");
            client.text("/readyz").await.ok()
        })
        .await;
    }

    /// Kills the server with SIGKILL and starts it again.
    pub(crate) async fn crash(&mut self) {
        self.server.kill();
        self.run().await;
    }

    /// Copies the data of etcd, or restores the copy if there is one.
    pub(crate) async fn copy_or_restore(&mut self) {
        self.copy_or_replace();
        self.run().await;
    }

    /// Restores the copy of etcd's data and continues with versions above all that were assigned,
    /// like `etcdutl snapshot restore` with `--bump-revision` and `--mark-compacted`.
    pub(crate) async fn restore_raised(&mut self) {
        let given = self.newest().await.unwrap();
        self.copy_or_replace();
        eventually("etcd serves", START, async || self.newest().await).await;
        while self.newest().await.unwrap() <= given {
            let put = json!({"key": STANDARD.encode("raised"), "value": ""});
            self.etcd_client().post::<Value>("/v3/kv/put", &put).await.unwrap();
        }
        self.compact().await;
        self.run().await;
    }

    fn copy_or_replace(&mut self) {
        self.server.kill();
        self.etcd.kill();
        let (data, copy) = (self.directory.join("etcd"), self.directory.join("etcd.copy"));
        if copy.exists() {
            fs::remove_dir_all(&data).unwrap();
            fs::rename(&copy, &data).unwrap();
        } else {
            let copied = std::process::Command::new("cp").arg("-r").args([&data, &copy]).status().unwrap();
            assert!(copied.success());
        }
        self.etcd.start();
    }

    fn etcd_client(&self) -> Client {
        Client::new(Address::Tcp(self.store))
    }

    /// Returns the newest version that etcd has assigned, if it serves.
    async fn newest(&self) -> Option<u64> {
        let range = json!({"key": STANDARD.encode("registry")});
        let found: Value = self.etcd_client().post("/v3/kv/range", &range).await.ok()?;
        found["header"]["revision"].as_str()?.parse().ok()
    }

    /// Compacts etcd to the current version, so that no earlier watch can resume.
    pub(crate) async fn compact(&self) {
        let compaction = json!({"revision": self.newest().await.unwrap().to_string(), "physical": true});
        self.etcd_client().post::<Value>("/v3/kv/compaction", &compaction).await.unwrap();
    }

    /// Returns the administrator's TLS client.
    pub(crate) fn tls(&self) -> tls::Client {
        self.authority.client(&self.identity)
    }

    /// Writes a kubeconfig of the administrator for another address of the server.
    pub(crate) fn admin_by(&self, name: &str, server: &str) -> PathBuf {
        self.write_kubeconfig_for(name, &with_identity(&self.identity), server)
    }

    /// Writes a kubeconfig of a user with a certificate but no rights.
    pub(crate) fn user(&self, name: &str) -> PathBuf {
        let identity = self.authority.issue(&subject(name, ""), &[], -HOUR, HOUR);
        self.write_kubeconfig(name, &with_identity(&identity))
    }

    /// Writes a kubeconfig of a caller with a token.
    pub(crate) fn caller(&self, name: &str, token: &str) -> PathBuf {
        self.write_kubeconfig(name, &json!({"token": token}))
    }

    fn write_kubeconfig(&self, name: &str, user: &Value) -> PathBuf {
        self.write_kubeconfig_for(name, user, &format!("https://{}", self.address))
    }

    fn write_kubeconfig_for(&self, name: &str, user: &Value, server: &str) -> PathBuf {
        let server = json!({
            "server": server,
            "certificate-authority-data": STANDARD.encode(self.authority.to_pem()),
        });
        let kubeconfig = json!({
            "apiVersion": "v1", "kind": "Config", "current-context": name,
            "clusters": [{"name": "test", "cluster": server}],
            "contexts": [{"name": name, "context": {"cluster": "test", "user": name}}],
            "users": [{"name": name, "user": user}],
        });
        let path = self.directory.join(format!("{name}.kubeconfig"));
        fs::write(&path, kubeconfig.to_string()).unwrap();
        path
    }
}

/// Returns the directory of the programs.
fn programs() -> PathBuf {
    let version = include_str!("version").trim();
    let told = std::env::var_os("EDGESYNC_TEST_KUBERNETES").map(PathBuf::from);
    let path = told.unwrap_or_else(|| cache().join(format!("kubernetes-{version}")));
    for name in ["etcd", "kube-apiserver"] {
        let there = path.join(name).is_file();
        assert!(
            there,
            "this test needs {name} in {}: run tests/cluster/run, which puts it there",
            path.display()
        );
    }
    path
}

/// A kubeconfig user with a certificate.
fn with_identity(identity: &Identity) -> Value {
    json!({
        "client-certificate-data": STANDARD.encode(identity.certificate().to_pem()),
        "client-key-data": STANDARD.encode(identity.key().to_pem()),
    })
}

/// Writes the credentials of the server: its certificate, the authority, and the keys that sign
/// ServiceAccount tokens.
fn write_credentials(directory: &Path, authority: &Authority, address: SocketAddr) {
    let write = |name: &str, text: String| fs::write(directory.join(name), text).unwrap();
    write("ca.pem", authority.to_pem());
    // Proxies in front of the server listen on the usual loopback address.
    let server = authority.server_for(&[&address.ip().to_string(), "127.0.0.1"], -HOUR, HOUR);
    for (name, identity) in [("server", &server), ("tokens", &authority.server_identity())] {
        write(&format!("{name}.pem"), identity.certificate().to_pem());
        write(&format!("{name}.key"), identity.key().to_pem());
    }
}

/// Formats arguments with values for these programs.
fn arguments<const N: usize>(list: [(&str, String); N]) -> Vec<OsString> {
    list.into_iter().map(|(name, value)| format!("--{name}={value}").into()).collect()
}

fn etcd_arguments(directory: &Path, clients: SocketAddr, peers: SocketAddr) -> Vec<OsString> {
    let (clients, peers) = (format!("http://{clients}"), format!("http://{peers}"));
    arguments([
        ("data-dir", directory.join("etcd").display().to_string()),
        ("listen-client-urls", clients.clone()),
        ("advertise-client-urls", clients),
        ("listen-peer-urls", peers.clone()),
        ("initial-advertise-peer-urls", peers.clone()),
        ("initial-cluster", format!("default={peers}")),
    ])
}

fn server_arguments(directory: &Path, address: SocketAddr, etcd: SocketAddr) -> Vec<OsString> {
    let file = |name: &str| directory.join(name).display().to_string();
    arguments([
        ("etcd-servers", format!("http://{etcd}")),
        ("bind-address", address.ip().to_string()),
        ("advertise-address", address.ip().to_string()),
        ("secure-port", address.port().to_string()),
        ("cert-dir", file("certificates")),
        ("tls-cert-file", file("server.pem")),
        ("tls-private-key-file", file("server.key")),
        ("client-ca-file", file("ca.pem")),
        ("service-account-issuer", "https://kubernetes.default.svc".into()),
        ("service-account-key-file", file("tokens.pem")),
        ("service-account-signing-key-file", file("tokens.key")),
        ("service-cluster-ip-range", "10.0.0.0/24".into()),
        ("authorization-mode", "RBAC".into()),
        // No client uses the Service, which may not have a loopback address.
        ("endpoint-reconciler-type", "none".into()),
        // The plugin refuses Pods until the controller manager has created a ServiceAccount and its
        // Secret.
        ("disable-admission-plugins", "ServiceAccount".into()),
    ])
}
