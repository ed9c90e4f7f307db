//! The database format: identical on every machine; a file in an unreleased format is set aside.

// The functions that tests call are tests too.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use crate::store::support;
use std::path::Path;

use edgesync::store::{EdgeStore, LocalKind, inspect};
use edgesync_protocol::upload::Lane;
use edgesync_store::StoreError;
use edgesync_store::checksum::checksum64;
use edgesync_store::mark;
use edgesync_store::migrate::EDGE;
use rusqlite::Connection;
use rusqlite::config::DbConfig;
use support::*;

const EPOCH: &str = "d56362fa06614db7b0d12d96f77abfe0";

// Computed from the same inputs with another implementation of SipHash-2-4.
const GOLDEN_OBJECT: i64 = 2_324_039_325_538_622_497;
const GOLDEN_UID_KEY: i64 = 585_925_079;
const GOLDEN_KINDS: [i64; 2] = [-2_467_610_240_619_986_577, 2_152_789_324_686_059_188];
const GOLDEN_LOCAL: [i64; 2] = [-6_057_533_800_929_577_006, 5_801_592_761_475_337_005];
const GOLDEN_HASH: i64 = 1_602_465_840;
const GOLDEN_ITEM: i64 = 7_846_092_025_763_562_311;

/// Creates the database that a killed program leaves.
fn make(path: &Path) {
    let conn = Connection::open(path).unwrap();
    conn.set_db_config(DbConfig::SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, true).unwrap();
    conn.execute_batch(
        "PRAGMA page_size = 4096; PRAGMA journal_mode = wal; PRAGMA synchronous = full; BEGIN;
         CREATE TABLE migrations (
           version INTEGER PRIMARY KEY, name TEXT NOT NULL, checksum INTEGER NOT NULL, applied TEXT NOT NULL
         ) STRICT;",
    )
    .unwrap();
    for (version, migration) in (1..).zip(EDGE) {
        conn.execute_batch(migration.sql).unwrap();
        let row = (version, migration.name, checksum64(&[migration.sql.as_bytes()]), "2026-11-22T11:03:46Z");
        conn.execute("INSERT INTO migrations VALUES (?1, ?2, ?3, ?4)", row).unwrap();
    }
    conn.execute_batch(include_str!("../fixtures/store/killed.sql")).unwrap();
    conn.pragma_update(None, "application_id", mark::AGENT).unwrap();
    conn.pragma_update(None, "user_version", EDGE.len()).unwrap();
    conn.execute_batch("COMMIT").unwrap();
}

/// Checks the contents against those that the killed program reported.
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
async fn database_of_another_machine_opens_with_everything() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("edge.db");
    make(&path);
    assert!(inspect::inspect(&path, || true).unwrap().unwrap().is_sound());
    let store = open(&path);
    assert_everything_is_there(&store).await;
    let check = store.check().await.unwrap();
    assert_eq!((check.rows, check.removed, check.local_removed, check.outbox_removed), (3, 0, 0, 0));
    // Updates find existing rows by their keys, so no row is duplicated.
    store.apply(vec![put(1, 9)]).await.unwrap();
    store.post(vec![upload(Lane::Events, "event/lab/a", "newer")]).await.unwrap();
    assert_eq!(assert_consistent(&store).await.len(), 3);
    assert_eq!(waiting(&store, Lane::Events).await.len(), 2);
    store.close().await;
    // Checksums and keys are the same on every machine.
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
    let meta = |key: &str| {
        let sql = "SELECT value FROM meta WHERE key = ?1";
        conn.query_row(sql, [key], |row| row.get::<_, String>(0)).unwrap()
    };
    assert_eq!(meta("note/agent"), "5bafd07482fac03e has ended in order");
    assert_eq!(meta("api_base"), "1795345426265117 ac4800cde05e6156");
    assert_eq!(meta("kind/2"), r#"[2,"","v1","Namespace","namespaces",0,2152789324686059188]"#);
}

#[tokio::test]
async fn database_of_an_unreleased_format_is_set_aside() {
    let dir = tempfile::tempdir().unwrap();
    for (readable, kept) in [("", 3), ("UPDATE objects SET checksum = 0;", 0)] {
        let path = dir.path().join(format!("edge-{kept}.db"));
        make(&path);
        let conn = Connection::open(&path).unwrap();
        let unreleased = "PRAGMA application_id = 0x65737945; PRAGMA user_version = 3;";
        conn.execute_batch(&format!("{readable} {unreleased}")).unwrap();
        drop(conn);
        let error = inspect::inspect(&path, || true).unwrap_err();
        assert!(matches!(error, StoreError::Unreleased { .. }), "{error}");
        let before = std::fs::read(&path).unwrap();

        let store = open(&path);
        let reset = store.health().borrow().reset.clone().unwrap();
        assert!(reset.cause.contains("from before the first release"), "{reset:?}");
        assert_eq!(reset.kept, kept, "{reset:?}");
        assert_eq!(std::fs::read(reset.set_aside.unwrap()).unwrap(), before);
        assert_ne!(store.facts().totals.epoch.to_string(), EPOCH, "the cloud compares");
        store.apply(batch(0..20, 9)).await.unwrap();
        assert_consistent(&store).await;
        assert!(store.by_uid(uid(19)).await.unwrap().is_some());
        store.close().await;
        assert_eq!(open(&path).health().borrow().reset, None);
    }
}
