//! Keeps to the terms of a metered link: holds back objects that may not come over it, and sends no
//! more bytes than the node's credit.
//!
//! Removals may always come; they need credit as everything else does. Each frame with objects
//! counts with all of its bytes before compression, which is more than it takes on the line.

use std::collections::VecDeque;
use std::time::Duration;

use edgesync_object::urgency::Urgency;

#[cfg(any(test, feature = "simulation"))]
use crate::fault::{Fault, planted};
use crate::frame::Credit;
use crate::metered::{MeteredLink, Waiting};

use super::desired::DesiredState;
use super::parts::PartNeed;
use super::queue::{Action, Lane};
use super::sender::FRAME_OVERHEAD;
use super::{CloudMachine, Phase};
use crate::change::{ObjectRef, Uid};
use crate::timing::Now;

/// Bytes of a message beside the JSON of its object, an estimate. A message that is larger than
/// estimated waits for a credit that suffices.
const MESSAGE_OVERHEAD: usize = 256;
/// The shortest time between two Confirms that only have other numbers of objects that wait for
/// the link: each costs a metered link some hundred bytes.
const WAITING_INTERVAL: Duration = Duration::from_secs(60);
/// The time after which a node is asked again for a credit. It doubles with each request, up to
/// half an hour.
const FIRST_REQUEST: Duration = Duration::from_secs(30);
const MAX_DOUBLINGS: u32 = 6;
/// The most frames counted one by one until the node's next credit.
const MAX_FRAMES: usize = 64;

/// The reason why an object may not come over the link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum HeldFor {
    Urgency,
    Size,
    /// It is removed by a new object of its name, which has not arrived.
    Replacement,
}

/// The terms of the session; nothing is allocated for a node on another link.
#[derive(Debug, Default)]
pub(super) struct Metered {
    state: Option<Box<State>>,
    /// The objects that waited at the end of the last session, if any did.
    waited: Option<Box<Waiting>>,
}

#[derive(Debug)]
struct State {
    link: MeteredLink,
    /// The frames with objects that the node may not have received when it granted its credit: the
    /// receipt and the bytes of each, the oldest first.
    sent: VecDeque<(u64, u64)>,
    /// Their bytes.
    bytes: u64,
    /// The receipt of the newest frame with objects.
    newest: u64,
    /// The highest urgency of the objects that have been taken to be sent in parts since there were
    /// none.
    large: Urgency,
    /// The receipt in the last credit.
    granted_at: u64,
    /// The objects that wait in the last Welcome or Confirm, the receipt beside them, and when it
    /// was sent.
    announced: (Waiting, u64),
    announced_at: Now,
    /// The Confirms that asked for a credit since the last frame with objects.
    requests: u32,
}

impl Metered {
    /// Begins a session with these terms.
    pub(super) fn begin(&mut self, link: Option<MeteredLink>) {
        let state = |link| State {
            link,
            sent: VecDeque::new(),
            bytes: 0,
            newest: 0,
            large: Urgency::Low,
            granted_at: 0,
            announced: (Waiting::default(), 0),
            announced_at: Now::ZERO,
            requests: 0,
        };
        self.state = link.map(|link| Box::new(state(link)));
        self.waited = None;
    }

    /// Ends the session. `left` waits for the link until the next one.
    fn end(&mut self, left: Waiting) {
        if self.state.take().is_some() {
            self.waited = (!left.is_none()).then(|| Box::new(left));
        }
    }

    pub(super) fn is_metered(&self) -> bool {
        self.state.is_some()
    }

    /// Records the urgency of an object that is taken to be sent in parts: the first one, or beside
    /// others.
    pub(super) fn take_large(&mut self, urgency: Urgency, is_first: bool) {
        if let Some(state) = self.state.as_deref_mut() {
            state.large = if is_first { urgency } else { state.large.max(urgency) };
        }
    }

    /// Returns whether an object may come over the link; if not, why.
    pub(super) fn admits(&self, urgency: Urgency, size: usize) -> Result<(), HeldFor> {
        let Some(state) = &self.state else { return Ok(()) };
        #[cfg(any(test, feature = "simulation"))]
        if planted(Fault::TermsIgnored) {
            return Ok(());
        }
        if urgency < state.link.urgency {
            return Err(HeldFor::Urgency);
        }
        match state.link.size {
            Some(most) if size as u64 > most => Err(HeldFor::Size),
            _ => Ok(()),
        }
    }

    /// Returns the bytes of frames that may still be sent; `None` without a limit.
    pub(super) fn left(&self) -> Option<usize> {
        let state = self.state.as_deref()?;
        #[cfg(any(test, feature = "simulation"))]
        if planted(Fault::CreditIgnored) {
            return None;
        }
        let left = state.link.credit?.saturating_sub(state.bytes);
        Some(usize::try_from(left).unwrap_or(usize::MAX))
    }

    /// Counts a frame with objects that leaves with this receipt.
    pub(super) fn on_sent(&mut self, receipt: u64, bytes: usize) {
        let Some(state) = self.state.as_deref_mut() else { return };
        let bytes = bytes as u64;
        (state.newest, state.requests) = (receipt, 0);
        if state.link.credit.is_none() {
            return;
        }
        state.bytes = state.bytes.saturating_add(bytes);
        let is_full = state.sent.len() >= MAX_FRAMES;
        match state.sent.back_mut().filter(|_| is_full) {
            // Both count until the newer one has arrived.
            Some(last) => *last = (receipt, last.1.saturating_add(bytes)),
            None => state.sent.push_back((receipt, bytes)),
        }
    }

    /// Replaces the credit.
    fn grant(&mut self, bytes: u64, receipt: u64) {
        let Some(state) = self.state.as_deref_mut() else { return };
        let Some(credit) = &mut state.link.credit else { return };
        // A broker may repeat an earlier credit.
        if receipt < state.granted_at {
            return;
        }
        state.granted_at = receipt;
        *credit = bytes;
        #[cfg(any(test, feature = "simulation"))]
        let receipt = if planted(Fault::CreditForgetsFlight) { u64::MAX } else { receipt };
        while let Some((_, arrived)) = state.sent.pop_front_if(|(sent, _)| *sent <= receipt) {
            state.bytes = state.bytes.saturating_sub(arrived);
        }
    }

    /// Records the objects that wait in a Welcome.
    pub(super) fn on_welcome(&mut self, now: Now, waiting: Waiting) {
        if let Some(state) = self.state.as_deref_mut() {
            (state.announced, state.announced_at) = ((waiting, 0), now);
        }
    }

    /// Records the objects that wait in a Confirm, and the receipt beside them.
    pub(super) fn on_confirm(&mut self, now: Now, waiting: Waiting, receipt: u64) {
        let Some(state) = self.state.as_deref_mut() else { return };
        (state.announced, state.announced_at) = ((waiting, receipt), now);
        if waiting.credit > 0 {
            state.requests = state.requests.saturating_add(1);
        }
    }

    /// Returns whether the node has to know at once which objects wait for its link: the first or
    /// the last one does, or frames up to this receipt have used up its credit.
    pub(super) fn is_news(&self, waiting: Waiting, receipt: u64) -> bool {
        let Some(State { announced: (known, known_receipt), .. }) = self.state.as_deref() else {
            return false;
        };
        let is_starved = waiting.credit > 0 && (known.credit == 0 || *known_receipt != receipt);
        is_starved || known.is_none() != waiting.is_none()
    }

    /// Returns when these objects that wait are due in a Confirm: other numbers after
    /// [`WAITING_INTERVAL`]; the want of a credit repeatedly, because the last Confirm or the
    /// credit may be lost.
    fn due_at(&self, waiting: Waiting) -> Option<Now> {
        let state = self.state.as_deref()?;
        let factor = 1 << state.requests.saturating_sub(1).min(MAX_DOUBLINGS);
        let request = (waiting.credit > 0).then(|| FIRST_REQUEST.saturating_mul(factor));
        let change = (state.announced.0 != waiting).then_some(WAITING_INTERVAL);
        change.into_iter().chain(request).min().map(|after| state.announced_at + after)
    }

    /// Returns the receipt of the newest frame with objects; zero if there is none.
    pub(super) fn newest(&self) -> u64 {
        self.state.as_deref().map_or(0, |state| state.newest)
    }
}

/// Returns the bytes of a frame with one message about an object of this size.
fn frame_with(size: usize) -> usize {
    size.saturating_add(MESSAGE_OVERHEAD + FRAME_OVERHEAD)
}

/// Returns the size of the largest object whose message fits into `left` bytes of a frame, beside
/// `messages` messages about `bytes` bytes of objects; `None` if none does.
fn fitting(left: usize, messages: usize, bytes: usize) -> Option<usize> {
    let taken = frame_with(bytes).saturating_add(messages * MESSAGE_OVERHEAD);
    left.checked_sub(taken)
}

impl CloudMachine {
    /// Handles a credit of the current session.
    pub(super) fn credit(&mut self, credit: Credit) {
        if self.phase.session() != Some(&credit.session) {
            return self.refuse_unknown(credit.session);
        }
        if self.is_live() {
            self.metered.grant(credit.bytes, credit.receipt);
        }
    }

    /// Ends the metered session of a node that disconnects: what has not been sent waits.
    pub(super) fn end_metered(&mut self) {
        if !self.is_live() || !self.metered.is_metered() {
            return;
        }
        let mut left = self.waiting();
        if self.metered.left().is_some() {
            left.credit = (self.queue.len() + self.sender.unsent()) as u64;
        }
        self.metered.end(left);
    }

    /// Returns the urgency of the next object that is sent in parts.
    fn large_urgency(&self) -> Option<Urgency> {
        #[cfg(any(test, feature = "simulation"))]
        if planted(Fault::UrgencyUnordered) {
            return None;
        }
        let taken = self.metered.state.as_deref().map(|state| state.large);
        let taken = taken.filter(|_| self.sender.is_preparing(Lane::Large));
        taken.max(self.queue.most_urgent(Lane::Large))
    }

    /// Returns the next small object that the credit suffices for, with `messages` messages of
    /// `bytes` bytes before it in the frame. The most urgent objects come first, and of those the
    /// smallest; but no object comes before a more urgent large one. Removals wait for none.
    pub(super) fn next_small(&self, messages: usize, bytes: usize) -> Option<(Uid, Action)> {
        let floor = self.large_urgency().unwrap_or(Urgency::Low);
        let most = match self.metered.left() {
            None => usize::MAX,
            Some(left) => fitting(left, messages, bytes)?,
        };
        self.queue.first_within(Lane::Small, most, floor).or_else(|| self.queue.first_removal())
    }

    /// Returns the object that replaces one to remove on a metered link and has not arrived: the
    /// node removes the old one with it, and keeps it until then.
    pub(super) fn replacement(&self, uid: &Uid, object: &ObjectRef) -> Option<Uid> {
        if !self.metered.is_metered() {
            return None;
        }
        let key = object.key();
        // Its own message may still be in preparation.
        let is_other = |found: &&Uid| *found != uid;
        let queued = self.queue.put_named(&key).filter(is_other);
        queued.or_else(|| self.sender.put_named(&key).filter(is_other)).cloned()
    }

    /// Reconsiders the removals that an object delayed, once it waits no longer.
    pub(super) fn release_replaced(&mut self, now: Now, uid: &Uid, desired: &impl DesiredState) {
        if self.is_scheduled(uid) {
            return;
        }
        for replaced in self.queue.take_replaced(uid) {
            self.reconsider(now, &replaced, desired);
        }
    }

    /// Returns whether a more urgent object than this one waits to be sent in parts.
    pub(super) fn is_outranked(&self, uid: &Uid, desired: &impl DesiredState) -> bool {
        let urgency = desired.get(uid).map(|latest| latest.urgency);
        self.metered.is_metered() && self.queue.most_urgent(Lane::Large) > urgency
    }

    /// Returns whether nothing more can be sent with the credit, although objects remain.
    fn is_starved(&self) -> bool {
        let Some(left) = self.metered.left() else { return false };
        let is_loading = self.sender.is_loading(Lane::Small) || self.sender.is_loading(Lane::Large);
        let has_room = self.sender.has_room(self.settings.config.window_objects);
        let has_parts = self.sender.transfer.is_sending()
            || self.sender.next_large().is_some()
            || self.queue.most_urgent(Lane::Large).is_some();
        let has_message = self.sender.fits(left);
        let has_small = has_room && self.next_small(0, 0).is_some();
        !(is_loading || has_message || has_small || (has_parts && left >= PartNeed::BYTES))
    }

    /// Returns the number of objects and removals for which the credit does not suffice.
    pub(super) fn without_credit(&self) -> u64 {
        if !self.is_starved() {
            return 0;
        }
        (self.queue.len() + self.sender.unsent()) as u64
    }

    /// Returns when the next Confirm about objects that wait for the link is due.
    pub(super) fn waiting_at(&self) -> Option<Now> {
        if !self.metered.is_metered() || !self.is_live() {
            return None;
        }
        let (waiting, receipt) = self.waiting_now();
        let is_urgent = self.metered.is_news(waiting, receipt);
        // The Confirm of an object that is to come says it as well.
        let follows = waiting.credit == 0 && self.pending() > 0;
        if is_urgent || follows { None } else { self.metered.due_at(waiting) }
    }

    /// Returns the objects that wait for the link, with the receipt of the newest frame with
    /// objects, or zero if none waits for a credit.
    pub(super) fn waiting_now(&self) -> (Waiting, u64) {
        let waiting = self.waiting();
        (waiting, if waiting.credit > 0 { self.metered.newest() } else { 0 })
    }

    /// Returns whether an object, or its removal, waits for the link of the connected node.
    #[must_use]
    pub fn waits_for_link(&self, uid: &Uid) -> bool {
        let is_unsent = self.queue.is_queued(uid) || self.sender.is_unsent(uid);
        self.queue.is_held(uid) || (is_unsent && self.is_starved())
    }

    /// Returns the objects that wait for the node's link: now, or at the end of the last
    /// connection.
    #[must_use]
    pub fn waiting(&self) -> Waiting {
        if !matches!(self.phase, Phase::Live { .. }) {
            return self.metered.waited.as_deref().copied().unwrap_or_default();
        }
        let (urgency, size) = self.queue.held();
        Waiting { urgency, size, credit: self.without_credit() }
    }
}
