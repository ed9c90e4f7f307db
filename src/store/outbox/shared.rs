//! What the handles of the store see of the outbox, and tell it, without asking the writer.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use tokio::sync::watch;

use super::mirror::{Outbox, Rules};
use super::{OutboxLimits, OutboxState};
use edgesync_protocol::upload::{Lane, Lanes};

/// What the handles see and tell.
#[derive(Debug)]
pub(in crate::store) struct OutboxShared {
    state: watch::Sender<OutboxState>,
    /// The last numbers confirmed; ahead of what has been removed.
    settled: [AtomicU64; 3],
    limits: Mutex<OutboxLimits>,
}

impl OutboxShared {
    /// Of an outbox that was opened, with what is known to be confirmed.
    pub(in crate::store) fn new(outbox: &Outbox, confirmed: Lanes, limits: OutboxLimits) -> Self {
        let shared = Self {
            state: watch::Sender::default(),
            settled: Lane::ALL.map(|lane| AtomicU64::new(confirmed.get(lane))),
            limits: Mutex::new(limits),
        };
        shared.publish(outbox);
        shared
    }

    pub(in crate::store) fn watch(&self) -> watch::Receiver<OutboxState> {
        self.state.subscribe()
    }

    /// The last numbers that were given, as of the last commit.
    pub(in crate::store) fn last(&self) -> Lanes {
        self.state.borrow().marks.last
    }

    /// The last numbers that are confirmed.
    pub(in crate::store) fn settled(&self) -> Lanes {
        let mut settled = Lanes::default();
        for (lane, number) in Lane::ALL.into_iter().zip(&self.settled) {
            settled.set(lane, number.load(Ordering::Acquire));
        }
        settled
    }

    /// The last number of the lane of status that is confirmed; none if nothing waits behind it.
    pub(in crate::store) fn settled_status(&self) -> Option<u64> {
        (self.state.borrow().marks.rows.status > 0).then(|| self.settled().status)
    }

    /// Notes what is confirmed. Numbers never go back within a process; one that was never given confirms no more
    /// than the last that was.
    pub(in crate::store) fn settle(&self, lane: Lane, upto: u64) {
        let upto = upto.min(self.last().get(lane));
        if let Some(settled) = self.settled.get(lane.index()) {
            settled.fetch_max(upto, Ordering::AcqRel);
        }
        // Nobody needs to be woken for what he has said himself.
        self.state.send_if_modified(|state| {
            self.leave_out_settled(state);
            false
        });
    }

    /// The file was replaced: what is before its first row was confirmed, or is lost.
    pub(in crate::store) fn settle_all(&self, confirmed: Lanes) {
        for (lane, settled) in Lane::ALL.into_iter().zip(&self.settled) {
            settled.fetch_max(confirmed.get(lane), Ordering::AcqRel);
        }
    }

    pub(in crate::store) fn rules(&self) -> Rules {
        let limits = *self.limits.lock().unwrap_or_else(PoisonError::into_inner);
        Rules { limits, settled: self.settled() }
    }

    /// Sets the limits; says whether they are other ones than before.
    pub(in crate::store) fn set_limits(&self, limits: OutboxLimits) -> bool {
        let mut held = self.limits.lock().unwrap_or_else(PoisonError::into_inner);
        std::mem::replace(&mut *held, limits) != limits
    }

    /// Tells how the outbox stands after a commit.
    pub(in crate::store) fn publish(&self, outbox: &Outbox) {
        self.state.send_if_modified(|state| {
            let (marks, bytes, dropped) = (outbox.marks(), outbox.bytes(), outbox.dropped());
            let mut now = OutboxState { marks, bytes, dropped };
            self.leave_out_settled(&mut now);
            let differs = *state != now;
            *state = now;
            differs
        });
    }

    /// Rows that are confirmed and not removed yet do not wait.
    fn leave_out_settled(&self, state: &mut OutboxState) {
        state.marks.confirmed = self.settled();
        for lane in Lane::ALL {
            let waiting = state.marks.last.get(lane).saturating_sub(state.marks.confirmed.get(lane));
            state.marks.rows.set(lane, state.marks.rows.get(lane).min(waiting));
            if waiting == 0 {
                state.bytes.set(lane, 0);
            }
        }
    }
}
