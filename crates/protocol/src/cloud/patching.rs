//! Decides which objects are sent to the node as patches, and remembers the bases that it refused.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use crate::change::Uid;
#[cfg(any(test, feature = "simulation"))]
use crate::fault::{Fault, planted};
use crate::patch::{Patch, Unpatched};
use crate::timing::Now;
use edgesync_object::ResourceVersion;

use super::desired::{Desired, DesiredState};
use super::sender::Ready;
use super::{CloudMachine, Loaded, PeerLimits};

/// The most bases remembered per session. With more refusals, the session gets no more patches.
const MAX_REFUSED: usize = 256;

/// The patches that fit a frame and wait for one, and the bases that the node has refused in this
/// session. Nothing is allocated for a node without either.
#[derive(Debug, Default)]
pub(super) struct Patching(Option<Box<State>>);

#[derive(Debug, Default)]
struct State {
    ready: VecDeque<Ready>,
    /// The bases whose patches the node could not apply, one per object.
    refused: HashMap<Uid, ResourceVersion>,
    /// Whether there were more than are remembered.
    is_full: bool,
}

impl Patching {
    fn state(&mut self) -> &mut State {
        self.0.get_or_insert_default()
    }

    /// Adds a patch that waits for a frame.
    pub(super) fn push(&mut self, ready: Ready) {
        self.state().ready.push_back(ready);
    }

    /// Returns the next patch that waits for a frame.
    pub(super) fn first(&self) -> Option<&Ready> {
        self.0.as_ref()?.ready.front()
    }

    pub(super) fn pop(&mut self) -> Option<Ready> {
        self.0.as_mut()?.ready.pop_front()
    }

    fn refuse(&mut self, uid: &Uid, base: ResourceVersion) {
        let State { refused, is_full, .. } = self.state();
        if refused.len() < MAX_REFUSED || refused.contains_key(uid) {
            refused.insert(uid.clone(), base);
        } else {
            (*is_full, *refused) = (true, HashMap::new());
        }
    }

    fn is_refused(&self, uid: &Uid, base: &ResourceVersion) -> bool {
        #[cfg(any(test, feature = "simulation"))]
        if planted(Fault::PatchAgain) {
            return false;
        }
        self.0.as_ref().is_some_and(|state| state.is_full || state.refused.get(uid) == Some(base))
    }

    /// Returns how many bases are remembered; `None` if there were more.
    #[cfg(test)]
    fn remembered(&self) -> Option<usize> {
        self.0.as_ref().map_or(Some(0), |state| (!state.is_full).then_some(state.refused.len()))
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
        let is_usable = is_same && !self.sender.patching.is_refused(uid, &record.version);
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
        self.sender.patching.refuse(&uid, base);
        self.sender.transfer.forget_partial(&uid);
        self.sender.done(&uid);
        self.reconsider(now, &uid, desired);
    }
}

#[cfg(test)]
mod tests;
