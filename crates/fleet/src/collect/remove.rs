//! Deletes objects the way the API does: who has finalizers is marked and waits for them, the
//! others go at once. Depends on `api` and `object`.

use std::sync::Arc;

use jiff::Timestamp;
use serde_json::Value;
use tokio::task::JoinSet;

use edgesync_api::{PAGE_ROWS, PageQuery, Snapshot, Storage, Stored};
use edgesync_object::status::{Reason, Result};
use edgesync_object::time::rfc3339;
use edgesync_object::{Object, Resource, Status};

/// The finalizer of an owner that goes after those of its dependents that block it.
pub(crate) const FOREGROUND: &str = "foregroundDeletion";
/// The finalizer of an owner whose dependents stay.
pub(crate) const ORPHAN: &str = "orphan";
/// How many objects are written at the same time: they share commits.
pub(super) const AT_ONCE: usize = 32;

/// The time as objects have it.
pub(crate) fn now() -> String {
    rfc3339(Timestamp::now())
}

pub(super) fn parse(stored: &Stored) -> Result<Object> {
    Object::parse(&stored.json).map_err(Status::internal)
}

/// Whether the object has a finalizer.
pub(super) fn has_finalizer(object: &Object, finalizer: &str) -> bool {
    let list = object.metadata().and_then(|metadata| metadata.get("finalizers")).and_then(Value::as_array);
    list.is_some_and(|list| list.iter().any(|held| held == finalizer))
}

/// Deletes an object, if it still is as given. With `foreground`, its own dependents go before it.
///
/// # Errors
/// 409 if it has changed, and the storage's.
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

/// Replaces an object after a change, or removes it if it was only waiting for what has been taken
/// away.
///
/// # Errors
/// 409 if it is no longer at the version of `stored`, and the storage's.
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

/// Takes a finalizer from an object that is being deleted. Without any other, the object goes.
///
/// # Errors
/// 409 if the object has just changed, and the storage's.
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

/// Deletes all objects of a kind, in one namespace or everywhere. Tells how many there were before:
/// some of them may wait for their finalizers, so nothing is left only after a sweep that found
/// nothing. Holds one page at a time.
///
/// # Errors
/// The storage's; what has been deleted stays so.
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
            // Who has changed meanwhile is found by the next sweep.
            Err(status) if !status.is(&Reason::Conflict) && !status.is(&Reason::NotFound) => {
                outcome = Err(status);
            }
            _ => {}
        }
    }
    outcome
}
