//! What is sent again: what is known to be lost at once, and something whenever an answer is overdue.

use crate::change::Uid;
#[cfg(any(test, feature = "simulation"))]
use crate::fault::{Fault, planted};
use crate::timing::{Now, backoff};

use super::{CloudMachine, DesiredState, Phase};

impl CloudMachine {
    /// The node says how much of a large object it has; with which frame that came, if it tells.
    pub(in crate::cloud) fn receiving(&mut self, now: Now, uid: &Uid, received: Option<u64>, receipt: u64) {
        let Phase::Live { limits, .. } = self.phase else { return };
        if receipt == 0 {
            return self.pace.arrived(now, &self.config, limits.max_frame);
        }
        let parts = self.sender.parts.as_mut().filter(|parts| parts.ready.out.uid == *uid);
        let (Some(parts), Some(received)) = (parts, received.and_then(|it| usize::try_from(it).ok())) else {
            return;
        };
        let Some(at) = parts.sent.iter().position(|(frame, _)| *frame == receipt) else { return };
        let Some((_, end)) = parts.sent.drain(..=at).next_back() else { return };
        if received >= end {
            parts.arrived = end;
        } else if parts.ready.text.is_char_boundary(received) {
            // A part is missing, and what came after it was dropped.
            parts.begin_again_at(received);
            self.counters.resent += 1;
        }
    }

    /// What was sent and not reported is sent again, once its report is overdue: one message, whose report shows what
    /// became of the others. If there is something new to send it serves as well.
    pub(in crate::cloud) fn resend_overdue(&mut self, now: Now, desired: &impl DesiredState) {
        if self.sender.is_at_rest() {
            return self.pace.rest();
        }
        if !self.pace.is_overdue(now, &self.config) {
            return;
        }
        #[cfg(any(test, feature = "simulation"))]
        if planted(Fault::NeverAgain) {
            return;
        }
        #[cfg(any(test, feature = "simulation"))]
        if planted(Fault::LineUnknown) {
            let all = self.sender.unanswered_before(u64::MAX);
            return self.send_again(now, all, desired);
        }
        if self.behind {
            // The records are to be read again first, and that waits for all that is under way.
            for uid in self.sender.unanswered_before(u64::MAX) {
                self.put_back(now, now, &uid, desired);
            }
            self.pace.forget_flights();
        }
        let has_more = !self.sender.ready.is_empty() || !self.sender.large.is_empty();
        if let Some(parts) = &mut self.sender.parts {
            // A node that says nothing of a missing part is sent all that it has not said to have.
            if self.pace.attempts() > 1 {
                parts.begin_again_at(parts.arrived);
                self.counters.resent += 1;
                if !self.pace.names_frames {
                    // It answers only after a frame's length: there must be room for that.
                    self.pace.forget_flights();
                }
            }
        } else if (!has_more || self.pace.attempts() > 1)
            && let Some(oldest) = self.sender.unanswered_before(u64::MAX).first()
        {
            self.put_back(now, now, oldest, desired);
        }
        self.pace.probing = true;
    }

    /// These are lost: they are sent again at once, and then with growing waits.
    pub(in crate::cloud) fn send_again(&mut self, now: Now, lost: Vec<Uid>, desired: &impl DesiredState) {
        #[cfg(any(test, feature = "simulation"))]
        if planted(Fault::NeverAgain) {
            return;
        }
        let (min, max) = (self.config.resend_min, self.config.resend_max);
        for uid in lost {
            let attempts = self.trouble.get(&uid).map_or(0, |trouble| trouble.attempts);
            let wait = attempts.checked_sub(1).map(|attempt| backoff(min, max, attempt, u64::MAX));
            self.put_back(now, now + wait.unwrap_or_default(), &uid, desired);
        }
    }

    /// What is under way is to be sent again at this time.
    fn put_back(&mut self, now: Now, at: Now, uid: &Uid, desired: &impl DesiredState) {
        self.counters.resent += 1;
        let trouble = self.trouble.entry(uid.clone()).or_default();
        if let Some(sent) = self.sender.in_flight.get(uid) {
            trouble.sent = Some((sent.first, sent.version.clone()));
        }
        trouble.attempts = trouble.attempts.saturating_add(1);
        trouble.retry_at = at;
        self.sender.done(uid);
        self.reconsider(now, uid, desired);
    }
}
