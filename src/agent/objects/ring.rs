//! The last changes of one sequence, in memory, for those who watch it. Bounded in bytes; filled only while
//! somebody has listed or watched lately: otherwise its start just moves on with each commit.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::watch;

use crate::api::{Batch, Change};
use crate::object::status::Result;
use crate::object::{Resource, Status};

use super::{RETRY_SECONDS, expired};

/// What an entry weighs beside its texts, in bytes.
const ENTRY_BYTES: usize = 200;

/// The last changes of one sequence of versions.
#[derive(Debug)]
pub(super) struct Ring {
    /// Bytes that are kept at most.
    limit: usize,
    /// How long changes are noted after somebody has asked.
    keep: Duration,
    origin: Instant,
    /// When somebody has last asked, in milliseconds after `origin` and one; zero for never.
    asked: AtomicU64,
    /// Those who wait for changes.
    waiting: AtomicUsize,
    held: Mutex<Held>,
    moved: watch::Sender<()>,
}

#[derive(Debug)]
struct Held {
    /// All changes after this version are in `entries`.
    start: u64,
    /// The newest version.
    version: u64,
    bytes: usize,
    entries: VecDeque<Entry>,
    closed: bool,
}

/// A change and the kind that it is of.
#[derive(Debug)]
pub(super) struct Entry {
    pub(super) resource: Arc<Resource>,
    pub(super) change: Arc<Change>,
}

impl Entry {
    fn bytes(&self) -> usize {
        let Change { object, previous, .. } = &*self.change;
        ENTRY_BYTES + object.json.len() + previous.as_ref().map_or(0, String::len)
    }
}

impl Ring {
    pub(super) fn new(limit: usize, keep: Duration, version: u64) -> Self {
        let held = Held { start: version, version, bytes: 0, entries: VecDeque::new(), closed: false };
        Self {
            limit,
            keep,
            origin: Instant::now(),
            asked: AtomicU64::new(0),
            waiting: AtomicUsize::new(0),
            held: Mutex::new(held),
            moved: watch::Sender::new(()),
        }
    }

    fn held(&self) -> MutexGuard<'_, Held> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn clock(&self) -> u64 {
        u64::try_from(self.origin.elapsed().as_millis()).unwrap_or(u64::MAX - 1) + 1
    }

    /// Whether changes are noted.
    pub(super) fn is_wanted(&self) -> bool {
        let asked = self.asked.load(Ordering::Acquire);
        let since = Duration::from_millis(self.clock().saturating_sub(asked));
        self.waiting.load(Ordering::Acquire) > 0 || (asked > 0 && since < self.keep)
    }

    /// Notes that somebody has asked; whether nobody had before.
    pub(super) fn interest(&self) -> bool {
        let news = !self.is_wanted();
        self.asked.store(self.clock(), Ordering::Release);
        news
    }

    pub(super) fn limit(&self) -> usize {
        self.limit
    }

    /// Adds the changes of a commit, all that there were, and makes its version the newest one.
    pub(super) fn push(&self, entries: Vec<Entry>, version: u64) {
        {
            let mut held = self.held();
            for entry in entries {
                held.bytes += entry.bytes();
                held.entries.push_back(entry);
            }
            held.version = version.max(held.version);
            while held.bytes > self.limit {
                let Some(oldest) = held.entries.pop_front() else { break };
                held.bytes = held.bytes.saturating_sub(oldest.bytes());
                held.start = oldest.change.object.version;
            }
        }
        self.moved.send_replace(());
    }

    /// Moves on to a version without knowing the changes up to it.
    pub(super) fn skip(&self, version: u64) {
        {
            let mut held = self.held();
            if version <= held.version && held.entries.is_empty() {
                return;
            }
            let version = version.max(held.version);
            (held.version, held.start, held.bytes) = (version, version, 0);
            held.entries = VecDeque::new();
        }
        self.moved.send_replace(());
    }

    /// Forgets what nobody has asked for in a while; whether there was something.
    pub(super) fn tidy(&self) -> bool {
        let mut held = self.held();
        if self.is_wanted() || held.entries.is_empty() {
            return false;
        }
        (held.start, held.bytes, held.entries) = (held.version, 0, VecDeque::new());
        true
    }

    /// Lets go of those who wait.
    pub(super) fn close(&self) {
        self.held().closed = true;
        self.moved.send_replace(());
    }

    /// Changes of a kind after a version; waits until there is one of any kind.
    pub(super) async fn changes(&self, resource: &Resource, after: u64) -> Result<Batch> {
        self.interest();
        let mut moved = self.moved.subscribe();
        let _waiting = Waiting::new(&self.waiting);
        loop {
            moved.mark_unchanged();
            if let Some(batch) = self.changes_now(resource, after)? {
                return Ok(batch);
            }
            if moved.changed().await.is_err() {
                return Err(stopping());
            }
        }
    }

    fn changes_now(&self, resource: &Resource, after: u64) -> Result<Option<Batch>> {
        let held = self.held();
        if held.closed {
            return Err(stopping());
        }
        if after < held.start {
            return Err(expired(after));
        }
        if held.version <= after {
            return Ok(None);
        }
        let first = held.entries.partition_point(|entry| entry.change.object.version <= after);
        let wanted = |entry: &&Entry| *entry.resource == *resource;
        let changes = held.entries.range(first..).filter(wanted).map(|entry| entry.change.clone()).collect();
        Ok(Some(Batch { changes, version: held.version }))
    }
}

fn stopping() -> Status {
    Status::unavailable("the agent is stopping", RETRY_SECONDS)
}

/// Counts one who waits, for as long as it does.
struct Waiting<'a>(&'a AtomicUsize);

impl<'a> Waiting<'a> {
    fn new(count: &'a AtomicUsize) -> Self {
        count.fetch_add(1, Ordering::AcqRel);
        Self(count)
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::AcqRel);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::{ChangeType, Stored};
    use crate::object::kinds;
    use std::sync::OnceLock;

    const LONG: Duration = Duration::from_secs(3600);

    fn resource(word: &str) -> Arc<Resource> {
        Arc::new(kinds::by_word(word).unwrap().resource())
    }

    fn entry(word: &str, version: u64, bytes: usize) -> Entry {
        let object = Stored { version, json: "x".repeat(bytes), ..Stored::default() };
        let change = Change { kind: ChangeType::Added, object, previous: None, line: OnceLock::new() };
        Entry { resource: resource(word), change: Arc::new(change) }
    }

    fn versions(batch: &Batch) -> Vec<u64> {
        batch.changes.iter().map(|change| change.object.version).collect()
    }

    #[tokio::test]
    async fn changes_are_given_by_kind_and_the_version_moves_on_without_any() {
        let ring = Ring::new(10_000, LONG, 100);
        ring.push(vec![entry("cm", 101, 5), entry("secrets", 102, 5), entry("cm", 103, 5)], 103);
        let batch = ring.changes(&resource("cm"), 100).await.unwrap();
        assert_eq!((versions(&batch), batch.version), (vec![101, 103], 103));
        let batch = ring.changes(&resource("cm"), 101).await.unwrap();
        assert_eq!(versions(&batch), [103]);
        let batch = ring.changes(&resource("pods"), 100).await.unwrap();
        assert_eq!((versions(&batch), batch.version), (vec![], 103));
    }

    #[tokio::test]
    async fn what_is_older_than_the_ring_has_expired() {
        let ring = Ring::new(1000, LONG, 100);
        let cm = resource("cm");
        assert_eq!(ring.changes(&cm, 99).await.unwrap_err().code, 410);
        for version in 101..=120 {
            ring.push(vec![entry("cm", version, 100)], version);
        }
        assert!(ring.held().bytes <= 1000);
        assert_eq!(ring.changes(&cm, 116).await.unwrap_err().code, 410);
        assert_eq!(versions(&ring.changes(&cm, 117).await.unwrap()), [118, 119, 120]);
        // One change that is larger than the whole ring.
        ring.push(vec![entry("cm", 121, 5000)], 121);
        assert_eq!(ring.changes(&cm, 120).await.unwrap_err().code, 410);
        ring.skip(130);
        assert_eq!(ring.changes(&cm, 129).await.unwrap_err().code, 410);
    }

    #[tokio::test]
    async fn who_is_up_to_date_waits_for_the_next_change() {
        let ring = Arc::new(Ring::new(1000, Duration::ZERO, 7));
        assert!(!ring.is_wanted());
        let (waiter, cm) = (ring.clone(), resource("cm"));
        let waiting = tokio::spawn(async move { waiter.changes(&cm, 7).await });
        while ring.waiting.load(Ordering::Acquire) == 0 {
            tokio::task::yield_now().await;
        }
        assert!(ring.is_wanted(), "somebody waits");
        ring.push(vec![entry("cm", 8, 1)], 8);
        assert_eq!(versions(&waiting.await.unwrap().unwrap()), [8]);
        assert!(!ring.is_wanted());
    }

    #[tokio::test]
    async fn a_closed_ring_lets_go_of_those_who_wait() {
        let ring = Arc::new(Ring::new(1000, LONG, 7));
        let (waiter, cm) = (ring.clone(), resource("cm"));
        let waiting = tokio::spawn(async move { waiter.changes(&cm, 7).await });
        tokio::task::yield_now().await;
        ring.close();
        assert_eq!(waiting.await.unwrap().unwrap_err().code, 503);
    }

    #[tokio::test]
    async fn what_nobody_wants_any_more_is_forgotten() {
        let cm = resource("cm");
        for (keep, forgotten) in [(LONG, false), (Duration::ZERO, true)] {
            let ring = Ring::new(1000, keep, 7);
            assert!(!ring.tidy(), "nothing is there");
            ring.interest();
            ring.push(vec![entry("cm", 8, 1)], 8);
            assert_eq!(ring.tidy(), forgotten);
            assert_eq!(ring.changes(&cm, 7).await.is_err(), forgotten);
        }
    }

    #[test]
    fn interest_is_news_once() {
        let ring = Ring::new(1000, LONG, 0);
        assert!(ring.interest());
        assert!(!ring.interest());
        assert!(ring.is_wanted());
    }
}
