//! Deletion of namespaces: empties each one, then removes its finalizer.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use serde_json::Value;
use tokio::time::Instant;

use super::remove;
use edgesync_api::Storage;
use edgesync_object::status::{Reason, Result};
use edgesync_object::{Resource, Scope};

/// Initial and maximum delay before a namespace is checked again: objects in it wait for their
/// finalizers.
const AGAIN: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(5));
/// Finalizer in the spec of a namespace that is not empty yet.
const FINALIZER: &str = "kubernetes";

/// Terminating namespaces, with the time of their next check.
#[derive(Debug, Default)]
pub(super) struct Terminating(BTreeMap<String, Turn>);

#[derive(Debug)]
struct Turn {
    due: Instant,
    pause: Duration,
}

impl Terminating {
    /// Records whether a namespace is terminating.
    pub(super) fn set(&mut self, name: &str, terminating: bool) {
        if !terminating {
            self.0.remove(name);
        } else if !self.0.contains_key(name) {
            self.0.insert(name.to_owned(), Turn { due: Instant::now(), pause: AGAIN.0 });
        }
    }

    /// Returns the time of the next check.
    pub(super) fn due(&self) -> Option<Instant> {
        self.0.values().map(|turn| turn.due).min()
    }

    /// Empties every namespace that is due, and releases the empty ones.
    pub(super) async fn work<K: Storage>(
        &mut self,
        storage: &Arc<K>,
        namespace: &Arc<Resource>,
        kinds: &[Arc<Resource>],
    ) {
        let now = Instant::now();
        let due = self.0.iter().filter(|(_, turn)| turn.due <= now);
        for name in due.map(|(name, _)| name.clone()).collect::<Vec<_>>() {
            match empty(storage, namespace, kinds, &name).await {
                Ok(true) => {
                    self.0.remove(&name);
                    continue;
                }
                Ok(false) => {}
                Err(status) => {
                    tracing::warn!(namespace = name, %status, "deleting the contents of a namespace failed");
                }
            }
            if let Some(turn) = self.0.get_mut(&name) {
                turn.due = Instant::now() + turn.pause;
                turn.pause = (turn.pause * 2).min(AGAIN.1);
            }
        }
    }
}

/// Deletes the contents of a namespace, or releases it if it is empty. Returns whether it was
/// released.
async fn empty<K: Storage>(
    storage: &Arc<K>,
    namespace: &Arc<Resource>,
    kinds: &[Arc<Resource>],
    name: &str,
) -> Result<bool> {
    let mut found = 0;
    for kind in kinds.iter().filter(|kind| kind.scope == Scope::Namespaced) {
        found += remove::sweep(storage, kind, Some(name)).await?;
    }
    if found > 0 {
        return Ok(false);
    }
    match release(&**storage, namespace, name).await {
        Err(status) if status.is(&Reason::Conflict) => Ok(false),
        released => released.map(|()| true),
    }
}

/// Removes the finalizer in the spec of a namespace, which deletes it if no other remains.
async fn release<K: Storage>(storage: &K, resource: &Arc<Resource>, name: &str) -> Result<()> {
    let Some(stored) = storage.get(resource, "", name).await? else { return Ok(()) };
    let held = remove::parse(&stored)?;
    if held.deletion_timestamp().is_none() {
        return Ok(());
    }
    let mut object = held.clone();
    if let Some(Value::Object(spec)) = object.fields_mut().get_mut("spec")
        && let Some(Value::Array(finalizers)) = spec.get_mut("finalizers")
    {
        finalizers.retain(|finalizer| finalizer != FINALIZER);
    }
    if object == held && held.is_held() {
        // By finalizers of others.
        return Ok(());
    }
    remove::put(storage, resource, &stored, object).await
}
