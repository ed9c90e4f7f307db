//! A real cluster with everything that replicas of `edgesync-cloud` need, and the desired objects
//! of nodes.

// Clippy takes only the functions marked #[test] for tests, not what they call.
#![allow(clippy::unwrap_used)]

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use edgesync_admin::agent::{Direction, Traffic};
use edgesync_admin::cloud::Confirmed;
use edgesync_admin::{NodeAction, Route};
use serde_json::{Value, json};

use crate::cluster::api::ApiServer;
use crate::cluster::kubernetes::Kubernetes;
use edgesync_testkit::kubectl::Kubectl;
use edgesync_testkit::site::{Agent, Cloud, Site, apply, ask, eventually, held};

/// Maximum duration of each step.
pub(crate) const PATIENCE: Duration = Duration::from_secs(120);

const KINDS: [&str; 4] = [
    include_str!("../../packaging/kubernetes/crds/placements.yaml"),
    include_str!("../../packaging/kubernetes/crds/clusterplacements.yaml"),
    include_str!("../../packaging/kubernetes/crds/objectsyncs.yaml"),
    include_str!("../../packaging/kubernetes/crds/clusterobjectsyncs.yaml"),
];

/// A cluster with everything that replicas need.
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

    /// Starts a cluster with additional arguments of the API server.
    pub(crate) async fn start_with(more: &[&str]) -> Self {
        let site = Site::new();
        Self::prepare(Kubernetes::start_with(&site, more).await, site)
    }
}

impl<K: ApiServer> Setup<K> {
    /// Starts an API server of the type `K`.
    pub(crate) async fn over() -> Self {
        let site = Site::new();
        Self::prepare(K::start(&site).await, site)
    }

    fn prepare(kubernetes: K, site: Site) -> Self {
        let admin = Kubectl::with_kubeconfig(&site, "admin", kubernetes.admin());
        let setup = Self { kubernetes, admin, site };
        for namespace in ["edgesync", "edgesync-ca", "shop"] {
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

    /// Creates a replica in its own directory without starting it.
    pub(crate) fn replica(&self, site: &Site) -> Cloud {
        let mut replica = replica_by(site, self.kubernetes.admin());
        if K::IS_OURS {
            // The embedded server itself writes the ObjectSyncs of its fleet.
            replica.settings.text("kubernetes.objectsyncs", "off");
        }
        replica
    }

    /// Starts two replicas; returns them with their directories.
    pub(crate) async fn two_replicas(&self) -> ([Site; 2], [Cloud; 2]) {
        let homes = [Site::new(), Site::new()];
        let mut replicas = [self.replica(&homes[0]), self.replica(&homes[1])];
        for replica in &mut replicas {
            replica.run().await;
        }
        (homes, replicas)
    }

    /// Writes a ConfigMap in the namespace `shop` through the client, which is faster than kubectl.
    pub(crate) async fn put(&self, name: &str, mode: &str) {
        let object = json!({
            "apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name, "namespace": "shop"}, "data": {"mode": mode},
        });
        apply(self.kubernetes.client(), &object).await.unwrap();
    }

    /// Returns a condition of the Placement `all` in the namespace `shop`; null if it has none of
    /// that type.
    pub(crate) fn condition(&self, of_type: &str) -> Value {
        let placement = self.admin.run(&["get", "placement/all", "-n", "shop", "-o", "json"]).json();
        let conditions = placement["status"]["conditions"].as_array().cloned().unwrap_or_default();
        conditions.into_iter().find(|condition| condition["type"] == of_type).unwrap_or_default()
    }

    /// Waits until the Accepted condition of the Placement `all` has this reason; returns its
    /// message.
    pub(crate) async fn accepted(&self, reason: &str) -> String {
        eventually(&format!("the Placement is {reason}"), PATIENCE, async || {
            let accepted = self.condition("Accepted");
            (accepted["reason"] == reason)
                .then(|| accepted["message"].as_str().unwrap_or_default().to_owned())
        })
        .await
    }

    /// Returns the desired objects of nodes: those of these kinds in the namespace `shop`, by UID.
    pub(crate) fn desired(&self, kinds: &str) -> BTreeMap<String, Value> {
        let list = self.admin.run(&["get", kinds, "-n", "shop", "-o", "json"]).json();
        let items = list["items"].as_array().unwrap().iter().cloned();
        items.map(|item| (item["metadata"]["uid"].as_str().unwrap().to_owned(), bare(item))).collect()
    }

    /// Returns the ObjectSyncs in the cluster: names and versions.
    pub(crate) fn records(&self) -> BTreeMap<String, String> {
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let record =
            |item: Value| (text(&item["metadata"]["name"]), text(&item["status"]["objectResourceVersion"]));
        self.list("objectsyncs").into_iter().map(record).collect()
    }

    /// Waits until the cluster has exactly the ObjectSyncs of these nodes with all desired objects.
    /// Does nothing where the server writes ObjectSyncs itself.
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

    /// Waits until a node holds exactly the desired objects.
    pub(crate) async fn holds(&self, agent: &Agent, kinds: &str) {
        self.all_hold([agent], kinds).await;
    }

    /// Waits until each of these nodes holds exactly the desired objects.
    pub(crate) async fn all_hold(&self, agents: impl IntoIterator<Item = &Agent>, kinds: &str) {
        let desired = self.desired(kinds);
        for agent in agents {
            eventually(&format!("{} holds all of it", agent.node), PATIENCE, async || {
                let held = held(&agent.client()).await;
                let held: BTreeMap<String, Value> =
                    held.into_iter().map(|(uid, object)| (uid, bare(object))).collect();
                (held == desired).then_some(())
            })
            .await;
        }
    }
}

/// Creates a replica in its own directory, with a kubeconfig, without starting it.
pub(crate) fn replica_by(site: &Site, kubeconfig: &Path) -> Cloud {
    let mut cloud = Cloud::new(site);
    cloud
        .settings
        .text("store.type", "kubernetes")
        .text("kubernetes.kubeconfig", kubeconfig.display())
        .tables("");
    // Tests count sent objects, so a slow response on a busy machine must cause no resend.
    cloud.settings.text("sync.resend_min", "60s").remove("sync.resend_max");
    cloud
}

/// Defines a kind of the group `example.com` with one version, and waits until it is served.
/// `version` has the schema and other fields of the version.
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

/// A schema that permits any fields.
pub(crate) const ANYTHING: &str =
    "schema: {openAPIV3Schema: {type: object, x-kubernetes-preserve-unknown-fields: true}}";

/// Returns the number of objects that the agent has received in frames and of changes that it has
/// stored.
pub(crate) async fn arrived(agent: &Agent) -> (u64, u64) {
    let status = agent.status().await;
    let traffic: Traffic = ask(&agent.client(), Route::Traffic).await.unwrap();
    let down = traffic.total.span.kinds.iter().filter(|kind| kind.direction == Direction::Down);
    (down.map(|kind| kind.objects).sum(), status.counters.applied)
}

/// Releases the removals held back on a node.
pub(crate) async fn confirm_deletions(cloud: &Cloud, node: &str) -> Confirmed {
    ask(&cloud.client(), Route::ChangeNode(node, NodeAction::ConfirmDeletions)).await.unwrap()
}

/// Removes the fields that each API sets itself.
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

/// Places all ConfigMaps and Secrets of the namespace `shop` on all nodes.
pub(crate) const EVERYWHERE: &str = "{apiVersion: edgesync.io/v1alpha1, kind: Placement, metadata: {name: all, namespace: shop}, \
     spec: {objects: {kinds: [configmaps, secrets]}, nodes: {names: ['*']}}}";

/// A ConfigMap in the namespace `shop`.
pub(crate) fn config_map(name: &str, mode: &str) -> String {
    format!(
        "{{apiVersion: v1, kind: ConfigMap, metadata: {{name: {name}, namespace: shop}}, data: {{mode: {mode}}}}}"
    )
}
