//! Plans watches for the served kinds, and keeps the plan. Pure.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::plan::{Interest, KindId, Kinds, Origin, Plan, Problem, Watch, WatchScope};
use edgesync_placement::Unread;

/// The served kinds and the current plan.
#[derive(Debug)]
pub(super) struct Planner {
    /// The namespaces of edgesync itself, whose objects are never placed.
    reserved: Vec<Arc<str>>,
    /// `None` before the first discovery.
    kinds: Option<Kinds>,
    /// The current plan without its watches, which the caller has.
    plan: Plan,
    /// Set when another plan may be necessary.
    is_outdated: bool,
}

impl Planner {
    /// Creates a planner without kinds.
    pub(super) fn new(reserved: Vec<Arc<str>>) -> Self {
        Self { reserved, kinds: None, plan: Plan::default(), is_outdated: false }
    }

    /// Sets the discovered kinds. Keeps those of groups whose discovery failed.
    pub(super) fn set_kinds(&mut self, mut kinds: Kinds) {
        if let Some(before) = &self.kinds {
            kinds.keep_undiscovered(before);
        }
        self.is_outdated |= self.kinds.as_ref() != Some(&kinds);
        self.kinds = Some(kinds);
    }

    /// Returns whether the kinds are known.
    pub(super) fn has_kinds(&self) -> bool {
        self.kinds.is_some()
    }

    /// Marks the plan as outdated, because the interests or refused watches have changed.
    pub(super) fn invalidate(&mut self) {
        self.is_outdated = true;
    }

    /// Returns whether the plan is outdated, and resets that.
    pub(super) fn take_outdated(&mut self) -> bool {
        std::mem::take(&mut self.is_outdated)
    }

    /// Makes a new plan. Returns its watches; `None` before the kinds are known.
    pub(super) fn replan(
        &mut self,
        interests: &[Interest],
        refused: &BTreeSet<WatchScope>,
    ) -> Option<BTreeMap<WatchScope, Watch>> {
        self.plan = Plan::of(interests, self.kinds.as_ref()?, refused);
        for namespace in &self.reserved {
            self.plan.exclude(namespace);
        }
        Some(std::mem::take(&mut self.plan.watches))
    }

    /// Returns the unmet interests and the objects of interest that are not watched.
    pub(super) fn problems(&self) -> (Vec<Problem>, Vec<Unread>) {
        (self.plan.problems.clone(), self.plan.unread.clone())
    }

    /// Returns whether the kinds are known and include those of the fleet itself.
    pub(super) fn is_fleet_served(&self) -> bool {
        self.has_kinds() && !self.plan.problems.iter().any(|problem| problem.origin == Origin::Fleet)
    }

    /// Returns whether the plan has a watch for each interest in a kind: the kind is served, and no
    /// watch exceeds the limit.
    pub(super) fn covers(&self, kind: &KindId) -> bool {
        let is_served = |kinds: &Kinds| kinds.served.iter().any(|resource| KindId::of(resource) == *kind);
        self.kinds.as_ref().is_some_and(is_served) && self.plan.is_whole()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use edgesync_object::{Resource, Selector, kinds};
    use std::sync::Arc;

    fn served(words: &[&str]) -> Kinds {
        let resource = |word: &&str| Arc::new(kinds::by_word(word).unwrap().resource());
        Kinds { served: words.iter().map(resource).collect(), undiscovered: BTreeSet::new() }
    }

    fn kind(word: &str) -> KindId {
        let resource: Resource = kinds::by_word(word).unwrap().resource();
        KindId::of(&resource)
    }

    #[test]
    fn a_plan_is_outdated_after_a_change_of_the_kinds_only() {
        let mut planner = Planner::new(vec!["edgesync".into()]);
        assert!(planner.replan(&[], &BTreeSet::new()).is_none() && !planner.has_kinds());
        planner.set_kinds(served(&["cm"]));
        assert!(planner.take_outdated() && !planner.take_outdated());
        planner.set_kinds(served(&["cm"]));
        assert!(!planner.take_outdated());
        let failed = Kinds { undiscovered: BTreeSet::from([String::new()]), ..Kinds::default() };
        planner.set_kinds(failed);
        assert!(planner.covers(&kind("cm")), "kinds of a group that fails are kept");
        planner.take_outdated();
        planner.invalidate();
        assert!(planner.take_outdated());
    }

    #[test]
    fn the_fleet_is_served_once_its_kinds_are() {
        let mut planner = Planner::new(vec!["edgesync".into()]);
        let interests = Interest::fleet(Selector::default());
        assert!(!planner.is_fleet_served());
        planner.set_kinds(served(&["nodes"]));
        assert_eq!(planner.replan(&interests, &BTreeSet::new()).unwrap().len(), 1);
        assert!(!planner.is_fleet_served(), "Placements are not served");
        let mut all = served(&["nodes"]);
        for name in ["Placement", "ClusterPlacement"] {
            all.served.push(Arc::new(kinds::guess("edgesync.io/v1alpha1", name, true)));
        }
        planner.set_kinds(all);
        assert_eq!(planner.replan(&interests, &BTreeSet::new()).unwrap().len(), 3);
        assert!(planner.is_fleet_served() && !planner.covers(&kind("cm")));
    }
}
