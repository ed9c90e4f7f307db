//! Placement rules as objects: they are created, changed and deleted while cloud side and nodes
//! run, and report a status.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

use edgesync_testkit::site;
use serde_json::{Value, json};
use site::fleet::output_text;
use site::{Agent, Cloud, PATIENCE, Site, config_map, eventually, sized};

const NAMESPACED: &str = "/apis/edgesync.io/v1alpha1/namespaces/plant-0/placements";
const CLUSTER: &str = "/apis/edgesync.io/v1alpha1/clusterplacements";

fn placement(kind: &str, name: &str, spec: &Value) -> Value {
    let mut object = json!({
        "apiVersion": "edgesync.io/v1alpha1", "kind": kind, "metadata": { "name": name }, "spec": spec,
    });
    if kind == "Placement" {
        object["metadata"]["namespace"] = json!("plant-0");
    }
    object
}

/// Waits until the status of a rule has these numbers (objects, nodes, nodes in sync) and
/// conditions (Accepted, InSync).
async fn until_status(cloud: &Cloud, path: &str, numbers: [u64; 3], conditions: [&str; 2]) -> Value {
    let condition = |status: &Value, kind: &str| {
        let all = status["conditions"].as_array().cloned().unwrap_or_default();
        all.into_iter().find(|condition| condition["type"] == kind).unwrap_or_default()
    };
    eventually(&format!("the status of {path}"), PATIENCE, async || {
        let rule: Value = cloud.client().get(path).await.unwrap();
        let status = rule["status"].clone();
        let found = ["objects", "nodes", "nodesInSync"].map(|field| status[field].as_u64().unwrap_or(99));
        let states = ["Accepted", "InSync"].map(|kind| condition(&status, kind)["status"].clone());
        let is_new = status["observedGeneration"] == rule["metadata"]["generation"];
        (is_new && found == numbers && states == conditions).then_some(status)
    })
    .await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn placement_objects_take_effect_without_resends() {
    let site = Site::new();
    let mut cloud = Cloud::start_with(&site, |settings| {
        settings.tables("");
    })
    .await;
    cloud.apply((0..3).map(config_map)).await;
    let one = Agent::start(&site, "edge-1", cloud.mqtt).await;
    let _two = Agent::start(&site, "edge-2", cloud.mqtt).await;
    cloud.in_sync("edge-1", 0).await;
    cloud.in_sync("edge-2", 0).await;
    // A Placement applies to its own namespace only.
    let own = json!({"objects": {"kinds": ["configmaps"]}, "nodes": {"names": ["edge-1"]}});
    cloud.apply([placement("Placement", "own", &own)]).await;
    cloud.in_sync("edge-1", 1).await;
    assert!(one.get(&config_map(0)).await.is_some());
    let own_path = format!("{NAMESPACED}/own");
    until_status(&cloud, &own_path, [1, 1, 1], ["True", "True"]).await;
    // Another rule places the same object and more.
    let all = |nodes: Value| {
        let spec = json!({"objects": {"kinds": ["cm"], "namespaces": ["plant-*"]}, "nodes": nodes});
        placement("ClusterPlacement", "all", &spec)
    };
    cloud.apply([all(json!({}))]).await;
    cloud.in_sync("edge-1", 3).await;
    cloud.in_sync("edge-2", 3).await;
    let all_path = format!("{CLUSTER}/all");
    until_status(&cloud, &all_path, [3, 2, 2], ["True", "True"]).await;
    let sent = async |node: &str| cloud.counters(node).await.objects_sent;
    assert_eq!((sent("edge-1").await, sent("edge-2").await), (3, 3));
    // Objects that match both the old and the new rule stay in place.
    cloud.apply([all(json!({"names": ["edge-2"]}))]).await;
    cloud.in_sync("edge-1", 1).await;
    until_status(&cloud, &all_path, [3, 1, 1], ["True", "True"]).await;
    let counters = cloud.counters("edge-2").await;
    assert_eq!((counters.objects_sent, counters.removals_sent), (3, 0));
    // After a restart the cloud side reads the rules before it serves nodes.
    cloud.crash().await;
    cloud.in_sync("edge-1", 1).await;
    cloud.in_sync("edge-2", 3).await;
    for node in ["edge-1", "edge-2"] {
        let counters = cloud.counters(node).await;
        assert_eq!((counters.objects_sent, counters.removals_sent), (0, 0), "{node}");
    }
    until_status(&cloud, &own_path, [1, 1, 1], ["True", "True"]).await;
    cloud.client().delete::<Value>(&own_path, None).await.unwrap();
    cloud.in_sync("edge-1", 0).await;
    cloud.in_sync("edge-2", 3).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn placement_status_reports_the_ineffective_parts() {
    let site = Site::new();
    let cloud = Cloud::start_with(&site, |settings| {
        settings.tables("");
    })
    .await;
    cloud.apply([config_map(0)]).await;
    let one = Agent::start(&site, "edge-1", cloud.mqtt).await;
    let reason = |status: &Value| {
        let conditions = status["conditions"].as_array().unwrap();
        let accepted = conditions.iter().find(|condition| condition["type"] == "Accepted").unwrap();
        (accepted["reason"].clone(), accepted["message"].as_str().unwrap().to_owned())
    };
    let path = format!("{NAMESPACED}/odd");
    let misspelt = json!({"objects": {"kinds": ["confgmaps", "configmaps"]}, "nodes": {}});
    cloud.apply([placement("Placement", "odd", &misspelt)]).await;
    let status = until_status(&cloud, &path, [1, 1, 1], ["False", "True"]).await;
    assert_eq!(reason(&status), (json!("KindUnknown"), "unknown kinds: confgmaps".to_owned()));
    assert!(one.get(&config_map(0)).await.is_some(), "the other kind is placed");
    let leases = json!({"objects": {"kinds": ["leases", "configmaps"]}, "nodes": {}});
    cloud.apply([placement("Placement", "odd", &leases)]).await;
    let message = "spec.objects.kinds: objects of kind 'Lease' cannot be placed on nodes".to_owned();
    let status = eventually("the rule is looked at", PATIENCE, async || {
        let status = until_status(&cloud, &path, [1, 1, 1], ["False", "True"]).await;
        (reason(&status).0 == "Invalid").then_some(status)
    })
    .await;
    assert_eq!(reason(&status), (json!("Invalid"), message));
    // A rule with no valid part is refused, and the placed objects stay.
    for (spec, field, why) in [
        (json!({"objects": {"kinds": ["leases"]}, "nodes": {}}), "spec.objects.kinds", "cannot be placed"),
        (
            json!({"objects": {"kinds": ["cm"]}, "nodes": {"selector": {"matchLabels": {"a b": "c"}}}}),
            "spec.nodes.selector",
            "a b",
        ),
    ] {
        let wrong = placement("Placement", "odd", &spec);
        let refused = cloud.client().put::<Value>(&path, &wrong).await.unwrap_err().to_string();
        assert!(refused.contains(field) && refused.contains(why), "{refused}");
    }
    cloud.in_sync("edge-1", 1).await;
    // The definition of the kind is checked before the rule is stored.
    let wrong =
        placement("Placement", "odd", &json!({"objects": {"kinds": []}, "nodes": {"names": ["Edge"]}}));
    let refused = cloud.client().put::<Value>(&path, &wrong).await.unwrap_err().to_string();
    assert!(refused.contains("spec.objects.kinds") && refused.contains("spec.nodes.names[0]"), "{refused}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn explain_placement_says_why_an_object_is_on_a_node() {
    let site = Site::new();
    let cloud = Cloud::start(&site).await;
    let agent = Agent::start_with(&site, "edge-1", cloud.mqtt, |settings| {
        settings.text("sync.max_object", "256KiB");
    })
    .await;
    let apart = json!({"objects": {"kinds": ["services"]}, "nodes": {"names": ["gw-*"]}});
    cloud
        .apply([config_map(0), sized("too-large", 300 << 10), placement("Placement", "apart", &apart)])
        .await;
    let service = json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": "s", "namespace": "plant-0"},
        "spec": {"ports": [{"port": 80}]}});
    cloud.apply([service]).await;
    agent.until("it holds the small one", |status| status.objects.total == 1).await;
    let explain = async |object: &str| {
        output_text(&cloud.command(&["explain-placement", "edge-1", object, "-n", "plant-0"]).await)
    };
    let small = config_map(0)["metadata"]["name"].as_str().unwrap().to_owned();
    let held = eventually("what is held is said", PATIENCE, async || {
        let text = explain(&format!("cm/{small}")).await;
        text.contains("held at the newest version").then_some(text)
    })
    .await;
    assert!(
        held.contains(": desired on node 'edge-1'")
            && held.contains("placed by: configuration [[placement]] 1"),
        "{held}"
    );
    eventually("what is rejected is said", PATIENCE, async || {
        explain("configmap/too-large").await.contains("rejected by the node, TooLarge").then_some(())
    })
    .await;
    let not = explain("service/s").await;
    assert!(
        not.contains(": not desired on node 'edge-1': no rule, label or reference places it on the node"),
        "{not}"
    );
    assert!(not.contains("objects.kinds: Service is not listed"), "{not}");
    assert!(
        not.contains("Placement plant-0/apart") && not.contains("nodes.names: edge-1 does not match gw-*"),
        "{not}"
    );
    assert!(explain("cm/nothing").await.contains("configmaps \"nothing\" not found in namespace plant-0"));
}
