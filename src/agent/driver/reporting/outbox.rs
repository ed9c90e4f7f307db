//! The outbox's way to the cloud: reads its pages for the machine, renumbers it after a restore,
//! and reports dropped and refused items.

use std::collections::BTreeMap;

use jiff::Timestamp;
use tokio::sync::watch;
use tokio::task::{JoinError, JoinHandle};

use crate::agent::driver::Driver;
use crate::agent::events::{EventReason, Regarding};
use crate::store::{EdgeStore, OutboxState};
use edgesync_admin::agent::LaneStatus;
use edgesync_protocol::edge::{EdgeEffect, OutboxMarks};
use edgesync_protocol::upload::{Content, Lane, Lanes, RefusedReason, UploadItem};
use edgesync_runtime::random;
use edgesync_store::StoreError;
use edgesync_transport::admission::LinePermit;

type Page = Result<Vec<UploadItem>, StoreError>;

/// Reads the outbox for the machine.
pub(in crate::agent) struct OutboxReader {
    pub(in crate::agent::driver) state: watch::Receiver<OutboxState>,
    /// State when the store was opened, before this run added anything.
    initial: OutboxMarks,
    /// The page that is being read.
    pub(in crate::agent::driver) page: Option<JoinHandle<Page>>,
    /// The renumbering in progress.
    pub(in crate::agent::driver) renumbering: Option<JoinHandle<Result<(), StoreError>>>,
    /// Dropped items that an Event has reported.
    dropped: Lanes,
}

impl OutboxReader {
    pub(super) fn new(store: &EdgeStore) -> Self {
        let state = store.outbox();
        let initial = state.borrow().marks.clone();
        Self { state, initial, page: None, renumbering: None, dropped: Lanes::default() }
    }

    /// Returns the outbox as the machine sees it: without Events unless their times are settled.
    fn marks(&self, times_are_settled: bool) -> OutboxMarks {
        let mut marks = self.state.borrow().marks.clone();
        if !times_are_settled {
            (marks.rows.events, marks.rows.bulk) = (0, 0);
        }
        marks
    }

    /// Returns a note about items dropped since the last call; `None` if there were none.
    fn dropped_note(&mut self) -> Option<String> {
        let dropped = self.state.borrow_and_update().dropped;
        let before = std::mem::replace(&mut self.dropped, dropped);
        if Lane::ALL.into_iter().all(|lane| dropped.get(lane) <= before.get(lane)) {
            return None;
        }
        let lanes: Vec<String> =
            Lane::ALL.into_iter().map(|lane| format!("{} {}", dropped.get(lane), lane.name())).collect();
        let lanes = lanes.join(", ");
        Some(format!("outbox full or items unreadable: {lanes} dropped since the agent started"))
    }

    /// Returns the status of the lanes.
    pub(in crate::agent::driver) fn show(&self) -> BTreeMap<String, LaneStatus> {
        let state = self.state.borrow();
        let shown = |lane: Lane| LaneStatus {
            waiting: state.marks.rows.get(lane),
            bytes: state.bytes.get(lane),
            dropped: state.dropped.get(lane),
        };
        Lane::ALL.into_iter().map(|lane| (lane.name().to_owned(), shown(lane))).collect()
    }
}

impl Driver {
    /// Passes the state at the start to the machine.
    pub(super) fn begin_outbox(&mut self) {
        let now = self.now();
        self.machine.outbox_changed(now, &self.reporting.outbox.initial);
        self.outbox_changed();
    }

    pub(in crate::agent::driver) fn outbox_changed(&mut self) {
        let marks = self.reporting.outbox.marks(self.reporting.times_are_settled());
        let now = self.now();
        self.statistics.ages.outbox(now, &marks);
        self.machine.outbox_changed(now, &marks);
        if let Some(note) = self.reporting.outbox.dropped_note() {
            self.reporting.events.emit(EventReason::OutboxOverflow, Regarding::Node, note);
        }
    }

    pub(in crate::agent::driver) fn outbox_read(&mut self, page: Result<Page, JoinError>) {
        self.reporting.outbox.page = None;
        let now = self.now();
        match page {
            Ok(Ok(items)) => self.machine.outbox_read(now, items),
            Ok(Err(error)) => {
                if let Some(LinePermit { suppressed }) = self.peer_log.reads.permit_line() {
                    tracing::warn!(%error, suppressed, "read of the outbox failed");
                }
                self.machine.outbox_failed(now);
            }
            Err(error) => {
                tracing::error!(%error, "read of the outbox ended early");
                self.machine.outbox_failed(now);
            }
        }
    }

    pub(in crate::agent::driver) fn renumbered(&mut self, result: Result<Result<(), StoreError>, JoinError>) {
        self.reporting.outbox.renumbering = None;
        let error = match result {
            Ok(Ok(())) => return,
            Ok(Err(error)) => error.to_string(),
            Err(error) => error.to_string(),
        };
        if let Some(LinePermit { suppressed }) = self.peer_log.uploads.permit_line() {
            tracing::error!(error, suppressed, "renumbering the outbox failed");
        }
        self.machine.outbox_failed(self.now());
    }

    /// Performs an effect that concerns the outbox or the Lease.
    pub(in crate::agent::driver) fn perform_outbox(&mut self, effect: &EdgeEffect) {
        let store = self.store.clone();
        let outbox = &mut self.reporting.outbox;
        match *effect {
            EdgeEffect::ReadOutbox { lane, after, limit, bytes } => {
                outbox.page =
                    Some(tokio::spawn(async move { store.outbox_page(lane, after, limit, bytes).await }));
            }
            EdgeEffect::SettleOutbox { lane, upto } => store.settle_outbox(lane, upto),
            EdgeEffect::RenumberOutbox { lane, sent, above } => {
                let lane_name = lane.name();
                if let Some(LinePermit { suppressed }) = self.peer_log.uploads.permit_line() {
                    tracing::warn!(
                        lane = lane_name,
                        sent,
                        above,
                        suppressed,
                        "database is an older copy: renumbering the outbox"
                    );
                }
                outbox.renumbering =
                    Some(tokio::spawn(async move { store.renumber_outbox(lane, sent, above).await }));
            }
            EdgeEffect::RenewLease => {
                let renewed = Timestamp::now().as_microsecond();
                self.machine.renew(self.now(), self.reporting.acquired, renewed, random());
            }
            _ => {}
        }
    }

    /// Reports an item that the cloud refused.
    pub(in crate::agent::driver) fn upload_refused(
        &self,
        content: &str,
        reason: RefusedReason,
        message: &str,
    ) {
        let status = match serde_json::from_str(content) {
            Ok(Content::Status(status)) => Some(status),
            _ => None,
        };
        let is_sealed = status.as_ref().is_some_and(|status| self.kinds.is_sealed(&status.object.key()));
        // The message may quote the refused object, and log and Events have more readers than the
        // object.
        let why = match is_sealed {
            true => format!("{reason:?} (message omitted: sealed kind)"),
            false => message.to_owned(),
        };
        // The content stays out of the log: it may be long or confidential.
        if let Some(LinePermit { suppressed }) = self.peer_log.uploads.permit_line() {
            tracing::warn!(?reason, why = &*why, suppressed, "upload refused by the cloud");
        }
        let Some(status) = status else { return };
        let note = format!("status refused by the cloud: {why}");
        let regarding = Regarding::Object(status.object, status.uid);
        self.reporting.events.emit(EventReason::StatusRefused, regarding, note);
    }
}
