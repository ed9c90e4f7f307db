//! Nodes that wait for room in the one queue to an external broker, in their order. One task waits
//! for all of them: a message that leaves wakes one node, however many wait.

use super::nodes::NodeId;
use std::collections::{HashSet, VecDeque};

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Line {
    order: VecDeque<NodeId>,
    members: HashSet<NodeId>,
    is_awaited: bool,
}

impl Line {
    pub(super) fn is_empty(&self) -> bool {
        self.order.is_empty()
    }

    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.order.len()
    }

    /// A node waits, behind all others; nothing if it does already.
    pub(super) fn join(&mut self, node: NodeId) {
        if self.members.insert(node) {
            self.order.push_back(node);
        }
    }

    /// A node whose turn it was found no room: it goes on waiting before all others.
    pub(super) fn rejoin(&mut self, node: NodeId) {
        if self.members.insert(node) {
            self.order.push_front(node);
        }
    }

    /// There is no room. Tells whether somebody must now wait for some, because nobody does.
    pub(super) fn wait(&mut self) -> bool {
        !std::mem::replace(&mut self.is_awaited, true)
    }

    /// There is room.
    pub(super) fn has_room(&mut self) {
        self.is_awaited = false;
    }

    /// Whose turn it is, if there may be room.
    pub(super) fn next(&mut self) -> Option<NodeId> {
        if self.is_awaited {
            return None;
        }
        let node = self.order.pop_front()?;
        self.members.remove(&node);
        Some(node)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_message_that_leaves_wakes_one_node_and_all_have_their_turn() {
        let mut line = Line::default();
        let nodes: Vec<NodeId> = (0..1000).map(NodeId::of_tests).collect();
        nodes.iter().for_each(|node| line.join(*node));
        assert_eq!((line.wait(), line.wait()), (true, false), "one waits for all");
        let mut served = Vec::new();
        for _ in 0..2 * nodes.len() {
            line.has_room();
            // One message fits; whoever is next finds the queue full again.
            let node = line.next().unwrap();
            served.push(node);
            line.order.push_back(node);
            line.members.insert(node);
            let next = line.next().unwrap();
            line.rejoin(next);
            assert!(line.wait() && line.next().is_none());
        }
        assert_eq!(served, [&nodes[..], &nodes[..]].concat());
    }

    #[test]
    fn nobody_waits_twice() {
        let (mut line, node) = (Line::default(), NodeId::of_tests(7));
        line.join(node);
        line.join(node);
        line.rejoin(node);
        assert_eq!((line.next(), line.next()), (Some(node), None));
        assert!(line.is_empty());
    }
}
