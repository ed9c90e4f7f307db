//! FIFO queue of nodes that wait for capacity in the shared queue to an external broker. One task
//! waits for all of them: each message sent wakes one node, however many wait.

use super::nodes::NodeId;
use std::collections::{HashSet, VecDeque};

/// Waiting nodes, each at most once; see the module.
#[derive(Debug, Default)]
pub(super) struct SendQueue {
    order: VecDeque<NodeId>,
    queued: HashSet<NodeId>,
    is_awaited: bool,
}

impl SendQueue {
    pub(super) fn is_empty(&self) -> bool {
        self.order.is_empty()
    }

    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.order.len()
    }

    /// Queues a node behind all others, unless it waits already.
    pub(super) fn push_back(&mut self, node: NodeId) {
        if self.queued.insert(node) {
            self.order.push_back(node);
        }
    }

    /// Queues a node that found no capacity on its turn before all others.
    pub(super) fn push_front(&mut self, node: NodeId) {
        if self.queued.insert(node) {
            self.order.push_front(node);
        }
    }

    /// Records that there is no capacity. Returns whether the caller must start the task that waits
    /// for it; `false` if one is running.
    pub(super) fn await_capacity(&mut self) -> bool {
        !std::mem::replace(&mut self.is_awaited, true)
    }

    /// Records that there is capacity.
    pub(super) fn has_capacity(&mut self) {
        self.is_awaited = false;
    }

    /// Returns the next node, if there may be capacity.
    pub(super) fn next(&mut self) -> Option<NodeId> {
        if self.is_awaited {
            return None;
        }
        let node = self.order.pop_front()?;
        self.queued.remove(&node);
        Some(node)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_sent_message_wakes_one_node_in_order() {
        let mut queue = SendQueue::default();
        let nodes: Vec<NodeId> = (0..1000).map(NodeId::of_tests).collect();
        nodes.iter().for_each(|node| queue.push_back(*node));
        assert_eq!((queue.await_capacity(), queue.await_capacity()), (true, false), "one waits for all");
        let mut served = Vec::new();
        for _ in 0..2 * nodes.len() {
            queue.has_capacity();
            // One message fits; the next node finds the queue full again.
            let node = queue.next().unwrap();
            served.push(node);
            queue.order.push_back(node);
            queue.queued.insert(node);
            let next = queue.next().unwrap();
            queue.push_front(next);
            assert!(queue.await_capacity() && queue.next().is_none());
        }
        assert_eq!(served, [&nodes[..], &nodes[..]].concat());
    }

    #[test]
    fn node_is_queued_once() {
        let (mut queue, node) = (SendQueue::default(), NodeId::of_tests(7));
        queue.push_back(node);
        queue.push_back(node);
        queue.push_front(node);
        assert_eq!((queue.next(), queue.next()), (Some(node), None));
        assert!(queue.is_empty());
    }
}
