//! State shared with the store's handles, which do not wait for the writer.

use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use tokio::sync::watch;

use super::commit_listener::{CommitListener, Versions};
use super::journal::Recent;
use super::metadata::Pending;
use super::outbox::OutboxShared;
use super::{Facts, Health, READER_CACHE_KIB};
use edgesync_protocol::apply::Totals;
use edgesync_store::engine::EngineOptions;
use edgesync_store::reader::Generation;
use edgesync_store::snapshots::{SnapshotLimits, Snapshots, Threads};

/// Maximum number of open snapshots.
pub(crate) const MAX_SNAPSHOTS: usize = 8;

/// Returns the connections of snapshots. They are separate from the reader, which must not wait for
/// a long list.
pub(super) fn snapshots(path: &Path, engine: &EngineOptions, generation: Generation) -> Snapshots {
    let limits = SnapshotLimits { open: MAX_SNAPSHOTS, idle: 1 };
    let engine = EngineOptions { cache_kib: engine.cache_kib.min(READER_CACHE_KIB), ..engine.clone() };
    Snapshots::new(path, &engine, limits, generation, Threads::Blocking)
}

/// The shared state of the store.
#[derive(Debug)]
pub(super) struct Shared {
    /// Last confirmed revision; ahead of the written one.
    pub(super) confirmed: AtomicU64,
    pub(super) totals: watch::Sender<Totals>,
    pub(super) incarnation: watch::Sender<Option<String>>,
    pub(super) health: watch::Sender<Health>,
    /// The last in-place changes.
    pub(super) recent: Arc<Recent>,
    /// The listener for commits.
    pub(super) observer: OnceLock<Arc<dyn CommitListener>>,
    pub(super) versions: Mutex<Versions>,
    /// Events dropped before they expired.
    pub(super) events_dropped: AtomicU64,
    pub(super) outbox: OutboxShared,
    /// Open snapshots of lists.
    pub(super) snapshots: Snapshots,
    /// Metadata not yet written.
    pub(super) metadata: Pending,
}

impl Shared {
    pub(super) fn versions(&self) -> Versions {
        *self.versions.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn set_versions(&self, versions: Versions) {
        *self.versions.lock().unwrap_or_else(PoisonError::into_inner) = versions;
    }

    /// Raises the versions to at least these.
    pub(super) fn raise_versions(&self, versions: Versions) {
        let mut held = self.versions.lock().unwrap_or_else(PoisonError::into_inner);
        held.objects = held.objects.max(versions.objects);
        held.local = held.local.max(versions.local);
    }

    pub(super) fn facts(&self) -> Facts {
        let totals = *self.totals.borrow();
        let confirmed = self.confirmed.load(Ordering::Acquire).min(totals.revision);
        Facts { totals, confirmed, incarnation: self.incarnation.borrow().clone() }
    }

    pub(super) fn watch_health(&self) -> watch::Receiver<Health> {
        self.health.subscribe()
    }

    /// Records a confirmation. Revisions never decrease within a process, so the largest one
    /// counts; a revision that this store never had confirms nothing.
    pub(super) fn confirm(&self, revision: u64) {
        if revision <= self.totals.borrow().revision {
            self.confirmed.fetch_max(revision, Ordering::AcqRel);
        }
    }
}
