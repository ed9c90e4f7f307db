//! Connections that wait for a permit.
//!
//! A connection gets a permit only after it has sent something, so silent connections keep no
//! others out. Connections that have sent something get permits in turn: one per origin, so that a
//! flood delays only its own origin, and of one origin the newest, which has most time left before
//! its peer gives up.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::fmt;
use std::future::pending;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt as _;
use futures_util::stream::FuturesUnordered;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::oneshot;
use tokio::time::{Instant, sleep, sleep_until};

use super::{ConnectionLimiter, NoPermit, Origin, Permit};

/// Longest wait for a permit: agents and kubectl give up after 10 s without an answer.
const MAX_WAIT: Duration = Duration::from_secs(8);

/// A connection that can wait for a permit.
pub trait Visitor: Send + 'static {
    /// Returns when the peer has sent something or closed the connection.
    fn readable(&self) -> impl Future<Output = ()> + Send;
}

/// A TCP connection and the address of its peer.
#[derive(Debug)]
pub struct Tcp(pub TcpStream, pub SocketAddr);

impl Tcp {
    /// Accepts the next connection of a listener. Safe to cancel.
    ///
    /// # Errors
    /// Those of the system.
    pub async fn accept(listener: &TcpListener) -> io::Result<(Origin, Self)> {
        let (stream, peer) = listener.accept().await?;
        Ok((Origin::of(peer.ip()), Self(stream, peer)))
    }
}

impl Visitor for Tcp {
    async fn readable(&self) {
        // The caller sees errors when it reads.
        let _ = self.0.peek(&mut [0]).await;
    }
}

/// Silent connections, and those that wait for a permit, by origin.
pub struct Queue<T> {
    limiter: Arc<ConnectionLimiter>,
    limits: QueueLimits,
    /// Silent connections by origin, oldest first: dropping the sender closes the connection.
    silent: HashMap<Origin, BTreeMap<u64, oneshot::Sender<()>>>,
    /// Resolves for each silent connection when it sends something or is closed.
    speaking: FuturesUnordered<Speaking<T>>,
    next: u64,
    count: usize,
    waiting: HashMap<Origin, Waiting<T>>,
    /// Origins with waiting connections, in the order in which they get permits.
    turns: VecDeque<Origin>,
}

/// Limits of a queue.
#[derive(Clone, Copy, Debug)]
pub struct QueueLimits {
    /// Number of connections that have sent something, and the same of silent ones. Beyond it the
    /// oldest of the origin with most is dropped.
    pub most: usize,
    /// Longest time for which a connection may stay silent.
    pub silence: Duration,
}

/// A silent connection: resolves to it when it has sent something, to none when it is dropped.
type Speaking<T> = Pin<Box<dyn Future<Output = (Origin, u64, Option<T>)> + Send>>;

/// Waiting connections of one origin, and since when they wait.
type Waiting<T> = VecDeque<(Instant, T)>;

impl<T> fmt::Debug for Queue<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (silent, waiting) = (self.speaking.len(), self.count);
        f.debug_struct("Queue").field("silent", &silent).field("waiting", &waiting).finish_non_exhaustive()
    }
}

impl<T: Visitor> Queue<T> {
    /// Returns an empty queue for a limiter.
    #[must_use]
    pub fn new(limiter: Arc<ConnectionLimiter>, limits: QueueLimits) -> Self {
        let (silent, speaking) = (HashMap::new(), FuturesUnordered::new());
        let (waiting, turns) = (HashMap::new(), VecDeque::new());
        Self { limiter, limits, silent, speaking, next: 0, count: 0, waiting, turns }
    }

    /// Accepts connections, and returns the next one with its permit. Returns a connection without
    /// a permit if it has waited for too long, or if too many wait. Closes connections that stay
    /// silent.
    ///
    /// Safe to cancel if `accept` is: no connection is lost.
    ///
    /// # Errors
    /// Those of `accept`.
    pub async fn next<E, F>(&mut self, accept: impl Fn() -> F) -> Result<(T, Option<Permit>), E>
    where
        F: Future<Output = Result<(Origin, T), E>>,
    {
        loop {
            let until = match self.next_ready() {
                Ok(next) => return Ok(next),
                Err(until) => until,
            };
            tokio::select! {
                // Serves waiting connections before new ones.
                biased;
                Some((origin, number, connection)) = self.speaking.next() => {
                    self.remove_silent(origin, number);
                    if let Some(refused) = connection.and_then(|connection| self.enqueue(origin, connection)) {
                        return Ok((refused, None));
                    }
                }
                () = self.limiter.freed.notified(), if self.count > 0 => {}
                () = async { match until {
                    Some(until) => sleep_until(until).await,
                    None => pending().await,
                } } => {}
                accepted = accept() => {
                    let (origin, connection) = accepted?;
                    self.add_silent(origin, connection);
                }
            }
        }
    }

    /// Adds a connection that has sent nothing.
    fn add_silent(&mut self, origin: Origin, connection: T) {
        let (keep, dropped) = oneshot::channel::<()>();
        let (number, silence) = (self.next, self.limits.silence);
        self.next += 1;
        self.silent.entry(origin).or_default().insert(number, keep);
        self.speaking.push(Box::pin(async move {
            let has_sent = tokio::select! {
                () = connection.readable() => true,
                () = sleep(silence) => false,
                _ = dropped => false,
            };
            (origin, number, has_sent.then_some(connection))
        }));
        if self.speaking.len() > self.limits.most
            && let Some(largest) = self.silent.values_mut().max_by_key(|silent| silent.len())
        {
            largest.pop_first();
        }
    }

    fn remove_silent(&mut self, origin: Origin, number: u64) {
        if let Some(silent) = self.silent.get_mut(&origin) {
            silent.remove(&number);
            if silent.is_empty() {
                self.silent.remove(&origin);
            }
        }
    }

    /// Adds a connection that has sent something. Returns the one dropped for it, if too many wait.
    fn enqueue(&mut self, origin: Origin, connection: T) -> Option<T> {
        let per_origin = self.waiting.entry(origin).or_default();
        if per_origin.is_empty() {
            self.turns.push_back(origin);
        }
        per_origin.push_back((Instant::now(), connection));
        self.count += 1;
        if self.count > self.limits.most { self.drop_oldest() } else { None }
    }

    /// Returns the next connection that gets a permit or has waited for too long; without one, the
    /// time at which a permit becomes evictable, if known.
    fn next_ready(&mut self) -> Result<(T, Option<Permit>), Option<Instant>> {
        let mut until = None;
        for turn in 0..self.turns.len() {
            let origin = self.turns[turn];
            let oldest = self.waiting.get(&origin).and_then(VecDeque::front);
            if oldest.is_some_and(|(since, _)| since.elapsed() > MAX_WAIT) {
                return self.dequeue(turn, VecDeque::pop_front).map(|late| (late, None)).ok_or(None);
            }
            match self.limiter.acquire(origin) {
                Ok(permit) => {
                    let newest = self.dequeue(turn, VecDeque::pop_back);
                    return newest.map(|connection| (connection, Some(permit))).ok_or(None);
                }
                Err(NoPermit::OriginFull(later)) => until = until.into_iter().chain(later).min(),
                Err(NoPermit::Full(later)) => return Err(until.into_iter().chain(later).min()),
            }
        }
        Err(until)
    }

    fn drop_oldest(&mut self) -> Option<T> {
        let largest = self.waiting.iter().max_by_key(|(_, per_origin)| per_origin.len());
        let largest = largest.map(|(origin, _)| *origin)?;
        let turn = self.turns.iter().position(|origin| *origin == largest)?;
        self.dequeue(turn, VecDeque::pop_front)
    }

    /// Removes a connection of the origin at this turn; the origin's other connections wait for its
    /// next turn.
    fn dequeue(
        &mut self,
        turn: usize,
        which: impl FnOnce(&mut Waiting<T>) -> Option<(Instant, T)>,
    ) -> Option<T> {
        let origin = self.turns.remove(turn)?;
        let per_origin = self.waiting.get_mut(&origin)?;
        let (_, connection) = which(per_origin)?;
        self.count -= 1;
        if per_origin.is_empty() {
            self.waiting.remove(&origin);
        } else {
            self.turns.push_back(origin);
        }
        Some(connection)
    }
}
