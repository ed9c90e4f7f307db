//! Watch cache: the newest changes of one sequence of versions, one copy for all watches. The owner
//! decides which changes enter it, and how older ones are served.

use std::collections::VecDeque;
use std::fmt;
use std::sync::Arc;

use tokio::sync::watch;

use super::storage::{Batch, Change};
use edgesync_object::Status;
use edgesync_object::status::Result;

/// Maximum number of changes in one batch.
pub const MAX_BATCH: usize = 500;
/// Estimated overhead of a change beside its texts, in bytes.
const CHANGE_BYTES: usize = 256;
/// Seconds after which a client may retry once the cache is closed.
const RETRY_SECONDS: u32 = 5;

/// Cache of changes, each with its kind `K`, and a notification for watches.
#[derive(Debug)]
pub struct WatchCache<K> {
    /// Limit of the cached texts in bytes, the encoded watch line of each included.
    limit: usize,
    held: watch::Sender<Held<K>>,
}

struct Held<K> {
    /// Every change after this version that was pushed is here.
    start: u64,
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
    // Once its watch line has been encoded, the object is held twice.
    CHANGE_BYTES + 2 * change.object.json.len() + change.previous.as_ref().map_or(0, String::len)
}

impl<K> WatchCache<K> {
    /// Creates an empty cache of at most `limit` bytes at `version`.
    #[must_use]
    pub fn new(limit: usize, version: u64) -> Self {
        let held = Held { start: version, version, bytes: 0, entries: VecDeque::new(), closed: false };
        Self { limit, held: watch::Sender::new(held) }
    }

    /// Returns the limit in bytes.
    #[must_use]
    pub fn limit(&self) -> usize {
        self.limit
    }

    /// Returns the newest version.
    #[must_use]
    pub fn version(&self) -> u64 {
        self.held.borrow().version
    }

    /// Appends the changes of a commit, in ascending order of versions, and moves on to its
    /// version. Evicts the oldest changes beyond the limit.
    pub fn push(&self, changes: impl IntoIterator<Item = (K, Change)>, version: u64) {
        self.push_all(&mut changes.into_iter(), version);
    }

    // Not generic, to be compiled once.
    fn push_all(&self, changes: &mut dyn Iterator<Item = (K, Change)>, version: u64) {
        let added: Vec<_> = changes.map(|(kind, change)| (kind, Arc::new(change))).collect();
        // Dropped after the lock is released.
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

    /// Drops all changes and moves on to `version` if it is newer. Returns whether there were any.
    pub fn skip(&self, version: u64) -> bool {
        let mut dropped = VecDeque::new();
        self.held.send_if_modified(|held| {
            let newer = version > held.version;
            held.version = version.max(held.version);
            (held.start, held.bytes) = (held.version, 0);
            dropped = std::mem::take(&mut held.entries);
            newer
        });
        !dropped.is_empty()
    }

    /// Closes the cache and wakes all waiting watches.
    pub fn close(&self) {
        self.held.send_modify(|held| held.closed = true);
    }

    /// Checks that the cache is open.
    ///
    /// # Errors
    /// 503 once it is closed.
    pub fn check(&self) -> Result<()> {
        match self.held.borrow().closed {
            false => Ok(()),
            true => {
                Err(Status::unavailable("the store is closed: the server is shutting down", RETRY_SECONDS))
            }
        }
    }

    /// Returns whether a watch is waiting for changes.
    #[must_use]
    pub fn is_awaited(&self) -> bool {
        self.held.receiver_count() > 0
    }

    /// Waits for a change of any kind after a version.
    ///
    /// # Errors
    /// 503 once it is closed.
    pub async fn wait(&self, after: u64) -> Result<()> {
        let mut receiver = self.held.subscribe();
        // The sender lives in the cache, so it cannot be gone.
        let _ = receiver.wait_for(|held| held.closed || held.version > after).await;
        self.check()
    }

    /// Returns the first [`MAX_BATCH`] changes after a version whose kind `wanted` accepts; `None`
    /// if changes after it have been evicted.
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

    fn cache(limit: usize) -> WatchCache<&'static str> {
        WatchCache::new(limit, 100)
    }

    /// Returns the versions in the batch after a version, and the batch's own version.
    fn after(cache: &WatchCache<&'static str>, kind: &str, version: u64) -> Option<(Vec<u64>, u64)> {
        let batch = cache.after(version, |of| *of == kind)?;
        Some((batch.changes.iter().map(|change| change.object.version).collect(), batch.version))
    }

    #[test]
    fn batch_has_its_kind_and_moves_on_past_the_others() {
        let cache = cache(1 << 20);
        cache.push([change("A", 101, 5), change("B", 102, 5), change("A", 103, 5)], 103);
        assert_eq!(after(&cache, "A", 100), Some((vec![101, 103], 103)));
        assert_eq!(after(&cache, "A", 101), Some((vec![103], 103)));
        assert_eq!(after(&cache, "B", 100), Some((vec![102], 103)));
        assert_eq!(after(&cache, "C", 100), Some((vec![], 103)));
    }

    #[test]
    fn watches_share_one_copy_of_a_change() {
        let cache = cache(1 << 20);
        cache.push([change("A", 101, 5)], 101);
        let all = || cache.after(100, |_| true).unwrap().changes;
        assert!(Arc::ptr_eq(&all()[0], &all()[0]));
    }

    #[test]
    fn evicted_or_earlier_changes_give_no_batch() {
        let cache = cache(2000);
        assert!(after(&cache, "A", 99).is_none() && after(&cache, "A", 100).is_some());
        for version in 101..=120 {
            cache.push([change("A", version, 200)], version);
            assert!(cache.held.borrow().bytes <= 2000);
        }
        assert_eq!(after(&cache, "A", 116), None);
        assert_eq!(after(&cache, "A", 117), Some((vec![118, 119, 120], 120)));
        // One change larger than the whole cache.
        cache.push([change("A", 121, 5000)], 121);
        assert_eq!(after(&cache, "A", 120), None);
        assert_eq!(after(&cache, "A", 121), Some((vec![], 121)));
    }

    #[test]
    fn skip_drops_all_changes() {
        let cache = cache(1 << 20);
        assert!(!cache.skip(105), "nothing was there");
        cache.push([change("A", 106, 5)], 106);
        assert!(cache.skip(0));
        assert_eq!((after(&cache, "A", 105), after(&cache, "A", 106)), (None, Some((vec![], 106))));
        assert!(!cache.skip(130));
        assert_eq!((after(&cache, "A", 129), after(&cache, "A", 130)), (None, Some((vec![], 130))));
    }

    #[test]
    fn long_catch_up_is_returned_in_batches() {
        let cache = cache(16 << 20);
        let last = 100 + 3 * MAX_BATCH as u64;
        cache.push((101..=last).map(|version| change("A", version, 2)), last);
        let (mut at, mut seen) = (100, 0);
        while at < last {
            let (versions, version) = after(&cache, "A", at).unwrap();
            assert!(versions.len() <= MAX_BATCH && version > at);
            seen += versions.len();
            at = version;
        }
        assert_eq!(seen, 3 * MAX_BATCH);
    }

    #[tokio::test]
    async fn wait_ends_at_a_newer_version_or_when_closed() {
        let cache = cache(1 << 20);
        cache.wait(99).await.unwrap();
        let pushed = async {
            assert!(cache.is_awaited());
            cache.push([], 101);
        };
        let (waited, ()) = tokio::join!(cache.wait(100), pushed);
        waited.unwrap();
        assert!(!cache.is_awaited());
        let (waited, ()) = tokio::join!(cache.wait(500), async { cache.close() });
        assert_eq!(waited.unwrap_err().code, 503);
        assert_eq!(cache.check().unwrap_err().code, 503);
    }
}
