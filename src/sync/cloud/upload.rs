//! Leases and the outbox of a node: only of the session of now, one frame at a time.

use crate::sync::timing::Now;
use crate::sync::upload::{Lease, Refused, Taken, Upload};

use super::CloudMachine;

impl CloudMachine {
    /// Whether the cloud knows of the Node; if not, the next Welcome asks for it.
    pub fn set_registered(&mut self, _registered: bool) {
        todo!()
    }

    pub(super) fn lease(&mut self, _now: Now, _lease: Lease) {
        todo!()
    }

    pub(super) fn upload(&mut self, _now: Now, _upload: Upload) {
        todo!()
    }

    /// The effects of an upload are stored: the numbers after it, and what was refused of it; or they could
    /// not be, then nothing is confirmed and the node sends it again.
    pub fn taken(&mut self, _now: Now, _token: u64, _result: Option<(Taken, Vec<Refused>)>) {
        todo!()
    }
}
