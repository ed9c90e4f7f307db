use std::sync::Arc;
use std::sync::atomic::Ordering;

use serde_json::{Value, json};
use tokio::task::JoinHandle;

use super::Collector;
use crate::api::{Namespaces, SYSTEM_NAMESPACES, Storage};
use crate::cloud::memory::{Memory, kind};
use crate::object::Object;

fn owner(word: &str, name: &str, blocks: bool) -> Value {
    let resource = kind(word);
    json!({"apiVersion": resource.api_version(), "kind": resource.kind, "name": name, "uid": format!("u-{name}"),
        "blockOwnerDeletion": blocks})
}

/// An object whose uid is its name with `u-` before it.
async fn put(keeper: &Memory, word: &str, name: &str, owners: Vec<Value>) {
    let resource = kind(word);
    let mut value = json!({"apiVersion": resource.api_version(), "kind": resource.kind, "metadata":
        {"name": name, "namespace": "n", "uid": format!("u-{name}"), "ownerReferences": owners}});
    if word == "ns" || word == "node" {
        value["metadata"]["namespace"] = Value::Null;
    }
    keeper.put(word, value).await;
}

/// Does to an object what the API does when it is deleted with a finalizer.
async fn mark(keeper: &Memory, word: &str, name: &str, finalizers: &[&str]) {
    keeper
        .edit(word, if word == "ns" { "" } else { "n" }, name, |object| {
            object.set_metadata("deletionTimestamp", "2026-01-01T00:00:00Z");
            object.set_metadata("finalizers", json!(finalizers));
        })
        .await;
}

async fn delete(keeper: &Memory, word: &str, name: &str) {
    let stored = keeper.get(&kind(word), "n", name).await.unwrap().unwrap();
    keeper.remove(&kind(word), &stored).await.unwrap();
}

struct Running(JoinHandle<()>);

impl Drop for Running {
    fn drop(&mut self) {
        self.0.abort();
    }
}

fn run(keeper: &Arc<Memory>) -> Running {
    Running(tokio::spawn(Collector::new(Arc::clone(keeper), Arc::default()).run()))
}

/// Waits until the collector has nothing more to do: it sees a change that was made after all others.
async fn settle(keeper: &Memory) {
    put(keeper, "cm", "last", vec![owner("secret", "nobody", false)]).await;
    keeper.until("the end of the last object", |names| !names.contains(&"ConfigMap last".to_owned())).await;
}

#[tokio::test(start_paused = true)]
async fn dependents_go_when_the_last_owner_has_gone() {
    let keeper = Memory::new();
    put(&keeper, "deploy", "d", vec![]).await;
    put(&keeper, "deploy", "e", vec![]).await;
    put(&keeper, "rs", "r", vec![owner("deploy", "d", true)]).await;
    put(&keeper, "pod", "p", vec![owner("rs", "r", true)]).await;
    put(&keeper, "pod", "shared", vec![owner("deploy", "d", false), owner("deploy", "e", false)]).await;
    let _running = run(&keeper);
    settle(&keeper).await;
    assert_eq!(keeper.names().len(), 5);
    delete(&keeper, "deploy", "d").await;
    keeper.until("the end of the pod", |names| !names.contains(&"Pod p".to_owned())).await;
    settle(&keeper).await;
    assert_eq!(keeper.names(), ["Pod shared", "Deployment e"]);
    let shared = keeper.find("pod", "n", "shared").await.unwrap();
    let owners = shared.fields()["metadata"]["ownerReferences"].as_array().unwrap();
    assert_eq!(owners.iter().map(|owner| &owner["name"]).collect::<Vec<_>>(), ["e"]);
}

#[tokio::test(start_paused = true)]
async fn what_was_left_behind_is_collected_at_the_start_and_after_failures() {
    let keeper = Memory::new();
    put(&keeper, "pod", "p", vec![owner("rs", "gone", true)]).await;
    put(&keeper, "rs", "replaced", vec![]).await;
    let other = json!({"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "replaced", "uid": "old"});
    put(&keeper, "pod", "q", vec![other]).await;
    keeper.failures.store(3, Ordering::SeqCst);
    let _running = run(&keeper);
    keeper.until("the end of the pods", |names| names == ["ReplicaSet replaced"]).await;
}

#[tokio::test(start_paused = true)]
async fn an_owner_that_cannot_be_resolved_keeps_its_dependents() {
    let keeper = Memory::new();
    put(&keeper, "node", "in-cluster", vec![owner("cm", "a", false)]).await;
    let unknown = json!({"apiVersion": "lab.io/v1", "kind": "Widget", "name": "w", "uid": "w"});
    put(&keeper, "cm", "of-widget", vec![unknown]).await;
    put(&keeper, "ns", "elsewhere", vec![]).await;
    keeper
        .put(
            "secret",
            json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "s", "namespace": "m",
            "uid": "u-s"}}),
        )
        .await;
    put(&keeper, "pod", "across", vec![owner("secret", "s", false)]).await;
    put(&keeper, "pod", "of-cluster", vec![owner("ns", "elsewhere", false)]).await;
    let _running = run(&keeper);
    keeper
        .until("the end of what has an owner elsewhere", |names| !names.contains(&"Pod across".to_owned()))
        .await;
    settle(&keeper).await;
    let left =
        ["ConfigMap of-widget", "Namespace elsewhere", "Node in-cluster", "Pod of-cluster", "Secret s"];
    assert_eq!(keeper.names(), left);
}

#[tokio::test(start_paused = true)]
async fn in_the_foreground_dependents_go_first() {
    let keeper = Memory::new();
    put(&keeper, "deploy", "d", vec![]).await;
    put(&keeper, "rs", "r", vec![owner("deploy", "d", true)]).await;
    put(&keeper, "pod", "p", vec![owner("rs", "r", true)]).await;
    put(&keeper, "pod", "held", vec![owner("rs", "r", true)]).await;
    keeper.edit("pod", "n", "held", |pod| pod.set_metadata("finalizers", json!(["lab.io/hold"]))).await;
    let _running = run(&keeper);
    mark(&keeper, "deploy", "d", &["foregroundDeletion"]).await;
    keeper.until("the end of the free pod", |names| !names.contains(&"Pod p".to_owned())).await;
    settle(&keeper).await;
    assert_eq!(keeper.names(), ["Pod held", "Deployment d", "ReplicaSet r"]);
    let held = keeper.find("pod", "n", "held").await.unwrap();
    assert!(held.deletion_timestamp().is_some());
    delete(&keeper, "pod", "held").await;
    keeper.until("the end of all", <[String]>::is_empty).await;
}

#[tokio::test(start_paused = true)]
async fn orphans_lose_their_owner_and_stay() {
    let keeper = Memory::new();
    put(&keeper, "rs", "r", vec![]).await;
    for name in ["p", "q"] {
        put(&keeper, "pod", name, vec![owner("rs", "r", true)]).await;
    }
    let _running = run(&keeper);
    mark(&keeper, "rs", "r", &["orphan"]).await;
    keeper.until("the end of the owner", |names| !names.contains(&"ReplicaSet r".to_owned())).await;
    settle(&keeper).await;
    assert_eq!(keeper.names(), ["Pod p", "Pod q"]);
    let orphan = keeper.find("pod", "n", "p").await.unwrap();
    assert_eq!(orphan.fields()["metadata"]["ownerReferences"], json!(null));
}

#[tokio::test(start_paused = true)]
async fn finalizers_of_others_are_waited_for_and_kept() {
    let keeper = Memory::new();
    put(&keeper, "rs", "r", vec![]).await;
    let _running = run(&keeper);
    mark(&keeper, "rs", "r", &["lab.io/hold", "foregroundDeletion"]).await;
    settle(&keeper).await;
    let kept = keeper.find("rs", "n", "r").await.unwrap();
    assert_eq!(kept.metadata().unwrap()["finalizers"], json!(["lab.io/hold"]));
}

#[tokio::test(start_paused = true)]
async fn a_namespace_goes_after_everything_in_it() {
    let keeper = Memory::new();
    let namespaces = Arc::new(Namespaces::default());
    let cm = kind("cm");
    namespaces.ensure(&*keeper, &cm, "a", "n", false).await.unwrap();
    namespaces.ensure(&*keeper, &cm, "a", "other", false).await.unwrap();
    for number in 0..10 {
        put(&keeper, "cm", &format!("c{number}"), vec![]).await;
    }
    put(&keeper, "pod", "held", vec![]).await;
    keeper.edit("pod", "n", "held", |pod| pod.set_metadata("finalizers", json!(["lab.io/hold"]))).await;
    let collector = Collector::new(Arc::clone(&keeper), Arc::clone(&namespaces));
    let _running = Running(tokio::spawn(collector.run()));
    keeper
        .edit("ns", "", "n", |namespace: &mut Object| {
            namespace.set_metadata("deletionTimestamp", "2026-01-01T00:00:00Z");
        })
        .await;
    keeper.until("the end of the maps", |names| names.len() == 3).await;
    assert_eq!(keeper.names(), ["Namespace n", "Namespace other", "Pod held"]);
    let refused = namespaces.ensure(&*keeper, &cm, "late", "n", false).await.unwrap_err();
    assert_eq!((refused.code, &*refused.details.unwrap().causes[0].reason), (403, "NamespaceTerminating"));
    delete(&keeper, "pod", "held").await;
    keeper.until("the end of the namespace", |names| names == ["Namespace other"]).await;
}

#[tokio::test]
async fn namespaces_come_with_what_is_first_in_them() {
    let keeper = Memory::new();
    let namespaces = Namespaces::default();
    namespaces.ensure_system(&*keeper).await.unwrap();
    namespaces.ensure_system(&*keeper).await.unwrap();
    assert_eq!(keeper.names().len(), SYSTEM_NAMESPACES.len());
    let cm = kind("cm");
    namespaces.ensure(&*keeper, &cm, "a", "lab", true).await.unwrap();
    assert_eq!(keeper.find("ns", "", "lab").await, None);
    namespaces.ensure(&*keeper, &cm, "a", "lab", false).await.unwrap();
    let lab = keeper.find("ns", "", "lab").await.unwrap();
    assert_eq!(lab.labels()["kubernetes.io/metadata.name"], "lab");
    assert_eq!(lab.fields()["spec"]["finalizers"], json!(["kubernetes"]));
    assert!(!lab.uid().is_empty() && !lab.creation_timestamp().is_empty());
    assert_eq!(namespaces.ensure(&*keeper, &cm, "a", "A/b", false).await.unwrap_err().code, 400);
}
