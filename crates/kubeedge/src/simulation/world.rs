//! The world of the simulation: an agent that crashes, a link that is cut, a CloudCore, a clock.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::time::Duration;

use super::events::Event;
use super::objects::NODE;
use super::outbox::{self, Item, Outbox};
use crate::model::{CloudCore, Connection, Deletes, Settings};
use crate::testing;
use crate::{Bridge, BridgeConfig, BridgeEffect, FetchRule, Moment, Name, Sent, WatchRule};
use edgesync_object::{NodeName, ResourceVersion};
use edgesync_protocol::change::{ObjectRef, Uid};
use edgesync_protocol::edge::{EdgeConfig, EdgeEffect, EdgeMachine, EdgeNotice};
use edgesync_protocol::simulation::model::EdgeDb;
use edgesync_protocol::simulation::timeline::{Random, Timeline};
use edgesync_protocol::timing::Now;
use edgesync_protocol::upload::Lane;

pub(super) const MAX_OBJECT: usize = 8_000;
const LIMIT: usize = 32 << 20;
pub(super) const VERIFY_INTERVAL: Duration = Duration::from_secs(600);

/// The probabilities of faults, in percent per step.
#[derive(Clone, Copy, Default)]
pub(super) struct Chaos {
    pub(super) steps: u64,
    pub(super) cut: u64,
    pub(super) crash: u64,
    pub(super) restart: u64,
    pub(super) lose_database: u64,
    pub(super) full: u64,
    /// Percent of the messages that arrive a second time, late.
    pub(super) again: u64,
    pub(super) remove_node: u64,
    /// Whether the dynamic controller may be enabled, and switched with a restart.
    pub(super) dynamic: bool,
    pub(super) switches: bool,
    pub(super) deletes: Deletes,
    pub(super) takeover_race: bool,
}

impl Chaos {
    pub(super) fn none() -> Self {
        Self { dynamic: true, ..Self::default() }
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

/// The disk of the node.
#[derive(Clone)]
pub(super) struct Disk {
    pub(super) db: EdgeDb,
    pub(super) outbox: Outbox,
    /// The text that the bridge has stored.
    note: String,
    /// UIDs whose removal was committed.
    pub(super) removed: BTreeSet<Uid>,
}

impl Disk {
    pub(super) fn new(id: u64) -> Self {
        Self { db: EdgeDb::new(id), outbox: Outbox::new(id), note: String::new(), removed: BTreeSet::new() }
    }
}

/// The running program on the node.
pub(super) struct Agent {
    pub(super) machine: EdgeMachine,
    pub(super) bridge: Bridge,
}

/// A pushed message of CloudCore that may be acknowledged.
#[derive(Clone, Debug)]
pub(super) struct PushedMessage {
    pub(super) source: String,
    pub(super) operation: String,
    pub(super) kind: String,
    pub(super) namespace: String,
    pub(super) name: String,
    pub(super) uid: String,
    pub(super) version: String,
    pub(super) bytes: usize,
}

/// The content of an object's body.
#[derive(Clone)]
pub(super) struct Body {
    pub(super) object: ObjectRef,
    pub(super) references: Vec<Name>,
}

pub(super) struct World {
    pub(super) time: Timeline<Event>,
    pub(super) chaos: Chaos,
    pub(super) cloud: CloudCore,
    pub(super) agent: Option<Agent>,
    /// Grows with each start and end of the agent.
    pub(super) life: u64,
    pub(super) disk: Disk,
    pub(super) backup: Disk,
    last_commit: Now,
    pub(super) last_answer: Now,
    pub(super) link: Option<Connection>,
    /// The last arrival per direction: messages of one connection arrive in order.
    last_arrival: [Now; 2],
    /// The messages that CloudCore has sent over this connection.
    pushed: BTreeMap<String, PushedMessage>,
    /// Bodies that were ever committed.
    pub(super) bodies: HashMap<(Uid, ResourceVersion), Body>,
    /// The numbers of the rows, which they keep.
    pub(super) rows: HashMap<Uid, u64>,
    /// The rows by number.
    pub(super) order: BTreeMap<u64, Uid>,
    pub(super) config: BridgeConfig,
    /// Bytes of messages, up and down.
    pub(super) bytes: [u64; 2],
    pub(super) full_until: Now,
    /// Whether the node's objects were ever replaced without CloudCore's knowledge, or its
    /// ObjectSyncs were removed.
    pub(super) damaged: bool,
    /// Created Events that have to arrive.
    pub(super) owed: BTreeSet<u64>,
    pub(super) made: u64,
    pub(super) definitions: u64,
    pub(super) sent: u64,
    pub(super) received: u64,
    pub(super) acknowledged: HashSet<String>,
}

fn edge_config() -> EdgeConfig {
    EdgeConfig::of_tests(NODE, LIMIT, MAX_OBJECT)
}

fn bridge_config() -> BridgeConfig {
    let fetch = ["lab/configmap/fetched", "lab/secret/fetched", "lab/configmap/app-*"];
    BridgeConfig {
        node: NodeName::parse(NODE).unwrap(),
        max_object: MAX_OBJECT,
        fetch: fetch.iter().map(|rule| FetchRule::parse(rule).unwrap()).collect(),
        watch: vec![WatchRule::parse("lab.io/v1/widgets").unwrap()],
        verify_interval: VERIFY_INTERVAL,
        ..testing::config()
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
            time: Timeline::new(Random(seed), trace),
            chaos,
            cloud,
            agent: None,
            life: 0,
            backup: disk.clone(),
            disk,
            last_commit: Now::ZERO,
            last_answer: Now::ZERO,
            link: None,
            last_arrival: [Now::ZERO; 2],
            pushed: BTreeMap::new(),
            bodies: HashMap::new(),
            rows: HashMap::new(),
            order: BTreeMap::new(),
            config: bridge_config(),
            bytes: [0; 2],
            full_until: Now::ZERO,
            damaged: false,
            owed: BTreeSet::new(),
            made: 0,
            definitions: 0,
            sent: 0,
            received: 0,
            acknowledged: HashSet::new(),
        };
        world.start_agent();
        world
    }

    pub(super) fn moment(&self) -> Moment {
        Moment {
            now: self.time.now,
            wall: 1_795_225_000_000 + i64::try_from(self.time.now.as_millis()).unwrap(),
        }
    }

    // --- the agent

    pub(super) fn start_agent(&mut self) {
        self.life += 1;
        let (totals, confirmed) = (self.disk.db.totals(), self.disk.db.confirmed);
        let mut machine = EdgeMachine::new(edge_config(), totals, confirmed, None);
        machine.outbox_changed(self.time.now, &self.disk.outbox.marks());
        let mut bridge = Bridge::new(self.config.clone());
        bridge.restore_state(&self.disk.note);
        let rules = self.config.fetch.iter().filter_map(FetchRule::exact);
        let rules = rules.map(|name| (name.clone(), self.held_under(&name)));
        for (name, held) in self.held_references().into_iter().chain(rules) {
            bridge.restore_name(&name, held.as_ref());
        }
        self.agent = Some(Agent { machine, bridge });
        self.time.say(|| format!("the agent starts with {totals:?}"));
    }

    pub(super) fn stop_agent(&mut self) {
        self.time.say(|| "the agent ends".into());
        self.cut();
        self.agent = None;
        self.life += 1;
    }

    // --- the link

    /// Cuts the connection for the node; CloudCore notices later, or not at all.
    pub(super) fn cut(&mut self) {
        let Some(connection) = self.link.take() else { return };
        self.time.say(|| "the link is cut".into());
        if self.time.random.percent(70) {
            self.cloud.disconnect(connection);
        }
        self.pushed.clear();
        if let Some(agent) = &mut self.agent {
            agent.machine.disconnected();
            agent.bridge.disconnected();
        }
    }

    pub(super) fn connect(&mut self) {
        if self.agent.is_none() || self.link.is_some() {
            return;
        }
        let (at, random) = (self.moment(), self.time.random.next());
        let connection = self.cloud.connect(self.time.now, NODE);
        self.link = Some(connection);
        self.last_arrival = [self.time.now; 2];
        self.time.say(|| format!("connection {connection}"));
        if let Some(agent) = &mut self.agent {
            agent.bridge.connected(at, random);
            agent.machine.connected(self.time.now, LIMIT, random);
        }
    }

    fn transmit(&mut self, direction: usize, event: Event) {
        if let Event::ToCloud { what: Sent::Text { text, .. }, .. }
        | Event::ToEdge { what: Sent::Text { text, .. }, .. } = &event
        {
            self.bytes[direction] += text.len() as u64;
        }
        let arrival = self.time.in_order(&mut self.last_arrival[direction], 20);
        self.time.at(arrival, event);
    }

    pub(super) fn send_down(&mut self, connection: Connection, what: Sent) {
        self.transmit(1, Event::ToEdge { connection, what });
    }

    // --- driving

    /// Runs one step of the agent; returns whether there was any.
    pub(super) fn drive_agent(&mut self) -> bool {
        let (at, now) = (self.moment(), self.time.now);
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
            let random = self.time.random.next();
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
        self.time.say(|| format!("→ {}", shown(&message)));
        self.transmit(0, Event::ToCloud { connection, what: message });
        true
    }

    pub(super) fn drive_cloud(&mut self) -> bool {
        if let Some(closed) = self.cloud.poll_closed() {
            self.time.after(20, Event::Closed { connection: closed });
            return true;
        }
        let Some(connection) = self.link else { return false };
        let Some(text) = self.cloud.poll(connection) else { return false };
        self.time.say(|| format!("← {}", text.chars().take(300).collect::<String>().trim_end()));
        self.note_pushed(&text);
        self.received += 1;
        self.send_down(connection, Sent::Text { name: "", text });
        true
    }

    fn perform(&mut self, effect: EdgeEffect) {
        let life = self.life;
        match effect {
            EdgeEffect::Apply { token, changes } => {
                let at = self.time.in_order(&mut self.last_commit, 15);
                self.time.at(at, Event::Commit { life, token, changes });
            }
            EdgeEffect::Confirm(revision) => self.disk.db.confirm(revision),
            EdgeEffect::SettleOutbox { lane, upto } => {
                self.time.after(50, Event::Settle { life, lane, upto });
            }
            EdgeEffect::RenewLease => {
                let (now, micros) = (self.time.now, self.moment().wall * 1000);
                let random = self.time.random.next();
                if let Some(agent) = &mut self.agent {
                    agent.machine.renew(now, micros, micros, random);
                }
            }
            EdgeEffect::Notice(notice) => {
                self.time.say(|| format!("machine: {notice:?}"));
                if notice == EdgeNotice::Register {
                    self.report_node();
                }
            }
            EdgeEffect::SetIncarnation(_) => {}
            read => self.time.after(5, Event::Read { life, effect: read }),
        }
    }

    fn perform_for_bridge(&mut self, effect: BridgeEffect) {
        let life = self.life;
        match effect {
            BridgeEffect::ReadHeld { cursor, limit } => {
                self.time.after(5, Event::ReadHeld { life, cursor, limit });
            }
            BridgeEffect::SaveState(text) => self.disk.note = text,
            BridgeEffect::Reconnect => {
                self.time.say(|| "the bridge wants a new connection".into());
                self.cut();
            }
            BridgeEffect::Notice(notice) => self.time.say(|| format!("bridge: {notice:?}")),
        }
    }

    /// Sends a node report.
    pub(super) fn report_node(&mut self) {
        self.made += 1;
        outbox::put(&mut self.disk.outbox, Lane::Status, Item::Node(self.made));
        let life = self.life;
        self.time.after(5, Event::Marks { life });
    }

    pub(super) fn pushed(&self, id: &str) -> Option<&PushedMessage> {
        self.pushed.get(id)
    }

    pub(super) fn record_pushed(&mut self, id: String, pushed: PushedMessage) {
        self.pushed.insert(id, pushed);
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
