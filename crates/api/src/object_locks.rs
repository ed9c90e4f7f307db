//! Write locks, one per object: unconditional writes of one object run one after the other instead
//! of conflicting.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::OwnedMutexGuard;

use edgesync_object::ObjectKey;

/// The objects with a write in progress or waiting.
#[derive(Debug, Default)]
pub(super) struct ObjectLocks(Mutex<HashMap<ObjectKey, Arc<tokio::sync::Mutex<()>>>>);

/// The lock of one write, released on drop.
#[derive(Debug)]
pub(super) struct ObjectLock<'a> {
    locks: &'a ObjectLocks,
    key: ObjectKey,
    held: Option<OwnedMutexGuard<()>>,
}

impl ObjectLocks {
    /// Locks an object for a write, in FIFO order. Cancel-safe.
    pub(super) async fn lock(&self, key: ObjectKey) -> ObjectLock<'_> {
        let object = Arc::clone(self.entries().entry(key.clone()).or_default());
        let mut lock = ObjectLock { locks: self, key, held: None };
        lock.held = Some(object.lock_owned().await);
        lock
    }

    fn entries(&self) -> MutexGuard<'_, HashMap<ObjectKey, Arc<tokio::sync::Mutex<()>>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for ObjectLock<'_> {
    fn drop(&mut self) {
        self.held = None;
        let mut objects = self.locks.entries();
        // A waiting write holds a handle too.
        if objects.get(&self.key).is_some_and(|object| Arc::strong_count(object) == 1) {
            objects.remove(&self.key);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tokio::time::timeout;

    use super::*;
    use edgesync_object::kinds;

    fn key(name: &str) -> ObjectKey {
        kinds::by_word("cm").unwrap().resource().key("default", name)
    }

    async fn waits(locks: &ObjectLocks, name: &str) -> bool {
        timeout(Duration::from_millis(1), locks.lock(key(name))).await.is_err()
    }

    #[tokio::test(start_paused = true)]
    async fn object_has_one_writer_and_finished_locks_are_removed() {
        let locks = ObjectLocks::default();
        let first = locks.lock(key("a")).await;
        assert!(!waits(&locks, "b").await && waits(&locks, "a").await, "nor of one that gave up");
        drop(first);
        assert!(!waits(&locks, "a").await);
        assert!(locks.entries().is_empty());
    }
}
