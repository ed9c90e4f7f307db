//! The world: one cloud side or two replicas, each the real fleet over the model of the source, and
//! nodes behind a broker that loses, delays and repeats.

use std::rc::Rc;
use std::sync::{Arc, LazyLock, Mutex};
use std::time::Duration;

use tokio::runtime::Runtime;
use tokio::task::yield_now;
use tokio::time::Instant;

use super::device::{Device, Link};
use super::fate::Chaos;
use super::scenarios::Held;
use super::store::{Database, Gate, Model, State};
use super::{MAX_FRAME, MAX_OBJECT, NODES, RULES};
use crate::config::Config;
use crate::fleet::Fleet;
use crate::node_name;
use edgesync_broker::{Channel, DisconnectReason, Downlink, FleetEvent};
use edgesync_cloud_store::{CloudOptions, CloudStore};
use edgesync_enrollment::EnrollmentService;
use edgesync_object::{Budget, NodeName};
use edgesync_protocol::change::Change;
use edgesync_protocol::edge::{Commit, EdgeEffect};
use edgesync_protocol::frame::{Objects, Received, Up};
use edgesync_protocol::simulation::timeline::{Random, Simulated, Timeline};
use edgesync_protocol::timing::Now;
use edgesync_transport::link::handle::Shared;
use edgesync_transport::link::presence::{CloudPresence, Presence};
use edgesync_transport::link::{Cause, Topic, Topics};

/// Messages that the broker accepts at once.
const QUEUE: usize = 8;
/// Turns of a fleet on end, unless it is slow.
const MAX_TURNS: usize = 10_000;
/// Directions of a link.
const UP: usize = 0;
const DOWN: usize = 1;

/// Scheduled events. Those of an ended life are void.
pub(super) enum Event {
    /// A message of a node, or of its broker, arrives at a fleet.
    ToFleet {
        replica: usize,
        life: u64,
        event: FleetEvent,
    },
    ToNode {
        node: usize,
        link: Link,
        bytes: Vec<u8>,
    },
    /// The presence of a cloud side arrives at a node.
    Cloud {
        node: usize,
        link: Link,
        presence: CloudPresence,
    },
    /// A request arrives at the source, or its answer leaves.
    Request {
        replica: usize,
        life: u64,
        gate: Gate,
    },
    /// The watch of a replica goes on.
    Watch {
        replica: usize,
        life: u64,
    },
    /// A replica observes removals and readmissions by others.
    Removals {
        replica: usize,
        life: u64,
    },
    /// The broker is back.
    Open {
        replica: usize,
        life: u64,
    },
    Commit {
        node: usize,
        life: u64,
        token: u64,
        changes: Vec<Change>,
    },
    Applied {
        node: usize,
        life: u64,
        token: u64,
        commit: Commit,
    },
    Read {
        node: usize,
        life: u64,
        effect: EdgeEffect,
    },
    Wake,
}

/// A process of the cloud side.
pub(super) struct Replica {
    pub(super) fleet: Option<Fleet<Model>>,
    pub(super) life: u64,
    broker: Option<Arc<Shared>>,
    presence: Option<CloudPresence>,
    /// Whether messages of nodes arrive.
    is_open: bool,
    /// The broker takes no messages until then.
    pub(super) stalled_until: Now,
    pub(super) was_stalled: bool,
    /// Its watch delivers nothing until then.
    pub(super) watch_stands_until: Now,
    /// Whether something has happened since the last turn, and when the next one is due.
    is_due: bool,
    wake: Now,
    /// The position up to which the fleet has applied all changes of the source, and that from
    /// which the revisions that it sends are judged.
    pub(super) settled: usize,
    pub(super) judged: usize,
}

pub(super) struct World {
    pub(super) time: Timeline<Event>,
    pub(super) chaos: Chaos,
    pub(super) is_shared: bool,
    /// Whether nodes and cloud side meet at a broker, which outlives them.
    pub(super) is_external: bool,
    pub(super) config: Config,
    pub(super) model: Model,
    pub(super) backup: Database,
    pub(super) source_gone_until: Now,
    pub(super) replicas: Vec<Replica>,
    pub(super) devices: Vec<Device>,
    /// Items put into outboxes, and connections, so far.
    pub(super) made: u64,
    connections: u64,
    /// Restores of the source that a new incarnation has to account for.
    pub(super) restores: usize,
    /// The states of the source that the watches have been woken for.
    announced: usize,
    /// The limits of a run, some so small that it reaches them: the work of a turn, the turns that
    /// a fleet makes before another event, and the differences of all nodes.
    pub(super) part: u64,
    pub(super) turns: usize,
    differences: usize,
    /// The pause after that many turns.
    pub(super) pause: Duration,
    /// Messages that a scenario holds up.
    pub(super) held: Option<Held>,
    /// The last frame with a removal that a fleet has sent, and its node.
    pub(super) last_removal: Option<(usize, Vec<u8>)>,
    /// Whether rules have roll-outs.
    pub(super) rolls: bool,
    runtime: Rc<Runtime>,
    /// The time of the runtime's clock.
    clock: Now,
}

/// The enrollment of all runs, which asks it for revocations only: its directory is gone.
static ENROLLMENT: LazyLock<EnrollmentService> = LazyLock::new(|| {
    let directory = tempfile::tempdir().unwrap();
    let store = CloudStore::open(&directory.path().join("cloud.db"), &CloudOptions::default()).unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(crate::fleet::tests::enrollment(directory.path(), &store))
});

impl World {
    /// Creates the world of a seed; see [`Chaos::for_seed`].
    pub(super) fn new(seed: u64, calm: u64, trace: bool, rolls: bool) -> Self {
        let mut random = Random(seed ^ 0xf1ee7);
        // The thread may have run another seed.
        super::CLOCK.set(1_000_000);
        let (is_shared, chaos) = (random.percent(40), Chaos::for_seed(&mut random, calm));
        let (replicas, is_slow) = (if is_shared { 2 } else { 1 }, random.percent(50));
        let mut source = Random(random.next());
        let configured = super::rollouts::configured(rolls, is_shared, &mut source);
        let mut config: Config = edgesync_config::parse("test.toml".as_ref(), RULES, []).unwrap().config;
        config.link.max_frame = MAX_FRAME;
        if rolls {
            super::rollouts::configure(&mut config, &configured);
        }
        let mut state = State::new(is_shared, replicas, source, configured);
        let backup = state.db.clone();
        if !is_shared {
            state.clock = 1_000_000;
        }
        let model = Model { state: Arc::new(Mutex::new(state)), replica: 0, is_shared };
        (config.sync.mass_delete_min, config.sync.compress_above) = (2, None);
        let runtime =
            tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
        let replica = || Replica {
            fleet: None,
            life: 0,
            broker: None,
            presence: None,
            is_open: false,
            stalled_until: Now::ZERO,
            was_stalled: false,
            watch_stands_until: Now::ZERO,
            is_due: false,
            wake: Now::ZERO,
            settled: 0,
            judged: 0,
        };
        let device = |n: u64| Device::new(node_name(&format!("node-{n}")), seed.wrapping_mul(31) + n + 1);
        let mut world = Self {
            chaos,
            is_shared,
            is_external: !is_shared && random.percent(50),
            config,
            model,
            backup,
            source_gone_until: Now::ZERO,
            replicas: (0..replicas).map(|_| replica()).collect(),
            devices: (0..NODES).map(device).collect(),
            made: 0,
            connections: 0,
            restores: 0,
            announced: 0,
            part: if is_slow { 1 + random.below(20) } else { 2048 },
            turns: if is_slow { 3 } else { MAX_TURNS },
            differences: if random.percent(50) { 60 } else { 500_000 },
            pause: Duration::from_millis(1),
            held: None,
            last_removal: None,
            rolls,
            runtime: Rc::new(runtime),
            clock: Now::ZERO,
            time: Timeline::new(random, trace),
        };
        (0..replicas).for_each(|replica| world.start(replica));
        world
    }

    /// Sets the clocks of the runtime and the source.
    fn set_clocks(&mut self) {
        let passed = self.time.now.saturating_sub(self.clock);
        if !passed.is_zero() {
            self.runtime.block_on(tokio::time::advance(passed));
            self.clock = self.time.now;
            self.model.state().clock = 1_000_000 + u64::try_from(self.clock.as_micros()).unwrap();
            super::CLOCK.set(1_000_000 + i64::try_from(self.clock.as_micros()).unwrap());
        }
    }

    /// Runs an action on the fleet of a running replica.
    pub(super) fn with_fleet(&mut self, replica: usize, act: impl FnOnce(&mut Fleet<Model>)) {
        self.set_clocks();
        let runtime = Rc::clone(&self.runtime);
        let _context = runtime.enter();
        self.replicas[replica].is_due = true;
        if let Some(fleet) = &mut self.replicas[replica].fleet {
            act(fleet);
        }
    }

    // --- processes

    pub(super) fn start(&mut self, n: usize) {
        self.set_clocks();
        if !self.is_shared {
            self.load_configuration();
            self.model.state().open();
        }
        let (downlink, broker) = Downlink::played(QUEUE);
        let model = Model { replica: n, ..self.model.clone() };
        self.model.state().starting = Some(n);
        let start = Fleet::start(&self.config, model, downlink, ENROLLMENT.clone());
        let mut fleet = self.runtime.block_on(start).unwrap();
        self.model.state().starting = None;
        let seed = self.time.random.next();
        super::RANDOM.replace(Random(seed));
        fleet.reconciler.random = super::random;
        fleet.reconciler.clock = super::clock;
        fleet.reconciler.work.set_part(self.part);
        fleet.reconciler.ledgers.set_limit(self.differences);
        let replica = &mut self.replicas[n];
        replica.life += 1;
        (replica.fleet, replica.broker) = (Some(fleet), Some(broker));
        (replica.is_due, replica.is_open) = (true, !self.is_external);
        let life = replica.life;
        let (told, last) = {
            let state = self.model.state();
            (state.feeds[n].told, state.history.last())
        };
        (self.replicas[n].settled, self.replicas[n].judged) = (told, told);
        (told..=last).for_each(|_| self.time.after(self.chaos.lag, Event::Watch { replica: n, life }));
        self.time.say(|| format!("replica {n} starts"));
        if self.is_external {
            self.time.at(self.time.now, Event::Open { replica: n, life });
        }
    }

    pub(super) fn stop(&mut self, n: usize) {
        let replica = &mut self.replicas[n];
        replica.life += 1;
        (replica.fleet, replica.broker) = (None, None);
        self.model.state().gates.retain(|gate| gate.replica != n);
        self.time.say(|| format!("replica {n} stops"));
        self.cloud_is_offline(n);
        self.change_configured();
        if !self.is_external {
            (0..self.devices.len()).for_each(|node| self.cut_from(node, n));
        }
    }

    /// Announces the will of the cloud side.
    fn cloud_is_offline(&mut self, n: usize) {
        if let Some(presence) = &mut self.replicas[n].presence {
            presence.online = false;
        }
        self.announce(n);
    }

    fn announce(&mut self, n: usize) {
        for node in 0..self.devices.len() {
            self.announce_to(node, n);
        }
    }

    fn announce_to(&mut self, node: usize, n: usize) {
        let device = &mut self.devices[node];
        if let (Some(link), Some(presence)) =
            (device.link.filter(|link| link.replica == n), &self.replicas[n].presence)
        {
            let presence = presence.clone();
            let at = self.time.in_order(&mut device.last[DOWN], 40);
            self.time.at(at, Event::Cloud { node, link, presence });
        }
    }

    // --- links

    pub(super) fn connect(&mut self, node: usize, replica: usize) {
        if self.replicas[replica].fleet.is_none() && !self.is_external {
            return;
        }
        self.cut(node);
        self.connections += 1;
        let (now, random) = (self.time.now, self.time.random.next());
        let device = &mut self.devices[node];
        let Some(machine) = &mut device.machine else { return };
        machine.connected(now, MAX_FRAME, random);
        device.link = Some(Link { replica, number: self.connections });
        device.cloud = None;
        self.time.say(|| format!("node {node} connects to replica {replica}"));
        self.announce_to(node, replica);
        self.connected(node);
    }

    /// Informs the fleet of the connection of a node.
    fn connected(&mut self, node: usize) {
        let Some(Link { replica, number }) = self.devices[node].link else { return };
        let name = self.devices[node].name.clone();
        let event = match self.is_external {
            true => presence(name, number, true),
            false => FleetEvent::NodeConnected { node: name, connection: number, max_packet: 1 << 20 },
        };
        self.event(node, replica, 0, event);
    }

    pub(super) fn cut(&mut self, node: usize) {
        if let Some(link) = self.devices[node].link {
            self.cut_from(node, link.replica);
        }
    }

    fn cut_from(&mut self, node: usize, replica: usize) {
        let device = &mut self.devices[node];
        let Some(Link { number, .. }) = device.link.take_if(|link| link.replica == replica) else { return };
        if let Some(machine) = &mut device.machine {
            machine.disconnected();
        }
        let name = device.name.clone();
        self.time.say(|| format!("node {node} is cut off"));
        let event = match self.is_external {
            true => presence(name, number, false),
            false => FleetEvent::NodeDisconnected {
                node: name,
                connection: number,
                why: DisconnectReason::ByClient,
            },
        };
        // A half-open connection is noticed late.
        let late = if self.time.random.percent(self.chaos.half_open) { 30_000 } else { 0 };
        self.event(node, replica, late, event);
    }

    /// Schedules an event of a node at a fleet, at most `late` milliseconds after those before it.
    fn event(&mut self, node: usize, replica: usize, late: u64, event: FleetEvent) {
        let life = self.replicas[replica].life;
        let at = self.time.in_order(&mut self.devices[node].last[UP], 40);
        let at = at + Duration::from_millis(self.time.random.below(late + 1));
        self.time.at(at, Event::ToFleet { replica, life, event });
    }

    pub(super) fn send_up(&mut self, node: usize, link: Link, frame: &Up) {
        let payload = frame.encode(usize::MAX).unwrap();
        let copies = self.copies();
        for _ in 0..copies {
            let late = if self.is_late() { 8000 } else { 0 };
            let name = self.devices[node].name.clone();
            let event = FleetEvent::Message { node: name, channel: Channel::Up, payload: payload.clone() };
            self.event(node, link.replica, late, event);
        }
    }

    /// Returns how often a frame arrives: a broker loses and repeats.
    fn copies(&mut self) -> usize {
        match () {
            () if self.is_external && self.time.random.percent(self.chaos.drop) => 0,
            () if self.is_external && self.time.random.percent(self.chaos.duplicate) => 2,
            () => 1,
        }
    }

    fn is_late(&mut self) -> bool {
        self.is_external && self.time.random.percent(self.chaos.late)
    }

    /// Drops the uploads of a node whose database is replaced: that takes longer than they travel.
    pub(super) fn forget_messages(&mut self, node: usize) {
        let name = self.devices[node].name.clone();
        let is_of = |event: &Event| matches!(event, Event::ToFleet { event: FleetEvent::Message { node, channel: Channel::Up, .. }, .. } if *node == name);
        self.time.retain(|event| !is_of(event));
        *self.model.state().replaced.entry(name).or_default() += 1;
    }

    /// Loses the connection to the broker for a while.
    pub(super) fn lose_broker(&mut self, n: usize) {
        let Some(broker) = &self.replicas[n].broker else { return };
        broker.queue.close_and_clear();
        self.replicas[n].is_open = false;
        let (life, retry_in) = (self.replicas[n].life, Duration::from_secs(1));
        self.with_fleet(n, |fleet| fleet.event(FleetEvent::Closed { cause: Cause::Closed, retry_in }));
        self.cloud_is_offline(n);
        self.time.after(10_000, Event::Open { replica: n, life });
    }

    fn open_broker(&mut self, n: usize) {
        let Some(broker) = &self.replicas[n].broker else { return };
        broker.queue.open();
        self.replicas[n].is_open = true;
        // The greeting of each connection.
        let boot = self.replicas[n].fleet.as_ref().map(|fleet| fleet.boot().to_owned());
        self.replicas[n].presence = boot.map(|boot| CloudPresence { boot, online: true });
        self.announce(n);
        self.with_fleet(n, |fleet| fleet.event(FleetEvent::Open { max_packet: 1 << 20 }));
        (0..self.devices.len()).for_each(|node| self.connected(node));
    }

    /// Delivers the messages that the broker has accepted. Returns whether there were any.
    fn deliver(&mut self, n: usize) -> bool {
        let replica = &mut self.replicas[n];
        if replica.stalled_until > self.time.now {
            replica.was_stalled = true;
            return false;
        }
        let Some(broker) = replica.broker.clone() else { return false };
        let (topics, mut any) = (Topics::default(), false);
        while let Some(publish) = broker.queue.pop() {
            any = true;
            match topics.parse(&publish.topic) {
                Some(Topic::Down(name)) => {
                    let Some(node) = self.devices.iter().position(|device| *device.name == *name) else {
                        continue;
                    };
                    self.check_frame(n, node, &publish.payload);
                    self.send_down(n, node, &publish.payload);
                }
                Some(Topic::Cloud) => {
                    self.replicas[n].presence = serde_json::from_slice(&publish.payload).ok();
                    self.announce(n);
                }
                _ => {}
            }
        }
        self.replicas[n].was_stalled &= any;
        any
    }

    fn send_down(&mut self, n: usize, node: usize, bytes: &[u8]) {
        for _ in 0..self.copies() {
            let late = if self.is_late() { self.time.random.below(8000) } else { 0 };
            let device = &mut self.devices[node];
            let Some(link) = device.link.filter(|link| link.replica == n) else { return };
            let at = self.time.in_order(&mut device.last[DOWN], 40) + Duration::from_millis(late);
            self.time.at(at, Event::ToNode { node, link, bytes: bytes.to_vec() });
        }
    }

    /// Checks a frame that a fleet has just sent.
    fn check_frame(&mut self, replica: usize, node: usize, bytes: &[u8]) {
        let frame = Received::decode(bytes, &mut Budget::of(MAX_FRAME), MAX_OBJECT).unwrap();
        self.time.say(|| format!("→ node {node} {frame:?}").chars().take(300).collect());
        self.check_revision(replica, node, &frame);
        // A frame that waited belongs to an earlier time.
        if self.replicas[replica].was_stalled {
            return;
        }
        let is_removed = self.model.state().db.objects.removed.contains_key(&self.devices[node].name);
        // A replica may not know yet that another one has removed the node.
        if is_removed && !self.is_shared && !matches!(frame, Received::HelloRequest(_)) {
            self.time.violation = Some(format!("removal: the removed node {node} was sent {frame:?}"));
        }
        if let Received::Objects(Objects { changes, .. }) = &frame
            && changes.iter().any(|change| matches!(change, Change::Delete(_)))
        {
            self.last_removal = Some((node, bytes.to_vec()));
        }
        let most = self.config.sync.frame_objects;
        if let Received::Objects(objects) = &frame
            && objects.changes.len() > most
        {
            self.time.violation =
                Some(format!("reload: a frame of {} objects, {most} are configured", objects.changes.len()));
        }
    }

    // --- driving

    /// Runs the loop of a fleet until it waits.
    fn drive_replica(&mut self, n: usize) {
        let runtime = Rc::clone(&self.runtime);
        for turn in 0.. {
            let Some(fleet) = &mut self.replicas[n].fleet else { return };
            let wake = runtime.block_on(async {
                let wake = fleet.begin_turn();
                yield_now().await;
                yield_now().await;
                wake
            });
            let _context = runtime.enter();
            let is_settled = fleet.reconciler.broadcasts.is_delivered();
            let takes_change = is_settled && self.time.random.percent(50);
            if let Some(change) = takes_change.then(|| fleet.feed.changes.try_next()).flatten() {
                fleet.changed(change);
            } else if let Some(response) = fleet.requests.try_next() {
                fleet.handle_responses(response);
            } else if let Some(change) = is_settled.then(|| fleet.feed.changes.try_next()).flatten() {
                fleet.changed(change);
            } else if wake <= Instant::now() {
                fleet.tick();
            } else {
                let wake = self.time.now + (wake - Instant::now());
                self.end_turns(n, wake, is_settled);
                if self.deliver(n) {
                    continue;
                }
                return;
            }
            if turn + 1 == self.turns {
                self.end_turns(n, self.time.now + self.pause, false);
                self.deliver(n);
                return;
            }
        }
    }

    fn end_turns(&mut self, n: usize, wake: Now, is_settled: bool) {
        let life = self.replicas[n].life;
        self.replicas[n].wake = wake;
        let (gates, asks) = {
            let mut state = self.model.state();
            let feed = &state.feeds[n];
            if is_settled && feed.queue.is_empty() {
                self.replicas[n].settled = feed.told;
            }
            let asks = state.can_answer(n);
            (std::mem::take(&mut state.gates), asks)
        };
        for gate in gates {
            let (replica, life) = (gate.replica, self.replicas[gate.replica].life);
            if let Some(held) = &mut self.held
                && (replica, gate.way) == held.which
            {
                held.gates.push(gate);
                continue;
            }
            let most = if self.time.random.percent(20) { self.chaos.slow } else { 10 };
            self.time.after(most, Event::Request { replica, life, gate });
        }
        if asks {
            self.time.after(self.chaos.lag, Event::Watch { replica: n, life });
        }
    }

    /// Wakes the watches for the next state of the source.
    fn wake_watches(&mut self) {
        self.announced += 1;
        self.say_rollouts(self.announced);
        for replica in 0..self.replicas.len() {
            let life = self.replicas[replica].life;
            self.time.after(self.chaos.lag, Event::Watch { replica, life });
            if self.is_shared {
                self.time.after(self.chaos.lag, Event::Removals { replica, life });
            }
        }
    }
}

fn presence(node: NodeName, connection: u64, online: bool) -> FleetEvent {
    let payload =
        serde_json::to_vec(&Presence { connection: connection.to_string(), online, planned: false }).unwrap();
    FleetEvent::Message { node, channel: Channel::Presence, payload }
}

impl Simulated for World {
    type Event = Event;

    fn time(&mut self) -> &mut Timeline<Event> {
        &mut self.time
    }

    fn drive(&mut self) {
        for n in 0..self.replicas.len() {
            let Replica { is_due, wake, stalled_until, was_stalled, .. } = &mut self.replicas[n];
            let now = self.time.now;
            if std::mem::take(is_due) || *wake <= now || (*was_stalled && *stalled_until <= now) {
                self.set_clocks();
                self.drive_replica(n);
            }
        }
        self.follow_rollouts();
        (0..self.devices.len()).for_each(|node| self.drive_device(node));
        let written = self.model.state().history.last();
        (self.announced..written).for_each(|_| self.wake_watches());
        let violation = self.model.state().violation.take();
        self.time.violation = self.time.violation.take().or(violation);
        let machines = self.devices.iter().filter_map(|device| device.machine.as_ref()?.deadline());
        let fleets = self.replicas.iter().filter(|replica| replica.fleet.is_some());
        let fleets = fleets.map(|replica| match replica.was_stalled {
            true => replica.wake.min(replica.stalled_until),
            false => replica.wake,
        });
        if let Some(at) = machines.chain(fleets).min().filter(|at| *at != Now::MAX) {
            self.time.wake_at(at, Duration::from_micros(10), Event::Wake);
        }
    }

    fn handle(&mut self, event: Event) -> Result<(), String> {
        let (now, random) = (self.time.now, self.time.random.next());
        match event {
            Event::ToFleet { replica, life, event }
                if self.replicas[replica].life == life && self.replicas[replica].is_open =>
            {
                self.with_fleet(replica, |fleet| fleet.event(event));
            }
            Event::ToNode { node, link, bytes } => {
                let device = &mut self.devices[node];
                // A broker delivers late messages to the next connection.
                let fits = device.link.is_some_and(|current| current == link || self.is_external);
                if fits && device.machine.is_some() {
                    let frame = Received::decode(&bytes, &mut Budget::of(MAX_FRAME), MAX_OBJECT);
                    let frame = frame.map_err(|error| error.to_string())?;
                    device.note_frame(&frame);
                    if let Some(machine) = &mut device.machine {
                        machine.received(now, frame, random);
                    }
                }
            }
            Event::Cloud { node, link, presence } if self.devices[node].link == Some(link) => {
                let Device { machine: Some(machine), cloud, .. } = &mut self.devices[node] else {
                    return Ok(());
                };
                let CloudPresence { boot, online } = presence;
                let before = cloud.replace((boot.clone(), online));
                match before {
                    _ if !online => machine.cloud_gone(now),
                    Some((known, was)) if !was || known != boot => machine.cloud_returned(now, random),
                    _ => {}
                }
            }
            Event::Request { replica, life, gate } if self.replicas[replica].life == life => {
                let fails = self.source_gone_until > now || self.time.random.percent(self.chaos.fail);
                let _ = gate.opens.send(!fails);
                self.replicas[replica].is_due = true;
            }
            Event::Watch { replica, life } if self.replicas[replica].life == life => {
                let until = self.source_gone_until.max(self.replicas[replica].watch_stands_until);
                if until > now {
                    self.time.at(until, Event::Watch { replica, life });
                } else {
                    self.model.state().deliver(replica);
                    self.replicas[replica].is_due = true;
                }
            }
            Event::Removals { replica, life } if self.replicas[replica].life == life => {
                if self.source_gone_until > now {
                    self.time.at(self.source_gone_until, Event::Removals { replica, life });
                } else {
                    self.model.state().deliver_removals(replica);
                    self.replicas[replica].is_due = true;
                }
            }
            Event::Open { replica, life } if self.replicas[replica].life == life => self.open_broker(replica),
            Event::Commit { node, life, token, changes } if self.devices[node].life == life => {
                let commit = self.commit(node, &changes)?;
                self.committed(node, token, commit);
            }
            Event::Applied { node, life, token, commit } if self.devices[node].life == life => {
                self.applied(node, token, commit);
            }
            Event::Read { node, life, effect } if self.devices[node].life == life => self.read(node, &effect),
            Event::Wake => {
                self.time.woken();
                for device in &mut self.devices {
                    if let Some(machine) = &mut device.machine
                        && machine.deadline().is_some_and(|at| at <= now)
                    {
                        machine.tick(now, random);
                    }
                }
            }
            _ => {} // of a life that has ended
        }
        Ok(())
    }
}
