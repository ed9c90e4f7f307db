//! Changes and removals that cannot be rolled back.

use super::*;

/// Its status named the version of the files that were gone.
#[test]
fn removal_that_cannot_be_rolled_back_has_no_version() {
    let rule = rule_of(Write::Keys, false, true);
    let object =
        |name: &str, content: &[u8]| Object { name: name.to_owned(), version: 1, content: content.to_vec() };
    let mut world = World::default();
    world.pass(&rule, &[object("o0", b"good")], &Faults::default(), 1);
    let stuck = Faults { stuck: Some(0), look: true, force: true, ..Faults::default() };
    let record = world.pass(&rule, &[object("o1", REJECTED)], &stuck, 2);
    assert!(record.stuck.contains_key("/b/o0"));
    let status = &record.objects["uid-o0"];
    assert_eq!((status.state, status.version.as_deref()), (State::NotInEffect, None));
    assert_eq!(status.wanted.as_deref(), Some("1"));
}

/// Recovery left the object in effect, although its files were gone.
#[test]
fn recovery_that_cannot_roll_back_leaves_no_version() {
    let rule = rule_of(Write::Keys, false, false);
    let object = Object { name: "o0".to_owned(), version: 1, content: b"good".to_vec() };
    let mut stuck = 0;
    for cut in 1..12 {
        let mut world = World::default();
        world.pass(&rule, std::slice::from_ref(&object), &Faults::default(), 1);
        world.pass(&rule, &[], &Faults { cut: Some(cut), ..Faults::default() }, 2);
        let record = world.pass(&rule, &[], &Faults { stuck: Some(0), ..Faults::default() }, 3);
        if record.stuck.contains_key("/b/o0") {
            stuck += 1;
            let status = &record.objects["uid-o0"];
            assert_eq!((status.state, status.version.as_deref()), (State::NotInEffect, None), "cut {cut}");
        }
    }
    assert!(stuck > 0, "no power cut left a removal to roll back");
}

#[test]
fn new_version_for_a_stuck_place_is_not_in_effect() {
    let rule = rule_of(Write::Keys, false, true);
    let object =
        |version, content: &[u8]| Object { name: "o0".to_owned(), version, content: content.to_vec() };
    let mut world = World::default();
    world.pass(&rule, &[object(1, b"good")], &Faults::default(), 1);
    let stuck = Faults { stuck: Some(0), ..Faults::default() };
    world.pass(&rule, &[object(2, REJECTED)], &stuck, 2);
    let record = world.pass(&rule, &[object(3, b"good again")], &stuck, 3);
    assert!(record.stuck.contains_key("/b/o0"));
    let status = &record.objects["uid-o0"];
    assert_eq!((status.state, status.version.as_deref()), (State::NotInEffect, None));
    assert_eq!(status.wanted.as_deref(), Some("3"));
    assert!(status.message.starts_with("earlier change cannot be rolled back: "), "{status:?}");
}
