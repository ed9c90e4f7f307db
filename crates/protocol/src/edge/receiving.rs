//! Receives a message that is larger than a frame, over sessions and restarts.
//!
//! The store keeps its first bytes in pieces of bounded size, so that memory does not grow with the
//! message. The Hello names what is kept, and the cloud continues there.

use crate::change::{RejectReason, Rejected, Uid};
#[cfg(any(test, feature = "simulation"))]
use crate::fault::{Fault, planted};
use crate::frame::{Part, PartialMessage, Report};
use crate::parts::{self, Arrival, Assembler};
use crate::timing::Now;

use super::{EdgeEffect, EdgeMachine, Phase};

/// The message in parts, and the work of the store on it.
#[derive(Debug, Default)]
pub(super) struct Receiving {
    parts: Assembler,
    /// The pieces that the store has not answered.
    keeping: usize,
    /// Whether the store reads what it keeps: the Hello waits for it.
    is_reading: bool,
}

impl Receiving {
    /// Returns the number of pieces that the store has not answered.
    pub(super) fn keeping(&self) -> usize {
        self.keeping
    }

    /// Returns whether the state of the message is known.
    pub(super) fn is_known(&self) -> bool {
        !self.is_reading
    }

    /// Returns whether a message about this object is arriving.
    pub(super) fn is_about(&self, uid: &str) -> bool {
        self.parts.is_about(uid)
    }

    /// Returns whether the store keeps bytes of the message that is arriving.
    pub(super) fn is_kept(&self) -> bool {
        self.parts.is_kept()
    }

    /// Returns what has arrived, for a Hello.
    pub(super) fn partial(&self) -> Option<Box<PartialMessage>> {
        self.parts.partial().map(Box::new)
    }
}

impl EdgeMachine {
    /// Continues a message of an earlier run: reads what the store keeps of it. Call it before the
    /// first connection. Without it, nothing is continued.
    pub fn restore_parts(&mut self) {
        self.receiving.is_reading = true;
        self.effects.push_back(EdgeEffect::ReadParts);
    }

    /// Handles the answer to [`EdgeEffect::ReadParts`]: the message with the number of sound bytes
    /// kept, `None` if there are none, they cannot be read, or the link never sends parts. Then
    /// the store drops what else it keeps, such as the pieces after a damaged first one.
    pub fn parts_read(&mut self, now: Now, kept: Option<PartialMessage>, random: u64) {
        if !std::mem::take(&mut self.receiving.is_reading) {
            return;
        }
        #[cfg(any(test, feature = "simulation"))]
        let kept = kept.filter(|_| !planted(Fault::PartsForgotten));
        match kept {
            Some(kept) => self.receiving.parts.resume(kept, u64::from(self.config.max_object)),
            None => self.effects.push_back(EdgeEffect::DropParts),
        }
        self.drop_stale_parts();
        if matches!(self.phase, Phase::Settling) {
            self.settle(now, random, 0);
        }
    }

    /// Handles the answer to [`EdgeEffect::KeepPart`]: whether the bytes are kept, `false` if those
    /// before them are gone. The cloud sends the message from its start then. A message that the
    /// store cannot keep is rejected: the cloud sends it after a while.
    pub fn part_kept(&mut self, message: &PartialMessage, result: Result<bool, (RejectReason, String)>) {
        self.receiving.keeping = self.receiving.keeping.saturating_sub(1);
        if matches!(result, Ok(true)) || !self.receiving.parts.not_kept(message) {
            return;
        }
        self.drop_stale_parts();
        let Err((reason, text)) = result else { return };
        let rejected = Rejected {
            uid: message.uid.clone(),
            resource_version: message.resource_version.clone(),
            reason,
            message: text,
            object: None,
        };
        self.apply(Vec::new(), vec![rejected], 0);
    }

    pub(super) fn part(&mut self, now: Now, part: Part) {
        if !self.is_live(&part.session) {
            return self.foreign(now);
        }
        self.extend_waits_for_objects(now);
        let (uid, receipt) = (part.uid.clone(), part.receipt);
        self.metered.received(receipt);
        let arrival = self.receiving.parts.take(part, u64::from(self.config.max_object));
        self.drop_stale_parts();
        match arrival {
            Arrival::Incomplete { received } => {
                self.keep_part(parts::piece_bytes(self.config.max_frame as usize));
                self.report_parts(Some(uid), received, receipt);
            }
            Arrival::Kept { message, rest } => self.apply_parts(message, rest, receipt),
            Arrival::Whole { text, digest } => {
                let max_object = self.config.max_object as usize;
                let change = match digest {
                    Some(digest) => parts::assemble(&text, digest, self.totals.epoch, max_object),
                    None => Some(parts::parse(&text, max_object)),
                };
                match change {
                    Some(Ok(change)) => self.apply(vec![change], Vec::new(), receipt),
                    Some(Err(rejected)) => self.apply(Vec::new(), vec![rejected], receipt),
                    None => self.report_parts(Some(uid), 0, receipt),
                }
            }
            Arrival::Rejected(rejected) => self.apply(Vec::new(), vec![rejected], receipt),
        }
    }

    /// Reports how much of a message has arrived.
    pub(super) fn report_parts(&mut self, receiving: Option<Uid>, received: u64, receipt: u64) {
        let (at, received) = (self.totals.revision, Some(received));
        self.report(Report { from: at, to: at, receiving, received, receipt, ..Report::default() });
    }

    /// Gives the bytes in memory to the store, if they are at least so many.
    fn keep_part(&mut self, least: usize) {
        if let Some((message, text)) = self.receiving.parts.cut(least) {
            self.receiving.keeping += 1;
            self.effects.push_back(EdgeEffect::KeepPart { message, text });
        }
    }

    /// Keeps what has arrived for the next session. Memory holds only a little while the link is
    /// down, and a restart loses no more than that.
    pub(super) fn suspend_parts(&mut self) {
        self.receiving.parts.end_session();
        self.keep_part(parts::min_piece_bytes(self.config.max_frame as usize));
    }

    /// Drops the message that is arriving: the cloud does not continue it.
    pub(super) fn drop_parts(&mut self) {
        self.receiving.parts.forget();
        self.drop_stale_parts();
    }

    fn drop_stale_parts(&mut self) {
        if self.receiving.parts.take_stale() {
            self.effects.push_back(EdgeEffect::DropParts);
        }
    }
}

#[cfg(test)]
mod tests;
