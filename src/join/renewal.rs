//! When a certificate is renewed, and how.
//!
//! Between 70 and 90 % of its lifetime, at a time that is drawn at random for each certificate, so that a fleet that
//! joined in one hour does not renew in one. A failed attempt is repeated with growing waits, at most a tenth of the
//! lifetime or an hour apart; also after the certificate has expired, because the cloud takes an expired one for
//! renewals for a while (`pairing.renewal_grace`).

use std::time::Duration;

use jiff::Timestamp;

use super::calls::CallError;
use crate::config::JoinUrl;
use crate::tls::{Certificate, Client, Clock, Identity, Trust};

/// When the next attempt is due.
#[derive(Clone, Debug, PartialEq)]
pub struct Schedule {
    renew_at: Timestamp,
    not_before: Timestamp,
    not_after: Timestamp,
    failures: u32,
}

/// How long a certificate is still good, in words for conditions and Events.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Validity {
    /// More than a tenth of its lifetime is left.
    Good,
    /// Less than a tenth is left: renewing has failed for a while.
    Tight,
    /// It has expired.
    Expired,
    /// The clock shows a time before the certificate was made: nobody can tell.
    Unknown,
}

impl Schedule {
    /// Draws the time for a certificate; `random` is in `[0, 1)`.
    #[must_use]
    pub fn new(certificate: &Certificate, random: f64) -> Self {
        todo!()
    }

    /// How long to wait from `now` for the next attempt; zero if it is due. A clock that cannot be right waits for at
    /// most a minute at a time, to look again.
    #[must_use]
    pub fn wait(&self, clock: &Clock, random: f64) -> Duration {
        todo!()
    }

    /// An attempt has failed.
    pub fn failed(&mut self) {
        self.failures = self.failures.saturating_add(1);
    }

    /// When renewal was planned.
    #[must_use]
    pub fn planned(&self) -> Timestamp {
        self.renew_at
    }

    /// How long it is still good.
    #[must_use]
    pub fn validity(&self, clock: &Clock) -> Validity {
        todo!()
    }
}

/// Makes a new key, has the cloud certify it, and proves it by one call with it. Nothing is written or replaced.
///
/// # Errors
/// See [`CallError`].
pub async fn renew(
    url: &JoinUrl,
    trust: &Trust,
    current: &Identity,
    node: &str,
    clock: Clock,
) -> Result<Identity, CallError> {
    todo!()
}
