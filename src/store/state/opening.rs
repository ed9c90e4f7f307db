//! Opens a database so that every row is sealed as required, and drops rows that cannot be opened.

use std::path::Path;

use jiff::Timestamp;
use rusqlite::Connection;

use super::{Stored, open_file, open_sound};
use crate::store::journal::{self, Mark, Recent};
use crate::store::parts;
use crate::store::seals::{self, Seals};
use edgesync_protocol::upload::Lanes;
use edgesync_store::StoreError;
use edgesync_store::engine::EngineOptions;

/// An opened database, sealed as required.
pub(super) struct Opened {
    pub(super) conn: Connection,
    pub(super) stored: Stored,
    pub(super) settled: Lanes,
    /// Objects dropped because they could not be opened.
    pub(super) lost: u64,
    /// Whether everything could be sealed.
    pub(super) sealed: bool,
}

/// Opens the database like [`open_sound`], seals plain rows as required, and drops those that
/// cannot be opened, under a new epoch. If the disk is full, rows stay plain until the next
/// opening.
pub(super) fn open_sealed(
    path: &Path,
    options: &EngineOptions,
    recent: &Recent,
    seals: &Seals,
) -> Result<Opened, StoreError> {
    let (conn, mut stored, settled) = open_sound(path, options, recent)?;
    let (lost, sealed) = match settle(&conn, seals, &mut stored) {
        Ok(lost) => (lost, true),
        Err(error @ StoreError::Full(_)) => {
            tracing::error!(%error, "objects not sealed, database full");
            (Vec::new(), false)
        }
        Err(error) => return Err(error),
    };
    if !lost.is_empty() {
        let tx = conn.unchecked_transaction()?;
        for id in &lost {
            tx.execute("DELETE FROM objects WHERE id = ?1", [id])?;
        }
        stored.renew(&tx, Timestamp::now())?;
        tx.commit()?;
    }
    if sealed && let Err(error) = seals::record_settled(&conn, seals) {
        // The next opening reads the rows again.
        tracing::debug!(%error, "record of the sealed rows not written");
    }
    Ok(Opened { conn, stored, settled, lost: lost.len() as u64, sealed })
}

/// Seals objects and outbox items, and finishes a rotation. Returns the ids of objects that cannot
/// be opened.
fn settle(conn: &Connection, seals: &Seals, stored: &mut Stored) -> Result<Vec<i64>, StoreError> {
    let Stored { resources, outbox, .. } = stored;
    let lost = seals::settle(conn, seals, resources)?;
    outbox.seal_all(conn, seals, resources)?;
    parts::drop_unsealed(conn, seals)?;
    seals.end_rotation()?;
    Ok(lost)
}

/// Removes plain text that may remain in the file, once everything is sealed.
pub(super) fn clean(
    conn: Connection,
    path: &Path,
    options: &EngineOptions,
    seals: &Seals,
    stored: &mut Stored,
    recent: &Recent,
) -> Result<Connection, StoreError> {
    if !seals::needs_cleaning(&conn, seals, stored.totals.revision == 0)? {
        return Ok(conn);
    }
    // The file is rewritten without its log: only a journal that is up to date spares the next
    // start a scan.
    let tx = conn.unchecked_transaction()?;
    let Stored { totals, written, .. } = &*stored;
    let mark = Mark { confirmed: written.confirmed, log: None };
    let flushed = journal::flush(&tx, recent, *written, totals, mark)?;
    tx.commit()?;
    stored.written = flushed;
    seals::clean(conn, path, seals, || open_file(path, options))
}
