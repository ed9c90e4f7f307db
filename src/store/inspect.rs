//! Read-only inspection of the database: for checks, backups and verification. Works with or
//! without a running agent, and blocks neither its writes nor its reads.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use rusqlite::Connection;

use super::journal::{self, Recent};
use super::new_file::KIND;
use super::rows::{OBJECT_COLUMNS, ObjectRow, Resources};
use super::seals::Seals;
use super::{local, outbox};
use edgesync_protocol::apply::Totals;
use edgesync_protocol::digest::Digest;
use edgesync_store::StoreError;
pub use edgesync_store::engine::is_in_use;
use edgesync_store::engine::{self, open_as_it_is};
use edgesync_store::mark;
use edgesync_store::migrate::newest;

/// Rows between two calls of `go_on`.
pub const BATCH: u64 = 256;

/// The schema of a file, and the newest one of this program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Schema {
    /// Version in the file.
    pub found: u32,
    /// Newest version of this program.
    pub known: u32,
}

/// Content of a database, and its damage.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Inspection {
    /// Epoch, revision, count and digest as recorded.
    pub totals: Totals,
    /// Last revision that the cloud is known to have recorded.
    pub confirmed: u64,
    pub rows: u64,
    /// Objects with a wrong checksum.
    pub damaged: u64,
    /// Leases and Events of this node with a wrong checksum.
    pub local_damaged: u64,
    /// Outbox items with a wrong checksum.
    pub outbox_damaged: u64,
    /// Whether count and digest of the sound rows match the recorded ones.
    pub adds_up: bool,
    /// The structural damage of the file and its indexes.
    pub structure: Option<String>,
    /// Number of bodies sealed with each key, by the key's number.
    pub sealed: BTreeMap<u32, u64>,
}

impl Inspection {
    /// Returns whether there is no problem.
    #[must_use]
    pub fn is_sound(&self) -> bool {
        self.problems().is_empty()
    }

    /// Returns the problems as text.
    #[must_use]
    pub fn problems(&self) -> Vec<String> {
        let mut problems = Vec::new();
        let many = |count: u64, what: &str| match count {
            0 => None,
            1 => Some(format!("checksum mismatch in 1 {what}")),
            count => Some(format!("checksum mismatch in {count} {what}s")),
        };
        problems.extend(many(self.damaged, "object"));
        problems.extend(many(self.local_damaged, "Lease or Event"));
        problems.extend(many(self.outbox_damaged, "outbox item"));
        if !self.adds_up && self.damaged == 0 {
            let (rows, count) = (self.rows, self.totals.count);
            problems.push(format!("{rows} objects do not match the recorded count of {count} or its digest"));
        }
        problems.extend(self.structure.as_ref().map(|text| format!("file structure damaged: {text}")));
        problems
    }
}

/// Returns the version of the schema.
///
/// # Errors
/// [`StoreError::Foreign`] for the database of another program, [`StoreError::Unreleased`] for one
/// from before the first release; otherwise the system's, such as for a missing file.
pub fn schema(path: &Path) -> Result<Schema, StoreError> {
    schema_of(&open_as_it_is(path)?, path)
}

/// Checks and counts all rows in one snapshot. Calls `go_on` between batches of rows; returns
/// `None` if it returns false.
///
/// # Errors
/// [`StoreError::Corrupt`] if the damage prevents reading rows; see also [`schema`].
pub fn inspect(path: &Path, go_on: impl FnMut() -> bool) -> Result<Option<Inspection>, StoreError> {
    let conn = open_as_it_is(path)?;
    let Schema { found, known } = schema_of(&conn, path)?;
    if found > known {
        return Err(StoreError::Newer { path: path.to_owned(), found, known });
    }
    if found < known {
        let message = format!("schema version {found}; the agent migrates it to {known} when it starts");
        return Err(StoreError::internal(message));
    }
    let tx = conn.unchecked_transaction()?;
    let recent = Recent::default();
    journal::find_unwritten(&tx, path, &recent)?;
    scan(&tx, &recent, go_on)
}

/// Reads everything in the snapshot of a transaction.
fn scan(
    tx: &Connection,
    recent: &Recent,
    mut go_on: impl FnMut() -> bool,
) -> Result<Option<Inspection>, StoreError> {
    let (totals, written) = journal::totals(tx, recent)?;
    let resources = Resources::load(tx)?;
    let (mut read, mut damaged, mut digest) = (0, 0, Digest::default());
    let mut statement = tx.prepare(&format!("SELECT {OBJECT_COLUMNS} FROM objects ORDER BY id"))?;
    let mut rows = statement.query([])?;
    while let Some(row) = rows.next()? {
        read += 1;
        match ObjectRow::read(row)? {
            Some(row) if row.is_sound(&resources) => digest.add(totals.epoch, row.uid, &row.version.into()),
            _ => damaged += 1,
        }
        if read % BATCH == 0 && !go_on() {
            return Ok(None);
        }
    }
    let local_damaged = local::damaged(tx)?.len() as u64;
    // Without keys nothing is opened: a sealed row with a correct checksum counts as sound.
    let Some(outbox_damaged) = outbox::damaged(tx, &Seals::default(), &mut go_on)? else { return Ok(None) };
    let verdict: String = tx.query_row("PRAGMA integrity_check(1)", [], |row| row.get(0))?;
    Ok(Some(Inspection {
        totals,
        confirmed: written.confirmed,
        rows: read,
        damaged,
        local_damaged,
        outbox_damaged: outbox_damaged.len() as u64,
        adds_up: (read, digest) == (totals.count, totals.digest),
        structure: (verdict != "ok").then_some(verdict),
        sealed: sealed_with(tx)?,
    }))
}

/// Copies the database as of one moment into a new file with mode 0600, flushes the copy, and
/// inspects it.
///
/// # Errors
/// See [`inspect`]; an existing file stays untouched. A partial copy is removed.
pub fn backup(path: &Path, to: &Path) -> Result<Inspection, StoreError> {
    let source = open_as_it_is(path)?;
    schema_of(&source, path)?;
    engine::copy(&source, to, |copy| inspect(copy, || true)?.ok_or(StoreError::Closed))
}

/// Returns the names of objects that reports must omit: of sealed kinds, given as `secrets` or
/// `widgets.example.com`.
///
/// # Errors
/// See [`schema`].
pub(crate) fn private_names(path: &Path, kinds: &[String]) -> Result<Vec<String>, StoreError> {
    let conn = open_as_it_is(path)?;
    schema_of(&conn, path)?;
    let mut statement = conn.prepare(
        "SELECT DISTINCT objects.name FROM objects JOIN resources ON resources.id = resource_id
         WHERE kind = 'Secret' OR body GLOB 'sealed:*'
            OR plural || iif(\"group\" = '', '', '.' || \"group\") IN (SELECT value FROM json_each(?1))",
    )?;
    let kinds = serde_json::Value::from(kinds.to_vec()).to_string();
    let names = statement.query_map([kinds], |row| row.get(0))?.collect::<Result<_, _>>()?;
    Ok(names)
}

/// Counts the bodies sealed with each key.
fn sealed_with(conn: &Connection) -> Result<BTreeMap<u32, u64>, StoreError> {
    let mut statement = conn.prepare("SELECT substr(body, 1, 64) FROM objects WHERE body GLOB 'sealed:*'")?;
    let mut rows = statement.query([])?;
    let mut keys = BTreeMap::new();
    while let Some(row) = rows.next()? {
        let start: String = row.get(0)?;
        // Zero for an unreadable number: no key has it, so it counts as lost.
        let key = start.split(':').nth(2).and_then(|number| number.parse().ok()).unwrap_or(0);
        *keys.entry(key).or_default() += 1;
    }
    Ok(keys)
}

fn schema_of(conn: &Connection, path: &Path) -> Result<Schema, StoreError> {
    let found: i32 = conn.pragma_query_value(None, "application_id", |row| row.get(0))?;
    if found != KIND.application_id {
        return Err(mark::mismatch(path, KIND.application_id, found));
    }
    let found = conn.pragma_query_value(None, "user_version", |row| row.get(0))?;
    Ok(Schema { found, known: newest(KIND.migrations) })
}

/// Returns the bytes of the database's files: database and log.
#[must_use]
pub(crate) fn bytes_on_disk(path: &Path) -> u64 {
    let size = |path: &Path| fs::metadata(path).map_or(0, |metadata| metadata.len());
    size(path).saturating_add(size(&engine::wal_path(path)))
}

#[cfg(test)]
mod tests;
