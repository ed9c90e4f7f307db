//! Effects on nodes: from the outbox in a device's database to what kubectl shows, selects and
//! waits for.
//!
//! The tests need no file rules: they post the effects to the outbox while the agent is stopped.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

use std::path::Path;
use std::time::Duration;

use edgesync::store::{EdgeOptions, EdgeStore, MonotonicTime, OutboxPut, OutboxWrite};
use edgesync_admin::Route;
use edgesync_admin::cloud::{NodeInfo, PageInvitation};
use edgesync_object::{ObjectRef, ResourceVersion};
use edgesync_protocol::upload::{EffectContent, EffectState};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use edgesync_testkit::kubectl::{Cluster, Kubectl};
use edgesync_testkit::site::{Agent, ask, config_map, eventually, secret};

const NODE: &str = "edge-1";
const LONG: Duration = Duration::from_secs(60);
const PLACEMENT: &str = "
apiVersion: edgesync.io/v1alpha1
kind: Placement
metadata: { name: web, namespace: plant-0 }
spec:
  objects: { kinds: [configmaps] }
  nodes: {}
";

/// An effect of an object as a file rule would report it.
fn effect(object: &Value, version: Option<&str>, wanted: &str, state: EffectState) -> EffectContent {
    let text = |field: &str| object["metadata"][field].as_str().unwrap();
    let is_fine = state == EffectState::InEffect;
    EffectContent {
        uid: text("uid").into(),
        object: ObjectRef {
            api_version: "v1".into(),
            kind: object["kind"].as_str().unwrap().into(),
            namespace: text("namespace").into(),
            name: text("name").into(),
        },
        version: version.map(ResourceVersion::from),
        wanted: wanted.into(),
        state,
        rule: "web".into(),
        message: if is_fine { String::new() } else { "check: exit code 1: unexpected \"}\"".into() },
        since: 1_795_000_000_000_000,
    }
}

/// Posts effects to the outbox of a device while its agent is stopped.
async fn put(agent: &mut Agent, effects: impl IntoIterator<Item = EffectContent>) {
    agent.stop().await;
    let store = EdgeStore::open(&agent.database, EdgeOptions::default()).unwrap();
    let posting = |effect| {
        OutboxWrite::Upload(OutboxPut::effect(MonotonicTime::default(), effect).expect("within its limits"))
    };
    store.post(effects.into_iter().map(posting).collect()).await.unwrap();
    store.close().await;
    agent.run().await;
}

fn version(object: &Value) -> &str {
    object["metadata"]["resourceVersion"].as_str().unwrap()
}

/// Returns the current ConfigMap.
fn current(cluster: &Cluster, name: &str) -> Value {
    cluster.kubectl(&["get", "configmap", name, "-n", "plant-0", "-o", "json"]).json()
}

/// Waits for the condition with `kubectl wait`.
fn wait(cluster: &Cluster, what: &str) {
    let status = format!("--for=condition=InEffect={what}");
    cluster.kubectl(&["wait", &status, "placement/web", "-n", "plant-0", "--timeout=60s"]).ok();
}

async fn until_reason(cluster: &Cluster, reason: &str) {
    let path = r#"jsonpath={.status.conditions[?(@.type=="InEffect")].reason}"#;
    let get = ["get", "placement", "web", "-n", "plant-0", "-o", path];
    eventually(&format!("InEffect because of {reason}"), LONG, async || {
        (cluster.kubectl(&get).ok().trim() == reason).then_some(())
    })
    .await;
}

/// Returns the ObjectSyncs with this effect state, each with its version in effect.
fn shown(cluster: &Cluster, state: &str) -> Vec<String> {
    let selector = format!("edgesync.io/effect-state={state}");
    let list = cluster.kubectl(&["get", "objectsyncs", "-A", "-l", &selector, "-o", "json"]).json();
    let label = |item: &Value| {
        let name = item["spec"]["objectName"].as_str().unwrap();
        let version = item["metadata"]["labels"]["edgesync.io/in-effect"].as_str().unwrap_or("-");
        format!("{name} {version}")
    };
    list["items"].as_array().unwrap().iter().map(label).collect()
}

/// Returns the output of `edgesync-cloud`.
async fn said(cluster: &Cluster, words: &[&str]) -> String {
    let output = cluster.cloud.command(words).await;
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout).unwrap()
}

/// Returns the cloud side's status of the node.
async fn node(cluster: &Cluster) -> NodeInfo {
    cluster.cloud.node(NODE).await.unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn effects_are_shown_selected_and_waited_for() {
    let mut cluster = Cluster::start().await;
    cluster.cloud.apply([config_map(0), config_map(3)]).await;
    cluster.apply(PLACEMENT);
    let mut agent = Agent::start(&cluster.site, NODE, cluster.cloud.mqtt).await;
    cluster.cloud.in_sync(NODE, 2).await;
    until_reason(&cluster, "NoReport").await;

    let name = config_map(0)["metadata"]["name"].as_str().unwrap().to_owned();
    let first = current(&cluster, &name);
    put(&mut agent, [effect(&first, Some(version(&first)), version(&first), EffectState::InEffect)]).await;
    wait(&cluster, "True");
    assert_eq!(shown(&cluster, "InEffect"), [format!("{name} {}", version(&first))]);
    let label = format!(r"--for=jsonpath={{.metadata.labels.edgesync\.io/in-effect}}={}", version(&first));
    let sync = format!("objectsync/{NODE}.{}", first["metadata"]["uid"].as_str().unwrap());
    cluster.kubectl(&["wait", &label, &sync, "-n", "plant-0", "--timeout=60s"]).ok();

    // The node holds another version that is not in effect yet; then it refuses that version.
    let patch = json!({"data": {"line": "changed"}}).to_string();
    cluster.kubectl(&["patch", "configmap", &name, "-n", "plant-0", "--type=merge", "-p", &patch]).ok();
    wait(&cluster, "False");
    let second = current(&cluster, &name);
    let bad = effect(&second, Some(version(&first)), version(&second), EffectState::NotInEffect);
    put(&mut agent, [bad]).await;
    eventually("the refusal is shown", LONG, async || {
        (shown(&cluster, "NotInEffect") == [format!("{name} {}", version(&first))]).then_some(())
    })
    .await;
    let told = node(&cluster).await;
    assert_eq!((told.files_in_effect(), told.files_not_in_effect()), (Some(0), Some(1)));
    let one = &told.not_in_effect()[0];
    let object = one.object.as_ref().unwrap();
    assert_eq!((&*object.name, &*one.state, &*one.rule), (name.as_str(), "NotInEffect", "web"));
    assert_eq!((one.in_effect.as_deref(), &*one.desired), (Some(version(&first)), version(&second)));
    assert_eq!(one.message, "check: exit code 1: unexpected \"}\"");
    let syncs = said(&cluster, &["syncs", "-o", "wide"]).await;
    assert!(syncs.lines().any(|line| line.contains(&name) && line.contains("NotInEffect")), "{syncs}");
    let nodes = said(&cluster, &["nodes"]).await;
    assert!(nodes.lines().next().unwrap().contains("NOT IN EFFECT"), "{nodes}");

    // The stored effect survives a crash of the cloud.
    cluster.cloud.crash().await;
    assert_eq!(node(&cluster).await.files_not_in_effect(), Some(1));
    put(&mut agent, [effect(&second, Some(version(&second)), version(&second), EffectState::InEffect)]).await;
    wait(&cluster, "True");

    // The rule is deleted. A lost database then leaves no claims about effects.
    let other = current(&cluster, config_map(3)["metadata"]["name"].as_str().unwrap());
    let gone = effect(&second, None, version(&second), EffectState::Gone);
    put(&mut agent, [gone, effect(&other, Some(version(&other)), version(&other), EffectState::InEffect)])
        .await;
    eventually("one is forgotten", LONG, async || {
        (shown(&cluster, "InEffect").len() == 1 && node(&cluster).await.files_in_effect() == Some(1))
            .then_some(())
    })
    .await;
    agent.stop().await;
    std::fs::remove_dir_all(agent.database.parent().unwrap()).unwrap();
    agent.run().await;
    cluster.cloud.in_sync(NODE, 2).await;
    until_reason(&cluster, "NoReport").await;
    assert!(shown(&cluster, "InEffect").is_empty());
    assert_eq!(node(&cluster).await.files_in_effect(), None);
}

/// Requests a path with a new key of the page.
async fn asked_by_the_page(cluster: &Cluster, path: &str) -> String {
    let PageInvitation { url, .. } = ask(&cluster.cloud.client(), Route::Page).await.unwrap();
    let (address, key) = url.strip_prefix("http://").unwrap().split_once("/page/#key=").unwrap();
    let request = format!(
        "GET {path} HTTP/1.1\r\nHost: {address}\r\nAuthorization: Bearer {key}\r\nConnection: close\r\n\r\n"
    );
    let mut stream = TcpStream::connect(address).await.unwrap();
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    assert!(answer.starts_with("HTTP/1.1 200 "), "{path}: {answer}");
    answer
}

/// A program reads all files of its rule: its output about a ConfigMap may quote a Secret.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn output_about_secrets_is_hidden_from_viewers_and_pages() {
    let cluster = Cluster::start().await;
    cluster.cloud.apply([config_map(0), secret(3)]).await;
    let mut agent = Agent::start(&cluster.site, NODE, cluster.cloud.mqtt).await;
    cluster.cloud.in_sync(NODE, 2).await;
    let failed = async |object: Value| {
        let object = cluster.cloud.get(&object).await;
        let effect = effect(&object, None, version(&object), EffectState::NotInEffect);
        EffectContent { message: "check: exit code 1: line 3: 'hunter2'".into(), ..effect }
    };
    put(&mut agent, [failed(config_map(0)).await, failed(secret(3)).await]).await;
    eventually("the failures are reported", LONG, async || {
        (node(&cluster).await.files_not_in_effect() == Some(2)).then_some(())
    })
    .await;

    let api = format!("https://{}", cluster.cloud.api);
    let kubeconfig = said(&cluster, &["kubeconfig", "--user", "ada", "--role", "view", "--api", &api]).await;
    let file = cluster.file("view.kubeconfig", &kubeconfig);
    let viewer = Kubectl::with_kubeconfig(&cluster.site, "viewer", Path::new(&file));
    let routes = [Route::Node(NODE), Route::Nodes, Route::NodeObjects(NODE), Route::Objects, Route::Summary];
    let syncs = "/apis/reliablesyncs.kubeedge.io/v1alpha1/objectsyncs".to_owned();
    for path in routes.map(|route| route.path()).into_iter().chain([syncs]) {
        for answer in [viewer.run(&["get", "--raw", &path]).ok(), asked_by_the_page(&cluster, &path).await] {
            assert!(!answer.contains("hunter2"), "{path}: {answer}");
            let hidden = answer.matches("hidden: it may quote a Secret").count();
            assert!(hidden == 2 || path != Route::Node(NODE).path(), "{hidden} are hidden: {answer}");
        }
    }
    let shown = cluster.cloud.client().text(&Route::Node(NODE).path()).await.unwrap();
    assert_eq!(shown.matches("hunter2").count(), 2, "{shown}");
}
