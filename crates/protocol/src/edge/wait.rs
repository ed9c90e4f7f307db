//! Timeouts of the edge: for Welcome, Confirm and UploadConfirm.

use std::time::Duration;

#[cfg(any(test, feature = "simulation"))]
use crate::fault::{Fault, planted};
use crate::timing::Now;
use crate::wait::{LinkPosition, Wait};

use super::{EdgeConfig, EdgeMachine, Phase};

/// The repeat timer for unconfirmed changes.
#[derive(Debug, Default)]
pub(super) struct Repeat {
    /// The timeout for a Confirm, and the number of consecutive expired ones.
    timer: Option<(Wait, u32)>,
    /// The number of consecutive Confirms without progress.
    stalled: u32,
}

impl Repeat {
    pub(super) fn clear(&mut self) {
        *self = Self::default();
    }

    pub(super) fn stop(&mut self) {
        self.timer = None;
    }

    pub(super) fn is_armed(&self) -> bool {
        self.timer.is_some()
    }

    pub(super) fn arm(&mut self, wait: Wait, attempts: u32) {
        self.timer = Some((wait, attempts));
    }

    /// Counts a Confirm by whether it brought progress.
    pub(super) fn answered(&mut self, has_progress: bool) {
        self.stalled = if has_progress { 0 } else { self.stalled.saturating_add(1) };
    }

    /// Returns the timeout for a Confirm: grows while the cloud answers without progress.
    pub(super) fn patience(&self, config: &EdgeConfig) -> Duration {
        let time = config.report_timeout.saturating_mul(1 << self.stalled.min(10));
        time.min(config.retry_max)
    }

    pub(super) fn deadline(&self) -> Option<Now> {
        self.timer.map(|(wait, _)| wait.until)
    }

    /// Returns the number of consecutive expired timeouts if this one has expired too.
    pub(super) fn overdue(&self, now: Now) -> Option<u32> {
        self.timer.filter(|(wait, _)| wait.until <= now).map(|(_, attempts)| attempts + 1)
    }

    pub(super) fn wait(&mut self) -> Option<&mut Wait> {
        self.timer.as_mut().map(|(wait, _)| wait)
    }
}

/// The position and the frame limit of the current link.
#[derive(Debug)]
pub(super) struct Line {
    position: LinkPosition,
    /// The largest frame of the link, in bytes.
    max_frame: u32,
}

impl Line {
    pub(super) fn new(max_frame: u32) -> Self {
        Self { position: LinkPosition::default(), max_frame }
    }

    pub(super) fn max_frame(&self) -> u32 {
        self.max_frame
    }
}

impl EdgeMachine {
    /// Starts a timeout for the answer to everything sent so far.
    pub(super) fn wait(&self, now: Now, time: Duration) -> Wait {
        Wait { until: now + time, frame: self.last_frame(), since: now }
    }

    /// Returns the number of the last frame, outbox and Lease apart.
    pub(super) fn last_frame(&self) -> u64 {
        self.line.position.handed() + self.frames.len() as u64
    }

    fn waits(&mut self) -> impl Iterator<Item = (&mut Wait, Duration)> {
        let (hello, report) = (self.config.hello_timeout, self.config.report_timeout);
        let greeting = match &mut self.phase {
            Phase::Greeting { wait, .. } => Some((wait, hello)),
            _ => None,
        };
        let repeat = self.repeat.wait().map(|wait| (wait, report));
        let upload = self.outbox.wait().map(|wait| (wait, report));
        greeting.into_iter().chain(repeat).chain(upload)
    }

    fn restart_waits(&mut self, now: Now, concerned: impl Fn(&Wait) -> bool) {
        self.waits().filter(|(wait, _)| concerned(wait)).for_each(|(wait, time)| wait.restart(now, time));
    }

    /// Counts the next frame given to the link.
    pub(super) fn frame_handed_over(&mut self, now: Now) {
        let number = self.line.position.hand_over();
        self.restart_waits(now, |wait| wait.frame >= number);
    }

    /// Updates the backlog of the link: of the frames given to it on this connection, `unsent` have
    /// not left for the network, and `unacknowledged`, including the unsent ones, lack the
    /// acknowledgement of the other end.
    ///
    /// Call it before [`EdgeMachine::tick`]: frames that have not left are not repeated.
    pub fn link_progress(&mut self, now: Now, unsent: u64, unacknowledged: u64) {
        let progress = self.line.position.progress(unsent, unacknowledged);
        #[cfg(any(test, feature = "simulation"))]
        if planted(Fault::AnyProgressCounts) && progress.is_any() {
            self.restart_waits(now, |_| true);
        }
        #[cfg(any(test, feature = "simulation"))]
        if planted(Fault::LineUnknown) {
            return;
        }
        self.restart_waits(now, |wait| progress.covers(wait));
    }

    /// Extends the timeout of the Hello: the cloud is working on it.
    pub(super) fn extend_greeting(&mut self, now: Now) {
        let time = self.config.hello_timeout;
        if let Phase::Greeting { wait, .. } = &mut self.phase {
            wait.restart(now, time);
        }
    }

    /// Extends timeouts while objects arrive: on a slow link the answer may be queued behind them.
    pub(super) fn extend_waits_for_objects(&mut self, now: Now) {
        let most = self.config.retry_max;
        for (wait, time) in self.waits() {
            wait.until = wait.until.max((now + time).min(wait.since + most));
        }
        let time = self.config.report_timeout;
        let is_confirmed = self.confirmed >= self.totals.revision;
        if let Some((wait, attempts)) = &mut self.repeat.timer {
            // A sending cloud is not silent.
            *attempts = 0;
            if is_confirmed {
                // Only the objects themselves are awaited.
                wait.restart(now, time);
            }
        }
    }

    /// Extends expired timeouts whose request has not left the link: a repetition would queue
    /// behind the original.
    pub(super) fn extend_unsent_waits(&mut self, now: Now) {
        let position = self.line.position;
        #[cfg(any(test, feature = "simulation"))]
        if planted(Fault::LineUnknown) {
            return;
        }
        self.restart_waits(now, |wait| wait.until <= now && !position.has_sent(wait));
    }
}
