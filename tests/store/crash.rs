//! Power cuts and failing disks. A workload runs once over a VFS that notes what is written and synced; then,
//! for one moment after another, the disk is built as a power cut would have left it, and opened.

// The functions that tests call are tests too.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use crate::store::support;
use std::collections::BTreeMap;

use edgesync::store::{EdgeOptions, EdgeStore, LocalKind, OutboxLimits, Writing};
use edgesync_protocol::replica::Totals;
use edgesync_protocol::upload::Lane;
use edgesync_store::StoreError;
use rusqlite::ffi;
use support::vfs::{Disk, Op, Random, after_power_cut, register, write_image};
use support::*;

/// What the store has said after a commit, and how far the disk was then.
struct Said {
    position: usize,
    totals: Totals,
    held: BTreeMap<String, String>,
}

fn options(vfs: &str) -> EdgeOptions {
    let mut options = quiet();
    options.engine.vfs = Some(vfs.to_owned());
    // Small, so that the log is copied into the database many times.
    options.engine.wal_bytes = 96 << 10;
    // So few that some are dropped.
    options.outbox = OutboxLimits { rows: 40, bytes: 1 << 20 };
    options
}

/// Applies batches of all sizes: new objects, updates, deletes, objects again under new versions.
async fn workload(store: &EdgeStore, disk: &Disk, commits: usize, random: &mut Random) -> Vec<Said> {
    let mut said = Vec::new();
    let mut held = outbox(store).await;
    for version in 1..=commits as u64 {
        let size = if random.below(8) == 0 { 40 } else { 1 + random.below(3) };
        let changes = (0..size)
            .map(|_| {
                let number = random.below(120);
                if random.below(4) == 0 {
                    held.remove(&*uid(number));
                    delete(number)
                } else {
                    held.insert(uid(number).to_string(), version.to_string());
                    put(number, version)
                }
            })
            .collect();
        let commit = store.apply(changes).await.unwrap();
        said.push(Said { position: disk.position(), totals: commit.totals, held: held.clone() });
        if random.below(3) == 0 {
            let name = format!("lease-{}", random.below(5));
            let lease =
                write_local(store, local(LocalKind::Lease, &name, &version.to_string())).await.unwrap();
            held.insert(name, lease.body);
            said.push(Said { position: disk.position(), totals: commit.totals, held: held.clone() });
        }
        if random.below(2) == 0 {
            let puts = 1 + random.below(6);
            let put = |_| {
                let lane = Lane::ALL[random.below(3) as usize];
                upload(lane, &format!("key-{}", random.below(30)), &version.to_string())
            };
            store.post((0..puts).map(put).collect()).await.unwrap();
            let position = disk.position();
            held.retain(|key, _| !key.starts_with("outbox/"));
            held.extend(outbox(store).await);
            said.push(Said { position, totals: commit.totals, held: held.clone() });
        }
        if random.below(3) == 0 {
            store.confirm(commit.totals.revision - random.below(4).min(commit.totals.revision));
        }
    }
    said
}

/// What waits in the outbox, and the last numbers of its lanes.
async fn outbox(store: &EdgeStore) -> BTreeMap<String, String> {
    let mut rows = BTreeMap::new();
    for lane in Lane::ALL {
        let items = waiting(store, lane).await;
        rows.extend(items.into_iter().map(|(seq, text)| (format!("outbox/{}/{seq}", lane.name()), text)));
        let last = store.outbox().borrow().marks.last.get(lane);
        rows.insert(format!("outbox/{}", lane.name()), last.to_string());
    }
    rows
}

/// Opens what a power cut has left and compares it with what was said before it.
async fn judge(ops: &[Op], said: &[Said], position: usize, syncs: bool, seed: u64) -> Result<(), String> {
    let mut random = Random(seed);
    let image = after_power_cut(ops, position, syncs, &mut random);
    let dir = tempfile::tempdir().unwrap();
    write_image(dir.path(), &image);
    let store = EdgeStore::open(&dir.path().join("edge.db"), quiet()).map_err(|error| error.to_string())?;
    if let Some(reset) = &store.health().borrow().reset {
        return Err(format!("{reset:?}"));
    }
    let totals = store.facts().totals;
    let check = store.check().await.map_err(|error| error.to_string())?;
    let mut held = held(&store).await;
    held.extend(
        all_local(&store, LocalKind::Lease).await.into_iter().map(|(name, lease)| (name, lease.body)),
    );
    held.extend(outbox(&store).await);
    store.close().await;
    if check.renewed {
        return Err("the totals do not match the rows".into());
    }
    // What was said last before the cut, or what came after it and was not said yet.
    let last = said.partition_point(|said| said.position <= position);
    let reported = last.checked_sub(1).map(|index| &said[index]);
    let candidates: Vec<&Said> = reported.into_iter().chain(said.get(last)).collect();
    if candidates.iter().any(|said| said.totals == totals && said.held == held) {
        return Ok(());
    }
    // Before the first commit there is nothing to lose.
    let nothing = held.iter().all(|(key, last)| key.starts_with("outbox/") && last == "0");
    if reported.is_none() && totals.revision == 0 && nothing {
        return Ok(());
    }
    Err(format!("revision {} with {} objects", totals.revision, held.len()))
}

async fn recorded(name: &str, commits: usize, seed: u64) -> (Vec<Op>, Vec<Said>) {
    let disk = register(name);
    let dir = tempfile::tempdir().unwrap();
    let store = EdgeStore::open(&dir.path().join("edge.db"), options(name)).unwrap();
    let said = workload(&store, disk, commits, &mut Random(seed)).await;
    store.close().await;
    (disk.ops(), said)
}

#[tokio::test]
async fn after_a_power_cut_at_any_moment_everything_reported_is_there_and_adds_up() {
    let (ops, said) = recorded("power-cut", 150, 1).await;
    let checkpoints = ops.iter().filter(|op| matches!(op, Op::Sync { file } if file == "edge.db")).count();
    assert!(ops.len() > 1000 && checkpoints > 10, "{} operations, {checkpoints} syncs", ops.len());
    for position in (0..=ops.len()).step_by(5) {
        let seed = position as u64;
        if let Err(error) = judge(&ops, &said, position, true, seed).await {
            panic!("cut after operation {position} of {}, seed {seed}: {error}", ops.len());
        }
    }
}

#[tokio::test]
async fn the_test_itself_notices_a_disk_that_does_not_sync() {
    let (ops, said) = recorded("lying-disk", 40, 2).await;
    let mut caught = 0;
    for position in (ops.len() / 2..ops.len()).step_by(20) {
        caught += u32::from(judge(&ops, &said, position, false, position as u64).await.is_err());
    }
    assert!(caught > 0, "a disk that syncs nothing must lose something");
}

#[tokio::test]
async fn a_failing_disk_fails_the_change_and_nothing_else() {
    let disk = register("failing");
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("edge.db");
    let store = EdgeStore::open(&path, options("failing")).unwrap();
    store.apply(batch(0..50, 1)).await.unwrap();
    for (round, code) in
        [ffi::SQLITE_FULL, ffi::SQLITE_READONLY, ffi::SQLITE_IOERR_WRITE, ffi::SQLITE_IOERR_FSYNC]
            .into_iter()
            .enumerate()
    {
        let before = store.facts();
        disk.fail_with(Some(code));
        let version = 2 + round as u64;
        let error = store.apply(batch(25..75, version)).await.unwrap_err();
        let writing = store.health().borrow().writing.clone();
        if code == ffi::SQLITE_FULL {
            assert!(matches!(error, StoreError::Full(_)) && writing == Writing::Full, "{error}");
        } else {
            assert!(matches!(error, StoreError::Unavailable(_)), "{error}");
            assert!(matches!(writing, Writing::Fails { .. }), "{writing:?}");
        }
        // Nothing half done, and reads go on.
        assert_eq!(store.facts(), before);
        assert_consistent(&store).await;
        let stored = store.by_uid(uid(25)).await.unwrap().unwrap();
        assert!(stored.version.is_older_than(&version.into()));
        // It works again, without a restart, once the disk does.
        disk.fail_with(None);
        store.apply(batch(25..75, version)).await.unwrap();
        assert_eq!(store.health().borrow().writing, Writing::Works);
        assert_eq!(assert_consistent(&store).await.len(), 75);
    }
    assert_eq!(store.health().borrow().reset, None);
    store.close().await;
    assert_eq!(assert_consistent(&open(&path)).await.len(), 75);
}
