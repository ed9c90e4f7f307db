//! All nodes, by name, with the tables that say which of them the loop looks at next.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet, VecDeque};
use std::ops::Bound;

use crate::lifecycle::NodeLifecycle;
use crate::node::Node;
use edgesync_object::{Labels, NodeName};
use edgesync_protocol::timing::Now;

/// Nodes that are known by name; more are refused.
const MAX_NODES: usize = 100_000;

/// See the module.
pub(super) struct Nodes {
    by_name: BTreeMap<NodeName, Node>,
    /// The labels of all Nodes, as far as they are believed.
    labels: HashMap<NodeName, Labels>,
    /// Nodes that have reported themselves.
    registered: HashSet<NodeName>,
    pub(super) lifecycle: NodeLifecycle,
    /// When machines want to be ticked.
    deadlines: BTreeSet<(Now, NodeName)>,
    /// Nodes whose machine may have something to do, in their order.
    touched: VecDeque<NodeName>,
    /// Nodes whose links have taken something.
    moved: VecDeque<NodeName>,
}

/// The range of all names after this one.
pub(super) fn after(at: Option<&NodeName>) -> (Bound<&NodeName>, Bound<&NodeName>) {
    (at.map_or(Bound::Unbounded, Bound::Excluded), Bound::Unbounded)
}

impl Nodes {
    pub(super) fn new(lifecycle: NodeLifecycle, registered: impl IntoIterator<Item = NodeName>) -> Self {
        Self {
            by_name: BTreeMap::new(),
            labels: HashMap::new(),
            registered: registered.into_iter().collect(),
            lifecycle,
            deadlines: BTreeSet::new(),
            touched: VecDeque::new(),
            moved: VecDeque::new(),
        }
    }

    pub(super) fn get(&self, name: &NodeName) -> Option<&Node> {
        self.by_name.get(name)
    }

    pub(super) fn get_mut(&mut self, name: &NodeName) -> Option<&mut Node> {
        self.by_name.get_mut(name)
    }

    pub(super) fn contains(&self, name: &NodeName) -> bool {
        self.by_name.contains_key(name)
    }

    pub(super) fn len(&self) -> usize {
        self.by_name.len()
    }

    /// Whether no further node is accepted.
    pub(super) fn is_full(&self) -> bool {
        self.by_name.len() >= MAX_NODES
    }

    /// The first node after this name, in their order.
    pub(super) fn next(&self, at: Option<&NodeName>) -> Option<(&NodeName, &Node)> {
        self.by_name.range::<NodeName, _>(after(at)).next()
    }

    /// The first node after this name, and the lifecycle of all of them.
    pub(super) fn next_mut(
        &mut self,
        at: Option<&NodeName>,
    ) -> Option<(&NodeName, &mut Node, &NodeLifecycle)> {
        let (name, node) = self.by_name.range_mut::<NodeName, _>(after(at)).next()?;
        Some((name, node, &self.lifecycle))
    }

    #[cfg(test)]
    pub(super) fn values(&self) -> impl Iterator<Item = &Node> {
        self.by_name.values()
    }

    pub(super) fn insert(&mut self, name: &NodeName, node: Node) {
        self.by_name.insert(name.clone(), node);
    }

    /// Removes a node, and all that is known of it.
    pub(super) fn remove(&mut self, name: &NodeName) -> Option<Node> {
        let node = self.by_name.remove(name);
        if let Some(at) = node.as_ref().and_then(|node| node.deadline) {
            self.deadlines.remove(&(at, name.clone()));
        }
        self.labels.remove(name);
        self.registered.remove(name);
        self.lifecycle.forget(name);
        node
    }

    // --- the Node object of a node

    /// The labels of a Node; absent if there is none of this name.
    pub(super) fn labels(&self, name: &NodeName) -> Option<&Labels> {
        self.labels.get(name)
    }

    /// The names of all Nodes, also of those without a machine.
    pub(super) fn names(&self) -> impl ExactSizeIterator<Item = &NodeName> {
        self.labels.keys()
    }

    pub(super) fn has_object(&self, name: &NodeName) -> bool {
        self.labels.contains_key(name)
    }

    pub(super) fn set_labels(&mut self, name: &NodeName, labels: Labels) {
        self.labels.insert(name.clone(), labels);
    }

    /// The Node was deleted.
    pub(super) fn object_deleted(&mut self, name: &NodeName) {
        self.labels.remove(name);
    }

    // --- registration

    pub(super) fn is_registered(&self, name: &NodeName) -> bool {
        self.registered.contains(name)
    }

    /// Whether the node's report is known, so that it need not send it again.
    pub(super) fn has_report(&self, name: &NodeName) -> bool {
        self.registered.contains(name) && !self.lifecycle.wants_report(name)
    }

    pub(super) fn set_registered(&mut self, name: &NodeName, registered: bool) {
        if registered {
            self.registered.insert(name.clone());
        } else {
            self.registered.remove(name);
        }
    }

    // --- whose turn it is

    /// Gives the machine of a node a turn.
    pub(super) fn touch(&mut self, name: &NodeName) {
        if let Some(node) = self.by_name.get_mut(name)
            && !std::mem::replace(&mut node.touched, true)
        {
            self.touched.push_back(name.clone());
        }
    }

    /// The next node whose machine may have something to do.
    pub(super) fn next_touched(&mut self) -> Option<NodeName> {
        self.touched.pop_front()
    }

    /// Enters the deadline of a node's machine.
    pub(super) fn schedule(&mut self, name: &NodeName) {
        let Some(node) = self.by_name.get_mut(name) else { return };
        let wanted = node.machine.deadline().filter(|at| *at != Now::MAX);
        if wanted == node.deadline {
            return;
        }
        if let Some(old) = std::mem::replace(&mut node.deadline, wanted) {
            self.deadlines.remove(&(old, name.clone()));
        }
        if let Some(at) = wanted {
            self.deadlines.insert((at, name.clone()));
        }
    }

    /// When the first machine wants to be ticked.
    pub(super) fn deadline(&self) -> Option<Now> {
        self.deadlines.first().map(|(at, _)| *at)
    }

    /// The next node whose machine is due.
    pub(super) fn next_due(&mut self, now: Now) -> Option<NodeName> {
        self.deadline().filter(|at| *at <= now)?;
        let (_, name) = self.deadlines.pop_first()?;
        if let Some(node) = self.by_name.get_mut(&name) {
            node.deadline = None;
        }
        Some(name)
    }

    /// Enters nodes whose links have taken something.
    pub(super) fn links_moved(&mut self, names: impl IntoIterator<Item = NodeName>) {
        self.moved.extend(names);
    }

    /// Whether no node waits to learn that its link has taken something.
    pub(super) fn is_settled(&self) -> bool {
        self.moved.is_empty()
    }

    /// The next node whose link has taken something.
    pub(super) fn next_moved(&mut self) -> Option<NodeName> {
        self.moved.pop_front()
    }

    #[cfg(test)]
    pub(super) fn is_idle(&self) -> bool {
        self.touched.is_empty()
    }
}
