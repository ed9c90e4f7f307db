//! Store operations for the local API beyond sync: versions, the commit listener, and local
//! objects.

use std::sync::Arc;

use super::EdgeStore;
use super::commit_listener::{CommitListener, Versions};
use super::local::{self, LocalOutcome, LocalWrite};
use super::outbox::MonotonicTime;
use super::types::{LocalKind, LocalObject};
use edgesync_store::StoreError;

impl EdgeStore {
    /// Returns the newest committed versions.
    #[must_use]
    pub fn versions(&self) -> Versions {
        self.inner.shared.versions()
    }

    /// Sets the listener for commits, from the next one on. There is one; later calls have no
    /// effect.
    pub fn observe(&self, observer: Arc<dyn CommitListener>) {
        // The first one stays.
        let _ = self.inner.shared.observer.set(observer);
    }

    /// Waits until the commits in flight are done, so that the listener's current appetite applies.
    pub async fn settle(&self) {
        // Nothing depends on the result.
        let _ = self.inner.writer.post(|_, _| Ok::<(), StoreError>(())).await;
    }

    /// Returns the local object of a name.
    ///
    /// # Errors
    /// Fails if the store cannot be read. A damaged row counts as missing, and is removed.
    pub async fn local(
        &self,
        kind: LocalKind,
        namespace: String,
        name: String,
    ) -> Result<Option<LocalObject>, StoreError> {
        let read = move |conn: &_| local::by_name(conn, kind, &namespace, &name);
        let (object, damaged) = self.inner.readers.run(read).await?;
        self.report_local_damage(damaged);
        Ok(object)
    }

    /// Writes a local object, in the next commit. A created or updated Event also goes into the
    /// outbox, with the lane for local programs; `at` is the time of the write.
    ///
    /// # Errors
    /// Fails if the store cannot be written; a refusal is part of the outcome.
    pub async fn write_local(
        &self,
        write: LocalWrite,
        at: MonotonicTime,
    ) -> Result<LocalOutcome, StoreError> {
        let bytes = 2 * write.object().body.len();
        self.inner.writer.run(bytes, move |conn, state| state.write_local(conn, &write, at)).await
    }

    pub(super) fn report_local_damage(&self, damaged: Vec<i64>) {
        if !damaged.is_empty() {
            drop(self.inner.writer.post(move |conn, state| state.repair_local(conn, &damaged)));
        }
    }
}
