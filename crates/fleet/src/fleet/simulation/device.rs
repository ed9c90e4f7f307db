//! A node: the real machine over a model of its database, with an outbox.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, HashMap, HashSet};

use serde_json::json;
use serde_json::value::RawValue;

use super::history::Judge;
use super::oracle::Window;
use super::world::{Event, World};
use super::{MAX_FRAME, MAX_OBJECT};
use edgesync_object::{NodeName, ResourceVersion};
use edgesync_protocol::change::{Change, Uid};
use edgesync_protocol::digest::Epoch;
use edgesync_protocol::edge::{Commit, EdgeConfig, EdgeEffect, EdgeMachine, EdgeNotice};
use edgesync_protocol::frame::{Hello, Objects, Received, Up};
use edgesync_protocol::simulation::model::{EdgeDb, object_ref};
use edgesync_protocol::simulation::numbered::{Numbered, Waits};
use edgesync_protocol::timing::Now;
use edgesync_protocol::upload::{Content, EffectContent, EffectState, Lane, RefusedReason, Upload};

/// An item of the outbox, with its number over the whole run.
#[derive(Clone)]
pub(super) struct Item {
    pub(super) made: u64,
    content: Box<RawValue>,
}

impl Waits for Item {
    fn content(&self, _: Lane) -> Box<RawValue> {
        self.content.clone()
    }
}

/// The connection of a node.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct Link {
    pub(super) replica: usize,
    pub(super) number: u64,
}

pub(super) struct Device {
    pub(super) name: NodeName,
    pub(super) db: EdgeDb,
    pub(super) outbox: Numbered<Item>,
    pub(super) backup: (EdgeDb, Numbered<Item>),
    pub(super) machine: Option<EdgeMachine>,
    pub(super) life: u64,
    pub(super) link: Option<Link>,
    pub(super) is_metered: bool,
    /// Commits that are not answered yet, and the times of the last one and of its answer.
    committing: usize,
    last_commit: Now,
    last_answer: Now,
    /// The times of the last arrivals upward and downward.
    pub(super) last: [Now; 2],
    /// The boot id of the cloud, and whether it is online, as last announced.
    pub(super) cloud: Option<(String, bool)>,
    /// The oldest state of the source that the fleet may know in this session, and at the arrival
    /// of each held object.
    floor: usize,
    floors: BTreeMap<Uid, usize>,
    /// The version of which the node held a part at the Hello: a begun transfer ends before that of
    /// a newer version.
    begun: Option<(Uid, ResourceVersion)>,
    /// Versions that the session has delivered, and the number of objects.
    delivered: HashSet<(Uid, ResourceVersion)>,
    pub(super) puts: usize,
    /// Objects that the session has removed, each with the state of the source that the fleet has
    /// known by then.
    removed: HashMap<Uid, usize>,
    /// The newest frame with objects of the session.
    newest_frame: u64,
    /// What older frames of the session do, which a broker repeats or delivers late (G3): they
    /// remove objects that the session has removed before, and bring back others.
    repeated: HashSet<Uid>,
    brought_back: HashSet<Uid>,
    /// Removals without a reason in this session, and those that need no confirmation.
    vanished: usize,
    pub(super) may_vanish: usize,
    /// The database file that each reported object was in effect with last.
    pub(super) reported: BTreeMap<Uid, Epoch>,
    /// The changes that were right when a fleet sent them, if rules have roll-outs.
    pub(super) sent: HashSet<(Uid, Option<ResourceVersion>)>,
    /// Whether the database was rolled back: numbers of its lost life may settle its items.
    is_copy: bool,
}

impl Device {
    pub(super) fn new(name: NodeName, epoch: u64) -> Self {
        let (db, outbox) = (EdgeDb::new(epoch), Numbered::new(epoch));
        Self {
            name,
            backup: (db.clone(), outbox.clone()),
            db,
            outbox,
            machine: None,
            life: 0,
            link: None,
            is_metered: false,
            committing: 0,
            last_commit: Now::ZERO,
            last_answer: Now::ZERO,
            last: [Now::ZERO; 2],
            cloud: None,
            floor: 0,
            floors: BTreeMap::new(),
            begun: None,
            delivered: HashSet::new(),
            puts: 0,
            removed: HashMap::new(),
            newest_frame: 0,
            repeated: HashSet::new(),
            brought_back: HashSet::new(),
            vanished: 0,
            may_vanish: 0,
            reported: BTreeMap::new(),
            sent: HashSet::new(),
            is_copy: false,
        }
    }

    pub(super) fn config(&self, lease: u64) -> EdgeConfig {
        let defaults = EdgeConfig::of_tests(&self.name, MAX_FRAME, MAX_OBJECT);
        EdgeConfig { lease_interval: Now::from_secs(lease), ..defaults }
    }

    pub(super) fn start(&mut self, now: Now) {
        self.life += 1;
        self.committing = 0;
        self.db.crash();
        let (totals, incarnation) = (self.db.totals(), self.db.incarnation.clone());
        let mut machine = EdgeMachine::new(self.config(10), totals, self.db.confirmed, incarnation);
        machine.outbox_changed(now, &self.outbox.marks());
        machine.set_frugal(now, self.is_metered);
        machine.restore_parts();
        self.machine = Some(machine);
    }

    /// Replaces the database by an empty one. A running machine goes on with it, unless commits are
    /// in flight.
    pub(super) fn lose_database(&mut self, now: Now, random: u64) {
        (self.db, self.outbox) = (EdgeDb::new(random), Numbered::new(random));
        self.backup = (self.db.clone(), self.outbox.clone());
        self.is_copy = false;
        if self.machine.take_if(|_| self.committing > 0).is_some() {
            self.life += 1;
        }
        if let Some(machine) = &mut self.machine {
            machine.outbox_changed(now, &self.outbox.marks());
            machine.store_reset(now, self.db.totals(), 0, random);
        }
    }

    /// Replaces the database by an older copy. Its items may have been sent.
    pub(super) fn roll_back(&mut self) {
        self.machine = None;
        self.life += 1;
        (self.db, self.outbox) = self.backup.clone();
        self.is_copy = true;
    }

    /// Notes the changes of a frame that is older than another one of its session.
    pub(super) fn note_frame(&mut self, frame: &Received) {
        let Received::Objects(Objects { session, receipt, changes, .. }) = frame else { return };
        if self.machine.as_ref().and_then(EdgeMachine::session) != Some(session) {
            return;
        }
        let is_older = *receipt <= self.newest_frame;
        self.newest_frame = self.newest_frame.max(*receipt);
        for change in changes {
            let uid = change.uid();
            match change {
                Change::Delete(_) if is_older && self.removed.contains_key(uid) => {
                    self.repeated.insert(uid.clone());
                }
                Change::Put(_) if is_older => drop(self.brought_back.insert(uid.clone())),
                _ => {}
            }
        }
    }

    fn post(&mut self, now: Now, lane: Lane, made: u64, content: &Content<'_>) {
        let content = serde_json::value::to_raw_value(content).unwrap();
        self.outbox.insert(lane, Item { made, content });
        if let Some(machine) = &mut self.machine {
            machine.outbox_changed(now, &self.outbox.marks());
        }
    }

    pub(super) fn post_report(&mut self, now: Now, made: u64) {
        let report = json!({"labels": {"made": made.to_string()}});
        let report = serde_json::value::to_raw_value(&report).unwrap();
        self.post(now, Lane::Status, made, &Content::Node(&report));
    }

    pub(super) fn post_event(&mut self, now: Now, lane: Lane, made: u64) {
        let event = json!({
            "apiVersion": "events.k8s.io/v1", "kind": "Event",
            "metadata": {"name": format!("e{made}"), "namespace": "default"},
            "eventTime": "2026-11-22T00:00:00.000000Z", "reportingController": "c", "reportingInstance": "i",
            "action": "A", "reason": "R", "type": "Normal", "regarding": {"kind": "Node", "name": self.name},
        });
        let event = serde_json::value::to_raw_value(&event).unwrap();
        self.post(now, lane, made, &Content::Event(&event));
    }

    /// Reports that a held object is in effect.
    pub(super) fn post_effect(
        &mut self,
        now: Now,
        made: u64,
        (uid, version): (Uid, ResourceVersion),
        name: &str,
    ) {
        self.reported.insert(uid.clone(), self.db.totals().epoch);
        let effect = EffectContent {
            uid,
            object: object_ref(name),
            version: Some(version.clone()),
            wanted: version,
            state: EffectState::InEffect,
            rule: String::new(),
            message: String::new(),
            since: made.cast_signed(),
        };
        self.post(now, Lane::Status, made, &Content::Effect(effect));
    }
}

impl World {
    pub(super) fn drive_device(&mut self, n: usize) {
        loop {
            let now = self.time.now;
            let device = &mut self.devices[n];
            let Some(machine) = &mut device.machine else { return };
            if let Some(effect) = machine.poll_effect() {
                self.perform(n, effect);
                continue;
            }
            let Some(link) = device.link else { return };
            let Some(frame) = machine.poll_frame(now) else { return };
            machine.link_progress(now, 0, 0);
            match &frame {
                Up::Hello(hello) => self.session_begins(n, link.replica, hello),
                Up::Upload(Upload { lane: Lane::Bulk, items, .. })
                    if device.is_metered && !items.is_empty() =>
                {
                    self.time.violation = Some("metered: Events of programs were sent".into());
                }
                _ => {}
            }
            self.time.say(|| format!("node {n} → {frame:?}").chars().take(300).collect());
            self.send_up(n, link, &frame);
        }
    }

    fn session_begins(&mut self, n: usize, replica: usize, hello: &Hello) {
        let (last, settled) = (self.model.state().history.last(), self.replicas[replica].settled);
        let least = self.config.sync.mass_delete_min;
        let device = &mut self.devices[n];
        // A replica catches up with the source before it does more than replace held objects.
        device.floor = if self.is_shared { last } else { settled };
        let begun = hello.partial.as_ref();
        device.begun = begun.map(|begun| (begun.uid.clone(), begun.resource_version.clone()));
        device.delivered.clear();
        device.removed.clear();
        device.newest_frame = 0;
        device.repeated.clear();
        device.brought_back.clear();
        device.vanished = 0;
        #[allow(clippy::cast_precision_loss, clippy::cast_possible_truncation, clippy::cast_sign_loss)]
        let share = (device.db.len() as f64 * self.config.sync.mass_delete_share) as usize;
        device.may_vanish = share.max(least);
    }

    fn perform(&mut self, n: usize, effect: EdgeEffect) {
        let (now, random) = (self.time.now, self.time.random.next());
        let device = &mut self.devices[n];
        let life = device.life;
        let Some(machine) = &mut device.machine else { return };
        match effect {
            EdgeEffect::Apply { token, changes } => {
                device.committing += 1;
                let at = self.time.in_order(&mut device.last_commit, 15);
                self.time.at(at, Event::Commit { node: n, life, token, changes });
            }
            EdgeEffect::KeepPart { message, text } => {
                let kept = device.db.keep_part(message.clone(), &text);
                machine.part_kept(&message, Ok(kept));
            }
            EdgeEffect::ApplyParts { token, message, rest, max_object } => {
                match device.db.assemble(&message, &rest, max_object) {
                    Some(Ok(change)) => self.perform(n, EdgeEffect::Apply { token, changes: vec![change] }),
                    _ => machine.parts_lost(now, token, random),
                }
            }
            EdgeEffect::DropParts => device.db.drop_parts(),
            EdgeEffect::Confirm(revision) => device.db.confirm(revision),
            EdgeEffect::SetIncarnation(incarnation) => device.db.incarnation = Some(incarnation),
            EdgeEffect::RenewLease => {
                machine.renew(now, 0, i64::try_from(now.as_micros()).unwrap(), random);
            }
            EdgeEffect::ReadOutbox { lane, after, limit, bytes } => {
                machine.outbox_read(now, device.outbox.page(lane, after, limit, bytes));
            }
            EdgeEffect::RenumberOutbox { lane, sent, above } => {
                device.outbox.renumber(lane, sent, above);
                machine.outbox_changed(now, &device.outbox.marks());
            }
            EdgeEffect::SettleOutbox { lane, upto } => self.settle(n, lane, upto),
            EdgeEffect::Notice(EdgeNotice::Register) => {
                self.made += 1;
                device.post_report(now, self.made);
            }
            EdgeEffect::Notice(EdgeNotice::UploadRefused { content, reason, message }) => {
                self.time.say(|| format!("node {n}: refused {content}: {message}"));
                if reason == RefusedReason::NotPlaced {
                    self.check_refusal(n, &content);
                }
            }
            EdgeEffect::Notice(notice) => self.time.say(|| format!("node {n}: {notice:?}")),
            read => self.time.after(5, Event::Read { node: n, life, effect: read }),
        }
    }

    /// Deletes confirmed items: each has taken effect, or was refused.
    fn settle(&mut self, n: usize, lane: Lane, upto: u64) {
        let device = &mut self.devices[n];
        let state = self.model.state();
        let pending = device.outbox.rows.range((lane, 0)..=(lane, upto));
        let is_lost = |((lane, seq), item): &(&(Lane, u64), &Item)| {
            let refused = (device.name.clone(), device.outbox.id.clone(), *lane, *seq);
            !state.ever.contains(&(device.name.clone(), item.made))
                && !state.refused.contains(&refused)
                && !device.is_copy
        };
        if let Some((at, item)) = pending.into_iter().find(is_lost) {
            self.time.violation =
                Some(format!("outbox: {at:?} of node {n}, item {}, has no effect", item.made));
        }
        drop(state);
        device.outbox.settle(lane, upto);
        if let Some(machine) = &mut device.machine {
            machine.outbox_changed(self.time.now, &device.outbox.marks());
        }
    }

    /// Checks that nothing is refused that was placed on the node in this session all the time.
    fn check_refusal(&mut self, n: usize, content: &str) {
        let device = &self.devices[n];
        let Ok(Content::Effect(effect)) = Content::parse(content) else { return };
        let state = self.model.state();
        let floor = device.floors.get(&effect.uid).map_or(device.floor, |floor| device.floor.min(*floor));
        let states = state.history.since(floor);
        let is_placed = || states.iter().all(|state| state.placed(&device.name, &effect.uid).is_some());
        let may_be_absent = || {
            let name = state.history.any(&effect.uid).map(|thing| thing.name.clone()).unwrap_or_default();
            let replica = device.link.map_or(0, |link| link.replica);
            Window::new(&state, replica, floor, &device.name).allows(&effect.uid, &name, None, false)
        };
        if is_placed() && !(self.rolls && may_be_absent()) {
            self.time.violation =
                Some(format!("outbox: {} was refused, it is placed on node {n}", effect.uid));
        }
    }

    /// Applies changes in the database of a node, and judges them.
    pub(super) fn commit(&mut self, n: usize, changes: &[Change]) -> Result<Commit, String> {
        let state = self.model.state();
        let device = &mut self.devices[n];
        let before = device.db.held();
        for change in changes {
            let Change::Put(put) = change else { continue };
            let is_first = device.delivered.insert((put.uid.clone(), put.version.clone()));
            if is_first && before.get(&put.uid) == Some(&put.version) {
                return Err(format!("cost: {} was sent at {}, which node {n} holds", put.uid, put.version));
            }
            device.puts += usize::from(is_first);
        }
        let judge = Judge {
            history: &state.history,
            node: &device.name,
            floor: device.floor,
            floors: &device.floors,
            begun: device.begun.as_ref(),
            repeated: &device.repeated,
            gone: RefCell::default(),
            vanished: Cell::new(device.vanished),
            sent: self.rolls.then_some(&device.sent),
        };
        let commit = device.db.apply(changes, &judge).map_err(|why| format!("node {n}: {why}"))?;
        let (vanished, gone) = (judge.vanished.get(), judge.gone.into_inner());
        device.vanished = vanished;
        device.removed.extend(gone);
        for change in changes.iter().filter(|change| matches!(change, Change::Delete(_))) {
            device.repeated.remove(change.uid());
        }
        if device.vanished > device.may_vanish {
            return Err(format!("guard: {} objects of node {n} went that nobody deleted", device.vanished));
        }
        let held = device.db.held();
        device.floors.retain(|uid, _| held.contains_key(uid));
        for uid in changes.iter().map(Change::uid).filter(|uid| held.contains_key(*uid)) {
            // The fleet places an object again after it has known the reason for its removal.
            let known = device.removed.get(uid).copied().unwrap_or_default().max(device.floor);
            let floor = match device.floors.get(uid) {
                Some(before) => device.floor.max(*before),
                // What an older frame brings back, the fleet may have to remove again.
                None if device.brought_back.contains(uid) => device.floor,
                None => state.history.placed_since(known, &device.name, uid).unwrap_or(device.floor),
            };
            device.floors.insert(uid.clone(), floor);
            device.brought_back.remove(uid);
        }
        Ok(commit)
    }

    /// Schedules the answer to a commit.
    pub(super) fn committed(&mut self, n: usize, token: u64, commit: Commit) {
        let device = &mut self.devices[n];
        let at = self.time.in_order(&mut device.last_answer, 5);
        self.time.at(at, Event::Applied { node: n, life: device.life, token, commit });
    }

    /// Passes the answer to a commit to the machine.
    pub(super) fn applied(&mut self, n: usize, token: u64, commit: Commit) {
        let (now, random) = (self.time.now, self.time.random.next());
        let device = &mut self.devices[n];
        device.committing -= 1;
        if let Some(machine) = &mut device.machine {
            machine.applied(now, token, Ok(commit), random);
        }
    }

    /// Answers a read of the database.
    pub(super) fn read(&mut self, n: usize, effect: &EdgeEffect) {
        let (now, random) = (self.time.now, self.time.random.next());
        let Device { db, machine: Some(machine), .. } = &mut self.devices[n] else { return };
        match *effect {
            EdgeEffect::ReadChanges { after, limit } => match db.changes(after, limit) {
                Some(page) => machine.changes_read(now, page),
                None => machine.changes_compacted(now, after),
            },
            EdgeEffect::ReadParts => machine.parts_read(now, db.parts(), random),
            EdgeEffect::ReadBuckets => machine.buckets_read(&db.buckets()),
            EdgeEffect::ReadInventory { buckets, cursor, limit } => {
                machine.inventory_read(now, db.inventory(buckets, cursor, limit));
            }
            _ => {}
        }
    }
}
