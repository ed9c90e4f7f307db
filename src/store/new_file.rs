//! Initialization of a new database: its epoch, and lower bounds for its numbers.

use rusqlite::Connection;

use super::commit_listener::Versions;
use super::journal::{self, Written};
use super::local::Local;
use super::outbox::{Numbering, Outbox};
use super::read::unsigned;
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
    let now = jiff::Timestamp::now();
    journal::set_meta(conn, "created", &now.to_string())?;
    if let Some(incarnation) = &floor.incarnation {
        journal::set_meta(conn, "incarnation", incarnation)?;
    }
    if let Some(sealed) = &floor.sealed {
        seals::record_kinds(conn, sealed)?;
    }
    renew(conn, floor.revision)?;
    journal::choose_base(conn, floor.versions.objects, now)?;
    Outbox::start(conn, floor.numbering.as_ref())?;
    Local::start(conn, floor.versions.local)
}

/// Gives the file a new epoch, with recounted totals, at a revision after `revision` and those of
/// all rows: no row may look newer than the journal.
pub(super) fn renew(conn: &Connection, revision: u64) -> Result<(Totals, Written), StoreError> {
    let epoch = Epoch(uuid::Uuid::new_v4().as_u128());
    journal::set_meta(conn, "epoch", &epoch.to_string())?;
    let Recount { count, digest, newest } = recount(conn, epoch)?;
    let revision = revision.max(newest);
    // A file that never held anything starts at zero.
    let revision = if revision == 0 && count == 0 { 0 } else { revision + 1 };
    let totals = Totals { epoch, revision, count, digest };
    let written = journal::restart(conn, &totals)?;
    Ok((totals, written))
}

/// Totals computed from the rows, independent of the stored ones.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Recount {
    pub(super) count: u64,
    pub(super) digest: Digest,
    /// The newest revision of a row.
    pub(super) newest: u64,
}

/// Recomputes count, digest and newest revision by a scan of all rows.
pub(super) fn recount(conn: &Connection, epoch: Epoch) -> Result<Recount, StoreError> {
    let mut found = Recount::default();
    let mut statement = conn.prepare_cached("SELECT uid, version, revision FROM objects")?;
    let mut rows = statement.query([])?;
    while let Some(row) = rows.next()? {
        let (version, revision): (String, i64) = (row.get(1)?, row.get(2)?);
        let uid = row.get_ref(0)?.as_str().map_err(rusqlite::Error::from)?;
        found.digest.add(epoch, uid, &version.as_str().into());
        found.count += 1;
        found.newest = found.newest.max(unsigned(revision));
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn insert(conn: &Connection, uid: &str, revision: i64) {
        conn.execute(
            "INSERT INTO objects (uid, uid_key, resource_id, namespace, name, version, revision, checksum, body)
             VALUES (?1, 0, 1, '', ?1, '5', ?2, 0, '{}')",
            (uid, revision),
        )
        .unwrap();
    }

    #[test]
    fn a_renewed_epoch_begins_above_the_newest_row() {
        let conn = Connection::open_in_memory().unwrap();
        KIND.migrations.iter().for_each(|migration| conn.execute_batch(migration.sql).unwrap());
        let (totals, written) = renew(&conn, 0).unwrap();
        assert_eq!((totals.revision, totals.count, written.log), (0, 0, None));
        insert(&conn, "a", 41);
        insert(&conn, "b", 17);
        let (totals, written) = renew(&conn, 20).unwrap();
        assert_eq!((totals.revision, totals.count), (42, 2));
        assert_eq!((written.revision, written.confirmed, written.log), (42, 42, None));
        assert_eq!(renew(&conn, 60).unwrap().0.revision, 61);
    }
}
