//! What stands in front of an API server and answers in its place: that it has too much to do, or late. It counts what it is
//! asked.
//!
//! It speaks HTTP without TLS on its own side, with one request on each connection.

// Clippy takes only the functions marked #[test] for tests, not what they call.
#![allow(clippy::unwrap_used)]

use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use edgesync_transport::tls::Client;
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader, copy};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;

use crate::kubernetes::Kubernetes;

/// What a server answers that has too much to do.
const BUSY: &str = "HTTP/1.1 429 Too Many Requests\r\nRetry-After: 1\r\nContent-Type: text/plain\r\nContent-Length: 43\r\n\
    Connection: close\r\n\r\nToo many requests, please try again later.\n";

/// How it answers.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Mood {
    /// As the server does.
    Pass,
    /// It has too much to do.
    Busy,
    /// As the server does, so much later.
    Late(Duration),
}

/// See the module. It ends when it is dropped.
pub(crate) struct Gate {
    pub(crate) address: SocketAddr,
    state: Arc<Mutex<State>>,
    _listening: JoinSet<()>,
}

struct State {
    mood: Mood,
    /// The first lines of all requests since somebody looked.
    asked: Vec<String>,
    connections: JoinSet<()>,
}

impl Gate {
    /// One that lets everything pass, as the administrator.
    pub(crate) async fn start(kubernetes: &Kubernetes) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let state = State { mood: Mood::Pass, asked: Vec::new(), connections: JoinSet::new() };
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

    /// Answers otherwise from now on; what is under way is cut.
    pub(crate) fn set(&self, mood: Mood) {
        let mut state = self.state.lock().unwrap();
        state.mood = mood;
        state.connections.abort_all();
    }

    /// What it was asked since this was called last.
    pub(crate) fn take_asked(&self) -> Vec<String> {
        std::mem::take(&mut self.state.lock().unwrap().asked)
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
    let mood = {
        let mut state = state.lock().unwrap();
        state.asked.push(head.lines().next().unwrap().to_owned());
        state.mood
    };
    match mood {
        Mood::Pass => {}
        Mood::Busy => {
            client.write_all(BUSY.as_bytes()).await?;
            return client.shutdown().await;
        }
        Mood::Late(time) => tokio::time::sleep(time).await,
    }
    let stream = TcpStream::connect(server).await?;
    let mut server = tls.connect(&server.ip().to_string(), stream).await.map_err(io::Error::other)?;
    server.write_all(format!("{head}Connection: close\r\n\r\n").as_bytes()).await?;
    server.write_all(&body).await?;
    let (mut from_client, mut to_client) = tokio::io::split(client);
    let (mut from_server, mut to_server) = tokio::io::split(server);
    tokio::select! {
        // Whoever asks has said all: what is left to come is the end.
        ended = copy(&mut from_client, &mut to_server) => ended.map(drop),
        answered = copy(&mut from_server, &mut to_client) => answered.map(drop),
    }?;
    to_client.shutdown().await
}
