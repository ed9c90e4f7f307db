//! The handshake from Hello to Welcome.
//!
//! The node's reports are recorded first. The records are then proven equal to the objects that the
//! node holds, or rewritten until they are (guarantee G4). Only then is the difference sent.

use std::collections::HashSet;

use crate::change::Uid;
use crate::digest::{BucketSet, Digest};
#[cfg(any(test, feature = "simulation"))]
use crate::fault::{Fault, planted};
use crate::frame::{
    Hello, Inventory, InventoryRequest, Item, MIN_MAX_FRAME, PartialMessage, Report, Welcome,
};
use crate::timing::Now;
use edgesync_object::Budget;

use super::desired::DesiredState;
use super::ledger::Differences;
use super::pacing::STALLED;
use super::queue::Action;
use super::quota::{self, Allowance};
use super::{CloudEffect, CloudMachine, CloudNotice, CloudPhase, PeerLimits, Phase, Record};

/// The most inventories without equality before the node has to start a new session.
const MAX_REPAIRS: u32 = 5;
/// Seconds until that new session.
const RETRY_AFTER: u64 = 5;

/// The most reports, and objects in them, buffered while the records are being read. The content of
/// further ones is requested later.
const MAX_BACKLOG: usize = 64;
const BACKLOG_ITEMS: usize = 10_000;

#[derive(Debug)]
enum Stage {
    /// Waiting for the records; buffers the reports that arrive meanwhile, within a budget.
    Opening(Vec<Report>, Budget),
    /// Waiting for reports up to the Hello's revision.
    Replaying,
    /// Waiting for pages of an inventory.
    Inventory { buckets: Option<BucketSet>, items: Vec<Item>, next_page: u32, budget: Budget },
    /// The inventory is complete and its records are being stored.
    Rewriting,
}

/// A node between Hello and Welcome.
#[derive(Debug)]
pub(super) struct Connecting {
    pub(super) hello: Hello,
    pub(super) until: Now,
    stage: Stage,
    repairs: u32,
    /// Whether a timer that fired late has been extended once already.
    was_stalled: bool,
}

impl Connecting {
    pub(super) fn phase(&self) -> CloudPhase {
        match self.stage {
            Stage::Opening(..) | Stage::Replaying => CloudPhase::Replaying,
            Stage::Inventory { .. } | Stage::Rewriting => CloudPhase::Repairing,
        }
    }
}

impl CloudMachine {
    pub(super) fn hello(&mut self, now: Now, hello: Hello, desired: &impl DesiredState) {
        self.counters.hellos += 1;
        if self.phase.session() == Some(&hello.session) {
            // A duplicate: the first copy was current when it arrived.
            return;
        }
        self.end_session();
        self.deliveries.begin_session();
        self.last_received = now;
        if hello.max_frame < MIN_MAX_FRAME {
            let reason = format!("`maxFrame` must be at least {MIN_MAX_FRAME}, is {}", hello.max_frame);
            self.refuse_session(hello.session, reason, 3600);
            return;
        }
        // No rewriting of the records would ever match it.
        if hello.count == 0 && hello.digest != Digest::default() {
            let reason = "`digest` must be 0 with `count` 0".to_owned();
            self.refuse_session(hello.session, reason, RETRY_AFTER);
            return;
        }
        let facts = self.ledger.facts();
        let recorded = facts.confirmed;
        match facts.epoch {
            Some(from) if from != hello.epoch => {
                self.output.notice(CloudNotice::EpochChanged { from, to: hello.epoch });
            }
            Some(_) if hello.revision < recorded => {
                self.output.notice(CloudNotice::NodeRolledBack { recorded, revision: hello.revision });
            }
            _ => {}
        }
        match self.view.is_shared() {
            true => self.begin_with_proof(now, &hello, desired),
            false => self.begin_with_records(&hello, desired),
        }
        let opening = Stage::Opening(Vec::new(), Budget::of_items(BACKLOG_ITEMS));
        let until = now + self.settings.config.answer_timeout / 3;
        self.phase = Phase::Connecting(Box::new(Connecting {
            hello,
            until,
            stage: opening,
            repairs: 0,
            was_stalled: false,
        }));
        #[cfg(any(test, feature = "simulation"))]
        if planted(Fault::LedgerUnproven) && self.ledger.is_open() {
            return self.go_live(desired);
        }
        if !self.ledger.is_blind() {
            self.begin_replay(now, desired);
        } else {
            self.flush_records(desired);
        }
    }

    /// Takes the records as the base of the node's reports.
    fn begin_with_records(&mut self, hello: &Hello, desired: &impl DesiredState) {
        let facts = self.ledger.facts();
        let (recorded, accepted) = (facts.confirmed, facts.accepted.clone());
        let claimed = hello.last_confirmed();
        // The store once recorded every revision that a node calls confirmed, and a copy of the
        // node's database knows no later one. A larger number therefore means that this store has
        // lost records. One node alone claims it, so only its own removals are held back.
        let has_lost_records = facts.highest(hello.epoch).is_some_and(|highest| claimed > highest);
        let in_step = facts.epoch == Some(hello.epoch) && (claimed..=hello.revision).contains(&recorded);
        self.recorder.rebase(if in_step { recorded } else { claimed }, accepted);
        if has_lost_records || self.guard.is_suspicious() {
            self.suspect_rollback();
        }
        if in_step && hello.revision == recorded {
            self.ledger.open_if_equal(hello.epoch, hello.held(), desired);
        }
    }

    /// Takes the proof in the Hello as the base of the node's reports.
    ///
    /// Earlier knowledge about the node may be outdated and is discarded, as are reports of earlier
    /// changes. The Hello proves the held objects if they equal the current or a recent desired
    /// state.
    fn begin_with_proof(&mut self, now: Now, hello: &Hello, desired: &impl DesiredState) {
        self.guard.suspect(false);
        #[cfg(any(test, feature = "simulation"))]
        if planted(Fault::LossByMemory) {
            let highest = self.ledger.facts().highest(hello.epoch);
            self.guard.suspect(highest.is_some_and(|highest| hello.last_confirmed() > highest));
        }
        self.deliveries.resume(now);
        self.recorder.rebase(hello.revision, None);
        if let Some(exceptions) = self.view.proven(hello.epoch, hello.held(), desired) {
            self.ledger.presume(hello.epoch, hello.revision, hello.held(), exceptions, desired);
        }
    }

    /// Restarts the session of a live node, for a new proof of its objects.
    pub(super) fn restart_session(&mut self) {
        if self.is_live() {
            self.end_with_reason("too many changes at once");
        }
    }

    /// Restarts the session because the store was replaced by an older copy: earlier proofs are
    /// void.
    pub fn restart_after_rollback(&mut self) {
        self.end_with_reason("store restored from a copy");
        self.forget_begun();
    }

    /// Ends the session, if there is one, and requests a Hello at once.
    pub(super) fn end_with_reason(&mut self, reason: &str) {
        if let Some(session) = self.phase.session().map(str::to_owned) {
            self.end_session();
            self.output.request_hello(session, reason.to_owned(), 0);
        }
    }

    /// Returns whether the records have to be read before anything else.
    pub(super) fn is_opening(&self) -> bool {
        match &self.phase {
            Phase::Connecting(connecting) => matches!(connecting.stage, Stage::Opening(..)),
            Phase::Offline | Phase::Live { .. } => false,
        }
    }

    /// Requests the records, once earlier pending changes are among them.
    pub(super) fn request_records(&mut self) {
        if self.ledger.request() {
            self.output.effect(CloudEffect::ReadRecords);
        }
    }

    /// Handles the records of the node; `None` means a failure, and they are requested again.
    pub fn opened(&mut self, now: Now, records: Option<Vec<(Uid, Record)>>, desired: &impl DesiredState) {
        self.ledger.end_request();
        let Some(records) = records else { return };
        if self.is_opening() {
            self.open_ledger(records, desired);
            self.ledger.catch_up();
            self.begin_replay(now, desired);
        } else if self.ledger.is_behind() && self.is_live() {
            self.ledger.open(records, desired);
            self.ledger.catch_up();
            self.ledger.note_leftovers(desired);
            self.reconsider_all(now, desired);
            self.flush_records(desired);
        }
    }

    fn open_ledger(&mut self, records: Vec<(Uid, Record)>, desired: &impl DesiredState) {
        match &self.phase {
            Phase::Connecting(connecting) if self.view.is_shared() => {
                let Hello { epoch, revision, .. } = connecting.hello;
                let (tally, exceptions) = (desired.tally(epoch), Differences::new());
                self.ledger.presume(epoch, revision, tally, exceptions, desired);
            }
            _ => self.ledger.open(records, desired),
        }
    }

    /// Starts taking the node's reports: the ledger is open.
    fn begin_replay(&mut self, now: Now, desired: &impl DesiredState) {
        let Phase::Connecting(connecting) = &mut self.phase else { return };
        connecting.until = now + self.settings.config.answer_timeout;
        let epoch = connecting.hello.epoch;
        let opening = std::mem::replace(&mut connecting.stage, Stage::Replaying);
        if self.ledger.epoch() != epoch {
            self.ledger.rekey(epoch, desired);
        }
        self.flush_records(desired);
        if let Stage::Opening(backlog, _) = opening {
            for report in backlog {
                self.report(now, report, desired);
            }
        }
    }

    pub(super) fn report(&mut self, now: Now, report: Report, desired: &impl DesiredState) {
        match &mut self.phase {
            Phase::Live { session, .. } if *session == report.session => {
                self.take_report(now, report, desired);
            }
            Phase::Connecting(connecting) if connecting.hello.session == report.session => {
                match &mut connecting.stage {
                    Stage::Opening(backlog, budget) => {
                        let items = report.objects.len()
                            + report.removed.len()
                            + report.rejected.len()
                            + report.unpatched.len();
                        if backlog.len() < MAX_BACKLOG && budget.take_items(items).is_ok() {
                            backlog.push(report);
                        }
                    }
                    Stage::Replaying => {
                        connecting.until = now + self.settings.config.answer_timeout;
                        self.take_report(now, report, desired);
                    }
                    Stage::Inventory { .. } | Stage::Rewriting => {}
                }
            }
            _ => self.refuse_unknown(report.session),
        }
    }

    pub(super) fn refuse_unknown(&mut self, session: String) {
        self.refuse_session(session, "unknown session".into(), 0);
    }

    /// Refuses a frame and requests a new Hello.
    fn refuse_session(&mut self, session: String, reason: String, retry_after_seconds: u64) {
        self.counters.foreign_session += 1;
        self.output.request_hello(session, reason, retry_after_seconds);
    }

    /// Ends the session of a node that exceeds its quota of unknown objects.
    pub(super) fn refuse_excess(&mut self) {
        let Some(session) = self.phase.session().map(str::to_owned) else { return };
        let limit = self.settings.config.max_unknown;
        self.counters.over_quota += 1;
        self.recorder.give_up();
        self.end_session();
        self.output.notice(CloudNotice::OverQuota { limit });
        self.output.request_hello(session, quota::excess(limit), quota::RETRY_AFTER);
    }

    /// Compares ledger and Hello, once everything reported is stored.
    pub(super) fn compare(&mut self, desired: &impl DesiredState) {
        let Phase::Connecting(connecting) = &mut self.phase else { return };
        let hello = &connecting.hello;
        let complete = match connecting.stage {
            Stage::Replaying => self.recorder.reached() >= hello.revision,
            Stage::Opening(..) | Stage::Inventory { .. } => false,
            Stage::Rewriting => true,
        };
        if !complete {
            return;
        }
        #[cfg(any(test, feature = "simulation"))]
        if planted(Fault::WelcomeUncompared) {
            return self.go_live(desired);
        }
        if self.ledger.tally() == hello.held() {
            return self.go_live(desired);
        }
        if hello.count == 0 {
            self.recorder.reset();
            return self.flush_records(desired);
        }
        self.request_inventory(self.last_received, desired);
    }

    fn request_inventory(&mut self, now: Now, desired: &impl DesiredState) {
        let budget = self.known(desired).inventory_budget();
        let Phase::Connecting(connecting) = &mut self.phase else { return };
        if connecting.repairs == MAX_REPAIRS {
            let session = connecting.hello.session.clone();
            self.end_session();
            return self.refuse_session(session, "inventory did not settle".into(), RETRY_AFTER);
        }
        connecting.repairs += 1;
        connecting.until = now + self.settings.config.answer_timeout;
        connecting.stage = Stage::Inventory { buckets: None, items: Vec::new(), next_page: 0, budget };
        let session = connecting.hello.session.clone();
        self.counters.repairs += 1;
        self.output.notice(CloudNotice::Repairing);
        let buckets = self.ledger.buckets(desired);
        self.output.request_inventory(InventoryRequest { session, buckets });
    }

    pub(super) fn inventory(&mut self, now: Now, inventory: Inventory, desired: &impl DesiredState) {
        self.last_received = now;
        let timeout = self.settings.config.answer_timeout;
        let Phase::Connecting(connecting) = &mut self.phase else {
            return self.refuse_session(inventory.session, "no inventory requested".into(), 0);
        };
        let Stage::Inventory { buckets, items, next_page, budget } = &mut connecting.stage else { return };
        let fits = connecting.hello.session == inventory.session
            && inventory.page == *next_page
            && buckets.is_none_or(|buckets| buckets == inventory.buckets);
        // A node cannot send more objects than its Hello counts.
        let sane = items.len() as u64 + inventory.objects.len() as u64 <= connecting.hello.count;
        if !fits || !sane {
            self.counters.foreign_session += 1;
            return;
        }
        if budget.take_items(inventory.objects.len()).is_err() {
            return self.refuse_excess();
        }
        *buckets = Some(inventory.buckets);
        *next_page += 1;
        items.extend(inventory.objects);
        connecting.until = now + timeout;
        if inventory.more {
            return;
        }
        let items = std::mem::take(items);
        let revision = connecting.hello.revision;
        connecting.stage = Stage::Rewriting;
        self.rewrite(inventory.buckets, items, revision, desired);
    }

    /// Rewrites the records of some buckets from the inventory.
    fn rewrite(&mut self, buckets: BucketSet, items: Vec<Item>, revision: u64, desired: &impl DesiredState) {
        let held: HashSet<Uid> = items.iter().map(|item| item.uid.clone()).collect();
        for uid in self.ledger.in_buckets(buckets, desired) {
            if !held.contains(&uid) {
                self.recorder.remove(uid);
            }
        }
        let mut room = Allowance::default();
        for item in items {
            if !self.admits(&item.uid, &mut room, desired) {
                return self.refuse_excess();
            }
            self.take_item(item, desired);
        }
        self.recorder.set_reached(revision);
        self.flush_records(desired);
    }

    /// Handles an overdue answer of the node: requests the missing part.
    pub(super) fn answer_overdue(&mut self, now: Now, desired: &impl DesiredState) {
        let Phase::Connecting(connecting) = &mut self.phase else { return };
        let timeout = self.settings.config.answer_timeout;
        let is_stalled = now.saturating_sub(connecting.until) > STALLED;
        match connecting.stage {
            // A timer that fires this late means a stall on this side: frames may be unread.
            _ if is_stalled && !std::mem::replace(&mut connecting.was_stalled, true) => {
                connecting.until = now + self.settings.config.resend_min;
            }
            // The node waits: acknowledge its Hello before it sends the next one.
            Stage::Opening(..) => {
                connecting.until = now + timeout / 3;
                let session = connecting.hello.session.clone();
                self.output.acknowledge_hello(session, self.guard.count());
                self.flush_records(desired);
            }
            Stage::Rewriting => connecting.until = now + timeout,
            _ if !self.recorder.is_idle() => connecting.until = now + timeout,
            Stage::Replaying | Stage::Inventory { .. } => self.request_inventory(now, desired),
        }
    }

    fn go_live(&mut self, desired: &impl DesiredState) {
        let Phase::Connecting(connecting) = std::mem::replace(&mut self.phase, Phase::Offline) else {
            return;
        };
        let mut hello = connecting.hello;
        self.phase = Phase::Live {
            session: hello.session.clone(),
            limits: PeerLimits {
                max_frame: self.settings.config.max_frame.min(hello.max_frame) as usize,
                max_object: hello.max_object as usize,
                patches: hello.patches,
            },
        };
        self.metered.begin(hello.metered);
        self.ledger.note_leftovers(desired);
        // The removals are known only after this replica has caught up. Until then the node does
        // not learn the new incarnation, so that any replica that serves it next checks its
        // removals too.
        let is_checked = !self.view.is_shared() || !self.ledger.has_leftovers();
        match is_checked {
            true => self.check_removals(hello.incarnation.as_deref(), desired),
            false => self.view.defer_removals(hello.incarnation.clone()),
        }
        self.continue_partial(hello.partial.take(), desired);
        self.reconsider_all(self.last_received, desired);
        let may_learn = is_checked || hello.incarnation.is_none();
        let changed = may_learn && hello.incarnation.as_deref() != Some(&self.settings.incarnation);
        let (pending, held, waiting) = (self.pending(), self.guard.count(), self.waiting());
        self.metered.on_welcome(self.last_received, waiting);
        self.output.welcome(Welcome {
            session: hello.session,
            incarnation: changed.then(|| self.settings.incarnation.to_string()),
            confirmed: self.ledger.facts().confirmed,
            pending,
            held,
            register: !self.settings.is_registered,
            features: Self::features(hello.lease, hello.metered.is_some()),
            waiting,
        });
        self.output.notice(CloudNotice::Welcomed { pending, held });
        self.begin_lease(hello.lease);
        self.flush_records(desired);
    }

    /// Prepares to continue the message that the node holds a part of, if its object is to be sent
    /// now.
    fn continue_partial(&mut self, partial: Option<Box<PartialMessage>>, desired: &impl DesiredState) {
        let partial = partial.filter(|partial| {
            let is_lost = self.settings.issued.is_lost(&partial.resource_version);
            let is_refused = self.deliveries.refusal(&partial.uid).is_some()
                && self.deliveries.is_delayed(&partial.uid, self.last_received);
            !is_lost && !is_refused && self.needed(&partial.uid, desired) == Some(Action::Put)
        });
        let takes_patches = self.phase.live().is_some_and(|(_, limits)| limits.patches);
        self.sender.transfer.begin_session(partial, self.ledger.epoch(), takes_patches);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cloud::testing::{DesiredObjects, hello, machine};
    use crate::frame::Down;

    /// Answers the machine's requests, and returns the number of Welcomes among its notices.
    fn welcomes(cloud: &mut CloudMachine, desired: &DesiredObjects) -> usize {
        let mut welcomes = 0;
        while let Some(effect) = cloud.poll_effect(desired) {
            match effect {
                CloudEffect::ReadRecords => cloud.opened(Now::ZERO, Some(Vec::new()), desired),
                CloudEffect::Record(batch) => cloud.recorded(Now::ZERO, batch.token, true, 0, desired),
                CloudEffect::Notice(CloudNotice::Welcomed { .. }) => welcomes += 1,
                _ => {}
            }
        }
        welcomes
    }

    #[test]
    fn queued_hello_of_a_new_session_is_welcomed_once() {
        let (mut cloud, desired) = (machine(), DesiredObjects::default());
        cloud.received(Now::ZERO, hello("a"), &desired);
        assert_eq!(welcomes(&mut cloud, &desired), 1);
        // Both were sent while the cloud side started: it handles them one after the other.
        for session in ["b", "c"] {
            cloud.received(Now::ZERO, hello(session), &desired);
        }
        assert_eq!(welcomes(&mut cloud, &desired), 1);
        let welcomed = std::iter::from_fn(|| cloud.poll_frame(Now::ZERO, &desired));
        let sessions: Vec<String> = welcomed
            .filter_map(|frame| match frame {
                Down::Welcome(welcome) => Some(welcome.session),
                _ => None,
            })
            .collect();
        assert_eq!(sessions, ["c"]);
    }
}
