//! The newest changes in memory, one copy for all who watch: of those kinds that somebody has watched.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, OnceLock, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use tokio::sync::watch;

use crate::api::{Batch, Change, ChangeType, Stored};
use crate::object::Status;
use crate::object::status::Result;
use crate::store::cloud::{ChangeKind, KindName, Observer, WatchChange};

/// The most changes in one batch.
pub(super) const MAX_BATCH: usize = 500;
/// What a change takes beside its texts, about.
const CHANGE_BYTES: usize = 256;

/// The bounds of the changes that are kept in memory for watches; older ones are read from the history.
#[derive(Clone, Copy, Debug)]
pub struct RingLimits {
    /// Changes.
    pub changes: usize,
    /// Bytes of their texts, with the line that a watch makes of each.
    pub bytes: usize,
}

impl Default for RingLimits {
    fn default() -> Self {
        Self { changes: 8192, bytes: 16 << 20 }
    }
}

/// The changes and who waits for them. The store's writer fills it after each commit, watches read it.
pub(super) struct Ring {
    limits: RingLimits,
    state: RwLock<State>,
    progress: watch::Sender<Progress>,
}

#[derive(Default)]
struct State {
    /// Every change after this version is here, if its kind is kept for so long.
    start: u64,
    /// The newest version.
    version: u64,
    bytes: usize,
    /// In ascending order of versions.
    changes: VecDeque<Entry>,
    /// The kinds that have been asked for, by group and kind.
    kinds: HashMap<String, HashMap<String, Interest>>,
    kinds_len: usize,
    /// Whether one of them is not kept yet.
    asked: bool,
}

#[derive(Clone, Copy)]
struct Interest {
    number: usize,
    /// Since which version changes are kept; not yet, if absent.
    since: Option<u64>,
}

struct Entry {
    kind: usize,
    bytes: usize,
    change: Arc<Change>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Progress {
    At(u64),
    Closed,
}

impl Ring {
    pub(super) fn new(limits: RingLimits) -> Self {
        Self { limits, state: RwLock::default(), progress: watch::Sender::new(Progress::At(0)) }
    }

    /// Waits until there is a change of any kind after a version.
    pub(super) async fn wait(&self, after: u64) -> Result<()> {
        let ahead = |progress: &Progress| match progress {
            Progress::At(version) => *version > after,
            Progress::Closed => true,
        };
        let mut receiver = self.progress.subscribe();
        // The sender lives as long as the ring.
        let _ = receiver.wait_for(ahead).await;
        self.check()
    }

    /// Whether there will be further changes.
    pub(super) fn check(&self) -> Result<()> {
        match *self.progress.borrow() {
            Progress::At(_) => Ok(()),
            Progress::Closed => Err(Status::unavailable("the store is closed", super::RETRY_SECONDS)),
        }
    }

    /// The changes of a kind after a version; nothing if some of them are here no more or never were. A kind
    /// that is asked for is kept from the next transaction on.
    pub(super) fn after(&self, group: &str, kind: &str, after: u64) -> Option<Batch> {
        let state = self.state();
        let Some(interest) = state.interest(group, kind) else {
            drop(state);
            self.state_mut().ask(group, kind);
            return None;
        };
        if after < state.start || interest.since.is_none_or(|since| after < since) {
            return None;
        }
        let mut batch = Batch { changes: Vec::new(), version: state.version.max(after) };
        let first = state.changes.partition_point(|entry| entry.change.object.version <= after);
        for entry in state.changes.iter().skip(first).filter(|entry| entry.kind == interest.number) {
            batch.changes.push(Arc::clone(&entry.change));
            if batch.changes.len() >= MAX_BATCH {
                batch.version = entry.change.object.version;
                break;
            }
        }
        Some(batch)
    }

    fn state(&self) -> RwLockReadGuard<'_, State> {
        self.state.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn state_mut(&self) -> RwLockWriteGuard<'_, State> {
        self.state.write().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn interest(&self, group: &str, kind: &str) -> Option<Interest> {
        self.kinds.get(group).and_then(|kinds| kinds.get(kind)).copied()
    }

    fn ask(&mut self, group: &str, kind: &str) {
        if self.interest(group, kind).is_none() {
            self.kinds_len += 1;
            let interest = Interest { number: self.kinds_len, since: None };
            self.kinds.entry(group.to_owned()).or_default().insert(kind.to_owned(), interest);
            self.asked = true;
        }
    }

    /// Lets go of the oldest changes beyond the limits; returns them, to be dropped without the lock.
    fn evict(&mut self, limits: &RingLimits) -> Vec<Entry> {
        let mut evicted = Vec::new();
        while self.changes.len() > limits.changes || self.bytes > limits.bytes {
            let Some(entry) = self.changes.pop_front() else { break };
            self.start = entry.change.object.version;
            self.bytes = self.bytes.saturating_sub(entry.bytes);
            evicted.push(entry);
        }
        evicted
    }
}

impl Observer for Ring {
    fn begin(&self, version: u64) {
        let mut state = self.state_mut();
        let old = std::mem::take(&mut state.changes);
        (state.start, state.version, state.bytes) = (version, version, 0);
        drop(state);
        drop(old);
        self.progress.send_replace(Progress::At(version));
    }

    fn attend(&self, version: u64) {
        if !self.state().asked {
            return;
        }
        let mut state = self.state_mut();
        state.asked = false;
        for interest in state.kinds.values_mut().flat_map(HashMap::values_mut) {
            interest.since.get_or_insert(version);
        }
    }

    fn wants(&self, of: &KindName) -> bool {
        self.state().interest(&of.group, &of.kind).is_some_and(|interest| interest.since.is_some())
    }

    fn committed(&self, changes: Vec<WatchChange>, version: u64) {
        let changes: Vec<_> =
            changes.into_iter().map(|change| (Arc::clone(&change.of), Arc::new(shared(change)))).collect();
        let mut state = self.state_mut();
        for (of, change) in changes {
            let Some(Interest { number: kind, .. }) = state.interest(&of.group, &of.kind) else { continue };
            // The object is there a second time once its line has been written.
            let previous = change.previous.as_ref().map_or(0, String::len);
            let bytes = 2 * change.object.json.len() + previous + CHANGE_BYTES;
            state.bytes += bytes;
            state.changes.push_back(Entry { kind, bytes, change });
        }
        state.version = version;
        let evicted = state.evict(&self.limits);
        drop(state);
        drop(evicted);
        self.progress.send_replace(Progress::At(version));
    }

    fn closed(&self) {
        self.progress.send_replace(Progress::Closed);
    }
}

/// A change of the store in the words of the API.
pub(super) fn shared(change: WatchChange) -> Change {
    let WatchChange { kind, version, namespace, name, body, previous, .. } = change;
    let kind = match kind {
        ChangeKind::Added => ChangeType::Added,
        ChangeKind::Modified => ChangeType::Modified,
        ChangeKind::Deleted => ChangeType::Deleted,
    };
    Change { kind, object: Stored { namespace, name, version, json: body }, previous, line: OnceLock::new() }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn change(kind: &str, version: u64, body: &str) -> WatchChange {
        WatchChange {
            kind: ChangeKind::Added,
            of: Arc::new(KindName { group: String::new(), kind: kind.to_owned() }),
            version,
            namespace: "n".to_owned(),
            name: format!("o{version}"),
            body: body.to_owned(),
            previous: None,
        }
    }

    fn ring(changes: usize, bytes: usize) -> Ring {
        let ring = Ring::new(RingLimits { changes, bytes });
        ring.begin(100);
        for kind in ["A", "B", "C"] {
            assert!(ring.after("", kind, 100).is_none());
        }
        ring.attend(100);
        ring
    }

    fn versions(batch: &Batch) -> Vec<u64> {
        batch.changes.iter().map(|change| change.object.version).collect()
    }

    #[test]
    fn a_batch_has_the_changes_of_its_kind_and_moves_on_past_the_others() {
        let ring = ring(100, 1 << 20);
        ring.committed(vec![change("A", 101, "{}"), change("B", 102, "{}"), change("A", 103, "{}")], 103);
        let batch = ring.after("", "A", 100).unwrap();
        assert_eq!((versions(&batch), batch.version), (vec![101, 103], 103));
        let batch = ring.after("", "A", 101).unwrap();
        assert_eq!((versions(&batch), batch.version), (vec![103], 103));
        assert_eq!(versions(&ring.after("", "B", 100).unwrap()), [102]);
        let batch = ring.after("", "C", 100).unwrap();
        assert_eq!((versions(&batch), batch.version), (vec![], 103));
    }

    #[test]
    fn a_kind_is_kept_once_somebody_has_asked_for_it_and_from_the_next_transaction_on() {
        let ring = ring(100, 1 << 20);
        let of = KindName { group: String::new(), kind: "D".to_owned() };
        assert!(!ring.wants(&of));
        ring.committed(vec![change("A", 101, "{}")], 101);
        assert!(ring.after("", "D", 101).is_none() && !ring.wants(&of));
        ring.committed(vec![change("A", 102, "{}")], 102);
        ring.attend(102);
        assert!(ring.wants(&of) && ring.after("", "D", 101).is_none());
        ring.committed(vec![change("D", 103, "{}")], 103);
        assert_eq!(versions(&ring.after("", "D", 102).unwrap()), [103]);
    }

    #[test]
    fn who_watches_shares_one_copy() {
        let ring = ring(100, 1 << 20);
        ring.committed(vec![change("A", 101, "{}")], 101);
        let (one, other) = (ring.after("", "A", 100).unwrap(), ring.after("", "A", 100).unwrap());
        assert!(Arc::ptr_eq(&one.changes[0], &other.changes[0]));
    }

    #[test]
    fn what_was_before_the_ring_or_fell_out_of_it_is_not_answered() {
        let by_count = ring(2, 1 << 20);
        assert!(by_count.after("", "A", 99).is_none() && by_count.after("", "A", 100).is_some());
        by_count.committed((101..=103).map(|version| change("A", version, "{}")).collect(), 103);
        assert!(by_count.after("", "A", 100).is_none());
        assert_eq!(versions(&by_count.after("", "A", 101).unwrap()), [102, 103]);
        let by_bytes = ring(100, 1000);
        by_bytes.committed(vec![change("A", 101, &"x".repeat(1000))], 101);
        assert!(by_bytes.after("", "A", 100).is_none());
        assert_eq!(versions(&by_bytes.after("", "A", 101).unwrap()), [0u64; 0]);
    }

    #[test]
    fn a_long_way_is_gone_in_batches() {
        let ring = ring(10_000, 16 << 20);
        let last = 100 + 3 * MAX_BATCH as u64;
        ring.committed((101..=last).map(|version| change("A", version, "{}")).collect(), last);
        let (mut at, mut seen) = (100, 0);
        while at < last {
            let batch = ring.after("", "A", at).unwrap();
            assert!(batch.changes.len() <= MAX_BATCH && batch.version > at);
            seen += batch.changes.len();
            at = batch.version;
        }
        assert_eq!(seen, 3 * MAX_BATCH);
    }

    #[tokio::test]
    async fn waiting_ends_with_a_newer_version_or_with_the_store() {
        let ring = ring(10, 1 << 20);
        ring.wait(99).await.unwrap();
        let (waited, ()) = tokio::join!(ring.wait(100), async { ring.committed(Vec::new(), 101) });
        waited.unwrap();
        let (waited, ()) = tokio::join!(ring.wait(500), async { ring.closed() });
        assert_eq!(waited.unwrap_err().code, 503);
        assert_eq!(ring.check().unwrap_err().code, 503);
    }
}
