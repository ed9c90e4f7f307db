//! Counts the nodes that claim a rollback of the cloud's store.
//!
//! One node may claim anything, so its claim affects only its own removals. A new incarnation for
//! all nodes begins when several agree.

use std::collections::BTreeSet;

#[cfg(any(test, feature = "simulation"))]
use crate::fault::{Fault, planted};

/// The most nodes that have to agree, however many there are.
const MAX_NEEDED: usize = 10;
/// One in this many nodes has to agree.
const SHARE: usize = 10;

/// The nodes that claim a rollback in the current incarnation.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Witnesses(BTreeSet<String>);

impl Witnesses {
    /// Records the claim of a node. Returns whether enough of `nodes` nodes agree: a tenth of them,
    /// at least two and at most ten, or the only one.
    pub fn hear(&mut self, node: &str, nodes: usize) -> bool {
        if self.0.len() < MAX_NEEDED {
            self.0.insert(node.to_owned());
        }
        #[cfg(any(test, feature = "simulation"))]
        if planted(Fault::OneIsEnough) {
            return true;
        }
        self.0.len() >= needed(nodes)
    }

    /// Returns the number of nodes that claim a rollback.
    #[must_use]
    pub fn count(&self) -> usize {
        self.0.len()
    }

    /// Forgets all claims: a new incarnation accounts for them.
    pub fn clear(&mut self) {
        self.0.clear();
    }
}

fn needed(nodes: usize) -> usize {
    (nodes / SHARE).clamp(2, MAX_NEEDED).min(nodes.max(1))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn several_nodes_have_to_agree_and_the_only_one_is_believed() {
        for (nodes, expected) in [(0, 1), (1, 1), (2, 2), (3, 2), (29, 2), (30, 3), (100, 10), (100_000, 10)]
        {
            assert_eq!(needed(nodes), expected, "{nodes}");
        }
        let mut witnesses = Witnesses::default();
        assert!(!witnesses.hear("a", 5));
        assert!(!witnesses.hear("a", 5), "it is the same one again");
        assert!(witnesses.hear("b", 5));
        witnesses.clear();
        assert!(!witnesses.hear("b", 5));
    }
}
