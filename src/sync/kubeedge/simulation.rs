//! The guarantees over a CloudCore, in virtual time and from a seed: edge machine and bridge against the scripted
//! CloudCore of the tests, over a link that is cut, with crashes, lost and rolled-back databases, a full store, and a
//! cluster in which everything changes.
//!
//! `EDGESYNC_SEED=<n> cargo test --lib kubeedge::simulation::one_seed -- --nocapture` shows one run step by step;
//! `EDGESYNC_SEEDS=<n>` sets how many seeds the long test tries.

mod checks;
#[path = "../../../tests/cloudcore/model.rs"]
mod cloudcore;
mod convergence;
mod events;
mod fate;
mod objects;
mod outbox;
mod scenarios;
mod world;

use crate::sync::fault::{self, Fault};
use world::{Chaos, World};

/// Runs one seed with all kinds of faults, then lets the link heal and expects convergence.
fn run(seed: u64, trace: bool) -> Result<(), String> {
    let mut world = World::new(seed, Chaos::for_seed(seed), trace);
    world.run_chaos()?;
    world.run_to_convergence()
}

fn seeds(default: u64) -> u64 {
    std::env::var("EDGESYNC_SEEDS").ok().and_then(|n| n.parse().ok()).unwrap_or(default)
}

/// The first seed that fails, tried over all cores.
fn first_failure(seeds: u64, planted: Option<Fault>) -> Option<(u64, String)> {
    let threads = std::thread::available_parallelism().map_or(2, |n| n.get() as u64);
    std::thread::scope(|scope| {
        let workers: Vec<_> = (0..threads)
            .map(|worker| {
                scope.spawn(move || {
                    let mut mine = (0..seeds).filter(|seed| seed % threads == worker);
                    fault::with(planted, || mine.find_map(|seed| Some((seed, run(seed, false).err()?))))
                })
            })
            .collect();
        workers.into_iter().filter_map(|worker| worker.join().expect("no panic in a seed")).min()
    })
}

#[test]
fn the_guarantees_hold_under_every_seed() {
    let seeds = seeds(600);
    if let Some((seed, why)) = first_failure(seeds, None) {
        panic!(
            "seed {seed}: {why}\nreproduce: EDGESYNC_SEED={seed} cargo test --lib kubeedge::simulation::one_seed -- --nocapture"
        );
    }
    println!("{seeds} seeds hold");
}

#[test]
fn one_seed() {
    let seed = std::env::var("EDGESYNC_SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or(0);
    let trace = std::env::var_os("EDGESYNC_SEED").is_some();
    if let Err(why) = run(seed, trace) {
        panic!("seed {seed}: {why}");
    }
}

fn must_catch(planted: Fault) {
    let caught = first_failure(seeds(600), Some(planted));
    let (seed, why) = caught.unwrap_or_else(|| panic!("{planted:?} was not found"));
    println!("{planted:?} found by seed {seed}: {why}");
}

#[test]
fn an_acknowledgement_before_the_commit_is_found() {
    must_catch(Fault::AckBeforeCommit);
}

#[test]
fn a_delete_by_name_is_found() {
    must_catch(Fault::DeleteByName);
}

#[test]
fn a_missing_version_gate_is_found() {
    must_catch(Fault::NoVersionGate);
}
