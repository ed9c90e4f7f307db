//! Interrupted transfers: the machine of a disconnected node keeps the text of the message in parts
//! that it has begun, because the object may change before the node returns.
//!
//! These texts count as live bodies. They are freed when a load waits for memory, the longest
//! interrupted first, and after [`KEPT`].

use std::collections::{BTreeSet, HashMap};
use std::time::Duration;

use super::nodes::NodeId;
use edgesync_protocol::timing::Now;

/// Time after the end of a connection for which the text of an interrupted transfer is kept. A
/// later one is continued as long as its object does not change.
const KEPT: Duration = Duration::from_secs(3600);

/// Disconnected nodes with an interrupted transfer.
#[derive(Debug, Default)]
pub(super) struct Interrupted {
    since: HashMap<NodeId, Now>,
    order: BTreeSet<(Now, NodeId)>,
}

impl Interrupted {
    /// Adds a node whose connection has ended during a transfer.
    pub(super) fn add(&mut self, now: Now, id: NodeId) {
        if let Some(before) = self.since.insert(id, now) {
            self.order.remove(&(before, id));
        }
        self.order.insert((now, id));
    }

    /// Removes and returns a node whose transfer has been kept for long enough; any, if memory is
    /// short. It may be connected again.
    pub(super) fn next(&mut self, now: Now, is_short: bool) -> Option<NodeId> {
        let (since, id) = *self.order.first()?;
        if !is_short && now.saturating_sub(since) < KEPT {
            return None;
        }
        self.order.pop_first();
        self.since.remove(&id);
        Some(id)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MINUTE: Duration = Duration::from_secs(60);

    #[test]
    fn a_text_is_kept_for_an_hour_after_the_last_connection() {
        let mut interrupted = Interrupted::default();
        let [a, b] = [1, 2].map(NodeId::of_tests);
        interrupted.add(Now::ZERO, a);
        interrupted.add(MINUTE, b);
        interrupted.add(MINUTE * 2, a);
        assert_eq!(interrupted.next(MINUTE * 60, false), None);
        assert_eq!(interrupted.next(MINUTE * 61, false), Some(b));
        assert_eq!(interrupted.next(MINUTE * 61, false), None);
        assert_eq!(interrupted.next(MINUTE * 62, false), Some(a));
        assert_eq!(interrupted.next(MINUTE * 1000, true), None);
    }

    #[test]
    fn short_memory_frees_the_longest_interrupted_first() {
        let mut interrupted = Interrupted::default();
        for number in 0..100 {
            interrupted.add(MINUTE * number, NodeId::of_tests(number % 10));
        }
        let freed: Vec<_> = std::iter::from_fn(|| interrupted.next(MINUTE * 100, true)).collect();
        assert_eq!(freed, (0..10).map(NodeId::of_tests).collect::<Vec<_>>());
    }
}
