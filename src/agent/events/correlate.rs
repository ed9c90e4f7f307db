//! Decides the effect of an occurrence: a new Event, an update of a series, or suppression by the
//! rate limit. Pure: times are parameters, Events to write are pulled.
//!
//! A source is a reason and the object it regards. An occurrence within [`WINDOW`] of the last one
//! continues the Event. A series is written at its second occurrence and whenever its count is a
//! power of two, else [`PACE`] after its last write; a deadline ensures that the last count is
//! written.

use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;

use super::reason::EventReason;
use super::{EventLimits, Regarding};
use crate::store::MonotonicTime;

/// Time after the last occurrence for which an Event continues, in milliseconds.
pub(super) const WINDOW: u64 = 6 * 60 * 1000;
/// Minimum time between two writes of a series, in milliseconds.
pub(super) const PACE: u64 = 30 * 1000;
/// Maximum number of sources; the least recently used one is evicted.
pub(super) const MAX_SOURCES: usize = 256;
/// Ratio of the limit for all sources of a reason to the limit of one source.
pub(super) const REASON_FACTOR: u32 = 10;

/// A time by the wall clock and by the monotonic clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Stamp {
    pub(super) wall: Timestamp,
    pub(super) at: MonotonicTime,
}

/// A condition that an operator must know.
#[derive(Clone, Debug)]
pub(super) struct Occurrence {
    pub(super) reason: EventReason,
    pub(super) regarding: Regarding,
    pub(super) note: Arc<str>,
    pub(super) stamp: Stamp,
}

/// Content of an Event.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct EventState {
    /// Determines name and UID.
    pub(super) id: u128,
    pub(super) reason: EventReason,
    pub(super) regarding: Regarding,
    /// Note of the first occurrence: Kubernetes does not allow to change it.
    pub(super) note: Arc<str>,
    /// Note of the last occurrence, if it differs.
    pub(super) latest: Option<Arc<str>>,
    pub(super) first: Stamp,
    pub(super) count: u32,
    /// Time of the last one.
    pub(super) last: Stamp,
    /// Occurrences suppressed by the rate limit.
    pub(super) suppressed: u32,
}

impl EventState {
    /// Creates the state at the first occurrence.
    pub(super) fn new(id: u128, occurrence: Occurrence) -> Self {
        let Occurrence { reason, regarding, note, stamp } = occurrence;
        Self { id, reason, regarding, note, latest: None, first: stamp, count: 1, last: stamp, suppressed: 0 }
    }

    pub(super) fn add(&mut self, note: Arc<str>, stamp: Stamp) {
        self.count = self.count.saturating_add(1);
        self.last = stamp;
        self.latest = (note != self.note).then_some(note);
    }
}

/// Cause of a suppression.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Suppression {
    /// The source is over its limit.
    Source,
    /// All sources of the reason together are over their limit.
    Reason,
}

/// Parameters of a token bucket: its size, and the milliseconds per token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Rate {
    burst: u32,
    every: u64,
}

impl Rate {
    fn of(limits: EventLimits) -> Self {
        let every = u64::try_from(limits.refill.as_millis()).unwrap_or(u64::MAX).max(1);
        Self { burst: limits.burst.max(1), every }
    }

    fn of_reason(self) -> Self {
        Self {
            burst: self.burst.saturating_mul(REASON_FACTOR),
            every: (self.every / u64::from(REASON_FACTOR)).max(1),
        }
    }
}

/// A token bucket, refilled on use.
#[derive(Clone, Copy, Debug)]
struct Bucket {
    tokens: u32,
    /// Start of the next token's period.
    since: u64,
}

impl Bucket {
    /// A full bucket of any size.
    const FULL: Self = Self { tokens: u32::MAX, since: 0 };

    fn refill(&mut self, rate: Rate, now: u64) {
        let fresh = now.saturating_sub(self.since) / rate.every;
        let tokens = self.tokens.saturating_add(u32::try_from(fresh).unwrap_or(u32::MAX));
        self.tokens = tokens.min(rate.burst);
        let is_full = self.tokens == rate.burst;
        self.since = if is_full { now } else { self.since.saturating_add(fresh * rate.every) };
    }

    fn is_full(&mut self, rate: Rate, now: u64) -> bool {
        self.refill(rate, now);
        self.tokens == rate.burst
    }

    fn has_some(&mut self, rate: Rate, now: u64) -> bool {
        self.refill(rate, now);
        self.tokens > 0
    }

    fn take(&mut self) {
        self.tokens = self.tokens.saturating_sub(1);
    }
}

/// The Event of a source, while it continues.
#[derive(Debug)]
struct OpenEvent {
    state: EventState,
    /// Time of the last occurrence, suppressed or not.
    seen: u64,
    written: u64,
    /// Deadline for writing what has changed since the last write.
    due: Option<u64>,
}

impl OpenEvent {
    fn continues(&self, now: u64) -> bool {
        now.saturating_sub(self.seen) <= WINDOW
    }

    fn write(&mut self, now: u64, out: &mut Vec<EventState>) {
        self.written = now;
        self.due = None;
        out.push(self.state.clone());
    }

    fn write_by(&mut self, due: u64) {
        self.due = Some(self.due.unwrap_or(u64::MAX).min(due));
    }

    fn repeat(&mut self, occurrence: Occurrence, now: u64, out: &mut Vec<EventState>) {
        self.state.add(occurrence.note, occurrence.stamp);
        self.seen = now;
        let due = self.written.saturating_add(PACE);
        if self.state.count.is_power_of_two() || due <= now {
            self.write(now, out);
        } else {
            self.write_by(due);
        }
    }

    /// Suppressed occurrences are less urgent to write.
    fn suppress(&mut self, rate: Rate, now: u64) {
        self.state.suppressed = self.state.suppressed.saturating_add(1);
        self.seen = now;
        self.write_by(self.written.saturating_add(WINDOW.max(rate.every)));
    }
}

#[derive(Debug)]
struct Source {
    reason: EventReason,
    regarding: Regarding,
    bucket: Bucket,
    /// Grows with each use of any source.
    used: u64,
    event: Option<OpenEvent>,
    /// Occurrences suppressed while no Event continued.
    skipped: u32,
}

impl Source {
    /// Returns whether the source's state equals that of a new one.
    fn is_idle(&mut self, rate: Rate, now: u64) -> bool {
        self.skipped == 0
            && self.event.as_ref().is_none_or(|event| event.due.is_none() && !event.continues(now))
            && self.bucket.is_full(rate, now)
    }

    fn record(
        &mut self,
        occurrence: Occurrence,
        now: u64,
        fresh_id: impl FnOnce() -> u128,
        out: &mut Vec<EventState>,
    ) {
        self.bucket.take();
        if let Some(event) = self.event.as_mut().filter(|event| event.continues(now)) {
            return event.repeat(occurrence, now, out);
        }
        self.finish(now, out);
        let mut state = EventState::new(fresh_id(), occurrence);
        state.suppressed = std::mem::take(&mut self.skipped);
        let mut event = OpenEvent { state, seen: now, written: now, due: None };
        event.write(now, out);
        self.event = Some(event);
    }

    fn suppress(&mut self, rate: Rate, now: u64) {
        match self.event.as_mut().filter(|event| event.continues(now)) {
            Some(event) => event.suppress(rate, now),
            None => self.skipped = self.skipped.saturating_add(1),
        }
    }

    /// Writes the Event if it has changed since its last write.
    fn finish(&mut self, now: u64, out: &mut Vec<EventState>) {
        if let Some(event) = self.event.as_mut().filter(|event| event.due.is_some()) {
            event.write(now, out);
        }
    }
}

/// Tracks the sources, and collects the Events to write.
#[derive(Debug)]
pub(super) struct Correlator {
    rate: Rate,
    /// Milliseconds since boot, never decreasing.
    now: u64,
    uses: u64,
    sources: Vec<Source>,
    reasons: [Bucket; EventReason::ALL.len()],
    out: Vec<EventState>,
}

impl Correlator {
    pub(super) fn new(limits: EventLimits) -> Self {
        Self {
            rate: Rate::of(limits),
            now: 0,
            uses: 0,
            sources: Vec::new(),
            reasons: [Bucket::FULL; EventReason::ALL.len()],
            out: Vec::new(),
        }
    }

    pub(super) fn set_limits(&mut self, limits: EventLimits) {
        self.rate = Rate::of(limits);
    }

    /// Processes an occurrence. Returns the cause if it is suppressed.
    pub(super) fn occurred(
        &mut self,
        occurrence: Occurrence,
        fresh_id: impl FnOnce() -> u128,
    ) -> Option<Suppression> {
        let now = self.advance(occurrence.stamp.at.since_boot);
        let rate = self.rate;
        let reason = self.reasons.get_mut(occurrence.reason as usize)?;
        let reason_has_some = reason.has_some(rate.of_reason(), now);
        let known = self.sources.iter().position(|source| {
            source.reason == occurrence.reason && source.regarding == occurrence.regarding
        });
        let at = match known {
            Some(at) => at,
            // A flood from many sources must not evict the tracked ones.
            None if !reason_has_some => return Some(Suppression::Reason),
            None => self.insert(&occurrence, now),
        };
        self.uses += 1;
        let source = self.sources.get_mut(at)?;
        source.used = self.uses;
        let suppressed = match source.bucket.has_some(rate, now) {
            false => Suppression::Source,
            true if !reason_has_some => Suppression::Reason,
            true => {
                self.reasons.get_mut(occurrence.reason as usize)?.take();
                source.record(occurrence, now, fresh_id, &mut self.out);
                return None;
            }
        };
        source.suppress(rate, now);
        Some(suppressed)
    }

    /// Adds a source at the end; evicts others if necessary.
    fn insert(&mut self, occurrence: &Occurrence, now: u64) -> usize {
        let rate = self.rate;
        self.sources.retain_mut(|source| !source.is_idle(rate, now));
        if self.sources.len() >= MAX_SOURCES {
            let oldest = self.sources.iter().enumerate().min_by_key(|(_, source)| source.used);
            if let Some(at) = oldest.map(|(at, _)| at) {
                self.sources.swap_remove(at).finish(now, &mut self.out);
            }
        }
        self.sources.push(Source {
            reason: occurrence.reason,
            regarding: occurrence.regarding.clone(),
            bucket: Bucket { tokens: rate.burst, since: now },
            used: 0,
            event: None,
            skipped: 0,
        });
        self.sources.len() - 1
    }

    /// Returns when to call [`Correlator::tick`] at the latest, in milliseconds since boot.
    pub(super) fn deadline(&self) -> Option<u64> {
        self.sources.iter().filter_map(|source| source.event.as_ref()?.due).min()
    }

    /// Writes what is due.
    pub(super) fn tick(&mut self, since_boot: u64) {
        let now = self.advance(since_boot);
        for source in &mut self.sources {
            if let Some(event) = source.event.as_mut().filter(|event| event.due.is_some_and(|due| due <= now))
            {
                event.write(now, &mut self.out);
            }
        }
    }

    /// Writes all pending changes.
    pub(super) fn finish(&mut self) {
        for source in &mut self.sources {
            source.finish(self.now, &mut self.out);
        }
    }

    /// Takes the Events to write, in the order of their occurrence.
    pub(super) fn take(&mut self) -> Vec<EventState> {
        std::mem::take(&mut self.out)
    }

    fn advance(&mut self, since_boot: u64) -> u64 {
        self.now = self.now.max(since_boot);
        self.now
    }
}

/// Returns the time from `now` to a deadline, both in milliseconds.
pub(super) fn until(now: u64, deadline: u64) -> Duration {
    Duration::from_millis(deadline.saturating_sub(now))
}

#[cfg(test)]
mod tests;
