//! Sends the outbox: the highest-priority lane first, one frame at a time, repeated until the cloud
//! has confirmed it end to end.
//!
//! The first upload of a session is a probe without items that asks for the confirmed numbers of
//! all lanes. If the cloud names a number that this outbox cannot have sent, the file is an older
//! copy of itself. Numbers that a lost life assigned after the copy must not be assigned again, so
//! the items that were never sent are renumbered above them.
//!
//! The machine holds numbers and at most one frame; items are read when they can be sent.

use std::time::Duration;

#[cfg(any(test, feature = "simulation"))]
use crate::fault::{Fault, planted};
use crate::frame::{Up, UploadConfirm};
use crate::timing::{Now, backoff, earlier};
use crate::upload::{Lane, MAX_SEQ, Refused, RefusedReason, Upload, UploadItem};
use crate::wait::Wait;

use super::{EdgeEffect, EdgeMachine, EdgeNotice, OutboxMarks, Phase};

/// The most items in a frame.
const MAX_ITEMS: usize = 128;
/// The most bytes of items in a frame, unless a single item is longer.
const MAX_BYTES: usize = 32 << 10;
/// The initial window and its minimum, in bytes of items.
const FIRST_BYTES: usize = 8 << 10;
const MIN_BYTES: usize = 4 << 10;
/// A confirm within this time allows a larger window; one after `SLOW` a smaller one.
const QUICK: Duration = Duration::from_secs(2);
const SLOW: Duration = Duration::from_secs(4);
/// Frame bytes around the items, without the id of the outbox.
const FRAME_OVERHEAD: usize = 256;
/// Frame bytes around the content of an item.
const ITEM_OVERHEAD: usize = 48;
/// The gap between all known numbers and the first renumbered one. No outbox grows by as much
/// between request and answer, so a number beyond it proves that the renumbering is done.
const RENUMBER_GAP: u64 = 1 << 20;

/// A pending renumbering of items that were never sent.
#[derive(Clone, Copy, Debug)]
struct Renumbering {
    sent: u64,
    above: u64,
    requested: bool,
}

/// The numbers of one lane.
#[derive(Debug, Default)]
struct LaneState {
    /// The largest assigned number, as of the last update.
    last: u64,
    /// The number of pending items, as of the last update.
    rows: u64,
    confirmed: u64,
    /// The largest number sent, or possibly sent in an earlier life of this file.
    sent: u64,
    /// The largest number sent in this life.
    tried: u64,
    /// No item is pending up to here although rows remain: they were replaced or dropped.
    drained: u64,
    renumbering: Option<Renumbering>,
}

impl LaneState {
    fn has_pending(&self) -> bool {
        self.rows > 0 && self.last > self.confirmed.max(self.drained)
    }
}

/// A page requested from the store. The answer may outlive the session or the outbox of the
/// request.
#[derive(Debug)]
struct Reading {
    lane: Lane,
    /// The largest assigned number at the time of the request.
    last: u64,
    is_stale: bool,
}

/// The adaptive limit on bytes of items per frame: as much as the link carries in a moment, because
/// reports queue behind the frame.
#[derive(Debug)]
struct Window(usize);

impl Default for Window {
    fn default() -> Self {
        Self(FIRST_BYTES)
    }
}

impl Window {
    /// Adapts the window after `bytes` of items were confirmed within `time`.
    fn on_confirm(&mut self, bytes: usize, time: Duration) {
        if time > SLOW {
            self.0 = (self.0 / 2).max(MIN_BYTES);
        } else if time < QUICK && bytes * 2 > self.0 {
            self.0 = (self.0 * 2).min(MAX_BYTES);
        }
    }
}

/// The one unconfirmed frame. Without items it is the probe of a new session.
#[derive(Debug)]
struct InFlight {
    lane: Lane,
    items: Vec<UploadItem>,
    /// The time when it was built.
    at: Now,
    /// The timeout for its confirm; the frame is repeated afterwards.
    wait: Wait,
}

#[derive(Debug, Default)]
pub(super) struct Outbox {
    id: String,
    lanes: [LaneState; Lane::ALL.len()],
    is_frugal: bool,
    /// Whether nothing is sent: the link has no bytes left for a frame.
    is_held: bool,
    /// Whether the cloud has reported the confirmed numbers in this session.
    is_probed: bool,
    reading: Option<Reading>,
    in_flight: Option<InFlight>,
    window: Window,
    /// The number of consecutive frames without a timely confirm.
    attempts: u32,
    /// The time of the next attempt after a failure of the store.
    retry_at: Option<Now>,
    failures: u32,
}

impl Outbox {
    /// Returns the highest-priority lane with pending items that may be sent.
    fn next_lane(&self) -> Option<Lane> {
        let may_send = |lane: &Lane| !(self.is_held || self.is_frugal && *lane == Lane::Bulk);
        Lane::ALL.into_iter().filter(may_send).find(|lane| self.lanes[lane.index()].has_pending())
    }

    fn lane(&mut self, lane: Lane) -> &mut LaneState {
        &mut self.lanes[lane.index()]
    }

    fn is_renumbering(&self) -> bool {
        self.lanes.iter().any(|lane| lane.renumbering.is_some())
    }

    /// Drops the state of a session. A read in progress continues, but its page is discarded.
    fn forget_session(&mut self) {
        self.is_probed = false;
        self.in_flight = None;
        self.attempts = 0;
        if let Some(reading) = &mut self.reading {
            reading.is_stale = true;
        }
    }

    fn restart(&mut self, marks: &OutboxMarks) {
        self.forget_session();
        self.id.clone_from(&marks.id);
        for lane in Lane::ALL {
            let (last, confirmed) = (marks.last.get(lane), marks.confirmed.get(lane));
            // Any existing number may have been sent in an earlier life of the file.
            let sent = last.max(confirmed);
            *self.lane(lane) = LaneState { confirmed, sent, ..LaneState::default() };
        }
    }

    fn update(&mut self, marks: &OutboxMarks) {
        for lane in Lane::ALL {
            let state = self.lane(lane);
            state.last = marks.last.get(lane);
            state.rows = marks.rows.get(lane);
            if let Some(Renumbering { above, requested: true, .. }) = state.renumbering
                && state.last >= above
            {
                // No item has a number up to there any more.
                (state.sent, state.confirmed) = (above, above);
                state.renumbering = None;
                self.failures = 0;
            }
        }
    }

    fn deadline(&self) -> Option<Now> {
        earlier(self.in_flight.as_ref().map(|in_flight| in_flight.wait.until), self.retry_at)
    }

    /// Returns the timeout of the frame in flight.
    pub(super) fn wait(&mut self) -> Option<&mut Wait> {
        self.in_flight.as_mut().map(|in_flight| &mut in_flight.wait)
    }
}

impl EdgeMachine {
    /// Updates the state of the outbox.
    ///
    /// Call it when the outbox is opened, before the first item enters it: the items it holds then
    /// may have been sent before. Call it again after each commit that changed the outbox and after
    /// each [`EdgeEffect::RenumberOutbox`].
    pub fn outbox_changed(&mut self, now: Now, marks: &OutboxMarks) {
        if self.outbox.id != marks.id {
            self.outbox.restart(marks);
        }
        self.outbox.update(marks);
        self.probe(now);
    }

    /// Handles a page of items, in order; empty if there are none.
    pub fn outbox_read(&mut self, now: Now, mut items: Vec<UploadItem>) {
        let Some(Reading { lane, last, is_stale: false }) = self.outbox.reading.take() else { return };
        self.outbox.failures = 0;
        if self.outbox.is_held {
            return;
        }
        let state = self.outbox.lane(lane);
        if items.is_empty() {
            state.drained = state.drained.max(last);
        }
        items.retain(|item| item.seq > state.confirmed);
        if self.outbox.is_renumbering() {
            return;
        }
        let Some(first) = items.first() else { return self.probe(now) };
        let room = (self.max_frame() as usize).saturating_sub(FRAME_OVERHEAD + self.outbox.id.len());
        let size = first.content.get().len();
        if size + ITEM_OVERHEAD > room {
            let message = format!("must be at most {} bytes, has {size}", room.saturating_sub(ITEM_OVERHEAD));
            return self.refuse_item(lane, &items.swap_remove(0), message);
        }
        items.truncate(fitting(&items, self.window_bytes()));
        let time = self.config.report_timeout.saturating_mul(1 << self.outbox.attempts.min(10));
        let time = time.min(self.config.retry_max.max(self.config.report_timeout));
        let wait = Wait::queued(now, time);
        self.outbox.in_flight = Some(InFlight { lane, items, at: now, wait });
    }

    /// Refuses an item that fits into no frame, so that it does not block the lane.
    fn refuse_item(&mut self, lane: Lane, item: &UploadItem, message: String) {
        self.notice_refused(item, RefusedReason::Invalid, message);
        let state = self.outbox.lane(lane);
        state.sent = state.sent.max(item.seq);
        self.settle_outbox(lane, item.seq);
    }

    fn notice_refused(&mut self, item: &UploadItem, reason: RefusedReason, message: String) {
        self.counters.uploads_refused += 1;
        let content = item.content.get().to_owned();
        self.notice(EdgeNotice::UploadRefused { content, reason, message });
    }

    /// Handles a failed read or renumbering: it is retried later.
    pub fn outbox_failed(&mut self, now: Now) {
        if self.outbox.reading.take().is_none() {
            for lane in &mut self.outbox.lanes {
                if let Some(renumbering) = &mut lane.renumbering {
                    renumbering.requested = false;
                }
            }
        }
        let wait = self.config.report_timeout.saturating_mul(1 << self.outbox.failures.min(10));
        self.outbox.failures = self.outbox.failures.saturating_add(1);
        self.outbox.retry_at = Some(now + wait.min(self.config.retry_max));
    }

    /// Switches frugal mode, for an exhausted daily traffic budget. Only the lanes for status and
    /// the agent's Events are sent, and the Lease is renewed six times less often with a longer
    /// duration.
    pub fn set_frugal(&mut self, now: Now, frugal: bool) {
        self.outbox.is_frugal = frugal;
        self.probe(now);
    }

    /// Sets whether nothing of the outbox is sent: a metered link has no bytes left for a frame. A
    /// frame that waits is read again later.
    pub fn hold_outbox(&mut self, now: Now, held: bool) {
        if std::mem::replace(&mut self.outbox.is_held, held) == held {
            return;
        }
        if held {
            self.outbox.in_flight.take_if(|in_flight| in_flight.wait.is_queued());
        }
        self.probe(now);
    }

    pub(super) fn is_frugal(&self) -> bool {
        self.outbox.is_frugal
    }

    /// Returns whether every pending item of the last update is confirmed.
    #[must_use]
    pub fn outbox_is_empty(&self) -> bool {
        !self.outbox.lanes.iter().any(LaneState::has_pending)
    }

    /// Returns whether the numbers of this life are known to collide with no others at the cloud.
    #[cfg(test)]
    pub(crate) fn outbox_is_compared(&self) -> bool {
        self.outbox.is_probed && !self.outbox.is_renumbering()
    }

    pub(super) fn forget_outbox_session(&mut self) {
        self.outbox.forget_session();
    }

    /// Prepares the probe of a session, once there is something to send.
    pub(super) fn probe(&mut self, now: Now) {
        let outbox = &mut self.outbox;
        if outbox.is_probed || outbox.in_flight.is_some() || !matches!(self.phase, Phase::Live { .. }) {
            return;
        }
        if let Some(lane) = outbox.next_lane() {
            let wait = Wait::queued(now, self.config.report_timeout);
            outbox.in_flight = Some(InFlight { lane, items: Vec::new(), at: now, wait });
        }
    }

    /// Returns the next work on the outbox for the store.
    pub(super) fn next_outbox_effect(&mut self) -> Option<EdgeEffect> {
        let bytes = self.window_bytes();
        let outbox = &mut self.outbox;
        if outbox.reading.is_some() || outbox.retry_at.is_some() {
            return None;
        }
        let next = Lane::ALL.into_iter().find(|lane| outbox.lane(*lane).renumbering.is_some());
        if let Some(lane) = next {
            // One at a time, so that a failure concerns this one.
            let renumbering = outbox.lane(lane).renumbering.as_mut().filter(|it| !it.requested)?;
            renumbering.requested = true;
            let Renumbering { sent, above, .. } = *renumbering;
            return Some(EdgeEffect::RenumberOutbox { lane, sent, above });
        }
        let is_live = matches!(self.phase, Phase::Live { .. });
        if !is_live || !outbox.is_probed || outbox.in_flight.is_some() {
            return None;
        }
        let lane = outbox.next_lane()?;
        let state = outbox.lane(lane);
        let (after, last) = (state.confirmed, state.last);
        outbox.reading = Some(Reading { lane, last, is_stale: false });
        Some(EdgeEffect::ReadOutbox { lane, after, limit: MAX_ITEMS, bytes })
    }

    fn window_bytes(&self) -> usize {
        let window = self.outbox.window.0;
        #[cfg(any(test, feature = "simulation"))]
        let window = if planted(Fault::FullUploads) { MAX_BYTES } else { window };
        window.min(self.max_frame() as usize / 4 * 3)
    }

    pub(super) fn has_upload(&self) -> bool {
        self.outbox.in_flight.as_ref().is_some_and(|in_flight| in_flight.wait.is_queued())
    }

    /// Returns the frame that waits for the link.
    pub(super) fn next_upload(&mut self) -> Option<Up> {
        let number = self.last_frame() + 1;
        let Phase::Live { session, .. } = &self.phase else { return None };
        let outbox = &mut self.outbox;
        let in_flight = outbox.in_flight.as_mut().filter(|in_flight| in_flight.wait.is_queued())?;
        in_flight.wait.frame = number;
        let state = &mut outbox.lanes[in_flight.lane.index()];
        let upload = Upload {
            session: session.clone(),
            outbox: outbox.id.clone(),
            lane: in_flight.lane,
            confirmed: state.confirmed,
            items: in_flight.items.clone(),
        };
        let resent = in_flight.items.iter().filter(|item| item.seq <= state.tried).count();
        self.counters.uploads_sent += upload.items.len() as u64;
        self.counters.uploads_resent += resent as u64;
        if let Some(last) = upload.items.last() {
            state.tried = state.tried.max(last.seq);
            state.sent = state.sent.max(last.seq);
            #[cfg(any(test, feature = "simulation"))]
            if planted(Fault::SettleWhenSent) {
                self.settle_outbox(upload.lane, last.seq);
            }
        }
        Some(Up::Upload(upload))
    }

    pub(super) fn upload_confirmed(&mut self, now: Now, confirm: UploadConfirm) {
        if !self.is_live(&confirm.session) {
            return self.foreign(now);
        }
        let is_sane = Lane::ALL.into_iter().all(|lane| confirm.last.get(lane) <= MAX_SEQ);
        if confirm.outbox != self.outbox.id || !is_sane {
            return;
        }
        for lane in Lane::ALL {
            self.lane_confirmed(lane, confirm.last.get(lane));
        }
        let is_answered = self.outbox.in_flight.as_ref().is_some_and(|in_flight| {
            in_flight.items.last().is_none_or(|last| last.seq <= confirm.last.get(in_flight.lane))
        });
        if is_answered && let Some(in_flight) = self.outbox.in_flight.take() {
            self.outbox.is_probed = true;
            self.outbox.attempts = 0;
            let bytes = in_flight.items.iter().map(|item| item.content.get().len()).sum();
            self.outbox.window.on_confirm(bytes, now.saturating_sub(in_flight.at));
            self.take_refused(&in_flight.items, confirm.refused);
        }
    }

    fn lane_confirmed(&mut self, lane: Lane, number: u64) {
        let state = self.outbox.lane(lane);
        if state.renumbering.is_some() {
            return;
        }
        let sent = state.sent;
        if number > sent {
            #[cfg(any(test, feature = "simulation"))]
            if planted(Fault::NoRenumbering) {
                state.sent = number;
                return self.settle_outbox(lane, number);
            }
            let above = number.max(state.last).saturating_add(RENUMBER_GAP);
            state.renumbering = Some(Renumbering { sent, above, requested: false });
            // The frame has numbers that are void now.
            self.outbox.in_flight.take_if(|in_flight| in_flight.lane == lane && !in_flight.items.is_empty());
        }
        self.settle_outbox(lane, number.min(sent));
    }

    fn settle_outbox(&mut self, lane: Lane, upto: u64) {
        let state = self.outbox.lane(lane);
        if upto > state.confirmed {
            state.confirmed = upto;
            self.effects.push_back(EdgeEffect::SettleOutbox { lane, upto });
        }
    }

    fn take_refused(&mut self, items: &[UploadItem], refused: Vec<Refused>) {
        for Refused { seq, reason, message } in refused {
            if let Ok(at) = items.binary_search_by_key(&seq, |item| item.seq) {
                self.notice_refused(&items[at], reason, message);
            }
        }
    }

    pub(super) fn tick_outbox(&mut self, now: Now, random: u64) {
        let outbox = &mut self.outbox;
        if outbox.retry_at.is_some_and(|at| at <= now) {
            outbox.retry_at = None;
        }
        let next = outbox.next_lane();
        let Some(in_flight) = outbox.in_flight.as_mut().filter(|in_flight| in_flight.wait.until <= now)
        else {
            return;
        };
        outbox.attempts = outbox.attempts.saturating_add(1);
        let is_probe = in_flight.items.is_empty();
        if next.is_some_and(|lane| is_probe || lane == in_flight.lane) {
            let min: Duration = self.config.report_timeout * 2;
            let time = backoff(min, self.config.retry_max, outbox.attempts, random);
            in_flight.wait = Wait::queued(now, time);
        } else {
            // A higher-priority item has arrived: it goes first, and this frame is read again
            // later.
            outbox.in_flight = None;
        }
    }

    pub(super) fn outbox_deadline(&self) -> Option<Now> {
        self.outbox.deadline()
    }
}

/// Returns how many of the items, at least one, fit into one frame.
fn fitting(items: &[UploadItem], bytes: usize) -> usize {
    let mut used = 0;
    let fits = items.iter().take(MAX_ITEMS).take_while(|item| {
        used += item.content.get().len() + ITEM_OVERHEAD;
        used <= bytes
    });
    fits.count().max(1)
}

#[cfg(test)]
mod tests;
