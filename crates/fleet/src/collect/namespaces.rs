//! Namespaces that are being deleted: empties them, then lets them go.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use serde_json::Value;
use tokio::time::Instant;

use super::remove;
use edgesync_api::Storage;
use edgesync_object::status::{Reason, Result};
use edgesync_object::{Resource, Scope};

/// How soon a namespace is looked at again, at first and at most: objects in it wait for their
/// finalizers.
const AGAIN: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(5));
/// The finalizer in the spec of a namespace that has not been emptied.
const FINALIZER: &str = "kubernetes";

/// The namespaces that are being deleted, and when they are looked at next.
#[derive(Debug, Default)]
pub(super) struct Terminating(BTreeMap<String, Turn>);

#[derive(Debug)]
struct Turn {
    due: Instant,
    pause: Duration,
}

impl Terminating {
    /// Takes in whether a namespace is being deleted.
    pub(super) fn set(&mut self, name: &str, terminating: bool) {
        if !terminating {
            self.0.remove(name);
        } else if !self.0.contains_key(name) {
            self.0.insert(name.to_owned(), Turn { due: Instant::now(), pause: AGAIN.0 });
        }
    }

    /// When the next one is due.
    pub(super) fn due(&self) -> Option<Instant> {
        self.0.values().map(|turn| turn.due).min()
    }

    /// Empties every namespace that is due, and lets those go in which nothing was found.
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
                Err(status) => tracing::warn!(namespace = name, %status, "a namespace cannot be emptied"),
            }
            if let Some(turn) = self.0.get_mut(&name) {
                turn.due = Instant::now() + turn.pause;
                turn.pause = (turn.pause * 2).min(AGAIN.1);
            }
        }
    }
}

/// Deletes what is in a namespace. If nothing was, the namespace goes: tells whether it has.
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

/// Takes the finalizer from the spec of a namespace. Without any other, the namespace goes.
async fn release<K: Storage>(storage: &K, resource: &Arc<Resource>, name: &str) -> Result<()> {
    let Some(stored) = storage.get(resource, "", name).await? else { return Ok(()) };
    let mut object = remove::parse(&stored)?;
    if object.deletion_timestamp().is_none() {
        return Ok(());
    }
    if let Some(Value::Object(spec)) = object.fields_mut().get_mut("spec")
        && let Some(Value::Array(finalizers)) = spec.get_mut("finalizers")
    {
        finalizers.retain(|finalizer| finalizer != FINALIZER);
    }
    remove::put(storage, resource, &stored, object).await
}
