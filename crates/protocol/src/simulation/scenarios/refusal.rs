//! Scenarios with rejected objects: retries with growing delays, which delay nothing else.

use super::*;
use crate::change::Change;

#[test]
fn a_rejected_delete_is_shown_and_retried_with_backoff() {
    let mut world = in_sync(3);
    world.refuse(|change| matches!(change, Change::Delete(_)));
    let before = world.sent();
    world.delete("object-001");
    world.pass(Duration::from_secs(40)).unwrap();
    assert_eq!((world.sent().1 - before.1, world.refused(), world.held()), (1, 1, 3));
    world.pass(Duration::from_secs(24 * 3600)).unwrap();
    let sent = world.sent().1 - before.1;
    assert!((24..60).contains(&sent), "{sent} attempts");
    world.refuse(|_| false);
    world.pass(Duration::from_secs(3600)).unwrap();
    assert_eq!((world.refused(), world.held()), (0, 2));
}

#[test]
fn a_version_that_is_refused_does_not_delay_the_next_one() {
    for pause in [0, 1, 5, 10, 20, 40, 60] {
        let mut world = in_sync(3);
        // The first version is rejected, the second one is not.
        world.refuse(|change| matches!(change, Change::Put(put) if put.body.get().len() < 500));
        world.write("object-001", 30);
        world.pass(Duration::from_millis(pause)).unwrap();
        world.write("object-001", 1000);
        world.pass(Duration::from_secs(2)).unwrap();
        assert_eq!(world.refused(), 0, "{pause} ms later");
        world.settle();
    }
}

#[test]
fn a_late_rejection_does_not_delay_the_next_version() {
    for seed in 0..40 {
        let mut world = World::new(seed, Setting::QUIET, false);
        world.write("object", 20);
        world.connect(0);
        world.settle();
        world.refuse(|change| matches!(change, Change::Put(put) if put.body.get().len() < 500));
        for _ in 0..3 {
            world.write("object", 30);
            world.pass(Duration::from_millis(seed)).unwrap();
        }
        world.write("object", 1000);
        world.pass(Duration::from_secs(2)).unwrap();
        assert_eq!(world.refused(), 0, "seed {seed}");
        world.settle();
    }
}
