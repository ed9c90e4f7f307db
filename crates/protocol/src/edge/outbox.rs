//! The outbox: items go out lane by lane, the most important lane first, one frame at a time, and are sent again
//! until the cloud has confirmed them end to end.
//!
//! Before the first items of a session a frame without items asks where the lanes stand at the cloud. If the cloud
//! names a number that this outbox cannot have sent, then the file is an older copy of itself: what a lost life gave
//! out after the copy is not to be given again, so the items that were never sent are renumbered above it.
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
/// What it has at first, and the least that it comes to.
const FIRST_BYTES: usize = 8 << 10;
const MIN_BYTES: usize = 4 << 10;
/// A frame that is confirmed within this time may be followed by a larger one; after more than this, a smaller one.
const QUICK: Duration = Duration::from_secs(2);
const SLOW: Duration = Duration::from_secs(4);
/// Room in a frame for what stands around the items, beside the id of the outbox.
const FRAME_OVERHEAD: usize = 256;
/// Room in a frame for what stands around the content of an item.
const ITEM_OVERHEAD: usize = 48;
/// So far above all that is known do renumbered items begin. More than can be put between the question and its
/// answer, so that a number beyond it tells that the renumbering is done.
const RENUMBER_GAP: u64 = 1 << 20;

/// Items that were never sent are to get other numbers.
#[derive(Clone, Copy, Debug)]
struct Renumbering {
    sent: u64,
    above: u64,
    asked: bool,
}

/// How one lane stands.
#[derive(Debug, Default)]
struct LaneState {
    /// The largest number that was given, as last told.
    last: u64,
    /// How many items wait, as last told.
    rows: u64,
    confirmed: u64,
    /// The largest number that was sent, or may have been sent in an earlier life of this file.
    sent: u64,
    /// The largest number that was sent in this life.
    tried: u64,
    /// Up to here nothing waits although there are rows: it was replaced or dropped.
    seen: u64,
    renumbering: Option<Renumbering>,
}

impl LaneState {
    fn waits(&self) -> bool {
        self.rows > 0 && self.last > self.confirmed.max(self.seen)
    }
}

/// A page that the store was asked for. It may be answered after the session, or the outbox, that it was for.
#[derive(Debug)]
struct Reading {
    lane: Lane,
    /// The largest number that was given when it was asked.
    last: u64,
    is_void: bool,
}

/// How many bytes of items a frame may have: as many as the line carries in a moment, because the reports of what arrives
/// meanwhile wait behind it.
#[derive(Debug)]
struct Page(usize);

impl Default for Page {
    fn default() -> Self {
        Self(FIRST_BYTES)
    }
}

impl Page {
    /// So many bytes of items were confirmed after this time.
    fn measure(&mut self, bytes: usize, time: Duration) {
        if time > SLOW {
            self.0 = (self.0 / 2).max(MIN_BYTES);
        } else if time < QUICK && bytes * 2 > self.0 {
            self.0 = (self.0 * 2).min(MAX_BYTES);
        }
    }
}

/// The one frame that is not confirmed. Without items it is the question with which a session begins.
#[derive(Debug)]
struct Flight {
    lane: Lane,
    items: Vec<UploadItem>,
    /// When it was made.
    at: Now,
    /// For a confirm: when it is over, the frame is sent again.
    wait: Wait,
}

#[derive(Debug, Default)]
pub(super) struct Outbox {
    id: String,
    lanes: [LaneState; Lane::ALL.len()],
    is_frugal: bool,
    /// Whether the cloud has said in this session where the lanes stand.
    is_probed: bool,
    reading: Option<Reading>,
    flight: Option<Flight>,
    page: Page,
    /// Frames in a row that were not confirmed in time.
    attempts: u32,
    /// After a failure of the store: when it is asked again.
    retry_at: Option<Now>,
    failures: u32,
}

impl Outbox {
    /// The most important lane in which something waits that may be sent.
    fn next_lane(&self) -> Option<Lane> {
        let may_go = |lane: &Lane| !(self.is_frugal && *lane == Lane::Bulk);
        Lane::ALL.into_iter().filter(may_go).find(|lane| self.lanes[lane.index()].waits())
    }

    fn lane(&mut self, lane: Lane) -> &mut LaneState {
        &mut self.lanes[lane.index()]
    }

    fn is_renumbering(&self) -> bool {
        self.lanes.iter().any(|lane| lane.renumbering.is_some())
    }

    /// What is under way for a session is of no use for the next one. A read goes on, its page does not count.
    fn forget_session(&mut self) {
        self.is_probed = false;
        self.flight = None;
        self.attempts = 0;
        if let Some(reading) = &mut self.reading {
            reading.is_void = true;
        }
    }

    fn restart(&mut self, marks: &OutboxMarks) {
        self.forget_session();
        self.id.clone_from(&marks.id);
        for lane in Lane::ALL {
            let (last, confirmed) = (marks.last.get(lane), marks.confirmed.get(lane));
            // All that is there may have been sent in an earlier life of the file.
            let sent = last.max(confirmed);
            *self.lane(lane) = LaneState { confirmed, sent, ..LaneState::default() };
        }
    }

    fn update(&mut self, marks: &OutboxMarks) {
        for lane in Lane::ALL {
            let state = self.lane(lane);
            state.last = marks.last.get(lane);
            state.rows = marks.rows.get(lane);
            if let Some(Renumbering { above, asked: true, .. }) = state.renumbering
                && state.last >= above
            {
                // Nothing has a number up to there any more.
                (state.sent, state.confirmed) = (above, above);
                state.renumbering = None;
                self.failures = 0;
            }
        }
    }

    fn deadline(&self) -> Option<Now> {
        earlier(self.flight.as_ref().map(|flight| flight.wait.until), self.retry_at)
    }

    /// The wait for a confirm.
    pub(super) fn wait(&mut self) -> Option<&mut Wait> {
        self.flight.as_mut().map(|flight| &mut flight.wait)
    }
}

impl EdgeMachine {
    /// The outbox stands like this now. To be told when it was opened, before anything is put into it: what it
    /// holds then may have been sent before. And then after each commit that changed it, and when a
    /// [`EdgeEffect::RenumberOutbox`] is done.
    pub fn outbox_changed(&mut self, now: Now, marks: &OutboxMarks) {
        if self.outbox.id != marks.id {
            self.outbox.restart(marks);
        }
        self.outbox.update(marks);
        self.probe(now);
    }

    /// Items were read, in order; none if there are none.
    pub fn outbox_read(&mut self, now: Now, mut items: Vec<UploadItem>) {
        let Some(Reading { lane, last, is_void: false }) = self.outbox.reading.take() else { return };
        self.outbox.failures = 0;
        let state = self.outbox.lane(lane);
        if items.is_empty() {
            state.seen = state.seen.max(last);
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
        items.truncate(fitting(&items, self.page_bytes()));
        let time = self.config.report_timeout.saturating_mul(1 << self.outbox.attempts.min(10));
        let time = time.min(self.config.retry_max.max(self.config.report_timeout));
        let wait = Wait::queued(now, time);
        self.outbox.flight = Some(Flight { lane, items, at: now, wait });
    }

    /// An item that fits into no frame must not keep the others waiting.
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

    /// The outbox could not be read, or not be renumbered: it is tried again later.
    pub fn outbox_failed(&mut self, now: Now) {
        if self.outbox.reading.take().is_none() {
            for lane in &mut self.outbox.lanes {
                if let Some(renumbering) = &mut lane.renumbering {
                    renumbering.asked = false;
                }
            }
        }
        let wait = self.config.report_timeout.saturating_mul(1 << self.outbox.failures.min(10));
        self.outbox.failures = self.outbox.failures.saturating_add(1);
        self.outbox.retry_at = Some(now + wait.min(self.config.retry_max));
    }

    /// While frugal only the lanes for status and the agent's Events are sent, and the Lease is renewed six times
    /// less often, with a duration to fit: the daily budget of bytes is spent.
    pub fn set_frugal(&mut self, now: Now, frugal: bool) {
        self.outbox.is_frugal = frugal;
        self.probe(now);
    }

    pub(super) fn is_frugal(&self) -> bool {
        self.outbox.is_frugal
    }

    /// Whether everything that waited when it was last told is confirmed.
    #[must_use]
    pub fn outbox_is_empty(&self) -> bool {
        !self.outbox.lanes.iter().any(LaneState::waits)
    }

    /// Whether the numbers of this life are known to be no other items' at the cloud.
    #[cfg(test)]
    pub(crate) fn outbox_is_compared(&self) -> bool {
        self.outbox.is_probed && !self.outbox.is_renumbering()
    }

    pub(super) fn forget_outbox_session(&mut self) {
        self.outbox.forget_session();
    }

    /// Prepares the question with which a session begins, once there is something to send.
    pub(super) fn probe(&mut self, now: Now) {
        let outbox = &mut self.outbox;
        if outbox.is_probed || outbox.flight.is_some() || !matches!(self.phase, Phase::Live { .. }) {
            return;
        }
        if let Some(lane) = outbox.next_lane() {
            let wait = Wait::queued(now, self.config.report_timeout);
            outbox.flight = Some(Flight { lane, items: Vec::new(), at: now, wait });
        }
    }

    /// What the store is to do for the outbox next, if anything.
    pub(super) fn next_outbox_effect(&mut self) -> Option<EdgeEffect> {
        let bytes = self.page_bytes();
        let outbox = &mut self.outbox;
        if outbox.reading.is_some() || outbox.retry_at.is_some() {
            return None;
        }
        if outbox.is_renumbering() {
            return Lane::ALL.into_iter().find_map(|lane| {
                let renumbering = outbox.lane(lane).renumbering.as_mut().filter(|it| !it.asked)?;
                renumbering.asked = true;
                let Renumbering { sent, above, .. } = *renumbering;
                Some(EdgeEffect::RenumberOutbox { lane, sent, above })
            });
        }
        let is_live = matches!(self.phase, Phase::Live { .. });
        if !is_live || !outbox.is_probed || outbox.flight.is_some() {
            return None;
        }
        let lane = outbox.next_lane()?;
        let state = outbox.lane(lane);
        let (after, last) = (state.confirmed, state.last);
        outbox.reading = Some(Reading { lane, last, is_void: false });
        Some(EdgeEffect::ReadOutbox { lane, after, limit: MAX_ITEMS, bytes })
    }

    fn page_bytes(&self) -> usize {
        let page = self.outbox.page.0;
        #[cfg(any(test, feature = "simulation"))]
        let page = if planted(Fault::FullUploads) { MAX_BYTES } else { page };
        page.min(self.max_frame() as usize / 4 * 3)
    }

    pub(super) fn has_upload(&self) -> bool {
        self.outbox.flight.as_ref().is_some_and(|flight| flight.wait.is_queued())
    }

    /// The frame that waits for the link.
    pub(super) fn next_upload(&mut self) -> Option<Up> {
        let number = self.last_frame() + 1;
        let Phase::Live { session, .. } = &self.phase else { return None };
        let outbox = &mut self.outbox;
        let flight = outbox.flight.as_mut().filter(|flight| flight.wait.is_queued())?;
        flight.wait.frame = number;
        let state = &mut outbox.lanes[flight.lane.index()];
        let upload = Upload {
            session: session.clone(),
            outbox: outbox.id.clone(),
            lane: flight.lane,
            confirmed: state.confirmed,
            items: flight.items.clone(),
        };
        let again = flight.items.iter().filter(|item| item.seq <= state.tried).count();
        self.counters.uploads_sent += upload.items.len() as u64;
        self.counters.uploads_resent += again as u64;
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
        let is_answered = self.outbox.flight.as_ref().is_some_and(|flight| {
            flight.items.last().is_none_or(|last| last.seq <= confirm.last.get(flight.lane))
        });
        if is_answered && let Some(flight) = self.outbox.flight.take() {
            self.outbox.is_probed = true;
            self.outbox.attempts = 0;
            let bytes = flight.items.iter().map(|item| item.content.get().len()).sum();
            self.outbox.page.measure(bytes, now.saturating_sub(flight.at));
            self.take_refused(&flight.items, confirm.refused);
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
            state.renumbering = Some(Renumbering { sent, above, asked: false });
            // It was made ready with numbers that are no good.
            self.outbox.flight.take_if(|flight| flight.lane == lane && !flight.items.is_empty());
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
        let Some(flight) = outbox.flight.as_mut().filter(|flight| flight.wait.until <= now) else { return };
        outbox.attempts = outbox.attempts.saturating_add(1);
        let is_probe = flight.items.is_empty();
        if next.is_some_and(|lane| is_probe || lane == flight.lane) {
            let min: Duration = self.config.report_timeout * 2;
            let time = backoff(min, self.config.retry_max, outbox.attempts, random);
            flight.wait = Wait::queued(now, time);
        } else {
            // Something more important has come meanwhile: that goes first, this is read again.
            outbox.flight = None;
        }
    }

    pub(super) fn outbox_deadline(&self) -> Option<Now> {
        self.outbox.deadline()
    }
}

/// How many of the items, at least one, may share a frame.
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
