//! Measures work in a turn of the loop in units instead of time, independent of the machine's
//! speed.
//!
//! A unit is one lookup of an object for a node, or comparable work: see the constants.

use std::cell::Cell;

/// Units after which a part of a turn ends; the next turn continues. A part may exceed this by one
/// item, which is a node with all its desired objects.
///
/// A turn has at most five parts, and a target below 60 ms: 6 µs per unit. The longest turns with
/// 10,000 nodes and objects of a rule for all of them have 4,000 to 5,000 units. They take 7 ms
/// with optimisation, and 10 µs per unit without.
const PART: u64 = 2048;
/// Limit of a turn with 10,000 nodes in the tests.
#[cfg(test)]
pub(super) const MAX_TURN: u64 = 5 * PART;
/// Visit of a node.
const NODE: u64 = 1;
/// Change or answer of the source.
const CHANGE: u64 = 2;
/// Frame or event from a node.
const FRAME: u64 = 4;
/// Bytes of a frame per further unit.
const FRAME_BYTES: usize = 1024;

/// Units of work since the start; only grows.
#[derive(Debug)]
pub(super) struct Work {
    done: Cell<u64>,
    /// Units of a part; [`PART`].
    part: u64,
}

impl Default for Work {
    fn default() -> Self {
        Self { done: Cell::new(0), part: PART }
    }
}

impl Work {
    fn add(&self, units: u64) {
        self.done.set(self.done.get() + units);
    }

    #[cfg(test)]
    pub(super) fn set_part(&mut self, part: u64) {
        self.part = part;
    }

    /// Returns the counter value at which a part that begins now ends.
    pub(super) fn part(&self) -> u64 {
        self.done.get() + self.part
    }

    pub(super) fn has_reached(&self, end: u64) -> bool {
        self.done.get() >= end
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

    /// Counts the lookup of an object for a node.
    pub(super) fn object(&self) {
        self.add(1);
    }

    /// Counts short visits of objects.
    pub(super) fn objects(&self, count: usize) {
        self.add(count as u64);
    }

    /// Returns the units so far.
    #[cfg(test)]
    pub(super) fn done(&self) -> u64 {
        self.done.get()
    }
}
