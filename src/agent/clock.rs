//! The device's clock: whether it can be right, and when it jumps. A device without a battery for its clock starts
//! in the past; times that were taken before it is set are corrected by a clock that never jumps.

use std::time::Duration;

use jiff::Timestamp;

use crate::store::edge::Clocked;

/// What has become of the clock since it was last looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ClockNews {
    /// It was set, by so many milliseconds (negative: back).
    Jumped {
        /// The point before which times are off.
        at: Clocked,
        /// Milliseconds.
        by: i64,
        /// Whether the clock could not be right before, and can be now.
        became_known: bool,
    },
}

/// The clock of this process: wall clock and boot clock, looked at together.
#[derive(Debug)]
pub(super) struct Clock {}

impl Clock {
    /// `floor` is a time in the past for sure: a clock that is before it is wrong.
    pub(super) fn new(_floor: Timestamp) -> Self {
        todo!()
    }

    /// The time by the clock that never jumps.
    pub(super) fn clocked(&self) -> Clocked {
        todo!()
    }

    /// Whether the wall clock can be right.
    pub(super) fn is_known(&self) -> bool {
        todo!()
    }

    /// Compares both clocks; news if they have drifted apart by more than a tolerance since the last time.
    pub(super) fn look(&mut self) -> Option<ClockNews> {
        todo!()
    }

    /// How long the device has been up.
    pub(super) fn uptime(&self) -> Duration {
        todo!()
    }
}
