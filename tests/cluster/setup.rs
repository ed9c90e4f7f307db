//! A real cluster with all that replicas of `edgesync-cloud` need in it, and what nodes are to hold there.

// Clippy takes only the functions marked #[test] for tests, not what they call.
#![allow(clippy::unwrap_used)]

use std::collections::BTreeMap;
use std::time::Duration;

use serde_json::Value;

use crate::kubectl::Kubectl;
use crate::kubernetes::Kubernetes;
use crate::site::{Agent, Cloud, Site, eventually, held};

/// The longest that anything may take.
pub(crate) const PATIENCE: Duration = Duration::from_secs(120);

const KINDS: [&str; 4] = [
    include_str!("../../packaging/kubernetes/crds/placements.yaml"),
    include_str!("../../packaging/kubernetes/crds/clusterplacements.yaml"),
    include_str!("../../packaging/kubernetes/crds/objectsyncs.yaml"),
    include_str!("../../packaging/kubernetes/crds/clusterobjectsyncs.yaml"),
];

/// A cluster with all that replicas need.
pub(crate) struct Setup {
    // The processes that use the directory end before it goes.
    pub(crate) kubernetes: Kubernetes,
    pub(crate) admin: Kubectl,
    pub(crate) site: Site,
}

impl Setup {
    pub(crate) async fn start() -> Self {
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

    pub(crate) fn apply(&self, text: &str) {
        self.admin.feed(&["apply", "-f", "-"], text).ok();
    }

    pub(crate) fn list(&self, kind: &str) -> Vec<Value> {
        let list = self.admin.run(&["get", kind, "--all-namespaces", "-o", "json"]).json();
        list["items"].as_array().unwrap().clone()
    }

    /// A replica that is not started yet, in a directory of its own.
    pub(crate) fn replica(&self, site: &Site) -> Cloud {
        let mut cloud = Cloud::new(site);
        let kubeconfig = self.kubernetes.admin.display();
        cloud.settings.text("store.type", "kubernetes").text("kubernetes.kubeconfig", kubeconfig);
        cloud.settings.tables("");
        cloud
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

    /// Waits until the cluster has exactly the ObjectSyncs of these nodes, which hold all that they are to hold.
    pub(crate) async fn records_everything(&self, nodes: &[&str], kinds: &str) {
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
pub(crate) fn bare(mut object: Value) -> Value {
    let metadata = object["metadata"].as_object_mut().unwrap();
    for own in ["managedFields", "resourceVersion", "generation", "selfLink"] {
        metadata.remove(own);
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
