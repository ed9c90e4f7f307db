//! Devices that connect at planned times, with both programs.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

use std::net::SocketAddr;

use edgesync_admin::Route;
use edgesync_testkit::mosquitto::Mosquitto;
use edgesync_testkit::site;
use serde_json::{Value, json};

use site::fleet::output_text;
use site::*;

const NODE: &str = "edge-1";

/// Starts an agent whose plan has an interval of some seconds.
async fn agent(site: &Site, broker: SocketAddr) -> Agent {
    Agent::start_with(site, NODE, broker, |settings| {
        settings.text("link.connect", "every 12s").text("link.connect_timeout", "2s");
    })
    .await
}

async fn away(cloud: &Cloud) {
    eventually("the node is away", PATIENCE, async || (cloud.state(NODE).await? == "away").then_some(()))
        .await;
}

/// Returns status and reason of a condition of the Node.
async fn condition(cloud: &Cloud, name: &str) -> (String, String) {
    let node = cloud.get(&json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": NODE}})).await;
    let conditions = node["status"]["conditions"].as_array().cloned().unwrap_or_default();
    let found = conditions.into_iter().find(|condition| condition["type"] == name).unwrap_or_default();
    let text = |field: &str| found[field].as_str().unwrap_or_default().to_owned();
    (text("status"), text("reason"))
}

/// Waits until a condition of the Node has this status and reason.
async fn until_condition(cloud: &Cloud, name: &str, status: &str, reason: &str) {
    let expected = (status.to_owned(), reason.to_owned());
    let is_so = async || (condition(cloud, name).await == expected).then_some(());
    eventually(&format!("{name} is {status}, {reason}"), PATIENCE, is_so).await;
}

/// Waits until the Lease has the time of the next check-in: Leases are written in batches.
async fn until_stored(cloud: &Cloud) {
    const LEASE: &str = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases/edge-1";
    eventually("the Lease has the plan", PATIENCE, async || {
        let lease: Value = cloud.client().get(LEASE).await.ok()?;
        lease["metadata"]["annotations"]["edgesync.io/next-check-in"].as_str().map(drop)
    })
    .await;
}

/// The whole life: a check-in, an absence, objects that wait, a sync on request, a request to stay,
/// and a node that does not return.
async fn plan_is_followed(cloud: &Cloud, agent: &mut Agent) {
    away(cloud).await;
    until_condition(cloud, "edgesync.io/CloudReachable", "False", "Away").await;
    until_condition(cloud, "Ready", "True", "CheckInPlanned").await;
    until_stored(cloud).await;
    let listed = cloud.command(&["nodes"]).await;
    let text = output_text(&listed);
    assert!(text.contains("next in ") || text.contains("next now"), "{text}");
    let status = agent.status().await;
    assert_eq!(status.link.plan.as_deref(), Some("every 12s"));

    // Reading its status all the time does not keep it from its check-in.
    let before = status.link.connections;
    agent.until("the node checks in", |status| status.link.connections > before).await;
    away(cloud).await;

    // Objects wait for the next check-in, and arrive with it.
    cloud.apply(objects(0..3)).await;
    eventually("the objects are held", PATIENCE, async || agent.get(&object(2)).await.map(drop)).await;
    away(cloud).await;

    // A node asked to stay does; without the request it leaves again.
    let asked = cloud.command(&["node", "stay", NODE, "--for", "1h"]).await;
    assert!(asked.status.success(), "{}", output_text(&asked));
    eventually("the node stays", PATIENCE, async || (cloud.state(NODE).await? == "in sync").then_some(()))
        .await;
    agent.until("the node is connected", |status| status.link.is_connected()).await;
    let asked = cloud.command(&["node", "stay", NODE, "--for", "0s"]).await;
    assert!(asked.status.success(), "{}", output_text(&asked));
    away(cloud).await;

    // It is killed while it is away: overdue at the end of its term.
    agent.process.kill();
    let overdue = async || (cloud.state(NODE).await? == "overdue").then_some(());
    // The tolerance alone is a minute.
    eventually("the node is overdue", 2 * PATIENCE, overdue).await;
    until_condition(cloud, "Ready", "Unknown", "NodeStatusUnknown").await;
    eventually("an Event says so", PATIENCE, async || {
        let events = cloud.command(&["get", "events", "-n", "default"]).await;
        output_text(&events).contains("CheckInMissed").then_some(())
    })
    .await;
    agent.run().await;
    away(cloud).await;
}

#[tokio::test]
async fn device_with_a_plan_is_away_and_not_lost() {
    let site = Site::new();
    let cloud = Cloud::start(&site).await;
    let mut agent = agent(&site, cloud.mqtt).await;
    plan_is_followed(&cloud, &mut agent).await;
}

#[tokio::test]
async fn device_with_a_plan_is_away_behind_mosquitto() {
    let (site, mosquitto) = (Site::new(), Mosquitto::start());
    let cloud = Cloud::start_behind(&site, mosquitto.address(), |_| {}).await;
    let mut agent = agent(&site, mosquitto.address()).await;
    plan_is_followed(&cloud, &mut agent).await;
}

#[tokio::test]
async fn absence_continues_over_a_restart_of_the_cloud_side() {
    let site = Site::new();
    let mut cloud = Cloud::start(&site).await;
    let agent = Agent::start_with(&site, NODE, cloud.mqtt, |settings| {
        settings.text("link.connect", "every 6h");
    })
    .await;
    away(&cloud).await;
    until_stored(&cloud).await;
    assert!(cloud.process.terminate(PATIENCE).await.success());
    cloud.run().await;
    away(&cloud).await;
    assert_eq!(condition(&cloud, "Ready").await, ("True".into(), "CheckInPlanned".into()));
    // A sync on request connects hours before the plan.
    let before = agent.status().await.link.connections;
    let answer: Value = agent.client().post(&Route::Sync.path(), &json!({})).await.unwrap();
    assert_eq!(answer, json!({"wasConnected": false}));
    agent.until("the node connects", |status| status.link.connections > before).await;
    away(&cloud).await;
}
