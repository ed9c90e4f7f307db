//! The last changes of one sequence, recorded only after a recent list or watch. Otherwise each
//! commit just moves the start of the ring.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use edgesync_api::{Batch, Change, WatchCache};
use edgesync_object::Resource;
use edgesync_object::status::Result;

use super::expired;

/// A change and its kind.
pub(super) type Entry = (Arc<Resource>, Change);

/// A ring, and the time of the last request for its changes.
#[derive(Debug)]
pub(super) struct LazyRing {
    ring: WatchCache<Arc<Resource>>,
    /// Time for which changes are recorded after a request.
    keep: Duration,
    asked: Mutex<Option<Instant>>,
}

impl LazyRing {
    /// Creates a ring of at most `limit` bytes.
    pub(super) fn new(limit: usize, keep: Duration, version: u64) -> Self {
        Self { ring: WatchCache::new(limit, version), keep, asked: Mutex::default() }
    }

    fn is_wanted(&self) -> bool {
        let asked = *self.asked.lock().unwrap_or_else(PoisonError::into_inner);
        self.ring.is_awaited() || asked.is_some_and(|asked| asked.elapsed() < self.keep)
    }

    /// Returns how many bytes of changes to record.
    pub(super) fn wanted_bytes(&self) -> usize {
        if self.is_wanted() { self.ring.limit() } else { 0 }
    }

    /// Records a request. Returns whether it is the first one in a while.
    pub(super) fn record_interest(&self) -> bool {
        let news = !self.is_wanted();
        *self.asked.lock().unwrap_or_else(PoisonError::into_inner) = Some(Instant::now());
        news
    }

    /// Advances to a commit; records its complete changes if there was a recent request.
    pub(super) fn note<I: IntoIterator<Item = Entry>>(&self, version: u64, changes: impl FnOnce() -> I) {
        if self.is_wanted() {
            self.ring.push(changes(), version);
        } else {
            self.skip(version);
        }
    }

    /// Advances to a version, without its changes.
    pub(super) fn skip(&self, version: u64) {
        self.ring.skip(version);
    }

    /// Clears the ring without recent requests. Returns whether it held anything.
    pub(super) fn tidy(&self) -> bool {
        !self.is_wanted() && self.ring.skip(0)
    }

    /// Fails if no further changes can follow.
    pub(super) fn check(&self) -> Result<()> {
        self.ring.check()
    }

    pub(super) fn version(&self) -> u64 {
        self.ring.version()
    }

    /// Ends all waits for changes: the store closes.
    pub(super) fn close(&self) {
        self.ring.close();
    }

    /// Returns the changes of a kind after a version; waits until there is one of any kind.
    pub(super) async fn changes(&self, resource: &Resource, after: u64) -> Result<Batch> {
        self.record_interest();
        self.ring.wait(after).await?;
        self.ring.after(after, |of| **of == *resource).ok_or_else(|| expired(after))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use edgesync_api::{ChangeType, Stored};
    use edgesync_object::kinds;
    use std::sync::OnceLock;

    const LONG: Duration = Duration::from_secs(3600);

    fn resource() -> Arc<Resource> {
        Arc::new(kinds::by_word("cm").unwrap().resource())
    }

    fn entry(version: u64) -> Entry {
        let object = Stored { version, ..Stored::default() };
        (resource(), Change { kind: ChangeType::Added, object, previous: None, line: OnceLock::new() })
    }

    #[tokio::test]
    async fn a_current_reader_waits_and_a_late_one_expires() {
        let (ring, cm) = (LazyRing::new(1000, Duration::ZERO, 7), resource());
        assert_eq!(ring.wanted_bytes(), 0);
        let pushed = async {
            assert_eq!(ring.wanted_bytes(), 1000, "somebody waits");
            ring.note(8, || [entry(8)]);
        };
        let (batch, ()) = tokio::join!(ring.changes(&cm, 7), pushed);
        assert_eq!(batch.unwrap().changes.len(), 1);
        assert_eq!(ring.wanted_bytes(), 0);
        ring.note(9, || -> [Entry; 0] { unreachable!("nobody asks") });
        assert_eq!(ring.changes(&cm, 8).await.unwrap_err().code, 410);
        let (waited, ()) = tokio::join!(ring.changes(&cm, 9), async { ring.close() });
        assert_eq!(waited.unwrap_err().code, 503);
    }

    #[tokio::test]
    async fn changes_without_readers_are_dropped() {
        let cm = resource();
        let ring = LazyRing::new(1000, LONG, 7);
        assert!(ring.record_interest() && !ring.record_interest(), "interest is news once");
        assert!(!ring.tidy(), "nothing is there");
        ring.note(8, || [entry(8)]);
        assert!(!ring.tidy());
        assert_eq!(ring.changes(&cm, 7).await.unwrap().changes.len(), 1);
        let ring = LazyRing { keep: Duration::ZERO, ..ring };
        assert!(ring.tidy());
        assert_eq!(ring.changes(&cm, 7).await.unwrap_err().code, 410);
    }
}
