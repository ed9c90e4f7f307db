//! Copies of databases: of one node's, and of the cloud's.

use super::*;
use crate::fault::{self, Fault};

#[test]
fn agents_with_copies_of_one_database_do_not_make_the_cloud_doubt_its_store() {
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
fn a_card_that_is_put_back_does_not_make_the_cloud_doubt_its_store() {
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
fn a_restored_store_begins_one_incarnation_however_often_the_nodes_come_back() {
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

/// The cloud's store goes back, and the node knows more than was ever recorded of it. How many removals are held back then,
/// and after a restart of the cloud.
fn held_of_a_node_that_knows_more() -> [usize; 2] {
    let mut world = in_sync(40);
    let copy = world.cloud_db();
    // Nothing that is written after the copy stays on the node.
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
fn a_node_that_knows_more_than_was_ever_recorded_of_it_has_its_own_removals_held_back_over_restarts_too() {
    assert_eq!(held_of_a_node_that_knows_more(), [30, 30]);
    let forgotten = fault::with(Some(Fault::DoubtForgotten), held_of_a_node_that_knows_more);
    assert_eq!(forgotten, [30, 0], "a cloud that forgets what it has heard is found");
}

#[test]
fn a_node_whose_store_went_back_is_safe_although_no_other_node_agrees() {
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

#[test]
fn a_node_that_does_not_say_which_frame_it_answers_gets_everything_too() {
    let mut world = World::new(1, Setting { is_old: true, ..Setting::QUIET }, false);
    (0..50).for_each(|n| world.write(&format!("object-{n:03}"), 200));
    world.write("large", max_object() - 2000);
    world.connect(0);
    world.settle();
    world.lose_down(|frame| matches!(frame, Down::Objects(_) | Down::Part(_)));
    world.write("large", max_object() - 3000);
    (0..50).for_each(|n| world.write(&format!("object-{n:03}"), 300));
    world.pass(Duration::from_secs(1)).unwrap();
    world.lose_down(|_| false);
    world.pass_until_in_sync(Duration::from_secs(120));
}

/// The cloud's machine wakes up as it was when it was saved, with its clock set at once or a while later. Then the same
/// writer writes the same objects as after that time, with other contents.
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
fn a_cloud_that_wakes_up_in_a_copy_of_itself_leaves_no_other_content_under_the_same_version() {
    for seed in 0..20 {
        for minutes in [0, 1, 100] {
            wakes_up_in_a_copy_of_itself(seed, Duration::from_secs(60 * minutes)).unwrap();
        }
    }
}

#[test]
fn a_store_that_does_not_notice_that_its_machine_was_away_is_found() {
    let unnoticed = || wakes_up_in_a_copy_of_itself(1, Duration::ZERO);
    println!("{}", fault::with(Some(Fault::PauseUnnoticed), unnoticed).unwrap_err());
}
