//! Applies a batch so that one object without room does not keep the others out.

use std::sync::Arc;

use crate::store::StoreError;
use crate::store::edge::{self, EdgeStore};
use crate::sync::change::{Change, RejectReason, Rejected};
use crate::sync::edge::Commit;
use crate::sync::replica::Applied;

/// Applies all changes in one transaction; where that finds no room, one by one, and rejects the ones that
/// do not fit.
///
/// # Errors
/// The store's, when it takes nothing at all.
pub(super) async fn apply(store: EdgeStore, changes: Vec<Change>) -> Result<Commit, StoreError> {
    let changes = Arc::new(changes);
    let whole = 0..changes.len();
    let mut result = store.apply_range(changes.clone(), whole.clone()).await;
    if matches!(result, Err(StoreError::Corrupt { .. })) {
        // The file was replaced meanwhile: the same changes go into the new one.
        result = store.apply_range(changes.clone(), whole).await;
    }
    match result {
        Ok(commit) => Ok(joined(commit)),
        Err(StoreError::Full { .. }) if changes.len() > 1 => one_by_one(&store, &changes).await,
        Err(error) => Err(error),
    }
}

fn joined(commit: edge::Commit) -> Commit {
    let edge::Commit { before, totals, applied, .. } = commit;
    Commit { before, totals, applied }
}

async fn one_by_one(store: &EdgeStore, changes: &Arc<Vec<Change>>) -> Result<Commit, StoreError> {
    let mut all: Option<Commit> = None;
    let mut rejected = Vec::new();
    let mut last = None;
    for (at, change) in changes.iter().enumerate() {
        match store.apply_range(changes.clone(), at..at + 1).await {
            Ok(commit) => {
                let Commit { before, totals, applied } = joined(commit);
                let all = all.get_or_insert(Commit { before, totals, applied: Applied::default() });
                all.totals = totals;
                all.applied.observed.extend(applied.observed);
                all.applied.rejected.extend(applied.rejected);
            }
            Err(error @ StoreError::Full { .. }) => {
                rejected.push(refusal(change, &error));
                last = Some(error);
            }
            Err(error) => return Err(error),
        }
    }
    match (all, last) {
        (Some(mut commit), _) => {
            commit.applied.rejected.extend(rejected);
            // Changes of other batches lie between these: claiming the whole range would cover them too.
            // Claiming none makes the edge report the range again, row by row.
            commit.before = commit.totals.revision;
            Ok(commit)
        }
        (None, Some(error)) => Err(error),
        (None, None) => Err(StoreError::Closed),
    }
}

fn refusal(change: &Change, error: &StoreError) -> Rejected {
    let (resource_version, object) = match change {
        Change::Put(put) => (put.version.clone(), Some(Box::new(put.object_ref()))),
        Change::Delete(_) => ("".into(), None),
    };
    Rejected {
        uid: change.uid().clone(),
        resource_version,
        reason: RejectReason::StoreFull,
        message: error.to_string().chars().take(200).collect(),
        object,
    }
}
