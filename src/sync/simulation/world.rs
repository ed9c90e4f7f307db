//! The world of the simulation: processes that live and die, a link that loses and delays, a clock.

mod fate;
mod handles;

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};
use std::sync::Arc;
use std::time::Duration;

use crate::object::ResourceVersion;
use crate::sync::change::{Change, RejectReason, Uid};
use crate::sync::cloud::{CloudConfig, CloudEffect, CloudMachine, CloudPhase, RecordBatch};
use crate::sync::edge::{Commit, EdgeConfig, EdgeEffect, EdgeMachine, EdgePhase};
use crate::sync::frame::{Down, MIN_MAX_FRAME, Received, Up};
use crate::sync::timing::Now;

use super::model::{CloudDb, EdgeDb, Random};

pub(super) const MAX_OBJECT: usize = 60_000;
pub(super) const LIMIT: usize = MIN_MAX_FRAME as usize;
/// Agents that share one node name; the second one comes up in some seeds only.
const AGENTS: usize = 2;

/// How bad it gets, in percent per frame or step.
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
        Self {
            steps: 0,
            drop: 0,
            duplicate: 0,
            late: 0,
            cut: 0,
            crash: 0,
            lose_database: 0,
            restore: 0,
            twins: false,
        }
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

enum Event {
    ToCloud { bytes: Vec<u8> },
    ToEdge { bytes: Vec<u8> },
    Commit { agent: usize, life: u64, token: u64, changes: Vec<Change> },
    Applied { agent: usize, life: u64, token: u64, result: Result<Commit, (RejectReason, String)> },
    SaveTotals { agent: usize, life: u64 },
    Read { agent: usize, life: u64, effect: EdgeEffect },
    Loaded { life: u64, uids: Vec<Uid> },
    Record { life: u64, batch: RecordBatch },
    Recorded { life: u64, token: u64 },
    Desire { life: u64, uid: Uid },
    Wake,
}

struct Scheduled(Now, u64, Event);

impl PartialEq for Scheduled {
    fn eq(&self, other: &Self) -> bool {
        self.1 == other.1
    }
}
impl Eq for Scheduled {}
impl PartialOrd for Scheduled {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}
impl Ord for Scheduled {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        (self.0, self.1).cmp(&(other.0, other.1))
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
    now: Now,
    random: Random,
    chaos: Chaos,
    trace: bool,
    events: BinaryHeap<Reverse<Scheduled>>,
    next_event: u64,
    agents: Vec<Agent>,
    cloud: Option<CloudMachine>,
    cloud_life: u64,
    cloud_db: CloudDb,
    cloud_backup: CloudDb,
    /// The agent at the other end of the connection, if there is one.
    link: Option<usize>,
    /// Frames of one connection and direction arrive in order: when the last one arrives.
    last_arrival: [Now; 2],
    /// The earliest deadline that is in the event queue.
    next_wake: Option<Now>,
    /// Frames up and down.
    sent: [Sent; 2],
    violation: Option<String>,
}

fn edge_config() -> EdgeConfig {
    EdgeConfig {
        node: "edge".into(),
        agent: "test".into(),
        max_frame: MIN_MAX_FRAME,
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
            now: Now::ZERO,
            random,
            chaos,
            trace,
            events: BinaryHeap::new(),
            next_event: 0,
            agents: (0..AGENTS as u64).map(agent).collect(),
            cloud: None,
            cloud_life: 0,
            cloud_backup: cloud_db.clone(),
            cloud_db,
            link: None,
            last_arrival: [Now::ZERO; 2],
            next_wake: None,
            sent: [Sent::default(); 2],
            violation: None,
        };
        world.start_cloud();
        world.start_agent(0);
        world
    }

    fn say(&self, what: impl FnOnce() -> String) {
        if self.trace {
            println!("{:>10.3} {}", self.now.as_secs_f64(), what());
        }
    }

    fn after(&mut self, max_ms: u64, event: Event) {
        let delay = Duration::from_millis(self.random.below(max_ms) + 1);
        self.at(self.now + delay, event);
    }

    fn at(&mut self, at: Now, event: Event) {
        self.next_event += 1;
        self.events.push(Reverse(Scheduled(at, self.next_event, event)));
    }

    // --- processes

    pub(super) fn start_cloud(&mut self) {
        self.cloud_life += 1;
        let base = 1_000_000 + u64::try_from(self.now.as_micros()).unwrap();
        self.cloud_db.open(base);
        let db = &self.cloud_db;
        let mut machine =
            CloudMachine::new(cloud_config(), db.incarnation.clone(), db.issued(), db.ledger.clone());
        for uid in db.objects.keys() {
            machine.desire(self.now, uid, db.desired(uid));
        }
        self.cloud = Some(machine);
        self.say(|| "cloud starts".into());
    }

    pub(super) fn stop_cloud(&mut self) {
        self.cloud = None;
        self.cloud_life += 1;
        self.cut();
        self.say(|| "cloud crashes".into());
    }

    pub(super) fn start_agent(&mut self, agent: usize) {
        let it = &mut self.agents[agent];
        it.life += 1;
        it.db.crash();
        let (totals, confirmed) = (it.db.totals(), it.db.confirmed);
        it.machine = Some(EdgeMachine::new(edge_config(), totals, confirmed, it.db.incarnation.clone()));
        self.say(|| format!("agent {agent} starts with {totals:?}"));
    }

    pub(super) fn stop_agent(&mut self, agent: usize) {
        self.agents[agent].machine = None;
        self.agents[agent].life += 1;
        if self.link == Some(agent) {
            self.cut();
        }
        self.say(|| format!("agent {agent} crashes"));
    }

    pub(super) fn cut(&mut self) {
        let Some(agent) = self.link.take() else { return };
        self.say(|| "link cut".into());
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
        self.last_arrival = [self.now; 2];
        let (now, random) = (self.now, self.random.next());
        self.say(|| format!("agent {agent} connects"));
        if let Some(machine) = &mut self.agents[agent].machine {
            machine.connected(now, LIMIT, random);
        }
    }

    // --- the link

    fn transmit(&mut self, direction: usize, bytes: &[u8]) {
        let sent = &mut self.sent[direction];
        sent.frames += 1;
        sent.bytes += bytes.len();
        sent.largest = sent.largest.max(bytes.len());
        let copies = match () {
            () if self.random.percent(self.chaos.drop) => 0,
            () if self.random.percent(self.chaos.duplicate) => 2,
            () => 1,
        };
        for _ in 0..copies {
            let mut arrival = self.now + Duration::from_millis(self.random.below(40) + 1);
            if self.random.percent(self.chaos.late) {
                // Late and out of order, perhaps into another session.
                arrival += Duration::from_millis(self.random.below(8000));
            } else {
                arrival = arrival.max(self.last_arrival[direction]);
                self.last_arrival[direction] = arrival;
            }
            let bytes = bytes.to_vec();
            let event = match direction {
                0 => Event::ToCloud { bytes },
                _ => Event::ToEdge { bytes },
            };
            self.at(arrival, event);
        }
    }

    // --- driving the machines

    fn drive(&mut self) {
        for agent in 0..self.agents.len() {
            self.drive_agent(agent);
        }
        self.drive_cloud();
        let deadlines = self.agents.iter().filter_map(|agent| agent.machine.as_ref()?.deadline());
        let next = deadlines.chain(self.cloud.as_ref().and_then(CloudMachine::deadline)).min();
        if let Some(at) = next
            && at != Now::MAX
        {
            let at = at.max(self.now + Duration::from_micros(10));
            if self.next_wake.is_none_or(|planned| at < planned) {
                self.next_wake = Some(at);
                self.at(at, Event::Wake);
            }
        }
    }

    fn drive_agent(&mut self, agent: usize) {
        let connected = self.link == Some(agent);
        loop {
            let Agent { machine: Some(machine), life, .. } = &mut self.agents[agent] else { return };
            let life = *life;
            if let Some(effect) = machine.poll_effect() {
                self.perform(agent, life, effect);
                continue;
            }
            if !connected {
                return;
            }
            let Some(machine) = &mut self.agents[agent].machine else { return };
            let Some(frame) = machine.poll_frame() else { return };
            self.check_report(agent, &frame);
            self.say(|| format!("agent {agent} → {frame:?}"));
            let bytes = frame.encode(2000).unwrap();
            self.transmit(0, &bytes);
        }
    }

    fn perform(&mut self, agent: usize, life: u64, effect: EdgeEffect) {
        match effect {
            EdgeEffect::Apply { token, changes } => {
                let delay = Duration::from_millis(self.random.below(15) + 1);
                let at = self.agents[agent].last_commit.max(self.now + delay);
                self.agents[agent].last_commit = at;
                self.at(at, Event::Commit { agent, life, token, changes });
            }
            EdgeEffect::Confirm(revision) => self.agents[agent].db.confirm(revision),
            EdgeEffect::SetIncarnation(incarnation) => {
                self.agents[agent].db.incarnation = Some(incarnation);
            }
            EdgeEffect::RenewLease => {
                let (now, micros) = (self.now, i64::try_from(self.now.as_micros()).unwrap());
                if let Some(machine) = &mut self.agents[agent].machine {
                    machine.renew(now, 0, micros, u64::from(now.subsec_nanos()));
                }
            }
            EdgeEffect::Notice(notice) => self.say(|| format!("agent {agent}: {notice:?}")),
            read => self.after(5, Event::Read { agent, life, effect: read }),
        }
    }

    /// G1: what is reported was committed before.
    fn check_report(&mut self, agent: usize, frame: &Up) {
        let items = match frame {
            Up::Report(report) => &report.objects,
            Up::Inventory(inventory) => &inventory.objects,
            Up::Hello(_) | Up::Lease(_) | Up::Upload(_) => return,
        };
        let db = &self.agents[agent].db;
        let lie = items.iter().find(|item| !db.ever_held(&item.uid, &item.resource_version));
        if let Some(item) = lie {
            self.violation = Some(format!("G1: reported but never committed: {item:?}"));
        }
    }

    fn drive_cloud(&mut self) {
        let life = self.cloud_life;
        loop {
            let Some(cloud) = &mut self.cloud else { return };
            match cloud.poll_effect() {
                Some(CloudEffect::Load(uids)) => self.after(5, Event::Loaded { life, uids }),
                Some(CloudEffect::Record(batch)) => self.after(10, Event::Record { life, batch }),
                Some(CloudEffect::StoreWentBack) => {
                    let incarnation = format!("{:016x}", self.random.next());
                    self.cloud_db.incarnation.clone_from(&incarnation);
                    let issued = self.cloud_db.issued();
                    cloud.set_incarnation(incarnation, issued);
                }
                Some(CloudEffect::Renew(_) | CloudEffect::Take { .. }) => {}
                Some(CloudEffect::Notice(notice)) => self.say(|| format!("cloud: {notice:?}")),
                None => {
                    let now = self.now;
                    let Some(frame) = cloud.poll_frame(now) else { return };
                    self.say(|| format!("cloud → {frame:?}").chars().take(300).collect());
                    let bytes = frame.encode(2000).unwrap();
                    self.check_welcome(&frame);
                    if self.link.is_some() {
                        self.transmit(1, &bytes);
                    }
                }
            }
        }
    }

    /// G4: when a node is welcomed, its records are exactly what it holds.
    fn check_welcome(&mut self, frame: &Down) {
        let (Down::Welcome(welcome), Some(agent), Some(cloud)) = (frame, self.link, &self.cloud) else {
            return;
        };
        let it = &self.agents[agent];
        let Some(edge) = &it.machine else { return };
        // A second Welcome to the same session makes the edge say Hello anew.
        if edge.session() != Some(&welcome.session) || edge.phase() == EdgePhase::Live {
            return;
        }
        let held = it.db.held();
        let recorded: BTreeMap<Uid, ResourceVersion> =
            cloud.records().map(|(uid, record)| (uid.clone(), record.version.clone())).collect();
        if held != recorded {
            let differ = |a: &BTreeMap<Uid, ResourceVersion>, b: &BTreeMap<Uid, ResourceVersion>| {
                a.iter()
                    .filter(|(k, v)| b.get(*k) != Some(v))
                    .map(|(k, v)| format!("{k}@{v}"))
                    .collect::<Vec<_>>()
            };
            let (lies, missing) = (differ(&recorded, &held), differ(&held, &recorded));
            self.violation = Some(format!(
                "G4: welcomed, recorded but not held: {lies:?}, held but not recorded: {missing:?}"
            ));
        }
    }

    // --- events

    fn step(&mut self) -> Result<(), String> {
        if let Some(Reverse(Scheduled(at, _, event))) = self.events.pop() {
            self.now = at.max(self.now);
            self.handle(event)?;
        }
        self.drive();
        self.violation.take().map_or(Ok(()), Err)
    }

    fn handle(&mut self, event: Event) -> Result<(), String> {
        let (now, random) = (self.now, self.random.next());
        match event {
            Event::ToCloud { bytes } => {
                // A broker hands old messages on even if their connection is gone.
                if let Some(cloud) = &mut self.cloud {
                    cloud.received(now, Up::decode(&bytes, LIMIT).map_err(|e| e.to_string())?);
                }
            }
            Event::ToEdge { bytes } => {
                let Some(agent) = self.link else { return Ok(()) };
                if let Some(machine) = &mut self.agents[agent].machine {
                    let frame = Received::decode(&bytes, LIMIT, MAX_OBJECT).map_err(|e| e.to_string())?;
                    machine.received(now, frame, random);
                }
            }
            Event::Commit { agent, life, token, changes } if self.agents[agent].life == life => {
                // Now and then the store is full: nothing is committed then.
                let result = if self.random.percent(self.chaos.crash / 2) {
                    Err((RejectReason::StoreFull, "no room".to_owned()))
                } else {
                    Ok(self.agents[agent].db.apply(&changes)?)
                };
                let delay = Duration::from_millis(self.random.below(5) + 1);
                let at = self.agents[agent].last_answer.max(now + delay);
                self.agents[agent].last_answer = at;
                self.at(at, Event::Applied { agent, life, token, result });
                self.after(40, Event::SaveTotals { agent, life });
            }
            Event::SaveTotals { agent, life } if self.agents[agent].life == life => {
                self.agents[agent].db.save_totals();
            }
            Event::Applied { agent, life, token, result } if self.agents[agent].life == life => {
                if let Some(machine) = &mut self.agents[agent].machine {
                    machine.applied(now, token, result, random);
                }
            }
            Event::Read { agent, life, effect } if self.agents[agent].life == life => {
                let Agent { db, machine: Some(machine), .. } = &mut self.agents[agent] else {
                    return Ok(());
                };
                match effect {
                    EdgeEffect::ReadChanges { after, limit } => {
                        machine.changes_read(now, db.changes(after, limit));
                    }
                    EdgeEffect::ReadBuckets => machine.buckets_read(&db.buckets()),
                    EdgeEffect::ReadInventory { buckets, cursor, limit } => {
                        machine.inventory_read(now, db.inventory(buckets, cursor, limit));
                    }
                    _ => {}
                }
            }
            Event::Loaded { life, uids } if self.cloud_life == life => {
                let bodies = self.cloud_db.load(&uids);
                if let Some(cloud) = &mut self.cloud {
                    cloud.loaded(now, bodies);
                }
            }
            Event::Record { life, batch } if self.cloud_life == life => {
                let stored = !self.random.percent(self.chaos.crash / 2);
                if stored {
                    self.cloud_db.record(&batch);
                    self.after(5, Event::Recorded { life, token: batch.token });
                } else if let Some(cloud) = &mut self.cloud {
                    cloud.recorded(now, batch.token, false, random);
                }
            }
            Event::Recorded { life, token } if self.cloud_life == life => {
                if let Some(cloud) = &mut self.cloud {
                    cloud.recorded(now, token, true, random);
                }
            }
            Event::Desire { life, uid } if self.cloud_life == life => {
                let desired = self.cloud_db.desired(&uid);
                if let Some(cloud) = &mut self.cloud {
                    cloud.desire(now, &uid, desired);
                }
            }
            Event::Wake => {
                self.next_wake = None;
                for agent in &mut self.agents {
                    if let Some(machine) = &mut agent.machine
                        && machine.deadline().is_some_and(|at| at <= now)
                    {
                        machine.tick(now, random);
                    }
                }
                if let Some(cloud) = &mut self.cloud
                    && cloud.deadline().is_some_and(|at| at <= now)
                {
                    cloud.tick(now);
                }
            }
            _ => {} // for a life that has ended
        }
        Ok(())
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

    pub(super) fn run_to_convergence(&mut self) -> Result<(), String> {
        self.chaos = Chaos::none();
        self.say(|| "--- the link heals".into());
        if self.cloud.is_none() {
            self.start_cloud();
        }
        self.stop_agent(1);
        if self.agents[0].machine.is_none() {
            self.start_agent(0);
        }
        if self.link.is_none() {
            self.connect(0);
        }
        // An hour of virtual time covers every backoff there is.
        for _ in 0..60 {
            self.pass(Duration::from_secs(60))?;
            if let Some(cloud) = &mut self.cloud {
                cloud.confirm_deletions(self.now);
            }
            if self.converged().is_ok() {
                break;
            }
        }
        self.converged()?;
        self.agents[0].db.check_totals()
    }

    /// G6: the edge holds what it is to hold, and is recorded to do so.
    fn converged(&self) -> Result<(), String> {
        let wanted = self.cloud_db.acceptable(MAX_OBJECT);
        let mut held = self.agents[0].db.held();
        // A refused version leaves the last good one in place.
        let refused: Vec<&Uid> =
            self.cloud.iter().flat_map(CloudMachine::refused).map(|(uid, _)| uid).collect();
        held.retain(|uid, _| wanted.contains_key(uid) || !refused.contains(&uid));
        if held != wanted {
            return Err(format!("G6: wanted {wanted:?}, held {held:?}"));
        }
        let Some(cloud) = &self.cloud else { return Err("no cloud".into()) };
        let Some(edge) = &self.agents[0].machine else { return Err("no agent".into()) };
        if cloud.phase() != CloudPhase::Live || cloud.pending() != 0 || !edge.in_sync() {
            return Err(format!("G6: {:?}, {} pending, edge {edge:?}", cloud.phase(), cloud.pending()));
        }
        let stored: BTreeMap<Uid, ResourceVersion> = self
            .cloud_db
            .ledger
            .records
            .iter()
            .map(|(uid, record)| (uid.clone(), record.version.clone()))
            .collect();
        if stored != self.agents[0].db.held() {
            return Err(format!("G4: recorded {stored:?} at the end"));
        }
        Ok(())
    }

    /// G5: after a reconnect exactly what changed is sent, once, in its latest version.
    pub(super) fn reconnect_with_changes(&mut self) -> Result<(), String> {
        self.say(|| "--- a quiet reconnect".into());
        self.cut();
        let before = self.agents[0].db.held();
        let names: Vec<String> = self.cloud_db.names().into_iter().filter(|n| !n.contains("..")).collect();
        let life = self.cloud_life;
        for name in names.iter().filter(|_| self.random.percent(20)).cloned().collect::<Vec<_>>() {
            let mut touched = Vec::new();
            match self.random.below(3) {
                0 => touched.extend(self.cloud_db.delete(&name)),
                1 => {
                    touched.extend(self.cloud_db.delete(&name));
                    touched.push(self.cloud_db.write(&name, 20));
                }
                _ => (0..5).for_each(|_| touched.push(self.cloud_db.write(&name, 20))),
            }
            for uid in touched {
                self.after(10, Event::Desire { life, uid });
            }
        }
        self.pass(Duration::from_secs(1))?;
        let wanted = self.cloud_db.acceptable(MAX_OBJECT);
        let changed = wanted.iter().filter(|(uid, version)| before.get(*uid) != Some(version)).count();
        let kept = |uid: &Uid| self.cloud_db.objects.contains_key(uid);
        let gone = before.keys().filter(|uid| !kept(uid)).count();
        let counters = |world: &Self| world.cloud.as_ref().map(CloudMachine::counters).unwrap_or_default();
        let start = counters(self);
        self.connect(0);
        // Five seconds suffice, unless a refused object happens to be tried again just then.
        self.pass(Duration::from_secs(5))?;
        if self.converged().is_err() {
            self.pass(Duration::from_secs(1))?;
        }
        self.converged()?;
        let end = counters(self);
        let retries = end.rejected - start.rejected;
        let sent = (end.sent - start.sent - retries, end.removals_sent - start.removals_sent);
        if sent != (changed as u64, gone as u64) {
            return Err(format!(
                "G5: {changed} changed and {gone} gone, but (puts, removals) sent: {sent:?}"
            ));
        }
        Ok(())
    }
}
