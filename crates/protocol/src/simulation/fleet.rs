//! Many nodes of one cloud: a world for each, in one time and over one store. Some are slow, some
//! send false claims, some are two machines with one name. Whatever those do, the others receive
//! their objects at the same cost as if they were alone.

mod hostile;

use std::cell::Cell;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::Duration;

use crate::cloud::Witnesses;
use crate::fault::Fault;
use crate::timing::Now;
use crate::upload::Lane;

use super::model::CloudDb;
use super::seeds::Seeds;
use super::timeline::{Random, Simulated};
use super::world::{Line, Setting, Shared, Sizes, World};
use hostile::Hostile;

const SEEDS: Seeds =
    Seeds { run, count: 24, package: env!("CARGO_PKG_NAME"), one: "simulation::fleet::one_seed" };

/// The most bytes on a node's line, in percent of a single node's over a fast one.
const MAX_PERCENT: usize = 110;
/// The bytes of a reconnect without changes, including the name of a new incarnation.
const MAX_RETURN: usize = 500;
/// The inputs of a node's machine in the cloud, per frame sent or received.
const MAX_INPUTS: usize = 3;
/// The cloud's entries in memory and records for a hostile node, which may claim to hold anything.
const MAX_LIES: usize = 3000;
/// The interval at which the twins swap.
const TWINS: Duration = Duration::from_secs(3);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Good,
    /// Connected over a line of 10 KB/s.
    Slow,
    /// Two machines with copies of one database, which alternate.
    Twins,
    /// Sends arbitrary well-formed frames.
    Hostile,
}

/// The cost of a node since the last query.
#[derive(Clone, Copy, Debug)]
struct Cost {
    bytes: usize,
    frames: usize,
    inputs: usize,
    reads: usize,
}

struct Fleet {
    nodes: Vec<(Kind, World)>,
    /// The hostile nodes by index.
    hostile: BTreeMap<usize, Hostile>,
    /// The random source of changes in the cloud: the same for each number of nodes.
    script: Random,
    now: Now,
    /// The nodes that claim a rollback of the store, and how often each has.
    witnesses: Witnesses,
    claims: BTreeMap<usize, usize>,
}

impl Fleet {
    fn new(seed: u64, kinds: &[Kind], trace: bool) -> Self {
        let db = CloudDb::new(&mut Random(seed));
        let busy = Rc::new(Cell::new(Now::ZERO));
        let world = |(n, kind): (u64, Kind)| {
            let mut random = Random(seed ^ n << 32);
            let is_external = random.percent(50);
            let line =
                if kind == Kind::Slow { Line::slow(is_external) } else { Line { is_external, ..Line::FAST } };
            let setting = Setting { line, sizes: Sizes::Default, agrees: false, ..Setting::QUIET };
            let shared = Shared { db: db.clone(), busy: busy.clone() };
            let mut world = World::over(Some(shared), random.next(), setting, trace);
            if kind == Kind::Hostile {
                world.allow_lies(1);
            }
            (kind, world)
        };
        let hostile = kinds.iter().enumerate().filter(|(_, kind)| **kind == Kind::Hostile);
        Self {
            nodes: (0..).zip(kinds.iter().copied()).map(world).collect(),
            hostile: hostile.map(|(n, _)| (n, Hostile::new(seed ^ n as u64))).collect(),
            script: Random(seed),
            now: Now::ZERO,
            witnesses: Witnesses::default(),
            claims: BTreeMap::new(),
        }
    }

    /// Returns the worlds of the nodes that must receive their objects.
    fn honest(&self) -> impl Iterator<Item = (Kind, &World)> {
        self.nodes.iter().filter(|(kind, _)| *kind != Kind::Hostile).map(|(kind, world)| (*kind, world))
    }

    /// Advances time for all worlds, event by event.
    fn pass(&mut self, time: Duration) -> Result<(), String> {
        let end = self.now + time;
        self.nodes.iter_mut().for_each(|(_, world)| world.drive());
        loop {
            let next = |(n, (_, world)): (usize, &mut (Kind, World))| Some((world.time().next_at()?, n));
            let next = self.nodes.iter_mut().enumerate().filter_map(next).min();
            let Some((_, n)) = next.filter(|(at, _)| *at <= end) else { break };
            let (kind, world) = &mut self.nodes[n];
            world.step().map_err(|why| format!("node {n} ({kind:?}): {why}"))?;
            self.hear_claims(n)?;
        }
        self.now = end;
        self.nodes.iter_mut().for_each(|(_, world)| world.time().now = end);
        Ok(())
    }

    /// Handles claims of a rollback of the store. If enough nodes agree, all receive another
    /// incarnation: it belongs to the store. The claim of one node affects only that node.
    fn hear_claims(&mut self, of: usize) -> Result<(), String> {
        let (nodes, claims) = (self.nodes.len(), self.nodes[of].1.renewals());
        if self.claims.insert(of, claims).unwrap_or_default() == claims
            || !self.witnesses.hear(&of.to_string(), nodes)
        {
            return Ok(());
        }
        if self.witnesses.count() == 1 {
            return Err(format!("node {of} alone has begun a new incarnation for {nodes}"));
        }
        self.witnesses.clear();
        self.nodes[of].1.begin_incarnation();
        let db = self.nodes[of].1.cloud_db();
        let others = self.nodes.iter_mut().enumerate().filter(|(n, _)| *n != of);
        others.for_each(|(_, (_, world))| world.follow_incarnation(&db));
        Ok(())
    }

    fn connect_all(&mut self) {
        for (_, world) in self.nodes.iter_mut().filter(|(kind, _)| *kind != Kind::Hostile) {
            world.connect(0);
        }
    }

    /// Writes or deletes an object that is desired on all nodes.
    fn change(&mut self, name: u64, size: usize) {
        let (name, is_gone) = (format!("object-{name:03}"), self.script.percent(10));
        for (_, world) in &mut self.nodes {
            if is_gone {
                world.delete(&name);
            } else {
                world.write(&name, size);
            }
        }
    }

    /// Lets the hostile nodes send some frames.
    fn talk(&mut self) {
        for (n, hostile) in &mut self.hostile {
            hostile.talk(&mut self.nodes[*n].1);
        }
    }

    /// Runs a period in which some objects change, twins swap, and the hostile node sends many
    /// frames.
    fn work(&mut self, time: Duration) -> Result<(), String> {
        let (end, step) = (self.now + time, Duration::from_millis(100));
        while self.now < end {
            if self.script.percent(15) {
                let (name, size) = (self.script.below(80), 300 + self.script.below(1500) as usize);
                self.change(name, size);
            }
            let turn = usize::from(self.now.as_millis() / TWINS.as_millis() % 2 == 1);
            let is_turn = self.now.as_millis().is_multiple_of(TWINS.as_millis());
            self.talk();
            for (kind, world) in &mut self.nodes {
                match kind {
                    Kind::Twins if is_turn => world.connect(turn),
                    Kind::Good if is_turn => world.post(0, Lane::Events, self.now.as_secs()),
                    _ => {}
                }
            }
            self.pass(step)?;
        }
        Ok(())
    }

    /// Checks that all nodes but the hostile one converge soon, although that one continues.
    fn converge(&mut self, most: Duration) -> Result<(), String> {
        for (_, world) in self.nodes.iter_mut().filter(|(kind, _)| *kind == Kind::Twins) {
            world.connect(0);
        }
        let end = self.now + most;
        loop {
            self.talk();
            self.pass(Duration::from_millis(100))?;
            let late =
                |(kind, world): (Kind, &World)| Some(format!("{kind:?}: {}", world.converged().err()?));
            match self.honest().find_map(late) {
                Some(why) if self.now >= end => return Err(why.chars().take(400).collect()),
                Some(_) => {}
                None => return Ok(()),
            }
        }
    }

    fn costs(&self) -> Vec<Cost> {
        let cost = |(_, world): (Kind, &World)| {
            let (up, down) = world.traffic();
            let (frames, inputs, (reads, _)) = (world.frames_sent(), world.inputs(), world.remembered());
            Cost { bytes: up.bytes + down.bytes, frames, inputs, reads }
        };
        self.honest().map(cost).collect()
    }

    /// Checks that nothing is kept of a node in sync, and a bounded amount of a hostile one.
    fn check_memory(&self) -> Result<(), String> {
        for (kind, world) in &self.nodes {
            let (entries, records) = world.kept();
            let most = if *kind == Kind::Hostile { MAX_LIES } else { 0 };
            if entries > most || (*kind == Kind::Hostile && records > most) {
                return Err(format!("memory: {entries} entries and {records} records of a node ({kind:?})"));
            }
        }
        Ok(())
    }

    /// Runs the scenario: all nodes are new, then much happens, then all of them reconnect.
    fn play(&mut self) -> Result<Vec<Cost>, String> {
        for name in 0..60 {
            let size = 300 + self.script.below(1500) as usize;
            self.change(name, size);
        }
        self.connect_all();
        self.pass(Duration::from_millis(100))?;
        for (_, world) in self.nodes.iter_mut().filter(|(kind, _)| *kind == Kind::Twins) {
            world.copy_agent(0, 1);
        }
        self.work(Duration::from_secs(30))?;
        self.converge(Duration::from_secs(60))?;
        self.check_memory()?;
        let costs = self.costs();
        self.nodes.iter_mut().for_each(|(_, world)| world.forget_traffic());
        self.connect_all();
        self.converge(Duration::from_secs(5))?;
        self.check_memory()?;
        for ((kind, _), (before, after)) in self.honest().zip(costs.iter().zip(self.costs())) {
            if after.bytes > MAX_RETURN || after.reads > before.reads {
                return Err(format!(
                    "cost: a return with nothing new ({kind:?}): {before:?}, then {after:?}"
                ));
            }
        }
        Ok(costs)
    }
}

/// Returns the nodes of a seed: 20 to 50, with one slow, one twin, and one hostile; or fewer, with
/// three hostile.
fn kinds(seed: u64) -> Vec<Kind> {
    let mut random = Random(seed ^ 0xf1ee7);
    let (hostile, others) = if seed.is_multiple_of(2) { (1, 31) } else { (3, 10) };
    let mut kinds = vec![Kind::Good; 17 + random.below(others) as usize];
    let hostile = std::iter::repeat_n(Kind::Hostile, hostile);
    for kind in [Kind::Slow, Kind::Twins].into_iter().chain(hostile) {
        kinds.insert(random.below(kinds.len() as u64) as usize, kind);
    }
    kinds
}

fn run(seed: u64, trace: bool) -> Result<(), String> {
    let alone = Fleet::new(seed, &[Kind::Good], trace).play()?[0];
    let kinds = kinds(seed);
    let mut fleet = Fleet::new(seed, &kinds, trace);
    let costs = fleet.play()?;
    for ((kind, _), cost) in fleet.honest().zip(costs) {
        let context = || format!("({kind:?}, one of {}): {cost:?}, alone {alone:?}", kinds.len());
        // The needs of twins are unbounded.
        if kind != Kind::Twins && cost.bytes * 100 > alone.bytes * MAX_PERCENT {
            return Err(format!("cost: bytes {}", context()));
        }
        if cost.inputs > cost.frames * MAX_INPUTS
            || (kind == Kind::Good && cost.inputs * 100 > alone.inputs * MAX_PERCENT)
        {
            return Err(format!("cost: inputs {}", context()));
        }
    }
    Ok(())
}

#[test]
fn hostile_nodes_do_not_affect_the_others() {
    SEEDS.hold();
}

#[test]
fn one_seed() {
    SEEDS.one_holds();
}

#[test]
fn sides_that_do_not_wait_for_the_line_are_found() {
    SEEDS.find(Fault::LineUnknown);
}

#[test]
fn claims_that_begin_one_incarnation_after_the_other_are_found() {
    SEEDS.find(Fault::ClaimsAreNews);
}

#[test]
fn a_fleet_that_believes_one_node_is_found() {
    SEEDS.find(Fault::OneIsEnough);
}

#[test]
fn a_cloud_with_memory_per_synced_object_is_found() {
    SEEDS.find(Fault::LedgerOfAll);
}

#[test]
fn a_cloud_that_looks_at_nodes_for_nothing_is_found() {
    SEEDS.find(Fault::Restless);
}
