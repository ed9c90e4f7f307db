//! From a message to its acknowledgement: the object goes to the machine with a receipt, and when the report with that
//! receipt comes back, after the commit, the message is acknowledged.

use std::collections::BTreeMap;

use super::desk::{Desk, MessageId};
use super::message::{self, Incoming};
use super::object::Kinds;
use crate::sync::change::{Change, RejectReason, Rejected};
use crate::sync::frame::{Objects, Received, Report};

/// A message whose commit is under way.
#[derive(Debug)]
struct Pending {
    message: Option<MessageId>,
    /// Everything but identity and time of the acknowledgement.
    answer: Option<message::Answer>,
}

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Delivery {
    /// The kinds that messages name in lower case.
    pub(super) kinds: Kinds,
    /// By receipt.
    pending: BTreeMap<u64, Pending>,
    next_receipt: u64,
    pub(super) acknowledged_at: Option<i64>,
}

impl Delivery {
    /// The connection, or the session of the machine, is over: nothing is acknowledged any more.
    pub(super) fn forget(&mut self) {
        self.pending.clear();
    }

    /// Commits under way.
    pub(super) fn pending(&self) -> u64 {
        self.pending.len() as u64
    }

    /// Hands a change to the machine.
    pub(super) fn begin(&mut self, desk: &mut Desk, incoming: &Incoming<'_>, change: Change) {
        self.hand_over(desk, Some(incoming), vec![change], Vec::new());
    }

    /// Hands the rejection of a message's object to the machine, which counts and shows it as all others.
    pub(super) fn reject(&mut self, desk: &mut Desk, incoming: &Incoming<'_>, rejected: Rejected) {
        self.hand_over(desk, Some(incoming), Vec::new(), vec![rejected]);
    }

    /// Hands changes to the machine that no message wants an acknowledgement for: parts of a list, what a round found.
    pub(super) fn apply(&mut self, desk: &mut Desk, changes: Vec<Change>, rejected: Vec<Rejected>) {
        self.hand_over(desk, None, changes, rejected);
    }

    fn hand_over(
        &mut self,
        desk: &mut Desk,
        incoming: Option<&Incoming<'_>>,
        changes: Vec<Change>,
        rejected: Vec<Rejected>,
    ) {
        let Some(session) = desk.session.clone() else { return };
        let message = incoming.and_then(|incoming| incoming.id);
        // It is sent every 5 s until it is acknowledged.
        if message.is_some() && self.pending.values().any(|pending| pending.message == message) {
            desk.counters.repeated += 1;
            return;
        }
        self.next_receipt += 1;
        let answer = incoming.map(message::Answer::to);
        self.pending.insert(self.next_receipt, Pending { message, answer });
        let receipt = self.next_receipt;
        desk.frames.push_back(Received::Objects(Objects { session, changes, rejected, receipt }));
    }

    /// The machine has reported a batch. Objects that are wrong themselves are acknowledged, so that they do not hold up
    /// the queue of CloudCore; what finds no room is not: nothing is acknowledged that a later moment could store.
    pub(super) fn reported(&mut self, desk: &mut Desk, report: &Report) {
        let Some(pending) = self.pending.remove(&report.receipt) else { return };
        let Some(answer) = pending.answer else { return };
        let for_want_of_room = |rejected: &Rejected| {
            matches!(rejected.reason, RejectReason::StoreFull | RejectReason::StoreUnavailable)
        };
        if report.rejected.iter().any(for_want_of_room) {
            desk.counters.withheld += 1;
            return;
        }
        desk.counters.rejected += u64::from(!report.rejected.is_empty());
        self.send(desk, &answer);
    }

    /// Acknowledges a message of which nothing is stored.
    pub(super) fn acknowledge(&mut self, desk: &mut Desk, incoming: &Incoming<'_>) {
        self.send(desk, &message::Answer::to(incoming));
    }

    fn send(&mut self, desk: &mut Desk, answer: &message::Answer) {
        desk.counters.acknowledged += 1;
        self.acknowledged_at = Some(desk.at.wall);
        desk.send(&answer.draft());
    }
}
