//! A real kube-apiserver with an etcd of its own: at addresses and in a directory of its test, with RBAC, known by
//! certificates and by tokens of ServiceAccounts.
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
use edgesync::api::{Address, Client};
use edgesync::tls::Identity;
use serde_json::{Value, json};

use crate::kubectl::cache;
use crate::site::{Process, Site, eventually};
use crate::support::authority::{Authority, HOUR, subject};

/// The longest that a start may take, on a machine that does much else.
const START: Duration = Duration::from_secs(90);
/// The group whose members may do everything.
const MASTERS: &str = "system:masters";

/// A running API server and its etcd; both are killed when it is dropped.
pub(crate) struct Kubernetes {
    // The server ends before its store.
    pub(crate) server: Process,
    etcd: Process,
    /// The kubeconfig of somebody who may do everything.
    pub(crate) admin: PathBuf,
    address: SocketAddr,
    authority: Authority,
    directory: PathBuf,
    /// Asks as the administrator.
    pub(crate) client: Client,
}

impl Kubernetes {
    /// Starts both and waits until the server is ready.
    pub(crate) async fn start(site: &Site) -> Self {
        let programs = programs();
        let directory = site.path("kubernetes");
        fs::create_dir(&directory).unwrap();
        let (authority, address, clients) = (Authority::new(), Site::address(), Site::address());
        write_credentials(&directory, &authority, address);

        let etcd = etcd_arguments(&directory, clients, Site::address());
        let etcd = Process::with_arguments("etcd", &programs.join("etcd"), etcd);
        let server = server_arguments(&directory, address, clients);
        let server = Process::with_arguments("kube-apiserver", &programs.join("kube-apiserver"), server);
        let identity = authority.issue(&subject("admin", MASTERS), &[], -HOUR, HOUR);
        let tls = Address::Tls { host: address.ip().to_string(), port: address.port() };
        let client = Client::with_tls(tls, authority.client(&identity));
        let admin = directory.join("admin.kubeconfig");
        let mut kubernetes = Self { server, etcd, admin, address, authority, directory, client };
        kubernetes.write_kubeconfig("admin", &with_identity(&identity));
        kubernetes.etcd.start();
        kubernetes.run().await;
        kubernetes
    }

    /// Starts the server, which was killed, at its address and with what etcd has.
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

    /// Has a copy of all that etcd has made, or put back if there is one.
    pub(crate) async fn copy_or_restore(&mut self) {
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
        self.run().await;
    }

    /// The kubeconfig of a user with a certificate and without any rights of its own.
    pub(crate) fn user(&self, name: &str) -> PathBuf {
        let identity = self.authority.issue(&subject(name, ""), &[], -HOUR, HOUR);
        self.write_kubeconfig(name, &with_identity(&identity))
    }

    /// The kubeconfig of a caller with a token.
    pub(crate) fn caller(&self, name: &str, token: &str) -> PathBuf {
        self.write_kubeconfig(name, &json!({"token": token}))
    }

    fn write_kubeconfig(&self, name: &str, user: &Value) -> PathBuf {
        let server = json!({
            "server": format!("https://{}", self.address),
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

/// Where the programs are.
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

/// A user that has a certificate.
fn with_identity(identity: &Identity) -> Value {
    json!({
        "client-certificate-data": STANDARD.encode(identity.certificate().to_pem()),
        "client-key-data": STANDARD.encode(identity.key().to_pem()),
    })
}

/// What the server shows and believes: its own certificate, the authority, and what signs the tokens of ServiceAccounts.
fn write_credentials(directory: &Path, authority: &Authority, address: SocketAddr) {
    let write = |name: &str, text: String| fs::write(directory.join(name), text).unwrap();
    write("ca.pem", authority.to_pem());
    let server = authority.server_for(&[&address.ip().to_string()], -HOUR, HOUR);
    for (name, identity) in [("server", &server), ("tokens", &authority.server_identity())] {
        write(&format!("{name}.pem"), identity.certificate().to_pem());
        write(&format!("{name}.key"), identity.key().to_pem());
    }
}

/// Arguments with values, as these programs take them.
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
        // Nobody reaches it as a Service, which may not have a loopback address.
        ("endpoint-reconciler-type", "none".into()),
        // It refuses Pods until the controller manager has made a ServiceAccount and its Secret.
        ("disable-admission-plugins", "ServiceAccount".into()),
    ])
}
