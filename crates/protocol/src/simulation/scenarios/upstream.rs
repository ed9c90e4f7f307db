//! Scenarios of the outbox and the Lease.

use super::*;
use crate::upload::Lane;

#[test]
fn items_take_effect_once_in_order_of_their_lanes() {
    let mut world = in_sync(1);
    world.cut();
    for lane in [Lane::Bulk, Lane::Events, Lane::Status] {
        (0..3).for_each(|key| world.post(0, lane, key));
    }
    world.connect(0);
    world.settle();
    let expected: Vec<String> = Lane::ALL
        .into_iter()
        .flat_map(|lane| (0..3).map(move |key| format!("0/{}/{key}", lane.name())))
        .collect();
    assert_eq!(world.effects(), expected);
    // A probe, and a frame for each lane.
    assert_eq!(world.frames("Upload"), 4);
}

#[test]
fn the_last_state_of_a_key_changed_offline_arrives() {
    let mut world = in_sync(1);
    world.cut();
    (0..100).for_each(|_| world.post(0, Lane::Status, 1));
    world.post(0, Lane::Status, 2);
    world.connect(0);
    world.settle();
    assert_eq!(world.effects(), ["0/status/1", "0/status/2"]);
}

#[test]
fn overflow_is_dropped_from_the_lowest_lane() {
    let mut world = in_sync(1);
    world.cut();
    (0..25).for_each(|key| world.post(0, Lane::Bulk, key));
    (0..25).for_each(|key| world.post(0, Lane::Events, key));
    world.connect(0);
    world.settle();
    assert_eq!((world.effects().len(), world.dropped()), (30, 20));
    assert_eq!(world.effects().iter().filter(|key| key.contains("events")).count(), 25);
}

#[test]
fn an_agent_crash_before_the_confirm_has_no_second_effect() {
    let mut world = in_sync(1);
    (0..5).for_each(|key| world.post(0, Lane::Events, key));
    world.pass_until(|world| world.effects().len() == 5);
    world.stop_agent(0);
    world.start_agent(0);
    world.connect(0);
    world.settle();
    assert_eq!(world.effects().len(), 5);
}

#[test]
fn a_cloud_that_dies_after_the_effects_does_not_repeat_them() {
    let mut world = in_sync(1);
    (0..5).for_each(|key| world.post(0, Lane::Events, key));
    world.pass_until(|world| world.effects().len() == 5);
    world.stop_cloud();
    world.start_cloud();
    world.connect(0);
    world.settle();
    assert_eq!(world.effects().len(), 5);
}

#[test]
fn an_older_outbox_copy_repeats_and_loses_nothing() {
    let mut world = in_sync(1);
    world.post(0, Lane::Events, 0);
    world.settle();
    let copy = world.edge_db();
    (1..6).for_each(|key| world.post(0, Lane::Events, key));
    world.settle();
    world.stop_agent(0);
    world.replace_edge_db(copy);
    world.start_agent(0);
    (6..9).for_each(|key| world.post(0, Lane::Events, key));
    world.connect(0);
    world.settle();
    let expected: Vec<String> = (0..9).map(|key| format!("0/events/{key}")).collect();
    assert_eq!(world.effects(), expected);
    // Once detected, it is consistent again.
    let before = world.frames("Upload");
    world.connect(0);
    world.post(0, Lane::Events, 9);
    world.settle();
    assert_eq!((world.effects().len(), world.frames("Upload") - before), (10, 2));
}

#[test]
fn a_lost_outbox_is_a_new_one_with_new_numbers() {
    let mut world = in_sync(1);
    (0..5).for_each(|key| world.post(0, Lane::Events, key));
    world.settle();
    world.stop_agent(0);
    world.replace_edge_db(EdgeDb::new(99));
    world.start_agent(0);
    world.connect(0);
    (5..7).for_each(|key| world.post(0, Lane::Events, key));
    world.settle();
    assert_eq!(world.effects().len(), 7);
}

#[test]
fn an_older_copy_of_the_cloud_store_resumes_at_the_node() {
    let mut world = in_sync(1);
    (0..2).for_each(|key| world.post(0, Lane::Events, key));
    world.settle();
    let copy = world.cloud_db();
    (2..5).for_each(|key| world.post(0, Lane::Events, key));
    world.settle();
    world.stop_cloud();
    world.restore_cloud(copy);
    world.start_cloud();
    (5..7).for_each(|key| world.post(0, Lane::Events, key));
    world.connect(0);
    world.settle();
    // Effects that the store has lost are gone: the node has received their confirm.
    assert_eq!(world.effects(), [0, 1, 5, 6].map(|key| format!("0/events/{key}")));
}

#[test]
fn a_node_with_nothing_to_say_sends_nothing_but_its_lease() {
    let mut world = in_sync(10);
    world.forget_traffic();
    let leases = world.leases();
    world.pass(Duration::from_secs(3600)).unwrap();
    let (up, down) = world.traffic();
    assert_eq!((up.frames, down.frames, world.frames("Upload")), (0, 0, 0));
    // Each 10 s, up to a tenth earlier.
    let renewed = world.leases() - leases;
    assert!((360..=400).contains(&renewed), "{renewed}");
    assert_eq!(world.frames("Lease"), 0, "the Hello has stated the terms");
}
