//! kubectl on the reports of nodes: Nodes, Leases and Events.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

use edgesync_testkit::kubectl;
use edgesync_testkit::site;
use std::time::Duration;

use jiff::Timestamp;
use kubectl::Cluster;
use serde_json::Value;
use site::{Agent, eventually};

const NODE: &str = "edge-1";
const LONG: Duration = Duration::from_secs(60);

async fn start() -> (Cluster, Agent) {
    let cluster = Cluster::start().await;
    let agent = Agent::start_with(&cluster.site, NODE, cluster.cloud.mqtt, |settings| {
        settings.text("lease.interval", "1s").text("lease.duration", "3s");
    })
    .await;
    cluster.cloud.in_sync(NODE, 0).await;
    eventually("the node has registered", LONG, async || cluster.has("node/edge-1").then_some(())).await;
    (cluster, agent)
}

/// Asserts that every condition has a heartbeat: kubectl shows a missing one as the year 1.
#[track_caller]
fn assert_all_conditions_have_heartbeats(cluster: &Cluster) {
    let described = cluster.kubectl(&["describe", "node", NODE]).ok();
    assert!(described.contains("LastHeartbeatTime") && !described.contains(" 0001 "), "{described}");
    let node = cluster.get("node/edge-1");
    let conditions = node["status"]["conditions"].as_array().unwrap();
    assert!(conditions.len() > 4, "{conditions:#?}");
    for condition in conditions {
        let heard: Timestamp = condition["lastHeartbeatTime"].as_str().unwrap_or_default().parse().unwrap();
        let age = Timestamp::now().duration_since(heard);
        assert!(age.as_secs() < 600 && age.as_secs() > -60, "{condition}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn kubectl_lists_nodes_as_ready_with_role_and_version() {
    let (cluster, mut agent) = start().await;
    cluster.kubectl(&["wait", "--for=condition=Ready", "node/edge-1", "--timeout=60s"]).ok();
    let wait = ["wait", "--for=condition=edgesync.io/InSync", "node/edge-1", "--timeout=60s"];
    cluster.kubectl(&wait).ok();
    let rows = cluster.kubectl(&["get", "nodes"]).rows();
    assert_eq!(rows[0], ["NAME", "STATUS", "ROLES", "AGE", "VERSION"]);
    assert_eq!(rows[1][..3], [NODE, "Ready", "edge"]);
    assert!(rows[1][4].starts_with('v'), "{rows:?}");
    cluster.kubectl(&["get", "nodes", "-o", "wide"]).shows(&["INTERNAL-IP", "KERNEL-VERSION", "OS-IMAGE"]);
    let described = cluster.kubectl(&["describe", "node", NODE]);
    described.shows(&["edgesync.io/StoreHealthy", "AgentReady", "HolderIdentity", "AgentStarted"]);
    assert_all_conditions_have_heartbeats(&cluster);
    agent.process.kill();
    eventually("the node is not ready", LONG, async || {
        let rows = cluster.kubectl(&["get", "nodes"]).rows();
        (rows[1][1] == "NotReady").then_some(())
    })
    .await;
    assert_all_conditions_have_heartbeats(&cluster);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn kubectl_lists_leases_with_their_holder() {
    let (cluster, agent) = start().await;
    let leases = ["get", "leases", "-n", "kube-node-lease"];
    eventually("a Lease", LONG, async || {
        let rows = cluster.kubectl(&leases).rows();
        (rows.len() == 2 && rows[0] == ["NAME", "HOLDER", "AGE"] && rows[1][..2] == [NODE, NODE])
            .then_some(())
    })
    .await;
    let renewed = |value: &Value| value["spec"]["renewTime"].as_str().map(str::to_owned);
    let get = ["get", "lease", NODE, "-n", "kube-node-lease", "-o", "json"];
    let first = renewed(&cluster.kubectl(&get).json());
    eventually("it is renewed", LONG, async || {
        (renewed(&cluster.kubectl(&get).json()) != first).then_some(())
    })
    .await;
    cluster.kubectl(&["delete", "namespace", "kube-node-lease"]).fails();
    drop(agent);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn kubectl_lists_selects_and_follows_events_of_nodes() {
    let (cluster, mut agent) = start().await;
    let started = ["get", "events", "--field-selector", "reason=AgentStarted", "-o", "name"];
    eventually("the Event", LONG, async || (!cluster.kubectl(&started).ok().is_empty()).then_some(())).await;
    cluster.kubectl(&["get", "events"]).shows(&["LAST SEEN", "Normal", "AgentStarted", "node/edge-1"]);
    cluster.kubectl(&["events", "--for", "node/edge-1"]).shows(&["AgentStarted", "Node/edge-1"]);
    let follow = cluster.follow(&["get", "events", "--watch"]);
    follow.line("AgentStarted").await;
    agent.crash().await;
    follow.line("AgentRestartedUncleanly").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn deleted_node_stays_removed_until_it_is_created_again() {
    let (cluster, agent) = start().await;
    cluster.kubectl(&["delete", "node", NODE]).ok();
    agent.until("it is told", |status| status.cloud.removed).await;
    assert!(!cluster.has("node/edge-1"));
    assert_eq!(cluster.kubectl(&["get", "leases", "-n", "kube-node-lease", "-o", "name"]).ok(), "");
    cluster.apply("{apiVersion: v1, kind: Node, metadata: {name: edge-1, labels: {site: south}}}");
    cluster.cloud.in_sync(NODE, 0).await;
    cluster.kubectl(&["wait", "--for=condition=Ready", "node/edge-1", "--timeout=60s"]).ok();
    let node = cluster.get("node/edge-1");
    assert_eq!(node["metadata"]["labels"]["site"], "south", "what an operator has set stays");
    assert_eq!(node["metadata"]["labels"]["kubernetes.io/os"], "linux");
}
