//! Notifies a listener of commits, which keeps the changes for watches. Depends only on the types
//! of the store.
//!
//! Bodies are read and kept only if the listener wants them. Otherwise a commit costs one query and
//! one notification without content.

use std::fmt;

use super::Stored;
use super::types::LocalObject;

/// The newest versions of both sequences.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Versions {
    /// Of synced objects: the base of the epoch plus the revision.
    pub objects: u64,
    /// Of local objects, as stored.
    pub local: u64,
}

/// A listener for commits. The writer's thread calls it in the order of commits, so it must not
/// block.
pub trait CommitListener: Send + Sync + fmt::Debug {
    /// Returns how many bytes of changes it wants of the next commit; zero without watches.
    fn appetite(&self) -> usize;

    /// Receives a commit, or a loss.
    fn committed(&self, commit: CommittedChanges);

    /// Called when the store has closed.
    fn closed(&self);
}

/// A commit. Dropping it costs nothing.
#[derive(Debug)]
pub struct CommittedChanges {
    /// Versions after the commit.
    pub versions: Versions,
    /// Changes of synced objects.
    pub objects: Part<Transition>,
    /// Changes of local objects.
    pub local: Part<LocalTransition>,
}

/// The changes of one sequence.
#[derive(Debug)]
pub enum Part<T> {
    /// The commit changed none.
    Same,
    /// The complete changes, in order.
    Changed(Vec<T>),
    /// Changes that were not recorded: watches must relist.
    Unknown,
}

/// A change of a synced object. The API versions of both sides may differ.
#[derive(Debug)]
pub struct Transition {
    /// Version of the change.
    pub version: u64,
    /// The object before; `None` if it is new.
    pub before: Option<Stored>,
    /// The object after; `None` if it was deleted.
    pub after: Option<Stored>,
}

/// A change of a local object.
#[derive(Debug)]
pub struct LocalTransition {
    /// Version of the change.
    pub version: u64,
    /// The object before; `None` if it is new.
    pub before: Option<LocalObject>,
    /// The object after; `None` if it was deleted.
    pub after: Option<LocalObject>,
}

/// Bytes of a change beside its bodies.
const CHANGE_BYTES: usize = 256;

/// Records the changes of a group commit while it runs.
#[derive(Debug, Default)]
pub(super) struct Recorder {
    /// Remaining bytes; `None` while nothing is recorded.
    remaining: Option<usize>,
    objects: Vec<Transition>,
    local: Vec<LocalTransition>,
}

impl Recorder {
    /// Starts to record up to so many bytes; records nothing for zero.
    pub(super) fn begin(&mut self, remaining: usize) {
        self.forget();
        self.remaining = (remaining > 0).then_some(remaining);
    }

    /// Returns whether changes are recorded.
    pub(super) fn is_on(&self) -> bool {
        self.remaining.is_some()
    }

    /// Stops recording and drops the changes, which would be incomplete.
    pub(super) fn forget(&mut self) {
        *self = Self::default();
    }

    fn reserve(&mut self, bytes: usize) -> bool {
        self.remaining =
            self.remaining.and_then(|remaining| remaining.checked_sub(bytes.saturating_add(CHANGE_BYTES)));
        if self.remaining.is_none() {
            self.forget();
        }
        self.is_on()
    }

    /// Records a change of a synced object.
    pub(super) fn object(&mut self, change: Transition) {
        let bytes = [&change.before, &change.after].into_iter().flatten().map(|side| side.body.len()).sum();
        if self.reserve(bytes) {
            self.objects.push(change);
        }
    }

    /// Records a change of a local object.
    pub(super) fn local(&mut self, change: LocalTransition) {
        let bytes = [&change.before, &change.after].into_iter().flatten().map(|side| side.body.len()).sum();
        if self.reserve(bytes) {
            self.local.push(change);
        }
    }

    /// Removes changes that were rolled back: all after these versions.
    pub(super) fn cut(&mut self, versions: Versions) {
        self.objects.retain(|change| change.version <= versions.objects);
        self.local.retain(|change| change.version <= versions.local);
    }

    /// Returns the commit between two pairs of versions, for the listener.
    pub(super) fn finish(&mut self, before: Versions, versions: Versions) -> CommittedChanges {
        let Self { remaining, objects, local } = std::mem::take(self);
        CommittedChanges {
            versions,
            objects: part(before.objects != versions.objects, remaining.map(|_| objects)),
            local: part(before.local != versions.local, remaining.map(|_| local)),
        }
    }
}

fn part<T>(changed: bool, noted: Option<Vec<T>>) -> Part<T> {
    match (changed, noted) {
        (false, _) => Part::Same,
        (true, Some(changes)) => Part::Changed(changes),
        (true, None) => Part::Unknown,
    }
}
