//! Timers of a connection: pings, and the timeouts of a silent peer and of a slow owner.

use std::time::Duration;

use tokio::time::Instant;

use crate::link::Cause;

/// Times of the last activity in both directions.
pub(super) struct Timers {
    keepalive: Duration,
    /// Longest interval between two sent packets.
    ping_interval: Duration,
    /// Time of the last received byte, or when reading resumed.
    last_received: Instant,
    /// Time at which the last packet was encoded.
    last_sent: Instant,
    /// Time at which the socket last accepted bytes, or the send buffer became non-empty.
    last_written: Instant,
    /// Time since which an event waits for the owner.
    stalled_since: Instant,
}

/// State of the session that the timers depend on.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Activity {
    /// Whether this side has stopped reading: then silence proves nothing about the peer.
    pub(super) is_paused: bool,
    /// Whether an event waits for the owner.
    pub(super) is_stalled: bool,
    /// Whether bytes wait for the socket.
    pub(super) is_unsent: bool,
    /// Whether a ping is not answered yet.
    pub(super) awaits_pong: bool,
}

impl Timers {
    pub(super) fn new(keepalive: Duration, ping_interval: Duration, now: Instant) -> Self {
        Self {
            keepalive,
            ping_interval,
            last_received: now,
            last_sent: now,
            last_written: now,
            stalled_since: now,
        }
    }

    /// Records received bytes, or that this side reads again after a pause.
    pub(super) fn received(&mut self, now: Instant) {
        self.last_received = now;
    }

    /// Records an encoded packet; `was_empty` if no other one waited for the socket.
    pub(super) fn sent(&mut self, now: Instant, was_empty: bool) {
        self.last_sent = now;
        if was_empty {
            self.last_written = now;
        }
    }

    /// Records that the socket accepted bytes.
    pub(super) fn wrote(&mut self, now: Instant) {
        self.last_written = now;
    }

    /// Records an event for the owner.
    pub(super) fn emitted(&mut self, now: Instant) {
        self.stalled_since = now;
    }

    /// Returns when a packet must be sent, or the peer be probed.
    fn ping_at(&self, activity: Activity) -> Instant {
        if activity.awaits_pong {
            // The answer is queued behind something large; only this side's own packets must arrive
            // in time.
            self.last_sent + self.ping_interval
        } else {
            self.last_sent.min(self.last_received) + self.ping_interval
        }
    }

    /// Returns the time from which the peer counts as dead.
    fn dead_at(&self, activity: Activity) -> Option<Instant> {
        let silent = (!activity.is_paused).then_some(self.last_received);
        let unread = activity.is_unsent.then_some(self.last_written);
        let since = silent.into_iter().chain(unread).min()?;
        Some(since + self.keepalive)
    }

    /// Returns the time from which the owner counts as stalled.
    fn stalled_at(&self, activity: Activity) -> Option<Instant> {
        activity.is_stalled.then(|| self.stalled_since + self.keepalive)
    }

    /// Returns the time of the next timer.
    pub(super) fn deadline(&self, activity: Activity) -> Instant {
        let timeouts = [self.dead_at(activity), self.stalled_at(activity)];
        timeouts.into_iter().flatten().fold(self.ping_at(activity), Instant::min)
    }

    /// Checks the timers. Returns whether a ping is due.
    ///
    /// # Errors
    /// A timeout: the connection ends.
    pub(super) fn check(&self, activity: Activity, now: Instant) -> Result<bool, Cause> {
        let is_over = |at: Option<Instant>| at.is_some_and(|at| now >= at);
        if is_over(self.stalled_at(activity)) {
            return Err(Cause::ConsumerStalled { stalled: self.keepalive });
        }
        if is_over(self.dead_at(activity)) {
            return Err(Cause::KeepAlive { silent: self.keepalive });
        }
        Ok(now >= self.ping_at(activity))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn timers(now: Instant) -> Timers {
        Timers::new(30 * SECOND, 15 * SECOND, now)
    }

    #[test]
    fn idle_connection_is_pinged_and_then_dead() {
        let now = Instant::now();
        let mut timers = timers(now);
        let idle = Activity::default();
        assert_eq!(timers.deadline(idle), now + 15 * SECOND);
        assert_eq!(timers.check(idle, now + 14 * SECOND), Ok(false));
        assert_eq!(timers.check(idle, now + 15 * SECOND), Ok(true));
        timers.sent(now + 15 * SECOND, true);
        let pinged = Activity { awaits_pong: true, ..idle };
        assert_eq!(timers.deadline(pinged), now + 30 * SECOND);
        let dead = Err(Cause::KeepAlive { silent: 30 * SECOND });
        assert_eq!(timers.check(pinged, now + 30 * SECOND), dead);
        timers.received(now + 29 * SECOND);
        assert_eq!(timers.check(pinged, now + 30 * SECOND), Ok(true), "its own packets are due");
    }

    #[test]
    fn paused_reader_blames_the_owner_and_not_the_peer() {
        let now = Instant::now();
        let mut timers = timers(now);
        timers.emitted(now + 5 * SECOND);
        let stalled = Activity { is_paused: true, is_stalled: true, ..Activity::default() };
        assert_eq!(timers.check(stalled, now + 34 * SECOND), Ok(true));
        let cause = Err(Cause::ConsumerStalled { stalled: 30 * SECOND });
        assert_eq!(timers.check(stalled, now + 35 * SECOND), cause);
    }

    #[test]
    fn peer_that_reads_nothing_is_dead_although_it_sends() {
        let now = Instant::now();
        let mut timers = timers(now);
        let unsent = Activity { is_unsent: true, ..Activity::default() };
        timers.sent(now + 10 * SECOND, true);
        timers.sent(now + 20 * SECOND, false);
        timers.received(now + 39 * SECOND);
        assert!(timers.check(unsent, now + 39 * SECOND).is_ok());
        let dead = Err(Cause::KeepAlive { silent: 30 * SECOND });
        assert_eq!(timers.check(unsent, now + 40 * SECOND), dead);
        timers.wrote(now + 40 * SECOND);
        assert!(timers.check(unsent, now + 40 * SECOND).is_ok());
    }
}
