//! The queue of outputs that the machine's owner has not pulled yet, and the last announced counts.
//!
//! Confirms, Leases and Hello requests are cumulative: a newer one replaces an unsent older one.

use std::collections::VecDeque;
use std::time::Duration;

use crate::frame::{Confirm, Down, HelloRequest, InventoryRequest, Welcome};
use crate::metered::Waiting;
use crate::renewal::{Renewal, Stay};
use crate::timing::Now;
use crate::upload::UploadConfirm;

use super::types::{CloudEffect, CloudNotice};

/// The shortest time between two Confirms: under load, one covers many reports.
pub(super) const CONFIRM_INTERVAL: Duration = Duration::from_millis(50);

/// Queued effects and frames of one machine.
#[derive(Debug, Default)]
pub(super) struct Output {
    effects: VecDeque<CloudEffect>,
    frames: VecDeque<Down>,
    /// The pending and held back counts in the last Welcome or Confirm.
    announced: (u64, u64),
    /// Whether a Confirm is due as soon as [`CONFIRM_INTERVAL`] permits it.
    wants_confirm: bool,
    /// When the last Confirm of the session was sent.
    confirmed_at: Option<Now>,
    /// Whether a new incarnation was requested within the current one.
    has_reported_loss: bool,
}

impl Output {
    /// Drops the outputs that only the current session needs, and the notice of a Welcome that was
    /// not sent.
    pub(super) fn end_session(&mut self) {
        self.frames.clear();
        (self.wants_confirm, self.confirmed_at) = (false, None);
        self.effects.retain(|effect| {
            !matches!(effect, CloudEffect::Load { .. } | CloudEffect::Notice(CloudNotice::Welcomed { .. }))
        });
    }

    /// Begins an incarnation: a loss reported in the last one is resolved.
    pub(super) fn begin_incarnation(&mut self) {
        self.has_reported_loss = false;
        self.effects.retain(|effect| !matches!(effect, CloudEffect::RollbackClaimed));
    }

    pub(super) fn next_effect(&mut self) -> Option<CloudEffect> {
        self.effects.pop_front()
    }

    pub(super) fn next_frame(&mut self) -> Option<Down> {
        self.frames.pop_front()
    }

    pub(super) fn effect(&mut self, effect: CloudEffect) {
        self.effects.push_back(effect);
    }

    pub(super) fn notice(&mut self, notice: CloudNotice) {
        self.effect(CloudEffect::Notice(notice));
    }

    /// Reports the loss of the cloud's store, once per incarnation.
    pub(super) fn report_loss(&mut self) {
        if !std::mem::replace(&mut self.has_reported_loss, true) {
            self.effect(CloudEffect::RollbackClaimed);
        }
    }

    /// Queues a renewal of the Lease; an unpolled earlier one is dropped.
    /// One that repeats the terms adds nothing to it.
    pub(super) fn renew(&mut self, renewal: Renewal) {
        let is_renewal = |effect: &CloudEffect| matches!(effect, CloudEffect::Renew(_));
        if renewal == Renewal::Again && self.effects.iter().any(is_renewal) {
            return;
        }
        self.effects.retain(|effect| !is_renewal(effect));
        self.effect(CloudEffect::Renew(renewal));
    }

    /// Returns whether the node knows these pending and held back counts.
    pub(super) fn has_announced(&self, pending: u64, held: u64) -> bool {
        self.announced == (pending, held)
    }

    pub(super) fn welcome(&mut self, welcome: Welcome) {
        self.announced = (welcome.pending, welcome.held);
        self.wants_confirm = false;
        self.drop_confirms();
        self.frames.push_back(Down::Welcome(welcome));
    }

    /// Requests a Confirm of everything recorded by then.
    pub(super) fn request_confirm(&mut self) {
        self.wants_confirm = true;
    }

    /// Returns when the requested Confirm may be sent; `None` if none is requested.
    pub(super) fn confirm_at(&self) -> Option<Now> {
        let at = || self.confirmed_at.map_or(Now::ZERO, |last| last + CONFIRM_INTERVAL);
        self.wants_confirm.then(at)
    }

    pub(super) fn confirm(&mut self, now: Now, confirm: Confirm) {
        (self.wants_confirm, self.confirmed_at) = (false, Some(now));
        self.announced = (confirm.pending, confirm.held);
        self.drop_confirms();
        self.frames.push_back(Down::Confirm(confirm));
    }

    fn drop_confirms(&mut self) {
        self.frames.retain(|frame| !matches!(frame, Down::Confirm(_)));
    }

    /// Acknowledges the Hello of a node that waits for its Welcome. Announces nothing.
    pub(super) fn acknowledge_hello(&mut self, session: String, held: u64) {
        let (waiting, receipt) = (Waiting::default(), 0);
        let confirm = Confirm { session, revision: 0, pending: 1, held, waiting, receipt };
        self.frames.push_back(Down::Confirm(confirm));
    }

    pub(super) fn request_inventory(&mut self, request: InventoryRequest) {
        self.frames.push_back(Down::InventoryRequest(request));
    }

    /// Requests a Hello. The first reason counts: later frames of an ended session are refused for
    /// having none.
    pub(super) fn request_hello(&mut self, session: String, reason: String, retry_after_seconds: u64) {
        let is_asked =
            |frame: &Down| matches!(frame, Down::HelloRequest(waiting) if waiting.session == session);
        if self.frames.iter().any(is_asked) {
            return;
        }
        self.frames.retain(|frame| !matches!(frame, Down::HelloRequest(_)));
        let request = HelloRequest { session, reason, retry_after_seconds, removed: false };
        self.frames.push_back(Down::HelloRequest(request));
    }

    pub(super) fn confirm_upload(&mut self, confirm: UploadConfirm) {
        self.frames.retain(|frame| !matches!(frame, Down::UploadConfirm(_)));
        self.frames.push_back(Down::UploadConfirm(confirm));
    }

    /// Queues a request to stay; an unsent earlier one is dropped.
    pub(super) fn stay(&mut self, stay: Stay) {
        self.frames.retain(|frame| !matches!(frame, Down::Stay(_)));
        self.frames.push_back(Down::Stay(stay));
    }

    /// Returns whether a confirm of an upload is unsent.
    pub(super) fn has_upload_confirm(&self) -> bool {
        self.frames.iter().any(|frame| matches!(frame, Down::UploadConfirm(_)))
    }

    /// Returns the number of entries in memory.
    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.effects.len() + self.frames.len()
    }

    #[cfg(test)]
    pub(super) fn clear_frames(&mut self) {
        self.frames.clear();
        self.wants_confirm = false;
    }
}
