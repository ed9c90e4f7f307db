//! What the API needs from whoever keeps the objects. Depends on `object` only: the agent and the
//! cloud implement it over their stores.
//!
//! A storage only reads, compares and swaps: it gives versions and keeps order. Everything that
//! Kubernetes says about objects beyond that (defaults, status, finalizers, patches, ownership of
//! fields, selectors, views) is done by the API, the same way on both sides.

use std::future::Future;
use std::sync::{Arc, OnceLock};

use hyper::body::Bytes;

use super::kind::Kind;
use edgesync_object::status::Result;
use edgesync_object::{Object, Resource, Selector};

/// The most rows that one call of [`Snapshot::page`] is asked for: what a list of any length costs
/// in memory.
pub const PAGE_ROWS: usize = 500;

/// The storage of objects behind the API. Resources are those of [`Kind::stored_as`], unless said otherwise.
///
/// Objects leave as JSON text, complete with `apiVersion`, `kind` and `metadata`;
/// `metadata.resourceVersion` is the version that this storage gave. Everything that refuses a request says so
/// with a `Status`, which becomes the response.
pub trait Storage: Send + Sync + 'static {
    /// A list in the making: everything read from it shows the same commit.
    type Snapshot: Snapshot;

    /// The kind served under this path, if it is known.
    fn kind(&self, group: &str, version: &str, plural: &str) -> Option<Arc<Kind>>;

    /// All kinds served, in the order of discovery.
    fn kinds(&self) -> Vec<Arc<Kind>>;

    /// A number that changes whenever [`Storage::kinds`] does.
    fn kinds_version(&self) -> u64;

    /// Named checks of `/readyz`; an error says what is missing.
    fn checks(&self) -> Vec<(&'static str, Result<()>)>;

    /// The newest committed version of the sequence in which objects of this kind get theirs.
    fn version(&self, resource: &Resource) -> u64;

    /// One object; `namespace` is empty for cluster-scoped kinds. A missing one is `None`.
    ///
    /// # Errors
    /// 500 or 503 when the store cannot be read.
    fn get(
        &self,
        resource: &Resource,
        namespace: &str,
        name: &str,
    ) -> impl Future<Output = Result<Option<Stored>>> + Send;

    /// Opens a snapshot for a list of a kind. It is let go of when it is dropped; the API bounds how many
    /// are open and for how long.
    ///
    /// # Errors
    /// 503 when the store cannot be read, 429 when there are too many.
    fn snapshot(&self, resource: &Arc<Resource>) -> impl Future<Output = Result<Self::Snapshot>> + Send;

    /// Changes of a kind after a version, in order. Waits until there is a change of any kind after it, so a
    /// batch can be empty and still move on. Can be cancelled without loss.
    ///
    /// # Errors
    /// 410 if changes after `after` have been forgotten; 503 when the store is closed.
    fn changes(&self, resource: &Arc<Resource>, after: u64) -> impl Future<Output = Result<Batch>> + Send;

    /// Called before an object of a kind is created in a namespace, which may be made by this.
    ///
    /// # Errors
    /// 403 if nothing can be created there now.
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

    /// Stores a new object under its namespace and name and gives it `metadata.resourceVersion`. All
    /// other metadata (uid, creationTimestamp, generation) has been set.
    ///
    /// # Errors
    /// 409 `AlreadyExists` if the name is taken, 409 `Conflict` if its namespace has been deleted since
    /// [`Storage::ensure_namespace`] was called, 413 for an object that is too large, 503 if it cannot be stored.
    fn create(&self, resource: &Arc<Resource>, object: Object)
    -> impl Future<Output = Result<Stored>> + Send;

    /// Replaces the object of the same namespace and name if its version is still `expected`, and gives it
    /// the next one.
    ///
    /// # Errors
    /// 404 if there is none, 409 `Conflict` if its version is another one; otherwise as for create.
    fn update(
        &self,
        resource: &Arc<Resource>,
        object: Object,
        expected: u64,
    ) -> impl Future<Output = Result<Stored>> + Send;

    /// Replaces the status of an object that is still as it was when it was read: `old`. Everything else of
    /// `object` is as in `old`, but for what the API notes in the metadata. A storage that does not own its objects
    /// may keep the status apart, as long as its reads show it.
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

    /// Removes an object that is still as it was when it was read: `old`. Returns it as it was last, with the version of
    /// the removal.
    ///
    /// # Errors
    /// As for update.
    fn remove(&self, resource: &Arc<Resource>, old: &Stored) -> impl Future<Output = Result<Stored>> + Send;

    /// Whether somebody deletes the dependents of deleted objects and takes the finalizers
    /// `foregroundDeletion` and `orphan` off: without, a delete never waits for dependents.
    fn collects(&self) -> bool {
        false
    }

    /// Checks of the storage's own before an object of a kind is created (`old` is `None`) or changed: what a
    /// CustomResourceDefinition must be like, and so on. May also complete the object, and gives what its author is to
    /// be warned of.
    ///
    /// # Errors
    /// 422, or any other status; it becomes the response.
    fn admit(&self, kind: &Kind, old: Option<&Object>, object: &mut Object) -> Result<Vec<String>> {
        let _ = (kind, old, object);
        Ok(Vec::new())
    }
}

/// An open list. See [`Storage::snapshot`].
pub trait Snapshot: Send + 'static {
    /// The version that it shows.
    fn version(&self) -> u64;

    /// One page of the objects of the kind, in the order of namespace and name.
    ///
    /// # Errors
    /// 400 for a cursor that cannot be read; 500 or 503 when the store cannot be read.
    fn page(&mut self, query: PageQuery) -> impl Future<Output = Result<Page>> + Send;

    /// How many objects there are, all selectors aside.
    ///
    /// # Errors
    /// 500 or 503 when the store cannot be read.
    fn count(&mut self, namespace: Option<&str>) -> impl Future<Output = Result<u64>> + Send;
}

/// Whether an object is wanted. Called on a thread of the store with each row that is read.
pub type RowFilter = Arc<dyn Fn(&Stored) -> bool + Send + Sync>;

/// Which part of a list is wanted.
#[derive(Clone, Default)]
pub struct PageQuery {
    /// Only this namespace; all if `None`.
    pub namespace: Option<String>,
    /// Behind this place; from the start if `None`.
    pub after: Option<Cursor>,
    /// At most this many objects, at least 1 and at most [`PAGE_ROWS`]. A page may end earlier, when
    /// enough bytes have been read.
    pub limit: usize,
    /// Only objects of this name: a storage finds them without reading others.
    pub name: Option<String>,
    /// What the filter asks of labels: a storage that has an index of labels need not read other objects. Empty if it
    /// asks nothing.
    pub labels: Selector,
    /// Only objects that this accepts; all if `None`.
    pub filter: Option<RowFilter>,
}

/// A place in a list, in the storage's own words: it makes them and reads them.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Cursor(pub String);

/// A part of a list.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Page {
    /// The objects.
    pub items: Vec<Stored>,
    /// Where to go on, if there may be more.
    pub next: Option<Cursor>,
}

/// An object as it is kept.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Stored {
    /// Namespace, empty for cluster-scoped objects.
    pub namespace: String,
    /// Name.
    pub name: String,
    /// Its version; the same as `metadata.resourceVersion`.
    pub version: u64,
    /// The object as JSON text.
    pub json: String,
}

/// What happened to an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ChangeType {
    /// It is new.
    Added,
    /// It has another content.
    Modified,
    /// It is no more.
    Deleted,
}

/// A committed change, shared by all who watch.
#[derive(Debug)]
pub struct Change {
    /// What happened.
    pub kind: ChangeType,
    /// The object after the change; a deleted one as it was last, with the version of its removal.
    pub object: Stored,
    /// The object before the change as JSON text; `None` for a new one. Selectors need it: an object that leaves
    /// a selection is deleted for who watches the selection.
    pub previous: Option<String>,
    /// The change as a line of a watch, once somebody has written it: kept by the API.
    pub line: OnceLock<Bytes>,
}

/// Changes in order.
#[derive(Clone, Debug, Default)]
pub struct Batch {
    /// The changes of the kind that was asked for.
    pub changes: Vec<Arc<Change>>,
    /// Everything up to this version is in here or was before.
    pub version: u64,
}
