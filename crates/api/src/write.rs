//! Writing verbs over a [`Storage`]: read, work out what is to be stored (`prepare`, pure), compare and
//! swap; again if somebody else was faster and the client did not insist on a version. Those that do not write in turn, so
//! that only one that insists can be faster.

mod delete;
mod owners;
mod prepare;
mod propagation;

use std::sync::Arc;

use jiff::Timestamp;
use serde_json::Value;

use super::convert;
use super::kind::Kind;
use super::patch::{self, PatchType};
use super::request::Options;
use super::room::{CHANGED, Share, Work};
use super::storage::{Storage, Stored};
use super::turns::{Turn, Turns};
use edgesync_object::status::{Cause, Reason, Result};
use edgesync_object::{Object, Scope, Status};

pub(super) use delete::{DeleteOptions, Deleted, collection, delete};
pub(super) use prepare::Part;

/// How often a write is tried while others change the same object.
const ATTEMPTS: usize = 8;
/// How often another name is generated when the one before was taken.
const NAME_ATTEMPTS: usize = 8;

/// A write: of which kind, where, and under which options.
pub(super) struct Write<'a, K> {
    /// Who keeps the objects.
    pub(super) storage: &'a K,
    /// The writes that are under way.
    pub(super) turns: &'a Turns,
    /// The memory for stored objects.
    pub(super) work: &'a Work,
    /// The kind in the version of the path.
    pub(super) kind: &'a Arc<Kind>,
    /// The kind in the form in which it is kept: mostly the same.
    pub(super) home: &'a Arc<Kind>,
    /// The namespace; empty for cluster-scoped kinds.
    pub(super) namespace: &'a str,
    /// What the query says.
    pub(super) options: &'a Options,
    /// Which part of the object is written.
    pub(super) part: Part,
    /// Fields that stand twice in what was sent.
    pub(super) twice: &'a [String],
    /// Who writes: the field manager, or the first word of the user agent.
    pub(super) manager: &'a str,
    /// When.
    pub(super) now: Timestamp,
    /// The largest object, in bytes.
    pub(super) object_bytes: usize,
}

/// What came of a write.
#[derive(Debug)]
pub(super) struct Written {
    /// 200, or 201 for what is new.
    pub(super) code: u16,
    /// The object in the form in which it is kept.
    pub(super) object: Stored,
    /// What the client should know: the `Warning` headers.
    pub(super) warnings: Vec<String>,
    /// The memory that it takes.
    pub(super) share: Option<Share>,
}

impl<K: Storage> Write<'_, K> {
    /// Creates an object that came in a body.
    pub(super) async fn create(&self, body: Value) -> Result<Written> {
        let sent = convert::agree(&self.kind.resource, self.namespace, None, body)?;
        let mut draft = prepare::create(self, sent)?;
        if draft.object.name().is_empty() && !draft.prefix.is_empty() {
            return self.create_named(draft).await;
        }
        prepare::finish_create(self, &mut draft)?;
        self.store_new(draft).await
    }

    /// Creates an object under a generated name; another one if that is taken.
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
        self.ensure_namespace(&object).await?;
        if self.options.dry_run {
            let found = self.storage.get(&self.kind.stored_as, object.namespace(), object.name()).await?;
            if found.is_some() {
                return Err(Status::already_exists(resource, object.name()));
            }
            return Ok(Written { code: 201, object: shown(&object, 0), warnings, share: None });
        }
        let mut attempt = 1;
        loop {
            match self.storage.create(&self.kind.stored_as, object.clone()).await {
                // The namespace is going, or has gone, since it was looked at.
                Err(status) if is_race(&status) && attempt < ATTEMPTS => {
                    self.ensure_namespace(&object).await?;
                }
                created => return Ok(Written { code: 201, object: created?, warnings, share: None }),
            }
            attempt += 1;
        }
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

    /// Replaces an object, or its status, by what came in a body.
    pub(super) async fn update(&self, name: &str, body: Value) -> Result<Written> {
        let sent = convert::agree(&self.kind.resource, self.namespace, Some(name), body)?;
        let unconditional = sent.resource_version().is_empty();
        let _turn = if unconditional { Some(self.turn(name).await) } else { None };
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

    /// Changes an object, or its status, as a patch says.
    pub(super) async fn patch(&self, name: &str, kind: PatchType, patch: &Value) -> Result<Written> {
        self.check_patch_options(kind)?;
        let _turn = self.turn(name).await;
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
            let (draft, insists) = self.patched(&old, name, kind, patch)?;
            match self.swap(old, draft, 200).await {
                Err(status) if is_race(&status) && !insists && attempt < ATTEMPTS => {}
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

    /// The object that a patch makes of the old one, and whether the patch insists on a version.
    fn patched(
        &self,
        old: &Old,
        name: &str,
        kind: PatchType,
        patch: &Value,
    ) -> Result<(prepare::Draft, bool)> {
        if kind == PatchType::Apply {
            let applied = self.applied(name, patch)?;
            let insists = !applied.resource_version().is_empty();
            return Ok((prepare::apply(self, Some(old), applied)?, insists));
        }
        let before = Value::Object(old.served.fields().clone());
        let limit = self.object_bytes;
        let after = match (kind, self.kind.schema.as_deref()) {
            (PatchType::Json, _) => patch::json(before, patch, limit)?,
            (PatchType::Strategic, Some(schema)) => patch::strategic(before, patch, schema)?,
            _ => patch::merge(before, patch),
        };
        let mut sent = convert::agree(&self.kind.resource, self.namespace, Some(name), after)?;
        // A patch that says nothing of the version leaves that of the old object behind.
        let insists = sent.resource_version() != old.served.resource_version()
            || patch.pointer("/metadata/resourceVersion").is_some();
        if !insists {
            sent.remove_metadata("resourceVersion");
        }
        Ok((prepare::update(self, old, sent)?, insists))
    }

    fn applied(&self, name: &str, patch: &Value) -> Result<Object> {
        if patch.get("apiVersion").is_none() || patch.get("kind").is_none() {
            return Err(Status::bad_request("an apply patch must have `apiVersion` and `kind`"));
        }
        convert::agree(&self.kind.resource, self.namespace, Some(name), patch.clone())
    }

    async fn apply_new(&self, name: &str, patch: &Value) -> Result<Written> {
        let applied = self.applied(name, patch)?;
        if !applied.uid().is_empty() {
            return Err(Status::not_found(&self.kind.resource, name));
        }
        let draft = prepare::apply(self, None, applied)?;
        self.store_new(draft).await
    }

    /// Waits until no other write that insists on no version is at work on the object.
    async fn turn(&self, name: &str) -> Turn<'_> {
        self.turns.take(self.kind.stored_as.key(self.namespace, name)).await
    }

    /// The object as it is now.
    async fn old(&self, name: &str) -> Result<Option<Old>> {
        let get = || self.storage.get(&self.kind.stored_as, self.namespace, name);
        let Some((stored, share)) = self.work.read(CHANGED, get).await? else { return Ok(None) };
        let object = parse(&stored)?;
        let served = convert::served(self.kind, object.clone());
        Ok(Some(Old { object, served, stored, share }))
    }

    /// Stores what has been worked out, unless it is what is there.
    async fn swap(&self, old: Old, draft: prepare::Draft, code: u16) -> Result<Written> {
        let prepare::Draft { object, warnings, changed, .. } = draft;
        if !changed {
            return Ok(Written { code, object: old.stored, warnings, share: Some(old.share) });
        }
        if self.options.dry_run {
            return Ok(Written {
                code,
                object: shown(&object, old.stored.version),
                warnings,
                share: Some(old.share),
            });
        }
        let (storage, expected) = (&self.kind.stored_as, old.stored.version);
        let object = match self.part {
            Part::Status => self.storage.update_status(storage, object, &old.stored).await?,
            Part::Object if prepare::is_finished(&object) => {
                self.storage.remove(storage, &old.stored).await?
            }
            Part::Object => self.storage.update(storage, object, expected).await?,
        };
        Ok(Written { code, object, warnings, share: Some(old.share) })
    }
}

/// An object as it is kept, and as it is shown in the version of the path.
pub(super) struct Old {
    pub(super) stored: Stored,
    pub(super) object: Object,
    pub(super) served: Object,
    share: Share,
}

/// Whether a refusal only says that somebody else was faster.
fn is_race(status: &Status) -> bool {
    status.is(&Reason::Conflict) && status.details.as_ref().is_none_or(|details| details.causes.is_empty())
}

/// An object that is not stored, as if it were.
fn shown(object: &Object, version: u64) -> Stored {
    Stored {
        namespace: object.namespace().to_owned(),
        name: object.name().to_owned(),
        version,
        json: object.to_json(),
    }
}

/// The object in a row. Its text was valid when it was stored.
pub(super) fn parse(stored: &Stored) -> Result<Object> {
    serde_json::from_str(&stored.json).map_err(Status::internal)
}
