//! Single scenarios over a good link, each with the exact outcome that the guarantees promise.

use std::time::Duration;

use super::model::EdgeDb;
use crate::frame::Down;

use super::world::{Line, Setting, Sizes, World};
use crate::simulation::timeline::Simulated;

mod copies;
mod drops;
mod line;
mod memory;
mod patches;
mod refusal;
mod silence;
mod uplink;
mod upstream;

fn max_object() -> usize {
    Sizes::Small.max_object()
}

fn quiet() -> World {
    World::new(1, Setting::QUIET, false)
}

/// Returns a world in which the edge holds `count` objects and both sides know it.
fn in_sync(count: usize) -> World {
    let mut world = quiet();
    for n in 0..count {
        world.write(&format!("object-{n:03}"), 20);
    }
    world.connect(0);
    world.settle();
    world
}

#[test]
fn an_unchanged_reconnect_costs_a_round_trip_and_400_bytes() {
    let mut world = in_sync(500);
    world.forget_traffic();
    world.connect(0);
    let before = (world.leases(), world.frames("Upload"));
    world.settle();
    let (up, down) = world.traffic();
    assert_eq!((up.frames, down.frames), (1, 1));
    assert_eq!((world.leases(), world.frames("Upload")), before, "the Hello renews the Lease");
    assert!(up.bytes + down.bytes <= 400, "{} + {}", up.bytes, down.bytes);
}

#[test]
fn five_hundred_versions_missed_arrive_as_one() {
    let mut world = in_sync(10);
    world.cut();
    for _ in 0..500 {
        world.write("object-003", 20);
    }
    let before = world.sent();
    world.connect(0);
    world.settle();
    assert_eq!(world.sent().0 - before.0, 1);
}

#[test]
fn a_recreated_object_replaces_the_old_one_in_one_frame() {
    let mut world = in_sync(10);
    world.cut();
    world.delete("object-003");
    world.write("object-003", 20);
    world.forget_traffic();
    world.connect(0);
    world.settle();
    // Welcome, one frame with removal and object, Confirm.
    assert_eq!(world.traffic().1.frames, 3);
}

#[test]
fn small_objects_do_not_wait_for_a_large_one() {
    // If frames arrive in one burst, they are applied at the same instant.
    let rests = (0..10).map(|seed| {
        let mut world = World::new(seed, Setting::QUIET, false);
        world.write("a-large-one", max_object() - 2000);
        for n in 0..3 {
            world.write(&format!("small-{n}"), 20);
        }
        world.connect(0);
        world.pass_until(|world| world.held() == 3);
        let rest = world.pass_until(|world| world.held() == 4);
        world.settle();
        rest
    });
    let apart = rests.filter(|rest| !rest.is_zero()).count();
    assert!(apart > 5, "the small ones came together with the large one: {apart} of 10 times apart");
}

#[test]
fn a_rejected_object_delays_no_others_until_it_changes() {
    let mut world = in_sync(3);
    world.write("bad..name", 20);
    world.write("too-large", max_object() + 5000);
    world.write("good", 20);
    world.settle();
    assert_eq!((world.held(), world.refused()), (4, 2));
    let before = world.sent();
    world.write("too-large", 100);
    world.settle();
    assert_eq!((world.held(), world.refused(), world.sent().0 - before.0), (5, 1, 1));
}

#[test]
fn a_lost_database_is_refilled() {
    let mut world = in_sync(100);
    world.stop_agent(0);
    world.replace_edge_db(EdgeDb::new(99));
    world.start_agent(0);
    let before = world.sent();
    world.connect(0);
    world.settle();
    assert_eq!((world.held(), world.sent().0 - before.0), (100, 100));
}

#[test]
fn a_rolled_back_database_gets_only_missing_versions() {
    let mut world = in_sync(100);
    let copy = world.edge_db();
    for n in 0..7 {
        world.write(&format!("object-{n:03}"), 20);
    }
    world.settle();
    world.stop_agent(0);
    world.replace_edge_db(copy);
    world.start_agent(0);
    let before = world.sent();
    world.connect(0);
    world.settle();
    assert_eq!(world.sent().0 - before.0, 7);
}

/// A power cut loses the newest confirmation, and the disk is slow after the start: a commit cuts
/// the journal at the confirmation in the Welcome before the first page is read.
#[test]
fn a_read_overtaken_by_a_confirmation_costs_no_inventory() {
    let mut world = in_sync(100);
    world.stop_agent(0);
    world.start_agent(0);
    world.slow_reads(3000);
    world.forget_traffic();
    world.write("object-003", 20);
    let before = world.sent();
    world.connect(0);
    let time = world.pass_until_in_sync(Duration::from_secs(60));
    assert!(time < Duration::from_secs(5), "{time:?}");
    assert_eq!((world.frames("Inventory"), world.sent().0 - before.0), (0, 1));
    // The read that was overtaken changes nothing either.
    world.pass(Duration::from_secs(5)).unwrap();
    world.converged().unwrap();
    assert_eq!(world.frames("Inventory"), 0);
}

#[test]
fn an_older_copy_of_the_cloud_store_holds_deletes_back() {
    let mut world = in_sync(20);
    let copy = world.cloud_db();
    for n in 20..50 {
        world.write(&format!("object-{n:03}"), 20);
    }
    world.write("object-001", 20);
    world.settle();
    world.stop_cloud();
    world.restore_cloud(copy);
    world.start_cloud();
    world.connect(0);
    world.pass(Duration::from_secs(60)).unwrap();
    assert_eq!((world.held(), world.held_back()), (50, 30));
    world.confirm_deletions();
    world.settle();
    assert_eq!((world.held(), world.held_back()), (20, 0));
}

#[test]
fn a_store_that_was_lost_altogether_deletes_nothing_unconfirmed() {
    let mut world = in_sync(20);
    world.stop_cloud();
    world.restore_cloud(world.fresh_cloud_db());
    world.start_cloud();
    world.connect(0);
    world.pass(Duration::from_secs(60)).unwrap();
    assert_eq!((world.held(), world.held_back()), (20, 20));
    // The same objects applied again have new UIDs: they replace the old ones, and nothing remains
    // to delete.
    for n in 0..20 {
        world.write(&format!("object-{n:03}"), 20);
    }
    world.settle();
    assert_eq!((world.held(), world.held_back()), (20, 0));
}

#[test]
fn an_intended_mass_delete_is_not_held_back() {
    let mut world = in_sync(20);
    for n in 0..20 {
        world.delete(&format!("object-{n:03}"));
    }
    world.settle();
    assert_eq!((world.held(), world.held_back()), (0, 0));
}

#[test]
fn objects_in_flight_stay_within_the_window() {
    let mut world = quiet();
    for n in 0..300 {
        world.write(&format!("object-{n:03}"), 200);
    }
    world.connect(0);
    let mut most = 0;
    world.pass_until(|world| {
        most = most.max(world.in_flight());
        world.held() == 300
    });
    // 12 unreported ones, and four times as many that wait for their records.
    assert!((1..=12 * 5).contains(&most), "{most} objects under way");
    world.settle();
}

#[test]
fn no_frame_is_larger_than_the_node_takes() {
    let mut world = quiet();
    world.write("large", max_object() - 2000);
    for n in 0..50 {
        world.write(&format!("object-{n:03}"), 3000);
    }
    world.connect(0);
    world.settle();
    assert!(world.largest_frame() <= Sizes::Small.max_frame(), "{}", world.largest_frame());
}
