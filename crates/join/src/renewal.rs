//! Schedule and execution of certificate renewals.
//!
//! A certificate is renewed between 70 and 90 % of its lifetime, at a random time, so that nodes
//! enrolled in one hour do not renew in one. Failed attempts are repeated with growing delays, at
//! most a tenth of the lifetime or an hour. They continue after the certificate has expired,
//! because the cloud accepts an expired one for renewals for a while (`enrollment.renewal_grace`).

use std::time::Duration;

use jiff::Timestamp;

use super::calls::{self, CallError, Credential, JoinService};
use edgesync_transport::tls::{Certificate, Client, Clock, Identity, Key, Trust};

/// Earliest renewal, as a share of the lifetime.
const EARLIEST: f64 = 0.7;
/// Range of the random delay after it, as a share of the lifetime.
const SPREAD: f64 = 0.2;
/// Longest delay between attempts.
const MAX_DELAY: Duration = Duration::from_secs(3600);
/// Number of doublings from the shortest to the longest delay.
const STEPS: u32 = 6;
/// Interval at which an implausible clock is checked.
const IMPLAUSIBLE_CLOCK_WAIT: Duration = Duration::from_secs(60);
/// Longest single wait: clocks are set, and machines sleep.
const MAX_WAIT: Duration = Duration::from_secs(3600);

/// Schedule of a certificate's renewal. The caller repeatedly waits for [`Schedule::wait`] and
/// then, if [`Schedule::is_due`], tries.
#[derive(Clone, Debug, PartialEq)]
pub struct Schedule {
    renew_at: Timestamp,
    not_before: Timestamp,
    not_after: Timestamp,
    failures: u32,
}

/// Remaining validity of a certificate, for conditions and Events.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Validity {
    /// More than a tenth of the lifetime is left.
    Good,
    /// Less than a tenth is left: renewals have failed for a while.
    Tight,
    /// The certificate has expired.
    Expired,
    /// The clock is before the start of the certificate or otherwise implausible.
    Unknown,
}

impl Schedule {
    /// Draws the renewal time of a certificate; `random` is in `[0, 1)`.
    #[must_use]
    pub fn new(certificate: &Certificate, random: f64) -> Self {
        Self::between(certificate.not_before(), certificate.not_after(), random)
    }

    fn between(not_before: Timestamp, not_after: Timestamp, random: f64) -> Self {
        let share = EARLIEST + SPREAD * random.clamp(0.0, 1.0);
        let after = lifetime(not_before, not_after).mul_f64(share);
        let renew_at = not_before.checked_add(after).unwrap_or(not_after);
        Self { renew_at, not_before, not_after, failures: 0 }
    }

    /// Returns the wait until the next check of [`Schedule::is_due`]; zero if the first attempt is
    /// due. After failures it is the delay before the next attempt, spread by `random` in `[0, 1)`.
    /// At most an hour, and at most a minute with an implausible clock.
    #[must_use]
    pub fn wait(&self, clock: &Clock, random: f64) -> Duration {
        if !self.is_plausible(clock) {
            return IMPLAUSIBLE_CLOCK_WAIT;
        }
        let left = until(clock.now(), self.renew_at);
        match (left.is_zero(), self.failures) {
            (false, _) => left.min(MAX_WAIT),
            (true, 0) => Duration::ZERO,
            (true, failures) => self.pause(failures, random),
        }
    }

    /// Returns whether the renewal is due; never with an implausible clock.
    #[must_use]
    pub fn is_due(&self, clock: &Clock) -> bool {
        self.is_plausible(clock) && clock.now() >= self.renew_at
    }

    /// Returns the delay after a number of failures: between half and all of a limit that doubles.
    fn pause(&self, failures: u32, random: f64) -> Duration {
        let most = (lifetime(self.not_before, self.not_after) / 10).min(MAX_DELAY);
        let limit = most / (1 << STEPS.saturating_sub(failures.saturating_sub(1)));
        limit.mul_f64(0.5 + random.clamp(0.0, 1.0) / 2.0)
    }

    fn is_plausible(&self, clock: &Clock) -> bool {
        clock.is_plausible() && clock.now() >= self.not_before
    }

    /// Records a failed attempt.
    pub fn failed(&mut self) {
        self.failures = self.failures.saturating_add(1);
    }

    /// Returns the time of the planned renewal.
    #[must_use]
    pub fn planned(&self) -> Timestamp {
        self.renew_at
    }

    /// Returns the remaining validity.
    #[must_use]
    pub fn validity(&self, clock: &Clock) -> Validity {
        let left = until(clock.now(), self.not_after);
        if !self.is_plausible(clock) {
            Validity::Unknown
        } else if left.is_zero() {
            Validity::Expired
        } else if left < lifetime(self.not_before, self.not_after) / 10 {
            Validity::Tight
        } else {
            Validity::Good
        }
    }
}

fn lifetime(not_before: Timestamp, not_after: Timestamp) -> Duration {
    until(not_before, not_after)
}

/// Returns the time from one moment to a later one; zero if it is not later.
fn until(from: Timestamp, to: Timestamp) -> Duration {
    Duration::try_from(to.duration_since(from)).unwrap_or_default()
}

/// Generates a key, requests its certificate, and verifies it by one call. Writes and replaces
/// nothing but the last good address of the service.
///
/// # Errors
/// See [`CallError`].
pub async fn renew(
    service: &JoinService,
    trust: &Trust,
    current: &Identity,
    node: &str,
    clock: Clock,
) -> Result<Identity, CallError> {
    let key = Key::generate().map_err(CallError::Local)?;
    let request = key.node_request(node).map_err(CallError::Local)?;
    let tls = Client::new(trust, Some(current), clock).map_err(CallError::Local)?;
    let certificate =
        calls::fetch_certificate(service, &tls, trust, node, &request, Credential::Certificate).await?;
    let identity = Identity::new("response of the join service", vec![certificate], key);
    let identity = identity.map_err(CallError::Local)?;
    let tls = Client::new(trust, Some(&identity), clock).map_err(CallError::Local)?;
    // A CloudCore does not know this call; its answer proves the certificate nevertheless.
    calls::fetch_membership(service, &tls).await?;
    service.worked();
    Ok(identity)
}

#[cfg(test)]
mod tests;
