//! Attacks on an installation from the shipped manifests: replicas have exactly the rights that
//! these grant. The attackers have the certificate of one device, or may write objects in one
//! namespace of the cluster. Each step shows first that what is permitted works.
//!
//! A compromised agent beside the helper needs no cluster: `tests/hostile/helper.rs`.

// Clippy takes only the functions marked #[test] for tests, not what they call.
#![allow(clippy::unwrap_used, clippy::panic)]

mod device;
mod tenant;

use std::collections::BTreeSet;
use std::time::Duration;

use serde_json::{Value, json};

use crate::cluster::audit::{Audit, Request};
use crate::cluster::install::{ACCOUNT, Replica, Setup, packaging};
use crate::cluster::setup::{ANYTHING, define};
use edgesync_testkit::kubectl::Kubectl;
use edgesync_testkit::site::{Agent, Snapshot, eventually};

/// Maximum duration of each step. A refused kind is retried within half a minute.
const PATIENCE: Duration = Duration::from_secs(120);
/// The namespaces of edgesync itself.
const RESERVED: [&str; 2] = ["edgesync", "edgesync-ca"];

/// A cluster with everything installed, a replica, two devices that have joined, and a tenant.
struct Attack {
    // The processes end before the directory that they use goes.
    /// The device `edge-1`, whose certificate the attacker has. Not started.
    stolen: Agent,
    /// The device `edge-2`, running.
    other: Agent,
    replica: Replica,
    /// A user who may write ConfigMaps and Pods in the namespace `office`, and nothing else.
    tenant: Kubectl,
    setup: Setup,
    audit: Audit,
}

impl Attack {
    /// Starts everything, the replica with additional settings.
    async fn start(settings: &[(&str, &str)]) -> Self {
        let audit = Audit::new();
        let arguments = audit.arguments();
        let setup = Setup::installed_with(&arguments.each_ref().map(String::as_str)).await;
        define(&setup.admin, "Widget", &format!("subresources: {{status: {{}}}}, {ANYTHING}"));
        let rights = packaging("examples/rights.yaml");
        setup.admin.run(&["apply", "-f", rights.to_str().unwrap()]).ok();
        setup.aggregate(&["edgesync-place-configmaps", "edgesync-place-widgets", "edgesync-place-pods"]);
        let tenant = tenant::create(&setup);
        let mut replica = setup.replica();
        for (key, value) in settings {
            replica.fleet.cloud.process.env(&format!("EDGESYNC_CLOUD_{key}"), value);
        }
        replica.fleet.cloud.run().await;
        eventually("the replica is ready", PATIENCE, async || replica.health.text("/readyz").await.ok())
            .await;
        let stolen = replica.fleet.device(&setup.site, "edge-1").await;
        let mut other = replica.fleet.device(&setup.site, "edge-2").await;
        other.run_as_configured().await;
        Self { stolen, other, replica, tenant, setup, audit }
    }

    /// Runs kubectl as administrator; it must succeed.
    fn run(&self, words: &[&str]) {
        self.setup.admin.run(words).ok();
    }

    /// Applies objects as administrator.
    fn apply(&self, objects: &[&Value]) {
        self.setup.apply(&list(objects));
    }

    /// Returns the requests of the replica so far, also those that RBAC has refused.
    fn requests_of_replica(&self) -> Vec<Request> {
        self.audit.requests().into_iter().filter(|request| request.user == ACCOUNT).collect()
    }
}

/// Returns a manifest of several objects.
fn list(objects: &[&Value]) -> String {
    json!({"apiVersion": "v1", "kind": "List", "items": objects}).to_string()
}

/// Returns an object of the core group.
fn object(kind: &str, namespace: &str, name: &str) -> Value {
    json!({"apiVersion": "v1", "kind": kind, "metadata": {"name": name, "namespace": namespace}})
}

/// Returns a Pod on a node that mounts some Secrets of its namespace.
fn pod((namespace, name): (&str, &str), node: &str, secrets: &[&str]) -> Value {
    let volumes: Vec<Value> =
        secrets.iter().map(|name| json!({"name": name, "secret": {"secretName": name}})).collect();
    let mut pod = object("Pod", namespace, name);
    pod["spec"] = json!({
        "nodeName": node, "volumes": volumes, "containers": [{"name": "c", "image": "example.com/none"}],
    });
    pod
}

/// Returns a rule that places objects on all nodes: a Placement in a namespace, or without one a
/// ClusterPlacement.
fn rule((namespace, name): (&str, &str), objects: &Value) -> Value {
    let kind = if namespace.is_empty() { "ClusterPlacement" } else { "Placement" };
    let mut metadata = json!({"name": name});
    if !namespace.is_empty() {
        metadata["namespace"] = namespace.into();
    }
    let spec = json!({"objects": objects, "nodes": {"names": ["*"]}});
    json!({"apiVersion": "edgesync.io/v1alpha1", "kind": kind, "metadata": metadata, "spec": spec})
}

/// Waits until a device holds these objects.
async fn holds(agent: &Agent, objects: &[&Value]) {
    for object in objects {
        let (node, metadata) = (&agent.node, &object["metadata"]);
        eventually(&format!("{node} holds {} {metadata}", object["kind"]), PATIENCE, async || {
            agent.get(object).await
        })
        .await;
    }
}

/// Stops an agent, and returns the objects in its database file: namespace and name.
async fn objects_in_database(agent: &mut Agent) -> BTreeSet<(String, String)> {
    agent.stop().await;
    let snapshot = Snapshot::of(&agent.database);
    let conn = snapshot.open();
    let mut statement = conn.prepare("SELECT namespace, name FROM objects").unwrap();
    let rows = statement.query_map([], |row| Ok((row.get(0)?, row.get(1)?))).unwrap();
    rows.map(Result::unwrap).collect()
}

/// Asserts that the namespaces of edgesync have the keys and records that the attacker wants.
fn assert_keys_exist(setup: &Setup) {
    for (namespace, name) in [
        ("edgesync-ca", "secret/edgesync-ca"),
        ("edgesync-ca", "secret/edgesync-token-key"),
        ("edgesync", "secret/edgesync-token."),
        ("edgesync", "secret/edgesync-member.edge-1"),
        ("edgesync", "configmap/edgesync-cloud"),
    ] {
        let found = setup.admin.run(&["get", "secrets,configmaps", "-n", namespace, "-o", "name"]).lines();
        assert!(found.iter().any(|line| line.starts_with(name)), "{namespace}: {name}: {found:?}");
    }
}

/// Asserts that the ServiceAccount of replicas may read the CA's key by name, as the part that
/// signs does, and not with a list or a watch, as the part that places does.
fn assert_keys_are_in_no_list(setup: &Setup) {
    let account = Kubectl::with_kubeconfig(&setup.site, "account", &setup.account("edgesync-cloud"));
    account
        .run(&["get", "secret", "edgesync-ca", "-n", "edgesync-ca", "-o", "name"])
        .says("secret/edgesync-ca");
    account.run(&["get", "secrets", "-n", "plant", "-o", "name"]).ok();
    for words in [
        &["get", "secrets", "-n", "edgesync-ca"][..],
        &["get", "secrets", "-n", "edgesync-ca", "--field-selector", "metadata.name=edgesync-ca"],
        &["get", "secrets", "--all-namespaces"],
        &["get", "--raw", "/api/v1/namespaces/edgesync-ca/secrets?watch=true"],
        &["get", "--raw", "/api/v1/secrets?watch=true"],
    ] {
        account.run(words).fails_with("(Forbidden): secrets ");
    }
}

/// Asserts that the replica has read what it places without the namespaces of edgesync.
fn assert_reserved_namespaces_are_not_read(requests: &[Request]) {
    let reads = |request: &&Request| ["list", "watch"].contains(&request.verb.as_str());
    let mut wide = BTreeSet::new();
    for request in requests.iter().filter(reads) {
        let (namespace, resource) = (request.namespace.as_str(), request.resource.as_str());
        assert_ne!(namespace, "edgesync-ca", "{request:?}");
        // Members and operators are Secrets of this one.
        assert!(namespace != "edgesync" || resource == "secrets", "{request:?}");
        if namespace.is_empty() && ["configmaps", "secrets", "pods"].contains(&resource) {
            let (_, selector) = request.uri.split_once("fieldSelector=").unwrap_or_default();
            let terms: Vec<&str> = selector.split('&').next().unwrap_or_default().split(',').collect();
            for own in RESERVED {
                assert!(terms.contains(&&*format!("metadata.namespace!={own}")), "{request:?}");
            }
            wide.extend(request.is_allowed.then_some(resource));
        }
    }
    assert_eq!(wide, BTreeSet::from(["configmaps", "pods", "secrets"]), "{requests:#?}");
}

/// Everything that places objects names the keys and records of edgesync.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs a Kubernetes API server: tests/cluster/run"]
async fn keys_and_records_of_edgesync_reach_no_device() {
    // Objects of these kinds and all Pods may name their nodes.
    let mut attack = Attack::start(&[
        ("KUBERNETES_LABELLED", "configmaps,secrets"),
        ("KUBERNETES_ANNOTATED", "configmaps,secrets"),
        ("KUBERNETES_PODS", "*"),
    ])
    .await;
    attack.stolen.run_as_configured().await;
    attack.replica.fleet.token(&[]).await;
    assert_keys_exist(&attack.setup);

    // Labels, annotations and Pods.
    let (mut labelled, mut annotated) =
        (object("ConfigMap", "office", "labelled"), object("ConfigMap", "office", "annotated"));
    labelled["metadata"]["labels"] = json!({"edgesync.io/node": "edge-1"});
    annotated["metadata"]["annotations"] = json!({"edgesync.io/nodes": "edge-1"});
    let (ruled, used) = (object("Secret", "plant", "ruled"), object("Secret", "plant", "used"));
    let keys = ["edgesync-ca", "edgesync-token-key"];
    let reader = pod(("plant", "reader"), "edge-1", &["used", keys[0], keys[1]]);
    let only_ruled = rule(("plant", "ruled"), &json!({"kinds": ["secrets"], "names": ["ruled"]}));
    for namespace in RESERVED {
        let all = ["secrets,configmaps", "--all", "--overwrite", "-n", namespace];
        attack.run(&[&["label"], &all[..], &["edgesync.io/node=edge-1"]].concat());
        attack.run(&[&["annotate"], &all[..], &["edgesync.io/nodes=edge-1,edge-2"]].concat());
        attack.apply(&[&pod((namespace, "thief"), "edge-1", &keys)]);
    }
    let permitted = [&labelled, &annotated, &ruled, &used, &reader];
    attack.apply(&permitted);
    attack.apply(&[&only_ruled]);
    holds(&attack.stolen, &permitted).await;
    holds(&attack.other, &[&ruled]).await;

    // Rules.
    let kinds = json!(["secrets", "configmaps", "pods"]);
    let everything = rule(("", "everything"), &json!({"kinds": kinds}));
    let by_name = rule(("", "keys"), &json!({"kinds": kinds, "namespaces": RESERVED}));
    let [one, two] = RESERVED.map(|namespace| rule((namespace, "own"), &json!({"kinds": kinds})));
    attack.apply(&[&everything, &by_name, &one, &two]);
    let marker = object("ConfigMap", "office", "marker");
    attack.apply(&[&marker]);
    holds(&attack.stolen, &[&marker]).await;
    holds(&attack.other, &[&marker]).await;
    eventually("the rule about reserved namespaces has a problem", PATIENCE, async || {
        let keys = attack.setup.get(&["clusterplacement", "keys"]);
        let mut conditions = keys["status"]["conditions"].as_array()?.iter();
        conditions.any(|one| one["reason"] == "NamespaceReserved").then_some(())
    })
    .await;
    assert_keys_are_in_no_list(&attack.setup);

    // A right that no manifest grants: RBAC permits the list, and the program excludes the keys.
    attack.run(&["create", "clusterrole", "all-secrets", "--verb=list,watch", "--resource=secrets"]);
    let account = "--serviceaccount=edgesync:edgesync-cloud";
    attack.run(&["create", "clusterrolebinding", "all-secrets", "--clusterrole=all-secrets", account]);
    let pin = object("Secret", "office", "pin");
    attack.apply(&[&pin]);
    holds(&attack.stolen, &[&pin]).await;
    holds(&attack.other, &[&pin]).await;

    for agent in [&mut attack.stolen, &mut attack.other] {
        let found = objects_in_database(agent).await;
        assert!(found.contains(&("office".into(), "pin".into())), "{found:?}");
        let is_own = |(namespace, _): &&(String, String)| RESERVED.contains(&namespace.as_str());
        assert_eq!(found.iter().find(is_own), None, "{}", agent.node);
    }
    assert_reserved_namespaces_are_not_read(&attack.requests_of_replica());
}
