//! The API over mutual TLS: roles of operators, refused certificates, slow and malformed clients.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

use edgesync_testkit as support;
use edgesync_testkit::serving;
use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use edgesync_api::{
    Access, Address, Caller, Client, ClientError, Limits, Listener, Operators, Role, Server, own_uid,
};
use edgesync_transport::tls;
use serde_json::{Value, json};
use serving::{Echo, open, soon};
use support::authority::{Authority, HOUR};
use support::timing::within;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::{oneshot, watch};
use tokio::task::JoinHandle;

/// Time limit of an answer.
const SOON: Duration = Duration::from_secs(5);

/// The registered operators, by serial number.
#[derive(Default)]
struct Registry {
    callers: Mutex<HashMap<String, Caller>>,
    revoked: watch::Sender<()>,
}

impl Operators for Registry {
    fn find(&self, certificate: &tls::Certificate) -> Option<Caller> {
        self.callers.lock().unwrap().get(certificate.serial()).cloned()
    }

    fn role(&self, serial: &str, _: &str) -> Option<Role> {
        self.callers.lock().unwrap().get(serial).map(|caller| caller.role)
    }

    fn revoked(&self) -> watch::Receiver<()> {
        self.revoked.subscribe()
    }
}

struct Site {
    registry: Arc<Registry>,
    address: Address,
    port: u16,
    stop: oneshot::Sender<()>,
    task: JoinHandle<()>,
    _dir: tempfile::TempDir,
}

impl Site {
    async fn start(tls: tls::Server) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let storage = Arc::new(open(&dir.path().join("cloud.db")).await);
        let listener = Listener::bind_tls("0.0.0.0:0".parse().unwrap(), tls).await.unwrap();
        let Address::Tls { port, .. } = *listener.address() else { panic!("{}", listener.address()) };
        let registry = Arc::new(Registry::default());
        let access = Access::certificates(Arc::clone(&registry) as _, own_uid());
        let server = Server::new(storage, Echo, access, Limits::cloud());
        let (stop, stopped) = oneshot::channel();
        let task = tokio::spawn(async move {
            let shutdown = async {
                let _ = stopped.await;
            };
            server.serve(listener, shutdown).await;
        });
        let address = Address::Tls { host: "127.0.0.1".into(), port };
        Self { registry, address, port, stop, task, _dir: dir }
    }

    /// Registers an operator with a new certificate.
    fn operator(&self, authority: &Authority, role: Role, until: i64) -> tls::Client {
        let identity = authority.operator(until);
        let serial = identity.certificate().serial().to_owned();
        self.registry
            .callers
            .lock()
            .unwrap()
            .insert(serial, Caller { name: "ada".into(), role, ..Caller::default() });
        authority.client(&identity)
    }

    /// Revokes all certificates and notifies the server.
    fn revoke_all(&self) {
        self.registry.callers.lock().unwrap().clear();
        self.registry.revoked.send_replace(());
    }

    fn client(&self, tls: tls::Client) -> Client {
        Client::with_tls(self.address.clone(), tls)
    }

    async fn get(&self, tls: tls::Client, path: &str) -> Result<Value, ClientError> {
        soon(path, self.client(tls).get(path)).await
    }

    async fn end(self) {
        let _ = self.stop.send(());
        soon("the server", self.task).await.unwrap();
    }
}

#[tokio::test]
async fn admins_may_do_everything_and_unknown_clients_nothing() {
    let authority = Authority::new();
    let site = Site::start(authority.server()).await;
    let client = site.client(site.operator(&authority, Role::Admin, HOUR));
    let secret = json!({
        "apiVersion": "v1", "kind": "Secret", "metadata": {"name": "s", "namespace": "default"},
        "data": {"large": "QUFB".repeat(100_000)}
    });
    soon("post", client.post::<Value>("/api/v1/namespaces/default/secrets", &secret)).await.unwrap();
    let found: Value = soon("get", client.get("/api/v1/namespaces/default/secrets/s")).await.unwrap();
    assert_eq!(found["data"], secret["data"]);

    // A node of the same authority, and an unregistered operator in the organization of
    // administrators.
    for other in [authority.client(&authority.node("n-1")), authority.client(&authority.operator(HOUR))] {
        for path in ["/api/v1/namespaces/default/secrets/s", "/api/v1/nodes", "/apis"] {
            let error = site.get(other.clone(), path).await.unwrap_err();
            let status = error.status().unwrap_or_else(|| panic!("{error}"));
            assert_eq!(status.code, 403, "{path}");
            assert!(status.message.contains("edgesync-cloud kubeconfig"), "{status}");
        }
    }
    site.end().await;
}

#[tokio::test]
async fn operators_may_do_what_their_role_allows() {
    let authority = Authority::new();
    let site = Site::start(authority.server()).await;
    let map =
        json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "m", "namespace": "default"}});
    let (maps, secrets, namespaces) =
        ("/api/v1/namespaces/default/configmaps", "/api/v1/secrets", "/api/v1/namespaces");
    let namespace = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "mine"}});
    let code = |result: Result<Value, ClientError>| {
        result.map_or_else(|error| error.status().unwrap().code, |_| 200)
    };
    for (role, expected) in [
        (Role::View, [200, 403, 403, 403]),
        (Role::Edit, [200, 200, 200, 403]),
        (Role::Admin, [200, 200, 409, 200]),
    ] {
        let client = site.client(site.operator(&authority, role, HOUR));
        let codes = [
            code(soon("list", client.get(maps)).await),
            code(soon("secrets", client.get(secrets)).await),
            code(soon("create", client.post(maps, &map)).await),
            code(soon("namespace", client.post(namespaces, &namespace)).await),
        ];
        assert_eq!(codes, expected, "{role}");
    }
    site.end().await;
}

#[tokio::test]
async fn role_bindings_grant_operators_nothing() {
    let authority = Authority::new();
    let site = Site::start(authority.server()).await;
    let admin = site.client(site.operator(&authority, Role::Admin, HOUR));
    let rbac = "/apis/rbac.authorization.k8s.io/v1";
    let role = json!({
        "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole", "metadata": {"name": "all"},
        "rules": [{"apiGroups": ["*"], "resources": ["*"], "verbs": ["*"]}]
    });
    let binding = json!({
        "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRoleBinding",
        "metadata": {"name": "ada"},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "all"},
        "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": "ada"}]
    });
    soon("the role", admin.post::<Value>(&format!("{rbac}/clusterroles"), &role)).await.unwrap();
    soon("its binding", admin.post::<Value>(&format!("{rbac}/clusterrolebindings"), &binding)).await.unwrap();
    let ada = site.operator(&authority, Role::View, HOUR);
    let error = site.get(ada, "/api/v1/secrets").await.unwrap_err();
    assert_eq!(error.status().map(|status| status.code), Some(403), "{error}");
    site.end().await;
}

#[tokio::test]
async fn revoked_operators_are_disconnected_and_refused() {
    let authority = Authority::new();
    let site = Site::start(authority.server()).await;
    let tls = site.operator(&authority, Role::Admin, HOUR);
    let stream = TcpStream::connect(("127.0.0.1", site.port)).await.unwrap();
    let mut stream = tls.connect("127.0.0.1", stream).await.unwrap();
    stream.write_all(b"GET /api/v1/configmaps?watch=true HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n").await.unwrap();
    let mut head = [0; 15];
    soon("the watch", stream.read_exact(&mut head)).await.unwrap();
    assert_eq!(&head, b"HTTP/1.1 200 OK");
    site.revoke_all();
    let mut rest = Vec::new();
    let _ = soon("the end of the watch", stream.read_to_end(&mut rest)).await;
    let error = site.get(tls, "/api/v1/configmaps").await.unwrap_err();
    assert_eq!(error.status().map(|status| status.code), Some(403), "{error}");
    site.end().await;
}

#[tokio::test]
async fn bad_certificates_fail_the_handshake() {
    let (authority, other) = (Authority::new(), Authority::new());
    let site = Site::start(authority.server()).await;
    for tls in [
        authority.anonymous(),
        authority.client(&other.operator(HOUR)),
        authority.client(&authority.operator(-1)),
    ] {
        let error = site.get(tls, "/version").await.unwrap_err();
        let ClientError::Tls { source, .. } = &error else { panic!("{error:?}") };
        assert_eq!(source.label(), "refused", "{source}");
    }
    let stranger = other.client(&authority.operator(HOUR));
    let error = site.get(stranger, "/version").await.unwrap_err();
    let ClientError::Tls { source, .. } = &error else { panic!("{error:?}") };
    assert_eq!(source.label(), "other-authority", "{source}");
    site.end().await;
}

#[tokio::test]
async fn client_without_an_optional_certificate_is_unauthorized() {
    let authority = Authority::new();
    let rule = tls::ClientRule { required: false, ..authority.rule(&[]) };
    let tls = tls::Server::new(&authority.server_identity(), &rule, tls::Clock::system([])).unwrap();
    let site = Site::start(tls).await;
    let error = site.get(authority.anonymous(), "/api/v1/nodes").await.unwrap_err();
    assert_eq!(error.status().map(|status| status.code), Some(401), "{error}");
    site.get(site.operator(&authority, Role::View, HOUR), "/api/v1/nodes").await.unwrap();
    site.end().await;
}

#[tokio::test]
async fn stalled_and_plain_text_clients_delay_no_others() {
    let authority = Authority::new();
    let site = Site::start(authority.server()).await;
    let mut stalled = Vec::new();
    for _ in 0..20 {
        let mut stream = TcpStream::connect(("127.0.0.1", site.port)).await.unwrap();
        stream.write_all(&[22, 3, 1, 2, 0, 1, 0]).await.unwrap();
        stalled.push(stream);
    }
    let mut plain = TcpStream::connect(("127.0.0.1", site.port)).await.unwrap();
    plain.write_all(b"GET /version HTTP/1.1\r\nhost: x\r\n\r\n").await.unwrap();
    let mut answer = Vec::new();
    let _ = soon("plain", plain.read_to_end(&mut answer)).await;
    assert!(answer.len() <= 7, "{answer:?}");
    let operator = site.operator(&authority, Role::View, HOUR);
    let asked = site.client(operator);
    within("an operator gets an answer", SOON, asked.get::<Value>("/version")).await.unwrap();
    // The timeout of the handshake has not closed them: the answer did not wait for it.
    for stream in &stalled {
        let read = stream.try_read(&mut [0]).map_err(|error| error.kind());
        assert_eq!(read, Err(std::io::ErrorKind::WouldBlock));
    }
    // The shutdown does not wait for them either.
    site.end().await;
    drop(stalled);
}

#[tokio::test]
async fn connections_end_when_their_certificate_expires() {
    let authority = Authority::new();
    let site = Site::start(authority.server()).await;
    let tls = site.operator(&authority, Role::View, 3);
    let stream = TcpStream::connect(("127.0.0.1", site.port)).await.unwrap();
    let mut stream = tls.connect("127.0.0.1", stream).await.unwrap();
    stream.write_all(b"GET /version HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n").await.unwrap();
    let mut read = Vec::new();
    // Without the expiry the server would wait for the next request for a minute.
    let _ = soon("the end of the certificate", stream.read_to_end(&mut read)).await;
    assert!(read.starts_with(b"HTTP/1.1 200"), "{}", String::from_utf8_lossy(&read));
    site.end().await;
}
