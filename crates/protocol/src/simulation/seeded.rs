//! The simulation with random faults of all kinds, and the injected bugs that it must find.

use super::seeds::Seeds;
use super::world::{Setting, World};
use crate::fault::Fault;

const SEEDS: Seeds =
    Seeds { run, count: 1500, package: env!("CARGO_PKG_NAME"), one: "simulation::seeded::one_seed" };

/// Runs one seed with all kinds of faults, then lets the link heal and expects convergence.
fn run(seed: u64, trace: bool) -> Result<(), String> {
    let setting = Setting::for_seed(seed);
    let mut world = World::new(seed, setting, trace);
    world.run_chaos()?;
    world.run_to_convergence()?;
    world.reconnect_with_changes()
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
fn a_report_before_the_commit_is_found() {
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

#[test]
fn a_digest_outside_the_transaction_is_found() {
    SEEDS.find(Fault::DigestOutsideTransaction);
}

#[test]
fn a_number_stored_apart_from_its_effect_is_found() {
    SEEDS.find(Fault::NumberApartFromEffect);
}

#[test]
fn an_effect_of_an_old_number_is_found() {
    SEEDS.find(Fault::EffectOfAnyNumber);
}

#[test]
fn an_outbox_that_deletes_items_when_sent_is_found() {
    SEEDS.find(Fault::SettleWhenSent);
}

#[test]
fn an_outbox_copy_that_reuses_numbers_is_found() {
    SEEDS.find(Fault::NoRenumbering);
}

#[test]
fn leases_that_put_off_every_repetition_are_found() {
    SEEDS.find(Fault::AnyProgressCounts);
}

#[test]
fn records_that_count_before_they_are_stored_are_found() {
    SEEDS.find(Fault::RecordBeforeStored);
}

#[test]
fn a_welcome_without_a_comparison_is_found() {
    SEEDS.find(Fault::WelcomeUncompared);
}

#[test]
fn a_confirm_before_storage_is_found() {
    SEEDS.find(Fault::ConfirmUnstored);
}

#[test]
fn a_cloud_without_a_delete_guard_is_found() {
    SEEDS.find(Fault::NoGuard);
}

#[test]
fn a_cloud_that_sends_nothing_again_is_found() {
    SEEDS.find(Fault::NeverAgain);
}

#[test]
fn a_patch_of_another_version_is_found() {
    SEEDS.find(Fault::PatchAnyVersion);
}

#[test]
fn a_patch_of_another_text_is_found() {
    SEEDS.find(Fault::PatchAnyBase);
}

#[test]
fn a_patch_without_a_proof_is_found() {
    SEEDS.find(Fault::PatchUnproven);
}

#[test]
fn a_patch_without_a_bound_is_found() {
    SEEDS.find(Fault::PatchUnbounded);
}

#[test]
fn a_patch_against_a_refused_base_is_found() {
    SEEDS.find(Fault::PatchAgain);
}

#[test]
fn a_patch_for_an_older_node_is_found() {
    SEEDS.find(Fault::PatchUnasked);
}

#[test]
fn an_answer_to_an_older_load_that_is_taken_is_found() {
    SEEDS.find(Fault::StaleLoad);
}

#[test]
fn a_cloud_that_deletes_and_resends_is_found() {
    SEEDS.find(Fault::DeleteAndResend);
}
