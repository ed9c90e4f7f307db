//! How much the loop does in a turn, in units of work instead of time: a clock would tell of the
//! machine that it runs on.
//!
//! A unit is an object that is looked at for a node, or as much work: see the constants.

use std::cell::Cell;

/// Units after which a part of a turn ends, however much is left: the next turn goes on with it. A
/// part may take longer by one piece, which is a node with all that it is to hold.
///
/// A turn has five parts at most, and is to take less than 60 ms: 6 µs for a unit. The longest
/// turns of 10,000 nodes with objects of a rule for all of them have 4,000 to 5,000 units. They
/// take 7 ms with optimisation, and 10 µs for a unit without any.
const PART: u64 = 2048;
/// The most that a turn may take at 10,000 nodes of the tests.
#[cfg(test)]
pub(super) const MAX_TURN: u64 = 5 * PART;
/// A node of which something is looked at or told.
const NODE: u64 = 1;
/// A change that the source tells, or an answer of it.
const CHANGE: u64 = 2;
/// A frame, or an event from a node.
const FRAME: u64 = 4;
/// So many bytes of a frame are another unit.
const FRAME_BYTES: usize = 1024;

/// Counts units.
#[derive(Debug, Default)]
pub(super) struct Work(Cell<u64>);

impl Work {
    fn add(&self, units: u64) {
        self.0.set(self.0.get() + units);
    }

    /// Where a part that begins now ends.
    pub(super) fn part(&self) -> u64 {
        self.0.get() + PART
    }

    pub(super) fn has_reached(&self, end: u64) -> bool {
        self.0.get() >= end
    }

    pub(super) fn node(&self) {
        self.add(NODE);
    }

    pub(super) fn change(&self) {
        self.add(CHANGE);
    }

    pub(super) fn frame(&self, bytes: usize) {
        self.add(FRAME + (bytes / FRAME_BYTES) as u64);
    }

    /// An object is looked at for a node.
    pub(super) fn object(&self) {
        self.add(1);
    }

    /// Objects are looked at, each shortly.
    pub(super) fn objects(&self, count: usize) {
        self.add(count as u64);
    }

    /// What was done so far.
    #[cfg(test)]
    pub(super) fn done(&self) -> u64 {
        self.0.get()
    }
}
