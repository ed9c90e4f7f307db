//! The current timeline of versions, and the nodes that witness its end: they hold versions that
//! the store never issued, so an older copy has replaced the store.

use std::sync::Arc;

use edgesync_object::NodeName;
use edgesync_protocol::cloud::{Issued, Witnesses};
#[cfg(test)]
use edgesync_protocol::fault::{Fault, planted};

/// Current incarnation and its witnesses; see the module.
#[derive(Debug)]
pub(super) struct Timeline {
    incarnation: Arc<str>,
    issued: Arc<Issued>,
    witnesses: Witnesses,
    /// Set while the source is beginning another incarnation.
    renewing: bool,
}

impl Timeline {
    pub(super) fn new(incarnation: Arc<str>, issued: Arc<Issued>) -> Self {
        Self { incarnation, issued, witnesses: Witnesses::default(), renewing: false }
    }

    /// Returns the id of this timeline.
    pub(super) fn incarnation(&self) -> &Arc<str> {
        &self.incarnation
    }

    /// Returns the versions issued on it.
    pub(super) fn issued(&self) -> &Arc<Issued> {
        &self.issued
    }

    /// Begins another timeline, without witnesses yet.
    pub(super) fn begin(&mut self, incarnation: Arc<str>, issued: Arc<Issued>) {
        tracing::warn!(%incarnation, "new incarnation of the store");
        self.incarnation = incarnation;
        self.issued = issued;
        #[cfg(test)]
        if planted(Fault::WitnessesKept) {
            return;
        }
        self.witnesses.clear();
    }

    /// Records a node, out of `nodes`, as a witness. Returns whether the source must begin another
    /// incarnation: enough nodes agree, and it is not doing so yet.
    pub(super) fn add_witness(&mut self, node: &NodeName, nodes: usize) -> bool {
        let agreed = self.witnesses.hear(node, nodes);
        let witnesses = self.witnesses.count();
        if !agreed {
            tracing::warn!(
                node = node.as_str(),
                witnesses,
                "node reports versions that this store never issued, mass deletions on it are held back"
            );
            return false;
        }
        let begins = !std::mem::replace(&mut self.renewing, true);
        if begins {
            tracing::error!(
                node = node.as_str(),
                witnesses,
                "store rollback detected: nodes hold versions newer than any this store issued"
            );
        }
        begins
    }

    /// Records that the request for another incarnation has succeeded or failed.
    pub(super) fn renewed(&mut self) {
        self.renewing = false;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::node_name;
    use edgesync_protocol::fault;

    #[test]
    fn one_incarnation_is_requested_at_a_time() {
        let mut timeline = Timeline::new("one".into(), Arc::default());
        assert!(timeline.add_witness(&node_name("a"), 1));
        assert!(!timeline.add_witness(&node_name("a"), 1), "it is under way");
        timeline.renewed();
        timeline.begin("two".into(), Arc::default());
        assert_eq!(&**timeline.incarnation(), "two");
        assert!(timeline.add_witness(&node_name("a"), 1));
    }

    /// A tenth of 20 nodes witness the end of a timeline, then one more node does so in the next
    /// one. Returns whether that begins another one.
    fn single_claim_suffices() -> bool {
        let mut timeline = Timeline::new("one".into(), Arc::default());
        assert!(!timeline.add_witness(&node_name("a"), 20));
        assert!(timeline.add_witness(&node_name("b"), 20));
        timeline.renewed();
        timeline.begin("two".into(), Arc::default());
        timeline.add_witness(&node_name("c"), 20)
    }

    #[test]
    fn witnesses_of_the_last_incarnation_count_no_more() {
        assert!(!single_claim_suffices());
    }

    #[test]
    fn witnesses_of_the_last_incarnation_are_found() {
        assert!(fault::with(Some(Fault::WitnessesKept), single_claim_suffices));
    }
}
