//! The memory cost of a node in the cloud.

use super::*;
use crate::cloud::CloudMachine;

#[test]
fn a_node_in_sync_costs_no_memory_and_no_read_of_records() {
    let mut world = in_sync(500);
    let (reads, differences) = world.remembered();
    assert_eq!(differences, 0);
    world.connect(0);
    world.settle();
    // A restart of the cloud changes nothing.
    world.stop_cloud();
    world.start_cloud();
    world.connect(0);
    world.settle();
    assert_eq!(world.remembered(), (reads, 0));
}

#[test]
fn a_node_that_is_offline_costs_no_memory_however_much_changes() {
    let mut world = in_sync(500);
    let (reads, _) = world.remembered();
    world.cut();
    for n in 0..300 {
        world.write(&format!("object-{n:03}"), 20);
    }
    world.pass(Duration::from_secs(1)).unwrap();
    assert_eq!(world.remembered(), (reads, 0));
    let before = world.sent();
    world.connect(0);
    world.settle();
    assert_eq!((world.sent().0 - before.0, world.remembered()), (300, (reads + 1, 0)));
}

#[test]
fn a_node_that_is_behind_gets_only_newer_versions() {
    let mut world = in_sync(100);
    let (reads, _) = world.remembered();
    let before = world.sent();
    world.fall_behind();
    for n in 0..30 {
        world.write(&format!("object-{n:03}"), 20);
    }
    world.delete("object-050");
    world.settle();
    let after = world.sent();
    assert_eq!((after.0 - before.0, after.1 - before.1), (30, 1));
    assert_eq!(world.remembered(), (reads + 1, 0));
}

#[test]
fn a_machine_is_small() {
    assert!(size_of::<CloudMachine>() <= 1720, "{}", size_of::<CloudMachine>());
}
