//! Timeouts of one client: silence, unread and unacknowledged messages, the end of its certificate.

use std::time::Duration;

use jiff::Timestamp;
use rumqttc::v5::mqttbytes::v5::DisconnectReasonCode;
use tokio::time::Instant;

use crate::DisconnectReason;
use crate::client::Ended;

/// Bytes that leave the send buffer before the system accepts more: it works with large pieces, of
/// 64 KiB on the loopback.
const STEP: usize = 128 * 1024;

/// Limits and the time of the last sign of life.
pub(super) struct Timers {
    /// The silence that MQTT allows: one and a half of the keep-alive.
    keepalive: Duration,
    /// Slowest read rate in bytes per second.
    slowest: u32,
    /// End of the client's certificate.
    certificate_end: Option<Timestamp>,
    last_received: Instant,
}

/// State of the exchange that the timeouts depend on.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Progress {
    /// Whether this side has stopped reading: then silence proves nothing about the client.
    pub(super) is_paused: bool,
    /// Time of the last write into the socket, while bytes wait for it.
    pub(super) unsent_since: Option<Instant>,
    /// Start of the wait for an acknowledgement, and the size of the oldest message in flight.
    pub(super) unacknowledged: Option<(Instant, usize)>,
}

impl Timers {
    /// Starts the timers of a client; `keepalive` is the one agreed in the CONNACK.
    pub(super) fn new(
        keepalive: Duration,
        slowest: u32,
        certificate_end: Option<Timestamp>,
        now: Instant,
    ) -> Self {
        Self { keepalive: keepalive + keepalive / 2, slowest, certificate_end, last_received: now }
    }

    /// Records a sign of life, or that this side reads again after a pause.
    pub(super) fn received(&mut self, now: Instant) {
        self.last_received = now;
    }

    /// Returns the time in which a client must read `bytes` bytes.
    fn read_timeout(&self, bytes: usize) -> Duration {
        self.keepalive + Duration::from_millis(bytes as u64 * 1000 / u64::from(self.slowest))
    }

    /// Returns when the client must have sent something.
    fn silent_at(&self, progress: Progress) -> Option<Instant> {
        (!progress.is_paused).then(|| self.last_received + self.keepalive)
    }

    /// Returns when the client must have read some of the unsent bytes.
    fn stalled_at(&self, progress: Progress) -> Option<Instant> {
        progress.unsent_since.map(|since| since + self.read_timeout(STEP))
    }

    /// Returns when the client must have acknowledged a message; a paused one cannot.
    fn overdue_at(&self, progress: Progress) -> Option<Instant> {
        let (since, bytes) = progress.unacknowledged.filter(|_| !progress.is_paused)?;
        Some(since + self.read_timeout(bytes))
    }

    /// Returns the time of the next check.
    pub(super) fn deadline(&self, progress: Progress, now: Instant) -> Instant {
        // Computed from the wall clock each time, because it may be set while the client is
        // connected.
        let expired_at = self.certificate_end.map(|end| now + remaining(end));
        let times =
            [self.silent_at(progress), self.stalled_at(progress), self.overdue_at(progress), expired_at];
        times.into_iter().flatten().fold(now + self.keepalive, Instant::min)
    }

    /// Checks the timeouts; an error ends the exchange.
    pub(super) fn check(&self, progress: Progress, now: Instant) -> Result<(), Ended> {
        let is_over = |at: Option<Instant>| at.is_some_and(|at| now >= at);
        if self.certificate_end.is_some_and(|end| remaining(end).is_zero()) {
            return Err(Ended::with_code(DisconnectReason::Expired, DisconnectReasonCode::NotAuthorized));
        }
        let not_reading = DisconnectReason::NotReading(self.keepalive);
        if is_over(self.stalled_at(progress)) {
            return Err(Ended { why: not_reading, code: None, will: true });
        }
        if is_over(self.overdue_at(progress)) {
            return Err(Ended::with_code(not_reading, DisconnectReasonCode::QuotaExceeded));
        }
        if is_over(self.silent_at(progress)) {
            let silent = DisconnectReason::Silent(self.keepalive);
            return Err(Ended::with_code(silent, DisconnectReasonCode::KeepAliveTimeout));
        }
        Ok(())
    }
}

/// Returns the time until `end`; zero once it has passed.
fn remaining(end: Timestamp) -> Duration {
    let remaining = end.duration_since(Timestamp::now());
    // At most a month; then the deadline is computed again.
    Duration::try_from(remaining).unwrap_or_default().min(Duration::from_secs(30 * 24 * 3600))
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    /// Returns the reason for which the exchange ends at the deadline, and the time until then.
    fn outcome(timers: &Timers, progress: Progress, now: Instant) -> (Duration, Option<DisconnectReason>) {
        let at = timers.deadline(progress, now);
        assert!(timers.check(progress, at - Duration::from_millis(1)).is_ok());
        (at - now, timers.check(progress, at).err().map(|ended| ended.why))
    }

    #[test]
    fn silent_client_ends_after_one_and_a_half_keepalives() {
        let now = Instant::now();
        let mut timers = Timers::new(10 * SECOND, 1024, None, now);
        let silent = DisconnectReason::Silent(15 * SECOND);
        assert_eq!(outcome(&timers, Progress::default(), now), (15 * SECOND, Some(silent.clone())));
        timers.received(now + 5 * SECOND);
        assert_eq!(outcome(&timers, Progress::default(), now + 5 * SECOND), (15 * SECOND, Some(silent)));
    }

    #[test]
    fn paused_client_is_neither_silent_nor_overdue() {
        let now = Instant::now();
        let timers = Timers::new(10 * SECOND, 1024, None, now);
        let progress = Progress { is_paused: true, unacknowledged: Some((now, 0)), ..Progress::default() };
        let later = now + 1000 * SECOND;
        assert!(timers.check(progress, later).is_ok());
        assert!(timers.deadline(progress, later) > later, "the exchange would spin");
    }

    #[test]
    fn unread_bytes_and_messages_get_time_by_their_size() {
        let now = Instant::now();
        let timers = Timers::new(2 * SECOND, STEP as u32, None, now);
        let not_reading = Some(DisconnectReason::NotReading(3 * SECOND));
        let paused = Progress { is_paused: true, unsent_since: Some(now), ..Progress::default() };
        let check =
            |progress, after: Duration| timers.check(progress, now + after).err().map(|ended| ended.why);
        assert_eq!(check(paused, 4 * SECOND - Duration::from_millis(1)), None);
        assert_eq!(check(paused, 4 * SECOND), not_reading);
        let mut timers = Timers::new(2 * SECOND, 1000, None, now);
        timers.received(now + 60 * SECOND);
        let message = Progress { unacknowledged: Some((now, 5000)), ..Progress::default() };
        let check = |after: Duration| timers.check(message, now + after).err().map(|ended| ended.why);
        assert_eq!(check(8 * SECOND - Duration::from_millis(1)), None);
        assert_eq!(check(8 * SECOND), not_reading);
    }

    #[test]
    fn expired_certificate_ends_the_exchange_at_once() {
        let now = Instant::now();
        let timers = Timers::new(10 * SECOND, 1024, Some(Timestamp::now()), now);
        assert_eq!(timers.deadline(Progress::default(), now), now);
        let ended = timers.check(Progress::default(), now).err().map(|ended| ended.why);
        assert_eq!(ended, Some(DisconnectReason::Expired));
    }
}
