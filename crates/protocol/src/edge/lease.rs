//! The renewal schedule of the Lease: at once after the Welcome, then every interval less jitter.
//!
//! Only the latest renewal matters: an unsent one is replaced, and none survives the connection.

use std::time::Duration;

use crate::timing::Now;
use crate::upload::Lease;

use super::types::EdgeConfig;

/// The factor by which the Lease is renewed less often, and valid longer, in frugal mode.
const FRUGAL_FACTOR: u32 = 6;

/// The renewal timer and the unsent frame.
#[derive(Debug, Default)]
pub(super) struct Renewal {
    /// The time of the last request and the random number for the next jitter.
    last: Option<(Now, u64)>,
    /// The frame that has not left yet.
    frame: Option<Lease>,
}

impl Renewal {
    /// Records a request and schedules the next one.
    pub(super) fn request(&mut self, now: Now, random: u64) {
        self.last = Some((now, random));
    }

    /// Stores the frame of a renewal. `lease` has everything but its duration.
    pub(super) fn renew(&mut self, config: &EdgeConfig, is_frugal: bool, lease: Lease) {
        let duration = config.lease_duration.saturating_mul(factor(is_frugal));
        let seconds = u32::try_from(duration.as_millis().div_ceil(1000)).unwrap_or(u32::MAX);
        self.frame = Some(Lease { seconds, ..lease });
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

    pub(super) fn next_frame(&mut self) -> Option<Lease> {
        self.frame.take()
    }
}

fn factor(is_frugal: bool) -> u32 {
    if is_frugal { FRUGAL_FACTOR } else { 1 }
}
