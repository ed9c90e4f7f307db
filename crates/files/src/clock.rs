//! Clock of windows and holds: whether the wall clock can be right, and a time that neither a set
//! clock nor a power cut turns back. Pure; the helper reads the clocks and persists the state.
//!
//! A device without a battery for its clock starts in the past. Its clock counts as not known until
//! it is set, or if it starts after the last time that was known.

use serde::{Deserialize, Serialize};

use super::fault::{Fault, planted};

/// Lower bound of the current time, 2026-01-01, in microseconds: a clock before it is wrong.
const RELEASE: i64 = 1_767_225_600_000_000;
/// Difference of both clocks, in microseconds, above which the wall clock counts as set.
const STEP: i64 = 2_000_000;
/// A clock is slewed by less than this part of the time that passes.
const SLEW: i64 = 1_000;

/// Both clocks at one moment.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Reading {
    /// Identity of the boot.
    pub boot: String,
    /// Time since the boot in microseconds, suspended time included.
    pub since_boot: i64,
    /// Wall clock in microseconds since 1970.
    pub wall: i64,
}

/// State of the clocks as of the last reading.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Clock {
    last: Option<Reading>,
    /// Whether the wall clock could be right then.
    known: bool,
    /// Time of the holds in microseconds.
    elapsed: u64,
    /// Last wall clock that could be right, and the time of the holds then.
    mark: Option<(i64, u64)>,
}

impl Clock {
    /// Continues with a reading. While the wall clock is not known, only running time counts; time
    /// without power counts as soon as it is known again. Then returns the time of the holds when
    /// the wall clock was last known, and the time without power since, for
    /// [`Holds::shift`](super::hold::Holds::shift).
    pub fn observe(&mut self, reading: Reading) -> Option<(u64, u64)> {
        let mut unpowered = None;
        let mark = self.mark.map_or(i64::MIN, |(wall, _)| wall);
        let could_be_right = reading.wall >= RELEASE;
        let same_boot = self.last.as_ref().filter(|last| last.boot == reading.boot);
        let was_known = self.known && same_boot.is_some();
        let running = match same_boot {
            Some(last) => {
                let passed = reading.since_boot.saturating_sub(last.since_boot).max(0);
                let step = reading.wall.saturating_sub(last.wall).saturating_sub(passed);
                let is_set = step.saturating_abs() > STEP + passed / SLEW;
                // A clock that was set can be right, also if it is set back: the time before was
                // wrong. One that reaches a time by running stays as wrong as it was.
                self.known = could_be_right && (self.known || is_set);
                passed
            }
            None => {
                self.known = could_be_right && reading.wall >= mark;
                reading.since_boot.max(0)
            }
        };
        let passed = match &self.last {
            Some(last) if planted(Fault::HoldEndsByWallClock) => reading.wall.saturating_sub(last.wall),
            _ => running,
        };
        self.elapsed = self.elapsed.saturating_add_signed(passed);
        if self.known {
            if let Some((wall, elapsed)) = self.mark.filter(|_| !was_known) {
                let passed = reading.wall.saturating_sub(wall).max(0).unsigned_abs();
                let total = self.elapsed.max(elapsed.saturating_add(passed));
                unpowered = Some((elapsed, total.saturating_sub(self.elapsed))).filter(|(_, time)| *time > 0);
                self.elapsed = total;
            }
            self.mark = Some((reading.wall, self.elapsed));
        }
        self.last = Some(reading);
        unpowered
    }

    /// Returns whether the wall clock could be right at the last reading.
    #[must_use]
    pub fn is_known(&self) -> bool {
        self.known
    }

    /// Returns the time of the holds at the last reading, in microseconds. It never decreases.
    #[must_use]
    pub fn elapsed(&self) -> u64 {
        self.elapsed
    }

    /// Returns the last wall clock that could be right, in microseconds since 1970.
    #[must_use]
    pub fn last_known(&self) -> Option<i64> {
        self.mark.map(|(wall, _)| wall)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOUR: i64 = 3_600_000_000;
    const NOW: i64 = RELEASE + 1_000 * HOUR;

    fn reading(boot: &str, since_boot: i64, wall: i64) -> Reading {
        Reading { boot: boot.to_owned(), since_boot, wall }
    }

    fn hours(clock: &Clock) -> i64 {
        i64::try_from(clock.elapsed).unwrap() / HOUR
    }

    #[test]
    fn clock_before_the_last_known_time_is_unknown_until_it_is_set() {
        let mut clock = Clock::default();
        clock.observe(reading("a", HOUR, NOW));
        assert!(clock.is_known());
        // The battery is empty: it starts in 1970, then at a saved time an hour ago.
        for wall in [0, NOW - HOUR] {
            let mut rebooted = clock.clone();
            rebooted.observe(reading("b", HOUR / 60, wall));
            assert!(!rebooted.is_known());
            rebooted.observe(reading("b", 3 * HOUR, wall + 3 * HOUR - HOUR / 60));
            assert!(!rebooted.is_known(), "it ran, and was not set");
            rebooted.observe(reading("b", 3 * HOUR, NOW + 5 * HOUR));
            assert!(rebooted.is_known());
            assert_eq!(hours(&rebooted), 6, "the time without power counts: {rebooted:?}");
        }
        clock.observe(reading("b", HOUR / 60, NOW + 2 * HOUR));
        assert!(clock.is_known());
    }

    #[test]
    fn running_time_counts_however_the_clock_is_set() {
        let mut clock = Clock::default();
        clock.observe(reading("a", 0, NOW));
        for (since_boot, wall) in [(HOUR, NOW + 100 * HOUR), (2 * HOUR, NOW - 100 * HOUR), (3 * HOUR, 5)] {
            clock.observe(reading("a", since_boot, wall));
        }
        assert_eq!((hours(&clock), clock.is_known()), (3, false));
        // A clock that is not known counts no time without power, and its own.
        clock.observe(reading("b", HOUR, 7));
        clock.observe(reading("b", 2 * HOUR, 8));
        assert_eq!(hours(&clock), 5);
    }

    #[test]
    fn time_ahead_that_was_set_back_is_no_lower_bound() {
        let mut clock = Clock::default();
        clock.observe(reading("a", 0, NOW + 10_000 * HOUR));
        clock.observe(reading("a", HOUR, NOW));
        assert!(clock.is_known());
        clock.observe(reading("b", 0, NOW + HOUR));
        assert!(clock.is_known());
        assert_eq!(hours(&clock), 2);
    }

    #[test]
    fn slewed_clock_is_not_a_set_one() {
        let mut clock = Clock::default();
        clock.observe(reading("a", 0, NOW));
        clock.observe(reading("b", 0, NOW - HOUR));
        for hour in 1..10 {
            clock.observe(reading("b", hour * HOUR, NOW - HOUR + hour * (HOUR + HOUR / 1_100)));
            assert!(!clock.is_known());
        }
    }
}
