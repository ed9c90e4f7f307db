//! Events of a run: changes of the source and of the placement, cuts, crashes, lost and
//! restored databases, reloads, removals; then everything heals, and all must converge.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::oneshot;

use super::NODES;
use super::device::Device;
use super::history::Thing;
use super::store::Database;
use super::world::World;
use crate::admin::AdminRequest;
use crate::source::{Change, SourceError, key_of};
use edgesync_object::{NodeName, ResourceVersion};
use edgesync_protocol::change::Uid;
use edgesync_protocol::digest::Epoch;
use edgesync_protocol::edge::EdgeMachine;
use edgesync_protocol::frame::{Item, Report, Up};
use edgesync_protocol::simulation::model::object_ref;
use edgesync_protocol::simulation::timeline::{Random, Simulated};
use edgesync_protocol::timing::Now;
use edgesync_protocol::upload::Lane;

/// Steps of the chaos, and names of objects.
const STEPS: u64 = 60;
const NAMES: u64 = 14;

/// The probabilities of faults, in percent per frame, request or step, and delays in milliseconds.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Chaos {
    pub(super) drop: u64,
    pub(super) duplicate: u64,
    pub(super) late: u64,
    pub(super) half_open: u64,
    pub(super) fail: u64,
    /// The longest delay of a watch, and of a slow request.
    pub(super) lag: u64,
    pub(super) slow: u64,
    cut: u64,
    crash: u64,
    stop: u64,
    lose_database: u64,
    restore: u64,
    source_gone: u64,
    broker_gone: u64,
    lose_changes: u64,
    reload: u64,
    remove: u64,
    lie: u64,
}

impl Chaos {
    /// Returns those of a seed; `calm` percent of them are zero.
    pub(super) fn for_seed(random: &mut Random, calm: u64) -> Self {
        let mut up_to = |max: u64| if random.percent(calm) { 0 } else { random.below(max + 1) };
        Self {
            drop: up_to(10),
            duplicate: up_to(10),
            late: up_to(10),
            half_open: up_to(30),
            fail: up_to(8),
            lag: up_to(3000) + 5,
            slow: up_to(3000) + 10,
            cut: up_to(12),
            crash: up_to(6),
            stop: up_to(5),
            lose_database: up_to(5),
            restore: up_to(4),
            source_gone: up_to(3),
            broker_gone: up_to(4),
            lose_changes: up_to(10),
            reload: up_to(10),
            remove: up_to(12),
            lie: up_to(20),
        }
    }
}

impl Chaos {
    /// Lets no node claim a version that it cannot have.
    pub(super) fn without_lies(&mut self) {
        self.lie = 0;
    }
}

impl World {
    fn chance(&mut self, percent: u64) -> bool {
        self.time.random.percent(percent)
    }

    fn any(&mut self, count: usize) -> usize {
        self.time.random.below(count as u64) as usize
    }

    fn is_running(&self, replica: usize) -> bool {
        self.replicas[replica].fleet.is_some()
    }

    // --- the source

    /// Writes an object of a name: a new one, another version, or another placement.
    pub(super) fn write(&mut self, name: &str) {
        let content = self.time.random.next();
        let nodes: BTreeSet<usize> = (0..self.any(3)).map(|_| self.any(NODES as usize)).collect();
        let nodes = nodes.into_iter().map(|n| self.devices[n].name.clone()).collect();
        let tier = self.chance(60).then(|| self.time.random.below(2));
        let size = if self.chance(3) { 20_000 } else { 20 };
        let keeps = self.chance(60);
        self.model.state().write(|objects, version| {
            let known = objects.things.iter().find(|(_, thing)| thing.name == name);
            let known = known.map(|(uid, thing)| (uid.clone(), thing.clone()));
            let (nodes, tier) = match &known {
                Some((_, thing)) if keeps => (thing.nodes.clone(), thing.tier),
                _ => (nodes, tier),
            };
            let uid = known.map_or_else(|| Uid::from(format!("uid-{content:016x}")), |(uid, _)| uid);
            let thing = Thing { version, content, name: name.to_owned(), nodes, tier, size };
            objects.things.insert(uid, Arc::new(thing));
        });
        let state = self.model.state();
        let written = state.db.objects.things.iter().find(|(_, thing)| thing.name == name);
        self.time.say(|| format!("the source writes {written:?}"));
    }

    fn delete(&mut self, name: &str) {
        self.time.say(|| format!("the source deletes {name}"));
        self.model.state().write(|objects, _| objects.things.retain(|_, thing| thing.name != name));
    }

    fn change_something(&mut self) {
        if !self.is_shared && !self.is_running(0) {
            return;
        }
        let name = format!("object-{}", self.time.random.below(NAMES));
        match self.time.random.below(20) {
            0..=2 => self.delete(&name),
            3 | 4 => {
                self.delete(&name);
                self.write(&name);
            }
            5 => {
                // A Node gets a label.
                let node = self.any(NODES as usize);
                let name = self.devices[node].name.clone();
                let tier = self.time.random.below(2);
                self.time.say(|| format!("the Node {name} has tier {tier}"));
                self.model.state().set_tier(&name, tier);
            }
            _ => self.write(&name),
        }
    }

    /// Replaces the source by an older copy, or by an empty database.
    fn restore(&mut self) {
        let drops_statuses = self.rolls && self.chance(40);
        self.time.say(|| format!("the source is restored from a copy, without statuses: {drops_statuses}"));
        if self.is_shared {
            let mut state = self.model.state();
            let ago = 1 + state.random.below(12) as usize;
            let from = state.history.restores.last().copied().unwrap_or_default();
            let mut objects =
                state.history.states[state.history.last().saturating_sub(ago).max(from)].clone();
            if drops_statuses {
                Self::drop_statuses(Arc::make_mut(&mut objects));
            }
            let copy = Database { objects, ..state.db.clone() };
            state.restore(copy);
        } else {
            self.stop(0);
            let configured = self.model.state().configured.clone();
            let mut copy = match self.chance(15) {
                true => Database::new(&mut self.time.random, &configured),
                false => self.backup.clone(),
            };
            if drops_statuses {
                Self::drop_statuses(Arc::make_mut(&mut copy.objects));
            }
            self.model.state().restore(copy);
            self.start(0);
        }
        self.restores += 1;
    }

    // --- operators

    /// Passes the request of an operator to one of the replicas.
    fn administer(&mut self, request: AdminRequest) {
        let replica = if self.is_shared { self.any(self.replicas.len()) } else { 0 };
        self.with_fleet(replica, |fleet| fleet.administer(request));
    }

    fn reload(&mut self) {
        let frame_objects = [1, 3, 128][self.any(3)];
        let window_objects = [2, 12, 1024][self.any(3)];
        (self.config.sync.frame_objects, self.config.sync.window_objects) = (frame_objects, window_objects);
        let config = self.config.clone();
        for replica in 0..self.replicas.len() {
            self.with_fleet(replica, |fleet| fleet.configure(&config));
        }
        let (node, lease) = (self.any(NODES as usize), 5 + self.time.random.below(20));
        let config = self.devices[node].config(lease);
        if let Some(machine) = &mut self.devices[node].machine {
            machine.set_config(config);
        }
    }

    /// Removes a node or lets it return, by an operator or by its Node.
    fn remove_or_admit(&mut self) {
        let n = self.any(NODES as usize);
        let name = self.devices[n].name.clone();
        let is_removed = self.model.state().db.objects.removed.contains_key(&name);
        if self.is_shared && self.chance(30) {
            let returns = self.chance(50);
            return self.command(n, is_removed, returns);
        }
        self.time.say(|| format!("node {n} is removed, or admitted: {is_removed}"));
        match (is_removed, self.chance(60)) {
            (false, true) => {
                self.model.state().removable.insert(name.clone());
                self.administer(AdminRequest::Remove(name, oneshot::channel().0));
            }
            (true, true) => self.admit(name),
            (false, false) if self.chance(50) => {
                self.time.say(|| format!("the Node of node {n} is replaced"));
                self.model.state().replace_node(&name);
            }
            (false, false) => {
                let mut state = self.model.state();
                if let Some(born) = state.db.objects.nodes.get(&name).map(|node| node.born) {
                    state.deleted.insert(name.clone(), born);
                }
                state.write(|objects, _| {
                    objects.nodes.remove(&name);
                });
            }
            (true, false) => {
                let mut state = self.model.state();
                state.db.created.insert(name.clone());
                state.register(&name, false);
            }
        }
    }

    /// Lets an operator remove or readmit a node in the cluster itself, without a replica, or
    /// both. A freed name may be taken by another device at once.
    pub(super) fn command(&mut self, n: usize, is_removed: bool, returns: bool) {
        let name = self.devices[n].name.clone();
        let (returns, is_other) = (is_removed || returns, self.chance(50));
        let what = format!("a command removes ({}) and readmits ({returns}) node {n}", !is_removed);
        self.time.say(|| what);
        {
            let mut state = self.model.state();
            if !is_removed {
                let deleted = state.db.objects.nodes.get(&name).map(|node| (node.born, node.version));
                state.remove(&name, deleted);
                state.write(|objects, _| {
                    objects.nodes.remove(&name);
                });
            }
            if returns {
                state.readmit(&name);
            }
        }
        if returns && is_other {
            self.forget_messages(n);
            self.cut(n);
            let (now, random) = (self.time.now, self.time.random.next());
            self.devices[n].lose_database(now, random);
        }
    }

    pub(super) fn admit(&mut self, name: NodeName) {
        self.model.state().db.admissible.insert(name.clone());
        self.administer(AdminRequest::Admit(name, oneshot::channel().0));
    }

    /// Lets a node name a version that the store has not issued since its last restore.
    fn lie(&mut self) {
        let known = self.replicas[0].fleet.as_ref().map_or(0, |fleet| fleet.reconciler.nodes.len());
        let lost = self.model.state().lost_version();
        let device = &self.devices[0];
        let session = device.machine.as_ref().and_then(EdgeMachine::session).map(str::to_owned);
        let (Some(version), Some(session), Some(link)) = (lost, session, device.link) else { return };
        if self.is_shared || known < 4 {
            return;
        }
        let (at, object) = (device.db.totals().revision, Some(object_ref("lie")));
        let objects = vec![Item { uid: "uid-lie".into(), resource_version: version.into(), object }];
        self.time.say(|| format!("node 0 claims version {version}"));
        self.send_up(
            0,
            link,
            &Up::Report(Report { session, from: at, to: at, objects, ..Report::default() }),
        );
    }

    // --- the run

    fn strike(&mut self) {
        let chaos = self.chaos;
        let (node, replica) = (self.any(NODES as usize), self.any(self.replicas.len()));
        let (now, random) = (self.time.now, self.time.random.next());
        if self.chance(10) && self.is_running(0) {
            self.backup = self.model.state().db.clone();
        }
        if self.chance(10) {
            self.devices[node].backup = (self.devices[node].db.clone(), self.devices[node].outbox.clone());
        }
        if self.chance(chaos.cut) {
            self.cut(node);
        }
        if self.chance(chaos.crash) {
            self.cut(node);
            self.devices[node].machine = None;
        }
        if self.chance(chaos.lose_database) {
            self.forget_messages(node);
            if self.chance(50) {
                self.devices[node].lose_database(now, random);
            } else {
                self.cut(node);
                self.devices[node].roll_back();
            }
            if self.devices[node].machine.is_none() {
                self.cut(node);
            }
            self.time.say(|| format!("node {node} has another database"));
        }
        if self.chance(chaos.stop) && self.is_running(replica) {
            self.stop(replica);
        }
        if self.chance(chaos.restore) {
            self.restore();
        }
        if self.chance(chaos.source_gone) {
            self.source_gone_until = now + self.time.random.delay(40_000);
            let error = SourceError::Unread("gone".into());
            self.model.state().feeds[replica].queue.push_back(Change::Failed(error));
        }
        if self.chance(chaos.broker_gone) && self.is_external && self.is_running(replica) {
            if self.chance(50) {
                self.lose_broker(replica);
            } else {
                self.replicas[replica].stalled_until = now + self.time.random.delay(5_000);
            }
        }
        if self.chance(chaos.lose_changes) && self.is_running(replica) {
            self.model.state().lose_changes(replica);
            self.with_fleet(replica, |_| {});
        }
        if self.chance(chaos.reload) {
            self.reload();
        }
        if self.chance(chaos.remove) && (self.is_shared || self.is_running(0)) {
            self.remove_or_admit();
        }
        if self.chance(chaos.lie) {
            self.lie();
        }
        if self.chance(5) {
            self.meter(node, random.is_multiple_of(2));
        }
        self.post(node);
        if self.rolls {
            self.disturb_rollouts();
        }
        self.return_some();
    }

    fn meter(&mut self, node: usize, is_metered: bool) {
        let (now, device) = (self.time.now, &mut self.devices[node]);
        device.is_metered = is_metered;
        if let Some(machine) = &mut device.machine {
            machine.set_frugal(now, is_metered);
        }
    }

    fn post(&mut self, n: usize) {
        self.made += 1;
        let (now, which, made) = (self.time.now, self.any(8), self.made);
        let device = &mut self.devices[n];
        match device.db.held().into_iter().nth(which) {
            _ if device.machine.is_none() => {}
            Some((uid, version)) => {
                let name = self.model.state().history.any(&uid).map(|thing| thing.name.clone());
                device.post_effect(now, made, (uid, version), &name.unwrap_or_default());
            }
            None => device.post_event(now, [Lane::Events, Lane::Bulk][which % 2], made),
        }
    }

    /// Starts and connects some of those that are not.
    fn return_some(&mut self) {
        for replica in 0..self.replicas.len() {
            if !self.is_running(replica) && self.chance(40) {
                self.start(replica);
            }
        }
        for node in 0..self.devices.len() {
            if self.devices[node].machine.is_none() && self.chance(50) {
                self.devices[node].start(self.time.now);
            }
            let replica = self.any(self.replicas.len());
            let moves = self.is_shared && self.chance(10);
            if (self.devices[node].link.is_none() && self.chance(40)) || moves {
                self.connect(node, replica);
            }
        }
    }

    pub(super) fn run_chaos(&mut self) -> Result<(), String> {
        for _ in 0..STEPS {
            for _ in 0..self.any(4) {
                self.change_something();
            }
            self.strike();
            let most = [100, 100, 1000, 15_000][self.any(4)];
            let time = self.time.random.delay(most);
            self.pass(time)?;
            if !self.is_shared && self.model.state().renewals > self.restores {
                return Err("the store went back, it is said; it did not".into());
            }
        }
        Ok(())
    }

    /// Heals everything.
    fn heal(&mut self) {
        self.time.say(|| "--- everything heals".into());
        self.chaos = Chaos { lag: 5, slow: 10, ..Chaos::default() };
        self.source_gone_until = Now::ZERO;
        self.set_leader(0, false);
        for replica in 0..self.replicas.len() {
            self.replicas[replica].stalled_until = Now::ZERO;
            if !self.is_running(replica) {
                self.start(replica);
            }
        }
        for node in 0..self.devices.len() {
            if self.devices[node].machine.is_none() {
                self.devices[node].start(self.time.now);
            }
            self.meter(node, false);
        }
    }

    fn connect_all(&mut self) {
        for node in 0..self.devices.len() {
            let replica = self.any(self.replicas.len());
            if self.devices[node].link.is_none() {
                self.connect(node, replica);
            }
        }
    }

    pub(super) fn run_to_convergence(&mut self) -> Result<(), String> {
        self.heal();
        self.connect_all();
        self.pass(Duration::from_secs(60))?;
        self.check_removed()?;
        let mut result = Ok(());
        for _ in 0..240 {
            for n in 0..self.devices.len() {
                let name = self.devices[n].name.clone();
                if self.model.state().db.objects.removed.contains_key(&name) {
                    self.admit(name.clone());
                }
            }
            self.confirm_deletions();
            if self.rolls {
                self.end_rollouts();
            }
            self.connect_all();
            self.pass(Duration::from_secs(30))?;
            result = self.converged().and_then(|()| self.rollouts_ended());
            if result.is_ok() {
                break;
            }
        }
        result
    }

    /// Confirms all held-back removals.
    fn confirm_deletions(&mut self) {
        for n in 0..self.devices.len() {
            let name = self.devices[n].name.clone();
            self.devices[n].may_vanish = usize::MAX;
            for replica in 0..self.replicas.len() {
                let request = AdminRequest::ConfirmDeletions(name.clone(), oneshot::channel().0);
                self.with_fleet(replica, |fleet| fleet.administer(request));
            }
        }
    }

    /// Checks that a database has no rows of a removed node, and that no replica serves one.
    pub(super) fn check_removed(&self) -> Result<(), String> {
        let state = self.model.state();
        for name in state.db.objects.removed.keys() {
            // A replica that stops between its last write for a node and its part of the removal
            // leaves some in a cluster.
            if !self.is_shared && state.db.rows.contains_key(name) {
                return Err(format!("removal: {name} has records although it is removed"));
            }
            let mut fleets = self.replicas.iter().filter_map(|replica| replica.fleet.as_ref());
            if fleets.any(|fleet| !fleet.removals.has(name) || fleet.reconciler.nodes.contains(name)) {
                return Err(format!("removal: {name} is served although it is removed"));
            }
        }
        Ok(())
    }

    /// Checks that each node holds exactly the desired objects, and that the cloud side knows it.
    fn converged(&self) -> Result<(), String> {
        for n in 0..self.devices.len() {
            self.node_converged(n).map_err(|why| format!("node {n}: {why}"))?;
        }
        Ok(())
    }

    fn node_converged(&self, n: usize) -> Result<(), String> {
        let (device, state) = (&self.devices[n], self.model.state());
        let (held, desired) = (device.db.held(), state.db.objects.desired(&device.name));
        if held != desired {
            return Err(format!("G6: desired {desired:?}, held {held:?}"));
        }
        let is_other = |uid: &&Uid| {
            let thing = state.db.objects.things.get(*uid).filter(|thing| held[*uid] == thing.version.into());
            thing.is_some_and(|thing| device.db.content(uid) != Some(thing.content))
        };
        if let Some(uid) = held.keys().find(is_other).filter(|_| !self.is_shared || self.restores == 0) {
            return Err(format!("G6: {uid} is held in its version, with another content"));
        }
        device.db.check_totals()?;
        let (confirmed, revision) = (device.db.confirmed, device.db.totals().revision);
        if confirmed != revision {
            return Err(format!("G1: its database has revision {confirmed} of {revision} as confirmed"));
        }
        let link = device.link.ok_or("not connected")?;
        let fleet = self.replicas[link.replica].fleet.as_ref().ok_or("no cloud side")?;
        let node = fleet.reconciler.nodes.named(&device.name).ok_or("unknown to the fleet")?;
        let edge = device.machine.as_ref().ok_or("no agent")?;
        if !node.machine.in_sync() || !edge.in_sync() || !device.outbox.rows.is_empty() {
            let (state, waiting) = (node.state_name(), device.outbox.rows.len());
            return Err(format!("G6: the fleet says {state}, {waiting} items wait, edge {edge:?}"));
        }
        if !state.db.objects.nodes.contains_key(&device.name) {
            return Err("it has no Node".into());
        }
        let on_node = fleet.reconciler.desired_on(&device.name);
        let recorded: BTreeMap<Uid, ResourceVersion> = match self.is_shared {
            true => node.machine.held_by_node(&on_node).map(|(uid, record)| (uid, record.version)).collect(),
            false => {
                let records = state.db.rows.get(&device.name).into_iter().flat_map(|rows| &rows.records);
                records.map(|(uid, record)| (uid.clone(), record.version.clone())).collect()
            }
        };
        if recorded != held {
            return Err(format!("G4: recorded {recorded:?}, held {held:?}"));
        }
        let epoch: Epoch = device.db.totals().epoch;
        for uid in
            device.reported.iter().filter(|(_, of)| **of != epoch && !held.is_empty()).map(|(uid, _)| uid)
        {
            if node.reported.effects.has(key_of(uid), 0).is_some() {
                return Err(format!("{uid} is in effect, as reported by a lost database"));
            }
        }
        Ok(())
    }

    /// Checks G5: after a reconnect exactly the changed objects are sent, once, and a change for a
    /// connected node causes no read of its records.
    pub(super) fn reconnect_with_changes(&mut self) -> Result<(), String> {
        self.time.say(|| "--- changes, then a reconnect".into());
        (0..self.devices.len()).for_each(|node| self.cut(node));
        for _ in 0..self.any(8) {
            self.change_something();
        }
        self.pass(Duration::from_secs(2))?;
        let expected: Vec<usize> = self
            .devices
            .iter()
            .map(|device| {
                let (desired, held) = (self.model.state().db.objects.desired(&device.name), device.db.held());
                desired.iter().filter(|(uid, version)| held.get(*uid) != Some(version)).count()
            })
            .collect();
        self.devices.iter_mut().for_each(|device| device.puts = 0);
        self.connect_all();
        self.pass(Duration::from_secs(10))?;
        self.confirm_deletions();
        self.pass(Duration::from_secs(10))?;
        self.converged()?;
        let sent: Vec<usize> = self.devices.iter().map(|device| device.puts).collect();
        if sent != expected {
            return Err(format!("G5: {expected:?} objects changed, {sent:?} were sent"));
        }
        // A restored Node without a report, or a recreated one, has been reported since.
        let is_reported = |device: &Device| {
            let state = self.model.state();
            state.db.objects.nodes.get(&device.name).is_some_and(|node| node.is_reported)
        };
        if let Some(device) = self.devices.iter().find(|device| !is_reported(device)) {
            return Err(format!("the Node of {} lacks its report", device.name));
        }
        let before = self.model.state().reads;
        for n in 0..NAMES {
            self.write(&format!("object-{n}"));
            self.pass(Duration::from_millis(500))?;
        }
        self.pass(Duration::from_secs(10))?;
        self.converged()?;
        match self.model.state().reads - before {
            0 => Ok(()),
            reads => Err(format!("cost: records were read {reads} times for nodes in sync")),
        }
    }
}
