//! Scenarios over a slow uplink: outbox items cross it once, and neither direction delays the
//! other.

use super::*;
use crate::fault::{self, Fault};
use crate::upload::Lane;

/// Returns a node in sync, over a line of 2 KB/s upward and 10 KB/s downward or over an unlimited
/// one.
fn world(is_slow: bool, is_external: bool) -> World {
    let slow = Line { rate: [Some(2_000), Some(10_000)], ..Line::slow(is_external) };
    let line = if is_slow { slow } else { Line { is_external, ..Line::FAST } };
    let mut world = World::new(1, Setting { line, sizes: Sizes::Default, ..Setting::QUIET }, false);
    world.write("object-000", 20);
    world.connect(0);
    world.pass_until_in_sync(Duration::from_secs(60));
    world
}

fn post_events(world: &mut World) {
    (0..25).for_each(|key| world.post_text(0, Lane::Events, key, 4_000));
    (0..3).for_each(|key| world.post_text(0, Lane::Status, key, 1_000));
}

fn write_objects(world: &mut World) {
    (0..400).for_each(|n| world.write(&format!("new-{n:03}"), 2_000));
}

/// Checks that nothing was sent twice, because nothing was lost.
fn check_once(world: &World) -> Result<(), String> {
    let counters = world.cloud_counters();
    let again = (counters.resent, counters.repairs, world.uploads_resent(), world.repeated_reports());
    if again == (0, 0, 0, 0) { Ok(()) } else { Err(format!("something was sent again: {again:?}")) }
}

/// Checks that Events, status, and an item that takes half a minute cost at most 1.1 times the
/// bytes of a fast line.
fn items_cross_once() -> Result<(), String> {
    for is_external in [false, true] {
        let mut bytes = Vec::new();
        for is_slow in [false, true] {
            let mut world = world(is_slow, is_external);
            let before = world.uploaded();
            post_events(&mut world);
            world.post_text(0, Lane::Bulk, 0, 60_000);
            world.pass_until_in_sync(Duration::from_secs(600));
            check_once(&world)?;
            bytes.push(world.uploaded() - before);
        }
        if bytes[1] * 100 > bytes[0] * 110 {
            return Err(format!("bytes over a fast and a slow line: {bytes:?}"));
        }
    }
    Ok(())
}

/// Checks that both directions at once take at most 1.4 times as long as the slower one alone.
fn directions_share_the_line() -> Result<(), String> {
    for is_external in [false, true] {
        let time = |write: fn(&mut World)| {
            let mut world = world(true, is_external);
            write(&mut world);
            let time = world.pass_until_in_sync(Duration::from_secs(600));
            check_once(&world).map(|()| time)
        };
        let (down, up) = (time(write_objects)?, time(post_events)?);
        let both = time(|world| {
            post_events(world);
            write_objects(world);
        })?;
        println!("external {is_external}: {down:?} down, {up:?} up, {both:?} both");
        if both > down.max(up).mul_f64(1.4) {
            return Err(format!("{both:?} both, {down:?} and {up:?} apart"));
        }
    }
    Ok(())
}

#[test]
fn outbox_items_cross_a_slow_line_once() {
    items_cross_once().unwrap();
}

#[test]
fn uploads_resent_while_in_flight_are_found() {
    fault::with(Some(Fault::LineUnknown), items_cross_once).unwrap_err();
}

#[test]
fn neither_direction_of_a_slow_line_keeps_the_other_waiting() {
    directions_share_the_line().unwrap();
}

#[test]
fn uploads_behind_which_reports_wait_are_found() {
    fault::with(Some(Fault::FullUploads), directions_share_the_line).unwrap_err();
}
