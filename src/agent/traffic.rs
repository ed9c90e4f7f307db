//! How many bytes and messages went in both directions, for each type of frame and each kind of object: today (UTC)
//! and in total. Kept across restarts without writes of its own to speak of.

use jiff::Timestamp;
use serde_json::Value;

use crate::link;
use crate::object::Resource;

/// Which way.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) enum Direction {
    /// To the cloud.
    Up,
    /// From the cloud.
    Down,
}

/// Counts; has one owner, the agent's loop.
#[derive(Debug)]
pub(super) struct Meter {}

impl Meter {
    /// Goes on from what was kept ([`Meter::keep`]); begins anew if that cannot be read.
    pub(super) fn new(_kept: Option<&str>, _now: Timestamp) -> Self {
        todo!()
    }

    /// A frame of so many bytes, as sent or received.
    pub(super) fn frame(&mut self, _direction: Direction, _frame: &'static str, _bytes: usize) {
        todo!()
    }

    /// An object of this kind in a frame: so many bytes of JSON.
    pub(super) fn object(&mut self, _direction: Direction, _kind: &Resource, _bytes: usize) {
        todo!()
    }

    /// What the link has counted since it was started: bytes of TCP in both directions.
    pub(super) fn link(&mut self, _traffic: &link::Traffic, _now: Timestamp) {
        todo!()
    }

    /// Bytes of TCP in both directions today.
    pub(super) fn today(&self) -> u64 {
        todo!()
    }

    /// The counts as text, to be kept.
    pub(super) fn keep(&self) -> String {
        todo!()
    }

    /// The counts as JSON, for the status and `edgesync traffic`.
    pub(super) fn show(&self) -> Value {
        todo!()
    }

    /// All counts in total: direction, frame type, messages and bytes.
    pub(super) fn frames(&self) -> Vec<(Direction, &'static str, u64, u64)> {
        todo!()
    }

    /// All counts in total: direction, kind (`ConfigMap`, `Deployment.apps`), objects and bytes.
    pub(super) fn kinds(&self) -> Vec<(Direction, String, u64, u64)> {
        todo!()
    }
}
