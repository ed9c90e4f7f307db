//! Destination of Events: the edge's store, or a fake in tests.

use std::future::Future;

use super::object::Record;
use crate::store::{EdgeStore, LocalKind, LocalObject, MonotonicTime, OutboxWrite};
use edgesync_store::StoreError;

/// Metadata key of the record about the run.
const RUN_KEY: &str = "run";

/// An entry of a transaction.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Entry {
    Event(Record),
    /// The new record about the run.
    Run(String),
}

/// A store of Events.
pub(super) trait Sink: Send + Sync + 'static {
    /// Writes all entries in one transaction, and returns after the commit.
    fn post(&self, entries: Vec<Entry>) -> impl Future<Output = Result<(), StoreError>> + Send;

    /// Returns the record about the last run.
    fn last_run(&self) -> impl Future<Output = Result<Option<String>, StoreError>> + Send;

    /// Corrects the times of pending Events from before the clock was set.
    fn correct_times(
        &self,
        before: MonotonicTime,
        forward_ms: i64,
    ) -> impl Future<Output = Result<u64, StoreError>> + Send;
}

impl Sink for EdgeStore {
    async fn post(&self, entries: Vec<Entry>) -> Result<(), StoreError> {
        let posting = |entry| match entry {
            Entry::Event(record) => posting_of(record),
            Entry::Run(text) => OutboxWrite::Metadata(RUN_KEY, text),
        };
        EdgeStore::post(self, entries.into_iter().map(posting).collect()).await
    }

    async fn last_run(&self) -> Result<Option<String>, StoreError> {
        self.note(RUN_KEY).await
    }

    async fn correct_times(&self, before: MonotonicTime, forward_ms: i64) -> Result<u64, StoreError> {
        EdgeStore::correct_times(self, before, forward_ms).await
    }
}

/// Returns the object, which replaces its older state, and the outbox item.
fn posting_of(record: Record) -> OutboxWrite {
    let Record { namespace, name, body, lane, key, at } = record;
    let object = LocalObject { kind: LocalKind::Event, namespace, name, version: 0, body };
    OutboxWrite::Event { lane, key, at, object }
}
