//! Replicas of `edgesync-cloud` over a real cluster, with agents.

// Clippy takes only the functions marked #[test] for tests, not what they call.
#![allow(clippy::unwrap_used)]

use std::collections::BTreeMap;

use edgesync_admin::cloud::RevokedCertificates;
use edgesync_admin::cloud::state::OFFLINE;
use edgesync_admin::{NodeAction, Route};
use edgesync_api::{Address, Client, ClientError};
use serde_json::{Value, json};

use crate::cluster::api::{ApiServer, over_each};
use crate::cluster::setup::{
    ANYTHING, EVERYWHERE, PATIENCE, Setup, arrived, bare, config_map, confirm_deletions, define,
};
use edgesync_testkit::proxy::{Mode, Proxy};
use edgesync_testkit::site::fleet::output_text;
use edgesync_testkit::site::{Agent, Site, ask, eventually, held, path_of};

over_each!(
    objects_reach_the_node_and_its_reports_the_cluster,
    placement_status_covers_the_nodes_of_all_replicas,
    replicas_killed_in_turn_send_nothing_twice,
    nodes_connecting_without_the_cluster_lose_nothing,
    replica_that_starts_without_the_cluster_waits_for_it,
    replica_with_a_dead_cluster_connection_does_no_harm,
    rejected_object_is_named_in_cluster_and_replica,
    two_thousand_objects_follow_their_labels_to_the_nodes,
    authors_of_objects_choose_no_nodes_by_default,
);

async fn objects_reach_the_node_and_its_reports_the_cluster<K: ApiServer>() {
    let setup = Setup::<K>::over().await;
    setup.apply(EVERYWHERE);
    for number in 0..20 {
        setup.apply(&config_map(&format!("c{number}"), "fast"));
    }
    let home = Site::new();
    let mut cloud = setup.replica(&home);
    cloud.run().await;
    let agent = Agent::start(&setup.site, "edge-1", cloud.mqtt).await;
    setup.holds(&agent, "cm,secret").await;
    setup.apply(&config_map("c0", "slow"));
    setup.admin.run(&["delete", "cm/c1", "-n", "shop"]).ok();
    setup.holds(&agent, "cm,secret").await;

    // kubectl's last-applied annotation stays in the cluster.
    const NOTE: &str = "/metadata/annotations/kubectl.kubernetes.io~1last-applied-configuration";
    let in_the_cluster = setup.admin.run(&["get", "cm/c0", "-n", "shop", "-o", "json"]).json();
    let on_the_node: Value = agent.client().get("/api/v1/namespaces/shop/configmaps/c0").await.unwrap();
    assert!(in_the_cluster.pointer(NOTE).is_some() && on_the_node.pointer(NOTE).is_none(), "{on_the_node}");
    for (object, namespace, expected) in [
        (
            "cm/c0",
            "shop",
            [": desired on node 'edge-1'", "placed by: Placement shop/all", "held at the newest version"],
        ),
        ("cm/c1", "shop", ["configmaps \"c1\" not found in namespace shop", "", ""]),
        // The key of the CA is never read, for any requester.
        ("secret/edgesync-ca", "edgesync-ca", ["namespace edgesync-ca is reserved for edgesync", "", ""]),
    ] {
        let text =
            output_text(&cloud.command(&["explain-placement", "edge-1", object, "-n", namespace]).await);
        assert!(expected.iter().all(|words| text.contains(words)), "{expected:?}: {text}");
    }
    eventually("the Node is ready", PATIENCE, async || {
        let node = setup.list("nodes").into_iter().find(|node| node["metadata"]["name"] == "edge-1")?;
        let conditions = node["status"]["conditions"].as_array()?.clone();
        let is = |name: &str| conditions.iter().any(|one| one["type"] == name && one["status"] == "True");
        (is("Ready") && is("edgesync.io/InSync")).then_some(())
    })
    .await;
    let lease = &setup
        .list("leases.coordination.k8s.io")
        .into_iter()
        .find(|lease| lease["metadata"]["name"] == "edge-1");
    assert_eq!(lease.as_ref().unwrap()["metadata"]["namespace"], "kube-node-lease");
    setup.records_everything(&["edge-1"], "cm").await;
    let status = setup.admin.run(&["get", "placement/all", "-n", "shop", "-o", "json"]).json();
    assert_eq!(status["status"]["nodes"], json!(1), "{status:#}");
}

/// The author of a ConfigMap in a namespace that a rule reads names a node by label and annotation.
async fn authors_of_objects_choose_no_nodes_by_default<K: ApiServer>() {
    let setup = Setup::<K>::over().await;
    setup.apply(
        "{apiVersion: edgesync.io/v1alpha1, kind: Placement, metadata: {name: one, namespace: shop}, \
         spec: {objects: {kinds: [configmaps], names: [placed]}, nodes: {names: ['*']}}}",
    );
    setup.apply(
        "{apiVersion: v1, kind: ConfigMap, metadata: {name: named, namespace: shop, labels: {edgesync.io/node: edge-1}, \
         annotations: {edgesync.io/nodes: edge-1}}, data: {mode: fast}}",
    );
    let home = Site::new();
    let mut cloud = setup.replica(&home);
    cloud.run().await;
    let agent = Agent::start(&setup.site, "edge-1", cloud.mqtt).await;
    // One watch reports both, so the node would have been sent the older one before.
    setup.apply(&config_map("placed", "fast"));
    agent.until("the placed one is held", |status| status.objects.total == 1).await;
    let names: Value = agent.client().get("/api/v1/configmaps").await.unwrap();
    let names: Vec<&Value> =
        names["items"].as_array().unwrap().iter().map(|item| &item["metadata"]["name"]).collect();
    assert_eq!(names, ["placed"]);
    let text = output_text(&cloud.command(&["explain-placement", "edge-1", "cm/named", "-n", "shop"]).await);
    assert!(text.contains("object names the node, but kubernetes.labelled"), "{text}");
}

/// Creates an object or replaces the existing one.
async fn apply(client: &Client, object: &Value) -> Result<Value, ClientError> {
    let path = path_of(object);
    match client.get::<Value>(&path).await {
        Ok(old) => {
            let mut object = object.clone();
            object["metadata"]["resourceVersion"] = old["metadata"]["resourceVersion"].clone();
            client.put(&path, &object).await
        }
        Err(_) => client.post(path.rsplit_once('/').unwrap().0, object).await,
    }
}

async fn placement_status_covers_the_nodes_of_all_replicas<K: ApiServer>() {
    let setup = Setup::<K>::over().await;
    setup.apply(EVERYWHERE);
    setup.apply(&config_map("c0", "fast"));
    let (_homes, mut replicas) = setup.two_replicas().await;
    let placement = async || {
        let client = setup.kubernetes.client();
        client.get::<Value>("/apis/edgesync.io/v1alpha1/namespaces/shop/placements/all").await.unwrap()
    };
    let told = async |in_sync: u64| {
        let mut last = Value::Null;
        eventually(&format!("{in_sync} nodes are told of"), PATIENCE, async || {
            last = placement().await;
            (last["status"]["nodesInSync"] == in_sync).then_some(())
        })
        .await;
        last
    };
    let mut one = Agent::start(&setup.site, "edge-1", replicas[0].mqtt).await;
    let _two = Agent::start(&setup.site, "edge-2", replicas[1].mqtt).await;
    let settled = told(2).await;
    assert_eq!(settled["status"]["nodes"], 2);
    let synced = &settled["status"]["conditions"].as_array().unwrap()[1];
    assert_eq!((&synced["type"], &synced["status"]), (&json!("InSync"), &json!("True")));
    // The status stays the same, whichever replica serves the nodes.
    one.settings.text("link.broker", format!("mqtt://{}", replicas[1].mqtt));
    one.process.kill();
    one.run().await;
    eventually("the other one serves both", PATIENCE, async || {
        (replicas[1].state("edge-1").await? == "in sync").then_some(())
    })
    .await;
    replicas[0].process.kill();
    setup.apply(&config_map("c1", "fast"));
    eventually("the one that is left leads, and tells of the new object", PATIENCE, async || {
        let status = placement().await["status"].take();
        (status["objects"] == 2 && status["nodesInSync"] == 2).then_some(())
    })
    .await;
}

/// Number of objects that are written continuously.
const OBJECTS: usize = 40;

/// Number of agents that both replicas serve together; `EDGESYNC_AGENTS` overrides it.
fn agents() -> usize {
    std::env::var("EDGESYNC_AGENTS").ok().map_or(20, |count| count.parse().unwrap())
}

async fn replicas_killed_in_turn_send_nothing_twice<K: ApiServer>() {
    let setup = Setup::<K>::over().await;
    setup.apply(EVERYWHERE);
    let (_homes, mut replicas) = setup.two_replicas().await;
    let lines = [Proxy::start(replicas[0].mqtt), Proxy::start(replicas[1].mqtt)];
    let count = agents();
    let mut agents = Vec::new();
    for number in 0..count {
        let line = lines[number % 2].address();
        agents.push(Agent::start(&setup.site, &format!("edge-{number}"), line).await);
    }
    let client = setup.kubernetes.client();
    let mut round = 0;
    let mut write = async || {
        round += 1;
        for number in 0..OBJECTS {
            let object = json!({
                "apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": format!("c{number}"), "namespace": "shop"},
                "data": {"round": round.to_string()},
            });
            apply(client, &object).await.unwrap();
        }
    };
    write().await;
    setup.all_hold(&agents, "cm").await;
    for turn in 0..4 {
        let (dying, other) = (turn % 2, 1 - turn % 2);
        write().await;
        replicas[dying].process.kill();
        lines[dying].set_upstream(replicas[other].mqtt);
        write().await;
        setup.all_hold(&agents, "cm").await;
        replicas[dying].run().await;
        lines[dying].set_upstream(replicas[dying].mqtt);
        lines[dying].cut();
        write().await;
    }
    let names: Vec<&str> = agents.iter().map(|agent| agent.node.as_str()).collect();
    setup.all_hold(&agents, "cm").await;
    for agent in &agents {
        let (objects, applied) = arrived(agent).await;
        assert_eq!(objects, applied, "{} got something that it held already", agent.node);
    }
    setup.records_everything(&names, "cm").await;
}

async fn nodes_connecting_without_the_cluster_lose_nothing<K: ApiServer>() {
    let mut setup = Setup::<K>::over().await;
    setup.apply(EVERYWHERE);
    for number in 0..20 {
        setup.apply(&config_map(&format!("c{number}"), "fast"));
    }
    let home = Site::new();
    let mut cloud = setup.replica(&home);
    cloud.run().await;
    let mut agent = Agent::start(&setup.site, "edge-1", cloud.mqtt).await;
    setup.holds(&agent, "cm").await;
    agent.until("in sync", |status| status.sync.in_sync).await;
    let before = held(&agent.client()).await;
    setup.kubernetes.kill();
    agent.crash().await;
    agent.until("welcome again", |status| status.sync.in_sync).await;
    assert_eq!(held(&agent.client()).await, before);
    // A new node gets only objects that are known to be current, and no node loses any.
    let new = Agent::start(&setup.site, "edge-2", cloud.mqtt).await;
    new.until("connected", |status| status.link.is_connected()).await;
    setup.kubernetes.run().await;
    setup.apply(&config_map("late", "fast"));
    setup.admin.run(&["delete", "cm/c1", "-n", "shop"]).ok();
    setup.holds(&agent, "cm").await;
    setup.holds(&new, "cm").await;
    // A replica that starts empty resends nothing.
    let sent = arrived(&agent).await;
    cloud.crash().await;
    agent.until("in sync", |status| status.sync.in_sync).await;
    setup.records_everything(&["edge-1", "edge-2"], "cm").await;
    assert_eq!(arrived(&agent).await, sent);
}

async fn replica_that_starts_without_the_cluster_waits_for_it<K: ApiServer>() {
    let mut setup = Setup::<K>::over().await;
    setup.apply(EVERYWHERE);
    setup.apply(&config_map("c0", "fast"));
    let home = Site::new();
    let (mut cloud, health) = (setup.replica(&home), Site::address());
    cloud.settings.text("api.health", health);
    let probes = Client::new(Address::Tcp(health));
    setup.kubernetes.kill();
    cloud.write_config();
    cloud.process.start();
    let line = cloud.process.logged("fleet not served yet", 0).await;
    assert!(line.contains("connect to API server https://"), "{line}");
    assert!(probes.text("/readyz").await.is_err(), "nodes are not sent to it");
    probes.text("/livez").await.unwrap();
    setup.kubernetes.run().await;
    eventually("the replica is ready", PATIENCE, async || probes.text("/readyz").await.ok()).await;
    assert!(cloud.process.runs(), "it has waited, and not ended");
    let agent = Agent::start(&setup.site, "edge-1", cloud.mqtt).await;
    setup.holds(&agent, "cm").await;
}

async fn replica_with_a_dead_cluster_connection_does_no_harm<K: ApiServer>() {
    let setup = Setup::<K>::over().await;
    setup.apply(EVERYWHERE);
    for number in 0..20 {
        setup.apply(&config_map(&format!("c{number}"), "fast"));
    }
    let (_homes, replicas) = setup.two_replicas().await;
    let line = Proxy::start(replicas[0].mqtt);
    let mut agent = Agent::start(&setup.site, "edge-1", line.address()).await;
    setup.holds(&agent, "cm").await;
    setup.records_everything(&["edge-1"], "cm").await;

    line.set(Mode::Stall);
    setup.apply(&config_map("c0", "slow"));
    setup.admin.run(&["delete", "cm/c1", "-n", "shop"]).ok();
    agent.process.kill();
    agent.settings.text("link.broker", format!("mqtt://{}", replicas[1].mqtt));
    agent.run().await;
    setup.holds(&agent, "cm").await;
    assert_ne!(
        replicas[0].state("edge-1").await.as_deref(),
        Some(OFFLINE),
        "the first one believes that it serves the node"
    );
    setup.apply(&config_map("c2", "slow"));
    setup.apply(&config_map("new", "slow"));
    setup.holds(&agent, "cm").await;
    setup.records_everything(&["edge-1"], "cm").await;
    line.set(Mode::Pass);
    line.cut();
    setup.apply(&config_map("c3", "slow"));
    setup.holds(&agent, "cm").await;
    setup.records_everything(&["edge-1"], "cm").await;
}

/// Objects of each of three kinds.
const EACH: usize = 700;

/// An object of one of three kinds, with labels, escapes and Unicode.
fn sample(number: usize, site: &str) -> Value {
    let metadata = json!({
        "name": format!("o{number}"), "namespace": "shop", "labels": {"site": site, "app": "x"},
        "annotations": {"note": "ä \"quoted\" \u{1f600}\nline"}, "finalizers": [],
    });
    match number % 3 {
        0 => json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata,
            "data": {"number": number.to_string()}, "binaryData": {"b": "AAEC/w=="}}),
        1 => json!({"apiVersion": "v1", "kind": "Secret", "type": "Opaque", "metadata": metadata,
            "data": {"password": "czNjcmV0"}}),
        _ => json!({"apiVersion": "example.com/v1", "kind": "Gadget", "metadata": metadata,
            "spec": {"deep": {"list": [1, 2.5, null, {"x": true}], "big": 9_007_199_254_740_993_i64}}}),
    }
}

async fn rejected_object_is_named_in_cluster_and_replica<K: ApiServer>() {
    let setup = Setup::<K>::over().await;
    setup.apply(EVERYWHERE);
    let home = Site::new();
    let mut cloud = setup.replica(&home);
    cloud.run().await;
    let agent = Agent::start_with(&setup.site, "edge-1", cloud.mqtt, |settings| {
        settings.text("sync.max_object", "256KiB");
    })
    .await;
    setup.put("too-large", &"x".repeat(300 << 10)).await;
    let path = "/api/v1/namespaces/shop/configmaps/too-large";
    let object: Value = setup.kubernetes.client().get(path).await.unwrap();

    let event = eventually("the Event is on the object", PATIENCE, async || {
        let events = setup.list("events").into_iter();
        events.into_iter().find(|event| event["reason"] == "ObjectRejected")
    })
    .await;
    let about = &event["involvedObject"];
    assert_eq!(
        (&about["kind"], &about["namespace"], &about["name"], &about["uid"]),
        (&json!("ConfigMap"), &json!("shop"), &json!("too-large"), &object["metadata"]["uid"]),
        "{event:#}"
    );
    assert_eq!((&event["type"], &event["metadata"]["namespace"]), (&json!("Warning"), &json!("shop")));
    assert!(event["message"].as_str().unwrap().contains("TooLarge"), "{event:#}");
    let described = setup.admin.run(&["describe", "cm/too-large", "-n", "shop"]).ok();
    assert!(described.contains("ObjectRejected"), "{described}");

    let shown = output_text(&cloud.command(&["nodes", "edge-1"]).await);
    for word in ["ConfigMap", "shop", "too-large", "TooLarge"] {
        assert!(shown.contains(word), "{word}: {shown}");
    }
    // After a while the conditions show it too.
    eventually("the Node counts it", PATIENCE, async || {
        let node = setup.admin.run(&["get", "node/edge-1", "-o", "json"]).json();
        let conditions = node["status"]["conditions"].as_array()?.clone();
        conditions.into_iter().find(|condition| condition["reason"] == "ObjectsRejected")
    })
    .await;
    drop(agent);
}

async fn two_thousand_objects_follow_their_labels_to_the_nodes<K: ApiServer>() {
    let setup = Setup::<K>::over().await;
    define(&setup.admin, "Gadget", ANYTHING);
    for site in ["north", "south"] {
        setup.apply(&format!(
            "{{apiVersion: edgesync.io/v1alpha1, kind: Placement, metadata: {{name: {site}, namespace: shop}}, spec: {{objects: \
             {{kinds: [configmaps, secrets, gadgets.example.com], selector: {{matchLabels: {{site: {site}}}}}}}, nodes: {{names: [edge-{site}]}}}}}}"
        ));
    }
    let home = Site::new();
    let mut cloud = setup.replica(&home);
    cloud.run().await;
    let north = Agent::start(&setup.site, "edge-north", cloud.mqtt).await;
    let mut south = Agent::start(&setup.site, "edge-south", cloud.mqtt).await;
    let client = setup.kubernetes.client();
    for number in 0..3 * EACH {
        apply(client, &sample(number, if number % 10 == 0 { "south" } else { "north" })).await.unwrap();
    }
    let desired = async |site: &str| {
        let kinds = [
            "/api/v1/namespaces/shop/configmaps",
            "/api/v1/namespaces/shop/secrets",
            "/apis/example.com/v1/namespaces/shop/gadgets",
        ];
        let mut desired = BTreeMap::new();
        for path in kinds {
            let list: Value = client.get(&format!("{path}?labelSelector=site%3D{site}")).await.unwrap();
            let (kind, version) =
                (list["kind"].as_str().unwrap().trim_end_matches("List"), &list["apiVersion"]);
            for item in list["items"].as_array().unwrap() {
                let mut item = bare(item.clone());
                item["kind"] = json!(kind);
                item["apiVersion"] = version.clone();
                desired.insert(item["metadata"]["uid"].as_str().unwrap().to_owned(), item);
            }
        }
        desired
    };
    let holds = async |agent: &Agent, site: &str| {
        let desired = desired(site).await;
        let mut last = String::new();
        let what = format!("{} holds {} objects", agent.node, desired.len());
        let same = eventually(&what, PATIENCE, async || {
            if agent.status().await.objects.total != desired.len() as u64 {
                return None;
            }
            let mut held = BTreeMap::new();
            for path in ["/api/v1/configmaps", "/api/v1/secrets", "/apis/example.com/v1/gadgets"] {
                let list: Value = agent.client().get(path).await.ok()?;
                let (kind, version) =
                    (list["kind"].as_str()?.trim_end_matches("List").to_owned(), list["apiVersion"].clone());
                for item in list["items"].as_array()? {
                    let mut item = bare(item.clone());
                    item["kind"] = json!(kind);
                    item["apiVersion"] = version.clone();
                    held.insert(item["metadata"]["uid"].as_str()?.to_owned(), item);
                }
            }
            last = format!("{:?}", held.iter().find(|(uid, object)| desired.get(*uid) != Some(*object)));
            (held == desired).then_some(held.len())
        });
        assert_eq!(same.await, desired.len(), "{last}");
    };
    holds(&north, "north").await;
    holds(&south, "south").await;

    // Moved, recreated under the same name and deleted, on a connected and on an offline node.
    south.process.kill();
    for number in [0, 1, 2, 10, 11] {
        apply(client, &sample(number, if number % 10 == 0 { "north" } else { "south" })).await.unwrap();
    }
    for number in [3, 4, 5, 20, 30] {
        let object = sample(number, "x");
        let path = path_of(&object);
        client.delete::<Value>(&path, None).await.unwrap();
        if number != 5 {
            apply(client, &sample(number, if number % 10 == 0 { "south" } else { "north" })).await.unwrap();
        }
    }
    holds(&north, "north").await;
    south.run().await;
    holds(&south, "south").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs a Kubernetes API server: tests/cluster/run"]
async fn restored_cluster_removes_nothing_until_confirmed() {
    let mut setup = Setup::start().await;
    setup.apply(EVERYWHERE);
    setup.apply(&config_map("kept", "old"));
    setup.kubernetes.copy_or_restore().await;
    let home = Site::new();
    let mut cloud = setup.replica(&home);
    cloud.run().await;
    let agent = Agent::start(&setup.site, "edge-1", cloud.mqtt).await;
    for number in 0..60 {
        setup.apply(&config_map(&format!("c{number}"), "fast"));
    }
    setup.apply(&config_map("kept", "new"));
    setup.holds(&agent, "cm").await;
    let before = held(&agent.client()).await.len();
    assert_eq!(before, 61);

    setup.kubernetes.copy_or_restore().await;
    // The existing object has its old content; the missing ones are not removed.
    eventually("the older version is back and removals are held back", PATIENCE, async || {
        let node = cloud.node("edge-1").await?;
        let held = held(&agent.client()).await;
        let kept = held.values().find(|object| object["metadata"]["name"] == "kept")?;
        (kept["data"]["mode"] == "old" && node.held_back() == Some(60)).then_some(())
    })
    .await;
    assert_eq!(held(&agent.client()).await.len(), before);
    confirm_deletions(&cloud, "edge-1").await;
    setup.holds(&agent, "cm").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs a Kubernetes API server: tests/cluster/run"]
async fn forgotten_node_is_forgotten_by_all_replicas() {
    let setup = Setup::start().await;
    let (_homes, replicas) = setup.two_replicas().await;
    let mut agent = Agent::start(&setup.site, "edge-1", replicas[0].mqtt).await;
    eventually("both know the node", PATIENCE, async || {
        let states = [replicas[0].state("edge-1").await?, replicas[1].state("edge-1").await?];
        (states[0] == "in sync").then_some(())
    })
    .await;
    agent.stop().await;
    let forget = Route::ChangeNode("edge-1", NodeAction::Forget);
    ask::<RevokedCertificates>(&replicas[0].client(), forget).await.unwrap();
    replicas[1].process.logged("removed from the fleet", 0).await;
    let members = setup.list("secrets");
    let members = members.iter().filter(|map| !map["metadata"]["labels"]["edgesync.io/pairing"].is_null());
    let named: Vec<_> = members.filter(|map| map.to_string().contains("edge-1")).collect();
    assert!(named.is_empty(), "{named:?}");
}
