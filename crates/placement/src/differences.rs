//! Differences that a change of the index makes for nodes.

use std::collections::BTreeSet;
use std::ops::Bound;
use std::sync::Arc;

use super::{Node, Placed, Placement, Referring, RuleId, State, Uid};
use edgesync_object::{NodeName, Target};

/// Difference in the desired state of a node.
#[derive(Clone, Debug)]
pub struct Delta {
    /// Node with the difference.
    pub node: NodeName,
    /// The object desired before; `None` if it is new on the node.
    pub before: Option<Arc<Placed>>,
    /// The object desired now; `None` if it is removed from the node. At least one of the two is
    /// present.
    pub after: Option<Arc<Placed>>,
    /// Why the object was and is desired, if reasons are reported
    /// ([`Placement::set_reports_reasons`]).
    pub reasons: [Reasons; 2],
}

/// Why an object is desired on a node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Reasons {
    /// Whether it names the node, or a Pod on the node refers to it.
    pub is_direct: bool,
    /// The rules that select both, ascending.
    pub rules: Vec<RuleId>,
}

impl Reasons {
    /// Returns whether the object is desired.
    pub(super) fn any(&self) -> bool {
        self.is_direct || !self.rules.is_empty()
    }

    /// Returns the reasons by the rules of the object and those of the node.
    pub(super) fn of(is_direct: bool, object: &[usize], node: &[usize]) -> Self {
        let rules = node.iter().filter(|number| object.contains(number));
        Self { is_direct, rules: rules.map(|number| RuleId::of(*number)).collect() }
    }
}

impl Delta {
    /// Returns the addition or removal of an unchanged object.
    pub(super) fn one(node: NodeName, object: Arc<Placed>, comes: bool) -> Self {
        let (before, after) = if comes { (None, Some(object)) } else { (Some(object), None) };
        Self { node, before, after, reasons: Default::default() }
    }

    /// Returns the difference of an object whose reasons have changed; the object is desired for as
    /// long as it has one.
    pub(super) fn with_reasons(node: NodeName, object: &Arc<Placed>, reasons: [Reasons; 2]) -> Self {
        let [before, after] = reasons.each_ref().map(|reasons| reasons.any().then(|| object.clone()));
        Self { node, before, after, reasons }
    }

    /// Returns the UID of the object.
    #[must_use]
    pub fn uid(&self) -> Option<&Uid> {
        self.after.as_ref().or(self.before.as_ref()).map(|object| &object.uid)
    }
}

/// Differences that a change of an object makes for nodes. Valid until the next change of an
/// object: after that the index no longer has the previous state.
#[derive(Debug, Default)]
pub struct Differences {
    /// Differences of ConfigMaps and Secrets by added or removed references of a Pod.
    pub deltas: Vec<Delta>,
    /// Differences of the object itself, and of one that it replaced. Queried by
    /// [`Placement::next_node`] and [`Placement::differences_on`].
    moves: Vec<Move>,
}

/// An object whose placement or version has changed.
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
    /// Returns the first node after `after`, ordered by name, that the differences may concern. Its
    /// time does not depend on the number of nodes concerned.
    #[must_use]
    pub fn next_node(&self, differences: &Differences, after: Option<&NodeName>) -> Option<NodeName> {
        let states = differences.moves.iter().flat_map(Move::states);
        states.filter_map(|state| self.next_of(state, after)).min().cloned()
    }

    /// Returns the first node after `after` on which an object in this state is desired.
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

    /// Returns the differences for one node.
    pub fn differences_on<'a>(
        &'a self,
        differences: &'a Differences,
        node: &'a NodeName,
    ) -> impl Iterator<Item = Delta> + use<'a> {
        let known = self.nodes.get(node);
        differences.moves.iter().filter_map(move |Move { before, after }| {
            if self.reports_reasons {
                let reasons = |state: &Option<State>| {
                    state.as_ref().map(|state| self.reasons_on(node, known, state)).unwrap_or_default()
                };
                let reasons = [reasons(before), reasons(after)];
                let object = |state: &Option<State>, reasons: &Reasons| {
                    state.as_ref().filter(|_| reasons.any()).map(|state| state.object.clone())
                };
                let (before, after) = (object(before, &reasons[0]), object(after, &reasons[1]));
                let version = |object: &Option<Arc<Placed>>| object.as_ref().map(|it| it.version.clone());
                let differs = version(&before) != version(&after) || reasons[0] != reasons[1];
                return differs.then(|| Delta { node: node.clone(), before, after, reasons });
            }
            let there = |state: &&State| self.is_desired_on(node, known, state);
            let object = |state: &State| state.object.clone();
            let before = before.as_ref().filter(there).map(object);
            let after = after.as_ref().filter(there).map(object);
            let version = |object: &Arc<Placed>| object.version.clone();
            // With the same version before and after, only the rules that place it have changed.
            let differs = before.as_ref().map(version) != after.as_ref().map(version);
            differs.then(|| Delta { node: node.clone(), before, after, reasons: Default::default() })
        })
    }

    fn reasons_on(&self, name: &NodeName, known: Option<&Node>, state: &State) -> Reasons {
        let is_direct = state.nodes.iter().any(|node| node == name)
            || self.referring_to(&state.object).is_some_and(|nodes| nodes.contains_key(name));
        Reasons::of(is_direct, &state.rules, known.map_or(&[][..], |node| &node.rules))
    }

    fn is_desired_on(&self, name: &NodeName, known: Option<&Node>, state: &State) -> bool {
        known.is_some_and(|node| node.rules.iter().any(|number| state.rules.contains(number)))
            || state.nodes.iter().any(|node| node == name)
            || self.referring_to(&state.object).is_some_and(|nodes| nodes.contains_key(name))
    }

    /// Returns the nodes of the Pods that refer to the object.
    pub(super) fn referring_to(&self, object: &Placed) -> Option<&Referring> {
        self.referring(Target::of(&object.resource)?, &object.object.namespace, &object.object.name)
    }
}
