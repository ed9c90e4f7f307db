//! Several replicas for one node: they share the desired state, each with its own ledger that is
//! not stored.
//!
//! The node reaches any of them. Old connections still carry frames; replicas crash, receive
//! changes late, or are separated for a while. The node never goes back, and receives nothing that
//! it held at its Hello. Some objects are temporarily unreadable, and the cluster is replaced by
//! older copies: no object, or only a few, are removed for that without a confirmation.
//!
//! `writers` has several nodes, and what replicas write for them.

mod cluster;
mod world;
mod writers;

use std::time::Duration;

use crate::fault::Fault;

use super::seeds::Seeds;
use super::timeline::{Random, Simulated};
use super::world::Sizes;
use cluster::GROUPS;
use world::{Chaos, World};

const SEEDS: Seeds =
    Seeds { run, count: 300, package: env!("CARGO_PKG_NAME"), one: "simulation::replicas::one_seed" };

const STEPS: u64 = 100;
/// The objects of the run; a group of them is more than the mass-delete guard permits in doubt.
const NAMES: u64 = 60;
/// The approximate number of restores per run: copies of copies take time.
const MAX_LIVES: u64 = 4;
/// The number of changes that a replica can undo.
const REMEMBERED: usize = 64;
/// The bytes of a reconnect without changes.
const MAX_RETURN: usize = 400;

impl World {
    /// Changes something; `large_percent` percent of the objects are larger than a frame.
    fn change_something(&mut self, large_percent: u64) {
        let (now, name) = (self.now(), self.random().below(NAMES));
        match self.random().below(20) {
            0 => {
                let group = self.random().below(GROUPS);
                self.cluster.turn(now, group);
            }
            1..=3 => self.cluster.delete(now, name),
            4 | 5 => {
                self.cluster.delete(now, name);
                self.cluster.write(now, name, 20);
            }
            _ => {
                let size = if self.random().percent(large_percent) { 20_000 } else { 20 };
                self.cluster.write(now, name, size);
            }
        }
        self.tell_all();
    }

    /// Writes a small object.
    fn write(&mut self, name: u64) {
        let now = self.now();
        self.cluster.write(now, name, 20);
        self.tell_all();
    }

    fn any_replica(&mut self) -> usize {
        let count = self.count() as u64;
        self.random().below(count) as usize
    }

    fn strike(&mut self) {
        let Chaos { moves, half_open, crash, kill, lose_database, apart, restore, hide, .. } = self.chaos;
        let replica = self.any_replica();
        if self.random().percent(half_open) {
            self.half_open();
        }
        if self.random().percent(crash) {
            self.crash_node();
        }
        if self.random().percent(10) {
            self.back_up();
        }
        if self.random().percent(lose_database) {
            self.lose_database();
        }
        if self.random().percent(kill) {
            self.kill_replica(replica);
        }
        if self.random().percent(apart) {
            let time = Duration::from_millis(self.random().below(60_000));
            self.part(replica, time);
        }
        if self.random().percent(restore) && self.cluster.life < MAX_LIVES {
            self.restore_cluster();
        }
        if self.random().percent(hide) {
            let hides = !self.cluster.hides;
            self.hide(hides);
        }
        if self.random().percent(2) {
            self.fall_behind(replica);
        }
        let moves = if self.is_connected() { moves } else { 60 };
        if self.random().percent(moves) {
            self.connect(replica);
        } else if !self.is_running(replica) && self.random().percent(30) {
            self.start_replica(replica);
        }
    }

    fn run_chaos(&mut self) -> Result<(), String> {
        for _ in 0..STEPS {
            for _ in 0..self.random().below(5) {
                self.change_something(2);
            }
            self.strike();
            let most = [100, 100, 1000, 20_000][self.random().below(4) as usize];
            let time = Duration::from_millis(self.random().below(most) + 1);
            self.pass(time)?;
        }
        Ok(())
    }

    fn run_to_convergence(&mut self) -> Result<(), String> {
        self.say(|| "--- everything heals".into());
        self.heal();
        for _ in 0..120 {
            if !self.is_connected() {
                let replica = self.any_replica();
                self.connect(replica);
            }
            self.wait(Duration::from_secs(60))?;
            if self.converged().is_ok() {
                break;
            }
            self.confirm_deletions();
        }
        self.converged()?;
        // Late frames arrive.
        self.pass(Duration::from_secs(90))?;
        self.cluster.hid = false;
        if !self.is_connected() {
            self.connect(0);
        }
        self.settle(Duration::from_secs(60))
    }

    /// Moves the node from replica to replica, some of them just started: nothing is sent, and
    /// nothing is listed.
    fn wander(&mut self) -> Result<(), String> {
        self.say(|| "--- from replica to replica".into());
        for replica in (0..self.count()).chain(0..self.count()) {
            self.cut();
            if self.random().percent(50) {
                self.kill_replica(replica);
                self.start_replica(replica);
            }
            // Late frames arrive.
            self.pass(Duration::from_secs(1))?;
            self.return_in_sync(replica)?;
        }
        Ok(())
    }

    /// Connects the node, which is in sync, and checks the cost of that.
    fn return_in_sync(&mut self, replica: usize) -> Result<(), String> {
        (self.written, self.traffic) = ((0, 0), (0, 0));
        self.connect(replica);
        self.settle(Duration::from_secs(3))?;
        if self.written != (0, 0) || self.traffic.0 != 2 || self.traffic.1 > MAX_RETURN {
            return Err(format!("cost: a return in sync: {:?} frames and bytes", self.traffic));
        }
        Ok(())
    }

    /// Checks G5: at another replica exactly the objects changed meanwhile are sent, once.
    fn move_with_changes(&mut self, to: usize) -> Result<(), String> {
        self.say(|| "--- changes, then another replica".into());
        let known = self.cluster.view.changes;
        self.cut();
        for _ in 0..self.random().below(30) {
            self.change_something(0);
        }
        let now = self.now();
        self.cluster.place_all(now);
        self.tell_all();
        self.pass(Duration::from_secs(1))?;
        let expected = self.differences();
        (self.written, self.inventories) = ((0, 0), 0);
        self.connect(to);
        self.settle(Duration::from_secs(10))?;
        if self.written != expected {
            return Err(format!(
                "G5: {expected:?} changed and gone, (puts, removals) that the node was sent: {:?}",
                self.written
            ));
        }
        let told = self.cluster.told_since(known);
        if told <= REMEMBERED && self.inventories > 0 {
            return Err(format!(
                "cost: an inventory was asked for, although only {told} objects had changed"
            ));
        }
        Ok(())
    }
}

fn run(seed: u64, trace: bool) -> Result<(), String> {
    let mut random = Random(seed ^ 0x4e91_1ca5);
    let count = 2 + usize::from(random.percent(30));
    let sizes = if random.percent(50) { Sizes::Default } else { Sizes::Small };
    let mut world = World::new(seed, count, sizes, Chaos::for_seed(&mut random), trace);
    world.run_chaos()?;
    world.run_to_convergence()?;
    world.wander()?;
    for replica in 0..count {
        world.move_with_changes(replica)?;
    }
    Ok(())
}

#[test]
fn replicas_never_roll_back_a_node_or_resend_held_objects() {
    SEEDS.hold();
}

#[test]
fn one_seed() {
    SEEDS.one_holds();
}

/// A late copy of a Hello begins a session after the end of its connection. What the replica
/// repeats in it leaves over the next connection, before the Hello of that.
#[test]
fn frames_of_an_earlier_session_are_no_cost_of_a_return() -> Result<(), String> {
    const OBJECT: u64 = 1;
    let mut world = World::new(1, 2, Sizes::Default, Chaos::NONE, false);
    world.write(OBJECT);
    world.connect(0);
    world.settle(Duration::from_secs(60))?;
    let hello = world.last_hello.clone().ok_or("the node has sent no Hello")?;
    world.connect(1);
    world.settle(Duration::from_secs(60))?;
    world.gone(hello.0);
    world.repeat(hello);
    world.pass(Duration::from_secs(1))?;
    world.write(OBJECT);
    world.pass(Duration::from_secs(1))?;
    world.settle(Duration::from_secs(60))?;
    world.cut();
    let repeats_at = world.deadline(0).ok_or("the replica repeats nothing")?;
    let now = world.now();
    world.pass(repeats_at.saturating_sub(now + Duration::from_millis(1)))?;
    world.return_in_sync(0)
}

#[test]
fn a_ledger_that_is_trusted_without_proof_is_found() {
    SEEDS.find(Fault::LedgerUnproven);
}

#[test]
fn a_replica_that_mistakes_confirms_for_a_loss_is_found() {
    SEEDS.find(Fault::LossByMemory);
}

#[test]
fn a_replica_that_removes_unknown_objects_is_found() {
    SEEDS.find(Fault::DeleteUnasked);
}

#[test]
fn a_replica_that_sends_an_older_version_than_is_held_is_found() {
    SEEDS.find(Fault::RollBackUnasked);
}

#[test]
fn a_replica_that_resends_deleted_objects_is_found() {
    SEEDS.find(Fault::RestoreUnasked);
}

#[test]
fn a_replica_that_treats_unread_as_deleted_is_found() {
    SEEDS.find(Fault::UnreadIsGone);
}

#[test]
fn a_replica_that_uses_old_versions_of_unread_objects_is_found() {
    SEEDS.find(Fault::UnreadIsKnown);
}

#[test]
fn a_replica_that_removes_restore_losses_is_found() {
    SEEDS.find(Fault::NoGuard);
}
