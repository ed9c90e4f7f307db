//! Broadcasts to many nodes: a change of an object that is on all of them, the loss of the broker,
//! a reload of the configuration, a new incarnation. A machine receives pending broadcasts before
//! any other input. Each turn of the loop informs a part of the nodes, so that its duration does
//! not grow with the fleet.
//!
//! Changes of the source queue up meanwhile: one object changes at a time. So the desired objects
//! of a node change, for its machine, exactly when the machine receives the change.

use std::collections::{HashSet, VecDeque};
use std::sync::Arc;

use super::nodes::NodeId;
use super::reconciler::Reconciler;
use edgesync_object::NodeName;
use edgesync_placement::{Differences, RuleId, Summary, Unread};
use edgesync_protocol::cloud::Reached;
#[cfg(test)]
use edgesync_protocol::fault::{Fault, planted};

/// A change of the source that waits until the one before it is spread.
#[derive(Debug)]
pub(super) enum QueuedChange {
    /// The start of a list.
    ListStarted,
    /// An object that exists.
    Set(Arc<Summary>),
    /// A deleted object, in its last state.
    Deleted(Arc<Summary>),
    /// The end of a list.
    ListComplete,
    /// A Node missing in the list.
    MissingNode(NodeName),
    /// Comparison of the objects from a number on with the listed UIDs.
    Compare(HashSet<Arc<str>>, u32),
    /// The end of a relist.
    Relisted,
    /// This replica has caught up: the answered question, and the version that the source has
    /// reached.
    CaughtUp(u64, Reached),
    /// The scopes that cannot be read from now on.
    Unread(Vec<Unread>),
    /// The source was replaced by an older copy; its list is complete when this question is
    /// answered.
    Restored(u64),
    /// A deleted rule that releases its objects one by one.
    Shrink(RuleId),
    /// The UID of an object or a rule missing in the list.
    Missing(Arc<str>),
}

/// Pending broadcasts; see the module.
#[derive(Debug, Default)]
pub(super) struct Broadcasts {
    /// Number of broadcasts so far.
    count: u64,
    /// Numbers of the last loss of all connections, reload of the configuration, and new
    /// incarnation.
    closed: u64,
    reloaded: u64,
    renewed: u64,
    /// Number of the last broadcast that more objects can be read.
    read: u64,
    /// Number of the last replacement of the source by an older copy.
    restored: u64,
    /// Last node, by name, that knows these five; `None` if all nodes do.
    walked: Option<Option<NodeName>>,
    spreading: Option<Spreading>,
    queued: VecDeque<QueuedChange>,
}

/// A change of an object that is being spread.
#[derive(Debug)]
struct Spreading {
    /// Number of this broadcast.
    number: u64,
    differences: Differences,
    /// Last node, by name, that knows it.
    last: Option<NodeName>,
}

impl Broadcasts {
    /// Returns the number of the current broadcast.
    pub(super) fn count(&self) -> u64 {
        self.count
    }

    /// Returns whether all nodes know all changes of the source so far.
    pub(super) fn is_delivered(&self) -> bool {
        self.spreading.is_none() && self.queued.is_empty()
    }

    /// Begins a broadcast to all nodes.
    fn begin(&mut self) -> u64 {
        self.count += 1;
        self.walked = Some(None);
        self.count
    }

    /// Broadcasts the loss of all connections.
    pub(super) fn closed(&mut self) {
        self.closed = self.begin();
    }

    /// Broadcasts a reload of the configuration.
    pub(super) fn reloaded(&mut self) {
        self.reloaded = self.begin();
    }

    /// Broadcasts a new incarnation.
    pub(super) fn renewed(&mut self) {
        self.renewed = self.begin();
    }

    /// Broadcasts that an older copy has replaced the source.
    pub(super) fn restored(&mut self) {
        self.restored = self.begin();
    }

    /// Broadcasts that more objects can be read than before.
    pub(super) fn reads_more(&mut self) {
        self.read = self.begin();
    }

    /// Queues a change before all others.
    pub(super) fn requeue(&mut self, change: QueuedChange) {
        self.queued.push_front(change);
    }

    /// Returns the next queued change, for use once nothing is being spread.
    pub(super) fn next_change(&mut self) -> Option<QueuedChange> {
        self.queued.pop_front()
    }

    /// Queues changes behind all others.
    pub(super) fn queue(&mut self, changes: impl IntoIterator<Item = QueuedChange>) {
        self.queued.extend(changes);
    }
}

impl Reconciler {
    /// Delivers to a node all broadcasts that it lacks.
    pub(super) fn inform(&mut self, id: NodeId) {
        let Some(node) = self.nodes.get_mut(id) else { return };
        let known = node.schedule.inform(self.broadcasts.count);
        if known == self.broadcasts.count {
            return;
        }
        self.work.node();
        let Broadcasts { reloaded, restored, .. } = self.broadcasts;
        #[cfg(test)]
        let reloaded = if planted(Fault::ReloadIgnored) { 0 } else { reloaded };
        #[cfg(test)]
        let restored = if planted(Fault::RestoredUnproven) { 0 } else { restored };
        if known < reloaded {
            node.machine.set_config(self.settings.machine.clone());
        }
        if known < self.broadcasts.renewed {
            let timeline = &self.timeline;
            node.machine.set_incarnation(timeline.incarnation().clone(), timeline.issued().clone());
        }
        let name = node.name.clone();
        if known < self.broadcasts.closed {
            self.disconnected(&name);
        }
        if known < restored {
            self.restart_after_rollback(id);
        }
        if known < self.broadcasts.read {
            self.recheck(id);
        }
        if let Some(spreading) =
            self.broadcasts.spreading.as_ref().filter(|spreading| known < spreading.number)
        {
            let deltas: Vec<_> =
                self.desired.placement.differences_on(&spreading.differences, &name).collect();
            self.place(deltas);
        }
    }

    /// Begins to spread the change of an object.
    pub(super) fn spread(&mut self, mut differences: Differences) {
        self.place(std::mem::take(&mut differences.deltas));
        self.broadcasts.count += 1;
        self.broadcasts.spreading =
            Some(Spreading { number: self.broadcasts.count, differences, last: None });
    }

    /// Informs the next node that lags behind. Returns whether there was one.
    pub(super) fn deliver_next(&mut self) -> bool {
        self.deliver_to_all() || self.deliver_change()
    }

    /// Informs the next node that lacks a broadcast to all nodes.
    fn deliver_to_all(&mut self) -> bool {
        let Some(walked) = self.broadcasts.walked.take() else { return false };
        let Some(id) = self.nodes.next_id(walked.as_ref()) else { return false };
        self.work.node();
        self.inform(id);
        self.broadcasts.walked = Some(self.nodes.name(id));
        true
    }

    /// Informs the next node that the change of an object concerns.
    fn deliver_change(&mut self) -> bool {
        let Some(spreading) = &mut self.broadcasts.spreading else { return false };
        self.work.node();
        match self.desired.placement.next_node(&spreading.differences, spreading.last.as_ref()) {
            Some(name) => {
                let id = self.nodes.id(&name);
                spreading.last = Some(name);
                if let Some(id) = id {
                    self.inform(id);
                }
            }
            None => self.broadcasts.spreading = None,
        }
        true
    }
}
