//! The outbox's state shared with the store's handles, which do not wait for the writer.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use tokio::sync::watch;

use super::outbox_totals::{Outbox, Rules};
use super::{OutboxLimits, OutboxState};
use edgesync_protocol::upload::{Lane, Lanes};

/// The shared state of the outbox.
#[derive(Debug)]
pub(in crate::store) struct OutboxShared {
    state: watch::Sender<OutboxState>,
    /// Last confirmed numbers; ahead of the removal of rows.
    settled: [AtomicU64; 3],
    limits: Mutex<OutboxLimits>,
}

impl OutboxShared {
    /// Creates the state of an opened outbox, with its confirmed numbers.
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

    /// Returns the last numbers in use, as of the last commit.
    pub(in crate::store) fn last(&self) -> Lanes {
        self.state.borrow().marks.last
    }

    /// Returns the last confirmed numbers.
    pub(in crate::store) fn settled(&self) -> Lanes {
        let mut settled = Lanes::default();
        for (lane, number) in Lane::ALL.into_iter().zip(&self.settled) {
            settled.set(lane, number.load(Ordering::Acquire));
        }
        settled
    }

    /// Returns the last confirmed number of the status lane; `None` if no status is pending.
    pub(in crate::store) fn settled_status(&self) -> Option<u64> {
        (self.state.borrow().marks.rows.status > 0).then(|| self.settled().status)
    }

    /// Records a confirmation. Numbers never decrease within a process; an unused number confirms
    /// at most the last one in use.
    pub(in crate::store) fn settle(&self, lane: Lane, upto: u64) {
        let upto = upto.min(self.last().get(lane));
        if let Some(settled) = self.settled.get(lane.index()) {
            settled.fetch_max(upto, Ordering::AcqRel);
        }
        // The caller knows its change and needs no notification.
        self.state.send_if_modified(|state| {
            self.exclude_settled(state);
            false
        });
    }

    /// Records the confirmations of a file that replaced another one: rows before its first one
    /// were confirmed or lost.
    pub(in crate::store) fn settle_all(&self, confirmed: Lanes) {
        for (lane, settled) in Lane::ALL.into_iter().zip(&self.settled) {
            settled.fetch_max(confirmed.get(lane), Ordering::AcqRel);
        }
    }

    pub(in crate::store) fn rules(&self) -> Rules {
        let limits = *self.limits.lock().unwrap_or_else(PoisonError::into_inner);
        Rules { limits, settled: self.settled() }
    }

    /// Sets the limits. Returns whether they have changed.
    pub(in crate::store) fn set_limits(&self, limits: OutboxLimits) -> bool {
        let mut held = self.limits.lock().unwrap_or_else(PoisonError::into_inner);
        std::mem::replace(&mut *held, limits) != limits
    }

    /// Publishes the state after a commit.
    pub(in crate::store) fn publish(&self, outbox: &Outbox) {
        self.state.send_if_modified(|state| {
            let (marks, bytes, dropped) = (outbox.marks(), outbox.bytes(), outbox.dropped());
            let mut now = OutboxState { marks, bytes, dropped };
            self.exclude_settled(&mut now);
            let differs = *state != now;
            *state = now;
            differs
        });
    }

    /// Excludes rows that are confirmed and not yet removed.
    fn exclude_settled(&self, state: &mut OutboxState) {
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
