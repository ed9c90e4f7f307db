//! Scenarios over a line of 10 KB/s and 200 ms: it carries no more than needed.

use super::*;

/// Returns a world over such a line, in the default configuration.
fn slow(is_external: bool) -> World {
    let setting = Setting { line: Line::slow(is_external), sizes: Sizes::Default, ..Setting::QUIET };
    World::new(1, setting, false)
}

/// Returns such a world over an unlimited line.
fn fast(is_external: bool) -> World {
    let line = Line { is_external, ..Line::FAST };
    World::new(1, Setting { line, sizes: Sizes::Default, ..Setting::QUIET }, false)
}

fn bytes(world: &World) -> usize {
    let (up, down) = world.traffic();
    up.bytes + down.bytes
}

/// Returns the bytes on the line until both sides are equal, in percent of a fast line's.
fn percent_of_need(write: impl Fn(&mut World)) -> [usize; 2] {
    [false, true].map(|is_external| {
        let [needed, sent] = [fast(is_external), slow(is_external)].map(|mut world| {
            write(&mut world);
            world.connect(0);
            world.pass_until_in_sync(Duration::from_secs(3600));
            let counters = world.cloud_counters();
            // Each side has fewer timer wakes than frames.
            assert!(world.wakes() <= world.frames_sent() + 20, "{} wakes", world.wakes());
            println!(
                "external {is_external}: {} bytes, {} resent, {} repeated, {:?}",
                bytes(&world),
                counters.resent,
                world.repeated_reports(),
                world.now(),
            );
            bytes(&world)
        });
        sent * 100 / needed
    })
}

#[test]
fn a_thousand_small_objects_cross_a_slow_line_once() {
    let percent = percent_of_need(|world| {
        (0..1000).for_each(|n| world.write(&format!("object-{n:03}"), 500));
    });
    assert!(percent.iter().all(|percent| *percent <= 110), "{percent:?} percent");
}

#[test]
fn an_object_of_4_mib_crosses_a_slow_line_once() {
    let percent = percent_of_need(|world| world.write("large", 4 << 20));
    assert!(percent.iter().all(|percent| *percent <= 110), "{percent:?} percent");
}

#[test]
fn a_cloud_that_is_late_itself_sends_nothing_again() {
    for is_external in [false, true] {
        let mut world = slow(is_external);
        (0..300).for_each(|n| world.write(&format!("object-{n:03}"), 500));
        world.connect(0);
        for _ in 0..3 {
            world.pass(Duration::from_secs(2)).unwrap();
            world.stall(Duration::from_secs(30));
            world.pass(Duration::from_secs(31)).unwrap();
        }
        world.pass_until_in_sync(Duration::from_secs(3600));
        assert_eq!((world.cloud_counters().resent, world.cloud_counters().repairs), (0, 0));
    }
}

#[test]
fn small_objects_beside_a_large_one_go_once() {
    for seed in 0..20 {
        // Commits take longer than parts to arrive.
        let mut world = World::new(seed, Setting::QUIET, false);
        world.write("large", max_object() - 2000);
        (0..100).for_each(|n| world.write(&format!("object-{n:03}"), 500));
        world.connect(0);
        world.pass_until_in_sync(Duration::from_secs(60));
        assert_eq!((world.cloud_counters().resent, world.cloud_counters().repairs), (0, 0), "seed {seed}");
    }
}

#[test]
fn frames_lost_by_a_broker_are_resent_in_seconds() {
    for is_external in [false, true] {
        let mut world = fast(is_external);
        (0..10).for_each(|n| world.write(&format!("object-{n:03}"), 500));
        world.connect(0);
        world.settle();
        world.lose_down(|frame| matches!(frame, Down::Objects(_)));
        (0..10).for_each(|n| world.write(&format!("object-{n:03}"), 510));
        world.pass(Duration::from_secs(1)).unwrap();
        world.lose_down(|_| false);
        let time = world.pass_until_in_sync(Duration::from_secs(60));
        assert!(time <= Duration::from_secs(8), "{time:?}");
    }
}
