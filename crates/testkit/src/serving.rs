//! A real server over a real store, on a Unix socket and a TCP port, and a client that sends raw
//! bytes.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use edgesync_api::{
    Access, Address, Client, Extension, ExtensionCall, Limits, Listener, Role, Server, Storage, own_uid,
};
use edgesync_cloud_store::{CloudOptions, CloudStore};
use edgesync_fleet::CloudObjects;
use edgesync_object::Status;
use edgesync_object::status::Result;
use serde_json::{Value, json};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpStream, UnixStream};
use tokio::sync::watch;
use tokio::task::JoinHandle;

pub use crate::timing::PATIENCE;
use crate::timing::within;

/// Token with full access over TCP.
pub const TOKEN: &str = "a-token-that-opens-everything";

/// Awaits a future with a limit; fails with `who` instead of hanging.
pub async fn soon<T>(who: &str, future: impl Future<Output = T>) -> T {
    within(who, PATIENCE, future).await
}

/// An extension that returns the parameters of its call.
pub struct Echo;

impl Extension for Echo {
    async fn call(&self, call: ExtensionCall) -> Result<Value> {
        match call.path.as_str() {
            "missing" => Err(Status::no_such_path()),
            "status" => Ok(json!({"node": "edge-1", "inSync": true})),
            _ => {
                Ok(json!({"method": call.method, "path": call.path, "query": call.query, "body": call.body}))
            }
        }
    }
}

/// A server that runs until it is stopped.
pub struct Running {
    pub tcp: Address,
    pub unix: Address,
    stop: watch::Sender<()>,
    tasks: Vec<JoinHandle<()>>,
    dir: Option<tempfile::TempDir>,
}

impl Running {
    /// Serves a storage on both kinds of address.
    pub async fn start<K: Storage>(storage: Arc<K>, limits: Limits) -> Self {
        Self::start_at(storage, limits, &"127.0.0.1:0".parse().unwrap()).await
    }

    /// Serves a storage on a Unix socket and at a TCP address.
    pub async fn start_at<K: Storage>(storage: Arc<K>, limits: Limits, tcp: &Address) -> Self {
        Self::start_with(storage, Echo, limits, tcp).await
    }

    /// Serves a storage and an extension.
    pub async fn start_with<K: Storage, E: Extension>(
        storage: Arc<K>,
        extension: E,
        limits: Limits,
        tcp: &Address,
    ) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let unix = Listener::bind(&Address::Unix(dir.path().join("run/api.sock"))).await.unwrap();
        let tcp = Listener::bind(tcp).await.unwrap();
        let access = Access::tokens(vec![(TOKEN.to_owned(), Role::Admin)], own_uid());
        let server = Server::new(storage, extension, access, limits);
        let (stop, stopped) = watch::channel(());
        let addresses = (tcp.address().clone(), unix.address().clone());
        let tasks = [tcp, unix].map(|listener| {
            let (server, mut stopped) = (Arc::clone(&server), stopped.clone());
            tokio::spawn(async move {
                let shutdown = async move {
                    let _ = stopped.changed().await;
                };
                server.serve(listener, shutdown).await;
            })
        });
        Self { tcp: addresses.0, unix: addresses.1, stop, tasks: tasks.into(), dir: Some(dir) }
    }

    /// Serves an empty store.
    pub async fn cloud(limits: Limits) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let mut running = Self::start(Arc::new(open(&dir.path().join("cloud.db")).await), limits).await;
        // The store lives as long as the server; both directories are removed at the end.
        let socket_dir = running.dir.take().unwrap();
        running.dir = Some(dir);
        running.tasks.push(tokio::spawn(async move {
            let _keep = socket_dir;
            std::future::pending::<()>().await;
        }));
        running
    }

    pub fn client(&self) -> Client {
        Client::new(self.unix.clone())
    }

    pub fn socket(&self) -> PathBuf {
        match &self.unix {
            Address::Unix(path) => path.clone(),
            other => panic!("{other}"),
        }
    }

    /// Starts the shutdown; [`Running::stopped`] waits for its end.
    pub fn stop(&self) {
        self.stop.send_replace(());
    }

    /// Waits until both listeners have ended.
    pub async fn stopped(mut self) {
        self.stop();
        for task in self.tasks.drain(..2) {
            soon("the server's end", task).await.unwrap();
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        for task in &self.tasks {
            task.abort();
        }
    }
}

/// Opens the cloud's store with default options.
pub async fn open(path: &Path) -> CloudObjects {
    open_with(path, CloudOptions::default()).await
}

/// Opens the cloud's store.
pub async fn open_with(path: &Path, options: CloudOptions) -> CloudObjects {
    let path = path.to_owned();
    let store = tokio::task::spawn_blocking(move || CloudStore::open(&path, &options));
    CloudObjects::new(store.await.unwrap().unwrap()).await.unwrap()
}

/// An HTTP response as text.
#[derive(Debug)]
pub struct Answer {
    pub code: u16,
    pub head: String,
    pub body: String,
}

impl Answer {
    pub fn header(&self, name: &str) -> Option<&str> {
        let line = self.head.lines().find(|line| line.to_ascii_lowercase().starts_with(&format!("{name}:")));
        line.and_then(|line| line.split_once(':')).map(|(_, value)| value.trim())
    }

    pub fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap_or_else(|error| panic!("{error}: {self:?}"))
    }

    /// Returns the reason of a Status, which must agree with the HTTP code.
    pub fn reason(&self) -> String {
        let status = self.json();
        assert_eq!(status["kind"], "Status", "{status}");
        assert_eq!(status["apiVersion"], "v1");
        assert_eq!(status["code"], self.code, "{status}");
        status["reason"].as_str().unwrap_or_default().to_owned()
    }
}

pub async fn connect(address: &Address) -> Box<dyn Stream> {
    match address {
        Address::Tcp(address) => Box::new(TcpStream::connect(address).await.unwrap()),
        Address::Tls { .. } => panic!("raw bytes are for addresses without TLS"),
        Address::Unix(path) => Box::new(UnixStream::connect(path).await.unwrap()),
    }
}

pub trait Stream: AsyncRead + AsyncWrite + Unpin + Send {}
impl<S: AsyncRead + AsyncWrite + Unpin + Send> Stream for S {}

/// Sends bytes over a new connection, and reads until the server closes it.
pub async fn raw(address: &Address, request: &str) -> Vec<u8> {
    let mut stream = connect(address).await;
    // The server may answer and close before it has read everything.
    let _ = stream.write_all(request.as_bytes()).await;
    let mut answer = Vec::new();
    let _ = soon("an answer", stream.read_to_end(&mut answer)).await;
    answer
}

/// Sends a request with headers (`\r\n` after each) and a body.
pub async fn send(address: &Address, method: &str, path: &str, headers: &str, body: &str) -> Answer {
    let length = body.len();
    let request = format!(
        "{method} {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nAuthorization: Bearer {TOKEN}\r\nContent-Length: {length}\r\n{headers}\r\n{body}"
    );
    parse(&raw(address, &request).await)
}

/// Parses a response; chunked bodies are joined.
pub fn parse(bytes: &[u8]) -> Answer {
    let text = String::from_utf8_lossy(bytes);
    let (head, body) = text.split_once("\r\n\r\n").unwrap_or_else(|| panic!("no response: {text:?}"));
    let code = head.split(' ').nth(1).and_then(|code| code.parse().ok()).unwrap();
    let chunked = head.to_ascii_lowercase().contains("transfer-encoding: chunked");
    let body = if chunked { dechunk(body) } else { body.to_owned() };
    Answer { code, head: head.to_owned(), body }
}

fn dechunk(mut text: &str) -> String {
    let mut body = String::new();
    loop {
        let (size, rest) = text.split_once("\r\n").expect("a chunk's size");
        let size = usize::from_str_radix(size, 16).unwrap();
        if size == 0 {
            return body;
        }
        body.push_str(&rest[..size]);
        text = &rest[size + 2..];
    }
}

pub fn config_map(name: &str, value: &str) -> String {
    json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": {"k": value}})
        .to_string()
}
