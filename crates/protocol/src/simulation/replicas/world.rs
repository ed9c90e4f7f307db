//! One node and several replicas: processes that crash and restart, connections that outlive their
//! use, lagging watches.

mod events;
mod machines;

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use crate::change::Uid;
use crate::cloud::testing::{DesiredObjects, NONE_UNREAD, Unread};
use crate::cloud::{CloudMachine, CloudPhase, Issued, Records};
use crate::edge::EdgeMachine;
use crate::simulation::model::EdgeDb;
use crate::simulation::timeline::{Random, Simulated, Timeline};
use crate::simulation::world::Sizes;
use crate::timing::Now;
use edgesync_object::ResourceVersion;

use super::cluster::{Cluster, View, may_be_secret};
use events::Event;

const UP: usize = 0;
const DOWN: usize = 1;
const COMPRESS_ABOVE: usize = 1 << 10;
/// The longest travel time of a frame, in milliseconds.
const LATENCY: u64 = 40;
/// The most timer wakes per second.
const MAX_WAKES: usize = 1000;

/// The probabilities of faults, in percent per frame or step.
#[derive(Clone, Copy)]
pub(super) struct Chaos {
    pub(super) drop: u64,
    pub(super) duplicate: u64,
    pub(super) late: u64,
    pub(super) moves: u64,
    pub(super) half_open: u64,
    pub(super) crash: u64,
    pub(super) kill: u64,
    pub(super) lose_database: u64,
    pub(super) apart: u64,
    /// Replacement of the cluster by an older copy of itself.
    pub(super) restore: u64,
    /// Loss or return of the permission to read some objects.
    pub(super) hide: u64,
    /// The longest delay of a change until a replica receives it, in milliseconds.
    pub(super) lag: u64,
    /// The longest time to write a record, in milliseconds.
    pub(super) write: u64,
}

impl Chaos {
    pub(super) const NONE: Self = Self {
        drop: 0,
        duplicate: 0,
        late: 0,
        moves: 0,
        half_open: 0,
        crash: 0,
        kill: 0,
        lose_database: 0,
        apart: 0,
        restore: 0,
        hide: 0,
        lag: 20,
        write: 10,
    };

    pub(super) fn for_seed(random: &mut Random) -> Self {
        let mut up_to = |max: u64| if random.percent(40) { 0 } else { random.below(max + 1) };
        Self {
            drop: up_to(10),
            duplicate: up_to(10),
            late: up_to(15),
            moves: 5 + up_to(25),
            half_open: up_to(10),
            crash: up_to(5),
            kill: up_to(8),
            lose_database: up_to(3),
            apart: up_to(10),
            restore: up_to(2),
            hide: up_to(5),
            lag: [20, 200, 2000, 20_000][usize::try_from(up_to(3)).unwrap()],
            write: [10, 10, 2000, 10_000][usize::try_from(up_to(3)).unwrap()],
        }
    }
}

/// Returns the filter of unreadable objects for a replica with this view.
fn unread(view: &View) -> Unread {
    if view.is_blind { may_be_secret } else { NONE_UNREAD }
}

struct Connection {
    replica: usize,
    /// The life of the connection's replica.
    life: u64,
    last_arrival: [Now; 2],
    is_dead: [bool; 2],
}

#[derive(Default)]
struct Replica {
    machine: Option<CloudMachine>,
    life: u64,
    view: View,
    wishes: DesiredObjects,
    last_watched: Now,
    /// The end of its separation from the cluster.
    apart_until: Now,
    /// The life of the cluster that it knows.
    speaks_of: u64,
    /// The connection by which it believes to serve the node.
    serves: Option<usize>,
}

pub(super) struct World {
    time: Timeline<Event>,
    pub(super) chaos: Chaos,
    sizes: Sizes,
    pub(super) cluster: Cluster,
    db: EdgeDb,
    backup: EdgeDb,
    edge: Option<EdgeMachine>,
    life: u64,
    last_commit: Now,
    last_answer: Now,
    /// The connection that the node uses.
    link: Option<usize>,
    connections: Vec<Connection>,
    /// The node's last Hello, and its connection.
    pub(super) last_hello: Option<(usize, Vec<u8>)>,
    replicas: Vec<Replica>,
    /// The changes sent to the node in the current session.
    delivered: HashSet<(Uid, ResourceVersion)>,
    /// Frames and bytes of the node's sessions in both directions, without Leases.
    pub(super) traffic: (usize, usize),
    /// The number of objects and removals in the transactions of the node.
    pub(super) written: (u64, u64),
    /// The number of inventory requests to the node.
    pub(super) inventories: u64,
    /// Objects of a lost life removed in the current session without a confirmation.
    lost: u64,
    /// The number of timer wakes within a second, and that second.
    woken: (u64, usize),
}

impl World {
    pub(super) fn new(seed: u64, count: usize, sizes: Sizes, chaos: Chaos, trace: bool) -> Self {
        let db = EdgeDb::new(seed.wrapping_mul(31) + 1);
        let mut world = Self {
            time: Timeline::new(Random(seed), trace),
            chaos,
            sizes,
            cluster: Cluster::default(),
            backup: db.clone(),
            db,
            edge: None,
            life: 0,
            last_commit: Now::ZERO,
            last_answer: Now::ZERO,
            link: None,
            connections: Vec::new(),
            last_hello: None,
            replicas: (0..count).map(|_| Replica::default()).collect(),
            delivered: HashSet::new(),
            traffic: (0, 0),
            written: (0, 0),
            inventories: 0,
            lost: 0,
            woken: (0, 0),
        };
        (0..count).for_each(|replica| world.start_replica(replica));
        world.start_node();
        world
    }

    pub(super) fn now(&self) -> Now {
        self.time.now
    }

    pub(super) fn count(&self) -> usize {
        self.replicas.len()
    }

    pub(super) fn random(&mut self) -> &mut Random {
        &mut self.time.random
    }

    pub(super) fn say(&self, what: impl FnOnce() -> String) {
        self.time.say(what);
    }

    // --- processes

    /// Starts a replica with nothing but a list, possibly stale.
    pub(super) fn start_replica(&mut self, replica: usize) {
        let all = self.cluster.view.changes;
        let behind = if self.chaos.lag > 20 { self.time.random.below(10) as usize } else { 0 };
        let (listed, incarnation) = (self.cluster.no_older(all.saturating_sub(behind)), self.incarnation());
        let it = &mut self.replicas[replica];
        it.life += 1;
        it.view = self.cluster.listed(listed, self.cluster.hides);
        it.wishes = DesiredObjects(it.view.wishes(), unread(&it.view));
        it.speaks_of = self.cluster.life;
        let (config, issued) = (self.sizes.cloud(), Arc::new(Issued::default()));
        it.machine = Some(CloudMachine::new(config, incarnation, issued, Records::Proven));
        self.time.say(|| format!("replica {replica} starts, {behind} changes behind"));
        self.tell(replica);
    }

    /// Returns the life of the cluster that replicas have announced.
    fn incarnation(&self) -> Arc<str> {
        format!("life-{}", self.cluster.life).into()
    }

    /// Lets a replica adopt the announced life.
    fn adopt_life(&mut self, replica: usize) {
        let incarnation = self.incarnation();
        let it = &mut self.replicas[replica];
        it.speaks_of = self.cluster.life;
        if let Some(machine) = &mut it.machine {
            machine.set_incarnation(incarnation, Arc::new(Issued::default()));
        }
    }

    pub(super) fn kill_replica(&mut self, replica: usize) {
        let it = &mut self.replicas[replica];
        it.machine = None;
        (it.life, it.serves) = (it.life + 1, None);
        self.time.say(|| format!("replica {replica} is killed"));
        if self.link.is_some_and(|link| self.connections[link].replica == replica) {
            self.cut();
        }
    }

    pub(super) fn is_running(&self, replica: usize) -> bool {
        self.replicas[replica].machine.is_some()
    }

    pub(super) fn start_node(&mut self) {
        self.life += 1;
        self.db.crash();
        let totals = self.db.totals();
        let incarnation = self.db.incarnation.clone();
        let mut edge = EdgeMachine::new(self.sizes.edge(), totals, self.db.confirmed, incarnation);
        edge.restore_parts();
        self.edge = Some(edge);
        self.time.say(|| format!("the node starts with {totals:?}"));
    }

    pub(super) fn crash_node(&mut self) {
        self.edge = None;
        self.life += 1;
        self.cut();
        self.time.say(|| "the node crashes".into());
    }

    pub(super) fn lose_database(&mut self) {
        self.crash_node();
        self.db = match self.time.random.percent(50) {
            true => EdgeDb::new(self.time.random.next()),
            false => self.backup.clone(),
        };
        self.time.say(|| "the node has another database".into());
    }

    pub(super) fn back_up(&mut self) {
        self.backup = self.db.clone();
    }

    // --- connections

    /// Cuts the node's connection. Its replica notices at once, later, or never.
    pub(super) fn cut(&mut self) {
        let Some(connection) = self.link.take() else { return };
        if let Some(edge) = &mut self.edge {
            edge.disconnected();
        }
        match self.time.random.below(3) {
            0 => self.gone(connection),
            1 => self.time.after(60_000, Event::Gone { connection }),
            _ => {}
        }
    }

    /// Lets a replica notice the end of a connection.
    pub(super) fn gone(&mut self, connection: usize) {
        let replica = &mut self.replicas[self.connections[connection].replica];
        if replica.serves == Some(connection) {
            replica.serves = None;
            if let Some(machine) = &mut replica.machine {
                machine.disconnected();
            }
        }
    }

    pub(super) fn connect(&mut self, replica: usize) {
        self.cut();
        if self.edge.is_none() {
            self.start_node();
        }
        if self.replicas[replica].machine.is_none() {
            self.start_replica(replica);
        }
        if let Some(old) = self.replicas[replica].serves {
            self.gone(old);
        }
        let (now, connection) = (self.time.now, self.connections.len());
        let life = self.replicas[replica].life;
        self.connections.push(Connection { replica, life, last_arrival: [now; 2], is_dead: [false; 2] });
        self.replicas[replica].serves = Some(connection);
        self.link = Some(connection);
        self.time.say(|| format!("the node connects to replica {replica}"));
        let random = self.time.random.next();
        if let Some(edge) = &mut self.edge {
            edge.connected(now, self.sizes.max_frame(), random);
        }
    }

    /// Delivers a frame of the node once more.
    pub(super) fn repeat(&mut self, (connection, bytes): (usize, Vec<u8>)) {
        let now = self.time.now;
        self.time.at(now, Event::ToCloud { connection, bytes });
    }

    /// Returns when the machine of a replica is due.
    pub(super) fn deadline(&self, replica: usize) -> Option<Now> {
        self.replicas[replica].machine.as_ref()?.deadline()
    }

    pub(super) fn is_connected(&self) -> bool {
        self.link.is_some()
    }

    /// Makes the connection half-open, in one direction or both. The node notices.
    pub(super) fn half_open(&mut self) {
        let Some(connection) = self.link else { return };
        let which = self.time.random.below(3);
        let is_dead = &mut self.connections[connection].is_dead;
        is_dead[UP] |= which != 1;
        is_dead[DOWN] |= which != 0;
        self.time.say(|| format!("half-open ({which})"));
        self.time.after(30_000, Event::Silent { connection });
    }

    fn transmit(&mut self, direction: usize, connection: usize, bytes: &[u8]) {
        if self.connections[connection].is_dead[direction] || self.time.random.percent(self.chaos.drop) {
            return;
        }
        let copies = if self.time.random.percent(self.chaos.duplicate) { 2 } else { 1 };
        for _ in 0..copies {
            let mut last = self.connections[connection].last_arrival[direction];
            let mut at = self.time.in_order(&mut last, LATENCY);
            self.connections[connection].last_arrival[direction] = last;
            if self.time.random.percent(self.chaos.late) {
                // Out of order, possibly after the node has moved.
                at += Duration::from_millis(self.time.random.below(30_000));
            }
            let bytes = bytes.to_vec();
            let event = match direction {
                UP => Event::ToCloud { connection, bytes },
                _ => Event::ToEdge { bytes },
            };
            self.time.at(at, event);
        }
    }

    // --- views of the replicas

    /// Schedules the delivery of all changes so far to a replica.
    fn tell(&mut self, replica: usize) {
        let changes = self.cluster.view.changes;
        let it = &mut self.replicas[replica];
        let at = self.time.in_order(&mut it.last_watched, self.chaos.lag).max(it.apart_until);
        self.time.at(at, Event::Watched { replica, life: it.life, changes });
    }

    pub(super) fn tell_all(&mut self) {
        (0..self.replicas.len()).for_each(|replica| self.tell(replica));
    }

    /// Separates a replica from the cluster for a while.
    pub(super) fn part(&mut self, replica: usize, time: Duration) {
        self.replicas[replica].apart_until = self.time.now + time;
        self.time.say(|| format!("replica {replica} is cut off from the cluster for {time:?}"));
    }

    /// Replaces the cluster by an older copy of itself.
    pub(super) fn restore_cluster(&mut self) {
        let (now, ago) = (self.time.now, self.time.random.below(100) as usize + 1);
        self.cluster.restore(now, ago);
        self.time.say(|| format!("the cluster is what it was {ago} changes ago"));
        self.tell_all();
    }

    /// Revokes or grants the permission to read secrets. Each replica notices in its own time.
    pub(super) fn hide(&mut self, hides: bool) {
        (self.cluster.hides, self.cluster.hid) = (hides, true);
        self.time.say(|| format!("secrets cannot be read: {hides}"));
        for (replica, it) in self.replicas.iter().enumerate() {
            let at = (self.time.now + self.time.random.delay(20_000)).max(it.apart_until);
            self.time.at(at, Event::Looked { replica, life: it.life });
        }
    }

    /// Lets a replica check whether it may read secrets.
    fn looked(&mut self, replica: usize) {
        let (now, cluster) = (self.time.now, &self.cluster);
        let Replica { machine, view, wishes, .. } = &mut self.replicas[replica];
        let was_blind = view.is_blind;
        for uid in cluster.see(view) {
            wishes.tell(now, machine.as_mut(), &uid, view.wish(&uid));
        }
        wishes.1 = unread(view);
        if was_blind
            && !view.is_blind
            && let Some(machine) = machine
        {
            machine.reads_more(now, wishes);
        }
    }

    /// Confirms the removals that are held back.
    pub(super) fn confirm_deletions(&mut self) {
        let now = self.time.now;
        let Some(link) = self.link else { return };
        let Replica { machine, wishes, .. } = &mut self.replicas[self.connections[link].replica];
        if let Some(machine) = machine.as_mut().filter(|machine| machine.held_count() > 0) {
            machine.confirm_deletions(now, wishes);
            self.cluster.confirm_loss();
            self.time.say(|| "removals are confirmed".into());
        }
    }

    pub(super) fn heal(&mut self) {
        self.chaos = Chaos::NONE;
        let now = self.time.now;
        for replica in &mut self.replicas {
            (replica.apart_until, replica.last_watched) = (now, now);
        }
        if self.cluster.hides {
            self.hide(false);
        }
        self.tell_all();
    }

    pub(super) fn fall_behind(&mut self, replica: usize) {
        if let Some(machine) = &mut self.replicas[replica].machine {
            machine.fall_behind();
        }
    }

    fn watched(&mut self, replica: usize, changes: usize) {
        let now = self.time.now;
        let Replica { machine, view, wishes, .. } = &mut self.replicas[replica];
        if self.cluster.ends_between(view.changes, changes)
            && let Some(machine) = machine
        {
            machine.restart_after_rollback();
        }
        while view.changes < changes {
            let next = view.changes + 1;
            for uid in self.cluster.tell(view, next) {
                wishes.tell(now, machine.as_mut(), &uid, view.wish(&uid));
            }
        }
    }

    // --- convergence

    /// Checks that the node holds the desired objects, and that the replica that serves it knows
    /// that.
    pub(super) fn converged(&self) -> Result<(), String> {
        let (wanted, held) = (self.cluster.view.wanted(), self.db.held());
        if held != wanted {
            return Err(format!("G6: wanted {wanted:?}, held {held:?}"));
        }
        let serving = self.link.map(|link| &self.replicas[self.connections[link].replica]);
        let Some(machine) = serving.and_then(|replica| replica.machine.as_ref()) else {
            return Err("G6: nobody serves the node".into());
        };
        let Some(edge) = &self.edge else { return Err("G6: no node".into()) };
        if machine.phase() != CloudPhase::Live || machine.pending() != 0 || !edge.in_sync() {
            return Err(format!("G6: {:?}, {} pending, {edge:?}", machine.phase(), machine.pending()));
        }
        self.db.check_totals()
    }

    /// Advances time until the node is in sync, at most by `most`.
    pub(super) fn wait(&mut self, most: Duration) -> Result<(), String> {
        let end = self.time.now + most;
        while self.converged().is_err() && self.time.now < end {
            self.pass(Duration::from_millis(500))?;
        }
        Ok(())
    }

    /// Advances time likewise, and fails if the node is not in sync then.
    pub(super) fn settle(&mut self, most: Duration) -> Result<(), String> {
        self.wait(most)?;
        self.converged()
    }

    /// Returns the number of desired objects that the node lacks in that version, and of held ones
    /// that are not desired.
    pub(super) fn differences(&self) -> (u64, u64) {
        let (wanted, held) = (self.cluster.view.wanted(), self.db.held());
        let changed = wanted.iter().filter(|(uid, version)| held.get(*uid) != Some(version)).count();
        let gone = held.keys().filter(|uid| !wanted.contains_key(*uid)).count();
        (changed as u64, gone as u64)
    }
}
