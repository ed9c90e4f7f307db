//! Salvages the readable rows of a damaged database into a fresh one.
//!
//! A row is readable if its checksum is correct. The table is read from both ends up to the damage;
//! rows between are read one by one, by the row ids that the indexes still have. If even the header
//! or the schema is unreadable, both are taken from a new file. Only damage to an inner page of the
//! table's tree costs more than the rows on that page.

use std::fs::File;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};

use rusqlite::config::DbConfig;
use rusqlite::{Connection, Statement};

use super::commit_listener::Versions;
use super::files::{self, Aside};
use super::journal::{self, Recent};
use super::local;
use super::metadata;
use super::new_file::{self, Floor, KIND};
use super::outbox::{Numbering, Outbox};
use super::rows::{self, OBJECT_COLUMNS, ObjectRow, Resources};
use super::seals;
use edgesync_store::StoreError;
use edgesync_store::engine::{EngineOptions, PAGE_BYTES, open_reader, open_writer, wal_path};

/// Result of a salvage.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Salvaged {
    pub(super) kept: u64,
    /// Objects known to be lost.
    pub(super) lost: u64,
    /// Path of the damaged file.
    pub(super) set_aside: Option<PathBuf>,
}

/// Builds a fresh file from what is readable, through the open connection or by opening the file,
/// and replaces the damaged one by it.
pub(super) fn rebuild(
    path: &Path,
    options: &EngineOptions,
    open: Option<&Connection>,
    floor: &Floor,
    why: Aside,
) -> Result<Salvaged, StoreError> {
    if let Some(parent) = path.parent() {
        std::fs::create_dir_all(parent)?;
    }
    let (kept, lost) = match attempt(path, options, open, floor, why) {
        Err(StoreError::Full(_)) => {
            // Continued operation has precedence over evidence, and even over the salvaged rows:
            // the cloud has them.
            files::remove_all_aside(path);
            match attempt(path, options, open, floor, why) {
                Err(StoreError::Full(_)) => copy(path, options, None, floor)?,
                other => other?,
            }
        }
        other => other?,
    };
    let set_aside = files::replace(path, why)?;
    Ok(Salvaged { kept, lost, set_aside })
}

/// Copies from the best source: the open connection, the file, or the file with its first page
/// replaced.
fn attempt(
    path: &Path,
    options: &EngineOptions,
    open: Option<&Connection>,
    floor: &Floor,
    why: Aside,
) -> Result<(u64, u64), StoreError> {
    if open.is_some() {
        return copy(path, options, open, floor);
    }
    let source = open_leniently(path, options);
    let counts = copy(path, options, source.as_ref(), floor)?;
    if let Some(source) = source {
        files::close_detached(source);
    }
    if counts.0 > 0 || why == Aside::Newer {
        return Ok(counts);
    }
    match mend(path, options) {
        Ok(Some(mended)) => {
            let source = open_leniently(&mended, options);
            let result = copy(path, options, source.as_ref(), floor);
            drop(source);
            files::remove(&mended)?;
            result
        }
        // Nothing was salvaged; the fresh file is empty.
        _ => Ok(counts),
    }
}

/// Opens a damaged file to read what is readable.
fn open_leniently(path: &Path, options: &EngineOptions) -> Option<Connection> {
    let conn = open_reader(path, options).ok()?;
    conn.set_db_config(DbConfig::SQLITE_DBCONFIG_DEFENSIVE, false).ok()?;
    // Makes SQLite read a file that is shorter than its header says, too.
    conn.pragma_update(None, "writable_schema", true).ok()?;
    Some(conn)
}

/// Maximum size of a file that is copied for repair, in bytes.
const MENDED_BYTES: u64 = 1 << 30;

/// Copies the file and gives the copy the first page of a new database. Header and schema are the
/// same in every file with this program's migrations, so a flipped bit there need not cost all
/// rows.
fn mend(path: &Path, options: &EngineOptions) -> Result<Option<PathBuf>, StoreError> {
    let length = std::fs::metadata(path)?.len();
    if !(2 * PAGE_BYTES..=MENDED_BYTES).contains(&length) {
        return Ok(None);
    }
    let template = files::fresh_path(path);
    files::remove(&template)?;
    open_writer(&template, KIND, options)?.close().map_err(|(_, error)| error)?;
    let mut page = vec![0; usize::try_from(PAGE_BYTES).unwrap_or(4096)];
    File::open(&template)?.read_exact_at(&mut page, 0)?;
    // The number of pages: zero means "the size of the file".
    page[28..32].fill(0);
    let mended = files::mended_path(path);
    files::remove(&mended)?;
    std::fs::copy(path, &mended)?;
    if wal_path(path).exists() {
        std::fs::copy(wal_path(path), wal_path(&mended))?;
    }
    File::options().write(true).open(&mended)?.write_all_at(&page, 0)?;
    Ok(Some(mended))
}

/// Builds the fresh file and closes it. Returns how many objects were kept and are known to be
/// lost.
fn copy(
    path: &Path,
    options: &EngineOptions,
    source: Option<&Connection>,
    floor: &Floor,
) -> Result<(u64, u64), StoreError> {
    let fresh = files::fresh_path(path);
    files::remove(&fresh)?;
    // Without the size limit of the file in use: the copy must not fail by it.
    let fresh = open_writer(&fresh, KIND, &EngineOptions { max_bytes: None, ..options.clone() })?;
    // The file is synced as a whole before it replaces the other one.
    fresh.pragma_update(None, "synchronous", "off")?;
    let mut copier = Copier::new(&fresh, source, floor);
    if let Some(source) = source {
        copier.copy_all(source)?;
    }
    let counts = copier.finish(floor)?;
    fresh.close().map_err(|(_, error)| error)?;
    Ok(counts)
}

struct Copier<'a> {
    fresh: &'a Connection,
    /// Kinds by their numbers in the damaged file.
    known: Resources,
    /// Kinds by their numbers in the fresh file.
    interned: Resources,
    kept: u64,
    damaged: u64,
    expected: u64,
    revision: u64,
    incarnation: Option<String>,
    /// Kinds whose bodies are sealed in the file.
    sealed: Option<String>,
    /// Base of the old epoch.
    base: u64,
    /// Last version of a local object.
    local: u64,
    numbering: Option<Numbering>,
}

/// Rows per transaction of the fresh file.
const BATCH: u64 = 256;

impl<'a> Copier<'a> {
    fn new(fresh: &'a Connection, source: Option<&Connection>, floor: &Floor) -> Self {
        // Updates that the journal does not have change no count.
        let totals = |source| journal::totals(source, &Recent::default()).ok();
        let stored = source.and_then(totals).map(|(totals, _)| totals);
        let in_memory = floor.resources.iter().next().is_some();
        let known = match source {
            Some(source) if !in_memory => Resources::salvage(source),
            _ => floor.resources.clone(),
        };
        let incarnation = source.and_then(|source| journal::meta(source, "incarnation").ok().flatten());
        Self {
            fresh,
            known,
            interned: Resources::default(),
            kept: 0,
            damaged: 0,
            expected: stored.map_or(floor.count, |totals| totals.count.max(floor.count)),
            revision: stored.map_or(floor.revision, |totals| totals.revision.max(floor.revision)),
            incarnation: floor.incarnation.clone().or(incarnation),
            sealed: floor
                .sealed
                .clone()
                .or_else(|| source.and_then(|source| seals::recorded_kinds(source).ok().flatten())),
            base: source.and_then(|source| journal::base(source).ok()).unwrap_or(0),
            local: floor.versions.local,
            numbering: floor.numbering.clone().or_else(|| source.and_then(Outbox::salvaged)),
        }
    }

    /// Reads the table from both ends, then the rows that the damage hides. Only failures of the
    /// fresh file are errors.
    fn copy_all(&mut self, source: &Connection) -> Result<(), StoreError> {
        self.fresh.execute_batch("BEGIN")?;
        self.local = self.local.max(local::salvage(source, self.fresh)?);
        metadata::salvage(source, self.fresh)?;
        Outbox::salvage(source, self.fresh)?;
        let upward = format!("SELECT {OBJECT_COLUMNS} FROM objects ORDER BY id");
        let Err(reached) = self.copy_run(source, &upward, i64::MIN)? else { return Ok(()) };
        let downward = format!("SELECT {OBJECT_COLUMNS} FROM objects WHERE id > ?1 ORDER BY id DESC");
        let Err(from_above) = self.copy_run(source, &downward, reached)? else { return Ok(()) };
        let one = format!("SELECT {OBJECT_COLUMNS} FROM objects WHERE id = ?1");
        for id in hidden_ids(source, reached, from_above) {
            if let Ok(mut statement) = source.prepare_cached(&one) {
                self.copy_rows(&mut statement, id)?.ok();
            }
        }
        Ok(())
    }

    /// Copies the rows of a query to its end (`Ok`), or up to damage: then returns the last id
    /// read.
    fn copy_run(
        &mut self,
        source: &Connection,
        sql: &str,
        after: i64,
    ) -> Result<Result<(), i64>, StoreError> {
        match source.prepare(sql) {
            Ok(mut statement) => self.copy_rows(&mut statement, after),
            Err(_) => Ok(Err(after)),
        }
    }

    fn copy_rows(
        &mut self,
        statement: &mut Statement<'_>,
        bound: i64,
    ) -> Result<Result<(), i64>, StoreError> {
        let mut last = bound;
        let result = match statement.parameter_count() {
            0 => statement.query([]),
            _ => statement.query([bound]),
        };
        let Ok(mut rows) = result else { return Ok(Err(last)) };
        loop {
            match rows.next() {
                Ok(Some(row)) => {
                    last = row.get(0).unwrap_or(last);
                    match ObjectRow::read(row) {
                        Ok(Some(row)) if row.is_sound(&self.known) => self.keep(row)?,
                        _ => self.damaged += 1,
                    }
                }
                Ok(None) => return Ok(Ok(())),
                Err(_) => return Ok(Err(last)),
            }
        }
    }

    fn keep(&mut self, mut row: ObjectRow<'_>) -> Result<(), StoreError> {
        let Some(kind) = self.known.by_id(row.resource_id) else { return Ok(()) };
        row.resource_id = self.interned.intern(self.fresh, &kind.resource)?.id;
        row.checksum = row.expected_checksum(kind);
        match rows::insert(self.fresh, &row) {
            Ok(_) => {}
            // Pages that a damaged tree references twice show their rows twice.
            Err(StoreError::Internal(_)) => return Ok(()),
            Err(error) => return Err(error),
        }
        self.kept += 1;
        self.revision = self.revision.max(row.revision.unsigned_abs());
        if self.kept.is_multiple_of(BATCH) {
            self.fresh.execute_batch("COMMIT; BEGIN")?;
        }
        Ok(())
    }

    fn finish(self, floor: &Floor) -> Result<(u64, u64), StoreError> {
        if self.fresh.is_autocommit() {
            self.fresh.execute_batch("BEGIN")?;
        }
        let floor = Floor {
            revision: self.revision.max(floor.revision),
            count: self.expected,
            incarnation: self.incarnation,
            sealed: self.sealed,
            resources: Resources::default(),
            versions: Versions {
                objects: floor.versions.objects.max(self.base.saturating_add(self.revision)),
                local: self.local,
            },
            numbering: self.numbering,
        };
        new_file::start(self.fresh, &floor)?;
        self.fresh.execute_batch("COMMIT")?;
        Ok((self.kept, self.expected.saturating_sub(self.kept).max(self.damaged)))
    }
}

/// Returns the row ids between two others, as far as the indexes have them.
fn hidden_ids(source: &Connection, above: i64, below: i64) -> Vec<i64> {
    let mut ids = Vec::new();
    for index in ["objects_by_uid", "objects_by_name"] {
        for order in ["ASC", "DESC"] {
            let column = if index == "objects_by_uid" { "uid_key" } else { "resource_id" };
            let sql = format!("SELECT id FROM objects INDEXED BY {index} ORDER BY {column} {order}");
            let Ok(mut statement) = source.prepare(&sql) else { continue };
            let Ok(mut rows) = statement.query([]) else { continue };
            while let Ok(Some(row)) = rows.next() {
                let between = |id: &i64| *id > above && (*id < below || below == above);
                ids.extend(row.get(0).ok().filter(between));
            }
        }
    }
    ids.sort_unstable();
    ids.dedup();
    ids
}

/// Adds objects that could not be opened to a loss, if there is one.
pub(super) fn with_lost(
    loss: Option<(String, Salvaged)>,
    lost: u64,
    count: u64,
) -> Option<(String, Salvaged)> {
    if lost == 0 {
        return loss;
    }
    let cause = seals::cause_of_loss(lost);
    Some(match loss {
        None => (cause, Salvaged { kept: count, lost, set_aside: None }),
        Some((first, salvaged)) => {
            let salvaged = Salvaged { kept: count, lost: salvaged.lost + lost, ..salvaged };
            (format!("{first}; {cause}"), salvaged)
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_schema_is_on_the_first_page_of_the_file() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("x.db");
        drop(open_writer(&path, KIND, &EngineOptions::default()).unwrap());
        let page = std::fs::read(&path).unwrap();
        // After the file's header: the type of the page, here a leaf of a table.
        assert_eq!(page[100], 13, "a damaged schema could not be mended any more");
    }
}
