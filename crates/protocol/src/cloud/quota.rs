//! What one node can make the cloud side keep. A node may hold objects that the cloud side neither places on it nor has
//! recorded: they were given to it by a store that was since replaced by an older copy. They are recorded like all others,
//! because the guard counts them and their removal needs them, whatever their kind and namespace. But their number is
//! bounded, for nothing else bounds what a node can invent. Beyond that its session ends, and it is told why.

use std::collections::HashSet;

use crate::change::Uid;
#[cfg(any(test, feature = "simulation"))]
use crate::fault::{Fault, planted};
use edgesync_object::Budget;

use super::desired::DesiredState;
use super::{CloudMachine, CloudNotice, Phase};

/// Seconds after which a node that has exceeded its quota may say Hello again.
pub(super) const RETRY_AFTER: u64 = 60;

/// Objects that are about to be recorded and that nobody knows of.
#[derive(Debug, Default)]
pub(super) struct Unknown(HashSet<Uid>);

impl Unknown {
    pub(super) fn contains(&self, uid: &Uid) -> bool {
        self.0.contains(uid)
    }

    /// They are recorded, or gone.
    pub(super) fn settle<'a>(&mut self, uids: impl IntoIterator<Item = &'a Uid>) {
        for uid in uids {
            self.0.remove(uid);
        }
    }

    /// Forgets all but these.
    pub(super) fn keep<'a>(&mut self, uids: impl IntoIterator<Item = &'a Uid>) {
        let kept = uids.into_iter().filter(|uid| self.0.contains(*uid)).cloned().collect();
        self.0 = kept;
    }
}

/// How many more objects that nobody knows of a frame may name; looked up when the first one comes.
#[derive(Debug, Default)]
pub(super) struct Room(Option<usize>);

impl CloudMachine {
    /// Whether the ledger does not say what is recorded.
    fn is_blind(&self) -> bool {
        self.behind || !self.ledger.is_open()
    }

    /// Whether an object is to be on the node, is recorded of it or is under way to it.
    fn is_known(&self, uid: &Uid, desired: &impl DesiredState) -> bool {
        self.recorder.unknown.contains(uid)
            || self.sender.is_busy_with(uid)
            || desired.get(uid).is_some()
            || self.ledger.get(uid, desired).is_some()
    }

    /// Whether it can make a difference that the node holds an object no more.
    pub(super) fn may_be_recorded(&self, uid: &Uid, desired: &impl DesiredState) -> bool {
        self.is_blind() || self.is_known(uid, desired)
    }

    /// Whether what a node says of an object may be recorded: false if nobody knows the object, and no room is left for
    /// another one.
    pub(super) fn admits(&mut self, uid: &Uid, room: &mut Room, desired: &impl DesiredState) -> bool {
        if self.is_known(uid, desired) {
            return true;
        }
        let room = room.0.get_or_insert_with(|| self.room(desired));
        #[cfg(any(test, feature = "simulation"))]
        if planted(Fault::NoQuota) {
            *room = usize::MAX;
        }
        if *room == 0 {
            return false;
        }
        *room -= 1;
        self.recorder.unknown.0.insert(uid.clone());
        true
    }

    /// How many objects that nobody knows of the node may name.
    fn room(&self, desired: &impl DesiredState) -> usize {
        let recorded = if self.is_blind() { 0 } else { self.recorded_count() };
        let taken = recorded.saturating_add(self.recorder.unknown.0.len());
        (desired.count() + self.config.max_unknown).saturating_sub(taken)
    }

    fn recorded_count(&self) -> usize {
        usize::try_from(self.ledger.tally().count).unwrap_or(usize::MAX)
    }

    /// As many objects as the node can hold, whatever it says.
    pub(super) fn inventory_budget(&self, desired: &impl DesiredState) -> Budget {
        let known = desired.count().saturating_add(self.recorded_count());
        Budget::of_items(known.saturating_add(self.config.max_unknown))
    }

    /// The node names more objects than it can have been given: its session ends.
    pub(super) fn refuse_excess(&mut self) {
        let session = match &self.phase {
            Phase::Offline => return,
            Phase::Connecting(connecting) => connecting.hello.session.clone(),
            Phase::Live { session, .. } => session.clone(),
        };
        let limit = self.config.max_unknown;
        self.counters.over_quota += 1;
        self.recorder.give_up();
        self.end_session();
        self.notice(CloudNotice::OverQuota { limit });
        let reason = format!(
            "the node names more than {limit} objects that this cloud side neither places on it nor has recorded: if its \
             store was replaced by an older copy, raise sync.max_unknown there"
        );
        self.request_hello(session, reason, RETRY_AFTER);
    }
}

#[cfg(test)]
mod tests;
