//! A real cluster with all that replicas of `edgesync-cloud` need in it, and what nodes are to hold there.

// Clippy takes only the functions marked #[test] for tests, not what they call.
#![allow(clippy::unwrap_used)]

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use serde_json::{Value, json};

use crate::api::ApiServer;
use crate::kubernetes::Kubernetes;
use edgesync_testkit::kubectl::Kubectl;
use edgesync_testkit::site::{Agent, Cloud, Site, apply, eventually, held};

/// The longest that anything may take.
pub(crate) const PATIENCE: Duration = Duration::from_secs(120);

const KINDS: [&str; 4] = [
    include_str!("../../packaging/kubernetes/crds/placements.yaml"),
    include_str!("../../packaging/kubernetes/crds/clusterplacements.yaml"),
    include_str!("../../packaging/kubernetes/crds/objectsyncs.yaml"),
    include_str!("../../packaging/kubernetes/crds/clusterobjectsyncs.yaml"),
];

/// A cluster with all that replicas need.
pub(crate) struct Setup<K = Kubernetes> {
    // The processes that use the directory end before it goes.
    pub(crate) kubernetes: K,
    pub(crate) admin: Kubectl,
    pub(crate) site: Site,
}

impl Setup {
    pub(crate) async fn start() -> Self {
        Self::start_with(&[]).await
    }

    /// The same with more arguments of the API server.
    pub(crate) async fn start_with(more: &[&str]) -> Self {
        let site = Site::new();
        Self::prepare(Kubernetes::start_with(&site, more).await, site)
    }
}

impl<K: ApiServer> Setup<K> {
    /// Over either of them.
    pub(crate) async fn over() -> Self {
        let site = Site::new();
        Self::prepare(K::start(&site).await, site)
    }

    fn prepare(kubernetes: K, site: Site) -> Self {
        let admin = Kubectl::with_kubeconfig(&site, "admin", kubernetes.admin());
        let setup = Self { kubernetes, admin, site };
        for namespace in ["edgesync", "shop"] {
            setup.admin.run(&["create", "namespace", namespace]).ok();
        }
        if K::IS_OURS {
            return setup;
        }
        KINDS.iter().for_each(|text| setup.apply(text));
        for kind in ["placements.edgesync.io", "objectsyncs.reliablesyncs.kubeedge.io"] {
            setup.admin.run(&["wait", "--for=condition=Established", &format!("crd/{kind}")]).ok();
        }
        setup
    }

    pub(crate) fn apply(&self, text: &str) {
        self.admin.feed(&["apply", "-f", "-"], text).ok();
    }

    pub(crate) fn list(&self, kind: &str) -> Vec<Value> {
        let list = self.admin.run(&["get", kind, "--all-namespaces", "-o", "json"]).json();
        list["items"].as_array().unwrap().clone()
    }

    /// A replica that is not started yet, in a directory of its own.
    pub(crate) fn replica(&self, site: &Site) -> Cloud {
        let mut replica = replica_by(site, self.kubernetes.admin());
        if K::IS_OURS {
            // They are what its own fleet holds.
            replica.settings.text("kubernetes.objectsyncs", "off");
        }
        replica
    }

    /// Two replicas that run, and their directories.
    pub(crate) async fn two_replicas(&self) -> ([Site; 2], [Cloud; 2]) {
        let homes = [Site::new(), Site::new()];
        let mut replicas = [self.replica(&homes[0]), self.replica(&homes[1])];
        for replica in &mut replicas {
            replica.run().await;
        }
        (homes, replicas)
    }

    /// Puts a ConfigMap into the namespace `shop`, without the time that kubectl takes.
    pub(crate) async fn put(&self, name: &str, mode: &str) {
        let object = json!({
            "apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name, "namespace": "shop"}, "data": {"mode": mode},
        });
        apply(self.kubernetes.client(), &object).await.unwrap();
    }

    /// A condition of the Placement `all` in the namespace `shop`; null if it has none of that type.
    pub(crate) fn condition(&self, of_type: &str) -> Value {
        let placement = self.admin.run(&["get", "placement/all", "-n", "shop", "-o", "json"]).json();
        let conditions = placement["status"]["conditions"].as_array().cloned().unwrap_or_default();
        conditions.into_iter().find(|condition| condition["type"] == of_type).unwrap_or_default()
    }

    /// Waits until the Placement `all` is accepted, or is not, with this reason. Gives what is said of it.
    pub(crate) async fn accepted(&self, reason: &str) -> String {
        eventually(&format!("the Placement is {reason}"), PATIENCE, async || {
            let accepted = self.condition("Accepted");
            (accepted["reason"] == reason)
                .then(|| accepted["message"].as_str().unwrap_or_default().to_owned())
        })
        .await
    }

    /// What nodes are to hold: the objects of these kinds in the namespace `shop`, by their UIDs.
    pub(crate) fn wanted(&self, kinds: &str) -> BTreeMap<String, Value> {
        let list = self.admin.run(&["get", kinds, "-n", "shop", "-o", "json"]).json();
        let items = list["items"].as_array().unwrap().iter().cloned();
        items.map(|item| (item["metadata"]["uid"].as_str().unwrap().to_owned(), bare(item))).collect()
    }

    /// The ObjectSyncs that the cluster has of nodes: names and versions.
    pub(crate) fn records(&self) -> BTreeMap<String, String> {
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let record =
            |item: Value| (text(&item["metadata"]["name"]), text(&item["status"]["objectResourceVersion"]));
        self.list("objectsyncs").into_iter().map(record).collect()
    }

    /// Waits until the cluster has exactly the ObjectSyncs of these nodes, which hold all that they are to hold; if it has those
    /// of replicas.
    pub(crate) async fn records_everything(&self, nodes: &[&str], kinds: &str) {
        if K::IS_OURS {
            return;
        }
        let list = self.admin.run(&["get", kinds, "-n", "shop", "-o", "json"]).json();
        let items = list["items"].as_array().unwrap();
        let text = |item: &Value, name: &str| item["metadata"][name].as_str().unwrap().to_owned();
        let of = |node: &&str| {
            let record = |item| (format!("{node}.{}", text(item, "uid")), text(item, "resourceVersion"));
            items.iter().map(record).collect::<Vec<_>>()
        };
        let expected: BTreeMap<String, String> = nodes.iter().flat_map(of).collect();
        let mut last = BTreeMap::new();
        eventually("the ObjectSyncs say what the nodes hold", PATIENCE, async || {
            last = self.records();
            (last == expected).then_some(())
        })
        .await;
    }

    /// Waits until a node holds exactly that.
    pub(crate) async fn holds(&self, agent: &Agent, kinds: &str) {
        self.all_hold([agent], kinds).await;
    }

    /// Waits until each of these nodes holds exactly that.
    pub(crate) async fn all_hold(&self, agents: impl IntoIterator<Item = &Agent>, kinds: &str) {
        let wanted = self.wanted(kinds);
        for agent in agents {
            eventually(&format!("{} holds all of it", agent.node), PATIENCE, async || {
                let held = held(&agent.client()).await;
                let held: BTreeMap<String, Value> =
                    held.into_iter().map(|(uid, object)| (uid, bare(object))).collect();
                (held == wanted).then_some(())
            })
            .await;
        }
    }
}

/// A replica that is not started yet, in a directory of its own, with a kubeconfig.
pub(crate) fn replica_by(site: &Site, kubeconfig: &Path) -> Cloud {
    let mut cloud = Cloud::new(site);
    cloud
        .settings
        .text("store.type", "kubernetes")
        .text("kubernetes.kubeconfig", kubeconfig.display())
        .tables("");
    // What is sent is counted: on a busy machine nothing is to be sent again that is merely late.
    cloud.settings.text("sync.resend_min", "60s").remove("sync.resend_max");
    cloud
}

/// Defines a kind of the group `example.com` with one version, and waits until it is served. What is said of the version is
/// its schema, and whatever else it has.
pub(crate) fn define(admin: &Kubectl, kind: &str, version: &str) {
    let singular = kind.to_lowercase();
    let text = format!(
        "{{apiVersion: apiextensions.k8s.io/v1, kind: CustomResourceDefinition, metadata: {{name: {singular}s.example.com}}, \
         spec: {{group: example.com, scope: Namespaced, names: {{plural: {singular}s, singular: {singular}, kind: {kind}}}, \
         versions: [{{name: v1, served: true, storage: true, {version}}}]}}}}\n"
    );
    admin.feed(&["create", "-f", "-"], &text).ok();
    let name = format!("crd/{singular}s.example.com");
    admin.run(&["wait", "--for=condition=Established", &name]).ok();
}

/// The schema of a kind that may have any fields.
pub(crate) const ANYTHING: &str =
    "schema: {openAPIV3Schema: {type: object, x-kubernetes-preserve-unknown-fields: true}}";

/// What has reached an agent: objects in frames, and changes that it has stored.
pub(crate) async fn arrived(agent: &Agent) -> (u64, u64) {
    let (status, client) = (agent.status().await, agent.client());
    let traffic: Value = client.get("/edgesync/v1/traffic").await.unwrap();
    let kinds = traffic["total"]["kinds"].as_array().cloned().unwrap_or_default();
    let down = kinds.iter().filter(|kind| kind["direction"] == "down");
    let objects = down.map(|kind| kind["objects"].as_u64().unwrap()).sum();
    (objects, status["counters"]["applied"].as_u64().unwrap())
}

/// An object without what each API has of its own.
pub(crate) fn bare(mut object: Value) -> Value {
    let metadata = object["metadata"].as_object_mut().unwrap();
    for own in ["managedFields", "resourceVersion", "generation", "selfLink"] {
        metadata.remove(own);
    }
    // Not sent to nodes.
    if let Some(annotations) = metadata.get_mut("annotations").and_then(Value::as_object_mut) {
        annotations.remove("kubectl.kubernetes.io/last-applied-configuration");
        if annotations.is_empty() {
            metadata.remove("annotations");
        }
    }
    object
}

/// All ConfigMaps and Secrets of the namespace `shop` belong on all nodes.
pub(crate) const EVERYWHERE: &str = "{apiVersion: edgesync.io/v1alpha1, kind: Placement, metadata: {name: all, namespace: shop}, \
     spec: {objects: {kinds: [configmaps, secrets]}, nodes: {names: ['*']}}}";

/// A ConfigMap in the namespace `shop`.
pub(crate) fn config_map(name: &str, mode: &str) -> String {
    format!(
        "{{apiVersion: v1, kind: ConfigMap, metadata: {{name: {name}, namespace: shop}}, data: {{mode: {mode}}}}}"
    )
}
