//! Several nodes and several replicas that write for them into one API server: uploads, Leases and
//! ObjectSyncs.
//!
//! The nodes and the machines of the replicas are the real ones, and so are the rules of
//! [`crate::replicas`]: the fence, the progress through uploads, and the queue of ObjectSyncs. The
//! order of requests, and what follows from their answers, is that of `crates/kubernetes`, in
//! `flows`. `server` models the API server: compare-and-swap (409), watches that are slow, end, or
//! have expired (410), throttling (429), lists from a cache, answers that are lost although the
//! request was executed.
//!
//! Assumed: the frames of a connection arrive in order and without gaps until it is dead, at most
//! five seconds after the node has left it; and a replica that has not claimed the Lease of a node
//! yet notices when the node leaves.
//!
//! Not modelled: Node reports, the limit of Events per node, effects of an earlier database of a
//! node, and ObjectSyncs of differences only. A copy of a node's database, a restored cluster, and
//! unreadable objects are parts of the simulation of one node in the parent module.
//!
//! Invariants of the written values, independent of the replica that decided on them:
//! - each item that was confirmed to a node is in the cluster, and no older value follows it;
//! - a session writes each item at most once;
//! - a node that a replica has claimed has a Lease;
//! - a replica writes nothing for a node after another one has its Lease, except on a check made
//!   before; no late renewal takes the Lease back;
//! - an item about an object that was placed all the time is not refused;
//! - no ObjectSync and no object on a node goes back;
//! - in the end each node is in sync and the ObjectSyncs equal what it holds. Until the next
//!   session of a node, one more may exist, by an upload or a write that met a removal or a move;
//! - requests are bounded: per minute, and in a quiet hour.

mod flows;
mod node;
mod oracle;
mod request;
mod server;
mod state;
mod world;

use std::time::Duration;

use super::super::seeds::Seeds;
use super::super::timeline::{Random, Simulated};
use crate::fault::{self, Fault};
use world::{Chaos, World};

const SEEDS: Seeds = Seeds {
    run,
    count: 300,
    package: env!("CARGO_PKG_NAME"),
    one: "simulation::replicas::writers::one_seed",
};

const STEPS: u64 = 80;
/// The most requests in an hour without changes and faults: renewals of Leases, watches that end.
const MAX_QUIET: usize = 2000;

impl World {
    fn strike(&mut self) {
        let Chaos { moves, half_open, crash, kill, apart, throttle, compact, break_watch, .. } = self.chaos;
        let (nodes, replicas) = self.counts();
        let below =
            |world: &mut Self, count: usize| usize::try_from(world.random().below(count as u64)).unwrap();
        let (node, replica) = (below(self, nodes), below(self, replicas));
        if self.random().percent(half_open) {
            self.half_open(node);
        }
        if self.random().percent(crash) {
            self.crash_node(node);
        }
        if self.random().percent(kill) {
            self.kill_replica(replica);
        }
        if self.random().percent(apart) {
            let time = Duration::from_millis(self.random().below(40_000));
            self.part(replica, time);
        }
        if self.random().percent(throttle) {
            let time = Duration::from_millis(self.random().below(20_000));
            self.throttle(time);
        }
        if self.random().percent(compact) {
            self.compact();
        }
        if self.random().percent(break_watch) {
            self.break_watch(replica);
        }
        let moves = if self.is_connected(node) { moves } else { 60 };
        if self.random().percent(moves) {
            self.connect(node, replica);
        } else if !self.is_running(replica) && self.random().percent(30) {
            self.start_replica(replica);
        }
    }

    fn run_chaos(&mut self) -> Result<(), String> {
        let (nodes, _) = self.counts();
        for _ in 0..STEPS {
            for _ in 0..self.random().below(4) {
                self.change_something();
            }
            for node in 0..nodes {
                if self.random().percent(50) {
                    self.post_something(node);
                }
            }
            self.strike();
            let most = [100, 100, 1000, 20_000][usize::try_from(self.random().below(4)).unwrap()];
            let time = Duration::from_millis(self.random().below(most) + 1);
            self.pass(time)?;
        }
        Ok(())
    }

    fn run_to_convergence(&mut self) -> Result<(), String> {
        self.say(|| "--- everything heals".into());
        self.heal();
        self.settle()?;
        // Late frames and requests arrive.
        self.pass(Duration::from_secs(90))?;
        self.settle()
    }

    /// Expects convergence within some minutes. A node may notice late that its connection is dead.
    fn settle(&mut self) -> Result<(), String> {
        let (nodes, replicas) = self.counts();
        for _ in 0..5 {
            for node in 0..nodes {
                if !self.is_connected(node) {
                    let replica = usize::try_from(self.random().below(replicas as u64)).unwrap();
                    self.connect(node, replica);
                }
            }
            self.wait(Duration::from_secs(60))?;
        }
        self.converged()
    }

    /// Moves each node to another replica: its ObjectSyncs are compared with what it holds.
    fn move_all(&mut self) -> Result<(), String> {
        self.say(|| "--- each node moves".into());
        let (nodes, replicas) = self.counts();
        for replica in 0..replicas {
            if !self.is_running(replica) {
                self.start_replica(replica);
            }
        }
        self.pass(Duration::from_secs(1))?;
        for node in 0..nodes {
            let replica = usize::try_from(self.random().below(replicas as u64)).unwrap();
            self.connect(node, replica);
        }
        self.have_returned = true;
        self.settle()
    }

    /// Checks that nothing but renewals and watches costs requests.
    fn stay_quiet(&mut self) -> Result<(), String> {
        self.say(|| "--- a quiet hour".into());
        let before = self.all_requests();
        self.pass(Duration::from_secs(3600))?;
        let count = self.all_requests() - before;
        match count > MAX_QUIET {
            true => Err(format!("cost: {count} requests in a quiet hour")),
            false => self.converged(),
        }
    }
}

fn run(seed: u64, trace: bool) -> Result<(), String> {
    let mut random = Random(seed ^ 0x77a1_0e85);
    let (nodes, replicas) = (2 + usize::from(random.percent(30)), 2 + usize::from(random.percent(30)));
    let mut world = World::new(seed, (nodes, replicas), Chaos::for_seed(&mut random), trace);
    world.run_chaos()?;
    world.run_to_convergence()?;
    world.move_all()?;
    world.stay_quiet()
}

#[test]
fn what_replicas_write_for_nodes_is_right_under_every_seed() {
    SEEDS.hold();
}

#[test]
fn one_seed() {
    SEEDS.one_holds();
}

/// A node has an item about an object that it does not hold at the moment: it was removed, and is
/// placed again. The node moves to a replica that does not know that yet.
fn upload_to_lagging_replica() -> Result<(), String> {
    let mut world = World::new(1, (2, 2), Chaos::NONE, false);
    world.place(1);
    world.pass(Duration::from_secs(1))?;
    world.connect(0, 0);
    world.pass(Duration::from_secs(5))?;
    assert_eq!(world.held_count(0), 1);
    world.mute(0);
    world.post(0, false);
    world.place(0);
    world.pass(Duration::from_secs(1))?;
    assert_eq!(world.held_count(0), 0);
    world.chaos.lag = 120_000;
    world.place(1);
    world.connect(0, 1);
    world.pass(Duration::from_secs(20))?;
    world.settle()
}

#[test]
fn an_upload_waits_until_its_replica_is_current() {
    upload_to_lagging_replica().unwrap();
}

#[test]
fn a_lagging_replica_that_refuses_uploads_is_found() {
    let why = fault::with(Some(Fault::RefuseWhileBehind), upload_to_lagging_replica).unwrap_err();
    assert!(why.contains("was refused"), "{why}");
}

#[test]
fn a_replica_that_ignores_the_fence_is_found() {
    SEEDS.find(Fault::FenceIgnored);
}

#[test]
fn a_fence_read_from_a_cache_is_found() {
    SEEDS.find(Fault::FenceFromCache);
}

#[test]
fn a_late_renewal_that_counts_is_found() {
    SEEDS.find(Fault::LateRenewalCounts);
}

#[test]
fn a_waiting_renewal_that_counts_is_found() {
    SEEDS.find(Fault::WaitingRenewalCounts);
}

#[test]
fn a_lease_without_compare_and_swap_is_found() {
    SEEDS.find(Fault::LeaseUnconditional);
}

#[test]
fn a_claim_that_creates_no_lease_is_found() {
    SEEDS.find(Fault::ClaimWithoutLease);
}

#[test]
fn an_older_record_after_a_newer_one_is_found() {
    SEEDS.find(Fault::OlderRecordWins);
}

#[test]
fn a_writer_that_keeps_outdated_versions_is_found() {
    SEEDS.find(Fault::KnownAfterConflict);
}

#[test]
fn an_upload_confirmed_before_its_write_is_found() {
    SEEDS.find(Fault::ConfirmUnwritten);
}

#[test]
fn a_conflict_taken_for_success_is_found() {
    SEEDS.find(Fault::ConflictIsSuccess);
}

#[test]
fn an_expired_watch_that_continues_is_found() {
    SEEDS.find(Fault::ExpiredWatchContinues);
}

#[test]
fn a_catch_up_from_a_cache_is_found() {
    SEEDS.find(Fault::CatchUpFromCache);
}

#[test]
fn a_throttled_request_repeated_at_once_is_found() {
    SEEDS.find(Fault::ThrottleIgnored);
}
