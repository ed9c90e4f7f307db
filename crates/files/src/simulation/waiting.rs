//! Changes that wait behind a closed gate, one pass at a time.

use super::*;
use crate::WaitReason;
use crate::calendar::Window;
use crate::pass::keep_all;
use crate::testing::EmptyDevice;
use jiff::tz::TimeZone;

/// A rule that gathers objects in one directory, and lets them override windows.
fn rule() -> Rule {
    Rule {
        to: Template::parse("/b/all").unwrap(),
        gather: true,
        apply: vec![Window::parse("02:00-04:00", TimeZone::UTC).unwrap()],
        overridable: true,
        ..rule_of(Write::Keys, false, true)
    }
}

/// An object with one key, named like itself.
fn object(name: &str, version: u64, urgent: bool) -> (Listed, Value) {
    let listed = Object { name: name.to_owned(), version, content: Vec::new() }.listed();
    let content = format!("{}{version}", if urgent { "urgent " } else { "" });
    let urgency = if urgent { "override-window" } else { "none" };
    let metadata =
        json!({ "namespace": "n", "name": name, "annotations": { "edgesync.io/urgency": urgency } });
    let data = json!({ name: content });
    (listed, json!({ "apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": data }))
}

/// Runs a pass behind a closed window with this explanation, or behind an open gate. Returns the
/// record, and the time until the next pass.
fn pass(
    world: &mut World,
    rule: &Rule,
    objects: &[(Listed, Value)],
    closed: Option<&str>,
) -> (Record, Option<i64>) {
    let reason = WaitReason::Window;
    pass_behind(world, rule, objects, &|overrides: bool| {
        let message = closed.filter(|_| !overrides)?.to_owned();
        Some(Closed { reason, until: None, message })
    })
}

/// The same, behind another gate.
fn pass_behind(
    world: &mut World,
    rule: &Rule,
    objects: &[(Listed, Value)],
    judge: &dyn Fn(bool) -> Option<Closed>,
) -> (Record, Option<i64>) {
    let permission = &Permission { judge, outside: judge(false).is_some(), held: false };
    let shape = if rule.gather || rule.write == Write::Keys { Shape::Directory } else { Shape::File };
    let path = rule.to.place("n", "all").unwrap().path();
    let data = |(_, body): &(Listed, Value)| {
        let data = body["data"].as_object().unwrap().clone();
        data.into_iter().map(|(key, value)| (key, value.as_str().unwrap().as_bytes().to_vec()))
    };
    let files: Files = objects.iter().flat_map(data).collect();
    world.desired.entry(path).or_default().push(files);
    let (left, mut record) = (Cell::new(None), world.record());
    let mut seq = record.objects.values().map(|status| status.seq).max().unwrap_or(0);
    let (full, broken, stuck, swapped) = (false, false, None, Vec::new());
    let mut model = Model { world, left: &left, full, broken, stuck, shape, permission, swapped };
    let listed: Vec<Listed> = objects.iter().map(|(listed, _)| listed.clone()).collect();
    let options = Options { now: 1, ..Options::default() };
    let pass = Pass::begin(&mut model, rule, &mut record, &mut seq, &listed, options);
    let next = pass.apply(&mut |number| objects.get(number).map(|(_, body)| body.clone()));
    (record, next)
}

/// It was removed outside of windows: no object that changed was not urgent.
/// A helper that starts continues from the list that its record has.
#[test]
fn record_has_the_list_of_the_last_pass() {
    let (listed, body) = object("a", 1, false);
    let listed =
        Listed { api_version: "lab.io/v1".into(), kind: "Mouse".into(), plural: "mice".into(), ..listed };
    let (record, _) = pass(&mut World::default(), &rule(), &[(listed.clone(), body)], None);
    assert_eq!(crate::list::last(&record), [listed]);
}

#[test]
fn removal_from_a_shared_directory_waits_for_its_window() {
    let (rule, mut world) = (rule(), World::default());
    let [a, b] = [object("a", 1, true), object("b", 1, true)];
    let (record, _) = pass(&mut world, &rule, &[a.clone(), b.clone()], None);
    assert_eq!(record.counts(), [2, 0, 0]);
    let (record, _) = pass(&mut world, &rule, std::slice::from_ref(&a), Some("closed"));
    assert_eq!((record.waiting(), record.reloads), (2, 1), "{:?}", record.objects);
    // Nor does an urgent neighbour take the removal along.
    let urgent = object("a", 2, true);
    let (record, _) = pass(&mut world, &rule, std::slice::from_ref(&urgent), Some("closed"));
    assert_eq!((record.waiting(), record.reloads), (2, 1), "{:?}", record.objects);
    let (record, _) = pass(&mut world, &rule, &[urgent, b], Some("closed"));
    assert_eq!((record.counts(), record.reloads), ([2, 0, 0], 2));
}

#[test]
fn window_that_closes_during_a_change_lets_it_end() {
    let (rule, mut world) = (rule(), World::default());
    let looks = Cell::new(0);
    // Open for the test, for the pass, and for the begin of its transaction.
    let closes = |_: bool| {
        looks.set(looks.get() + 1);
        let reason = WaitReason::Window;
        (looks.get() > 3).then(|| Closed { reason, until: None, message: "closed".to_owned() })
    };
    let objects = [object("a", 1, false), object("b", 1, false)];
    let (record, _) = pass_behind(&mut world, &rule, &objects, &closes);
    assert_eq!((record.counts(), record.waiting(), record.reloads), ([2, 0, 0], 0, 1));
    let files = &world.read.as_ref().unwrap()["/b/all"];
    assert!(["a", "b"].iter().all(|name| files[*name] == b"1"), "{files:?}");
    // The next change finds it closed.
    let objects = [object("a", 2, false), object("b", 1, false)];
    let (record, _) = pass_behind(&mut world, &rule, &objects, &closes);
    assert_eq!((record.waiting(), record.reloads), (2, 1), "{:?}", record.objects);
}

#[test]
fn change_of_the_rule_alone_is_not_urgent() {
    let (mut rule, mut world) = (rule(), World::default());
    let objects = [object("a", 1, true)];
    pass(&mut world, &rule, &objects, None);
    rule.text = "two".to_owned();
    let (record, _) = pass(&mut world, &rule, &objects, Some("closed"));
    assert_eq!((record.waiting(), record.reloads), (1, 1), "{:?}", record.objects);
}

/// It was reported as waiting for its window from the second pass on.
#[test]
fn urgent_change_that_waits_for_a_file_shows_the_file_in_each_pass() {
    let (mut rule, mut world) = (rule(), World::default());
    (rule.gather, rule.to) = (false, Template::parse("/b/{metadata.name}").unwrap());
    let window =
        Closed { reason: WaitReason::Window, until: Some(7_200_000_000), message: "night".to_owned() };
    let busy = Closed { reason: WaitReason::Busy, until: None, message: "busy".to_owned() };
    let objects = [object("a", 1, true), object("b", 1, false)];
    for number in 1..4 {
        let (record, next) = pass_behind(&mut world, &rule, &objects, &|overrides| {
            Some(if overrides { busy.clone() } else { window.clone() })
        });
        let shown = |uid: &str| record.objects[uid].reason;
        let reasons = [shown("uid-a"), shown("uid-b")];
        assert_eq!(reasons, [Some(WaitReason::Busy), Some(WaitReason::Window)], "pass {number}");
        assert_eq!(next, Some(30_000_000), "the file is looked at again, in pass {number}");
    }
}

/// The next pass followed at once, without end.
#[test]
fn place_that_changes_its_shape_waits_without_a_busy_loop() {
    let (mut rule, mut world) = (rule(), World::default());
    (rule.gather, rule.to) = (false, Template::parse("/b/{metadata.name}").unwrap());
    pass(&mut world, &rule, &[object("all", 1, false)], None);
    (rule.write, rule.text) = (Write::Field("/data/all".to_owned()), "two".to_owned());
    for _ in 0..2 {
        let (record, next) = pass(&mut world, &rule, &[object("all", 2, false)], Some("closed"));
        assert_eq!((record.waiting(), record.reloads), (1, 1), "{:?}", record.objects);
        assert!(next.is_some_and(|next| next >= 1_000_000), "{next:?}");
    }
}

/// The time in the explanation was written to the disk with each look at the gate.
#[test]
fn another_explanation_of_the_same_wait_writes_nothing() {
    let (rule, mut world) = (rule(), World::default());
    pass(&mut world, &rule, &[object("a", 1, false)], Some("it is 11:00"));
    let written = world.record.clone();
    assert!(written.contains("it is 11:00"));
    let (record, _) = pass(&mut world, &rule, &[object("a", 1, false)], Some("it is 12:00"));
    assert_eq!(record.objects["uid-a"].message, "it is 12:00");
    assert_eq!(world.record, written);
}

#[test]
fn kept_files_are_not_copied_again() {
    let (mut record, _) = pass(&mut World::default(), &rule(), &[object("a", 1, false)], None);
    assert_eq!(keep_all(&mut EmptyDevice(|_, _| {}), &mut record), Ok(false), "the pass has kept them");
}
