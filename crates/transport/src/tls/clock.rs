//! The time at which certificates are verified.
//!
//! The system's clock counts unless it is certainly wrong: before the floor, a time that has passed
//! (when the program was built, when the CA or the own certificate was issued, when the database
//! was last written). With a wrong clock, expiry cannot be checked. A certificate is then verified
//! at the later of the floor and its own start, so only one that ended before the floor is refused.
//! The peer must still have a key that the CA vouches for.

use std::time::Duration;

use jiff::Timestamp;
use rustls::pki_types::UnixTime;
use rustls::time_provider::TimeProvider;

/// Latest time at which this program was built: no correct clock shows an earlier one.
pub const BUILT: &str = "2026-11-01T00:00:00Z";

/// A clock and the earliest time it can correctly show.
#[derive(Clone, Copy, Debug)]
pub struct Clock {
    floor: Timestamp,
    source: fn() -> Timestamp,
}

impl Clock {
    /// Returns the system's clock. Times that have certainly passed raise the floor above
    /// [`BUILT`].
    #[must_use]
    pub fn system(passed: impl IntoIterator<Item = Timestamp>) -> Self {
        Self::of(Timestamp::now, passed)
    }

    /// Returns a clock with another source, for tests.
    #[must_use]
    pub fn of(source: fn() -> Timestamp, passed: impl IntoIterator<Item = Timestamp>) -> Self {
        let built = BUILT.parse().unwrap_or(Timestamp::UNIX_EPOCH);
        Self { floor: passed.into_iter().fold(built, Timestamp::max), source }
    }

    /// Returns the time of the source.
    #[must_use]
    pub fn now(&self) -> Timestamp {
        (self.source)()
    }

    /// Returns whether the source's time can be right.
    #[must_use]
    pub fn is_plausible(&self) -> bool {
        self.now() >= self.floor
    }

    /// Returns the time at which a certificate valid from `not_before` is verified.
    #[must_use]
    pub fn checking(&self, not_before: Timestamp) -> Timestamp {
        let now = self.now();
        if now >= self.floor { now } else { self.floor.max(not_before) }
    }
}

/// Gives rustls the same clock, for the age of sessions.
impl TimeProvider for Clock {
    fn current_time(&self) -> Option<UnixTime> {
        Some(unix(self.now()))
    }
}

/// Converts a time for rustls; earlier times become 1970.
pub(super) fn unix(time: Timestamp) -> UnixTime {
    UnixTime::since_unix_epoch(Duration::from_secs(u64::try_from(time.as_second()).unwrap_or(0)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(text: &str) -> Timestamp {
        text.parse().unwrap()
    }

    fn in_1970() -> Timestamp {
        at("1970-01-01T00:01:00Z")
    }

    fn in_2031() -> Timestamp {
        at("2031-05-01T00:00:00Z")
    }

    #[test]
    fn build_time_is_valid() {
        assert!(at(BUILT) > at("2026-01-01T00:00:00Z"));
    }

    #[test]
    fn plausible_clock_is_used() {
        let clock = Clock::of(in_2031, [at("2030-01-01T00:00:00Z")]);
        assert!(clock.is_plausible());
        assert_eq!(clock.checking(at("2040-01-01T00:00:00Z")), in_2031());
        assert_eq!(clock.checking(at("2000-01-01T00:00:00Z")), in_2031());
    }

    #[test]
    fn clock_before_the_floor_is_not_used() {
        let clock = Clock::of(in_1970, []);
        assert!(!clock.is_plausible());
        assert_eq!(clock.now(), in_1970());
        assert_eq!(clock.checking(at("2020-01-01T00:00:00Z")), at(BUILT));
        assert_eq!(clock.checking(at("2028-01-01T00:00:00Z")), at("2028-01-01T00:00:00Z"));
    }

    #[test]
    fn passed_times_raise_the_floor_and_never_lower_it() {
        let later = at("2032-01-01T00:00:00Z");
        let clock = Clock::of(in_2031, [at("2001-01-01T00:00:00Z"), later, at("2030-01-01T00:00:00Z")]);
        assert!(!clock.is_plausible());
        assert_eq!(clock.checking(at("2020-01-01T00:00:00Z")), later);
        assert!(Clock::of(in_2031, [at("2001-01-01T00:00:00Z")]).is_plausible());
    }

    #[test]
    fn times_before_1970_become_1970() {
        assert_eq!(unix(at("1960-01-01T00:00:00Z")).as_secs(), 0);
        assert_eq!(unix(in_1970()).as_secs(), 60);
    }
}
