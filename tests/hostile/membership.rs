//! Who may have what: labels that a node gives itself.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

use crate::site;
use serde_json::Value;
use site::fleet::{Fleet, said};
use site::{Agent, PATIENCE, Site, eventually, secret};

/// Secrets belong on the nodes of the north.
const NORTH: &str =
    "[[placement]]\nnodes = { selector = \"site=north\" }\nobjects = { kinds = [\"secrets\"] }\n";

/// The labels of a Node; null without one.
async fn labels(fleet: &Fleet, node: &str) -> Value {
    let node = fleet.cloud.client().get::<Value>(&format!("/api/v1/nodes/{node}")).await.unwrap_or_default();
    node["metadata"]["labels"].clone()
}

/// A device that says of itself that it is in the north, joined with a token of these words, once it has reported.
async fn device(fleet: &Fleet, site: &Site, node: &str, token: &[&str]) -> Agent {
    let mut agent = fleet.new_device(site, node);
    agent.settings.set("node.labels", r#"{ site = "north" }"#);
    agent.write_config();
    let token = fleet.token(&[&["--node", node], token].concat()).await;
    let output = fleet.join(&agent, &token, &[]).await;
    assert!(output.status.success(), "{}", said(&output));
    agent.run_as_configured().await;
    eventually("the node has reported", PATIENCE, async || {
        labels(fleet, node).await["kubernetes.io/os"].is_string().then_some(())
    })
    .await;
    agent
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_that_gives_itself_the_labels_of_others_gets_nothing_of_theirs() {
    let site = Site::new();
    let fleet = Fleet::embedded(&site, |settings| {
        settings.tables(NORTH);
    })
    .await;
    fleet.cloud.apply([secret(1)]).await;
    let thief = device(&fleet, &site, "edge-thief", &[]).await;
    // It is shown, and selects nothing.
    assert_eq!(labels(&fleet, "edge-thief").await["site"], "north");
    fleet.cloud.in_sync("edge-thief", 0).await;
    assert!(thief.get(&secret(1)).await.is_none());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn labels_of_a_token_place_objects_and_neither_node_nor_restarts_change_them() {
    let site = Site::new();
    let mut fleet = Fleet::embedded(&site, |settings| {
        settings.tables(NORTH);
    })
    .await;
    fleet.cloud.apply([secret(1)]).await;
    // One that was given another site than it claims, and one that was given the right one.
    let mut thief = device(&fleet, &site, "edge-thief", &["--label", "site=south"]).await;
    let north = device(&fleet, &site, "edge-north", &["--label", "site=north", "--label", "rack=7"]).await;
    fleet.cloud.in_sync("edge-north", 1).await;
    assert!(north.get(&secret(1)).await.is_some());
    assert_eq!(labels(&fleet, "edge-thief").await["site"], "south");
    assert_eq!(labels(&fleet, "edge-thief").await["kubernetes.io/hostname"], "edge-thief");
    thief.crash_as_configured().await;
    fleet.cloud.crash().await;
    fleet.cloud.in_sync("edge-thief", 0).await;
    fleet.cloud.in_sync("edge-north", 1).await;
    assert_eq!(labels(&fleet, "edge-thief").await["site"], "south");
    assert!(thief.get(&secret(1)).await.is_none());
    // An operator changes their mind.
    let client = fleet.cloud.client();
    let mut moved: Value = client.get("/api/v1/nodes/edge-thief").await.unwrap();
    moved["metadata"]["labels"]["site"] = "north".into();
    client.put::<Value>("/api/v1/nodes/edge-thief", &moved).await.unwrap();
    fleet.cloud.in_sync("edge-thief", 1).await;
}
