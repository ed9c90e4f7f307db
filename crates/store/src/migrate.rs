//! Schema migrations: numbered SQL files, each applied once, in its own transaction.
//!
//! `PRAGMA user_version` is the version of a file. The table `migrations` stores the checksum of
//! each applied file, so that an edited migration is detected.

use std::path::Path;

use rusqlite::{Connection, OptionalExtension, TransactionBehavior};

use super::StoreError;
use super::checksum::checksum64;

/// One numbered SQL file. Its version is its position in the list, from one.
#[derive(Clone, Copy, Debug)]
pub struct Migration {
    /// The file's name, such as `0001_schema.sql`.
    pub name: &'static str,
    /// The SQL statements of the file.
    pub sql: &'static str,
}

impl Migration {
    fn checksum(&self) -> i64 {
        checksum64(&[self.sql.as_bytes()])
    }
}

/// The migrations of `migrations/edge`, in order.
pub const EDGE: &[Migration] =
    &[Migration { name: "0001_schema.sql", sql: include_str!("../../../migrations/edge/0001_schema.sql") }];

/// The migrations of `migrations/cloud`, in order.
pub const CLOUD: &[Migration] =
    &[Migration { name: "0001_schema.sql", sql: include_str!("../../../migrations/cloud/0001_schema.sql") }];

/// The schema of a replica's cache, which is rebuilt rather than migrated.
pub const CACHE: &[Migration] =
    &[Migration { name: "0001_schema.sql", sql: include_str!("../../../migrations/cache/0001_schema.sql") }];

/// Returns the version of the newest schema.
#[must_use]
pub fn newest(migrations: &[Migration]) -> u32 {
    u32::try_from(migrations.len()).unwrap_or(u32::MAX)
}

/// Migrates the file to the newest schema.
///
/// # Errors
/// [`StoreError::Newer`] if a newer program wrote the file, [`StoreError::MigrationChanged`] if it
/// has other migrations; both before anything is changed.
pub fn migrate(conn: &mut Connection, path: &Path, migrations: &[Migration]) -> Result<(), StoreError> {
    let found: u32 = conn.pragma_query_value(None, "user_version", |row| row.get(0))?;
    let known = newest(migrations);
    if found > known {
        let applied: Option<u32> = conn
            .query_row("SELECT max(version) FROM migrations", [], |row| row.get(0))
            .optional()
            .unwrap_or_default();
        if applied != Some(found) {
            return Err(StoreError::corrupt(format!("schema version {found} was never applied")));
        }
        return Err(StoreError::Newer { path: path.to_owned(), found, known });
    }
    for (version, migration) in (1u32..).zip(migrations) {
        if version <= found {
            check(conn, path, version, migration)?;
        } else {
            apply(conn, version, migration)?;
        }
    }
    Ok(())
}

/// Returns whether the file was made with these migrations, regardless of its header.
///
/// # Errors
/// See [`StoreError`].
pub(crate) fn made_with(conn: &Connection, migrations: &[Migration]) -> Result<bool, StoreError> {
    let Some(first) = migrations.first() else { return Ok(false) };
    let table = "SELECT count(*) FROM sqlite_schema WHERE type = 'table' AND name = 'migrations'";
    if conn.query_row(table, [], |row| row.get::<_, i64>(0))? == 0 {
        return Ok(false);
    }
    let applied: Option<String> = conn
        .query_row("SELECT name FROM migrations WHERE checksum = ?1", [first.checksum()], |row| row.get(0))
        .optional()?;
    Ok(applied.as_deref() == Some(first.name))
}

/// Compares an applied migration with the program's one.
fn check(conn: &Connection, path: &Path, version: u32, migration: &Migration) -> Result<(), StoreError> {
    let sql = "SELECT checksum FROM migrations WHERE version = ?1";
    let applied: Option<i64> = conn.query_row(sql, [version], |row| row.get(0)).optional()?;
    if applied == Some(migration.checksum()) {
        return Ok(());
    }
    Err(StoreError::MigrationChanged { path: path.to_owned(), version })
}

fn apply(conn: &mut Connection, version: u32, migration: &Migration) -> Result<(), StoreError> {
    let tx = conn.transaction_with_behavior(TransactionBehavior::Immediate)?;
    tx.execute_batch(
        "CREATE TABLE IF NOT EXISTS migrations (
           version INTEGER PRIMARY KEY, name TEXT NOT NULL, checksum INTEGER NOT NULL, applied TEXT NOT NULL
         ) STRICT",
    )?;
    tx.execute_batch(migration.sql)?;
    tx.execute(
        "INSERT INTO migrations (version, name, checksum, applied) VALUES (?1, ?2, ?3, ?4)",
        (version, migration.name, migration.checksum(), jiff::Timestamp::now().to_string()),
    )?;
    tx.pragma_update(None, "user_version", version)?;
    tx.commit()?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    const ONE: Migration = Migration { name: "0001_a.sql", sql: "CREATE TABLE a (x INTEGER) STRICT;" };
    const TWO: Migration = Migration { name: "0002_b.sql", sql: "CREATE TABLE b (x INTEGER) STRICT;" };
    const BROKEN: Migration =
        Migration { name: "0002_b.sql", sql: "CREATE TABLE b (x INTEGER) STRICT; SELECT nonsense;" };

    fn run(conn: &mut Connection, list: &[Migration]) -> Result<(), StoreError> {
        migrate(conn, Path::new("test.db"), list)
    }

    fn tables(conn: &Connection) -> i64 {
        conn.query_row("SELECT count(*) FROM sqlite_schema WHERE name IN ('a', 'b')", [], |row| row.get(0))
            .unwrap()
    }

    #[test]
    fn each_migration_is_applied_once() {
        let mut conn = Connection::open_in_memory().unwrap();
        run(&mut conn, &[ONE]).unwrap();
        run(&mut conn, &[ONE, TWO]).unwrap();
        run(&mut conn, &[ONE, TWO]).unwrap();
        let applied: i64 = conn.query_row("SELECT count(*) FROM migrations", [], |row| row.get(0)).unwrap();
        assert_eq!((tables(&conn), applied), (2, 2));
    }

    #[test]
    fn a_failed_migration_leaves_nothing_behind() {
        let mut conn = Connection::open_in_memory().unwrap();
        run(&mut conn, &[ONE, BROKEN]).unwrap_err();
        assert_eq!(tables(&conn), 1);
        run(&mut conn, &[ONE, TWO]).unwrap();
        assert_eq!(tables(&conn), 2);
    }

    #[test]
    fn a_newer_database_is_refused_and_says_both_versions() {
        let mut conn = Connection::open_in_memory().unwrap();
        run(&mut conn, &[ONE, TWO]).unwrap();
        let error = run(&mut conn, &[ONE]).unwrap_err();
        assert!(matches!(error, StoreError::Newer { found: 2, known: 1, .. }), "{error}");
        assert!(error.to_string().contains("'test.db' has schema version 2"), "{error}");
    }

    #[test]
    fn an_edited_migration_is_refused() {
        let mut conn = Connection::open_in_memory().unwrap();
        run(&mut conn, &[ONE]).unwrap();
        let edited = Migration { sql: "CREATE TABLE a (y INTEGER) STRICT;", ..ONE };
        let error = run(&mut conn, &[edited]).unwrap_err();
        assert!(matches!(error, StoreError::MigrationChanged { version: 1, .. }), "{error}");
    }

    /// Checks that every file under `migrations/<side>` is listed, in order, under its number.
    fn assert_listed(side: &str, list: &[Migration]) {
        let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../migrations").join(side);
        let mut files: Vec<String> = std::fs::read_dir(dir)
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .filter(|name| name.ends_with(".sql"))
            .collect();
        files.sort();
        let listed: Vec<&str> = list.iter().map(|migration| migration.name).collect();
        assert_eq!(files, listed, "migrations/{side}");
        for (version, name) in (1..).zip(&listed) {
            assert!(name.starts_with(&format!("{version:04}_")), "{name} must start with {version:04}_");
        }
    }

    #[test]
    fn every_file_in_the_directory_is_listed() {
        assert_listed("edge", EDGE);
        assert_listed("cloud", CLOUD);
        assert_listed("cache", CACHE);
    }
}
