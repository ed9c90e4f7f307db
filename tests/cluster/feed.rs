//! What is told of a cluster: changes as they are there, over cut connections, and nothing gone that is not.

// Clippy takes only the functions marked #[test] for tests, not what they call.
#![allow(clippy::unwrap_used)]

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use edgesync_kubernetes::cluster::{Cause, Cluster, Feed, Interest, Item, Origin, Problem, Seen};
use edgesync_object::{ResourceVersion, Selector, Target};
use edgesync_placement::{ObjectMatch, Summary, Unread};
use serde_json::Value;

use crate::api::{ApiServer, over_each};
use crate::kubernetes::Kubernetes;
use crate::setup::{ANYTHING, define};
use edgesync_testkit::kubectl::Kubectl;
use edgesync_testkit::proxy::{Mode, Proxy};
use edgesync_testkit::site::Site;

/// The longest that anything may take: a watch that was refused is tried again after half a minute.
const PATIENCE: Duration = Duration::from_secs(120);

const RULES: [&str; 2] = [
    include_str!("../../packaging/kubernetes/crds/placements.yaml"),
    include_str!("../../packaging/kubernetes/crds/clusterplacements.yaml"),
];

struct Setup<K = Kubernetes> {
    // The processes that use the directory end before it goes.
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

    /// A cluster that knows no rules.
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
        follower.until("all is told", |told| told.is_complete).await;
        follower
    }
}

/// What has been told, by `plural/name`.
struct Follower {
    feed: Feed,
    objects: BTreeMap<String, Value>,
    /// In their order: `+name` and `-name`.
    log: Vec<String>,
    problems: Vec<Problem>,
    unread: Vec<String>,
    /// How many objects were known when that was told.
    known_then: usize,
    is_complete: bool,
    /// The last question that was answered, and the version that the cluster had reached.
    caught_up: (u64, ResourceVersion),
}

impl Follower {
    async fn new(kubeconfig: &Path, interests: Vec<Interest>) -> Self {
        let cluster = Cluster::connect(Some(kubeconfig)).await.unwrap();
        let fleet = Interest::fleet(Selector::default());
        Self {
            feed: Feed::new(cluster, fleet.into_iter().chain(interests).collect()),
            objects: BTreeMap::new(),
            log: Vec::new(),
            problems: Vec::new(),
            unread: Vec::new(),
            known_then: 0,
            is_complete: false,
            caught_up: (0, 0.into()),
        }
    }

    fn take_in(&mut self, item: Item) {
        match item {
            Item::Listed(seen) => seen.into_iter().for_each(|seen| self.set(&seen)),
            Item::Set(seen) => self.set(&seen),
            Item::Gone(summary) => self.remove(&summary),
            Item::Unlisted(gone) => gone.iter().for_each(|summary| self.remove(summary)),
            Item::Complete => self.is_complete = true,
            Item::CaughtUp { question, reached } => self.caught_up = (question, reached),
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
        // Another one of this name may have come meanwhile.
        if self.objects.get(&name).is_some_and(|object| object["metadata"]["uid"] == *summary.uid) {
            self.objects.remove(&name);
        }
        self.log.push(format!("-{name}"));
    }

    fn set(&mut self, seen: &Seen) {
        let name = name(&seen.summary);
        let object: Value = serde_json::from_str(&seen.body).unwrap();
        assert_eq!(object["metadata"]["uid"], *seen.summary.uid);
        assert_eq!(object["metadata"]["resourceVersion"], seen.summary.version.as_str());
        self.log.push(format!("+{name}"));
        self.objects.insert(name, object);
    }

    /// Follows until a condition holds.
    async fn until(&mut self, what: &str, condition: impl Fn(&Self) -> bool) {
        let followed = tokio::time::timeout(PATIENCE, async {
            while !condition(self) {
                let item = self.feed.next().await;
                self.take_in(item);
            }
        });
        let followed = followed.await;
        let (log, problems, unread) = (&self.log, &self.problems, &self.unread);
        assert!(followed.is_ok(), "not told that {what}: {log:?} {problems:?} {unread:?}");
    }

    /// Waits until all is told that there is now.
    async fn catch_up(&mut self) {
        let asked = self.feed.catch_up();
        self.until("all is told that there is", |told| told.caught_up.0 >= asked).await;
    }

    async fn until_told(&mut self, object: &str, expected: &Value) {
        self.until(object, |told| told.objects.get(object) == Some(expected)).await;
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
    what_happens_in_the_cluster_is_told_as_it_is_there_also_over_a_killed_server,
    who_asks_is_told_when_nothing_is_missed_and_how_far_the_cluster_is,
    a_rule_that_is_an_object_has_watched_what_it_selects_and_nothing_else,
    what_names_a_node_is_told_of_with_what_pods_refer_to,
    a_kind_may_go_and_come_and_disturbs_no_other,
);

async fn what_happens_in_the_cluster_is_told_as_it_is_there_also_over_a_killed_server<K: ApiServer>() {
    let mut setup = Setup::<K>::start().await;
    // More than there are in a page.
    let many: String =
        (0..600).map(|number| format!("---\n{}", config_map(&format!("m{number}"), "edge", "x"))).collect();
    setup.create(&many);
    setup.create(&config_map("other", "cloud", "x"));
    let mut told = setup.follow(vec![rule(0, &["cm"], &["shop"], "tier=edge")]).await;
    assert_eq!(told.objects.len(), 600, "{:?}", told.objects.keys());
    assert!(told.problems.is_empty() && told.unread.is_empty());
    let first = setup.get("cm/m0");
    assert_eq!(told.objects["configmaps/m0"], first);

    setup.apply(&config_map("m0", "edge", "fast"));
    told.until_told("configmaps/m0", &setup.get("cm/m0")).await;
    // Out of what is selected, and into it.
    setup.apply(&config_map("m1", "cloud", "x"));
    setup.apply(&config_map("other", "edge", "x"));
    told.until("one has gone, one has come", |told| {
        !told.has("configmaps/m1") && told.has("configmaps/other")
    })
    .await;
    // Deleted and made again under the same name.
    setup.delete("cm/m0");
    setup.create(&config_map("m0", "edge", "again"));
    told.until_told("configmaps/m0", &setup.get("cm/m0")).await;
    assert_ne!(told.objects["configmaps/m0"]["metadata"]["uid"], first["metadata"]["uid"]);

    told.log.clear();
    setup.kubernetes.crash().await;
    setup.apply(&config_map("m2", "edge", "after"));
    setup.delete("cm/m3");
    told.until_told("configmaps/m2", &setup.get("cm/m2")).await;
    told.until("it has gone", |told| !told.has("configmaps/m3")).await;
    let mut log = told.log.clone();
    log.sort();
    assert_eq!(log, ["+configmaps/m2", "-configmaps/m3"], "nothing else is told");
}

async fn who_asks_is_told_when_nothing_is_missed_and_how_far_the_cluster_is<K: ApiServer>() {
    let setup = Setup::<K>::start().await;
    setup.create(&config_map("a", "edge", "x"));
    setup.create(&config_map("b", "edge", "x"));
    let mut told = setup.follow(vec![rule(0, &["cm"], &["shop"], "")]).await;
    told.catch_up().await;
    assert_eq!(told.log, ["+configmaps/a", "+configmaps/b"], "nothing is told twice");
    // Also what another rule selects from now on.
    setup.apply(&config_map("a", "edge", "fast"));
    setup.delete("cm/b");
    setup.admin.run(&["create", "secret", "generic", "key", "-n", "shop"]).ok();
    setup.create(
        "apiVersion: edgesync.io/v1alpha1\nkind: Placement\nmetadata: {name: p, namespace: shop}\n\
         spec: {objects: {kinds: [secrets]}, nodes: {}}\n",
    );
    let questions = [told.feed.catch_up(), told.feed.catch_up()];
    told.until("both are answered", |told| told.caught_up.0 >= questions[1]).await;
    assert_eq!(told.objects["configmaps/a"], setup.get("cm/a"));
    assert!(told.has("secrets/key") && !told.has("configmaps/b"), "{:?}", told.log);
    let newest = setup.get("placement/p")["metadata"]["resourceVersion"].as_str().unwrap().into();
    assert!(!told.caught_up.1.is_older_than(&newest), "{:?}", told.caught_up);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs a Kubernetes API server: tests/cluster/run"]
async fn a_cluster_that_was_restored_from_a_copy_is_read_anew() {
    let mut setup = Setup::<Kubernetes>::start().await;
    setup.create(&config_map("a", "edge", "old"));
    setup.create(&config_map("b", "edge", "old"));
    let old = setup.get("cm/a");
    setup.kubernetes.copy_or_restore().await;
    let mut told = setup.follow(vec![rule(0, &["cm"], &["shop"], "")]).await;
    setup.apply(&config_map("a", "edge", "new"));
    setup.delete("cm/b");
    // So many that a server that starts does not give as many versions by itself.
    let many: String =
        (0..50).map(|n| format!("---\n{}", config_map(&format!("c{n}"), "edge", "x"))).collect();
    setup.create(&many);
    told.until_told("configmaps/c49", &setup.get("cm/c49")).await;

    setup.kubernetes.copy_or_restore().await;
    told.until_told("configmaps/a", &old).await;
    told.until("it is as it was", |told| told.has("configmaps/b") && told.objects.len() == 2).await;
    setup.apply(&config_map("b", "edge", "newer"));
    told.until_told("configmaps/b", &setup.get("cm/b")).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs a Kubernetes API server: tests/cluster/run"]
async fn a_cluster_without_the_kinds_of_rules_has_not_told_everything() {
    let setup = Setup::<Kubernetes>::without_rules().await;
    setup.create(&config_map("a", "edge", "x"));
    let mut told = Follower::new(&setup.kubernetes.admin, vec![rule(0, &["cm"], &["shop"], "")]).await;
    let missing = |told: &Follower| told.problems.iter().filter(|one| one.origin == Origin::Fleet).count();
    told.until("the kinds of rules are missing", |told| missing(told) == 2).await;
    assert_eq!(told.unread, ["Placement.edgesync.io", "ClusterPlacement.edgesync.io"]);
    assert!(!told.is_complete && told.objects.is_empty(), "what is wanted is not known");
    RULES.iter().for_each(|text| setup.create(text));
    told.until("all is told", |told| told.is_complete).await;
    assert!(told.has("configmaps/a") && told.problems.is_empty() && told.unread.is_empty());
}

async fn a_rule_that_is_an_object_has_watched_what_it_selects_and_nothing_else<K: ApiServer>() {
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
    let mut told = setup.follow(Vec::new()).await;
    assert_eq!(told.log, ["+placements/p", "+configmaps/edge"], "the rule before what it selects");
    let uid = told.objects["placements/p"]["metadata"]["uid"].as_str().unwrap().into();
    assert_eq!(
        told.problems,
        [Problem { origin: Origin::Rule(uid), kind: "gizmos".into(), cause: Cause::Unserved }]
    );

    setup.apply(&placement("cloud"));
    told.until("it selects others", |told| told.has("configmaps/cloud") && !told.has("configmaps/edge"))
        .await;
    setup.admin.run(&["delete", "placement/p", "-n", "shop"]).ok();
    told.until("nobody wants it", |told| told.objects.is_empty()).await;
    told.until("there is no problem", |told| told.problems.is_empty()).await;
}

async fn what_names_a_node_is_told_of_with_what_pods_refer_to<K: ApiServer>() {
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
    let told = setup.follow(interests).await;
    let told: Vec<&String> = told.objects.keys().collect();
    let expected = ["configmaps/settings", "pods/placed", "resourcequotas/any", "secrets/labelled"];
    assert_eq!(told, expected);
}

async fn a_kind_may_go_and_come_and_disturbs_no_other<K: ApiServer>() {
    let setup = Setup::<K>::start().await;
    let lamp = "{apiVersion: example.com/v1, kind: Lamp, metadata: {name: hall, namespace: shop}}\n";
    let establish = || {
        define(&setup.admin, "Lamp", ANYTHING);
        setup.create(lamp);
    };
    establish();
    let mut told = setup.follow(vec![rule(0, &["Lamp"], &[], ""), rule(1, &["cm"], &["shop"], "")]).await;
    let first = told.objects["lamps/hall"].clone();

    setup.admin.run(&["delete", "crd/lamps.example.com"]).ok();
    told.until("the lamp has gone", |told| !told.has("lamps/hall")).await;
    let unserved = |told: &Follower| {
        matches!(&told.problems[..], [Problem { origin: Origin::Configured(0), cause: Cause::Unserved, .. }])
    };
    told.until("there is no such kind", unserved).await;
    setup.create(&config_map("settings", "edge", "x"));
    told.until("others are told of", |told| told.has("configmaps/settings")).await;

    establish();
    told.until("the lamp has come again", |told| told.has("lamps/hall")).await;
    assert_ne!(told.objects["lamps/hall"]["metadata"]["uid"], first["metadata"]["uid"]);
    told.until("there is no problem", |told| told.problems.is_empty()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs a Kubernetes API server: tests/cluster/run"]
async fn a_kind_that_cannot_be_read_keeps_no_other_waiting() {
    let setup = Setup::<Kubernetes>::start().await;
    // Nobody answers who could say what a lamp of today is in the version that is preferred.
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
    let mut told = setup.follow(vec![rule(0, &["Lamp"], &[], ""), rule(1, &["cm"], &["shop"], "")]).await;
    assert!(told.has("configmaps/a") && !told.has("lamps/hall"));
    assert_eq!(told.unread, ["Lamp.example.com"]);
    let broken = |problem: &Problem| {
        problem.origin == Origin::Configured(0) && matches!(problem.cause, Cause::Broken(_))
    };
    assert!(matches!(&told.problems[..], [problem] if broken(problem)), "{:?}", told.problems);
    told.catch_up().await;

    setup.apply(&lamps(false));
    told.until("the lamp can be read", |told| told.has("lamps/hall") && told.unread.is_empty()).await;
    assert!(told.problems.is_empty(), "{:?}", told.problems);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs a Kubernetes API server: tests/cluster/run"]
async fn rights_that_are_taken_away_take_nothing_away() {
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
    let mut told = setup.follow_as(&ada, rules).await;
    let refused = |told: &Follower| -> Vec<(Origin, String)> {
        told.problems.iter().map(|problem| (problem.origin.clone(), problem.kind.clone())).collect()
    };
    // What may be read is, although another rule would have it from everywhere.
    assert_eq!(
        refused(&told),
        [
            (Origin::Configured(2), "configmaps".to_owned()),
            (Origin::Configured(1), "secrets in namespace shop".to_owned())
        ]
    );
    assert_eq!(told.unread, ["ConfigMap", "Secret in namespace shop"]);
    assert!(told.has("configmaps/a") && told.has("configmaps/b") && !told.has("secrets/key"));

    bind(&setup, "secrets");
    told.until("the secret is told of", |told| told.has("secrets/key") && refused(told).len() == 1).await;
    setup.admin.run(&["delete", "rolebinding", "configmaps", "-n", "shop"]).ok();
    // What is under way goes on until it is cut.
    setup.kubernetes.crash().await;
    told.until("the rule has a problem", |told| refused(told).len() == 2).await;
    setup.delete("cm/b");
    setup.delete("secret/key");
    told.until("the secret has gone", |told| !told.has("secrets/key")).await;
    assert!(told.has("configmaps/a") && told.has("configmaps/b"), "it is not known that it has gone");
    assert_eq!(told.unread, ["ConfigMap", "ConfigMap in namespace shop"]);

    bind(&setup, "configmaps");
    told.until("the other has gone", |told| !told.has("configmaps/b") && refused(told).len() == 1).await;
    assert!(told.has("configmaps/a") && !told.log.contains(&"-configmaps/a".to_owned()));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs a Kubernetes API server: tests/cluster/run"]
async fn what_could_not_be_read_is_known_when_all_of_it_is_told() {
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
    // More than there are in a part of a list.
    let many: String =
        (0..600).map(|number| format!("---\n{}", config_map(&format!("m{number}"), "edge", "x"))).collect();
    setup.create(&many);
    let ada = setup.kubernetes.user("ada");
    let mut told = setup.follow_as(&ada, vec![rule(0, &["cm"], &["shop"], "")]).await;
    assert_eq!(told.unread, ["ConfigMap in namespace shop"]);
    let role = ["create", "role", "maps", "--verb=list,watch", "--resource=configmaps", "-n", "shop"];
    setup.admin.run(&role).ok();
    setup.admin.run(&["create", "rolebinding", "maps", "--role=maps", "--user=ada", "-n", "shop"]).ok();
    told.until("they can be read", |told| told.unread.is_empty()).await;
    assert_eq!((told.known_then, told.objects.len()), (600, 600), "not before all of them are told");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs a Kubernetes API server: tests/cluster/run"]
async fn what_was_given_up_can_be_read_again_although_nothing_happens_there() {
    let setup = Setup::<Kubernetes>::start().await;
    setup.create(&config_map("a", "edge", "x"));
    let line = Proxy::start(setup.kubernetes.address);
    let kubeconfig = setup.kubernetes.admin_by("line", &format!("https://{}", line.address()));
    let mut told = setup.follow_as(&kubeconfig, vec![rule(0, &["cm"], &["shop"], "")]).await;
    line.set(Mode::Refuse);
    line.cut();
    let is_unread =
        |told: &Follower| told.unread.iter().any(|unread| unread == "ConfigMap in namespace shop");
    told.until("it is given up", is_unread).await;
    told.log.clear();
    line.set(Mode::Pass);
    told.until("all can be read", |told| told.unread.is_empty() && told.problems.is_empty()).await;
    assert_eq!(told.log, [""; 0], "nothing is told twice");
}
