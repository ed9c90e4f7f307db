//! A TCP proxy that misbehaves like a bad network: stalls, cuts in the middle of a frame, refuses,
//! delays.
//!
//! It runs on its own threads, independent of the test's runtime.

use std::collections::VecDeque;
use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::time::{Duration, Instant};

/// Treatment of bytes and new connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// Forwards all bytes at once, and accepts new connections.
    Pass,
    /// Forwards nothing, closes nothing, accepts new connections: a half-open network.
    Stall,
    /// Closes new connections at once; existing ones work.
    Refuse,
    /// Delays every piece by this time.
    Delay(Duration),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// From the client to the server.
    Up,
    /// From the server to the client.
    Down,
}

/// Bytes forwarded at once.
#[derive(Clone, Copy, Debug)]
pub struct Piece {
    /// When they had arrived.
    pub at: Instant,
    pub way: Way,
    pub bytes: usize,
}

struct State {
    mode: Mode,
    upstream: SocketAddr,
    /// Bytes in one direction until the next cut, one cut after the other.
    cuts: VecDeque<(Way, usize)>,
    /// Connections up to this number were cut: their remaining bytes do not count towards the next
    /// cut.
    cut_off: u64,
    streams: Vec<TcpStream>,
    closed: bool,
}

struct Shared {
    state: Mutex<State>,
    changed: Condvar,
    up: AtomicU64,
    down: AtomicU64,
    accepted: AtomicU64,
    /// Pieces since the last query; `None` before the first one.
    pieces: Mutex<Option<Vec<Piece>>>,
}

/// A running proxy; closes everything on drop.
pub struct Proxy {
    address: SocketAddr,
    shared: Arc<Shared>,
}

impl Proxy {
    /// Listens on a free port of 127.0.0.1 and forwards everything.
    pub fn start(upstream: SocketAddr) -> Self {
        let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
        let address = listener.local_addr().unwrap();
        let state = State {
            mode: Mode::Pass,
            upstream,
            cuts: VecDeque::new(),
            cut_off: 0,
            streams: Vec::new(),
            closed: false,
        };
        let shared = Arc::new(Shared {
            state: Mutex::new(state),
            changed: Condvar::new(),
            up: AtomicU64::new(0),
            down: AtomicU64::new(0),
            accepted: AtomicU64::new(0),
            pieces: Mutex::new(None),
        });
        let accepting = Arc::clone(&shared);
        std::thread::spawn(move || accept(&accepting, &listener));
        Self { address, shared }
    }

    /// Returns the address that it listens on.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Changes the mode, for existing connections too.
    pub fn set(&self, mode: Mode) {
        self.change(|state| state.mode = mode);
    }

    /// Forwards new connections to another address.
    pub fn set_upstream(&self, upstream: SocketAddr) {
        self.change(|state| state.upstream = upstream);
    }

    /// Closes every connection after `bytes` more bytes in one direction.
    pub fn cut_after(&self, way: Way, bytes: usize) {
        self.cut_series([(way, bytes)]);
    }

    /// Schedules several cuts: each counts its bytes from the previous one.
    pub fn cut_series(&self, cuts: impl IntoIterator<Item = (Way, usize)>) {
        self.change(|state| state.cuts = cuts.into_iter().collect());
    }

    /// Closes every connection now.
    pub fn cut(&self) {
        self.change(close_all);
    }

    /// Returns the number of bytes forwarded in one direction.
    pub fn passed(&self, way: Way) -> u64 {
        match way {
            Way::Up => self.shared.up.load(Ordering::SeqCst),
            Way::Down => self.shared.down.load(Ordering::SeqCst),
        }
    }

    /// Returns the number of accepted connections.
    pub fn accepted(&self) -> u64 {
        self.shared.accepted.load(Ordering::SeqCst)
    }

    /// Returns the pieces since the last call. The first call starts the recording.
    pub fn take_pieces(&self) -> Vec<Piece> {
        self.shared.pieces.lock().unwrap().replace(Vec::new()).unwrap_or_default()
    }

    fn change(&self, change: impl FnOnce(&mut State)) {
        change(&mut self.shared.state.lock().unwrap());
        self.shared.changed.notify_all();
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.change(|state| {
            state.closed = true;
            close_all(state);
        });
        // Wakes the accepting thread, which then ends.
        let _ = TcpStream::connect(self.address);
    }
}

fn close_all(state: &mut State) {
    for stream in state.streams.drain(..) {
        let _ = stream.shutdown(Shutdown::Both);
    }
}

fn accept(shared: &Arc<Shared>, listener: &TcpListener) {
    for client in listener.incoming() {
        let Ok(client) = client else { return };
        let (mode, upstream) = {
            let state = shared.state.lock().unwrap();
            if state.closed {
                return;
            }
            (state.mode, state.upstream)
        };
        let number = shared.accepted.fetch_add(1, Ordering::SeqCst) + 1;
        if mode == Mode::Refuse {
            continue;
        }
        let Ok(server) = TcpStream::connect(upstream) else { continue };
        let _ = client.set_nodelay(true);
        let _ = server.set_nodelay(true);
        let copies = (client.try_clone(), server.try_clone(), client.try_clone(), server.try_clone());
        let (Ok(client_too), Ok(server_too), Ok(client_kept), Ok(server_kept)) = copies else { continue };
        shared.state.lock().unwrap().streams.extend([client_kept, server_kept]);
        let (one, other) = (Arc::clone(shared), Arc::clone(shared));
        std::thread::spawn(move || forward(&one, number, client, server, Way::Up));
        std::thread::spawn(move || forward(&other, number, server_too, client_too, Way::Down));
    }
}

fn forward(shared: &Shared, number: u64, mut from: TcpStream, mut to: TcpStream, way: Way) {
    let mut buffer = vec![0; 64 * 1024];
    loop {
        let count = match from.read(&mut buffer) {
            Ok(0) | Err(_) => break,
            Ok(count) => count,
        };
        if let Some(pieces) = &mut *shared.pieces.lock().unwrap() {
            pieces.push(Piece { at: Instant::now(), way, bytes: count });
        }
        let (passing, cut) = bytes_to_forward(shared, number, way, count);
        // Counted before the receiver has them, which may ask for the number at once.
        let counter = if way == Way::Up { &shared.up } else { &shared.down };
        counter.fetch_add(passing as u64, Ordering::SeqCst);
        if to.write_all(&buffer[..passing]).is_err() {
            break;
        }
        if cut {
            close_all(&mut shared.state.lock().unwrap());
            break;
        }
    }
    drop(unstalled(shared));
    let _ = to.shutdown(Shutdown::Both);
    let _ = from.shutdown(Shutdown::Both);
}

/// Waits while the proxy stalls, before forwarding bytes or the end of a connection.
fn unstalled(shared: &Shared) -> MutexGuard<'_, State> {
    let state = shared.state.lock().unwrap();
    shared.changed.wait_while(state, |state| state.mode == Mode::Stall && !state.closed).unwrap()
}

/// Waits as the mode requires; returns the number of bytes to forward, and whether a cut follows.
fn bytes_to_forward(shared: &Shared, number: u64, way: Way, count: usize) -> (usize, bool) {
    let mut state = shared.state.lock().unwrap();
    if let Mode::Delay(delay) = state.mode {
        (state, _) = shared.changed.wait_timeout_while(state, delay, |state| !state.closed).unwrap();
    }
    drop(state);
    let mut state = unstalled(shared);
    let counts = number > state.cut_off;
    match state.cuts.front_mut() {
        Some((cut_way, left)) if *cut_way == way && counts => {
            let passing = count.min(*left);
            *left -= passing;
            let over = *left == 0;
            if over {
                state.cuts.pop_front();
                state.cut_off = shared.accepted.load(Ordering::SeqCst);
            }
            (passing, over)
        }
        _ => (count, false),
    }
}
