//! Congestion control towards one node: the window of bytes in flight, and the retransmission
//! timeout.
//!
//! A report acknowledges a frame, and the node acknowledges in order, so the round trip from a
//! frame to its report measures the path. The window grows while the round trip does not. When the
//! round trip grows, more bytes in flight only queue on the path, for example at a broker, where
//! they delay urgent frames and are lost with the connection.

use std::collections::VecDeque;
use std::ops::{Deref, DerefMut};
use std::time::Duration;

#[cfg(any(test, feature = "simulation"))]
use crate::fault::{Fault, planted};
use crate::timing::Now;
use crate::wait::{LinkPosition, Wait};

use super::CloudConfig;

/// The window at first, and after an idle time, in bytes.
const INITIAL_WINDOW: usize = 64 << 10;
/// The smallest window in bytes.
const MIN_WINDOW: usize = 32 << 10;
/// The window stops growing above this queueing delay, and shrinks above the next one.
const TARGET_DELAY: Duration = Duration::from_secs(2);
const MAX_DELAY: Duration = Duration::from_secs(4);
/// The idle time after which the path may have changed: the window restarts.
const IDLE_RESTART: Duration = Duration::from_secs(30);
/// The slowest path that counts as alive before the first round trip, in bytes per second.
const MIN_RATE: u64 = 8 << 10;
/// A timer that fires this late means that this side was stalled, not the peer.
pub(super) const STALLED: Duration = Duration::from_secs(1);

/// A frame with objects that is not acknowledged yet.
#[derive(Debug)]
struct InFlight {
    frame: u64,
    bytes: usize,
    sent_at: Now,
    /// Whether the window, not the lack of objects, limited the bytes in flight.
    is_window_limited: bool,
}

/// The congestion window and the retransmission timer of one connection.
#[derive(Debug)]
pub(super) struct Pacer {
    position: LinkPosition,
    /// Whether the link reports its progress; if not, every frame counts as sent once the link has
    /// it.
    reports_progress: bool,
    in_flight: VecDeque<InFlight>,
    bytes_in_flight: usize,
    window: usize,
    /// The shortest round trip of the session.
    min_rtt: Option<Duration>,
    smoothed_rtt: Option<Duration>,
    /// The retransmission timer for the report of the oldest frame in flight.
    timer: Option<Wait>,
    /// The number of consecutive timeouts.
    timeouts: u32,
    /// Whether one more frame with one message may leave: its answer reveals the fate of the
    /// others.
    is_probing: bool,
    /// Whether the timer fired late and was extended once for it.
    was_stalled: bool,
    last_report: Now,
}

impl Pacer {
    const fn new() -> Self {
        Self {
            position: LinkPosition::new(),
            reports_progress: false,
            in_flight: VecDeque::new(),
            bytes_in_flight: 0,
            window: INITIAL_WINDOW,
            min_rtt: None,
            smoothed_rtt: None,
            timer: None,
            timeouts: 0,
            is_probing: false,
            was_stalled: false,
            last_report: Now::ZERO,
        }
    }
}

/// The pacer of a node, allocated only while it is connected.
#[derive(Debug, Default)]
pub(super) struct ConnectionPacer(Option<Box<Pacer>>);

static OFFLINE: Pacer = Pacer::new();

impl ConnectionPacer {
    /// Ends the connection and frees the pacer.
    pub(super) fn end_connection(&mut self) {
        self.0 = None;
    }

    /// Ends the session. The path, and so its round trip, may stay.
    pub(super) fn end_session(&mut self) {
        if let Some(pacer) = &mut self.0 {
            pacer.end_session();
        }
    }
}

impl Deref for ConnectionPacer {
    type Target = Pacer;

    fn deref(&self) -> &Pacer {
        self.0.as_deref().unwrap_or(&OFFLINE)
    }
}

impl DerefMut for ConnectionPacer {
    fn deref_mut(&mut self) -> &mut Pacer {
        self.0.get_or_insert_with(|| Box::new(Pacer::new()))
    }
}

impl Pacer {
    fn end_session(&mut self) {
        let Self { position, reports_progress, smoothed_rtt, .. } = *self;
        *self = Self { position, reports_progress, smoothed_rtt, ..Self::new() };
    }

    /// Counts the next frame given to the link.
    pub(super) fn hand_over(&mut self) {
        self.position.hand_over();
        if !self.reports_progress {
            self.position.progress(0, 0);
        }
    }

    /// Returns the number of the next frame.
    pub(super) fn next_frame(&self) -> u64 {
        self.position.handed() + 1
    }

    /// Updates the position of the link. Progress on the awaited frames extends their timeout.
    pub(super) fn link_progress(&mut self, now: Now, config: &CloudConfig, unsent: u64, unacknowledged: u64) {
        self.reports_progress = true;
        let progress = self.position.progress(unsent, unacknowledged);
        let timeout = self.timeout(config);
        if let Some(timer) = &mut self.timer
            && progress.covers(timer)
        {
            timer.restart(now, timeout);
        }
    }

    /// Returns the byte limit of the next frame; `None` while the window is full.
    pub(super) fn capacity(&self, config: &CloudConfig) -> Option<usize> {
        if self.is_probing {
            return Some(1);
        }
        let window = self.window.min(config.window_bytes);
        (self.bytes_in_flight < window).then_some(window / 2)
    }

    /// Counts the next frame as sent, with messages of `bytes` bytes.
    pub(super) fn on_sent(&mut self, now: Now, config: &CloudConfig, bytes: usize) {
        if self.in_flight.is_empty() && now.saturating_sub(self.last_report) > IDLE_RESTART {
            self.window = self.window.min(INITIAL_WINDOW);
        }
        let frame = self.next_frame();
        self.bytes_in_flight += bytes;
        let is_window_limited = self.bytes_in_flight * 2 >= self.window;
        self.in_flight.push_back(InFlight { frame, bytes, sent_at: now, is_window_limited });
        // A probe is answered by its own report, or by the report of any earlier frame.
        if self.timer.is_none() || std::mem::take(&mut self.is_probing) {
            self.arm(now, config, frame);
        }
    }

    /// Handles a report that acknowledges all frames up to this one.
    pub(super) fn on_ack(&mut self, now: Now, config: &CloudConfig, frame: u64) {
        self.last_report = now;
        let (mut bytes, mut last) = (0, None);
        while let Some(acked) = self.in_flight.pop_front_if(|sent| sent.frame <= frame) {
            bytes += acked.bytes;
            last = Some(acked);
        }
        self.bytes_in_flight -= bytes;
        if let Some(acked) = last.filter(|acked| acked.frame == frame) {
            self.on_round_trip(now.saturating_sub(acked.sent_at), bytes, acked.is_window_limited);
        }
        self.on_progress(now, config);
    }

    /// Handles a sign that the node is processing frames.
    fn on_progress(&mut self, now: Now, config: &CloudConfig) {
        self.timeouts = 0;
        self.is_probing = false;
        if self.timer.is_some() {
            let frame = self.in_flight.front().map_or(self.position.handed(), |sent| sent.frame);
            self.arm(now, config, frame);
        }
    }

    /// Disarms the timer: no report is awaited.
    pub(super) fn on_idle(&mut self) {
        self.timer = None;
        self.timeouts = 0;
        self.is_probing = false;
        self.forget_in_flight();
    }

    /// Counts everything in flight as lost.
    pub(super) fn forget_in_flight(&mut self) {
        self.in_flight.clear();
        self.bytes_in_flight = 0;
    }

    /// Allows one more frame with one message although the window may be full.
    pub(super) fn probe(&mut self) {
        self.is_probing = true;
    }

    fn on_round_trip(&mut self, rtt: Duration, bytes: usize, was_window_limited: bool) {
        self.smoothed_rtt = Some(self.smoothed_rtt.map_or(rtt, |smoothed| (smoothed * 7 + rtt) / 8));
        let min_rtt = self.min_rtt.map_or(rtt, |shortest| shortest.min(rtt));
        self.min_rtt = Some(min_rtt);
        let delay = rtt.saturating_sub(min_rtt);
        if delay > MAX_DELAY {
            self.window = self.window.saturating_sub(bytes / 2).max(MIN_WINDOW);
        } else if delay < TARGET_DELAY && was_window_limited {
            // The limit is the largest window of any configuration.
            self.window = self.window.saturating_add(bytes).min(1 << 30);
        }
    }

    fn arm(&mut self, now: Now, config: &CloudConfig, frame: u64) {
        self.was_stalled = false;
        self.timer = Some(Wait { until: now + self.timeout(config), frame, since: now });
    }

    /// Returns the retransmission timeout; doubles with each consecutive timeout.
    fn timeout(&self, config: &CloudConfig) -> Duration {
        #[cfg(any(test, feature = "simulation"))]
        if planted(Fault::LineUnknown) {
            return config.resend_min / 5;
        }
        let bytes = self.in_flight.front().map_or(0, |sent| sent.bytes as u64);
        let transmission = Duration::from_millis(bytes * 1000 / MIN_RATE);
        let usual = self.smoothed_rtt.unwrap_or_default() * 4;
        let timeout = usual.max(config.resend_min) + transmission;
        timeout.saturating_mul(1 << self.timeouts.min(16)).min(config.resend_max)
    }

    pub(super) fn deadline(&self) -> Option<Now> {
        self.timer.map(|timer| timer.until)
    }

    /// Returns whether the awaited report is overdue. If so, the timer restarts with a longer
    /// timeout.
    pub(super) fn has_timed_out(&mut self, now: Now, config: &CloudConfig) -> bool {
        let Some(timer) = &mut self.timer else { return false };
        if timer.until > now {
            return false;
        }
        #[cfg(any(test, feature = "simulation"))]
        if planted(Fault::LineUnknown) {
            self.timeouts = self.timeouts.saturating_add(1);
            timer.restart(now, config.resend_min / 5);
            return true;
        }
        let is_stalled = now - timer.until > STALLED && !std::mem::replace(&mut self.was_stalled, true);
        if is_stalled || !self.position.has_sent(timer) {
            timer.restart(now, config.resend_min);
            return false;
        }
        let frame = timer.frame;
        self.timeouts = self.timeouts.saturating_add(1);
        self.arm(now, config, frame);
        true
    }

    /// Returns the number of consecutive timeouts.
    pub(super) fn timeouts(&self) -> u32 {
        self.timeouts
    }

    pub(super) fn smoothed_rtt(&self) -> Option<Duration> {
        self.smoothed_rtt
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RTT: Duration = Duration::from_millis(100);

    /// Sends a frame with messages of so many bytes.
    fn send(pacer: &mut Pacer, now: Now, config: &CloudConfig, bytes: usize) -> u64 {
        let frame = pacer.next_frame();
        pacer.on_sent(now, config, bytes);
        pacer.hand_over();
        frame
    }

    /// Returns a pacer that has grown on a fast path, and then lost a frame.
    fn grown_and_timed_out(config: &CloudConfig) -> Pacer {
        let (mut pacer, mut now) = (Pacer::new(), Now::from_secs(1));
        for _ in 0..10 {
            let frame = send(&mut pacer, now, config, INITIAL_WINDOW);
            now += RTT;
            pacer.on_ack(now, config, frame);
        }
        send(&mut pacer, now, config, INITIAL_WINDOW);
        let due = pacer.deadline().unwrap();
        assert!(pacer.has_timed_out(due, config));
        pacer.probe();
        pacer
    }

    #[test]
    fn a_new_session_keeps_the_round_trip_and_nothing_else() {
        let config = CloudConfig::defaults();
        let mut pacer = grown_and_timed_out(&config);
        assert!(pacer.window > INITIAL_WINDOW, "{}", pacer.window);
        assert_eq!((pacer.timeouts(), pacer.bytes_in_flight), (1, INITIAL_WINDOW));
        let next = pacer.next_frame();
        pacer.end_session();
        assert_eq!((pacer.smoothed_rtt(), pacer.next_frame()), (Some(RTT), next));
        assert_eq!(pacer.capacity(&config), Some(INITIAL_WINDOW / 2));
        assert_eq!((pacer.in_flight.len(), pacer.bytes_in_flight), (0, 0));
        assert_eq!((pacer.deadline(), pacer.timeouts(), pacer.min_rtt), (None, 0, None));
        // The timeout of the first frame has not doubled.
        let now = Now::from_secs(60);
        send(&mut pacer, now, &config, 0);
        assert_eq!(pacer.deadline(), Some(now + config.resend_min));
    }
}
