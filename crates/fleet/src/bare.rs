//! An API without objects: health, metrics, and the paths of an extension. Serves replicas, whose
//! objects are in a cluster with its own API, and probes.

use std::sync::{Arc, Mutex, PoisonError};

use edgesync_api::{Batch, Kind, Page, PageQuery, Snapshot, Storage, Stored};
use edgesync_object::status::Result;
use edgesync_object::{Object, Resource, Status};

/// A check of `/readyz`, with its name.
pub(super) type Check = (&'static str, Result<()>);

/// Returns the current checks.
pub(super) type Checks = Box<dyn Fn() -> Vec<Check> + Send + Sync>;

/// Storage without objects; see the module.
pub struct Bare(Checks);

impl Bare {
    /// Creates an API with these checks.
    pub fn new(checks: impl Fn() -> Vec<Check> + Send + Sync + 'static) -> Arc<Self> {
        Arc::new(Self(Box::new(checks)))
    }
}

/// Pending step of a program's start; it is ready when none is left.
#[derive(Clone, Debug)]
pub struct Readiness(Arc<Mutex<Option<String>>>);

impl Readiness {
    /// Starts with this pending step.
    pub(super) fn waits_for(what: &str) -> Self {
        Self(Arc::new(Mutex::new(Some(what.to_owned()))))
    }

    /// Sets the pending step; `None` when ready.
    pub fn set(&self, waits_for: Option<String>) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = waits_for;
    }

    /// Returns the readiness as a check.
    pub(super) fn check(&self) -> Check {
        let waits_for = self.0.lock().unwrap_or_else(PoisonError::into_inner).clone();
        ("fleet", waits_for.map_or(Ok(()), |what| Err(Status::unavailable(what, 5))))
    }
}

/// Uninhabited type: there are no objects to list.
pub enum NoSnapshot {}

impl Snapshot for NoSnapshot {
    fn version(&self) -> u64 {
        match *self {}
    }

    async fn page(&mut self, _: PageQuery) -> Result<Page> {
        match *self {}
    }

    async fn count(&mut self, _: Option<&str>) -> Result<u64> {
        match *self {}
    }
}

impl Storage for Bare {
    type Snapshot = NoSnapshot;

    fn kind(&self, _: &str, _: &str, _: &str) -> Option<Arc<Kind>> {
        None
    }

    fn kinds(&self) -> Vec<Arc<Kind>> {
        Vec::new()
    }

    fn kinds_version(&self) -> u64 {
        0
    }

    fn checks(&self) -> Vec<Check> {
        (self.0)()
    }

    fn version(&self, _: &Resource) -> u64 {
        0
    }

    async fn get(&self, _: &Resource, _: &str, _: &str) -> Result<Option<Stored>> {
        Ok(None)
    }

    async fn snapshot(&self, _: &Arc<Resource>) -> Result<NoSnapshot> {
        Err(Status::no_such_path())
    }

    async fn changes(&self, _: &Arc<Resource>, _: u64) -> Result<Batch> {
        Err(Status::no_such_path())
    }

    async fn create(&self, _: &Arc<Resource>, _: Object) -> Result<Stored> {
        Err(Status::no_such_path())
    }

    async fn update(&self, _: &Arc<Resource>, _: Object, _: u64) -> Result<Stored> {
        Err(Status::no_such_path())
    }

    async fn remove(&self, _: &Arc<Resource>, _: &Stored) -> Result<Stored> {
        Err(Status::no_such_path())
    }
}
