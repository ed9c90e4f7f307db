//! Writes of one object, one after the other: who insists on no version waits for its turn, and loses no race against
//! others like it.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::OwnedMutexGuard;

use edgesync_object::ObjectKey;

/// The objects that are written now.
#[derive(Debug, Default)]
pub(super) struct Turns(Mutex<HashMap<ObjectKey, Arc<tokio::sync::Mutex<()>>>>);

/// The turn of one write; the next one has it when this is dropped.
#[derive(Debug)]
pub(super) struct Turn<'a> {
    turns: &'a Turns,
    key: ObjectKey,
    held: Option<OwnedMutexGuard<()>>,
}

impl Turns {
    /// Waits for a turn to write an object, in the order of asking. Safe to cancel.
    pub(super) async fn take(&self, key: ObjectKey) -> Turn<'_> {
        let object = Arc::clone(self.lock().entry(key.clone()).or_default());
        let mut turn = Turn { turns: self, key, held: None };
        turn.held = Some(object.lock_owned().await);
        turn
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<ObjectKey, Arc<tokio::sync::Mutex<()>>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        self.held = None;
        let mut objects = self.turns.lock();
        // Whoever waits has a handle as well.
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

    async fn waits(turns: &Turns, name: &str) -> bool {
        timeout(Duration::from_millis(1), turns.take(key(name))).await.is_err()
    }

    #[tokio::test(start_paused = true)]
    async fn one_object_has_one_writer_and_nothing_is_kept_of_those_that_are_through() {
        let turns = Turns::default();
        let first = turns.take(key("a")).await;
        assert!(!waits(&turns, "b").await && waits(&turns, "a").await, "nor of one that gave up");
        drop(first);
        assert!(!waits(&turns, "a").await);
        assert!(turns.lock().is_empty());
    }
}
