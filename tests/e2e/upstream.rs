//! Uploads from an agent to a cloud side: the Node, its Lease, Events and the status of objects,
//! while both processes stop, crash and restart.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

use edgesync_testkit as support;
use edgesync_testkit::site;
use std::collections::BTreeSet;
use std::time::Duration;

use edgesync_admin::agent::Traffic;
use edgesync_admin::cloud::{Admitted, Removed};
use edgesync_admin::{NodeAction, Route};
use serde_json::{Value, json};
use site::{Agent, Cloud, PATIENCE, Settings, Site, ask, config_map, eventually, object, same_on_both_sides};
use support::mosquitto::Mosquitto;

const NODE: &str = "edge-1";
/// The Events of a namespace.
const EVENTS: &str = "/apis/events.k8s.io/v1/namespaces/default/events";
/// Limit for slow steps: thousands of Events, or a Lease that expires on a busy machine.
const LONG: Duration = Duration::from_secs(90);

/// Leases with a short duration.
fn lively(settings: &mut Settings) {
    settings.text("lease.interval", "1s").text("lease.duration", "3s");
}

async fn node(cloud: &Cloud) -> Option<Value> {
    cloud.client().get::<Value>(&format!("/api/v1/nodes/{NODE}")).await.ok()
}

async fn lease(cloud: &Cloud) -> Option<Value> {
    let path = format!("/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases/{NODE}");
    cloud.client().get::<Value>(&path).await.ok()
}

/// Returns the node's condition of this type.
async fn condition(cloud: &Cloud, kind: &str) -> Option<Value> {
    let node = node(cloud).await?;
    node["status"]["conditions"].as_array()?.iter().find(|condition| condition["type"] == kind).cloned()
}

async fn until_condition(cloud: &Cloud, kind: &str, status: &str) -> Value {
    eventually(&format!("{kind} is {status}"), LONG, async || {
        condition(cloud, kind).await.filter(|condition| condition["status"] == status)
    })
    .await
}

async fn events(cloud: &Cloud) -> Vec<Value> {
    let list: Value = cloud.client().get(EVENTS).await.unwrap();
    list["items"].as_array().cloned().unwrap_or_default()
}

/// Waits for an Event with this reason.
async fn until_event(cloud: &Cloud, reason: &str) -> Value {
    eventually(&format!("an Event {reason}"), LONG, async || {
        events(cloud).await.into_iter().find(|event| event["reason"] == reason)
    })
    .await
}

/// Creates an Event on the node, as a local program does.
async fn report(agent: &Agent, name: &str, note: &str) {
    let event = json!({
        "apiVersion": "events.k8s.io/v1",
        "kind": "Event",
        "metadata": { "name": name, "namespace": "default" },
        "eventTime": "2026-11-21T10:00:00.000000Z",
        "reason": "DoorOpened",
        "action": "Watching",
        "type": "Normal",
        "note": note,
        "reportingController": "example.com/doors",
        "reportingInstance": "doors-1",
        "regarding": { "apiVersion": "v1", "kind": "Node", "name": NODE },
    });
    agent.client().post::<Value>(EVENTS, &event).await.unwrap();
}

/// Returns the names of the local programs' Events in the cloud.
async fn reported(cloud: &Cloud) -> BTreeSet<String> {
    let of_doors = |event: &Value| event["reportingController"] == "example.com/doors";
    let name = |event: &Value| event["metadata"]["name"].as_str().unwrap().to_owned();
    events(cloud).await.iter().filter(|event| of_doors(event)).map(name).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn node_registers_itself_with_the_devices_facts() {
    let site = Site::new();
    let cloud = Cloud::start(&site).await;
    let agent = Agent::start_with(&site, NODE, cloud.mqtt, |settings| {
        settings.set("node.labels", r#"{ site = "north" }"#);
    })
    .await;
    for (kind, status) in [
        ("Ready", "True"),
        ("edgesync.io/InSync", "True"),
        ("edgesync.io/CloudReachable", "True"),
        ("edgesync.io/StoreHealthy", "True"),
        ("edgesync.io/DiskPressure", "False"),
    ] {
        let found = until_condition(&cloud, kind, status).await;
        assert!(found["reason"].as_str().is_some_and(|reason| !reason.is_empty()), "{found}");
        assert!(found["lastTransitionTime"].as_str().is_some_and(|time| time.ends_with('Z')), "{found}");
    }
    let node = node(&cloud).await.unwrap();
    let labels = &node["metadata"]["labels"];
    assert_eq!(labels["site"], "north");
    assert_eq!(labels["kubernetes.io/os"], "linux");
    assert_eq!(labels["node-role.kubernetes.io/edge"], "");
    for field in ["kernelVersion", "osImage", "architecture", "bootID", "kubeletVersion"] {
        let found = &node["status"]["nodeInfo"][field];
        assert!(found.as_str().is_some_and(|text| !text.is_empty()), "{field} is missing in {node:#}");
    }
    assert!(node["status"]["capacity"]["memory"].as_str().is_some_and(|memory| memory.ends_with("Ki")));
    drop(agent);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn objects_are_placed_by_trusted_labels_of_the_device() {
    let site = Site::new();
    let cloud = Cloud::start_with(&site, |settings| {
        settings.set("nodes.trusted_labels", r#"["site"]"#);
        settings.tables(
            "[[placement]]\nnodes = { selector = \"site=north\" }\nobjects = { kinds = [\"configmaps\"] }\n",
        );
    })
    .await;
    cloud.apply([config_map(1)]).await;
    let north = Agent::start_with(&site, NODE, cloud.mqtt, |settings| {
        settings.set("node.labels", r#"{ site = "north" }"#);
    })
    .await;
    let south = Agent::start_with(&site, "edge-2", cloud.mqtt, |settings| {
        settings.set("node.labels", r#"{ site = "south" }"#);
    })
    .await;
    cloud.in_sync(NODE, 1).await;
    cloud.in_sync("edge-2", 0).await;
    assert!(north.get(&config_map(1)).await.is_some());
    assert!(south.get(&config_map(1)).await.is_none());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn silent_node_is_unknown_until_it_renews_its_lease() {
    let broker = Mosquitto::start();
    let site = Site::new();
    let cloud = Cloud::start_behind(&site, broker.address(), |_| {}).await;
    let mut agent = Agent::start_with(&site, NODE, broker.address(), lively).await;
    until_condition(&cloud, "Ready", "True").await;
    let first = eventually("a Lease", PATIENCE, async || lease(&cloud).await).await;
    assert_eq!(first["spec"]["holderIdentity"], NODE);
    assert_eq!(first["spec"]["leaseDurationSeconds"], 3);
    let renewed = eventually("the Lease is renewed", PATIENCE, async || {
        lease(&cloud).await.filter(|lease| lease["spec"]["renewTime"] != first["spec"]["renewTime"])
    })
    .await;
    assert_eq!(renewed["spec"]["acquireTime"], first["spec"]["acquireTime"]);
    assert_eq!(renewed["metadata"]["uid"], first["metadata"]["uid"]);
    agent.process.kill();
    let unknown = until_condition(&cloud, "Ready", "Unknown").await;
    assert_eq!(unknown["reason"], "NodeStatusUnknown");
    until_condition(&cloud, "edgesync.io/CloudReachable", "Unknown").await;
    agent.run().await;
    let ready = until_condition(&cloud, "Ready", "True").await;
    assert_ne!(ready["lastTransitionTime"], Value::Null);
    let again = eventually("the Lease has changed hands", PATIENCE, async || {
        lease(&cloud).await.filter(|lease| lease["spec"]["leaseTransitions"] == 1)
    })
    .await;
    assert_ne!(again["spec"]["acquireTime"], first["spec"]["acquireTime"]);
    until_event(&cloud, "AgentRestartedUncleanly").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn lease_renewals_are_not_written_to_the_nodes_disk() {
    let site = Site::new();
    let cloud = Cloud::start(&site).await;
    let agent = Agent::start_with(&site, NODE, cloud.mqtt, |settings| {
        lively(settings);
        settings.text("store.flush_interval", "1h");
    })
    .await;
    until_condition(&cloud, "Ready", "True").await;
    // The agent writes both by itself after a connection, the report a second later or more.
    until_event(&cloud, "AgentStarted").await;
    eventually("the Node report", LONG, async || {
        node(&cloud).await.filter(|node| node["status"]["nodeInfo"]["kubeletVersion"].is_string())
    })
    .await;
    agent
        .until("an empty outbox", |status| {
            ["status", "events", "bulk"].into_iter().all(|lane| status.outbox[lane].waiting == 0)
        })
        .await;
    let before = agent.status().await;
    let leases = before.counters.leases;
    let after = agent.until("three renewals", |status| status.counters.leases >= leases + 3).await;
    assert_eq!(after.store.commits.unwrap(), before.store.commits.unwrap());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn agent_reports_how_it_started_and_stopped() {
    let site = Site::new();
    let cloud = Cloud::start(&site).await;
    let mut agent = Agent::start(&site, NODE, cloud.mqtt).await;
    let started = until_event(&cloud, "AgentStarted").await;
    assert_eq!(started["type"], "Normal");
    assert_eq!(started["reportingController"], "edgesync.io/agent");
    assert_eq!(started["reportingInstance"], NODE);
    assert_eq!(started["regarding"]["kind"], "Node");
    assert_eq!(started["metadata"]["annotations"]["edgesync.io/node"], NODE);
    agent.stop().await;
    until_event(&cloud, "AgentStopped").await;
    agent.run().await;
    agent.crash().await;
    until_event(&cloud, "AgentRestartedUncleanly").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn offline_events_arrive_despite_kills_of_both_sides() {
    const EVENTS: usize = 300;
    let site = Site::new();
    let mut cloud = Cloud::new(&site);
    let mut agent = Agent::start(&site, NODE, cloud.mqtt).await;
    for number in 0..EVENTS {
        report(&agent, &format!("door-{number}"), &format!("number {number}")).await;
        if number % 100 == 50 {
            agent.crash().await;
        }
    }
    cloud.run().await;
    eventually("some Events arrive", LONG, async || (!reported(&cloud).await.is_empty()).then_some(())).await;
    cloud.crash().await;
    agent.crash().await;
    eventually("all Events arrive", LONG, async || (reported(&cloud).await.len() == EVENTS).then_some(()))
        .await;
    agent.until("nothing waits", |status| status.outbox["bulk"].waiting == 0).await;
    // Each Event was created once and never updated.
    for event in events(&cloud).await {
        assert_eq!(event["metadata"]["annotations"]["edgesync.io/node"], NODE, "{event:#}");
    }
    assert_eq!(reported(&cloud).await.len(), EVENTS);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn full_outbox_drops_the_oldest_items_and_reports_it() {
    const EVENTS: usize = 2_000;
    const ROOM: usize = 200;
    let site = Site::new();
    let mut cloud = Cloud::new(&site);
    let agent = Agent::start_with(&site, NODE, cloud.mqtt, |settings| {
        settings.set("outbox.max_items", &ROOM.to_string());
    })
    .await;
    for number in 0..EVENTS {
        report(&agent, &format!("door-{number:04}"), "open").await;
    }
    let dropped = agent.status().await.outbox["bulk"].dropped;
    assert!(dropped >= (EVENTS - ROOM) as u64, "{dropped}");
    cloud.run().await;
    let overflow = until_event(&cloud, "OutboxOverflow").await;
    assert_eq!(overflow["type"], "Warning");
    agent.until("nothing waits", |status| status.outbox["bulk"].waiting == 0).await;
    let names = reported(&cloud).await;
    assert!(names.len() <= ROOM && names.len() > ROOM / 2, "{}", names.len());
    let newest: BTreeSet<String> =
        (EVENTS - names.len()..EVENTS).map(|number| format!("door-{number:04}")).collect();
    assert_eq!(names, newest, "the newest ones are kept");
}

/// Returns the status of an object in the cloud.
async fn status_of(cloud: &Cloud, object: &Value) -> Value {
    cloud.get(object).await["status"].clone()
}

fn with_status(mut object: Value, phase: &str) -> Value {
    object["status"] = json!({ "phase": phase });
    object
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn local_programs_set_only_the_status_of_an_object() {
    let site = Site::new();
    let mut cloud = Cloud::start(&site).await;
    let agent = Agent::start(&site, NODE, cloud.mqtt).await;
    let pod = object(8);
    assert_eq!(pod["kind"], "Pod");
    cloud.apply([pod.clone()]).await;
    same_on_both_sides(&cloud, &agent).await;
    let before = cloud.get(&pod).await;
    let path = site::path_of(&pod);
    cloud.process.kill();
    for phase in ["Pending", "Running"] {
        let mut held = agent.get(&pod).await.unwrap();
        held["spec"]["nodeName"] = json!("elsewhere");
        let put = with_status(held, phase);
        let shown: Value = agent.client().put(&format!("{path}/status"), &put).await.unwrap();
        assert_eq!(shown["status"]["phase"], phase);
        assert_eq!(agent.get(&pod).await.unwrap()["status"]["phase"], phase, "what waits is shown");
        assert_eq!(shown["spec"], before["spec"]);
    }
    assert_eq!(agent.status().await.outbox["status"].waiting, 1, "one for each object");
    cloud.run().await;
    eventually("the status arrives", PATIENCE, async || {
        (status_of(&cloud, &pod).await["phase"] == "Running").then_some(())
    })
    .await;
    let after = cloud.get(&pod).await;
    assert_eq!(after["spec"], before["spec"]);
    assert_eq!(after["metadata"]["uid"], before["metadata"]["uid"]);
    assert_eq!(after["metadata"]["generation"], before["metadata"]["generation"]);
    same_on_both_sides(&cloud, &agent).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn status_of_a_recreated_object_is_refused_with_an_event() {
    let site = Site::new();
    let mut cloud = Cloud::start(&site).await;
    let mut agent = Agent::start(&site, NODE, cloud.mqtt).await;
    let pod = object(8);
    cloud.apply([pod.clone()]).await;
    same_on_both_sides(&cloud, &agent).await;
    // The agent is offline while the object is recreated.
    agent.settings.text("link.broker", format!("mqtt://{}", Site::address()));
    agent.stop().await;
    agent.run().await;
    let put = with_status(agent.get(&pod).await.unwrap(), "Failed");
    let path = site::path_of(&pod);
    agent.client().put::<Value>(&format!("{path}/status"), &put).await.unwrap();
    cloud.delete(&pod).await;
    cloud.apply([pod.clone()]).await;
    agent.settings.text("link.broker", format!("mqtt://{}", cloud.mqtt));
    agent.stop().await;
    agent.run().await;
    let namespace = pod["metadata"]["namespace"].as_str().unwrap();
    let refused = eventually("an Event StatusRefused", LONG, async || {
        let path = format!("/apis/events.k8s.io/v1/namespaces/{namespace}/events");
        let list: Value = cloud.client().get(&path).await.ok()?;
        let items = list["items"].as_array()?.clone();
        items.into_iter().find(|event| event["reason"] == "StatusRefused")
    })
    .await;
    assert_eq!(refused["regarding"]["name"], pod["metadata"]["name"]);
    assert_ne!(status_of(&cloud, &pod).await["phase"], "Failed");
    same_on_both_sides(&cloud, &agent).await;
    cloud.process.kill();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn removed_node_is_notified_and_returns_when_admitted() {
    let site = Site::new();
    let cloud = Cloud::start(&site).await;
    let mut agent = Agent::start(&site, NODE, cloud.mqtt).await;
    cloud.apply([config_map(1)]).await;
    cloud.in_sync(NODE, 1).await;
    until_condition(&cloud, "Ready", "True").await;
    let remove = Route::ChangeNode(NODE, NodeAction::Remove);
    ask::<Removed>(&cloud.client(), remove).await.unwrap();
    eventually("its Node is gone", PATIENCE, async || node(&cloud).await.is_none().then_some(())).await;
    assert!(lease(&cloud).await.is_none());
    let records: Value =
        cloud.client().get("/apis/reliablesyncs.kubeedge.io/v1alpha1/objectsyncs").await.unwrap();
    assert_eq!(records["items"].as_array().unwrap().len(), 0);
    agent.until("it is told", |status| status.cloud.removed).await;
    agent.crash().await;
    agent.until("it is told again", |status| status.cloud.removed).await;
    assert!(node(&cloud).await.is_none(), "it must not register again");
    assert!(agent.get(&config_map(1)).await.is_some(), "it keeps what it holds");
    let admit = Route::ChangeNode(NODE, NodeAction::Admit);
    ask::<Admitted>(&cloud.client(), admit).await.unwrap();
    cloud.in_sync(NODE, 1).await;
    until_condition(&cloud, "Ready", "True").await;
    agent.until("it is welcome", |status| !status.cloud.removed).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn spent_traffic_budget_is_reported_and_objects_still_sync() {
    let site = Site::new();
    let mut cloud = Cloud::start(&site).await;
    let agent = Agent::start_with(&site, NODE, cloud.mqtt, |settings| {
        settings.text("traffic.daily_budget", "100KiB");
    })
    .await;
    // Random hex digits compress to half their size at best.
    let digits = (0..8192).map(|_| uuid::Uuid::new_v4().simple().to_string()).collect::<String>();
    let mut large = config_map(1000);
    large["data"]["digits"] = digits.into();
    cloud.apply(site::objects(0..300).chain([large])).await;
    until_event(&cloud, "TrafficBudgetSpent").await;
    until_condition(&cloud, "edgesync.io/TrafficBudgetSpent", "True").await;
    cloud.apply(site::objects(300..400)).await;
    same_on_both_sides(&cloud, &agent).await;
    let traffic: Traffic = ask(&agent.client(), Route::Traffic).await.unwrap();
    let objects = traffic.today.frames.iter().find(|frame| frame.frame == "Objects").unwrap();
    assert!(objects.bytes > 10_000, "{traffic:#?}");
    cloud.process.kill();
}
