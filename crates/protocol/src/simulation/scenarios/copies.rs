//! Scenarios with copies of databases: a node's and the cloud's.

use super::*;
use crate::fault::{self, Fault};

#[test]
fn agents_with_copied_databases_raise_no_suspicion() {
    let mut world = in_sync(20);
    world.copy_agent(0, 1);
    for round in 0..10 {
        for agent in [0, 1] {
            (0..12).for_each(|n| world.write(&format!("object-{n:03}"), 20 + round));
            world.connect(agent);
            world.pass(Duration::from_secs(10)).unwrap();
            assert_eq!((world.renewals(), world.held_back()), (0, 0), "round {round}, agent {agent}");
        }
    }
}

#[test]
fn a_reinserted_card_raises_no_suspicion_about_the_store() {
    let mut world = in_sync(20);
    let old = world.edge_db();
    (0..20).for_each(|n| world.write(&format!("object-{n:03}"), 30));
    world.settle();
    let new = world.edge_db();
    for db in [old, EdgeDb::new(77), new] {
        world.stop_agent(0);
        world.replace_edge_db(db);
        world.start_agent(0);
        (0..15).for_each(|n| world.delete(&format!("object-{n:03}")));
        (0..15).for_each(|n| world.write(&format!("object-{n:03}"), 40));
        world.connect(0);
        world.settle();
        assert_eq!((world.renewals(), world.held_back()), (0, 0));
    }
}

#[test]
fn a_restored_store_begins_one_incarnation_for_all_reconnects() {
    let mut world = in_sync(20);
    let copy = world.cloud_db();
    (20..50).for_each(|n| world.write(&format!("object-{n:03}"), 20));
    world.settle();
    world.copy_agent(0, 1);
    world.stop_cloud();
    world.restore_cloud(copy);
    world.start_cloud();
    for _ in 0..5 {
        for agent in [1, 0] {
            world.connect(agent);
            world.pass(Duration::from_secs(20)).unwrap();
            assert_eq!((world.renewals(), world.held_back()), (1, 30));
        }
        world.stop_cloud();
        world.start_cloud();
    }
}

/// Returns the number of removals held back after a rollback of the cloud's store for a node that
/// knows more than was ever recorded of it, and after a restart of the cloud.
fn held_of_a_node_that_knows_more() -> [usize; 2] {
    let mut world = in_sync(40);
    let copy = world.cloud_db();
    // No object written after the copy stays on the node.
    for _ in 0..3 {
        world.write("passing", 20);
        world.settle();
        world.delete("passing");
        world.settle();
    }
    world.stop_cloud();
    world.restore_cloud(copy);
    (0..30).for_each(|n| world.delete(&format!("object-{n:03}")));
    [(); 2].map(|()| {
        world.start_cloud();
        world.connect(0);
        world.pass(Duration::from_secs(20)).unwrap();
        let held = world.held_back();
        assert_eq!(world.renewals(), 0);
        world.stop_cloud();
        held
    })
}

#[test]
fn removals_of_a_node_with_unrecorded_changes_stay_held() {
    assert_eq!(held_of_a_node_that_knows_more(), [30, 30]);
    let forgotten = fault::with(Some(Fault::DoubtForgotten), held_of_a_node_that_knows_more);
    assert_eq!(forgotten, [30, 0], "a cloud that forgets what it has heard is found");
}

#[test]
fn a_node_is_safe_from_a_rollback_no_other_node_confirms() {
    let mut world = World::new(1, Setting { agrees: false, ..Setting::QUIET }, false);
    (0..20).for_each(|n| world.write(&format!("object-{n:03}"), 20));
    world.connect(0);
    world.settle();
    let copy = world.cloud_db();
    (20..50).for_each(|n| world.write(&format!("object-{n:03}"), 20));
    world.settle();
    world.stop_cloud();
    world.restore_cloud(copy);
    for _ in 0..5 {
        world.start_cloud();
        world.connect(0);
        world.pass(Duration::from_secs(20)).unwrap();
        assert_eq!(world.held_back(), 30);
        world.stop_cloud();
    }
}

/// Resumes the cloud's host from a snapshot, with its clock corrected at once or later. Then the
/// same writer writes the same objects as before, with other contents.
fn wakes_up_in_a_copy_of_itself(seed: u64, clock_after: Duration) -> Result<(), String> {
    let mut world = World::new(seed, Setting::QUIET, false);
    let write = |world: &mut World| (0..10).for_each(|n| world.write(&format!("object-{n:03}"), 30));
    write(&mut world);
    world.connect(0);
    world.settle();
    let (copy, saved) = (world.cloud_db(), world.now());
    write(&mut world);
    (0..20).for_each(|n| world.write(&format!("lost-{n}"), 20));
    world.settle();
    world.pass(Duration::from_secs(10))?;
    world.resume_cloud(copy, world.now() - saved);
    world.pass(clock_after)?;
    world.set_clock();
    write(&mut world);
    world.connect(0);
    world.pass(Duration::from_secs(30))?;
    if world.held_back() != 20 {
        return Err(format!("{} removals are held back", world.held_back()));
    }
    world.confirm_deletions();
    world.pass(Duration::from_secs(30))?;
    world.converged()?;
    write(&mut world);
    world.pass(Duration::from_secs(30))?;
    world.converged()
}

#[test]
fn a_cloud_resumed_from_a_snapshot_never_reuses_a_version() {
    for seed in 0..20 {
        for minutes in [0, 1, 100] {
            wakes_up_in_a_copy_of_itself(seed, Duration::from_secs(60 * minutes)).unwrap();
        }
    }
}

#[test]
fn a_store_that_misses_a_suspension_is_found() {
    let unnoticed = || wakes_up_in_a_copy_of_itself(1, Duration::ZERO);
    println!("{}", fault::with(Some(Fault::PauseUnnoticed), unnoticed).unwrap_err());
}
