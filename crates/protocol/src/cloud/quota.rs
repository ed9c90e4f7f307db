//! Bounds the records that one node can create on the cloud side.
//!
//! A node may hold objects that the cloud side neither places on it nor has recorded: a store since
//! replaced by an older copy sent them. They are recorded like all others, whatever their kind and
//! namespace, because the guard counts them and their removal needs them. Nothing else bounds the
//! objects that a node can invent, so their number is limited. Beyond the limit the session ends,
//! and the node learns the reason.

use std::collections::HashSet;

use crate::change::Uid;
#[cfg(any(test, feature = "simulation"))]
use crate::fault::{Fault, planted};
use edgesync_object::Budget;

use super::desired::DesiredState;
use super::ledger::Ledger;
use super::sender::Sender;

/// Seconds until a node that has exceeded its quota may send a Hello.
pub(super) const RETRY_AFTER: u64 = 60;

/// Unknown objects that are about to be recorded.
#[derive(Debug, Default)]
pub(super) struct UnknownObjects(HashSet<Uid>);

/// The number of further unknown objects that a frame may name, computed for the first one.
#[derive(Debug, Default)]
pub(super) struct Allowance(Option<usize>);

/// The objects that the cloud side knows of one node: desired, recorded, or in flight.
pub(super) struct KnownObjects<'a, D> {
    pub(super) desired: &'a D,
    pub(super) ledger: &'a Ledger,
    pub(super) sender: &'a Sender,
    /// The most unknown objects that may be recorded.
    pub(super) max_unknown: usize,
}

impl<D: DesiredState> KnownObjects<'_, D> {
    fn contains(&self, uid: &Uid) -> bool {
        self.sender.is_busy_with(uid)
            || self.desired.get(uid).is_some()
            || self.ledger.get(uid, self.desired).is_some()
    }

    /// Returns a budget for all objects that the node can hold.
    pub(super) fn inventory_budget(&self) -> Budget {
        let known = self.desired.count().saturating_add(self.ledger.count());
        Budget::of_items(known.saturating_add(self.max_unknown))
    }

    /// Returns how many more unknown objects may be recorded beside `unknown` pending ones.
    fn room(&self, unknown: usize) -> usize {
        let recorded = if self.ledger.is_blind() { 0 } else { self.ledger.count() };
        (self.desired.count() + self.max_unknown).saturating_sub(recorded.saturating_add(unknown))
    }
}

impl UnknownObjects {
    /// Returns whether the removal of an object can change the records.
    pub(super) fn may_be_recorded<D: DesiredState>(&self, uid: &Uid, known: &KnownObjects<'_, D>) -> bool {
        known.ledger.is_blind() || self.0.contains(uid) || known.contains(uid)
    }

    /// Admits an object that a node names to the records. Returns false if it is unknown and the
    /// quota is exhausted.
    pub(super) fn admit<D: DesiredState>(
        &mut self,
        uid: &Uid,
        room: &mut Allowance,
        known: &KnownObjects<'_, D>,
    ) -> bool {
        if self.0.contains(uid) || known.contains(uid) {
            return true;
        }
        let room = room.0.get_or_insert_with(|| known.room(self.0.len()));
        #[cfg(any(test, feature = "simulation"))]
        if planted(Fault::NoQuota) {
            *room = usize::MAX;
        }
        if *room == 0 {
            return false;
        }
        *room -= 1;
        self.0.insert(uid.clone());
        true
    }

    /// Drops objects that are recorded or removed now.
    pub(super) fn settle<'a>(&mut self, uids: impl IntoIterator<Item = &'a Uid>) {
        for uid in uids {
            self.0.remove(uid);
        }
    }

    /// Drops all but these objects.
    pub(super) fn keep<'a>(&mut self, uids: impl IntoIterator<Item = &'a Uid>) {
        let kept = uids.into_iter().filter(|uid| self.0.contains(*uid)).cloned().collect();
        self.0 = kept;
    }
}

/// Returns the reason that the node receives.
pub(super) fn excess(limit: usize) -> String {
    format!(
        "the node reports more than {limit} objects unknown to this cloud side; hint: raise sync.max_unknown there if its store was replaced by an older copy"
    )
}

#[cfg(test)]
mod tests;
