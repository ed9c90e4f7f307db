//! Decides what becomes of an occurrence: a new Event, the next one of a series, or nothing because its source has
//! made too many. Pure: times come in, what is to be written is taken out.
//!
//! A source is a reason and what it is about. What occurs again within [`WINDOW`] of the last time goes on in the
//! Event that there is. A series is written at its second occurrence and whenever its count is a power of two, else
//! [`PACE`] after it was written last; the last count is written in any case, at a deadline.

use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;

use super::why::Why;
use super::{EventLimits, Regarding};
use crate::store::Clocked;

/// How long after the last occurrence an Event goes on.
pub(super) const WINDOW: u64 = 6 * 60 * 1000;
/// How long a series waits before it is written again, in milliseconds.
pub(super) const PACE: u64 = 30 * 1000;
/// The most sources that are known: the one that was quiet for longest goes.
pub(super) const MAX_SOURCES: usize = 256;
/// All sources of one reason together may make so many times as much as one source.
pub(super) const REASON_FACTOR: u32 = 10;

/// When something happened, by the wall clock and by the clock that never jumps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Stamp {
    pub(super) wall: Timestamp,
    pub(super) at: Clocked,
}

/// Something that an operator must know.
#[derive(Clone, Debug)]
pub(super) struct Occurrence {
    pub(super) why: Why,
    pub(super) regarding: Regarding,
    pub(super) note: Arc<str>,
    pub(super) stamp: Stamp,
}

/// What an Event is to say.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Told {
    /// Makes name and UID.
    pub(super) id: u128,
    pub(super) why: Why,
    pub(super) regarding: Regarding,
    /// The note of the first occurrence: Kubernetes lets nobody change it.
    pub(super) note: Arc<str>,
    /// The note of the last occurrence, if it is another one.
    pub(super) latest: Option<Arc<str>>,
    pub(super) first: Stamp,
    /// Occurrences that are told.
    pub(super) count: u32,
    /// The last one of them.
    pub(super) last: Stamp,
    /// Occurrences that are left out because there were too many.
    pub(super) left_out: u32,
}

impl Told {
    /// The first occurrence of an Event.
    pub(super) fn new(id: u128, occurrence: Occurrence) -> Self {
        let Occurrence { why, regarding, note, stamp } = occurrence;
        Self { id, why, regarding, note, latest: None, first: stamp, count: 1, last: stamp, left_out: 0 }
    }

    /// Adds an occurrence.
    pub(super) fn add(&mut self, note: Arc<str>, stamp: Stamp) {
        self.count = self.count.saturating_add(1);
        self.last = stamp;
        self.latest = (note != self.note).then_some(note);
    }
}

/// Why an occurrence is left out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LeftOut {
    /// Its source makes too many.
    Source,
    /// All sources of its reason together make too many.
    Reason,
}

/// How many at once, and after how many milliseconds one more.
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

/// A bucket of tokens.
#[derive(Clone, Copy, Debug)]
struct Bucket {
    tokens: u32,
    /// Since when the next token is on its way.
    since: u64,
}

impl Bucket {
    /// As full as it may be.
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

/// The Event of a source that goes on while it occurs.
#[derive(Debug)]
struct Open {
    told: Told,
    /// When it occurred last, also if that was left out.
    seen: u64,
    written: u64,
    /// When it is to be written because it says more than what was written.
    due: Option<u64>,
}

impl Open {
    fn goes_on(&self, now: u64) -> bool {
        now.saturating_sub(self.seen) <= WINDOW
    }

    fn write(&mut self, now: u64, out: &mut Vec<Told>) {
        self.written = now;
        self.due = None;
        out.push(self.told.clone());
    }

    fn write_by(&mut self, due: u64) {
        self.due = Some(self.due.unwrap_or(u64::MAX).min(due));
    }

    fn again(&mut self, occurrence: Occurrence, now: u64, out: &mut Vec<Told>) {
        self.told.add(occurrence.note, occurrence.stamp);
        self.seen = now;
        let due = self.written.saturating_add(PACE);
        if self.told.count.is_power_of_two() || due <= now {
            self.write(now, out);
        } else {
            self.write_by(due);
        }
    }

    /// That something was left out is worth less writing than an occurrence.
    fn leave_out(&mut self, rate: Rate, now: u64) {
        self.told.left_out = self.told.left_out.saturating_add(1);
        self.seen = now;
        self.write_by(self.written.saturating_add(WINDOW.max(rate.every)));
    }
}

#[derive(Debug)]
struct Source {
    why: Why,
    regarding: Regarding,
    bucket: Bucket,
    /// Grows with each use of any source.
    used: u64,
    event: Option<Open>,
    /// Left out while no Event went on.
    skipped: u32,
}

impl Source {
    /// Whether a source that is not known would behave as this one does.
    fn is_idle(&mut self, rate: Rate, now: u64) -> bool {
        self.skipped == 0
            && self.event.as_ref().is_none_or(|event| event.due.is_none() && !event.goes_on(now))
            && self.bucket.is_full(rate, now)
    }

    fn tell(
        &mut self,
        occurrence: Occurrence,
        now: u64,
        fresh_id: impl FnOnce() -> u128,
        out: &mut Vec<Told>,
    ) {
        self.bucket.take();
        if let Some(event) = self.event.as_mut().filter(|event| event.goes_on(now)) {
            return event.again(occurrence, now, out);
        }
        self.finish(now, out);
        let mut told = Told::new(fresh_id(), occurrence);
        told.left_out = std::mem::take(&mut self.skipped);
        let mut event = Open { told, seen: now, written: now, due: None };
        event.write(now, out);
        self.event = Some(event);
    }

    fn leave_out(&mut self, rate: Rate, now: u64) {
        match self.event.as_mut().filter(|event| event.goes_on(now)) {
            Some(event) => event.leave_out(rate, now),
            None => self.skipped = self.skipped.saturating_add(1),
        }
    }

    /// Writes what is not yet written.
    fn finish(&mut self, now: u64, out: &mut Vec<Told>) {
        if let Some(event) = self.event.as_mut().filter(|event| event.due.is_some()) {
            event.write(now, out);
        }
    }
}

/// Knows the sources.
#[derive(Debug)]
pub(super) struct Correlator {
    rate: Rate,
    /// Milliseconds since the boot of the device, never less than before.
    now: u64,
    uses: u64,
    sources: Vec<Source>,
    reasons: [Bucket; Why::ALL.len()],
    out: Vec<Told>,
}

impl Correlator {
    pub(super) fn new(limits: EventLimits) -> Self {
        Self {
            rate: Rate::of(limits),
            now: 0,
            uses: 0,
            sources: Vec::new(),
            reasons: [Bucket::FULL; Why::ALL.len()],
            out: Vec::new(),
        }
    }

    pub(super) fn set_limits(&mut self, limits: EventLimits) {
        self.rate = Rate::of(limits);
    }

    /// Something has occurred. Says why it is left out, if it is.
    pub(super) fn occurred(
        &mut self,
        occurrence: Occurrence,
        fresh_id: impl FnOnce() -> u128,
    ) -> Option<LeftOut> {
        let now = self.advance(occurrence.stamp.at.since_boot);
        let rate = self.rate;
        let reason = self.reasons.get_mut(occurrence.why as usize)?;
        let reason_has_some = reason.has_some(rate.of_reason(), now);
        let known = self
            .sources
            .iter()
            .position(|source| source.why == occurrence.why && source.regarding == occurrence.regarding);
        let at = match known {
            Some(at) => at,
            // A flood from many sources must not push out those that are known.
            None if !reason_has_some => return Some(LeftOut::Reason),
            None => self.insert(&occurrence, now),
        };
        self.uses += 1;
        let source = self.sources.get_mut(at)?;
        source.used = self.uses;
        let left_out = match source.bucket.has_some(rate, now) {
            false => LeftOut::Source,
            true if !reason_has_some => LeftOut::Reason,
            true => {
                self.reasons.get_mut(occurrence.why as usize)?.take();
                source.tell(occurrence, now, fresh_id, &mut self.out);
                return None;
            }
        };
        source.leave_out(rate, now);
        Some(left_out)
    }

    /// Makes room for a source, and puts it at the end.
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
            why: occurrence.why,
            regarding: occurrence.regarding.clone(),
            bucket: Bucket { tokens: rate.burst, since: now },
            used: 0,
            event: None,
            skipped: 0,
        });
        self.sources.len() - 1
    }

    /// When [`Correlator::tick`] is to be called at the latest, in milliseconds since the boot of the device.
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

    /// Writes all that is not yet written.
    pub(super) fn finish(&mut self) {
        for source in &mut self.sources {
            source.finish(self.now, &mut self.out);
        }
    }

    /// What is to be written, in the order of its occurrence.
    pub(super) fn take(&mut self) -> Vec<Told> {
        std::mem::take(&mut self.out)
    }

    fn advance(&mut self, since_boot: u64) -> u64 {
        self.now = self.now.max(since_boot);
        self.now
    }
}

/// A number of milliseconds as the clock counts them.
pub(super) fn until(now: u64, deadline: u64) -> Duration {
    Duration::from_millis(deadline.saturating_sub(now))
}

#[cfg(test)]
mod tests;
