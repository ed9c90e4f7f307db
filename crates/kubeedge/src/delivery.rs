//! From a message to its acknowledgement: the object goes to the machine with a receipt, and when the report with that
//! receipt comes back, after the commit, the message is acknowledged.

use std::collections::BTreeMap;

use super::message::MessageId;
use super::message::{self, Incoming};
use super::object::Kinds;
use super::outbound::Outbound;
use edgesync_protocol::change::{Change, RejectReason, Rejected};
use edgesync_protocol::frame::{Objects, Received, Report};

/// A message whose commit is under way.
#[derive(Debug)]
struct Pending {
    message: Option<MessageId>,
    /// Everything but identity and time of the acknowledgement.
    answer: Option<message::Answer>,
    /// Whether it was asked for: what it changes was not as CloudCore has it.
    is_compared: bool,
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

    /// Whether a commit is under way of what was asked for.
    pub(super) fn has_compared(&self) -> bool {
        self.pending.values().any(|pending| pending.is_compared)
    }

    /// Hands a change to the machine. `is_compared` says that it was asked for.
    pub(super) fn begin(
        &mut self,
        outbound: &mut Outbound,
        incoming: &Incoming<'_>,
        change: Change,
        is_compared: bool,
    ) {
        self.hand_over(outbound, Some(incoming), is_compared, vec![change], Vec::new());
    }

    /// Hands the rejection of a message's object to the machine, which counts and shows it as all others.
    pub(super) fn reject(&mut self, outbound: &mut Outbound, incoming: &Incoming<'_>, rejected: Rejected) {
        self.hand_over(outbound, Some(incoming), false, Vec::new(), vec![rejected]);
    }

    /// Hands changes to the machine that no message wants an acknowledgement for: parts of a list, what a round found.
    pub(super) fn apply(&mut self, outbound: &mut Outbound, changes: Vec<Change>, rejected: Vec<Rejected>) {
        self.hand_over(outbound, None, true, changes, rejected);
    }

    fn hand_over(
        &mut self,
        outbound: &mut Outbound,
        incoming: Option<&Incoming<'_>>,
        is_compared: bool,
        changes: Vec<Change>,
        rejected: Vec<Rejected>,
    ) {
        let Some(session) = outbound.session.clone() else { return };
        let message = incoming.and_then(|incoming| incoming.id);
        // It is sent every 5 s until it is acknowledged.
        if message.is_some() && self.pending.values().any(|pending| pending.message == message) {
            outbound.counters.repeated += 1;
            return;
        }
        self.next_receipt += 1;
        let answer = incoming.map(message::Answer::to);
        self.pending.insert(self.next_receipt, Pending { message, answer, is_compared });
        let receipt = self.next_receipt;
        outbound.frames.push_back(Received::Objects(Objects { session, changes, rejected, receipt }));
    }

    /// The machine has reported a batch. Objects that are wrong themselves are acknowledged, so that they do not hold up
    /// the queue of CloudCore; what finds no room is not: nothing is acknowledged that a later moment could store.
    /// Returns how many rows were changed by what was asked for.
    pub(super) fn reported(&mut self, outbound: &mut Outbound, report: &Report) -> u64 {
        let Some(pending) = self.pending.remove(&report.receipt) else { return 0 };
        let changes = if pending.is_compared { report.to.saturating_sub(report.from) } else { 0 };
        let Some(answer) = pending.answer else { return changes };
        let for_want_of_room = |rejected: &Rejected| {
            matches!(rejected.reason, RejectReason::StoreFull | RejectReason::StoreUnavailable)
        };
        if report.rejected.iter().any(for_want_of_room) {
            outbound.counters.withheld += 1;
            return changes;
        }
        outbound.counters.rejected += u64::from(!report.rejected.is_empty());
        self.send(outbound, &answer);
        changes
    }

    /// Acknowledges a message of which nothing is stored.
    pub(super) fn acknowledge(&mut self, outbound: &mut Outbound, incoming: &Incoming<'_>) {
        self.send(outbound, &message::Answer::to(incoming));
    }

    fn send(&mut self, outbound: &mut Outbound, answer: &message::Answer) {
        outbound.counters.acknowledged += 1;
        self.acknowledged_at = Some(outbound.at.wall);
        outbound.send(&answer.draft());
    }
}
