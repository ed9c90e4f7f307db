//! The work in a turn of the loop does not grow with the number of nodes: 10,000 nodes and events
//! that concern all of them, counted in units of work. Real machines on both sides; store and
//! broker are in memory.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use super::*;
use crate::config::ObjectSyncs;
use crate::fleet::node::Node;
use crate::node_name;
use crate::source::{
    Admission, Change, Changes, LeaseRenewal, NodeChange, NodeStore, ObjectSource, Registered, Removal,
    RemovalCause, Replication, Result, RevisionKey, RolloutStore, RolloutWrite, RuleStatus, SourceError,
    Sweep, UploadBatch, UploadOutcome,
};
use crate::work::MAX_TURN;
use edgesync_broker::Channel;
use edgesync_object::{NodeName, OmittedFields};
use edgesync_placement::{Selection, Summary, Unread};
use edgesync_protocol::body::Body;
use edgesync_protocol::cloud::{Issued, Loaded, Record, RecordBatch};
use edgesync_protocol::upload::{IngestCursor, Refused};
use edgesync_rollout::Set;
use edgesync_transport::link::handle::Shared;
use edgesync_transport::link::{Cause, Topic};

pub(super) const NODES: usize = 10_000;
/// Objects of a rule for all nodes, from the start.
const OBJECTS: usize = 3;
/// Capacity of the queue to the broker, in messages.
const QUEUE: usize = 1024;
/// Capacity of the loop's queue of events from nodes.
const EVENTS: usize = 1024;

/// Objects and records in memory, with or without other replicas.
#[derive(Clone, Default)]
pub(super) struct Store<const SHARED: bool>(pub(super) Arc<Mutex<State>>);

#[derive(Default)]
pub(super) struct State {
    pub(super) changes: Option<ChangeStream>,
    pub(super) objects: HashMap<Uid, Object>,
    pub(super) records: HashMap<NodeName, HashMap<Uid, Record>>,
    /// Statuses of roll-outs.
    pub(super) statuses: Vec<(String, String)>,
    /// Whether another process moves roll-outs.
    pub(super) follows: bool,
    /// Writes of roll-outs, and whether each other one fails.
    pub(super) written: Vec<RolloutWrite>,
    pub(super) fails_writes: bool,
    /// Number of sweeps.
    pub(super) sweeps: usize,
    /// Whether bodies of revisions are refused, and how many times they were.
    pub(super) refused: Option<usize>,
    /// Numbers of revisions that are being stored now, and at most.
    pub(super) storing: (usize, usize),
    /// Their revisions; others cannot be read.
    pub(super) revisions: Vec<Arc<Set>>,
    /// Bodies of stored revisions.
    pub(super) bodies: HashMap<RevisionKey, Vec<Loaded>>,
    /// Uploads ingested so far.
    pub(super) ingested: Vec<UploadBatch>,
}

/// The change stream, and the number of catch-up questions asked.
pub(super) struct ChangeStream(mpsc::UnboundedReceiver<Change>, Arc<AtomicU64>);

impl Changes for ChangeStream {
    async fn next(&mut self) -> Change {
        match self.0.recv().await {
            Some(change) => change,
            None => std::future::pending().await,
        }
    }

    fn relist(&mut self, _: Selection) {
        unreachable!("no rule is an object")
    }

    fn catch_up(&mut self) -> u64 {
        self.1.fetch_add(1, Ordering::Relaxed) + 1
    }
}

fn version(object: &Object) -> ResourceVersion {
    object.metadata().unwrap()["resourceVersion"].as_str().unwrap().into()
}

impl<const SHARED: bool> ObjectSource for Store<SHARED> {
    type Changes = ChangeStream;

    fn follow(&self) -> Self::Changes {
        self.0.lock().unwrap().changes.take().unwrap()
    }

    async fn bodies(&self, uids: Vec<Uid>, _: OmittedFields) -> Result<Vec<Loaded>> {
        let state = self.0.lock().unwrap();
        let found = uids.into_iter().filter_map(|uid| {
            let object = state.objects.get(&uid)?;
            let body = Body::new(serde_json::to_string(object).unwrap()).unwrap();
            Some(Loaded { uid, version: version(object), body, patch: None })
        });
        Ok(found.collect())
    }

    async fn set_rule_status(&self, _: RuleStatus) -> Result<()> {
        Ok(())
    }

    fn incarnation(&self) -> Arc<str> {
        "one".into()
    }

    async fn new_incarnation(&self) -> Result<Arc<str>> {
        Ok("two".into())
    }

    fn issued(&self) -> Arc<Issued> {
        Arc::default()
    }
}

impl<const SHARED: bool> NodeStore for Store<SHARED> {
    async fn records(&self, node: &NodeName) -> Result<Vec<(Uid, Record)>> {
        Ok(self.0.lock().unwrap().records.get(node).cloned().unwrap_or_default().into_iter().collect())
    }

    async fn record(
        &self,
        node: &NodeName,
        _: Option<String>,
        batch: RecordBatch,
    ) -> Result<Vec<(Uid, String)>> {
        let mut state = self.0.lock().unwrap();
        let records = state.records.entry(node.to_owned()).or_default();
        if batch.reset {
            records.clear();
        }
        records.retain(|uid, _| !batch.remove.contains(uid));
        records.extend(batch.put);
        Ok(Vec::new())
    }

    async fn registered(&self) -> Result<Registered> {
        Ok(Registered::default())
    }

    async fn renew_leases(&self, _: Vec<LeaseRenewal>) -> Result<()> {
        Ok(())
    }

    async fn change_nodes(&self, _: Vec<NodeChange>) -> Result<()> {
        Ok(())
    }

    async fn remove_node(&self, _: &NodeName, _: RemovalCause) -> Result<Removal> {
        Ok(Removal::Removed(None))
    }

    async fn admit_node(&self, _: &NodeName, _: Option<Timestamp>) -> Result<Admission> {
        Ok(Admission::Admitted)
    }

    async fn ingest(&self, batch: UploadBatch) -> Result<UploadOutcome> {
        let (mut taken, mut refused) = (IngestCursor::default(), Vec::new());
        taken.begin(&batch.outbox, batch.lane, batch.confirmed);
        for item in &batch.items {
            taken.accept(batch.lane, item.seq);
            if let Err((reason, message)) = &item.effect {
                refused.push(Refused { seq: item.seq, reason: *reason, message: message.clone() });
            }
        }
        self.0.lock().unwrap().ingested.push(batch);
        Ok(UploadOutcome { taken, refused, events_dropped: 0 })
    }
}

/// Accepts each status that it stores.
impl<const SHARED: bool> RolloutStore for Store<SHARED> {
    fn leads_rollouts(&self) -> bool {
        !self.0.lock().unwrap().follows
    }

    async fn rollout_statuses(&self) -> Result<Vec<(String, String)>> {
        Ok(self.0.lock().unwrap().statuses.clone())
    }

    async fn write_rollout(&self, write: RolloutWrite) -> Result<bool> {
        let mut state = self.0.lock().unwrap();
        state.written.push(write);
        match state.fails_writes && state.written.len() % 2 == 1 {
            true => Err(SourceError::Unread("the source is gone".into())),
            false => Ok(true),
        }
    }

    async fn store_revision(&self, key: RevisionKey, _: Arc<Set>, bodies: Vec<Loaded>) -> Result<()> {
        let begin = |State { storing: (now, most), .. }: &mut State| {
            *now += 1;
            *most = (*most).max(*now);
        };
        if let Some(refused) = &mut self.0.lock().unwrap().refused {
            *refused += 1;
            return Err(SourceError::Unread("no space".into()));
        }
        begin(&mut self.0.lock().unwrap());
        tokio::time::sleep(Duration::from_secs(1)).await;
        let mut state = self.0.lock().unwrap();
        state.storing.0 -= 1;
        state.bodies.insert(key, bodies);
        Ok(())
    }

    async fn revision(&self, key: RevisionKey) -> Result<Option<Arc<Set>>> {
        let state = self.0.lock().unwrap();
        let found = state.revisions.iter().find(|set| set.digest() == key.digest);
        found.map(|set| Some(set.clone())).ok_or_else(|| SourceError::Unread("the source is gone".into()))
    }

    async fn revision_bodies(&self, key: RevisionKey, uids: Vec<Uid>) -> Result<Vec<Loaded>> {
        let state = self.0.lock().unwrap();
        let bodies = state.bodies.get(&key).into_iter().flatten();
        Ok(bodies.filter(|loaded| uids.contains(&loaded.uid)).cloned().collect())
    }

    async fn sweep_revisions(&self, _: Sweep) -> Result<()> {
        self.0.lock().unwrap().sweeps += 1;
        Ok(())
    }
}

impl<const SHARED: bool> Source for Store<SHARED> {
    type Replication = Self;

    fn replication(&self) -> Option<&Self> {
        SHARED.then_some(self)
    }
}

impl<const SHARED: bool> Replication for Store<SHARED> {
    fn object_syncs(&self) -> ObjectSyncs {
        ObjectSyncs::All
    }

    fn removal(&self, _: &NodeName) -> Option<Timestamp> {
        None
    }

    async fn confirm_deletions(&self, _: &NodeName, _: &str, _: Option<u64>) -> Result<()> {
        Ok(())
    }
}

/// The fleet, and its nodes behind a broker.
pub(super) struct World<const SHARED: bool> {
    pub(super) fleet: Fleet<Store<SHARED>>,
    pub(super) store: Store<SHARED>,
    changes: mpsc::UnboundedSender<Change>,
    /// Numbers of the last catch-up question asked and answered.
    pub(super) asked: Arc<AtomicU64>,
    answered: u64,
    version: u64,
    pub(super) devices: BTreeMap<String, Device>,
    pub(super) broker: Arc<Shared>,
    /// Messages in flight from the broker to the cloud.
    pub(super) up: VecDeque<FleetEvent>,
    pub(super) events: (edgesync_broker::TestEvents, FleetEvents),
    /// Longest turn since the last wait began, in units.
    pub(super) longest: u64,
    /// The same in time, for information only.
    slowest: Duration,
    _directory: TempDir,
}

impl<const SHARED: bool> World<SHARED> {
    async fn start() -> Self {
        Self::with(NODES).await
    }

    /// Starts a fleet of so many devices, which are not connected.
    pub(super) async fn with(nodes: usize) -> Self {
        let text = "[[placement]]\nnodes = { names = [\"*\"] }\nobjects = { kinds = [\"ConfigMap\"] }\n";
        Self::of(nodes, text, State::default()).await
    }

    /// Starts a fleet with this configuration over this store.
    pub(super) async fn of(nodes: usize, text: &str, state: State) -> Self {
        let config: Config = edgesync_config::parse(Path::new("test.toml"), text, []).unwrap().config;
        let directory = tempfile::tempdir().unwrap();
        let real = CloudStore::open(&directory.path().join("cloud.db"), &CloudOptions::default()).unwrap();
        let enrollment = enrollment(directory.path(), &real).await;
        let (changes, stream) = mpsc::unbounded_channel();
        let asked = Arc::new(AtomicU64::new(0));
        let stream = ChangeStream(stream, Arc::clone(&asked));
        let state = State { changes: Some(stream), ..state };
        let store = Store(Arc::new(Mutex::new(state)));
        let (downlink, broker) = Downlink::played(QUEUE);
        changes.send(Change::ListStarted).unwrap();
        changes.send(Change::Complete).unwrap();
        tokio::time::pause();
        let fleet = Fleet::start(&config, store.clone(), downlink, enrollment).await.unwrap();
        let name = |n| format!("node-{n:05}");
        let devices = (0..nodes).map(|n| (name(n), Device::new(&name(n)))).collect();
        Self {
            fleet,
            store,
            changes,
            asked,
            answered: 0,
            version: 0,
            devices,
            broker,
            up: VecDeque::new(),
            events: edgesync_broker::test_events(EVENTS),
            longest: 0,
            slowest: Duration::ZERO,
            _directory: directory,
        }
    }

    pub(super) fn summary(&self, name: &str) -> Summary {
        let object = &self.store.0.lock().unwrap().objects[name];
        Summary::of(object, Arc::new(config_map()), version(object))
    }

    /// Sends a change to the fleet.
    pub(super) fn send(&self, change: Change) {
        self.changes.send(change).unwrap();
    }

    /// Writes an object, and sends the change to the fleet.
    pub(super) fn put(&mut self, name: &str) {
        self.version += 1;
        let mut object = object(name, 10);
        object.set_metadata("uid", name);
        object.set_metadata("resourceVersion", self.version.to_string());
        self.store.0.lock().unwrap().objects.insert(name.into(), object);
        self.changes.send(Change::Set(Arc::new(self.summary(name)))).unwrap();
    }

    fn delete(&mut self, name: &str) {
        self.changes.send(Change::Deleted(Arc::new(self.summary(name)))).unwrap();
        self.store.0.lock().unwrap().objects.remove(name);
    }

    /// Reconnects all nodes at once.
    pub(super) fn connect_all(&mut self) {
        self.up.push_back(FleetEvent::Open { max_packet: 1 << 20 });
        for (name, device) in &mut self.devices {
            let payload = br#"{"connection":"c","online":true}"#.to_vec();
            let (node, channel) = (node_name(name), Channel::Presence);
            self.up.push_back(FleetEvent::Message { node, channel, payload });
            device.connected();
            queue_frames(name, device, &mut self.up);
        }
    }

    /// Delivers the broker's messages in both directions.
    pub(super) fn carry(&mut self) {
        let topics = Topics::default();
        while let Some(publish) = self.broker.queue.pop() {
            let Some(Topic::Down(name)) = topics.parse(&publish.topic) else { continue };
            let device = self.devices.get_mut(name).unwrap();
            device.receive(&publish.payload);
            queue_frames(name, device, &mut self.up);
        }
    }

    /// Answers a pending catch-up question.
    pub(super) fn answer(&mut self) {
        let question = self.asked.load(Ordering::Relaxed);
        if question > self.answered {
            self.answered = question;
            self.changes.send(Change::CaughtUp { question, reached: self.version.into() }).unwrap();
        }
    }

    pub(super) async fn turn(&mut self) {
        self.answer();
        while let Some(event) = self.up.pop_front() {
            if let Err(event) = self.events.0.send(event) {
                self.up.push_front(event);
                break;
            }
        }
        let (before, begun) = (self.fleet.reconciler.work.done(), std::time::Instant::now());
        turn(&mut self.fleet, &mut self.events.1).await;
        self.longest = self.longest.max(self.fleet.reconciler.work.done() - before);
        self.slowest = self.slowest.max(begun.elapsed());
    }

    /// Runs the fleet until all nodes satisfy a condition; asserts that no turn was long.
    async fn until(&mut self, what: &str, condition: impl Fn(&Node) -> bool) {
        let begun = std::time::Instant::now();
        (self.longest, self.slowest) = (0, Duration::ZERO);
        let (mut turns, mut is_done) = (0, false);
        while !is_done {
            self.carry();
            self.turn().await;
            turns += 1;
            assert!(begun.elapsed() < PATIENCE, "{what}");
            let quiet = self.up.is_empty()
                && self.fleet.reconciler.nodes.is_idle()
                && self.fleet.reconciler.broadcasts.is_delivered()
                && self.fleet.views.queries.is_empty();
            is_done = quiet
                && self.fleet.reconciler.nodes.len() == NODES
                && self.fleet.reconciler.nodes.values().all(&condition);
        }
        let (longest, slowest) = (self.longest, self.slowest);
        println!(
            "{what}: {turns} turns in {:?}, the longest of {longest} units, {slowest:?}",
            begun.elapsed()
        );
        assert!(longest <= MAX_TURN, "{what}: a turn of {longest} units, of {MAX_TURN} that are allowed");
    }

    pub(super) async fn until_in_sync(&mut self, what: &str, objects: u64) {
        let in_sync = |node: &Node| {
            node.machine.in_sync()
                && node.progress.desired() == objects
                && node.machine.recorded_tally().count == objects
        };
        self.until(what, in_sync).await;
        assert!(self.devices.values().all(|device| device.totals.count == objects));
    }
}

/// Queues the frames of a node for the cloud.
pub(super) fn queue_frames(name: &str, device: &mut Device, up: &mut VecDeque<FleetEvent>) {
    while let Some(payload) = device.next_frame() {
        up.push_back(FleetEvent::Message { node: node_name(name), channel: Channel::Up, payload });
    }
}

#[tokio::test]
async fn turn_length_does_not_grow_with_the_number_of_nodes() {
    let mut world = World::<false>::start().await;
    let all = OBJECTS as u64;
    for n in 0..OBJECTS {
        world.put(&format!("object-{n}"));
    }
    world.connect_all();
    world.until_in_sync("new nodes", all).await;

    world.put("another");
    world.until_in_sync("an object is created", all + 1).await;
    world.put("another");
    let version = world.version.to_string();
    world.until_in_sync("an object is updated", all + 1).await;
    let held =
        |device: &Device| device.rows.0.get("another").is_some_and(|(held, _)| held.as_str() == version);
    assert!(world.devices.values().all(held));
    world.delete("another");
    world.until_in_sync("an object is deleted", all).await;

    let (answer, mut nodes) = tokio::sync::oneshot::channel();
    world.fleet.administer(AdminRequest::Nodes(answer));
    let (answer, mut numbers) = tokio::sync::oneshot::channel();
    world.fleet.administer(AdminRequest::Numbers(answer));
    world.until("an operator queries", |_| true).await;
    assert_eq!(nodes.try_recv().unwrap().items.len(), NODES);
    let numbers = numbers.try_recv().unwrap();
    assert_eq!((numbers.each.len(), numbers.nodes.desired), (NODES, all * NODES as u64));

    world.fleet.configure(&Config::default());
    world.until_in_sync("the configuration is reloaded", all).await;

    world.up.push_back(FleetEvent::Closed { cause: Cause::Closed, retry_in: Duration::ZERO });
    world.until("the broker is gone", |node| !node.session.is_connected()).await;
    world.devices.values_mut().for_each(|device| device.machine.disconnected());
    world.connect_all();
    world.until_in_sync("all nodes come back", all).await;

    world.fleet.handle_response(Response::Incarnation(Ok("two".into())));
    world.put("another");
    // The broker accepts nothing until all of them wait for capacity.
    while world.fleet.sender.waiting() < NODES - QUEUE {
        world.turn().await;
    }
    world.until_in_sync("the broker takes messages again", all + 1).await;

    world.changes.send(Change::ListStarted).unwrap();
    let stream = (1..OBJECTS).map(|n| world.summary(&format!("object-{n}"))).collect();
    world.changes.send(Change::Listed(stream)).unwrap();
    world.changes.send(Change::Complete).unwrap();
    world.until_in_sync("all objects were relisted", all - 1).await;
}

#[tokio::test]
async fn turn_length_of_a_replica_does_not_grow_with_the_nodes() {
    let mut world = World::<true>::start().await;
    let all = OBJECTS as u64;
    for n in 0..OBJECTS {
        world.put(&format!("object-{n}"));
    }
    world.connect_all();
    world.until_in_sync("new nodes catch up, and get all objects", all).await;
    assert!(world.answered >= 1);
    world.put("another");
    world.until_in_sync("an object is created", all + 1).await;

    // All nodes leave, and reconnect from elsewhere.
    world.up.push_back(FleetEvent::Closed { cause: Cause::Closed, retry_in: Duration::ZERO });
    world.until("the broker is gone", |node| !node.session.is_connected()).await;
    world.devices.values_mut().for_each(|device| device.machine.disconnected());
    world.delete("another");
    world.connect_all();
    world.until_in_sync("all nodes come back, holding a removed object", all).await;

    let maps = || Unread::Kind("configmaps".parse().unwrap(), None);
    world.changes.send(Change::Unread(vec![maps()])).unwrap();
    world.delete("object-0");
    world.until("unreadable objects are kept", |node| node.machine.pending() == 0).await;
    assert!(world.devices.values().all(|device| device.totals.count == all));
    world.changes.send(Change::Unread(Vec::new())).unwrap();
    world.until_in_sync("it can be read again", all - 1).await;

    let until = world.asked.fetch_add(1, Ordering::Relaxed) + 1;
    world.changes.send(Change::Restored(until)).unwrap();
    world.put("another");
    world.until_in_sync("the store was restored, and all send a Hello", all).await;
}
