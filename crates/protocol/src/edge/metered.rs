//! The terms of a metered link: states them in the Hello, and grants the cloud side its credit.
//!
//! The Hello grants no credit. Frames of an earlier session may still be on their way, and the
//! Welcome follows them: only then does the owner of the link know what is left.

#[cfg(any(test, feature = "simulation"))]
use crate::fault::{Fault, planted};
use crate::frame::Up;
use crate::metered::{Credit, MeteredLink, Waiting};
use crate::timing::Now;

use super::{EdgeMachine, Phase};

/// The terms of the link, and the credit of the session.
#[derive(Debug, Default)]
pub(super) struct Metered {
    link: Option<MeteredLink>,
    /// The terms in the Hello of this session.
    offered: Option<MeteredLink>,
    /// Whether the cloud side reads credits.
    is_understood: bool,
    /// The bytes and the receipt of the last credit.
    granted: Option<(u64, u64)>,
    /// The newest receipt of this session.
    receipt: u64,
    /// The objects that wait for the link, as the cloud side says.
    pub(super) waiting: Waiting,
}

impl Metered {
    /// Begins a session. Returns the terms for its Hello.
    pub(super) fn offer(&mut self) -> Option<MeteredLink> {
        let offered = self.link.map(|link| MeteredLink { credit: link.credit.map(|_| 0), ..link });
        *self = Self { link: self.link, offered, ..Self::default() };
        offered
    }

    /// Forgets the session. What waits for the link keeps waiting.
    pub(super) fn end_session(&mut self) {
        *self = Self { link: self.link, waiting: self.waiting, ..Self::default() };
    }

    pub(super) fn welcomed(&mut self, is_understood: bool, waiting: Waiting) {
        (self.is_understood, self.waiting) = (is_understood, waiting);
    }

    /// Handles a Confirm. One that asks for a credit is answered with the present one, even if it
    /// is not new: the last may be lost.
    pub(super) fn confirmed(&mut self, waiting: Waiting, receipt: u64) {
        self.waiting = waiting;
        self.received(receipt);
        if waiting.credit > 0 {
            self.granted = None;
        }
    }

    /// Records the receipt of a frame.
    pub(super) fn received(&mut self, receipt: u64) {
        self.receipt = self.receipt.max(receipt);
    }

    /// Returns the credit to grant now: the cloud side waits for one, and this one is larger than
    /// the last, or frames have arrived since.
    fn next_credit(&mut self) -> Option<(u64, u64)> {
        let bytes = self.link?.credit.filter(|_| self.is_understood && self.waiting.credit > 0)?;
        let known = self.granted.unwrap_or((0, 0));
        let is_more = bytes > known.0 || (self.receipt > known.1 && bytes > 0);
        is_more.then(|| *self.granted.insert((bytes, self.receipt)))
    }
}

impl EdgeMachine {
    /// Sets the terms of the current link; `None` if it is not metered. Begins another session if
    /// they differ from those of the Hello by more than the credit.
    ///
    /// Call it with the credit that is left after each change of it, and after each turn in which
    /// frames were received: the credit must not count what they took.
    pub fn set_metered(&mut self, now: Now, link: Option<MeteredLink>, random: u64) {
        self.metered.link = link;
        let is_offered = match (&link, &self.metered.offered) {
            (Some(link), Some(offered)) => link.has_same_terms(offered),
            (link, offered) => link.is_none() && offered.is_none(),
        };
        match &self.phase {
            Phase::Greeting { .. } | Phase::Live { .. } if !is_offered => {
                self.forget_connection();
                self.settle(now, random, 0);
            }
            Phase::Live { session, .. } => {
                let session = session.clone();
                if let Some((bytes, receipt)) = self.metered.next_credit() {
                    self.frames.push_back(Up::Credit(Credit { session, bytes, receipt }));
                }
            }
            Phase::Greeting { .. } | Phase::Down | Phase::Settling | Phase::Pausing { .. } => {}
        }
    }

    /// Returns the objects that wait for the link, as the cloud side said last.
    #[must_use]
    pub fn waiting(&self) -> Waiting {
        self.metered.waiting
    }

    /// Returns whether nothing waits for the link.
    pub(super) fn nothing_waits(&self) -> bool {
        #[cfg(any(test, feature = "simulation"))]
        if planted(Fault::WaitingIsInSync) {
            return true;
        }
        self.metered.waiting.is_none()
    }
}
