//! Which object belongs on which node: rules, the objects' own labels, and Pods with what they refer to.
//!
//! Pure: may depend on [`crate::object`] only. An incremental index: each change of an object or a node
//! gives exactly the differences, in time proportional to the nodes it concerns.
//!
//! An object is wanted on a node if one of these holds:
//! 1. it names the node: label `edgesync.io/node`, annotation `edgesync.io/nodes`, `spec.nodeName` of a Pod;
//! 2. it is a ConfigMap or Secret that a Pod refers to which names the node (1);
//! 3. a rule selects both the object and the node, and the node is known ([`Placement::set_node`]).
//!
//! The first two hold for nodes nobody has heard of yet too, so the order in which objects and nodes
//! appear does not matter. Memory is proportional to objects and nodes, not to their product: what a rule
//! places is kept once per rule.

pub mod rules;
mod summary;

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::sync::Arc;

use crate::object::objectsync::is_placeable;
use crate::object::{Labels, Reference, Target};
use rules::PlacementRule;

pub use rules::{Glob, KindMatch, NodeMatch, ObjectMatch};
pub use summary::{MAX_NAMED_NODES, NODE_LABEL, NODES_ANNOTATION, Summary};

type Uid = Arc<str>;
type NodeName = Arc<str>;

/// A difference in what a node is to hold.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Delta {
    /// The node.
    pub node: NodeName,
    /// The object, in the version that is wanted; for [`Want::Drop`] in the last one known.
    pub object: Arc<Summary>,
    /// What is wanted of the node.
    pub want: Want,
}

/// What is wanted of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Want {
    /// To hold the object in this version.
    Hold,
    /// To hold the object no more.
    Drop,
}

/// The index. One owner; changes go in, differences come out.
#[derive(Debug, Default)]
pub struct Placement {
    rules: Vec<Rule>,
    nodes: HashMap<NodeName, Node>,
    objects: HashMap<Uid, Entry>,
    /// Objects that a node is to hold for reasons 1 and 2, with the number of reasons.
    direct: HashMap<NodeName, HashMap<Uid, u32>>,
    /// For each ConfigMap and Secret that is referred to: the nodes, with the number of Pods.
    referred: HashMap<Named, BTreeMap<NodeName, u32>>,
    /// The ConfigMaps and Secrets that exist.
    named: HashMap<Named, Uid>,
}

/// A rule and what it selects at the moment.
#[derive(Debug)]
struct Rule {
    rule: PlacementRule,
    nodes: BTreeSet<NodeName>,
    objects: HashSet<Uid>,
}

#[derive(Debug)]
struct Node {
    labels: Labels,
    /// The rules that select the node, ascending.
    rules: Vec<usize>,
}

#[derive(Debug)]
struct Entry {
    object: Arc<Summary>,
    /// The rules that select the object, ascending.
    rules: Vec<usize>,
}

/// A ConfigMap or Secret by name.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
struct Named {
    target: Target,
    namespace: Arc<str>,
    name: Arc<str>,
}

impl Named {
    /// What the object can be referred to as, if Pods refer to its kind.
    fn of(object: &Summary) -> Option<Self> {
        let target = Target::of(&object.resource)?;
        Some(Self { target, namespace: object.namespace.clone(), name: object.name.clone() })
    }

    fn referred(pod: &Summary, reference: &Reference) -> Self {
        Self { target: reference.target, namespace: pod.namespace.clone(), name: reference.name.clone() }
    }
}

impl Placement {
    /// An index without nodes and objects.
    #[must_use]
    pub fn new(rules: Vec<PlacementRule>) -> Self {
        let rule = |rule| Rule { rule, nodes: BTreeSet::new(), objects: HashSet::new() };
        Self { rules: rules.into_iter().map(rule).collect(), ..Self::default() }
    }

    /// Makes a node known, or changes its labels.
    pub fn set_node(&mut self, name: &str, labels: Labels) -> Vec<Delta> {
        if self.nodes.get(name).is_some_and(|node| node.labels == labels) {
            return Vec::new();
        }
        let selected = self.rules.iter().enumerate().filter(|(_, r)| r.rule.nodes.matches(name, &labels));
        let rules: Vec<usize> = selected.map(|(number, _)| number).collect();
        self.change_node(name, Some(Node { labels, rules }))
    }

    /// Forgets a node: rules place nothing on it any more. Objects that name it still do.
    pub fn remove_node(&mut self, name: &str) -> Vec<Delta> {
        self.change_node(name, None)
    }

    fn change_node(&mut self, name: &str, node: Option<Node>) -> Vec<Delta> {
        let rules_of = |node: Option<&Node>| node.map(|node| node.rules.clone()).unwrap_or_default();
        let (before, after) = (rules_of(self.nodes.get(name)), rules_of(node.as_ref()));
        let name: NodeName = name.into();
        for number in &before {
            if let Some(rule) = self.rules.get_mut(*number) {
                rule.nodes.remove(&name);
            }
        }
        for number in &after {
            if let Some(rule) = self.rules.get_mut(*number) {
                rule.nodes.insert(name.clone());
            }
        }
        match node {
            Some(node) => self.nodes.insert(name.clone(), node),
            None => self.nodes.remove(&name),
        };
        self.differences_of_node(&name, &before, &after)
    }

    /// What differs for a node whose rules have changed: only objects of a rule that came or went can.
    fn differences_of_node(&self, name: &NodeName, before: &[usize], after: &[usize]) -> Vec<Delta> {
        let changed =
            |a: &[usize], b: &[usize]| a.iter().filter(|n| !b.contains(n)).copied().collect::<Vec<_>>();
        let (gone, come) = (changed(before, after), changed(after, before));
        let mut deltas = Vec::new();
        for (numbers, other, want) in [(&gone, after, Want::Drop), (&come, before, Want::Hold)] {
            for (place, number) in numbers.iter().enumerate() {
                let earlier = numbers.get(..place).unwrap_or_default();
                for uid in self.rules.get(*number).iter().flat_map(|rule| &rule.objects) {
                    let Some(entry) = self.objects.get(uid) else { continue };
                    // Placed by something else before and after, or listed by an earlier rule already.
                    let otherwise = self.is_direct(name, uid)
                        || entry.rules.iter().any(|n| other.contains(n) || earlier.contains(n));
                    if !otherwise {
                        deltas.push(Delta { node: name.clone(), object: entry.object.clone(), want });
                    }
                }
            }
        }
        deltas
    }

    /// Takes in an object that is new or has changed. The same version again changes nothing.
    pub fn upsert(&mut self, object: Summary) -> Vec<Delta> {
        if !is_placeable(&object.resource) {
            return Vec::new();
        }
        if self.objects.get(&object.uid).is_some_and(|entry| *entry.object == object) {
            return Vec::new();
        }
        let mut deltas = Vec::new();
        let name = Named::of(&object);
        // One name, one object: a recreated one replaces the old one, whose deletion may come later.
        let namesake = name.as_ref().and_then(|name| self.named.get(name)).filter(|uid| **uid != object.uid);
        if let Some(old) = namesake.cloned() {
            deltas = self.remove(&old);
        }
        let uid = object.uid.clone();
        let object = Arc::new(object);
        let before = self.nodes_of(&uid);
        let old = self.take_out(&uid);
        self.put_in(&object);
        let after = self.nodes_of(&uid);
        for node in before.difference(&after) {
            let last = old.as_ref().unwrap_or(&object).clone();
            deltas.push(Delta { node: node.clone(), object: last, want: Want::Drop });
        }
        let hold = |node| Delta { node, object: object.clone(), want: Want::Hold };
        deltas.extend(after.into_iter().map(hold));
        deltas.extend(self.follow_references(old.as_deref(), Some(&object)));
        deltas
    }

    /// Takes out an object that is no more.
    pub fn remove(&mut self, uid: &str) -> Vec<Delta> {
        let nodes = self.nodes_of(uid);
        let Some(object) = self.take_out(uid) else { return Vec::new() };
        let gone = |node| Delta { node, object: object.clone(), want: Want::Drop };
        let mut deltas: Vec<Delta> = nodes.into_iter().map(gone).collect();
        deltas.extend(self.follow_references(Some(&object), None));
        deltas
    }

    /// Makes the objects be exactly these: for a start, and after changes were missed.
    pub fn resync(&mut self, objects: impl IntoIterator<Item = Summary>) -> Vec<Delta> {
        let mut left: HashSet<Uid> = self.objects.keys().cloned().collect();
        let mut deltas = Vec::new();
        for object in objects {
            left.remove(&object.uid);
            deltas.extend(self.upsert(object));
        }
        for uid in left {
            deltas.extend(self.remove(&uid));
        }
        deltas
    }

    /// Everything that a node is to hold, each object once, in no particular order.
    pub fn desired<'a>(&'a self, node: &str) -> impl Iterator<Item = &'a Arc<Summary>> + use<'a> {
        let direct = self.direct.get(node);
        let rules: &[usize] = self.nodes.get(node).map_or(&[], |node| &node.rules);
        let named = direct.into_iter().flat_map(|uids| uids.keys()).filter_map(|uid| self.objects.get(uid));
        let ruled = rules.iter().enumerate().flat_map(move |(place, number)| {
            let earlier = rules.get(..place).unwrap_or_default();
            let uids = self.rules.get(*number).into_iter().flat_map(|rule| &rule.objects);
            uids.filter(move |uid| direct.is_none_or(|direct| !direct.contains_key(*uid)))
                .filter_map(|uid| self.objects.get(uid))
                .filter(move |entry| !entry.rules.iter().any(|n| earlier.contains(n)))
        });
        named.chain(ruled).map(|entry| &entry.object)
    }

    /// The object, if the node is to hold it.
    #[must_use]
    pub fn wanted(&self, node: &str, uid: &str) -> Option<&Arc<Summary>> {
        let entry = self.objects.get(uid)?;
        let wanted = self.is_direct(node, uid) || self.is_ruled(node, entry);
        wanted.then_some(&entry.object)
    }

    /// The object with this UID, wherever it is placed.
    #[must_use]
    pub fn object(&self, uid: &str) -> Option<&Arc<Summary>> {
        self.objects.get(uid).map(|entry| &entry.object)
    }

    /// The number of objects in the index.
    #[must_use]
    pub fn len(&self) -> usize {
        self.objects.len()
    }

    /// Whether the index has no objects.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.objects.is_empty()
    }

    fn is_direct(&self, node: &str, uid: &str) -> bool {
        self.direct.get(node).is_some_and(|uids| uids.contains_key(uid))
    }

    fn is_ruled(&self, node: &str, entry: &Entry) -> bool {
        self.nodes.get(node).is_some_and(|node| node.rules.iter().any(|n| entry.rules.contains(n)))
    }

    /// The nodes that are to hold the object.
    fn nodes_of(&self, uid: &str) -> BTreeSet<NodeName> {
        let Some(entry) = self.objects.get(uid) else { return BTreeSet::new() };
        let mut nodes = self.direct_nodes(&entry.object);
        for number in &entry.rules {
            nodes.extend(self.rules.get(*number).into_iter().flat_map(|rule| rule.nodes.iter().cloned()));
        }
        nodes
    }

    /// The nodes of reasons 1 and 2.
    fn direct_nodes(&self, object: &Summary) -> BTreeSet<NodeName> {
        let mut nodes = object.nodes.clone();
        if let Some(referring) = Named::of(object).and_then(|name| self.referred.get(&name)) {
            nodes.extend(referring.keys().cloned());
        }
        nodes
    }

    /// Enters an object that is not in the index.
    fn put_in(&mut self, object: &Arc<Summary>) {
        let mut rules = Vec::new();
        for (number, rule) in self.rules.iter_mut().enumerate() {
            if rule.rule.objects.matches(object) {
                rule.objects.insert(object.uid.clone());
                rules.push(number);
            }
        }
        if let Some(name) = Named::of(object) {
            for node in self.referred.get(&name).into_iter().flat_map(BTreeMap::keys) {
                count_up(&mut self.direct, node, &object.uid);
            }
            self.named.insert(name, object.uid.clone());
        }
        for node in &object.nodes {
            count_up(&mut self.direct, node, &object.uid);
        }
        self.objects.insert(object.uid.clone(), Entry { object: object.clone(), rules });
    }

    /// Takes an object out of every table but that of the references.
    fn take_out(&mut self, uid: &str) -> Option<Arc<Summary>> {
        let Entry { object, rules } = self.objects.remove(uid)?;
        for number in rules {
            if let Some(rule) = self.rules.get_mut(number) {
                rule.objects.remove(uid);
            }
        }
        if let Some(name) = Named::of(&object) {
            for node in self.referred.get(&name).into_iter().flat_map(BTreeMap::keys) {
                count_down(&mut self.direct, node, uid);
            }
            self.named.remove(&name);
        }
        for node in &object.nodes {
            count_down(&mut self.direct, node, uid);
        }
        Some(object)
    }

    /// Counts the references of a Pod that has changed. What is referred to at a node for the first time
    /// comes, what is for the last time goes.
    fn follow_references(&mut self, old: Option<&Summary>, new: Option<&Summary>) -> Vec<Delta> {
        let (before, after) = (references(old), references(new));
        let mut deltas = Vec::new();
        for (name, node) in after.difference(&before) {
            let pods = self.referred.entry(name.clone()).or_default().entry(node.clone()).or_default();
            *pods += 1;
            if *pods == 1 {
                deltas.extend(self.reference_changed(name, node, Want::Hold));
            }
        }
        for (name, node) in before.difference(&after) {
            let Some(nodes) = self.referred.get_mut(name) else { continue };
            let Some(pods) = nodes.get_mut(node) else { continue };
            *pods -= 1;
            if *pods > 0 {
                continue;
            }
            nodes.remove(node);
            if nodes.is_empty() {
                self.referred.remove(name);
            }
            deltas.extend(self.reference_changed(name, node, Want::Drop));
        }
        deltas
    }

    /// A node has begun or ceased to refer to a ConfigMap or Secret: a difference if it exists and nothing
    /// else places it there.
    fn reference_changed(&mut self, name: &Named, node: &NodeName, want: Want) -> Option<Delta> {
        let uid = self.named.get(name)?.clone();
        let changed = match want {
            Want::Hold => count_up(&mut self.direct, node, &uid),
            Want::Drop => count_down(&mut self.direct, node, &uid),
        };
        let entry = self.objects.get(&uid)?;
        let differs = changed && !self.is_ruled(node, entry);
        differs.then(|| Delta { node: node.clone(), object: entry.object.clone(), want })
    }
}

/// What a Pod refers to, for each of the nodes it names.
fn references(pod: Option<&Summary>) -> BTreeSet<(Named, NodeName)> {
    let Some(pod) = pod else { return BTreeSet::new() };
    let pairs = pod.references.iter().flat_map(|reference| {
        pod.nodes.iter().map(move |node| (Named::referred(pod, reference), node.clone()))
    });
    pairs.collect()
}

/// Adds a reason. Tells whether it is the first one.
fn count_up(direct: &mut HashMap<NodeName, HashMap<Uid, u32>>, node: &NodeName, uid: &Uid) -> bool {
    let reasons = direct.entry(node.clone()).or_default().entry(uid.clone()).or_default();
    *reasons += 1;
    *reasons == 1
}

/// Takes a reason away. Tells whether it was the last one.
fn count_down(direct: &mut HashMap<NodeName, HashMap<Uid, u32>>, node: &NodeName, uid: &str) -> bool {
    let Some(uids) = direct.get_mut(node) else { return false };
    let Some(reasons) = uids.get_mut(uid) else { return false };
    *reasons -= 1;
    if *reasons > 0 {
        return false;
    }
    uids.remove(uid);
    if uids.is_empty() {
        direct.remove(node);
    }
    true
}

#[cfg(test)]
mod tests;
