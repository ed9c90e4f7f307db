//! kubectl writes to the cloud side.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

use edgesync_testkit::kubectl;
use edgesync_testkit::site;
use std::time::Duration;

use kubectl::{Background, Cluster};
use serde_json::{Value, json};
use site::{PATIENCE, eventually};

const SETTINGS: &str = "
apiVersion: v1
kind: ConfigMap
metadata: {name: settings, namespace: default}
data: {mode: fast, level: '3'}
";

const DEPLOYMENT: &str = "
apiVersion: apps/v1
kind: Deployment
metadata: {name: web, namespace: default}
spec:
  replicas: 2
  selector: {matchLabels: {app: web}}
  template:
    metadata: {labels: {app: web}}
    spec:
      containers:
      - name: nginx
        image: nginx:1.27
        ports: [{containerPort: 80}, {containerPort: 443}]
        env: [{name: A, value: '1'}, {name: B, value: '2'}]
      - name: logs
        image: busybox:1.36
";

/// A ConfigMap with one entry.
fn config_map(name: &str, mode: &str) -> String {
    format!(
        "{{apiVersion: v1, kind: ConfigMap, metadata: {{name: {name}, namespace: default}}, data: {{mode: {mode}}}}}\n"
    )
}

/// Waits until the object does not exist.
async fn gone(cluster: &Cluster, object: &str) {
    eventually(&format!("{object} is gone"), PATIENCE, async || (!cluster.has(object)).then_some(())).await;
}

#[tokio::test]
async fn apply_creates_configures_and_leaves_unchanged() {
    let cluster = Cluster::start().await;
    let file = cluster.file("settings.yaml", SETTINGS);
    cluster.kubectl(&["apply", "-f", &file]).says("configmap/settings created");
    let created = cluster.get("configmap/settings");
    cluster.kubectl(&["apply", "-f", &file]).says("configmap/settings unchanged");
    assert_eq!(cluster.get("configmap/settings"), created);

    // Fields removed from the file are removed, and those of other managers stay.
    cluster.kubectl(&["patch", "cm", "settings", "-p", r#"{"data":{"theirs":"1"}}"#]).ok();
    cluster.file("settings.yaml", &SETTINGS.replace("mode: fast, level: '3'", "mode: slow"));
    cluster.kubectl(&["apply", "-f", &file]).says("configmap/settings configured");
    let configured = cluster.get("configmap/settings");
    assert_eq!(configured["data"], json!({"mode": "slow", "theirs": "1"}));
    assert_eq!(configured["metadata"]["uid"], created["metadata"]["uid"]);
    assert_ne!(configured["metadata"]["resourceVersion"], created["metadata"]["resourceVersion"]);
    cluster.kubectl(&["apply", "view-last-applied", "-f", &file]).shows(&["mode: slow"]);

    cluster.file("all/a.yaml", &(config_map("a", "x") + "---\n" + &config_map("b", "x")));
    cluster.file(
        "all/c.json",
        &json!({"apiVersion": "v1", "kind": "List", "items": [
            {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "c", "namespace": "default"}},
        ]})
        .to_string(),
    );
    let all = cluster.site.path("all");
    let lines = cluster.kubectl(&["apply", "-f", all.to_str().unwrap()]).lines();
    assert_eq!(lines, ["configmap/a created", "configmap/b created", "configmap/c created"]);
}

#[tokio::test]
async fn apply_merges_the_lists_of_a_deployment_by_their_keys() {
    let cluster = Cluster::start().await;
    let file = cluster.file("web.yaml", DEPLOYMENT);
    cluster.kubectl(&["apply", "-f", &file]).says("deployment.apps/web created");
    assert_eq!(cluster.get("deployment/web")["metadata"]["generation"], 1);
    cluster.kubectl(&["set", "env", "deployment/web", "-c", "nginx", "THEIRS=9"]).ok();
    cluster.kubectl(&["set", "image", "deployment/web", "logs=busybox:1.37"]).ok();

    let changed = DEPLOYMENT
        .replace("nginx:1.27", "nginx:1.28")
        .replace("{name: A, value: '1'}, ", "")
        .replace("{containerPort: 80}, ", "");
    cluster.file("web.yaml", &changed);
    cluster.kubectl(&["apply", "-f", &file]).says("deployment.apps/web configured");
    let web = cluster.get("deployment/web");
    let containers = &web["spec"]["template"]["spec"]["containers"];
    let names = |list: &Value, field: &str| -> Vec<Value> {
        list.as_array().unwrap().iter().map(|item| item[field].clone()).collect()
    };
    assert_eq!(names(containers, "name"), ["nginx", "logs"]);
    assert_eq!(names(containers, "image"), ["nginx:1.28", "busybox:1.36"]);
    assert_eq!(names(&containers[0]["env"], "name"), ["B", "THEIRS"]);
    assert_eq!(names(&containers[0]["ports"], "containerPort"), [443]);
    assert_eq!(web["metadata"]["generation"], 4);

    // The last container of the file is removed, and a new one follows the remaining one.
    let logs = "      - name: logs\n        image: busybox:1.36\n";
    cluster.file("web.yaml", &changed.replace(logs, "      - {name: proxy, image: 'envoy:1.30'}\n"));
    cluster.kubectl(&["apply", "-f", &file]).says("deployment.apps/web configured");
    let web = cluster.get("deployment/web");
    assert_eq!(names(&web["spec"]["template"]["spec"]["containers"], "name"), ["nginx", "proxy"]);
}

#[tokio::test]
async fn create_refuses_existing_objects() {
    let cluster = Cluster::start().await;
    let values = cluster.file("values.txt", "one\ntwo\n");
    let create = ["create", "configmap", "settings", "--from-literal=mode=fast"];
    let from_file = format!("--from-file=list={values}");
    cluster.kubectl(&[&create[..], &[&from_file]].concat()).says("configmap/settings created");
    let data = cluster.get("configmap/settings")["data"].take();
    assert_eq!(data, json!({"mode": "fast", "list": "one\ntwo\n"}));
    let again = cluster.kubectl(&create).fails();
    assert!(again.contains("configmaps \"settings\" already exists"), "{again}");

    cluster.kubectl(&["create", "namespace", "plant"]).says("namespace/plant created");
    assert_eq!(cluster.get("namespace/plant")["status"]["phase"], "Active");
    cluster.kubectl(&["create", "secret", "generic", "login", "--from-literal=user=me", "-n", "plant"]).ok();
    let user = ["get", "secret", "login", "-n", "plant", "-o", "jsonpath={.data.user}"];
    cluster.kubectl(&user).says("bWU=");
    cluster.kubectl(&["create", "serviceaccount", "robot"]).says("serviceaccount/robot created");
    cluster.kubectl(&["create", "deployment", "web", "--image=nginx"]).says("deployment.apps/web created");
    cluster.kubectl(&["create", "service", "clusterip", "web", "--tcp=80"]).says("service/web created");
    cluster.kubectl(&["create", "job", "once", "--image=busybox"]).says("job.batch/once created");
    let cron = ["create", "cronjob", "often", "--image=busybox", "--schedule=*/5 * * * *"];
    cluster.kubectl(&cron).says("cronjob.batch/often created");

    let generated =
        cluster.file("run.yaml", "{apiVersion: v1, kind: ConfigMap, metadata: {generateName: run-}}");
    let name = cluster.kubectl(&["create", "-f", &generated, "-o", "name"]).ok();
    assert!(
        name.starts_with("configmap/run-") && name.trim_end().len() == "configmap/run-".len() + 5,
        "{name}"
    );

    let bad = cluster.kubectl(&["create", "configmap", "Bad_Name"]).fails();
    assert!(bad.contains("ConfigMap \"Bad_Name\" is invalid: metadata.name: Invalid value"), "{bad}");
    // The first object in a namespace creates it.
    cluster.kubectl(&["create", "configmap", "a", "-n", "somewhere"]).ok();
    assert_eq!(cluster.get("namespace/somewhere")["status"]["phase"], "Active");
}

#[tokio::test]
async fn replace_writes_the_whole_object_at_its_version() {
    let cluster = Cluster::start().await;
    cluster.apply(SETTINGS);
    let stale = cluster.get("configmap/settings");
    let file = cluster.file("new.yaml", &config_map("settings", "slow"));
    cluster.kubectl(&["replace", "-f", &file]).says("configmap/settings replaced");
    let replaced = cluster.get("configmap/settings");
    assert_eq!(replaced["data"], json!({"mode": "slow"}));
    assert_eq!(replaced["metadata"]["uid"], stale["metadata"]["uid"]);

    let mut changed = stale.clone();
    changed["data"]["mode"] = json!("stale");
    let file = cluster.file("stale.json", &changed.to_string());
    let conflict = cluster.kubectl(&["replace", "-f", &file]).fails_with("Error from server (Conflict)");
    assert!(conflict.contains("the object has been modified; please apply your changes"), "{conflict}");

    let file = cluster.file("forced.yaml", &config_map("settings", "forced"));
    cluster.kubectl(&["replace", "--force", "-f", &file]).ok();
    let forced = cluster.get("configmap/settings");
    assert_eq!(forced["data"]["mode"], "forced");
    assert_ne!(forced["metadata"]["uid"], stale["metadata"]["uid"]);
    let file = cluster.file("missing.yaml", &config_map("missing", "x"));
    cluster.kubectl(&["replace", "-f", &file]).fails_with("configmaps \"missing\" not found");
}

#[tokio::test]
async fn patch_accepts_all_three_types() {
    let cluster = Cluster::start().await;
    cluster.apply(SETTINGS);
    cluster.apply(DEPLOYMENT);
    let patch = |object: &str, kind: &str, patch: &str| {
        cluster.kubectl(&["patch", object, &format!("--type={kind}"), "-p", patch])
    };
    patch("cm/settings", "merge", r#"{"data":{"level":null,"a":"1"}}"#).says("configmap/settings patched");
    assert_eq!(cluster.get("cm/settings")["data"], json!({"mode": "fast", "a": "1"}));
    let no_change = patch("cm/settings", "merge", r#"{"data":{"a":"1"}}"#);
    no_change.says("configmap/settings patched (no change)");

    let operations = json!([
        {"op": "test", "path": "/data/mode", "value": "fast"},
        {"op": "move", "from": "/data/a", "path": "/data/b"},
        {"op": "add", "path": "/metadata/labels", "value": {"x~y": "no"}},
        {"op": "replace", "path": "/metadata/labels", "value": {"tier": "front"}},
    ]);
    patch("cm/settings", "json", &operations.to_string()).says("configmap/settings patched");
    let patched = cluster.get("cm/settings");
    assert_eq!(patched["data"], json!({"mode": "fast", "b": "1"}));
    assert_eq!(patched["metadata"]["labels"], json!({"tier": "front"}));
    let test =
        json!([{"op": "test", "path": "/data/mode", "value": "slow"}, {"op": "remove", "path": "/data"}]);
    patch("cm/settings", "json", &test.to_string()).fails_with("The request is invalid");
    patch("cm/settings", "json", r#"[{"op":"jump","path":"/data"}]"#).fails();
    assert_eq!(cluster.get("cm/settings"), patched);

    let container = r#"{"spec":{"template":{"spec":{"containers":[{"name":"logs","image":"x:2"}]}}}}"#;
    patch("deployment/web", "strategic", container).says("deployment.apps/web patched");
    let images = ["get", "deploy", "web", "-o", "jsonpath={..containers[*].image}"];
    assert_eq!(cluster.kubectl(&images).ok().split_whitespace().collect::<Vec<_>>().len(), 2);
    let removal = r#"{"spec":{"template":{"spec":{"containers":[{"name":"logs","$patch":"delete"}]}}}}"#;
    patch("deployment/web", "strategic", removal).ok();
    cluster.kubectl(&images).says("nginx:1.27");
    let nameless = r#"{"spec":{"template":{"spec":{"containers":[{"image":"x"}]}}}}"#;
    patch("deployment/web", "strategic", nameless).fails();

    patch("cm/nope", "merge", "{}").fails_with("configmaps \"nope\" not found");
    patch("cm/settings", "merge", r#"{"metadata":{"name":"other"}}"#).fails();
    let immutable = patch("deployment/web", "merge", r#"{"spec":{"selector":{"matchLabels":{"a":"b"}}}}"#);
    immutable.fails_with("field is immutable");
}

#[tokio::test]
async fn labels_and_annotations_are_set_and_removed() {
    let cluster = Cluster::start().await;
    cluster.apply(&(config_map("a", "x") + "---\n" + &config_map("b", "x")));
    cluster.kubectl(&["label", "cm", "a", "tier=front", "app=web"]).says("configmap/a labeled");
    let again = cluster.kubectl(&["label", "cm", "a", "tier=back"]).fails();
    assert!(again.contains("already has a value (front), and --overwrite is false"), "{again}");
    cluster.kubectl(&["label", "cm", "a", "tier=back", "--overwrite"]).says("configmap/a labeled");
    cluster.kubectl(&["label", "cm", "a", "app-"]).says("configmap/a unlabeled");
    assert_eq!(cluster.get("cm/a")["metadata"]["labels"], json!({"tier": "back"}));
    cluster.kubectl(&["label", "cm", "-l", "tier=back", "picked=yes"]).says("configmap/a labeled");
    let bad = cluster.kubectl(&["label", "cm", "a", "tier=not allowed!", "--overwrite"]).fails();
    assert!(bad.contains("not allowed!"), "{bad}");

    cluster.kubectl(&["annotate", "cm", "a", "b", "example.org/note=two words"]).ok();
    let note = ["get", "cm", "b", "-o", r"jsonpath={.metadata.annotations.example\.org/note}"];
    cluster.kubectl(&note).says("two words");
    cluster.kubectl(&["annotate", "cm", "b", "example.org/note-"]).says("configmap/b annotated");
    cluster.kubectl(&note).says("");
}

#[tokio::test]
async fn edit_sends_only_the_edited_fields() {
    let mut cluster = Cluster::start().await;
    cluster.apply(SETTINGS);
    cluster.client.editor(r#"sed -i 's/mode: fast/mode: edited/' "$1""#);
    cluster.kubectl(&["edit", "configmap", "settings"]).says("configmap/settings edited");
    assert_eq!(cluster.get("cm/settings")["data"], json!({"mode": "edited", "level": "3"}));
    let unchanged = cluster.kubectl(&["edit", "configmap", "settings"]);
    assert!(unchanged.stderr.contains("no changes made"), "{unchanged}");

    // A concurrent write comes first; the editor's patch contains only the edited field.
    cluster.client.editor(
        r#"
        [ -e "$HOME/done" ] || "$EDGESYNC_KUBECTL" patch cm settings -p '{"data":{"theirs":"1"}}' >&2
        touch "$HOME/done"
        sed -i 's/mode: edited/mode: again/' "$1""#,
    );
    let kubectl = kubectl::kubectl();
    cluster.client.env("EDGESYNC_KUBECTL", kubectl.to_str().unwrap());
    cluster.kubectl(&["edit", "configmap", "settings"]).ok();
    let data = cluster.get("cm/settings")["data"].take();
    assert_eq!(data, json!({"mode": "again", "level": "3", "theirs": "1"}));
}

#[tokio::test]
async fn delete_accepts_names_files_selectors_and_all() {
    let cluster = Cluster::start().await;
    let names = ["a", "b", "c", "d", "e"];
    cluster.apply(&names.map(|name| config_map(name, "x")).join("---\n"));
    cluster.kubectl(&["delete", "cm", "a"]).shows(&["configmap \"a\" deleted"]);
    let file = cluster.file("b.yaml", &config_map("b", "x"));
    cluster.kubectl(&["delete", "-f", &file, "--now"]).shows(&["configmap \"b\" deleted"]);
    cluster.kubectl(&["delete", "-f", &file]).fails_with("configmaps \"b\" not found");
    cluster.kubectl(&["delete", "-f", &file, "--ignore-not-found"]).ok();
    cluster.kubectl(&["label", "cm", "c", "old=yes"]).ok();
    cluster.kubectl(&["delete", "cm", "-l", "old", "-o", "name"]).says("configmap/c");
    let left = ["get", "cm", "-o", "name"];
    assert_eq!(cluster.kubectl(&left).lines(), ["configmap/d", "configmap/e"]);
    cluster.kubectl(&["delete", "cm", "--all", "--wait=false"]).ok();
    assert!(cluster.kubectl(&left).lines().is_empty());
    let collection = "/api/v1/namespaces/default/configmaps";
    cluster.apply(&config_map("f", "x"));
    cluster.kubectl(&["delete", "--raw", collection]).ok();
    gone(&cluster, "cm/f").await;
}

#[tokio::test]
async fn objects_with_finalizers_are_deleted_after_the_last_one() {
    let cluster = Cluster::start().await;
    let finalizers = "finalizers: ['example.org/a', 'example.org/b'], name: held";
    cluster.apply(&config_map("held", "x").replace("name: held", finalizers));
    let mut delete = cluster.follow(&["delete", "cm", "held"]);
    delete.line("deleted").await;
    let held = cluster.get("cm/held");
    assert!(held["metadata"]["deletionTimestamp"].is_string(), "{held}");
    assert!(delete.runs());
    let first = r#"{"metadata":{"$deleteFromPrimitiveList/finalizers":["example.org/a"]}}"#;
    cluster.kubectl(&["patch", "cm", "held", "-p", first]).ok();
    assert_eq!(cluster.get("cm/held")["metadata"]["finalizers"], json!(["example.org/b"]));
    cluster
        .kubectl(&["patch", "cm", "held", "--type=merge", "-p", r#"{"metadata":{"finalizers":null}}"#])
        .ok();
    delete.finish().ok();
    assert!(!cluster.has("cm/held"));
}

/// Creates an owner with two dependents. One blocks its deletion and owns another object.
fn family(cluster: &Cluster) {
    cluster.apply(&config_map("owner", "x"));
    let owned = |name: &str, owner: &str| {
        let uid = cluster.get(&format!("cm/{owner}"))["metadata"]["uid"].clone();
        let reference = json!({
            "apiVersion": "v1", "kind": "ConfigMap", "name": owner, "uid": uid, "blockOwnerDeletion": true,
        });
        let metadata = json!({"name": name, "namespace": "default", "ownerReferences": [reference]});
        cluster.apply(&json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata}).to_string());
    };
    owned("child", "owner");
    owned("sibling", "owner");
    owned("grandchild", "child");
}

#[tokio::test]
async fn background_deletion_collects_dependents_afterwards() {
    let cluster = Cluster::start().await;
    family(&cluster);
    cluster.kubectl(&["delete", "cm", "owner", "--cascade=background"]).ok();
    assert!(!cluster.has("cm/owner"));
    for object in ["cm/child", "cm/sibling", "cm/grandchild"] {
        gone(&cluster, object).await;
    }
}

#[tokio::test]
async fn foreground_deletion_waits_for_the_dependents() {
    let cluster = Cluster::start().await;
    family(&cluster);
    let hold = r#"{"metadata":{"finalizers":["example.org/hold"]}}"#;
    cluster.kubectl(&["patch", "cm", "child", "--type=merge", "-p", hold]).ok();
    let mut delete = cluster.follow(&["delete", "cm", "owner", "--cascade=foreground"]);
    gone(&cluster, "cm/sibling").await;
    let owner = cluster.get("cm/owner");
    assert_eq!(owner["metadata"]["finalizers"], json!(["foregroundDeletion"]), "{owner}");
    assert!(delete.runs());
    cluster
        .kubectl(&["patch", "cm", "child", "--type=merge", "-p", r#"{"metadata":{"finalizers":null}}"#])
        .ok();
    delete.finish().ok();
    for object in ["cm/owner", "cm/child"] {
        assert!(!cluster.has(object), "{object} is still there");
    }
    gone(&cluster, "cm/grandchild").await;
}

#[tokio::test]
async fn orphaning_deletion_leaves_dependents_without_an_owner() {
    let cluster = Cluster::start().await;
    family(&cluster);
    cluster.kubectl(&["delete", "cm", "owner", "--cascade=orphan"]).ok();
    assert!(!cluster.has("cm/owner"));
    for object in ["cm/child", "cm/sibling"] {
        let orphan = cluster.get(object);
        assert!(orphan["metadata"]["ownerReferences"].is_null(), "{orphan}");
    }
    assert!(cluster.get("cm/grandchild")["metadata"]["ownerReferences"].is_array());
}

#[tokio::test]
async fn namespace_deletion_deletes_everything_in_it() {
    let cluster = Cluster::start().await;
    cluster.kubectl(&["create", "namespace", "plant"]).ok();
    cluster.kubectl(&["create", "configmap", "a", "-n", "plant"]).ok();
    cluster.kubectl(&["create", "secret", "generic", "b", "-n", "plant"]).ok();
    cluster.kubectl(&["delete", "namespace", "plant"]).shows(&["namespace \"plant\" deleted"]);
    assert!(!cluster.has("namespace/plant"));
    assert_eq!(cluster.kubectl(&["get", "cm,secrets", "-n", "plant", "-o", "name"]).ok(), "");
    // The next object creates the namespace again, with no other contents.
    cluster.kubectl(&["create", "configmap", "late", "-n", "plant"]).ok();
    assert_eq!(cluster.kubectl(&["get", "cm,secrets", "-n", "plant", "-o", "name"]).ok(), "configmap/late\n");
}

#[tokio::test]
async fn diff_shows_what_apply_would_change() {
    let cluster = Cluster::start().await;
    let file = cluster.file("settings.yaml", SETTINGS);
    let new = cluster.kubectl(&["diff", "-f", &file]);
    assert!(new.code == Some(1) && new.stdout.contains("+  mode: fast"), "{new}");
    assert!(!cluster.has("cm/settings"));
    cluster.kubectl(&["apply", "-f", &file]).ok();
    cluster.kubectl(&["diff", "-f", &file]).says("");
    cluster.file("settings.yaml", &SETTINGS.replace("fast", "slow"));
    let changed = cluster.kubectl(&["diff", "-f", &file]);
    assert!(changed.code == Some(1), "{changed}");
    assert!(changed.stdout.contains("-  mode: fast\n+  mode: slow"), "{changed}");
    assert_eq!(cluster.get("cm/settings")["data"]["mode"], "fast");
    let server_side = cluster.kubectl(&["diff", "--server-side", "--force-conflicts", "-f", &file]);
    assert!(server_side.code == Some(1) && server_side.stdout.contains("+  mode: slow"), "{server_side}");
}

#[tokio::test]
async fn server_side_apply_assigns_each_field_an_owner() {
    let cluster = Cluster::start().await;
    let apply = |manager: &str, text: &str, more: &[&str]| {
        let manager = format!("--field-manager={manager}");
        let arguments = [&["apply", "--server-side", &manager, "-f", "-"], more].concat();
        cluster.client.feed(&arguments, text)
    };
    apply("one", SETTINGS, &[]).says("configmap/settings serverside-applied");
    // The same value is shared, another one is a conflict.
    apply("two", &config_map("settings", "fast"), &[]).ok();
    let conflict = apply("two", &config_map("settings", "slow"), &[]).fails();
    assert!(conflict.contains("Apply failed with 1 conflict: conflict with \"one\""), "{conflict}");
    assert!(conflict.contains(".data.mode"), "{conflict}");
    assert_eq!(cluster.get("cm/settings")["data"]["mode"], "fast");
    apply("two", &config_map("settings", "slow"), &["--force-conflicts"]).ok();
    assert_eq!(cluster.get("cm/settings")["data"], json!({"mode": "slow", "level": "3"}));

    let managed = ["get", "cm", "settings", "-o", "json", "--show-managed-fields"];
    let fields = cluster.kubectl(&managed).json()["metadata"]["managedFields"].take();
    let of = |manager: &str| {
        let entry = fields.as_array().unwrap().iter().find(|entry| entry["manager"] == manager).unwrap();
        assert_eq!(entry["operation"], "Apply");
        entry["fieldsV1"]["f:data"].clone()
    };
    assert_eq!(of("one"), json!({"f:level": {}}));
    assert_eq!(of("two"), json!({"f:mode": {}}));
    // A field that its only owner no longer applies goes.
    apply("one", &SETTINGS.replace("mode: fast, level: '3'", "other: '1'"), &[]).ok();
    assert_eq!(cluster.get("cm/settings")["data"], json!({"mode": "slow", "other": "1"}));

    // From the client's side to the server's: kubectl moves the ownership over.
    cluster.apply(&config_map("moved", "old"));
    cluster.client.feed(&["apply", "--server-side", "-f", "-"], &config_map("moved", "new")).ok();
    assert_eq!(cluster.get("cm/moved")["data"]["mode"], "new");
}

#[tokio::test]
async fn server_side_apply_after_client_side_keeps_the_status() {
    let cluster = Cluster::start().await;
    let apply = |text: &str| cluster.client.feed(&["apply", "--server-side", "-f", "-"], text).ok();
    let namespace = |label: &str| {
        format!("{{apiVersion: v1, kind: Namespace, metadata: {{name: line-4, labels: {{a: {label}}}}}}}")
    };
    cluster.apply(&namespace("one"));
    apply(&namespace("two"));
    let found = cluster.get("ns/line-4");
    assert_eq!(
        (&found["metadata"]["labels"]["a"], &found["status"]["phase"]),
        (&json!("two"), &json!("Active"))
    );

    let pod = "{apiVersion: v1, kind: Pod, metadata: {name: p}, spec: {containers: [{name: c, image: i}]}}";
    cluster.apply(pod);
    let running = r#"{"status":{"phase":"Running"}}"#;
    cluster.kubectl(&["patch", "pod", "p", "--subresource=status", "--type=merge", "-p", running]).ok();
    apply(pod);
    assert_eq!(cluster.get("pod/p")["status"]["phase"], "Running");

    // Defaults fall into a list that is replaced as a whole.
    let policy = "{apiVersion: networking.k8s.io/v1, kind: NetworkPolicy, metadata: {name: from-inside}, \
                  spec: {podSelector: {}, ingress: [{ports: [{port: 80}]}]}}";
    apply(policy);
    let version = || cluster.get("networkpolicy/from-inside")["metadata"]["resourceVersion"].clone();
    let before = version();
    apply(policy);
    assert_eq!(version(), before);
}

#[tokio::test]
async fn server_side_dry_run_changes_nothing() {
    let cluster = Cluster::start().await;
    let dry = |arguments: &[&str]| cluster.kubectl(&[arguments, &["--dry-run=server"]].concat());
    dry(&["create", "configmap", "settings"]).says("configmap/settings created (server dry run)");
    assert!(!cluster.has("cm/settings"));
    cluster.apply(SETTINGS);
    let before = cluster.get("cm/settings");
    let file = cluster.file("new.yaml", &config_map("settings", "slow"));
    dry(&["create", "configmap", "settings"]).fails_with("already exists");
    dry(&["apply", "-f", &file]).says("configmap/settings configured (server dry run)");
    dry(&["apply", "--server-side", "--force-conflicts", "-f", &file]).ok();
    let shown = dry(&["patch", "cm", "settings", "-p", r#"{"data":{"a":"b"}}"#, "-o", "json"]).json();
    assert_eq!(shown["data"]["a"], "b");
    dry(&["replace", "-f", &file]).ok();
    dry(&["label", "cm", "settings", "a=b"]).ok();
    dry(&["delete", "cm", "settings"]).ok();
    assert_eq!(cluster.get("cm/settings"), before);
}

#[tokio::test]
async fn unknown_fields_are_refused_warned_of_or_dropped() {
    let cluster = Cluster::start().await;
    let typo = cluster.file("typo.yaml", &DEPLOYMENT.replace("replicas: 2", "replica: 2"));
    let refused = cluster.kubectl(&["apply", "-f", &typo]).fails_with("Error from server (BadRequest)");
    assert!(refused.contains("strict decoding error: unknown field \"spec.replica\""), "{refused}");
    cluster.kubectl(&["create", "-f", &typo]).fails_with("unknown field \"spec.replica\"");
    assert!(!cluster.has("deployment/web"));
    let warned = cluster.kubectl(&["create", "-f", &typo, "--validate=warn"]);
    assert!(warned.stderr.contains("Warning: unknown field \"spec.replica\""), "{warned}");
    warned.ok();
    let spec = cluster.get("deployment/web")["spec"].take();
    assert_eq!((&spec["replica"], &spec["replicas"]), (&Value::Null, &json!(1)));
    let ignored = cluster.kubectl(&["replace", "-f", &typo, "--validate=ignore"]);
    assert!(ignored.stderr.is_empty(), "{ignored}");
    ignored.ok();

    let wrong = cluster.file("wrong.yaml", &DEPLOYMENT.replace("replicas: 2", "replicas: many"));
    cluster.kubectl(&["apply", "-f", &wrong]).fails();
    let missing =
        cluster.file("missing.yaml", &DEPLOYMENT.replace("      - name: logs\n", "      - args: []\n"));
    cluster.kubectl(&["create", "-f", &missing]).fails_with("is invalid");
}

const WIDGETS: &str = "
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: widgets.example.com}
spec:
  group: example.com
  scope: Namespaced
  names: {plural: widgets, singular: widget, kind: Widget, shortNames: [wd], categories: [things]}
  versions:
  - name: v1
    served: true
    storage: true
    subresources: {status: {}}
    additionalPrinterColumns:
    - {name: Size, type: integer, jsonPath: .spec.size}
    - {name: Color, type: string, jsonPath: .spec.color}
    - {name: Phase, type: string, jsonPath: .status.phase, priority: 1}
    schema:
      openAPIV3Schema:
        type: object
        required: [spec]
        properties:
          spec:
            type: object
            description: What a widget is like.
            required: [size]
            properties:
              size: {type: integer, minimum: 1, maximum: 9}
              color: {type: string, default: blue, enum: [blue, red]}
              parts:
                type: array
                x-kubernetes-list-type: map
                x-kubernetes-list-map-keys: [name]
                items: {type: object, required: [name], properties: {name: {type: string}, count: {type: integer}}}
          status: {type: object, properties: {phase: {type: string}}}
";

/// A Widget with a size and more fields of the spec.
fn widget(name: &str, size: i32, more: &str) -> String {
    format!(
        "{{apiVersion: example.com/v1, kind: Widget, metadata: {{name: {name}, namespace: default}}, \
         spec: {{size: {size}{more}}}}}\n"
    )
}

async fn with_widgets() -> Cluster {
    let cluster = Cluster::start().await;
    cluster.apply(WIDGETS);
    let established = ["wait", "--for=condition=Established", "crd/widgets.example.com", "--timeout=30s"];
    cluster.kubectl(&established).ok();
    cluster
}

#[tokio::test]
async fn custom_resources_are_served_as_defined() {
    let cluster = with_widgets().await;
    let rows = cluster.kubectl(&["api-resources", "--api-group=example.com"]).rows();
    assert_eq!(rows[1], ["widgets", "wd", "example.com/v1", "true", "Widget"]);
    assert_eq!(cluster.apply(&widget("a", 3, "")), "widget.example.com/a created\n");
    cluster.apply(&widget("b", 4, ", color: red"));
    assert_eq!(cluster.get("widget/a")["spec"], json!({"size": 3, "color": "blue"}));
    assert_eq!(cluster.get("widget/a")["metadata"]["generation"], 1);

    let rows = cluster.kubectl(&["get", "wd"]).rows();
    assert_eq!(rows[0], ["NAME", "SIZE", "COLOR"]);
    assert_eq!(rows[1..], [["a", "3", "blue"], ["b", "4", "red"]]);
    let wide = cluster.kubectl(&["get", "widgets", "-o", "wide"]).rows();
    assert_eq!(wide[0], ["NAME", "SIZE", "COLOR", "PHASE"]);
    assert_eq!(
        cluster.kubectl(&["get", "things", "-o", "name"]).lines(),
        ["widget.example.com/a", "widget.example.com/b"]
    );
    cluster.kubectl(&["explain", "widget"]).shows(&["DESCRIPTION:", "apiVersion", "APIVersion defines"]);
    cluster.kubectl(&["explain", "widget.spec"]).shows(&["What a widget is like.", "size", "-required-"]);
    cluster.kubectl(&["explain", "widget.metadata"]).shows(&[
        "Standard object's metadata",
        "creationTimestamp",
        "CreationTimestamp is a timestamp",
    ]);
    cluster.kubectl(&["explain", "widget.spec.nope"]).fails_with("field \"nope\" does not exist");
    cluster.kubectl(&["describe", "widget", "a"]).shows(&["API Version:  example.com/v1", "Size:   3"]);
    let rows = cluster.kubectl(&["get", "crds"]).rows();
    assert_eq!((&*rows[0][0], &*rows[1][0]), ("NAME", "widgets.example.com"));
    cluster.kubectl(&["delete", "widget", "a"]).shows(&["widget.example.com \"a\" deleted"]);
}

#[tokio::test]
async fn custom_resources_are_validated_and_pruned() {
    let cluster = with_widgets().await;
    let apply =
        |text: &str, more: &[&str]| cluster.client.feed(&[&["apply", "-f", "-"], more].concat(), text);
    let small = apply(&widget("a", 0, ""), &[]).fails_with("The Widget \"a\" is invalid");
    let limit = "spec.size: Invalid value: 0: must be greater than or equal to 1";
    assert!(small.contains(limit), "{small}");
    let color = apply(&widget("a", 1, ", color: green"), &[]).fails_with("The Widget \"a\" is invalid");
    assert!(color.contains("spec.color: Unsupported value: \"green\""), "{color}");
    let text = widget("a", 1, "").replace("size: 1", "color: red");
    apply(&text, &[]).fails_with("spec.size: Required value");
    let typo = apply(&widget("a", 1, ", colour: red"), &[]).fails();
    assert!(typo.contains("unknown field \"spec.colour\""), "{typo}");
    apply(&widget("a", 1, ", colour: red"), &["--validate=ignore"]).ok();
    let spec = cluster.get("widget/a")["spec"].take();
    assert_eq!(spec, json!({"size": 1, "color": "blue"}));

    let strategic = cluster.kubectl(&["patch", "widget", "a", "--type=strategic", "-p", "{}"]).fails();
    assert!(strategic.contains("strategic-merge-patch+json is not supported"), "{strategic}");
    let merge = ["patch", "widget", "a", "--type=merge", "-p", r#"{"spec":{"size":10}}"#];
    cluster.kubectl(&merge).fails_with("must be less than or equal to 9");
    assert_eq!(cluster.apply(&widget("a", 2, "")), "widget.example.com/a configured\n");
}

#[tokio::test]
async fn custom_resources_have_a_status_subresource() {
    let cluster = with_widgets().await;
    cluster.apply(&widget("a", 1, ""));
    let patch = |more: &[&str], text: &str| {
        cluster.kubectl(&[&["patch", "widget", "a", "--type=merge", "-p", text], more].concat())
    };
    patch(&[], r#"{"status":{"phase":"Ignored"}}"#).ok();
    assert!(cluster.get("widget/a")["status"]["phase"].is_null());
    let status = r#"{"status":{"phase":"Ready"},"spec":{"size":5},"metadata":{"labels":{"a":"b"},"annotations":{"c":"d"}}}"#;
    patch(&["--subresource=status"], status).says("widget.example.com/a patched");
    let widget = cluster.get("widget/a");
    let seen = (&widget["status"]["phase"], &widget["spec"]["size"], &widget["metadata"]["generation"]);
    assert_eq!(seen, (&json!("Ready"), &json!(1), &json!(1)));
    // A status write to a custom kind ignores all metadata.
    assert_eq!(
        (&widget["metadata"]["labels"], &widget["metadata"]["annotations"]["c"]),
        (&Value::Null, &Value::Null)
    );
    let read = ["get", "widget", "a", "--subresource=status", "-o", "jsonpath={.status.phase}"];
    cluster.kubectl(&read).says("Ready");
    patch(&[], r#"{"spec":{"size":6}}"#).ok();
    let widget = cluster.get("widget/a");
    assert_eq!((&widget["metadata"]["generation"], &widget["status"]["phase"]), (&json!(2), &json!("Ready")));
}

#[tokio::test]
async fn custom_resource_lists_are_merged_by_their_keys() {
    let cluster = with_widgets().await;
    let apply = |manager: &str, parts: &str| {
        let manager = format!("--field-manager={manager}");
        let text = widget("a", 1, &format!(", parts: [{parts}]"));
        cluster.client.feed(&["apply", "--server-side", &manager, "-f", "-"], &text)
    };
    apply("one", "{name: x, count: 1}").ok();
    apply("two", "{name: z, count: 2}").ok();
    let parts = cluster.get("widget/a")["spec"]["parts"].take();
    assert_eq!(parts, json!([{"name": "x", "count": 1}, {"name": "z", "count": 2}]));
    let conflict = apply("two", "{name: x, count: 3}").fails();
    assert!(conflict.contains(".spec.parts[name=\"x\"].count"), "{conflict}");
    apply("one", "").ok();
    assert_eq!(cluster.get("widget/a")["spec"]["parts"], json!([{"name": "z", "count": 2}]));
}

/// Waits until a stricter schema is in force.
async fn until_widgets_are_refused(cluster: &Cluster) {
    eventually("the stricter schema is in force", PATIENCE, async || {
        let refused = cluster.client.feed(&["create", "--dry-run=server", "-f", "-"], &widget("b", 1, ""));
        (refused.code != Some(0)).then_some(())
    })
    .await;
}

#[tokio::test]
async fn stricter_schemas_allow_unchanged_fields_and_deletion() {
    let cluster = with_widgets().await;
    cluster.apply(&widget("a", 1, ""));
    cluster.apply(&WIDGETS.replace("required: [size]", "required: [size, weight]"));
    let patch = |patch: &str| cluster.kubectl(&["patch", "widget", "a", "--type=merge", "-p", patch]);
    until_widgets_are_refused(&cluster).await;
    patch(r#"{"metadata":{"finalizers":["example.com/hold"]},"spec":{"size":2}}"#).ok();
    cluster.kubectl(&["delete", "widget", "a", "--wait=false"]).ok();
    patch(r#"{"spec":{"size":"large"}}"#).fails_with("spec.size");
    patch(r#"{"metadata":{"finalizers":null}}"#).ok();
    assert!(!cluster.has("widget/a"));
}

#[tokio::test]
async fn stricter_schemas_block_no_namespace_or_definition_deletion() {
    let cluster = with_widgets().await;
    let held =
        widget("a", 1, "").replace("namespace: default", "namespace: plant, finalizers: [example.com/hold]");
    cluster.kubectl(&["create", "namespace", "plant"]).ok();
    cluster.apply(&held);
    cluster.apply(&WIDGETS.replace("required: [size]", "required: [size, weight]"));
    until_widgets_are_refused(&cluster).await;
    let both = ["namespace/plant", "crd/widgets.example.com"];
    for object in both {
        cluster.kubectl(&["delete", object, "--wait=false"]).ok();
    }
    let read = ["get", "widget", "a", "-n", "plant", "-o", "json"];
    eventually("what is in them is to go", PATIENCE, async || {
        cluster.kubectl(&read).json()["metadata"]["deletionTimestamp"].is_string().then_some(())
    })
    .await;
    for object in both {
        assert!(cluster.get(object)["metadata"]["deletionTimestamp"].is_string(), "{object} waits for it");
    }
    let free = r#"{"metadata":{"finalizers":null}}"#;
    cluster.kubectl(&["patch", "widget", "a", "-n", "plant", "--type=merge", "-p", free]).ok();
    for object in both {
        gone(&cluster, object).await;
    }
}

#[tokio::test]
async fn stored_objects_are_read_by_the_current_schema() {
    let cluster = with_widgets().await;
    let definition = cluster.get("crd/widgets.example.com");
    let before = definition["metadata"]["resourceVersion"].as_str().unwrap();
    cluster.apply(&widget("a", 3, ", color: red"));
    let stored = cluster.get("widget/a");
    let color = "color: {type: string, default: blue, enum: [blue, red]}";
    assert!(WIDGETS.contains(color));
    cluster.apply(&WIDGETS.replace(color, "weight: {type: integer, default: 7}"));
    let read = eventually("the new schema is in force", PATIENCE, async || {
        let read = cluster.get("widget/a");
        (read["spec"]["weight"] == 7).then_some(read)
    })
    .await;
    let mut expected = stored.clone();
    expected["spec"] = json!({"size": 3, "weight": 7});
    assert_eq!(read, expected, "in the version that it had");
    let items = cluster.kubectl(&["get", "widgets", "-o", "json"]).json()["items"].take();
    assert_eq!(items, json!([expected]));
    assert!(!cluster.kubectl(&["get", "widgets"]).ok().contains("red"));
    // A watch from the current state and one from history.
    for from in ["".to_owned(), format!("&resourceVersion={before}")] {
        let path = format!("/apis/example.com/v1/widgets?watch=true{from}");
        let line = cluster.follow(&["get", "--raw", &path]).line("ADDED").await;
        let event: Value = serde_json::from_str(&line).unwrap();
        assert_eq!(event["object"]["spec"], expected["spec"], "{path}");
    }
    // The stored objects were not rewritten.
    cluster.apply(WIDGETS);
    eventually("the old schema is in force", PATIENCE, async || {
        (cluster.get("widget/a") == stored).then_some(())
    })
    .await;
}

#[tokio::test]
async fn watches_of_a_custom_kind_end_when_its_definition_changes() {
    let cluster = with_widgets().await;
    cluster.apply(&widget("a", 1, ""));
    let watch = async || {
        let watch = cluster.follow(&["get", "widgets", "-w", "--output-watch-events"]);
        watch.line("ADDED").await;
        watch
    };
    // The cloud side checks once per second; the rest is slack for a busy machine.
    let ends = async |mut watch: Background| {
        eventually("the watch ends", Duration::from_secs(5), async || (!watch.runs()).then_some(())).await;
        watch.lines()
    };
    let mut other = cluster.follow(&["get", "ns", "-w"]);
    other.line("default").await;
    let size = "{type: integer, minimum: 1, maximum: 9}";
    for (before, after) in [("What a widget is like.", "What it is like."), (size, "{type: string}")] {
        assert!(WIDGETS.contains(before));
        let changed = watch().await;
        cluster.apply(&WIDGETS.replace(before, after));
        ends(changed).await;
    }
    let removed = watch().await;
    cluster.kubectl(&["delete", "crd", "widgets.example.com"]).ok();
    assert!(ends(removed).await.last().unwrap().contains("DELETED"));
    assert!(other.runs(), "it is of another kind");
}

#[tokio::test]
async fn definitions_are_deleted_with_their_objects() {
    let cluster = with_widgets().await;
    cluster.apply(&widget("a", 1, ""));
    let watch = cluster.follow(&["get", "widgets", "-w", "--output-watch-events"]);
    watch.line("ADDED").await;
    cluster.kubectl(&["delete", "crd", "widgets.example.com"]).ok();
    watch.line("DELETED").await;
    // The message depends on kubectl's discovery cache.
    let gone = cluster.kubectl(&["get", "widgets"]).fails();
    assert!(gone.contains("doesn't have a resource type") || gone.contains("could not find"), "{gone}");
    cluster.apply(WIDGETS);
    eventually("the kind is served again, without objects", PATIENCE, async || {
        let run = cluster.kubectl(&["get", "widgets", "-o", "name"]);
        (run.code == Some(0) && run.stdout.is_empty()).then_some(())
    })
    .await;
}

#[tokio::test]
async fn definitions_can_be_recreated_with_another_scope() {
    let cluster = with_widgets().await;
    cluster.apply(&widget("a", 1, ""));
    cluster.kubectl(&["delete", "crd", "widgets.example.com"]).ok();
    cluster.apply(&WIDGETS.replace("scope: Namespaced", "scope: Cluster"));
    eventually("the kind is served without namespaces", PATIENCE, async || {
        // This refreshes kubectl's discovery cache.
        let rows = cluster.kubectl(&["api-resources", "--api-group=example.com"]).rows();
        (rows.get(1)? == &["widgets", "wd", "example.com/v1", "false", "Widget"]).then_some(())
    })
    .await;
    cluster.apply(&widget("a", 2, "").replace(", namespace: default", ""));
    let read = cluster.get("widget/a");
    assert_eq!((&read["spec"]["size"], &read["metadata"]["namespace"]), (&json!(2), &json!(null)));
}
