//! A full disk: a small dedicated tmpfs, where mounting is permitted.

// The functions that tests call are tests too.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use crate::store::support;
use std::fs;
use std::path::Path;
use std::process::Command;

use edgesync::store::{EdgeStore, Writing};
use edgesync_store::StoreError;
use support::*;

/// A mounted tmpfs; unmounted when dropped.
struct Mount<'a>(&'a Path);

impl<'a> Mount<'a> {
    fn new(path: &'a Path, size: &str) -> Option<Self> {
        let options = format!("size={size}");
        let status = Command::new("mount").args(["-t", "tmpfs", "-o", &options, "tmpfs"]).arg(path).output();
        status.ok()?.status.success().then_some(Self(path))
    }
}

impl Drop for Mount<'_> {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("--lazy").arg(self.0).status();
    }
}

#[tokio::test]
async fn full_disk_rolls_back_writes_until_there_is_space() {
    let dir = tempfile::tempdir().unwrap();
    let Some(mount) = Mount::new(dir.path(), "1m") else {
        // The size limit has the same effects and is tested with the store itself.
        println!("skipped: no tmpfs can be mounted here");
        return;
    };
    let ballast = dir.path().join("ballast");
    fs::write(&ballast, vec![1; 300 << 10]).unwrap();
    let path = dir.path().join("edge.db");
    let mut options = quiet();
    options.engine.wal_bytes = 128 << 10;
    let store = EdgeStore::open(&path, options).unwrap();
    let mut stored = 0;
    let error = loop {
        match store.apply(batch(stored..stored + 10, 1)).await {
            Ok(_) => stored += 10,
            Err(error) => break error,
        }
    };
    assert!(matches!(error, StoreError::Full(_)), "{error}");
    assert!(stored > 100);
    assert_eq!(store.health().borrow().writing, Writing::Full);
    for _ in 0..3 {
        let result = store.apply(batch(stored..stored + 200, 1)).await;
        assert!(matches!(result, Err(StoreError::Full(_))), "{result:?}");
        assert_eq!(store.facts().totals.count, stored);
        assert_eq!(assert_consistent(&store).await.len() as u64, stored);
    }
    // Freed space is enough; the store needs no restart.
    fs::remove_file(&ballast).unwrap();
    store.apply(batch(stored..stored + 10, 1)).await.unwrap();
    assert_eq!(store.health().borrow().writing, Writing::Works);
    assert_eq!(store.health().borrow().reset, None);
    let facts = store.facts();
    store.close().await;
    let store = open(&path);
    assert_eq!(store.facts(), facts);
    assert_eq!(assert_consistent(&store).await.len() as u64, stored + 10);
    store.close().await;
    drop(mount);
}
