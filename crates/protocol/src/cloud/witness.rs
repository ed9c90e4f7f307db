//! Nodes that say that the cloud's store went back. One node may say anything, so it is heard in what concerns itself: its own
//! removals are held back. A new incarnation for all begins when several say so.

use std::collections::BTreeSet;

#[cfg(any(test, feature = "simulation"))]
use crate::fault::{Fault, planted};

/// The most nodes that have to agree, however many there are.
const MOST: usize = 10;
/// One of so many has to agree.
const SHARE: usize = 10;

/// Who has said so, in the incarnation of now.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Witnesses(BTreeSet<String>);

impl Witnesses {
    /// A node says that the store went back. Tells whether enough of this many nodes agree: a tenth of them, at least two and
    /// at most ten, and the only one if there is but one.
    pub fn hear(&mut self, node: &str, nodes: usize) -> bool {
        if self.0.len() < MOST {
            self.0.insert(node.to_owned());
        }
        #[cfg(any(test, feature = "simulation"))]
        if planted(Fault::OneIsEnough) {
            return true;
        }
        self.0.len() >= needed(nodes)
    }

    /// How many have said so.
    #[must_use]
    pub fn count(&self) -> usize {
        self.0.len()
    }

    /// Another incarnation has begun, which is there for what they have said.
    pub fn clear(&mut self) {
        self.0.clear();
    }
}

fn needed(nodes: usize) -> usize {
    (nodes / SHARE).clamp(2, MOST).min(nodes.max(1))
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
