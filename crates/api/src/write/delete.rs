//! Deleting: at once, or as far as finalizers allow, with what is asked about dependents.

use std::sync::Arc;

use serde_json::Value;

use super::propagation::Propagation;
use super::{ATTEMPTS, Old, Write, Written, is_race, parse, prepare, shown};
use crate::SYSTEM_NAMESPACES;
use crate::request::{DeleteQuery, dry_run};
use crate::select::Selection;
use crate::storage::{Cursor, PAGE_ROWS, Snapshot, Storage};
use edgesync_object::Status;
use edgesync_object::status::{Cause, Reason, Result};

/// How an object is deleted.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct DeleteOptions {
    /// What becomes of its dependents. Where nothing is said, what has been said before holds, and else the background.
    pub(crate) propagation: Option<Propagation>,
    /// The UID that it must have.
    pub(crate) uid: Option<String>,
    /// The version that it must have.
    pub(crate) resource_version: Option<String>,
    /// Whether it is only tried.
    pub(crate) dry_run: bool,
}

impl DeleteOptions {
    /// Reads the options of a delete: those of the body, `Null` if there is none, before those of the query.
    ///
    /// # Errors
    /// 400 for a body that is no `DeleteOptions`, 422 for values that contradict each other.
    pub(crate) fn read(body: &Value, query: &DeleteQuery) -> Result<Self> {
        if !(body.is_null() || body.is_object()) {
            return Err(Status::bad_request("the body of a delete must be DeleteOptions"));
        }
        let text = |pointer: &str| match body.pointer(pointer) {
            None | Some(Value::Null) => Ok(None),
            Some(Value::String(value)) => Ok(Some(value.clone())),
            Some(_) => Err(wrong_type(pointer, "must be a string")),
        };
        // Nothing here has to end first; one that is negative counts as a second.
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
        let failed = |what: &str, given: &str, current: &str| {
            let why = format!(
                "Precondition failed: {what} in precondition: {given}, {what} in object meta: {current}"
            );
            Err(Status::conflict(resource, object.name(), &why))
        };
        if let Some(uid) = self.uid.as_deref().filter(|uid| *uid != object.uid()) {
            return failed("UID", uid, object.uid());
        }
        match self.resource_version.as_deref() {
            Some(given) if given != object.resource_version() => {
                failed("ResourceVersion", given, object.resource_version())
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

/// What came of a delete.
#[derive(Debug)]
pub(crate) enum Deleted {
    /// It is gone; this is what it was.
    Gone(Written),
    /// Finalizers hold it; this is what it is now.
    Held(Written),
}

/// Deletes one object.
pub(crate) async fn delete<K: Storage>(
    write: &Write<'_, K>,
    name: &str,
    options: &DeleteOptions,
) -> Result<Deleted> {
    let _turn = write.turn(name).await;
    let mut attempt = 0;
    loop {
        attempt += 1;
        let Some(old) = write.old(name).await? else {
            return Err(Status::not_found(&write.kind.resource, name));
        };
        options.check(write, &old)?;
        match delete_as_read(write, &old, options).await {
            // A version that the client insists on has been compared: another one now is a conflict.
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
    let immortal = SYSTEM_NAMESPACES.contains(&old.object.name());
    if immortal && stored_as.group.is_empty() && stored_as.kind == "Namespace" {
        return Err(Status::forbidden(stored_as, old.object.name(), "this namespace may not be deleted"));
    }
    let written = |object| Written { code: 200, object, warnings: Vec::new(), share: None };
    let policy = options.propagation.filter(|_| write.storage.collects());
    let marked = prepare::mark_deleted(write, &old.object, policy);
    let held = marked.is_held();
    if options.dry_run || write.options.dry_run {
        let shown = written(shown(&marked, old.stored.version));
        return Ok(if held { Deleted::Held(shown) } else { Deleted::Gone(shown) });
    }
    if !held {
        let removed = write.storage.remove(stored_as, &old.stored).await?;
        return Ok(Deleted::Gone(written(removed)));
    }
    if marked == old.object {
        return Ok(Deleted::Held(written(old.stored.clone())));
    }
    let updated = write.storage.update(stored_as, marked, old.stored.version).await?;
    Ok(Deleted::Held(written(updated)))
}

/// Deletes every object of a collection that is selected, and counts them. One that disappears or changes
/// meanwhile is no failure.
pub(crate) async fn collection<K: Storage>(
    write: &Write<'_, K>,
    selection: &Arc<Selection>,
    options: &DeleteOptions,
) -> Result<u64> {
    let mut count = 0;
    let mut after: Option<Cursor> = None;
    // What is created meanwhile is spared, and no snapshot is held while objects are deleted.
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
    fn options_come_from_the_body_or_the_query() {
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
    fn what_makes_no_sense_is_refused() {
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
