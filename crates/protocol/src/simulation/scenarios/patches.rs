//! Scenarios with updates that travel as patches, and with those that cannot.

use super::*;
use crate::fault::{self, Fault};

/// The object of the scenarios.
const NAME: &str = "object-001";

/// Returns a world with patches in which the edge holds the object.
fn with_patches(line: Line, size: usize) -> World {
    let mut world = World::new(1, Setting { patches: true, line, ..Setting::QUIET }, false);
    world.write(NAME, size);
    world.connect(0);
    world.pass_until_in_sync(Duration::from_secs(600));
    world
}

/// Writes versions until one has travelled as a patch. Returns the bytes of its frames.
fn write_patch(world: &mut World, size: usize) -> usize {
    for _ in 0..20 {
        let before = world.patched().0;
        world.forget_traffic();
        world.write(NAME, size);
        world.pass_until_in_sync(Duration::from_secs(600));
        if world.patched().0 > before {
            return world.traffic().1.bytes;
        }
    }
    panic!("no update is a patch");
}

#[test]
fn an_update_travels_as_a_patch() {
    const SIZE: usize = 4000;
    let mut world = with_patches(Line::FAST, SIZE);
    let bytes = write_patch(&mut world, SIZE);
    assert!(bytes < SIZE * 3 / 4, "{bytes} bytes");
    let counters = world.cloud_counters();
    assert!(counters.patches_sent > 0 && counters.patch_bytes_saved > 0, "{counters:?}");
    assert_eq!((counters.patches_refused, counters.resent), (0, 0));
}

/// An object whose text differs on the node is sent as a whole, at once and once.
fn reformatted() -> Result<(), String> {
    let mut world = with_patches(Line::FAST, 4000);
    write_patch(&mut world, 4000);
    let before = world.cloud_counters();
    world.reformat(NAME);
    for _ in 0..20 {
        world.write(NAME, 4000);
        if !world.converges_within(Duration::from_secs(3))? {
            return Err("not in sync after three seconds".into());
        }
        if world.patched().1 > 0 {
            break;
        }
        world.reformat(NAME);
    }
    let after = world.cloud_counters();
    match (world.patched().1, after.patches_refused - before.patches_refused, after.resent) {
        (1, 1, 0) => Ok(()),
        other => Err(format!("patches refused, known to be refused, objects resent: {other:?}")),
    }
}

#[test]
fn a_patch_that_does_not_fit_is_followed_by_the_whole_object() {
    reformatted().unwrap();
}

#[test]
fn a_refused_patch_without_a_report_is_found() {
    let found = fault::with(Some(Fault::UnpatchedUnreported), reformatted);
    assert!(found.is_err());
}

#[test]
fn a_base_that_the_cloud_lost_costs_the_whole_object() {
    let mut world = with_patches(Line::FAST, 4000);
    world.write(NAME, 4000);
    world.forget_past();
    world.settle();
    assert_eq!((world.patched(), world.cloud_counters().patches_sent), ((0, 0), 0));
    write_patch(&mut world, 4000);
}

#[test]
fn a_patch_larger_than_a_frame_goes_on_after_a_cut() {
    const SIZE: usize = 58_000;
    let line = Line::slow(false);
    let mut world = with_patches(line, SIZE);
    let whole = write_patch(&mut world, SIZE);
    for seconds in [1, 2] {
        let before = (world.patched(), world.carried());
        for _ in 0..20 {
            world.write(NAME, SIZE);
            world.pass(Duration::from_secs(seconds)).unwrap();
            world.cut();
            world.pass(Duration::from_secs(1)).unwrap();
            world.connect(0);
            world.pass_until_in_sync(Duration::from_secs(600));
        }
        let applied = world.patched().0 - before.0.0;
        assert!(applied >= 5, "{applied} of 20 updates came as patches");
        let carried = (world.carried() - before.1) / 20;
        assert!(carried < SIZE as u64, "{carried} bytes for each, {whole} for one patch");
    }
    assert_eq!(world.cloud_counters().patches_refused, 0);
}

#[test]
fn an_older_side_gets_and_sends_whole_objects() {
    for (is_old, is_cloud_old) in [(true, false), (false, true)] {
        let setting = Setting { patches: true, is_old, is_cloud_old, ..Setting::QUIET };
        let mut world = World::new(1, setting, false);
        world.write(NAME, 4000);
        world.connect(0);
        world.pass_until_in_sync(Duration::from_secs(60));
        for _ in 0..8 {
            world.write(NAME, 4000);
            world.pass_until_in_sync(Duration::from_secs(60));
        }
        assert_eq!((world.patched(), world.cloud_counters().patches_sent), ((0, 0), 0));
    }
}
