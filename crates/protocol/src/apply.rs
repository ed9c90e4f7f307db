//! Applies changes to the rows of a node: the version check, UID identity, revisions and the
//! digest.
//!
//! The rules are written once, over [`Rows`]. The SQLite store runs them inside its write
//! transaction, the simulation inside its model of one. The code tested under thousands of seeds is
//! the code that runs.

use edgesync_object::{ObjectKey, Relation, ResourceVersion};

use super::change::{Change, Delete, Put, RejectReason, Rejected, Uid};
use super::digest::{Digest, Epoch};

/// The totals that a transaction keeps beside its rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Totals {
    /// The identity of the database file and key of the digest.
    pub epoch: Epoch,
    /// The revision: grows by one with each changed row and orders the changes in the journal.
    pub revision: u64,
    /// The number of objects held.
    pub count: u64,
    /// The digest over (UID, version) of the objects held.
    pub digest: Digest,
}

/// One held object, as its row describes it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Held<Row> {
    /// The store's handle to the row.
    pub row: Row,
    /// The UID of the object.
    pub uid: Uid,
    /// The version in the row.
    pub version: ResourceVersion,
    /// Kind, namespace and name.
    pub key: ObjectKey,
}

/// Access to the rows within an open transaction.
pub trait Rows {
    /// The handle to a row within the transaction.
    type Row;
    /// A failure of the store: the transaction rolls back and nothing of it is reported.
    type Error;

    /// Returns the object with this UID.
    fn by_uid(&mut self, uid: &str) -> Result<Option<Held<Self::Row>>, Self::Error>;
    /// Returns the object with this kind, namespace and name.
    fn by_name(&mut self, key: &ObjectKey) -> Result<Option<Held<Self::Row>>, Self::Error>;
    /// Inserts the object, or replaces the row of the same UID, as change number `revision`.
    fn put(&mut self, revision: u64, put: &Put, replaced: Option<Self::Row>) -> Result<(), Self::Error>;
    /// Removes the row and leaves a tombstone with its UID as change number `revision`.
    fn remove(&mut self, revision: u64, held: Held<Self::Row>) -> Result<(), Self::Error>;
}

/// The observed state of one UID after a change, one entry of a report.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Observed {
    /// The UID of the object.
    pub uid: Uid,
    /// The version held; `None` if the object is not held.
    pub version: Option<ResourceVersion>,
}

/// The outcome of a batch of changes: the content of a report, sent after the commit.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Applied {
    /// The observed states in the order of the changes; the last entry of a UID counts.
    pub observed: Vec<Observed>,
    /// Objects that could not be applied.
    pub rejected: Vec<Rejected>,
}

/// Returns whether an incoming version is stored.
///
/// Guarantee G2: an older version never replaces a newer one, unless the sender names the version
/// it supersedes.
fn accepts_version(held: &ResourceVersion, put: &Put) -> bool {
    #[cfg(any(test, feature = "simulation"))]
    if super::fault::planted(super::fault::Fault::NoVersionCheck) {
        return true;
    }
    match put.version.relation(held) {
        Relation::Newer | Relation::Different => true,
        Relation::Equal => false,
        Relation::Older => put.supersedes.as_ref() == Some(held),
    }
}

/// Applies one change within the open transaction and appends its outcome to `applied`.
///
/// # Errors
/// Returns only failures of the store. An object that cannot be applied is a [`Rejected`] in
/// `applied`.
pub fn apply<R: Rows>(
    rows: &mut R,
    totals: &mut Totals,
    change: &Change,
    applied: &mut Applied,
) -> Result<(), R::Error> {
    match change {
        Change::Put(put) => apply_put(rows, totals, put, applied),
        Change::Delete(delete) => apply_delete(rows, totals, delete, applied),
    }
}

fn apply_put<R: Rows>(
    rows: &mut R,
    totals: &mut Totals,
    put: &Put,
    applied: &mut Applied,
) -> Result<(), R::Error> {
    let key = put.key();
    let replaced = match rows.by_uid(&put.uid)? {
        Some(held) if held.key != key => {
            let message = format!("uid '{}' is held as {}", put.uid, held.key);
            applied.reject(put, RejectReason::Invalid, message);
            return Ok(());
        }
        Some(held) if !accepts_version(&held.version, put) => {
            applied.observe(put.uid.clone(), Some(held.version));
            return Ok(());
        }
        Some(held) => Some(held),
        None => {
            if let Some(other) = rows.by_name(&key)? {
                // Versions of one cloud share one counter, so they also order objects of different
                // UIDs.
                let stale = put.version.is_older_than(&other.version)
                    && put.supersedes.as_ref() != Some(&other.version);
                if stale {
                    let message =
                        format!("uid '{}' is held under this name at version {}", other.uid, other.version);
                    applied.reject(put, RejectReason::Stale, message);
                    return Ok(());
                }
                remove(rows, totals, other, applied)?;
            }
            None
        }
    };
    totals.revision += 1;
    match &replaced {
        Some(held) => totals.digest.remove(totals.epoch, &held.uid, &held.version),
        None => totals.count += 1,
    }
    totals.digest.add(totals.epoch, &put.uid, &put.version);
    rows.put(totals.revision, put, replaced.map(|held| held.row))?;
    applied.observe(put.uid.clone(), Some(put.version.clone()));
    Ok(())
}

/// Removes exactly the named UID (guarantee G3).
fn apply_delete<R: Rows>(
    rows: &mut R,
    totals: &mut Totals,
    delete: &Delete,
    applied: &mut Applied,
) -> Result<(), R::Error> {
    let held = rows.by_uid(&delete.uid)?;
    #[cfg(any(test, feature = "simulation"))]
    let held = match held {
        None if super::fault::planted(super::fault::Fault::DeleteByName) => rows.by_name(&delete.key)?,
        held => held,
    };
    match held {
        Some(held) => remove(rows, totals, held, applied),
        None => {
            applied.observe(delete.uid.clone(), None);
            Ok(())
        }
    }
}

fn remove<R: Rows>(
    rows: &mut R,
    totals: &mut Totals,
    held: Held<R::Row>,
    applied: &mut Applied,
) -> Result<(), R::Error> {
    totals.revision += 1;
    totals.count = totals.count.saturating_sub(1);
    totals.digest.remove(totals.epoch, &held.uid, &held.version);
    applied.observe(held.uid.clone(), None);
    rows.remove(totals.revision, held)
}

impl Applied {
    fn observe(&mut self, uid: Uid, version: Option<ResourceVersion>) {
        self.observed.push(Observed { uid, version });
    }

    fn reject(&mut self, put: &Put, reason: RejectReason, message: String) {
        self.rejected.push(Rejected {
            uid: put.uid.clone(),
            resource_version: put.version.clone(),
            reason,
            message,
            object: Some(Box::new(put.object_ref())),
        });
    }
}
