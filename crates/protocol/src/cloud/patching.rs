//! Decides which objects are sent to the node as patches, and remembers the bases that it refused.

use std::collections::HashMap;
use std::sync::Arc;

use crate::change::Uid;
#[cfg(any(test, feature = "simulation"))]
use crate::fault::{Fault, planted};
use crate::patch::{Patch, Unpatched};
use crate::timing::Now;
use edgesync_object::ResourceVersion;

use super::desired::{Desired, DesiredState};
use super::{CloudMachine, Loaded, PeerLimits};

/// The most bases remembered per session. With more refusals, the session gets no more patches.
const MAX_REFUSED: usize = 256;

/// The bases whose patches the node could not apply in this session, one per object.
#[derive(Debug, Default)]
pub(super) struct RefusedBases {
    bases: HashMap<Uid, ResourceVersion>,
    /// Whether there were more than are remembered.
    is_full: bool,
}

impl RefusedBases {
    fn insert(&mut self, uid: &Uid, base: ResourceVersion) {
        if self.bases.len() < MAX_REFUSED || self.bases.contains_key(uid) {
            self.bases.insert(uid.clone(), base);
        } else {
            (self.is_full, self.bases) = (true, HashMap::new());
        }
    }

    fn contains(&self, uid: &Uid, base: &ResourceVersion) -> bool {
        #[cfg(any(test, feature = "simulation"))]
        if planted(Fault::PatchAgain) {
            return false;
        }
        self.is_full || self.bases.get(uid) == Some(base)
    }
}

impl CloudMachine {
    /// Returns the version that a patch of an object may start from: the recorded one.
    ///
    /// The node's copy is as recorded in almost all cases, and it checks. An object that failed
    /// before is sent as a whole.
    pub(super) fn base_of(
        &self,
        uid: &Uid,
        latest: &Desired,
        limits: PeerLimits,
        desired: &impl DesiredState,
    ) -> Option<ResourceVersion> {
        let takes_patches = limits.patches;
        #[cfg(any(test, feature = "simulation"))]
        let takes_patches = takes_patches || planted(Fault::PatchUnasked);
        if !takes_patches || self.deliveries.is_suspect(uid) {
            return None;
        }
        let record = self.ledger.get(uid, desired)?;
        // The node derives everything but the content from what it holds.
        let is_same = record.version != latest.version && record.object == latest.object;
        let is_usable = is_same && !self.sender.refused_bases.contains(uid, &record.version);
        is_usable.then_some(record.version)
    }

    /// Returns the patch of a loaded object, if it may be sent: the record may have changed since.
    ///
    /// A message that the node holds a part of is continued, unless the patch needs fewer bytes
    /// than the rest.
    pub(super) fn usable_patch(
        &self,
        loaded: &Loaded,
        latest: &Desired,
        limits: PeerLimits,
        desired: &impl DesiredState,
    ) -> Option<Arc<Patch>> {
        let patch = loaded.patch.as_ref()?;
        let base = self.base_of(&loaded.uid, latest, limits, desired)?;
        let is_it = (patch.uid(), patch.base(), patch.version()) == (&loaded.uid, &base, &loaded.version);
        if !is_it || patch.length() > limits.max_object {
            return None;
        }
        let left = self.sender.transfer.left_of(patch, self.ledger.epoch());
        (patch.encoded_len() as u64 <= left).then(|| patch.clone())
    }

    /// Handles a patch that the node could not apply: the object is sent as a whole, and the base
    /// not used again in this session.
    pub(super) fn take_unpatched(&mut self, now: Now, unpatched: Unpatched, desired: &impl DesiredState) {
        let Unpatched { uid, base, .. } = unpatched;
        if !self.sender.is_patched_from(&uid, &base) {
            // Not sent in this session, or reported twice.
            return;
        }
        self.counters.patches_refused += 1;
        self.sender.refused_bases.insert(&uid, base);
        self.sender.transfer.forget_partial(&uid);
        self.sender.done(&uid);
        self.reconsider(now, &uid, desired);
    }
}

#[cfg(test)]
mod tests;
