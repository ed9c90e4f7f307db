//! The edge store through its public API: rules of applying changes, paging, restarts.

// The functions that tests call are tests too.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use crate::store::support;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use edgesync::store::{EdgeOptions, EdgeStore, Entry, ListCursor, Writing};
use edgesync_object::ResourceVersion;
use edgesync_protocol::change::{Change, Put, RejectReason};
use edgesync_protocol::digest::{BucketSet, Digest};
use edgesync_protocol::upload::Lane;
use edgesync_store::StoreError;
use edgesync_testkit::timing::{PATIENCE, within};
use support::vfs::{Random, register};
use support::*;

#[tokio::test]
async fn applied_changes_survive_a_restart() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("edge.db");
    let store = open(&path);
    let fresh = store.facts();
    assert_eq!((fresh.totals.revision, fresh.totals.count, fresh.totals.digest), (0, 0, Digest::default()));
    let commit = store.apply(batch(0..300, 7)).await.unwrap();
    assert_eq!((commit.before, commit.totals.revision, commit.totals.count), (0, 300, 300));
    assert_eq!(commit.applied.observed.len(), 300);
    store.set_incarnation(Some("cloud-1".into())).await.unwrap();
    store.confirm(200);
    let before = store.facts();
    store.close().await;

    let store = open(&path);
    assert_eq!(store.facts(), before);
    assert_eq!(store.facts().confirmed, 200);
    assert_eq!(store.facts().incarnation.as_deref(), Some("cloud-1"));
    assert_eq!(assert_consistent(&store).await.len(), 300);
    assert_eq!(store.health().borrow().clone(), Default::default());
}

#[tokio::test]
async fn stale_version_changes_nothing_and_reports_the_held_one() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(&dir.path().join("edge.db"));
    store.apply(vec![put(1, 10)]).await.unwrap();
    let commit = store.apply(vec![put(1, 9), put(1, 10)]).await.unwrap();
    assert_eq!((commit.before, commit.totals.revision), (1, 1));
    let held: Vec<_> = commit.applied.observed.iter().map(|seen| seen.version.clone().unwrap()).collect();
    assert_eq!(held, [ResourceVersion::from(10), ResourceVersion::from(10)]);

    let restored = Put { supersedes: Some(10.into()), ..put_sized(1, 4, 300) };
    let commit = store.apply(vec![Change::Put(restored)]).await.unwrap();
    assert_eq!(commit.totals.revision, 2);
    assert_eq!(assert_consistent(&store).await.values().collect::<Vec<_>>(), ["4"]);
}

#[tokio::test]
async fn deletes_remove_only_the_uid_they_name() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(&dir.path().join("edge.db"));
    let recreated = |version| Put { uid: uid(99), ..put_sized(1, version, 300) };
    store.apply(vec![put(1, 5)]).await.unwrap();
    // The new object arrives before the delete of the old one.
    let commit = store.apply(vec![Change::Put(recreated(8)), delete(1)]).await.unwrap();
    let seen: Vec<_> = commit
        .applied
        .observed
        .iter()
        .map(|seen| (seen.uid.clone(), seen.version.as_ref().map(ToString::to_string)))
        .collect();
    assert_eq!(seen, [(uid(1), None), (uid(99), Some("8".into())), (uid(1), None)]);
    assert_eq!(assert_consistent(&store).await, BTreeMap::from([(uid(99).to_string(), "8".to_owned())]));

    let late = store.apply(vec![put(1, 5)]).await.unwrap();
    assert_eq!(late.applied.rejected[0].reason, RejectReason::Stale);
}

#[tokio::test]
async fn older_version_of_another_uid_must_supersede_the_held_one() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(&dir.path().join("edge.db"));
    let other = |superseded: Option<u64>| {
        let supersedes = superseded.map(ResourceVersion::from);
        vec![Change::Put(Put { uid: uid(99), supersedes, ..put_sized(1, 3, 300) })]
    };
    store.apply(vec![put(1, 8)]).await.unwrap();
    for superseded in [None, Some(7), Some(9)] {
        let stale = store.apply(other(superseded)).await.unwrap();
        assert_eq!(stale.applied.rejected[0].reason, RejectReason::Stale, "{superseded:?}");
        assert_eq!((stale.totals.revision, stale.applied.observed.len()), (1, 0));
    }
    let commit = store.apply(other(Some(8))).await.unwrap();
    let seen: Vec<_> = commit.applied.observed.iter().map(|seen| (&seen.uid, seen.version.clone())).collect();
    assert_eq!(seen, [(&uid(1), None), (&uid(99), Some(3.into()))]);
    assert!(commit.applied.rejected.is_empty());
    assert_eq!(assert_consistent(&store).await, BTreeMap::from([(uid(99).to_string(), "3".to_owned())]));
}

#[tokio::test]
async fn object_is_the_same_in_every_version_of_its_group() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(&dir.path().join("edge.db"));
    let deployment = |group_version, number, version| {
        Change::Put(Put {
            resource: deployments(group_version),
            uid: uid(number),
            ..put_sized(1, version, 300)
        })
    };
    store.apply(vec![deployment("v1beta1", 1, 1)]).await.unwrap();
    store.apply(vec![deployment("v1", 1, 2)]).await.unwrap();
    assert_eq!(store.kinds().await.unwrap(), [(deployments("v1"), 1)]);
    // A recreated object replaces the old one in any version of the group.
    store.apply(vec![deployment("v1beta1", 2, 3)]).await.unwrap();
    assert_eq!(store.kinds().await.unwrap(), [(deployments("v1beta1"), 1)]);
    assert_eq!(assert_consistent(&store).await.len(), 1);
}

#[tokio::test]
async fn changes_are_listed_once_in_order_at_their_last_version() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(&dir.path().join("edge.db"));
    store.apply(batch(0..10, 1)).await.unwrap(); // revisions 1 to 10
    store.apply(batch(0..5, 2)).await.unwrap(); // 11 to 15
    store.apply(vec![delete(9)]).await.unwrap(); // 16
    let all = store.changes(0, 100).await.unwrap();
    let revisions: Vec<u64> = all.entries.iter().map(|entry| entry.revision).collect();
    assert_eq!(revisions, [6, 7, 8, 9, 11, 12, 13, 14, 15, 16]);
    assert_eq!((all.from, all.to, all.more), (0, 16, false));
    let tombstone = all.entries.last().unwrap();
    assert_eq!((&tombstone.uid, &tombstone.version), (&uid(9), &None));
    assert_eq!((&*tombstone.object.name, &*tombstone.object.resource.kind), ("settings-000009", "ConfigMap"));

    let mut paged = Vec::new();
    let mut after = 0;
    loop {
        let page = store.changes(after, 3).await.unwrap();
        assert!(page.entries.len() <= 3);
        paged.extend(page.entries);
        after = page.to;
        if !page.more {
            break;
        }
    }
    assert_eq!(paged, all.entries);
    assert_eq!(after, 16);
}

#[tokio::test]
async fn confirmed_changes_leave_the_journal_with_a_later_commit() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("edge.db");
    let store = open(&path);
    store.apply(batch(0..10, 1)).await.unwrap();
    store.confirm(8);
    store.confirm(3); // an outdated confirmation
    store.confirm(1_000_000); // of a revision that does not exist yet
    assert_eq!(store.facts().confirmed, 8);
    assert_eq!(store.changes(0, 100).await.unwrap().entries.len(), 10);
    store.apply(vec![put(20, 1)]).await.unwrap();
    let error = store.changes(7, 100).await.unwrap_err();
    assert!(matches!(error, StoreError::Compacted { after: 7, oldest: 8 }), "{error}");
    assert_eq!(store.changes(8, 100).await.unwrap().entries.len(), 3);
    store.confirm(11);
    store.close().await;
    let store = open(&path);
    assert_eq!(store.facts().confirmed, 11);
    let last = store.changes(11, 100).await.unwrap();
    assert!(last.entries.is_empty() && !last.more && last.to == 11);
}

#[tokio::test]
async fn confirmations_are_flushed_after_the_idle_delay() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("edge.db");
    let options = EdgeOptions { flush_after: Duration::from_millis(20), ..quiet() };
    let store = EdgeStore::open(&path, options).unwrap();
    store.apply(batch(0..10, 1)).await.unwrap();
    store.confirm(10);
    // Observes through a second connection that the journal shrinks.
    let reader = rusqlite::Connection::open(&path).unwrap();
    let journal =
        || reader.query_row("SELECT count(*) FROM journal", [], |row| row.get::<_, i64>(0)).unwrap();
    let shrunk = async {
        while journal() != 1 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    within("the confirmation is written", PATIENCE, shrunk).await;
}

#[tokio::test]
async fn inventory_of_some_buckets_has_only_their_objects() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(&dir.path().join("edge.db"));
    store.apply(batch(0..500, 3)).await.unwrap();
    let (totals, buckets) = store.buckets().await.unwrap();
    assert_eq!(totals, store.facts().totals);
    // The other side lacks two objects.
    let all = held(&store).await;
    let mut theirs = edgesync_protocol::digest::Buckets::default();
    for (uid_text, version) in &all {
        if *uid_text != *uid(17) && *uid_text != *uid(18) {
            theirs.add(totals.epoch, uid_text, &version.as_str().into());
        }
    }
    let differing = buckets.differing(&theirs);
    let mut set = BucketSet::default();
    set.insert(totals.epoch.bucket(&uid(17)));
    set.insert(totals.epoch.bucket(&uid(18)));
    assert_eq!(differing, set);
    let page = store.inventory(differing, None, 1000).await.unwrap();
    assert!(page.next.is_none());
    let expected = all.keys().filter(|uid| set.contains(totals.epoch.bucket(uid))).count();
    assert_eq!(page.entries.len(), expected);
    assert!(expected < 30 && page.entries.iter().any(|entry| entry.uid == uid(17)));
}

#[tokio::test]
async fn objects_are_read_by_name_uid_and_page() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(&dir.path().join("edge.db"));
    store.apply(batch(0..25, 3)).await.unwrap();
    let elsewhere = Put { namespace: "office".into(), uid: uid(100), ..put_sized(1, 9, 300) };
    store.apply(vec![Change::Put(elsewhere)]).await.unwrap();

    let stored = store.get(config_maps(), "plant".into(), "settings-000003".into()).await.unwrap().unwrap();
    let Change::Put(sent) = put(3, 3) else { unreachable!() };
    assert_eq!((&*stored.body, &stored.version, stored.revision), (sent.body.get(), &3.into(), 4));
    assert_eq!(store.by_uid(uid(3)).await.unwrap(), Some(stored));
    assert_eq!(store.get(config_maps(), "plant".into(), "nothing".into()).await.unwrap(), None);
    assert_eq!(store.get(deployments("v1"), "plant".into(), "settings-000003".into()).await.unwrap(), None);

    let mut names = Vec::new();
    let mut cursor: Option<ListCursor> = None;
    loop {
        let page = store.list(config_maps(), None, cursor, 7).await.unwrap();
        assert_eq!(page.revision, 26);
        names.extend(page.items.into_iter().map(|item| (item.object.namespace, item.object.name)));
        cursor = page.next;
        if cursor.is_none() {
            break;
        }
    }
    assert_eq!(names.len(), 26);
    assert!(names.is_sorted() && names[0].0 == "office");
    let office = store.list(config_maps(), Some("office".into()), None, 7).await.unwrap();
    assert_eq!((office.items.len(), office.next), (1, None));
    assert_eq!(store.kinds().await.unwrap(), [(config_maps(), 26)]);
}

#[tokio::test]
async fn list_pages_are_bounded_by_bytes_too() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(&dir.path().join("edge.db"));
    let large = |number| Change::Put(put_sized(number, 1, 700_000));
    store.apply(vec![large(1), large(2), large(3)]).await.unwrap();
    let page = store.list(config_maps(), None, None, 100).await.unwrap();
    assert_eq!(page.items.len(), 1);
    let page = store.list(config_maps(), None, page.next, 100).await.unwrap();
    assert_eq!((page.items.len(), &*page.items[0].object.name), (1, "settings-000002"));
}

#[tokio::test]
async fn waiting_applies_share_commits_with_revisions_of_their_own() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(&dir.path().join("edge.db"));
    let tasks: Vec<_> = (0..200u64)
        .map(|number| {
            let store = store.clone();
            tokio::spawn(async move { store.apply(vec![put(number, 1)]).await.unwrap() })
        })
        .collect();
    let mut revisions = Vec::new();
    for task in tasks {
        let commit = task.await.unwrap();
        assert_eq!(commit.totals.revision, commit.before + 1);
        revisions.push(commit.totals.revision);
    }
    revisions.sort_unstable();
    assert_eq!(revisions, (1..=200).collect::<Vec<_>>());
    let stats = store.stats().await.unwrap();
    assert!(stats.writer.commits < 200, "{stats:?}");
    assert_consistent(&store).await;
}

#[tokio::test]
async fn second_opener_gets_an_in_use_error() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("edge.db");
    let store = open(&path);
    assert!(matches!(EdgeStore::open(&path, quiet()), Err(StoreError::InUse { .. })));
    store.close().await;
    open(&path);
}

#[tokio::test]
async fn newer_database_is_set_aside_and_its_outbox_carried_over() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("edge.db");
    let store = open(&path);
    store.apply(batch(0..20, 1)).await.unwrap();
    store.set_incarnation(Some("feb9".into())).await.unwrap();
    store.post(vec![upload(Lane::Events, "event/lab/a", "1"), upload(Lane::Bulk, "b", "2")]).await.unwrap();
    let (epoch, outbox) = (store.facts().totals.epoch, store.outbox().borrow().marks.clone());
    store.close().await;
    let conn = rusqlite::Connection::open(&path).unwrap();
    let newer = "INSERT INTO migrations VALUES (77, '0077_x.sql', 0, ''); CREATE TABLE later (x TEXT) STRICT;
                 ALTER TABLE outbox ADD COLUMN later TEXT; PRAGMA user_version = 77;";
    conn.execute_batch(newer).unwrap();
    drop(conn);
    let before = std::fs::read(&path).unwrap();

    let store = open(&path);
    let reset = store.health().borrow().reset.clone().unwrap();
    assert!(reset.cause.contains("schema version 77, this program supports"), "{reset:?}");
    assert_eq!((reset.kept, reset.lost), (20, 0));
    let aside = reset.set_aside.unwrap();
    assert!(aside.to_str().unwrap().contains("edge.db.newer-"), "{aside:?}");
    assert_eq!(std::fs::read(&aside).unwrap(), before);
    let facts = store.facts();
    assert_ne!(facts.totals.epoch, epoch, "the cloud compares");
    assert_eq!((assert_consistent(&store).await.len(), facts.incarnation.as_deref()), (20, Some("feb9")));
    assert_eq!(waiting(&store, Lane::Events).await.len(), 1);
    assert_eq!(waiting(&store, Lane::Bulk).await.len(), 1);
    // Sequence numbers that the newer program may have assigned are not reused.
    let marks = store.outbox().borrow().marks.clone();
    assert_eq!(marks.id, outbox.id);
    assert!(marks.last.events > outbox.last.events, "{marks:?}");
    store.close().await;
    // From now on both this program and the newer one open it as usual.
    let store = open(&path);
    assert_eq!(store.health().borrow().reset, None);
    assert_eq!(waiting(&store, Lane::Events).await.len(), 1);
}

#[tokio::test]
async fn unreadable_newer_database_is_set_aside() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("edge.db");
    let store = open(&path);
    store.apply(batch(0..5, 1)).await.unwrap();
    store.close().await;
    let conn = rusqlite::Connection::open(&path).unwrap();
    let newer = "INSERT INTO migrations VALUES (77, '0077_x.sql', 0, '');
                 ALTER TABLE objects RENAME TO things; ALTER TABLE outbox RENAME TO queue; PRAGMA user_version = 77;";
    conn.execute_batch(newer).unwrap();
    drop(conn);
    let store = open(&path);
    let reset = store.health().borrow().reset.clone().unwrap();
    assert_eq!((reset.kept, reset.set_aside.unwrap().exists()), (0, true));
    store.apply(batch(0..5, 2)).await.unwrap();
}

#[tokio::test]
async fn foreign_database_is_refused_untouched() {
    let dir = tempfile::tempdir().unwrap();
    let foreign = dir.path().join("foreign.db");
    rusqlite::Connection::open(&foreign).unwrap().execute_batch("CREATE TABLE theirs (x)").unwrap();
    let error = EdgeStore::open(&foreign, quiet()).unwrap_err();
    assert!(matches!(error, StoreError::Foreign { .. }), "{error}");
}

#[tokio::test]
async fn older_copy_keeps_its_epoch_and_smaller_revision() {
    let dir = tempfile::tempdir().unwrap();
    let (path, copy) = (dir.path().join("edge.db"), dir.path().join("copy.db"));
    let store = open(&path);
    store.apply(batch(0..50, 1)).await.unwrap();
    store.close().await;
    std::fs::copy(&path, &copy).unwrap();
    let store = open(&path);
    let old = store.facts();
    store.apply(batch(25..75, 2)).await.unwrap();
    store.close().await;
    std::fs::rename(&copy, &path).unwrap();
    let store = open(&path);
    assert_eq!(store.facts(), old);
    assert_eq!(store.health().borrow().reset, None);
    assert_eq!(assert_consistent(&store).await.len(), 50);
}

#[tokio::test]
async fn size_limit_leaves_room_for_deletes_and_keeps_facts_exact() {
    let dir = tempfile::tempdir().unwrap();
    let mut options = quiet();
    options.engine.max_bytes = Some(400 << 10);
    let store = EdgeStore::open(&dir.path().join("edge.db"), options).unwrap();
    let (mut stored, error) = {
        let mut number = 0;
        loop {
            match store.apply(batch(number..number + 5, 1)).await {
                Ok(_) => number += 5,
                Err(error) => break (number, error),
            }
        }
    };
    assert!(matches!(error, StoreError::Full(_)), "{error}");
    assert_eq!(store.facts().totals.count, stored);
    assert_eq!(store.health().borrow().writing, Writing::Full);
    assert_eq!(assert_consistent(&store).await.len() as u64, stored);
    // Each delete needs space for its tombstone before it frees any.
    for number in 0..40 {
        store.apply(vec![delete(number)]).await.unwrap();
        stored -= 1;
    }
    assert_eq!(store.health().borrow().writing, Writing::Works);
    store.apply(batch(1000..1010, 1)).await.unwrap();
    assert_eq!(assert_consistent(&store).await.len() as u64, stored + 10);
}

#[tokio::test]
async fn dropped_store_releases_its_file() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("edge.db");
    drop(Arc::new(open(&path)));
    // The threads end on their own and then release the lock.
    let reopened = async {
        loop {
            match EdgeStore::open(&path, quiet()) {
                Err(StoreError::InUse { .. }) => tokio::time::sleep(Duration::from_millis(5)).await,
                other => break other,
            }
        }
    };
    within("the lock is released", PATIENCE, reopened).await.unwrap();
}

/// Returns all changes after a revision, read in pages of this size.
async fn paged(store: &EdgeStore, after: u64, limit: usize) -> Vec<(u64, String, Option<String>)> {
    let mut changes = Vec::new();
    let mut from = after;
    loop {
        let page = store.changes(from, limit).await.unwrap();
        assert!(page.entries.len() <= limit && page.from == from);
        let brief =
            |entry: Entry| (entry.revision, entry.uid.to_string(), entry.version.map(|v| v.to_string()));
        changes.extend(page.entries.into_iter().map(brief));
        if !page.more {
            assert_eq!(page.to, store.facts().totals.revision);
            return changes;
        }
        assert!(page.to > from, "a page must get on");
        from = page.to;
    }
}

#[tokio::test]
async fn closing_interrupts_a_check_of_the_whole_file() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("checked.db");
    let store = open(&path);
    for first in (0..6000).step_by(500) {
        store.apply(batch(first..first + 500, 1)).await.unwrap();
    }
    store.close().await;
    let pages = usize::try_from(std::fs::metadata(&path).unwrap().len() / 4096).unwrap();
    let mut options = quiet();
    options.engine.vfs = Some("checks".to_owned());
    let disk = register("checks");
    // By then the check has read all rows, and SQLite reads the whole file.
    let (reached, release) = disk.hold("checked.db", pages * 3 / 2);
    let store = EdgeStore::open(&path, options).unwrap();
    reached.recv().unwrap();
    store.apply(vec![put(1, 2)]).await.unwrap();
    let reads = disk.reads("checked.db");
    let mut closing = std::pin::pin!(store.close());
    let closed = std::future::poll_fn(|context| Poll::Ready(closing.as_mut().poll(context))).await;
    assert!(closed.is_pending());
    release.send(()).unwrap();
    closing.await;
    let reads = disk.reads("checked.db") - reads;
    assert!(reads < 100, "{reads} reads of a file of {pages} pages");
    let log = std::fs::metadata(dir.path().join("checked.db-wal")).map_or(0, |log| log.len());
    assert_eq!(log, 0, "it was closed in order");
}

#[tokio::test]
async fn changes_are_equal_in_rows_journal_and_after_a_crash() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("edge.db");
    let store = open(&path);
    let mut random = Random(7);
    let mut expected: Vec<(u64, String, Option<String>)> = Vec::new();
    let mut confirmed = 0;
    for round in 1..=60u64 {
        // Long runs of single updates, batches, deletes.
        let changes: Vec<Change> = match random.below(12) {
            0 => batch((0..30).map(|_| random.below(40)), round),
            1 => vec![delete(random.below(40))],
            _ => batch((0..=random.below(3)).map(|_| random.below(40)), round),
        };
        let commit = store.apply(changes).await.unwrap();
        let mut revision = commit.before;
        // Each change of a row takes one revision, in the order of the observations.
        for seen in &commit.applied.observed {
            let version = seen.version.as_ref().map(ToString::to_string);
            let same = |(_, uid, held): &&(u64, String, Option<String>)| **uid == *seen.uid && held.is_some();
            let held = expected.iter().rev().find(same).and_then(|(_, _, held)| held.clone());
            if held == version {
                continue;
            }
            revision += 1;
            expected.retain(|(_, uid, held)| *uid != *seen.uid || held.is_none());
            expected.push((revision, seen.uid.to_string(), version));
        }
        assert_eq!(revision, commit.totals.revision);
        if random.below(9) == 0 {
            confirmed = commit.totals.revision.saturating_sub(20).max(confirmed);
            store.confirm(confirmed);
        }
        for limit in [1, 7, 1000] {
            let after: Vec<_> = expected.iter().filter(|(of, ..)| *of > confirmed).cloned().collect();
            assert_eq!(paged(&store, confirmed, limit).await, after, "round {round}");
        }
        // The current files are those that a crash would leave.
        let copy = dir.path().join(format!("copy-{round}.db"));
        for suffix in ["", "-wal"] {
            std::fs::copy(dir.path().join(format!("edge.db{suffix}")), format!("{}{suffix}", copy.display()))
                .unwrap();
        }
        let crashed = open(&copy);
        assert_eq!(crashed.facts().totals, store.facts().totals, "round {round}");
        let after: Vec<_> = expected.iter().filter(|(of, ..)| *of > confirmed).cloned().collect();
        assert_eq!(paged(&crashed, confirmed, 5).await, after, "round {round}");
        assert!(!crashed.check().await.unwrap().renewed);
        assert_consistent(&crashed).await;
        crashed.close().await;
    }
}

#[tokio::test]
async fn database_and_log_are_readable_by_their_owner_only() {
    use std::os::unix::fs::PermissionsExt as _;
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("edge.db");
    let store = open(&path);
    store.apply(batch(0..3, 7)).await.unwrap();
    for file in ["edge.db", "edge.db-wal"] {
        let mode = std::fs::metadata(dir.path().join(file)).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600, "{file}");
    }
    store.close().await;
}

/// Flips a bit in the version of a row, then changes the row before a check notices it.
#[tokio::test]
async fn digest_mismatch_shows_in_buckets_and_is_repaired_by_a_check() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("edge.db");
    let store = open(&path);
    store.apply(batch(0..20, 7)).await.unwrap();
    let (totals, buckets) = store.buckets().await.unwrap();
    assert!(buckets.fits(totals.digest));
    let before = totals.epoch;
    let vandal = rusqlite::Connection::open(&path).unwrap();
    let sql = "UPDATE objects SET version = '5' WHERE id = (SELECT min(id) FROM objects)";
    assert_eq!(vandal.execute(sql, []).unwrap(), 1);
    drop(vandal);
    store.apply(batch(0..20, 8)).await.unwrap();
    let (totals, buckets) = store.buckets().await.unwrap();
    assert!(!buckets.fits(totals.digest));
    store.check().await.unwrap();
    let (totals, buckets) = store.buckets().await.unwrap();
    assert!(buckets.fits(totals.digest));
    assert_ne!(totals.epoch, before);
    store.close().await;
}

#[tokio::test]
async fn released_memory_leaves_the_contents_unchanged() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(&dir.path().join("edge.db"));
    store.apply(batch(0..300, 7)).await.unwrap();
    let before = store.facts();
    store.release_memory().await.unwrap();
    assert_eq!(store.facts(), before);
    store.apply(batch(0..300, 8)).await.unwrap();
    let (totals, buckets) = store.buckets().await.unwrap();
    assert_eq!(totals.count, 300);
    assert!(buckets.fits(totals.digest));
    store.close().await;
}
