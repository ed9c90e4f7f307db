//! A model of the source: a database of this process, or a cluster that two replicas watch.
//! Requests are answered when the world says so, if at all; watches lag, and lose changes.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard};

use jiff::Timestamp;
use tokio::sync::oneshot;

use super::history::{History, Objects, Registration};
use super::oracle::Sets;
use super::rollouts::Unread;
use super::rules::Rule;
use crate::config::ObjectSyncs;
use crate::source::{
    Admission, Change, Changes, Effect, LeaseRenewal, NodeChange, NodeFacts, NodeStore, ObjectSource,
    Registered, Removal, RemovalCause, Replication, Result, RuleStatus, Source, SourceError, UploadBatch,
    UploadOutcome,
};
use edgesync_enrollment::membership::NodeIdentity;
use edgesync_object::{NodeName, OmittedFields};
use edgesync_placement::Selection;
use edgesync_protocol::change::Uid;
use edgesync_protocol::cloud::{Issued, LedgerFacts, Loaded, Reached, Record, RecordBatch};
use edgesync_protocol::fault::{Fault, planted};
use edgesync_protocol::simulation::timeline::Random;
use edgesync_protocol::upload::{IngestCursor, Lane, Refused, RefusedReason};

/// The part of a list that is delivered at once.
const PART: usize = 4;

/// The rows of a node in the database.
#[derive(Clone, Default)]
pub(super) struct Rows {
    facts: LedgerFacts,
    pub(super) records: HashMap<Uid, Record>,
    taken: IngestCursor,
    /// The newest item that has taken effect, by lane.
    applied: [u64; 3],
}

/// Everything that a restore replaces.
#[derive(Clone)]
pub(super) struct Database {
    pub(super) objects: Arc<Objects>,
    pub(super) incarnation: Arc<str>,
    pub(super) issued: Issued,
    pub(super) rows: BTreeMap<NodeName, Rows>,
    /// Removed nodes that an operator lets return.
    pub(super) admissible: BTreeSet<NodeName>,
    /// Removed nodes for which a client has created a Node that no removal has deleted.
    pub(super) created: BTreeSet<NodeName>,
}

/// The watch of one replica.
#[derive(Default)]
pub(super) struct Feed {
    /// The position of the last state that it has delivered.
    pub(super) told: usize,
    pub(super) queue: VecDeque<Change>,
    /// Questions to catch up, each with the position at which it was asked.
    questions: VecDeque<(u64, usize)>,
    asked: u64,
    /// The question that completes the list of a restored copy, and the incarnation before.
    restored: Option<(u64, Arc<str>)>,
    incarnation: Arc<str>,
    /// The removals, as far as the replica knows.
    removed: BTreeMap<NodeName, Timestamp>,
    /// Whether the replica believes that it moves roll-outs.
    pub(super) leads: bool,
    /// The objects of the requested relists.
    relists: VecDeque<Selection>,
    /// Held by each write of a roll-out that is under way.
    pub(super) writes: Arc<()>,
}

impl Feed {
    /// Returns whether a relist or a write of a roll-out is under way.
    pub(super) fn is_busy(&self) -> bool {
        !self.relists.is_empty() || Arc::strong_count(&self.writes) > 1
    }
}

/// The message that a gate holds up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Way {
    /// A request to the source.
    Request,
    /// The bodies of objects from the source.
    Bodies,
    /// Another answer of the source.
    Answer,
}

/// A message between a replica and the source on its way.
pub(super) struct Gate {
    pub(super) replica: usize,
    pub(super) way: Way,
    /// Whether it arrives.
    pub(super) opens: oneshot::Sender<bool>,
}

/// The model with its history.
pub(super) struct State {
    pub(super) db: Database,
    pub(super) history: History,
    pub(super) feeds: Vec<Feed>,
    /// Requests and answers that wait for the world.
    pub(super) gates: Vec<Gate>,
    pub(super) is_shared: bool,
    pub(super) random: Random,
    /// The wall clock in microseconds.
    pub(super) clock: u64,
    /// Items of outboxes that have taken effect in any life.
    pub(super) ever: HashSet<(NodeName, u64)>,
    pub(super) refused: HashSet<(NodeName, String, Lane, u64)>,
    /// The removals recorded so far, over all lives: a time for each.
    removals: i64,
    /// Nodes whose removal an operator has requested, until it is complete.
    pub(super) removable: BTreeSet<NodeName>,
    /// The births of the last Nodes that clients have deleted.
    pub(super) deleted: BTreeMap<NodeName, u64>,
    /// Incarnations begun because nodes asked for it.
    pub(super) renewals: usize,
    /// How often the database of a node was replaced. Uploads from before do not arrive after it.
    pub(super) replaced: BTreeMap<NodeName, u64>,
    /// Reads of the records of nodes.
    pub(super) reads: usize,
    pub(super) violation: Option<String>,
    /// The rules of the configuration.
    pub(super) configured: Vec<(Uid, Arc<Rule>)>,
    /// The sets of all revisions that were ever stored.
    pub(super) sets: Sets,
    /// The revisions that replicas could not read.
    pub(super) unread: Unread,
    /// The rules that were ever created.
    pub(super) created: u64,
    /// The replica that starts: it is answered at once.
    pub(super) starting: Option<usize>,
}

/// The handle of one replica.
#[derive(Clone)]
pub(super) struct Model {
    pub(super) state: Arc<Mutex<State>>,
    pub(super) replica: usize,
    pub(super) is_shared: bool,
}

pub(super) fn tier_of(node: &NodeName) -> u64 {
    u64::from(node.ends_with(['1', '3']))
}

/// Returns the birth of the Node with this UID.
fn born_of(uid: &str) -> Option<u64> {
    uid.rsplit('-').next()?.parse().ok()
}

impl Database {
    pub(super) fn new(random: &mut Random, rules: &[(Uid, Arc<Rule>)]) -> Self {
        let rules = rules.iter().cloned().collect();
        Self {
            objects: Arc::new(Objects { rules, ..Objects::default() }),
            incarnation: format!("{:016x}", random.next()).into(),
            issued: Issued::default(),
            rows: BTreeMap::new(),
            admissible: BTreeSet::new(),
            created: BTreeSet::new(),
        }
    }
}

impl State {
    pub(super) fn new(
        is_shared: bool,
        replicas: usize,
        mut random: Random,
        configured: Vec<(Uid, Arc<Rule>)>,
    ) -> Self {
        let db = Database::new(&mut random, &configured);
        let history = History { states: vec![db.objects.clone()], restores: Vec::new() };
        Self {
            db,
            history,
            feeds: (0..replicas).map(|n| Feed { leads: n == 0, ..Feed::default() }).collect(),
            gates: Vec::new(),
            is_shared,
            random,
            clock: 0,
            ever: HashSet::new(),
            refused: HashSet::new(),
            removals: 0,
            removable: BTreeSet::new(),
            deleted: BTreeMap::new(),
            renewals: 0,
            replaced: BTreeMap::new(),
            reads: 0,
            violation: None,
            configured,
            sets: Sets::new(),
            unread: Unread::default(),
            created: 0,
            starting: None,
        }
    }

    /// Writes to the source: the change receives the version of the write.
    pub(super) fn write(&mut self, change: impl FnOnce(&mut Objects, u64)) {
        let mut next = Objects::clone(&self.db.objects);
        next.version += 1;
        let version = next.version;
        change(&mut next, version);
        self.db.objects = Arc::new(next);
        self.history.states.push(self.db.objects.clone());
    }

    /// Replaces the source by an older copy.
    pub(super) fn restore(&mut self, copy: Database) {
        self.db = copy;
        self.history.states.push(self.db.objects.clone());
        self.history.restores.push(self.history.last());
    }

    /// Opens the database of this process: jumps to a version that no lost copy can have issued.
    pub(super) fn open(&mut self) {
        let last = self.db.objects.version;
        let base = self.clock.max(last + 1);
        self.db.issued.gaps.push((last, base));
        self.write(|objects, _| objects.version = base);
    }

    /// Returns a version that a lost copy may have issued since the current incarnation began.
    pub(super) fn lost_version(&self) -> Option<u64> {
        let Issued { gaps, since } = &self.db.issued;
        let (last, base) = gaps.last()?;
        (since.is_none_or(|since| since < *base) && last + 1 < *base).then_some(last + 1)
    }

    /// Starts the watch of a replica with a list, which may be stale in a cluster.
    pub(super) fn list(&mut self, replica: usize) {
        let last = self.history.last();
        let oldest = self.history.restores.last().copied().unwrap_or_default().max(last.saturating_sub(4));
        let at =
            if self.is_shared { last - self.random.below((last - oldest) as u64 + 1) as usize } else { last };
        let (incarnation, removed) = (self.db.incarnation.clone(), self.db.objects.removed.clone());
        let leads = self.feeds[replica].leads;
        self.feeds[replica] = Feed { told: at, incarnation, removed, leads, ..Feed::default() };
        self.relist(replica);
    }

    /// Delivers the list that the watch has reached, after changes were lost.
    fn relist(&mut self, replica: usize) {
        let feed = &mut self.feeds[replica];
        let list = self.history.states[feed.told].list();
        feed.queue.push_back(Change::ListStarted);
        feed.queue.extend(list.chunks(PART).map(|part| Change::Listed(part.to_vec())));
        feed.queue.push_back(Change::Complete);
    }

    /// Loses the changes of the watch that were not delivered yet.
    pub(super) fn lose_changes(&mut self, replica: usize) {
        let told = self.feeds[replica].told;
        if self.history.restores.iter().all(|at| *at <= told) && self.feeds[replica].restored.is_none() {
            self.feeds[replica].told = self.history.last();
            self.relist(replica);
        }
    }

    /// Delivers the changes of the next write to a replica, and answers its questions.
    pub(super) fn deliver(&mut self, replica: usize) {
        let feed = &mut self.feeds[replica];
        if feed.told < self.history.last() {
            feed.told += 1;
            let (before, after) = (&self.history.states[feed.told - 1], &self.history.states[feed.told]);
            if self.is_shared && self.history.restores.contains(&feed.told) {
                feed.asked += 1;
                feed.questions.push_back((feed.asked, feed.told));
                feed.restored = Some((feed.asked, feed.incarnation.clone()));
                feed.queue.push_back(Change::Restored(feed.asked));
            }
            feed.queue.extend(after.changes_since(before));
        }
        // Replicas read the incarnation that they share, unless they have to read a restored copy
        // first.
        if feed.restored.is_none() && self.history.restores.last().is_none_or(|at| *at <= feed.told) {
            feed.incarnation = self.db.incarnation.clone();
        }
        let mut answered = None;
        while let Some((question, _)) = feed.questions.pop_front_if(|(_, at)| *at <= feed.told) {
            answered = Some(question);
        }
        if let Some(objects) = feed.relists.pop_front() {
            let mut list = self.history.states[feed.told].list();
            list.retain(|summary| summary.is_in(&objects));
            feed.queue.extend(list.chunks(PART).map(|part| Change::Listed(part.to_vec())));
            feed.queue.push_back(Change::Relisted);
        }
        let Some(question) = answered else { return };
        if let Some((_, before)) = feed.restored.take_if(|(until, _)| *until <= question) {
            if self.db.incarnation == before {
                self.db.incarnation = format!("{:016x}", self.random.next()).into();
            }
            feed.incarnation = self.db.incarnation.clone();
        }
        let reached = Reached::from(self.history.states[feed.told].version);
        feed.queue.push_back(Change::CaughtUp { question, reached });
    }

    /// Returns whether a replica knows of all restores, by what its watch has delivered.
    pub(super) fn knows_restore(&self, replica: usize) -> bool {
        let Feed { told, queue, restored, .. } = &self.feeds[replica];
        self.history.restores.last().is_none_or(|at| at <= told) && restored.is_none() && queue.is_empty()
    }

    /// Returns whether the watch has passed the position of a question, or has to list again.
    pub(super) fn can_answer(&self, replica: usize) -> bool {
        let feed = &self.feeds[replica];
        !feed.relists.is_empty() || feed.questions.front().is_some_and(|(_, at)| *at <= feed.told)
    }

    fn record(&mut self, node: &NodeName, batch: RecordBatch) {
        let rows = self.db.rows.entry(node.clone()).or_default();
        if batch.reset {
            rows.records.clear();
        }
        rows.records.retain(|uid, _| !batch.remove.contains(uid));
        rows.records.extend(batch.put);
        let RecordBatch { epoch, confirmed, accepted, tally, epochs, .. } = batch;
        rows.facts = LedgerFacts { epoch: Some(epoch), confirmed, accepted, tally, epochs };
    }

    /// Ingests an upload: each item takes effect once, and in order.
    fn ingest(&mut self, batch: UploadBatch) -> UploadOutcome {
        let UploadBatch { node, outbox, lane, confirmed, items } = batch;
        let (mut refused, mut reported) = (Vec::new(), false);
        let rows = self.db.rows.entry(node.clone()).or_default();
        if rows.taken.outbox != outbox {
            rows.applied = [0; 3];
        }
        rows.taken.begin(&outbox, lane, confirmed);
        for item in items {
            if !rows.taken.accept(lane, item.seq) {
                continue;
            }
            let made = match item.effect {
                Ok(Effect::Node(report)) => {
                    reported = true;
                    report.labels.get("made").and_then(|made| made.parse().ok())
                }
                Ok(Effect::Event(event)) => event.name().trim_start_matches('e').parse().ok(),
                Ok(Effect::InEffect { effect, known, .. })
                    if known || rows.records.contains_key(&effect.uid) =>
                {
                    Some(effect.since.cast_unsigned())
                }
                Ok(effect) => {
                    let message = format!("{effect:?}");
                    refused.push(Refused { seq: item.seq, reason: RefusedReason::NotPlaced, message });
                    None
                }
                Err((reason, message)) => {
                    refused.push(Refused { seq: item.seq, reason, message });
                    None
                }
            };
            let Some(made) = made else {
                self.refused.insert((node.clone(), outbox.clone(), lane, item.seq));
                continue;
            };
            if rows.applied[lane.index()] >= made {
                let before = rows.applied[lane.index()];
                self.violation = Some(format!("outbox: item {made} of {node} took effect after {before}"));
            }
            rows.applied[lane.index()] = made;
            self.ever.insert((node.clone(), made));
        }
        let taken = rows.taken.clone();
        if reported && !self.db.objects.removed.contains_key(&node) {
            self.register(&node, true);
        }
        UploadOutcome { taken, refused, events_dropped: 0 }
    }

    // --- removals

    /// Delivers the removals and readmissions by other processes to a replica.
    pub(super) fn deliver_removals(&mut self, replica: usize) {
        let removed = self.db.objects.removed.clone();
        let feed = &mut self.feeds[replica];
        let before = std::mem::replace(&mut feed.removed, removed);
        let is_new = |(node, removal): &(&NodeName, &Timestamp)| before.get(*node) != Some(*removal);
        let removed = feed.removed.iter().filter(is_new).map(|(node, _)| Change::Removed(node.clone()));
        let admitted = before.keys().filter(|node| !feed.removed.contains_key(*node));
        feed.queue.extend(removed);
        feed.queue.extend(admitted.cloned().map(Change::Admitted));
    }

    /// Updates what a replica knows after its own write.
    fn know_own_write(&mut self, replica: usize, node: &NodeName) {
        let removed = &mut self.feeds[replica].removed;
        match self.db.objects.removed.get(node) {
            Some(removal) => removed.insert(node.clone(), *removal),
            None => removed.remove(node),
        };
    }

    /// Returns whether removals and readmissions are judged: a restored cluster has lost some.
    fn judges_removals(&self) -> bool {
        !self.is_shared || self.history.restores.is_empty()
    }

    /// Records a removal with the Node of this birth and version.
    pub(super) fn remove(&mut self, node: &NodeName, deleted: Option<(u64, u64)>) {
        let is_new = !self.db.objects.removed.contains_key(node);
        if is_new {
            self.db.admissible.remove(node);
            self.db.created.remove(node);
            self.removals += 1;
        }
        let removal = Timestamp::from_second(self.removals).unwrap();
        self.write(|objects, _| {
            if is_new {
                objects.removed.insert(node.clone(), removal);
                objects.removing.insert(node.clone());
            }
            if let Some((born, version)) = deleted {
                objects.gone.entry(node.clone()).or_default().add(born, version);
            }
        });
    }

    /// Records a readmission.
    pub(super) fn readmit(&mut self, node: &NodeName) {
        if self.db.objects.removed.contains_key(node) {
            self.write(|objects, _| {
                objects.removed.remove(node);
                objects.removing.remove(node);
            });
        }
    }

    /// Lets a node return from a removal, unless another one is recorded by now.
    fn admit(&mut self, replica: usize, node: &NodeName, removal: Option<Timestamp>) -> Admission {
        let Some(recorded) = self.db.objects.removed.get(node).copied() else { return Admission::Admitted };
        if removal != Some(recorded) && !planted(Fault::AnyRemovalUndone) {
            return Admission::RemovedAgain;
        }
        let is_permitted = self.db.admissible.contains(node) || self.db.created.contains(node);
        if !is_permitted && self.judges_removals() {
            self.violation = Some(format!("removal: {node} returns by itself"));
        }
        self.readmit(node);
        self.know_own_write(replica, node);
        Admission::Admitted
    }

    /// Records a removal, unless it is recorded or the node has returned since: the rules of the
    /// membership of a fleet. Returns whether the node is removed.
    fn record_removal(&mut self, node: &NodeName, cause: &RemovalCause) -> bool {
        let objects = &self.db.objects;
        let is_removed = objects.removed.contains_key(node);
        let (deleted, is_permitted) = match cause {
            RemovalCause::Recorded => return is_removed,
            RemovalCause::Requested => (None, self.removable.contains(node)),
            RemovalCause::NodeDeleted(deleted) => {
                let of =
                    |node: &NodeIdentity| Some((born_of(&node.uid)?, node.version.as_str().parse().ok()?));
                let deleted = deleted.as_ref().and_then(of);
                let last = self.deleted.get(node);
                (deleted, deleted.zip(last).is_some_and(|((born, _), last)| born <= *last))
            }
        };
        let gone = deleted.zip(objects.gone.get(node));
        let is_late = self.is_shared && gone.is_some_and(|((born, version), gone)| gone.has(born, version));
        if is_late && !planted(Fault::LateRemovalCounts) {
            return is_removed;
        }
        if !is_removed && !is_permitted && self.judges_removals() {
            self.violation = Some(format!("removal: {node} is removed by itself"));
        }
        self.remove(node, deleted);
        true
    }

    /// Deletes the Node and the records of a removed node, unless it has returned.
    fn delete_removed(&mut self, node: &NodeName, cause: &RemovalCause) -> Removal {
        let Some(removal) = self.db.objects.removed.get(node).copied() else { return Removal::Returned };
        if *cause == RemovalCause::Requested {
            self.removable.remove(node);
        }
        // Another replica may have seen the Node, and readmit the node for it.
        if self.db.created.remove(node) && self.is_shared {
            self.db.admissible.insert(node.clone());
        }
        self.db.rows.remove(node);
        self.write(|objects, _| {
            if let Some(Registration { born, version, .. }) = objects.nodes.remove(node) {
                objects.gone.entry(node.clone()).or_default().add(born, version);
            }
            objects.removing.remove(node);
        });
        Removal::Removed(Some(removal))
    }

    /// Lets a client replace a Node: the new one lacks the report of the node.
    pub(super) fn replace_node(&mut self, name: &NodeName) {
        self.change_node(name, |node, version| (node.born, node.is_reported) = (version, false));
    }

    /// Lets a client change the label of a Node.
    pub(super) fn set_tier(&mut self, name: &NodeName, tier: u64) {
        self.change_node(name, |node, _| node.tier = tier);
    }

    pub(super) fn change_node(&mut self, name: &NodeName, change: impl FnOnce(&mut Registration, u64)) {
        self.write(|objects, version| {
            if let Some(node) = objects.nodes.get_mut(name) {
                node.version = version;
                change(node, version);
            }
        });
    }

    /// Creates a Node, or marks it as reported.
    pub(super) fn register(&mut self, name: &NodeName, is_reported: bool) {
        let known = self.db.objects.nodes.get(name);
        if known.is_none_or(|node| is_reported && !node.is_reported) {
            let tier = known.map_or_else(|| tier_of(name), |node| node.tier);
            let is_canary = known.map_or_else(|| name.ends_with(['0', '2']), |node| node.is_canary);
            let is_at_site = known.map_or_else(|| name.ends_with(['2', '4']), |node| node.is_at_site);
            let born = known.map(|node| node.born);
            let node = |version| {
                let born = born.unwrap_or(version);
                Registration { born, version, tier, is_canary, is_at_site, is_reported }
            };
            self.write(|objects, version| {
                objects.nodes.insert(name.clone(), node(version));
            });
        }
    }
}

impl Model {
    pub(super) fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap()
    }

    pub(super) async fn pass(&self, way: Way) -> bool {
        if self.state().starting == Some(self.replica) {
            return true;
        }
        let (opens, opened) = oneshot::channel();
        self.state().gates.push(Gate { replica: self.replica, way, opens });
        matches!(opened.await, Ok(true))
    }

    /// Waits until the request arrives at the source, which may fail.
    pub(super) async fn arrive(&self) -> Result<()> {
        match self.pass(Way::Request).await {
            true => Ok(()),
            false => Err(SourceError::Unread("the source is gone".into())),
        }
    }

    /// Waits until the answer of the source arrives.
    pub(super) async fn answer<T>(&self, answer: T) -> Result<T> {
        self.pass(Way::Answer).await;
        Ok(answer)
    }
}

/// The changes of a replica's watch.
pub(super) struct Stream(Model);

impl Stream {
    pub(super) fn try_next(&mut self) -> Option<Change> {
        let replica = self.0.replica;
        self.0.state().feeds[replica].queue.pop_front()
    }
}

impl Changes for Stream {
    async fn next(&mut self) -> Change {
        match self.try_next() {
            Some(change) => change,
            None => std::future::pending().await,
        }
    }

    fn relist(&mut self, objects: Selection) {
        self.0.state().feeds[self.0.replica].relists.push_back(objects);
    }

    fn catch_up(&mut self) -> u64 {
        let mut state = self.0.state();
        let at = state.history.last();
        let feed = &mut state.feeds[self.0.replica];
        feed.asked += 1;
        feed.questions.push_back((feed.asked, at));
        feed.asked
    }
}

impl ObjectSource for Model {
    type Changes = Stream;

    fn follow(&self) -> Stream {
        self.state().list(self.replica);
        Stream(self.clone())
    }

    async fn bodies(&self, uids: Vec<Uid>, _: OmittedFields) -> Result<Vec<Loaded>> {
        self.arrive().await?;
        let bodies = {
            let state = self.state();
            // A replica has a cache, which is as new as its watch.
            let cached = &state.history.states[state.feeds[self.replica].told];
            let objects = if self.is_shared { cached } else { &state.db.objects };
            let load = |uid: Uid| {
                let thing = objects.things.get(&uid)?;
                Some(Loaded { version: thing.version.into(), body: thing.body(&uid), uid, patch: None })
            };
            uids.into_iter().filter_map(load).collect()
        };
        self.pass(Way::Bodies).await;
        Ok(bodies)
    }

    async fn set_rule_status(&self, status: RuleStatus) -> Result<()> {
        self.arrive().await?;
        self.state().set_rule_status(status);
        self.answer(()).await
    }

    fn incarnation(&self) -> Arc<str> {
        let state = self.state();
        if self.is_shared {
            state.feeds[self.replica].incarnation.clone()
        } else {
            state.db.incarnation.clone()
        }
    }

    async fn new_incarnation(&self) -> Result<Arc<str>> {
        self.arrive().await?;
        let incarnation = {
            let mut state = self.state();
            let is_current = !self.is_shared || state.feeds[self.replica].incarnation == state.db.incarnation;
            if is_current {
                state.renewals += 1;
                state.db.incarnation = format!("{:016x}", state.random.next()).into();
            }
            if !self.is_shared {
                state.open();
                state.db.issued.since = state.db.issued.gaps.last().map(|(_, base)| *base);
            }
            let incarnation = state.db.incarnation.clone();
            state.feeds[self.replica].incarnation = incarnation.clone();
            incarnation
        };
        self.answer(incarnation).await
    }

    fn issued(&self) -> Arc<Issued> {
        Arc::new(self.state().db.issued.clone())
    }
}

impl NodeStore for Model {
    async fn registered(&self) -> Result<Registered> {
        let state = self.state();
        let Objects { nodes, removed, removing, .. } = &*state.db.objects;
        let reported = nodes.iter().filter(|(_, node)| node.is_reported);
        Ok(Registered {
            nodes: reported.map(|(name, _)| name.clone()).collect(),
            leases: Vec::new(),
            orphans: Vec::new(),
            removed: removed.iter().map(|(name, removal)| (name.clone(), *removal)).collect(),
            removing: removing.iter().cloned().collect(),
        })
    }

    async fn nodes(&self) -> Result<Vec<(NodeName, NodeFacts)>> {
        let state = self.state();
        let facts = |rows: &Rows| NodeFacts {
            ledger: rows.facts.clone(),
            agent_version: None,
            last_seen: Timestamp::UNIX_EPOCH,
        };
        let reported = state.db.rows.iter().filter(|(_, rows)| !self.is_shared && rows.facts.epoch.is_some());
        Ok(reported.map(|(name, rows)| (name.clone(), facts(rows))).collect())
    }

    async fn records(&self, node: &NodeName) -> Result<Vec<(Uid, Record)>> {
        self.arrive().await?;
        let records = {
            let mut state = self.state();
            state.reads += 1;
            state.db.rows.get(node).map(|rows| rows.records.clone()).unwrap_or_default()
        };
        self.answer(records.into_iter().collect()).await
    }

    async fn record(
        &self,
        node: &NodeName,
        _: Option<String>,
        batch: RecordBatch,
    ) -> Result<Vec<(Uid, String)>> {
        self.arrive().await?;
        self.state().record(node, batch);
        self.answer(Vec::new()).await
    }

    async fn renew_leases(&self, _: Vec<LeaseRenewal>) -> Result<()> {
        self.arrive().await?;
        self.answer(()).await
    }

    async fn change_nodes(&self, changes: Vec<NodeChange>) -> Result<()> {
        self.arrive().await?;
        {
            let mut state = self.state();
            for NodeChange { node, .. } in changes {
                if !state.db.objects.removed.contains_key(&node) {
                    state.register(&node, false);
                }
            }
        }
        self.answer(()).await
    }

    async fn remove_node(&self, node: &NodeName, cause: RemovalCause) -> Result<Removal> {
        self.arrive().await?;
        let is_removed = {
            let mut state = self.state();
            let is_removed = state.record_removal(node, &cause);
            if cause != RemovalCause::Recorded {
                state.know_own_write(self.replica, node);
            }
            is_removed
        };
        if !is_removed {
            return self.answer(Removal::Returned).await;
        }
        // One transaction of a database, several requests to a cluster.
        if self.is_shared {
            self.arrive().await?;
        }
        let outcome = {
            let mut state = self.state();
            let outcome = state.delete_removed(node, &cause);
            if outcome != Removal::Returned {
                state.know_own_write(self.replica, node);
            }
            outcome
        };
        self.answer(outcome).await
    }

    async fn admit_node(&self, node: &NodeName, removal: Option<Timestamp>) -> Result<Admission> {
        self.arrive().await?;
        let admission = self.state().admit(self.replica, node, removal);
        self.answer(admission).await
    }

    async fn ingest(&self, batch: UploadBatch) -> Result<UploadOutcome> {
        let sent = self.state().replaced.get(&batch.node).copied();
        self.arrive().await?;
        let outcome = {
            let mut state = self.state();
            if state.replaced.get(&batch.node).copied() != sent {
                return Err(SourceError::Unread("the node has another database".into()));
            }
            state.ingest(batch)
        };
        self.answer(outcome).await
    }
}

impl Source for Model {
    type Replication = Self;

    fn replication(&self) -> Option<&Self> {
        self.is_shared.then_some(self)
    }
}

impl Replication for Model {
    fn object_syncs(&self) -> ObjectSyncs {
        ObjectSyncs::All
    }

    fn removal(&self, node: &NodeName) -> Option<Timestamp> {
        self.state().feeds[self.replica].removed.get(node).copied()
    }

    async fn confirm_deletions(&self, _: &NodeName, _: &str, _: Option<u64>) -> Result<()> {
        Ok(())
    }
}
