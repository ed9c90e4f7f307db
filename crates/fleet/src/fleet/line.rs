//! FIFO queue of nodes that wait for capacity in the shared queue to an external broker. One task
//! waits for all of them: each message sent wakes one node, however many wait.

use super::nodes::NodeId;
use std::collections::{HashSet, VecDeque};

/// Waiting nodes, each at most once; see the module.
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

    /// Queues a node behind all others, unless it waits already.
    pub(super) fn join(&mut self, node: NodeId) {
        if self.members.insert(node) {
            self.order.push_back(node);
        }
    }

    /// Queues a node that found no capacity on its turn before all others.
    pub(super) fn rejoin(&mut self, node: NodeId) {
        if self.members.insert(node) {
            self.order.push_front(node);
        }
    }

    /// Records that there is no capacity. Returns whether the caller must start the task that waits
    /// for it; `false` if one is running.
    pub(super) fn wait(&mut self) -> bool {
        !std::mem::replace(&mut self.is_awaited, true)
    }

    /// Records that there is capacity.
    pub(super) fn has_room(&mut self) {
        self.is_awaited = false;
    }

    /// Returns the next node, if there may be capacity.
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
            // One message fits; the next node finds the queue full again.
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
