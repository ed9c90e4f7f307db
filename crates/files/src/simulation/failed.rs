//! Changes that fail: when they are tried again, and which versions count as in effect.

use super::*;

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
