//! A card that moves from a 32-bit to a 64-bit device: objects, outbox and the rest survive, through power cuts too.

// The functions that tests call are tests too.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use crate::store::support;
use std::path::Path;

use edgesync::store::{EdgeOptions, EdgeStore, LocalKind, inspect};
use edgesync_protocol::upload::Lane;
use edgesync_store::checksum::Width;
use edgesync_store::migrate::EDGE;
use rusqlite::config::DbConfig;
use rusqlite::{Connection, OpenFlags};
use support::vfs::{Random, after_power_cut, register, write_image};
use support::*;

const EPOCH: &str = "d56362fa06614db7b0d12d96f77abfe0";

// Computed from the texts with another implementation of SipHash-2-4.
const GOLDEN_OBJECT: i64 = 2_324_039_325_538_622_497;
const GOLDEN_UID_KEY: i64 = 585_925_079;
const GOLDEN_KINDS: [i64; 2] = [-2_467_610_240_619_986_577, 2_152_789_324_686_059_188];
const GOLDEN_LOCAL: [i64; 2] = [-6_057_533_800_929_577_006, 5_801_592_761_475_337_005];
const GOLDEN_HASH: i64 = 1_602_465_840;
const GOLDEN_ITEM: i64 = 7_846_092_025_763_562_311;
const GOLDEN_MIGRATIONS: [i64; 3] =
    [1_000_740_229_979_528_630, 8_087_936_532_070_527_331, -330_873_292_036_984_120];

/// Makes the database that a 32-bit program has left when it was killed.
fn make(path: &Path, vfs: Option<&str>) {
    let flags = OpenFlags::default();
    let conn = match vfs {
        Some(vfs) => Connection::open_with_flags_and_vfs(path, flags, vfs).unwrap(),
        None => Connection::open_with_flags(path, flags).unwrap(),
    };
    conn.set_db_config(DbConfig::SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, true).unwrap();
    conn.execute_batch(
        "PRAGMA page_size = 4096; PRAGMA journal_mode = wal; PRAGMA synchronous = full; BEGIN;
         CREATE TABLE migrations (
           version INTEGER PRIMARY KEY, name TEXT NOT NULL, checksum INTEGER NOT NULL, applied TEXT NOT NULL
         ) STRICT;",
    )
    .unwrap();
    for migration in EDGE.iter().take(3) {
        conn.execute_batch(migration.sql).unwrap();
    }
    conn.execute_batch(include_str!("../fixtures/store/32-bit.sql")).unwrap();
    conn.execute_batch("PRAGMA application_id = 0x65737945; PRAGMA user_version = 3; COMMIT").unwrap();
}

/// Compares what is held with what the 32-bit program has said.
async fn assert_everything_is_there(store: &EdgeStore) {
    assert_eq!(store.health().borrow().reset, None);
    let facts = store.facts();
    let totals = facts.totals;
    assert_eq!((totals.epoch.to_string().as_str(), totals.revision, totals.count), (EPOCH, 6, 3));
    assert_eq!(totals.digest.to_string(), "9b68a85f49d73404368cc4bc516205e0");
    assert_eq!(facts.incarnation.as_deref(), Some("feb9e0bd2faf4720"));
    let version = async |uid| store.by_uid(uid).await.unwrap().map(|stored| stored.version.to_string());
    assert_eq!(version(uid(1)).await.as_deref(), Some("7"));
    assert_eq!(version(uid(2)).await.as_deref(), Some("8"));
    assert_eq!(version("u-plant".into()).await.as_deref(), Some("5"));
    assert_eq!(store.changes(0, 10).await.unwrap().entries.len(), 4, "the journal");
    let texts = async |lane| {
        let items = waiting(store, lane).await.into_iter();
        items.map(|(seq, text)| format!("{seq} {text}")).collect::<Vec<_>>().join("\n")
    };
    assert_eq!(texts(Lane::Status).await, r#"1 {"node":{"key":"status/u","text":"1"}}"#);
    assert!(texts(Lane::Events).await.ends_with(r#"2 {"node":{"key":"event/lab/b","text":"3"}}"#));
    assert!(texts(Lane::Bulk).await.contains(r#"2 {"node":{"key":"c","text":"4"}}"#));
    assert_eq!(store.outbox().borrow().marks.id, "60df9919b529c10a");
    assert!(all_local(store, LocalKind::Lease).await.contains_key("leader"));
    assert!(all_local(store, LocalKind::Event).await.contains_key("started"));
    assert_eq!(store.note("agent").await.unwrap().as_deref(), Some("has ended in order"));
}

#[tokio::test]
async fn a_database_of_a_32_bit_program_keeps_everything_and_goes_on() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("edge.db");
    make(&path, None);
    assert!(inspect::inspect(&path, || true).unwrap().unwrap().is_sound());
    let store = open(&path);
    assert_everything_is_there(&store).await;
    let check = store.check().await.unwrap();
    assert_eq!((check.rows, check.removed, check.local_removed, check.outbox_removed), (3, 0, 0, 0));
    // Rows are found again by their keys: nothing is there twice.
    store.apply(vec![put(1, 9)]).await.unwrap();
    store.post(vec![upload(Lane::Events, "event/lab/a", "newer")]).await.unwrap();
    assert_eq!(assert_consistent(&store).await.len(), 3);
    assert_eq!(waiting(&store, Lane::Events).await.len(), 2);
    store.close().await;
    // What stands there now has the width that every machine writes.
    let conn = Connection::open(&path).unwrap();
    let sums = |sql| {
        let mut statement = conn.prepare(sql).unwrap();
        statement.query_map([], |row| row.get(0)).unwrap().collect::<Result<Vec<i64>, _>>().unwrap()
    };
    assert_eq!(sums("SELECT checksum FROM objects WHERE uid = 'u-plant'"), [GOLDEN_OBJECT]);
    assert_eq!(sums("SELECT uid_key FROM objects WHERE uid = 'u-plant'"), [GOLDEN_UID_KEY]);
    assert_eq!(sums("SELECT checksum FROM resources"), GOLDEN_KINDS);
    assert_eq!(sums("SELECT checksum FROM local_objects"), GOLDEN_LOCAL);
    assert_eq!(sums("SELECT hash FROM outbox WHERE key = 'c'"), [GOLDEN_HASH]);
    assert_eq!(sums("SELECT checksum FROM outbox WHERE key = 'c'"), [GOLDEN_ITEM]);
    assert_eq!(sums("SELECT checksum FROM migrations"), GOLDEN_MIGRATIONS);
    let meta = |key: &str| {
        let sql = "SELECT value FROM meta WHERE key = ?1";
        conn.query_row(sql, [key], |row| row.get::<_, String>(0)).unwrap()
    };
    assert_eq!(meta("note/agent"), "5bafd07482fac03e has ended in order");
    assert_eq!(meta("api_base"), "1795345426265117 ac4800cde05e6156");
    assert_eq!(meta("kind/2"), r#"[2,"","v1","Namespace","namespaces",0,2152789324686059188]"#);
}

/// Gives objects, their kind and the migrations the checksums that a 32-bit program writes.
fn make_narrow(path: &Path) {
    let conn = Connection::open(path).unwrap();
    let kind = [&b""[..], b"v1", b"ConfigMap", b"configmaps", &[1]];
    let kind = Width::Narrow.checksum64(&kind);
    let tx = conn.unchecked_transaction().unwrap();
    tx.execute("UPDATE resources SET checksum = ?1", [kind]).unwrap();
    let mut statement =
        tx.prepare("SELECT namespace, name, uid, version, body, revision, id FROM objects").unwrap();
    let mut rows = statement.query([]).unwrap();
    while let Some(row) = rows.next().unwrap() {
        let text = |index| row.get_ref(index).unwrap().as_bytes().unwrap();
        let (revision, id): (i64, i64) = (row.get(5).unwrap(), row.get(6).unwrap());
        let (kind, revision) = (kind.to_le_bytes(), revision.to_le_bytes());
        let parts = [&kind[..], text(0), text(1), text(2), text(3), &revision, text(4)];
        let key = Width::Narrow.checksum64(&[text(2)]) & 0x7fff_ffff;
        let sums = (id, key, Width::Narrow.checksum64(&parts));
        tx.execute("UPDATE objects SET uid_key = ?2, checksum = ?3 WHERE id = ?1", sums).unwrap();
    }
    for (version, migration) in (1..).zip(EDGE) {
        let checksum = Width::Narrow.checksum64(&[migration.sql.as_bytes()]);
        tx.execute("UPDATE migrations SET checksum = ?2 WHERE version = ?1", (version, checksum)).unwrap();
    }
    drop(rows);
    drop(statement);
    tx.commit().unwrap();
}

#[tokio::test]
async fn a_larger_database_keeps_all_but_what_is_damaged() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("edge.db");
    let store = open(&path);
    store.apply(batch(0..1000, 1)).await.unwrap();
    store.close().await;
    make_narrow(&path);
    Connection::open(&path)
        .unwrap()
        .execute("UPDATE objects SET body = '{}' WHERE uid = ?1", [&*uid(500)])
        .unwrap();
    let mut options = quiet();
    options.engine.wal_bytes = 64 << 10;
    let store = EdgeStore::open(&path, options).unwrap();
    assert_eq!(store.health().borrow().reset, None);
    let check = store.check().await.unwrap();
    assert_eq!(check.rows - check.removed, 999);
    assert_eq!(assert_consistent(&store).await.len(), 999);
    for number in [0, 255, 256, 499, 501, 999] {
        assert!(store.by_uid(uid(number)).await.unwrap().is_some(), "{number}");
    }
}

#[tokio::test]
async fn a_damaged_database_of_a_32_bit_program_is_saved_like_any_other() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("edge.db");
    make(&path, None);
    Connection::open(&path).unwrap().execute_batch("DELETE FROM journal").unwrap();
    let store = open(&path);
    let reset = store.health().borrow().reset.clone().unwrap();
    assert_eq!((reset.kept, waiting(&store, Lane::Events).await.len()), (3, 2), "{reset:?}");
    assert!(store.by_uid(uid(2)).await.unwrap().is_some());
    let check = store.check().await.unwrap();
    assert_eq!((check.rows, check.removed, check.outbox_removed), (3, 0, 0));
}

#[tokio::test]
async fn a_power_cut_while_the_checksums_are_made_anew_costs_nothing() {
    let disk = register("widths");
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("edge.db");
    make(&path, Some("widths"));
    let made = disk.position();
    let mut options = quiet();
    options.engine.vfs = Some("widths".to_owned());
    let store = EdgeStore::open(&path, options).unwrap();
    store.close().await;
    let ops = disk.ops();
    assert!(ops.len() > made + 10, "{made} of {}", ops.len());
    for position in made..=ops.len() {
        let image = after_power_cut(&ops, position, true, &mut Random(position as u64));
        let dir = tempfile::tempdir().unwrap();
        write_image(dir.path(), &image);
        let store = EdgeStore::open(&dir.path().join("edge.db"), EdgeOptions::default()).unwrap();
        assert_everything_is_there(&store).await;
        store.close().await;
    }
}
