use std::sync::Arc;
use std::sync::atomic::Ordering;

use serde_json::{Value, json};
use tokio::task::JoinHandle;

use super::Collector;
use crate::memory::{Memory, kind};
use edgesync_api::{MissingNamespace, Namespaces, SYSTEM_NAMESPACES, Storage};
use edgesync_object::Object;

fn owner(word: &str, name: &str, blocks: bool) -> Value {
    let resource = kind(word);
    json!({"apiVersion": resource.api_version(), "kind": resource.kind, "name": name, "uid": format!("u-{name}"),
        "blockOwnerDeletion": blocks})
}

/// Creates an object with the UID `u-` and its name.
async fn put(storage: &Memory, word: &str, name: &str, owners: Vec<Value>) {
    let resource = kind(word);
    let mut value = json!({"apiVersion": resource.api_version(), "kind": resource.kind, "metadata":
        {"name": name, "namespace": "n", "uid": format!("u-{name}"), "ownerReferences": owners}});
    if word == "ns" || word == "node" {
        value["metadata"]["namespace"] = Value::Null;
    }
    storage.put(word, value).await;
}

/// Marks an object as the API does when an object with finalizers is deleted.
async fn mark(storage: &Memory, word: &str, name: &str, finalizers: &[&str]) {
    storage
        .edit(word, if word == "ns" { "" } else { "n" }, name, |object| {
            object.set_metadata("deletionTimestamp", "2026-01-01T00:00:00Z");
            object.set_metadata("finalizers", json!(finalizers));
        })
        .await;
}

async fn delete(storage: &Memory, word: &str, name: &str) {
    let stored = storage.get(&kind(word), "n", name).await.unwrap().unwrap();
    storage.remove(&kind(word), &stored).await.unwrap();
}

struct Running(JoinHandle<()>);

impl Drop for Running {
    fn drop(&mut self) {
        self.0.abort();
    }
}

fn run(storage: &Arc<Memory>) -> Running {
    Running(tokio::spawn(Collector::new(Arc::clone(storage), Arc::default()).run()))
}

/// Waits until the collector is idle: it processes this change after all others.
async fn settle(storage: &Memory) {
    put(storage, "cm", "last", vec![owner("secret", "missing", false)]).await;
    storage.until("the end of the last object", |names| !names.contains(&"ConfigMap last".to_owned())).await;
}

#[tokio::test(start_paused = true)]
async fn dependents_are_deleted_with_their_last_owner() {
    let storage = Memory::new();
    put(&storage, "deploy", "d", vec![]).await;
    put(&storage, "deploy", "e", vec![]).await;
    put(&storage, "rs", "r", vec![owner("deploy", "d", true)]).await;
    put(&storage, "pod", "p", vec![owner("rs", "r", true)]).await;
    put(&storage, "pod", "shared", vec![owner("deploy", "d", false), owner("deploy", "e", false)]).await;
    let _running = run(&storage);
    settle(&storage).await;
    assert_eq!(storage.names().len(), 5);
    delete(&storage, "deploy", "d").await;
    storage.until("the end of the pod", |names| !names.contains(&"Pod p".to_owned())).await;
    settle(&storage).await;
    assert_eq!(storage.names(), ["Pod shared", "Deployment e"]);
    let shared = storage.find("pod", "n", "shared").await.unwrap();
    let owners = shared.fields()["metadata"]["ownerReferences"].as_array().unwrap();
    assert_eq!(owners.iter().map(|owner| &owner["name"]).collect::<Vec<_>>(), ["e"]);
}

#[tokio::test(start_paused = true)]
async fn leftover_dependents_are_collected_at_start_or_after_failure() {
    let storage = Memory::new();
    put(&storage, "pod", "p", vec![owner("rs", "gone", true)]).await;
    put(&storage, "rs", "replaced", vec![]).await;
    let other = json!({"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "replaced", "uid": "old"});
    put(&storage, "pod", "q", vec![other]).await;
    storage.failures.store(3, Ordering::SeqCst);
    let _running = run(&storage);
    storage.until("the end of the pods", |names| names == ["ReplicaSet replaced"]).await;
}

#[tokio::test(start_paused = true)]
async fn absent_owners_are_logged_in_one_line() {
    let log = tempfile::NamedTempFile::new().unwrap();
    let subscriber = tracing_subscriber::fmt().with_writer(Arc::new(log.reopen().unwrap())).finish();
    // All tasks of this test run on one thread.
    let _logging = tracing::subscriber::set_default(subscriber);
    let storage = Memory::new();
    for number in 0..20 {
        let owners = vec![owner("rs", &format!("gone-{number}"), true)];
        put(&storage, "pod", &format!("p{number}"), owners).await;
    }
    let _running = run(&storage);
    storage.until("the end of the pods", <[String]>::is_empty).await;
    let logged = std::fs::read_to_string(log.path()).unwrap();
    assert_eq!(logged.matches("WARN").count(), 1, "{logged}");
}

#[tokio::test(start_paused = true)]
async fn unresolvable_owner_keeps_its_dependents() {
    let storage = Memory::new();
    put(&storage, "node", "in-cluster", vec![owner("cm", "a", false)]).await;
    let unknown = json!({"apiVersion": "lab.io/v1", "kind": "Widget", "name": "w", "uid": "w"});
    put(&storage, "cm", "of-widget", vec![unknown]).await;
    put(&storage, "ns", "elsewhere", vec![]).await;
    storage
        .put(
            "secret",
            json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "s", "namespace": "m",
            "uid": "u-s"}}),
        )
        .await;
    put(&storage, "pod", "across", vec![owner("secret", "s", false)]).await;
    put(&storage, "pod", "of-cluster", vec![owner("ns", "elsewhere", false)]).await;
    let _running = run(&storage);
    storage
        .until("the end of what has an owner elsewhere", |names| !names.contains(&"Pod across".to_owned()))
        .await;
    settle(&storage).await;
    let left =
        ["ConfigMap of-widget", "Namespace elsewhere", "Node in-cluster", "Pod of-cluster", "Secret s"];
    assert_eq!(storage.names(), left);
}

#[tokio::test(start_paused = true)]
async fn foreground_deletion_deletes_dependents_first() {
    let storage = Memory::new();
    put(&storage, "deploy", "d", vec![]).await;
    put(&storage, "rs", "r", vec![owner("deploy", "d", true)]).await;
    put(&storage, "pod", "p", vec![owner("rs", "r", true)]).await;
    put(&storage, "pod", "held", vec![owner("rs", "r", true)]).await;
    storage.edit("pod", "n", "held", |pod| pod.set_metadata("finalizers", json!(["lab.io/hold"]))).await;
    let _running = run(&storage);
    mark(&storage, "deploy", "d", &["foregroundDeletion"]).await;
    storage.until("the end of the free pod", |names| !names.contains(&"Pod p".to_owned())).await;
    settle(&storage).await;
    assert_eq!(storage.names(), ["Pod held", "Deployment d", "ReplicaSet r"]);
    let held = storage.find("pod", "n", "held").await.unwrap();
    assert!(held.deletion_timestamp().is_some());
    delete(&storage, "pod", "held").await;
    storage.until("the end of all", <[String]>::is_empty).await;
}

#[tokio::test(start_paused = true)]
async fn orphans_lose_their_owner_reference_and_stay() {
    let storage = Memory::new();
    put(&storage, "rs", "r", vec![]).await;
    for name in ["p", "q"] {
        put(&storage, "pod", name, vec![owner("rs", "r", true)]).await;
    }
    let _running = run(&storage);
    mark(&storage, "rs", "r", &["orphan"]).await;
    storage.until("the end of the owner", |names| !names.contains(&"ReplicaSet r".to_owned())).await;
    settle(&storage).await;
    assert_eq!(storage.names(), ["Pod p", "Pod q"]);
    let orphan = storage.find("pod", "n", "p").await.unwrap();
    assert_eq!(orphan.fields()["metadata"]["ownerReferences"], json!(null));
}

#[tokio::test(start_paused = true)]
async fn foreign_finalizers_delay_the_deletion() {
    let storage = Memory::new();
    put(&storage, "rs", "r", vec![]).await;
    let _running = run(&storage);
    mark(&storage, "rs", "r", &["lab.io/hold", "foregroundDeletion"]).await;
    settle(&storage).await;
    let kept = storage.find("rs", "n", "r").await.unwrap();
    assert_eq!(kept.metadata().unwrap()["finalizers"], json!(["lab.io/hold"]));
}

#[tokio::test(start_paused = true)]
async fn namespace_is_deleted_after_its_contents() {
    let storage = Memory::new();
    let namespaces = Arc::new(Namespaces::default());
    let cm = kind("cm");
    namespaces.ensure(&*storage, &cm, "a", "n", MissingNamespace::Create).await.unwrap();
    namespaces.ensure(&*storage, &cm, "a", "other", MissingNamespace::Create).await.unwrap();
    for number in 0..10 {
        put(&storage, "cm", &format!("c{number}"), vec![]).await;
    }
    put(&storage, "pod", "held", vec![]).await;
    storage.edit("pod", "n", "held", |pod| pod.set_metadata("finalizers", json!(["lab.io/hold"]))).await;
    let collector = Collector::new(Arc::clone(&storage), Arc::clone(&namespaces));
    let _running = Running(tokio::spawn(collector.run()));
    storage
        .edit("ns", "", "n", |namespace: &mut Object| {
            namespace.set_metadata("deletionTimestamp", "2026-01-01T00:00:00Z");
        })
        .await;
    storage.until("the end of the maps", |names| names.len() == 3).await;
    assert_eq!(storage.names(), ["Namespace n", "Namespace other", "Pod held"]);
    let refused = namespaces.ensure(&*storage, &cm, "late", "n", MissingNamespace::Create).await.unwrap_err();
    assert_eq!((refused.code, &*refused.details.unwrap().causes[0].reason), (403, "NamespaceTerminating"));
    delete(&storage, "pod", "held").await;
    storage.until("the end of the namespace", |names| names == ["Namespace other"]).await;
}

#[tokio::test(start_paused = true)]
async fn namespace_waits_for_finalizers_of_others() {
    let storage = Memory::new();
    let namespaces = kind("ns");
    let namespace = json!({"apiVersion": "v1", "kind": "Namespace",
        "metadata": {"name": "n", "uid": "u-n", "deletionTimestamp": "2026-01-01T00:00:00Z"},
        "spec": {"finalizers": ["kubernetes", "example.com/hold"]}});
    storage.put("ns", namespace).await;
    put(&storage, "cm", "inside", vec![]).await;
    let _running = run(&storage);
    loop {
        let held = storage.find("ns", "", "n").await.unwrap();
        if held.fields()["spec"]["finalizers"] == json!(["example.com/hold"]) {
            break;
        }
        storage.changes(&namespaces, storage.version(&namespaces)).await.unwrap();
    }
    assert_eq!(storage.names(), ["Namespace n"]);
    let version = storage.version(&namespaces);
    put(&storage, "node", "last", vec![owner("node", "missing", false)]).await;
    storage.until("the end of the node", |names| names == ["Namespace n"]).await;
    let writes = storage.version(&namespaces) - version;
    assert_eq!(writes, 2, "the node only: a held namespace is not written again");
}

#[tokio::test]
async fn namespaces_are_created_with_their_first_object() {
    let storage = Memory::new();
    let namespaces = Namespaces::default();
    namespaces.ensure_system(&*storage).await.unwrap();
    namespaces.ensure_system(&*storage).await.unwrap();
    assert_eq!(storage.names().len(), SYSTEM_NAMESPACES.len());
    let cm = kind("cm");
    namespaces.ensure(&*storage, &cm, "a", "lab", MissingNamespace::DryRun).await.unwrap();
    assert_eq!(storage.find("ns", "", "lab").await, None);
    let refused = namespaces.ensure(&*storage, &cm, "a", "lab", MissingNamespace::Refuse).await.unwrap_err();
    assert_eq!((refused.code, storage.find("ns", "", "lab").await), (404, None));
    namespaces.ensure(&*storage, &cm, "a", "lab", MissingNamespace::Create).await.unwrap();
    namespaces.ensure(&*storage, &cm, "a", "lab", MissingNamespace::Refuse).await.unwrap();
    let lab = storage.find("ns", "", "lab").await.unwrap();
    assert_eq!(lab.labels()["kubernetes.io/metadata.name"], "lab");
    assert_eq!(lab.fields()["spec"]["finalizers"], json!(["kubernetes"]));
    assert!(!lab.uid().is_empty() && !lab.creation_timestamp().is_empty());
    assert_eq!(
        namespaces.ensure(&*storage, &cm, "a", "A/b", MissingNamespace::Create).await.unwrap_err().code,
        400
    );
}
