//! When a certificate is renewed, and how.
//!
//! Between 70 and 90 % of its lifetime, at a time that is drawn at random for each certificate, so that a fleet that
//! joined in one hour does not renew in one. A failed attempt is repeated with growing waits, at most a tenth of the
//! lifetime or an hour apart; also after the certificate has expired, because the cloud takes an expired one for
//! renewals for a while (`pairing.renewal_grace`).

use std::time::Duration;

use jiff::Timestamp;

use super::calls::{self, CallError, Credential};
use edgesync_config::JoinUrl;
use edgesync_transport::tls::{Certificate, Client, Clock, Identity, Key, Trust};

/// The share of its lifetime after which a certificate is renewed at the earliest.
const EARLIEST: f64 = 0.7;
/// How much later at most.
const SPREAD: f64 = 0.2;
/// The longest wait between attempts.
const MOST_BETWEEN: Duration = Duration::from_secs(3600);
/// How many times longer than the first wait the longest is.
const STEPS: u32 = 6;
/// How soon a clock that cannot be right is looked at again.
const DOUBTFUL: Duration = Duration::from_secs(60);
/// How long one wait is at most: clocks are set, and machines sleep.
const LOOK_AGAIN: Duration = Duration::from_secs(3600);

/// When the next attempt is due. Whoever renews waits for [`Schedule::wait`] and then, if [`Schedule::is_due`], tries;
/// again and again.
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
        Self::between(certificate.not_before(), certificate.not_after(), random)
    }

    fn between(not_before: Timestamp, not_after: Timestamp, random: f64) -> Self {
        let share = EARLIEST + SPREAD * random.clamp(0.0, 1.0);
        let after = lifetime(not_before, not_after).mul_f64(share);
        let renew_at = not_before.checked_add(after).unwrap_or(not_after);
        Self { renew_at, not_before, not_after, failures: 0 }
    }

    /// How long to wait from now until the next look at [`Schedule::is_due`]; zero if the first attempt is due. After
    /// failures it is the wait before the next attempt; `random`, in `[0, 1)`, spreads it. Never more than an hour, and
    /// with a clock that cannot be right never more than a minute.
    #[must_use]
    pub fn wait(&self, clock: &Clock, random: f64) -> Duration {
        if !self.can_be_right(clock) {
            return DOUBTFUL;
        }
        let left = until(clock.now(), self.renew_at);
        match (left.is_zero(), self.failures) {
            (false, _) => left.min(LOOK_AGAIN),
            (true, 0) => Duration::ZERO,
            (true, failures) => self.pause(failures, random),
        }
    }

    /// Whether it is time to renew. A clock that cannot be right does not know.
    #[must_use]
    pub fn is_due(&self, clock: &Clock) -> bool {
        self.can_be_right(clock) && clock.now() >= self.renew_at
    }

    /// The wait after so many failures: between half and all of a limit that doubles.
    fn pause(&self, failures: u32, random: f64) -> Duration {
        let most = (lifetime(self.not_before, self.not_after) / 10).min(MOST_BETWEEN);
        let limit = most / (1 << STEPS.saturating_sub(failures.saturating_sub(1)));
        limit.mul_f64(0.5 + random.clamp(0.0, 1.0) / 2.0)
    }

    fn can_be_right(&self, clock: &Clock) -> bool {
        clock.is_plausible() && clock.now() >= self.not_before
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
        let left = until(clock.now(), self.not_after);
        if !self.can_be_right(clock) {
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

/// The time from one moment to a later one; zero if it is not later.
fn until(from: Timestamp, to: Timestamp) -> Duration {
    Duration::try_from(to.duration_since(from)).unwrap_or_default()
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
    let key = Key::generate().map_err(CallError::Local)?;
    let request = key.node_request(node).map_err(CallError::Local)?;
    let tls = Client::new(trust, Some(current), clock).map_err(CallError::Local)?;
    let certificate =
        calls::fetch_certificate(url, &tls, trust, node, &request, Credential::Certificate).await?;
    let identity = Identity::new("the answer of the join service", vec![certificate], key);
    let identity = identity.map_err(CallError::Local)?;
    let tls = Client::new(trust, Some(&identity), clock).map_err(CallError::Local)?;
    // A CloudCore does not know this call; that it answers proves the certificate all the same.
    calls::fetch_membership(url, &tls).await?;
    Ok(identity)
}

#[cfg(test)]
mod tests;
