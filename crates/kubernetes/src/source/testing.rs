//! Test cluster: the embedded store with its API on loopback.
//!
//! With `EDGESYNC_TEST_KUBECONFIG` it is the cluster of that kubeconfig, for a single test; the
//! cluster must be fresh.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use serde_json::{Value, json};
use tokio::task::JoinSet;

use super::leases::Leases;
use super::node_service::NodeService;
use super::nodes::Nodes;
use super::records::Records;
use super::requests::Requests;
use super::syncs::Syncs;
use super::uploads::{EffectRecords, Uploads};
use crate::cluster::{Cluster, Precondition, RateLimiter};
use crate::node_name;
use edgesync_api::{Access, Address, Limits, Listener, Role, Server, own_uid};
use edgesync_cloud_store::{CloudOptions, CloudStore};
use edgesync_enrollment::membership::MembershipStore;
use edgesync_fleet::config::Config;
pub(super) use edgesync_fleet::source::LeaseRenewal;
use edgesync_fleet::{CloudObjects, Upkeep};
use edgesync_object::{Labels, NodeName, Object, Resource, Scope, kinds, yaml};
use edgesync_testkit::timing::{PATIENCE, within};
use edgesync_transport::proxy::ProxyRules;

/// Bearer token of the replicas, with the role `Admin`.
const TOKEN: &str = "replica";
/// Group of ObjectSyncs in tests; the embedded API rejects writes to the regular group.
pub(super) const RECORDS: &str = "records.example.com/v1alpha1";
const DEFINITIONS: [&str; 2] = [
    include_str!("../../../../packaging/kubernetes/crds/objectsyncs.yaml"),
    include_str!("../../../../packaging/kubernetes/crds/clusterobjectsyncs.yaml"),
];
/// Built into the embedded API.
const PLACEMENTS: &str = include_str!("../../../../packaging/kubernetes/crds/placements.yaml");
/// The namespace of the replicas.
pub(super) const NAMESPACE: &str = "edgesync";
/// Limit of a node's Events.
pub(super) const MAX_EVENTS: usize = 10;
/// Idle timeout of connections to the rig.
const IDLE: Duration = Duration::from_secs(24 * 3600);

/// A test cluster; stops on drop.
pub(super) struct Rig {
    cluster: Cluster,
    embedded: Option<Embedded>,
}

/// The embedded API with its store.
struct Embedded {
    kubeconfig: PathBuf,
    _upkeep: Upkeep,
    _serving: JoinSet<()>,
    _directory: tempfile::TempDir,
}

/// The writers of one replica.
pub(super) struct Replica {
    pub(super) leases: Leases,
    pub(super) nodes: Nodes,
    pub(super) uploads: Uploads,
    pub(super) syncs: Syncs,
}

impl Rig {
    pub(super) async fn start() -> Self {
        let real = std::env::var_os("EDGESYNC_TEST_KUBECONFIG").map(PathBuf::from);
        let embedded = if real.is_some() { None } else { Some(Embedded::start().await) };
        let kubeconfig = real.as_deref().or(embedded.as_ref().map(|embedded| &*embedded.kubeconfig));
        let cluster = Cluster::connect(kubeconfig, &ProxyRules::default()).await.unwrap();
        let rig = Self { cluster, embedded };
        for name in [NAMESPACE, "shop", "lab"] {
            rig.create(json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})).await;
        }
        if rig.embedded.is_none() {
            rig.define(PLACEMENTS).await;
        }
        rig
    }

    /// Returns requests with practically no rate limit.
    pub(super) fn requests(&self) -> Requests {
        Requests::new(self.cluster.clone(), RateLimiter::new(1_000_000, 1_000_000))
    }

    /// Returns a replica. Join tokens gave its nodes a label.
    pub(super) fn replica(&self, id: &str) -> Replica {
        self.replica_with(id, |node| (*node != "removed").then(|| labels(&[("site", "a")])))
    }

    fn replica_with(
        &self,
        id: &str,
        member_labels: impl Fn(&NodeName) -> Option<Labels> + Send + Sync + 'static,
    ) -> Replica {
        let requests = self.requests();
        let (leases, records) = (Leases::new(requests.clone(), id), Records::of(&requests, RECORDS));
        let (labels, networks) = (Arc::new(member_labels), Arc::default());
        let nodes = Nodes::new(requests.clone(), leases.clone(), records.clone(), labels, networks);
        let syncs = Syncs::new(&requests, records.clone(), &leases, 1000);
        let effect_records = EffectRecords { records, syncs: syncs.clone() };
        let uploads =
            Uploads::new(requests.clone(), leases.clone(), nodes.clone(), Some(effect_records), MAX_EVENTS);
        Replica { leases, nodes, uploads, syncs }
    }

    /// Returns the work of a replica for its nodes.
    pub(super) fn node_service(&self, id: &str) -> NodeService {
        let members = MembershipStore::of_cluster(Arc::new(self.cluster.clone()), NAMESPACE);
        NodeService::new(&self.requests(), members, &Config::default(), id)
    }

    pub(super) async fn get(
        &self,
        api_version: &str,
        kind: &str,
        namespace: &str,
        name: &str,
    ) -> Option<Object> {
        let resource = kinds::guess(api_version, kind, !namespace.is_empty());
        self.cluster.get(&resource, namespace, name).await.unwrap()
    }

    pub(super) async fn node(&self, name: &str) -> Option<Object> {
        self.get("v1", "Node", "", name).await
    }

    pub(super) async fn lease(&self, name: &str) -> Option<Object> {
        self.get("coordination.k8s.io/v1", "Lease", "kube-node-lease", name).await
    }

    pub(super) async fn create(&self, object: Value) -> Object {
        let object = object_of(object);
        self.cluster.create(&kind_of(&object), &object).await.unwrap()
    }

    /// Patches an object as another writer.
    pub(super) async fn patch(&self, object: &Object, patch: Value) -> Object {
        let key = (object.namespace(), object.name());
        self.cluster.merge(&kind_of(object), key, Precondition::default(), patch).await.unwrap()
    }

    pub(super) async fn delete(&self, object: &Object) {
        let key = (object.namespace(), object.name());
        assert!(self.cluster.delete(&kind_of(object), key, Precondition::default()).await.unwrap());
    }

    /// Defines the ObjectSync kinds as installed, except for the group.
    pub(super) async fn define_records(&self) {
        for text in DEFINITIONS {
            self.define(&text.replace("reliablesyncs.kubeedge.io", "records.example.com")).await;
        }
    }

    /// Defines a kind and waits until it is served.
    pub(super) async fn define(&self, text: &str) {
        let definition = self.create(yaml::parse(text).unwrap()).await;
        let spec = &definition.fields()["spec"];
        let text = |value: &Value| value.as_str().unwrap().to_owned();
        let resource = Resource {
            group: text(&spec["group"]),
            version: text(&spec["versions"][0]["name"]),
            kind: text(&spec["names"]["kind"]),
            plural: text(&spec["names"]["plural"]),
            scope: if spec["scope"] == "Namespaced" { Scope::Namespaced } else { Scope::Cluster },
        };
        let served = async {
            while self.cluster.list(&resource, None, "").await.is_err() {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        within("the kind is served", PATIENCE, served).await;
    }

    /// Creates a Node of edgesync.
    pub(super) async fn create_node(&self, name: &str) -> Object {
        let metadata = json!({"name": name, "labels": {"edgesync.io/edge": "true"}});
        self.create(json!({"apiVersion": "v1", "kind": "Node", "metadata": metadata})).await
    }
}

impl Embedded {
    async fn start() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let store = CloudStore::open(&directory.path().join("cloud.db"), &CloudOptions::default()).unwrap();
        let objects = Arc::new(CloudObjects::new(store).await.unwrap());
        let upkeep = Upkeep::start(&objects).await.unwrap();
        let access = Access::tokens(vec![(TOKEN.to_owned(), Role::Admin)], own_uid());
        // Idle connections outlive the time by which tests advance the clock.
        let limits = Limits { first_timeout: IDLE, head_timeout: IDLE, ..Limits::cloud() };
        let server = Server::new(objects, (), access, limits);
        let listener = Listener::bind(&Address::Tcp(([127, 0, 0, 1], 0).into())).await.unwrap();
        let Address::Tcp(address) = listener.address().clone() else { panic!("not TCP") };
        let mut serving = JoinSet::new();
        serving.spawn(async move { server.serve(listener, std::future::pending()).await });

        let kubeconfig = directory.path().join("kubeconfig");
        let config = json!({
            "apiVersion": "v1", "kind": "Config", "current-context": "test",
            "clusters": [{"name": "test", "cluster": {"server": format!("http://{address}")}}],
            "contexts": [{"name": "test", "context": {"cluster": "test", "user": "replica"}}],
            "users": [{"name": "replica", "user": {"token": TOKEN}}],
        });
        std::fs::write(&kubeconfig, config.to_string()).unwrap();
        Self { kubeconfig, _upkeep: upkeep, _serving: serving, _directory: directory }
    }
}

fn kind_of(object: &Object) -> Resource {
    kinds::guess(object.api_version(), object.kind(), !object.namespace().is_empty())
}

pub(super) fn object_of(value: Value) -> Object {
    match value {
        Value::Object(fields) => Object::from(fields),
        other => panic!("{other} is no object"),
    }
}

pub(super) fn labels(pairs: &[(&str, &str)]) -> Labels {
    pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
}

/// Returns a field of an object.
pub(super) fn at<'o>(object: &'o Object, pointer: &str) -> &'o Value {
    let (first, rest) = pointer.split_at(pointer[1..].find('/').map_or(pointer.len(), |at| at + 1));
    let found = object.fields().get(&first[1..]).and_then(|value| value.pointer(rest));
    found.unwrap_or(&Value::Null)
}

/// Returns a renewal, `second` seconds after an arbitrary time.
pub(super) fn renewal(node: &str, second: i64) -> LeaseRenewal {
    let time = |second| Timestamp::from_second(1_790_000_000 + second).unwrap();
    LeaseRenewal {
        node: node_name(node),
        seconds: 40,
        acquired: time(0),
        renewed: time(second),
        transitions: 1,
        next: None,
    }
}

/// Advances the runtime's clock.
pub(super) async fn pass(time: Duration) {
    tokio::time::pause();
    tokio::time::advance(time).await;
    tokio::time::resume();
}
