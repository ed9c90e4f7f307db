//! How much is sent to a node before it has reported what came before, and how long a report is waited for.
//!
//! A report tells which frame it answers. The node answers in order, so the time from a frame to its report tells how
//! much the way carries: while it does not grow, more may be under way; when it does, what is sent more only waits
//! somewhere on the way, at a broker perhaps, where it delays what is more urgent and is lost with the connection.

use std::collections::VecDeque;
use std::ops::{Deref, DerefMut};
use std::time::Duration;

#[cfg(any(test, feature = "simulation"))]
use crate::fault::{Fault, planted};
use crate::timing::Now;
use crate::wait::{Carried, Wait};

use super::CloudConfig;

/// What may be under way at first, and after a rest, in bytes.
const WINDOW: usize = 64 << 10;
/// What may always be under way.
const MIN_WINDOW: usize = 32 << 10;
/// A frame may wait so long on its way before no more is sent, and so long before less is sent.
const DELAY: Duration = Duration::from_secs(2);
const MAX_DELAY: Duration = Duration::from_secs(4);
/// After such a rest the way may be another one.
const REST: Duration = Duration::from_secs(30);
/// The slowest line that is not taken for a dead one before anything is known of it, in bytes a second.
const SLOWEST: u64 = 8 << 10;
/// Who looks at a wait so long after its end was late itself, and may not have heard what came meanwhile.
pub(super) const LATE: Duration = Duration::from_secs(1);

/// A frame with objects whose report has not come.
#[derive(Debug)]
struct Flight {
    frame: u64,
    bytes: usize,
    at: Now,
    /// More was there to be sent than might be under way.
    is_limited: bool,
}

/// See the module.
#[derive(Debug)]
pub(super) struct Pace {
    carried: Carried,
    /// Whether the link tells how far it is; if not, what it was given has left.
    is_told: bool,
    flights: VecDeque<Flight>,
    /// Of the flights.
    bytes: usize,
    window: usize,
    /// From a frame to its report: the shortest time of the session, and a smoothed one.
    shortest: Option<Duration>,
    smoothed: Option<Duration>,
    /// For the report of what has been under way the longest.
    wait: Option<Wait>,
    /// Waits in a row that nothing came of.
    attempts: u32,
    /// Whether the node has told which frame it answers.
    pub(super) names_frames: bool,
    /// One more frame may go, with one message: the answer to it shows what became of the others.
    pub(super) probing: bool,
    /// A wait that was looked at too late goes on once.
    was_late: bool,
    last_report: Now,
}

impl Pace {
    const fn new() -> Self {
        Self {
            carried: Carried::new(),
            is_told: false,
            flights: VecDeque::new(),
            bytes: 0,
            window: WINDOW,
            shortest: None,
            smoothed: None,
            wait: None,
            attempts: 0,
            names_frames: false,
            probing: false,
            was_late: false,
            last_report: Now::ZERO,
        }
    }
}

/// The pace of a node: only one that is connected has one of its own.
#[derive(Debug, Default)]
pub(super) struct PaceOf(Option<Box<Pace>>);

static OFFLINE: Pace = Pace::new();

impl PaceOf {
    /// The connection is over.
    pub(super) fn end_connection(&mut self) {
        self.0 = None;
    }

    /// The session is over, the connection may go on.
    pub(super) fn end_session(&mut self) {
        if let Some(pace) = &mut self.0 {
            pace.end_session();
        }
    }
}

impl Deref for PaceOf {
    type Target = Pace;

    fn deref(&self) -> &Pace {
        self.0.as_deref().unwrap_or(&OFFLINE)
    }
}

impl DerefMut for PaceOf {
    fn deref_mut(&mut self) -> &mut Pace {
        self.0.get_or_insert_with(|| Box::new(Pace::new()))
    }
}

impl Pace {
    fn end_session(&mut self) {
        let Self { carried, is_told, smoothed, .. } = *self;
        *self = Self { carried, is_told, smoothed, ..Self::new() };
    }

    /// The link is given the next frame.
    pub(super) fn hand(&mut self) {
        self.carried.hand();
        if !self.is_told {
            self.carried.progress(0, 0);
        }
    }

    /// The number that the next frame gets.
    pub(super) fn next_frame(&self) -> u64 {
        self.carried.handed() + 1
    }

    pub(super) fn link_progress(&mut self, now: Now, config: &CloudConfig, unsent: u64, unacknowledged: u64) {
        self.is_told = true;
        let progress = self.carried.progress(unsent, unacknowledged);
        let time = self.patience(config);
        if let Some(wait) = &mut self.wait
            && progress.concerns(wait)
        {
            wait.restart(now, time);
        }
    }

    /// How many bytes the next frame may have, none if it may not go yet.
    pub(super) fn room(&self, config: &CloudConfig, more: usize) -> Option<usize> {
        let window = self.window.min(config.window_bytes);
        if self.probing {
            return Some(1);
        }
        (self.bytes < window.max(more)).then_some(window / 2)
    }

    /// The next frame goes, with messages of so many bytes.
    pub(super) fn sent(&mut self, now: Now, config: &CloudConfig, bytes: usize) {
        if self.flights.is_empty() && now.saturating_sub(self.last_report) > REST {
            self.window = self.window.min(WINDOW);
        }
        let frame = self.next_frame();
        self.bytes += bytes;
        let is_limited = self.bytes * 2 >= self.window;
        self.flights.push_back(Flight { frame, bytes, at: now, is_limited });
        // Who probes waits for the answer to the probe, or to anything before it.
        if self.wait.is_none() || std::mem::take(&mut self.probing) {
            self.wait_for(now, config, frame);
        }
    }

    /// The node has answered all frames up to this one.
    pub(super) fn answered(&mut self, now: Now, config: &CloudConfig, frame: u64) {
        self.last_report = now;
        let (mut bytes, mut last) = (0, None);
        while let Some(flight) = self.flights.pop_front_if(|flight| flight.frame <= frame) {
            bytes += flight.bytes;
            last = Some(flight);
        }
        self.bytes -= bytes;
        if let Some(flight) = last.filter(|flight| flight.frame == frame) {
            self.measure(now.saturating_sub(flight.at), bytes, flight.is_limited);
        }
        self.heard(now, config);
    }

    /// So much of what is under way has arrived.
    pub(super) fn arrived(&mut self, now: Now, config: &CloudConfig, bytes: usize) {
        let mut rest = bytes;
        while let Some(flight) = self.flights.pop_front_if(|flight| flight.bytes <= rest) {
            rest -= flight.bytes;
            self.bytes -= flight.bytes;
        }
        self.heard(now, config);
    }

    /// The node is at work on what was sent.
    pub(super) fn heard(&mut self, now: Now, config: &CloudConfig) {
        self.attempts = 0;
        self.probing = false;
        if self.wait.is_some() {
            let frame = self.flights.front().map_or(self.carried.handed(), |flight| flight.frame);
            self.wait_for(now, config, frame);
        }
    }

    /// Nothing is waited for any more.
    pub(super) fn rest(&mut self) {
        self.wait = None;
        self.attempts = 0;
        self.probing = false;
        self.forget_flights();
    }

    /// What was sent is taken for lost.
    pub(super) fn forget_flights(&mut self) {
        self.flights.clear();
        self.bytes = 0;
    }

    fn measure(&mut self, time: Duration, bytes: usize, was_limited: bool) {
        self.smoothed = Some(self.smoothed.map_or(time, |smoothed| (smoothed * 7 + time) / 8));
        let shortest = self.shortest.map_or(time, |shortest| shortest.min(time));
        self.shortest = Some(shortest);
        let delay = time.saturating_sub(shortest);
        if delay > MAX_DELAY {
            self.window = self.window.saturating_sub(bytes / 2).max(MIN_WINDOW);
        } else if delay < DELAY && was_limited {
            // At most what any configuration allows.
            self.window = self.window.saturating_add(bytes).min(1 << 30);
        }
    }

    fn wait_for(&mut self, now: Now, config: &CloudConfig, frame: u64) {
        self.was_late = false;
        self.wait = Some(Wait { until: now + self.patience(config), frame, since: now });
    }

    /// How long a report is waited for.
    fn patience(&self, config: &CloudConfig) -> Duration {
        #[cfg(any(test, feature = "simulation"))]
        if planted(Fault::LineUnknown) {
            return config.resend_min / 5;
        }
        let bytes = self.flights.front().map_or(0, |flight| flight.bytes as u64);
        let line = Duration::from_millis(bytes * 1000 / SLOWEST);
        let usual = self.smoothed.unwrap_or_default() * 4;
        let time = usual.max(config.resend_min) + line;
        time.saturating_mul(1 << self.attempts.min(16)).min(config.resend_max)
    }

    pub(super) fn deadline(&self) -> Option<Now> {
        self.wait.map(|wait| wait.until)
    }

    /// Whether the report that is waited for should have come. If so, the wait begins anew, for longer.
    pub(super) fn is_overdue(&mut self, now: Now, config: &CloudConfig) -> bool {
        let Some(wait) = &mut self.wait else { return false };
        if wait.until > now {
            return false;
        }
        #[cfg(any(test, feature = "simulation"))]
        if planted(Fault::LineUnknown) {
            self.attempts = self.attempts.saturating_add(1);
            wait.restart(now, config.resend_min / 5);
            return true;
        }
        let is_late = now - wait.until > LATE && !std::mem::replace(&mut self.was_late, true);
        if is_late || !self.carried.has_sent(wait) {
            wait.restart(now, config.resend_min);
            return false;
        }
        let frame = wait.frame;
        self.attempts = self.attempts.saturating_add(1);
        self.wait_for(now, config, frame);
        true
    }

    /// How many waits in a row nothing came of.
    pub(super) fn attempts(&self) -> u32 {
        self.attempts
    }

    pub(super) fn smoothed(&self) -> Option<Duration> {
        self.smoothed
    }
}
