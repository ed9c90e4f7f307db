//! The newest changes of one sequence of versions in memory, one copy for all who watch. Which changes get in, and what
//! becomes of those who ask for older ones, is for whoever keeps the objects to say.

use std::collections::VecDeque;
use std::fmt;
use std::sync::Arc;

use tokio::sync::watch;

use super::storage::{Batch, Change};
use edgesync_object::Status;
use edgesync_object::status::Result;

/// The most changes in one batch.
pub const MAX_BATCH: usize = 500;
/// What a change takes beside its texts, in bytes, about.
const CHANGE_BYTES: usize = 256;
/// Seconds after which a client may ask again when there will be no further changes.
const RETRY_SECONDS: u32 = 5;

/// Changes, each with the kind `K` that it is of, and those who wait for more.
#[derive(Debug)]
pub struct Ring<K> {
    /// Bytes that are kept at most: texts, with the line that a watch makes of each.
    limit: usize,
    held: watch::Sender<Held<K>>,
}

struct Held<K> {
    /// Every change after this version that was to be kept is here.
    start: u64,
    /// The newest version.
    version: u64,
    bytes: usize,
    /// In ascending order of versions.
    entries: VecDeque<(K, Arc<Change>)>,
    closed: bool,
}

impl<K> fmt::Debug for Held<K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { start, version, bytes, .. } = self;
        write!(f, "{bytes} bytes of changes after {start} up to {version}")
    }
}

fn bytes(change: &Change) -> usize {
    // The object is there a second time once its line has been written.
    CHANGE_BYTES + 2 * change.object.json.len() + change.previous.as_ref().map_or(0, String::len)
}

impl<K> Ring<K> {
    /// An empty one that keeps at most `limit` bytes and whose newest version is `version`.
    #[must_use]
    pub fn new(limit: usize, version: u64) -> Self {
        let held = Held { start: version, version, bytes: 0, entries: VecDeque::new(), closed: false };
        Self { limit, held: watch::Sender::new(held) }
    }

    /// Bytes that are kept at most.
    #[must_use]
    pub fn limit(&self) -> usize {
        self.limit
    }

    /// The newest version.
    #[must_use]
    pub fn version(&self) -> u64 {
        self.held.borrow().version
    }

    /// Adds the changes of a commit in ascending order, all that are to be kept, and makes its version the newest one.
    pub fn push(&self, changes: impl IntoIterator<Item = (K, Change)>, version: u64) {
        self.push_all(&mut changes.into_iter(), version);
    }

    // One for all iterators.
    fn push_all(&self, changes: &mut dyn Iterator<Item = (K, Change)>, version: u64) {
        let added: Vec<_> = changes.map(|(kind, change)| (kind, Arc::new(change))).collect();
        // Dropped without the lock.
        let mut evicted = Vec::new();
        self.held.send_modify(|held| {
            held.bytes += added.iter().map(|(_, change)| bytes(change)).sum::<usize>();
            held.entries.extend(added);
            held.version = version.max(held.version);
            while held.bytes > self.limit {
                let Some(oldest) = held.entries.pop_front() else { break };
                held.bytes = held.bytes.saturating_sub(bytes(&oldest.1));
                held.start = oldest.1.object.version;
                evicted.push(oldest);
            }
        });
    }

    /// Forgets all changes and moves on to a version, if that is newer. Says whether there were any.
    pub fn skip(&self, version: u64) -> bool {
        let mut forgotten = VecDeque::new();
        self.held.send_if_modified(|held| {
            let newer = version > held.version;
            held.version = version.max(held.version);
            (held.start, held.bytes) = (held.version, 0);
            forgotten = std::mem::take(&mut held.entries);
            newer
        });
        !forgotten.is_empty()
    }

    /// Lets go of those who wait.
    pub fn close(&self) {
        self.held.send_modify(|held| held.closed = true);
    }

    /// Whether there will be further changes.
    ///
    /// # Errors
    /// 503 once it is closed.
    pub fn check(&self) -> Result<()> {
        match self.held.borrow().closed {
            false => Ok(()),
            true => Err(Status::unavailable("the store is closed: the program is stopping", RETRY_SECONDS)),
        }
    }

    /// Whether somebody waits for changes.
    #[must_use]
    pub fn is_awaited(&self) -> bool {
        self.held.receiver_count() > 0
    }

    /// Waits until there is a change of any kind after a version.
    ///
    /// # Errors
    /// 503 once it is closed.
    pub async fn wait(&self, after: u64) -> Result<()> {
        let mut receiver = self.held.subscribe();
        // The sender lives as long as the ring.
        let _ = receiver.wait_for(|held| held.closed || held.version > after).await;
        self.check()
    }

    /// The changes of some kinds after a version, of a long row the first ones; nothing if changes after it have been
    /// forgotten.
    pub fn after(&self, after: u64, wanted: impl Fn(&K) -> bool) -> Option<Batch> {
        let held = self.held.borrow();
        if after < held.start {
            return None;
        }
        let first = held.entries.partition_point(|(_, change)| change.object.version <= after);
        let found = held.entries.range(first..).filter(|(kind, _)| wanted(kind)).take(MAX_BATCH);
        let changes: Vec<_> = found.map(|(_, change)| Arc::clone(change)).collect();
        let version = match changes.last() {
            Some(last) if changes.len() == MAX_BATCH => last.object.version,
            _ => held.version.max(after),
        };
        Some(Batch { changes, version })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{ChangeType, Stored};
    use std::sync::OnceLock;

    fn change(kind: &'static str, version: u64, bytes: usize) -> (&'static str, Change) {
        let object = Stored { version, json: "x".repeat(bytes), ..Stored::default() };
        (kind, Change { kind: ChangeType::Added, object, previous: None, line: OnceLock::new() })
    }

    fn ring(limit: usize) -> Ring<&'static str> {
        Ring::new(limit, 100)
    }

    /// Of a kind after a version: the versions in the batch, and its own.
    fn after(ring: &Ring<&'static str>, kind: &str, version: u64) -> Option<(Vec<u64>, u64)> {
        let batch = ring.after(version, |of| *of == kind)?;
        Some((batch.changes.iter().map(|change| change.object.version).collect(), batch.version))
    }

    #[test]
    fn a_batch_has_the_changes_of_its_kind_and_moves_on_past_the_others() {
        let ring = ring(1 << 20);
        ring.push([change("A", 101, 5), change("B", 102, 5), change("A", 103, 5)], 103);
        assert_eq!(after(&ring, "A", 100), Some((vec![101, 103], 103)));
        assert_eq!(after(&ring, "A", 101), Some((vec![103], 103)));
        assert_eq!(after(&ring, "B", 100), Some((vec![102], 103)));
        assert_eq!(after(&ring, "C", 100), Some((vec![], 103)));
    }

    #[test]
    fn who_watches_shares_one_copy() {
        let ring = ring(1 << 20);
        ring.push([change("A", 101, 5)], 101);
        let all = || ring.after(100, |_| true).unwrap().changes;
        assert!(Arc::ptr_eq(&all()[0], &all()[0]));
    }

    #[test]
    fn what_was_before_the_ring_or_fell_out_of_it_is_not_answered() {
        let ring = ring(2000);
        assert!(after(&ring, "A", 99).is_none() && after(&ring, "A", 100).is_some());
        for version in 101..=120 {
            ring.push([change("A", version, 200)], version);
            assert!(ring.held.borrow().bytes <= 2000);
        }
        assert_eq!(after(&ring, "A", 116), None);
        assert_eq!(after(&ring, "A", 117), Some((vec![118, 119, 120], 120)));
        // One change that is larger than the whole ring.
        ring.push([change("A", 121, 5000)], 121);
        assert_eq!(after(&ring, "A", 120), None);
        assert_eq!(after(&ring, "A", 121), Some((vec![], 121)));
    }

    #[test]
    fn what_is_skipped_is_forgotten() {
        let ring = ring(1 << 20);
        assert!(!ring.skip(105), "nothing was there");
        ring.push([change("A", 106, 5)], 106);
        assert!(ring.skip(0));
        assert_eq!((after(&ring, "A", 105), after(&ring, "A", 106)), (None, Some((vec![], 106))));
        assert!(!ring.skip(130));
        assert_eq!((after(&ring, "A", 129), after(&ring, "A", 130)), (None, Some((vec![], 130))));
    }

    #[test]
    fn a_long_way_is_gone_in_batches() {
        let ring = ring(16 << 20);
        let last = 100 + 3 * MAX_BATCH as u64;
        ring.push((101..=last).map(|version| change("A", version, 2)), last);
        let (mut at, mut seen) = (100, 0);
        while at < last {
            let (versions, version) = after(&ring, "A", at).unwrap();
            assert!(versions.len() <= MAX_BATCH && version > at);
            seen += versions.len();
            at = version;
        }
        assert_eq!(seen, 3 * MAX_BATCH);
    }

    #[tokio::test]
    async fn waiting_ends_with_a_newer_version_or_when_it_is_closed() {
        let ring = ring(1 << 20);
        ring.wait(99).await.unwrap();
        let pushed = async {
            assert!(ring.is_awaited());
            ring.push([], 101);
        };
        let (waited, ()) = tokio::join!(ring.wait(100), pushed);
        waited.unwrap();
        assert!(!ring.is_awaited());
        let (waited, ()) = tokio::join!(ring.wait(500), async { ring.close() });
        assert_eq!(waited.unwrap_err().code, 503);
        assert_eq!(ring.check().unwrap_err().code, 503);
    }
}
