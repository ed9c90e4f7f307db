//! The deterministic simulation: both machines, a bad link, crashes, lost and rolled-back databases, in
//! virtual time and from a seed. The guarantees are checked at every step, convergence at the end.
//!
//! `EDGESYNC_SEED=<n> cargo test --lib simulation::one_seed -- --nocapture` shows one run step by step;
//! `EDGESYNC_SEEDS=<n>` sets how many seeds the long test tries.

pub(in crate::sync) mod model;
mod scenarios;
mod world;

use crate::sync::fault::{self, Fault};
use world::{Chaos, World};

/// Runs one seed with all kinds of faults, then lets the link heal and expects convergence.
fn run(seed: u64, trace: bool) -> Result<(), String> {
    let chaos = Chaos::for_seed(seed);
    let mut world = World::new(seed, chaos, trace);
    world.run_chaos()?;
    world.run_to_convergence()?;
    world.reconnect_with_changes()
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
                    let mine = (0..seeds).filter(|seed| seed % threads == worker);
                    fault::with(planted, || {
                        mine.into_iter().find_map(|seed| Some((seed, run(seed, false).err()?)))
                    })
                })
            })
            .collect();
        workers.into_iter().filter_map(|worker| worker.join().expect("no panic in a seed")).min()
    })
}

#[test]
fn the_guarantees_hold_under_every_seed() {
    let seeds = seeds(2500);
    if let Some((seed, why)) = first_failure(seeds, None) {
        panic!(
            "seed {seed}: {why}\nreproduce: EDGESYNC_SEED={seed} cargo test --lib one_seed -- --nocapture"
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
    let caught = first_failure(seeds(2500), Some(planted));
    let (seed, why) = caught.unwrap_or_else(|| panic!("{planted:?} was not found"));
    println!("{planted:?} found by seed {seed}: {why}");
}

#[test]
fn a_report_before_the_commit_is_found() {
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

#[test]
fn a_digest_outside_the_transaction_is_found() {
    must_catch(Fault::DigestOutsideTransaction);
}

#[test]
fn a_number_stored_apart_from_its_effect_is_found() {
    must_catch(Fault::NumberApartFromEffect);
}

#[test]
fn an_outbox_that_forgets_what_is_merely_sent_is_found() {
    must_catch(Fault::SettleWhenSent);
}

#[test]
fn an_older_copy_of_the_outbox_that_gives_numbers_again_is_found() {
    must_catch(Fault::NoRenumbering);
}

#[test]
fn leases_that_put_off_every_repetition_are_found() {
    must_catch(Fault::AnyProgressCounts);
}
