//! kubectl on a node: the agent's local API through the kubeconfigs that the agent writes.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

use edgesync_testkit::kubectl;
use edgesync_testkit::site;
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use edgesync_admin::agent::{AgentStatus, ListenStatus};
use kubectl::{Cluster, Edge, Kubectl};
use serde_json::{Value, json};
use site::{Agent, PATIENCE, Site, Snapshot, eventually};

const NODE: &str = "edge-1";

const OBJECTS: &str = "
apiVersion: v1
kind: ConfigMap
metadata: {name: settings, namespace: default, labels: {app: web, tier: front}}
data: {mode: fast, level: '3'}
---
apiVersion: v1
kind: ConfigMap
metadata: {name: other, namespace: default, labels: {app: db}}
data: {mode: slow}
---
apiVersion: v1
kind: ConfigMap
metadata: {name: far, namespace: plant}
---
apiVersion: v1
kind: Secret
metadata: {name: credentials, namespace: default}
type: Opaque
stringData: {password: hunter2}
---
apiVersion: v1
kind: Pod
metadata: {name: web, namespace: default, labels: {app: web}}
spec:
  nodeName: edge-1
  containers:
  - {name: nginx, image: 'nginx:1.27'}
";
/// The number of these objects.
const COUNT: u64 = 5;

/// The hint of a refused write to an object from the cloud.
const HINT: &str = "change it on the cloud side";

/// Starts a cluster and a node that holds [`OBJECTS`].
async fn in_sync() -> (Edge, Cluster) {
    let cluster = Cluster::start().await;
    let edge = Edge::start(&cluster, NODE).await;
    cluster.apply(OBJECTS);
    cluster.cloud.in_sync(NODE, COUNT).await;
    (edge, cluster)
}

/// Returns the output of the agent's command line.
fn edgesync(agent: &Agent, arguments: &[&str]) -> String {
    let mut command = Command::new(edgesync_testkit::programs::device());
    let output = command.args(arguments).arg("--socket").arg(&agent.socket).output().unwrap();
    assert!(output.status.success(), "{arguments:?}: {output:?}");
    String::from_utf8(output.stdout).unwrap()
}

fn mode(path: &Path) -> u32 {
    std::fs::metadata(path).unwrap().permissions().mode() & 0o777
}

fn lease(name: &str, holder: &str) -> Value {
    json!({"apiVersion": "coordination.k8s.io/v1", "kind": "Lease",
        "metadata": {"name": name, "namespace": "default"},
        "spec": {"holderIdentity": holder, "leaseDurationSeconds": 15}})
}

/// An Event about the Pod `web`.
fn event(uid: &Value, api_version: &str, name: &str, reason: &str, note: &str) -> Value {
    let object =
        json!({"apiVersion": "v1", "kind": "Pod", "name": "web", "namespace": "default", "uid": uid});
    let metadata = json!({"name": name, "namespace": "default"});
    if api_version == "v1" {
        json!({"apiVersion": api_version, "kind": "Event", "metadata": metadata, "type": "Normal",
            "reason": reason, "message": note, "involvedObject": object, "count": 1,
            "source": {"component": "test"}, "firstTimestamp": "2026-01-01T00:00:00Z",
            "lastTimestamp": "2026-01-01T00:10:00Z"})
    } else {
        json!({"apiVersion": api_version, "kind": "Event", "metadata": metadata, "type": "Warning",
            "reason": reason, "note": note, "regarding": object, "action": "Test",
            "reportingController": "test", "reportingInstance": "test-1",
            "eventTime": "2026-01-01T00:20:00.000000Z"})
    }
}

#[tokio::test]
async fn watch_on_the_node_shows_every_change() {
    let cluster = Cluster::start().await;
    let edge = Edge::start(&cluster, NODE).await;
    let tables = edge.local.start(&["get", "configmaps", "-A", "-w"], "");
    let changes = edge.local.start(&["get", "configmaps", "-A", "-w", "--output-watch-events"], "");
    let chosen =
        edge.local.start(&["get", "cm", "-l", "app=web", "-w", "-o", "jsonpath={.data.mode}{'\\n'}"], "");
    let records = edge.local.start(&["get", "objectsyncs", "-A", "-w", "-o", "name"], "");
    cluster.apply(OBJECTS);
    changes.lines_with(&["ADDED"]).await;
    chosen.line("fast").await;
    let uid = cluster.get("configmap/settings")["metadata"]["uid"].as_str().unwrap().to_owned();
    records.line(&format!("objectsync.reliablesyncs.kubeedge.io/edge-1.{uid}")).await;

    cluster.kubectl(&["patch", "cm", "settings", "-p", r#"{"data":{"mode":"quiet"}}"#]).ok();
    chosen.line("quiet").await;
    cluster.kubectl(&["delete", "cm", "settings"]).ok();
    changes.line("DELETED").await;
    let about = |line: &String| line.contains("settings");
    let seen: Vec<String> = changes.lines().into_iter().filter(about).collect();
    let words: Vec<&str> = seen.iter().filter_map(|line| line.split_whitespace().next()).collect();
    assert_eq!(words, ["ADDED", "MODIFIED", "DELETED"]);
    let rows = tables.lines_with(&["NAMESPACE", "settings", "settings"]).await;
    assert_eq!(rows[1].split_whitespace().take(3).collect::<Vec<_>>(), ["default", "settings", "2"]);
}

#[tokio::test]
async fn node_api_answers_offline_and_after_a_restart() {
    let (mut edge, mut cluster) = in_sync().await;
    let online = edge.get("configmap/settings");
    assert!(cluster.cloud.process.terminate(PATIENCE).await.success());
    edge.agent.until("the cloud is gone", |status| !status.sync.in_sync).await;
    assert_eq!(edge.get("configmap/settings"), online);
    assert_eq!(edge.names(&["cm", "-A"]), ["other", "settings", "far"]);
    edge.stop().await;
    edge.kubectl(&["get", "cm"]).fails();

    edge.run().await;
    assert_eq!(edge.get("configmap/settings"), online, "the version is the same too");
    let rows = edge.kubectl(&["get", "cm", "-A"]).rows();
    assert_eq!(rows[0], ["NAMESPACE", "NAME", "DATA", "AGE"]);
    assert_eq!(rows[2][..3], ["default", "settings", "2"]);
    edge.kubectl(&["describe", "pod", "web"]).shows(&["nginx:1.27", "edge-1"]);
    edge.feed(&["create"], &lease("offline", "me")).says("lease.coordination.k8s.io/offline created");

    // A watch from before continues once the cloud is back.
    let watch = edge.local.start(&["get", "cm", "-w", "-o", "name"], "");
    watch.lines_with(&["other", "settings"]).await;
    cluster.cloud.run().await;
    cluster.kubectl(&["create", "configmap", "late"]).ok();
    watch.line("configmap/late").await;
}

#[tokio::test]
async fn cloud_objects_are_read_only_on_the_node() {
    let (edge, cluster) = in_sync().await;
    let before = edge.get("configmap/settings");
    let mut other = before.clone();
    other["data"]["mode"] = json!("mine");
    let map = |name: &str| json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name, "namespace": "default"}});
    let patch = ["patch", "cm", "settings", "-p", r#"{"data":{"mode":"mine"}}"#];
    for run in [
        edge.feed(&["create"], &map("mine")),
        edge.feed(&["create", "--dry-run=server"], &map("mine")),
        edge.feed(&["apply"], &map("mine")),
        edge.feed(&["apply"], &other),
        edge.feed(&["apply", "--server-side"], &other),
        edge.feed(&["replace"], &other),
        edge.kubectl(&patch),
        edge.kubectl(&[&patch[..], &["--type=merge"]].concat()),
        edge.kubectl(&["label", "cm", "settings", "mine=1"]),
        edge.kubectl(&["annotate", "pod", "web", "mine=1"]),
        edge.kubectl(&["delete", "cm", "settings"]),
        edge.kubectl(&["delete", "pods", "--all"]),
        edge.kubectl(&["delete", "--raw", "/api/v1/namespaces/default/configmaps"]),
        edge.secrets.run(&["delete", "secret", "credentials"]),
    ] {
        let message = run.fails_with("(Forbidden)");
        assert!(message.contains(HINT), "{message}");
    }
    let record = edge.names(&["objectsyncs"]).remove(0);
    let message = edge.kubectl(&["delete", "objectsync", &record]).fails_with("(Forbidden)");
    assert!(message.contains("record of what this node holds"), "{message}");
    edge.kubectl(&["delete", "cm", "nope"]).fails_with("(Forbidden)");
    edge.kubectl(&["diff", "-f", "/dev/null"]);

    assert_eq!(edge.get("configmap/settings"), before);
    assert_eq!(cluster.get("configmap/settings")["data"], before["data"]);
}

#[tokio::test]
async fn secrets_need_the_kubeconfig_for_secrets() {
    let (edge, _cluster) = in_sync().await;
    for arguments in [
        &["get", "secrets", "-A"][..],
        &["get", "secret", "credentials", "-o", "yaml"],
        &["get", "secret", "nope"],
        &["get", "secrets", "-w"],
        &["describe", "secret", "credentials"],
        &["get", "--raw", "/api/v1/namespaces/default/secrets/credentials"],
    ] {
        let message = edge.kubectl(arguments).fails_with("forbidden");
        assert!(message.contains("kubeconfig-secrets"), "{message}");
    }
    let text = edge.kubectl(&["get", "cm,pods,events,objectsyncs", "-A", "-o", "yaml"]).ok();
    assert!(!text.contains("aHVudGVyMg"), "{text}");

    let password = ["get", "secret", "credentials", "-o", "jsonpath={.data.password}"];
    edge.secrets.run(&password).says("aHVudGVyMg==");
    let rows = edge.secrets.run(&["get", "secrets"]).rows();
    assert_eq!(rows[1][..3], ["credentials", "Opaque", "1"]);
    edge.secrets.run(&["describe", "secret", "credentials"]).shows(&["password:  7 bytes"]);
    edge.secrets.run(&["get", "cm", "settings", "-o", "name"]).says("configmap/settings");
}

#[tokio::test]
async fn clients_without_a_token_of_the_node_are_refused() {
    let (edge, cluster) = in_sync().await;
    let address = edge.opened().await;
    for (name, url) in
        [("none", format!("http://{address}")), ("wrong", format!("http://edgesync:wrong@{address}"))]
    {
        let stranger = Kubectl::to_server(&cluster.site, name, &url);
        for arguments in [&["get", "cm"][..], &["api-resources"], &["get", "--raw", "/edgesync/v1/status"]] {
            let run = stranger.run(arguments);
            assert!(run.code == Some(1) && !run.stdout.contains("settings"), "{run}");
            let refused = ["Unauthorized", "provide credentials", "must be logged in"];
            assert!(refused.iter().any(|word| run.stderr.contains(word)), "{run}");
        }
        // The liveness probe needs no token.
        stranger.run(&["get", "--raw", "/livez"]).says("ok");
    }
    // The tokens persist: a copied kubeconfig stays valid as long as the address does.
    let token = |name: &str| std::fs::read_to_string(edge.agent.database.with_file_name(name)).unwrap();
    let url = format!("http://edgesync:{}@{address}", token("token").trim());
    Kubectl::to_server(&cluster.site, "copy", &url)
        .run(&["get", "cm", "settings", "-o", "name"])
        .says("configmap/settings");
}

#[tokio::test]
async fn token_files_are_group_readable_except_those_for_secrets() {
    let (mut edge, _cluster) = in_sync().await;
    let file = |edge: &Edge, name: &str| -> PathBuf { edge.agent.database.with_file_name(name) };
    let texts = |edge: &Edge| {
        ["kubeconfig", "kubeconfig-secrets", "token", "token-secrets", "api.pem"]
            .map(|name| std::fs::read_to_string(file(edge, name)).unwrap())
    };
    for (name, expected) in [
        ("kubeconfig", 0o640),
        ("token", 0o640),
        ("kubeconfig-secrets", 0o600),
        ("token-secrets", 0o600),
        ("api.pem", 0o600),
    ] {
        assert_eq!(mode(&file(&edge, name)), expected, "{name}");
    }
    let before = texts(&edge);
    // The server address that kubectl shows has no token in it.
    let shown = edge.kubectl(&["config", "view", "-o", "jsonpath={.clusters[0].cluster.server}"]).ok();
    assert!(shown.starts_with("https://127.") && !shown.contains('@'), "{shown}");
    edge.stop().await;
    edge.run().await;
    assert_eq!(texts(&edge), before);

    // The agent rewrites a missing or changed file, here with another address.
    edge.stop().await;
    std::fs::remove_file(file(&edge, "token-secrets")).unwrap();
    edge.agent.settings.text("api.listen", "127.0.0.1:0");
    edge.run().await;
    let after = texts(&edge);
    assert_eq!(after[2], before[2]);
    assert!(after[3] != before[3] && after[1].contains(after[3].trim()));
    edge.kubectl(&["get", "cm", "settings", "-o", "name"]).says("configmap/settings");
    edge.secrets.run(&["get", "secrets", "-o", "name"]).says("secret/credentials");
}

#[tokio::test]
async fn node_syncs_while_its_api_waits_for_a_taken_port() {
    let cluster = Cluster::start().await;
    let address = Site::address();
    let taken = TcpListener::bind(address).unwrap();
    let mut agent = Agent::new(&cluster.site, NODE, cluster.cloud.mqtt);
    agent.settings.text("api.listen", address);
    agent.run().await;
    let taken_address = address.to_string();
    let waits = |status: &AgentStatus| match &status.api {
        ListenStatus::Waiting { address, .. } => *address == taken_address,
        _ => false,
    };
    agent.until("the port is taken", waits).await;
    cluster.apply(OBJECTS);
    cluster.cloud.in_sync(NODE, COUNT).await;
    assert!(edgesync(&agent, &["get", "cm", "-A"]).contains("settings"));

    drop(taken);
    agent.until("its API answers over TCP", |status| matches!(status.api, ListenStatus::Open { .. })).await;
    let kubeconfig = agent.database.with_file_name("kubeconfig");
    let client = Kubectl::with_kubeconfig(&cluster.site, "local", &kubeconfig);
    client.run(&["get", "cm", "settings", "-o", "name"]).says("configmap/settings");
}

#[tokio::test]
async fn command_line_of_the_agent_uses_the_socket() {
    let cluster = Cluster::start().await;
    let agent = Agent::start_with(&cluster.site, NODE, cluster.cloud.mqtt, |settings| {
        settings.text("api.listen", "off");
    })
    .await;
    cluster.apply(OBJECTS);
    cluster.cloud.in_sync(NODE, COUNT).await;
    let table = edgesync(&agent, &["get", "configmaps", "-A"]);
    let rows: Vec<Vec<&str>> = table.lines().map(|line| line.split_whitespace().collect()).collect();
    assert_eq!(rows[0], ["NAMESPACE", "NAME", "DATA", "AGE"]);
    assert_eq!(rows[2][..3], ["default", "settings", "2"]);
    // The user of the agent reads Secrets without a token.
    assert!(edgesync(&agent, &["get", "secret", "credentials", "-o", "yaml"]).contains("aHVudGVyMg=="));
    assert_eq!(edgesync(&agent, &["get", "cm", "-l", "app=db", "-o", "name"]), "configmap/other\n");
    let version =
        cluster.get("configmap/settings")["metadata"]["resourceVersion"].as_str().unwrap().to_owned();
    let syncs = edgesync(&agent, &["syncs"]);
    assert!(syncs.lines().any(|line| line.contains("settings") && line.contains(&version)), "{syncs}");
    assert!(edgesync(&agent, &["status"]).contains(NODE));
    assert!(!agent.database.with_file_name("kubeconfig").exists(), "nobody could connect with one");
}

#[tokio::test]
async fn kubectl_output_on_a_node_equals_that_of_a_cluster() {
    let (edge, cluster) = in_sync().await;
    let rows = edge.kubectl(&["get", "objectsyncs", "-A"]).rows();
    let in_cloud = cluster.kubectl(&["get", "objectsyncs", "-A"]).rows();
    assert_eq!(rows[0], in_cloud[0]);
    assert_eq!(rows.len(), usize::try_from(COUNT).unwrap() + 1);
    let uid = cluster.get("configmap/settings")["metadata"]["uid"].as_str().unwrap().to_owned();
    let record = format!("{NODE}.{uid}");
    let row = rows.iter().find(|row| row.contains(&record)).expect("a row for the record");
    assert_eq!(rows[0][..5], ["NAMESPACE", "NAME", "NODE", "OBJECT", "HELD VERSION"]);
    let version = cluster.get("configmap/settings")["metadata"]["resourceVersion"].take();
    let expected = ["default", &record, NODE, "configmap/default/settings", version.as_str().unwrap()];
    assert_eq!(row[..5], expected);
    edge.kubectl(&["describe", "objectsync", &record]).shows(&[
        &record,
        "Object Kind:",
        "ConfigMap",
        "settings",
    ]);
    edge.kubectl(&["describe", "cm", "settings"]).shows(&[
        "Name:         settings",
        "app=web",
        "mode:\n----\nfast",
    ]);
    assert_eq!(
        edge.get(&format!("objectsync/{record}"))["spec"],
        cluster.get(&format!("objectsync/{record}"))["spec"]
    );

    edge.kubectl(&["explain", "lease.spec"]).shows(&["holderIdentity", "leaseDurationSeconds", "renewTime"]);
    edge.kubectl(&["explain", "objectsync.spec"]).shows(&["objectName", "objectKind"]);
    edge.kubectl(&["explain", "event"]).shows(&["reason", "type"]);
    let resources = edge.kubectl(&["api-resources"]).rows();
    for row in [
        &["configmaps", "cm", "v1", "true", "ConfigMap"][..],
        &["leases", "coordination.k8s.io/v1", "true", "Lease"],
        &["objectsyncs", "reliablesyncs.kubeedge.io/v1alpha1", "true", "ObjectSync"],
    ] {
        assert!(resources.iter().any(|one| one == row), "no {row:?} in {resources:?}");
    }
    let writable = edge.kubectl(&["api-resources", "--verbs=create", "-o", "name"]).lines();
    let reviews = [
        "selfsubjectaccessreviews.authorization.k8s.io",
        "selfsubjectreviews.authentication.k8s.io",
        "selfsubjectrulesreviews.authorization.k8s.io",
        "tokenreviews.authentication.k8s.io",
    ];
    let mut expected = vec!["events", "events.events.k8s.io", "leases.coordination.k8s.io"];
    expected.extend(reviews);
    expected.sort_unstable();
    let mut found = writable;
    found.sort();
    assert_eq!(found, expected);
    edge.kubectl(&["version"]).shows(&["Server Version: v"]);
    edge.kubectl(&["get", "all"]).shows(&["pod/web"]);
    edge.kubectl(&["get", "--raw", "/readyz"]).says("ok");
}

#[tokio::test]
async fn lists_are_paginated_selected_and_counted() {
    let (edge, _cluster) = in_sync().await;
    let run = edge.kubectl(&["get", "cm", "-A", "-o", "name", "--chunk-size=2", "-v=6"]);
    assert_eq!(run.stderr.matches("continue=").count(), 1, "{run}");
    assert_eq!(run.lines(), ["configmap/other", "configmap/settings", "configmap/far"]);
    let run = edge.kubectl(&["get", "objectsyncs", "-A", "-o", "name", "--chunk-size=2", "-v=6"]);
    assert_eq!(run.stderr.matches("continue=").count(), 2, "{run}");
    assert_eq!(run.lines().len(), 5);

    for (selector, names) in [
        ("app=web", &["settings"][..]),
        ("app in (web, db)", &["other", "settings"]),
        ("!app", &["far"]),
        ("tier", &["settings"]),
    ] {
        assert_eq!(edge.names(&["cm", "-A", "-l", selector]), names, "{selector}");
    }
    for (kind, selector, names) in [
        ("cm", "metadata.name=far", &["far"][..]),
        ("cm", "metadata.namespace=default,metadata.name!=other", &["settings"]),
        ("pods", "spec.nodeName=edge-1", &["web"]),
        ("pods", "spec.nodeName=edge-2", &[]),
    ] {
        assert_eq!(edge.names(&[kind, "-A", "--field-selector", selector]), names, "{selector}");
    }
    edge.kubectl(&["get", "cm", "--field-selector", "data.mode=fast"]).fails_with("(BadRequest)");
    edge.kubectl(&["get", "cm", "nope"]).fails_with("configmaps \"nope\" not found");
    edge.kubectl(&["get", "nopes"]).fails_with("doesn't have a resource type \"nopes\"");
}

#[tokio::test]
async fn concurrent_long_lists_are_read_to_their_end() {
    const LISTS: usize = 6;
    let (edge, cluster) = in_sync().await;
    let object = |number: usize| {
        let metadata = json!({"name": format!("part-{number:02}"), "namespace": "default"});
        json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata})
    };
    cluster.cloud.apply((0..57).map(object)).await;
    cluster.cloud.in_sync(NODE, COUNT + 57).await;
    let list = ["get", "cm", "-A", "-o", "name", "--chunk-size=3"];
    let lists: Vec<_> = (0..LISTS).map(|_| edge.local.start(&list, "")).collect();
    for list in lists {
        assert_eq!(list.finish().lines().len(), 60);
    }
}

#[tokio::test]
async fn leases_are_created_and_held_on_the_node() {
    let (mut edge, cluster) = in_sync().await;
    edge.feed(&["create"], &lease("gate", "one")).says("lease.coordination.k8s.io/gate created");
    edge.feed(&["create"], &lease("gate", "two")).fails_with("(AlreadyExists)");
    let first = edge.get("lease/gate");
    assert!(
        first["metadata"]["uid"].is_string() && first["metadata"]["creationTimestamp"].is_string(),
        "{first}"
    );
    let rows = edge.kubectl(&["get", "leases"]).rows();
    assert_eq!(
        (&rows[0], &rows[1][..2]),
        (&["NAME", "HOLDER", "AGE"].map(str::to_owned).to_vec(), &["gate".into(), "one".into()][..])
    );

    // Two writers have read the same version: one of them succeeds.
    let taken = |holder: &str| {
        let mut lease = first.clone();
        lease["spec"]["holderIdentity"] = json!(holder);
        lease
    };
    let watch =
        edge.local.start(&["get", "lease", "gate", "-w", "-o", "jsonpath={.spec.holderIdentity}{'\\n'}"], "");
    watch.line("one").await;
    edge.feed(&["replace"], &taken("two")).says("lease.coordination.k8s.io/gate replaced");
    edge.feed(&["replace"], &taken("three")).fails_with("(Conflict)");
    let old = json!({"metadata": {"resourceVersion": first["metadata"]["resourceVersion"]}, "spec": {"holderIdentity": "four"}});
    edge.kubectl(&["patch", "lease", "gate", "--type=merge", "-p", &old.to_string()])
        .fails_with("(Conflict)");
    watch.line("two").await;
    edge.kubectl(&["patch", "lease", "gate", "-p", r#"{"spec":{"holderIdentity":"five"}}"#]).ok();
    edge.kubectl(&[
        "patch",
        "lease",
        "gate",
        "--type=json",
        "-p",
        r#"[{"op":"replace","path":"/spec/leaseDurationSeconds","value":20}]"#,
    ])
    .ok();
    watch.lines_with(&["two", "five"]).await;

    edge.feed(&["apply", "--server-side"], &lease("other", "one"))
        .says("lease.coordination.k8s.io/other serverside-applied");
    edge.feed(&["apply", "--server-side", "--field-manager=rival"], &lease("other", "two"))
        .fails_with("conflict");
    let force = ["apply", "--server-side", "--field-manager=rival", "--force-conflicts"];
    edge.feed(&force, &lease("other", "two")).says("lease.coordination.k8s.io/other serverside-applied");
    edge.feed(&["apply"], &lease("third", "one")).says("lease.coordination.k8s.io/third created");
    edge.feed(&["apply"], &lease("third", "one")).says("lease.coordination.k8s.io/third unchanged");
    let mut bad = lease("bad", "one");
    bad["spec"]["leaseDurationSeconds"] = json!(-1);
    edge.feed(&["create"], &bad).fails_with("spec.leaseDurationSeconds");
    bad["spec"] = json!({"holder": "one"});
    edge.feed(&["create"], &bad).fails_with("unknown field \"spec.holder\"");

    let before = edge.get("leases");
    edge.stop().await;
    edge.run().await;
    assert_eq!(edge.get("leases"), before);
    edge.kubectl(&["patch", "lease", "gate", "-p", r#"{"spec":{"holderIdentity":"six"}}"#]).ok();
    edge.crash().await;
    let gate = edge.get("lease/gate");
    assert_eq!(
        (&gate["spec"]["holderIdentity"], &gate["spec"]["leaseDurationSeconds"]),
        (&json!("six"), &json!(20))
    );
    assert_eq!(gate["metadata"]["uid"], first["metadata"]["uid"]);

    edge.kubectl(&["delete", "lease", "gate"]).shows(&["\"gate\" deleted"]);
    edge.kubectl(&["delete", "leases", "--all"]).shows(&["\"other\" deleted", "\"third\" deleted"]);
    assert!(edge.names(&["leases", "-A"]).is_empty());
    edge.crash().await;
    assert!(edge.names(&["leases", "-A"]).is_empty());
    // Leases stay on the node.
    assert!(!cluster.has("lease/gate"));
    assert_eq!(cluster.cloud.node(NODE).await.unwrap().objects(), Some(COUNT));
}

#[tokio::test]
async fn events_are_created_and_kept_on_the_node() {
    let (mut edge, _cluster) = in_sync().await;
    let uid = &edge.get("pod/web")["metadata"]["uid"];
    edge.feed(&["create"], &event(uid, "v1", "web.1", "Pulled", "image pulled")).says("event/web.1 created");
    let new = event(uid, "events.k8s.io/v1", "web.2", "BackOff", "back-off restarting");
    edge.feed(&["create"], &new).says("event.events.k8s.io/web.2 created");
    for restart in [false, true] {
        if restart {
            edge.stop().await;
            edge.run().await;
        }
        for (kind, regarding) in
            [("events", "involvedObject.kind=Pod"), ("events.events.k8s.io", "regarding.kind=Pod")]
        {
            // The agent also creates Events, about the Node.
            let selected = ["get", kind, "--field-selector", regarding];
            assert_eq!(edge.names(&selected[1..]), ["web.1", "web.2"]);
            let rows = edge.kubectl(&selected).rows();
            assert_eq!(rows[0], ["LAST SEEN", "TYPE", "REASON", "OBJECT", "MESSAGE"]);
            assert_eq!(rows[1][1..], ["Normal", "Pulled", "pod/web", "image pulled"]);
        }
        let event = edge.kubectl(&["get", "events.v1.events.k8s.io", "web.1", "-o", "json"]).json();
        assert_eq!((&event["note"], &event["regarding"]["name"]), (&json!("image pulled"), &json!("web")));
        let event = edge.kubectl(&["get", "events.v1.", "web.2", "-o", "json"]).json();
        assert_eq!(
            (&event["message"], &event["involvedObject"]["name"]),
            (&json!("back-off restarting"), &json!("web"))
        );
    }
    edge.kubectl(&["describe", "pod", "web"]).shows(&["Pulled", "BackOff", "back-off restarting"]);
    edge.kubectl(&["events", "--for", "pod/web"]).shows(&["Pulled", "BackOff"]);
    assert_eq!(edge.names(&["events", "--field-selector", "reason=Pulled"]), ["web.1"]);
    let watch = edge.local.start(&["get", "events", "-w", "--no-headers"], "");
    watch.lines_with(&["Pulled", "BackOff"]).await;
    edge.feed(&["create"], &event(uid, "v1", "web.3", "Started", "container started")).ok();
    watch.line("container started").await;
    edge.kubectl(&["delete", "event", "web.1"]).ok();
    let of_pods = ["events", "--field-selector", "involvedObject.kind=Pod"];
    assert_eq!(edge.names(&of_pods), ["web.2", "web.3"]);
}

#[tokio::test]
async fn watch_resumes_from_a_list_of_the_same_database_only() {
    let (mut edge, cluster) = in_sync().await;
    let version = |edge: &Edge, path: &str| -> String {
        let list = edge.kubectl(&["get", "--raw", path]).json();
        list["metadata"]["resourceVersion"].as_str().unwrap().to_owned()
    };
    let watch = |path: &str, version: &str| -> Vec<String> {
        let path = format!("{path}?watch=1&resourceVersion={version}&timeoutSeconds=600");
        ["get", "--raw", &path].map(str::to_owned).to_vec()
    };
    let start = |edge: &Edge, arguments: &[String]| {
        edge.local.start(&arguments.iter().map(String::as_str).collect::<Vec<_>>(), "")
    };
    let paths = [
        "/api/v1/configmaps",
        "/apis/reliablesyncs.kubeedge.io/v1alpha1/objectsyncs",
        "/apis/coordination.k8s.io/v1/leases",
    ];
    let versions = paths.map(|path| version(&edge, path));
    cluster.kubectl(&["create", "configmap", "late"]).ok();
    edge.feed(&["create"], &lease("late", "me")).ok();
    for ((path, version), word) in paths.iter().zip(&versions).zip(["\"late\"", "\"ADDED\"", "\"late\""]) {
        start(&edge, &watch(path, version)).line(word).await;
    }

    for destroyed in [false, true] {
        edge.stop().await;
        if destroyed {
            Snapshot::remove(&edge.agent.database);
        }
        edge.run().await;
        cluster.cloud.in_sync(NODE, COUNT + 1).await;
        for (path, version) in paths.iter().zip(&versions) {
            // Versions from before a restart are no longer in memory.
            let run = start(&edge, &watch(path, version)).finish();
            let told = run.stdout.clone() + &run.stderr;
            assert!(told.contains("410") || told.contains("Expired"), "{run}");
        }
    }
    let fresh = version(&edge, paths[0]);
    assert!(fresh.parse::<u64>().unwrap() > versions[0].parse().unwrap(), "{fresh} {versions:?}");
    let watching = start(&edge, &watch(paths[0], &fresh));
    cluster.kubectl(&["create", "configmap", "later"]).ok();
    watching.line("\"later\"").await;
    eventually("the node holds it", PATIENCE, async || {
        edge.names(&["cm"]).contains(&"later".into()).then_some(())
    })
    .await;
}
