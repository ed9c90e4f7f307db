//! The waits of the edge: for Welcome, Confirm and UploadConfirm.

use std::time::Duration;

#[cfg(any(test, feature = "simulation"))]
use crate::fault::{Fault, planted};
use crate::timing::Now;
use crate::wait::Wait;

use super::{EdgeMachine, Phase};

impl EdgeMachine {
    /// A wait for the answer to everything that was said so far.
    pub(super) fn wait(&self, now: Now, time: Duration) -> Wait {
        Wait { until: now + time, frame: self.last_frame(), since: now }
    }

    /// The number of the last frame that was made, outbox and Lease apart.
    pub(super) fn last_frame(&self) -> u64 {
        self.carried.handed() + self.frames.len() as u64
    }

    fn waits(&mut self) -> impl Iterator<Item = (&mut Wait, Duration)> {
        let (hello, report) = (self.config.hello_timeout, self.config.report_timeout);
        let greeting = match &mut self.phase {
            Phase::Greeting { wait, .. } => Some((wait, hello)),
            _ => None,
        };
        let repeat = self.repeat.as_mut().map(|(wait, _)| (wait, report));
        let upload = self.outbox.wait().map(|wait| (wait, report));
        greeting.into_iter().chain(repeat).chain(upload)
    }

    fn restart_waits(&mut self, now: Now, concerned: impl Fn(&Wait) -> bool) {
        self.waits().filter(|(wait, _)| concerned(wait)).for_each(|(wait, time)| wait.restart(now, time));
    }

    /// The link is given the next frame.
    pub(super) fn handed(&mut self, now: Now) {
        let number = self.carried.hand();
        self.restart_waits(now, |wait| wait.frame >= number);
    }

    /// How far the link is: of the frames that it was given on this connection, so many have not left for the network,
    /// and so many, those included, have not been acknowledged by its other end. To be told before
    /// [`EdgeMachine::tick`]: what has not left is not said again.
    pub fn link_progress(&mut self, now: Now, unsent: u64, unacknowledged: u64) {
        let progress = self.carried.progress(unsent, unacknowledged);
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
        if let Some((wait, attempts)) = &mut self.repeat {
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
        let carried = self.carried;
        #[cfg(any(test, feature = "simulation"))]
        if planted(Fault::LineUnknown) {
            return;
        }
        self.restart_waits(now, |wait| wait.until <= now && !carried.has_sent(wait));
    }
}
