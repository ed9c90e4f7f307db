//! The history of the source: every state of its objects, over all of its lives. The truth for all
//! checks, whatever the fleet and the nodes know.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::sync::Arc;

use jiff::Timestamp;
use serde_json::json;

use super::rules::Rule;
use crate::source::{Change, RevisionKey};
use edgesync_object::{NodeName, Object, ObjectKey, ResourceVersion, kinds};
use edgesync_placement::Summary;
use edgesync_protocol::body::Body;
use edgesync_protocol::change::Uid;
use edgesync_protocol::cloud::Loaded;
use edgesync_protocol::simulation::model::Truth;
use edgesync_rollout::Set;

/// A ConfigMap, placed on the nodes that it names and on those of the rules that select it.
#[derive(Clone, Debug)]
pub(super) struct Thing {
    pub(super) version: u64,
    /// The number of the write, unique over all lives.
    pub(super) content: u64,
    pub(super) name: String,
    pub(super) nodes: BTreeSet<NodeName>,
    pub(super) tier: Option<u64>,
    pub(super) size: usize,
}

/// A Node.
#[derive(Clone, Debug)]
pub(super) struct Registration {
    /// The version of its creation, which its UID has.
    pub(super) born: u64,
    pub(super) version: u64,
    pub(super) tier: u64,
    /// Labels that waves select.
    pub(super) is_canary: bool,
    pub(super) is_at_site: bool,
    /// Whether the node has reported itself.
    pub(super) is_reported: bool,
}

/// The bodies of a revision.
#[derive(Clone, Debug)]
pub(super) struct StoredRevision {
    pub(super) set: Arc<Set>,
    pub(super) bodies: Arc<BTreeMap<Uid, Loaded>>,
    /// The wall clock in microseconds.
    pub(super) at: u64,
}

/// A state of the source.
#[derive(Clone, Debug, Default)]
pub(super) struct Objects {
    /// The newest version issued.
    pub(super) version: u64,
    pub(super) things: BTreeMap<Uid, Arc<Thing>>,
    pub(super) rules: BTreeMap<Uid, Arc<Rule>>,
    pub(super) revisions: BTreeMap<RevisionKey, StoredRevision>,
    pub(super) nodes: BTreeMap<NodeName, Registration>,
    /// The nodes that were removed from the fleet, with the times that identify their removals.
    pub(super) removed: BTreeMap<NodeName, Timestamp>,
    /// Those of them whose objects no replica has deleted yet.
    pub(super) removing: BTreeSet<NodeName>,
    /// The Nodes with which each node was removed.
    pub(super) gone: BTreeMap<NodeName, Gone>,
}

/// The Nodes with which a node was removed.
#[derive(Clone, Debug, Default)]
pub(super) struct Gone {
    births: BTreeSet<u64>,
    /// The newest version of them.
    version: u64,
}

impl Gone {
    pub(super) fn add(&mut self, born: u64, version: u64) {
        self.births.insert(born);
        self.version = self.version.max(version);
    }

    /// Returns whether the node was removed with this Node or a later one.
    pub(super) fn has(&self, born: u64, version: u64) -> bool {
        self.births.contains(&born) || version < self.version
    }
}

impl Thing {
    /// The value of a label that never changes.
    pub(super) fn half(&self) -> u64 {
        self.name.bytes().last().map_or(0, |last| u64::from(last % 2))
    }

    fn object(&self, uid: &str) -> Object {
        let nodes: Vec<&str> = self.nodes.iter().map(|node| &**node).collect();
        let labels = self.tier.map(|tier| [("tier", tier.to_string()), ("half", self.half().to_string())]);
        let object = json!({
            "apiVersion": "v1", "kind": "ConfigMap",
            "metadata": {
                "name": self.name, "namespace": "default", "uid": uid,
                "resourceVersion": self.version.to_string(),
                "annotations": {"edgesync.io/nodes": nodes.join(",")},
                "labels": BTreeMap::from_iter(labels.into_iter().flatten()),
            },
            "data": {"written": self.content.to_string(), "x": "x".repeat(self.size)},
        });
        serde_json::from_value(object).unwrap()
    }

    pub(super) fn body(&self, uid: &str) -> Body {
        Body::new(serde_json::to_string(&self.object(uid)).unwrap()).unwrap()
    }

    fn summary(&self, uid: &str) -> Summary {
        let resource = Arc::new(kinds::by_word("configmap").unwrap().resource());
        Summary::of(&self.object(uid), resource, self.version.into()).with_size(self.size + 300)
    }
}

impl Registration {
    fn summary(&self, name: &NodeName) -> Summary {
        let mut node: Object = serde_json::from_value(json!({
            "apiVersion": "v1", "kind": "Node",
            "metadata": {"name": name, "uid": format!("node-{name}-{}", self.born), "labels": {
                "tier": self.tier.to_string(), "canary": self.is_canary.to_string(), "site": self.is_at_site.to_string(),
            }},
        }))
        .unwrap();
        if self.is_reported {
            node.set_metadata("annotations", json!({"edgesync.io/node-labels": ""}));
        }
        Summary::of(&node, Arc::new(kinds::by_word("node").unwrap().resource()), self.version.into())
    }
}

impl Objects {
    /// Returns an object that something places on a node, in whatever version.
    pub(super) fn placed(&self, node: &NodeName, uid: &str) -> Option<&Thing> {
        let thing = self.things.get(uid)?;
        let registration = self.nodes.get(node);
        let places =
            |rule: &Rule| rule.selects(thing) && registration.is_some_and(|it| rule.selects_node(it));
        (thing.nodes.contains(node) || self.rules.values().any(|rule| places(rule))).then_some(thing)
    }

    pub(super) fn has_name(&self, name: &str) -> bool {
        self.things.values().any(|thing| thing.name == name)
    }

    /// Returns the list: rules, Nodes, then objects.
    pub(super) fn list(&self) -> Vec<Summary> {
        let rules = self.rules.iter().filter(|(_, rule)| !rule.is_configured());
        let rules = rules.map(|(uid, rule)| rule.summary(uid));
        let nodes = self.nodes.iter().map(|(name, node)| node.summary(name));
        rules.chain(nodes).chain(self.things.iter().map(|(uid, thing)| thing.summary(uid))).collect()
    }

    /// Returns the changes from an earlier state to this one.
    pub(super) fn changes_since(&self, before: &Self) -> Vec<Change> {
        let mut changes = Vec::new();
        for (uid, rule) in self.rules.iter().filter(|(_, rule)| !rule.is_configured()) {
            // A restore that leaves statuses out keeps the version.
            if before.rules.get(uid).is_none_or(|before| !Arc::ptr_eq(before, rule)) {
                changes.push(Change::Set(Arc::new(rule.summary(uid))));
            }
        }
        for (name, node) in &self.nodes {
            if before.nodes.get(name).is_none_or(|before| before.version != node.version) {
                changes.push(Change::Set(Arc::new(node.summary(name))));
            }
        }
        for (uid, thing) in before.things.iter().filter(|(uid, _)| !self.things.contains_key(*uid)) {
            changes.push(Change::Deleted(Arc::new(thing.summary(uid))));
        }
        for (uid, thing) in &self.things {
            if before.things.get(uid).is_none_or(|before| before.version != thing.version) {
                changes.push(Change::Set(Arc::new(thing.summary(uid))));
            }
        }
        let is_gone = |(name, node): &(&NodeName, &Registration)| {
            self.nodes.get(*name).is_none_or(|now| now.born != node.born)
        };
        for (name, node) in before.nodes.iter().filter(is_gone) {
            changes.push(Change::Deleted(Arc::new(node.summary(name))));
        }
        for (uid, rule) in before.rules.iter().filter(|(uid, _)| !self.rules.contains_key(*uid)) {
            changes.push(Change::Deleted(Arc::new(rule.summary(uid))));
        }
        changes
    }
}

/// All states so far, by position.
#[derive(Debug, Default)]
pub(super) struct History {
    pub(super) states: Vec<Arc<Objects>>,
    /// The positions at which an older copy has replaced the source.
    pub(super) restores: Vec<usize>,
}

impl History {
    pub(super) fn last(&self) -> usize {
        self.states.len() - 1
    }

    /// Returns the states from a position on.
    pub(super) fn since(&self, position: usize) -> &[Arc<Objects>] {
        &self.states[position.min(self.last())..]
    }

    /// Returns the first position, from one on, at which an object is placed on a node.
    pub(super) fn placed_since(&self, position: usize, node: &NodeName, uid: &str) -> Option<usize> {
        let placed = self.since(position).iter().position(|state| state.placed(node, uid).is_some());
        placed.map(|placed| position + placed)
    }

    /// Returns an object as of any time.
    pub(super) fn any(&self, uid: &str) -> Option<&Thing> {
        self.states.iter().rev().find_map(|state| state.things.get(uid)).map(|thing| &**thing)
    }

    /// Returns whether a restore has lost the bodies of a revision.
    pub(super) fn is_lost_revision(&self, key: &RevisionKey) -> bool {
        let has = |at: usize| self.states[at].revisions.contains_key(key);
        self.restores.iter().any(|at| has(at - 1) && !has(*at))
    }

    pub(super) fn existed(&self, from: usize, uid: &str, version: &ResourceVersion) -> bool {
        let is_it = |state: &Arc<Objects>| {
            state.things.get(uid).is_some_and(|thing| *version == thing.version.into())
        };
        self.since(from).iter().any(is_it)
    }
}

/// Judges the changes that a node applies in one session.
pub(super) struct Judge<'a> {
    pub(super) history: &'a History,
    pub(super) node: &'a NodeName,
    /// The oldest state that the fleet may have known when it sent them.
    pub(super) floor: usize,
    /// The same for each held object, as of its arrival.
    pub(super) floors: &'a BTreeMap<Uid, usize>,
    /// The version of which the node held a part at the Hello.
    pub(super) begun: Option<&'a (Uid, ResourceVersion)>,
    /// Objects whose removal an older frame of the session repeats.
    pub(super) repeated: &'a HashSet<Uid>,
    /// The removed objects, each with the state that the fleet has known by then.
    pub(super) gone: RefCell<Vec<(Uid, usize)>>,
    /// The number of removals for which no client of the source is responsible.
    pub(super) vanished: Cell<usize>,
    /// If rules have roll-outs, the changes that were right when they were sent to the node: an
    /// earlier version may be desired, and an object that was deleted.
    pub(super) sent: Option<&'a HashSet<(Uid, Option<ResourceVersion>)>>,
}

impl Truth for Judge<'_> {
    fn may_replace(&self, uid: &Uid, old: &ResourceVersion, new: &ResourceVersion) -> bool {
        if let Some(sent) = self.sent {
            return sent.contains(&(uid.clone(), Some(new.clone())));
        }
        let is_restored = self.history.restores.first().is_some_and(|at| self.history.existed(*at, uid, new));
        self.history.existed(0, uid, new) && (old.is_older_than(new) || is_restored)
    }

    fn may_insert(&self, uid: &Uid, version: &ResourceVersion) -> bool {
        if let Some(sent) = self.sent {
            return sent.contains(&(uid.clone(), Some(version.clone())));
        }
        let was_placed = self.history.placed_since(self.floor, self.node, uid).is_some();
        let is_begun = self.begun.is_some_and(|begun| begun.0 == *uid && begun.1 == *version);
        let from = if is_begun { 0 } else { self.floor };
        was_placed && self.history.existed(from, uid, version)
    }

    fn may_remove(&self, uid: &Uid, key: &ObjectKey) -> bool {
        if let Some(sent) = self.sent {
            // An object that was sent under the name replaces it.
            let has_name = |uid: &Uid| self.history.any(uid).is_some_and(|thing| *thing.name == *key.name);
            let is_replaced =
                || sent.iter().any(|(other, to)| other != uid && to.is_some() && has_name(other));
            return sent.contains(&(uid.clone(), None)) || is_replaced();
        }
        if self.repeated.contains(uid) {
            return true;
        }
        let from = self.floors.get(uid).copied().unwrap_or_default();
        let states = self.history.since(from);
        // The removal of a node reaches the fleet before earlier changes of the source.
        if let Some(removed) = states.iter().position(|state| state.removed.contains_key(self.node)) {
            self.gone.borrow_mut().push((uid.clone(), from + removed));
            return true;
        }
        let Some(gone) = states.iter().position(|state| state.placed(self.node, uid).is_none()) else {
            return false;
        };
        let at = from + gone;
        self.gone.borrow_mut().push((uid.clone(), at));
        let has = |at: usize| self.history.states[at].things.contains_key(uid);
        // A new object of the same name replaces it, whatever becomes of that one later.
        let is_replaced = || self.history.since(self.floor).iter().any(|state| state.has_name(&key.name));
        if self.history.restores.contains(&at) && has(at - 1) && !has(at) && !is_replaced() {
            self.vanished.set(self.vanished.get() + 1);
        }
        true
    }
}
