//! The feed of a cluster: changes arrive as they happen, across cut connections, and only real
//! deletions are reported.

// Clippy takes only the functions marked #[test] for tests, not what they call.
#![allow(clippy::unwrap_used)]

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use edgesync_kubernetes::cluster::{Cause, Cluster, Feed, Interest, Item, ObservedObject, Origin, Problem};
use edgesync_object::{ResourceVersion, Selector, Target};
use edgesync_placement::{ObjectMatch, Summary, Unread};
use edgesync_transport::proxy::ProxyRules;
use serde_json::Value;

use crate::cluster::api::{ApiServer, over_each};
use crate::cluster::kubernetes::Kubernetes;
use crate::cluster::setup::{ANYTHING, define};
use edgesync_testkit::kubectl::Kubectl;
use edgesync_testkit::proxy::{Mode, Proxy};
use edgesync_testkit::site::Site;
use edgesync_testkit::timing::try_within;

/// Maximum duration of each step: a refused watch is retried after half a minute.
const PATIENCE: Duration = Duration::from_secs(120);

const RULES: [&str; 2] = [
    include_str!("../../packaging/kubernetes/crds/placements.yaml"),
    include_str!("../../packaging/kubernetes/crds/clusterplacements.yaml"),
];

struct Setup<K = Kubernetes> {
    // Dropped before the directory that its processes use.
    kubernetes: K,
    admin: Kubectl,
    _site: Site,
}

impl<K: ApiServer> Setup<K> {
    async fn start() -> Self {
        let setup = Self::without_rules().await;
        if K::IS_OURS {
            return setup;
        }
        RULES.iter().for_each(|text| setup.create(text));
        let crds = ["crd/placements.edgesync.io", "crd/clusterplacements.edgesync.io"];
        setup.admin.run(&[&["wait", "--for=condition=Established"][..], &crds].concat()).ok();
        setup
    }

    /// Starts a cluster without the kinds of placement rules.
    async fn without_rules() -> Self {
        let site = Site::new();
        let kubernetes = K::start(&site).await;
        let admin = Kubectl::with_kubeconfig(&site, "admin", kubernetes.admin());
        let setup = Self { kubernetes, admin, _site: site };
        setup.admin.run(&["create", "namespace", "shop"]).ok();
        setup
    }

    fn create(&self, text: &str) {
        self.admin.feed(&["create", "-f", "-"], text).ok();
    }

    fn apply(&self, text: &str) {
        self.admin.feed(&["apply", "-f", "-"], text).ok();
    }

    fn delete(&self, object: &str) {
        self.admin.run(&["delete", object, "-n", "shop"]).ok();
    }

    fn get(&self, object: &str) -> Value {
        self.admin.run(&["get", object, "-n", "shop", "-o", "json"]).json()
    }

    async fn follow(&self, interests: Vec<Interest>) -> Follower {
        self.follow_as(self.kubernetes.admin(), interests).await
    }

    async fn follow_as(&self, kubeconfig: &Path, interests: Vec<Interest>) -> Follower {
        let mut follower = Follower::new(kubeconfig, interests).await;
        follower.until("all is told", |follower| follower.is_complete).await;
        follower
    }
}

/// The state that the feed has reported, by `plural/name`.
struct Follower {
    feed: Feed,
    objects: BTreeMap<String, Value>,
    /// Changes in order: `+name` and `-name`.
    log: Vec<String>,
    problems: Vec<Problem>,
    unread: Vec<String>,
    /// Number of known objects when `unread` was reported.
    known_then: usize,
    is_complete: bool,
    /// The last confirmed catch-up request, and the version that the cluster had reached.
    caught_up: (u64, ResourceVersion),
}

/// Returns the namespaces of edgesync itself.
fn reserved() -> Vec<Arc<str>> {
    vec!["edgesync".into(), "edgesync-ca".into()]
}

impl Follower {
    async fn new(kubeconfig: &Path, interests: Vec<Interest>) -> Self {
        let cluster = Cluster::connect(Some(kubeconfig), &ProxyRules::default()).await.unwrap();
        let fleet = Interest::fleet(Selector::default());
        Self {
            feed: Feed::new(cluster, fleet.into_iter().chain(interests).collect(), reserved()),
            objects: BTreeMap::new(),
            log: Vec::new(),
            problems: Vec::new(),
            unread: Vec::new(),
            known_then: 0,
            is_complete: false,
            caught_up: (0, 0.into()),
        }
    }

    fn record(&mut self, item: Item) {
        match item {
            Item::Listed(seen) => seen.into_iter().for_each(|seen| self.set(&seen)),
            Item::Updated(seen) => self.set(&seen),
            Item::Deleted(summary) => self.remove(&summary),
            Item::Unlisted(gone) => gone.iter().for_each(|summary| self.remove(summary)),
            Item::Complete => self.is_complete = true,
            Item::CaughtUp { question, reached } => self.caught_up = (question, reached.version),
            Item::Unread(unread) => {
                self.unread = unread.iter().map(Unread::to_string).collect();
                self.known_then = self.objects.len();
            }
            Item::Problems(problems) => self.problems = problems,
            Item::Restored => self.log.push("restored".to_owned()),
            Item::Failed(why) => println!("{why}"),
        }
    }

    fn remove(&mut self, summary: &Summary) {
        let name = name(summary);
        // Another object of this name may exist by now.
        if self.objects.get(&name).is_some_and(|object| object["metadata"]["uid"] == *summary.uid) {
            self.objects.remove(&name);
        }
        self.log.push(format!("-{name}"));
    }

    fn set(&mut self, seen: &ObservedObject) {
        let name = name(&seen.summary);
        let object: Value = serde_json::from_str(&seen.body).unwrap();
        assert_eq!(object["metadata"]["uid"], *seen.summary.uid);
        assert_eq!(object["metadata"]["resourceVersion"], seen.summary.version.as_str());
        self.log.push(format!("+{name}"));
        self.objects.insert(name, object);
    }

    /// Follows the feed until a condition holds.
    async fn until(&mut self, what: &str, condition: impl Fn(&Self) -> bool) {
        let followed = try_within(PATIENCE, async {
            while !condition(self) {
                let item = self.feed.next().await;
                self.record(item);
            }
        });
        let followed = followed.await;
        let (log, problems, unread) = (&self.log, &self.problems, &self.unread);
        assert!(followed.is_some(), "not told that {what}: {log:?} {problems:?} {unread:?}");
    }

    /// Waits until the feed has reported the current state.
    async fn catch_up(&mut self) {
        let asked = self.feed.catch_up();
        self.until("all is told that there is", |follower| follower.caught_up.0 >= asked).await;
    }

    async fn until_equals(&mut self, object: &str, expected: &Value) {
        self.until(object, |follower| follower.objects.get(object) == Some(expected)).await;
    }

    fn has(&self, object: &str) -> bool {
        self.objects.contains_key(object)
    }
}

fn name(summary: &Summary) -> String {
    format!("{}/{}", summary.resource.plural, summary.name)
}

fn rule(number: usize, kinds: &[&str], namespaces: &[&str], selector: &str) -> Interest {
    let objects = ObjectMatch {
        kinds: kinds.iter().map(|kind| kind.parse().unwrap()).collect(),
        namespaces: namespaces.iter().map(|glob| glob.parse().unwrap()).collect(),
        selector: selector.parse().unwrap(),
        ..ObjectMatch::default()
    };
    Interest::rule(Origin::Configured(number), objects)
}

fn config_map(name: &str, tier: &str, mode: &str) -> String {
    format!(
        "{{apiVersion: v1, kind: ConfigMap, metadata: {{name: {name}, namespace: shop, labels: {{tier: {tier}}}}}, \
         data: {{mode: {mode}}}}}\n"
    )
}

over_each!(
    feed_reports_changes_across_a_server_crash,
    catch_up_confirms_completeness_and_the_version,
    objects_in_the_namespaces_of_edgesync_are_not_read,
    placement_object_watches_only_what_it_selects,
    labelled_objects_are_reported_with_pod_references,
    deleted_and_recreated_kind_disturbs_no_other,
);

async fn feed_reports_changes_across_a_server_crash<K: ApiServer>() {
    let mut setup = Setup::<K>::start().await;
    // More than fit a page.
    let many: String =
        (0..600).map(|number| format!("---\n{}", config_map(&format!("m{number}"), "edge", "x"))).collect();
    setup.create(&many);
    setup.create(&config_map("other", "cloud", "x"));
    let mut follower = setup.follow(vec![rule(0, &["cm"], &["shop"], "tier=edge")]).await;
    assert_eq!(follower.objects.len(), 600, "{:?}", follower.objects.keys());
    assert!(follower.problems.is_empty() && follower.unread.is_empty());
    let first = setup.get("cm/m0");
    assert_eq!(follower.objects["configmaps/m0"], first);

    setup.apply(&config_map("m0", "edge", "fast"));
    follower.until_equals("configmaps/m0", &setup.get("cm/m0")).await;
    // One object leaves the selection, another one enters it.
    setup.apply(&config_map("m1", "cloud", "x"));
    setup.apply(&config_map("other", "edge", "x"));
    follower
        .until("one has gone, one has come", |follower| {
            !follower.has("configmaps/m1") && follower.has("configmaps/other")
        })
        .await;
    // Deleted and created again under the same name.
    setup.delete("cm/m0");
    setup.create(&config_map("m0", "edge", "again"));
    follower.until_equals("configmaps/m0", &setup.get("cm/m0")).await;
    assert_ne!(follower.objects["configmaps/m0"]["metadata"]["uid"], first["metadata"]["uid"]);

    follower.log.clear();
    setup.kubernetes.crash().await;
    setup.apply(&config_map("m2", "edge", "after"));
    setup.delete("cm/m3");
    follower.until_equals("configmaps/m2", &setup.get("cm/m2")).await;
    follower.until("it has gone", |follower| !follower.has("configmaps/m3")).await;
    let mut log = follower.log.clone();
    log.sort();
    assert_eq!(log, ["+configmaps/m2", "-configmaps/m3"], "nothing else is told");
}

async fn objects_in_the_namespaces_of_edgesync_are_not_read<K: ApiServer>() {
    let setup = Setup::<K>::start().await;
    for namespace in ["edgesync", "edgesync-ca"] {
        setup.admin.run(&["create", "namespace", namespace]).ok();
    }
    for namespace in ["edgesync", "edgesync-ca", "shop"] {
        setup.admin.run(&["create", "secret", "generic", "key", "-n", namespace]).ok();
        setup.admin.run(&["create", "configmap", "members", "-n", namespace]).ok();
    }
    let interests = vec![
        rule(0, &["secrets"], &[], ""),
        rule(1, &["cm"], &["edgesync", "shop"], ""),
        Interest::annotated(vec!["cm".parse().unwrap()]),
    ];
    let mut follower = setup.follow(interests).await;
    follower.catch_up().await;
    let namespaces: BTreeSet<&str> =
        follower.objects.values().map(|object| object["metadata"]["namespace"].as_str().unwrap()).collect();
    assert!(follower.has("secrets/key") && follower.has("configmaps/members"), "{:?}", follower.log);
    assert!(!namespaces.iter().any(|name| name.starts_with("edgesync")), "{:#?}", follower.objects);
    assert_eq!(
        follower.log.iter().filter(|change| *change == "+secrets/key").count(),
        1,
        "{:?}",
        follower.log
    );
}

async fn catch_up_confirms_completeness_and_the_version<K: ApiServer>() {
    let setup = Setup::<K>::start().await;
    setup.create(&config_map("a", "edge", "x"));
    setup.create(&config_map("b", "edge", "x"));
    let mut follower = setup.follow(vec![rule(0, &["cm"], &["shop"], "")]).await;
    follower.catch_up().await;
    assert_eq!(follower.log, ["+configmaps/a", "+configmaps/b"], "nothing is told twice");
    // The catch-up includes objects that a new rule selects.
    setup.apply(&config_map("a", "edge", "fast"));
    setup.delete("cm/b");
    setup.admin.run(&["create", "secret", "generic", "key", "-n", "shop"]).ok();
    setup.create(
        "apiVersion: edgesync.io/v1alpha1\nkind: Placement\nmetadata: {name: p, namespace: shop}\n\
         spec: {objects: {kinds: [secrets]}, nodes: {}}\n",
    );
    // Read before the request: the rule's status is written later.
    let newest = setup.get("placement/p")["metadata"]["resourceVersion"].as_str().unwrap().into();
    let questions = [follower.feed.catch_up(), follower.feed.catch_up()];
    follower.until("both are answered", |follower| follower.caught_up.0 >= questions[1]).await;
    assert_eq!(follower.objects["configmaps/a"], setup.get("cm/a"));
    assert!(follower.has("secrets/key") && !follower.has("configmaps/b"), "{:?}", follower.log);
    assert!(!follower.caught_up.1.is_older_than(&newest), "{:?}", follower.caught_up);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs a Kubernetes API server: tests/cluster/run"]
async fn restored_cluster_is_relisted() {
    let mut setup = Setup::<Kubernetes>::start().await;
    setup.create(&config_map("a", "edge", "old"));
    setup.create(&config_map("b", "edge", "old"));
    let old = setup.get("cm/a");
    setup.kubernetes.copy_or_restore().await;
    let mut follower = setup.follow(vec![rule(0, &["cm"], &["shop"], "")]).await;
    setup.apply(&config_map("a", "edge", "new"));
    setup.delete("cm/b");
    // So many that a restarted server does not reach their versions on its own.
    let many: String =
        (0..50).map(|n| format!("---\n{}", config_map(&format!("c{n}"), "edge", "x"))).collect();
    setup.create(&many);
    follower.until_equals("configmaps/c49", &setup.get("cm/c49")).await;

    setup.kubernetes.copy_or_restore().await;
    follower.until_equals("configmaps/a", &old).await;
    follower
        .until("it is as it was", |follower| follower.has("configmaps/b") && follower.objects.len() == 2)
        .await;
    setup.apply(&config_map("b", "edge", "newer"));
    follower.until_equals("configmaps/b", &setup.get("cm/b")).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs a Kubernetes API server: tests/cluster/run"]
async fn feed_is_incomplete_without_the_kinds_of_rules() {
    let setup = Setup::<Kubernetes>::without_rules().await;
    setup.create(&config_map("a", "edge", "x"));
    let mut follower = Follower::new(&setup.kubernetes.admin, vec![rule(0, &["cm"], &["shop"], "")]).await;
    let missing =
        |follower: &Follower| follower.problems.iter().filter(|one| one.origin == Origin::Fleet).count();
    follower.until("the kinds of rules are missing", |follower| missing(follower) == 2).await;
    assert_eq!(follower.unread, ["Placement.edgesync.io", "ClusterPlacement.edgesync.io"]);
    assert!(!follower.is_complete && follower.objects.is_empty(), "what is wanted is not known");
    RULES.iter().for_each(|text| setup.create(text));
    follower.until("all is told", |follower| follower.is_complete).await;
    assert!(follower.has("configmaps/a") && follower.problems.is_empty() && follower.unread.is_empty());
}

async fn placement_object_watches_only_what_it_selects<K: ApiServer>() {
    let setup = Setup::<K>::start().await;
    setup.create(&config_map("edge", "edge", "x"));
    setup.create(&config_map("cloud", "cloud", "x"));
    let placement = |tier: &str| {
        format!(
            "apiVersion: edgesync.io/v1alpha1\nkind: Placement\nmetadata: {{name: p, namespace: shop}}\n\
             spec: {{objects: {{kinds: [cm, gizmos], selector: {{matchLabels: {{tier: {tier}}}}}}}, nodes: {{}}}}\n"
        )
    };
    setup.create(&placement("edge"));
    let mut follower = setup.follow(Vec::new()).await;
    assert_eq!(follower.log, ["+placements/p", "+configmaps/edge"], "the rule before what it selects");
    let uid = follower.objects["placements/p"]["metadata"]["uid"].as_str().unwrap().into();
    assert_eq!(
        follower.problems,
        [Problem { origin: Origin::Rule(uid), kind: "gizmos".into(), cause: Cause::Unserved }]
    );

    setup.apply(&placement("cloud"));
    follower
        .until("it selects others", |follower| {
            follower.has("configmaps/cloud") && !follower.has("configmaps/edge")
        })
        .await;
    setup.admin.run(&["delete", "placement/p", "-n", "shop"]).ok();
    follower.until("nobody wants it", |follower| follower.objects.is_empty()).await;
    follower.until("there is no problem", |follower| follower.problems.is_empty()).await;
}

async fn labelled_objects_are_reported_with_pod_references<K: ApiServer>() {
    let setup = Setup::<K>::start().await;
    let pod = |name: &str, node: &str| {
        format!(
            "{{apiVersion: v1, kind: Pod, metadata: {{name: {name}, namespace: shop}}, spec: {{{node} containers: \
             [{{name: c, image: i, envFrom: [{{configMapRef: {{name: settings}}}}]}}]}}}}\n"
        )
    };
    setup.create(&pod("placed", "nodeName: edge-1,"));
    setup.create(&pod("loose", ""));
    setup.create(&config_map("settings", "edge", "x"));
    for name in ["labelled", "plain"] {
        setup.admin.run(&["create", "secret", "generic", name, "-n", "shop"]).ok();
    }
    setup.admin.run(&["label", "secret", "labelled", "edgesync.io/node=edge-1", "-n", "shop"]).ok();
    setup.admin.run(&["create", "quota", "any", "-n", "shop"]).ok();
    let kinds = |kind: &str| vec![kind.parse().unwrap()];
    let interests = vec![
        Interest::pods("*".parse().unwrap()),
        Interest::referred(Target::ConfigMap, "shop".parse().unwrap()),
        Interest::labelled(kinds("secrets")),
        Interest::annotated(kinds("resourcequotas")),
    ];
    let follower = setup.follow(interests).await;
    let follower: Vec<&String> = follower.objects.keys().collect();
    let expected = ["configmaps/settings", "pods/placed", "resourcequotas/any", "secrets/labelled"];
    assert_eq!(follower, expected);
}

async fn deleted_and_recreated_kind_disturbs_no_other<K: ApiServer>() {
    let setup = Setup::<K>::start().await;
    let lamp = "{apiVersion: example.com/v1, kind: Lamp, metadata: {name: hall, namespace: shop}}\n";
    let establish = || {
        define(&setup.admin, "Lamp", ANYTHING);
        setup.create(lamp);
    };
    establish();
    let mut follower = setup.follow(vec![rule(0, &["Lamp"], &[], ""), rule(1, &["cm"], &["shop"], "")]).await;
    let first = follower.objects["lamps/hall"].clone();

    setup.admin.run(&["delete", "crd/lamps.example.com"]).ok();
    follower.until("the lamp has gone", |follower| !follower.has("lamps/hall")).await;
    let unserved = |follower: &Follower| {
        matches!(
            &follower.problems[..],
            [Problem { origin: Origin::Configured(0), cause: Cause::Unserved, .. }]
        )
    };
    follower.until("there is no such kind", unserved).await;
    setup.create(&config_map("settings", "edge", "x"));
    follower.until("others are told of", |follower| follower.has("configmaps/settings")).await;

    establish();
    follower.until("the lamp has come again", |follower| follower.has("lamps/hall")).await;
    assert_ne!(follower.objects["lamps/hall"]["metadata"]["uid"], first["metadata"]["uid"]);
    follower.until("there is no problem", |follower| follower.problems.is_empty()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs a Kubernetes API server: tests/cluster/run"]
async fn unreadable_kind_delays_no_other() {
    let setup = Setup::<Kubernetes>::start().await;
    // The conversion webhook is down, so no lamp can be read in the preferred version.
    let lamps = |served: bool| {
        format!(
            "apiVersion: apiextensions.k8s.io/v1\nkind: CustomResourceDefinition\nmetadata: {{name: lamps.example.com}}\n\
             spec:\n  group: example.com\n  scope: Namespaced\n  names: {{plural: lamps, singular: lamp, kind: Lamp}}\n  \
             conversion: {{strategy: Webhook, webhook: {{conversionReviewVersions: [v1], clientConfig: \
             {{url: 'https://127.0.0.1:1/'}}}}}}\n  versions:\n  - {{name: v1, served: true, storage: true, \
             schema: {{openAPIV3Schema: {{type: object}}}}}}\n  - {{name: v2, served: {served}, storage: false, \
             schema: {{openAPIV3Schema: {{type: object}}}}}}\n"
        )
    };
    setup.create(&lamps(true));
    setup.admin.run(&["wait", "--for=condition=Established", "crd/lamps.example.com"]).ok();
    setup.create("{apiVersion: example.com/v1, kind: Lamp, metadata: {name: hall, namespace: shop}}\n");
    setup.create(&config_map("a", "edge", "x"));
    let mut follower = setup.follow(vec![rule(0, &["Lamp"], &[], ""), rule(1, &["cm"], &["shop"], "")]).await;
    assert!(follower.has("configmaps/a") && !follower.has("lamps/hall"));
    assert_eq!(follower.unread, ["Lamp.example.com"]);
    let broken = |problem: &Problem| {
        problem.origin == Origin::Configured(0) && matches!(problem.cause, Cause::Broken(_))
    };
    assert!(matches!(&follower.problems[..], [problem] if broken(problem)), "{:?}", follower.problems);
    follower.catch_up().await;

    setup.apply(&lamps(false));
    follower
        .until("the lamp can be read", |follower| follower.has("lamps/hall") && follower.unread.is_empty())
        .await;
    assert!(follower.problems.is_empty(), "{:?}", follower.problems);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs a Kubernetes API server: tests/cluster/run"]
async fn revoked_rights_remove_no_objects_from_the_feed() {
    let mut setup = Setup::<Kubernetes>::start().await;
    let fleet = "--resource=nodes,placements.edgesync.io,clusterplacements.edgesync.io";
    let list = "--verb=list,watch";
    setup.admin.run(&["create", "clusterrole", "fleet", list, fleet]).ok();
    setup.admin.run(&["create", "clusterrolebinding", "fleet", "--clusterrole=fleet", "--user=ada"]).ok();
    for kind in ["configmaps", "secrets"] {
        setup.admin.run(&["create", "role", kind, list, &format!("--resource={kind}"), "-n", "shop"]).ok();
    }
    let bind = |setup: &Setup, kind: &str| {
        setup
            .admin
            .run(&["create", "rolebinding", kind, &format!("--role={kind}"), "--user=ada", "-n", "shop"])
            .ok();
    };
    bind(&setup, "configmaps");
    setup.create(&config_map("a", "edge", "x"));
    setup.create(&config_map("b", "edge", "x"));
    setup.admin.run(&["create", "secret", "generic", "key", "-n", "shop"]).ok();

    let rules = vec![
        rule(0, &["cm"], &["shop"], ""),
        rule(1, &["secrets"], &["shop"], ""),
        rule(2, &["cm"], &[], ""),
    ];
    let ada = setup.kubernetes.user("ada");
    let mut follower = setup.follow_as(&ada, rules).await;
    let refused = |follower: &Follower| -> Vec<(Origin, String)> {
        follower.problems.iter().map(|problem| (problem.origin.clone(), problem.kind.clone())).collect()
    };
    // Permitted reads continue, although another rule asks for all namespaces.
    assert_eq!(
        refused(&follower),
        [
            (Origin::Configured(2), "configmaps".to_owned()),
            (Origin::Configured(1), "secrets in namespace shop".to_owned())
        ]
    );
    assert_eq!(follower.unread, ["ConfigMap", "Secret in namespace shop"]);
    assert!(follower.has("configmaps/a") && follower.has("configmaps/b") && !follower.has("secrets/key"));

    bind(&setup, "secrets");
    follower
        .until("the secret is told of", |follower| {
            follower.has("secrets/key") && refused(follower).len() == 1
        })
        .await;
    setup.admin.run(&["delete", "rolebinding", "configmaps", "-n", "shop"]).ok();
    // An open watch continues until it is cut.
    setup.kubernetes.crash().await;
    follower.until("the rule has a problem", |follower| refused(follower).len() == 2).await;
    setup.delete("cm/b");
    setup.delete("secret/key");
    follower.until("the secret has gone", |follower| !follower.has("secrets/key")).await;
    assert!(follower.has("configmaps/a") && follower.has("configmaps/b"), "it is not known that it has gone");
    assert_eq!(follower.unread, ["ConfigMap", "ConfigMap in namespace shop"]);

    bind(&setup, "configmaps");
    follower
        .until("the other has gone", |follower| !follower.has("configmaps/b") && refused(follower).len() == 1)
        .await;
    assert!(follower.has("configmaps/a") && !follower.log.contains(&"-configmaps/a".to_owned()));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs a Kubernetes API server: tests/cluster/run"]
async fn unread_kinds_are_cleared_after_a_full_list() {
    let setup = Setup::<Kubernetes>::start().await;
    setup
        .admin
        .run(&[
            "create",
            "clusterrole",
            "all",
            "--verb=list,watch",
            "--resource=nodes,placements.edgesync.io,clusterplacements.edgesync.io",
        ])
        .ok();
    setup.admin.run(&["create", "clusterrolebinding", "all", "--clusterrole=all", "--user=ada"]).ok();
    // More than fit a batch of a list.
    let many: String =
        (0..600).map(|number| format!("---\n{}", config_map(&format!("m{number}"), "edge", "x"))).collect();
    setup.create(&many);
    let ada = setup.kubernetes.user("ada");
    let mut follower = setup.follow_as(&ada, vec![rule(0, &["cm"], &["shop"], "")]).await;
    assert_eq!(follower.unread, ["ConfigMap in namespace shop"]);
    let role = ["create", "role", "maps", "--verb=list,watch", "--resource=configmaps", "-n", "shop"];
    setup.admin.run(&role).ok();
    setup.admin.run(&["create", "rolebinding", "maps", "--role=maps", "--user=ada", "-n", "shop"]).ok();
    follower.until("they can be read", |follower| follower.unread.is_empty()).await;
    assert_eq!((follower.known_then, follower.objects.len()), (600, 600), "not before all of them are told");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs a Kubernetes API server: tests/cluster/run"]
async fn stopped_watch_recovers_without_changes() {
    let setup = Setup::<Kubernetes>::start().await;
    setup.create(&config_map("a", "edge", "x"));
    let line = Proxy::start(setup.kubernetes.address);
    let kubeconfig = setup.kubernetes.admin_by("line", &format!("https://{}", line.address()));
    let mut follower = setup.follow_as(&kubeconfig, vec![rule(0, &["cm"], &["shop"], "")]).await;
    line.set(Mode::Refuse);
    line.cut();
    let is_unread =
        |follower: &Follower| follower.unread.iter().any(|unread| unread == "ConfigMap in namespace shop");
    follower.until("it is given up", is_unread).await;
    follower.log.clear();
    line.set(Mode::Pass);
    follower
        .until("all can be read", |follower| follower.unread.is_empty() && follower.problems.is_empty())
        .await;
    assert_eq!(follower.log, [""; 0], "nothing is told twice");
}
