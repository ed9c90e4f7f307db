//! Guarantees of the index: the right nodes, exact differences, and the same result as a rebuild.

use super::*;
use edgesync_object::{Object, kinds};
use proptest::prelude::*;
use serde_json::{Value, json};

fn summary(word: &str, uid: &str, version: u64, namespace: &str, name: &str, extra: &Value) -> Summary {
    let resource = Arc::new(kinds::by_word(word).unwrap().resource());
    let mut object: Object = serde_json::from_value(extra.clone()).unwrap();
    for (field, value) in [("uid", uid), ("namespace", namespace), ("name", name)] {
        object.set_metadata(field, value);
    }
    Summary::of(&object, resource, version.into())
}

pub(super) fn node_name(node: &str) -> NodeName {
    NodeName::parse(node).unwrap()
}

pub(super) fn config_map(uid: &str, version: u64, name: &str) -> Summary {
    summary("cm", uid, version, "lab", name, &json!({}))
}

fn labelled(uid: &str, version: u64, labels: &Value) -> Summary {
    summary("cm", uid, version, "lab", uid, &json!({"metadata": {"labels": labels}}))
}

pub(super) fn pod(uid: &str, version: u64, node: &str, config_maps: &[&str]) -> Summary {
    let volumes: Vec<Value> = config_maps.iter().map(|name| json!({"configMap": {"name": name}})).collect();
    summary("pod", uid, version, "lab", uid, &json!({"spec": {"nodeName": node, "volumes": volumes}}))
}

fn rules(toml: &str) -> Vec<PlacementRule> {
    #[derive(serde::Deserialize)]
    struct File {
        placement: Vec<PlacementRule>,
    }
    toml::from_str::<File>(toml).unwrap().placement
}

/// Formats differences as sorted text: `+node uid@version` and `-node uid`.
fn shown(deltas: &[Delta]) -> Vec<String> {
    let mut lines: Vec<String> = deltas
        .iter()
        .map(|Delta { node, before, after, .. }| match (before, after) {
            (_, Some(object)) => format!("+{node} {}@{}", object.uid, object.version),
            (Some(object), None) => format!("-{node} {}", object.uid),
            (None, None) => format!("?{node}"),
        })
        .collect();
    lines.sort();
    lines
}

/// Collects all differences of a change.
fn all(placement: &Placement, differences: Differences) -> Vec<Delta> {
    let mut deltas: Vec<Delta> = Vec::new();
    let mut at = None;
    while let Some(node) = placement.next_node(&differences, at.as_ref()) {
        deltas.extend(placement.differences_on(&differences, &node));
        at = Some(node);
    }
    deltas.extend(differences.deltas);
    deltas
}

impl Placement {
    fn put(&mut self, object: &Summary) -> Vec<Delta> {
        let differences = self.upsert(object);
        all(self, differences)
    }

    fn drop_uid(&mut self, uid: &str) -> Vec<Delta> {
        let differences = self.remove(uid);
        all(self, differences)
    }

    /// Removes all objects except these, with a scan of two objects at a time.
    fn drop_others(&mut self, uids: &HashSet<Uid>) -> Vec<Delta> {
        let (mut deltas, mut from) = (Vec::new(), Some(0));
        while let Some(number) = from {
            let absent;
            (absent, from) = self.absent(uids, number, 2);
            deltas.extend(absent.iter().flat_map(|uid| self.drop_uid(uid)));
        }
        deltas
    }
}

fn desired(placement: &Placement, node: &str) -> Vec<String> {
    let mut lines: Vec<String> =
        placement.on(&node_name(node)).iter().map(|(uid, version)| format!("{uid}@{version}")).collect();
    lines.sort();
    lines
}

#[test]
fn moved_label_yields_one_removal_and_one_addition() {
    let mut placement = Placement::default();
    assert_eq!(shown(&placement.put(&labelled("u", 1, &json!({NODE_LABEL: "a"})))), ["+a u@1"]);
    assert_eq!(shown(&placement.put(&labelled("u", 2, &json!({NODE_LABEL: "b"})))), ["+b u@2", "-a u"]);
    assert_eq!(shown(&placement.put(&labelled("u", 2, &json!({NODE_LABEL: "b"})))), [] as [&str; 0]);
    assert_eq!(shown(&placement.put(&labelled("u", 3, &json!({})))), ["-b u"]);
    assert_eq!(shown(&placement.drop_uid("u")), [] as [&str; 0]);
    assert_eq!((placement.len(), placement.direct.len()), (0, 0));
}

#[test]
fn replaced_rule_releases_only_objects_of_no_other_rule() {
    let mut placement = Placement::default();
    let objects = [labelled("a", 1, &json!({"app": "web"})), labelled("b", 1, &json!({"app": "db"}))];
    for object in &objects {
        placement.put(object);
    }
    for node in ["n1", "n2"] {
        placement.set_node(&node_name(node), Labels::new());
    }
    let rule = |selector: &str| {
        rules(&format!("[[placement]]\nobjects = {{ kinds = ['cm'], selector = '{selector}' }}")).remove(0)
    };
    let shrink = |placement: &mut Placement| {
        shown(&objects.iter().flat_map(|object| placement.put(object)).collect::<Vec<_>>())
    };
    let first = placement.add_rule(rule("app"));
    assert_eq!(placement.selected_by(first), (0, 2));
    assert_eq!(shrink(&mut placement), ["+n1 a@1", "+n1 b@1", "+n2 a@1", "+n2 b@1"]);
    assert_eq!(shrink(&mut placement), [] as [&str; 0]);
    let second = placement.add_rule(rule("app=web"));
    assert_eq!(shrink(&mut placement), [] as [&str; 0]);
    placement.retire_rule(first);
    let mut gone = Vec::new();
    while let Some(differences) = placement.shrink_rule(first) {
        gone.push(shown(&all(&placement, differences)));
    }
    assert_eq!(
        gone.concat().iter().filter(|line| line.starts_with('-')).collect::<Vec<_>>(),
        ["-n1 b", "-n2 b"]
    );
    assert_eq!((placement.selected_by(first), placement.selected_by(second)), ((0, 0), (1, 2)));
    assert_eq!(desired(&placement, "n1"), ["a@1"]);
}

#[test]
fn rule_follows_nodes_that_come_and_go() {
    let mut placement = Placement::new(rules(
        "[[placement]]\nnodes = { names = ['edge-*'], selector = 'site=x' }\nobjects = { kinds = ['cm'], selector = 'app' }",
    ));
    let site = Labels::from([("site".into(), "x".into())]);
    assert_eq!(shown(&placement.put(&labelled("u", 1, &json!({"app": "web"})))), [] as [&str; 0]);
    placement.put(&labelled("other", 1, &json!({})));
    assert_eq!(shown(&placement.set_node(&node_name("edge-1"), site.clone())), ["+edge-1 u@1"]);
    assert_eq!(shown(&placement.set_node(&node_name("edge-1"), site.clone())), [] as [&str; 0]);
    assert_eq!(shown(&placement.set_node(&node_name("core-1"), site.clone())), [] as [&str; 0]);
    assert_eq!(shown(&placement.put(&labelled("u", 2, &json!({"app": "web"})))), ["+edge-1 u@2"]);
    assert_eq!(shown(&placement.set_node(&node_name("edge-1"), Labels::new())), ["-edge-1 u"]);
    placement.set_node(&node_name("edge-1"), site);
    assert_eq!(shown(&placement.remove_node(&node_name("edge-1"))), ["-edge-1 u"]);
}

#[test]
fn object_with_several_reasons_is_listed_once() {
    let mut placement = Placement::new(rules(
        "[[placement]]\nnodes.names = ['a']\nobjects.kinds = ['cm']\n[[placement]]\nnodes.names = ['*']",
    ));
    placement.set_node(&node_name("a"), Labels::new());
    assert_eq!(shown(&placement.put(&config_map("u", 1, "c"))), ["+a u@1"]);
    assert_eq!(shown(&placement.put(&pod("p", 2, "a", &["c"]))), ["+a p@2"]);
    assert_eq!(desired(&placement, "a"), ["p@2", "u@1"]);
    assert_eq!(shown(&placement.remove_node(&node_name("a"))), [] as [&str; 0]);
    assert_eq!(shown(&placement.drop_uid("p")), ["-a p", "-a u"]);
}

#[test]
fn pod_places_its_config_maps_in_any_order() {
    let mut placement = Placement::default();
    assert_eq!(shown(&placement.put(&pod("p", 1, "a", &["c", "d"]))), ["+a p@1"]);
    assert_eq!(shown(&placement.put(&config_map("u", 2, "c"))), ["+a u@2"]);
    let elsewhere = summary("cm", "x", 3, "other", "c", &json!({}));
    assert_eq!(shown(&placement.put(&elsewhere)), [] as [&str; 0]);
    placement.put(&config_map("d", 4, "d"));
    assert_eq!(shown(&placement.put(&pod("p", 5, "a", &["d"]))), ["+a p@5", "-a u"]);
    assert_eq!(shown(&placement.put(&pod("p", 6, "b", &["d"]))), ["+b d@4", "+b p@6", "-a d", "-a p"]);
}

#[test]
fn unplaced_objects_are_dropped_unless_pods_may_refer_to_them() {
    let mut placement = Placement::new(rules("[[placement]]\nobjects.selector = 'app'"));
    placement.put(&summary("deploy", "d", 1, "lab", "d", &json!({})));
    assert!(placement.is_empty());
    placement.put(&config_map("c", 2, "c"));
    assert_eq!((placement.len(), placement.slots.shared()), (1, 0));
    assert_eq!(shown(&placement.put(&pod("p", 3, "a", &["c"]))), ["+a c@2", "+a p@3"]);
    assert_eq!(placement.slots.shared(), 1);
    assert_eq!(shown(&placement.put(&pod("p", 4, "a", &[]))), ["+a p@4", "-a c"]);
    assert_eq!((placement.len(), placement.slots.shared()), (2, 0));
    // Objects that were placed, and are not any more.
    placement.set_node(&node_name("a"), Labels::new());
    let deployment = |version, labels| {
        summary("deploy", "d", version, "lab", "d", &json!({ "metadata": { "labels": labels } }))
    };
    assert_eq!(shown(&placement.put(&deployment(5, json!({"app": "x"})))), ["+a d@5"]);
    assert_eq!(shown(&placement.put(&deployment(6, json!({})))), ["-a d"]);
    assert_eq!((placement.len(), placement.slots.shared()), (2, 0));
}

#[test]
fn object_that_names_several_nodes_is_stored_whole() {
    let mut placement = Placement::default();
    for (version, nodes, whole) in [(1, "a", 0), (2, "a,b", 1), (3, "b", 0)] {
        let annotations = json!({"metadata": {"annotations": {NODES_ANNOTATION: nodes}}});
        placement.put(&summary("cm", "u", version, "lab", "c", &annotations));
        assert_eq!((placement.len(), placement.slots.shared()), (1, whole), "{nodes}");
    }
}

#[test]
fn config_map_stays_while_a_pod_refers_to_it() {
    let mut placement = Placement::default();
    placement.put(&config_map("u", 1, "c"));
    placement.put(&pod("p", 2, "a", &["c"]));
    assert_eq!(shown(&placement.put(&pod("q", 3, "a", &["c"]))), ["+a q@3"]);
    assert_eq!(shown(&placement.drop_uid("p")), ["-a p"]);
    assert_eq!(shown(&placement.drop_uid("q")), ["-a q", "-a u"]);
    assert!(placement.referred.is_empty() && placement.direct.is_empty());
}

#[test]
fn recreated_config_map_replaces_the_old_one() {
    let mut placement = Placement::default();
    placement.put(&pod("p", 1, "a", &["c"]));
    placement.put(&config_map("old", 2, "c"));
    assert_eq!(shown(&placement.drop_uid("old")), ["-a old"]);
    assert_eq!(shown(&placement.put(&config_map("new", 4, "c"))), ["+a new@4"]);
    assert_eq!(shown(&placement.put(&config_map("newer", 6, "c"))), ["+a newer@6", "-a new"]);
    assert_eq!(shown(&placement.drop_uid("new")), [] as [&str; 0]);
    assert_eq!(desired(&placement, "a"), ["newer@6", "p@1"]);
}

#[test]
fn records_events_leases_and_nodes_are_never_placed() {
    let mut placement = Placement::new(rules("[[placement]]\nnodes.names = ['*']"));
    placement.set_node(&node_name("a"), Labels::new());
    for word in ["objectsyncs", "clusterobjectsyncs", "events", "events.events.k8s.io", "leases", "nodes"] {
        let object = summary(word, word, 1, "", "x", &json!({"metadata": {"labels": {NODE_LABEL: "a"}}}));
        assert_eq!(shown(&placement.put(&object)), [] as [&str; 0], "{word}");
    }
    assert!(placement.is_empty());
}

#[test]
fn objects_of_the_reserved_namespace_are_never_placed() {
    let every = "[[placement]]\nobjects.kinds = ['cm', 'secrets', 'pods']";
    let reserved = vec!["edgesync".into(), "edgesync-ca".into()];
    let mut placement = Placement::new(rules(every)).with_reserved(reserved);
    placement.set_node(&node_name("a"), Labels::new());
    let labels = json!({"metadata": {"labels": {NODE_LABEL: "a"}, "annotations": {NODES_ANNOTATION: "a"}}});
    let bound = json!({"spec": {"nodeName": "a", "volumes": [{"name": "v", "secret": {"secretName": "edgesync-ca"}}]}});
    let pod = summary("pod", "p", 1, "edgesync", "p", &bound);
    let key = summary("secret", "k", 2, "edgesync", "edgesync-ca", &labels);
    let members = summary("cm", "m", 3, "edgesync", "edgesync-members", &labels);
    let signing = summary("secret", "c", 5, "edgesync-ca", "edgesync-ca", &labels);
    for object in [&pod, &key, &members, &signing] {
        assert_eq!(shown(&placement.put(object)), [] as [&str; 0], "{}", object.name);
        assert_eq!(placement.other_reasons(&node_name("a"), object), [] as [&str; 0]);
        let verdict = placement.verdicts(&node_name("a"), Some(object)).remove(0).object;
        let expected = format!("namespace {} is reserved for edgesync", object.namespace);
        assert_eq!(verdict, Some(expected));
    }
    assert!(placement.is_empty());
    let elsewhere = summary("secret", "s", 4, "shop", "edgesync-ca", &json!({}));
    assert_eq!(shown(&placement.put(&elsewhere)), ["+a s@4"]);
}

/// Whether an object is observed depends on rules and on all permitted kinds, so the index decides
/// which names count.
#[test]
fn objects_name_nodes_only_in_permitted_ways() {
    let naming = Naming {
        labelled: vec!["secrets".parse().unwrap()],
        annotated: vec!["cm".parse().unwrap()],
        pods: vec!["plant-*".parse().unwrap()],
    };
    let label = json!({"metadata": {"labels": {NODE_LABEL: "a"}}});
    let annotation = json!({"metadata": {"annotations": {NODES_ANNOTATION: "a"}}});
    let bound = json!({"spec": {"nodeName": "a", "volumes": [{"name": "v", "secret": {"secretName": "s"}}]}});
    for (word, namespace, names, expected) in [
        ("secret", "shop", &label, "+a u@1"),
        ("secret", "shop", &annotation, ""),
        ("cm", "shop", &label, ""),
        ("cm", "shop", &annotation, "+a u@1"),
        ("pod", "plant-1", &bound, "+a u@1"),
        ("pod", "shop", &bound, ""),
        ("pod", "plant-1", &label, ""),
    ] {
        let mut placement = Placement::default().with_naming(Some(naming.clone()));
        placement.put(&summary("secret", "referred", 1, "shop", "s", &json!({})));
        let object = summary(word, "u", 1, namespace, "x", names);
        let case = format!("{word} in {namespace}: {names}");
        assert_eq!(shown(&placement.put(&object)).concat(), expected, "{case}");
        let reasons = placement.other_reasons(&node_name("a"), &object).len();
        assert_eq!(reasons, usize::from(!expected.is_empty()), "{case}");
        assert_eq!(placement.ignores_name(&node_name("a"), &object), expected.is_empty(), "{case}");
    }
    let mut none = Placement::default().with_naming(Some(Naming::default()));
    for (word, names) in [("cm", &label), ("cm", &annotation), ("pod", &bound)] {
        assert_eq!(shown(&none.put(&summary(word, word, 1, "shop", "x", names))), [] as [&str; 0]);
    }
}

fn resync<const N: usize>(placement: &mut Placement, objects: [Summary; N]) -> Vec<Delta> {
    let uids = objects.iter().map(|object| object.uid.clone()).collect();
    let mut deltas: Vec<Delta> = objects.into_iter().flat_map(|object| placement.put(&object)).collect();
    deltas.extend(placement.drop_others(&uids));
    deltas
}

#[test]
fn snapshot_after_missed_changes_yields_only_differences() {
    let mut placement = Placement::default();
    let on_a = |uid: &str, version| labelled(uid, version, &json!({NODE_LABEL: "a"}));
    resync(&mut placement, [on_a("gone", 1), on_a("same", 2), on_a("changed", 3)]);
    let deltas = resync(&mut placement, [on_a("same", 2), on_a("changed", 5), on_a("new", 6)]);
    assert_eq!(shown(&deltas), ["+a changed@5", "+a new@6", "-a gone"]);
}

#[test]
fn absent_objects_are_found_in_parts() {
    let mut placement = Placement::default();
    for uid in ["a", "b", "c"] {
        placement.put(&config_map(uid, 1, uid));
    }
    let listed = HashSet::from([Uid::from("b")]);
    let absent = |from: u32, count: u32| {
        let (uids, next) = placement.absent(&listed, from, count);
        (uids.iter().map(|uid| &**uid).collect::<String>(), next)
    };
    assert_eq!(absent(0, 2), ("a".to_owned(), Some(2)));
    assert_eq!(absent(2, 2), ("c".to_owned(), None));
    assert_eq!(absent(0, 3), ("ac".to_owned(), None));
}

#[derive(Clone, Debug)]
enum Step {
    ConfigMap {
        name: u8,
        labels: u8,
    },
    /// A ConfigMap of another UID under the same name.
    Recreate {
        name: u8,
        labels: u8,
    },
    Pod {
        number: u8,
        node: u8,
        references: Vec<u8>,
    },
    Remove {
        uid: String,
    },
    SetNode {
        node: u8,
        labels: u8,
    },
    RemoveNode {
        node: u8,
    },
    /// Replaces the rule added last by another one, with a relist in between.
    ChangeRule {
        rule: u8,
    },
}

fn labels(bits: u8) -> Value {
    let mut labels = serde_json::Map::new();
    if bits & 1 != 0 {
        labels.insert("app".into(), json!("web"));
    }
    if bits & 2 != 0 {
        labels.insert(NODE_LABEL.into(), json!(format!("n{}", (bits >> 2) & 1)));
    }
    Value::Object(labels)
}

fn node_labels(bits: u8) -> Labels {
    if bits & 1 == 0 { Labels::new() } else { [("site".into(), "x".into())].into() }
}

fn named(name: u8, generation: u8, version: u64, bits: u8) -> Summary {
    let extra = json!({"metadata": {"labels": labels(bits)}});
    summary("cm", &format!("c{name}-{generation}"), version, "lab", &format!("c{name}"), &extra)
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        (0..3u8, any::<u8>()).prop_map(|(name, labels)| Step::ConfigMap { name, labels }),
        (0..3u8, any::<u8>()).prop_map(|(name, labels)| Step::Recreate { name, labels }),
        (0..3u8, 0..3u8, prop::collection::vec(0..3u8, 0..3))
            .prop_map(|(number, node, references)| Step::Pod { number, node, references }),
        "(c[0-2]-[01]|p[0-2])".prop_map(|uid| Step::Remove { uid }),
        (0..3u8, 0..2u8).prop_map(|(node, labels)| Step::SetNode { node, labels }),
        (0..3u8).prop_map(|node| Step::RemoveNode { node }),
        (0..8u8).prop_map(|rule| Step::ChangeRule { rule }),
    ]
}

const RULES: &str = "
[[placement]]
nodes.names = ['n0', 'n2']
objects.selector = 'app'
[[placement]]
nodes.selector = 'site=x'
objects = { kinds = ['cm'], selector = 'app=web' }
[[placement]]
nodes.names = ['n1']
objects.kinds = ['pods']
";

/// Rules to add and remove. An index past the end stands for no rule.
const CHANGING: &str = "
[[placement]]
nodes.names = ['n*']
objects.selector = 'app'
[[placement]]
nodes.selector = 'site=x'
objects.kinds = ['pods']
[[placement]]
nodes.names = ['n1', 'n2']
[[placement]]
nodes.selector = '!site'
objects.kinds = ['cm']
[[placement]]
nodes.selector = 'site in (x, y)'
objects = { names = ['c0', 'c1'], namespaces = ['lab'] }
[[placement]]
objects.namespaces = ['lab', 'other']
[[placement]]
objects = { namespaces = ['l*'], selector = 'app in (web, db)' }
";

/// Reference model: the simplest storage, with the desired state computed from scratch.
#[derive(Default)]
struct Model {
    /// Each version has one content.
    version: u64,
    objects: BTreeMap<String, Summary>,
    nodes: BTreeMap<String, Labels>,
    added: Option<(RuleId, PlacementRule)>,
}

impl Model {
    fn put(&mut self, object: Summary) {
        self.objects.retain(|uid, other| **uid == *object.uid || other.name != object.name);
        self.objects.insert(object.uid.to_string(), object);
    }

    fn wants(&self, node: &str, object: &Summary, rules: &[PlacementRule]) -> bool {
        let named = object.nodes.all().iter().any(|name| ***name == *node);
        let referred = self.objects.values().any(|pod| {
            let target = Target::of(&object.resource);
            let refers = |r: &Reference| Some(r.target) == target && r.name == object.name;
            let is_here = pod.nodes.all().iter().any(|name| ***name == *node);
            is_here && pod.namespace == object.namespace && pod.references.iter().any(refers)
        });
        let ruled = self.nodes.get(node).is_some_and(|labels| {
            rules
                .iter()
                .chain(self.added.as_ref().map(|(_, rule)| rule))
                .any(|rule| rule.nodes.matches(node, labels) && object.is_selected_by(&rule.objects))
        });
        named || referred || ruled
    }

    fn all(&self, rules: &[PlacementRule]) -> BTreeSet<(String, String, String)> {
        let nodes = ["n0", "n1", "n2"];
        let pairs = self.objects.values().flat_map(|object| nodes.map(|node| (node, object)));
        pairs
            .filter(|(node, object)| self.wants(node, object, rules))
            .map(|(node, object)| (node.to_owned(), object.uid.to_string(), object.version.to_string()))
            .collect()
    }
}

fn run(placement: &mut Placement, model: &mut Model, step: Step) -> Vec<Delta> {
    model.version += 1;
    let version = model.version;
    let mut upsert = |object: Summary| {
        model.put(object.clone());
        placement.put(&object)
    };
    match step {
        Step::ConfigMap { name, labels } => upsert(named(name, 0, version, labels)),
        Step::Recreate { name, labels } => upsert(named(name, 1, version, labels)),
        Step::Pod { number, node, references } => {
            let names: Vec<String> = references.iter().map(|name| format!("c{name}")).collect();
            let names: Vec<&str> = names.iter().map(String::as_str).collect();
            upsert(pod(&format!("p{number}"), version, &format!("n{node}"), &names))
        }
        Step::Remove { uid } => {
            model.objects.remove(&uid).map(|_| placement.drop_uid(&uid)).unwrap_or_default()
        }
        Step::SetNode { node, labels } => {
            model.nodes.insert(format!("n{node}"), node_labels(labels));
            placement.set_node(&node_name(&format!("n{node}")), node_labels(labels))
        }
        Step::RemoveNode { node } => {
            model.nodes.remove(&format!("n{node}"));
            placement.remove_node(&node_name(&format!("n{node}")))
        }
        Step::ChangeRule { rule } => {
            let rule = rules(CHANGING).get(usize::from(rule)).cloned();
            let old = std::mem::replace(
                &mut model.added,
                rule.map(|rule| (placement.add_rule(rule.clone()), rule)),
            );
            let mut deltas: Vec<Delta> =
                model.objects.values().flat_map(|object| placement.put(object)).collect();
            if let Some((id, _)) = old {
                placement.retire_rule(id);
                while let Some(differences) = placement.shrink_rule(id) {
                    deltas.extend(all(placement, differences));
                }
            }
            deltas
        }
    }
}

proptest! {
    #[test]
    fn the_index_always_equals_a_computation_from_scratch(steps in prop::collection::vec(step(), 0..40)) {
        let rules = rules(RULES);
        let mut placement = Placement::new(rules.clone());
        let mut model = Model::default();
        // State of a consumer that only follows the differences.
        let mut followed = BTreeMap::new();
        for step in steps {
            for delta in run(&mut placement, &mut model, step) {
                let key = (delta.node.to_string(), delta.uid().unwrap().to_string());
                let version = |object: Option<Arc<Placed>>| object.map(|object| object.version.to_string());
                prop_assert_eq!(followed.remove(&key), version(delta.before), "before, of {:?}", key);
                if let Some(version) = version(delta.after) {
                    followed.insert(key, version);
                }
            }
            let expected = model.all(&rules);
            let nodes = ["n0", "n1", "n2"].map(node_name);
            let listed: Vec<_> = nodes
                .iter()
                .flat_map(|node| placement.on(node).iter().map(move |(uid, version)| (node.to_string(), uid.to_owned(), version.to_string())))
                .collect();
            let unique: BTreeSet<_> = listed.iter().cloned().collect();
            prop_assert_eq!(listed.len(), unique.len());
            prop_assert_eq!(&unique, &expected);
            let followed: BTreeSet<_> = followed.iter().map(|((n, u), v)| (n.clone(), u.clone(), v.clone())).collect();
            prop_assert_eq!(&followed, &expected);
            for node in &nodes {
                for (uid, version) in placement.on(node).iter() {
                    let object = placement.on(node).get(uid).unwrap();
                    prop_assert_eq!((&*object.uid, &object.version), (uid, &version));
                    prop_assert_eq!(&*object.object.name, &*model.objects[uid].name);
                }
                prop_assert_eq!(placement.count(node), placement.on(node).iter().count());
            }
        }
    }

    #[test]
    fn nothing_is_left_behind_when_all_is_removed(steps in prop::collection::vec(step(), 0..40)) {
        let mut placement = Placement::new(rules(RULES));
        let mut model = Model::default();
        for step in steps {
            run(&mut placement, &mut model, step);
        }
        placement.drop_others(&HashSet::new());
        prop_assert!(placement.direct.is_empty() && placement.referred.is_empty() && placement.references.is_empty());
        prop_assert_eq!((placement.selections.len(), placement.names.len()), (0, 0));
        prop_assert!(placement.is_empty());
        prop_assert!(placement.rules.iter().all(|rule| rule.objects.is_empty()));
        prop_assert!(placement.rules.len() <= 5, "numbers of rules that have gone are used again");
    }
}
