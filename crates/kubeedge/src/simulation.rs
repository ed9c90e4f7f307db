//! The guarantees over a CloudCore, in virtual time and from a seed: edge machine and bridge
//! against the scripted CloudCore, over a link that is cut, with crashes, lost and rolled-back
//! databases, a full store, and a changing cluster.
//!
//! `EDGESYNC_TEST_SEED=<n> cargo test -p edgesync-kubeedge --lib simulation::one_seed -- --nocapture`
//! shows one run step by step; `EDGESYNC_TEST_SEEDS=<n>` sets how many seeds the long tests try,
//! `EDGESYNC_TEST_MAX_SEEDS=<n>` lowers it.

mod checks;
mod convergence;
mod events;
mod fate;
mod many;
mod objects;
mod outbox;
mod scenarios;
mod world;

use edgesync_protocol::fault::Fault;
use edgesync_protocol::simulation::seeds::Seeds;
use world::{Chaos, World};

const SEEDS: Seeds = Seeds { run, count: 600, package: env!("CARGO_PKG_NAME"), one: "simulation::one_seed" };

/// Runs one seed with all kinds of faults, then lets the link heal and expects convergence.
fn run(seed: u64, trace: bool) -> Result<(), String> {
    let mut world = World::new(seed, Chaos::for_seed(seed), trace);
    world.run_chaos()?;
    world.run_to_convergence()
}

#[test]
fn the_guarantees_hold_under_every_seed() {
    SEEDS.hold();
}

#[test]
fn one_seed() {
    SEEDS.one_holds();
}

#[test]
fn an_acknowledgement_before_the_commit_is_found() {
    SEEDS.find(Fault::AckBeforeCommit);
}

#[test]
fn a_delete_by_name_is_found() {
    SEEDS.find(Fault::DeleteByName);
}

#[test]
fn missing_version_check_is_found() {
    SEEDS.find(Fault::NoVersionCheck);
}
