//! Initialization of a new database: its epoch, and lower bounds for its numbers.

use rusqlite::Connection;

use super::commit_listener::Versions;
use super::journal::{self, Written};
use super::local::Local;
use super::outbox::{Numbering, Outbox};
use super::rows::Resources;
use super::seals;
use edgesync_protocol::apply::Totals;
use edgesync_protocol::digest::{Digest, Epoch};
use edgesync_store::StoreError;
use edgesync_store::engine::Kind;
use edgesync_store::mark;
use edgesync_store::migrate;

/// Application id and migrations of an edge database.
pub(super) const KIND: Kind = Kind { application_id: mark::AGENT, migrations: migrate::EDGE };

/// Lower bounds for a salvage, known from memory.
#[derive(Debug, Default)]
pub(super) struct Floor {
    pub(super) revision: u64,
    /// Number of held objects.
    pub(super) count: u64,
    /// Incarnation of the cloud.
    pub(super) incarnation: Option<String>,
    /// Kinds without plain text in the file.
    pub(super) sealed: Option<String>,
    /// The kinds, in case their table is damaged.
    pub(super) resources: Resources,
    pub(super) versions: Versions,
    /// The outbox's numbering, if it is known for certain.
    pub(super) numbering: Option<Numbering>,
}

/// Writes the metadata of a new file; its rows, if any, exist already.
pub(super) fn start(conn: &Connection, floor: &Floor) -> Result<(), StoreError> {
    journal::set_meta(conn, "created", &jiff::Timestamp::now().to_string())?;
    if let Some(incarnation) = &floor.incarnation {
        journal::set_meta(conn, "incarnation", incarnation)?;
    }
    if let Some(sealed) = &floor.sealed {
        seals::record_kinds(conn, sealed)?;
    }
    renew(conn, floor.revision)?;
    journal::choose_base(conn, floor.versions.objects)?;
    Outbox::start(conn, floor.numbering.as_ref())?;
    Local::start(conn, floor.versions.local)
}

/// Gives the file a new epoch, with recounted totals, at a revision after `revision`.
pub(super) fn renew(conn: &Connection, revision: u64) -> Result<(Totals, Written), StoreError> {
    let epoch = Epoch(uuid::Uuid::new_v4().as_u128());
    journal::set_meta(conn, "epoch", &epoch.to_string())?;
    let (count, digest) = recount(conn, epoch)?;
    // A file that never held anything starts at zero.
    let revision = if revision == 0 && count == 0 { 0 } else { revision + 1 };
    let totals = Totals { epoch, revision, count, digest };
    let written = journal::restart(conn, &totals)?;
    Ok((totals, written))
}

/// Returns count and digest of the rows.
pub(super) fn recount(conn: &Connection, epoch: Epoch) -> Result<(u64, Digest), StoreError> {
    let (mut count, mut digest) = (0, Digest::default());
    let mut statement = conn.prepare_cached("SELECT uid, version FROM objects")?;
    let mut rows = statement.query([])?;
    while let Some(row) = rows.next()? {
        count += 1;
        let version: String = row.get(1)?;
        digest.add(epoch, row.get_ref(0)?.as_str().map_err(rusqlite::Error::from)?, &version.as_str().into());
    }
    Ok((count, digest))
}
