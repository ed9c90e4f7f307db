//! The oracle of roll-outs: judges what a node is sent, by the objects, Nodes, rules and stored
//! statuses that the source had. It knows nothing of what a fleet has decided.
//!
//! A fleet may lag behind the source, and the parts of what it knows are not equally old: the
//! status that it has written itself is the newest, the revision that a node has is the oldest. So
//! each part may be as in any state of the source since the oldest that the fleet may know.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::history::{Objects, Registration, Thing};
use super::rules::{Assigned, Rule};
use super::store::State;
use super::world::World;
use edgesync_object::{NodeName, ResourceVersion};
use edgesync_protocol::change::{Change, Uid};
use edgesync_protocol::frame::{Objects as Frame, Received};
use edgesync_rollout::Set;

/// The sets of all revisions that were ever stored.
pub(super) type Sets = BTreeMap<crate::source::RevisionKey, Arc<Set>>;

/// What a rule says about an object on a node.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Effect {
    decides: Decides,
    /// Whether its revision has the object's name, and for which UID.
    has_name: Option<bool>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Decides {
    /// The rule does not concern the object there.
    Nothing,
    /// It places the object, whatever its version.
    Presence,
    /// It places the newest version, as it has no revision yet.
    Newest,
    /// It selects the object, which its revision does not have.
    Left,
    Version(ResourceVersion),
    /// Its revision cannot be read. Says whether it selects the object.
    Unread(bool),
}

impl Effect {
    /// Returns the effect of a revision that cannot be read.
    fn unread(selects: bool) -> Self {
        Self { decides: Decides::Unread(selects), has_name: None }
    }

    fn of(assigned: &Assigned, selects: bool, sets: &Sets, uid: &Uid, name: &str) -> Self {
        let Assigned::Revision(key) = assigned else {
            let decides = match assigned {
                Assigned::Plain if selects => Decides::Presence,
                Assigned::NotBegun if selects => Decides::Newest,
                _ => Decides::Nothing,
            };
            return Self { decides, has_name: None };
        };
        let entries = sets.get(key).map(|set| set.entries());
        // Of two objects of one name, the newest version counts.
        let named = entries.and_then(|entries| {
            let named = entries.iter().filter(|(_, entry)| &*entry.object.name == name);
            named.max_by_key(|(_, entry)| entry.version.as_str().parse::<u64>().unwrap())
        });
        let decides = match entries.and_then(|entries| entries.get(uid)) {
            Some(entry) => Decides::Version(entry.version.clone()),
            None if selects => Decides::Left,
            None => Decides::Nothing,
        };
        Self { decides, has_name: named.map(|(named, _)| named == uid) }
    }
}

/// What is desired of an object on a node.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Desired {
    Absent,
    /// The newest version, which may be one that the fleet has not observed yet.
    Newest,
    Version(ResourceVersion),
    /// The node keeps what it holds.
    Unchanged,
}

/// Returns what is desired, by the effects of all rules in the order of their age.
fn decide(thing: Option<&Thing>, node: &NodeName, effects: &[&Effect]) -> Desired {
    let newest = if thing.is_some() { Desired::Newest } else { Desired::Absent };
    let is_direct = thing.is_some_and(|thing| thing.nodes.contains(node));
    let is_placed = is_direct || effects.iter().any(|effect| effect.decides == Decides::Presence);
    let presence = if is_placed { newest.clone() } else { Desired::Absent };
    // A node holds one object of a name.
    if effects.iter().find_map(|effect| effect.has_name) == Some(false) {
        return Desired::Absent;
    }
    let decides =
        |it: &&&Effect| !matches!(it.decides, Decides::Nothing | Decides::Presence | Decides::Unread(false));
    match effects.iter().find(decides).map(|first| &first.decides) {
        Some(Decides::Unread(_)) => Desired::Unchanged,
        // What nothing else places may be in the revision.
        None if !is_placed && effects.iter().any(|it| it.decides == Decides::Unread(false)) => {
            Desired::Unchanged
        }
        Some(Decides::Newest) => newest,
        Some(Decides::Version(version)) => Desired::Version(version.clone()),
        _ => presence,
    }
}

impl Objects {
    /// Returns the rules in the order of their age.
    fn by_age(&self) -> Vec<&Arc<Rule>> {
        let mut rules: Vec<_> = self.rules.values().collect();
        rules.sort_by_key(|rule| rule.age());
        rules
    }

    /// Returns the desired version of each object on a node, by this state alone.
    pub(super) fn desired(&self, node: &NodeName) -> BTreeMap<Uid, ResourceVersion> {
        let (rules, registration) = (self.by_age(), self.nodes.get(node));
        let assigned: Vec<(&Rule, Assigned)> =
            rules.iter().map(|rule| (&***rule, rule.assigned(&rule.rollout, registration))).collect();
        let sets: Sets =
            self.revisions.iter().map(|(key, stored)| (key.clone(), stored.set.clone())).collect();
        let mut names: BTreeMap<&Uid, &str> = BTreeMap::new();
        for (_, assigned) in &assigned {
            if let Assigned::Revision(key) = assigned
                && let Some(stored) = self.revisions.get(key)
            {
                names.extend(stored.set.entries().iter().map(|(uid, entry)| (uid, &*entry.object.name)));
            }
        }
        names.extend(self.things.iter().map(|(uid, thing)| (uid, &*thing.name)));
        let desired = names.into_iter().filter_map(|(uid, name)| {
            let thing = self.things.get(uid).map(|thing| &**thing);
            let selects = |rule: &Rule| thing.is_some_and(|thing| rule.selects(thing));
            let effects: Vec<Effect> = assigned
                .iter()
                .map(|(rule, assigned)| Effect::of(assigned, selects(rule), &sets, uid, name))
                .collect();
            match decide(thing, node, &effects.iter().collect::<Vec<_>>()) {
                Desired::Absent | Desired::Unchanged => None,
                Desired::Newest => Some((uid.clone(), thing?.version.into())),
                Desired::Version(version) => Some((uid.clone(), version)),
            }
        });
        desired.collect()
    }
}

/// What a rule may say, in the states of a window.
struct Options<'a> {
    age: (i64, &'a str),
    specs: Vec<&'a Arc<Rule>>,
    assigned: BTreeSet<Assigned>,
    /// Whether the replica could not read one of the revisions.
    is_unread: bool,
}

/// All that may be desired on a node in a window of states.
pub(super) struct Window<'a> {
    node: &'a NodeName,
    states: &'a [Arc<Objects>],
    sets: &'a Sets,
    rules: Vec<Options<'a>>,
}

impl<'a> Window<'a> {
    /// `from` is the oldest state that the fleet may know.
    pub(super) fn new(state: &'a State, replica: usize, from: usize, node: &'a NodeName) -> Self {
        let states = state.history.since(from);
        let uids: BTreeSet<&Uid> = states.iter().flat_map(|state| state.rules.keys()).collect();
        let mut rules: Vec<Options<'a>> =
            uids.iter().filter_map(|uid| Options::of(states, uid, node)).collect();
        for rule in &mut rules {
            rule.is_unread = rule.assigned.iter().any(|assigned| match assigned {
                Assigned::Revision(key) => state.unread.has(replica, key, from),
                _ => false,
            });
        }
        rules.sort_by_key(|rule| rule.age);
        Self { node, states, sets: &state.sets, rules }
    }

    /// Returns whether a node may be sent an object in this version, or its removal. `has_existed`
    /// is whether the source has had the version: the newest one is read apart from the changes.
    pub(super) fn allows(
        &self,
        uid: &Uid,
        name: &str,
        version: Option<&ResourceVersion>,
        has_existed: bool,
    ) -> bool {
        let mut things: Vec<Option<&Arc<Thing>>> = Vec::new();
        for state in self.states {
            let thing = state.things.get(uid);
            let is_known = things.iter().any(|known| known.map(Arc::as_ptr) == thing.map(Arc::as_ptr));
            if !is_known {
                things.push(thing);
            }
        }
        things.into_iter().any(|thing| {
            let thing = thing.map(|thing| &**thing);
            let effects: Vec<Vec<Effect>> =
                self.rules.iter().map(|rule| rule.effects(thing, self.sets, uid, name)).collect();
            self.is_some_choice(thing, &effects, &mut Vec::new(), &|desired| match (desired, version) {
                (Desired::Absent, None) => true,
                (Desired::Newest, Some(_)) => has_existed,
                (Desired::Version(desired), Some(version)) => desired == *version,
                _ => false,
            })
        })
    }

    /// Describes what the rules say about an object.
    fn describe(&self, uid: &Uid, name: &str) -> String {
        let last = self.states.last().and_then(|state| state.things.get(uid)).map(|thing| &**thing);
        let effects = self.rules.iter().map(|rule| {
            let effects = rule.effects(last, self.sets, uid, name);
            format!(
                "{}: {:?}",
                rule.age.1,
                effects.iter().map(|it| (&it.decides, it.has_name)).collect::<Vec<_>>()
            )
        });
        format!("{}; now {:?}", effects.collect::<Vec<_>>().join(", "), last.map(|thing| thing.version))
    }

    /// Returns whether one effect of each further rule yields what is right.
    fn is_some_choice<'e>(
        &self,
        thing: Option<&Thing>,
        effects: &'e [Vec<Effect>],
        chosen: &mut Vec<&'e Effect>,
        is_right: &dyn Fn(Desired) -> bool,
    ) -> bool {
        let Some((first, rest)) = effects.split_first() else {
            return is_right(decide(thing, self.node, chosen));
        };
        first.iter().any(|effect| {
            chosen.push(effect);
            let is_found = self.is_some_choice(thing, rest, chosen, is_right);
            chosen.pop();
            is_found
        })
    }
}

impl<'a> Options<'a> {
    fn of(states: &'a [Arc<Objects>], uid: &Uid, node: &NodeName) -> Option<Self> {
        // Equal neighbours count once.
        let mut all: Vec<Option<&Arc<Rule>>> = states.iter().map(|state| state.rules.get(uid)).collect();
        all.dedup_by_key(|rule| rule.map(Arc::as_ptr));
        let mut nodes: Vec<Option<&Registration>> =
            states.iter().map(|state| state.nodes.get(node)).collect();
        nodes.dedup_by_key(|node| node.map(|node| node.version));
        let specs: Vec<&'a Arc<Rule>> = all.iter().copied().flatten().collect();
        let mut assigned = BTreeSet::new();
        // A changed rule selects nodes as before until the list is read again.
        let selects = |node: &Option<&Registration>| {
            node.is_some_and(|node| specs.iter().any(|rule| rule.selects_node(node)))
        };
        let deselects = |node: &Option<&Registration>| {
            node.is_none_or(|node| specs.iter().any(|rule| !rule.selects_node(node)))
        };
        if all.iter().any(Option::is_none) || nodes.iter().any(deselects) {
            assigned.insert(Assigned::Not);
        }
        for (place, rule) in all.iter().enumerate() {
            let Some(rule) = rule else { continue };
            // A fleet uses the status that it has written before that arrives with its rule.
            for later in all[place..].iter().map_while(|later| later.as_ref()) {
                let selected = nodes.iter().filter(|node| selects(node)).copied().flatten();
                assigned.extend(selected.map(|node| rule.assigned_to(&later.rollout, node)));
            }
        }
        let age = specs.first()?.age();
        Some(Self { age, specs, assigned, is_unread: false })
    }

    fn effects(&self, thing: Option<&Thing>, sets: &Sets, uid: &Uid, name: &str) -> Vec<Effect> {
        let selects: BTreeSet<bool> =
            self.specs.iter().map(|rule| thing.is_some_and(|thing| rule.selects(thing))).collect();
        let unread = selects.iter().filter(|_| self.is_unread);
        let mut effects: Vec<Effect> = unread.map(|selects| Effect::unread(*selects)).collect();
        for assigned in &self.assigned {
            for selects in &selects {
                let effect = Effect::of(assigned, *selects, sets, uid, name);
                if !effects.contains(&effect) {
                    effects.push(effect);
                }
            }
        }
        effects
    }
}

impl World {
    /// Judges the changes that a fleet has just sent to a node.
    pub(super) fn check_revision(&mut self, replica: usize, node: usize, frame: &Received) {
        if !self.rolls {
            return;
        }
        let changes: Vec<(Uid, Option<ResourceVersion>)> = match frame {
            Received::Objects(Frame { changes, .. }) => changes.iter().map(changed).collect(),
            Received::Part(part) => vec![(part.uid.clone(), Some(part.resource_version.clone()))],
            _ => return,
        };
        // A message in parts that has begun goes on, whatever is desired by then.
        let is_part = matches!(frame, Received::Part(_));
        let (device, state) = (&self.devices[node], self.model.state());
        let from = self.replicas[replica].judged;
        let window = Window::new(&state, replica, from, &device.name);
        let name = |uid: &Uid| state.history.any(uid).map(|thing| thing.name.clone()).unwrap_or_default();
        let is_wrong = |change: &&(Uid, Option<ResourceVersion>)| {
            let (uid, version) = change;
            let is_begun = is_part && device.sent.contains(*change);
            let exists = |version| state.history.existed(0, uid, version);
            let has_existed = version.as_ref().is_some_and(exists);
            !is_begun && !window.allows(uid, &name(uid), version.as_ref(), has_existed)
        };
        let violation = changes.iter().find(is_wrong).map(|(uid, version)| {
            let what = version
                .as_ref()
                .map_or_else(|| "the removal".to_owned(), |version| format!("version {version}"));
            format!(
                "roll-out: {} was sent {what} of {uid} ({}); the statuses since state {from} of {} do not say so: {}",
                device.name,
                name(uid),
                state.history.last(),
                window.describe(uid, &name(uid)),
            )
        });
        drop(state);
        self.devices[node].sent.extend(changes);
        self.time.violation = self.time.violation.take().or(violation);
    }

    /// Notes which states of the source the fleets have applied.
    pub(super) fn follow_rollouts(&mut self) {
        let state = self.model.state();
        for (replica, feed) in self.replicas.iter_mut().zip(&state.feeds) {
            let Some(fleet) = &replica.fleet else { continue };
            let rollouts = &fleet.reconciler.desired.rollouts;
            // The end of a relist may be on its way.
            let is_delivered = fleet.reconciler.broadcasts.is_delivered() && feed.queue.is_empty();
            let is_settled =
                is_delivered && rollouts.is_settled() && !rollouts.is_reading() && !feed.is_busy();
            if is_settled && !replica.was_stalled {
                replica.judged = replica.settled;
            }
        }
    }
}

/// Returns the object of a change with its new version; `None` if it is removed.
pub(super) fn changed(change: &Change) -> (Uid, Option<ResourceVersion>) {
    let version = match change {
        Change::Put(put) => Some(put.version.clone()),
        Change::Patch(patch) => Some(patch.version().clone()),
        Change::Delete(_) => None,
    };
    (change.uid().clone(), version)
}
