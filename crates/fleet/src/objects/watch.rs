//! Watch cache: converts commits of the store to changes of the API, for the kinds that have been
//! watched.

use std::collections::HashMap;
use std::sync::{Arc, OnceLock, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use edgesync_api::{Batch, Change, ChangeType, Stored, WatchCache};
use edgesync_cloud_store::{ChangeKind, CommitListener, KindName, WatchChange};

/// Bytes of changes kept in memory; older ones are read from the history.
pub(super) const RING_BYTES: usize = 16 << 20;

/// Ring of the newest changes with their kinds. The store's writer fills it after each commit;
/// watches read it.
pub(super) struct Watches {
    pub(super) ring: WatchCache<Arc<KindName>>,
    /// Requested kinds, with the version from which their changes are kept; `None` until then.
    kinds: RwLock<HashMap<KindName, Option<u64>>>,
}

impl Watches {
    pub(super) fn new(bytes: usize) -> Self {
        Self { ring: WatchCache::new(bytes, 0), kinds: RwLock::default() }
    }

    /// Returns the changes of a kind after a version; `None` if the ring lacks some of them. A
    /// requested kind is kept from the next transaction on.
    pub(super) fn after(&self, kind: &KindName, after: u64) -> Option<Batch> {
        let Some(since) = self.kinds().get(kind).copied() else {
            self.kinds_mut().entry(kind.clone()).or_default();
            return None;
        };
        if since.is_none_or(|since| after < since) {
            return None;
        }
        self.ring.after(after, |of| **of == *kind)
    }

    fn kinds(&self) -> RwLockReadGuard<'_, HashMap<KindName, Option<u64>>> {
        self.kinds.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn kinds_mut(&self) -> RwLockWriteGuard<'_, HashMap<KindName, Option<u64>>> {
        self.kinds.write().unwrap_or_else(PoisonError::into_inner)
    }
}

impl CommitListener for Watches {
    fn begin(&self, version: u64) {
        self.ring.skip(version);
    }

    fn attend(&self, version: u64) {
        if self.kinds().values().any(Option::is_none) {
            for since in self.kinds_mut().values_mut() {
                since.get_or_insert(version);
            }
        }
    }

    fn wants(&self, of: &KindName) -> bool {
        self.kinds().get(of).is_some_and(Option::is_some)
    }

    fn committed(&self, changes: Vec<WatchChange>, version: u64) {
        self.ring.push(changes.into_iter().map(|change| (Arc::clone(&change.of), shared(change))), version);
    }

    fn closed(&self) {
        self.ring.close();
    }
}

/// Converts a change of the store to one of the API.
pub(super) fn shared(change: WatchChange) -> Change {
    let WatchChange { kind, version, namespace, name, body, previous, .. } = change;
    let kind = match kind {
        ChangeKind::Added => ChangeType::Added,
        ChangeKind::Modified => ChangeType::Modified,
        ChangeKind::Deleted => ChangeType::Deleted,
    };
    Change { kind, object: Stored { namespace, name, version, json: body }, previous, line: OnceLock::new() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn watched_kind_is_cached_from_the_next_transaction() {
        let watches = Watches::new(1 << 20);
        let of = KindName { group: String::new(), kind: "A".to_owned() };
        watches.begin(101);
        assert!(watches.after(&of, 101).is_none() && !watches.wants(&of));
        watches.committed(Vec::new(), 102);
        watches.attend(102);
        assert!(watches.wants(&of) && watches.after(&of, 101).is_none());
        let change = WatchChange {
            kind: ChangeKind::Added,
            of: Arc::new(of.clone()),
            version: 103,
            namespace: "n".to_owned(),
            name: "a".to_owned(),
            body: "{}".to_owned(),
            previous: None,
        };
        watches.committed(vec![change], 103);
        let batch = watches.after(&of, 102).unwrap();
        assert_eq!((batch.changes.len(), batch.version), (1, 103));
        let other = KindName { kind: "B".to_owned(), ..of };
        assert!(!watches.wants(&other) && watches.after(&other, 102).is_none());
    }
}
