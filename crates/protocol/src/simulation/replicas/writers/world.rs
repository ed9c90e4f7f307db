//! Nodes, replicas, and the API server between the replicas.

mod api;
mod events;
mod machines;

use std::cell::RefCell;
use std::collections::{BTreeMap, HashSet, VecDeque};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use super::flows::Flows;
use super::node::{Node, Thing};
use super::oracle::{Oracle, check_records};
use super::request::{Io, Kind, Task};
use super::server::{Object, Server};
use super::state::State;
use crate::change::Uid;
use crate::cloud::testing::{DesiredObject, DesiredObjects};
use crate::cloud::{CloudMachine, CloudPhase, Issued, Records};
use crate::edge::{EdgeConfig, EdgeMachine};
use crate::simulation::model::{config_map, object_ref};
use crate::simulation::timeline::{Random, Simulated as _, Timeline};
use crate::simulation::world::Sizes;
use crate::timing::Now;
use edgesync_object::urgency::Urgency;
use edgesync_object::{NodeName, ResourceVersion};
use events::Event;

const UP: usize = 0;
const DOWN: usize = 1;
const COMPRESS_ABOVE: usize = 1 << 10;
/// The longest travel time of a frame, in milliseconds, and that of a late one, behind which the
/// later ones of its connection wait: less than the interval of renewals, so that at most one
/// arrives after its node has moved.
const LATENCY: u64 = 40;
const LATE: u64 = 5000;
/// The objects of the run.
const NAMES: u64 = 16;
/// The names of Events per node.
const EVENTS: u64 = 4;
/// One object in this many is for all nodes; each of the others is for one node, which writes its
/// status.
const SHARED: u64 = 4;
/// The most requests of all replicas within a minute.
const MAX_REQUESTS: usize = 3000;

/// The probabilities of faults, in percent per frame, request or step.
#[derive(Clone, Copy)]
pub(super) struct Chaos {
    pub(super) duplicate: u64,
    /// Frames that delay all later ones of their connection.
    pub(super) late: u64,
    pub(super) moves: u64,
    pub(super) half_open: u64,
    pub(super) crash: u64,
    pub(super) kill: u64,
    /// Separation of a replica from the API server.
    pub(super) apart: u64,
    /// Requests whose answer is lost.
    pub(super) lost: u64,
    /// Begin of a time in which all requests are throttled.
    pub(super) throttle: u64,
    /// Loss of the history that watches need.
    pub(super) compact: u64,
    /// End of a watch.
    pub(super) break_watch: u64,
    /// The longest delay of a change until a replica receives it, in milliseconds.
    pub(super) lag: u64,
    /// The longest time of a request, in milliseconds.
    pub(super) request: u64,
}

impl Chaos {
    pub(super) const NONE: Self = Self {
        duplicate: 0,
        late: 0,
        moves: 0,
        half_open: 0,
        crash: 0,
        kill: 0,
        apart: 0,
        lost: 0,
        throttle: 0,
        compact: 0,
        break_watch: 0,
        lag: 20,
        request: 10,
    };

    pub(super) fn for_seed(random: &mut Random) -> Self {
        let mut up_to = |max: u64| if random.percent(40) { 0 } else { random.below(max + 1) };
        Self {
            duplicate: up_to(8),
            late: up_to(10),
            moves: 5 + up_to(20),
            half_open: up_to(10),
            crash: up_to(5),
            kill: up_to(5),
            apart: up_to(8),
            lost: up_to(10),
            throttle: up_to(10),
            compact: up_to(20),
            break_watch: up_to(20),
            lag: [20, 2000, 10_000, 30_000][usize::try_from(up_to(3)).unwrap()],
            request: [10, 100, 1000, 5000][usize::try_from(up_to(3)).unwrap()],
        }
    }
}

struct Connection {
    node: usize,
    replica: usize,
    /// The life of the connection's replica.
    life: u64,
    begun: Now,
    last_arrival: [Now; 2],
    is_dead: [bool; 2],
}

/// A node at a replica.
struct Served {
    machine: CloudMachine,
    desired: DesiredObjects,
    /// The connection by which the replica believes to serve the node.
    link: Option<usize>,
    /// The renewal that waits for the one in flight.
    renewal: Option<u64>,
}

struct Replica {
    /// The number of starts and kills.
    life: u64,
    flows: Flows,
    /// The nodes; none while the replica does not run.
    nodes: Vec<Served>,
    /// The objects that it knows.
    view: BTreeMap<Uid, Object>,
    /// Whether it has listed all objects: before, it serves no nodes.
    is_complete: bool,
    /// The questions of machines to the informer: question, node, token.
    waiting: VecDeque<(u64, usize, u64)>,
    /// The end of its separation from the API server.
    apart_until: Now,
}

/// A watch without news: its task, and the version after which it waits for changes.
struct Parked {
    task: u64,
    replica: usize,
    after: u64,
}

pub(super) struct World {
    time: Timeline<Event>,
    pub(super) chaos: Chaos,
    sizes: Sizes,
    names: Rc<[NodeName]>,
    server: Server,
    throttled_until: Now,
    nodes: Vec<Node>,
    replicas: Vec<Replica>,
    connections: Vec<Connection>,
    io: Rc<Io>,
    tasks: BTreeMap<u64, Task>,
    next_task: u64,
    parked: Vec<Parked>,
    oracle: Oracle,
    made: u64,
    /// A minute, and the requests within it.
    requests: (u64, usize),
    all_requests: usize,
    /// Whether each node has begun a session after the last change.
    pub(super) have_returned: bool,
}

impl Object {
    fn name(&self) -> String {
        format!("object-{:03}", self.name)
    }

    fn desired(&self) -> DesiredObject {
        DesiredObject {
            version: self.version.into(),
            object: Arc::new(object_ref(&self.name())),
            resource: config_map(),
            size: self.size,
            urgency: Urgency::Normal,
        }
    }

    fn is_on(&self, node: usize) -> bool {
        self.nodes & (1 << node) != 0
    }
}

impl World {
    pub(super) fn new(seed: u64, (nodes, replicas): (usize, usize), chaos: Chaos, trace: bool) -> Self {
        let names: Rc<[NodeName]> =
            (0..nodes).map(|node| NodeName::parse(&format!("node-{node}")).unwrap()).collect();
        let io = Rc::new(Io::default());
        let new = |replica| Replica {
            life: 0,
            flows: Flows {
                io: Rc::clone(&io),
                state: Rc::new(RefCell::new(State::new(format!("replica-{replica}"), &names))),
                serial: 0,
            },
            nodes: Vec::new(),
            view: BTreeMap::new(),
            is_complete: false,
            waiting: VecDeque::new(),
            apart_until: Now::ZERO,
        };
        let mut random = Random(seed);
        let sizes = if random.percent(50) { Sizes::Default } else { Sizes::Small };
        let mut world = Self {
            replicas: (0..replicas).map(new).collect(),
            nodes: (0..nodes as u64).map(|node| Node::new(seed.wrapping_mul(31) + node + 1)).collect(),
            time: Timeline::new(random, trace),
            chaos,
            sizes,
            names,
            server: Server::default(),
            throttled_until: Now::ZERO,
            connections: Vec::new(),
            io,
            tasks: BTreeMap::new(),
            next_task: 0,
            parked: Vec::new(),
            oracle: Oracle::default(),
            made: 0,
            requests: (0, 0),
            all_requests: 0,
            have_returned: false,
        };
        (0..replicas).for_each(|replica| world.start_replica(replica));
        (0..nodes).for_each(|node| world.start_node(node));
        world
    }

    pub(super) fn counts(&self) -> (usize, usize) {
        (self.nodes.len(), self.replicas.len())
    }

    pub(super) fn random(&mut self) -> &mut Random {
        &mut self.time.random
    }

    pub(super) fn say(&self, what: impl FnOnce() -> String) {
        self.time.say(what);
    }

    // --- processes

    pub(super) fn start_replica(&mut self, replica: usize) {
        let (config, count) = (self.sizes.cloud(), self.nodes.len());
        let it = &mut self.replicas[replica];
        it.life += 1;
        let state = State::new(format!("replica-{replica}"), &self.names);
        it.flows.state = Rc::new(RefCell::new(state));
        let serve = |_| {
            let (config, issued) = (Arc::clone(&config), Arc::new(Issued::default()));
            let machine = CloudMachine::new(config, "life".into(), issued, Records::Proven);
            Served { machine, desired: DesiredObjects::default(), link: None, renewal: None }
        };
        it.nodes = (0..count).map(serve).collect();
        (it.view, it.is_complete, it.waiting) = (BTreeMap::new(), false, VecDeque::new());
        let follow = it.flows.clone().follow();
        self.time.say(|| format!("replica {replica} starts"));
        self.spawn(replica, Kind::Follow, 0, follow);
    }

    pub(super) fn kill_replica(&mut self, replica: usize) {
        let it = &mut self.replicas[replica];
        it.life += 1;
        it.nodes.clear();
        self.tasks.retain(|_, task| task.replica != replica);
        self.parked.retain(|parked| parked.replica != replica);
        self.time.say(|| format!("replica {replica} is killed"));
        for node in 0..self.nodes.len() {
            if self.nodes[node].link.is_some_and(|link| self.connections[link].replica == replica) {
                self.cut(node);
            }
        }
    }

    pub(super) fn is_running(&self, replica: usize) -> bool {
        !self.replicas[replica].nodes.is_empty()
    }

    fn start_node(&mut self, node: usize) {
        let config = EdgeConfig { node: self.names[node].to_string(), ..self.sizes.edge() };
        let it = &mut self.nodes[node];
        it.life += 1;
        it.db.crash();
        let mut edge = EdgeMachine::new(config, it.db.totals(), it.db.confirmed, it.db.incarnation.clone());
        edge.restore_parts();
        edge.outbox_changed(self.time.now, &it.outbox.marks());
        it.edge = Some(edge);
        self.time.say(|| format!("node {node} starts"));
    }

    pub(super) fn crash_node(&mut self, node: usize) {
        self.cut(node);
        let it = &mut self.nodes[node];
        it.edge = None;
        it.life += 1;
        self.time.say(|| format!("node {node} crashes"));
    }

    // --- connections

    /// Cuts the connection of a node. Its replica notices at once, later, or never; at once if it
    /// still has to claim the Lease.
    pub(super) fn cut(&mut self, node: usize) {
        let it = &mut self.nodes[node];
        let Some(connection) = it.link.take() else { return };
        if let Some(edge) = &mut it.edge {
            edge.disconnected();
        }
        let replica = &self.replicas[self.connections[connection].replica];
        let is_claimed = replica.flows.state.borrow().is_claimed(node);
        match self.time.random.below(3) {
            1 if is_claimed => self.time.after(60_000, Event::Gone { connection }),
            2 if is_claimed => {}
            _ => self.gone(connection),
        }
    }

    /// Lets a replica notice that a connection has ended.
    fn gone(&mut self, connection: usize) {
        let Connection { node, replica, life, .. } = self.connections[connection];
        let it = &mut self.replicas[replica];
        if it.life != life || it.nodes[node].link != Some(connection) {
            return;
        }
        let served = &mut it.nodes[node];
        (served.link, served.renewal) = (None, None);
        served.machine.disconnected();
        it.waiting.retain(|(_, of, _)| *of != node);
        it.flows.state.borrow_mut().end(node);
        self.tasks.retain(|_, task| task.replica != replica || task.kind != Kind::Claim(node));
    }

    /// Connects a node to a replica, if that serves nodes.
    pub(super) fn connect(&mut self, node: usize, replica: usize) {
        if !self.is_running(replica) {
            self.start_replica(replica);
        }
        if !self.replicas[replica].is_complete {
            return;
        }
        self.cut(node);
        if self.nodes[node].edge.is_none() {
            self.start_node(node);
        }
        if let Some(old) = self.replicas[replica].nodes[node].link {
            self.gone(old);
        }
        let (now, connection) = (self.time.now, self.connections.len());
        let life = self.replicas[replica].life;
        let (last_arrival, is_dead) = ([now; 2], [false; 2]);
        self.connections.push(Connection { node, replica, life, begun: now, last_arrival, is_dead });
        self.replicas[replica].nodes[node].link = Some(connection);
        self.nodes[node].link = Some(connection);
        self.time.say(|| format!("node {node} connects to replica {replica}"));
        let (limit, random) = (self.sizes.max_frame(), self.time.random.next());
        if let Some(edge) = &mut self.nodes[node].edge {
            edge.connected(now, limit, random);
        }
    }

    pub(super) fn is_connected(&self, node: usize) -> bool {
        self.nodes[node].link.is_some()
    }

    /// Makes the connection of a node half-open, in one direction or both. The node notices.
    pub(super) fn half_open(&mut self, node: usize) {
        let Some(connection) = self.nodes[node].link else { return };
        let which = self.time.random.below(3);
        let is_dead = &mut self.connections[connection].is_dead;
        is_dead[UP] |= which != 1;
        is_dead[DOWN] |= which != 0;
        self.time.say(|| format!("half-open ({which}) at node {node}"));
        self.time.after(30_000, Event::Silent { connection });
    }

    /// Loses everything that a node sends on its connection from now on.
    pub(super) fn mute(&mut self, node: usize) {
        if let Some(link) = self.nodes[node].link {
            self.connections[link].is_dead[UP] = true;
        }
    }

    fn transmit(&mut self, direction: usize, connection: usize, bytes: &[u8]) {
        if self.connections[connection].is_dead[direction] {
            return;
        }
        let copies = if self.time.random.percent(self.chaos.duplicate) { 2 } else { 1 };
        for _ in 0..copies {
            let is_late = self.time.random.percent(self.chaos.late);
            let mut last = self.connections[connection].last_arrival[direction];
            let at = self.time.in_order(&mut last, if is_late { LATE } else { LATENCY });
            self.connections[connection].last_arrival[direction] = last;
            let bytes = bytes.to_vec();
            let event = match direction {
                UP => Event::ToCloud { connection, bytes },
                _ => Event::ToEdge { connection, bytes },
            };
            self.time.at(at, event);
        }
    }

    // --- objects and items

    /// Changes one object: its content, its placement, or whether it exists.
    pub(super) fn change_something(&mut self) {
        let name = self.time.random.below(NAMES);
        let found = self.server.objects.values().find(|object| object.name == name).cloned();
        let count = self.nodes.len() as u64;
        let mask = match name % SHARED {
            0 => self.time.random.below(1 << count),
            owner if self.time.random.percent(80) => 1 << (owner % count),
            _ => 0,
        };
        let nodes = u8::try_from(mask).unwrap();
        let size = if self.time.random.percent(2) { 20_000 } else { 20 };
        match (found, self.time.random.below(10)) {
            (Some(object), 0) => self.set(&object.uid, None),
            (Some(object), 1..=3) => self.set(&object.uid.clone(), Some(Object { nodes, ..object })),
            (Some(object), _) => self.set(&object.uid.clone(), Some(Object { size, ..object })),
            (None, _) => {
                let uid: Uid = format!("uid-{name}-{}", self.server.version()).into();
                let object = Object { uid: uid.clone(), name, version: 0, nodes, size, status: 0 };
                self.set(&uid, Some(object));
            }
        }
    }

    /// Sets the placement of the first object, which is created if there is none.
    pub(super) fn place(&mut self, nodes: u8) {
        let first = self.server.objects.values().next().cloned();
        let uid: Uid = "uid-1-0".into();
        let new = Object { uid: uid.clone(), name: 1, version: 0, nodes, size: 20, status: 0 };
        let object = first.map_or(new, |object| Object { nodes, ..object });
        self.set(&object.uid.clone(), Some(object));
    }

    /// Returns the number of objects that a node holds.
    pub(super) fn held_count(&self, node: usize) -> usize {
        self.nodes[node].db.len()
    }

    fn set(&mut self, uid: &Uid, object: Option<Object>) {
        self.server.set(self.time.now, uid, object);
        self.objects_changed(uid);
    }

    /// Records a change of an object, and passes it to the watches.
    fn objects_changed(&mut self, uid: &Uid) {
        let state = self.server.objects.get(uid).map(|object| (object.version, object.nodes));
        self.time.say(|| format!("{uid} becomes {state:?}"));
        self.oracle.history.record(self.time.now, uid, state, self.nodes.len());
        self.wake_watches();
    }

    /// Puts an item into the outbox of a node: an Event, or a word about an object that it holds.
    pub(super) fn post_something(&mut self, node: usize) {
        let is_event = self.time.random.percent(30);
        self.post(node, is_event);
    }

    /// Puts an Event into the outbox, or a word about an object that the node holds, if any.
    pub(super) fn post(&mut self, node: usize, is_event: bool) {
        let (now, event) = (self.time.now, self.time.random.below(EVENTS));
        let is_effect = self.time.random.percent(50);
        let it = &mut self.nodes[node];
        if it.edge.is_none() {
            return;
        }
        let held: Vec<(Uid, ResourceVersion)> = it.db.held().into_iter().collect();
        self.made += 1;
        let thing = if is_event || held.is_empty() {
            Thing::event(event, self.made, now)
        } else {
            let (uid, version) = &held[usize::try_from(self.time.random.below(held.len() as u64)).unwrap()];
            let name: u64 = uid.split('-').nth(1).and_then(|name| name.parse().ok()).unwrap();
            let is_effect = is_effect || name.is_multiple_of(SHARED);
            let object =
                (uid.clone(), object_ref(&format!("object-{name:03}")), super::state::number(version));
            Thing::about(is_effect, object, self.made, now)
        };
        self.time.say(|| format!("node {node} puts {:?} as {}", thing.key, thing.made));
        it.put(thing);
        let life = it.life;
        self.time.after(5, Event::Marks { node, life });
    }

    // --- the API server

    /// Separates a replica from the API server for a while.
    pub(super) fn part(&mut self, replica: usize, time: Duration) {
        self.replicas[replica].apart_until = self.time.now + time;
        self.break_watch(replica);
        self.time.say(|| format!("replica {replica} does not reach the API server for {time:?}"));
    }

    /// Throttles all requests for a while.
    pub(super) fn throttle(&mut self, time: Duration) {
        self.throttled_until = self.time.now + time;
        self.time.say(|| format!("requests are throttled for {time:?}"));
    }

    /// Drops the history that watches need.
    pub(super) fn compact(&mut self) {
        self.server.compact();
        self.time.say(|| "watches of older versions have expired".into());
    }

    /// Returns the number of requests so far.
    pub(super) fn all_requests(&self) -> usize {
        self.all_requests
    }

    // --- convergence

    /// Ends all faults.
    pub(super) fn heal(&mut self) {
        self.chaos = Chaos::NONE;
        let now = self.time.now;
        self.throttled_until = now;
        for replica in &mut self.replicas {
            replica.apart_until = now;
        }
    }

    /// Checks that each node holds the desired objects, that one replica serves it and says so in
    /// the Lease, and that everything it has reported is in the cluster.
    pub(super) fn converged(&self) -> Result<(), String> {
        for (index, node) in self.nodes.iter().enumerate() {
            let placed = self.server.objects.values().filter(|object| object.is_on(index));
            let wanted: BTreeMap<Uid, ResourceVersion> =
                placed.map(|object| (object.uid.clone(), object.version.into())).collect();
            let held = node.db.held();
            if held != wanted {
                return Err(format!("node {index}: wanted {wanted:?}, held {held:?}"));
            }
            let (Some(link), Some(edge)) = (node.link, &node.edge) else {
                return Err(format!("node {index} is not connected"));
            };
            let replica = self.connections[link].replica;
            let Some(served) = self.replicas[replica].nodes.get(index) else {
                return Err(format!("node {index}: replica {replica} does not run"));
            };
            let (phase, pending) = (served.machine.phase(), served.machine.pending());
            if phase != CloudPhase::Live || pending != 0 || !edge.in_sync() || !edge.outbox_is_empty() {
                return Err(format!("node {index}: {phase:?}, {pending} pending, {edge:?}"));
            }
            let server = self.server.lease(index).map(|lease| lease.server.clone());
            if server != Some(format!("replica-{replica}")) {
                return Err(format!("node {index} at replica {replica}: its Lease names {server:?}"));
            }
            node.db.check_totals()?;
            check_records(&self.server, (index, node), self.have_returned)?;
        }
        Ok(())
    }

    /// Advances time until all nodes are in sync, at most by `most`.
    pub(super) fn wait(&mut self, most: Duration) -> Result<(), String> {
        let end = self.time.now + most;
        while self.converged().is_err() && self.time.now < end {
            self.pass(Duration::from_secs(1))?;
        }
        Ok(())
    }

    /// Returns what a node holds, for the check of insertions.
    fn held_by(&self, node: usize) -> HashSet<Uid> {
        self.nodes[node].db.held().into_keys().collect()
    }
}
