//! The renewal schedule of the Lease: with the Hello or at once after the Welcome, then every
//! interval less jitter.
//!
//! Only the latest renewal matters: an unsent one is replaced, and none survives the connection. A
//! cloud side that understands it gets the terms once per session, and short frames that repeat
//! them.

use std::time::Duration;

#[cfg(any(test, feature = "simulation"))]
use crate::fault::{Fault, planted};
use crate::frame::Up;
use crate::renewal::Lease;
use crate::renewal::{CheckIn, Feature, LeaseTerms, Renew};
use crate::timing::Now;

use super::types::EdgeConfig;

/// The factor by which the Lease is renewed less often, and valid longer, in frugal mode.
const FRUGAL_FACTOR: u32 = 6;

/// The renewal timer, the unsent frame, and the terms that the cloud side knows.
#[derive(Debug, Default)]
pub(super) struct Renewal {
    /// The time of the last request and the random number for the next jitter.
    last: Option<(Now, u64)>,
    /// The frame that has not left yet.
    frame: Option<Lease>,
    /// The terms in the Hello of this session.
    offered: Option<LeaseTerms>,
    /// The terms of the last renewal in full; `None` if the cloud side understands no short one.
    known: Option<LeaseTerms>,
    /// Whether the cloud side understands short renewals.
    is_short: bool,
    /// The absence to announce with the next renewal.
    check_in: Option<CheckIn>,
}

impl Renewal {
    /// Returns the terms for a Hello, and remembers them as stated in it.
    pub(super) fn offer(
        &mut self,
        config: &EdgeConfig,
        is_frugal: bool,
        acquired: Option<i64>,
    ) -> Option<LeaseTerms> {
        self.offered = acquired.map(|acquired| LeaseTerms { seconds: seconds(config, is_frugal), acquired });
        self.offered
    }

    /// Handles the features in a Welcome. Returns whether the Hello has renewed the Lease.
    pub(super) fn welcomed(&mut self, features: &[Feature]) -> bool {
        self.is_short = features.contains(&Feature::Renew);
        self.known = self.offered.take().filter(|_| self.is_short);
        self.known.is_some()
    }

    /// Records a request and schedules the next one.
    pub(super) fn request(&mut self, now: Now, random: u64) {
        self.last = Some((now, random));
    }

    /// Sets the absence to announce with the next renewal.
    pub(super) fn announce(&mut self, check_in: CheckIn) {
        self.check_in = Some(check_in);
    }

    /// Stores the frame of a renewal. `lease` has everything but its duration and its plan.
    pub(super) fn renew(&mut self, config: &EdgeConfig, is_frugal: bool, lease: Lease) {
        let check_in = self.check_in.take();
        self.frame = Some(Lease { seconds: seconds(config, is_frugal), check_in, ..lease });
    }

    /// Returns when the next renewal is due.
    pub(super) fn deadline(&self, config: &EdgeConfig, is_frugal: bool) -> Option<Now> {
        let (last, random) = self.last?;
        let interval = config.lease_interval.saturating_mul(factor(is_frugal));
        let spread = u64::try_from(interval.as_micros() / 10).unwrap_or(u64::MAX).max(1);
        Some(last + interval.saturating_sub(Duration::from_micros(random % spread)))
    }

    pub(super) fn has_frame(&self) -> bool {
        self.frame.is_some()
    }

    pub(super) fn next_frame(&mut self) -> Option<Up> {
        let lease = self.frame.take()?;
        let terms = LeaseTerms { seconds: lease.seconds, acquired: lease.acquired };
        let is_known = self.known == Some(terms) && lease.check_in.is_none();
        #[cfg(any(test, feature = "simulation"))]
        let is_known = is_known || planted(Fault::ShortWithoutTerms);
        if is_known {
            return Some(Up::Renew(Renew { session: lease.session }));
        }
        self.known = Some(terms).filter(|_| self.is_short);
        Some(Up::Lease(lease))
    }
}

/// Returns the duration of the Lease without renewal, in seconds.
fn seconds(config: &EdgeConfig, is_frugal: bool) -> u32 {
    let duration = config.lease_duration.saturating_mul(factor(is_frugal));
    u32::try_from(duration.as_millis().div_ceil(1000)).unwrap_or(u32::MAX)
}

fn factor(is_frugal: bool) -> u32 {
    if is_frugal { FRUGAL_FACTOR } else { 1 }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn renewals_are_spread_over_the_last_tenth_of_the_interval() {
        let config = EdgeConfig::of_tests("edge", 1024, 60_000);
        for is_frugal in [false, true] {
            let interval = config.lease_interval * factor(is_frugal);
            let due = |random| {
                let mut renewal = Renewal::default();
                assert_eq!(renewal.deadline(&config, is_frugal), None);
                renewal.request(Duration::from_secs(5), random);
                renewal.deadline(&config, is_frugal).unwrap() - Duration::from_secs(5)
            };
            let tenth = u64::try_from((interval / 10).as_micros()).unwrap();
            assert_eq!(due(0), interval);
            assert_eq!(due(tenth - 1), interval - interval / 10 + Duration::from_micros(1));
            assert_eq!(due(tenth), interval);
        }
    }
}
