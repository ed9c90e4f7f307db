//! The API over mutual TLS: operators may do everything, others nothing; slow and strange clients delay nobody.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

use crate::serving;
use crate::support;
use std::sync::Arc;
use std::time::Duration;

use edgesync::api::{Access, Address, Client, ClientError, Limits, Listener, Server};
use edgesync::tls;
use serde_json::{Value, json};
use serving::{Echo, open, soon};
use support::authority::{Authority, HOUR};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

struct Site {
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
        let server = Server::new(storage, Echo, Access::open(), Limits::cloud());
        let (stop, stopped) = oneshot::channel();
        let task = tokio::spawn(async move {
            let shutdown = async {
                let _ = stopped.await;
            };
            server.serve(listener, shutdown).await;
        });
        let address = Address::Tls { host: "127.0.0.1".into(), port };
        Self { address, port, stop, task, _dir: dir }
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
async fn an_operator_does_everything_and_a_node_nothing() {
    let authority = Authority::new();
    let site = Site::start(authority.server()).await;
    let client = site.client(authority.client(&authority.operator(HOUR)));
    let secret = json!({
        "apiVersion": "v1", "kind": "Secret", "metadata": {"name": "s", "namespace": "default"},
        "data": {"large": "QUFB".repeat(100_000)}
    });
    soon("post", client.post::<Value>("/api/v1/namespaces/default/secrets", &secret)).await.unwrap();
    let found: Value = soon("get", client.get("/api/v1/namespaces/default/secrets/s")).await.unwrap();
    assert_eq!(found["data"], secret["data"]);

    let node = authority.client(&authority.node("n-1"));
    for path in ["/api/v1/namespaces/default/secrets/s", "/api/v1/nodes", "/apis"] {
        let error = site.get(node.clone(), path).await.unwrap_err();
        let status = error.status().unwrap_or_else(|| panic!("{error}"));
        assert_eq!(status.code, 403, "{path}");
        assert!(status.message.contains("system:masters"), "{status}");
    }
    site.end().await;
}

#[tokio::test]
async fn without_a_good_certificate_there_is_no_answer() {
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
async fn where_no_certificate_is_demanded_a_client_without_one_is_nobody() {
    let authority = Authority::new();
    let rule = tls::ClientRule { required: false, ..authority.rule(Vec::new()) };
    let tls = tls::Server::new(&authority.server_identity(), &rule, tls::Clock::system([])).unwrap();
    let site = Site::start(tls).await;
    let error = site.get(authority.anonymous(), "/api/v1/nodes").await.unwrap_err();
    assert_eq!(error.status().map(|status| status.code), Some(401), "{error}");
    site.get(authority.client(&authority.operator(HOUR)), "/api/v1/nodes").await.unwrap();
    site.end().await;
}

#[tokio::test]
async fn clients_that_stall_or_speak_something_else_delay_nobody() {
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
    let operator = authority.client(&authority.operator(HOUR));
    let asked = site.client(operator);
    tokio::time::timeout(Duration::from_secs(5), asked.get::<Value>("/version")).await.unwrap().unwrap();
    // The stop does not wait for them either.
    site.end().await;
    drop(stalled);
}

#[tokio::test]
async fn a_connection_ends_with_the_certificate_that_it_began_with() {
    let authority = Authority::new();
    let site = Site::start(authority.server()).await;
    let tls = authority.client(&authority.operator(3));
    let stream = TcpStream::connect(("127.0.0.1", site.port)).await.unwrap();
    let mut stream = tls.connect("127.0.0.1", stream).await.unwrap();
    stream.write_all(b"GET /version HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n").await.unwrap();
    let mut read = Vec::new();
    // Without it the server would wait for the next request for a minute.
    let _ = soon("the end of the certificate", stream.read_to_end(&mut read)).await;
    assert!(read.starts_with(b"HTTP/1.1 200"), "{}", String::from_utf8_lossy(&read));
    site.end().await;
}
