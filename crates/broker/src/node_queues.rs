//! Queues per node for an external broker, whose one connection carries the messages of all nodes.
//!
//! A message is delivered to the fleet as soon as the share of its node permits, see
//! [`super::inflow`]. Further messages of that node wait behind it, in order, and do not block
//! those of other nodes. A full queue drops messages: the broker has delivered them already, it
//! cannot be slowed down for one node, and the sync protocol repeats what was lost.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::FleetEvent;
use super::inflow::{BUDGET_BYTES, Inflow, Share};
use edgesync_object::NodeName;
use edgesync_transport::admission::{LinePermit, LogThrottle};

/// Maximum size of the waiting messages of one node, in bytes, each counted with [`OVERHEAD`].
const MAX_WAITING: usize = 4 << 20;
/// Memory of a waiting message beside its payload, in bytes.
const OVERHEAD: usize = 256;
/// Number of entries at which idle ones are first removed.
const PRUNE_AT: usize = 1024;

/// Distributes messages to the shares of their nodes.
pub(super) struct NodeQueues {
    inflow: Inflow,
    queues: Arc<Mutex<Queues>>,
    drops: LogThrottle,
}

struct Queues {
    nodes: HashMap<NodeName, NodeQueue>,
    /// Bytes of all waiting messages.
    bytes: usize,
    prune_at: usize,
}

struct NodeQueue {
    share: Arc<Share>,
    waiting: VecDeque<Waiting>,
    /// Bytes of the waiting messages.
    bytes: usize,
    /// Whether a task sends the waiting messages.
    is_draining: bool,
}

struct Waiting {
    event: FleetEvent,
    bytes: usize,
}

impl NodeQueues {
    pub(super) fn new(inflow: Inflow) -> Self {
        let queues = Queues { nodes: HashMap::new(), bytes: 0, prune_at: PRUNE_AT };
        Self { inflow, queues: Arc::new(Mutex::new(queues)), drops: LogThrottle::new() }
    }

    /// Sends a message of `bytes` bytes, now or when its node's share permits. Drops it if the
    /// node's queue is full.
    pub(super) fn send(&self, node: NodeName, event: FleetEvent, bytes: usize) {
        let mut queues = lock(&self.queues);
        queues.prune();
        let total = queues.bytes;
        let queue = queues.nodes.entry(node.clone()).or_insert_with(|| NodeQueue::new(&self.inflow));
        if !queue.is_draining
            && let Some(reservation) = self.inflow.try_reserve(bytes, &queue.share)
        {
            return reservation.send(event);
        }
        let cost = bytes + OVERHEAD;
        if queue.bytes + cost > MAX_WAITING || total + cost > BUDGET_BYTES {
            drop(queues);
            if let Some(LinePermit { suppressed }) = self.drops.permit_line() {
                tracing::warn!(
                    node = node.as_str(),
                    bytes,
                    suppressed,
                    "message dropped, the node sends more than its share"
                );
            }
            return;
        }
        queue.waiting.push_back(Waiting { event, bytes });
        queue.bytes += cost;
        if !std::mem::replace(&mut queue.is_draining, true) {
            tokio::spawn(drain(self.inflow.clone(), Arc::clone(&self.queues), node));
        }
        queues.bytes += cost;
    }

    /// Drops all waiting messages: the connection to the broker has ended, and with it all
    /// sessions.
    pub(super) fn clear(&self) {
        let mut queues = lock(&self.queues);
        queues.bytes = 0;
        for queue in queues.nodes.values_mut() {
            queue.waiting = VecDeque::new();
            queue.bytes = 0;
        }
    }
}

impl Queues {
    /// Removes idle entries once their number has doubled.
    fn prune(&mut self) {
        if self.nodes.len() >= self.prune_at {
            self.nodes.retain(|_, queue| queue.is_draining || !queue.share.is_idle());
            self.prune_at = (self.nodes.len() * 2).max(PRUNE_AT);
        }
    }

    /// Returns the share and the size of a node's first waiting message; `None` ends its task.
    fn first(&mut self, node: &NodeName) -> Option<(Arc<Share>, usize)> {
        let queue = self.nodes.get_mut(node)?;
        let Some(first) = queue.waiting.front() else {
            // Frees its buffer, which no limit counts.
            queue.waiting = VecDeque::new();
            queue.is_draining = false;
            return None;
        };
        Some((Arc::clone(&queue.share), first.bytes))
    }

    /// Removes a node's first waiting message, if it has this size: all may have been dropped
    /// since.
    fn take(&mut self, node: &NodeName, bytes: usize) -> Option<FleetEvent> {
        let queue = self.nodes.get_mut(node)?;
        let first = queue.waiting.pop_front_if(|first| first.bytes == bytes)?;
        queue.bytes -= bytes + OVERHEAD;
        self.bytes -= bytes + OVERHEAD;
        Some(first.event)
    }
}

impl NodeQueue {
    fn new(inflow: &Inflow) -> Self {
        Self { share: inflow.share(), waiting: VecDeque::new(), bytes: 0, is_draining: false }
    }
}

/// Sends the waiting messages of a node until there are none.
async fn drain(inflow: Inflow, queues: Arc<Mutex<Queues>>, node: NodeName) {
    loop {
        let first = lock(&queues).first(&node);
        let Some((share, bytes)) = first else { return };
        let Some(reservation) = inflow.reserve(bytes, &share).await else { return };
        if let Some(event) = lock(&queues).take(&node, bytes) {
            reservation.send(event);
        }
    }
}

fn lock(queues: &Mutex<Queues>) -> MutexGuard<'_, Queues> {
    queues.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::super::inflow::{FleetEvents, inflow};
    use super::*;
    use crate::Channel;

    const LONGEST: usize = 256 << 10;

    fn queues() -> (NodeQueues, FleetEvents) {
        let (inflow, events) = inflow(4096, LONGEST);
        (NodeQueues::new(inflow), events)
    }

    fn send(queues: &NodeQueues, node: &str, number: usize, bytes: usize) {
        let node = NodeName::parse(node).unwrap();
        let mut payload = vec![0; bytes];
        payload[..8].copy_from_slice(&number.to_le_bytes());
        let event = FleetEvent::Message { node: node.clone(), channel: Channel::Up, payload };
        queues.send(node, event, bytes);
    }

    /// Returns the sender of the next message, and its number.
    async fn next(events: &mut FleetEvents) -> (String, usize) {
        let Some(FleetEvent::Message { node, payload, .. }) = events.recv().await else {
            panic!("no message");
        };
        (node.to_string(), usize::from_le_bytes(payload[..8].try_into().unwrap()))
    }

    #[tokio::test]
    async fn a_flood_delays_other_nodes_by_its_share_only() {
        let (queues, mut events) = queues();
        (0..100).for_each(|n| send(&queues, "flood", n, 100));
        send(&queues, "good", 0, 100);
        let mut before = 0;
        while next(&mut events).await.0 == "flood" {
            before += 1;
        }
        assert_eq!(before, 16);
        for n in 16..100 {
            assert_eq!(next(&mut events).await, ("flood".to_owned(), n), "the rest follows in order");
        }
    }

    #[tokio::test]
    async fn a_full_queue_drops_messages() {
        let (queues, mut events) = queues();
        let fit = |bytes: usize| MAX_WAITING / (bytes + OVERHEAD);
        let sent = (16 + fit(100), 1 + fit(LONGEST));
        (0..2 * sent.0).for_each(|n| send(&queues, "small", n, 100));
        (0..2 * sent.1).for_each(|n| send(&queues, "large", n, LONGEST));
        let mut received = (0, 0);
        for _ in 0..sent.0 + sent.1 {
            match next(&mut events).await {
                (node, _) if node == "small" => received.0 += 1,
                _ => received.1 += 1,
            }
        }
        assert_eq!(received, sent);
        send(&queues, "small", 7, 100);
        assert_eq!(next(&mut events).await, ("small".to_owned(), 7), "nothing else came before");
    }

    #[tokio::test]
    async fn messages_of_an_ended_connection_are_dropped() {
        let (queues, mut events) = queues();
        (0..100).for_each(|n| send(&queues, "node", n, 100));
        queues.clear();
        for n in 0..16 {
            assert_eq!(next(&mut events).await.1, n);
        }
        send(&queues, "node", 500, 100);
        assert_eq!(next(&mut events).await.1, 500);
        assert_eq!(lock(&queues.queues).bytes, 0);
    }

    #[tokio::test]
    async fn entries_of_idle_nodes_are_removed() {
        let (queues, mut events) = queues();
        for n in 0..3 * PRUNE_AT {
            send(&queues, &format!("node-{n}"), n, 8);
            assert_eq!(next(&mut events).await.1, n);
        }
        assert!(lock(&queues.queues).nodes.len() <= PRUNE_AT);
    }
}
