//! Patches: what a store with a held object makes of them.

// The functions that tests call are tests too.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use crate::store::support;
use std::sync::Arc;

use edgesync::store::{EdgeOptions, EdgeStore};
use edgesync_protocol::change::{Change, Put};
use edgesync_protocol::patch::{Edition, Patch, PatchProblem, Unpatched};
use edgesync_store::seal::{KeySource, SealOptions};
use support::*;

/// Returns a ConfigMap with many parameters, one of which is the version.
fn parameters(number: u64, version: u64) -> Put {
    let plain = put_sized(number, version, 300);
    let text: String = (0..120).map(|n| format!("parameter-{n}={},", n * 7919 % 1000)).collect();
    let body = plain.body.get().replacen("abcdefghij", &format!("{text}version={version}"), 1);
    Put { body: serde_json::value::RawValue::from_string(body).unwrap(), ..plain }
}

fn patch(base: &Put, new: &Put) -> Arc<Patch> {
    let from = Edition { version: &base.version, text: base.body.get() };
    let to = Edition { version: &new.version, text: new.body.get() };
    Arc::new(Patch::make(&new.uid, from, to).unwrap())
}

async fn apply(store: &EdgeStore, patch: &Arc<Patch>) -> edgesync::store::Commit {
    store.apply(vec![Change::Patch(Arc::clone(patch))]).await.unwrap()
}

async fn body(store: &EdgeStore) -> String {
    store.by_uid(uid(1)).await.unwrap().unwrap().body
}

#[tokio::test]
async fn patched_object_is_stored_and_reported_like_a_whole_one() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(&dir.path().join("edge.db"));
    store.apply(vec![Change::Put(parameters(1, 5)), put(2, 5)]).await.unwrap();
    let update = patch(&parameters(1, 5), &parameters(1, 6));
    let commit = apply(&store, &update).await;
    assert_eq!(commit.applied.observed.len(), 1);
    assert_eq!((&*commit.applied.observed[0].uid, commit.totals.revision), (&*uid(1), 3));
    assert_eq!(&*commit.applied.patched[0].name, "settings-000001");
    assert_eq!(body(&store).await, parameters(1, 6).body.get());
    // A duplicate changes nothing.
    let again = apply(&store, &update).await;
    assert_eq!((again.totals, again.applied.unpatched.len()), (commit.totals, 0));
    assert_eq!(again.applied.observed, commit.applied.observed);
    assert_consistent(&store).await;
    store.close().await;
}

#[tokio::test]
async fn patch_that_does_not_fit_changes_nothing_and_others_are_applied() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(&dir.path().join("edge.db"));
    let update = patch(&parameters(1, 5), &parameters(1, 7));
    let refused = |reason| Unpatched { uid: uid(1), base: 5.into(), reason };
    let commit = apply(&store, &update).await;
    assert_eq!(commit.applied.unpatched, [refused(PatchProblem::NotHeld)]);
    store.apply(vec![Change::Put(parameters(1, 6))]).await.unwrap();
    let commit = store.apply(vec![Change::Patch(Arc::clone(&update)), put(2, 5)]).await.unwrap();
    assert_eq!(commit.applied.unpatched, [refused(PatchProblem::OtherVersion)]);
    assert_eq!((commit.applied.observed.len(), commit.totals.count), (1, 2));
    assert_eq!(body(&store).await, parameters(1, 6).body.get());
    // The version of the base, with another text.
    store.apply(vec![delete(1), Change::Put(put_sized(1, 5, 400))]).await.unwrap();
    let commit = apply(&store, &update).await;
    assert_eq!(commit.applied.unpatched, [refused(PatchProblem::OtherBase)]);
    assert_consistent(&store).await;
    store.close().await;
}

#[tokio::test]
async fn patch_to_an_older_version_names_the_held_one() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(&dir.path().join("edge.db"));
    store.apply(vec![Change::Put(parameters(1, 9))]).await.unwrap();
    let back = patch(&parameters(1, 9), &parameters(1, 4));
    assert_eq!(apply(&store, &back).await.applied.patched.len(), 1);
    assert_eq!(body(&store).await, parameters(1, 4).body.get());
    store.apply(vec![Change::Put(parameters(1, 10))]).await.unwrap();
    let late = apply(&store, &back).await;
    assert_eq!(late.applied.observed[0].version, Some(10.into()), "answered with the held version");
    assert!(late.applied.unpatched.is_empty() && late.applied.patched.is_empty());
    store.close().await;
}

#[tokio::test]
async fn base_of_a_patch_is_the_opened_body_and_its_result_is_sealed() {
    let dir = tempfile::tempdir().unwrap();
    let keys = KeySource { file: dir.path().join("seal.key"), ..KeySource::default() };
    let seal = SealOptions { kinds: vec!["configmaps".to_owned()], keys };
    let path = dir.path().join("edge.db");
    let store = EdgeStore::open(&path, EdgeOptions { seal: Some(seal), ..quiet() }).unwrap();
    store.apply(vec![Change::Put(parameters(1, 5))]).await.unwrap();
    let commit = apply(&store, &patch(&parameters(1, 5), &parameters(1, 6))).await;
    assert_eq!(commit.applied.patched.len(), 1, "{:?}", commit.applied);
    assert_eq!(body(&store).await, parameters(1, 6).body.get());
    store.close().await;
    let files =
        std::fs::read_dir(dir.path()).unwrap().map(|file| std::fs::read(file.unwrap().path()).unwrap());
    let has_plain_text = |bytes: &Vec<u8>| bytes.windows(12).any(|part| part == b"parameter-77");
    assert!(!files.into_iter().any(|bytes| has_plain_text(&bytes)));
}
