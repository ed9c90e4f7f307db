//! Timeouts for answers. The timeout runs from the moment the request frame has left the link.
//!
//! Progress of the link on that frame or on earlier ones extends the timeout; progress on later
//! frames does not.

use std::time::Duration;

use super::timing::Now;

/// The frame number of a request that the link has not been given yet.
const QUEUED: u64 = u64::MAX;

/// The position of the link within the frames of a connection, numbered from 1.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct LinkPosition {
    /// The last frame given to the link.
    handed: u64,
    /// The last frame sent to the network.
    sent: u64,
    /// The last frame acknowledged by the other end of the link.
    acked: u64,
}

impl LinkPosition {
    pub(super) const fn new() -> Self {
        Self { handed: 0, sent: 0, acked: 0 }
    }

    /// Counts the next frame given to the link and returns its number.
    pub(super) fn hand_over(&mut self) -> u64 {
        self.handed += 1;
        self.handed
    }

    /// Returns the number of the last frame given to the link.
    pub(super) fn handed(&self) -> u64 {
        self.handed
    }

    /// Updates the position from the link's backlog and returns the progress since the last call.
    /// `unsent` frames have not left for the network; `unacknowledged` frames, including the unsent
    /// ones, lack the acknowledgement of the other end.
    pub(super) fn progress(&mut self, unsent: u64, unacknowledged: u64) -> Progress {
        let handed = self.handed;
        let (sent, acked) = (handed.saturating_sub(unsent), handed.saturating_sub(unacknowledged));
        let before = std::mem::replace(self, Self { handed, sent, acked });
        Progress { before, now: *self }
    }

    /// Returns whether the request frame has left.
    pub(super) fn has_sent(&self, wait: &Wait) -> bool {
        wait.frame <= self.sent
    }
}

/// The progress of the link between two calls.
#[derive(Clone, Copy, Debug)]
pub(super) struct Progress {
    before: LinkPosition,
    now: LinkPosition,
}

impl Progress {
    /// Returns whether the link has progressed on the request frame or on an earlier one.
    pub(super) fn covers(&self, wait: &Wait) -> bool {
        let Self { before, now } = self;
        (now.sent > before.sent && wait.frame > before.sent)
            || (now.acked > before.acked && wait.frame > before.acked)
    }

    /// Returns whether the other end has acknowledged anything.
    #[cfg(any(test, feature = "simulation"))]
    pub(super) fn is_any(&self) -> bool {
        self.now.acked > self.before.acked
    }
}

/// A timeout for one answer.
#[derive(Clone, Copy, Debug)]
pub(super) struct Wait {
    pub(super) until: Now,
    /// The last frame of the request.
    pub(super) frame: u64,
    pub(super) since: Now,
}

impl Wait {
    /// Starts a timeout for a request that waits for capacity of the link.
    pub(super) fn queued(now: Now, time: Duration) -> Self {
        Self { until: now + time, frame: QUEUED, since: now }
    }

    pub(super) fn is_queued(&self) -> bool {
        self.frame == QUEUED
    }

    pub(super) fn restart(&mut self, now: Now, time: Duration) {
        self.until = self.until.max(now + time);
        self.since = now;
    }
}
