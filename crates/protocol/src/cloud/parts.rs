//! A message that is larger than a frame on its way to the node: sent in parts, one message at a
//! time, and continued in the next session where the node holds it.
//!
//! The Hello names what the node holds of a message, with the digest of the whole. Only a message
//! with that digest is continued. The text of a message that was begun is kept over the end of a
//! session, because the store may have a newer version of the object by then.

use std::collections::VecDeque;
use std::ops::{Deref, DerefMut};

use crate::change::Uid;
use crate::digest::{Epoch, MessageDigest};
#[cfg(any(test, feature = "simulation"))]
use crate::fault::{Fault, planted};
use crate::frame::{Part, PartialMessage};
use crate::message::MessageText;
use crate::patch::Patch;
use edgesync_object::ResourceVersion;

use super::PeerLimits;
use super::desired::Desired;
use super::sender::{Departed, FRAME_OVERHEAD, Ready};

/// The smallest part of a message in bytes, unless its rest is smaller.
const MIN_PART: usize = 4096;
/// About twice the bytes that a part costs beside its data: the rest of its frame, the answer, and
/// the headers below.
const PART_COST: usize = 1000;
/// Until the line is cut during a message, a part is at most this share of it: a part that is cut
/// off is lost.
const PART_SHARE: usize = 32;
/// The smallest such share in bytes.
const MIN_PART_SHARE: usize = 16 << 10;

/// The bytes that a part needs.
pub(super) struct PartNeed;

impl PartNeed {
    /// The bytes of the frame of the smallest part, at most: a piece of JSON text at most doubles
    /// in size as a JSON string.
    pub(super) const BYTES: usize = FRAME_OVERHEAD + 2 * MIN_PART;

    /// Returns the longest piece whose frame takes at most `left` bytes; `None` if the smallest one
    /// may take more.
    pub(super) fn most(left: usize) -> Option<usize> {
        (left >= Self::BYTES).then(|| (left - FRAME_OVERHEAD) / 2)
    }

    /// Returns the bytes of a piece as a JSON string, without the quotes.
    pub(super) fn written(data: &str) -> usize {
        data.len() + data.bytes().filter(|byte| matches!(byte, b'"' | b'\\')).count()
    }
}

/// The effect of the node's answer to a part.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Progress {
    /// No part is missing so far.
    Continues,
    /// A part is missing: sending resumes there.
    Resumed,
    /// A part is missing although all were sent: the message has to be taken up again.
    Lost,
}

/// A message being sent in parts, until the node has reported its object.
#[derive(Debug)]
struct Parts {
    ready: Ready,
    digest: MessageDigest,
    offset: usize,
    /// The bytes that the node has acknowledged.
    arrived: usize,
    /// The unacknowledged frames with parts, each with the end of its part.
    sent: VecDeque<(u64, usize)>,
}

impl Parts {
    fn is_sent(&self) -> bool {
        self.offset >= self.ready.text.len()
    }

    fn resume_at(&mut self, offset: usize) {
        (self.offset, self.arrived) = (offset, offset);
        self.sent.clear();
    }

    fn received(&mut self, received: usize, receipt: u64) -> Progress {
        let at = self.sent.iter().position(|(frame, _)| *frame == receipt);
        let last = at.and_then(|at| self.sent.drain(..=at).next_back());
        let Some((_, end)) = last else { return Progress::Continues };
        if received >= end {
            self.arrived = end;
            return Progress::Continues;
        }
        if !self.ready.text.is_char_boundary(received) {
            return Progress::Continues;
        }
        // The node dropped the parts after the missing one.
        let was_sent = self.is_sent();
        self.resume_at(received);
        if was_sent { Progress::Lost } else { Progress::Resumed }
    }
}

/// A message in parts that is not complete at the node.
#[derive(Clone, Debug)]
pub(super) struct Unfinished {
    pub(super) uid: Uid,
    pub(super) version: ResourceVersion,
    /// The version that it starts from, if it is a patch.
    pub(super) base: Option<ResourceVersion>,
    /// The bytes that the node lacks.
    left: u64,
}

impl Ready {
    /// Returns the identity of the message, of which the node lacks so many bytes.
    fn unfinished(&self, left: u64) -> Unfinished {
        let base = self.patch.as_ref().map(|patch| patch.base().clone());
        Unfinished { uid: self.out.uid.clone(), version: self.out.version.clone(), base, left }
    }
}

impl Unfinished {
    /// Returns whether the message is worth completing: its object is still desired in its version,
    /// or the newer version needs more bytes than the rest. An object that changes faster than it
    /// travels would never arrive otherwise.
    pub(super) fn is_continued(&self, latest: Option<&Desired>) -> bool {
        let Some(latest) = latest else { return false };
        if latest.is_exact {
            return latest.version == self.version;
        }
        // Also a version whose change has not been received here yet.
        if latest.version == self.version || latest.version.is_older_than(&self.version) {
            return true;
        }
        #[cfg(any(test, feature = "simulation"))]
        if planted(Fault::PartsOutrun) {
            return false;
        }
        self.version.is_older_than(&latest.version) && self.left <= latest.size as u64
    }
}

/// State of the messages in parts to a node, allocated only in a session and while something is
/// remembered.
#[derive(Debug, Default)]
pub(super) struct Transfers(Option<Box<Transfer>>);

static NONE: Transfer = Transfer::new();

impl Transfers {
    /// Ends the session, and frees what needs not be remembered.
    pub(super) fn end_session(&mut self) {
        self.0.take_if(|transfer| {
            transfer.end_session();
            transfer.begun.is_none() && transfer.carried.is_none()
        });
    }
}

impl Deref for Transfers {
    type Target = Transfer;

    fn deref(&self) -> &Transfer {
        self.0.as_deref().unwrap_or(&NONE)
    }
}

impl DerefMut for Transfers {
    fn deref_mut(&mut self) -> &mut Transfer {
        self.0.get_or_insert_with(|| Box::new(Transfer::new()))
    }
}

/// The one message in parts, and what is known of the last one.
#[derive(Debug)]
pub(super) struct Transfer {
    parts: Option<Box<Parts>>,
    /// The part that the node holds of a message that is not in flight, and whose object is still
    /// pending.
    partial: Option<Box<PartialMessage>>,
    /// The message that the last session has begun.
    begun: Option<Box<Ready>>,
    /// The bytes of parts that the node has acknowledged in this session.
    acknowledged: usize,
    /// The same of the last session, if it ended during a message.
    carried: Option<usize>,
}

impl Transfer {
    const fn new() -> Self {
        Self { parts: None, partial: None, begun: None, acknowledged: 0, carried: None }
    }

    /// Ends the session. The text of a message in parts stays.
    fn end_session(&mut self) {
        let carried = if self.parts.is_some() { Some(self.acknowledged) } else { self.carried };
        let begun = self.parts.take().map(|parts| Box::new(parts.ready)).or_else(|| self.begun.take());
        *self = Self { begun, carried, ..Self::new() };
    }

    /// Begins a session with a node that holds a part of this message. The text of another one is
    /// dropped.
    pub(super) fn begin_session(
        &mut self,
        partial: Option<Box<PartialMessage>>,
        epoch: Epoch,
        takes_patches: bool,
    ) {
        self.begun.take_if(|begun| {
            let is_held = |partial: &PartialMessage| {
                partial.is_same_message(&partial_of(begun, begun.text.digest(epoch), 0))
            };
            let is_known = begun.patch.is_none() || takes_patches;
            !is_known || !partial.as_deref().is_some_and(is_held)
        });
        self.partial = partial;
    }

    /// Returns the object of the message that the node holds a part of, while it is not being sent.
    pub(super) fn partial(&self) -> Option<(&Uid, &ResourceVersion)> {
        self.partial.as_deref().map(|partial| (&partial.uid, &partial.resource_version))
    }

    /// Returns the bytes that would complete the version of a patch on the node without it: those
    /// that it lacks of the whole object. Unlimited if it holds no part of that, or a part of the
    /// patch.
    pub(super) fn left_of(&self, patch: &Patch, epoch: Epoch) -> u64 {
        let is_it =
            |held: &PartialMessage| (&held.uid, &held.resource_version) == (patch.uid(), patch.version());
        let Some(held) = self.partial.as_deref().filter(|held| is_it(held)) else { return u64::MAX };
        let text = patch.to_text().map(MessageText::of_body).filter(|text| text.len() as u64 == held.total);
        if text.is_some_and(|text| text.digest(epoch) == held.digest) {
            return u64::MAX;
        }
        held.total.saturating_sub(held.received)
    }

    /// Forgets what the node holds of a message about this object: it is not to be sent.
    pub(super) fn forget_partial(&mut self, uid: &Uid) {
        if self.partial.take_if(|partial| partial.uid == *uid).is_some() {
            self.begun = None;
        }
    }

    /// Returns the message that the last session has begun and the node holds a part of.
    pub(super) fn begun(&self) -> Option<Unfinished> {
        let (begun, partial) = (self.begun.as_deref()?, self.partial.as_deref()?);
        Some(begun.unfinished(partial.total.saturating_sub(partial.received)))
    }

    /// Takes the message that the last session has begun.
    pub(super) fn take_begun(&mut self) -> Option<Ready> {
        self.begun.take().map(|begun| *begun)
    }

    /// Returns whether a text is kept although there is no session.
    pub(super) fn has_begun(&self) -> bool {
        self.begun.is_some()
    }

    /// Returns whether a message is being sent.
    pub(super) fn is_sending(&self) -> bool {
        self.parts.as_ref().is_some_and(|parts| !parts.is_sent())
    }

    /// Returns the message that is being sent.
    pub(super) fn sending(&self) -> Option<Unfinished> {
        let parts = self.parts.as_deref().filter(|parts| !parts.is_sent())?;
        let left = parts.ready.text.len().saturating_sub(parts.arrived) as u64;
        Some(parts.ready.unfinished(left))
    }

    /// Begins a message, where the node holds it. What the node holds of another one is void then:
    /// it receives one message at a time.
    pub(super) fn begin(&mut self, ready: Ready, epoch: Epoch) {
        let digest = ready.text.digest(epoch);
        let whole = partial_of(&ready, digest, 0);
        let held = self.partial.take().filter(|partial| partial.is_same_message(&whole));
        let offset = held.and_then(|partial| usize::try_from(partial.received).ok()).unwrap_or(0);
        #[cfg(any(test, feature = "simulation"))]
        let offset = if planted(Fault::PartsFromStart) { 0 } else { offset };
        let is_inside = offset < ready.text.len() && ready.text.is_char_boundary(offset);
        let offset = if is_inside { offset } else { 0 };
        self.begun = None;
        self.parts = Some(Box::new(Parts { ready, digest, offset, arrived: offset, sent: VecDeque::new() }));
    }

    /// Returns whether the message being sent is about this version of an object.
    pub(super) fn is_about(&self, uid: &Uid, version: &ResourceVersion) -> bool {
        let is_it = |parts: &Parts| (&parts.ready.out.uid, &parts.ready.out.version) == (uid, version);
        self.parts.as_deref().is_some_and(is_it)
    }

    /// Stops sending the message about this object.
    pub(super) fn abort(&mut self, uid: &Uid) {
        self.forget_partial(uid);
        self.parts.take_if(|parts| parts.ready.out.uid == *uid);
    }

    /// Ends the message about this object, which was sent as a whole: the node has reported it.
    pub(super) fn end(&mut self, uid: &Uid) {
        if self.parts.take_if(|parts| parts.is_sent() && parts.ready.out.uid == *uid).is_some() {
            self.carried = None;
        }
    }

    /// Handles the loss of the message about this object: it continues after the part that the node
    /// holds.
    pub(super) fn lose(&mut self, uid: &Uid) {
        let Some(parts) = self.parts.take_if(|parts| parts.ready.out.uid == *uid) else { return };
        let partial = partial_of(&parts.ready, parts.digest, parts.arrived);
        self.partial = (parts.arrived > 0).then(|| Box::new(partial));
        // The text is needed only to continue.
        self.begun = self.partial.is_some().then(|| Box::new(parts.ready));
    }

    /// Sends all unacknowledged parts again.
    pub(super) fn restart(&mut self) {
        if let Some(parts) = self.parts.as_deref_mut().filter(|parts| !parts.is_sent()) {
            parts.resume_at(parts.arrived);
        }
    }

    /// Handles the node's progress on a message, its answer to a frame.
    pub(super) fn received(&mut self, uid: &Uid, received: Option<u64>, receipt: u64) -> Progress {
        let parts = self.parts.as_deref_mut().filter(|parts| parts.ready.out.uid == *uid);
        let (Some(parts), Some(received)) = (parts, received.and_then(|it| usize::try_from(it).ok())) else {
            return Progress::Continues;
        };
        let before = parts.arrived;
        let progress = parts.received(received, receipt);
        self.acknowledged += parts.arrived.saturating_sub(before);
        progress
    }

    /// Cuts the next part off the message, for the frame of this number. The last part also returns
    /// the message and its length.
    pub(super) fn cut(
        &mut self,
        session: &str,
        limits: PeerLimits,
        receipt: u64,
        capacity: usize,
    ) -> Option<(Part, Option<(Departed, usize)>)> {
        let (carried, acknowledged) = (self.carried, self.acknowledged);
        let parts = self.parts.as_deref_mut().filter(|parts| !parts.is_sent())?;
        let Parts { ready, digest, offset, sent, .. } = parts;
        let is_announced =
            ready.out.body.as_ref().is_some_and(|body| body.as_str().len() > limits.max_object);
        let most = match carried {
            // The next connection will probably carry as much. A cut loses half a part on average:
            // with this length that equals the cost of the other parts, and their sum is the least.
            Some(carried) => carried.max(acknowledged).saturating_mul(PART_COST).isqrt(),
            None => (ready.text.len() / PART_SHARE).max(MIN_PART_SHARE),
        };
        // A piece of JSON text at most doubles in size as a JSON string.
        let room = ((limits.max_frame - FRAME_OVERHEAD) / 2).min(capacity.min(most).max(MIN_PART));
        let data = if is_announced { String::new() } else { ready.text.cut(*offset, room) };
        let (end, total) = (*offset + data.len(), ready.text.len());
        let part = Part {
            session: session.to_owned(),
            receipt,
            uid: ready.out.uid.clone(),
            resource_version: ready.out.version.clone(),
            offset: *offset as u64,
            total: total as u64,
            data,
            digest: (!is_announced).then_some(*digest),
            object: is_announced.then(|| Box::new(ready.out.object_ref())),
        };
        if is_announced {
            let departed = ready.departed();
            self.parts = None;
            return Some((part, Some((departed, end))));
        }
        *offset = end;
        sent.push_back((receipt, end));
        let whole = (end == total).then(|| (ready.departed(), end));
        Some((part, whole))
    }
}

/// Returns the part of a message that a node holds with this number of its bytes.
fn partial_of(ready: &Ready, digest: MessageDigest, received: usize) -> PartialMessage {
    PartialMessage {
        uid: ready.out.uid.clone(),
        resource_version: ready.out.version.clone(),
        total: ready.text.len() as u64,
        digest,
        received: received as u64,
    }
}
