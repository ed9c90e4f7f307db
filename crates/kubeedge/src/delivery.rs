//! Passes objects to the machine with a receipt, and acknowledges a message when the report with
//! its receipt arrives after the commit.

use std::collections::BTreeMap;

use super::message::MessageId;
use super::message::{self, Incoming};
use super::object::Kinds;
use super::outbound::Outbound;
use edgesync_protocol::change::{Change, RejectReason, Rejected};
use edgesync_protocol::frame::{Objects, Received, Report};

/// A message whose commit is in flight.
#[derive(Debug)]
struct Pending {
    message: Option<MessageId>,
    /// The acknowledgement without id and timestamp.
    answer: Option<message::Answer>,
    /// Whether it was queried: its changes are differences to CloudCore's state.
    is_compared: bool,
}

/// The messages whose commits are in flight.
#[derive(Debug, Default)]
pub(super) struct Delivery {
    /// The kinds by their lower-case names in messages.
    pub(super) kinds: Kinds,
    /// Pending messages by receipt.
    pending: BTreeMap<u64, Pending>,
    next_receipt: u64,
    pub(super) acknowledged_at: Option<i64>,
}

impl Delivery {
    /// Ends the connection or the machine's session: nothing is acknowledged any more.
    pub(super) fn forget(&mut self) {
        self.pending.clear();
    }

    /// Returns the number of commits in flight.
    pub(super) fn pending(&self) -> u64 {
        self.pending.len() as u64
    }

    /// Returns whether a commit of a queried object is in flight.
    pub(super) fn has_compared(&self) -> bool {
        self.pending.values().any(|pending| pending.is_compared)
    }

    /// Passes a change to the machine. `is_compared` means that it was queried.
    pub(super) fn begin(
        &mut self,
        outbound: &mut Outbound,
        incoming: &Incoming<'_>,
        change: Change,
        is_compared: bool,
    ) {
        self.hand_over(outbound, Some(incoming), is_compared, vec![change], Vec::new());
    }

    /// Passes the rejection of a message's object to the machine, which counts and shows it like
    /// any other.
    pub(super) fn reject(&mut self, outbound: &mut Outbound, incoming: &Incoming<'_>, rejected: Rejected) {
        self.hand_over(outbound, Some(incoming), false, Vec::new(), vec![rejected]);
    }

    /// Passes changes without an acknowledgement to the machine: parts of a list, findings of a
    /// round.
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
        // CloudCore repeats it every 5 s until it is acknowledged.
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

    /// Handles the report of a batch. Invalid objects are acknowledged, so that they do not block
    /// the queue of CloudCore. Objects that the store could not save are not, because a later
    /// attempt may succeed. Returns the number of rows changed by queries.
    pub(super) fn reported(&mut self, outbound: &mut Outbound, report: &Report) -> u64 {
        let Some(pending) = self.pending.remove(&report.receipt) else { return 0 };
        let changes = if pending.is_compared { report.to.saturating_sub(report.from) } else { 0 };
        let Some(answer) = pending.answer else { return changes };
        let is_store_failure = |rejected: &Rejected| {
            matches!(rejected.reason, RejectReason::StoreFull | RejectReason::StoreUnavailable)
        };
        if report.rejected.iter().any(is_store_failure) {
            outbound.counters.withheld += 1;
            return changes;
        }
        outbound.counters.rejected += u64::from(!report.rejected.is_empty());
        self.send(outbound, &answer);
        changes
    }

    /// Acknowledges a message without an object to store.
    pub(super) fn acknowledge(&mut self, outbound: &mut Outbound, incoming: &Incoming<'_>) {
        self.send(outbound, &message::Answer::to(incoming));
    }

    fn send(&mut self, outbound: &mut Outbound, answer: &message::Answer) {
        outbound.counters.acknowledged += 1;
        self.acknowledged_at = Some(outbound.at.wall);
        outbound.send(&answer.draft());
    }
}
