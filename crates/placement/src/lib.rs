//! Placement index: decides which object belongs on which node, by rules, by the objects' own
//! labels and annotations, and by the Pods that refer to them. It is pure and incremental, and
//! depends on [`edgesync_object`] only: no protocol, store or fleet. Read [`Placement`] first, then
//! [`Differences`].
//!
//! An object is desired on a node if one of these holds:
//! 1. it names the node: label `edgesync.io/node`, annotation `edgesync.io/nodes`, `spec.nodeName`
//!    of a Pod; and it may do so ([`Naming`]);
//! 2. it is a ConfigMap or Secret that a Pod refers to which names the node (1);
//! 3. a rule selects both the object and the node, and the node is known ([`Placement::set_node`]).
//!    Rules come from the configuration or are objects themselves ([`spec`]), which can be added
//!    and removed ([`Placement::add_rule`]).
//!
//! 1 and 2 hold for unknown nodes too, so the order in which objects and nodes appear does not
//! matter. A change yields exactly the differences it makes; one that affects all nodes lists them
//! lazily. Memory is proportional to objects plus nodes, not to their product: the objects of a
//! rule are stored once per rule. Objects that no rule or node name places are not stored, except
//! ConfigMaps and Secrets, to which a Pod may refer later.

#![warn(missing_docs)]

mod changing;
mod criteria;
mod differences;
mod explain;
mod finding;
mod naming;
mod on_node;
pub mod rules;
mod slots;
pub mod spec;
mod summary;
mod unread;

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::sync::Arc;

use criteria::Criteria;
use edgesync_object::objectsync::is_placeable;
use edgesync_object::{Labels, NodeName, Reference, Target, Uid};
use rules::PlacementRule;
use slots::{Id, Sets, Slot, Slots};

pub use changing::RuleId;
pub use differences::{Delta, Differences, Reasons};
pub use explain::Verdict;
pub use naming::Naming;
pub use on_node::OnNode;
pub use slots::Placed;

pub use rules::{Glob, KindMatch, NodeMatch, ObjectMatch, Selection};
pub use summary::{
    DELETIONS_CONFIRMED_ANNOTATION, FilesInEffect, NODE_LABEL, NODES_ANNOTATION, NamedNodes, NodeNotes,
    NodeSync, RuleText, STAY_ANNOTATION, Summary, concerns,
};
pub use unread::Unread;

/// Nodes, with the number of referring Pods on each.
type Referring = BTreeMap<NodeName, u32>;

/// The index. It has one owner, which applies changes and receives differences.
#[derive(Debug, Default)]
pub struct Placement {
    rules: Vec<Rule>,
    /// Rules that are not free, by what they require of objects and of nodes.
    by_objects: Criteria,
    by_nodes: Criteria,
    nodes: HashMap<NodeName, Node>,
    /// Placed objects, and all ConfigMaps and Secrets.
    slots: Slots,
    /// Sets of rules that select an object, ascending.
    selections: Sets<usize>,
    /// Sets of nodes that an object names, in order.
    names: Sets<NodeName>,
    /// References of Pods to ConfigMaps and Secrets of their namespaces.
    references: HashMap<Id, Box<[Reference]>>,
    /// Cache of the number of objects that a set of rules selects; cleared by changes of objects.
    counted: HashMap<Vec<usize>, usize>,
    /// Namespaces whose objects are never placed.
    reserved: Vec<Arc<str>>,
    /// The objects that may name their nodes; all if `None`.
    naming: Option<Naming>,
    /// Whether differences have reasons.
    reports_reasons: bool,
    /// Objects desired on a node for reasons 1 and 2.
    direct: HashMap<NodeName, BTreeSet<Id>>,
    /// Referring nodes of each referenced ConfigMap and Secret, by kind, namespace and name.
    referred: HashMap<(Target, Arc<str>), HashMap<Arc<str>, Referring>>,
}

/// A rule with the nodes and objects that it currently selects.
#[derive(Debug)]
struct Rule {
    rule: PlacementRule,
    stage: Stage,
    nodes: BTreeSet<NodeName>,
    objects: BTreeSet<Id>,
}

/// Life cycle of a rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    InForce,
    /// Selects no further objects, and releases the selected ones.
    Retiring,
    /// The rule's number is free.
    Free,
}

#[derive(Debug)]
struct Node {
    labels: Labels,
    /// The rules that select the node, ascending.
    rules: Vec<usize>,
}

/// An object with the reasons for its placement.
#[derive(Debug)]
struct State {
    object: Arc<Placed>,
    /// The rules that select the object, ascending.
    rules: Arc<[usize]>,
    /// The nodes that the object names, in order.
    nodes: Arc<[NodeName]>,
}

/// A ConfigMap or Secret by name.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Named {
    target: Target,
    namespace: Arc<str>,
    name: Arc<str>,
}

impl Placement {
    /// Creates an index without nodes and objects.
    #[must_use]
    pub fn new(rules: Vec<PlacementRule>) -> Self {
        let mut placement = Self::default();
        for (number, rule) in rules.into_iter().enumerate() {
            placement.enter_rule(number, Rule::new(rule));
        }
        placement
    }

    /// Excludes the objects of these namespaces, whatever places them: rules, labels, annotations
    /// and references of Pods.
    #[must_use]
    pub fn with_reserved(self, namespaces: Vec<Arc<str>>) -> Self {
        Self { reserved: namespaces, ..self }
    }

    /// Restricts the objects that may name their own nodes; `None` permits it to all.
    #[must_use]
    pub fn with_naming(self, naming: Option<Naming>) -> Self {
        Self { naming, ..self }
    }

    /// Sets whether differences have reasons, and include those in which only the reasons differ:
    /// for rules that do not place the newest version at once.
    pub fn set_reports_reasons(&mut self, reports: bool) {
        self.reports_reasons = reports;
    }

    /// Returns the nodes that an object names and may name, in order.
    fn named(&self, object: &Summary) -> Vec<NodeName> {
        let nodes = self.naming.as_ref().map(|naming| naming.nodes_of(object));
        nodes.unwrap_or_else(|| object.nodes.all()).into_iter().cloned().collect()
    }

    /// Returns whether an object is in a reserved namespace.
    fn is_reserved(&self, object: &Summary) -> bool {
        self.reserved.contains(&object.namespace)
    }

    /// Adds a node, or changes its labels. Returns the differences for the node.
    pub fn set_node(&mut self, name: &NodeName, labels: Labels) -> Vec<Delta> {
        if self.nodes.get(name).is_some_and(|node| node.labels == labels) {
            return Vec::new();
        }
        let (before, after) = self.enter_node(name, labels);
        self.differences_of_node(name, &before, &after)
    }

    /// Adds a node without computing differences: for nodes without a consumer of differences yet.
    pub fn add_node(&mut self, name: &NodeName, labels: Labels) {
        self.enter_node(name, labels);
    }

    /// Returns whether two sets of labels of a node are selected by different rules.
    #[must_use]
    pub fn distinguishes(&self, name: &NodeName, one: &Labels, other: &Labels) -> bool {
        self.rules_of(name, one) != self.rules_of(name, other)
    }

    fn enter_node(&mut self, name: &NodeName, labels: Labels) -> (Vec<usize>, Vec<usize>) {
        let rules = self.rules_of(name, &labels);
        self.change_node(name, Some(Node { labels, rules }))
    }

    /// Returns the rules that select a node, ascending. A retired rule selects it until the rule is
    /// removed.
    fn rules_of(&self, name: &NodeName, labels: &Labels) -> Vec<usize> {
        let mut rules = self.by_nodes.met("", name, labels);
        rules.retain(|number| {
            self.rules.get(*number).is_some_and(|rule| rule.rule.nodes.matches(name, labels))
        });
        rules
    }

    /// Removes a node: rules place nothing on it any more. Objects that name it are still desired
    /// there.
    pub fn remove_node(&mut self, name: &NodeName) -> Vec<Delta> {
        let (before, after) = self.change_node(name, None);
        self.differences_of_node(name, &before, &after)
    }

    /// Adds or removes a node. Returns the rules that selected it before, and those that do now.
    fn change_node(&mut self, name: &NodeName, node: Option<Node>) -> (Vec<usize>, Vec<usize>) {
        let rules_of = |node: Option<&Node>| node.map(|node| node.rules.clone()).unwrap_or_default();
        let (before, after) = (rules_of(self.nodes.get(name)), rules_of(node.as_ref()));
        for number in &before {
            if let Some(rule) = self.rules.get_mut(*number) {
                rule.nodes.remove(name);
            }
        }
        for number in &after {
            if let Some(rule) = self.rules.get_mut(*number) {
                rule.nodes.insert(name.clone());
            }
        }
        match node {
            Some(node) => self.nodes.insert(name.clone(), node),
            None => self.nodes.remove(name),
        };
        (before, after)
    }

    /// Returns the differences for a node whose rules have changed. Only objects of added or
    /// removed rules can differ.
    fn differences_of_node(&self, name: &NodeName, before: &[usize], after: &[usize]) -> Vec<Delta> {
        let changed =
            |a: &[usize], b: &[usize]| a.iter().filter(|n| !b.contains(n)).copied().collect::<Vec<_>>();
        let (gone, come) = (changed(before, after), changed(after, before));
        if self.reports_reasons {
            let changed = gone.iter().chain(&come).filter_map(|number| self.rules.get(*number));
            let ids: BTreeSet<Id> = changed.flat_map(|rule| &rule.objects).copied().collect();
            let delta = |id: Id| {
                let slot = self.slots.get(id)?;
                let is_direct = self.direct.get(name).is_some_and(|ids| ids.contains(&id));
                let rules = self.selections.get(slot.rules);
                let reasons = [before, after].map(|node| Reasons::of(is_direct, rules, node));
                Some(Delta::with_reasons(name.clone(), &self.slots.whole(slot)?, reasons))
            };
            return ids.into_iter().filter_map(delta).collect();
        }
        let mut deltas = Vec::new();
        for (numbers, other, comes) in [(&gone, after, false), (&come, before, true)] {
            for (place, number) in numbers.iter().enumerate() {
                let earlier = numbers.get(..place).unwrap_or_default();
                for id in self.rules.get(*number).iter().flat_map(|rule| &rule.objects) {
                    let Some(slot) = self.slots.get(*id) else { continue };
                    // The object has another reason before and after, or an earlier rule has listed
                    // it.
                    let rules = self.selections.get(slot.rules);
                    let otherwise = self.direct.get(name).is_some_and(|ids| ids.contains(id))
                        || rules.iter().any(|n| other.contains(n) || earlier.contains(n));
                    let object = self.slots.whole(slot).filter(|_| !otherwise);
                    deltas.extend(object.map(|object| Delta::one(name.clone(), object, comes)));
                }
            }
        }
        deltas
    }

    /// Applies an object that is new, has changed, or may be selected by a rule added since its
    /// last upsert.
    pub fn upsert(&mut self, object: &Summary) -> Differences {
        let mut differences = Differences::default();
        if !is_placeable(&object.resource) || self.is_reserved(object) {
            return differences;
        }
        let known = self.slots.by_uid(&object.uid);
        let slot = known.and_then(|id| self.slots.get(id));
        let rules = self.selecting(object);
        let same = |slot: &Slot| {
            slot.version_text() == object.version.as_str() && self.selections.get(slot.rules)[..] == rules
        };
        if slot.is_some_and(same) {
            return differences;
        }
        let target = Target::of(&object.resource);
        // Invariant: one object per name. A recreated object replaces the old one, whose deletion
        // may be observed later.
        let namesake =
            target.and_then(|target| self.slots.by_name((target, &object.namespace, &object.name)));
        if let Some(old) = namesake.filter(|id| Some(*id) != known) {
            differences = self.remove_id(old);
        }
        let before = known.map(|id| self.references_of(id)).unwrap_or_default();
        let old = known.and_then(|id| self.take_out(id));
        let new = self.put_in(object, &rules);
        let after = new.map(|id| self.references_of(id)).unwrap_or_default();
        differences.add(old, new.and_then(|id| self.state(id)));
        differences.deltas.extend(self.follow_references(&before, &after));
        differences
    }

    /// Removes the deleted object with this UID.
    pub fn remove(&mut self, uid: &str) -> Differences {
        self.slots.by_uid(uid).map(|id| self.remove_id(id)).unwrap_or_default()
    }

    fn remove_id(&mut self, id: Id) -> Differences {
        let mut differences = Differences::default();
        let before = self.references_of(id);
        differences.add(self.take_out(id), None);
        differences.deltas = self.follow_references(&before, &BTreeSet::new());
        differences
    }

    /// Scans up to `count` objects, starting at number `from`. Returns the UIDs not contained in
    /// `uids`; and the number to continue from, if there are more.
    #[must_use]
    pub fn absent(&self, uids: &HashSet<Uid>, from: u32, count: u32) -> (Vec<Uid>, Option<u32>) {
        let end = self.slots.end().min(from.saturating_add(count));
        let slots = (from..end).filter_map(|id| self.slots.get(id));
        let absent = slots.filter(|slot| !uids.contains(slot.uid())).map(|slot| slot.uid().into());
        (absent.collect(), (end < self.slots.end()).then_some(end))
    }

    /// Returns the desired state of a node.
    #[must_use]
    pub fn on<'a>(&'a self, node: &NodeName) -> OnNode<'a> {
        let rules: &[usize] = self.nodes.get(node).map_or(&[], |node| &node.rules);
        OnNode { placement: self, direct: self.direct.get(node), rules }
    }

    /// Returns the number of objects desired on a node. Caches the counts of rules.
    pub fn count(&mut self, node: &NodeName) -> usize {
        let on_node = self.on(node);
        let rules = on_node.rules;
        let named = on_node.named().filter(|slot| !self.is_selected(slot, rules)).count();
        if let Some(ruled) = self.counted.get(rules) {
            return named + ruled;
        }
        let ruled = OnNode { direct: None, ..on_node }.slots().count();
        let rules = rules.to_vec();
        self.counted.insert(rules, ruled);
        named + ruled
    }

    /// Returns the object with this UID, wherever it is placed.
    #[must_use]
    pub fn object(&self, uid: &str) -> Option<Arc<Placed>> {
        self.slots.whole(self.slots.get(self.slots.by_uid(uid)?)?)
    }

    /// Returns the number of objects in the index.
    #[must_use]
    pub fn len(&self) -> usize {
        self.slots.len()
    }

    /// Returns whether the index has no objects.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns whether one of these rules selects the object.
    fn is_selected(&self, slot: &Slot, rules: &[usize]) -> bool {
        let selecting = self.selections.get(slot.rules);
        rules.iter().any(|number| selecting.contains(number))
    }

    /// Returns the nodes of the Pods that refer to the object.
    fn referring(&self, target: Target, namespace: &Arc<str>, name: &str) -> Option<&Referring> {
        self.referred.get(&(target, namespace.clone()))?.get(name)
    }

    /// Returns an object with the reasons for its placement.
    fn state(&self, id: Id) -> Option<State> {
        let slot = self.slots.get(id)?;
        let (rules, nodes) = (self.selections.get(slot.rules).clone(), self.names.get(slot.nodes).clone());
        Some(State { object: self.slots.whole(slot)?, rules, nodes })
    }

    /// Stores an object whole if several nodes may hold it, otherwise as text.
    fn share(&mut self, id: Id) {
        let Some(slot) = self.slots.get(id) else { return };
        let name = self.slots.name(slot);
        let is_referred = name.is_some_and(|(target, namespace, name)| {
            self.referring(target, namespace, name).is_some_and(|nodes| !nodes.is_empty())
        });
        let shared = slot.rules != 0 || self.names.get(slot.nodes).len() > 1 || is_referred;
        self.slots.share(id, shared);
    }

    /// Inserts an object that is not in the index. Skips an object that no rule or node name places
    /// and no Pod can refer to.
    fn put_in(&mut self, object: &Summary, rules: &[usize]) -> Option<Id> {
        let nodes = self.named(object);
        let target = Target::of(&object.resource);
        if rules.is_empty() && nodes.is_empty() && target.is_none() {
            return None;
        }
        let referring = target.and_then(|target| self.referring(target, &object.namespace, &object.name));
        let referring: Vec<NodeName> = referring.into_iter().flat_map(BTreeMap::keys).cloned().collect();
        let shared = !rules.is_empty() || !referring.is_empty() || nodes.len() > 1;
        let sets = (self.selections.take(rules), self.names.take(&nodes));
        let Some(id) = self.slots.insert(object, shared, sets.0, sets.1) else {
            self.selections.release(sets.0);
            self.names.release(sets.1);
            return None;
        };
        self.forget_counts(rules);
        for number in rules {
            if let Some(rule) = self.rules.get_mut(*number) {
                rule.objects.insert(id);
            }
        }
        for node in self.names.get(sets.1).iter().chain(&referring) {
            self.direct.entry(node.clone()).or_default().insert(id);
        }
        if !object.references.is_empty() {
            self.references.insert(id, object.references.iter().cloned().collect());
        }
        Some(id)
    }

    /// Removes an object from every table except the one of the references.
    fn take_out(&mut self, id: Id) -> Option<State> {
        let state = self.state(id)?;
        let referring = self.referring_to(&state.object);
        let referring: Vec<NodeName> = referring.into_iter().flat_map(BTreeMap::keys).cloned().collect();
        let slot = self.slots.remove(id)?;
        self.selections.release(slot.rules);
        self.names.release(slot.nodes);
        self.references.remove(&id);
        self.forget_counts(&state.rules);
        for number in &*state.rules {
            if let Some(rule) = self.rules.get_mut(*number) {
                rule.objects.remove(&id);
            }
        }
        for node in state.nodes.iter().chain(&referring) {
            self.leave(node, id);
        }
        Some(state)
    }

    /// Removes the object from those placed directly on the node.
    fn leave(&mut self, node: &NodeName, id: Id) {
        if let Some(ids) = self.direct.get_mut(node) {
            ids.remove(&id);
            if ids.is_empty() {
                self.direct.remove(node);
            }
        }
    }

    /// Clears the cached counts, after an object that these rules select was added or removed.
    fn forget_counts(&mut self, rules: &[usize]) {
        if !rules.is_empty() {
            self.counted.clear();
        }
    }

    /// Returns the references of a Pod, for each node that it names.
    fn references_of(&self, id: Id) -> BTreeSet<(Named, NodeName)> {
        let (Some(references), Some(pod)) = (self.references.get(&id), self.state(id)) else {
            return BTreeSet::new();
        };
        let pairs = references.iter().flat_map(|reference| {
            let Reference { target, name, .. } = reference;
            let namespace = pod.object.object.namespace.clone();
            let name = Named { target: *target, namespace, name: name.clone() };
            pod.nodes.iter().map(move |node| (name.clone(), node.clone()))
        });
        pairs.collect()
    }

    /// Updates the reference counts of a changed Pod. The first reference of a node adds the object
    /// there, the last one removes it.
    fn follow_references(
        &mut self,
        before: &BTreeSet<(Named, NodeName)>,
        after: &BTreeSet<(Named, NodeName)>,
    ) -> Vec<Delta> {
        let mut deltas = Vec::new();
        for (named, node) in after.difference(before) {
            let of_kind = self.referred.entry((named.target, named.namespace.clone())).or_default();
            let pods = of_kind.entry(named.name.clone()).or_default().entry(node.clone()).or_default();
            *pods += 1;
            if *pods == 1 {
                deltas.extend(self.reference_changed(named, node, true));
            }
        }
        for (named, node) in before.difference(after) {
            if self.forget_reference(named, node) {
                deltas.extend(self.reference_changed(named, node, false));
            }
        }
        deltas
    }

    /// Decrements a reference count. Returns whether it was the node's last reference.
    fn forget_reference(&mut self, named: &Named, node: &NodeName) -> bool {
        let key = (named.target, named.namespace.clone());
        let Some(of_kind) = self.referred.get_mut(&key) else { return false };
        let Some(nodes) = of_kind.get_mut(&named.name) else { return false };
        let Some(pods) = nodes.get_mut(node) else { return false };
        *pods -= 1;
        if *pods > 0 {
            return false;
        }
        nodes.remove(node);
        if nodes.is_empty() {
            of_kind.remove(&named.name);
        }
        if of_kind.is_empty() {
            self.referred.remove(&key);
        }
        true
    }

    /// Applies the first or last reference of a node to a ConfigMap or Secret. Returns a difference
    /// if the object exists and nothing else places it there.
    fn reference_changed(&mut self, named: &Named, node: &NodeName, refers: bool) -> Option<Delta> {
        let id = self.slots.by_name((named.target, &named.namespace, &named.name))?;
        let slot = self.slots.get(id)?;
        let names = self.names.get(slot.nodes);
        let is_named = names.contains(node);
        let is_ruled = self.nodes.get(node).is_some_and(|node| self.is_selected(slot, &node.rules));
        let reasons = self.reports_reasons.then(|| {
            let rules = self.nodes.get(node).map_or(&[][..], |node| &node.rules);
            let reasons = |refers| Reasons::of(is_named || refers, self.selections.get(slot.rules), rules);
            [reasons(!refers), reasons(refers)]
        });
        if refers {
            self.direct.entry(node.clone()).or_default().insert(id);
            self.share(id);
        } else if !is_named {
            self.leave(node, id);
        }
        let object = self.slots.whole(self.slots.get(id)?)?;
        self.share(id);
        if let Some(reasons) = reasons {
            return (!is_named).then(|| Delta::with_reasons(node.clone(), &object, reasons));
        }
        (!is_named && !is_ruled).then(|| Delta::one(node.clone(), object, refers))
    }
}

#[cfg(test)]
mod tests;
