//! From Hello to Welcome: the node's reports are taken, the records are proven equal to what it holds or
//! rewritten until they are (guarantee G4), and only then is the difference sent.

use std::collections::HashSet;

use crate::sync::change::Uid;
use crate::sync::digest::BucketSet;
use crate::sync::frame::{
    Down, Hello, HelloRequest, Inventory, InventoryRequest, Item, MIN_MAX_FRAME, Report, Up, Welcome,
};
use crate::sync::timing::Now;

use super::{CloudMachine, CloudNotice, CloudPhase, PeerLimits, Phase};

/// After so many inventories without equality the node is asked to begin anew.
const MAX_REPAIRS: u32 = 5;
/// The most objects that a node's inventory may list, whatever count it claims: a bound on memory.
const MAX_INVENTORY: u64 = 1_000_000;
/// Seconds after which it is to do so.
const RETRY_AFTER: u64 = 5;

#[derive(Debug)]
enum Stage {
    /// Reports up to the Hello's revision are awaited.
    Replaying,
    /// Pages of an inventory are awaited.
    Inventory { buckets: Option<BucketSet>, items: Vec<Item>, next_page: u32 },
    /// All pages are there, their records are being stored.
    Rewriting,
}

/// A node that has said Hello and is not welcome yet.
#[derive(Debug)]
pub(super) struct Connecting {
    pub(super) hello: Hello,
    pub(super) until: Now,
    stage: Stage,
    repairs: u32,
}

impl Connecting {
    pub(super) fn phase(&self) -> CloudPhase {
        match self.stage {
            Stage::Replaying => CloudPhase::Replaying,
            Stage::Inventory { .. } | Stage::Rewriting => CloudPhase::Repairing,
        }
    }
}

impl CloudMachine {
    /// A frame of the node has arrived.
    pub fn received(&mut self, now: Now, frame: Up) {
        match frame {
            Up::Hello(hello) => self.hello(now, hello),
            Up::Report(report) => self.report(now, report),
            Up::Inventory(inventory) => self.inventory(now, inventory),
            Up::Lease(lease) => self.lease(lease),
            Up::Upload(upload) => self.upload(upload),
        }
    }

    fn hello(&mut self, now: Now, hello: Hello) {
        self.counters.hellos += 1;
        let repeated = match &self.phase {
            Phase::Offline => false,
            Phase::Connecting(connecting) => connecting.hello.session == hello.session,
            Phase::Live { session, .. } => *session == hello.session,
        };
        if repeated {
            // Delivered twice: what it says was true when the first copy came.
            return;
        }
        self.disconnected();
        self.trouble.retain(|_, trouble| trouble.refusal.is_some());
        self.last_heard = now;
        if hello.max_frame < MIN_MAX_FRAME {
            let reason = format!("`maxFrame` must be at least {MIN_MAX_FRAME}, is {}", hello.max_frame);
            self.refuse_session(hello.session, reason, 3600);
            return;
        }
        let told = hello.confirmed.unwrap_or(hello.revision).min(hello.revision);
        let recorded = self.ledger.confirmed();
        let same_file = self.ledger.stored_epoch() == Some(hello.epoch);
        match self.ledger.stored_epoch() {
            Some(from) if from != hello.epoch => {
                self.notice(CloudNotice::EpochChanged { from, to: hello.epoch });
            }
            Some(_) if hello.revision < recorded => {
                self.notice(CloudNotice::NodeWentBack { recorded, revision: hello.revision });
            }
            Some(_) if told > recorded => self.store_went_back(),
            _ => {}
        }
        if self.ledger.epoch() != hello.epoch {
            self.ledger.rekey(hello.epoch);
        }
        let in_step = same_file && (told..=hello.revision).contains(&recorded);
        let accepted = self.ledger.accepted().map(ToOwned::to_owned);
        self.recorder.rebase(if in_step { recorded } else { told }, accepted.as_deref());
        let until = now + self.config.answer_timeout;
        self.phase =
            Phase::Connecting(Box::new(Connecting { hello, until, stage: Stage::Replaying, repairs: 0 }));
        self.flush_records();
    }

    fn report(&mut self, now: Now, report: Report) {
        match &mut self.phase {
            Phase::Live { session, .. } if *session == report.session => self.take_report(now, report),
            Phase::Connecting(connecting) if connecting.hello.session == report.session => {
                connecting.until = now + self.config.answer_timeout;
                if matches!(connecting.stage, Stage::Replaying) {
                    self.take_report(now, report);
                }
            }
            _ => self.refuse_unknown(report.session),
        }
    }

    pub(super) fn refuse_unknown(&mut self, session: String) {
        self.refuse_session(session, "this session is not known here".into(), 0);
    }

    /// Asks the node to say Hello (again).
    fn refuse_session(&mut self, session: String, reason: String, retry_after_seconds: u64) {
        self.counters.foreign_session += 1;
        self.frames.retain(|frame| !matches!(frame, Down::HelloRequest(_)));
        let request = HelloRequest { session, reason, retry_after_seconds, removed: false };
        self.frames.push_back(Down::HelloRequest(request));
    }

    /// Compares, once everything that was reported is stored.
    pub(super) fn compare(&mut self) {
        let Phase::Connecting(connecting) = &mut self.phase else { return };
        let hello = &connecting.hello;
        let complete = match connecting.stage {
            Stage::Replaying => self.recorder.reached() >= hello.revision,
            Stage::Inventory { .. } => false,
            Stage::Rewriting => true,
        };
        if !complete {
            return;
        }
        if self.ledger.equals(hello.count, hello.digest) {
            return self.go_live();
        }
        if hello.count == 0 {
            self.recorder.reset();
            return self.flush_records();
        }
        self.request_inventory(self.last_heard);
    }

    fn request_inventory(&mut self, now: Now) {
        let Phase::Connecting(connecting) = &mut self.phase else { return };
        if connecting.repairs == MAX_REPAIRS {
            let session = connecting.hello.session.clone();
            self.disconnected();
            return self.refuse_session(session, "the inventory did not settle".into(), RETRY_AFTER);
        }
        connecting.repairs += 1;
        connecting.until = now + self.config.answer_timeout;
        connecting.stage = Stage::Inventory { buckets: None, items: Vec::new(), next_page: 0 };
        let session = connecting.hello.session.clone();
        self.counters.repairs += 1;
        self.notice(CloudNotice::Repairing);
        let buckets = self.ledger.buckets();
        self.frames.push_back(Down::InventoryRequest(InventoryRequest { session, buckets }));
    }

    fn inventory(&mut self, now: Now, inventory: Inventory) {
        self.last_heard = now;
        let timeout = self.config.answer_timeout;
        let Phase::Connecting(connecting) = &mut self.phase else {
            return self.refuse_session(inventory.session, "no inventory was asked for".into(), 0);
        };
        let Stage::Inventory { buckets, items, next_page } = &mut connecting.stage else { return };
        let fits = connecting.hello.session == inventory.session
            && inventory.page == *next_page
            && buckets.is_none_or(|buckets| buckets == inventory.buckets);
        // More than the node said it holds is nonsense, and must not fill the memory.
        let sane =
            items.len() as u64 + inventory.objects.len() as u64 <= connecting.hello.count.min(MAX_INVENTORY);
        if !fits || !sane {
            self.counters.foreign_session += 1;
            return;
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
        self.rewrite(inventory.buckets, items, revision);
    }

    /// Rewrites the records of some buckets to what the node holds in them.
    fn rewrite(&mut self, buckets: BucketSet, items: Vec<Item>, revision: u64) {
        let held: HashSet<Uid> = items.iter().map(|item| item.uid.clone()).collect();
        let gone: Vec<Uid> =
            self.ledger.in_buckets(buckets).filter(|uid| !held.contains(*uid)).cloned().collect();
        for uid in gone {
            self.recorder.remove(uid);
        }
        for item in items {
            self.take_item(item);
        }
        self.recorder.set_reached(revision);
        self.flush_records();
    }

    /// The node did not go on in time: what is missing is asked for.
    pub(super) fn answer_overdue(&mut self, now: Now) {
        let Phase::Connecting(connecting) = &mut self.phase else { return };
        if matches!(connecting.stage, Stage::Rewriting) || !self.recorder.is_idle() {
            connecting.until = now + self.config.answer_timeout;
        } else {
            self.request_inventory(now);
        }
    }

    fn go_live(&mut self) {
        let Phase::Connecting(connecting) = std::mem::replace(&mut self.phase, Phase::Offline) else {
            return;
        };
        let hello = connecting.hello;
        self.phase = Phase::Live {
            session: hello.session.clone(),
            limits: PeerLimits {
                max_frame: self.config.max_frame.min(hello.max_frame) as usize,
                max_object: hello.max_object as usize,
            },
        };
        self.note_leftovers();
        self.guard_deletions(hello.incarnation.as_deref());
        self.reconsider_all(self.last_heard);
        let changed = hello.incarnation.as_deref() != Some(&self.incarnation);
        let (pending, held) = (self.pending(), self.held.len() as u64);
        self.told = (pending, held);
        self.frames.retain(|frame| !matches!(frame, Down::Confirm(_)));
        self.frames.push_back(Down::Welcome(Welcome {
            session: hello.session,
            incarnation: changed.then(|| self.incarnation.clone()),
            confirmed: self.ledger.confirmed(),
            pending,
            held,
            register: !self.registered,
        }));
        self.notice(CloudNotice::Welcomed { pending, held });
        self.flush_records();
    }

    /// Holds removals back that look like the loss of the cloud's store rather than somebody's wish.
    fn guard_deletions(&mut self, known_incarnation: Option<&str>) {
        let undesired = self.ledger.iter().filter(|(uid, _)| !self.desired.contains_key(*uid));
        let replaced: HashSet<_> = self
            .desired
            .iter()
            .filter(|(uid, _)| self.ledger.get(uid).is_none())
            .map(|(_, desired)| desired.object.key())
            .collect();
        let removals: Vec<(Uid, bool)> = undesired
            .filter(|(_, record)| !replaced.contains(&record.object.key()))
            .map(|(uid, record)| (uid.clone(), self.issued.is_lost(&record.version)))
            .collect();
        let changed = match self.ledger.accepted() {
            Some(accepted) => accepted != self.incarnation,
            None => known_incarnation.is_some_and(|known| known != self.incarnation),
        };
        let suspicious = self.suspect || changed || removals.iter().any(|(_, lost)| *lost);
        #[allow(clippy::cast_precision_loss)] // a share need not be exact
        let many = removals.len() as u64 > self.config.mass_delete_min
            && removals.len() as f64 > self.config.mass_delete_share * self.ledger.len() as f64;
        self.held.clear();
        if suspicious && many {
            self.held.extend(removals.into_iter().map(|(uid, _)| uid));
            let count = self.held.len() as u64;
            self.notice(CloudNotice::DeletionsHeld { count });
        } else {
            self.suspect = false;
            self.recorder.accept(&self.incarnation);
        }
    }
}
