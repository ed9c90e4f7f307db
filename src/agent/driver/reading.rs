//! Reads pages of the store for the machine.

use tokio::task::{JoinError, JoinHandle};

use super::peer_log::PeerLog;
use crate::store as edge;
use crate::store::{EdgeStore, InventoryCursor};
use edgesync_protocol::apply::Totals;
use edgesync_protocol::change::ObjectRef;
use edgesync_protocol::digest::Buckets;
use edgesync_protocol::edge::{ChangesPage, EdgeEffect, EdgeMachine, Entry, InventoryPage};
use edgesync_protocol::timing::Now;
use edgesync_store::StoreError;
use edgesync_transport::admission::LinePermit;

/// Result of a read that the machine requested.
pub(super) enum Page {
    Changes(Result<edge::Changes, StoreError>),
    Buckets(Result<(Totals, Buckets), StoreError>),
    Inventory(Result<edge::Inventory, StoreError>),
}

/// Starts the read that the machine requests; `None` if the effect is no read.
pub(super) fn read(store: EdgeStore, effect: &EdgeEffect) -> Option<JoinHandle<Page>> {
    let task = match *effect {
        EdgeEffect::ReadChanges { after, limit } => {
            tokio::spawn(async move { Page::Changes(store.changes(after, limit).await) })
        }
        EdgeEffect::ReadBuckets => tokio::spawn(async move { Page::Buckets(store.buckets().await) }),
        EdgeEffect::ReadInventory { buckets, cursor, limit } => {
            let cursor = InventoryCursor::from_number(cursor);
            tokio::spawn(async move { Page::Inventory(store.inventory(buckets, cursor, limit).await) })
        }
        _ => return None,
    };
    Some(task)
}

/// Passes a page to the machine. A digest that does not match the rows starts a check of all rows.
pub(super) fn deliver(
    page: Result<Page, JoinError>,
    now: Now,
    machine: &mut EdgeMachine,
    store: &EdgeStore,
    peer_log: &PeerLog,
) {
    match page {
        Ok(Page::Changes(Ok(changes))) => {
            let edge::Changes { from, to, entries, .. } = changes;
            let entries = entries.into_iter().map(entry).collect();
            machine.changes_read(now, ChangesPage { from, to, entries });
        }
        Ok(Page::Buckets(Ok((totals, buckets)))) if buckets.fits(totals.digest) => {
            machine.buckets_read(&buckets);
        }
        Ok(Page::Buckets(Ok(_))) => {
            // A row was damaged, and then changed before a check detected the damage.
            if let Some(LinePermit { suppressed }) = peer_log.reads.permit_line() {
                tracing::error!(suppressed, "digest does not match the rows: checking all rows");
            }
            machine.read_failed(now);
            let store = store.clone();
            tokio::spawn(async move {
                if let Err(error) = store.check().await {
                    tracing::error!(%error, "check of the rows failed");
                }
            });
        }
        Ok(Page::Inventory(Ok(page))) => {
            let next = page.next.map(InventoryCursor::number);
            let entries = page.entries.into_iter().map(entry).collect();
            machine.inventory_read(now, InventoryPage { entries, next });
        }
        Ok(Page::Changes(Err(error @ StoreError::Compacted { after, .. }))) => {
            // A confirmation overtook the read, as it may after a power cut.
            tracing::debug!(%error, "changes confirmed before they were read");
            machine.changes_compacted(now, after);
        }
        Ok(Page::Changes(Err(error)) | Page::Buckets(Err(error)) | Page::Inventory(Err(error))) => {
            if let Some(LinePermit { suppressed }) = peer_log.reads.permit_line() {
                tracing::warn!(%error, suppressed, "read of the store failed");
            }
            machine.read_failed(now);
        }
        Err(error) => {
            tracing::error!(%error, "read of the store ended early");
            machine.read_failed(now);
        }
    }
}

fn entry(entry: edge::Entry) -> Entry {
    let edge::Entry { uid, version, object, .. } = entry;
    Entry { uid, version, object: object_ref(object) }
}

/// Converts a row's object reference to the protocol's.
pub(super) fn object_ref(object: edge::ObjectRef) -> ObjectRef {
    ObjectRef {
        api_version: object.resource.api_version().into(),
        kind: object.resource.kind.as_str().into(),
        namespace: object.namespace.into(),
        name: object.name.into(),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::time::Duration;

    use tracing::span::{Attributes, Id, Record};
    use tracing::{Event, Level, Metadata, Subscriber};

    use super::*;
    use crate::store::EdgeOptions;
    use edgesync_protocol::digest::Epoch;
    use edgesync_protocol::edge::EdgeConfig;
    use edgesync_protocol::frame::{Received, Up, Welcome};

    const NOW: Now = Duration::from_secs(1);

    /// Counts warnings and errors.
    #[derive(Clone, Default)]
    struct Warnings(Arc<AtomicUsize>);

    impl Subscriber for Warnings {
        fn enabled(&self, metadata: &Metadata<'_>) -> bool {
            *metadata.level() <= Level::WARN
        }

        fn new_span(&self, _: &Attributes<'_>) -> Id {
            Id::from_u64(1)
        }

        fn record(&self, _: &Id, _: &Record<'_>) {}

        fn record_follows_from(&self, _: &Id, _: &Id) {}

        fn event(&self, _: &Event<'_>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }

        fn enter(&self, _: &Id) {}

        fn exit(&self, _: &Id) {}
    }

    /// Returns the revision after which the machine reads changes, if it does.
    fn next_read(machine: &mut EdgeMachine) -> Option<u64> {
        while machine.poll_frame(NOW).is_some() {}
        let effects = std::iter::from_fn(|| machine.poll_effect());
        let read = |effect| match effect {
            EdgeEffect::ReadChanges { after, .. } => Some(after),
            _ => None,
        };
        effects.filter_map(read).last()
    }

    /// Fails the first read of a node that has lost the newest confirmation in a power cut. Returns
    /// the number of warnings, and the next read.
    fn deliver_failed_read(error: StoreError, store: &EdgeStore) -> (usize, Option<u64>) {
        let totals = Totals { epoch: Epoch(1), revision: 30, count: 30, ..Totals::default() };
        let mut machine = EdgeMachine::new(EdgeConfig::defaults("edge"), totals, 4, None);
        machine.connected(NOW, 256 << 10, 1 << 32);
        let Some(Up::Hello(hello)) = machine.poll_frame(NOW) else { panic!("must be a Hello") };
        assert_eq!(next_read(&mut machine), Some(4));
        let welcome = Welcome {
            session: hello.session,
            incarnation: None,
            confirmed: 20,
            pending: 1,
            held: 0,
            register: false,
            features: Vec::new(),
            waiting: Default::default(),
        };
        machine.received(NOW, Received::Welcome(welcome), 0);
        let warnings = Warnings::default();
        tracing::subscriber::with_default(warnings.clone(), || {
            let page = Ok(Page::Changes(Err(error)));
            deliver(page, NOW, &mut machine, store, &PeerLog::default());
        });
        (warnings.0.load(Ordering::Relaxed), next_read(&mut machine))
    }

    #[tokio::test]
    async fn a_read_overtaken_by_a_confirmation_is_no_warning() {
        let directory = tempfile::tempdir().unwrap();
        let store = EdgeStore::open(&directory.path().join("edge.db"), EdgeOptions::default()).unwrap();
        let overtaken = StoreError::Compacted { after: 4, oldest: 20 };
        assert_eq!(deliver_failed_read(overtaken, &store), (0, Some(20)));
        assert_eq!(deliver_failed_read(StoreError::Closed, &store).0, 1);
        store.close().await;
    }
}
