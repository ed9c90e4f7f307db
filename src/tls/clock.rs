//! The time that certificates are checked against.
//!
//! The system's clock counts unless it cannot be right: it is before a time that has certainly passed (the floor: when
//! the program was built, when the CA or the own certificate was made, when the database was written last). Then
//! nobody here can tell whether a certificate has expired: a certificate is checked at the later of the floor and its
//! own beginning, so only one that had ended before the floor is refused. Whoever answers must still have a key that
//! the CA vouches for.

use jiff::Timestamp;

/// When this program was built, at the latest: no clock that is right shows less.
pub const BUILT: &str = "2026-11-01T00:00:00Z";

/// The time and how far it can be believed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
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
        todo!()
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
        todo!()
    }
}
