//! The deterministic simulation of the fleet: the real [`Fleet`](super::Fleet), alone or as two
//! replicas, over a model of its source, with five nodes that run the real machine, in virtual time
//! and from a seed.
//!
//! The source loses watches, lags, fails, and is replaced by older copies. Nodes are cut off,
//! crash, lose or roll back their databases, are removed and readmitted: at one of the replicas, by
//! their Nodes, or by the commands of an operator in the cluster, which all replicas observe later.
//! What is right is judged by what was written to the databases of the nodes, and by the history of
//! the source.
//!
//! `EDGESYNC_TEST_SEED=<n> cargo test -p edgesync-fleet --lib simulation::one_seed -- --nocapture`
//! shows one run step by step; `EDGESYNC_TEST_SEEDS=<n>` sets how many seeds the tests try,
//! `EDGESYNC_TEST_MAX_SEEDS=<n>` lowers it.

mod device;
mod fate;
mod history;
mod oracle;
mod rollouts;
mod rules;
mod scenarios;
mod store;
mod world;

use std::cell::{Cell, RefCell};

use edgesync_protocol::fault::Fault;
use edgesync_protocol::simulation::seeds::Seeds;
use edgesync_protocol::simulation::timeline::Random;
use jiff::Timestamp;
use world::World;

const SEEDS: Seeds =
    Seeds { run, count: 60, package: env!("CARGO_PKG_NAME"), one: "fleet::simulation::one_seed" };

/// The search for a planted fault ends with the first seed that finds it.
const SEARCH: Seeds = Seeds { run: run_roughly, count: 400, ..SEEDS };

const NODES: u64 = 5;
/// The largest frame, and the largest object, in bytes.
const MAX_FRAME: usize = 16 << 10;
const MAX_OBJECT: usize = 60_000;
/// Objects of a tier are placed on the nodes of that tier.
const RULES: &str = r#"
[[placement]]
nodes = { selector = "tier=0" }
objects = { kinds = ["ConfigMap"], selector = "tier=0" }
[[placement]]
nodes = { selector = "tier=1" }
objects = { kinds = ["ConfigMap"], selector = "tier=1" }
"#;

thread_local! {
    /// The wall clock of the fleets in this thread, in microseconds.
    static CLOCK: Cell<i64> = const { Cell::new(0) };
    static RANDOM: RefCell<Random> = const { RefCell::new(Random(0)) };
}

/// The random numbers of the fleets in this thread.
fn random() -> u64 {
    RANDOM.with_borrow_mut(Random::next)
}

/// The wall clock of the fleets in this thread.
fn clock() -> Timestamp {
    Timestamp::from_microsecond(CLOCK.get()).unwrap()
}

fn run(seed: u64, trace: bool) -> Result<(), String> {
    run_with(World::new(seed, 50, trace, false))
}

/// Runs a seed with most kinds of chaos at once.
fn run_roughly(seed: u64, trace: bool) -> Result<(), String> {
    run_with(World::new(seed, 10, trace, false))
}

/// Runs a seed in which rules have roll-outs, and change, overlap, come and go.
fn run_rollouts(seed: u64, trace: bool) -> Result<(), String> {
    let mut world = World::new(seed, 30, trace, true);
    world.chaos.without_lies();
    world.run_chaos()?;
    world.run_to_convergence()
}

const ROLLOUTS: Seeds =
    Seeds { run: run_rollouts, count: 40, one: "fleet::simulation::one_seed_of_roll_outs", ..SEEDS };

#[test]
fn nodes_are_sent_only_what_their_wave_is_open_for() {
    ROLLOUTS.hold();
}

/// Searches for a planted bug.
fn is_found(planted: Fault) {
    Seeds { count: 400, ..ROLLOUTS }.find(planted);
}

/// Searches for a planted bug that few seeds find, beginning with one of them.
fn is_found_by(seed: u64, planted: Fault) {
    Seeds { count: 400, ..ROLLOUTS }.find_first(planted, seed);
}

#[test]
fn a_fleet_that_sends_the_newest_versions_is_found() {
    is_found(Fault::RevisionIgnored);
}

#[test]
fn changed_waves_that_are_open_are_found() {
    is_found(Fault::ChangedWavesOpen);
}

#[test]
fn a_changed_selection_that_forgets_the_roll_out_is_found() {
    is_found(Fault::ChangedRuleIsPlain);
}

#[test]
fn a_removed_roll_out_that_decides_is_found() {
    is_found(Fault::RolloutRemovalIgnored);
}

#[test]
fn a_list_without_the_objects_of_a_new_rule_is_found() {
    is_found(Fault::NewRuleUnlisted);
}

#[test]
fn a_deleted_rule_that_decides_is_found() {
    is_found_by(1, Fault::DeletedRuleGoverns);
}

#[test]
fn a_younger_rule_that_decides_is_found() {
    is_found(Fault::YoungestDecides);
}

#[test]
fn a_rule_without_a_roll_out_that_decides_is_found() {
    is_found(Fault::PlainRuleDecides);
}

#[test]
fn a_lost_status_that_removes_objects_is_found() {
    is_found(Fault::LostStatusRemoves);
}

#[test]
fn a_restored_status_that_is_ignored_is_found() {
    is_found(Fault::RestoredStatusIgnored);
}

#[test]
fn a_node_that_keeps_its_wave_is_found() {
    is_found_by(33, Fault::WaveKept);
}

#[test]
fn a_status_that_counts_before_it_is_stored_is_found() {
    is_found(Fault::StatusUnstored);
}

#[test]
fn a_hidden_object_that_is_forgotten_is_found() {
    is_found_by(27, Fault::NamesakeForgotten);
}

#[test]
fn a_sweep_of_what_a_status_still_has_is_found() {
    is_found(Fault::SweepOfLeftover);
}

#[test]
fn one_seed_of_roll_outs() {
    ROLLOUTS.one_holds();
}

fn run_with(mut world: World) -> Result<(), String> {
    world.run_chaos()?;
    world.run_to_convergence()?;
    world.reconnect_with_changes()
}

#[test]
fn fleet_keeps_the_guarantees_under_every_seed() {
    SEEDS.hold();
}

#[test]
fn fleet_keeps_the_guarantees_in_rough_weather() {
    Seeds { count: 30, one: "fleet::simulation::one_rough_seed", ..SEARCH }.hold();
}

#[test]
fn one_rough_seed() {
    SEARCH.one_holds();
}

#[test]
fn one_seed() {
    SEEDS.one_holds();
}

#[test]
fn a_reset_node_that_keeps_the_old_confirmed_is_found() {
    SEARCH.find(Fault::ResetKeepsConfirmed);
}

#[test]
fn a_loader_that_keeps_what_reads_expected_is_found() {
    SEARCH.find(Fault::ExpectedKept);
}

#[test]
fn effects_of_another_database_file_are_found() {
    SEARCH.find(Fault::EffectsOfAnyEpoch);
}

#[test]
fn a_catch_up_older_than_its_question_is_found() {
    SEARCH.find(Fault::CatchUpOutdated);
}

#[test]
fn a_reload_that_reaches_no_machine_is_found() {
    SEARCH.find(Fault::ReloadIgnored);
}
