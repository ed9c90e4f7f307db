//! Telling of what was committed, to one who keeps it for those who watch. Depends on nothing but the
//! types of the store.
//!
//! Bodies are only read and kept when the observer wants them; without, a commit costs one question and
//! one message without content.

use std::fmt;

use super::Stored;
use super::types::LocalObject;

/// The newest versions of both sequences.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Versions {
    /// Of synced objects: the base of the epoch and the revision.
    pub objects: u64,
    /// Of the objects that were made on this node.
    pub local: u64,
}

/// One who is told of each commit, in order, by the writer's thread: it must not wait.
pub trait Observer: Send + Sync + fmt::Debug {
    /// How many bytes of changes are wanted of the next commit; zero if nobody watches.
    fn appetite(&self) -> usize;

    /// A commit, or a loss.
    fn committed(&self, told: Told);

    /// The store has been closed.
    fn closed(&self);
}

/// What a commit was. Dropping it costs nothing.
#[derive(Debug)]
pub struct Told {
    /// The versions after it.
    pub versions: Versions,
    /// What has become of synced objects.
    pub objects: Part<Transition>,
    /// What has become of local ones.
    pub local: Part<LocalTransition>,
}

/// The changes of one sequence.
#[derive(Debug)]
pub enum Part<T> {
    /// There are none.
    Same,
    /// These, in order, and no others.
    Changed(Vec<T>),
    /// There were some, not noted: whoever must know reads anew.
    Unknown,
}

/// A change of a synced object. If both sides are there they may be of different API versions.
#[derive(Debug)]
pub struct Transition {
    /// The version that the change has.
    pub version: u64,
    /// The object before; none if it is new.
    pub before: Option<Stored>,
    /// The object after; none if it was removed.
    pub after: Option<Stored>,
}

/// A change of a local object.
#[derive(Debug)]
pub struct LocalTransition {
    /// The version that the change has.
    pub version: u64,
    /// The object before; none if it is new.
    pub before: Option<LocalObject>,
    /// The object after; none if it was removed.
    pub after: Option<LocalObject>,
}

/// What a change weighs beside its bodies, in bytes.
const CHANGE_BYTES: usize = 256;

/// Notes the changes of a group while it runs.
#[derive(Debug, Default)]
pub(super) struct Recorder {
    /// Bytes that may still be noted; none if nothing is noted.
    room: Option<usize>,
    objects: Vec<Transition>,
    local: Vec<LocalTransition>,
}

impl Recorder {
    /// Starts to note up to so many bytes; nothing if that is zero.
    pub(super) fn begin(&mut self, room: usize) {
        self.forget();
        self.room = (room > 0).then_some(room);
    }

    /// Whether changes are noted.
    pub(super) fn is_on(&self) -> bool {
        self.room.is_some()
    }

    /// Gives up: what has been noted would not be everything.
    pub(super) fn forget(&mut self) {
        *self = Self::default();
    }

    fn take_room(&mut self, bytes: usize) -> bool {
        self.room = self.room.and_then(|room| room.checked_sub(bytes.saturating_add(CHANGE_BYTES)));
        if self.room.is_none() {
            self.forget();
        }
        self.is_on()
    }

    /// Notes a change of a synced object.
    pub(super) fn object(&mut self, change: Transition) {
        let bytes = [&change.before, &change.after].into_iter().flatten().map(|side| side.body.len()).sum();
        if self.take_room(bytes) {
            self.objects.push(change);
        }
    }

    /// Notes a change of a local object.
    pub(super) fn local(&mut self, change: LocalTransition) {
        let bytes = [&change.before, &change.after].into_iter().flatten().map(|side| side.body.len()).sum();
        if self.take_room(bytes) {
            self.local.push(change);
        }
    }

    /// Forgets changes that were rolled back: all after these versions.
    pub(super) fn cut(&mut self, versions: Versions) {
        self.objects.retain(|change| change.version <= versions.objects);
        self.local.retain(|change| change.version <= versions.local);
    }

    /// The commit that led from some versions to others, as it is told.
    pub(super) fn finish(&mut self, before: Versions, versions: Versions) -> Told {
        let Self { room, objects, local } = std::mem::take(self);
        Told {
            versions,
            objects: part(before.objects != versions.objects, room.map(|_| objects)),
            local: part(before.local != versions.local, room.map(|_| local)),
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
