//! The mass-delete guard: holds back removals that suggest a loss of the cloud's store rather than
//! intent.

use std::collections::HashSet;

use crate::change::Uid;
#[cfg(any(test, feature = "simulation"))]
use crate::fault::{Fault, planted};

use super::Settings;
use super::desired::DesiredState;
use super::ledger::Ledger;
use super::types::Record;

/// The decision on the removals that the ledger demands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    /// The removals are plausible and are sent.
    Plausible,
    /// This number of removals is held back until an operator confirms them.
    Held(u64),
}

/// The removals held back for one node.
#[derive(Debug, Default)]
pub(super) struct Guard {
    held: HashSet<Uid>,
    /// The number of removals held back now, or at the end of the last connection.
    count: u64,
    /// Whether this node's Hello or reports claimed a rollback of the store.
    is_suspicious: bool,
}

impl Guard {
    /// Forgets the removals held back, but not their number: the next session decides again.
    pub(super) fn end_session(&mut self) {
        self.held = HashSet::new();
    }

    pub(super) fn suspect(&mut self, is_suspicious: bool) {
        self.is_suspicious = is_suspicious;
    }

    pub(super) fn is_suspicious(&self) -> bool {
        self.is_suspicious
    }

    /// Returns whether the removal of an object is held back.
    pub(super) fn holds(&self, uid: &Uid) -> bool {
        self.held.contains(uid)
    }

    /// Returns the objects whose removal is held back, while the node is connected.
    pub(super) fn held(&self) -> impl Iterator<Item = &Uid> {
        self.held.iter()
    }

    /// Returns the number of removals held back now, or at the end of the last connection.
    pub(super) fn count(&self) -> u64 {
        self.count
    }

    /// Releases an object: it is desired again, or the node no longer holds it.
    pub(super) fn release(&mut self, uid: &Uid) {
        if self.held.remove(uid) {
            self.count = self.held.len() as u64;
        }
    }

    /// Releases all objects, confirmed by an operator. Returns them, and the number that the
    /// operator has seen.
    pub(super) fn confirm(&mut self) -> (HashSet<Uid>, u64) {
        self.is_suspicious = false;
        (std::mem::take(&mut self.held), std::mem::take(&mut self.count))
    }

    /// Decides on the removals that the ledger demands. `incarnation` is the one in the Hello.
    pub(super) fn check(
        &mut self,
        settings: &Settings,
        ledger: &Ledger,
        incarnation: Option<&str>,
        desired: &impl DesiredState,
    ) -> Verdict {
        let removals = removals(ledger, desired);
        let has_lost = removals.iter().any(|(_, record)| settings.issued.is_lost(&record.version));
        let changed = match &ledger.facts().accepted {
            Some(accepted) => *accepted != settings.incarnation,
            None => incarnation.is_some_and(|incarnation| *incarnation != *settings.incarnation),
        };
        let suspicious = self.is_suspicious || changed || has_lost;
        let config = &settings.config;
        #[allow(clippy::cast_precision_loss)] // a share need not be exact
        let many = removals.len() as u64 > config.mass_delete_min
            && removals.len() as f64 > config.mass_delete_share * ledger.tally().count as f64;
        #[cfg(any(test, feature = "simulation"))]
        let many = many && !planted(Fault::NoGuard);
        self.held.clear();
        let is_held = suspicious && many;
        if is_held {
            self.held.extend(removals.into_iter().map(|(uid, _)| uid.clone()));
        } else {
            self.is_suspicious = false;
        }
        self.count = self.held.len() as u64;
        if is_held { Verdict::Held(self.count) } else { Verdict::Plausible }
    }

    /// Returns the number of entries in memory.
    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.held.len()
    }
}

/// Returns the held objects to remove, without those that a new object of the same name replaces.
fn removals<'a>(ledger: &'a Ledger, desired: &impl DesiredState) -> Vec<(&'a Uid, &'a Record)> {
    let replaced: HashSet<_> = ledger
        .differences()
        .filter(|(_, record)| record.is_none())
        .filter_map(|(uid, _)| Some(desired.get(uid)?.object.key()))
        .collect();
    ledger
        .differences()
        .filter_map(|(uid, record)| Some((uid, record?)))
        .filter(|(uid, _)| desired.get(uid).is_none())
        .filter(|(_, record)| !replaced.contains(&record.object.key()))
        .collect()
}
