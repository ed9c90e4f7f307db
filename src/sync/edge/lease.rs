//! When the Lease is renewed: at once after the Welcome, then every interval less a random part.

use crate::sync::timing::Now;

use super::EdgeMachine;

impl EdgeMachine {
    /// The Lease is renewed with these times of the clock (Unix, microseconds); the answer to
    /// [`super::EdgeEffect::RenewLease`]. `random` spreads the next renewal.
    pub fn renew(&mut self, _now: Now, _acquired: i64, _renewed: i64, _random: u64) {
        todo!()
    }
}
