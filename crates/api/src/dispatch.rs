//! Dispatches a typed request to the verb that answers it.

mod documents;

use std::sync::Arc;

use hyper::Response;
use hyper::body::Bytes;
use jiff::Timestamp;
use serde_json::{Value, json};
use tokio::sync::mpsc;

pub(super) use documents::Schemas;

use super::audit::{self, Actor, ReadThrottle};
use super::auth::{self, Access};
use super::browser;
use super::convert::Texts;
use super::duplicates;
use super::extension::{Extension, ExtensionCall};
use super::kind::{Kind, ScalePaths, Writable};
use super::media::{self, Accepted, As, Format, Syntax};
use super::memory_budget::{ObjectBudget, READ_FACTOR, Reservation, hold_until_sent};
use super::metrics::ApiMetrics;
use super::object_locks::ObjectLocks;
use super::patch::{self, PatchType};
use super::read::{self, Show};
use super::request::{
    FINALIZE_METHODS, FieldValidation, ONE_BY_ONE_METHODS, ObjectsRequest, Options, READ_METHODS, Refusal,
    Request, ResourcePath, Verb,
};
use super::response::{self, ResponseBody};
use super::reviews;
use super::scale;
use super::select::Selection;
use super::snapshots::Snapshots;
use super::storage::Storage;
use super::table::{Include, TableView, View};
use super::watch::{self, Lines, Start, Watch};
use super::write::{self, DeleteOptions, Deleted, Part, Write, Written};
use edgesync_object::status::Result;
use edgesync_object::{Object, Resource, Scope, Status};

/// Maximum length of a field manager taken from a user agent, in characters.
const MAX_AGENT: usize = 64;

/// State shared by all requests.
pub(super) struct Api<K: Storage, E> {
    pub(super) storage: Arc<K>,
    pub(super) extension: E,
    pub(super) metrics: Arc<ApiMetrics>,
    pub(super) snapshots: Arc<Snapshots<K::Snapshot>>,
    /// Index of the OpenAPI documents.
    pub(super) schemas: Schemas,
    /// Locks of the writes in progress.
    pub(super) locks: ObjectLocks,
    /// The access rules, for reviews of tokens.
    pub(super) access: Access,
    /// Limits the audit entries of reads.
    pub(super) read_entries: ReadThrottle,
    /// Memory budget for stored objects.
    pub(super) object_budget: ObjectBudget,
    /// Limit of an object's size, in bytes.
    pub(super) object_bytes: usize,
    /// Becomes true when watches must end.
    pub(super) stopping: tokio::sync::watch::Sender<bool>,
}

/// The name of a created object, passed along with the response.
#[derive(Clone)]
struct CreatedName(Arc<str>);

/// The relevant headers of a request, and its sender.
#[derive(Clone, Copy, Debug)]
pub(super) struct Head<'a> {
    pub(super) accept: Option<&'a str>,
    pub(super) content_type: Option<&'a str>,
    pub(super) user_agent: Option<&'a str>,
    pub(super) if_none_match: Option<&'a str>,
    pub(super) actor: Actor<'a>,
}

/// A request body, read only once the request has passed all other checks.
pub(super) trait ReadBody: Send {
    /// Reads the whole body.
    fn read(self) -> impl Future<Output = Result<(RawBody, Memory)>> + Send;
}

/// A raw body and the memory reserved for it.
#[derive(Debug)]
pub(super) struct RawBody {
    pub(super) bytes: Bytes,
    pub(super) _reservation: Reservation,
}

/// Memory reserved for a parsed body until its request is done.
#[derive(Debug)]
#[must_use]
pub(super) struct Memory {
    pub(super) reservation: Reservation,
}

impl std::ops::Deref for RawBody {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.bytes
    }
}

impl<K: Storage, E: Extension> Api<K, E> {
    pub(super) async fn answer(
        &self,
        request: Request,
        head: Head<'_>,
        body: impl ReadBody,
    ) -> Result<Response<ResponseBody>, Refusal> {
        let pretty = matches!(&request, Request::Objects(request) if request.options.pretty);
        match request {
            Request::Methods(allow) => Ok(response::methods(allow)),
            Request::Health(health) => Ok(documents::health(&health, &self.storage.checks())?),
            Request::Metrics => Ok(documents::metrics(&self.metrics, &self.extension).await),
            Request::Discovery(what) => Ok(documents::discovery(&self.storage.kinds(), &what, &head)?),
            Request::OpenApi(what) => Ok(documents::openapi(&*self.storage, &self.schemas, &what, &head)?),
            Request::Version => self.value(&documents::version(), &head),
            Request::Resources => {
                let kinds = self.storage.kinds();
                let resources: Vec<&Arc<Resource>> = kinds.iter().map(|kind| &kind.resource).collect();
                self.value(&json!(resources), &head)
            }
            Request::Extension { method, path, query } => {
                let (bytes, _memory) = body.read().await?;
                let body = media::read_body(head.content_type, &bytes)?;
                drop(bytes);
                let caller = head.actor.caller.clone();
                let audited = (method != "GET").then(|| (method.clone(), path.clone(), body.clone()));
                let call = ExtensionCall { method, path, query, body, caller };
                if let Some(ready) = self.extension.ready(&call, self.stopping.subscribe()).await? {
                    return Ok(response::ready(ready));
                }
                let answer = self.extension.call(call).await;
                if let Some((method, path, sent)) = audited {
                    let code = answer.as_ref().map_or_else(|status| status.code, |_| 200);
                    head.actor.administered(&method, &path, &sent, code);
                }
                self.value(&answer?, &head)
            }
            Request::Review(review) => {
                let (bytes, _memory) = body.read().await?;
                let sent = media::read_body(head.content_type, &bytes)?;
                let kinds = self.storage.kinds();
                let answer = reviews::answer(review, &kinds, &self.access, head.actor.caller, sent)?;
                let format = Accepted::read(head.accept, pretty)?.format;
                Ok(response::text(201, format.media_type(), format.render_value(&answer)?))
            }
            Request::Page(path) => {
                let file = self.extension.file(&path).ok_or_else(Status::no_such_path)?;
                Ok(browser::page(&file, head.if_none_match))
            }
            Request::Objects(request) => {
                let accepted = Accepted::read(head.accept, pretty)?;
                let audited = self.audited(&request);
                let answer = self.objects(*request, accepted, head, body).await;
                if let Some((verb, kind, path)) = audited
                    && let Some(permit) = self.read_entries.permit_line(verb, &head.actor.caller.name)
                {
                    let (code, created) = match &answer {
                        Ok(response) => {
                            (response.status().as_u16(), response.extensions().get::<CreatedName>())
                        }
                        Err(refusal) => (refusal.status.code, None),
                    };
                    let created = created.map(|CreatedName(name)| &**name);
                    head.actor.requested(verb, &kind, &path, created, code, permit);
                }
                answer
            }
        }
    }

    /// Returns what the audit log records of a request on objects.
    fn audited(&self, request: &ObjectsRequest) -> Option<(Verb, Arc<Kind>, ResourcePath)> {
        let ObjectsRequest { verb, path, .. } = request;
        let kind = self.storage.kind(&path.group, &path.version, &path.plural)?;
        audit::concerns(*verb, &kind).then(|| (*verb, kind, path.clone()))
    }

    fn value(&self, value: &Value, head: &Head<'_>) -> Result<Response<ResponseBody>, Refusal> {
        let format = Accepted::read(head.accept, false)?.format;
        Ok(response::text(200, format.media_type(), format.render_value(value)?))
    }

    async fn objects(
        &self,
        request: ObjectsRequest,
        accepted: Accepted,
        head: Head<'_>,
        body: impl ReadBody,
    ) -> Result<Response<ResponseBody>, Refusal> {
        let ObjectsRequest { verb, path, options } = request;
        let kind = self.storage.kind(&path.group, &path.version, &path.plural);
        let kind = kind.ok_or_else(|| no_such_kind(&self.storage.kinds(), &path))?;
        let part = check_served(&kind, verb, &path)?;
        auth::authorize(head.actor.caller.role, verb, &kind)?;
        if verb.writes() {
            check_writable(&kind, verb, part, path.name.as_deref().unwrap_or_default())?;
        }
        let call =
            Call { api: self, show: show(&kind, accepted, &options)?, kind, path, options, part, head };
        let mut response = match verb {
            Verb::Get | Verb::Update | Verb::Patch if call.scale().is_some() => {
                call.scaled(verb, accepted.format, body).await
            }
            Verb::Get => {
                let key = (call.namespace(), call.name());
                read::get(&*self.storage, &self.object_budget, &call.show, key, &call.options).await
            }
            Verb::List => call.list().await,
            Verb::Watch => call.watch(accepted),
            Verb::Create | Verb::Update | Verb::Patch => call.write(verb, body).await,
            Verb::Delete | Verb::DeleteCollection => call.delete(verb, accepted.format, body).await,
        }?;
        if let Some(warning) = &call.kind.warning {
            response::warn(&mut response, &[warning.to_string()]);
        }
        Ok(response)
    }
}

/// Builds a 404 that names the version in which the kind is served, if any.
fn no_such_kind(kinds: &[Arc<Kind>], path: &ResourcePath) -> Status {
    let mut status = Status::no_such_path();
    let same = |kind: &&Arc<Kind>| kind.resource.group == path.group && kind.resource.plural == path.plural;
    if let Some(other) = kinds.iter().find(same) {
        let api_version = other.resource.api_version();
        status.message = format!("{} are served as {api_version}, not as {}", path.plural, path.version);
    }
    status
}

/// Checks that a kind is served under this path with this verb; returns the part of its objects
/// that the path addresses.
fn check_served(kind: &Kind, verb: Verb, path: &ResourcePath) -> Result<Part, Refusal> {
    let everywhere = path.namespace.is_none();
    let misplaced = match kind.resource.scope {
        Scope::Cluster => !everywhere,
        Scope::Namespaced => everywhere && path.name.is_some(),
    };
    let part = match path.subresource.as_deref() {
        None => Some(Part::Object),
        Some("status") if kind.status_subresource => Some(Part::Status),
        Some("scale") if kind.scale.is_some() => Some(Part::Object),
        Some("finalize") if kind.is_finalized() => Some(Part::Finalizers),
        Some(_) => None,
    };
    let Some(part) = part.filter(|_| !misplaced) else {
        let scales = path.subresource.as_deref() == Some("scale");
        return Err(match (&kind.read_only_hint, &path.name) {
            (Some(hint), Some(name)) if scales => Status::forbidden(&kind.resource, name, hint),
            _ => Status::no_such_path(),
        }
        .into());
    };
    if part == Part::Finalizers && verb != Verb::Update {
        let status = Status::method_not_allowed(&kind.resource, verb.as_str());
        return Err(Refusal { status, allow: FINALIZE_METHODS });
    }
    // Writes need a namespace in the path.
    if verb.writes() && everywhere && kind.resource.scope == Scope::Namespaced {
        let status = Status::method_not_allowed(&kind.resource, verb.as_str());
        return Err(Refusal { status, allow: READ_METHODS });
    }
    if verb == Verb::DeleteCollection && kind.writable == Writable::Everything && !kind.deletes_collections()
    {
        let status = Status::method_not_allowed(&kind.resource, verb.as_str());
        return Err(Refusal { status, allow: ONE_BY_ONE_METHODS });
    }
    Ok(part)
}

fn check_writable(kind: &Kind, verb: Verb, part: Part, name: &str) -> Result<(), Refusal> {
    match (kind.writable, part) {
        (Writable::Everything, _) | (Writable::Status, Part::Status) => return Ok(()),
        (Writable::Status, Part::Object | Part::Finalizers) | (Writable::Nothing, _) => {}
    }
    match &kind.read_only_hint {
        Some(hint) => Err(Status::forbidden(&kind.resource, name, hint).into()),
        None => {
            let status = Status::method_not_allowed(&kind.resource, verb.as_str());
            Err(Refusal { status, allow: READ_METHODS })
        }
    }
}

fn show(kind: &Arc<Kind>, accepted: Accepted, options: &Options) -> Result<Show> {
    let view = match accepted.view {
        As::Whole => View::Whole,
        As::Metadata => View::Metadata(accepted.meta),
        As::Table => {
            let include = Include::from_query(Some(&options.include_object))?;
            View::Table(TableView::new(kind, include, accepted.meta))
        }
    };
    Ok(Show { kind: Arc::clone(kind), texts: Texts::new(kind), format: accepted.format, view })
}

/// A request on objects of a served kind.
struct Call<'a, K: Storage, E> {
    api: &'a Api<K, E>,
    show: Show,
    kind: Arc<Kind>,
    path: ResourcePath,
    options: Options,
    part: Part,
    head: Head<'a>,
}

impl<K: Storage, E: Extension> Call<'_, K, E> {
    fn namespace(&self) -> &str {
        self.path.namespace.as_deref().unwrap_or_default()
    }

    fn name(&self) -> &str {
        self.path.name.as_deref().unwrap_or_default()
    }

    fn selection(&self) -> Result<Selection> {
        let Options { labels, fields, .. } = &self.options;
        Selection::new(&self.kind, self.path.namespace.as_deref(), labels, fields)
    }

    async fn list(&self) -> Result<Response<ResponseBody>> {
        let Api { storage, snapshots, .. } = self.api;
        read::list(storage, snapshots, self.show.clone(), self.selection()?, &self.options).await
    }

    fn watch(&self, accepted: Accepted) -> Result<Response<ResponseBody>> {
        if accepted.format == Format::Yaml {
            return Err(Status::not_acceptable(&["application/json"]));
        }
        let storage = Arc::clone(&self.api.storage);
        let watch = Watch {
            start: Start::read(&self.options, storage.version(&self.kind.stored_as))?,
            storage,
            kind: Arc::clone(&self.kind),
            selection: Arc::new(self.selection()?),
            bookmarks: self.options.bookmarks,
            timeout: watch::timeout(&self.options),
            lines: Lines::new(self.show.texts.clone(), self.show.view.clone()),
            metrics: Arc::clone(&self.api.metrics),
            stopping: self.api.stopping.subscribe(),
        };
        let (sender, parts) = mpsc::channel(1);
        tokio::spawn(watch.run(sender));
        Ok(response::stream(Format::Json.media_type(), ResponseBody::Lines(parts)))
    }

    async fn write(&self, verb: Verb, body: impl ReadBody) -> Result<Response<ResponseBody>> {
        // An unreadable body is refused before it is awaited.
        let patch_type = if verb == Verb::Patch {
            let strategic = !self.kind.custom && self.kind.schema.is_some();
            Some(PatchType::of(self.head.content_type, strategic)?)
        } else {
            Syntax::announced(self.head.content_type)?;
            None
        };
        let (bytes, memory) = body.read().await?;
        let manager = self.manager();
        let stored_kind = self.stored_kind();
        let write = self.as_write(&stored_kind, &manager);
        let mut written = match patch_type {
            Some(patch_type) => {
                let patch = match patch_type {
                    // JSON is YAML too and parses faster.
                    PatchType::Apply => media::read_body(None, &bytes)
                        .or_else(|_| media::read_body(Some("application/yaml"), &bytes))?,
                    _ => media::read_body(None, &bytes)?,
                };
                drop(bytes);
                write.patch(self.name(), patch_type, &patch).await?
            }
            None => {
                let body = media::read_body(self.head.content_type, &bytes)?;
                let duplicate_fields = self.duplicates(&bytes);
                drop(bytes);
                let write = Write { duplicate_fields: &duplicate_fields, ..write };
                match verb {
                    Verb::Create => write.create(body).await?,
                    _ => write.update(self.name(), body).await?,
                }
            }
        };
        let warnings = std::mem::take(&mut written.warnings);
        let reservation = written.reservation.take().unwrap_or(memory.reservation);
        let created = (verb == Verb::Create).then(|| CreatedName(written.object.name.as_str().into()));
        let mut response = self.written(written)?;
        if let Some(created) = created {
            response.extensions_mut().insert(created);
        }
        response::warn(&mut response, &warnings);
        Ok(hold_until_sent(response, reservation))
    }

    /// Returns the paths of the replica counts if the request is for `/scale`.
    fn scale(&self) -> Option<Arc<ScalePaths>> {
        self.kind.scale.clone().filter(|_| self.path.subresource.as_deref() == Some("scale"))
    }

    /// Reads or writes the replica count through `/scale`.
    async fn scaled(
        &self,
        verb: Verb,
        format: Format,
        body: impl ReadBody,
    ) -> Result<Response<ResponseBody>> {
        let Some(paths) = self.scale() else { return Err(Status::no_such_path()) };
        let view = |json: &str| {
            let object: Object = serde_json::from_str(json).map_err(Status::internal)?;
            Ok::<_, Status>(scale::of(&paths, &object))
        };
        let current = async || {
            let get = || self.api.storage.get(&self.kind.stored_as, self.namespace(), self.name());
            let found = self.api.object_budget.read(READ_FACTOR, get).await?;
            view(&found.ok_or_else(|| Status::not_found(&self.kind.resource, self.name()))?.0.json)
        };
        if verb == Verb::Get {
            return Ok(response::text(200, format.media_type(), format.render_value(&current().await?)?));
        }
        let (bytes, _memory) = body.read().await?;
        let desired = if verb == Verb::Patch {
            let patch = media::read_body(None, &bytes)?;
            let mut before = current().await?;
            // A patch without a version is unconditional.
            if let Some(Value::Object(metadata)) = before.get_mut("metadata") {
                metadata.remove("resourceVersion");
            }
            match PatchType::of(self.head.content_type, true)? {
                PatchType::Json => patch::json(before, &patch, self.api.object_bytes)?,
                PatchType::Apply => {
                    return Err(Status::bad_request("a Scale cannot be applied; hint: use PATCH or PUT"));
                }
                PatchType::Merge | PatchType::Strategic => patch::merge(before, &patch),
            }
        } else {
            media::read_body(self.head.content_type, &bytes)?
        };
        drop(bytes);
        let change = scale::change(&self.kind, &paths, self.name(), &desired)?;
        let (manager, stored_kind) = (self.manager(), self.stored_kind());
        let written =
            self.as_write(&stored_kind, &manager).patch(self.name(), PatchType::Merge, &change).await?;
        Ok(response::text(200, format.media_type(), format.render_value(&view(&written.object.json)?)?))
    }

    fn written(&self, written: Written) -> Result<Response<ResponseBody>> {
        self.show.object(written.code, written.object.json)
    }

    /// Returns duplicate fields of a JSON body, unless the client ignores them.
    fn duplicates(&self, bytes: &[u8]) -> Vec<String> {
        if self.options.field_validation == FieldValidation::Ignore {
            return Vec::new();
        }
        std::str::from_utf8(bytes).map(duplicates::duplicates).unwrap_or_default()
    }

    async fn delete(
        &self,
        verb: Verb,
        format: Format,
        body: impl ReadBody,
    ) -> Result<Response<ResponseBody>> {
        let (bytes, _memory) = body.read().await?;
        let options = media::read_body(self.head.content_type, &bytes)?;
        drop(bytes);
        let options = DeleteOptions::read(&options, &self.options.delete)?;
        let manager = self.manager();
        let stored_kind = self.stored_kind();
        let write = self.as_write(&stored_kind, &manager);
        if verb == Verb::DeleteCollection {
            write::collection(&write, &Arc::new(self.selection()?), &options).await?;
            return Ok(response::status(&Status::deleted(&self.kind.resource, "", ""), "", format));
        }
        match write::delete(&write, self.name(), &options).await? {
            Deleted::Terminating(written) => self.written(written),
            Deleted::Removed(written) => {
                let head: edgesync_object::Head<'_> =
                    serde_json::from_str(&written.object.json).map_err(Status::internal)?;
                let status = Status::deleted(&self.kind.resource, self.name(), &head.metadata.uid);
                Ok(response::status(&status, "", format))
            }
        }
    }

    /// Returns the kind in its storage version.
    fn stored_kind(&self) -> Arc<Kind> {
        let stored_as = &self.kind.stored_as;
        if *stored_as == self.kind.resource {
            return Arc::clone(&self.kind);
        }
        let stored_kind = self.api.storage.kind(&stored_as.group, &stored_as.version, &stored_as.plural);
        stored_kind.unwrap_or_else(|| Arc::clone(&self.kind))
    }

    fn as_write<'a>(&'a self, stored_kind: &'a Arc<Kind>, manager: &'a str) -> Write<'a, K> {
        Write {
            storage: &*self.api.storage,
            locks: &self.api.locks,
            object_budget: &self.api.object_budget,
            kind: &self.kind,
            stored_kind,
            namespace: self.namespace(),
            options: &self.options,
            part: self.part,
            duplicate_fields: &[],
            manager,
            now: Timestamp::now(),
            object_bytes: self.api.object_bytes,
        }
    }

    /// Returns the field manager: the query's, or the first word of the user agent.
    fn manager(&self) -> String {
        if !self.options.field_manager.is_empty() {
            return self.options.field_manager.clone();
        }
        let user_agent = self.head.user_agent.unwrap_or_default();
        let word = user_agent.split(['/', ' ']).next().unwrap_or_default();
        let word: String = word.chars().filter(|c| !c.is_control()).take(MAX_AGENT).collect();
        if word.is_empty() { "unknown".to_owned() } else { word }
    }
}
