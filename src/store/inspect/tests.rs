#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::os::unix::fs::PermissionsExt as _;
use std::path::PathBuf;
use std::sync::Arc;

use serde_json::value::RawValue;
use tempfile::TempDir;

use super::*;
use crate::store::{EdgeOptions, EdgeStore};
use edgesync_object::{Resource, ResourceVersion, Scope};
use edgesync_protocol::change::{Change, Put};

fn put(kind: &str, number: u64, version: u64) -> Change {
    let body = format!(r#"{{"kind":"{kind}","data":"marker-{number}."}}"#);
    Change::Put(Put {
        uid: format!("{kind}-{number}").into(),
        version: ResourceVersion::from(version.to_string().as_str()),
        supersedes: None,
        resource: Arc::new(Resource {
            group: String::new(),
            version: "v1".into(),
            kind: kind.into(),
            plural: format!("{}s", kind.to_lowercase()),
            scope: Scope::Namespaced,
        }),
        namespace: "x".into(),
        name: format!("{}-{number}", kind.to_lowercase()).into(),
        body: RawValue::from_string(body).unwrap(),
    })
}

async fn filled(count: u64) -> (TempDir, PathBuf, EdgeStore) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("edge.db");
    let store = EdgeStore::open(&path, EdgeOptions::default()).unwrap();
    store.apply((0..count).map(|number| put("ConfigMap", number, 1)).collect()).await.unwrap();
    (dir, path, store)
}

fn whole(path: &Path) -> Inspection {
    inspect(path, || true).unwrap().unwrap()
}

fn names(dir: &TempDir) -> Vec<String> {
    let mut names: Vec<String> = fs::read_dir(dir.path())
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    names
}

#[tokio::test]
async fn a_database_is_inspected_with_and_without_an_agent() {
    let (dir, path, store) = filled(300).await;
    // In-place changes, which the journal does not have.
    store.apply(vec![put("ConfigMap", 7, 2)]).await.unwrap();
    assert!(is_in_use(&path).unwrap());
    let open = whole(&path);
    assert_eq!((open.rows, open.problems()), (300, Vec::new()));
    assert_eq!(open.totals, store.facts().totals);
    store.apply(vec![put("ConfigMap", 7, 3)]).await.unwrap();
    store.close().await;
    assert!(!is_in_use(&path).unwrap());
    let (before, content) = (names(&dir), fs::read(&path).unwrap());
    let closed = whole(&path);
    assert_eq!(closed.totals.revision, open.totals.revision + 1);
    assert!(closed.is_sound());
    assert_eq!((names(&dir), fs::read(&path).unwrap()), (before, content), "looking changed something");
}

#[tokio::test]
async fn a_flipped_bit_is_found_and_an_abort_returns_none() {
    let (_dir, path, store) = filled(300).await;
    store.close().await;
    assert_eq!(inspect(&path, || false).unwrap(), None);
    let mut content = fs::read(&path).unwrap();
    let at = content.windows(10).position(|window| window == b"marker-77.").unwrap();
    content[at + 1] ^= 1;
    fs::write(&path, content).unwrap();
    let found = whole(&path);
    assert_eq!((found.damaged, found.is_sound()), (1, false));
    assert_eq!(found.problems(), ["checksum mismatch in 1 object"]);
}

#[tokio::test]
async fn a_backup_during_writes_is_sound_private_and_opens() {
    let (dir, path, store) = filled(500).await;
    let writer = {
        let store = store.clone();
        tokio::spawn(async move {
            for version in 2..40 {
                store.apply((0..50).map(|number| put("ConfigMap", number, version)).collect()).await.unwrap();
            }
        })
    };
    let to = dir.path().join("copy.db");
    let copied = {
        let (path, to) = (path.clone(), to.clone());
        tokio::task::spawn_blocking(move || backup(&path, &to)).await.unwrap().unwrap()
    };
    writer.await.unwrap();
    assert_eq!((copied.rows, copied.problems()), (500, Vec::new()));
    assert_eq!(fs::metadata(&to).unwrap().permissions().mode() & 0o777, 0o600);
    assert!(!names(&dir).iter().any(|name| name.starts_with("copy.db-")), "{:?}", names(&dir));
    assert!(backup(&path, &to).is_err(), "an existing file was overwritten");
    assert_eq!(whole(&to), copied);
    let restored = EdgeStore::open(&to, EdgeOptions::default()).unwrap();
    assert_eq!(restored.facts().totals, copied.totals);
    assert_eq!(restored.health().borrow().reset, None);
    restored.close().await;
    store.close().await;
}

#[tokio::test]
async fn private_names_are_those_of_sealed_kinds() {
    let (_dir, path, store) = filled(3).await;
    store.apply(vec![put("Secret", 1, 1), put("Widget", 1, 1)]).await.unwrap();
    assert_eq!(private_names(&path, &[]).unwrap(), ["secret-1"]);
    assert_eq!(private_names(&path, &["widgets".into()]).unwrap(), ["secret-1", "widget-1"]);
    store.close().await;
}

#[test]
fn foreign_and_missing_files_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("x.db");
    assert!(matches!(schema(&path), Err(StoreError::Unavailable(_))));
    fs::write(&path, "").unwrap();
    assert!(matches!(schema(&path), Err(StoreError::Foreign { found: 0, .. })));
    fs::write(&path, vec![7; 5000]).unwrap();
    assert!(matches!(inspect(&path, || true), Err(StoreError::Corrupt(_))));
    assert_eq!(names(&dir), ["x.db"]);
}
