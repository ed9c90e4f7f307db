use std::collections::BTreeMap;
use std::time::Duration;

use serde_json::json;

use super::*;
use crate::config::Config;
use crate::fleet::nodes::{Nodes, identity_of_tests};
use crate::fleet::reconciler::Reconciler;
use crate::fleet::settings::Settings;
use crate::fleet::timeline::Timeline;
use crate::lifecycle::NodeLifecycle;
use crate::node_name;
use edgesync_placement::rules::PlacementRule;
use edgesync_placement::{Placement, Selection, Summary};
use edgesync_protocol::cloud::{DesiredState as _, Issued};
use edgesync_protocol::timing::Now;
use edgesync_rollout::revision::{Digest, Entry as Version};
use edgesync_rollout::status::Revision as Stacked;

const CANARY: &str = "edge-0";
const OTHER: &str = "edge-1";

/// UIDs with versions.
type Versions<'a> = &'a [(&'a str, u64)];

/// A reconciler with a rule that has a roll-out (`tier=a`), and one without (`tier=b` or `also`).
struct Rig {
    reconciler: Reconciler,
    rule: RuleIndex,
    versions: u64,
}

fn summary((uid, name): (&str, &str), version: u64, labels: &[(&str, &str)]) -> Summary {
    let labels: BTreeMap<&str, &str> = labels.iter().copied().collect();
    let object = json!({"metadata": {"name": name, "namespace": "plant", "uid": uid, "labels": labels}});
    let resource = Arc::new(kinds::by_word("configmap").unwrap().resource());
    Summary::of(&serde_json::from_value(object).unwrap(), resource, version.into())
}

const RULES: &str = r#"
    [[placement]]
    objects = { kinds = ["ConfigMap"], selector = "tier=a" }
    [[placement]]
    objects = { kinds = ["ConfigMap"], selector = "also" }
    "#;

fn rules(text: &str) -> Vec<PlacementRule> {
    let config = edgesync_config::parse::<Config>("test.toml".as_ref(), text, []).unwrap().config;
    config.placement.rules.into_iter().map(|rule| rule.rule).collect()
}

fn rollout() -> Arc<Rollout> {
    let rollout = json!({"waves": [{"selector": "canary"}, {}]});
    Arc::new(Rollout::parse(&rollout, "rollout").unwrap())
}

fn identity(name: &str, created: Timestamp) -> RuleIdentity {
    let key = RuleKey::Configured(name.into());
    RuleIdentity { key, created, namespace: "".into(), name: name.into() }
}

impl Rig {
    /// `places` is whether the rule has placed objects before.
    fn new(places: bool) -> Self {
        Self::of(RULES, places)
    }

    /// Creates it with these rules; the first one has the roll-out.
    fn of(text: &str, places: bool) -> Self {
        let lifecycle = NodeLifecycle::of_replica(Now::ZERO, Timestamp::UNIX_EPOCH, Duration::ZERO);
        let mut reconciler = Reconciler::new(
            Nodes::new(lifecycle, []),
            Placement::new(rules(text)),
            Timeline::new("i".into(), Arc::new(Issued::default())),
            Settings::new(&Config::default()),
            false,
        );
        let placement = &mut reconciler.desired.placement;
        placement.set_reports_reasons(true);
        let id = placement.configured(0).unwrap();
        let rule = identity("rule", Timestamp::UNIX_EPOCH);
        let rollouts = &mut reconciler.desired.rollouts;
        let rule = rollouts.govern(rule, rollout(), Status::default(), vec![id], places);
        let mut rig = Self { reconciler, rule, versions: 0 };
        for (name, labels) in [(CANARY, vec![("canary", "yes")]), (OTHER, vec![])] {
            let labels: Labels = labels.into_iter().map(|(k, v)| (k.to_owned(), v.to_owned())).collect();
            let name = node_name(name);
            rig.reconciler.nodes.set_object(&name, identity_of_tests(), labels.clone(), &labels);
            rig.reconciler.set_labels(&name, labels);
            rig.reconciler.meet(&name, None).unwrap();
        }
        rig.settle();
        rig
    }

    /// Delivers all changes and assignments.
    fn settle(&mut self) {
        self.settle_uncounted();
        for name in [CANARY, OTHER].map(node_name) {
            let counted = self.reconciler.nodes.named(&name).map(|node| node.progress.desired());
            assert_eq!(counted, Some(self.reconciler.desired_on(&name).count() as u64), "{name}");
        }
    }

    fn settle_uncounted(&mut self) {
        while self.reconciler.deliver_next() || self.reconciler.reassign_next() {}
        let active = self.reconciler.settle_rollouts();
        if !active.is_empty() {
            self.queue_all();
            self.settle_uncounted();
        }
    }

    /// Replaces the labels of a node, which others have assigned to it.
    fn label(&mut self, node: &str, labels: &[&str]) {
        let labels: Labels = labels.iter().map(|key| ((*key).to_owned(), "yes".to_owned())).collect();
        let name = node_name(node);
        self.reconciler.nodes.set_object(&name, identity_of_tests(), labels.clone(), &labels);
        self.reconciler.set_labels(&name, labels);
    }

    fn queue_all(&mut self) {
        self.reconciler.desired.rollouts.queue([CANARY, OTHER].map(node_name));
    }

    /// Writes an object with the next version, which it returns.
    fn put(&mut self, name: &str, labels: &[(&str, &str)]) -> u64 {
        self.put_as(name, name, labels)
    }

    fn put_as(&mut self, uid: &str, name: &str, labels: &[(&str, &str)]) -> u64 {
        self.versions += 1;
        let object = summary((uid, name), self.versions, labels);
        let differences = self.reconciler.desired.placement.upsert(&object);
        self.reconciler.spread(differences);
        self.settle();
        self.versions
    }

    fn delete(&mut self, name: &str) {
        let differences = self.reconciler.desired.placement.remove(name);
        self.reconciler.spread(differences);
        self.settle();
    }

    /// Replaces the stack: for each revision the waves that it is open for, and its versions. A
    /// revision without versions is lost.
    fn stack(&mut self, revisions: &[(usize, Option<Versions<'_>>)]) {
        let rollouts = &mut self.reconciler.desired.rollouts;
        let rule = rollouts.rule(self.rule).unwrap();
        let (key, waves) = (rule.key.clone(), rule.rollout.waves.digests());
        let (mut stack, mut sets) = (Vec::new(), Vec::new());
        for (number, (open, versions)) in (1..).zip(revisions) {
            let set = versions.map(|versions| {
                let entries = versions.iter().map(|(uid, version)| ((*uid).into(), entry(uid, *version)));
                Arc::new(Set::new(entries.collect()))
            });
            let digest = set.as_ref().map_or_else(Digest::default, |set| set.digest());
            let at = Timestamp::UNIX_EPOCH;
            stack.push(Stacked {
                number,
                digest,
                open: *open,
                promoted: 0,
                started_at: at,
                opened_at: at,
                good_since: None,
                overrides_windows_of: None,
            });
            sets.push(Revision::new(RevisionKey { rule: key.clone(), number, digest }, set, |_| None));
        }
        let status = Status { next_number: 9, revisions: stack, waves, ..Status::default() };
        rollouts.set_status(self.rule, status);
        sets.into_iter().for_each(|revision| rollouts.add_revision(self.rule, revision));
        self.queue_all();
        self.settle();
    }

    /// Returns the desired objects of a node with their versions.
    fn on(&self, node: &str) -> Vec<(String, u64)> {
        let desired = self.reconciler.desired_on(&node_name(node));
        let mut found: Vec<(String, u64)> = desired
            .iter()
            .map(|(uid, version)| {
                assert_eq!(desired.get(uid).map(|desired| desired.version), Some(version.clone()), "{uid}");
                (uid.to_owned(), version.as_str().parse().unwrap())
            })
            .collect();
        found.sort();
        found
    }
}

/// The UID begins with the name.
fn entry(uid: &str, version: u64) -> Version {
    let object = ObjectRef {
        api_version: "v1".into(),
        kind: "ConfigMap".into(),
        namespace: "plant".into(),
        name: uid.split('-').next().unwrap().into(),
    };
    Version { version: version.into(), object, labels: Labels::new(), size: 10, digest: "".into() }
}

fn versions(found: &[(&str, u64)]) -> Vec<(String, u64)> {
    found.iter().map(|(uid, version)| ((*uid).to_owned(), *version)).collect()
}

const A: [(&str, &str); 1] = [("tier", "a")];

#[test]
fn rule_without_a_revision_places_the_newest_versions() {
    for places in [false, true] {
        let mut rig = Rig::new(places);
        let version = rig.put("x", &A);
        assert_eq!(rig.on(CANARY), versions(&[("x", version)]));
        assert_eq!(rig.on(OTHER), versions(&[("x", version)]));
    }
}

#[test]
fn each_node_has_the_newest_revision_that_is_open_for_its_wave() {
    let mut rig = Rig::new(true);
    rig.put("x", &A);
    rig.stack(&[(2, Some(&[("x", 1)]))]);
    rig.put("x", &A);
    assert_eq!(rig.on(CANARY), versions(&[("x", 1)]), "a change reaches no node by itself");
    rig.stack(&[(2, Some(&[("x", 1)])), (1, Some(&[("x", 2)]))]);
    assert_eq!((rig.on(CANARY), rig.on(OTHER)), (versions(&[("x", 2)]), versions(&[("x", 1)])));
    rig.stack(&[(2, Some(&[("x", 1)]))]);
    assert_eq!(rig.on(CANARY), versions(&[("x", 1)]), "an undone version is replaced by the one before");
}

#[test]
fn object_that_the_source_has_deleted_stays_while_the_revision_has_it() {
    let mut rig = Rig::new(true);
    rig.put("x", &A);
    rig.stack(&[(2, Some(&[("x", 1)]))]);
    rig.delete("x");
    assert_eq!(rig.on(OTHER), versions(&[("x", 1)]));
    rig.stack(&[(2, Some(&[("x", 1)])), (1, Some(&[]))]);
    assert_eq!((rig.on(CANARY), rig.on(OTHER)), (Vec::new(), versions(&[("x", 1)])));
}

/// A node holds one object of a name.
#[test]
fn object_that_was_created_again_waits_until_the_one_before_is_gone() {
    let mut rig = Rig::new(true);
    rig.put("x", &A);
    rig.stack(&[(2, Some(&[("x", 1)]))]);
    let version = rig.put_as("x-again", "x", &[("also", "yes")]);
    assert_eq!(rig.on(OTHER), versions(&[("x", 1)]));
    rig.stack(&[(2, Some(&[("x", 1)])), (1, Some(&[]))]);
    assert_eq!((rig.on(CANARY), rig.on(OTHER)), (versions(&[("x-again", version)]), versions(&[("x", 1)])));
    rig.stack(&[(2, Some(&[("x", 1)]))]);
    assert_eq!(rig.on(CANARY), versions(&[("x", 1)]));
    let version = rig.put("y", &[("also", "yes")]);
    assert_eq!(rig.on(CANARY), versions(&[("x", 1), ("y", version)]), "another name");
}

/// The removal of an object was undone, and a new one has its name. Replicas chose different ones.
#[test]
fn newest_of_two_objects_of_one_name_in_a_revision_counts() {
    for _ in 0..20 {
        let mut rig = Rig::new(true);
        let both: Versions<'_> = &[("x", 1), ("x-a", 3), ("x-b", 2), ("y", 10)];
        rig.stack(&[(2, Some(both))]);
        assert_eq!(rig.on(OTHER), versions(&[("x-a", 3), ("y", 10)]));
        rig.stack(&[(2, Some(both)), (1, Some(&[("x", 1), ("x-b", 2), ("y", 10)]))]);
        assert_eq!(rig.on(CANARY), versions(&[("x-b", 2), ("y", 10)]), "the next one is desired");
        rig.stack(&[(2, Some(both))]);
        assert_eq!(rig.on(CANARY), versions(&[("x-a", 3), ("y", 10)]));
    }
}

/// The revision of another rule has an object of the same name: the machine of the node was not
/// informed, and the record of the object stayed.
#[test]
fn object_that_an_older_rule_hides_is_absent_at_once() {
    let mut rig = Rig::new(true);
    rig.stack(&[(2, Some(&[("x", 1)]))]);
    let id = rig.reconciler.desired.placement.configured(1).unwrap();
    let older = identity("older", Timestamp::MIN);
    let rollouts = &mut rig.reconciler.desired.rollouts;
    rig.rule = rollouts.govern(older, rollout(), Status::default(), vec![id], true);
    rig.queue_all();
    rig.settle();
    assert_eq!(rig.on(OTHER), versions(&[("x", 1)]));
    rig.stack(&[(2, Some(&[("x-new", 2)]))]);
    assert_eq!(rig.on(OTHER), versions(&[("x-new", 2)]));
    rig.stack(&[(2, Some(&[("x-new", 2)])), (1, Some(&[]))]);
    assert_eq!((rig.on(CANARY), rig.on(OTHER)), (versions(&[("x", 1)]), versions(&[("x-new", 2)])));
}

#[test]
fn new_object_is_absent_until_a_revision_has_it() {
    let mut rig = Rig::new(true);
    rig.stack(&[(2, Some(&[]))]);
    rig.put("x", &A);
    assert_eq!(rig.on(CANARY), Vec::new());
    // Another rule, without a roll-out, places it.
    let version = rig.put("x", &[("tier", "a"), ("also", "yes")]);
    assert_eq!(rig.on(CANARY), versions(&[("x", version)]));
    let version = rig.put("x", &[("also", "yes")]);
    assert_eq!(rig.on(CANARY), versions(&[("x", version)]));
    rig.put("x", &A);
    assert_eq!(rig.on(CANARY), Vec::new());
}

#[test]
fn label_that_others_assign_moves_a_node_to_another_wave() {
    let mut rig = Rig::new(true);
    rig.put("x", &A);
    rig.put("x", &A);
    rig.stack(&[(2, Some(&[("x", 1)])), (1, Some(&[("x", 2)]))]);
    let labels = Labels::from([("canary".to_owned(), "yes".to_owned())]);
    let name = node_name(OTHER);
    // The node claims the label itself, and the operator trusts it for placement only.
    rig.reconciler.nodes.set_object(&name, identity_of_tests(), labels.clone(), &Labels::new());
    rig.reconciler.set_labels(&name, labels.clone());
    rig.settle();
    assert_eq!(rig.on(OTHER), versions(&[("x", 1)]));
    rig.reconciler.nodes.set_object(&name, identity_of_tests(), labels.clone(), &labels);
    rig.queue_all();
    rig.settle();
    assert_eq!(rig.on(OTHER), versions(&[("x", 2)]));
}

/// The object stays in place: with the old assignment it was removed until the queue was handled.
#[test]
fn label_that_moves_a_node_to_a_rule_with_a_roll_out_takes_effect_at_once() {
    let text = r#"
    [[placement]]
    nodes = { selector = "rolled" }
    objects = { kinds = ["ConfigMap"] }
    [[placement]]
    nodes = { selector = "plain" }
    objects = { kinds = ["ConfigMap"] }
    "#;
    let mut rig = Rig::of(text, true);
    rig.put("x", &[]);
    rig.stack(&[(2, Some(&[("x", 1)]))]);
    let version = rig.put("x", &[]);
    rig.label(OTHER, &["plain"]);
    assert_eq!(rig.on(OTHER), versions(&[("x", version)]));
    rig.label(OTHER, &["rolled"]);
    assert_eq!(rig.on(OTHER), versions(&[("x", 1)]));
    rig.label(OTHER, &["plain"]);
    assert_eq!(rig.on(OTHER), versions(&[("x", version)]));
    rig.settle();
}

/// A changed rule has two numbers until the relist ends.
#[test]
fn changed_node_selector_reaches_newly_selected_nodes() {
    let rule = |nodes: serde_json::Value| {
        let object = json!({
            "apiVersion": "edgesync.io/v1alpha1", "kind": "ClusterPlacement",
            "metadata": {"name": "web", "uid": "web-uid"},
            "spec": {"objects": {"kinds": ["ConfigMap"], "selector": {"matchLabels": {"tier": "b"}}}, "nodes": nodes},
        });
        let resource = Arc::new(kinds::guess("edgesync.io/v1alpha1", "ClusterPlacement", false));
        Arc::new(Summary::of(&serde_json::from_value(object).unwrap(), resource, 1.into()))
    };
    let mut rig = Rig::new(true);
    let mut rules = crate::fleet::rules::Rules::default();
    rules.object_listed();
    let relisted =
        rules.set(&mut rig.reconciler, &rule(json!({"selector": {"matchLabels": {"canary": "yes"}}})));
    assert!(relisted.is_some() && rules.relisted(&mut rig.reconciler).is_none());
    let id = rules.one("web-uid").and_then(|(_, id, _)| id).unwrap();
    let identity = RuleIdentity { key: RuleKey::Object("web-uid".into()), ..identity("web", Timestamp::MIN) };
    let rollouts = &mut rig.reconciler.desired.rollouts;
    rig.rule = rollouts.govern(identity, rollout(), Status::default(), vec![id], false);
    rig.put("y", &[("tier", "b")]);
    rig.stack(&[(2, Some(&[("y", 1)]))]);
    assert_eq!((rig.on(CANARY), rig.on(OTHER)), (versions(&[("y", 1)]), Vec::new()));
    assert!(rules.set(&mut rig.reconciler, &rule(json!({}))).is_some());
    rig.settle();
    assert_eq!((rig.on(CANARY), rig.on(OTHER)), (versions(&[("y", 1)]), versions(&[("y", 1)])));
}

#[test]
fn rules_that_come_during_a_list_are_in_the_next_one() {
    let rule = |namespace: &str| {
        let object = json!({
            "apiVersion": "edgesync.io/v1alpha1", "kind": "ClusterPlacement", "metadata": {"name": namespace, "uid": namespace},
            "spec": {"objects": {"kinds": ["ConfigMap"], "namespaces": [namespace]}, "nodes": {}},
        });
        let resource = Arc::new(kinds::guess("edgesync.io/v1alpha1", "ClusterPlacement", false));
        Arc::new(Summary::of(&serde_json::from_value(object).unwrap(), resource, 1.into()))
    };
    let resource = kinds::by_word("cm").unwrap().resource();
    let selected = |selection: &Selection| {
        ["a", "b", "c"].map(|namespace| selection.selects((&resource, namespace, "x"), |_| true))
    };
    let mut rig = Rig::new(true);
    let mut rules = crate::fleet::rules::Rules::default();
    rules.object_listed();
    let first = rules.set(&mut rig.reconciler, &rule("a")).unwrap();
    assert_eq!(selected(&first), [true, false, false]);
    assert_eq!(["b", "c"].map(|name| rules.set(&mut rig.reconciler, &rule(name))), [None, None]);
    let next = rules.relisted(&mut rig.reconciler).unwrap();
    assert_eq!(selected(&next), [false, true, true]);
    assert!(!rules.are_complete() && rules.relisted(&mut rig.reconciler).is_none() && rules.are_complete());
}

/// A write that takes long held up the statuses of all rules, and the loop did not rest.
#[test]
fn status_of_a_rule_waits_for_its_own_roll_out_only() {
    let mut rig = Rig::new(true);
    let mut rules = crate::fleet::rules::Rules::default();
    for uid in ["one", "two"] {
        let object = json!({
            "apiVersion": "edgesync.io/v1alpha1", "kind": "ClusterPlacement", "metadata": {"name": uid, "uid": uid},
            "spec": {"objects": {"kinds": ["Secret"]}},
        });
        let resource = Arc::new(kinds::guess("edgesync.io/v1alpha1", "ClusterPlacement", false));
        let object = Summary::of(&serde_json::from_value(object).unwrap(), resource, 1.into());
        assert_eq!(rules.set(&mut rig.reconciler, &Arc::new(object)), None);
    }
    let mut written = Vec::new();
    for _ in 0..3 {
        let rollout = |uid: &Uid| (&**uid != "one").then(Vec::new);
        let status = rules.check_next(&rig.reconciler, rollout, |_, _| Vec::new());
        written.extend(status.map(|status| status.uid));
        rules.status_written();
    }
    assert_eq!(written, ["two".into()]);
    assert!(!rules.has_due(), "the loop can rest until the next check");
}

#[test]
fn lost_revision_leaves_nodes_what_they_hold() {
    let mut rig = Rig::new(true);
    rig.put("x", &A);
    rig.stack(&[(2, None)]);
    let on_node = rig.reconciler.desired_on(&node_name(OTHER));
    assert!(on_node.get("x").is_none() && on_node.is_unread(&entry("x", 1).object));
    rig.stack(&[(2, Some(&[("x", 1)]))]);
    assert_eq!(rig.on(OTHER), versions(&[("x", 1)]));
}

#[test]
fn lost_revision_holds_up_no_object_of_another_rule() {
    let mut rig = Rig::new(true);
    rig.stack(&[(2, None)]);
    let version = rig.put("y", &[("also", "yes")]);
    assert_eq!(rig.on(OTHER), versions(&[("y", version)]));
    let desired = rig.reconciler.desired_on(&node_name(OTHER));
    let secret = ObjectRef { kind: "Secret".into(), ..entry("z", 1).object };
    assert!(!desired.is_unread(&secret), "the rule selects ConfigMaps only");
    assert!(desired.is_unread(&entry("z", 1).object));
}

/// After a restart the waves of an invalid roll-out are not known: canaries went back to the stable
/// revision.
#[test]
fn nodes_of_unknown_waves_keep_what_they_hold() {
    let mut rig = Rig::new(true);
    rig.put("x", &A);
    rig.reconciler.desired.rollouts.set_frozen(rig.rule, true);
    rig.stack(&[(2, Some(&[("x", 1)])), (1, Some(&[("x", 2)]))]);
    for node in [CANARY, OTHER] {
        let desired = rig.reconciler.desired_on(&node_name(node));
        assert!(desired.count() == 0 && desired.is_unread(&entry("x", 1).object), "{node}");
    }
    rig.reconciler.desired.rollouts.set_frozen(rig.rule, false);
    rig.queue_all();
    rig.settle();
    assert_eq!((rig.on(CANARY), rig.on(OTHER)), (versions(&[("x", 2)]), versions(&[("x", 1)])));
    rig.reconciler.desired.rollouts.set_frozen(rig.rule, true);
    rig.stack(&[(2, Some(&[("x", 3)]))]);
    assert_eq!(rig.on(OTHER), versions(&[("x", 3)]), "all waves have the stable revision");
}

/// Replaces the stack by one revision whose set was not read yet.
fn unread(rig: &mut Rig) {
    let rollouts = &mut rig.reconciler.desired.rollouts;
    let mut status = rollouts.rule(rig.rule).unwrap().status.clone();
    status.revisions[0].number = 7;
    rollouts.set_status(rig.rule, status);
    rig.queue_all();
    rig.settle();
}

/// A node that is selected while the revision is being read removed what it holds.
#[test]
fn node_without_a_revision_keeps_what_it_holds_while_one_is_read() {
    let text = r#"
    [[placement]]
    nodes = { selector = "rolled" }
    objects = { kinds = ["ConfigMap"] }
    "#;
    let mut rig = Rig::of(text, true);
    rig.put("x", &[]);
    rig.stack(&[(2, Some(&[("x", 1)]))]);
    unread(&mut rig);
    rig.label(OTHER, &["rolled"]);
    rig.settle();
    assert!(rig.on(OTHER).is_empty());
    assert!(rig.reconciler.desired_on(&node_name(OTHER)).is_unread(&entry("x", 1).object));
    // The count of `settle` fails if the machine does not learn of the object.
    rig.reconciler.desired.rollouts.leave(rig.rule);
    rig.queue_all();
    rig.settle();
    assert_eq!(rig.on(OTHER), versions(&[("x", 1)]));
}

#[test]
fn read_revision_replaces_the_unknown_one() {
    let mut rig = Rig::new(true);
    rig.put("x", &A);
    rig.stack(&[(2, Some(&[("x", 1)]))]);
    unread(&mut rig);
    assert_eq!(rig.on(OTHER), versions(&[("x", 1)]), "the revision before");
    rig.reconciler.desired.rollouts.set(&node_name(OTHER), None);
    rig.queue_all();
    rig.settle_uncounted();
    let rollouts = &mut rig.reconciler.desired.rollouts;
    let key = rollouts.first_awaited().unwrap().1;
    let set = Set::new([("x".into(), entry("x", 1))].into());
    rollouts.add_revision(rig.rule, Revision::new(key, Some(Arc::new(set)), |_| None));
    rig.queue_all();
    rig.settle_uncounted();
    assert_eq!(rig.on(OTHER), versions(&[("x", 1)]));
}

#[test]
fn rule_that_loses_its_roll_out_places_the_newest_versions_again() {
    let mut rig = Rig::new(true);
    rig.put("x", &A);
    rig.stack(&[(2, Some(&[("x", 1)]))]);
    let version = rig.put("x", &A);
    rig.reconciler.desired.rollouts.leave(rig.rule);
    rig.queue_all();
    rig.settle();
    assert_eq!(rig.on(OTHER), versions(&[("x", version)]));
    assert!(rig.reconciler.desired.rollouts.is_empty());
}

#[test]
fn deleted_rule_removes_its_objects() {
    let mut rig = Rig::new(true);
    rig.put("x", &A);
    rig.stack(&[(2, Some(&[("x", 1)]))]);
    rig.put("x", &A);
    rig.reconciler.desired.rollouts.rule_deleted(&RuleKey::Configured("rule".into()));
    rig.queue_all();
    rig.settle();
    assert_eq!(rig.on(OTHER), Vec::new(), "not even the newest version, which no wave has had");
}

#[test]
fn nodes_of_other_rules_pay_nothing() {
    let text = r#"
    [[placement]]
    nodes = { selector = "canary" }
    objects = { kinds = ["ConfigMap"], selector = "tier=a" }
    [[placement]]
    objects = { kinds = ["ConfigMap"], selector = "also" }
    "#;
    let mut rig = Rig::of(text, true);
    let is_governed = |rig: &Rig, node| rig.reconciler.desired_on(&node_name(node)).governed.is_some();
    assert!(is_governed(&rig, CANARY) && !is_governed(&rig, OTHER));
    let version = rig.put("x", &[("tier", "a"), ("also", "yes")]);
    rig.stack(&[(2, Some(&[("x", 7)]))]);
    assert_eq!((rig.on(CANARY), rig.on(OTHER)), (versions(&[("x", 7)]), versions(&[("x", version)])));
    rig.label(CANARY, &[]);
    rig.settle();
    assert_eq!(rig.on(CANARY), versions(&[("x", version)]));
    assert!(!is_governed(&rig, CANARY));
    let reasons = |rig: &mut Rig| {
        let labels = Labels::from([("canary".to_owned(), "yes".to_owned())]);
        let placement = &mut rig.reconciler.desired.placement;
        let deltas = placement.set_node(&node_name(OTHER), labels);
        placement.set_node(&node_name(OTHER), Labels::new());
        deltas.into_iter().map(|delta| delta.reasons).collect::<Vec<_>>()
    };
    assert_eq!(reasons(&mut rig).len(), 1, "only the reasons differ");
    rig.reconciler.desired.rollouts.leave(rig.rule);
    rig.settle();
    assert!(reasons(&mut rig).is_empty(), "no rule with a roll-out is left");
}

/// Memory: nodes of a wave share one assignment, and all nodes the sets.
#[test]
fn equal_assignments_are_shared() {
    let mut rig = Rig::new(true);
    for number in 2..100 {
        rig.reconciler.meet(&node_name(&format!("edge-{number}")), None).unwrap();
    }
    rig.stack(&[(2, Some(&[("x", 1)])), (1, Some(&[("x", 2)]))]);
    let names: Vec<NodeName> = (0..100).map(|number| node_name(&format!("edge-{number}"))).collect();
    rig.reconciler.desired.rollouts.queue(names.clone());
    rig.settle();
    let rollouts = &rig.reconciler.desired.rollouts;
    let assigned = names.iter().filter_map(|name| rollouts.of(name)).map(Arc::as_ptr);
    assert_eq!(assigned.collect::<BTreeSet<_>>().len(), 2, "one for the canary, one for all others");
}

/// The counts of [`Rig::settle`] fail if a difference is missed or reported twice.
#[test]
fn desired_objects_are_counted_right_after_any_changes() {
    let mut random = 7_u64;
    let mut below = |limit: u64| {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (random >> 33) % limit
    };
    let mut rig = Rig::new(true);
    for _ in 0..2000 {
        let name = ["x", "y", "z"][usize::try_from(below(3)).unwrap()];
        match below(7) {
            0 => rig.delete(name),
            6 => {
                rig.put_as(&format!("{name}-again"), name, &[("also", "yes")]);
            }
            1 | 2 => {
                let labels: &[&[(&str, &str)]] =
                    &[&A, &[("also", "yes")], &[("tier", "a"), ("also", "yes")], &[]];
                rig.put(name, labels[usize::try_from(below(4)).unwrap()]);
            }
            3 => {
                let (old, new) = (below(9) + 1, below(9) + 1);
                let other = ["x", "y", "z"][usize::try_from(below(3)).unwrap()];
                rig.stack(&[(2, Some(&[(name, old)])), (1, Some(&[(name, new), (other, new)]))]);
            }
            4 => rig.stack(&[(2, None)]),
            _ => {
                rig.label(OTHER, if below(2) == 0 { &[] } else { &["canary"] });
                rig.settle();
            }
        }
        for node in [CANARY, OTHER] {
            rig.on(node);
        }
    }
}
