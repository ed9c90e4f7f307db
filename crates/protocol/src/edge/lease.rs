//! When the Lease is renewed: at once after the Welcome, then every interval less a random part. Only the latest
//! renewal matters: one that has not left is replaced, and none survives the connection.

use std::time::Duration;

use crate::frame::Up;
use crate::timing::Now;
use crate::upload::Lease;

use super::{EdgeEffect, EdgeMachine, Phase};

/// How many times less often the Lease is renewed, and longer it is good, while bytes are saved.
const FRUGAL_FACTOR: u32 = 6;

#[derive(Debug, Default)]
pub(super) struct Renewal {
    /// When it was asked for last, and the random number that spreads the next time.
    last: Option<(Now, u64)>,
    /// The frame that has not left yet.
    frame: Option<Lease>,
}

impl EdgeMachine {
    /// The Lease is renewed with these times of the clock (Unix, microseconds); the answer to
    /// [`super::EdgeEffect::RenewLease`]. `random` spreads the next renewal.
    pub fn renew(&mut self, now: Now, acquired: i64, renewed: i64, random: u64) {
        let Phase::Live { session, .. } = &self.phase else { return };
        let duration = self.config.lease_duration.saturating_mul(self.lease_factor());
        let seconds = u32::try_from(duration.as_millis().div_ceil(1000)).unwrap_or(u32::MAX);
        self.renewal.frame = Some(Lease { session: session.clone(), seconds, acquired, renewed });
        self.renewal.last = Some((now, random));
    }

    fn lease_factor(&self) -> u32 {
        if self.is_frugal() { FRUGAL_FACTOR } else { 1 }
    }

    /// The cloud has welcomed the node.
    pub(super) fn begin_lease(&mut self, now: Now, random: u64) {
        self.renewal.last = Some((now, random));
        self.effects.push_back(EdgeEffect::RenewLease);
    }

    pub(super) fn forget_lease(&mut self) {
        self.renewal = Renewal::default();
    }

    pub(super) fn lease_deadline(&self) -> Option<Now> {
        let (last, random) = self.renewal.last?;
        let interval = self.config.lease_interval.saturating_mul(self.lease_factor());
        let spread = u64::try_from(interval.as_micros() / 10).unwrap_or(u64::MAX).max(1);
        Some(last + interval.saturating_sub(Duration::from_micros(random % spread)))
    }

    pub(super) fn tick_lease(&mut self, now: Now, random: u64) {
        if self.lease_deadline().is_some_and(|due| due <= now) {
            self.begin_lease(now, random);
        }
    }

    pub(super) fn has_lease(&self) -> bool {
        self.renewal.frame.is_some()
    }

    pub(super) fn next_lease(&mut self) -> Option<Up> {
        let lease = self.renewal.frame.take()?;
        self.counters.leases += 1;
        Some(Up::Lease(lease))
    }
}
