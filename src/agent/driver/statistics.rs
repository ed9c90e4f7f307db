//! Counters and ages of the loop, for status and metrics.

use std::collections::BTreeMap;

use jiff::Timestamp;

use crate::agent::metrics::{Ages, LimitsHit, Rejections};
use edgesync_admin::agent::RejectedObject;
use edgesync_protocol::change::{RejectReason, Uid};

/// Rejected objects that the status lists.
const MAX_REJECTED: usize = 64;

/// Text that replaces a message for readers who may not read sealed objects.
const OMITTED: &str = "message omitted: sealed kind; hint: 'edgesync status' as root";

/// An object rejected now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Rejection {
    pub(super) object: RejectedObject,
    /// Whether the message may quote an object that is sealed.
    pub(super) is_sealed: bool,
}

impl Rejection {
    /// Returns the message. Status, log and Events have more readers than a sealed object.
    pub(super) fn message(&self, reads_sealed: bool) -> &str {
        if self.is_sealed && !reads_sealed { OMITTED } else { &self.object.message }
    }

    /// Returns the object for the status.
    pub(super) fn show(&self, reads_sealed: bool) -> RejectedObject {
        RejectedObject { message: self.message(reads_sealed).to_owned(), ..self.object.clone() }
    }
}

/// Change of the sync state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SyncChange {
    Unchanged,
    InSync,
    OutOfSync,
}

/// Counters, ages and rejected objects.
#[derive(Default)]
pub(super) struct Statistics {
    /// Unreadable frames, by error.
    pub(super) bad_frames: BTreeMap<&'static str, u64>,
    pub(super) limits: LimitsHit,
    pub(super) rejections: Rejections,
    /// Objects rejected now, by UID.
    pub(super) rejected: BTreeMap<String, Rejection>,
    pub(super) ages: Ages,
    /// When the cloud last confirmed a report.
    pub(super) last_report: Option<Timestamp>,
    pub(super) in_sync_since: Option<Timestamp>,
    /// Deletions that the cloud holds back.
    held_back: u64,
}

impl Statistics {
    /// Counts an unreadable frame. Returns the count of the same error.
    pub(super) fn count_bad_frame(&mut self, error: &'static str) -> u64 {
        let count = self.bad_frames.entry(error).or_default();
        *count += 1;
        *count
    }

    pub(super) fn count_rejection(&mut self, reason: RejectReason) {
        self.rejections.add(reason);
        match reason {
            RejectReason::TooLarge => self.limits.object_size += 1,
            RejectReason::StoreFull => self.limits.store_size += 1,
            _ => {}
        }
    }

    /// Records a rejected object; evicts another one at the limit.
    pub(super) fn remember_rejected(&mut self, uid: &Uid, entry: Rejection) {
        if self.rejected.len() >= MAX_REJECTED && !self.rejected.contains_key(&**uid) {
            self.rejected.pop_first();
        }
        self.rejected.insert(uid.to_string(), entry);
    }

    /// Records whether the node is in sync.
    pub(super) fn observe_sync(&mut self, in_sync: bool) -> SyncChange {
        match (in_sync, self.in_sync_since) {
            (true, None) => {
                self.in_sync_since = Some(Timestamp::now());
                SyncChange::InSync
            }
            (false, Some(_)) => {
                self.in_sync_since = None;
                SyncChange::OutOfSync
            }
            _ => SyncChange::Unchanged,
        }
    }

    /// Records how many deletions the cloud holds back. Returns whether it has just begun to.
    pub(super) fn observe_held_back(&mut self, held: u64) -> bool {
        let before = std::mem::replace(&mut self.held_back, held);
        held > 0 && before == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rejected(message: &str) -> Rejection {
        let object = RejectedObject {
            uid: "u".to_owned(),
            object: None,
            resource_version: "1".to_owned(),
            reason: "Invalid".to_owned(),
            message: message.to_owned(),
        };
        Rejection { object, is_sealed: false }
    }

    #[test]
    fn messages_about_sealed_objects_are_for_their_readers() {
        let plain = rejected("invalid value 'hunter2'");
        let sealed = Rejection { is_sealed: true, ..plain.clone() };
        let quotes = |of: &Rejection, reads_sealed| of.show(reads_sealed).message.contains("hunter2");
        assert_eq!([quotes(&sealed, true), quotes(&sealed, false)], [true, false]);
        assert_eq!([quotes(&plain, true), quotes(&plain, false)], [true, true]);
        assert_eq!(sealed.show(false).reason, "Invalid", "one word remains");
    }

    #[test]
    fn rejected_objects_are_listed_up_to_the_limit() {
        let mut statistics = Statistics::default();
        for number in 0..=MAX_REJECTED {
            statistics.remember_rejected(&format!("{number:03}").into(), rejected("too large"));
        }
        assert_eq!(statistics.rejected.len(), MAX_REJECTED);
        assert!(!statistics.rejected.contains_key("000"));
        statistics.remember_rejected(&"001".into(), rejected("invalid"));
        assert_eq!(statistics.rejected.len(), MAX_REJECTED, "it replaces its own entry");
        assert_eq!(statistics.rejected["001"], rejected("invalid"));
    }

    #[test]
    fn changes_of_sync_and_held_deletions_are_reported_once() {
        let mut statistics = Statistics::default();
        assert_eq!(statistics.observe_sync(false), SyncChange::Unchanged);
        assert_eq!(statistics.observe_sync(true), SyncChange::InSync);
        assert_eq!(statistics.observe_sync(true), SyncChange::Unchanged);
        assert_eq!(statistics.observe_sync(false), SyncChange::OutOfSync);
        assert_eq!(
            [0, 3, 5, 0, 1].map(|held| statistics.observe_held_back(held)),
            [false, true, false, false, true]
        );
    }
}
