//! Write verbs over a [`Storage`]: read, compute the result (`prepare`, pure), compare and swap. On
//! a conflict an unconditional write retries. Unconditional writes of one object hold its lock, so
//! that only conditional ones can conflict with them.

mod delete;
mod owners;
mod prepare;
mod propagation;

use std::sync::Arc;

use jiff::Timestamp;
use serde_json::Value;

use super::convert;
use super::kind::Kind;
use super::memory_budget::{ObjectBudget, READ_FACTOR, Reservation, WRITE_FACTOR};
use super::object_locks::{ObjectLock, ObjectLocks};
use super::patch::{self, PatchType};
use super::request::Options;
use super::storage::{Storage, Stored};
use edgesync_object::status::{Cause, Reason, Result};
use edgesync_object::{Object, Resource, Scope, Status};

pub(super) use delete::{DeleteOptions, Deleted, collection, delete};
pub(super) use prepare::Part;

/// Attempts of a write that conflicts with others.
const ATTEMPTS: usize = 8;
/// Maximum length of a name in a message, in characters.
const MAX_SHOWN: usize = 64;
/// Attempts of a generated name that is taken.
const NAME_ATTEMPTS: usize = 8;

/// A write: kind, object and options.
pub(super) struct Write<'a, K> {
    pub(super) storage: &'a K,
    /// Locks of the writes in progress.
    pub(super) locks: &'a ObjectLocks,
    /// Memory budget for stored objects.
    pub(super) object_budget: &'a ObjectBudget,
    /// The kind in the version of the path.
    pub(super) kind: &'a Arc<Kind>,
    /// The kind in its storage version, mostly the same.
    pub(super) stored_kind: &'a Arc<Kind>,
    /// Empty for cluster-scoped kinds.
    pub(super) namespace: &'a str,
    /// Options of the query.
    pub(super) options: &'a Options,
    /// The part of the object that is written.
    pub(super) part: Part,
    /// Duplicate fields of the body.
    pub(super) duplicate_fields: &'a [String],
    /// The field manager: the query's, or the first word of the user agent.
    pub(super) manager: &'a str,
    /// Time of the write.
    pub(super) now: Timestamp,
    /// Limit of an object's size, in bytes.
    pub(super) object_bytes: usize,
}

/// The result of a write.
#[derive(Debug)]
pub(super) struct Written {
    /// 200, or 201 for a created object.
    pub(super) code: u16,
    /// The object in its storage version.
    pub(super) object: Stored,
    /// Texts of `Warning` headers.
    pub(super) warnings: Vec<String>,
    /// Memory reserved for the object.
    pub(super) reservation: Option<Reservation>,
}

impl<K: Storage> Write<'_, K> {
    /// Creates an object from a body.
    pub(super) async fn create(&self, body: Value) -> Result<Written> {
        let sent = convert::check_against_path(&self.kind.resource, self.namespace, None, body)?;
        let mut draft = prepare::create(self, sent)?;
        if draft.object.name().is_empty() && !draft.prefix.is_empty() {
            return self.create_named(draft).await;
        }
        prepare::finish_create(self, &mut draft)?;
        self.store_new(draft).await
    }

    /// Creates an object under a generated name, and generates another if it is taken.
    async fn create_named(&self, draft: prepare::Draft) -> Result<Written> {
        let mut attempt = 0;
        loop {
            attempt += 1;
            let mut named = draft.clone();
            named.object.set_metadata("name", prepare::generated_name(&draft.prefix));
            prepare::finish_create(self, &mut named)?;
            match self.store_new(named).await {
                Err(status) if status.is(&Reason::AlreadyExists) && attempt < NAME_ATTEMPTS => {}
                result => return result,
            }
        }
    }

    async fn store_new(&self, draft: prepare::Draft) -> Result<Written> {
        let prepare::Draft { object, warnings, .. } = draft;
        let resource = &self.kind.resource;
        self.check_runtime_class(&object).await?;
        self.ensure_namespace(&object).await?;
        if self.options.dry_run {
            let found = self.storage.get(&self.kind.stored_as, object.namespace(), object.name()).await?;
            if found.is_some() {
                return Err(Status::already_exists(resource, object.name()));
            }
            return Ok(Written { code: 201, object: as_stored(&object, 0), warnings, reservation: None });
        }
        let mut attempt = 1;
        loop {
            match self.storage.create(&self.kind.stored_as, object.clone()).await {
                // The namespace was deleted since the check.
                Err(status) if is_race(&status) && attempt < ATTEMPTS => {
                    self.ensure_namespace(&object).await?;
                }
                created => return Ok(Written { code: 201, object: created?, warnings, reservation: None }),
            }
            attempt += 1;
        }
    }

    /// Checks that the RuntimeClass of a Pod exists, where this kind is served, as the admission
    /// plugin of that name does.
    async fn check_runtime_class(&self, object: &Object) -> Result<()> {
        let resource = &self.kind.resource;
        let Some(class) = runtime_class(resource, object) else { return Ok(()) };
        let Some(classes) = self.storage.kind("node.k8s.io", "v1", "runtimeclasses") else { return Ok(()) };
        let get = || self.storage.get(&classes.stored_as, "", class);
        if self.object_budget.read(READ_FACTOR, get).await?.is_some() {
            return Ok(());
        }
        let shown: String = class.chars().take(MAX_SHOWN).collect();
        let why = format!("pod rejected: RuntimeClass {shown:?} not found");
        Err(Status::forbidden(resource, object.name(), &why))
    }

    async fn ensure_namespace(&self, object: &Object) -> Result<()> {
        let (resource, name) = (&self.kind.resource, object.name());
        match resource.scope {
            Scope::Namespaced => {
                self.storage.ensure_namespace(resource, self.namespace, name, self.options.dry_run).await
            }
            Scope::Cluster => Ok(()),
        }
    }

    /// Replaces an object or its status by a body.
    pub(super) async fn update(&self, name: &str, body: Value) -> Result<Written> {
        let sent = convert::check_against_path(&self.kind.resource, self.namespace, Some(name), body)?;
        let unconditional = sent.resource_version().is_empty();
        let _lock = if unconditional { Some(self.lock(name).await) } else { None };
        for attempt in 1.. {
            let Some(old) = self.old(name).await? else {
                if self.part == Part::Object
                    && unconditional
                    && prepare::creates_on_update(&self.kind.stored_as)
                {
                    return self.create(Value::Object(sent.into_fields())).await;
                }
                break;
            };
            let draft = prepare::update(self, &old, sent.clone())?;
            match self.swap(old, draft, 200).await {
                Err(status) if is_race(&status) && unconditional && attempt < ATTEMPTS => {}
                result => return result,
            }
        }
        Err(Status::not_found(&self.kind.resource, name))
    }

    /// Applies a patch to an object or its status.
    pub(super) async fn patch(&self, name: &str, kind: PatchType, patch: &Value) -> Result<Written> {
        self.check_patch_options(kind)?;
        let _lock = self.lock(name).await;
        for attempt in 1.. {
            let Some(old) = self.old(name).await? else {
                if kind == PatchType::Apply && self.part == Part::Object {
                    match self.apply_new(name, patch).await {
                        Err(status) if status.is(&Reason::AlreadyExists) && attempt < ATTEMPTS => continue,
                        result => return result,
                    }
                }
                break;
            };
            let (draft, is_conditional) = self.patched(&old, name, kind, patch)?;
            match self.swap(old, draft, 200).await {
                Err(status) if is_race(&status) && !is_conditional && attempt < ATTEMPTS => {}
                result => return result,
            }
        }
        Err(Status::not_found(&self.kind.resource, name))
    }

    fn check_patch_options(&self, kind: PatchType) -> Result<()> {
        let wrong = |cause| Err(Status::invalid("meta.k8s.io", "PatchOptions", "", vec![cause]));
        if kind == PatchType::Apply && self.options.field_manager.is_empty() {
            return wrong(Cause::required("fieldManager", "is required for apply patch"));
        }
        if kind != PatchType::Apply && self.options.force {
            return wrong(Cause::forbidden("force", "may not be specified for non-apply patch"));
        }
        Ok(())
    }

    /// Patches an object; the second value is whether the patch requires a version.
    fn patched(
        &self,
        old: &Old,
        name: &str,
        kind: PatchType,
        patch: &Value,
    ) -> Result<(prepare::Draft, bool)> {
        if kind == PatchType::Apply {
            let applied = self.applied(name, patch)?;
            let is_conditional = !applied.resource_version().is_empty();
            return Ok((prepare::apply(self, Some(old), applied)?, is_conditional));
        }
        let document = Value::Object(old.served.fields().clone());
        let limit = self.object_bytes;
        let patched_document = match (kind, self.kind.schema.as_deref()) {
            (PatchType::Json, _) => patch::json(document, patch, limit)?,
            (PatchType::Strategic, Some(schema)) => patch::strategic(document, patch, schema)?,
            _ => patch::merge(document, patch),
        };
        let mut sent =
            convert::check_against_path(&self.kind.resource, self.namespace, Some(name), patched_document)?;
        // A patch without a version leaves the old object's in place.
        let is_conditional = sent.resource_version() != old.served.resource_version()
            || patch.pointer("/metadata/resourceVersion").is_some();
        if !is_conditional {
            sent.remove_metadata("resourceVersion");
        }
        Ok((prepare::update(self, old, sent)?, is_conditional))
    }

    fn applied(&self, name: &str, patch: &Value) -> Result<Object> {
        if patch.get("apiVersion").is_none() || patch.get("kind").is_none() {
            return Err(Status::bad_request("an apply patch must have `apiVersion` and `kind`"));
        }
        convert::check_against_path(&self.kind.resource, self.namespace, Some(name), patch.clone())
    }

    async fn apply_new(&self, name: &str, patch: &Value) -> Result<Written> {
        let applied = self.applied(name, patch)?;
        if !applied.uid().is_empty() {
            return Err(Status::not_found(&self.kind.resource, name));
        }
        let draft = prepare::apply(self, None, applied)?;
        self.store_new(draft).await
    }

    /// Waits for the unconditional writes of the object ahead of this one.
    async fn lock(&self, name: &str) -> ObjectLock<'_> {
        self.locks.lock(self.kind.stored_as.key(self.namespace, name)).await
    }

    /// Reads the current object.
    async fn old(&self, name: &str) -> Result<Option<Old>> {
        let get = || self.storage.get(&self.kind.stored_as, self.namespace, name);
        let Some((stored, reservation)) = self.object_budget.read(WRITE_FACTOR, get).await? else {
            return Ok(None);
        };
        let object = parse(&stored)?;
        let served = convert::served(self.kind, object.clone());
        Ok(Some(Old { object, served, stored, reservation }))
    }

    /// Stores a draft unless it equals the current object.
    async fn swap(&self, old: Old, draft: prepare::Draft, code: u16) -> Result<Written> {
        let prepare::Draft { object, warnings, changed, .. } = draft;
        if !changed {
            return Ok(Written { code, object: old.stored, warnings, reservation: Some(old.reservation) });
        }
        if self.options.dry_run {
            return Ok(Written {
                code,
                object: as_stored(&object, old.stored.version),
                warnings,
                reservation: Some(old.reservation),
            });
        }
        let (storage, expected) = (&self.kind.stored_as, old.stored.version);
        let object = match self.part {
            Part::Status => self.storage.update_status(storage, object, &old.stored).await?,
            Part::Object | Part::Finalizers if prepare::is_finished(&object) => {
                self.storage.remove(storage, &old.stored).await?
            }
            Part::Object | Part::Finalizers => self.storage.update(storage, object, expected).await?,
        };
        Ok(Written { code, object, warnings, reservation: Some(old.reservation) })
    }
}

/// The current object as stored, and in the version of the path.
pub(super) struct Old {
    pub(super) stored: Stored,
    pub(super) object: Object,
    pub(super) served: Object,
    reservation: Reservation,
}

/// Returns the RuntimeClass that a Pod names.
fn runtime_class<'a>(resource: &Resource, object: &'a Object) -> Option<&'a str> {
    let is_pod = resource.group.is_empty() && resource.kind == "Pod";
    object.fields().get("spec")?.get("runtimeClassName")?.as_str().filter(|_| is_pod)
}

/// Returns whether a refusal is only a conflict with another write.
fn is_race(status: &Status) -> bool {
    status.is(&Reason::Conflict) && status.details.as_ref().is_none_or(|details| details.causes.is_empty())
}

/// Returns the stored form of an object that is not stored.
fn as_stored(object: &Object, version: u64) -> Stored {
    Stored {
        namespace: object.namespace().to_owned(),
        name: object.name().to_owned(),
        version,
        json: object.to_json(),
    }
}

/// Parses a stored object; its text was valid when it was stored.
pub(super) fn parse(stored: &Stored) -> Result<Object> {
    serde_json::from_str(&stored.json).map_err(Status::internal)
}
