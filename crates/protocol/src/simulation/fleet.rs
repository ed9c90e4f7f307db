//! Many nodes of one cloud: a world for each, all in one time and over one store. Some are slow, some lie, some are two
//! machines with one name. Whatever those do, the others get what they need, and cost no more than if they were alone.

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

/// Bytes that cross a node's line, in percent of what a node that is alone needs over a fast one.
const MAX_PERCENT: usize = 110;
/// Bytes of a return with nothing new, the name of a new incarnation among them.
const MAX_RETURN: usize = 450;
/// What the cloud's machine of a node is told, for each frame that it gets or sends.
const MAX_INPUTS: usize = 3;
/// What the cloud keeps of a node that lies, in entries of memory and in records: a node may claim to hold anything.
const MAX_LIES: usize = 3000;
/// How often the machine that has the name of twins changes.
const TWINS: Duration = Duration::from_secs(3);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Good,
    /// Over a line of 10 KB/s.
    Slow,
    /// Two machines with copies of one database, which take turns.
    Twins,
    /// Says whatever is well-formed.
    Hostile,
}

/// What a node has cost since somebody asked.
#[derive(Clone, Copy, Debug)]
struct Cost {
    bytes: usize,
    frames: usize,
    inputs: usize,
    reads: usize,
}

struct Fleet {
    nodes: Vec<(Kind, World)>,
    /// What those say that lie, by their place among the nodes.
    hostile: BTreeMap<usize, Hostile>,
    /// What somebody in the cloud does: the same for each number of nodes.
    script: Random,
    now: Now,
    /// Which nodes say that the store went back, and how often each has.
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

    /// The worlds of nodes that are to get what they need.
    fn honest(&self) -> impl Iterator<Item = (Kind, &World)> {
        self.nodes.iter().filter(|(kind, _)| *kind != Kind::Hostile).map(|(kind, world)| (*kind, world))
    }

    /// Lets time pass for all of them, event by event.
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

    /// A node may have said that the store went back. If enough of them agree, all get another incarnation: it belongs to the
    /// store. What one node says is its own affair.
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

    /// Somebody writes or deletes an object that all nodes are to hold.
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

    /// Those that lie say some things.
    fn talk(&mut self) {
        for (n, hostile) in &mut self.hostile {
            hostile.talk(&mut self.nodes[*n].1);
        }
    }

    /// A while in which some objects change, twins change places, and the hostile node says a lot.
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

    /// All nodes but the hostile one hold what they are to hold, soon, although that one goes on.
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

    /// Nothing is kept of a node in sync, and not everything of one that lies.
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

    /// First all nodes are new, then much happens, then all of them come back.
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

/// The nodes of a seed: 20 to 50, of which one is slow, one two machines, and one hostile; or fewer, of which three are.
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
        // What twins need is up to them.
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
fn whatever_some_nodes_do_the_others_get_what_they_need_and_cost_no_more() {
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
fn a_cloud_that_keeps_something_of_each_object_of_a_node_in_sync_is_found() {
    SEEDS.find(Fault::LedgerOfAll);
}

#[test]
fn a_cloud_that_looks_at_nodes_for_nothing_is_found() {
    SEEDS.find(Fault::Restless);
}
