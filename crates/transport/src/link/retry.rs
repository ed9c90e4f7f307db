//! Full-jitter exponential backoff for reconnects. Pure: time and randomness come in as arguments.
//!
//! The curve is that of the `backoff` crate, which only this module names. Its jitter is off,
//! because it draws from a global generator. Instead the caller's random number scales the whole
//! interval, so that nodes that lost one broker together do not reconnect together.

use std::time::{Duration, Instant};

use backoff::SystemClock;
use backoff::backoff::Backoff;
use backoff::exponential::{ExponentialBackoff, ExponentialBackoffBuilder};

/// Options of the backoff between attempts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RetryOptions {
    /// Longest delay after the first failure.
    pub first: Duration,
    /// Longest delay after many failures.
    pub most: Duration,
    /// Minimum duration of a connection whose loss resets the backoff.
    pub good_after: Duration,
    /// Delay after another client took the session over; up to half of it is added at random.
    pub taken_over: Duration,
}

impl Default for RetryOptions {
    fn default() -> Self {
        Self {
            first: Duration::from_secs(1),
            most: Duration::from_secs(60),
            good_after: Duration::from_secs(60),
            taken_over: Duration::from_secs(300),
        }
    }
}

/// Backoff state of one link.
pub struct Retry {
    options: RetryOptions,
    curve: ExponentialBackoff<SystemClock>,
    connected_at: Option<Instant>,
}

impl Retry {
    /// Creates a backoff at the first step of the curve.
    #[must_use]
    pub fn new(options: RetryOptions) -> Self {
        let curve = ExponentialBackoffBuilder::<SystemClock>::new()
            .with_initial_interval(options.first)
            .with_max_interval(options.most.max(options.first))
            .with_multiplier(2.0)
            .with_randomization_factor(0.0)
            // The crate gives up after 15 minutes by default; a link never does.
            .with_max_elapsed_time(None)
            .build();
        Self { options, curve, connected_at: None }
    }

    /// Records that a connection is usable from `now` on.
    pub fn connected(&mut self, now: Instant) {
        self.connected_at = Some(now);
    }

    /// Returns the delay after a failure at `now`; `random` is in `[0, 1)`.
    pub fn failed(&mut self, now: Instant, random: f64) -> Duration {
        self.settle(now);
        // Without a limit on the elapsed time the crate always has a next interval.
        let longest = self.curve.next_backoff().unwrap_or(self.options.most).min(self.options.most);
        longest.mul_f64(random.clamp(0.0, 1.0))
    }

    /// Returns the delay after another client took the session over; `random` is in `[0, 1)`.
    pub fn taken_over(&mut self, now: Instant, random: f64) -> Duration {
        self.settle(now);
        self.options.taken_over.mul_f64(1.0 + random.clamp(0.0, 1.0) / 2.0)
    }

    /// Resets the curve if the connection that just ended lasted for long enough.
    fn settle(&mut self, now: Instant) {
        let lasted = self.connected_at.take().map(|since| now.saturating_duration_since(since));
        if lasted.is_some_and(|lasted| lasted >= self.options.good_after) {
            self.curve.reset();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ceilings(retry: &mut Retry, now: Instant, count: usize) -> Vec<u64> {
        (0..count).map(|_| retry.failed(now, 1.0).as_millis() as u64).collect()
    }

    #[test]
    fn ceiling_doubles_from_one_second_to_one_minute() {
        let mut retry = Retry::new(RetryOptions::default());
        let waits = ceilings(&mut retry, Instant::now(), 8);
        assert_eq!(waits, [1000, 2000, 4000, 8000, 16000, 32000, 60000, 60000]);
    }

    #[test]
    fn jitter_covers_the_whole_interval() {
        let now = Instant::now();
        for (random, expected) in [(0.0, 0), (0.25, 250), (0.5, 500), (1.0, 1000)] {
            let wait = Retry::new(RetryOptions::default()).failed(now, random);
            assert_eq!(wait.as_millis(), expected, "{random}");
        }
    }

    #[test]
    fn only_a_long_connection_resets_the_curve() {
        let start = Instant::now();
        let mut retry = Retry::new(RetryOptions::default());
        ceilings(&mut retry, start, 3);
        retry.connected(start);
        let short = start + Duration::from_secs(59);
        assert_eq!(retry.failed(short, 1.0).as_secs(), 8);
        retry.connected(short);
        assert_eq!(retry.failed(short + Duration::from_secs(60), 1.0).as_secs(), 1);
    }

    #[test]
    fn failed_attempts_never_reset_the_curve() {
        let start = Instant::now();
        let mut retry = Retry::new(RetryOptions::default());
        retry.connected(start);
        retry.failed(start, 1.0);
        assert_eq!(retry.failed(start + Duration::from_secs(3600), 1.0).as_secs(), 2);
    }

    #[test]
    fn takeover_delays_the_retry_for_minutes() {
        let mut retry = Retry::new(RetryOptions::default());
        assert_eq!(retry.taken_over(Instant::now(), 0.0).as_secs(), 300);
        assert_eq!(retry.taken_over(Instant::now(), 1.0).as_secs(), 450);
    }

    #[test]
    fn first_delay_is_limited_by_the_longest() {
        let options = RetryOptions {
            first: Duration::from_secs(9),
            most: Duration::from_secs(3),
            ..Default::default()
        };
        let mut retry = Retry::new(options);
        assert_eq!(retry.failed(Instant::now(), 1.0).as_secs(), 3);
    }
}
