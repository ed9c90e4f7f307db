//! The cost of a node for the API server, in requests and bytes, as the basis of docs/scale.md.

// Clippy takes only the functions marked #[test] for tests, not what they call.
#![allow(clippy::unwrap_used)]

use std::collections::BTreeMap;
use std::time::Duration;

use serde_json::{Value, json};

use crate::cluster::kubernetes::Kubernetes;
use edgesync_testkit::kubectl::Kubectl;
use edgesync_testkit::site::{Agent, Cloud, Site, apply, eventually};

/// Maximum duration of each step.
const PATIENCE: Duration = Duration::from_secs(120);
/// Number of objects that are placed on the node.
const OBJECTS: usize = 10;

/// Request counts by verb and resource with its subresource.
type Requests = BTreeMap<String, u64>;

struct Setup {
    // Dropped before the directory that its processes use.
    kubernetes: Kubernetes,
    admin: Kubectl,
    _site: Site,
}

impl Setup {
    async fn start() -> Self {
        let site = Site::new();
        let kubernetes = Kubernetes::start(&site).await;
        let admin = Kubectl::with_kubeconfig(&site, "admin", &kubernetes.admin);
        for namespace in ["edgesync", "edgesync-ca", "shop"] {
            admin.run(&["create", "namespace", namespace]).ok();
        }
        let kinds = edgesync_testkit::programs::root().join("packaging/kubernetes/crds");
        admin.run(&["apply", "-k", kinds.to_str().unwrap()]).ok();
        admin.run(&["wait", "--for=condition=Established", "crd", "--all"]).ok();
        Self { kubernetes, admin, _site: site }
    }

    async fn put(&self, name: &str, mode: &str) {
        let object = json!({
            "apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name, "namespace": "shop"}, "data": {"mode": mode},
        });
        apply(&self.kubernetes.client, &object).await.unwrap();
    }

    /// Returns all requests so far that concern nodes.
    async fn requests(&self) -> Requests {
        let metrics = self.kubernetes.client.text("/metrics").await.unwrap();
        let mut requests = Requests::new();
        for line in metrics.lines().filter(|line| line.starts_with("apiserver_request_total{")) {
            let (labels, count) = line.rsplit_once(' ').unwrap();
            let label = |name: &str| {
                let (_, rest) = labels.split_once(&format!("{name}=\"")).unwrap();
                rest.split('"').next().unwrap().to_owned()
            };
            let (resource, part) = (label("resource"), label("subresource"));
            let of_nodes = ["nodes", "leases", "events", "objectsyncs", "clusterobjectsyncs"];
            // The Leases of the replicas are in another namespace but not distinguished here: they
            // are replaced with PUT.
            let verb = label("verb");
            if of_nodes.contains(&&*resource) && verb != "WATCH" && !label("scope").is_empty() {
                let part = if part.is_empty() { part } else { format!("/{part}") };
                *requests.entry(format!("{verb} {resource}{part}")).or_default() +=
                    count.parse::<f64>().unwrap() as u64;
            }
        }
        requests
    }

    fn get(&self, words: &[&str]) -> Value {
        self.admin.run(&[&["get", "-o", "json"], words].concat()).json()
    }

    /// Waits until the cluster shows a node in sync, with the desired versions in its ObjectSyncs.
    async fn records(&self, node: &str) {
        eventually("the cluster has what the node says", PATIENCE, async || {
            let object = self.get(&["nodes"])["items"]
                .as_array()?
                .iter()
                .find(|one| one["metadata"]["name"] == node)?
                .clone();
            let conditions = object["status"]["conditions"].as_array()?;
            let is = |name: &str| conditions.iter().any(|one| one["type"] == name && one["status"] == "True");
            let maps = self.get(&["configmaps", "-n", "shop"])["items"].take();
            let version = |one: &Value| one["metadata"]["resourceVersion"].as_str().unwrap().to_owned();
            let mut wanted: Vec<String> = maps.as_array()?.iter().map(version).collect();
            let syncs = self.get(&["objectsyncs", "-n", "shop"])["items"].take();
            let held =
                |one: &Value| one["status"]["objectResourceVersion"].as_str().unwrap_or_default().to_owned();
            let mut held: Vec<String> = syncs.as_array()?.iter().map(held).collect();
            wanted.sort();
            held.sort();
            (is("Ready") && is("edgesync.io/InSync") && wanted == held).then_some(())
        })
        .await;
    }
}

fn since(before: &Requests, after: &Requests) -> Requests {
    let more =
        |(what, count): (&String, &u64)| (what.clone(), count - before.get(what).copied().unwrap_or(0));
    after.iter().map(more).filter(|(_, count)| *count > 0).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs a Kubernetes API server: tests/cluster/run"]
async fn node_costs_for_the_api_server() {
    let setup = Setup::start().await;
    for number in 0..OBJECTS {
        setup.put(&format!("c{number}"), "fast").await;
    }
    setup
        .admin
        .feed(
            &["apply", "-f", "-"],
            "{apiVersion: edgesync.io/v1alpha1, kind: Placement, metadata: {name: all, namespace: shop}, \
     spec: {objects: {kinds: [configmaps]}, nodes: {names: ['*']}}}",
        )
        .ok();
    let home = Site::new();
    let mut cloud = Cloud::new(&home);
    cloud
        .settings
        .text("store.type", "kubernetes")
        .text("kubernetes.kubeconfig", setup.kubernetes.admin.display());
    cloud.settings.tables("");
    cloud.run().await;
    let mut agent = Agent::start(&home, "edge-1", cloud.mqtt).await;
    setup.records("edge-1").await;
    renewals(&agent, 2).await;
    let first = setup.requests().await;
    // The first report and the first condition may each find no Node.
    assert!((1..=2).contains(&count(&first, "POST nodes")), "{first:#?}");
    assert!(count(&first, "PUT nodes/status") <= 4, "{first:#?}");
    // The status subresource is written separately.
    assert_eq!((count(&first, "POST objectsyncs"), count(&first, "PUT objectsyncs/status")), (10, 10));

    let renewed = renewals(&agent, 3).await;
    let idle = since(&first, &setup.requests().await);
    assert!(count(&idle, "PATCH leases").abs_diff(renewed) <= 1, "{renewed}: {idle:#?}");
    assert!(count(&idle, "GET nodes") + count(&idle, "POST events") + writes(&idle) == 0, "{idle:#?}");

    let before = setup.requests().await;
    setup.put("c0", "slow").await;
    setup.records("edge-1").await;
    let change = since(&before, &setup.requests().await);
    assert_eq!((count(&change, "PUT objectsyncs/status"), writes(&change)), (1, 1), "{change:#?}");

    let before = setup.requests().await;
    agent.stop().await;
    agent.run().await;
    renewals(&agent, 2).await;
    setup.records("edge-1").await;
    let again = since(&before, &setup.requests().await);
    assert!(count(&again, "PUT nodes/status") <= 4 && count(&again, "GET nodes") <= 6, "{again:#?}");
    assert_eq!(count(&again, "PUT nodes/status"), writes(&again), "{again:#?}");
    assert!(count(&again, "LIST clusterobjectsyncs") <= 1, "{again:#?}");

    for (what, most) in [
        (&["objectsyncs", "-n", "shop"], 1200),
        (&["leases", "-n", "kube-node-lease"], 1400),
        (&["events", "-n", "default"], 1400),
    ] {
        let mut items = setup.get(&[&what[..], &["--show-managed-fields"]].concat())["items"].take();
        let bytes = items[0].take().to_string().len();
        assert!(bytes <= most, "{what:?}: {bytes}");
    }
}

fn count(requests: &Requests, what: &str) -> u64 {
    requests.get(what).copied().unwrap_or_default()
}

/// Counts the writes of Nodes and ObjectSyncs.
fn writes(requests: &Requests) -> u64 {
    let is_write =
        |what: &str| ["POST ", "PUT ", "PATCH ", "DELETE "].iter().any(|verb| what.starts_with(verb));
    let of = |what: &str| what.contains("nodes") || what.contains("objectsyncs");
    requests.iter().filter(|(what, _)| is_write(what) && of(what)).map(|(_, count)| count).sum()
}

/// Waits for this many more renewals of the Lease and for their writes; returns the number of
/// renewals.
async fn renewals(agent: &Agent, more: u64) -> u64 {
    let before = agent.status().await.counters.leases;
    eventually("the Lease is renewed", PATIENCE, async || {
        let renewed = agent.status().await.counters.leases - before;
        (renewed >= more).then_some(renewed)
    })
    .await
}
