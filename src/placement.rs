//! Which object belongs on which node: rules, the objects' own labels, and Pods with what they refer to.
//!
//! Pure: may depend on [`crate::object`] only. An incremental index: each change of an object or a node
//! gives exactly the differences. A change of an object, which may be on all nodes, takes no longer the more nodes
//! there are: it says which nodes it concerns when it is asked, one after the other ([`Differences`]).
//!
//! An object is wanted on a node if one of these holds:
//! 1. it names the node: label `edgesync.io/node`, annotation `edgesync.io/nodes`, `spec.nodeName` of a Pod;
//! 2. it is a ConfigMap or Secret that a Pod refers to which names the node (1);
//! 3. a rule selects both the object and the node, and the node is known ([`Placement::set_node`]).
//!
//! The first two hold for nodes nobody has heard of yet too, so the order in which objects and nodes
//! appear does not matter. Memory is proportional to objects and nodes, not to their product: what a rule
//! places is kept once per rule. What nothing places is not kept, but for ConfigMaps and Secrets, to which
//! a Pod may come to refer: those in as few bytes as that takes.

mod differences;
mod placed;
pub mod rules;
mod summary;

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::sync::Arc;

use crate::object::objectsync::is_placeable;
use crate::object::{Labels, Reference, Resource, ResourceVersion, Target};
use placed::Words;
use rules::PlacementRule;

pub use differences::{Delta, Differences};
pub use placed::{OnNode, Placed};

pub use rules::{Glob, KindMatch, NodeMatch, ObjectMatch};
pub use summary::{MAX_NAMED_NODES, NODE_LABEL, NODES_ANNOTATION, Summary};

type Uid = Arc<str>;
type NodeName = Arc<str>;

/// The index. One owner; changes go in, differences come out.
#[derive(Debug, Default)]
pub struct Placement {
    rules: Vec<Rule>,
    nodes: HashMap<NodeName, Node>,
    objects: HashMap<Uid, Entry>,
    words: Words,
    /// How many objects a set of rules selects, once somebody has asked since an object has changed.
    counted: HashMap<Vec<usize>, usize>,
    /// Objects that a node is to hold for reasons 1 and 2, with the number of reasons.
    direct: HashMap<NodeName, HashMap<Uid, u32>>,
    /// For each ConfigMap and Secret that is referred to: the nodes, with the number of Pods.
    referred: HashMap<Named, BTreeMap<NodeName, u32>>,
    /// The ConfigMaps and Secrets in `objects`.
    named: HashMap<Named, Uid>,
    /// Those that nothing places.
    idle: HashMap<Named, Idle>,
}

/// A ConfigMap or Secret that nothing places.
#[derive(Debug)]
struct Idle {
    uid: Uid,
    version: ResourceVersion,
    resource: Arc<Resource>,
    size: u32,
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

#[derive(Clone, Debug)]
struct Entry {
    object: Arc<Placed>,
    /// The rules that select the object, ascending.
    rules: Box<[usize]>,
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
    fn of(object: &Placed) -> Option<Self> {
        let target = Target::of(&object.resource)?;
        let (namespace, name) = (object.object.namespace.clone(), object.object.name.clone());
        Some(Self { target, namespace, name })
    }

    fn referred(pod: &Placed, reference: &Reference) -> Self {
        let (target, name) = (reference.target, reference.name.clone());
        Self { target, namespace: pod.object.namespace.clone(), name }
    }
}

impl Idle {
    fn of(object: &Placed) -> Self {
        let Placed { uid, version, resource, size, .. } = object;
        let size = u32::try_from(*size).unwrap_or(u32::MAX);
        Self { uid: uid.clone(), version: version.clone(), resource: resource.clone(), size }
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
        let (before, after) = self.enter_node(name, labels);
        self.differences_of_node(&name.into(), &before, &after)
    }

    /// The same for a node nobody has asked about yet: nobody needs to know the differences.
    pub fn meet_node(&mut self, name: &str, labels: Labels) {
        self.enter_node(name, labels);
    }

    fn enter_node(&mut self, name: &str, labels: Labels) -> (Vec<usize>, Vec<usize>) {
        let selected = self.rules.iter().enumerate().filter(|(_, r)| r.rule.nodes.matches(name, &labels));
        let rules: Vec<usize> = selected.map(|(number, _)| number).collect();
        self.change_node(name, Some(Node { labels, rules }))
    }

    /// Forgets a node: rules place nothing on it any more. Objects that name it still do.
    pub fn remove_node(&mut self, name: &str) -> Vec<Delta> {
        let (before, after) = self.change_node(name, None);
        self.differences_of_node(&name.into(), &before, &after)
    }

    /// Enters or removes a node. Tells which rules selected it before and which do now.
    fn change_node(&mut self, name: &str, node: Option<Node>) -> (Vec<usize>, Vec<usize>) {
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
        (before, after)
    }

    /// What differs for a node whose rules have changed: only objects of a rule that came or went can.
    fn differences_of_node(&self, name: &NodeName, before: &[usize], after: &[usize]) -> Vec<Delta> {
        let changed =
            |a: &[usize], b: &[usize]| a.iter().filter(|n| !b.contains(n)).copied().collect::<Vec<_>>();
        let (gone, come) = (changed(before, after), changed(after, before));
        let mut deltas = Vec::new();
        for (numbers, other, comes) in [(&gone, after, false), (&come, before, true)] {
            for (place, number) in numbers.iter().enumerate() {
                let earlier = numbers.get(..place).unwrap_or_default();
                for uid in self.rules.get(*number).iter().flat_map(|rule| &rule.objects) {
                    let Some(entry) = self.objects.get(uid) else { continue };
                    // Placed by something else before and after, or listed by an earlier rule already.
                    let otherwise = self.is_direct(name, uid)
                        || entry.rules.iter().any(|n| other.contains(n) || earlier.contains(n));
                    if !otherwise {
                        deltas.push(Delta::one(name.clone(), entry.object.clone(), comes));
                    }
                }
            }
        }
        deltas
    }

    /// Takes in an object that is new or has changed. The same version again changes nothing.
    pub fn upsert(&mut self, object: Summary) -> Differences {
        let mut differences = Differences::default();
        if !is_placeable(&object.resource) {
            return differences;
        }
        if self.objects.get(&object.uid).is_some_and(|entry| entry.object.version == object.version) {
            return differences;
        }
        let rules = self.rules.iter().enumerate().filter(|(_, rule)| rule.rule.objects.matches(&object));
        let rules: Box<[usize]> = rules.map(|(number, _)| number).collect();
        let object = Arc::new(self.words.placed(object));
        let name = Named::of(&object);
        // One name, one object: a recreated one replaces the old one, whose deletion may come later.
        let namesake = name.as_ref().and_then(|name| self.named.get(name)).filter(|uid| **uid != object.uid);
        if let Some(old) = namesake.cloned() {
            differences = self.remove_uid(&old);
        }
        if let Some(name) = &name {
            self.idle.remove(name);
        }
        let old = self.take_out(&object.uid);
        let is_referred = name.as_ref().is_some_and(|name| self.referred.contains_key(name));
        let new = if rules.is_empty() && object.nodes.is_empty() && !is_referred {
            if let Some(name) = name {
                self.idle.insert(name, Idle::of(&object));
            }
            None
        } else {
            let entry = Entry { object: object.clone(), rules };
            self.put_in(entry.clone());
            Some(entry)
        };
        let before = old.as_ref().map(|old| old.object.clone());
        differences.add(old, new);
        differences.deltas.extend(self.follow_references(before.as_deref(), Some(&object)));
        differences
    }

    /// Takes out an object that is no more, as it was last.
    pub fn remove(&mut self, object: &Summary) -> Differences {
        let name = self.words.name(object);
        self.remove_named(name.as_ref(), &object.uid)
    }

    /// Takes out an object of [`Placement::not_among`].
    pub fn remove_placed(&mut self, object: &Placed) -> Differences {
        self.remove_named(Named::of(object).as_ref(), &object.uid)
    }

    fn remove_named(&mut self, name: Option<&Named>, uid: &str) -> Differences {
        if let Some(name) = name
            && self.idle.get(name).is_some_and(|idle| *idle.uid == *uid)
        {
            self.idle.remove(name);
        }
        self.remove_uid(uid)
    }

    fn remove_uid(&mut self, uid: &str) -> Differences {
        let mut differences = Differences::default();
        let Some(old) = self.take_out(uid) else { return differences };
        differences.deltas = self.follow_references(Some(&old.object), None);
        differences.add(Some(old), None);
        differences
    }

    /// After changes were missed and all that there is was taken in: the objects but those with these UIDs, to be taken
    /// out one by one. What no node holds is taken out.
    pub fn not_among(&mut self, uids: &HashSet<Uid>) -> Vec<Arc<Placed>> {
        self.idle.retain(|_, idle| uids.contains(&idle.uid));
        let gone = self.objects.iter().filter(|(uid, _)| !uids.contains(*uid));
        gone.map(|(_, entry)| entry.object.clone()).collect()
    }

    /// What a node is to hold.
    #[must_use]
    pub fn on<'a>(&'a self, node: &str) -> OnNode<'a> {
        let rules: &[usize] = self.nodes.get(node).map_or(&[], |node| &node.rules);
        OnNode { placement: self, direct: self.direct.get(node), rules }
    }

    /// How many objects a node is to hold.
    pub fn count(&mut self, node: &str) -> usize {
        let OnNode { direct, rules, .. } = self.on(node);
        let is_ruled = |entry: &Entry| rules.iter().any(|number| entry.rules.contains(number));
        let named = direct.into_iter().flat_map(HashMap::keys);
        let named = named.filter(|uid| self.objects.get(*uid).is_some_and(|entry| !is_ruled(entry))).count();
        if let Some(ruled) = self.counted.get(rules) {
            return named + ruled;
        }
        let ruled = OnNode { placement: self, direct: None, rules }.iter().count();
        let rules = rules.to_vec();
        self.counted.insert(rules, ruled);
        named + ruled
    }

    /// The object with this UID, wherever it is placed.
    #[must_use]
    pub fn object(&self, uid: &str) -> Option<&Arc<Placed>> {
        self.objects.get(uid).map(|entry| &entry.object)
    }

    /// The number of objects in the index.
    #[must_use]
    pub fn len(&self) -> usize {
        self.objects.len() + self.idle.len()
    }

    /// Whether the index has no objects.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    fn is_direct(&self, node: &str, uid: &str) -> bool {
        self.direct.get(node).is_some_and(|uids| uids.contains_key(uid))
    }

    fn is_ruled(&self, node: &str, entry: &Entry) -> bool {
        self.nodes.get(node).is_some_and(|node| node.rules.iter().any(|n| entry.rules.contains(n)))
    }

    /// Enters an object that is not in the index.
    fn put_in(&mut self, entry: Entry) {
        let Entry { object, rules } = &entry;
        self.forget_counts(rules);
        for number in rules {
            if let Some(rule) = self.rules.get_mut(*number) {
                rule.objects.insert(object.uid.clone());
            }
        }
        if let Some(name) = Named::of(object) {
            for node in self.referred.get(&name).into_iter().flat_map(BTreeMap::keys) {
                count_up(&mut self.direct, node, &object.uid);
            }
            self.named.insert(name, object.uid.clone());
        }
        for node in &*object.nodes {
            count_up(&mut self.direct, node, &object.uid);
        }
        self.objects.insert(object.uid.clone(), entry);
    }

    /// Takes an object out of every table but that of the references.
    fn take_out(&mut self, uid: &str) -> Option<Entry> {
        let entry = self.objects.remove(uid)?;
        let Entry { object, rules } = &entry;
        self.forget_counts(rules);
        for number in rules {
            if let Some(rule) = self.rules.get_mut(*number) {
                rule.objects.remove(uid);
            }
        }
        if let Some(name) = Named::of(object) {
            for node in self.referred.get(&name).into_iter().flat_map(BTreeMap::keys) {
                count_down(&mut self.direct, node, uid);
            }
            self.named.remove(&name);
        }
        for node in &*object.nodes {
            count_down(&mut self.direct, node, uid);
        }
        Some(entry)
    }

    /// An object that these rules select has come or gone.
    fn forget_counts(&mut self, rules: &[usize]) {
        if !rules.is_empty() {
            self.counted.clear();
        }
    }

    /// Counts the references of a Pod that has changed. What is referred to at a node for the first time
    /// comes, what is for the last time goes.
    fn follow_references(&mut self, old: Option<&Placed>, new: Option<&Placed>) -> Vec<Delta> {
        let (before, after) = (references(old), references(new));
        let mut deltas = Vec::new();
        for (name, node) in after.difference(&before) {
            let pods = self.referred.entry(name.clone()).or_default().entry(node.clone()).or_default();
            *pods += 1;
            if *pods == 1 {
                deltas.extend(self.reference_changed(name, node, true));
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
            deltas.extend(self.reference_changed(name, node, false));
        }
        deltas
    }

    /// A node has begun or ceased to refer to a ConfigMap or Secret: a difference if it exists and nothing
    /// else places it there.
    fn reference_changed(&mut self, name: &Named, node: &NodeName, refers: bool) -> Option<Delta> {
        if refers && let Some(idle) = self.idle.remove(name) {
            let object = Arc::new(self.words.awoken(name, idle));
            // The references are counted one by one: this is the first.
            self.objects.insert(object.uid.clone(), Entry { object: object.clone(), rules: Box::default() });
            self.named.insert(name.clone(), object.uid.clone());
        }
        let uid = self.named.get(name)?.clone();
        let changed = match refers {
            true => count_up(&mut self.direct, node, &uid),
            false => count_down(&mut self.direct, node, &uid),
        };
        let entry = self.objects.get(&uid)?;
        let differs = changed && !self.is_ruled(node, entry);
        let delta = differs.then(|| Delta::one(node.clone(), entry.object.clone(), refers));
        let is_idle = entry.rules.is_empty() && entry.object.nodes.is_empty();
        if is_idle && !self.referred.contains_key(name) {
            let idle = Idle::of(&entry.object);
            self.named.remove(name);
            self.objects.remove(&uid);
            self.idle.insert(name.clone(), idle);
        }
        delta
    }
}

/// What a Pod refers to, for each of the nodes it names.
fn references(pod: Option<&Placed>) -> BTreeSet<(Named, NodeName)> {
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
