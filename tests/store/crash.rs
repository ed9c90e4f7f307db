//! Power cuts and failing disks. A workload runs once over a VFS that records writes and syncs. The
//! tests then rebuild the disk as a power cut at each moment would leave it, and open the store.

// The functions that tests call are tests too.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use crate::store::support;
use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use edgesync::store::{EdgeOptions, EdgeStore, LocalKind, OutboxLimits, Writing};
use edgesync_protocol::apply::Totals;
use edgesync_protocol::edge::{Commit, EdgeConfig, EdgeEffect, EdgeMachine, EdgePhase};
use edgesync_protocol::frame::{Objects, Received, Up, Welcome};
use edgesync_protocol::timing::Now;
use edgesync_protocol::upload::Lane;
use edgesync_store::StoreError;
use edgesync_testkit::log::log;
use rusqlite::ffi;
use support::vfs::{Disk, Op, Random, after_power_cut, register, write_image};
use support::*;
use tracing::Level;

/// The totals and objects that the store reported after a commit, and the disk's position at that
/// time.
struct Acknowledged {
    position: usize,
    totals: Totals,
    held: BTreeMap<String, String>,
}

fn options(vfs: &str) -> EdgeOptions {
    let mut options = quiet();
    options.engine.vfs = Some(vfs.to_owned());
    // Small, so that many checkpoints run.
    options.engine.wal_bytes = 96 << 10;
    // Small, so that the outbox evicts items.
    options.outbox = OutboxLimits { rows: 40, bytes: 1 << 20 };
    options
}

/// Applies batches of all sizes: creates, updates, deletes and re-creations under new versions.
async fn workload(store: &EdgeStore, disk: &Disk, commits: usize, random: &mut Random) -> Vec<Acknowledged> {
    let mut acknowledged = Vec::new();
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
        acknowledged.push(Acknowledged {
            position: disk.position(),
            totals: commit.totals,
            held: held.clone(),
        });
        if random.below(3) == 0 {
            let name = format!("lease-{}", random.below(5));
            let lease =
                write_local(store, local(LocalKind::Lease, &name, &version.to_string())).await.unwrap();
            held.insert(name, lease.body);
            acknowledged.push(Acknowledged {
                position: disk.position(),
                totals: commit.totals,
                held: held.clone(),
            });
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
            acknowledged.push(Acknowledged { position, totals: commit.totals, held: held.clone() });
        }
        if random.below(3) == 0 {
            store.confirm(commit.totals.revision - random.below(4).min(commit.totals.revision));
        }
    }
    acknowledged
}

/// Returns the pending items of the outbox, and the last numbers of its lanes.
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

/// Opens and closes a database as `sqlite3` does, which copies and removes the log.
fn look(path: &Path) {
    if let Ok(conn) = rusqlite::Connection::open(path) {
        // A file from before its first commit is not readable yet.
        let _ = conn.query_row("SELECT count(*) FROM sqlite_schema", [], |_| Ok(()));
    }
}

/// Opens the disk after a power cut and compares it with the commits that were acknowledged before.
/// The state after a power cut causes no warning.
async fn verify(
    ops: &[Op],
    acknowledged: &[Acknowledged],
    position: usize,
    syncs: bool,
    seed: u64,
) -> Result<(), String> {
    let mut random = Random(seed);
    let image = after_power_cut(ops, position, syncs, &mut random);
    let dir = tempfile::tempdir().unwrap();
    write_image(dir.path(), &image);
    if seed.is_multiple_of(3) {
        look(&dir.path().join("edge.db"));
    }
    let (_logging, mut lines) = log(Level::WARN);
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
    if let Ok(line) = lines.try_recv() {
        return Err(line);
    }
    if check.renewed {
        return Err("the totals do not match the rows".into());
    }
    // The last acknowledged commit, or a later one that was not acknowledged yet.
    let last = acknowledged.partition_point(|acknowledged| acknowledged.position <= position);
    let reported = last.checked_sub(1).map(|index| &acknowledged[index]);
    let candidates: Vec<&Acknowledged> = reported.into_iter().chain(acknowledged.get(last)).collect();
    if candidates.iter().any(|acknowledged| acknowledged.totals == totals && acknowledged.held == held) {
        return Ok(());
    }
    // Before the first acknowledged commit the store may be empty.
    let nothing = held.iter().all(|(key, last)| key.starts_with("outbox/") && last == "0");
    if reported.is_none() && totals.revision == 0 && nothing {
        return Ok(());
    }
    Err(format!("revision {} with {} objects", totals.revision, held.len()))
}

async fn recorded(name: &str, commits: usize, seed: u64) -> (Vec<Op>, Vec<Acknowledged>) {
    let disk = register(name);
    let dir = tempfile::tempdir().unwrap();
    let store = EdgeStore::open(&dir.path().join("edge.db"), options(name)).unwrap();
    let acknowledged = workload(&store, disk, commits, &mut Random(seed)).await;
    store.close().await;
    (disk.ops(), acknowledged)
}

#[tokio::test]
async fn acknowledged_commits_survive_a_power_cut_at_any_moment() {
    let (ops, acknowledged) = recorded("power-cut", 150, 1).await;
    let checkpoints = ops.iter().filter(|op| matches!(op, Op::Sync { file } if file == "edge.db")).count();
    assert!(ops.len() > 1000 && checkpoints > 10, "{} operations, {checkpoints} syncs", ops.len());
    for position in (0..=ops.len()).step_by(5) {
        let seed = position as u64;
        if let Err(error) = verify(&ops, &acknowledged, position, true, seed).await {
            panic!("cut after operation {position} of {}, seed {seed}: {error}", ops.len());
        }
    }
}

#[tokio::test]
async fn power_cut_test_detects_a_disk_that_does_not_sync() {
    let (ops, acknowledged) = recorded("lying-disk", 40, 2).await;
    let mut caught = 0;
    for position in (ops.len() / 2..ops.len()).step_by(20) {
        caught += u32::from(verify(&ops, &acknowledged, position, false, position as u64).await.is_err());
    }
    assert!(caught > 0, "a disk that syncs nothing must lose something");
}

#[tokio::test]
async fn failing_disk_fails_only_the_change() {
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
        // The change is rolled back, and reads succeed.
        assert_eq!(store.facts(), before);
        assert_consistent(&store).await;
        let stored = store.by_uid(uid(25)).await.unwrap().unwrap();
        assert!(stored.version.is_older_than(&version.into()));
        // Writes succeed again without a restart once the disk works.
        disk.fail_with(None);
        store.apply(batch(25..75, version)).await.unwrap();
        assert_eq!(store.health().borrow().writing, Writing::Works);
        assert_eq!(assert_consistent(&store).await.len(), 75);
    }
    assert_eq!(store.health().borrow().reset, None);
    store.close().await;
    assert_eq!(assert_consistent(&open(&path)).await.len(), 75);
}

/// Updates in place are kept in memory until the journal is written. A change that counted twice
/// would also fail that write.
#[tokio::test]
async fn changes_of_a_failed_commit_are_forgotten() {
    let disk = register("rolled-back");
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("edge.db");
    let store = EdgeStore::open(&path, options("rolled-back")).unwrap();
    store.apply(batch(0..10, 1)).await.unwrap();
    store.apply(batch([0], 2)).await.unwrap();
    for (version, failed, then) in
        [(3, [1, 2, 3], [4, 5, 6]), (4, [1, 2, 3], [3, 2, 1]), (5, [1, 2, 3], [1, 2, 3])]
    {
        disk.fail_with(Some(ffi::SQLITE_FULL));
        store.apply(batch(failed, version)).await.unwrap_err();
        disk.fail_with(None);
        store.apply(batch(then, version)).await.unwrap();
        assert_changes_equal_a_fresh_read(&store, &path).await;
    }
    // A removal is written to the journal, with all that only the rows record.
    store.apply(vec![delete(9)]).await.unwrap();
    assert_changes_equal_a_fresh_read(&store, &path).await;
}

/// Compares the changes with those of a store that has never seen a failure.
async fn assert_changes_equal_a_fresh_read(store: &EdgeStore, path: &Path) {
    let changes = store.changes(0, 100).await.unwrap().entries;
    let dir = tempfile::tempdir().unwrap();
    let copy = dir.path().join("edge.db");
    copy_database(path, &copy);
    let fresh = open(&copy);
    assert_eq!(changes, fresh.changes(0, 100).await.unwrap().entries);
    assert_eq!(changes.len(), 10, "each object once, held or removed");
    fresh.close().await;
}

const NOW: Now = Duration::from_secs(1);

/// Returns the effects that the machine demands once its frames have left.
fn effects(machine: &mut EdgeMachine) -> Vec<EdgeEffect> {
    while machine.poll_frame(NOW).is_some() {}
    std::iter::from_fn(|| machine.poll_effect()).collect()
}

/// Returns the revision after which the machine reads changes, and their largest number.
fn next_read(machine: &mut EdgeMachine) -> (u64, usize) {
    let read = |effect| {
        if let EdgeEffect::ReadChanges { after, limit } = effect { Some((after, limit)) } else { None }
    };
    effects(machine).into_iter().find_map(read).expect("must read changes")
}

fn edge_config() -> EdgeConfig {
    EdgeConfig {
        node: "edge".into(),
        agent: "test".into(),
        max_frame: 256 << 10,
        max_object: 8 << 20,
        hello_timeout: Duration::from_secs(10),
        report_timeout: Duration::from_secs(10),
        retry_max: Duration::from_secs(60),
        report_attempts: 4,
        max_applying: 8,
        lease_interval: Duration::from_secs(10),
        lease_duration: Duration::from_secs(40),
        patches: false,
    }
}

/// A power cut loses the last confirmation. The Welcome repeats it, and the commit of the first
/// object cuts the journal there, before the page that the Hello began is read.
#[tokio::test]
async fn a_confirmation_overtakes_a_read_after_a_power_cut() {
    let disk = register("overtaken");
    let dir = tempfile::tempdir().unwrap();
    let store = EdgeStore::open(&dir.path().join("edge.db"), options("overtaken")).unwrap();
    store.apply(batch(0..30, 1)).await.unwrap();
    store.confirm(10);
    store.apply(batch(0..10, 2)).await.unwrap();
    store.confirm(38);
    let (ops, position) = (disk.ops(), disk.position());
    store.close().await;
    let image = after_power_cut(&ops, position, true, &mut Random(7));
    let dir = tempfile::tempdir().unwrap();
    write_image(dir.path(), &image);
    let store = EdgeStore::open(&dir.path().join("edge.db"), quiet()).unwrap();
    let facts = store.facts();
    assert_eq!((facts.totals.revision, facts.confirmed), (40, 10));

    let mut machine = EdgeMachine::new(edge_config(), facts.totals, facts.confirmed, None);
    machine.connected(NOW, 256 << 10, 1 << 32);
    let Some(Up::Hello(hello)) = machine.poll_frame(NOW) else { panic!("must be a Hello") };
    assert_eq!((hello.revision, hello.confirmed), (40, Some(10)));
    let (after, limit) = next_read(&mut machine);
    let (session, incarnation) = (hello.session.clone(), None);
    let welcome = Welcome {
        session,
        incarnation,
        confirmed: 38,
        pending: 1,
        held: 0,
        register: false,
        features: Vec::new(),
        waiting: Default::default(),
    };
    machine.received(NOW, Received::Welcome(welcome), 0);
    let (session, changes) = (hello.session.clone(), vec![put(100, 3)]);
    let objects = Objects { session, changes, rejected: Vec::new(), receipt: 1 };
    machine.received(NOW, Received::Objects(objects), 0);
    for effect in effects(&mut machine) {
        match effect {
            EdgeEffect::Confirm(revision) => store.confirm(revision),
            EdgeEffect::Apply { token, changes } => {
                let edgesync::store::Commit { before, totals, applied } = store.apply(changes).await.unwrap();
                machine.applied(NOW, token, Ok(Commit { before, totals, applied }), 0);
            }
            _ => {}
        }
    }
    let error = store.changes(after, limit).await.unwrap_err();
    assert!(matches!(error, StoreError::Compacted { after: 10, oldest: 38 }), "{error}");

    machine.changes_compacted(NOW, after);
    let (after, limit) = next_read(&mut machine);
    let page = store.changes(after, limit).await.unwrap();
    let revisions: Vec<u64> = page.entries.iter().map(|entry| entry.revision).collect();
    assert_eq!((after, revisions), (38, vec![39, 40, 41]));
    assert_eq!((machine.phase(), machine.session()), (EdgePhase::Live, Some(hello.session.as_str())));
    store.close().await;
}
