//! Interests of the configuration and of rules stored as objects. Pure.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::plan::{Interest, Origin};
use edgesync_object::Resource;
use edgesync_placement::Summary;
use edgesync_placement::spec::InForce;

/// All interests. Before the rules stored as objects are listed, only those of the fleet itself are
/// active, because rules determine which other objects to list.
#[derive(Debug)]
pub(super) struct Interests {
    /// Interests that do not change, including those of the fleet itself.
    fixed: Vec<Interest>,
    /// Interests of rules stored as objects, by UID.
    rules: BTreeMap<Arc<str>, Interest>,
    are_rules_listed: bool,
}

impl Interests {
    /// Creates interests without rules. `fixed` includes [`Interest::fleet`].
    pub(super) fn new(fixed: Vec<Interest>) -> Self {
        Self { fixed, rules: BTreeMap::new(), are_rules_listed: false }
    }

    /// Records an object, which may be a rule. Returns whether the interests have changed.
    pub(super) fn set(&mut self, object: &Summary) -> bool {
        let Some(text) = &object.rule else { return false };
        let uid = Arc::clone(&object.uid);
        let interest = InForce::of(text, &object.namespace).rule.map(|rule| {
            let origin = Origin::Rule(Arc::clone(&uid));
            Interest::rule(origin, rule.objects)
        });
        let before = match interest.clone() {
            Some(interest) => self.rules.insert(uid, interest),
            None => self.rules.remove(&uid),
        };
        before != interest
    }

    /// Removes a deleted object, which may be a rule. Returns whether the interests have changed.
    pub(super) fn remove(&mut self, uid: &str) -> bool {
        self.rules.remove(uid).is_some()
    }

    /// Activates all interests, once the rules stored as objects are listed.
    pub(super) fn activate(&mut self) {
        self.are_rules_listed = true;
    }

    /// Returns whether all interests are active.
    pub(super) fn are_active(&self) -> bool {
        self.are_rules_listed
    }

    /// Returns the active interests.
    pub(super) fn active(&self) -> Vec<Interest> {
        let is_active = |interest: &&Interest| self.are_rules_listed || interest.origin == Origin::Fleet;
        let rules = self.rules.values().filter(|_| self.are_rules_listed);
        self.fixed.iter().filter(is_active).chain(rules).cloned().collect()
    }

    /// Returns whether objects of a kind are of interest, active or not.
    pub(super) fn select(&self, resource: &Resource) -> bool {
        self.fixed.iter().chain(self.rules.values()).any(|interest| interest.selects(resource))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use edgesync_object::{Selector, kinds};
    use edgesync_placement::ObjectMatch;
    use serde_json::json;

    fn rule(uid: &str, kind: &str) -> Summary {
        let resource = Arc::new(kinds::guess("edgesync.io/v1alpha1", "ClusterPlacement", false));
        let spec = json!({"objects": {"kinds": [kind]}, "nodes": {"names": ["*"]}});
        let object = json!({
            "apiVersion": "edgesync.io/v1alpha1", "kind": "ClusterPlacement",
            "metadata": {"name": uid, "uid": uid}, "spec": spec,
        });
        Summary::of(&serde_json::from_value(object).unwrap(), resource, 1.into())
    }

    fn origins(interests: &Interests) -> Vec<Origin> {
        interests.active().into_iter().map(|interest| interest.origin).collect()
    }

    #[test]
    fn rules_and_configuration_are_active_once_rules_are_listed() {
        let mut fixed = Vec::from(Interest::fleet(Selector::default()));
        fixed.push(Interest::rule(Origin::Configured(0), ObjectMatch::default()));
        let mut interests = Interests::new(fixed);
        assert!(interests.set(&rule("u1", "configmaps")));
        assert_eq!(origins(&interests), [Origin::Fleet, Origin::Fleet]);
        assert!(!interests.are_active());
        interests.activate();
        assert!(interests.are_active());
        let expected = [Origin::Fleet, Origin::Fleet, Origin::Configured(0), Origin::Rule("u1".into())];
        assert_eq!(origins(&interests), expected);
    }

    #[test]
    fn a_rule_changes_the_interests_only_if_it_differs() {
        let mut interests = Interests::new(Vec::new());
        let secrets = kinds::by_word("secrets").unwrap().resource();
        assert!(interests.set(&rule("u1", "configmaps")) && !interests.set(&rule("u1", "configmaps")));
        assert!(!interests.select(&secrets));
        assert!(interests.set(&rule("u1", "secrets")) && interests.select(&secrets));
        assert!(interests.remove("u1") && !interests.remove("u1"));
        assert!(!interests.select(&secrets));
    }
}
