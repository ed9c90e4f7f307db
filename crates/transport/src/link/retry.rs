//! When to try again: full-jitter exponential backoff. Pure: time and randomness come in as arguments.
//!
//! The curve is the `backoff` crate's, and only this module names it. Its own jitter is switched off,
//! because it draws from a global generator: the caller's random number scales the curve instead, from
//! nothing to all of it, so that nodes that lost one broker together do not come back together.

use std::time::{Duration, Instant};

use backoff::SystemClock;
use backoff::backoff::Backoff;
use backoff::exponential::{ExponentialBackoff, ExponentialBackoffBuilder};

/// How long to wait between attempts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RetryOptions {
    /// The longest wait after the first failure.
    pub first: Duration,
    /// The longest wait after many failures.
    pub most: Duration,
    /// How long a connection must have lasted before its failure counts as a first one again.
    pub good_after: Duration,
    /// How long to leave the field to another client that took the session over; up to half of it is
    /// added at random.
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

/// The state of the backoff of one link.
pub struct Retry {
    options: RetryOptions,
    curve: ExponentialBackoff<SystemClock>,
    connected_at: Option<Instant>,
}

impl Retry {
    /// Starts at the first step of the curve.
    #[must_use]
    pub fn new(options: RetryOptions) -> Self {
        let curve = ExponentialBackoffBuilder::<SystemClock>::new()
            .with_initial_interval(options.first)
            .with_max_interval(options.most.max(options.first))
            .with_multiplier(2.0)
            .with_randomization_factor(0.0)
            // The crate gives up after 15 minutes unless told otherwise; a link never does.
            .with_max_elapsed_time(None)
            .build();
        Self { options, curve, connected_at: None }
    }

    /// Notes that a connection is usable from `now` on.
    pub fn connected(&mut self, now: Instant) {
        self.connected_at = Some(now);
    }

    /// How long to wait after a failure at `now`; `random` is in `[0, 1)`.
    pub fn failed(&mut self, now: Instant, random: f64) -> Duration {
        self.settle(now);
        // Without a limit on the elapsed time the crate always has a next interval.
        let longest = self.curve.next_backoff().unwrap_or(self.options.most).min(self.options.most);
        longest.mul_f64(random.clamp(0.0, 1.0))
    }

    /// How long to wait after another client took the session over; `random` is in `[0, 1)`.
    pub fn taken_over(&mut self, now: Instant, random: f64) -> Duration {
        self.settle(now);
        self.options.taken_over.mul_f64(1.0 + random.clamp(0.0, 1.0) / 2.0)
    }

    /// Starts the curve again if the connection that just ended had been good for long enough.
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
    fn the_longest_wait_doubles_from_one_second_to_a_minute_and_stays_there() {
        let mut retry = Retry::new(RetryOptions::default());
        let waits = ceilings(&mut retry, Instant::now(), 8);
        assert_eq!(waits, [1000, 2000, 4000, 8000, 16000, 32000, 60000, 60000]);
    }

    #[test]
    fn the_jitter_reaches_from_nothing_to_all_of_the_wait() {
        let now = Instant::now();
        for (random, expected) in [(0.0, 0), (0.25, 250), (0.5, 500), (1.0, 1000)] {
            let wait = Retry::new(RetryOptions::default()).failed(now, random);
            assert_eq!(wait.as_millis(), expected, "{random}");
        }
    }

    #[test]
    fn a_short_connection_does_not_start_the_curve_again_and_a_good_one_does() {
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
    fn failed_attempts_without_a_connection_never_start_the_curve_again() {
        let start = Instant::now();
        let mut retry = Retry::new(RetryOptions::default());
        retry.connected(start);
        retry.failed(start, 1.0);
        assert_eq!(retry.failed(start + Duration::from_secs(3600), 1.0).as_secs(), 2);
    }

    #[test]
    fn a_session_taken_over_waits_for_minutes() {
        let mut retry = Retry::new(RetryOptions::default());
        assert_eq!(retry.taken_over(Instant::now(), 0.0).as_secs(), 300);
        assert_eq!(retry.taken_over(Instant::now(), 1.0).as_secs(), 450);
    }

    #[test]
    fn a_first_wait_above_the_longest_is_cut() {
        let options = RetryOptions {
            first: Duration::from_secs(9),
            most: Duration::from_secs(3),
            ..Default::default()
        };
        let mut retry = Retry::new(options);
        assert_eq!(retry.failed(Instant::now(), 1.0).as_secs(), 3);
    }
}
