//! Secrets on the disk of a node: unreadable, refetched after the loss of their key, resealed while
//! objects arrive.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

use edgesync_testkit::site;
use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde_json::{Value, json};
use site::*;

const NODE: &str = "edge-1";
/// The marker in base64, as in the data of a Secret.
const MARKER: &str = "Y29ycmVjdC1ob3JzZS1iYXR0ZXJ5LXN0YXBsZQ==";

fn marked(number: usize) -> Value {
    let mut object = secret(number);
    object["data"]["password"] = json!(MARKER);
    object
}

fn key_file(agent: &Agent) -> PathBuf {
    agent.database.with_file_name("seal.key")
}

/// Returns the files below a directory that contain the marker, and the number of all files.
fn files_with_marker(directory: &Path) -> (Vec<PathBuf>, usize) {
    let (mut found, mut count) = (Vec::new(), 0);
    for entry in fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            let (more, others) = files_with_marker(&path);
            found.extend(more);
            count += others;
        } else if let Ok(bytes) = fs::read(&path) {
            count += 1;
            // In base64 or decoded.
            let texts = [MARKER.as_bytes(), b"correct-horse-battery-staple"];
            if texts.iter().any(|text| bytes.windows(text.len()).any(|window| window == *text)) {
                found.push(path);
            }
        }
    }
    (found, count)
}

fn assert_unreadable(agent: &Agent, when: &str) {
    let (found, count) = files_with_marker(agent.database.parent().unwrap());
    assert!(count >= 3, "{when}: only {count} files");
    assert_eq!(found, Vec::<PathBuf>::new(), "{when}");
    let log = agent.process.log();
    assert!(log.len() > 2 && log.iter().all(|line| !line.contains(MARKER)), "{when}: in the log");
}

/// Starts a cloud with 60 Secrets and 40 ConfigMaps, and an agent that holds them and logs at debug
/// level.
async fn in_sync(site: &Site) -> (Cloud, Agent) {
    let cloud = Cloud::start(site).await;
    let agent = Agent::start_with(site, NODE, cloud.mqtt, |settings| {
        settings.text("log.level", "debug");
    })
    .await;
    cloud.apply((0..60).map(marked).chain((100..140).map(config_map))).await;
    assert_eq!(same_on_both_sides(&cloud, &agent).await, 100);
    (cloud, agent)
}

#[tokio::test]
async fn secrets_are_held_but_unreadable_on_disk_and_in_the_log() {
    let site = Site::new();
    let (cloud, mut agent) = in_sync(&site).await;
    assert_eq!(agent.get(&marked(7)).await.unwrap()["data"]["password"], MARKER);
    assert_unreadable(&agent, "after they came");
    cloud.apply((0..20).map(|number| changed(marked(number), "new"))).await;
    for number in 20..25 {
        cloud.delete(&marked(number)).await;
    }
    assert_eq!(same_on_both_sides(&cloud, &agent).await, 95);
    assert_unreadable(&agent, "after changes");
    let mode = fs::metadata(key_file(&agent)).unwrap().permissions().mode() & 0o777;
    assert_eq!(mode, 0o600);
    let seal = agent.status().await.store.seal.unwrap();
    assert_eq!((seal.keys, seal.wrapped, seal.sealed_objects), (1, false, 55));
    agent.crash().await;
    assert_eq!(same_on_both_sides(&cloud, &agent).await, 95);
    assert_unreadable(&agent, "after a crash");
    agent.stop().await;
    assert_unreadable(&agent, "after the end");
}

#[tokio::test]
async fn lost_seal_key_resends_exactly_the_secrets() {
    let site = Site::new();
    let (cloud, mut agent) = in_sync(&site).await;
    agent.stop().await;
    let before = cloud.counters(NODE).await;
    fs::remove_file(key_file(&agent)).unwrap();
    agent.run().await;
    assert_eq!(same_on_both_sides(&cloud, &agent).await, 100);
    assert_eq!(cloud.sent_since(NODE, before).await, (60, 0));
    assert!(agent.process.log().iter().any(|line| line.contains("60 objects were sealed with a lost key")));
    assert_eq!(agent.get(&marked(7)).await.unwrap()["data"]["password"], MARKER);
    assert_unreadable(&agent, "after they came again");
}

#[tokio::test]
async fn seal_keys_are_wrapped_with_the_service_credential() {
    let site = Site::new();
    let cloud = Cloud::start(&site).await;
    let mut agent = Agent::new(&site, NODE, cloud.mqtt);
    let credentials = site.path("credentials");
    fs::create_dir(&credentials).unwrap();
    fs::write(credentials.join("edgesync-seal"), [7; 32]).unwrap();
    agent.process.env("CREDENTIALS_DIRECTORY", credentials.display());
    agent.run().await;
    cloud.apply((0..10).map(marked)).await;
    assert_eq!(same_on_both_sides(&cloud, &agent).await, 10);
    assert!(agent.status().await.store.seal.unwrap().wrapped);
    assert!(!fs::read_to_string(key_file(&agent)).unwrap().contains(" plain "));
    // A new credential, with the previous one beside it.
    agent.stop().await;
    fs::rename(credentials.join("edgesync-seal"), credentials.join("edgesync-seal-previous")).unwrap();
    fs::write(credentials.join("edgesync-seal"), [8; 32]).unwrap();
    let before = cloud.counters(NODE).await;
    agent.run().await;
    assert_eq!(same_on_both_sides(&cloud, &agent).await, 10);
    agent.stop().await;
    fs::remove_file(credentials.join("edgesync-seal-previous")).unwrap();
    agent.run().await;
    assert_eq!(same_on_both_sides(&cloud, &agent).await, 10);
    let (sent, _) = cloud.sent_since(NODE, before).await;
    assert_eq!(sent, 0, "nothing was lost");
}

#[tokio::test]
async fn seal_key_is_rotated_while_objects_arrive() {
    let site = Site::new();
    let (cloud, agent) = in_sync(&site).await;
    let old = fs::read_to_string(key_file(&agent)).unwrap();
    let cloud_client = cloud.client();
    let arriving = tokio::spawn(async move {
        for round in 0..3 {
            for number in 0..80 {
                apply(&cloud_client, &changed(marked(number), round)).await.unwrap();
            }
        }
    });
    let rotate = || {
        let mut command = Command::new(edgesync_testkit::programs::device());
        command.args(["seal", "rotate", "--socket"]).arg(&agent.socket).stdin(Stdio::null());
        tokio::task::spawn_blocking(move || command.output().unwrap())
    };
    let mut rotations = 0;
    while !arriving.is_finished() || rotations == 0 {
        let output = rotate().await.unwrap();
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(output.status.success(), "{text}{}", String::from_utf8_lossy(&output.stderr));
        assert!(text.starts_with("Sealed ") && text.contains("old key deleted"), "{text}");
        rotations += 1;
    }
    arriving.await.unwrap();
    assert_eq!(same_on_both_sides(&cloud, &agent).await, 120);
    assert_ne!(fs::read_to_string(key_file(&agent)).unwrap(), old);
    let store = agent.status().await.store;
    let seal = store.seal.unwrap();
    assert_eq!((seal.keys, seal.sealed_objects, store.resets), (1, 80, 0));
    assert_unreadable(&agent, "after rotations");
    println!("{rotations} rotations");
}

const ROBOTS: &str = "/apis/lab.io/v1/namespaces/default/robots";
const ARM: &str = "/apis/lab.io/v1/namespaces/default/robots/arm";

/// Creates a custom kind with an enumeration in its status, and an object of it for the node.
async fn make_robot(cloud: &Cloud) {
    let code = json!({"type": "string", "enum": ["green", "red"]});
    let status = json!({"type": "object", "properties": {"code": code, "open": {"type": "string"}}});
    let schema = json!({"openAPIV3Schema": {"type": "object", "properties": {"status": status}}});
    let version = json!({"name": "v1", "served": true, "storage": true, "subresources": {"status": {}}, "schema": schema});
    let kind = json!({"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": {"name": "robots.lab.io"}, "spec": {"group": "lab.io", "scope": "Namespaced",
            "names": {"plural": "robots", "kind": "Robot"}, "versions": [version]}});
    cloud.apply([kind]).await;
    let robot = json!({"apiVersion": "lab.io/v1", "kind": "Robot",
        "metadata": {"name": "arm", "namespace": "default", "labels": {"edgesync.io/node": NODE}}});
    eventually("the kind is served", PATIENCE, async || {
        cloud.client().post::<Value>(ROBOTS, &robot).await.ok().map(drop)
    })
    .await;
}

async fn set_status(agent: &Agent, field: &str) {
    let mut held: Value = agent.client().get(ARM).await.unwrap();
    held["status"] = json!({ field: MARKER });
    // The cloud's response to the previous status may arrive meanwhile.
    held["metadata"].as_object_mut().unwrap().remove("resourceVersion");
    agent.client().put::<Value>(&format!("{ARM}/status"), &held).await.unwrap();
}

#[tokio::test]
async fn sealed_status_stays_unreadable_while_pending_and_refused() {
    let site = Site::new();
    let mut cloud = Cloud::start(&site).await;
    let mut agent = Agent::start_with(&site, NODE, cloud.mqtt, |settings| {
        settings.text("log.level", "debug").set("seal.kinds", r#"["robots.lab.io"]"#);
    })
    .await;
    make_robot(&cloud).await;
    cloud.in_sync(NODE, 1).await;
    cloud.process.kill();
    set_status(&agent, "open").await;
    assert_unreadable(&agent, "while it waits");
    agent.crash().await;
    let held: Value = agent.client().get(ARM).await.unwrap();
    assert_eq!(held["status"]["open"], MARKER);
    assert_unreadable(&agent, "after a crash");
    cloud.run().await;
    let arrived = async || {
        let robot: Value = cloud.client().get(ARM).await.ok()?;
        (robot["status"]["open"] == MARKER).then_some(())
    };
    eventually("it arrives", PATIENCE, arrived).await;
    // The reason of a refusal quotes the value.
    set_status(&agent, "code").await;
    let refused = eventually("an Event StatusRefused", PATIENCE, async || {
        let list: Value =
            agent.client().get("/apis/events.k8s.io/v1/namespaces/default/events").await.ok()?;
        list["items"].as_array()?.iter().find(|event| event["reason"] == "StatusRefused").cloned()
    })
    .await;
    assert_eq!(refused["regarding"]["name"], "arm");
    assert!(
        refused["note"].as_str().unwrap().contains("Invalid (message omitted: sealed kind)"),
        "{refused}"
    );
    assert_unreadable(&agent, "after it was refused");
    agent.stop().await;
    assert_unreadable(&agent, "after the end");
}
