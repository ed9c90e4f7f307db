//! All nodes: an arena of those with a machine, the index by name, and the schedule of their turns.
//!
//! Tables and queues refer to a node by its [`NodeId`]. Passes over all nodes are ordered by name.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet, VecDeque};
use std::ops::Bound;
use std::sync::Arc;

use jiff::Timestamp;

use super::interner::Interner;
use super::node::Node;
use crate::lifecycle::NodeLifecycle;
use edgesync_enrollment::membership::NodeIdentity;
use edgesync_object::file_rules::FileRules;
use edgesync_object::{Labels, NodeName};
use edgesync_protocol::change::Uid;
#[cfg(test)]
use edgesync_protocol::fault::{Fault, planted};
use edgesync_protocol::timing::Now;

/// Maximum number of nodes; further ones are refused.
const MAX_NODES: usize = 100_000;

/// Index of a node in the arena. An id is never reused: a stale reference to a removed node finds
/// nothing, even if the node returns.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct NodeId(u32);

/// Arena, index and schedule; see the module.
pub(super) struct Nodes {
    by_name: BTreeMap<NodeName, NodeId>,
    /// Indexed by id; a removed node leaves `None`.
    by_id: Vec<Option<Box<Node>>>,
    /// All Nodes.
    objects: HashMap<NodeName, NodeObject>,
    /// File rules by their text: most nodes share one.
    file_rules: Interner<Box<str>, FileRules>,
    /// Nodes that have reported themselves.
    registered: HashSet<NodeName>,
    pub(super) lifecycle: NodeLifecycle,
    /// Deadlines of machines, earliest first.
    deadlines: BTreeSet<(Now, NodeId)>,
    /// FIFO queue of nodes whose machine may have work.
    touched: VecDeque<NodeId>,
    /// Nodes with progress on their links.
    moved: VecDeque<NodeId>,
}

#[derive(Debug)]
struct NodeObject {
    identity: NodeIdentity,
    /// Its trusted labels.
    labels: Labels,
    /// Those of them that others have assigned; `None` if all are.
    assigned: Option<Box<Labels>>,
    /// Time until which an operator asks the node to stay connected.
    stay: Option<Timestamp>,
    /// Its file rules, as reported.
    file_rules: Option<Arc<FileRules>>,
}

/// Returns the range of all names after this one.
pub(super) fn after(at: Option<&NodeName>) -> (Bound<&NodeName>, Bound<&NodeName>) {
    (at.map_or(Bound::Unbounded, Bound::Excluded), Bound::Unbounded)
}

impl NodeId {
    pub(super) fn index(self) -> usize {
        self.0 as usize
    }

    #[cfg(test)]
    pub(super) fn of_tests(number: u32) -> Self {
        Self(number)
    }
}

impl Nodes {
    pub(super) fn new(lifecycle: NodeLifecycle, registered: impl IntoIterator<Item = NodeName>) -> Self {
        Self {
            by_name: BTreeMap::new(),
            by_id: Vec::new(),
            objects: HashMap::new(),
            file_rules: Interner::default(),
            registered: registered.into_iter().collect(),
            lifecycle,
            deadlines: BTreeSet::new(),
            touched: VecDeque::new(),
            moved: VecDeque::new(),
        }
    }

    /// Looks up the id of a node.
    pub(super) fn id(&self, name: &NodeName) -> Option<NodeId> {
        self.by_name.get(name).copied()
    }

    pub(super) fn get(&self, id: NodeId) -> Option<&Node> {
        self.by_id.get(id.index())?.as_deref()
    }

    pub(super) fn get_mut(&mut self, id: NodeId) -> Option<&mut Node> {
        self.by_id.get_mut(id.index())?.as_deref_mut()
    }

    /// Returns the name of a node, for uses that outlive it.
    pub(super) fn name(&self, id: NodeId) -> Option<NodeName> {
        self.get(id).map(|node| node.name.clone())
    }

    pub(super) fn named(&self, name: &NodeName) -> Option<&Node> {
        self.get(self.id(name)?)
    }

    pub(super) fn named_mut(&mut self, name: &NodeName) -> Option<&mut Node> {
        self.get_mut(self.id(name)?)
    }

    pub(super) fn contains(&self, name: &NodeName) -> bool {
        self.by_name.contains_key(name)
    }

    pub(super) fn len(&self) -> usize {
        self.by_name.len()
    }

    /// Returns whether the limit of nodes is reached.
    pub(super) fn is_full(&self) -> bool {
        self.by_name.len() >= MAX_NODES
    }

    /// Returns the id of the first node after this name.
    pub(super) fn next_id(&self, at: Option<&NodeName>) -> Option<NodeId> {
        self.by_name.range::<NodeName, _>(after(at)).next().map(|(_, id)| *id)
    }

    /// Returns the first node after this name.
    pub(super) fn next(&self, at: Option<&NodeName>) -> Option<&Node> {
        self.get(self.next_id(at)?)
    }

    /// Returns the first node after this name, and the lifecycle of all nodes.
    pub(super) fn next_mut(&mut self, at: Option<&NodeName>) -> Option<(&mut Node, &NodeLifecycle)> {
        let id = self.next_id(at)?;
        let node = self.by_id.get_mut(id.index())?.as_deref_mut()?;
        Some((node, &self.lifecycle))
    }

    #[cfg(test)]
    pub(super) fn values(&self) -> impl Iterator<Item = &Node> {
        self.by_name.values().filter_map(|id| self.get(*id))
    }

    /// Adds a node. Returns `None` if the ids are exhausted.
    pub(super) fn insert(&mut self, node: Node) -> Option<NodeId> {
        let id = NodeId(u32::try_from(self.by_id.len()).ok()?);
        self.by_name.insert(node.name.clone(), id);
        self.by_id.push(Some(Box::new(node)));
        Some(id)
    }

    /// Removes a node with all its state. Its Node stays known until its deletion arrives.
    pub(super) fn remove(&mut self, name: &NodeName) -> Option<Node> {
        self.lifecycle.forget(name);
        let id = self.by_name.remove(name)?;
        let node = self.by_id.get_mut(id.index())?.take()?;
        if let Some(at) = node.schedule.deadline() {
            self.deadlines.remove(&(at, id));
        }
        Some(*node)
    }

    // --- Node objects

    /// Returns the labels of a Node; `None` if no such Node exists.
    pub(super) fn labels(&self, name: &NodeName) -> Option<&Labels> {
        self.objects.get(name).map(|object| &object.labels)
    }

    /// Returns the names of all Nodes, including those without a machine.
    pub(super) fn names(&self) -> impl ExactSizeIterator<Item = &NodeName> {
        self.objects.keys()
    }

    pub(super) fn has_object(&self, name: &NodeName) -> bool {
        self.objects.contains_key(name)
    }

    /// Returns the UID of a Node.
    pub(super) fn uid(&self, name: &NodeName) -> Option<&Uid> {
        self.objects.get(name).map(|object| &object.identity.uid)
    }

    /// Returns which Node a node has.
    pub(super) fn identity(&self, name: &NodeName) -> Option<&NodeIdentity> {
        self.objects.get(name).map(|object| &object.identity)
    }

    /// Returns whether a Node with this UID has a successor of its name.
    pub(super) fn is_replaced(&self, name: &NodeName, uid: &Uid) -> bool {
        #[cfg(test)]
        if planted(Fault::ReplacedNodeIsGone) {
            return false;
        }
        self.uid(name).is_some_and(|known| known != uid)
    }

    /// Adds or updates a Node with its trusted labels, and those that others have assigned.
    pub(super) fn set_object(
        &mut self,
        name: &NodeName,
        identity: NodeIdentity,
        labels: Labels,
        assigned: &Labels,
    ) {
        let before = self.objects.remove(name);
        let (stay, file_rules) = before.map_or((None, None), |object| (object.stay, object.file_rules));
        let assigned = (labels != *assigned).then(|| Box::new(assigned.clone()));
        self.objects.insert(name.clone(), NodeObject { identity, labels, assigned, stay, file_rules });
    }

    /// Returns the labels that others have assigned to a node; empty without a Node.
    pub(super) fn assigned_labels(&self, name: &NodeName) -> &Labels {
        static NONE: Labels = Labels::new();
        let object = self.objects.get(name);
        object.map_or(&NONE, |object| object.assigned.as_deref().unwrap_or(&object.labels))
    }

    /// Returns the time until which an operator asks a node to stay.
    pub(super) fn stay(&self, name: &NodeName) -> Option<Timestamp> {
        self.objects.get(name)?.stay
    }

    /// Sets the time until which an operator asks a node to stay. Returns whether it has changed.
    pub(super) fn set_stay(&mut self, name: &NodeName, until: Option<Timestamp>) -> bool {
        let Some(object) = self.objects.get_mut(name) else { return false };
        std::mem::replace(&mut object.stay, until) != until
    }

    /// Returns the file rules that a node has reported; `None` if they are not known.
    pub(super) fn file_rules(&self, name: &NodeName) -> Option<&Arc<FileRules>> {
        self.objects.get(name)?.file_rules.as_ref()
    }

    /// Sets the file rules of a node by the text in its Node.
    pub(super) fn set_file_rules(&mut self, name: &NodeName, text: &str) {
        let Some(object) = self.objects.get_mut(name) else { return };
        let known = self.file_rules.get(text);
        let parsed = || Some(self.file_rules.insert(text.into(), FileRules::parse(text)?));
        object.file_rules = known.or_else(parsed);
    }

    /// Handles a deleted Node.
    pub(super) fn object_deleted(&mut self, name: &NodeName) {
        self.objects.remove(name);
    }

    // --- registration

    pub(super) fn is_registered(&self, name: &NodeName) -> bool {
        self.registered.contains(name)
    }

    /// Returns whether the Node has the node's report, so that the node need not send it again.
    pub(super) fn has_report(&self, name: &NodeName) -> bool {
        self.registered.contains(name) && self.has_object(name) && !self.lifecycle.wants_report(name)
    }

    pub(super) fn set_registered(&mut self, name: &NodeName, registered: bool) {
        if registered {
            self.registered.insert(name.clone());
        } else {
            self.registered.remove(name);
        }
    }

    // --- schedule

    /// Counts a request to the store for a node.
    pub(super) fn request_begun(&mut self, id: NodeId) {
        if let Some(node) = self.get_mut(id) {
            node.schedule.request_begun();
        }
    }

    /// Schedules a turn for the machine of a node.
    pub(super) fn touch(&mut self, id: NodeId) {
        if self.get_mut(id).is_some_and(|node| node.schedule.queue()) {
            self.touched.push_back(id);
        }
    }

    /// Returns the next node whose machine may have work.
    pub(super) fn next_touched(&mut self) -> Option<NodeId> {
        self.touched.pop_front()
    }

    /// Updates the deadline of a node's machine.
    pub(super) fn schedule(&mut self, id: NodeId) {
        let Some(node) = self.get_mut(id) else { return };
        let deadline = node.machine.deadline().filter(|at| *at != Now::MAX);
        let before = node.schedule.set_deadline(deadline);
        if deadline == before {
            return;
        }
        if let Some(old) = before {
            self.deadlines.remove(&(old, id));
        }
        self.deadlines.extend(deadline.map(|at| (at, id)));
    }

    /// Returns the earliest deadline.
    pub(super) fn deadline(&self) -> Option<Now> {
        self.deadlines.first().map(|(at, _)| *at)
    }

    /// Returns the next node whose deadline has passed.
    pub(super) fn next_due(&mut self, now: Now) -> Option<NodeId> {
        self.deadline().filter(|at| *at <= now)?;
        let (_, id) = self.deadlines.pop_first()?;
        if let Some(node) = self.get_mut(id) {
            node.schedule.set_deadline(None);
        }
        Some(id)
    }

    /// Queues nodes with progress on their links.
    pub(super) fn links_moved(&mut self, names: &[NodeName]) {
        let Self { moved, by_name, .. } = self;
        moved.extend(names.iter().filter_map(|name| by_name.get(name)));
    }

    /// Returns whether no progress of links is queued.
    pub(super) fn is_settled(&self) -> bool {
        self.moved.is_empty()
    }

    /// Returns the next node with progress on its link.
    pub(super) fn next_moved(&mut self) -> Option<NodeId> {
        self.moved.pop_front()
    }

    #[cfg(test)]
    pub(super) fn is_idle(&self) -> bool {
        self.touched.is_empty()
    }
}

/// Returns the identity of the Nodes in unit tests.
#[cfg(test)]
pub(super) fn identity_of_tests() -> NodeIdentity {
    NodeIdentity { uid: "u".into(), version: 1.into() }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::Duration;

    use super::*;
    use crate::node_name;
    use edgesync_protocol::cloud::{CloudConfig, CloudMachine, Records};

    fn nodes() -> Nodes {
        Nodes::new(NodeLifecycle::of_replica(Now::ZERO, Timestamp::UNIX_EPOCH, Duration::ZERO), [])
    }

    fn node(name: &str) -> Node {
        let config = Arc::new(CloudConfig::defaults());
        Node::new(node_name(name), CloudMachine::new(config, "i".into(), Arc::default(), Records::Proven), 0)
    }

    #[test]
    fn nodes_are_iterated_in_order_of_name() {
        let mut nodes = nodes();
        for name in ["c", "a", "b"] {
            nodes.insert(node(name)).unwrap();
        }
        let (mut at, mut seen) = (None, Vec::new());
        while let Some(next) = nodes.next(at.as_ref()) {
            seen.push(next.name.clone());
            at = Some(next.name.clone());
        }
        assert_eq!(seen, ["a", "b", "c"]);
        assert_eq!(nodes.named(&node_name("b")).map(|node| node.name.clone()), Some(node_name("b")));
        assert!(nodes.named(&node_name("d")).is_none());
    }

    #[test]
    fn report_without_a_node_object_is_requested_again() {
        let (mut nodes, name) = (nodes(), node_name("a"));
        nodes.set_registered(&name, true);
        assert!(!nodes.has_report(&name));
        nodes.set_object(&name, identity_of_tests(), Labels::new(), &Labels::new());
        assert!(nodes.has_report(&name));
        nodes.object_deleted(&name);
        assert!(!nodes.has_report(&name));
    }

    /// The removal may prove to be outdated: then the node goes on with its labels.
    #[test]
    fn removed_node_keeps_its_node_object_until_that_is_deleted() {
        let (mut nodes, name) = (nodes(), node_name("a"));
        nodes.insert(node("a")).unwrap();
        nodes.set_object(&name, identity_of_tests(), Labels::new(), &Labels::new());
        nodes.remove(&name).unwrap();
        assert!(!nodes.contains(&name) && nodes.labels(&name).is_some());
        nodes.object_deleted(&name);
        assert_eq!(nodes.uid(&name), None);
    }

    #[test]
    fn returning_node_gets_a_new_id() {
        let mut nodes = nodes();
        let old = nodes.insert(node("a")).unwrap();
        nodes.touch(old);
        nodes.remove(&node_name("a")).unwrap();
        assert!(nodes.get(old).is_none() && nodes.id(&node_name("a")).is_none());
        let new = nodes.insert(node("a")).unwrap();
        assert_ne!(old, new);
        nodes.touch(old);
        nodes.touch(new);
        nodes.touch(new);
        assert_eq!(
            [nodes.next_touched(), nodes.next_touched(), nodes.next_touched()],
            [Some(old), Some(new), None]
        );
        assert_eq!(nodes.len(), 1);
    }
}
