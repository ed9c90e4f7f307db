//! The time that certificates are checked against.
//!
//! The system's clock counts unless it cannot be right: it is before a time that has certainly passed (the floor: when
//! the program was built, when the CA or the own certificate was made, when the database was written last). Then
//! nobody here can tell whether a certificate has expired: a certificate is checked at the later of the floor and its
//! own beginning, so only one that had ended before the floor is refused. Whoever answers must still have a key that
//! the CA vouches for.

use std::time::Duration;

use jiff::Timestamp;
use rustls::pki_types::UnixTime;
use rustls::time_provider::TimeProvider;

/// When this program was built, at the latest: no clock that is right shows less.
pub const BUILT: &str = "2026-11-01T00:00:00Z";

/// The time and how far it can be believed.
#[derive(Clone, Copy, Debug)]
pub struct Clock {
    floor: Timestamp,
    source: fn() -> Timestamp,
}

impl Clock {
    /// The system's clock. Times that have certainly passed raise the floor above [`BUILT`].
    #[must_use]
    pub fn system(passed: impl IntoIterator<Item = Timestamp>) -> Self {
        Self::of(Timestamp::now, passed)
    }

    /// Another source, for tests.
    #[must_use]
    pub fn of(source: fn() -> Timestamp, passed: impl IntoIterator<Item = Timestamp>) -> Self {
        let built = BUILT.parse().unwrap_or(Timestamp::UNIX_EPOCH);
        Self { floor: passed.into_iter().fold(built, Timestamp::max), source }
    }

    /// The source's time.
    #[must_use]
    pub fn now(&self) -> Timestamp {
        (self.source)()
    }

    /// Whether the source's time can be right.
    #[must_use]
    pub fn is_plausible(&self) -> bool {
        self.now() >= self.floor
    }

    /// The time at which a certificate that is valid from `not_before` is checked.
    #[must_use]
    pub fn checking(&self, not_before: Timestamp) -> Timestamp {
        let now = self.now();
        if now >= self.floor { now } else { self.floor.max(not_before) }
    }
}

/// rustls asks the same clock, for the age of sessions.
impl TimeProvider for Clock {
    fn current_time(&self) -> Option<UnixTime> {
        Some(unix(self.now()))
    }
}

/// As rustls has it: there is nothing before 1970.
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
    fn the_time_of_the_build_is_one() {
        assert!(at(BUILT) > at("2026-01-01T00:00:00Z"));
    }

    #[test]
    fn a_clock_that_can_be_right_counts() {
        let clock = Clock::of(in_2031, [at("2030-01-01T00:00:00Z")]);
        assert!(clock.is_plausible());
        assert_eq!(clock.checking(at("2040-01-01T00:00:00Z")), in_2031());
        assert_eq!(clock.checking(at("2000-01-01T00:00:00Z")), in_2031());
    }

    #[test]
    fn a_clock_before_the_floor_does_not_count() {
        let clock = Clock::of(in_1970, []);
        assert!(!clock.is_plausible());
        assert_eq!(clock.now(), in_1970());
        assert_eq!(clock.checking(at("2020-01-01T00:00:00Z")), at(BUILT));
        assert_eq!(clock.checking(at("2028-01-01T00:00:00Z")), at("2028-01-01T00:00:00Z"));
    }

    #[test]
    fn what_has_passed_raises_the_floor_and_never_lowers_it() {
        let later = at("2032-01-01T00:00:00Z");
        let clock = Clock::of(in_2031, [at("2001-01-01T00:00:00Z"), later, at("2030-01-01T00:00:00Z")]);
        assert!(!clock.is_plausible());
        assert_eq!(clock.checking(at("2020-01-01T00:00:00Z")), later);
        assert!(Clock::of(in_2031, [at("2001-01-01T00:00:00Z")]).is_plausible());
    }

    #[test]
    fn a_time_before_1970_is_1970_for_the_library() {
        assert_eq!(unix(at("1960-01-01T00:00:00Z")).as_secs(), 0);
        assert_eq!(unix(in_1970()).as_secs(), 60);
    }
}
