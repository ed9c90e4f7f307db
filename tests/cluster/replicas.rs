//! Replicas of `edgesync-cloud` over a real cluster, and agents that they bring into sync.

// Clippy takes only the functions marked #[test] for tests, not what they call.
#![allow(clippy::unwrap_used)]

use std::collections::BTreeMap;
use std::time::Duration;

use serde_json::{Value, json};

use crate::kubectl::Kubectl;
use crate::kubernetes::Kubernetes;
use crate::site::{Agent, Cloud, Site, eventually, held};

/// The longest that anything may take.
const PATIENCE: Duration = Duration::from_secs(120);

const KINDS: [&str; 4] = [
    include_str!("../../packaging/kubernetes/crds/placements.yaml"),
    include_str!("../../packaging/kubernetes/crds/clusterplacements.yaml"),
    include_str!("../../packaging/kubernetes/crds/objectsyncs.yaml"),
    include_str!("../../packaging/kubernetes/crds/clusterobjectsyncs.yaml"),
];

/// A cluster with all that replicas need.
struct Setup {
    // The processes that use the directory end before it goes.
    kubernetes: Kubernetes,
    admin: Kubectl,
    site: Site,
}

impl Setup {
    async fn start() -> Self {
        let site = Site::new();
        let kubernetes = Kubernetes::start(&site).await;
        let admin = Kubectl::with_kubeconfig(&site, "admin", &kubernetes.admin);
        let setup = Self { kubernetes, admin, site };
        for namespace in ["edgesync", "shop"] {
            setup.admin.run(&["create", "namespace", namespace]).ok();
        }
        KINDS.iter().for_each(|text| setup.apply(text));
        for kind in ["placements.edgesync.io", "objectsyncs.reliablesyncs.kubeedge.io"] {
            setup.admin.run(&["wait", "--for=condition=Established", &format!("crd/{kind}")]).ok();
        }
        setup
    }

    fn apply(&self, text: &str) {
        self.admin.feed(&["apply", "-f", "-"], text).ok();
    }

    fn list(&self, kind: &str) -> Vec<Value> {
        let list = self.admin.run(&["get", kind, "--all-namespaces", "-o", "json"]).json();
        list["items"].as_array().unwrap().clone()
    }

    /// A replica that is not started yet, in a directory of its own.
    fn replica(&self, site: &Site) -> Cloud {
        let mut cloud = Cloud::new(site);
        let kubeconfig = self.kubernetes.admin.display();
        cloud.settings.text("store.type", "kubernetes").text("kubernetes.kubeconfig", kubeconfig);
        cloud.settings.tables("");
        cloud
    }

    /// What nodes are to hold: the objects of these kinds in the namespace `shop`, by their UIDs.
    fn wanted(&self, kinds: &str) -> BTreeMap<String, Value> {
        let list = self.admin.run(&["get", kinds, "-n", "shop", "-o", "json"]).json();
        let items = list["items"].as_array().unwrap().iter().cloned();
        items.map(|item| (item["metadata"]["uid"].as_str().unwrap().to_owned(), bare(item))).collect()
    }

    /// Waits until a node holds exactly that.
    async fn holds(&self, agent: &Agent, kinds: &str) {
        let wanted = self.wanted(kinds);
        eventually(&format!("{} holds all of it", agent.node), PATIENCE, async || {
            let held: BTreeMap<String, Value> =
                held(&agent.client()).await.into_iter().map(|(uid, object)| (uid, bare(object))).collect();
            (held == wanted).then_some(())
        })
        .await;
    }
}

/// An object without what each API has of its own.
fn bare(mut object: Value) -> Value {
    let metadata = object["metadata"].as_object_mut().unwrap();
    for own in ["managedFields", "resourceVersion", "generation", "selfLink"] {
        metadata.remove(own);
    }
    object
}

const EVERYWHERE: &str = "{apiVersion: edgesync.io/v1alpha1, kind: Placement, metadata: {name: all, namespace: shop}, \
     spec: {objects: {kinds: [configmaps, secrets]}, nodes: {names: ['*']}}}";

fn config_map(name: &str, mode: &str) -> String {
    format!(
        "{{apiVersion: v1, kind: ConfigMap, metadata: {{name: {name}, namespace: shop}}, data: {{mode: {mode}}}}}"
    )
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs a Kubernetes API server: tests/cluster/run"]
async fn what_is_applied_to_the_cluster_is_on_the_node_and_what_the_node_says_is_in_the_cluster() {
    let setup = Setup::start().await;
    setup.apply(EVERYWHERE);
    for number in 0..20 {
        setup.apply(&config_map(&format!("c{number}"), "fast"));
    }
    let home = Site::new();
    let mut cloud = setup.replica(&home);
    cloud.run().await;
    let agent = Agent::start(&setup.site, "edge-1", cloud.mqtt).await;
    setup.holds(&agent, "cm,secret").await;
    setup.apply(&config_map("c0", "slow"));
    setup.admin.run(&["delete", "cm/c1", "-n", "shop"]).ok();
    setup.holds(&agent, "cm,secret").await;
    eventually("the Node is ready", PATIENCE, async || {
        let node = setup.list("nodes").into_iter().find(|node| node["metadata"]["name"] == "edge-1")?;
        let conditions = node["status"]["conditions"].as_array()?.clone();
        let is = |name: &str| conditions.iter().any(|one| one["type"] == name && one["status"] == "True");
        (is("Ready") && is("edgesync.io/InSync")).then_some(())
    })
    .await;
    let lease = &setup
        .list("leases.coordination.k8s.io")
        .into_iter()
        .find(|lease| lease["metadata"]["name"] == "edge-1");
    assert_eq!(lease.as_ref().unwrap()["metadata"]["namespace"], "kube-node-lease");
    let expected: BTreeMap<String, String> = setup
        .list("cm")
        .into_iter()
        .filter(|item| item["metadata"]["namespace"] == "shop")
        .map(|item| {
            let text = |name: &str| item["metadata"][name].as_str().unwrap().to_owned();
            (format!("edge-1.{}", text("uid")), text("resourceVersion"))
        })
        .collect();
    eventually("the ObjectSyncs say what the node holds", PATIENCE, async || {
        let found = setup.list("objectsyncs").into_iter().map(|item| {
            let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
            (text(&item["metadata"]["name"]), text(&item["status"]["objectResourceVersion"]))
        });
        (found.collect::<BTreeMap<_, _>>() == expected).then_some(())
    })
    .await;
    let status = setup.admin.run(&["get", "placement/all", "-n", "shop", "-o", "json"]).json();
    assert_eq!(status["status"]["nodes"], json!(1), "{status:#}");
}
