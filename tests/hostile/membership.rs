//! Attacks on identity and placement: self-assigned labels, reused names, revoked certificates.

use edgesync_testkit::mosquitto::{self, Mosquitto};
use edgesync_testkit::site;
use std::time::Duration;

use edgesync_admin::cloud::state::REVOKED;
use serde_json::Value;
use site::fleet::{Fleet, in_sync, mosquitto_files, output_text};
use site::{Agent, PATIENCE, Site, eventually, secret, steadily};

/// Secrets are placed on nodes in the north.
const NORTH: &str =
    "[[placement]]\nnodes = { selector = \"site=north\" }\nobjects = { kinds = [\"secrets\"] }\n";

/// Returns the labels of a Node; null without one.
async fn labels(fleet: &Fleet, node: &str) -> Value {
    let node = fleet.cloud.client().get::<Value>(&format!("/api/v1/nodes/{node}")).await.unwrap_or_default();
    node["metadata"]["labels"].clone()
}

/// Joins a device that claims to be in the north with a token of these options, and waits for its
/// first report.
async fn device(fleet: &Fleet, site: &Site, node: &str, token: &[&str]) -> Agent {
    let mut agent = fleet.new_device(site, node);
    agent.settings.set("node.labels", r#"{ site = "north" }"#);
    agent.write_config();
    let token = fleet.token(&[&["--node", node], token].concat()).await;
    let output = fleet.join(&agent, &token, &[]).await;
    assert!(output.status.success(), "{}", output_text(&output));
    agent.run_as_configured().await;
    eventually("the node has reported", PATIENCE, async || {
        labels(fleet, node).await["kubernetes.io/os"].is_string().then_some(())
    })
    .await;
    agent
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn self_assigned_labels_place_no_objects() {
    let site = Site::new();
    let fleet = Fleet::embedded(&site, |settings| {
        settings.tables(NORTH);
    })
    .await;
    fleet.cloud.apply([secret(1)]).await;
    let thief = device(&fleet, &site, "edge-thief", &[]).await;
    // The label is shown but selects nothing.
    assert_eq!(labels(&fleet, "edge-thief").await["site"], "north");
    fleet.cloud.in_sync("edge-thief", 0).await;
    assert!(thief.get(&secret(1)).await.is_none());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn token_labels_place_objects_and_nodes_cannot_change_them() {
    let site = Site::new();
    let mut fleet = Fleet::embedded(&site, |settings| {
        settings.tables(NORTH);
    })
    .await;
    fleet.cloud.apply([secret(1)]).await;
    // A node whose token assigns another site than it claims, and a node with the right one.
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
    // An operator changes the label.
    let client = fleet.cloud.client();
    let mut moved: Value = client.get("/api/v1/nodes/edge-thief").await.unwrap();
    moved["metadata"]["labels"]["site"] = "north".into();
    // The write holds for every version, since the node reports meanwhile.
    moved["metadata"].as_object_mut().unwrap().remove("resourceVersion");
    client.put::<Value>("/api/v1/nodes/edge-thief", &moved).await.unwrap();
    fleet.cloud.in_sync("edge-thief", 1).await;
}

/// The thief has the certificate of a node and the name of another token.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tokens_for_any_device_cannot_take_a_revoked_or_removed_name() {
    let site = Site::new();
    let fleet = Fleet::embedded(&site, |_| {}).await;
    let mut gone = fleet.device(&site, "edge-gone").await;
    gone.run_as_configured().await;
    fleet.cloud.in_sync("edge-gone", 0).await;
    for act in ["revoke", "remove"] {
        let output = fleet.command(&["node", act, "edge-gone"]).await;
        assert!(output.status.success(), "{}", output_text(&output));
        let image = fleet.token(&["--uses", "500"]).await;
        let output = fleet.join(&fleet.new_device(&Site::new(), "edge-gone"), &image, &[]).await;
        assert!(
            !output.status.success() && output_text(&output).contains("node forget edge-gone"),
            "{}",
            output_text(&output)
        );
    }
    gone.process.kill();
    let output = fleet.command(&["node", "forget", "edge-gone"]).await;
    assert!(output.status.success(), "{}", output_text(&output));
    assert!(
        output_text(&fleet.command(&["node", "forget", "edge-gone"]).await)
            .contains("node 'edge-gone' not found")
    );
    assert_eq!(fleet.cloud.state("edge-gone").await, None);
    let other = Site::new();
    let image = fleet.token(&["--uses", "500"]).await;
    let mut fresh = fleet.new_device(&other, "edge-gone");
    let output = fleet.join(&fresh, &image, &[]).await;
    assert!(output.status.success(), "{}", output_text(&output));
    fresh.run_as_configured().await;
    fleet.cloud.in_sync("edge-gone", 0).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn revoked_device_behind_mosquitto_stays_ignored_after_a_rejoin() {
    let site = Site::new();
    let broker = mosquitto::free_address();
    let fleet = Fleet::behind(&site, broker, |_| {}).await;
    mosquitto_files(&fleet, &site.path("mosquitto"), broker).await;
    let mut running = Mosquitto::start_from(broker, &site.path("mosquitto/mosquitto.conf"));
    let mut stolen = fleet.device(&site, "edge-1").await;
    stolen.run_as_configured().await;
    in_sync(&stolen).await;
    let mistyped = fleet.command(&["node", "revoke", "edge-l"]).await;
    assert!(
        !mistyped.status.success() && output_text(&mistyped).contains("node 'edge-l' not found"),
        "{}",
        output_text(&mistyped)
    );
    let output = fleet.command(&["node", "revoke", "edge-1"]).await;
    assert!(output.status.success(), "{}", output_text(&output));
    let elsewhere = Site::new();
    let mut fresh = fleet.device(&elsewhere, "edge-1").await;
    // The broker has the old list: it accepts the thief, who sends Hello and waits for Secrets.
    fleet.cloud.apply([secret(1)]).await;
    let unheard = async || fleet.cloud.bad_frames().await.get("revoked").copied().unwrap_or_default();
    let before = unheard().await;
    stolen.crash_as_configured().await;
    eventually("the thief says Hello and is not heard", PATIENCE, async || {
        (unheard().await > before).then_some(())
    })
    .await;
    assert!(stolen.get(&secret(1)).await.is_none());
    // With the new list the broker refuses the thief, and the operator confirms the update.
    let renewed = site.path("renewed");
    mosquitto_files(&fleet, &renewed, broker).await;
    std::fs::copy(renewed.join("revoked.crl"), site.path("mosquitto/revoked.crl")).unwrap();
    running.restart();
    let output = fleet.command(&["node", "admit", "edge-1", "--broker-updated"]).await;
    assert!(
        output_text(&output).contains("1 certificate recorded as refused by the broker"),
        "{}",
        output_text(&output)
    );
    assert!(stolen.get(&secret(1)).await.is_none());
    // Simulates another machine: on one machine only one agent of a name runs for an address.
    stolen.stop().await;
    fresh.run_as_configured().await;
    in_sync(&fresh).await;
    assert!(fresh.get(&secret(1)).await.is_some());
    fresh.stop().await;
    let before = fleet.cloud.served("edge-1").await.unwrap().last_report;
    stolen.crash_as_configured().await;
    steadily("the thief is not heard", Duration::from_millis(500), async || {
        stolen.get(&secret(1)).await.is_none()
            && !stolen.is_connected().await
            && fleet.cloud.served("edge-1").await.unwrap().last_report == before
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn revocation_takes_effect_even_if_the_crl_cannot_be_written() {
    let site = Site::new();
    let fleet = Fleet::embedded(&site, |_| {}).await;
    let mut stolen = fleet.device(&site, "edge-1").await;
    stolen.run_as_configured().await;
    in_sync(&stolen).await;
    // A directory cannot be replaced with a file.
    let list = site.path("pki/revoked.crl");
    std::fs::remove_file(&list).unwrap();
    std::fs::create_dir(&list).unwrap();
    let output = fleet.command(&["node", "revoke", "edge-1"]).await;
    assert!(!output.status.success() && output_text(&output).contains("brokers"), "{}", output_text(&output));
    eventually("its connection is cut", PATIENCE, async || {
        (!stolen.is_connected().await && fleet.cloud.state("edge-1").await.as_deref() == Some(REVOKED))
            .then_some(())
    })
    .await;
    fleet.cloud.apply([secret(1)]).await;
    steadily("it stays out", Duration::from_millis(500), async || {
        stolen.get(&secret(1)).await.is_none()
            && fleet.cloud.state("edge-1").await.as_deref() == Some(REVOKED)
    })
    .await;
    // The list is written on its own as soon as that is possible.
    std::fs::remove_dir(&list).unwrap();
    eventually("brokers can learn of it", PATIENCE, async || std::fs::read(&list).ok()).await;
}
