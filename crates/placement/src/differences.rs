//! What a change of the index means for nodes.

use std::collections::BTreeSet;
use std::ops::Bound;
use std::sync::Arc;

use super::{Node, Placed, Placement, Referring, State, Uid};
use edgesync_object::{NodeName, Target};

/// A difference in what a node is to hold.
#[derive(Clone, Debug)]
pub struct Delta {
    /// The node.
    pub node: NodeName,
    /// What it was to hold of the object; none if the object is new on it.
    pub before: Option<Arc<Placed>>,
    /// What it is to hold now; none if it is to hold the object no more. One of the two is there.
    pub after: Option<Arc<Placed>>,
}

impl Delta {
    /// The object comes, or goes, as it is.
    pub(super) fn one(node: NodeName, object: Arc<Placed>, comes: bool) -> Self {
        let (before, after) = if comes { (None, Some(object)) } else { (Some(object), None) };
        Self { node, before, after }
    }

    /// The UID of the object.
    #[must_use]
    pub fn uid(&self) -> Option<&Uid> {
        self.after.as_ref().or(self.before.as_ref()).map(|object| &object.uid)
    }
}

/// What the change of an object means for nodes. It is good until the next change of an object:
/// then the index says no more what was before.
#[derive(Debug, Default)]
pub struct Differences {
    /// Of what Pods have begun or ceased to refer to.
    pub deltas: Vec<Delta>,
    /// Of the object itself, and of one that it has replaced. Asked for by [`Placement::next_node`]
    /// and [`Placement::differences_on`].
    moves: Vec<Move>,
}

/// An object that was placed otherwise, or was another version, before.
#[derive(Debug)]
struct Move {
    before: Option<State>,
    after: Option<State>,
}

impl Differences {
    pub(super) fn add(&mut self, before: Option<State>, after: Option<State>) {
        if before.is_some() || after.is_some() {
            self.moves.push(Move { before, after });
        }
    }
}

impl Move {
    fn states(&self) -> impl Iterator<Item = &State> {
        self.before.iter().chain(&self.after)
    }
}

impl Placement {
    /// The first node after this one, in the order of names, that differences may concern. Its time
    /// does not depend on how many there are.
    #[must_use]
    pub fn next_node(&self, differences: &Differences, after: Option<&NodeName>) -> Option<NodeName> {
        let states = differences.moves.iter().flat_map(Move::states);
        states.filter_map(|state| self.next_of(state, after)).min().cloned()
    }

    /// The first node after this one that is to hold the object, if it is as in this state.
    fn next_of<'a>(&'a self, state: &'a State, after: Option<&NodeName>) -> Option<&'a NodeName> {
        let range = (after.map_or(Bound::Unbounded, Bound::Excluded), Bound::Unbounded);
        let named = &state.nodes;
        let next = named.partition_point(|node| after.is_some_and(|after| node <= after));
        let referring = self.referring_to(&state.object);
        let referring = referring.and_then(|nodes| nodes.range::<NodeName, _>(range).next());
        let rules = state.rules.iter().filter_map(|number| self.rules.get(*number));
        let ruled = rules.filter_map(|rule| BTreeSet::range::<NodeName, _>(&rule.nodes, range).next());
        ruled.chain(named.get(next)).chain(referring.map(|(node, _)| node)).min()
    }

    /// What differs for a node.
    pub fn differences_on<'a>(
        &'a self,
        differences: &'a Differences,
        node: &'a NodeName,
    ) -> impl Iterator<Item = Delta> + use<'a> {
        let known = self.nodes.get(node);
        differences.moves.iter().filter_map(move |Move { before, after }| {
            let there = |state: &&State| self.is_to_hold(node, known, state);
            let object = |state: &State| state.object.clone();
            let before = before.as_ref().filter(there).map(object);
            let after = after.as_ref().filter(there).map(object);
            let version = |object: &Arc<Placed>| object.version.clone();
            // The same version before and after: other rules place it now.
            let differs = before.as_ref().map(version) != after.as_ref().map(version);
            differs.then(|| Delta { node: node.clone(), before, after })
        })
    }

    fn is_to_hold(&self, name: &NodeName, known: Option<&Node>, state: &State) -> bool {
        known.is_some_and(|node| node.rules.iter().any(|number| state.rules.contains(number)))
            || state.nodes.iter().any(|node| node == name)
            || self.referring_to(&state.object).is_some_and(|nodes| nodes.contains_key(name))
    }

    /// The nodes of the Pods that refer to the object.
    pub(super) fn referring_to(&self, object: &Placed) -> Option<&Referring> {
        self.referring(Target::of(&object.resource)?, &object.object.namespace, &object.object.name)
    }
}
