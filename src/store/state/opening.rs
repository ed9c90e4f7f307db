//! Opening a database so that everything is sealed that is to be, and nothing is in it that cannot be opened.

use std::path::Path;

use rusqlite::Connection;

use super::{Stored, open_file, open_sound};
use crate::store::journal::{self, Recent};
use crate::store::new_file::renew;
use crate::store::seals::{self, Seals};
use edgesync_protocol::upload::Lanes;
use edgesync_store::StoreError;
use edgesync_store::engine::EngineOptions;

/// A database that was opened, with everything sealed that is to be.
pub(super) struct Opened {
    pub(super) conn: Connection,
    pub(super) stored: Stored,
    pub(super) settled: Lanes,
    /// Objects that could not be opened any more: they are gone.
    pub(super) lost: u64,
    /// Whether everything could be sealed.
    pub(super) sealed: bool,
}

/// Opens the database as [`open_sound`] does, seals what is not sealed, and drops what cannot be opened any more, under
/// a new epoch. Without room for that rows stay as they are until the next opening.
pub(super) fn open_settled(
    path: &Path,
    options: &EngineOptions,
    recent: &Recent,
    seals: &Seals,
) -> Result<Opened, StoreError> {
    let (conn, mut stored, settled) = open_sound(path, options, recent)?;
    let (lost, sealed) = match settle(&conn, seals, &mut stored) {
        Ok(lost) => (lost, true),
        Err(error @ StoreError::Full(_)) => {
            tracing::error!(%error, "objects stay readable in the database until there is room to seal them");
            (Vec::new(), false)
        }
        Err(error) => return Err(error),
    };
    if !lost.is_empty() {
        let tx = conn.unchecked_transaction()?;
        for id in &lost {
            tx.execute("DELETE FROM objects WHERE id = ?1", [id])?;
        }
        let versions = stored.versions();
        (stored.totals, stored.written) = renew(&tx, stored.totals.revision)?;
        stored.base = journal::choose_base(&tx, versions.objects)?;
        tx.commit()?;
    }
    Ok(Opened { conn, stored, settled, lost: lost.len() as u64, sealed })
}

/// Seals objects and what waits about them, and finishes a rotation; the ids of objects that cannot be opened.
fn settle(conn: &Connection, seals: &Seals, stored: &mut Stored) -> Result<Vec<i64>, StoreError> {
    let Stored { resources, outbox, .. } = stored;
    let lost = seals::settle(conn, seals, resources)?;
    outbox.settle_seals(conn, seals, resources)?;
    seals.end_rotation()?;
    Ok(lost)
}

/// Gets rid of plain text that may be left in the file, once everything is sealed.
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
    // Only a journal that is up to date may do without the log.
    let tx = conn.unchecked_transaction()?;
    let Stored { totals, written, .. } = &*stored;
    let flushed = journal::flush(&tx, recent, *written, totals, written.confirmed)?;
    tx.commit()?;
    stored.written = flushed;
    seals::clean(conn, path, seals, || open_file(path, options))
}
