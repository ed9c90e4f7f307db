//! The keys of sealed bodies: state and rotation.

use std::sync::Arc;

use rusqlite::Connection;

use super::seals::{Active, BATCH_BYTES};
use super::state::State;
use super::{EdgeStore, read};
use edgesync_store::StoreError;
use edgesync_store::seal::keyring::KeyFacts;
use edgesync_store::seal::{Keyring, SealError};

/// Result of a rotation of the keys.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rotated {
    /// Objects sealed with the new key.
    pub objects: u64,
    /// The keys after the rotation.
    pub keys: KeyFacts,
}

/// State of sealed bodies, for the status.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SealFacts {
    pub keys: KeyFacts,
    /// Objects of sealed kinds.
    pub objects: u64,
}

impl EdgeStore {
    /// Returns the state of sealed bodies; `None` if nothing is sealed.
    ///
    /// # Errors
    /// Fails if the store cannot be read.
    pub async fn seal_facts(&self) -> Result<Option<SealFacts>, StoreError> {
        let Some(active) = self.inner.seals.0.clone() else { return Ok(None) };
        let keys = active.keys.facts();
        let count = move |conn: &_| read::count_of(conn, |resource| active.options.covers(resource));
        Ok(Some(SealFacts { keys, objects: self.inner.readers.run(count).await? }))
    }

    /// Returns whether a key has reached its usage limit and requires [`EdgeStore::rotate_seal`].
    #[must_use]
    pub(crate) fn is_seal_worn(&self) -> bool {
        self.inner.seals.0.as_ref().is_some_and(|active| active.keys.needs_rotation())
    }

    /// Creates a new key, seals all rows with it and deletes the old one, during normal operation:
    /// no version and no revision changes, and watches see nothing. Finishes an interrupted
    /// rotation instead, as the next opening does; until then the old key is kept. Continues even
    /// if the caller stops waiting.
    ///
    /// # Errors
    /// Fails if the store does; [`StoreError::Internal`] if nothing is sealed.
    pub async fn rotate_seal(&self) -> Result<Rotated, StoreError> {
        let store = self.clone();
        let done = tokio::spawn(async move { store.rotate().await }).await;
        done.unwrap_or_else(|error| Err(StoreError::internal(error.to_string())))
    }

    async fn rotate(&self) -> Result<Rotated, StoreError> {
        let Some(active) = self.inner.seals.0.clone() else {
            return Err(StoreError::internal("store without seal keys"));
        };
        let _rotating = self.inner.rotating.lock().await;
        if !self.inner.seals.is_rotating() {
            change_keys(&active, Keyring::add_key).await?;
        }
        let mut objects = 0;
        loop {
            // Rows may move while the file is replaced by its readable rows.
            let generation = self.inner.shared.snapshots.generation();
            let resealed = self.reseal_objects().await?;
            self.reseal_outbox().await?;
            objects += resealed;
            if resealed == 0 && generation == self.inner.shared.snapshots.generation() {
                break;
            }
        }
        change_keys(&active, Keyring::forget_old).await?;
        tracing::info!(objects, "seal key rotated");
        Ok(Rotated { objects, keys: active.keys.facts() })
    }

    async fn reseal_objects(&self) -> Result<u64, StoreError> {
        let (mut after, mut objects) = (i64::MIN, 0);
        loop {
            let job = move |conn: &Connection, state: &mut State| state.reseal(conn, after);
            let (last, resealed) = self.inner.writer.run(BATCH_BYTES, job).await?;
            objects += resealed;
            match last {
                Some(last) => after = last,
                None => return Ok(objects),
            }
        }
    }

    async fn reseal_outbox(&self) -> Result<(), StoreError> {
        let mut after = Some(0);
        while let Some(from) = after {
            let job = move |conn: &Connection, state: &mut State| state.reseal_outbox(conn, from);
            after = self.inner.writer.run(BATCH_BYTES, job).await?;
        }
        Ok(())
    }
}

/// Changes the file with the keys on a blocking thread.
async fn change_keys(
    active: &Arc<Active>,
    change: fn(&Keyring) -> Result<(), SealError>,
) -> Result<(), StoreError> {
    let active = Arc::clone(active);
    match tokio::task::spawn_blocking(move || change(&active.keys)).await {
        Ok(result) => Ok(result?),
        Err(error) => Err(StoreError::internal(error.to_string())),
    }
}
