//! The world of the simulation: processes that live and die, a link that loses and delays, a clock.

mod convergence;
mod events;
mod fate;
mod handles;
mod upstream;

use std::sync::Arc;
use std::time::Duration;

use crate::sync::cloud::testing::Wishes;
use crate::sync::cloud::{CloudConfig, CloudEffect, CloudMachine};
use crate::sync::edge::{EdgeConfig, EdgeEffect, EdgeMachine};
use crate::sync::frame::{MIN_MAX_FRAME, Up};
use crate::sync::timing::Now;

use super::model::{CloudDb, EdgeDb};
use super::timeline::{Random, Timeline};
use events::Event;
use upstream::Upstream;

pub(super) const MAX_OBJECT: usize = 60_000;
pub(super) const LIMIT: usize = MIN_MAX_FRAME as usize;
/// Agents that share one node name; the second one comes up in some seeds only.
const AGENTS: usize = 2;

/// How bad it gets, in percent per frame or step.
#[derive(Clone, Copy, Default)]
pub(super) struct Chaos {
    steps: u64,
    drop: u64,
    duplicate: u64,
    late: u64,
    cut: u64,
    crash: u64,
    lose_database: u64,
    restore: u64,
    twins: bool,
}

/// Frames that went one way.
#[derive(Clone, Copy, Default)]
pub(super) struct Sent {
    pub(super) frames: usize,
    pub(super) bytes: usize,
    pub(super) largest: usize,
}

impl Chaos {
    /// A good link and healthy disks.
    pub(super) fn none() -> Self {
        Self::default()
    }

    pub(super) fn for_seed(seed: u64) -> Self {
        let mut random = Random(seed ^ 0x5eed);
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
            twins: up_to(10) > 7,
        }
    }
}

struct Agent {
    db: EdgeDb,
    backup: EdgeDb,
    machine: Option<EdgeMachine>,
    life: u64,
    /// The store has one writer: it commits, and answers, in order.
    last_commit: Now,
    last_answer: Now,
}

pub(super) struct World {
    time: Timeline<Event>,
    chaos: Chaos,
    agents: Vec<Agent>,
    cloud: Option<CloudMachine>,
    wishes: Wishes,
    cloud_life: u64,
    cloud_db: CloudDb,
    cloud_backup: CloudDb,
    /// The agent at the other end of the connection, if there is one.
    link: Option<usize>,
    /// Counts the connections.
    connection: u64,
    /// Frames of the connection that the broker has not acknowledged.
    unacknowledged: u64,
    /// Frames that the broker acknowledges and nobody hears.
    unheard: fn(&Up) -> bool,
    /// Frames of one connection and direction arrive in order: when the last one arrives.
    last_arrival: [Now; 2],
    /// Frames up and down.
    sent: [Sent; 2],
    /// How often the cloud has read the records of the node.
    reads: usize,
    upstream: Upstream,
    chaos_has_twins: bool,
}

/// Sizes are small, so that a few objects fill them; times are those of the configuration.
fn edge_config() -> EdgeConfig {
    EdgeConfig::of_tests("edge", LIMIT, MAX_OBJECT)
}

fn cloud_config() -> Arc<CloudConfig> {
    Arc::new(CloudConfig {
        window_objects: 12,
        window_bytes: 20_000,
        frame_objects: 5,
        max_frame: MIN_MAX_FRAME,
        resend_min: Duration::from_secs(2),
        resend_max: Duration::from_secs(60),
        reject_retry_min: Duration::from_secs(30),
        reject_retry_max: Duration::from_secs(600),
        answer_timeout: Duration::from_secs(10),
        mass_delete_share: 0.5,
        mass_delete_min: 2,
    })
}

impl World {
    pub(super) fn new(seed: u64, chaos: Chaos, trace: bool) -> Self {
        let mut random = Random(seed);
        let cloud_db = CloudDb::new(&mut random);
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
            agents: (0..AGENTS as u64).map(agent).collect(),
            cloud: None,
            wishes: Wishes::default(),
            cloud_life: 0,
            cloud_backup: cloud_db.clone(),
            cloud_db,
            link: None,
            connection: 0,
            unacknowledged: 0,
            unheard: |_| false,
            last_arrival: [Now::ZERO; 2],
            sent: [Sent::default(); 2],
            reads: 0,
            upstream: Upstream::default(),
            chaos_has_twins: chaos.twins,
        };
        world.start_cloud();
        world.start_agent(0);
        world
    }

    // --- processes

    pub(super) fn start_cloud(&mut self) {
        self.cloud_life += 1;
        let base = 1_000_000 + u64::try_from(self.time.now.as_micros()).unwrap();
        self.cloud_db.open(base);
        let db = &self.cloud_db;
        self.wishes =
            Wishes(db.objects.keys().filter_map(|uid| Some((uid.clone(), db.wish(uid)?))).collect());
        let incarnation = db.incarnation.as_str().into();
        let machine = CloudMachine::new(cloud_config(), incarnation, db.issued(), db.facts.clone());
        self.cloud = Some(machine);
        self.time.say(|| "cloud starts".into());
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
        let mut machine = EdgeMachine::new(edge_config(), totals, confirmed, it.db.incarnation.clone());
        machine.outbox_changed(self.time.now, &it.db.outbox.items.marks());
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
        self.link = Some(agent);
        self.connection += 1;
        self.unacknowledged = 0;
        self.last_arrival = [self.time.now; 2];
        let (now, random) = (self.time.now, self.time.random.next());
        self.time.say(|| format!("agent {agent} connects"));
        if let Some(machine) = &mut self.agents[agent].machine {
            machine.connected(now, LIMIT, random);
        }
    }

    // --- the link

    fn count(&mut self, direction: usize, bytes: &[u8]) {
        let sent = &mut self.sent[direction];
        sent.frames += 1;
        sent.bytes += bytes.len();
        sent.largest = sent.largest.max(bytes.len());
    }

    fn transmit(&mut self, direction: usize, bytes: &[u8]) {
        let copies = match () {
            () if self.time.random.percent(self.chaos.drop) => 0,
            () if self.time.random.percent(self.chaos.duplicate) => 2,
            () => 1,
        };
        for _ in 0..copies {
            let mut arrival = self.time.now + Duration::from_millis(self.time.random.below(40) + 1);
            if self.time.random.percent(self.chaos.late) {
                // Late and out of order, perhaps into another session.
                arrival += Duration::from_millis(self.time.random.below(8000));
            } else {
                arrival = arrival.max(self.last_arrival[direction]);
                self.last_arrival[direction] = arrival;
            }
            let bytes = bytes.to_vec();
            let event = match direction {
                0 => Event::ToCloud { bytes },
                _ => Event::ToEdge { bytes },
            };
            self.time.at(arrival, event);
        }
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
            if !connected {
                return;
            }
            let Some(machine) = &mut self.agents[agent].machine else { return };
            let Some(frame) = machine.poll_frame(self.time.now) else { return };
            self.unacknowledged += 1;
            machine.link_progress(self.time.now, 0, self.unacknowledged);
            self.check_report(agent, &frame);
            self.time.say(|| format!("agent {agent} → {frame:?}"));
            let bytes = frame.encode(2000).unwrap();
            *self.upstream.frames.entry(frame.name()).or_default() += 1;
            // What a reconnect costs does not depend on the others.
            if !matches!(frame, Up::Lease(_) | Up::Upload(_)) {
                self.count(0, &bytes);
            }
            // A broker acknowledges in order what it may lose all the same.
            let acknowledged = self.time.now + Duration::from_millis(20);
            self.time.at(acknowledged, Event::Acknowledged { agent, connection: self.connection });
            if !(self.unheard)(&frame) {
                self.transmit(0, &bytes);
            }
        }
    }

    fn perform(&mut self, agent: usize, life: u64, effect: EdgeEffect) {
        match effect {
            EdgeEffect::Apply { token, changes } => {
                let at = self.time.in_order(&mut self.agents[agent].last_commit, 15);
                self.time.at(at, Event::Commit { agent, life, token, changes });
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
            read => self.time.after(5, Event::Read { agent, life, effect: read }),
        }
    }

    fn drive_cloud(&mut self) {
        let life = self.cloud_life;
        loop {
            let Some(cloud) = &mut self.cloud else { return };
            match cloud.poll_effect(&self.wishes) {
                Some(CloudEffect::Open) => {
                    self.reads += 1;
                    self.time.after(5, Event::Opened { life });
                }
                Some(CloudEffect::Load { token, objects }) => {
                    self.time.after(5, Event::Loaded { life, token, objects });
                }
                Some(CloudEffect::Record(batch)) => self.time.after(10, Event::Record { life, batch }),
                Some(CloudEffect::StoreWentBack) => {
                    let incarnation = format!("{:016x}", self.time.random.next());
                    self.cloud_db.incarnation.clone_from(&incarnation);
                    let issued = self.cloud_db.issued();
                    cloud.set_incarnation(incarnation.into(), issued);
                }
                Some(CloudEffect::Notice(notice)) => self.time.say(|| format!("cloud: {notice:?}")),
                Some(other) => self.perform_upstream(other),
                None => {
                    let now = self.time.now;
                    let Some(frame) = cloud.poll_frame(now, &self.wishes) else { return };
                    self.time.say(|| format!("cloud → {frame:?}").chars().take(300).collect());
                    let bytes = frame.encode(2000).unwrap();
                    self.check_welcome(&frame);
                    if self.link.is_some() {
                        self.count(1, &bytes);
                        self.transmit(1, &bytes);
                    }
                }
            }
        }
    }
}
