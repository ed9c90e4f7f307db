//! Waits for answers. A wait lasts its time from when the frame that is to be answered has left: what the link carries
//! of that frame and of those before it puts the end off, what it carries for others does not.

use std::time::Duration;

use super::timing::Now;

/// The number of a frame that will get one when the link is given it.
const QUEUED: u64 = u64::MAX;

/// How far the link is with the frames of a connection, by their numbers from 1.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Carried {
    /// The last one that the link was given.
    handed: u64,
    /// The last one that has left for the network.
    sent: u64,
    /// The last one that the other end of the link has acknowledged.
    taken: u64,
}

impl Carried {
    pub(super) const fn new() -> Self {
        Self { handed: 0, sent: 0, taken: 0 }
    }

    /// The link is given the next frame: its number.
    pub(super) fn hand(&mut self) -> u64 {
        self.handed += 1;
        self.handed
    }

    /// The number of the last frame that the link was given.
    pub(super) fn handed(&self) -> u64 {
        self.handed
    }

    /// Of the frames that the link was given so many have not left for the network, and so many, those included, have
    /// not been acknowledged by its other end. Tells what it has carried since it was asked before.
    pub(super) fn progress(&mut self, unsent: u64, unacknowledged: u64) -> Progress {
        let handed = self.handed;
        let (sent, taken) = (handed.saturating_sub(unsent), handed.saturating_sub(unacknowledged));
        let before = std::mem::replace(self, Self { handed, sent, taken });
        Progress { before, now: *self }
    }

    /// Whether the frame that is to be answered has left.
    pub(super) fn has_sent(&self, wait: &Wait) -> bool {
        wait.frame <= self.sent
    }
}

/// What the link has carried from one time to another.
#[derive(Clone, Copy, Debug)]
pub(super) struct Progress {
    before: Carried,
    now: Carried,
}

impl Progress {
    /// Whether it has carried something of the frame that is to be answered, or of those before it.
    pub(super) fn concerns(&self, wait: &Wait) -> bool {
        let Self { before, now } = self;
        (now.sent > before.sent && wait.frame > before.sent)
            || (now.taken > before.taken && wait.frame > before.taken)
    }

    /// Whether its other end has acknowledged anything.
    #[cfg(any(test, feature = "simulation"))]
    pub(super) fn is_any(&self) -> bool {
        self.now.taken > self.before.taken
    }
}

/// See the module.
#[derive(Clone, Copy, Debug)]
pub(super) struct Wait {
    pub(super) until: Now,
    /// The last of the frames that are to be answered.
    pub(super) frame: u64,
    pub(super) since: Now,
}

impl Wait {
    /// A wait for the answer to a frame that the link will be given once it has room.
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
