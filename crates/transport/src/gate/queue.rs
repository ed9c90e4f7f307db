//! Connections that wait for a place in a gate.
//!
//! Nobody gets one before saying something, so whoever connects and says nothing keeps nobody out. Those who have spoken
//! get their places in turn: one of each origin, so that a crowd delays itself, and of one origin the newest, which has
//! most time left before it gives up.

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

use super::{Gate, Guest, NoPlace, Origin};

/// Whoever has waited for so long has given up, or soon will: agents and kubectl wait for 10 s until they are let in.
const MAX_WAIT: Duration = Duration::from_secs(8);

/// A connection that can wait.
pub trait Visitor: Send + 'static {
    /// Returns when it has said something, or has gone.
    fn speaks(&self) -> impl Future<Output = ()> + Send;
}

/// A connection over TCP, and who is at its other end.
#[derive(Debug)]
pub struct Tcp(pub TcpStream, pub SocketAddr);

impl Tcp {
    /// The next one of a listener. Safe to cancel.
    ///
    /// # Errors
    /// The system's.
    pub async fn accept(listener: &TcpListener) -> io::Result<(Origin, Self)> {
        let (stream, peer) = listener.accept().await?;
        Ok((Origin::of(peer.ip()), Self(stream, peer)))
    }
}

impl Visitor for Tcp {
    async fn speaks(&self) {
        // Whatever is wrong with it shows when it is read.
        let _ = self.0.peek(&mut [0]).await;
    }
}

/// See the module.
pub struct Queue<T> {
    gate: Arc<Gate>,
    limits: QueueLimits,
    /// Those who have said nothing, by origin and in the order in which they came: they go when theirs is dropped.
    silent: HashMap<Origin, BTreeMap<u64, oneshot::Sender<()>>>,
    /// Each until it has said something, or goes.
    speaking: FuturesUnordered<Speaking<T>>,
    next: u64,
    count: usize,
    waiting: HashMap<Origin, Line<T>>,
    /// The origins of those who wait for a place; the first is the next.
    turns: VecDeque<Origin>,
}

/// How many may wait, and for how long.
#[derive(Clone, Copy, Debug)]
pub struct QueueLimits {
    /// Of those who have spoken, and as many who have not. Of more, the oldest of the origin that has most goes.
    pub most: usize,
    /// How long somebody may say nothing.
    pub silence: Duration,
}

/// Somebody who has said nothing yet: comes back when that changes, or is gone.
type Speaking<T> = Pin<Box<dyn Future<Output = (Origin, u64, Option<T>)> + Send>>;

/// Those of one origin, and since when they wait.
type Line<T> = VecDeque<(Instant, T)>;

impl<T> fmt::Debug for Queue<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (silent, waiting) = (self.speaking.len(), self.count);
        f.debug_struct("Queue").field("silent", &silent).field("waiting", &waiting).finish_non_exhaustive()
    }
}

impl<T: Visitor> Queue<T> {
    /// An empty one before a gate.
    #[must_use]
    pub fn new(gate: Arc<Gate>, limits: QueueLimits) -> Self {
        let (silent, speaking) = (HashMap::new(), FuturesUnordered::new());
        let (waiting, turns) = (HashMap::new(), VecDeque::new());
        Self { gate, limits, silent, speaking, next: 0, count: 0, waiting, turns }
    }

    /// Takes connections as they come, and returns the next one that has a place. Without a place one is returned that has
    /// waited for too long, or has to go because too many wait. Those who say nothing go without a word.
    ///
    /// Safe to cancel if `accept` is: then nobody is lost.
    ///
    /// # Errors
    /// Those of `accept`.
    pub async fn next<E, F>(&mut self, accept: impl Fn() -> F) -> Result<(T, Option<Guest>), E>
    where
        F: Future<Output = Result<(Origin, T), E>>,
    {
        loop {
            let until = match self.let_in() {
                Ok(next) => return Ok(next),
                Err(until) => until,
            };
            tokio::select! {
                // Those who are there before those who come.
                biased;
                Some((origin, number, who)) = self.speaking.next() => {
                    self.is_silent_no_more(origin, number);
                    if let Some(refused) = who.and_then(|who| self.join(origin, who)) {
                        return Ok((refused, None));
                    }
                }
                () = self.gate.freed.notified(), if self.count > 0 => {}
                () = async { match until {
                    Some(until) => sleep_until(until).await,
                    None => pending().await,
                } } => {}
                accepted = accept() => {
                    let (origin, who) = accepted?;
                    self.come(origin, who);
                }
            }
        }
    }

    /// Somebody connects, who has to say something.
    fn come(&mut self, origin: Origin, who: T) {
        let (stays, goes) = oneshot::channel::<()>();
        let (number, silence) = (self.next, self.limits.silence);
        self.next += 1;
        self.silent.entry(origin).or_default().insert(number, stays);
        self.speaking.push(Box::pin(async move {
            let has_spoken = tokio::select! {
                () = who.speaks() => true,
                () = sleep(silence) => false,
                _ = goes => false,
            };
            (origin, number, has_spoken.then_some(who))
        }));
        if self.speaking.len() > self.limits.most
            && let Some(crowd) = self.silent.values_mut().max_by_key(|silent| silent.len())
        {
            crowd.pop_first();
        }
    }

    fn is_silent_no_more(&mut self, origin: Origin, number: u64) {
        if let Some(silent) = self.silent.get_mut(&origin) {
            silent.remove(&number);
            if silent.is_empty() {
                self.silent.remove(&origin);
            }
        }
    }

    /// Somebody has spoken, and waits for a place. Tells who has to go for that, if too many wait.
    fn join(&mut self, origin: Origin, who: T) -> Option<T> {
        let of_origin = self.waiting.entry(origin).or_default();
        if of_origin.is_empty() {
            self.turns.push_back(origin);
        }
        of_origin.push_back((Instant::now(), who));
        self.count += 1;
        if self.count > self.limits.most { self.oldest_of_the_crowd() } else { None }
    }

    /// The next one who gets a place, or has waited for too long. If nobody: until when, if that is known.
    fn let_in(&mut self) -> Result<(T, Option<Guest>), Option<Instant>> {
        let mut until = None;
        for turn in 0..self.turns.len() {
            let origin = self.turns[turn];
            let oldest = self.waiting.get(&origin).and_then(VecDeque::front);
            if oldest.is_some_and(|(since, _)| since.elapsed() > MAX_WAIT) {
                return self.take(turn, VecDeque::pop_front).map(|late| (late, None)).ok_or(None);
            }
            match self.gate.look(origin) {
                Ok(guest) => {
                    let newest = self.take(turn, VecDeque::pop_back);
                    return newest.map(|who| (who, Some(guest))).ok_or(None);
                }
                Err(NoPlace::ForOrigin(later)) => until = until.into_iter().chain(later).min(),
                Err(NoPlace::ForAll(later)) => return Err(until.into_iter().chain(later).min()),
            }
        }
        Err(until)
    }

    fn oldest_of_the_crowd(&mut self) -> Option<T> {
        let crowd = self.waiting.iter().max_by_key(|(_, of_origin)| of_origin.len());
        let crowd = crowd.map(|(origin, _)| *origin)?;
        let turn = self.turns.iter().position(|origin| *origin == crowd)?;
        self.take(turn, VecDeque::pop_front)
    }

    /// Takes one of the origin that has this turn; what is left of it waits for its next turn.
    fn take(&mut self, turn: usize, which: impl FnOnce(&mut Line<T>) -> Option<(Instant, T)>) -> Option<T> {
        let origin = self.turns.remove(turn)?;
        let of_origin = self.waiting.get_mut(&origin)?;
        let (_, who) = which(of_origin)?;
        self.count -= 1;
        if of_origin.is_empty() {
            self.waiting.remove(&origin);
        } else {
            self.turns.push_back(origin);
        }
        Some(who)
    }
}
