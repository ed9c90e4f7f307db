//! A proxy in front of an API server that injects overload and delay, catches single requests, and
//! records all of them.
//!
//! It accepts HTTP without TLS, with one request per connection.

// Clippy takes only the functions marked #[test] for tests, not what they call.
#![allow(clippy::unwrap_used)]

use std::future::pending;
use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use edgesync_transport::tls::Client;
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader, copy, sink};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;

use crate::cluster::kubernetes::Kubernetes;

/// The response of an overloaded server.
const BUSY: &str = "HTTP/1.1 429 Too Many Requests\r\nRetry-After: 1\r\nContent-Type: text/plain\r\nContent-Length: 43\r\n\
    Connection: close\r\n\r\nToo many requests, please try again later.\n";

/// How the proxy responds.
#[derive(Clone, Copy, Debug)]
pub(crate) enum ProxyMode {
    /// Forwards the request without a delay.
    Pass,
    /// Responds that the server is overloaded.
    Busy,
    /// Forwards the request after this delay.
    Late(Duration),
}

/// How a caught request fails. Either way its client gets no response.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Loss {
    /// The server does not receive the request.
    OfRequest,
    /// The server has executed the request.
    OfResponse,
}

/// Decides by request line and body whether a request is caught.
type Trap = Box<dyn FnMut(&str, &[u8]) -> Option<Loss> + Send>;

/// The proxy; it ends when it is dropped.
pub(crate) struct FaultProxy {
    pub(crate) address: SocketAddr,
    state: Arc<Mutex<State>>,
    _listening: JoinSet<()>,
}

struct State {
    mode: ProxyMode,
    /// The request lines since the last call of `take_asked`.
    requests: Vec<String>,
    trap: Option<Trap>,
    /// Number of caught requests.
    caught: usize,
    connections: JoinSet<()>,
}

impl FaultProxy {
    /// Starts a proxy that forwards everything as the administrator.
    pub(crate) async fn start(kubernetes: &Kubernetes) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let state = State {
            mode: ProxyMode::Pass,
            requests: Vec::new(),
            trap: None,
            caught: 0,
            connections: JoinSet::new(),
        };
        let state = Arc::new(Mutex::new(state));
        let (server, tls) = (kubernetes.address, Arc::new(kubernetes.tls()));
        let (shared, mut listening) = (Arc::clone(&state), JoinSet::new());
        listening.spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                let (state, tls) = (Arc::clone(&shared), Arc::clone(&tls));
                let passed = async move {
                    // Either side may end a connection at any time.
                    let _ = pass(client, server, &tls, &state).await;
                };
                let mut state = shared.lock().unwrap();
                while state.connections.try_join_next().is_some() {}
                state.connections.spawn(passed);
            }
        });
        Self { address, state, _listening: listening }
    }

    /// Changes the mode and cuts open connections.
    pub(crate) fn set(&self, mode: ProxyMode) {
        let mut state = self.state.lock().unwrap();
        state.mode = mode;
        state.connections.abort_all();
    }

    /// Catches the requests that `trap` decides about, until the proxy is released.
    pub(crate) fn catch(&self, trap: impl FnMut(&str, &[u8]) -> Option<Loss> + Send + 'static) {
        self.state.lock().unwrap().trap = Some(Box::new(trap));
    }

    /// Returns whether a request was caught: it has failed as its [`Loss`] says.
    pub(crate) fn has_caught(&self) -> bool {
        self.state.lock().unwrap().caught > 0
    }

    /// Cuts open connections and catches nothing from now on.
    pub(crate) fn release(&self) {
        let mut state = self.state.lock().unwrap();
        (state.trap, state.caught) = (None, 0);
        state.connections.abort_all();
    }

    /// Returns the request lines since the last call.
    pub(crate) fn take_requests(&self) -> Vec<String> {
        std::mem::take(&mut self.state.lock().unwrap().requests)
    }
}

async fn pass(client: TcpStream, server: SocketAddr, tls: &Client, state: &Mutex<State>) -> io::Result<()> {
    let mut client = BufReader::new(client);
    let (mut head, mut length) = (String::new(), 0);
    loop {
        let mut line = String::new();
        client.read_line(&mut line).await?;
        if line.trim().is_empty() {
            break;
        }
        let field = line.to_ascii_lowercase();
        if let Some(value) = field.strip_prefix("content-length:") {
            length = value.trim().parse().unwrap();
        }
        if !field.starts_with("connection:") {
            head += &line;
        }
    }
    if head.is_empty() {
        return Ok(());
    }
    let mut body = vec![0; length];
    client.read_exact(&mut body).await?;
    let (mode, loss) = {
        let mut state = state.lock().unwrap();
        let line = head.lines().next().unwrap();
        state.requests.push(line.to_owned());
        (state.mode, state.trap.as_mut().and_then(|trap| trap(line, &body)))
    };
    if matches!(loss, Some(Loss::OfRequest)) {
        state.lock().unwrap().caught += 1;
        return pending().await;
    }
    match mode {
        ProxyMode::Pass => {}
        ProxyMode::Busy => {
            client.write_all(BUSY.as_bytes()).await?;
            return client.shutdown().await;
        }
        ProxyMode::Late(time) => tokio::time::sleep(time).await,
    }
    let stream = TcpStream::connect(server).await?;
    let mut server = tls.connect(&server.ip().to_string(), stream).await.map_err(io::Error::other)?;
    server.write_all(format!("{head}Connection: close\r\n\r\n").as_bytes()).await?;
    server.write_all(&body).await?;
    if matches!(loss, Some(Loss::OfResponse)) {
        // The response ends with the connection.
        drop(copy(&mut server, &mut sink()).await);
        state.lock().unwrap().caught += 1;
        return pending().await;
    }
    let (mut from_client, mut to_client) = tokio::io::split(client);
    let (mut from_server, mut to_server) = tokio::io::split(server);
    tokio::select! {
        // The client has sent its whole request: only the end of the stream follows.
        ended = copy(&mut from_client, &mut to_server) => ended.map(drop),
        answered = copy(&mut from_server, &mut to_client) => answered.map(drop),
    }?;
    to_client.shutdown().await
}
