//! The waits of the edge: for Welcome, Confirm and UploadConfirm.

use std::time::Duration;

#[cfg(any(test, feature = "simulation"))]
use crate::fault::{Fault, planted};
use crate::timing::Now;
use crate::wait::{Carried, Wait};

use super::{EdgeConfig, EdgeMachine, Phase};

/// When unconfirmed changes are reported again.
#[derive(Debug, Default)]
pub(super) struct Repeat {
    /// The wait for a Confirm, and how many ended without one in a row.
    timer: Option<(Wait, u32)>,
    /// Confirms in a row that brought no news.
    stalled: u32,
}

impl Repeat {
    pub(super) fn clear(&mut self) {
        *self = Self::default();
    }

    /// Nothing is waited for any more.
    pub(super) fn stop(&mut self) {
        self.timer = None;
    }

    pub(super) fn is_armed(&self) -> bool {
        self.timer.is_some()
    }

    pub(super) fn arm(&mut self, wait: Wait, attempts: u32) {
        self.timer = Some((wait, attempts));
    }

    /// Takes note of a Confirm that brought news, or did not.
    pub(super) fn answered(&mut self, is_news: bool) {
        self.stalled = if is_news { 0 } else { self.stalled.saturating_add(1) };
    }

    /// Returns how long a Confirm is waited for: a cloud that answers without news is asked less and less often.
    pub(super) fn patience(&self, config: &EdgeConfig) -> Duration {
        let time = config.report_timeout.saturating_mul(1 << self.stalled.min(10));
        time.min(config.retry_max)
    }

    pub(super) fn deadline(&self) -> Option<Now> {
        self.timer.map(|(wait, _)| wait.until)
    }

    /// Returns how many waits in a row ended without a Confirm, once this one has too.
    pub(super) fn overdue(&self, now: Now) -> Option<u32> {
        self.timer.filter(|(wait, _)| wait.until <= now).map(|(_, attempts)| attempts + 1)
    }

    pub(super) fn wait(&mut self) -> Option<&mut Wait> {
        self.timer.as_mut().map(|(wait, _)| wait)
    }
}

/// How far the link of this connection is, and what it takes.
#[derive(Debug)]
pub(super) struct Line {
    carried: Carried,
    /// The largest frame that the link takes, in bytes.
    max_frame: u32,
}

impl Line {
    pub(super) fn new(max_frame: u32) -> Self {
        Self { carried: Carried::default(), max_frame }
    }

    pub(super) fn max_frame(&self) -> u32 {
        self.max_frame
    }
}

impl EdgeMachine {
    /// A wait for the answer to everything that was said so far.
    pub(super) fn wait(&self, now: Now, time: Duration) -> Wait {
        Wait { until: now + time, frame: self.last_frame(), since: now }
    }

    /// The number of the last frame that was made, outbox and Lease apart.
    pub(super) fn last_frame(&self) -> u64 {
        self.line.carried.handed() + self.frames.len() as u64
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

    /// The link is given the next frame.
    pub(super) fn handed(&mut self, now: Now) {
        let number = self.line.carried.hand();
        self.restart_waits(now, |wait| wait.frame >= number);
    }

    /// How far the link is: of the frames that it was given on this connection, so many have not left for the network,
    /// and so many, those included, have not been acknowledged by its other end. To be told before
    /// [`EdgeMachine::tick`]: what has not left is not said again.
    pub fn link_progress(&mut self, now: Now, unsent: u64, unacknowledged: u64) {
        let progress = self.line.carried.progress(unsent, unacknowledged);
        #[cfg(any(test, feature = "simulation"))]
        if planted(Fault::AnyProgressCounts) && progress.is_any() {
            self.restart_waits(now, |_| true);
        }
        #[cfg(any(test, feature = "simulation"))]
        if planted(Fault::LineUnknown) {
            return;
        }
        self.restart_waits(now, |wait| progress.concerns(wait));
    }

    /// The cloud is at work on what it was told to begin the session: its answer to that will come.
    pub(super) fn greeting_goes_on(&mut self, now: Now) {
        let time = self.config.hello_timeout;
        if let Phase::Greeting { wait, .. } = &mut self.phase {
            wait.restart(now, time);
        }
    }

    /// Objects arrive: on a slow link the answer to what was said may come behind them, but they are none.
    pub(super) fn objects_arrive(&mut self, now: Now) {
        let most = self.config.retry_max;
        for (wait, time) in self.waits() {
            wait.until = wait.until.max((now + time).min(wait.since + most));
        }
        let time = self.config.report_timeout;
        let is_confirmed = self.confirmed >= self.totals.revision;
        if let Some((wait, attempts)) = &mut self.repeat.timer {
            // Whoever sends is not silent.
            *attempts = 0;
            if is_confirmed {
                // Nothing else is waited for.
                wait.restart(now, time);
            }
        }
    }

    /// Nothing is said again behind itself.
    pub(super) fn wait_for_the_link(&mut self, now: Now) {
        let carried = self.line.carried;
        #[cfg(any(test, feature = "simulation"))]
        if planted(Fault::LineUnknown) {
            return;
        }
        self.restart_waits(now, |wait| wait.until <= now && !carried.has_sent(wait));
    }
}
