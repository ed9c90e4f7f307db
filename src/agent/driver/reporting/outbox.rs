//! The outbox's way to the cloud: reads its pages for the machine, renumbers it after a restore,
//! and reports dropped and refused items.

use std::collections::BTreeMap;

use tokio::sync::watch;
use tokio::task::{JoinError, JoinHandle};

use super::Reporting;
use crate::agent::driver::peer_log::PeerLog;
use crate::agent::events::{EventReason, Regarding};
use crate::agent::kinds::KindRegistry;
use crate::store::{EdgeStore, OutboxState};
use edgesync_admin::agent::LaneStatus;
use edgesync_protocol::edge::OutboxMarks;
use edgesync_protocol::upload::{Content, Lane, Lanes, RefusedReason, UploadItem};
use edgesync_store::StoreError;
use edgesync_transport::admission::LinePermit;

pub(in crate::agent::driver) type Page = Result<Vec<UploadItem>, StoreError>;
pub(in crate::agent::driver) type Renumbered = Result<(), StoreError>;

/// Numbers for renumbering a lane.
#[derive(Clone, Copy, Debug)]
pub(in crate::agent::driver) struct Renumbering {
    pub(in crate::agent::driver) lane: Lane,
    /// Items with larger numbers have never been sent.
    pub(in crate::agent::driver) sent: u64,
    /// The new numbers start above this one.
    pub(in crate::agent::driver) above: u64,
}

/// Reads the outbox for the machine.
pub(in crate::agent) struct OutboxReader {
    pub(in crate::agent::driver) state: watch::Receiver<OutboxState>,
    /// State when the store was opened, before this run added anything.
    pub(super) initial: OutboxMarks,
    /// The page that is being read.
    pub(in crate::agent::driver) page: Option<JoinHandle<Page>>,
    /// The renumbering in progress.
    pub(in crate::agent::driver) renumbering: Option<JoinHandle<Renumbered>>,
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
    pub(super) fn marks(&self, times_are_settled: bool) -> OutboxMarks {
        let mut marks = self.state.borrow().marks.clone();
        if !times_are_settled {
            (marks.rows.events, marks.rows.bulk) = (0, 0);
        }
        marks
    }

    /// Returns a note about items dropped since the last call; `None` if there were none.
    pub(super) fn dropped_note(&mut self) -> Option<String> {
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

    /// Starts the read of a page of items after a number.
    pub(in crate::agent::driver) fn begin_read(
        &mut self,
        store: EdgeStore,
        lane: Lane,
        after: u64,
        limit: usize,
        bytes: usize,
    ) {
        self.page = Some(tokio::spawn(async move { store.outbox_page(lane, after, limit, bytes).await }));
    }

    /// Ends the read. Returns the items for the machine; `None` if they could not be read.
    pub(in crate::agent::driver) fn end_read(
        &mut self,
        page: Result<Page, JoinError>,
        peer_log: &PeerLog,
    ) -> Option<Vec<UploadItem>> {
        self.page = None;
        match page {
            Ok(Ok(items)) => return Some(items),
            Ok(Err(error)) => {
                if let Some(LinePermit { suppressed }) = peer_log.reads.permit_line() {
                    tracing::warn!(%error, suppressed, "read of the outbox failed");
                }
            }
            Err(error) => tracing::error!(%error, "read of the outbox ended early"),
        }
        None
    }

    /// Starts to renumber a lane: its database is an older copy.
    pub(in crate::agent::driver) fn begin_renumbering(
        &mut self,
        store: EdgeStore,
        renumbering: Renumbering,
        peer_log: &PeerLog,
    ) {
        let Renumbering { lane, sent, above } = renumbering;
        let lane_name = lane.name();
        if let Some(LinePermit { suppressed }) = peer_log.uploads.permit_line() {
            tracing::warn!(
                lane = lane_name,
                sent,
                above,
                suppressed,
                "database is an older copy: renumbering the outbox"
            );
        }
        self.renumbering = Some(tokio::spawn(async move { store.renumber_outbox(lane, sent, above).await }));
    }

    /// Ends the renumbering. Returns whether the lane was renumbered.
    pub(in crate::agent::driver) fn end_renumbering(
        &mut self,
        result: Result<Renumbered, JoinError>,
        peer_log: &PeerLog,
    ) -> bool {
        self.renumbering = None;
        let error = match result {
            Ok(Ok(())) => return true,
            Ok(Err(error)) => error.to_string(),
            Err(error) => error.to_string(),
        };
        if let Some(LinePermit { suppressed }) = peer_log.uploads.permit_line() {
            tracing::error!(error, suppressed, "renumbering the outbox failed");
        }
        false
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

impl Reporting {
    /// Reports an item that the cloud refused.
    pub(in crate::agent::driver) fn upload_refused(
        &self,
        kinds: &KindRegistry,
        peer_log: &PeerLog,
        content: &str,
        reason: RefusedReason,
        message: &str,
    ) {
        let status = match serde_json::from_str(content) {
            Ok(Content::Status(status)) => Some(status),
            _ => None,
        };
        let is_sealed = status.as_ref().is_some_and(|status| kinds.is_sealed(&status.object.key()));
        // The message may quote the refused object, and log and Events have more readers than the
        // object.
        let why = match is_sealed {
            true => format!("{reason:?} (message omitted: sealed kind)"),
            false => message.to_owned(),
        };
        // The content stays out of the log: it may be long or confidential.
        if let Some(LinePermit { suppressed }) = peer_log.uploads.permit_line() {
            tracing::warn!(?reason, why = &*why, suppressed, "upload refused by the cloud");
        }
        let Some(status) = status else { return };
        let note = format!("status refused by the cloud: {why}");
        let regarding = Regarding::Object(status.object, status.uid);
        self.events.emit(EventReason::StatusRefused, regarding, note);
    }
}
