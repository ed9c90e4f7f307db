//! Addition and removal of rules while there are nodes and objects.
//!
//! The labels of objects are not stored, so an added rule selects no objects at first: the owner of
//! the objects upserts all that the rule may select. A changed rule is added as a new one, and the
//! old one is retired after that relist, so that objects selected by both stay in place. A rule is
//! removed object by object, because one object may concern all nodes.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::rules::PlacementRule;
use super::slots::Id;
use super::{Differences, Placed, Placement, Rule, Stage};
use edgesync_object::{NodeName, Target};

/// Number of a rule, valid until the rule is removed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct RuleId(usize);

impl RuleId {
    pub(super) fn of(number: usize) -> Self {
        Self(number)
    }

    /// Returns the index among all rules, from 0: those of the configuration come first.
    #[must_use]
    pub fn number(self) -> usize {
        self.0
    }
}

impl Placement {
    /// Adds a rule. It selects the known nodes, and objects upserted from now on.
    pub fn add_rule(&mut self, rule: PlacementRule) -> RuleId {
        let free = self.rules.iter().position(|rule| rule.stage == Stage::Free);
        let number = free.unwrap_or(self.rules.len());
        let mut new = Rule::new(rule);
        for (name, node) in &mut self.nodes {
            if new.rule.nodes.matches(name, &node.labels) {
                new.nodes.insert(name.clone());
                let place = node.rules.partition_point(|other| *other < number);
                node.rules.insert(place, number);
            }
        }
        self.enter_rule(number, new);
        RuleId(number)
    }

    /// Enters a rule under a number that is free, or the next one.
    pub(super) fn enter_rule(&mut self, number: usize, new: Rule) {
        self.by_objects.add(number, &new.rule.objects);
        self.by_nodes.add(number, &new.rule.nodes);
        match self.rules.get_mut(number) {
            Some(rule) => *rule = new,
            None => self.rules.push(new),
        }
    }

    /// Retires a rule: it selects no further objects. [`Placement::shrink_rule`] releases the
    /// selected ones.
    pub fn retire_rule(&mut self, id: RuleId) {
        if let Some(rule) = self.rules.get_mut(id.0) {
            rule.stage = Stage::Retiring;
        }
    }

    /// Releases one object from a retired rule, and returns the differences. Returns `None` once no
    /// object is left: then the rule is removed, and its number may be reused.
    pub fn shrink_rule(&mut self, id: RuleId) -> Option<Differences> {
        let rule = self.rules.get_mut(id.0).filter(|rule| rule.stage == Stage::Retiring)?;
        match rule.objects.first().copied() {
            Some(object) => Some(self.leave_rule(id.0, object)),
            None => {
                let nodes = std::mem::take(&mut rule.nodes);
                self.by_objects.remove(id.0, &rule.rule.objects);
                self.by_nodes.remove(id.0, &rule.rule.nodes);
                *rule = Rule { stage: Stage::Free, ..Rule::new(PlacementRule::default()) };
                for name in nodes {
                    if let Some(node) = self.nodes.get_mut(&name) {
                        node.rules.retain(|number| *number != id.0);
                    }
                }
                self.counted.clear();
                None
            }
        }
    }

    /// Returns the id of a rule of the configuration.
    #[must_use]
    pub fn configured(&self, number: usize) -> Option<RuleId> {
        self.rules.get(number).map(|_| RuleId(number))
    }

    /// Returns the numbers of objects and of nodes that a rule selects.
    #[must_use]
    pub fn selected_by(&self, id: RuleId) -> (usize, usize) {
        self.rules.get(id.0).map_or((0, 0), |rule| (rule.objects.len(), rule.nodes.len()))
    }

    /// Returns the nodes that a rule selects, in order.
    pub fn nodes_of(&self, id: RuleId) -> impl Iterator<Item = &NodeName> {
        self.rules.get(id.0).into_iter().flat_map(|rule| &rule.nodes)
    }

    /// Returns the objects that a rule selects.
    pub fn objects_of(&self, id: RuleId) -> impl Iterator<Item = Arc<Placed>> {
        let objects = self.rules.get(id.0).into_iter().flat_map(|rule| &rule.objects);
        objects.filter_map(|object| self.slots.whole(self.slots.get(*object)?))
    }

    fn leave_rule(&mut self, number: usize, id: Id) -> Differences {
        let mut differences = Differences::default();
        if let Some(rule) = self.rules.get_mut(number) {
            rule.objects.remove(&id);
        }
        let Some(before) = self.state(id) else { return differences };
        let rules: Vec<usize> = before.rules.iter().filter(|other| **other != number).copied().collect();
        let target = Target::of(&before.object.resource);
        if rules.is_empty() && before.nodes.is_empty() && target.is_none() {
            // Nothing places the object any more; a Pod on no node refers to nothing.
            differences.add(self.take_out(id), None);
            return differences;
        }
        self.counted.clear();
        let set = self.selections.take(&rules);
        if let Some(old) = self.slots.select(id, set) {
            self.selections.release(old);
        }
        let after = self.state(id);
        self.share(id);
        differences.add(Some(before), after);
        differences
    }

    /// Returns the rules that select an object, ascending.
    pub(super) fn selecting(&self, object: &super::Summary) -> Vec<usize> {
        let in_force =
            |rule: &Rule| rule.stage == Stage::InForce && object.is_selected_by(&rule.rule.objects);
        let mut rules = self.by_objects.met(&object.namespace, &object.name, &object.labels);
        rules.retain(|number| self.rules.get(*number).is_some_and(in_force));
        rules
    }
}

impl Rule {
    pub(super) fn new(rule: PlacementRule) -> Self {
        Self { rule, stage: Stage::InForce, nodes: BTreeSet::new(), objects: BTreeSet::new() }
    }
}
