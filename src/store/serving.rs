//! What serving an API needs of the store beyond syncing: versions, one who is told of commits, and the objects
//! that are made on the node.

use std::sync::Arc;

use super::EdgeStore;
use super::local::{self, LocalOutcome, LocalWrite};
use super::observer::{Observer, Versions};
use super::outbox::Clocked;
use super::types::{LocalKind, LocalObject};
use edgesync_store::StoreError;

impl EdgeStore {
    /// The newest committed versions.
    #[must_use]
    pub fn versions(&self) -> Versions {
        self.inner.shared.versions()
    }

    /// Sets who is told of commits from the next one on. There is one; later calls change nothing.
    pub fn observe(&self, observer: Arc<dyn Observer>) {
        // The first one stays.
        let _ = self.inner.shared.observer.set(observer);
    }

    /// Waits until the commits that are under way are done, so that the observer's appetite counts.
    pub async fn settle(&self) {
        // Nothing depends on the outcome.
        let _ = self.inner.writer.post(|_, _| Ok::<(), StoreError>(())).await;
    }

    /// The object of this name that was made on this node.
    ///
    /// # Errors
    /// The store's. An object whose row turns out damaged is not found, and is removed.
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

    /// Writes an object that is made on this node, in the next commit. An Event that is created or updated goes
    /// into the outbox with it, as one of programs on the device; `at` says when that happened.
    ///
    /// # Errors
    /// The store's; a refusal is in the outcome.
    pub async fn write_local(&self, write: LocalWrite, at: Clocked) -> Result<LocalOutcome, StoreError> {
        let bytes = 2 * write.object().body.len();
        self.inner.writer.run(bytes, move |conn, state| state.write_local(conn, &write, at)).await
    }

    pub(super) fn report_local_damage(&self, damaged: Vec<i64>) {
        if !damaged.is_empty() {
            drop(self.inner.writer.post(move |conn, state| state.repair_local(conn, &damaged)));
        }
    }
}
