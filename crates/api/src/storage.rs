//! Storage interface of the API. Depends on `object` only: the agent and the cloud implement it
//! over their stores.
//!
//! A storage reads, compares and swaps: it assigns versions and keeps their order. The API does all
//! else that Kubernetes specifies for objects (defaults, status, finalizers, patches, field
//! ownership, selectors, views), the same way on both sides.

use std::future::Future;
use std::sync::{Arc, OnceLock};

use hyper::body::Bytes;

use super::kind::Kind;
use edgesync_object::status::Result;
use edgesync_object::{Object, Resource, Selector};

/// Maximum number of rows requested per call of [`Snapshot::page`]; bounds the memory of a list of
/// any length.
pub const PAGE_ROWS: usize = 500;

/// Storage of the objects behind the API. Resources are those of [`Kind::stored_as`] unless
/// documented otherwise.
///
/// Objects are returned as JSON text, complete with `apiVersion`, `kind` and `metadata`;
/// `metadata.resourceVersion` is the version that this storage assigned. A refusal is a `Status`,
/// which becomes the response.
pub trait Storage: Send + Sync + 'static {
    /// A consistent view for a list: everything read from it belongs to the same commit.
    type Snapshot: Snapshot;

    /// Returns the kind served at a path; `None` if it is unknown.
    fn kind(&self, group: &str, version: &str, plural: &str) -> Option<Arc<Kind>>;

    /// Returns all served kinds, in the order of discovery.
    fn kinds(&self) -> Vec<Arc<Kind>>;

    /// Returns a number that changes whenever [`Storage::kinds`] does.
    fn kinds_version(&self) -> u64;

    /// Returns the named checks of `/readyz`; an error describes the failure.
    fn checks(&self) -> Vec<(&'static str, Result<()>)>;

    /// Returns the newest committed version of the sequence that this kind belongs to.
    fn version(&self, resource: &Resource) -> u64;

    /// Returns one object; `None` if it is missing. `namespace` is empty for cluster-scoped kinds.
    ///
    /// # Errors
    /// 500 or 503 if the store cannot be read.
    fn get(
        &self,
        resource: &Resource,
        namespace: &str,
        name: &str,
    ) -> impl Future<Output = Result<Option<Stored>>> + Send;

    /// Opens a snapshot for a list of a kind, released on drop. The API bounds the number and
    /// lifetime of open snapshots.
    ///
    /// # Errors
    /// 503 if the store cannot be read, 429 if too many are open.
    fn snapshot(&self, resource: &Arc<Resource>) -> impl Future<Output = Result<Self::Snapshot>> + Send;

    /// Returns changes of a kind after a version, in order. Waits for a change of any kind after
    /// it, so a batch may be empty and still advance. Cancel-safe.
    ///
    /// # Errors
    /// 410 if changes after `after` were evicted; 503 if the store is closed.
    fn changes(&self, resource: &Arc<Resource>, after: u64) -> impl Future<Output = Result<Batch>> + Send;

    /// Called before an object is created in a namespace; may create the namespace.
    ///
    /// # Errors
    /// 403 if the namespace accepts no objects now.
    fn ensure_namespace(
        &self,
        kind: &Resource,
        namespace: &str,
        name: &str,
        dry_run: bool,
    ) -> impl Future<Output = Result<()>> + Send {
        let _ = (kind, namespace, name, dry_run);
        async { Ok(()) }
    }

    /// Stores a new object under its namespace and name and assigns its `metadata.resourceVersion`.
    /// All other metadata (uid, creationTimestamp, generation) is set by the caller.
    ///
    /// # Errors
    /// 409 `AlreadyExists` if the name is taken, 409 `Conflict` if its namespace was deleted since
    /// [`Storage::ensure_namespace`], 413 for an object that is too large, 503 if it cannot be
    /// stored.
    fn create(&self, resource: &Arc<Resource>, object: Object)
    -> impl Future<Output = Result<Stored>> + Send;

    /// Replaces the object of the same namespace and name if its version is still `expected`, and
    /// assigns the next version.
    ///
    /// # Errors
    /// 404 if it is missing, 409 `Conflict` if its version differs; otherwise as for create.
    fn update(
        &self,
        resource: &Arc<Resource>,
        object: Object,
        expected: u64,
    ) -> impl Future<Output = Result<Stored>> + Send;

    /// Replaces the status of an object that is unchanged since it was read as `old`. Apart from
    /// the status, `object` differs from `old` only in metadata maintained by the API. A storage
    /// that does not own its objects may store the status separately if its reads include it.
    ///
    /// # Errors
    /// As for update.
    fn update_status(
        &self,
        resource: &Arc<Resource>,
        object: Object,
        old: &Stored,
    ) -> impl Future<Output = Result<Stored>> + Send {
        self.update(resource, object, old.version)
    }

    /// Removes an object that is unchanged since it was read as `old`. Returns its last state with
    /// the version of the removal.
    ///
    /// # Errors
    /// As for update.
    fn remove(&self, resource: &Arc<Resource>, old: &Stored) -> impl Future<Output = Result<Stored>> + Send;

    /// Returns whether a garbage collector deletes dependents and removes the finalizers
    /// `foregroundDeletion` and `orphan`. Without one a delete never waits for dependents.
    fn has_garbage_collector(&self) -> bool {
        false
    }

    /// Admission checks of the storage before an object is created (`old` is `None`) or changed,
    /// such as the rules of CustomResourceDefinitions. May complete the object; returns warnings
    /// for its author.
    ///
    /// # Errors
    /// 422, or any other status; it becomes the response.
    fn admit(&self, kind: &Kind, old: Option<&Object>, object: &mut Object) -> Result<Vec<String>> {
        let _ = (kind, old, object);
        Ok(Vec::new())
    }
}

/// An open list; see [`Storage::snapshot`].
pub trait Snapshot: Send + 'static {
    /// Returns the version of the snapshot: no object in it is newer, and the [`Storage::version`]
    /// of the kind is not older.
    fn version(&self) -> u64;

    /// Returns one page of the objects of the kind, ordered by namespace and name.
    ///
    /// # Errors
    /// 400 for an invalid cursor; 500 or 503 if the store cannot be read.
    fn page(&mut self, query: PageQuery) -> impl Future<Output = Result<Page>> + Send;

    /// Returns the number of objects, ignoring selectors.
    ///
    /// # Errors
    /// 500 or 503 if the store cannot be read.
    fn count(&mut self, namespace: Option<&str>) -> impl Future<Output = Result<u64>> + Send;
}

/// Predicate that selects objects; called on a thread of the store for each row read.
pub type RowFilter = Arc<dyn Fn(&Stored) -> bool + Send + Sync>;

/// A query for one page of a list.
#[derive(Clone, Default)]
pub struct PageQuery {
    /// Only this namespace; all if `None`.
    pub namespace: Option<String>,
    /// After this position; from the start if `None`.
    pub after: Option<Cursor>,
    /// Maximum number of objects, from 1 to [`PAGE_ROWS`]. A page may end earlier once enough bytes
    /// are read.
    pub limit: usize,
    /// Only objects of this name, which a storage finds without reading others.
    pub name: Option<String>,
    /// The label part of the filter, for storages with a label index. Empty if the filter has none.
    pub labels: Selector,
    /// Only objects accepted by this; all if `None`.
    pub filter: Option<RowFilter>,
}

/// A position in a list, in a format private to the storage.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Cursor(pub String);

/// One page of a list.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Page {
    /// Objects ordered by namespace and name.
    pub items: Vec<Stored>,
    /// Cursor of the next page, if there may be more.
    pub next: Option<Cursor>,
}

/// An object in its storage version.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Stored {
    /// Empty for cluster-scoped objects.
    pub namespace: String,
    /// Name, unique within the namespace.
    pub name: String,
    /// Version of its last change, equal to `metadata.resourceVersion`.
    pub version: u64,
    /// The object as JSON text.
    pub json: String,
}

/// The type of a change.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ChangeType {
    /// The object was created.
    Added,
    /// The object's content changed.
    Modified,
    /// The object was deleted.
    Deleted,
}

/// A committed change, shared by all watches.
#[derive(Debug)]
pub struct Change {
    /// The type of the change.
    pub kind: ChangeType,
    /// The object after the change; for a deletion its last state, with the version of the removal.
    pub object: Stored,
    /// The object before the change as JSON text; `None` for a new one. Needed by selectors: an
    /// object that leaves a selection is deleted for its watches.
    pub previous: Option<String>,
    /// The change encoded as a watch line; filled by the API on first use.
    pub line: OnceLock<Bytes>,
}

/// Changes in order of versions.
#[derive(Clone, Debug, Default)]
pub struct Batch {
    /// Changes of the requested kind.
    pub changes: Vec<Arc<Change>>,
    /// All changes up to this version are in this batch or before it.
    pub version: u64,
}
