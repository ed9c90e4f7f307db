//! Deletes: at once, or marked until finalizers are removed, with propagation to dependents.

use std::sync::Arc;

use serde_json::Value;

use super::propagation::Propagation;
use super::{ATTEMPTS, Old, Write, Written, as_stored, is_race, parse, prepare};
use crate::SYSTEM_NAMESPACES;
use crate::request::{DeleteQuery, dry_run};
use crate::select::Selection;
use crate::storage::{Cursor, PAGE_ROWS, Snapshot, Storage};
use edgesync_object::Status;
use edgesync_object::status::{Cause, Reason, Result};

/// Options of a delete.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct DeleteOptions {
    /// Handling of dependents. Defaults to the object's earlier choice, else to the background.
    pub(crate) propagation: Option<Propagation>,
    /// Precondition: the UID of the object.
    pub(crate) uid: Option<String>,
    /// Precondition: the version of the object.
    pub(crate) resource_version: Option<String>,
    /// Whether the delete is validated but not performed.
    pub(crate) dry_run: bool,
}

impl DeleteOptions {
    /// Parses the options of a delete; those of the body (`Null` if empty) take precedence over the
    /// query.
    ///
    /// # Errors
    /// 400 for a body that is no `DeleteOptions`, 422 for contradictory values.
    pub(crate) fn read(body: &Value, query: &DeleteQuery) -> Result<Self> {
        if !(body.is_null() || body.is_object()) {
            return Err(Status::bad_request("the body of a delete must be DeleteOptions"));
        }
        let text = |pointer: &str| match body.pointer(pointer) {
            None | Some(Value::Null) => Ok(None),
            Some(Value::String(value)) => Ok(Some(value.clone())),
            Some(_) => Err(wrong_type(pointer, "must be a string")),
        };
        // Deletes have no grace period here; as in Kubernetes, a negative one is not an error.
        if body.get("gracePeriodSeconds").is_some_and(|grace| !grace.is_null() && grace.as_i64().is_none()) {
            return Err(wrong_type("/gracePeriodSeconds", "must be a whole number"));
        }
        let orphan = match body.get("orphanDependents") {
            None | Some(Value::Null) => query.orphan_dependents,
            Some(Value::Bool(orphan)) => Some(*orphan),
            Some(_) => return Err(wrong_type("/orphanDependents", "must be true or false")),
        };
        let policy = text("/propagationPolicy")?.or_else(|| query.propagation.clone());
        let mut dry = false;
        match body.get("dryRun") {
            None | Some(Value::Null) => {}
            Some(Value::Array(list)) => {
                for value in list {
                    dry |= dry_run(value.as_str().unwrap_or("?"))?;
                }
            }
            Some(_) => return Err(wrong_type("/dryRun", "must be a list")),
        }
        Ok(Self {
            propagation: propagation(policy.as_deref(), orphan)?,
            uid: text("/preconditions/uid")?,
            resource_version: text("/preconditions/resourceVersion")?,
            dry_run: dry,
        })
    }

    fn check<K: Storage>(&self, write: &Write<'_, K>, old: &Old) -> Result<()> {
        let (resource, object) = (&write.kind.resource, &old.object);
        let failed = |what: &str, expected: &str, current: &str| {
            let reason = format!(
                "Precondition failed: {what} in precondition: {expected}, {what} in object meta: {current}"
            );
            Err(Status::conflict(resource, object.name(), &reason))
        };
        if let Some(uid) = self.uid.as_deref().filter(|uid| *uid != object.uid()) {
            return failed("UID", uid, object.uid());
        }
        match self.resource_version.as_deref() {
            Some(expected) if expected != object.resource_version() => {
                failed("ResourceVersion", expected, object.resource_version())
            }
            _ => Ok(()),
        }
    }
}

fn propagation(policy: Option<&str>, orphan: Option<bool>) -> Result<Option<Propagation>> {
    match (policy.filter(|policy| !policy.is_empty()), orphan) {
        (Some(_), Some(_)) => Err(invalid(Cause::forbidden(
            "propagationPolicy",
            "orphanDependents and deletionPropagation cannot be both set",
        ))),
        (None, None) => Ok(None),
        (None, Some(true)) | (Some("Orphan"), None) => Ok(Some(Propagation::Orphan)),
        (None, Some(false)) | (Some("Background"), None) => Ok(Some(Propagation::Background)),
        (Some("Foreground"), None) => Ok(Some(Propagation::Foreground)),
        (Some(other), None) => Err(invalid(Cause::invalid(
            "propagationPolicy",
            other,
            "must be 'Background', 'Foreground' or 'Orphan'",
        ))),
    }
}

fn invalid(cause: Cause) -> Status {
    Status::invalid("meta.k8s.io", "DeleteOptions", "", vec![cause])
}

fn wrong_type(pointer: &str, must: &str) -> Status {
    let field = pointer.trim_start_matches('/').replace('/', ".");
    Status::bad_request(format!("the field `{field}` of DeleteOptions {must}"))
}

/// Result of a delete.
#[derive(Debug)]
pub(crate) enum Deleted {
    /// The object was removed; its last state.
    Removed(Written),
    /// Finalizers hold the object; its new state.
    Terminating(Written),
}

pub(crate) async fn delete<K: Storage>(
    write: &Write<'_, K>,
    name: &str,
    options: &DeleteOptions,
) -> Result<Deleted> {
    let _lock = write.lock(name).await;
    let mut attempt = 0;
    loop {
        attempt += 1;
        let Some(old) = write.old(name).await? else {
            return Err(Status::not_found(&write.kind.resource, name));
        };
        options.check(write, &old)?;
        match delete_as_read(write, &old, options).await {
            // A required version was compared: now a different one is a conflict.
            Err(status) if is_race(&status) && attempt < ATTEMPTS => {}
            result => return result,
        }
    }
}

async fn delete_as_read<K: Storage>(
    write: &Write<'_, K>,
    old: &Old,
    options: &DeleteOptions,
) -> Result<Deleted> {
    let stored_as = &write.kind.stored_as;
    let is_system = SYSTEM_NAMESPACES.contains(&old.object.name());
    if is_system && stored_as.group.is_empty() && stored_as.kind == "Namespace" {
        return Err(Status::forbidden(stored_as, old.object.name(), "this namespace may not be deleted"));
    }
    let written = |object| Written { code: 200, object, warnings: Vec::new(), reservation: None };
    let policy = options.propagation.filter(|_| write.storage.has_garbage_collector());
    let marked = prepare::mark_deleted(write, &old.object, policy);
    let is_held = marked.is_held();
    if options.dry_run || write.options.dry_run {
        let as_stored = written(as_stored(&marked, old.stored.version));
        return Ok(if is_held { Deleted::Terminating(as_stored) } else { Deleted::Removed(as_stored) });
    }
    if !is_held {
        let removed = write.storage.remove(stored_as, &old.stored).await?;
        return Ok(Deleted::Removed(written(removed)));
    }
    if marked == old.object {
        return Ok(Deleted::Terminating(written(old.stored.clone())));
    }
    let updated = write.storage.update(stored_as, marked, old.stored.version).await?;
    Ok(Deleted::Terminating(written(updated)))
}

/// Deletes the selected objects of a collection and returns their number. Objects that disappear or
/// change meanwhile are skipped.
pub(crate) async fn collection<K: Storage>(
    write: &Write<'_, K>,
    selection: &Arc<Selection>,
    options: &DeleteOptions,
) -> Result<u64> {
    let mut count = 0;
    let mut after: Option<Cursor> = None;
    // Objects created meanwhile are spared, and no snapshot is held between pages.
    let until = write.storage.version(&write.kind.stored_as);
    loop {
        let query = selection.query(after.take(), PAGE_ROWS);
        let page = write.storage.snapshot(&write.kind.stored_as).await?.page(query).await?;
        for row in page.items.iter().filter(|row| row.version <= until) {
            let uid = parse(row)?.uid().to_owned();
            let inside = Write { namespace: &row.namespace, ..*write };
            let options = DeleteOptions { uid: Some(uid), ..options.clone() };
            match delete(&inside, &row.name, &options).await {
                Ok(_) => count += 1,
                Err(status) if status.is(&Reason::NotFound) || status.is(&Reason::Conflict) => {}
                Err(status) => return Err(status),
            }
        }
        after = page.next;
        if after.is_none() {
            return Ok(count);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn read(body: &Value) -> Result<DeleteOptions, u16> {
        DeleteOptions::read(body, &DeleteQuery::default()).map_err(|status| status.code)
    }

    #[test]
    fn options_are_taken_from_body_or_query() {
        assert_eq!(read(&Value::Null), Ok(DeleteOptions::default()));
        let options = read(&json!({
            "kind": "DeleteOptions", "preconditions": {"uid": "u", "resourceVersion": "7"},
            "propagationPolicy": "Foreground", "dryRun": ["All"], "gracePeriodSeconds": 0
        }));
        let expected = DeleteOptions {
            propagation: Some(Propagation::Foreground),
            uid: Some("u".into()),
            resource_version: Some("7".into()),
            dry_run: true,
        };
        assert_eq!(options, Ok(expected));
        assert_eq!(read(&json!({"gracePeriodSeconds": -1})), Ok(DeleteOptions::default()));
        let query = DeleteQuery { propagation: Some("Orphan".into()), ..DeleteQuery::default() };
        assert_eq!(DeleteOptions::read(&Value::Null, &query).unwrap().propagation, Some(Propagation::Orphan));
        let body = json!({"propagationPolicy": "Background"});
        assert_eq!(DeleteOptions::read(&body, &query).unwrap().propagation, Some(Propagation::Background));
    }

    #[test]
    fn contradictory_options_are_refused() {
        for (body, code) in [
            (json!([]), 400),
            (json!({"preconditions": {"uid": 7}}), 400),
            (json!({"gracePeriodSeconds": "x"}), 400),
            (json!({"dryRun": ["Some"]}), 400),
            (json!({"dryRun": true}), 400),
            (json!({"orphanDependents": 1}), 400),
            (json!({"propagationPolicy": "Perhaps"}), 422),
            (json!({"propagationPolicy": "Orphan", "orphanDependents": true}), 422),
        ] {
            assert_eq!(read(&body), Err(code), "{body}");
        }
    }
}
