//! Changes that fail: when they are tried again, and which versions count as in effect.

use super::*;
use crate::calendar::Window;
use jiff::tz::TimeZone;

fn object(version: u64, content: &[u8]) -> Object {
    Object { name: "o0".to_owned(), version, content: content.to_vec() }
}

#[test]
fn failed_place_is_tried_again_when_its_backoff_ends() {
    let rule = rule_of(Write::Keys, true, false);
    let objects = [object(1, INVALID)];
    let mut world = World::default();
    let wait = |world: &mut World, now: i64| {
        world.pass(&rule, &objects, &Faults::default(), now).waits["/b/o0"].clone()
    };
    let until = wait(&mut world, 1).until;
    assert_eq!(wait(&mut world, until - 1).tries, 1);
    assert_eq!(wait(&mut world, until).tries, 2);
    // A clock that was set back by an hour does not prolong the wait.
    assert_eq!(wait(&mut world, until - 3_600_000_000).tries, 3);
    // Nothing waits for an object that is gone.
    assert!(world.pass(&rule, &[], &Faults::default(), until).waits.is_empty());
}

#[test]
fn another_version_or_rule_is_tried_without_backoff() {
    let rule = rule_of(Write::Keys, true, false);
    let mut world = World::default();
    let calm = Faults::default();
    assert_eq!(world.pass(&rule, &[object(1, INVALID)], &calm, 1).counts(), [0, 1, 0]);
    assert_eq!(world.pass(&rule, &[object(2, b"good")], &calm, 2).counts(), [1, 0, 0]);
    assert_eq!(world.pass(&rule, &[object(3, INVALID)], &calm, 3).counts(), [0, 1, 0]);
    let unchecked = Rule { check: Vec::new(), text: "two".into(), ..rule };
    assert_eq!(world.pass(&unchecked, &[object(3, INVALID)], &calm, 4).counts(), [1, 0, 0]);
}

#[test]
fn deleted_object_with_lost_files_is_not_in_effect() {
    let rule = rule_of(Write::Keys, false, false);
    let mut world = World::default();
    world.pass(&rule, &[object(1, b"good")], &Faults::default(), 1);
    world.paths.clear();
    let record = world.pass(&rule, &[], &Faults { full: true, ..Faults::default() }, 2);
    assert!(record.places.contains_key("/b/o0"), "the removal has failed");
    let status = &record.objects["uid-o0"];
    assert_eq!((status.state, status.version.as_deref()), (State::Gone, None));
}

/// The agent stores the number of the last status with each report, and would store another one
/// after each attempt.
#[test]
fn failed_commit_takes_no_number() {
    let windows = vec![Window::parse("00:00-24:00", TimeZone::UTC).unwrap()];
    for apply in [Vec::new(), windows] {
        let rule = Rule { apply, ..rule_of(Write::Keys, false, false) };
        let objects = |version, content| {
            ["o0", "o1"].map(|name| Object { name: name.to_owned(), ..object(version, content) })
        };
        let mut world = World::default();
        world.pass(&rule, &objects(1, b"good"), &Faults::default(), 1);
        assert_eq!(world.seq, 2);
        match rule.may_wait() {
            true => world.refused_copy = Some("/b/o1".to_owned()),
            false => world.refuses_records = true,
        }
        for attempt in 2..4 {
            let force = Faults { force: true, ..Faults::default() };
            let record = world.pass(&rule, &objects(2, b"better"), &force, attempt);
            assert_eq!(record.counts(), [0, 2, 0]);
            let numbers = ["uid-o0", "uid-o1"].map(|uid| record.objects[uid].seq);
            assert_eq!((numbers, world.seq), ([3, 4], 4), "attempt {attempt}");
        }
    }
}

#[test]
fn deleted_object_is_no_longer_rolled_back() {
    let rule = rule_of(Write::Keys, false, true);
    let mut world = World::default();
    let record = world.pass(&rule, &[object(1, REJECTED)], &Faults::default(), 1);
    assert!(record.objects["uid-o0"].rolled_back);
    let record = world.pass(&rule, &[], &Faults::default(), 2);
    let status = &record.objects["uid-o0"];
    assert_eq!((status.state, status.rolled_back), (State::Gone, false));
}
