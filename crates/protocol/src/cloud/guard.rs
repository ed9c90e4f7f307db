//! The mass-delete guard: holds back removals that look like the loss of the cloud's store rather than somebody's wish.

use std::collections::HashSet;

use crate::change::Uid;
#[cfg(any(test, feature = "simulation"))]
use crate::fault::{Fault, planted};

use super::Settings;
use super::desired::DesiredState;
use super::ledger::Ledger;
use super::types::Record;

/// What becomes of the removals that a node's records call for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    /// They are plausible and go out.
    Plausible,
    /// So many are held back until an operator confirms them.
    Held(u64),
}

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Guard {
    held: HashSet<Uid>,
    /// The number of removals held back now, or when the node was last connected.
    count: u64,
    /// This node's Hello or reports said that the store went back.
    is_suspicious: bool,
}

impl Guard {
    /// Forgets which removals are held, but not how many: the next session judges again.
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

    /// Returns how many removals are held back, or were when the node was last connected.
    pub(super) fn count(&self) -> u64 {
        self.count
    }

    /// Lets an object go: it is desired again, or the node no longer holds it.
    pub(super) fn release(&mut self, uid: &Uid) {
        if self.held.remove(uid) {
            self.count = self.held.len() as u64;
        }
    }

    /// Lets all go, as an operator demands. Returns the objects, and how many an operator was shown.
    pub(super) fn confirm(&mut self) -> (HashSet<Uid>, u64) {
        self.is_suspicious = false;
        (std::mem::take(&mut self.held), std::mem::take(&mut self.count))
    }

    /// Decides on the removals that the ledger calls for. `named` is the incarnation that the node knows.
    pub(super) fn judge(
        &mut self,
        settings: &Settings,
        ledger: &Ledger,
        named: Option<&str>,
        desired: &impl DesiredState,
    ) -> Verdict {
        let removals = removals(ledger, desired);
        let has_lost = removals.iter().any(|(_, record)| settings.issued.is_lost(&record.version));
        let changed = match &ledger.facts().accepted {
            Some(accepted) => *accepted != settings.incarnation,
            None => named.is_some_and(|named| *named != *settings.incarnation),
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

    /// Returns how many entries take memory.
    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.held.len()
    }
}

/// Returns what the node holds and should not, replaced objects apart.
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
