//! Deletes objects as the API does: an object with finalizers is marked and waits for them, others
//! are removed at once. Depends on `api` and `object`.

use std::sync::Arc;

use jiff::Timestamp;
use serde_json::Value;
use tokio::task::JoinSet;

use edgesync_api::{PAGE_ROWS, PageQuery, Snapshot, Storage, Stored};
use edgesync_object::status::{Reason, Result};
use edgesync_object::time::rfc3339;
use edgesync_object::{Object, Resource, Status};

/// Finalizer of an owner that is deleted after the dependents that block it.
pub(crate) const FOREGROUND: &str = "foregroundDeletion";
/// Finalizer of an owner whose dependents are kept.
pub(crate) const ORPHAN: &str = "orphan";
/// Maximum number of concurrent writes; they share commits.
pub(super) const AT_ONCE: usize = 32;

/// Returns the current time in RFC 3339 format.
pub(crate) fn now() -> String {
    rfc3339(Timestamp::now())
}

pub(super) fn parse(stored: &Stored) -> Result<Object> {
    Object::parse(&stored.json).map_err(Status::internal)
}

/// Returns whether the object has a finalizer.
pub(super) fn has_finalizer(object: &Object, finalizer: &str) -> bool {
    let list = object.metadata().and_then(|metadata| metadata.get("finalizers")).and_then(Value::as_array);
    list.is_some_and(|list| list.iter().any(|held| held == finalizer))
}

/// Deletes an object if it is unchanged. With `foreground`, its own dependents are deleted first.
///
/// # Errors
/// 409 if it has changed; those of the storage.
pub(super) async fn delete<K: Storage>(
    storage: &K,
    resource: &Arc<Resource>,
    stored: &Stored,
    foreground: bool,
) -> Result<()> {
    let mut object = parse(stored)?;
    let marked = object.deletion_timestamp().is_some();
    if foreground && !marked && !has_finalizer(&object, ORPHAN) && !has_finalizer(&object, FOREGROUND) {
        let list =
            object.metadata().and_then(|metadata| metadata.get("finalizers")).and_then(Value::as_array);
        let mut list = list.cloned().unwrap_or_default();
        list.push(FOREGROUND.into());
        object.set_metadata("finalizers", list);
    }
    if !object.is_held() {
        return remove(storage, resource, stored).await;
    }
    if !marked {
        object.set_metadata("deletionTimestamp", now());
        object.set_metadata("deletionGracePeriodSeconds", 0);
        if object.generation() > 0 {
            object.set_metadata("generation", object.generation() + 1);
        }
        if object.kind() == "Namespace"
            && let Some(Value::Object(status)) = object.fields_mut().get_mut("status")
        {
            status.insert("phase".to_owned(), "Terminating".into());
        }
        storage.update(resource, object, stored.version).await?;
    }
    Ok(())
}

async fn remove<K: Storage>(storage: &K, resource: &Arc<Resource>, stored: &Stored) -> Result<()> {
    match storage.remove(resource, stored).await {
        Err(status) if !status.is(&Reason::NotFound) => Err(status),
        _ => Ok(()),
    }
}

/// Updates an object, or removes it if nothing holds it any longer.
///
/// # Errors
/// 409 if it is no longer at the version of `stored`; those of the storage.
pub(super) async fn put<K: Storage>(
    storage: &K,
    resource: &Arc<Resource>,
    stored: &Stored,
    object: Object,
) -> Result<()> {
    if object.deletion_timestamp().is_some() && !object.is_held() {
        return remove(storage, resource, stored).await;
    }
    storage.update(resource, object, stored.version).await.map(drop)
}

/// Removes a finalizer from an object that is being deleted, and the object if no other finalizer
/// remains.
///
/// # Errors
/// 409 if the object has just changed; those of the storage.
pub(crate) async fn release<K: Storage>(
    storage: &K,
    resource: &Arc<Resource>,
    (namespace, name): (&str, &str),
    finalizer: &str,
) -> Result<()> {
    let Some(stored) = storage.get(resource, namespace, name).await? else { return Ok(()) };
    let mut object = parse(&stored)?;
    if object.deletion_timestamp().is_none() || !has_finalizer(&object, finalizer) {
        return Ok(());
    }
    let list = object.metadata().and_then(|metadata| metadata.get("finalizers")).and_then(Value::as_array);
    let kept: Vec<Value> = list.into_iter().flatten().filter(|held| *held != finalizer).cloned().collect();
    if kept.is_empty() {
        object.remove_metadata("finalizers");
    } else {
        object.set_metadata("finalizers", kept);
    }
    put(storage, resource, &stored, object).await
}

/// Deletes all objects of a kind, in one namespace or everywhere. Returns the number found before:
/// some may wait for their finalizers, so only a sweep that finds nothing proves emptiness. Holds
/// one page at a time.
///
/// # Errors
/// Those of the storage; earlier deletions persist.
pub(crate) async fn sweep<K: Storage>(
    storage: &Arc<K>,
    resource: &Arc<Resource>,
    namespace: Option<&str>,
) -> Result<usize> {
    let mut snapshot = storage.snapshot(resource).await?;
    let namespace = namespace.map(str::to_owned);
    let mut query = PageQuery { namespace, limit: PAGE_ROWS, ..PageQuery::default() };
    let mut found = 0;
    loop {
        let page = snapshot.page(query.clone()).await?;
        found += page.items.len();
        let mut items = page.items.into_iter();
        loop {
            let chunk: Vec<Stored> = items.by_ref().take(AT_ONCE).collect();
            if chunk.is_empty() {
                break;
            }
            delete_chunk(storage, resource, chunk).await?;
        }
        query.after = page.next;
        if query.after.is_none() {
            return Ok(found);
        }
    }
}

async fn delete_chunk<K: Storage>(
    storage: &Arc<K>,
    resource: &Arc<Resource>,
    chunk: Vec<Stored>,
) -> Result<()> {
    let mut tasks = JoinSet::new();
    for stored in chunk {
        let (storage, resource) = (Arc::clone(storage), Arc::clone(resource));
        tasks.spawn(async move { delete(&*storage, &resource, &stored, false).await });
    }
    let mut outcome = Ok(());
    while let Some(done) = tasks.join_next().await {
        match done.unwrap_or_else(|error| Err(Status::internal(error))) {
            // The next sweep finds objects that have changed meanwhile.
            Err(status) if !status.is(&Reason::Conflict) && !status.is(&Reason::NotFound) => {
                outcome = Err(status);
            }
            _ => {}
        }
    }
    outcome
}
