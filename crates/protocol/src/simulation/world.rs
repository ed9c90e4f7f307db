//! The world of the simulation: processes that crash and restart, a link that loses and delays, a
//! clock.

mod convergence;
mod events;
mod fate;
mod handles;
mod metered;
mod patches;
mod upstream;
mod wire;

use std::cell::Cell;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use crate::change::Change;
use crate::cloud::testing::{DesiredObjects, NONE_UNREAD};
use crate::cloud::{CloudConfig, CloudEffect, CloudMachine, Records};
use crate::edge::{EdgeConfig, EdgeEffect, EdgeMachine};
use crate::frame::{Down, MIN_MAX_FRAME, Up};
use crate::timing::Now;

use super::model::{CloudDb, EdgeDb, History};
use super::timeline::{Random, Timeline};
use events::Event;
pub(super) use metered::Link;
use upstream::Upstream;
pub(super) use wire::Line;
use wire::{DOWN, UP, Way};

/// The compression threshold of the configuration, in bytes.
const COMPRESS_ABOVE: usize = 1 << 10;
/// Agents that share one node name; the second one starts in some seeds only.
const AGENTS: usize = 2;

/// The probabilities of faults, in percent per frame or step.
#[derive(Clone, Copy)]
pub(super) struct Chaos {
    steps: u64,
    drop: u64,
    duplicate: u64,
    late: u64,
    cut: u64,
    crash: u64,
    lose_database: u64,
    restore: u64,
    half_open: u64,
    stall: u64,
    /// Patches damaged on their way.
    damage: u64,
    /// Held objects that get another text.
    reformat: u64,
    twins: bool,
}

/// The limits of both machines. Times are those of the configuration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Sizes {
    /// The limits of the configuration.
    Default,
    /// Limits so small that a few objects reach them.
    Small,
}

impl Sizes {
    pub(super) fn max_frame(self) -> usize {
        match self {
            Self::Default => EdgeConfig::defaults("edge").max_frame as usize,
            Self::Small => MIN_MAX_FRAME as usize,
        }
    }

    pub(super) fn max_object(self) -> usize {
        match self {
            Self::Default => EdgeConfig::defaults("edge").max_object as usize,
            Self::Small => 60_000,
        }
    }

    pub(super) fn edge(self) -> EdgeConfig {
        EdgeConfig {
            max_frame: u32::try_from(self.max_frame()).unwrap(),
            max_object: u32::try_from(self.max_object()).unwrap(),
            ..EdgeConfig::defaults("edge")
        }
    }

    pub(super) fn cloud(self) -> Arc<CloudConfig> {
        let defaults = CloudConfig::defaults();
        Arc::new(match self {
            Self::Default => defaults,
            Self::Small => CloudConfig {
                window_objects: 12,
                window_bytes: 20_000,
                frame_objects: 5,
                max_frame: MIN_MAX_FRAME,
                ..defaults
            },
        })
    }
}

/// The frames sent in one direction.
#[derive(Clone, Copy, Default)]
pub(super) struct Sent {
    pub(super) frames: usize,
    pub(super) bytes: usize,
    pub(super) largest: usize,
}

impl Chaos {
    /// A good link and healthy disks.
    pub(super) const NONE: Self = Self {
        steps: 0,
        drop: 0,
        duplicate: 0,
        late: 0,
        cut: 0,
        crash: 0,
        lose_database: 0,
        restore: 0,
        half_open: 0,
        stall: 0,
        damage: 0,
        reformat: 0,
        twins: false,
    };

    /// Returns the same faults over so many steps on a link that keeps the order of its frames, for
    /// one agent.
    pub(super) fn in_order(self, steps: u64) -> Self {
        Self { steps, duplicate: 0, late: 0, damage: 0, twins: false, ..self }
    }

    pub(super) fn for_seed(random: &mut Random) -> Self {
        let mut up_to = |max: u64| if random.percent(50) { 0 } else { random.below(max + 1) };
        Self {
            steps: 120,
            drop: up_to(15),
            duplicate: up_to(15),
            late: up_to(15),
            cut: up_to(10),
            crash: up_to(8),
            lose_database: up_to(3),
            restore: up_to(3),
            half_open: up_to(3),
            stall: up_to(3),
            twins: up_to(10) > 7,
            damage: up_to(20),
            reformat: up_to(10),
        }
    }
}

/// The parameters of a run.
#[derive(Clone, Copy)]
pub(super) struct Setting {
    pub(super) chaos: Chaos,
    pub(super) line: Line,
    pub(super) sizes: Sizes,
    /// The longest time that the cloud's store takes to load bodies.
    pub(super) load_ms: u64,
    /// Whether the node has no optional features: it keeps no parts and takes no patches.
    pub(super) is_old: bool,
    /// Whether the other nodes agree with this one's claim of a rollback of the cloud's store.
    pub(super) agrees: bool,
    /// Whether the cloud is of a version that continues no message in parts.
    pub(super) is_cloud_old: bool,
    /// Whether the cloud's store has a history, from which patches are made.
    pub(super) patches: bool,
}

impl Setting {
    /// A good link, healthy disks, and small limits.
    pub(super) const QUIET: Self = Self {
        chaos: Chaos::NONE,
        line: Line::FAST,
        sizes: Sizes::Small,
        load_ms: 5,
        is_old: false,
        agrees: true,
        is_cloud_old: false,
        patches: false,
    };

    pub(super) fn for_seed(seed: u64) -> Self {
        let mut random = Random(seed ^ 0x5eed);
        let chaos = Chaos::for_seed(&mut random);
        let mut rate = || match random.below(8) {
            0 => Some(10_000),
            1 => Some(30_000),
            2 => Some(200_000),
            _ => None,
        };
        let rate = [rate(), rate()];
        let latency =
            Duration::from_millis([10, 40, 40, 200, 400][usize::try_from(random.below(5)).unwrap()]);
        let socket = if random.percent(50) { 0 } else { 64 << 10 };
        let line = Line { rate, latency, socket, is_external: random.percent(50) };
        let sizes = if random.percent(50) { Sizes::Default } else { Sizes::Small };
        let load_ms = if random.percent(70) { 5 } else { 1000 };
        let (is_old, agrees, is_cloud_old) = (random.percent(10), random.percent(50), random.percent(10));
        let patches = random.percent(60);
        Self { chaos, line, sizes, load_ms, is_old, agrees, is_cloud_old, patches }
    }
}

struct Agent {
    db: EdgeDb,
    backup: EdgeDb,
    machine: Option<EdgeMachine>,
    life: u64,
    /// The end of the last commit: the one writer commits and answers in order.
    last_commit: Now,
    last_answer: Now,
}

pub(super) struct World {
    time: Timeline<Event>,
    chaos: Chaos,
    line: Line,
    sizes: Sizes,
    load_ms: u64,
    /// The longest time that the node's store takes to read a page.
    read_ms: u64,
    is_old: bool,
    agrees: bool,
    is_cloud_old: bool,
    /// The number of requested bodies.
    loads: usize,
    history: History,
    agents: Vec<Agent>,
    cloud: Option<CloudMachine>,
    wishes: DesiredObjects,
    cloud_life: u64,
    cloud_db: CloudDb,
    cloud_backup: CloudDb,
    /// The agent at the other end of the connection, if any.
    link: Option<usize>,
    /// The number of connections so far.
    connection: usize,
    ways: [Way; 2],
    /// Frames that the agent's link accepts and loses.
    unheard: fn(&Up) -> bool,
    /// Frames for the node that a broker accepts and loses.
    unseen: fn(&Down) -> bool,
    /// Changes that the agent's store cannot commit.
    unstorable: fn(&Change) -> bool,
    /// The number of lost frames.
    lost: usize,
    /// The node's claims of a rollback of the store, and the number permitted without a restore:
    /// false claims.
    renewals: usize,
    lies: usize,
    /// How long the cloud's host was suspended before it resumed, and the lag of its clock.
    away: Duration,
    clock_behind: Duration,
    /// The end of a stall of the cloud.
    stalled_until: Now,
    /// The number of timer wakes of each side.
    wakes: [usize; 2],
    /// For each connection: the objects removed by its frames without a delete, and the number
    /// permitted.
    vanished: Vec<(usize, usize)>,
    /// Frames upward and downward.
    sent: [Sent; 2],
    /// The bytes that the line has carried in each direction: not those that waited for it when it
    /// was cut.
    carried: [u64; 2],
    /// The number of reads of the node's records by the cloud.
    reads: usize,
    /// The inputs of the cloud's machine, without timer ticks.
    inputs: usize,
    /// The time when a store shared with other nodes is idle.
    busy: Option<Rc<Cell<Now>>>,
    upstream: Upstream,
    patches: patches::Patches,
    /// The terms of the node's link, if it is metered.
    metered: Option<metered::Link>,
    chaos_has_twins: bool,
}

/// A cloud database shared by the worlds of several nodes. Each has its own copy with the same
/// writes.
pub(super) struct Shared {
    pub(super) db: CloudDb,
    /// The time when the store completes its last request.
    pub(super) busy: Rc<Cell<Now>>,
}

/// The shortest duration of one operation of the store, which runs one at a time.
const STORE_TIME: Duration = Duration::from_micros(200);

impl World {
    pub(super) fn new(seed: u64, setting: Setting, trace: bool) -> Self {
        Self::over(None, seed, setting, trace)
    }

    /// Creates a world whose cloud has this database, or its own.
    pub(super) fn over(shared: Option<Shared>, seed: u64, setting: Setting, trace: bool) -> Self {
        let Setting { chaos, line, sizes, load_ms, is_old, agrees, is_cloud_old, patches } = setting;
        let mut random = Random(seed);
        let own = CloudDb::new(&mut random);
        let (mut cloud_db, busy) = shared.map_or((own, None), |shared| (shared.db, Some(shared.busy)));
        cloud_db.patches = patches;
        let agent = |n: u64| {
            let db = EdgeDb::new(seed.wrapping_mul(31) + n + 1);
            Agent {
                backup: db.clone(),
                db,
                machine: None,
                life: 0,
                last_commit: Now::ZERO,
                last_answer: Now::ZERO,
            }
        };
        let mut world = Self {
            time: Timeline::new(random, trace),
            chaos,
            line,
            sizes,
            load_ms,
            read_ms: 5,
            is_old,
            agrees,
            is_cloud_old,
            loads: 0,
            history: History::default(),
            agents: (0..AGENTS as u64).map(agent).collect(),
            cloud: None,
            wishes: DesiredObjects::default(),
            cloud_life: 0,
            cloud_backup: cloud_db.clone(),
            cloud_db,
            link: None,
            connection: 0,
            ways: Default::default(),
            unheard: |_| false,
            unseen: |_| false,
            unstorable: |_| false,
            lost: 0,
            renewals: 0,
            lies: 0,
            away: Duration::ZERO,
            clock_behind: Duration::ZERO,
            stalled_until: Now::ZERO,
            wakes: [0; 2],
            vanished: vec![(0, usize::MAX)],
            sent: [Sent::default(); 2],
            carried: [0; 2],
            reads: 0,
            inputs: 0,
            busy,
            upstream: Upstream::default(),
            patches: patches::Patches::default(),
            metered: None,
            chaos_has_twins: chaos.twins,
        };
        world.start_cloud();
        world.start_agent(0);
        world
    }

    /// Returns the wall clock of the cloud's store, in microseconds.
    fn clock(&self) -> u64 {
        1_000_000 + u64::try_from(self.time.now.saturating_sub(self.clock_behind).as_micros()).unwrap()
    }

    // --- processes

    pub(super) fn start_cloud(&mut self) {
        self.cloud_life += 1;
        let base = self.clock();
        self.cloud_db.open(base);
        self.run_cloud();
    }

    fn run_cloud(&mut self) {
        let db = &self.cloud_db;
        let wishes = db.objects.keys().filter_map(|uid| Some((uid.clone(), db.wish(uid)?)));
        self.wishes = DesiredObjects(wishes.collect(), NONE_UNREAD);
        let incarnation = db.incarnation.as_str().into();
        let records = Records::Stored(db.facts.clone());
        let machine = CloudMachine::new(self.sizes.cloud(), incarnation, db.issued(), records);
        self.cloud = Some(machine);
        self.time.say(|| "cloud starts".into());
    }

    pub(super) fn begin_incarnation(&mut self) {
        let (base, id) = (self.clock(), self.time.random.next());
        self.cloud_db.renew(base, id);
        self.tell_incarnation();
    }

    fn tell_incarnation(&mut self) {
        let (incarnation, issued) = (self.cloud_db.incarnation.as_str().into(), self.cloud_db.issued());
        if let Some(cloud) = &mut self.cloud {
            cloud.set_incarnation(incarnation, issued);
        }
    }

    pub(super) fn stop_cloud(&mut self) {
        self.cloud = None;
        self.cloud_life += 1;
        self.cloud_db.effects.crash();
        self.cut();
        self.time.say(|| "cloud crashes".into());
    }

    pub(super) fn start_agent(&mut self, agent: usize) {
        let it = &mut self.agents[agent];
        it.life += 1;
        it.db.crash();
        it.db.outbox.open();
        let (totals, confirmed) = (it.db.totals(), it.db.confirmed);
        let mut machine = EdgeMachine::new(self.sizes.edge(), totals, confirmed, it.db.incarnation.clone());
        machine.outbox_changed(self.time.now, &it.db.outbox.items.marks());
        machine.restore_parts();
        machine.set_acquired(0);
        it.machine = Some(machine);
        self.time.say(|| format!("agent {agent} starts with {totals:?}"));
    }

    pub(super) fn stop_agent(&mut self, agent: usize) {
        self.agents[agent].machine = None;
        self.agents[agent].life += 1;
        if self.link == Some(agent) {
            self.cut();
        }
        self.time.say(|| format!("agent {agent} crashes"));
    }

    pub(super) fn cut(&mut self) {
        let Some(agent) = self.link.take() else { return };
        self.time.say(|| "link cut".into());
        self.end_ways();
        if let Some(machine) = &mut self.agents[agent].machine {
            machine.disconnected();
        }
        if let Some(cloud) = &mut self.cloud {
            cloud.disconnected();
        }
    }

    pub(super) fn connect(&mut self, agent: usize) {
        if self.agents[agent].machine.is_none() || self.cloud.is_none() {
            return;
        }
        self.cut();
        if !self.line.is_external {
            // A new connection replaces one that the endpoint believes to be alive.
            self.gone();
        }
        self.link = Some(agent);
        self.connection += 1;
        self.new_ways();
        self.history.connected(self.time.now);
        self.vanished.push((0, self.may_vanish(agent)));
        let (now, random) = (self.time.now, self.time.random.next());
        self.time.say(|| format!("agent {agent} connects"));
        self.state_terms();
        if let Some(machine) = &mut self.agents[agent].machine {
            machine.connected(now, self.sizes.max_frame(), random);
        }
    }

    // --- the link

    fn count(&mut self, direction: usize, bytes: &[u8]) {
        let sent = &mut self.sent[direction];
        sent.frames += 1;
        sent.bytes += bytes.len();
        sent.largest = sent.largest.max(bytes.len());
    }

    /// Schedules an operation of the cloud's store, within `max_ms` if the store is otherwise idle.
    fn at_the_store(&mut self, max_ms: u64, event: Event) {
        let mut at = self.time.now + self.time.random.delay(max_ms);
        if let Some(busy) = &self.busy {
            busy.set(busy.get().max(self.time.now) + STORE_TIME);
            at = at.max(busy.get());
        }
        self.time.at(at, event);
    }

    // --- driving the machines

    fn drive_agent(&mut self, agent: usize) {
        let connected = self.link == Some(agent);
        loop {
            let Agent { machine: Some(machine), life, db, .. } = &mut self.agents[agent] else { return };
            let life = *life;
            if machine.outbox_is_compared() {
                db.outbox.was_compared();
            }
            if let Some(effect) = machine.poll_effect() {
                self.perform(agent, life, effect);
                continue;
            }
            if connected {
                self.state_terms();
            }
            if !connected || !self.has_room(UP) {
                return;
            }
            let Some(machine) = &mut self.agents[agent].machine else { return };
            let Some(mut frame) = machine.poll_frame(self.time.now) else { return };
            if self.is_old
                && let Up::Hello(hello) = &mut frame
            {
                (hello.partial, hello.patches) = (None, false);
            }
            self.check_report(agent, &frame);
            self.time.say(|| format!("agent {agent} → {frame:?}"));
            let bytes = frame.encode(COMPRESS_ABOVE).unwrap();
            *self.upstream.frames.entry(frame.name()).or_default() += 1;
            if let Up::Upload(_) = frame {
                self.upstream.bytes += bytes.len();
            }
            // The cost of a reconnect is independent of the others.
            if !matches!(frame, Up::Lease(_) | Up::Renew(_) | Up::Upload(_)) {
                self.count(UP, &bytes);
            }
            if (self.unheard)(&frame) {
                self.swallow(UP);
            } else {
                self.transmit(UP, &bytes);
            }
            self.tell_progress(UP);
        }
    }

    fn perform(&mut self, agent: usize, life: u64, effect: EdgeEffect) {
        match effect {
            EdgeEffect::Apply { token, changes } => {
                let at = self.time.in_order(&mut self.agents[agent].last_commit, 15);
                self.time.at(at, Event::Commit { agent, life, connection: self.connection, token, changes });
            }
            EdgeEffect::KeepPart { message, text } => {
                let at = self.time.in_order(&mut self.agents[agent].last_commit, 15);
                self.time.at(at, Event::Keep { agent, life, message, text });
            }
            EdgeEffect::ApplyParts { token, message, rest, .. } => {
                let at = self.time.in_order(&mut self.agents[agent].last_commit, 15);
                let connection = self.connection;
                self.time.at(at, Event::CommitParts { agent, life, connection, token, message, rest });
            }
            EdgeEffect::DropParts => {
                let at = self.time.in_order(&mut self.agents[agent].last_commit, 15);
                self.time.at(at, Event::DropParts { agent, life });
            }
            EdgeEffect::Confirm(revision) => self.agents[agent].db.confirm(revision),
            EdgeEffect::SetIncarnation(incarnation) => {
                self.agents[agent].db.incarnation = Some(incarnation);
            }
            EdgeEffect::SettleOutbox { lane, upto } => {
                self.time.after(100, Event::Settle { agent, life, lane, upto });
            }
            EdgeEffect::RenewLease => {
                let (now, micros) = (self.time.now, i64::try_from(self.time.now.as_micros()).unwrap());
                if let Some(machine) = &mut self.agents[agent].machine {
                    machine.renew(now, 0, micros, u64::from(now.subsec_nanos()));
                }
            }
            EdgeEffect::Notice(notice) => self.time.say(|| format!("agent {agent}: {notice:?}")),
            read => self.time.after(self.read_ms, Event::Read { agent, life, effect: read }),
        }
    }

    fn drive_cloud(&mut self) {
        let life = self.cloud_life;
        while self.time.now >= self.stalled_until {
            let has_room = self.has_room(DOWN);
            let Some(cloud) = &mut self.cloud else { return };
            match cloud.poll_effect(&self.wishes) {
                Some(CloudEffect::ReadRecords) => {
                    self.reads += 1;
                    self.at_the_store(5, Event::Opened { life });
                }
                Some(CloudEffect::Load { token, objects }) => {
                    self.loads += objects.len();
                    self.at_the_store(self.load_ms, Event::Loaded { life, token, objects });
                }
                Some(CloudEffect::Record(batch)) => self.at_the_store(10, Event::Record { life, batch }),
                Some(CloudEffect::RollbackClaimed) => {
                    self.renewals += 1;
                    let restores = self.history.restores();
                    // Without agreement the claim is repeated after each restart of the cloud.
                    let most = if self.agrees || restores == 0 { restores + self.lies } else { usize::MAX };
                    if self.renewals > most {
                        self.time.violation = Some("the store went back, it is said; it did not".into());
                    }
                    if self.agrees {
                        self.begin_incarnation();
                    }
                }
                Some(CloudEffect::Notice(notice)) => self.time.say(|| format!("cloud: {notice:?}")),
                Some(other) => self.perform_upstream(other),
                None if !has_room => return,
                None => {
                    let now = self.time.now;
                    let Some(mut frame) = cloud.poll_frame(now, &self.wishes) else { return };
                    if self.is_cloud_old
                        && let Down::Part(part) = &mut frame
                    {
                        part.digest = None;
                    }
                    self.check_told(&frame);
                    self.check_patches(&frame);
                    self.damage_patches(&mut frame);
                    self.time.say(|| format!("cloud → {frame:?}").chars().take(300).collect());
                    let bytes = frame.encode(COMPRESS_ABOVE).unwrap();
                    if self.link.is_some() {
                        self.count(DOWN, &bytes);
                        if (self.unseen)(&frame) {
                            self.swallow(DOWN);
                        } else {
                            self.transmit(DOWN, &bytes);
                        }
                        self.tell_progress(DOWN);
                    }
                }
            }
        }
    }
}
