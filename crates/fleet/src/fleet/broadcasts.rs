//! Broadcasts to many nodes: an object that is on all of them has changed, the broker is gone, the
//! configuration was reloaded, a new incarnation begins. Each node learns of them before its
//! machine hears anything else, and a part of the nodes in each turn of the loop, so that a turn
//! takes no longer the more nodes there are.
//!
//! Changes that the source tells meanwhile wait for their turn: one object changes at a time. So
//! what a node is to hold changes, for its machine, exactly when the machine is told.

use std::collections::{HashSet, VecDeque};
use std::sync::Arc;

use super::nodes::NodeId;
use super::reconciler::Reconciler;
use edgesync_object::{NodeName, ResourceVersion};
use edgesync_placement::{Differences, RuleId, Summary, Unread};

/// A change that waits for its turn.
#[derive(Debug)]
pub(super) enum Waiting {
    /// All that there is follows.
    Begun,
    /// The object is there.
    Set(Arc<Summary>),
    /// The object is no more.
    Gone(Arc<Summary>),
    /// That was all.
    Complete,
    /// A Node that was not among it.
    MissingNode(NodeName),
    /// Objects are to be compared with these UIDs, from a number on.
    Compare(HashSet<Arc<str>>, u32),
    /// All was told once more.
    Again,
    /// This replica has caught up: the question that is answered, and how far the source is.
    CaughtUp(u64, ResourceVersion),
    /// What cannot be read is this from now on.
    Unread(Vec<Unread>),
    /// The source was replaced by an older copy, all of which is told when this question is
    /// answered.
    Restored(u64),
    /// A rule gives up one object after the other.
    Shrink(RuleId),
    /// An object, or a rule, that is not among them.
    Missing(Arc<str>),
}

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Broadcasts {
    /// How much has happened that concerns many nodes.
    count: u64,
    /// When it was last that all connections were lost, that the configuration was reloaded, and
    /// that a new incarnation began: the count from then on.
    closed: u64,
    reloaded: u64,
    renewed: u64,
    /// When it was last that objects could be read that could not before.
    read: u64,
    /// When it was last that the source was replaced by an older copy.
    restored: u64,
    /// Up to where in their order all nodes know of these five; none if all of them do.
    walked: Option<Option<NodeName>>,
    spreading: Option<Spreading>,
    waiting: VecDeque<Waiting>,
}

/// The change of an object that nodes learn of.
#[derive(Debug)]
struct Spreading {
    /// The count from it on.
    number: u64,
    differences: Differences,
    /// Up to where in their order the nodes know of it.
    told: Option<NodeName>,
}

impl Broadcasts {
    /// The number of what a node knows that is told of now.
    pub(super) fn count(&self) -> u64 {
        self.count
    }

    /// Whether all that the source has told so far is known to all.
    pub(super) fn is_told(&self) -> bool {
        self.spreading.is_none() && self.waiting.is_empty()
    }

    /// Something that concerns all nodes has happened.
    fn happened(&mut self) -> u64 {
        self.count += 1;
        self.walked = Some(None);
        self.count
    }

    /// All connections are lost.
    pub(super) fn closed(&mut self) {
        self.closed = self.happened();
    }

    /// There is another configuration.
    pub(super) fn reloaded(&mut self) {
        self.reloaded = self.happened();
    }

    /// Another incarnation has begun.
    pub(super) fn renewed(&mut self) {
        self.renewed = self.happened();
    }

    /// The source was replaced by an older copy.
    pub(super) fn restored(&mut self) {
        self.restored = self.happened();
    }

    /// More can be read than before.
    pub(super) fn reads_more(&mut self) {
        self.read = self.happened();
    }

    /// Something is to be done before all else that waits.
    pub(super) fn go_on_with(&mut self, change: Waiting) {
        self.waiting.push_front(change);
    }

    /// The next change that waits, to be taken in once nothing is being spread.
    pub(super) fn next_change(&mut self) -> Option<Waiting> {
        self.waiting.pop_front()
    }

    /// Something is to be done once what is before it is known to all.
    pub(super) fn wait(&mut self, changes: impl IntoIterator<Item = Waiting>) {
        self.waiting.extend(changes);
    }
}

impl Reconciler {
    /// Tells a node of everything that it does not know yet.
    pub(super) fn inform(&mut self, id: NodeId) {
        let Some(node) = self.nodes.get_mut(id) else { return };
        let known = node.schedule.inform(self.broadcasts.count);
        if known == self.broadcasts.count {
            return;
        }
        self.work.node();
        if known < self.broadcasts.reloaded {
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
        if known < self.broadcasts.restored {
            self.prove_anew(id);
        }
        if known < self.broadcasts.read {
            self.look_again(id);
        }
        if let Some(spreading) =
            self.broadcasts.spreading.as_ref().filter(|spreading| known < spreading.number)
        {
            let deltas: Vec<_> =
                self.desired.placement.differences_on(&spreading.differences, &name).collect();
            self.place(deltas);
        }
    }

    /// Nodes are to learn what the change of an object means for them.
    pub(super) fn spread(&mut self, mut differences: Differences) {
        self.place(std::mem::take(&mut differences.deltas));
        self.broadcasts.count += 1;
        self.broadcasts.spreading =
            Some(Spreading { number: self.broadcasts.count, differences, told: None });
    }

    /// Informs the next node that lags behind. Returns whether there was one.
    pub(super) fn spread_next(&mut self) -> bool {
        self.walk_on() || self.spread_on()
    }

    /// Informs the next node of those that do not know what has happened to all.
    fn walk_on(&mut self) -> bool {
        let Some(walked) = self.broadcasts.walked.take() else { return false };
        let Some(id) = self.nodes.next_id(walked.as_ref()) else { return false };
        self.work.node();
        self.inform(id);
        self.broadcasts.walked = Some(self.nodes.name(id));
        true
    }

    /// Informs the next node of those that the change of an object concerns.
    fn spread_on(&mut self) -> bool {
        let Some(spreading) = &mut self.broadcasts.spreading else { return false };
        self.work.node();
        match self.desired.placement.next_node(&spreading.differences, spreading.told.as_ref()) {
            Some(name) => {
                let id = self.nodes.id(&name);
                spreading.told = Some(name);
                if let Some(id) = id {
                    self.inform(id);
                }
            }
            None => self.broadcasts.spreading = None,
        }
        true
    }
}
