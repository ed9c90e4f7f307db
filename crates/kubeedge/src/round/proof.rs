//! Whether the database is proven, so that its marker may be written into the Lease: everything was
//! compared since a foreign marker was found there.

use std::collections::BTreeSet;
use std::time::Duration;

use super::saved_state::SavedState;
use super::scope;
use crate::lease::Marker;
use crate::outbound::Outbound;
use crate::types::RoundReason;

/// The proof of the database, and the part of it that outlives the agent.
#[derive(Debug, Default)]
pub(super) struct Proof {
    /// The state kept in the database.
    saved: SavedState,
    /// The foreign marker in the Lease when the pending urgent round was demanded.
    found: Option<Marker>,
    /// The reason of a pending urgent round: the database is unproven until it is complete.
    owed: Option<RoundReason>,
    /// Whether any session has compared its Lease.
    is_compared: bool,
}

impl Proof {
    /// Restores the text of an earlier run.
    pub(super) fn restore(&mut self, text: &str) {
        self.saved = SavedState::read(text);
    }

    /// Records that a session has compared its Lease. Returns whether it is the first one.
    pub(super) fn lease_compared(&mut self) -> bool {
        !std::mem::replace(&mut self.is_compared, true)
    }

    /// Returns the time until the next comparison, if an earlier run has completed one.
    pub(super) fn due_in(&self, outbound: &Outbound) -> Option<Duration> {
        self.saved.due_in(outbound)
    }

    /// Returns the rules whose lists are stored, hashed.
    pub(super) fn completed_rules(&self) -> &BTreeSet<u64> {
        &self.saved.carried_out
    }

    /// Returns whether the marker of the database may be written into the Lease.
    pub(super) fn holds(&self) -> bool {
        self.is_compared && self.owed.is_none()
    }

    /// Returns whether the marker in the Lease has to be replaced at once.
    pub(super) fn is_unmarked(&self) -> bool {
        self.holds() && self.saved.compared_over.is_some()
    }

    /// Records a foreign marker found in the Lease. Returns whether everything was compared since
    /// it was found, and only the marker was not written yet.
    pub(super) fn marker_found(&mut self, found: Option<&Marker>) -> bool {
        self.found = found.cloned();
        self.saved.is_compared_over(found)
    }

    /// Records that the Lease has the marker of this database.
    pub(super) fn marker_written(&mut self, outbound: &mut Outbound) {
        if self.saved.compared_over.take().is_some() {
            self.saved.keep(outbound);
        }
    }

    /// Returns the reason of the pending urgent round.
    pub(super) fn owed(&self) -> Option<RoundReason> {
        self.owed
    }

    /// Demands an urgent round before the database is proven.
    pub(super) fn owe(&mut self, reason: RoundReason) {
        self.owed = Some(reason);
    }

    /// Records the end of a round, with the rules whose lists are complete, and stores the changes.
    /// `is_complete` says whether no list has failed, `is_comparison` whether the round counts as a
    /// comparison.
    pub(super) fn round_ended(
        &mut self,
        outbound: &mut Outbound,
        reason: RoundReason,
        completed: Vec<u64>,
        is_complete: bool,
        is_comparison: bool,
    ) {
        let before = self.saved.clone();
        let rules = scope::all_rules(&outbound.config);
        self.saved.carried_out.extend(completed);
        self.saved.carried_out.retain(|rule| rules.contains(rule));
        if is_complete {
            if reason.is_urgent() && self.owed.take().is_some_and(|owed| owed != RoundReason::Asked) {
                self.saved.compared_over = Some(self.found.take());
            }
            if is_comparison {
                self.saved.compared_at = Some(outbound.at.wall);
            }
        }
        if self.saved != before {
            self.saved.keep(outbound);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::outbound;

    #[test]
    fn database_is_proven_when_the_owed_round_is_complete() {
        let mut outbound = outbound();
        let mut proof = Proof::default();
        assert!(!proof.holds(), "no Lease was compared");
        assert!(proof.lease_compared() && !proof.lease_compared());
        assert!(proof.holds());
        assert!(!proof.marker_found(None));
        proof.owe(RoundReason::First);
        assert!(!proof.holds());
        proof.round_ended(&mut outbound, RoundReason::First, Vec::new(), false, true);
        assert!(!proof.holds() && outbound.effects.is_empty(), "a list has failed");
        proof.round_ended(&mut outbound, RoundReason::First, Vec::new(), true, true);
        assert!(proof.is_unmarked() && proof.marker_found(None));
        assert_eq!(outbound.effects.len(), 1);
        proof.marker_written(&mut outbound);
        assert!(proof.holds() && !proof.is_unmarked());
        assert_eq!(outbound.effects.len(), 2);
        proof.marker_written(&mut outbound);
        assert_eq!(outbound.effects.len(), 2, "nothing has changed");
    }

    #[test]
    fn requested_relist_needs_no_new_marker() {
        let mut outbound = outbound();
        let mut proof = Proof::default();
        proof.lease_compared();
        proof.owe(RoundReason::Asked);
        proof.round_ended(&mut outbound, RoundReason::Asked, Vec::new(), true, true);
        assert!(proof.holds() && !proof.is_unmarked());
    }
}
