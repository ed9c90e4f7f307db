//! Applies a batch of changes, so that an object that does not fit the store does not block the
//! others.

use std::sync::Arc;

use crate::store as edge;
use crate::store::EdgeStore;
use edgesync_protocol::apply::Applied;
use edgesync_protocol::change::{Change, RejectReason, Rejected};
use edgesync_protocol::edge::Commit;
use edgesync_protocol::frame::PartialMessage;
use edgesync_store::StoreError;

/// Applies all changes in one transaction. If the store is full, applies them one by one and
/// rejects those that do not fit.
///
/// # Errors
/// Fails if the store accepts nothing at all.
pub(super) async fn apply(store: EdgeStore, changes: Vec<Change>) -> Result<Commit, StoreError> {
    let changes = Arc::new(changes);
    let whole = 0..changes.len();
    let mut result = store.apply_range(changes.clone(), whole.clone()).await;
    if matches!(result, Err(StoreError::Corrupt { .. })) {
        // The file was replaced meanwhile: the same changes go into the new one.
        result = store.apply_range(changes.clone(), whole).await;
    }
    if matches!(result, Err(StoreError::Full { .. })) && store.drop_parts().await.unwrap_or(false) {
        // The stored parts of an incomplete message give way to complete changes.
        result = store.apply_range(changes.clone(), 0..changes.len()).await;
    }
    match result {
        Ok(commit) => Ok(joined(commit)),
        Err(StoreError::Full { .. }) if changes.len() > 1 => one_by_one(&store, &changes).await,
        Err(error) => Err(error),
    }
}

/// The outcome of a batch.
#[derive(Debug)]
pub(super) enum Outcome {
    /// The batch was committed.
    Committed(Commit),
    /// A message in parts was applied. Its change was not known before.
    Assembled(Commit, Option<Change>),
    /// The kept bytes of a message in parts are damaged or gone.
    Lost,
}

/// Completes a message in parts.
///
/// # Errors
/// Fails if the store does.
pub(super) async fn apply_parts(
    store: EdgeStore,
    message: PartialMessage,
    rest: String,
    max_object: usize,
) -> Result<Outcome, StoreError> {
    let applied = store.apply_parts(message, rest, max_object).await?;
    Ok(applied.map_or(Outcome::Lost, |applied| Outcome::Assembled(joined(applied.commit), applied.change)))
}

fn joined(commit: edge::Commit) -> Commit {
    let edge::Commit { before, totals, applied, .. } = commit;
    Commit { before, totals, applied }
}

async fn one_by_one(store: &EdgeStore, changes: &Arc<Vec<Change>>) -> Result<Commit, StoreError> {
    let mut outcome = SingleResults::default();
    for at in 0..changes.len() {
        let result = store.apply_range(changes.clone(), at..at + 1).await;
        if !outcome.add(changes.get(at..).unwrap_or_default(), result) {
            break;
        }
    }
    outcome.finish()
}

/// Accumulated results of single changes. A committed change is reported as held, whatever the
/// results of the others.
#[derive(Default)]
struct SingleResults {
    committed: Option<Commit>,
    rejected: Vec<Rejected>,
    last: Option<StoreError>,
}

impl SingleResults {
    /// Adds the result of the first remaining change. Returns whether to continue.
    fn add(&mut self, left: &[Change], result: Result<edge::Commit, StoreError>) -> bool {
        match result {
            Ok(commit) => {
                let Commit { before, totals, applied } = joined(commit);
                let all =
                    self.committed.get_or_insert(Commit { before, totals, applied: Applied::default() });
                all.totals = totals;
                all.applied.observed.extend(applied.observed);
                all.applied.rejected.extend(applied.rejected);
                all.applied.unpatched.extend(applied.unpatched);
                all.applied.patched.extend(applied.patched);
                true
            }
            Err(error) => {
                let is_full = matches!(error, StoreError::Full { .. });
                let (refused, reason) = match is_full {
                    true => (left.get(..1), RejectReason::StoreFull),
                    false => (Some(left), RejectReason::StoreUnavailable),
                };
                let refused = refused.unwrap_or_default().iter();
                self.rejected.extend(refused.map(|change| rejection(change, reason, &error)));
                self.last = Some(error);
                is_full
            }
        }
    }

    fn finish(self) -> Result<Commit, StoreError> {
        match (self.committed, self.last) {
            (Some(mut commit), _) => {
                commit.applied.rejected.extend(self.rejected);
                // Changes of other batches lie between these: claiming the whole range would cover
                // them too. Claiming none makes the edge report the range again, row by row.
                commit.before = commit.totals.revision;
                Ok(commit)
            }
            (None, Some(error)) => Err(error),
            (None, None) => Err(StoreError::Closed),
        }
    }
}

fn rejection(change: &Change, reason: RejectReason, error: &StoreError) -> Rejected {
    let (resource_version, object) = match change {
        Change::Put(put) => (put.version.clone(), Some(Box::new(put.object_ref()))),
        Change::Patch(patch) => (patch.version().clone(), None),
        Change::Delete(_) => ("".into(), None),
    };
    Rejected {
        uid: change.uid().clone(),
        resource_version,
        reason,
        message: error.to_string().chars().take(200).collect(),
        object,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use edgesync_protocol::apply::{Observed, Totals};
    use edgesync_protocol::change::Delete;
    use edgesync_protocol::digest::{Digest, Epoch};

    fn changes(count: u32) -> Vec<Change> {
        let uid = |number| format!("u-{number}").into();
        let key = edgesync_object::ObjectKey {
            group: "".into(),
            kind: "ConfigMap".into(),
            namespace: "n".into(),
            name: "c".into(),
        };
        (0..count).map(|number| Change::Delete(Delete { uid: uid(number), key: key.clone() })).collect()
    }

    fn committed(revision: u64, uid: &str) -> edge::Commit {
        let totals = Totals { epoch: Epoch(1), revision, count: 0, digest: Digest::default() };
        let mut applied = Applied::default();
        applied.observed.push(Observed { uid: uid.into(), version: None });
        edge::Commit { before: revision - 1, totals, applied }
    }

    #[test]
    fn changes_committed_before_a_failure_are_reported_as_held() {
        let changes = changes(5);
        let mut outcome = SingleResults::default();
        let full = StoreError::Full(Arc::new(std::io::Error::other("no room")));
        let gone = StoreError::Unavailable(Arc::new(std::io::Error::other("gone")));
        assert!(outcome.add(&changes, Ok(committed(10, "u-0"))));
        assert!(outcome.add(&changes[1..], Err(full)));
        assert!(outcome.add(&changes[2..], Ok(committed(12, "u-2"))));
        assert!(!outcome.add(&changes[3..], Err(gone)), "nothing more is tried");
        let commit = outcome.finish().unwrap();
        let held: Vec<&str> = commit.applied.observed.iter().map(|it| &*it.uid).collect();
        assert_eq!((held, commit.totals.revision, commit.before), (vec!["u-0", "u-2"], 12, 12));
        let rejected: Vec<(&str, RejectReason)> =
            commit.applied.rejected.iter().map(|it| (&*it.uid, it.reason)).collect();
        let (full, gone) = (RejectReason::StoreFull, RejectReason::StoreUnavailable);
        assert_eq!(rejected, [("u-1", full), ("u-3", gone), ("u-4", gone)]);
    }

    /// Returns text that hardly compresses.
    fn noise(bytes: usize) -> String {
        let mut state = 7_u64;
        let mut letter = || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            char::from(b'0' + u8::try_from(state >> 58).unwrap())
        };
        (0..bytes).map(|_| letter()).collect::<String>().replace(['\\', '"'], "x")
    }

    fn large(bytes: usize) -> Change {
        let body = format!(
            r#"{{"apiVersion":"v1","kind":"ConfigMap","metadata":{{"name":"c","namespace":"n","uid":"u","resourceVersion":"1"}},"data":{{"x":"{}"}}}}"#,
            noise(bytes)
        );
        let resource = edgesync_object::Resource {
            group: String::new(),
            version: "v1".into(),
            kind: "ConfigMap".into(),
            plural: "configmaps".into(),
            scope: edgesync_object::Scope::Namespaced,
        };
        Change::Put(edgesync_protocol::change::Put {
            uid: "u".into(),
            version: 1.into(),
            supersedes: None,
            resource: Arc::new(resource),
            namespace: "n".into(),
            name: "c".into(),
            body: serde_json::value::RawValue::from_string(body).unwrap(),
        })
    }

    #[tokio::test]
    async fn parts_give_way_to_complete_objects() {
        let dir = tempfile::tempdir().unwrap();
        let mut options = crate::store::EdgeOptions::default();
        options.engine.max_bytes = Some(2 << 20);
        let store = EdgeStore::open(&dir.path().join("edge.db"), options).unwrap();
        let piece = noise(128 << 10);
        let mut message = PartialMessage {
            uid: "other".into(),
            resource_version: 1.into(),
            total: 1 << 20,
            digest: edgesync_protocol::digest::MessageDigest(1),
            received: 0,
        };
        for _ in 0..7 {
            assert!(store.keep_part(message.clone(), piece.clone()).await.unwrap());
            message.received += piece.len() as u64;
        }
        let commit = apply(store.clone(), vec![large(1 << 20)]).await.unwrap();
        assert_eq!((commit.totals.count, store.kept_parts().await.unwrap()), (1, None));
        store.close().await;
    }

    #[test]
    fn a_store_that_accepts_nothing_fails_the_batch() {
        let mut outcome = SingleResults::default();
        assert!(!outcome.add(&changes(2), Err(StoreError::Closed)));
        assert!(matches!(outcome.finish(), Err(StoreError::Closed)));
    }
}
