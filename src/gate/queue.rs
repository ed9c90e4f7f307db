//! Connections that wait for a place in a gate: one of each origin in turn, so that a crowd delays itself.
//!
//! Of one origin the newest is the next: it has most time left before it gives up, and those who come and say nothing keep
//! nobody behind them.

use std::collections::{HashMap, VecDeque};
use std::future::pending;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::{Instant, sleep_until};

use super::{Gate, Guest, NoPlace, Origin};

/// Whoever has waited for so long has given up, or soon will: agents and kubectl wait for 10 s until they are let in.
const MAX_WAIT: Duration = Duration::from_secs(8);

/// Those of one origin, and since when they wait.
type Line<T> = VecDeque<(Instant, T)>;

/// See the module.
#[derive(Debug)]
pub struct Queue<T> {
    gate: Arc<Gate>,
    most: usize,
    count: usize,
    waiting: HashMap<Origin, Line<T>>,
    /// The origins of those who wait; the first is the next.
    turns: VecDeque<Origin>,
}

impl<T> Queue<T> {
    /// An empty one before a gate, in which at most so many wait.
    #[must_use]
    pub fn new(gate: Arc<Gate>, most: usize) -> Self {
        Self { gate, most, count: 0, waiting: HashMap::new(), turns: VecDeque::new() }
    }

    /// Takes connections as they come, and returns the next one that has a place. Without a place one is returned that has
    /// waited for too long, or has to go because too many wait: the oldest of the origin of which most wait.
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
                accepted = accept() => {
                    let (origin, who) = accepted?;
                    self.join(origin, who);
                    if self.count > self.most && let Some(oldest) = self.oldest_of_the_crowd() {
                        return Ok((oldest, None));
                    }
                }
                () = self.gate.freed.notified(), if self.count > 0 => {}
                () = async { match until {
                    Some(until) => sleep_until(until).await,
                    None => pending().await,
                } } => {}
            }
        }
    }

    fn join(&mut self, origin: Origin, who: T) {
        let of_origin = self.waiting.entry(origin).or_default();
        if of_origin.is_empty() {
            self.turns.push_back(origin);
        }
        of_origin.push_back((Instant::now(), who));
        self.count += 1;
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
