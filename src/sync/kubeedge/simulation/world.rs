//! The world of the simulation: an agent that lives and dies, a link that is cut, a CloudCore, a clock.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap, HashMap, HashSet};
use std::time::Duration;

use super::cloudcore::{CloudCore, Connection, Deletes, Settings};
use super::events::{Event, Scheduled};
use super::objects::NODE;
use super::outbox::{Item, Outbox};
use crate::object::ResourceVersion;
use crate::sync::change::{ObjectRef, Uid};
use crate::sync::edge::{EdgeConfig, EdgeEffect, EdgeMachine, EdgeNotice};
use crate::sync::kubeedge::{Bridge, BridgeConfig, BridgeEffect, FetchRule, Moment, Name, Sent, WatchRule};
use crate::sync::simulation::model::{EdgeDb, Random};
use crate::sync::timing::Now;
use crate::sync::upload::Lane;

pub(super) const MAX_OBJECT: usize = 8_000;
const LIMIT: usize = 32 << 20;
pub(super) const VERIFY_INTERVAL: Duration = Duration::from_secs(600);

/// How bad it gets, in percent per step.
#[derive(Clone, Copy)]
pub(super) struct Chaos {
    pub(super) steps: u64,
    pub(super) cut: u64,
    pub(super) crash: u64,
    pub(super) restart: u64,
    pub(super) lose_database: u64,
    pub(super) full: u64,
    /// Percent of the messages that arrive again, late.
    pub(super) again: u64,
    pub(super) remove_node: u64,
    /// Whether the dynamic controller may be on, and may be switched with a restart.
    pub(super) dynamic: bool,
    pub(super) switches: bool,
    pub(super) deletes: Deletes,
    pub(super) takeover_race: bool,
}

impl Chaos {
    pub(super) fn none() -> Self {
        Self {
            steps: 0,
            cut: 0,
            crash: 0,
            restart: 0,
            lose_database: 0,
            full: 0,
            again: 0,
            remove_node: 0,
            dynamic: true,
            switches: false,
            deletes: Deletes::Stock,
            takeover_race: false,
        }
    }

    pub(super) fn for_seed(seed: u64) -> Self {
        let mut random = Random(seed ^ 0x5eed);
        let mut up_to = |max: u64| if random.percent(50) { 0 } else { random.below(max + 1) };
        Self {
            steps: 80,
            cut: up_to(15),
            crash: up_to(10),
            restart: up_to(6),
            lose_database: up_to(4),
            full: up_to(6),
            again: up_to(6),
            remove_node: up_to(3),
            dynamic: up_to(10) < 6,
            switches: up_to(10) > 7,
            deletes: match up_to(10) {
                0..=6 => Deletes::Stock,
                7 | 8 => Deletes::Bare,
                _ => Deletes::EmptyUid,
            },
            takeover_race: up_to(10) > 7,
        }
    }
}

/// What is on the disk of the node.
#[derive(Clone)]
pub(super) struct Disk {
    pub(super) db: EdgeDb,
    pub(super) outbox: Outbox,
    /// UIDs whose removal was committed.
    pub(super) removed: BTreeSet<Uid>,
}

impl Disk {
    pub(super) fn new(id: u64) -> Self {
        Self { db: EdgeDb::new(id), outbox: Outbox::new(id), removed: BTreeSet::new() }
    }
}

/// The program on the node.
pub(super) struct Agent {
    pub(super) machine: EdgeMachine,
    pub(super) bridge: Bridge,
}

/// A message of CloudCore that may be acknowledged.
#[derive(Clone, Debug)]
pub(super) struct Told {
    pub(super) source: String,
    pub(super) operation: String,
    pub(super) kind: String,
    pub(super) namespace: String,
    pub(super) name: String,
    pub(super) uid: String,
    pub(super) version: String,
    pub(super) bytes: usize,
}

/// What the body of an object says.
#[derive(Clone)]
pub(super) struct Body {
    pub(super) object: ObjectRef,
    pub(super) references: Vec<Name>,
}

pub(super) struct World {
    pub(super) now: Now,
    pub(super) random: Random,
    pub(super) chaos: Chaos,
    trace: bool,
    pub(super) events: BinaryHeap<Reverse<Scheduled>>,
    next_event: u64,
    next_wake: Option<Now>,
    pub(super) cloud: CloudCore,
    pub(super) agent: Option<Agent>,
    /// Grows with each start and end of the agent.
    pub(super) life: u64,
    pub(super) disk: Disk,
    pub(super) backup: Disk,
    last_commit: Now,
    last_answer: Now,
    pub(super) link: Option<Connection>,
    /// Messages of one connection and direction arrive in order: when the last one arrives.
    last_arrival: [Now; 2],
    /// What CloudCore has sent over this connection.
    told: BTreeMap<String, Told>,
    /// Bodies that were ever committed.
    pub(super) bodies: HashMap<(Uid, ResourceVersion), Body>,
    /// Rows keep their number.
    pub(super) rows: HashMap<Uid, u64>,
    pub(super) full_until: Now,
    /// Whether what the node holds was ever replaced behind CloudCore's back, or its ObjectSyncs were removed.
    pub(super) damaged: bool,
    /// Events that were made, and must arrive.
    pub(super) owed: BTreeSet<u64>,
    pub(super) made: u64,
    pub(super) violation: Option<String>,
    pub(super) definitions: u64,
    pub(super) sent: u64,
    pub(super) received: u64,
    pub(super) acknowledged: HashSet<String>,
}

fn edge_config() -> EdgeConfig {
    EdgeConfig {
        node: NODE.into(),
        agent: "test".into(),
        max_frame: u32::try_from(LIMIT).unwrap(),
        max_object: u32::try_from(MAX_OBJECT).unwrap(),
        hello_timeout: Duration::from_secs(5),
        report_timeout: Duration::from_secs(5),
        retry_max: Duration::from_secs(60),
        report_attempts: 5,
        max_applying: 16,
        lease_interval: Duration::from_secs(10),
        lease_duration: Duration::from_secs(40),
    }
}

pub(super) fn bridge_config() -> BridgeConfig {
    let fetch = ["lab/configmap/fetched", "lab/secret/fetched", "lab/configmap/app-*"];
    BridgeConfig {
        node: NODE.into(),
        keepalive: Duration::from_secs(15),
        answer_timeout: Duration::from_secs(10),
        retry_max: Duration::from_secs(60),
        max_object: MAX_OBJECT,
        managed_fields: false,
        fetch: fetch.iter().map(|rule| FetchRule::parse(rule).unwrap()).collect(),
        watch: vec![WatchRule::parse("lab.io/v1/widgets").unwrap()],
        verify_interval: VERIFY_INTERVAL,
    }
}

impl World {
    pub(super) fn new(seed: u64, chaos: Chaos, trace: bool) -> Self {
        let settings = Settings {
            dynamic_controller: chaos.dynamic,
            deletes: chaos.deletes,
            takeover_race: chaos.takeover_race,
            seed,
            ..Settings::default()
        };
        let mut cloud = CloudCore::new(settings);
        cloud.cluster.define("lab.io/v1", "Widget", "widgets");
        let disk = Disk::new(seed.wrapping_mul(31) + 1);
        let mut world = Self {
            now: Now::ZERO,
            random: Random(seed),
            chaos,
            trace,
            events: BinaryHeap::new(),
            next_event: 0,
            next_wake: None,
            cloud,
            agent: None,
            life: 0,
            backup: disk.clone(),
            disk,
            last_commit: Now::ZERO,
            last_answer: Now::ZERO,
            link: None,
            last_arrival: [Now::ZERO; 2],
            told: BTreeMap::new(),
            bodies: HashMap::new(),
            rows: HashMap::new(),
            full_until: Now::ZERO,
            damaged: false,
            owed: BTreeSet::new(),
            made: 0,
            violation: None,
            definitions: 0,
            sent: 0,
            received: 0,
            acknowledged: HashSet::new(),
        };
        world.start_agent();
        world
    }

    pub(super) fn say(&self, what: impl FnOnce() -> String) {
        if self.trace {
            println!("{:>10.3} {}", self.now.as_secs_f64(), what());
        }
    }

    pub(super) fn moment(&self) -> Moment {
        Moment { now: self.now, wall: 1_795_225_000_000 + i64::try_from(self.now.as_millis()).unwrap() }
    }

    pub(super) fn after(&mut self, max_ms: u64, event: Event) {
        let delay = Duration::from_millis(self.random.below(max_ms) + 1);
        self.at(self.now + delay, event);
    }

    fn at(&mut self, at: Now, event: Event) {
        self.next_event += 1;
        self.events.push(Reverse(Scheduled(at, self.next_event, event)));
    }

    // --- the agent

    pub(super) fn start_agent(&mut self) {
        self.life += 1;
        let (totals, confirmed) = (self.disk.db.totals(), self.disk.db.confirmed);
        let mut machine = EdgeMachine::new(edge_config(), totals, confirmed, None);
        machine.outbox_changed(self.now, &self.disk.outbox.marks());
        let mut bridge = Bridge::new(bridge_config());
        for (name, held) in self.held_references() {
            bridge.remember(&name, held.as_ref());
        }
        self.agent = Some(Agent { machine, bridge });
        self.say(|| format!("the agent starts with {totals:?}"));
    }

    pub(super) fn stop_agent(&mut self) {
        self.say(|| "the agent ends".into());
        self.cut();
        self.agent = None;
        self.life += 1;
    }

    // --- the link

    /// The node sees that the connection is gone; CloudCore may see it later, or not at all.
    pub(super) fn cut(&mut self) {
        let Some(connection) = self.link.take() else { return };
        self.say(|| "the link is cut".into());
        if self.random.percent(70) {
            self.cloud.disconnect(connection);
        }
        self.told.clear();
        if let Some(agent) = &mut self.agent {
            agent.machine.disconnected();
            agent.bridge.disconnected();
        }
    }

    pub(super) fn connect(&mut self) {
        if self.agent.is_none() || self.link.is_some() {
            return;
        }
        let (at, random) = (self.moment(), self.random.next());
        let connection = self.cloud.connect(self.now, NODE);
        self.link = Some(connection);
        self.last_arrival = [self.now; 2];
        self.say(|| format!("connection {connection}"));
        if let Some(agent) = &mut self.agent {
            agent.bridge.connected(at, random);
            agent.machine.connected(self.now, LIMIT, random);
        }
    }

    fn transmit(&mut self, direction: usize, event: Event) {
        let arrival = self.now + Duration::from_millis(self.random.below(20) + 1);
        let arrival = arrival.max(self.last_arrival[direction]);
        self.last_arrival[direction] = arrival;
        self.at(arrival, event);
    }

    pub(super) fn send_down(&mut self, connection: Connection, what: Sent) {
        self.transmit(1, Event::ToEdge { connection, what });
    }

    // --- driving

    pub(super) fn drive(&mut self) {
        while self.drive_agent() || self.drive_cloud() {}
        self.check_bounds();
        let agent = self.agent.as_ref();
        let own = agent.into_iter().flat_map(|it| [it.machine.deadline(), it.bridge.deadline()]);
        let next = own.flatten().chain([self.cloud.next_deadline()]).min().unwrap_or(Now::MAX);
        if next != Now::MAX {
            let at = next.max(self.now + Duration::from_micros(100));
            if self.next_wake.is_none_or(|planned| at < planned) {
                self.next_wake = Some(at);
                self.at(at, Event::Wake);
            }
        }
    }

    /// One step of the agent; whether there was any.
    fn drive_agent(&mut self) -> bool {
        let (at, now) = (self.moment(), self.now);
        let Some(Agent { machine, bridge }) = &mut self.agent else { return false };
        if let Some(effect) = machine.poll_effect() {
            self.perform(effect);
            return true;
        }
        if let Some(effect) = bridge.poll_effect() {
            self.perform_for_bridge(effect);
            return true;
        }
        if machine.wants_frame()
            && let Some(frame) = bridge.poll_frame()
        {
            let random = self.random.next();
            machine.received(now, frame, random);
            return true;
        }
        let Some(connection) = self.link else { return false };
        if let Some(frame) = machine.poll_frame(now) {
            machine.link_progress(now, 0, 0);
            let totals = machine.totals();
            bridge.up(at, frame, totals);
            return true;
        }
        let Some(message) = bridge.poll_message() else { return false };
        self.check_sent(&message);
        self.sent += 1;
        self.say(|| format!("→ {}", shown(&message)));
        self.transmit(0, Event::ToCloud { connection, what: message });
        true
    }

    fn drive_cloud(&mut self) -> bool {
        if let Some(closed) = self.cloud.poll_closed() {
            self.after(20, Event::Closed { connection: closed });
            return true;
        }
        let Some(connection) = self.link else { return false };
        let Some(text) = self.cloud.poll(connection) else { return false };
        self.say(|| format!("← {}", text.chars().take(300).collect::<String>().trim_end()));
        self.note_told(&text);
        self.received += 1;
        self.send_down(connection, Sent::Text { name: "", text });
        true
    }

    fn perform(&mut self, effect: EdgeEffect) {
        let life = self.life;
        match effect {
            EdgeEffect::Apply { token, changes } => {
                let delay = Duration::from_millis(self.random.below(15) + 1);
                let at = self.last_commit.max(self.now + delay);
                self.last_commit = at;
                self.at(at, Event::Commit { life, token, changes });
            }
            EdgeEffect::Confirm(revision) => self.disk.db.confirm(revision),
            EdgeEffect::SettleOutbox { lane, upto } => self.after(50, Event::Settle { life, lane, upto }),
            EdgeEffect::RenewLease => {
                let (now, micros) = (self.now, self.moment().wall * 1000);
                let random = self.random.next();
                if let Some(agent) = &mut self.agent {
                    agent.machine.renew(now, micros, micros, random);
                }
            }
            EdgeEffect::Notice(notice) => {
                self.say(|| format!("machine: {notice:?}"));
                if notice == EdgeNotice::Register {
                    self.report_node();
                }
            }
            EdgeEffect::SetIncarnation(_) => {}
            read => self.after(5, Event::Read { life, effect: read }),
        }
    }

    fn perform_for_bridge(&mut self, effect: BridgeEffect) {
        let life = self.life;
        match effect {
            BridgeEffect::ReadHeld { cursor, limit } => {
                self.after(5, Event::ReadHeld { life, cursor, limit });
            }
            BridgeEffect::Reconnect => {
                self.say(|| "the bridge wants a new connection".into());
                self.cut();
            }
            BridgeEffect::Notice(notice) => self.say(|| format!("bridge: {notice:?}")),
        }
    }

    /// The node says something of itself.
    pub(super) fn report_node(&mut self) {
        self.made += 1;
        self.disk.outbox.put(Lane::Status, Item::Node(self.made));
        let life = self.life;
        self.after(5, Event::Marks { life });
    }

    pub(super) fn commit_answer_at(&mut self) -> Now {
        let delay = Duration::from_millis(self.random.below(5) + 1);
        let at = self.last_answer.max(self.now + delay);
        self.last_answer = at;
        at
    }

    pub(super) fn schedule(&mut self, at: Now, event: Event) {
        self.at(at, event);
    }

    pub(super) fn told(&self, id: &str) -> Option<&Told> {
        self.told.get(id)
    }

    pub(super) fn remember_told(&mut self, id: String, told: Told) {
        self.told.insert(id, told);
    }

    // --- time

    fn step(&mut self) -> Result<(), String> {
        if let Some(Reverse(Scheduled(at, _, event))) = self.events.pop() {
            self.now = at.max(self.now);
            if matches!(event, Event::Wake) {
                self.next_wake = None;
            }
            self.handle(event)?;
        }
        self.drive();
        self.violation.take().map_or(Ok(()), Err)
    }

    /// Lets virtual time pass.
    pub(super) fn pass(&mut self, time: Duration) -> Result<(), String> {
        let end = self.now + time;
        self.drive();
        while self.events.peek().is_some_and(|Reverse(next)| next.0 <= end) {
            self.step()?;
        }
        self.now = end;
        Ok(())
    }
}

fn shown(message: &Sent) -> String {
    match message {
        Sent::Text { name, text } => {
            format!("{name}: {}", text.chars().take(400).collect::<String>().trim_end())
        }
        Sent::Ping(number) => format!("ping {number}"),
    }
}
