//! Waits for answers. A wait lasts its time from when the frame that is to be answered has left: what the link carries
//! of that frame and of those before it puts the end off, what it carries for others does not.

use std::time::Duration;

use crate::sync::timing::Now;

use super::{EdgeMachine, Phase};

/// The number of a frame that will get one when the link is given it.
const QUEUED: u64 = u64::MAX;

/// How far the link is with the frames of a connection, by their numbers from 1.
#[derive(Debug, Default)]
pub(super) struct Carried {
    /// The last one that the link was given.
    handed: u64,
    /// The last one that has left for the network.
    sent: u64,
    /// The last one that the other end of the link has acknowledged.
    taken: u64,
}

/// See the module.
#[derive(Clone, Copy, Debug)]
pub(super) struct Wait {
    pub(super) until: Now,
    /// The last of the frames that are to be answered.
    pub(super) frame: u64,
    since: Now,
}

impl Wait {
    /// A wait for the answer to a frame that the link will be given once it has room.
    pub(super) fn queued(now: Now, time: Duration) -> Self {
        Self { until: now + time, frame: QUEUED, since: now }
    }

    pub(super) fn is_queued(&self) -> bool {
        self.frame == QUEUED
    }

    fn restart(&mut self, now: Now, time: Duration) {
        self.until = self.until.max(now + time);
        self.since = now;
    }
}

impl EdgeMachine {
    /// A wait for the answer to everything that was said so far.
    pub(super) fn wait(&self, now: Now, time: Duration) -> Wait {
        Wait { until: now + time, frame: self.last_frame(), since: now }
    }

    /// The number of the last frame that was made, outbox and Lease apart.
    pub(super) fn last_frame(&self) -> u64 {
        self.carried.handed + self.frames.len() as u64
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
        self.carried.handed += 1;
        let number = self.carried.handed;
        self.restart_waits(now, |wait| wait.frame >= number);
    }

    /// How far the link is: of the frames that it was given on this connection, so many have not left for the network,
    /// and so many, those included, have not been acknowledged by its other end. To be told before
    /// [`EdgeMachine::tick`]: what has not left is not said again.
    pub fn link_progress(&mut self, now: Now, unsent: u64, unacknowledged: u64) {
        let handed = self.carried.handed;
        let (sent, taken) = (handed.saturating_sub(unsent), handed.saturating_sub(unacknowledged));
        let before = std::mem::replace(&mut self.carried, Carried { handed, sent, taken });
        #[cfg(test)]
        if crate::sync::fault::planted(crate::sync::fault::Fault::AnyProgressCounts) && taken > before.taken {
            self.restart_waits(now, |_| true);
        }
        self.restart_waits(now, |wait| {
            (sent > before.sent && wait.frame > before.sent)
                || (taken > before.taken && wait.frame > before.taken)
        });
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
        let sent = self.carried.sent;
        self.restart_waits(now, |wait| wait.until <= now && wait.frame > sent);
    }
}
