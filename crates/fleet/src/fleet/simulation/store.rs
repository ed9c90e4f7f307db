//! A model of the source: a database of this process, or a cluster that two replicas watch.
//! Requests are answered when the world says so, if at all; watches lag, and lose changes.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard};

use jiff::Timestamp;
use tokio::sync::oneshot;

use super::history::{History, Objects, Registration};
use crate::config::ObjectSyncs;
use crate::source::{
    Change, Changes, Effect, LeaseRenewal, NodeChange, NodeFacts, NodeStore, ObjectSource, Registered,
    Replication, Result, RuleStatus, Source, SourceError, UploadBatch, UploadOutcome,
};
use edgesync_object::{NodeName, OmittedFields};
use edgesync_protocol::change::Uid;
use edgesync_protocol::cloud::{Issued, LedgerFacts, Loaded, Reached, Record, RecordBatch};
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
}

/// The model with its history.
pub(super) struct State {
    pub(super) db: Database,
    pub(super) history: History,
    pub(super) feeds: Vec<Feed>,
    /// Requests that wait for the world, each with its replica.
    pub(super) gates: Vec<(usize, oneshot::Sender<bool>)>,
    pub(super) is_shared: bool,
    pub(super) random: Random,
    /// The wall clock in microseconds.
    pub(super) clock: u64,
    /// Items of outboxes that have taken effect in any life.
    pub(super) ever: HashSet<(NodeName, u64)>,
    pub(super) refused: HashSet<(NodeName, String, Lane, u64)>,
    /// Removed nodes that an operator or a client lets return.
    pub(super) admissible: BTreeSet<NodeName>,
    /// Nodes that an operator or the deletion of a Node has removed since their last admission.
    pub(super) removable: BTreeSet<NodeName>,
    /// Nodes whose last removal has deleted a Node that the fleet did not know.
    relapses: BTreeSet<NodeName>,
    /// Incarnations begun because nodes asked for it.
    pub(super) renewals: usize,
    /// Reads of the records of nodes.
    pub(super) reads: usize,
    pub(super) violation: Option<String>,
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

impl Database {
    pub(super) fn new(random: &mut Random) -> Self {
        Self {
            objects: Arc::default(),
            incarnation: format!("{:016x}", random.next()).into(),
            issued: Issued::default(),
            rows: BTreeMap::new(),
        }
    }
}

impl State {
    pub(super) fn new(is_shared: bool, replicas: usize, mut random: Random) -> Self {
        let db = Database::new(&mut random);
        let history = History { states: vec![db.objects.clone()], restores: Vec::new() };
        Self {
            db,
            history,
            feeds: (0..replicas).map(|_| Feed::default()).collect(),
            gates: Vec::new(),
            is_shared,
            random,
            clock: 0,
            ever: HashSet::new(),
            refused: HashSet::new(),
            admissible: BTreeSet::new(),
            removable: BTreeSet::new(),
            relapses: BTreeSet::new(),
            renewals: 0,
            reads: 0,
            violation: None,
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
        let incarnation = self.db.incarnation.clone();
        self.feeds[replica] = Feed { told: at, incarnation, ..Feed::default() };
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

    /// Returns whether the watch has passed the position of a question.
    pub(super) fn can_answer(&self, replica: usize) -> bool {
        let feed = &self.feeds[replica];
        feed.questions.front().is_some_and(|(_, at)| *at <= feed.told)
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
        if reported && !self.db.objects.removed.contains(&node) {
            self.register(&node, true);
        }
        UploadOutcome { taken, refused, events_dropped: 0 }
    }

    /// Returns the birth of the Node that the fleet of a replica knows; `None` if a change of it is
    /// on its way.
    fn known_node(&self, replica: usize, name: &NodeName) -> Option<u64> {
        let feed = &self.feeds[replica];
        let is_coming = feed.queue.iter().any(|change| match change {
            Change::Set(object) | Change::Deleted(object) => object.node_name().as_ref() == Some(name),
            Change::Listed(objects) => objects.iter().any(|one| one.node_name().as_ref() == Some(name)),
            _ => false,
        });
        let node = self.history.states[feed.told].nodes.get(name);
        node.filter(|_| !is_coming).map(|node| node.born)
    }

    /// Creates a Node, or marks it as reported.
    pub(super) fn register(&mut self, name: &NodeName, is_reported: bool) {
        let known = self.db.objects.nodes.get(name);
        if known.is_none_or(|node| is_reported && !node.is_reported) {
            let tier = known.map_or_else(|| tier_of(name), |node| node.tier);
            let born = known.map(|node| node.born);
            let node = |version| Registration { born: born.unwrap_or(version), version, tier, is_reported };
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

    /// Waits until the request arrives at the source, which may fail.
    async fn arrive(&self) -> Result<()> {
        let (gate, opened) = oneshot::channel();
        self.state().gates.push((self.replica, gate));
        match opened.await {
            Ok(true) => Ok(()),
            _ => Err(SourceError::Unread("the source is gone".into())),
        }
    }

    /// Waits until the answer of the source arrives.
    async fn answer<T>(&self, answer: T) -> Result<T> {
        let _ = self.arrive().await;
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

    fn relist(&mut self) {
        unreachable!("no rule is an object")
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
                Some(Loaded { version: thing.version.into(), body: thing.body(&uid), uid })
            };
            uids.into_iter().filter_map(load).collect()
        };
        self.answer(bodies).await
    }

    async fn set_rule_status(&self, _: RuleStatus) -> Result<()> {
        Ok(())
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
        let Objects { nodes, removed, .. } = &*state.db.objects;
        let reported = nodes.iter().filter(|(_, node)| node.is_reported);
        Ok(Registered {
            nodes: reported.map(|(name, _)| name.clone()).collect(),
            leases: Vec::new(),
            orphans: Vec::new(),
            removed: removed.iter().map(|name| (name.clone(), Timestamp::UNIX_EPOCH)).collect(),
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
                if !state.db.objects.removed.contains(&node) {
                    state.register(&node, false);
                }
            }
        }
        self.answer(()).await
    }

    async fn remove_node(&self, node: &NodeName, _: bool) -> Result<bool> {
        // A Node that the fleet learns of during the removal looks like one created after it.
        let known = self.state().known_node(self.replica, node);
        self.arrive().await?;
        {
            let mut state = self.state();
            let newest = state.db.objects.nodes.get(node).map(|node| node.born);
            let is_unknown = newest.is_some() && newest != known;
            let State { admissible, relapses, .. } = &mut *state;
            for excused in [admissible, relapses] {
                match is_unknown {
                    true => excused.insert(node.clone()),
                    false => excused.remove(node),
                };
            }
            if !state.removable.contains(node) {
                state.violation = Some(format!("removal: {node} is removed by itself"));
            }
            state.db.rows.remove(node);
            state.write(|objects, _| {
                objects.nodes.remove(node);
                objects.removed.insert(node.clone());
            });
        }
        self.answer(true).await
    }

    async fn admit_node(&self, node: &NodeName) -> Result<bool> {
        self.arrive().await?;
        {
            let mut state = self.state();
            if !state.admissible.contains(node) {
                state.violation = Some(format!("removal: {node} returns by itself"));
            }
            // The fleet may learn only later that the removal has deleted another Node.
            if !state.relapses.remove(node) {
                state.removable.remove(node);
            }
            state.write(|objects, _| objects.removed.retain(|removed| removed != node));
        }
        self.answer(true).await
    }

    async fn ingest(&self, batch: UploadBatch) -> Result<UploadOutcome> {
        self.arrive().await?;
        let outcome = self.state().ingest(batch);
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

    fn is_removed(&self, node: &NodeName) -> bool {
        self.state().db.objects.removed.contains(node)
    }

    async fn confirm_deletions(&self, _: &NodeName, _: &str, _: Option<u64>) -> Result<()> {
        Ok(())
    }
}
