//! Virtual time, randomness, and the queue of scheduled events.

use std::cmp::{Ordering, Reverse};
use std::collections::BinaryHeap;
use std::time::Duration;

use crate::timing::Now;
use edgesync_object::random::split_mix_64;

/// SplitMix64: small, seeded, good enough.
#[derive(Clone)]
pub struct Random(pub u64);

impl Random {
    pub fn next(&mut self) -> u64 {
        split_mix_64(&mut self.0)
    }

    pub fn below(&mut self, n: u64) -> u64 {
        self.next() % n.max(1)
    }

    pub fn percent(&mut self, p: u64) -> bool {
        self.below(100) < p
    }

    /// Returns a delay of at least a millisecond and at most `max_ms`.
    pub fn delay(&mut self, max_ms: u64) -> Duration {
        Duration::from_millis(self.below(max_ms) + 1)
    }
}

struct Scheduled<E>(Now, u64, E);

impl<E> PartialEq for Scheduled<E> {
    fn eq(&self, other: &Self) -> bool {
        self.1 == other.1
    }
}
impl<E> Eq for Scheduled<E> {}
impl<E> PartialOrd for Scheduled<E> {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}
impl<E> Ord for Scheduled<E> {
    fn cmp(&self, other: &Self) -> Ordering {
        (self.0, self.1).cmp(&(other.0, other.1))
    }
}

/// The clock with its scheduled events.
pub struct Timeline<E> {
    pub now: Now,
    pub random: Random,
    /// The first violated invariant.
    pub violation: Option<String>,
    trace: bool,
    events: BinaryHeap<Reverse<Scheduled<E>>>,
    next_event: u64,
    /// The earliest wake among the events.
    next_wake: Option<Now>,
}

impl<E> Timeline<E> {
    pub fn new(random: Random, trace: bool) -> Self {
        let events = BinaryHeap::new();
        Self { now: Now::ZERO, random, violation: None, trace, events, next_event: 0, next_wake: None }
    }

    pub fn say(&self, what: impl FnOnce() -> String) {
        if self.trace {
            println!("{:>10.3} {}", self.now.as_secs_f64(), what());
        }
    }

    pub fn at(&mut self, at: Now, event: E) {
        self.next_event += 1;
        self.events.push(Reverse(Scheduled(at, self.next_event, event)));
    }

    pub fn after(&mut self, max_ms: u64, event: E) {
        let at = self.now + self.random.delay(max_ms);
        self.at(at, event);
    }

    /// Returns a time at most `max_ms` from now, but not before the last one returned for the same
    /// sequence.
    pub fn in_order(&mut self, last: &mut Now, max_ms: u64) -> Now {
        *last = (self.now + self.random.delay(max_ms)).max(*last);
        *last
    }

    /// Schedules a wake at this time, after `pause` at the earliest.
    pub fn wake_at(&mut self, at: Now, pause: Duration, wake: E) {
        let at = at.max(self.now + pause);
        if self.next_wake.is_none_or(|planned| at < planned) {
            self.next_wake = Some(at);
            self.at(at, wake);
        }
    }

    /// Clears the scheduled wake.
    pub fn woken(&mut self) {
        self.next_wake = None;
    }

    /// Returns the time of the next event.
    pub fn next_at(&self) -> Option<Now> {
        self.events.peek().map(|Reverse(next)| next.0.max(self.now))
    }

    /// Keeps only the selected events.
    pub fn retain(&mut self, keep: impl Fn(&E) -> bool) {
        self.events.retain(|Reverse(next)| keep(&next.2));
    }
}

/// A world in which time passes.
pub trait Simulated {
    type Event;

    fn time(&mut self) -> &mut Timeline<Self::Event>;

    fn handle(&mut self, event: Self::Event) -> Result<(), String>;

    /// Runs everything that takes no time.
    fn drive(&mut self);

    /// Runs the next event.
    fn step(&mut self) -> Result<(), String> {
        let time = self.time();
        if let Some(Reverse(Scheduled(at, _, event))) = time.events.pop() {
            time.now = at.max(time.now);
            self.handle(event)?;
        }
        self.drive();
        self.time().violation.take().map_or(Ok(()), Err)
    }

    /// Advances virtual time and handles all events until then.
    fn pass(&mut self, time: Duration) -> Result<(), String> {
        let end = self.time().now + time;
        self.drive();
        while self.time().events.peek().is_some_and(|Reverse(next)| next.0 <= end) {
            self.step()?;
        }
        self.time().now = end;
        Ok(())
    }
}
