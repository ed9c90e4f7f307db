//! Databases that a 32-bit program of version 0.1.0 has made: their checksums, and the keys of two indexes, are made
//! anew once, in place.
//!
//! Each transaction takes some rows, and reads hold in either width ([`Width::any`]), so a power cut costs nothing: the
//! checksums of the migrations come last, and as long as they are narrow the next opening goes on.

use rusqlite::{Connection, Row};

use super::new_file::KIND;
use super::rows::{OBJECT_COLUMNS, ObjectRow, Resources, uid_key};
use super::{journal, local, notes, outbox};
use edgesync_store::StoreError;
use edgesync_store::checksum::Width;
use edgesync_store::engine::{self, Checkpoint, EngineOptions, PAGE_BYTES};
use edgesync_store::migrate;

/// Rows of one transaction.
const BATCH: usize = 256;

/// What a row is to have: a key of an index, if it has one, and a checksum.
type Sums = (i64, i64);

/// Makes the checksums of the file anew if they are narrow. Rows that are damaged stay as they are.
pub(super) fn settle(conn: &Connection, options: &EngineOptions) -> Result<(), StoreError> {
    if !migrate::is_narrow(conn, KIND.migrations)? {
        return Ok(());
    }
    tracing::info!("a 32-bit program has made the database: its checksums are written anew");
    // Keys may come to stand on more pages than before.
    engine::set_max_bytes(conn, None)?;
    let resources = Resources::load(conn)?;
    let objects = |row: &Row<'_>| {
        let sound = ObjectRow::read(row)?.filter(|row| row.is_sound(&resources));
        let kind = sound.and_then(|row| resources.by_id(row.resource_id));
        Ok(sound.zip(kind).map(|(row, kind)| (uid_key(row.uid), row.expected_checksum(kind))))
    };
    let own = |row: &Row<'_>| Ok(local::LocalRow::read(row)?.ok().map(|row| (0, row.checksum(Width::Fixed))));
    let table = |columns, table| format!("SELECT {columns} FROM {table} WHERE id > ?1 ORDER BY id");
    rewrite(
        conn,
        options,
        &table(OBJECT_COLUMNS, "objects"),
        "UPDATE objects SET uid_key = ?2, checksum = ?3 WHERE id = ?1",
        objects,
    )?;
    rewrite(
        conn,
        options,
        &table(local::COLUMNS, "local_objects"),
        "UPDATE local_objects SET checksum = ?3 WHERE id = ?1",
        own,
    )?;
    rewrite(
        conn,
        options,
        &table(outbox::row::COLUMNS, "outbox"),
        "UPDATE outbox SET hash = ?2, checksum = ?3 WHERE id = ?1",
        outbox::row::sums,
    )?;
    let tx = conn.unchecked_transaction()?;
    resources.rewrite(&tx)?;
    rewrite_meta(&tx)?;
    migrate::widen(&tx, KIND.migrations)?;
    tx.commit()?;
    engine::set_max_bytes(conn, options.max_file_bytes())
}

/// Goes through a table in the order of its ids, and gives each row what `read` says.
fn rewrite(
    conn: &Connection,
    options: &EngineOptions,
    select: &str,
    update: &str,
    read: impl Fn(&Row<'_>) -> Result<Option<Sums>, StoreError>,
) -> Result<(), StoreError> {
    let (mut select, mut update) = (conn.prepare(select)?, conn.prepare(update)?);
    let mut after = i64::MIN;
    loop {
        let tx = conn.unchecked_transaction()?;
        let (mut seen, mut sums) = (0, Vec::with_capacity(BATCH));
        let mut rows = select.query([after])?;
        while let Some(row) = rows.next()? {
            after = row.get(0)?;
            sums.extend(read(row)?.map(|(key, checksum)| (after, key, checksum)));
            seen += 1;
            if seen == BATCH {
                break;
            }
        }
        drop(rows);
        for sums in sums {
            update.execute(sums)?;
        }
        tx.commit()?;
        if seen < BATCH {
            return Ok(());
        }
        let log = engine::checkpoint(conn, Checkpoint::Look)?;
        if log.pages.saturating_mul(PAGE_BYTES) >= options.wal_bytes {
            engine::checkpoint(conn, Checkpoint::Passive)?;
        }
    }
}

/// Writes the facts about the file and about the agent anew that have a checksum.
fn rewrite_meta(conn: &Connection) -> Result<(), StoreError> {
    let mut statement = conn.prepare("SELECT key FROM meta")?;
    let keys = statement.query_map([], |row| row.get(0))?.collect::<Result<Vec<String>, _>>()?;
    for key in keys {
        if let Some(number) = journal::number(conn, &key)? {
            journal::set_number(conn, &key, number)?;
        }
        if let Some(text) = notes::checked(conn, &key)? {
            notes::set_checked(conn, &key, &text)?;
        }
    }
    Ok(())
}
