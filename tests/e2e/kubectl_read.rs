//! kubectl reads from the cloud side.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

use edgesync_testkit::kubectl;
use edgesync_testkit::site;
use kubectl::Cluster;
use serde_json::{Value, json};
use site::{Agent, PATIENCE, eventually};

const SETTINGS: &str = "
apiVersion: v1
kind: ConfigMap
metadata: {name: settings, namespace: default, labels: {app: web, tier: front}}
data: {mode: fast, level: '3'}
---
apiVersion: v1
kind: ConfigMap
metadata: {name: other, namespace: default, labels: {app: db, tier: back}}
data: {mode: slow}
---
apiVersion: v1
kind: ConfigMap
metadata: {name: bare, namespace: default}
";

const POD: &str = "
apiVersion: v1
kind: Pod
metadata: {name: web, namespace: default, labels: {app: web}}
spec:
  nodeName: edge-1
  containers:
  - {name: nginx, image: 'nginx:1.27', ports: [{containerPort: 80}]}
  - {name: logs, image: 'busybox:1.36'}
";

const SECRET: &str = "
apiVersion: v1
kind: Secret
metadata: {name: credentials, namespace: default}
type: Opaque
stringData: {password: hunter2}
";

/// Starts a cluster with namespaces and the objects of the tests.
async fn cluster() -> Cluster {
    let cluster = Cluster::start().await;
    cluster.kubectl(&["create", "namespace", "plant"]).ok();
    cluster.apply(SETTINGS);
    cluster.apply(POD);
    cluster.apply(SECRET);
    cluster.kubectl(&["create", "configmap", "far", "--from-literal=a=b", "-n", "plant"]).ok();
    cluster
}

/// Returns the object names that `-o name` lists.
#[track_caller]
fn names(cluster: &Cluster, arguments: &[&str]) -> Vec<String> {
    let run = cluster.kubectl(&[&["get", "-o", "name"], arguments].concat());
    run.lines().iter().map(|line| line.split_once('/').unwrap().1.to_owned()).collect()
}

/// An Event about the Pod `web`.
fn event(uid: &str, api: &str, name: &str, kind: &str, reason: &str, note: &str) -> String {
    let object =
        json!({"apiVersion": "v1", "kind": "Pod", "name": "web", "namespace": "default", "uid": uid});
    let metadata = json!({"name": name, "namespace": "default"});
    let event = if api == "v1" {
        json!({"apiVersion": api, "kind": "Event", "metadata": metadata, "type": kind, "reason": reason,
            "message": note, "involvedObject": object, "count": 3, "source": {"component": "test"},
            "firstTimestamp": "2026-01-01T00:00:00Z", "lastTimestamp": "2026-01-01T00:10:00Z"})
    } else {
        json!({"apiVersion": api, "kind": "Event", "metadata": metadata, "type": kind, "reason": reason,
            "note": note, "regarding": object, "action": "Test", "reportingController": "test",
            "reportingInstance": "test-1", "eventTime": "2026-01-01T00:20:00.000000Z"})
    };
    event.to_string()
}

#[tokio::test]
async fn tables_have_the_usual_columns() {
    let cluster = cluster().await;
    let rows = cluster.kubectl(&["get", "configmaps"]).rows();
    assert_eq!(rows[0], ["NAME", "DATA", "AGE"]);
    let shown: Vec<_> = rows[1..].iter().map(|row| [&*row[0], &*row[1]]).collect();
    assert_eq!(shown, [["bare", "0"], ["other", "1"], ["settings", "2"]]);

    let rows = cluster.kubectl(&["get", "pods", "-o", "wide"]).rows();
    let (first, wide) = rows[0].split_at(5);
    assert_eq!(first, ["NAME", "READY", "STATUS", "RESTARTS", "AGE"]);
    let node = wide.iter().position(|column| column == "NODE").expect("a column for the node");
    assert_eq!(rows[1][5 + node], "edge-1");
    assert_eq!(rows[1][..2], ["web", "0/2"]);
    assert!(!cluster.kubectl(&["get", "pods"]).ok().contains("edge-1"));

    let rows = cluster.kubectl(&["get", "secrets"]).rows();
    assert_eq!(rows[0], ["NAME", "TYPE", "DATA", "AGE"]);
    assert_eq!(rows[1][..3], ["credentials", "Opaque", "1"]);
    let rows = cluster.kubectl(&["get", "namespace", "plant"]).rows();
    assert_eq!(rows[0], ["NAME", "STATUS", "AGE"]);
    assert_eq!(rows[1][..2], ["plant", "Active"]);
}

#[tokio::test]
async fn tables_are_filtered_widened_and_sorted() {
    let cluster = cluster().await;
    let rows = cluster.kubectl(&["get", "cm", "-A"]).rows();
    assert_eq!(rows[0], ["NAMESPACE", "NAME", "DATA", "AGE"]);
    let places: Vec<_> = rows[1..].iter().map(|row| (&*row[0], &*row[1])).collect();
    for place in [("default", "bare"), ("default", "settings"), ("plant", "far")] {
        assert!(places.contains(&place), "{places:?}");
    }
    let rows = cluster.kubectl(&["get", "cm", "settings", "--no-headers", "--show-labels"]).rows();
    assert_eq!(rows.len(), 1);
    assert_eq!(rows[0][3], "app=web,tier=front");
    let rows = cluster.kubectl(&["get", "cm", "settings", "-L", "tier"]).rows();
    assert_eq!((&*rows[0][3], &*rows[1][3]), ("TIER", "front"));
    let sorted = cluster.kubectl(&["get", "cm", "-o", "name", "--sort-by=.metadata.labels.tier"]).lines();
    assert_eq!(sorted[1..], ["configmap/other", "configmap/settings"]);
    let both = cluster.kubectl(&["get", "cm,secrets", "-o", "name"]).lines();
    assert!(
        both.contains(&"configmap/other".into()) && both.contains(&"secret/credentials".into()),
        "{both:?}"
    );
    assert_eq!(
        cluster.kubectl(&["get", "cm/other", "pod/web", "-o", "name"]).lines(),
        ["configmap/other", "pod/web"]
    );
}

#[tokio::test]
async fn objects_are_printed_in_every_output_format() {
    let cluster = cluster().await;
    let object = cluster.get("configmap/settings");
    assert_eq!((&object["apiVersion"], &object["kind"]), (&json!("v1"), &json!("ConfigMap")));
    assert_eq!(object["data"], json!({"mode": "fast", "level": "3"}));
    for field in ["uid", "resourceVersion", "creationTimestamp"] {
        assert!(object["metadata"][field].is_string(), "{object}");
    }
    let managed = ["get", "cm", "settings", "-o", "json", "--show-managed-fields"];
    let managers = cluster.kubectl(&managed).json()["metadata"]["managedFields"].take();
    assert_eq!(managers[0]["manager"], "kubectl-client-side-apply", "{managers}");

    let list = cluster.kubectl(&["get", "configmaps", "-o", "json"]).json();
    assert_eq!((&list["kind"], list["items"].as_array().unwrap().len()), (&json!("List"), 3));
    let yaml = cluster.kubectl(&["get", "cm", "settings", "-o", "yaml"]).ok();
    for line in ["apiVersion: v1", "kind: ConfigMap", "  mode: fast", "  level: \"3\"", "  name: settings"] {
        assert!(yaml.lines().any(|one| one == line), "no line {line:?} in\n{yaml}");
    }
    cluster.kubectl(&["get", "cm", "settings", "-o", "name"]).says("configmap/settings");
    cluster.kubectl(&["get", "cm", "settings", "-o", "jsonpath={.data.mode}"]).says("fast");
    cluster.kubectl(&["get", "cm", "-o", "jsonpath={.items[*].metadata.name}"]).says("bare other settings");
    cluster.kubectl(&["get", "cm", "other", "-o", "go-template={{.data.mode}}"]).says("slow");
    let columns = "custom-columns=NAME:.metadata.name,MODE:.data.mode";
    let rows = cluster.kubectl(&["get", "cm", "-o", columns]).rows();
    assert_eq!(rows, [["NAME", "MODE"], ["bare", "<none>"], ["other", "slow"], ["settings", "fast"]]);
}

#[tokio::test]
async fn selectors_match_labels_and_fields() {
    let cluster = cluster().await;
    let by_label = |selector: &str| names(&cluster, &["configmaps", "-l", selector]);
    assert_eq!(by_label("app=web"), ["settings"]);
    assert_eq!(by_label("app!=web"), ["bare", "other"]);
    assert_eq!(by_label("tier in (front, back)"), ["other", "settings"]);
    assert_eq!(by_label("tier notin (front)"), ["bare", "other"]);
    assert_eq!(by_label("!app"), ["bare"]);
    assert_eq!(by_label("app,tier=back"), ["other"]);

    let by_field = |kind: &str, selector: &str| names(&cluster, &[kind, "-A", "--field-selector", selector]);
    assert_eq!(by_field("configmaps", "metadata.name=far"), ["far"]);
    assert_eq!(by_field("configmaps", "metadata.namespace!=default,metadata.name!=x"), ["far"]);
    assert_eq!(by_field("pods", "spec.nodeName=edge-1"), ["web"]);
    assert!(by_field("pods", "spec.nodeName=edge-2").is_empty());
    assert_eq!(by_field("secrets", "type=Opaque"), ["credentials"]);

    let unknown = cluster.kubectl(&["get", "configmaps", "--field-selector", "data.mode=fast"]);
    let message = unknown.fails_with("Error from server (BadRequest)");
    assert!(message.contains("data.mode"), "{message}");
}

#[tokio::test]
async fn describe_shows_an_object_and_its_events() {
    let cluster = cluster().await;
    cluster.kubectl(&["describe", "configmap", "settings"]).shows(&[
        "Name:         settings",
        "Namespace:    default",
        "app=web",
        "mode:\n----\nfast",
    ]);
    cluster.kubectl(&["describe", "secret", "credentials"]).shows(&["Type:  Opaque", "password:  7 bytes"]);
    let uid = cluster.get("pod/web")["metadata"]["uid"].as_str().unwrap().to_owned();
    cluster.apply(&event(&uid, "events.k8s.io/v1", "web.1", "Warning", "BackOff", "back-off restarting"));
    let pod = cluster.kubectl(&["describe", "pod", "web"]);
    pod.shows(&["edge-1", "nginx:1.27", "Containers:", "Events:", "BackOff", "back-off restarting"]);
    cluster.kubectl(&["describe", "namespace", "plant"]).shows(&["Name:         plant", "Active"]);
    cluster.apply("{apiVersion: v1, kind: Node, metadata: {name: edge-1}}");
    cluster.kubectl(&["describe", "node", "edge-1"]).shows(&["Name:", "edge-1", "Non-terminated Pods"]);
    cluster.kubectl(&["describe", "cm"]).shows(&["bare", "other", "settings"]);
    cluster.kubectl(&["describe", "cm", "nope"]).fails_with("configmaps \"nope\" not found");
}

#[tokio::test]
async fn events_are_the_same_in_both_api_groups() {
    let cluster = cluster().await;
    cluster.apply(&event("u", "v1", "web.1", "Normal", "Pulled", "image pulled"));
    cluster.apply(&event("u", "events.k8s.io/v1", "web.2", "Warning", "BackOff", "back-off restarting"));
    for kind in ["events", "events.events.k8s.io", "ev"] {
        assert_eq!(names(&cluster, &[kind]), ["web.1", "web.2"]);
        let rows = cluster.kubectl(&["get", kind]).rows();
        assert_eq!(rows[0], ["LAST SEEN", "TYPE", "REASON", "OBJECT", "MESSAGE"]);
        assert_eq!(rows[1][1..], ["Normal", "Pulled", "pod/web", "image pulled"]);
    }
    let new = cluster.kubectl(&["get", "events.v1.events.k8s.io", "web.1", "-o", "json"]).json();
    assert_eq!((&new["note"], &new["regarding"]["name"]), (&json!("image pulled"), &json!("web")));
    assert_eq!(new["deprecatedCount"], 3);
    let old = cluster.kubectl(&["get", "events.v1.", "web.2", "-o", "json"]).json();
    let about = (&old["message"], &old["involvedObject"]["name"]);
    assert_eq!(about, (&json!("back-off restarting"), &json!("web")));

    cluster.kubectl(&["events"]).shows(&["LAST SEEN", "Pulled", "BackOff"]);
    let warnings = cluster.kubectl(&["events", "--for", "pod/web", "--types=Warning"]).ok();
    assert!(warnings.contains("BackOff") && !warnings.contains("Pulled"), "{warnings}");
    assert_eq!(names(&cluster, &["events", "--field-selector", "reason=Pulled"]), ["web.1"]);
    assert_eq!(
        names(&cluster, &["events", "--field-selector", "involvedObject.name=web,type=Warning"]),
        ["web.2"]
    );
}

#[tokio::test]
async fn explain_reads_the_schemas() {
    let cluster = Cluster::start().await;
    let config_map = cluster.kubectl(&["explain", "configmap"]);
    config_map.shows(&[
        "KIND:       ConfigMap",
        "VERSION:    v1",
        "DESCRIPTION:",
        "FIELDS:",
        "<map[string]string>",
    ]);
    cluster.kubectl(&["explain", "pod.spec.containers.image"]).shows(&["FIELD: image <string>"]);
    cluster.kubectl(&["explain", "deployment.spec"]).shows(&["GROUP:      apps", "replicas", "template"]);
    let sync = cluster.kubectl(&["explain", "objectsync.spec"]);
    sync.shows(&["reliablesyncs.kubeedge.io", "objectAPIVersion", "objectKind", "objectName"]);
    cluster.kubectl(&["explain", "lease", "--recursive"]).shows(&["holderIdentity", "renewTime"]);
    cluster.kubectl(&["explain", "pod.spec.nope"]).fails_with("field \"nope\" does not exist");
}

#[tokio::test]
async fn discovery_lists_the_served_kinds() {
    let cluster = Cluster::start().await;
    let rows = cluster.kubectl(&["api-resources"]).rows();
    assert_eq!(rows[0], ["NAME", "SHORTNAMES", "APIVERSION", "NAMESPACED", "KIND"]);
    for row in [["configmaps", "cm", "v1", "true", "ConfigMap"], ["nodes", "no", "v1", "false", "Node"]] {
        assert!(rows.iter().any(|one| *one == row), "no {row:?} in {rows:?}");
    }
    let of_cluster = cluster.kubectl(&["api-resources", "--namespaced=false", "-o", "name"]).lines();
    assert!(of_cluster.contains(&"namespaces".into()) && !of_cluster.contains(&"pods".into()));
    let group = ["api-resources", "--api-group=reliablesyncs.kubeedge.io", "-o", "name"];
    let mut syncs = cluster.kubectl(&group).lines();
    syncs.sort();
    assert_eq!(
        syncs,
        ["clusterobjectsyncs.reliablesyncs.kubeedge.io", "objectsyncs.reliablesyncs.kubeedge.io"]
    );
    let verbs = cluster.kubectl(&["api-resources", "-o", "wide", "--verbs=deletecollection"]);
    verbs.shows(&["create,delete,deletecollection,get,list,patch,update,watch"]);

    let versions = cluster.kubectl(&["api-versions"]).lines();
    for version in [
        "v1",
        "apps/v1",
        "batch/v1",
        "coordination.k8s.io/v1",
        "events.k8s.io/v1",
        "apiextensions.k8s.io/v1",
        "reliablesyncs.kubeedge.io/v1alpha1",
    ] {
        assert!(versions.iter().any(|one| one == version), "no {version} in {versions:?}");
    }
    let version = cluster.kubectl(&["version", "-o", "json"]).json();
    assert!(version["serverVersion"]["gitVersion"].as_str().unwrap().starts_with('v'), "{version}");
    assert!(!version["serverVersion"]["major"].as_str().unwrap().is_empty(), "{version}");
}

#[tokio::test]
async fn long_lists_are_read_in_chunks() {
    let cluster = Cluster::start().await;
    let object = |n: usize| {
        let metadata = json!({"name": format!("part-{n:02}"), "namespace": "default"});
        json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata})
    };
    cluster.cloud.apply((0..25).map(object)).await;
    let run = cluster.kubectl(&["get", "cm", "-o", "name", "--chunk-size=10", "-v=6"]);
    let requests = run.stderr.matches("/configmaps?").count();
    assert_eq!((requests, run.stderr.matches("continue=").count()), (3, 2), "{run}");
    let expected: Vec<String> = (0..25).map(|n| format!("configmap/part-{n:02}")).collect();
    assert_eq!(run.lines(), expected);
    assert_eq!(cluster.kubectl(&["get", "cm", "--chunk-size=7"]).lines().len(), 26);
    assert_eq!(cluster.kubectl(&["get", "cm", "-o", "name", "--chunk-size=0"]).lines().len(), 25);
}

#[tokio::test]
async fn watch_shows_every_change() {
    let cluster = cluster().await;
    let changes = cluster.follow(&["get", "configmaps", "--watch", "--output-watch-events", "--no-headers"]);
    changes.lines_with(&["settings"]).await;
    let modes = cluster.follow(&["get", "cm", "settings", "-w", "-o", "jsonpath={.data.mode}{'\\n'}"]);
    modes.line("fast").await;
    let selected = cluster.follow(&["get", "cm", "-l", "app=web", "-w", "--output-watch-events"]);
    selected.lines_with(&["ADDED"]).await;
    let only = cluster.follow(&["get", "cm", "--watch-only", "-o", "name"]);

    for mode in ["slow", "quiet"] {
        let patch = json!({"data": {"mode": mode}}).to_string();
        cluster.kubectl(&["patch", "cm", "settings", "-p", &patch]).ok();
        modes.line(mode).await;
    }
    cluster.kubectl(&["create", "configmap", "late"]).ok();
    cluster.kubectl(&["label", "cm", "late", "app=web"]).ok();
    cluster.kubectl(&["label", "cm", "late", "app-"]).ok();
    cluster.kubectl(&["delete", "cm", "late"]).ok();
    changes.lines_with(&["ADDED", "MODIFIED", "ADDED", "MODIFIED", "MODIFIED", "DELETED"]).await;
    // For a watch with a selector, an object that no longer matches is deleted.
    selected.lines_with(&["settings", "settings", "settings", "late", "late"]).await;
    let late: Vec<String> = selected.lines().into_iter().filter(|line| line.contains("late")).collect();
    assert!(late[0].starts_with("ADDED") && late[1].starts_with("DELETED"), "{late:?}");
    only.line("configmap/late").await;
    let seen = modes.lines();
    assert_eq!(seen, ["fast", "slow", "quiet"]);
}

#[tokio::test]
async fn wait_sees_conditions_values_creations_and_deletions() {
    let cluster = cluster().await;
    let ready = cluster.follow(&["wait", "--for=condition=Ready", "pod/web", "--timeout=60s"]);
    let running = cluster.follow(&["wait", "--for=jsonpath={.status.phase}=Running", "pod/web"]);
    let created = cluster.follow(&["wait", "--for=create", "configmap/late", "--timeout=60s"]);
    let status = json!({"status": {
        "phase": "Running",
        "conditions": [{"type": "Ready", "status": "True"}],
    }});
    let patch = ["patch", "pod", "web", "--subresource=status", "--type=merge", "-p"];
    cluster.kubectl(&[&patch[..], &[&status.to_string()]].concat()).ok();
    ready.finish().says("pod/web condition met");
    running.finish().says("pod/web condition met");
    cluster.kubectl(&["create", "configmap", "late"]).ok();
    created.finish().says("configmap/late condition met");

    let deleted = cluster.follow(&["wait", "--for=delete", "configmap/late", "--timeout=60s"]);
    cluster.kubectl(&["delete", "configmap", "late"]).ok();
    let deleted = deleted.finish();
    // kubectl may start after the deletion.
    assert!(deleted.code == Some(0) || deleted.stderr.contains("not found"), "{deleted}");
    let never = cluster.kubectl(&["wait", "--for=condition=Idle", "pod/web", "--timeout=1s"]);
    never.fails_with("timed out waiting for the condition");
}

#[tokio::test]
async fn raw_paths_are_served() {
    let cluster = Cluster::start().await;
    let raw = |path: &str| cluster.kubectl(&["get", "--raw", path]);
    raw("/readyz?verbose").shows(&["[+]", "readyz check passed"]);
    for path in ["/readyz", "/livez", "/healthz"] {
        raw(path).says("ok");
    }
    assert_eq!(raw("/api").json()["kind"], "APIVersions");
    assert_eq!(raw("/apis").json()["kind"], "APIGroupList");
    assert_eq!(raw("/apis/coordination.k8s.io").json()["kind"], "APIGroup");
    assert_eq!(raw("/api/v1").json()["kind"], "APIResourceList");
    assert!(raw("/version").json()["gitVersion"].is_string());
    let paths = raw("/openapi/v3").json()["paths"].take();
    for path in ["api/v1", "apis/apps/v1", "apis/reliablesyncs.kubeedge.io/v1alpha1"] {
        let url = paths[path]["serverRelativeURL"].as_str().unwrap_or_else(|| panic!("no {path} in {paths}"));
        let document = raw(url).json();
        assert!(document["openapi"].as_str().unwrap().starts_with("3."), "{path}");
        assert!(document["components"]["schemas"].is_object(), "{path}");
    }
    assert_eq!(raw("/openapi/v2").json()["swagger"], "2.0");
    raw("/metrics").shows(&["# TYPE "]);
    raw("/nowhere").fails_with("the server could not find the requested resource");
    raw("/apis/nope.example.com/v1").fails_with("the server could not find the requested resource");
    raw("/api/v1/namespaces/default/configmaps/nope").fails_with("configmaps \"nope\" not found");
}

#[tokio::test]
async fn missing_objects_are_reported_as_by_kubernetes() {
    let cluster = cluster().await;
    let missing = cluster.kubectl(&["get", "configmap", "nope"]).fails();
    assert_eq!(missing, "Error from server (NotFound): configmaps \"nope\" not found\n");
    let unknown = cluster.kubectl(&["get", "nopes"]).fails();
    assert_eq!(unknown, "error: the server doesn't have a resource type \"nopes\"\n");
    cluster.kubectl(&["get", "cm", "nope", "--ignore-not-found"]).says("");
    let empty = cluster.kubectl(&["get", "pods", "-n", "plant"]);
    assert_eq!(
        (empty.code, &*empty.stderr),
        (Some(0), "No resources found in plant namespace.\n"),
        "{empty}"
    );
    let some = cluster.kubectl(&["get", "cm", "settings", "nope", "-o", "name"]);
    assert_eq!(some.stdout, "configmap/settings\n", "{some}");
    some.fails_with("configmaps \"nope\" not found");
    cluster.kubectl(&["delete", "cm", "nope"]).fails_with("configmaps \"nope\" not found");
    cluster.kubectl(&["get", "deployments.apps", "nope"]).fails_with("deployments.apps \"nope\" not found");
}

#[tokio::test]
async fn objectsyncs_of_a_node_are_regular_objects() {
    let cluster = cluster().await;
    let _agent = Agent::start(&cluster.site, "edge-1", cluster.cloud.mqtt).await;
    cluster.cloud.in_sync("edge-1", 6).await;
    let settings = cluster.get("configmap/settings");
    let name = format!("edge-1.{}", settings["metadata"]["uid"].as_str().unwrap());
    let record = eventually("the record of the object", PATIENCE, async || {
        let run = cluster.kubectl(&["get", "objectsync", &name, "--ignore-not-found", "-o", "json"]);
        serde_json::from_str::<Value>(&run.stdout).ok()
    })
    .await;
    assert_eq!(record["spec"]["objectKind"], "ConfigMap", "{record}");
    assert_eq!(record["spec"]["objectName"], "settings", "{record}");
    assert_eq!(record["status"]["objectResourceVersion"], settings["metadata"]["resourceVersion"]);
    let table = cluster.kubectl(&["get", "objectsyncs", "-A"]).ok();
    for word in ["edge-1", "settings", "far"] {
        assert!(table.contains(word), "no {word} in\n{table}");
    }
}
