//! Applies changes to the rows of a node: the version check, UID identity, patches, revisions and
//! the digest.
//!
//! The rules are written once, over [`Rows`]. The SQLite store runs them inside its write
//! transaction, the simulation inside its model of one. The code tested under thousands of seeds is
//! the code that runs.

use std::sync::Arc;

use serde_json::value::RawValue;

use edgesync_object::{Budget, ObjectKey, Relation, Resource, ResourceVersion};

use super::change::{Change, Delete, Put, RejectReason, Rejected, Uid};
use super::digest::{Digest, Epoch};
use super::message;
use super::patch::{Patch, PatchProblem, Unpatched};

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

/// The content of a held object, the base of a patch.
#[derive(Debug)]
pub struct HeldBody {
    /// The kind of the object.
    pub resource: Arc<Resource>,
    /// The object as JSON text, as it was received.
    pub text: String,
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
    /// Returns the content of a held object; `None` if it cannot be read, or if no patches are
    /// expected.
    fn body(&mut self, held: &Held<Self::Row>) -> Result<Option<HeldBody>, Self::Error> {
        let _ = held;
        Ok(None)
    }
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
    /// Patches that could not be applied. Not a failure of the object: it is sent as a whole.
    pub unpatched: Vec<Unpatched>,
    /// The objects that patches have changed. The change itself does not name them.
    pub patched: Vec<PatchedObject>,
}

/// An object that a patch has changed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PatchedObject {
    /// The UID of the object.
    pub uid: Uid,
    /// The kind.
    pub resource: Arc<Resource>,
    /// The namespace, empty for cluster-scoped kinds.
    pub namespace: Arc<str>,
    /// The object's name.
    pub name: Arc<str>,
    /// The length of the patch in bytes.
    pub bytes: usize,
}

/// Returns whether an incoming version is stored.
///
/// Guarantee G2: an older version never replaces a newer one, unless the sender names the version
/// it supersedes.
fn accepts_version(
    held: &ResourceVersion,
    version: &ResourceVersion,
    supersedes: Option<&ResourceVersion>,
) -> bool {
    #[cfg(any(test, feature = "simulation"))]
    if super::fault::planted(super::fault::Fault::NoVersionCheck) {
        return true;
    }
    match version.relation(held) {
        Relation::Newer | Relation::Different => true,
        Relation::Equal => false,
        Relation::Older => supersedes == Some(held),
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
        Change::Patch(patch) => apply_patch(rows, totals, patch, applied),
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
        Some(held) if !accepts_version(&held.version, &put.version, put.supersedes.as_ref()) => {
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
    store(rows, totals, put, replaced, applied)
}

fn store<R: Rows>(
    rows: &mut R,
    totals: &mut Totals,
    put: &Put,
    replaced: Option<Held<R::Row>>,
    applied: &mut Applied,
) -> Result<(), R::Error> {
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

/// Applies a patch to the held version. A stale or duplicate one changes nothing and is answered
/// with what is held, like a whole object.
fn apply_patch<R: Rows>(
    rows: &mut R,
    totals: &mut Totals,
    patch: &Patch,
    applied: &mut Applied,
) -> Result<(), R::Error> {
    let Some(held) = rows.by_uid(patch.uid())? else {
        applied.refuse(patch, PatchProblem::NotHeld);
        return Ok(());
    };
    if !accepts_version(&held.version, patch.version(), patch.supersedes()) {
        applied.observe(held.uid, Some(held.version));
        return Ok(());
    }
    let is_base = held.version == *patch.base();
    #[cfg(any(test, feature = "simulation"))]
    let is_base = is_base || super::fault::planted(super::fault::Fault::PatchAnyVersion);
    if !is_base {
        applied.refuse(patch, PatchProblem::OtherVersion);
        return Ok(());
    }
    let Some(HeldBody { resource, text }) = rows.body(&held)? else {
        applied.refuse(patch, PatchProblem::NotHeld);
        return Ok(());
    };
    let result = patch.apply(&text);
    drop(text);
    match result.and_then(|text| result_of(patch, text, &held, &resource)) {
        Ok(put) => {
            applied.patched.push(PatchedObject {
                uid: put.uid.clone(),
                resource,
                namespace: put.namespace.clone(),
                name: put.name.clone(),
                bytes: patch.encoded_len(),
            });
            store(rows, totals, &put, Some(held), applied)
        }
        Err(problem) => {
            applied.refuse(patch, problem);
            Ok(())
        }
    }
}

/// Checks the result of a patch: a whole object, in the version and under the names of its row.
fn result_of<Row>(
    patch: &Patch,
    text: String,
    held: &Held<Row>,
    resource: &Arc<Resource>,
) -> Result<Put, PatchProblem> {
    let is_shallow = Budget::of(text.len()).check_depth(&text).is_ok();
    let body = RawValue::from_string(text).map_err(|_| PatchProblem::OtherResult)?;
    let names = (&*held.key.namespace, &*held.key.name);
    let put = message::patched(body, patch.version(), resource, names, patch.uid());
    put.ok().filter(|_| is_shallow).ok_or(PatchProblem::OtherResult)
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

    fn refuse(&mut self, patch: &Patch, reason: PatchProblem) {
        let (uid, base) = (patch.uid().clone(), patch.base().clone());
        self.unpatched.push(Unpatched { uid, base, reason });
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

/// Checks the length of the result of a patch against the limit of the node, in bytes.
pub(crate) fn check_length(patch: &Patch, max_object: usize) -> Result<(), Rejected> {
    if patch.length() <= max_object {
        return Ok(());
    }
    Err(Rejected {
        uid: patch.uid().clone(),
        resource_version: patch.version().clone(),
        reason: RejectReason::TooLarge,
        message: format!("must be at most {max_object} bytes, has {}", patch.length()),
        object: None,
    })
}

/// Returns the false claim of [`AckBeforeCommit`](crate::fault::Fault::AckBeforeCommit): every
/// change has taken effect.
#[cfg(any(test, feature = "simulation"))]
pub(crate) fn observe_early(changes: &[Change]) -> Applied {
    let observe = |change: &Change| {
        let version = match change {
            Change::Put(put) => Some(put.version.clone()),
            Change::Patch(patch) => Some(patch.version().clone()),
            Change::Delete(_) => None,
        };
        Observed { uid: change.uid().clone(), version }
    };
    Applied { observed: changes.iter().map(observe).collect(), ..Applied::default() }
}
