//! Changes to apply to a store, and the model to compare it with.
// A panic here fails the calling test.
#![allow(unreachable_pub, clippy::unwrap_used)]

pub mod vfs;

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use edgesync::store::{
    EdgeOptions, EdgeStore, Entry, LocalKind, LocalObject, LocalOutcome, LocalWrite, MonotonicTime,
    OutboxPut, OutboxWrite, Scan, ScanRow,
};
use edgesync_object::{Resource, ResourceVersion, Scope};
use edgesync_protocol::change::{Change, Delete, Put, Uid};
use edgesync_protocol::digest::{BucketSet, Digest};
use edgesync_protocol::upload::Lane;
use serde_json::value::RawValue;

pub fn config_maps() -> Arc<Resource> {
    Arc::new(Resource {
        group: String::new(),
        version: "v1".into(),
        kind: "ConfigMap".into(),
        plural: "configmaps".into(),
        scope: Scope::Namespaced,
    })
}

pub fn deployments(version: &str) -> Arc<Resource> {
    Arc::new(Resource {
        group: "apps".into(),
        version: version.into(),
        kind: "Deployment".into(),
        plural: "deployments".into(),
        scope: Scope::Namespaced,
    })
}

/// A UID that looks like a random one of the API server, derived from a number.
pub fn uid(number: u64) -> Uid {
    let mixed = u128::from(number.wrapping_mul(0x9e37_79b9_7f4a_7c15)) << 64
        | u128::from(number.wrapping_mul(0xc2b2_ae3d_27d4_eb4f));
    uuid::Builder::from_random_bytes(mixed.to_be_bytes()).into_uuid().to_string().into()
}

/// A ConfigMap with a body of about `bytes` bytes.
pub fn put_sized(number: u64, version: u64, bytes: usize) -> Put {
    let (uid, name) = (uid(number), format!("settings-{number:06}"));
    let head = format!(
        r#"{{"apiVersion":"v1","kind":"ConfigMap","metadata":{{"name":"{name}","namespace":"plant","uid":"{uid}","resourceVersion":"{version}"}},"data":{{"text":""#
    );
    let filler = "abcdefghij0123456789".repeat(bytes.saturating_sub(head.len() + 4) / 20 + 1);
    let filler = &filler[..bytes.saturating_sub(head.len() + 4)];
    Put {
        uid,
        version: ResourceVersion::from(version),
        supersedes: None,
        resource: config_maps(),
        namespace: "plant".into(),
        name: name.into(),
        body: RawValue::from_string(format!("{head}{filler}\"}}}}")).unwrap(),
    }
}

pub fn put(number: u64, version: u64) -> Change {
    Change::Put(put_sized(number, version, 300))
}

pub fn delete(number: u64) -> Change {
    Change::Delete(Delete {
        uid: uid(number),
        key: config_maps().key("plant", &format!("settings-{number:06}")),
    })
}

pub fn batch(numbers: impl IntoIterator<Item = u64>, version: u64) -> Vec<Change> {
    numbers.into_iter().map(|number| put(number, version)).collect()
}

/// Options under which background work does not interfere.
pub fn quiet() -> EdgeOptions {
    EdgeOptions { check_pause: Duration::ZERO, ..EdgeOptions::default() }
}

pub fn open(path: &Path) -> EdgeStore {
    EdgeStore::open(path, quiet()).unwrap()
}

/// Returns everything held, read by inventory pages.
pub async fn held(store: &EdgeStore) -> BTreeMap<String, String> {
    let mut held = BTreeMap::new();
    let mut every = BucketSet::default();
    (0..=u8::MAX).for_each(|bucket| every.insert(bucket));
    let mut cursor = None;
    loop {
        let page = store.inventory(every, cursor, 100).await.unwrap();
        for Entry { uid, version, .. } in page.entries {
            assert!(held.insert(uid.to_string(), version.unwrap().to_string()).is_none(), "{uid} twice");
        }
        match page.next {
            Some(next) => cursor = Some(next),
            None => return held,
        }
    }
}

/// A Lease or Event to write.
pub fn local(kind: LocalKind, name: &str, text: &str) -> LocalObject {
    let body = format!(r#"{{"metadata":{{"name":"{name}","namespace":"lab"}},"note":"{text}"}}"#);
    LocalObject { kind, namespace: "lab".into(), name: name.into(), version: 0, body }
}

/// Creates an object or updates the existing one.
pub async fn write_local(store: &EdgeStore, object: LocalObject) -> LocalOutcome {
    let held = store.local(object.kind, object.namespace.clone(), object.name.clone()).await.unwrap();
    let write = match held {
        None => LocalWrite::Create(object),
        Some(held) => LocalWrite::Update(object, held.version),
    };
    store.write_local(write, MonotonicTime::default()).await.unwrap()
}

/// Returns all local objects of a kind by name.
pub async fn all_local(store: &EdgeStore, kind: LocalKind) -> BTreeMap<String, LocalObject> {
    let snapshot = store.snapshot().await.unwrap().unwrap();
    let scan = Scan::Local { kind, namespace: None, name: None, after: None };
    let read = snapshot.scan(scan, BTreeMap::new(), |found, row| {
        let ScanRow::Local(object) = row else { unreachable!() };
        found.insert(object.name.clone(), object);
        std::ops::ControlFlow::Continue(())
    });
    read.await.unwrap()
}

/// An outbox item with the key in its content.
pub fn upload(lane: Lane, key: &str, text: &str) -> OutboxWrite {
    let content = format!(r#"{{"node":{{"key":"{key}","text":"{text}"}}}}"#);
    OutboxWrite::Upload(OutboxPut {
        lane,
        key: key.to_owned(),
        at: MonotonicTime { boot: 1, since_boot: 5 },
        content,
    })
}

/// Returns all pending items of a lane: numbers and contents.
pub async fn waiting(store: &EdgeStore, lane: Lane) -> Vec<(u64, String)> {
    let mut items: Vec<(u64, String)> = Vec::new();
    loop {
        let after = items.last().map_or(0, |(seq, _)| *seq);
        let page = store.outbox_page(lane, after, 100, 1 << 20).await.unwrap();
        if page.is_empty() {
            return items;
        }
        for item in page {
            assert!(item.seq > items.last().map_or(0, |(seq, _)| *seq), "{lane:?} is not in order");
            items.push((item.seq, item.content.get().to_owned()));
        }
    }
}

/// Copies a database as a crash would leave it.
pub fn copy_database(from: &Path, to: &Path) {
    for suffix in ["", "-wal"] {
        let with = |path: &Path| format!("{}{suffix}", path.display());
        std::fs::copy(with(from), with(to)).unwrap();
    }
}

/// Asserts that count and digest match the rows, and returns the rows.
pub async fn assert_consistent(store: &EdgeStore) -> BTreeMap<String, String> {
    let held = held(store).await;
    let totals = store.facts().totals;
    let mut digest = Digest::default();
    for (uid, version) in &held {
        digest.add(totals.epoch, uid, &version.as_str().into());
    }
    assert_eq!(totals.count, held.len() as u64, "count");
    assert_eq!(totals.digest, digest, "digest");
    held
}
