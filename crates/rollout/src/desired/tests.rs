use super::*;
use edgesync_object::ObjectRef;
use std::collections::BTreeMap;

fn entry(version: &str) -> Entry {
    let object =
        ObjectRef { api_version: "v1".into(), kind: "Pod".into(), namespace: "a".into(), name: "b".into() };
    Entry { version: version.into(), object, labels: BTreeMap::new(), size: 1, digest: "".into() }
}

fn set(version: &str) -> Set {
    Set::new(BTreeMap::from([("u".into(), entry(version))]))
}

fn rule<'a>(created: i64, name: &'a str, selects: bool, assigned: Assigned<'a>) -> Governing<'a> {
    let created = Timestamp::from_second(created).unwrap();
    Governing { age: Age { created, namespace: "", name }, selects, assigned }
}

#[test]
fn the_oldest_rule_decides_whatever_the_order() {
    let (old, new) = (set("1"), set("2"));
    let mut rules = [rule(1, "b", true, Assigned::Set(&old)), rule(2, "a", true, Assigned::Set(&new))];
    for _ in 0..2 {
        let decision = decide("u", &rules, true);
        assert_eq!((decision.desired, decision.by.unwrap().name), (Desired::Version(&entry("1")), "b"));
        assert_eq!(decision.overlapped.iter().map(|age| age.name).collect::<Vec<_>>(), ["a"]);
        rules.reverse();
    }
    // The name breaks ties.
    let rules = [rule(1, "b", true, Assigned::Set(&old)), rule(1, "a", true, Assigned::Set(&new))];
    assert_eq!(decide("u", &rules, false).by.unwrap().name, "a");
}

#[test]
fn a_rule_decides_about_what_it_has_or_selects_only() {
    let (other, ours) = (Set::default(), set("2"));
    let rules = [rule(1, "a", false, Assigned::Set(&other)), rule(2, "b", false, Assigned::Set(&ours))];
    let decision = decide("u", &rules, false);
    assert_eq!((decision.desired, decision.overlapped), (Desired::Version(&entry("2")), vec![]));
    let decision = decide("u", &rules[..1], true);
    assert_eq!((decision.desired, decision.by), (Desired::Newest, None));
    assert_eq!(decide("u", &[], false).desired, Desired::Absent);
}

#[test]
fn an_object_outside_of_the_revision_is_there_by_other_placement_only() {
    let empty = Set::default();
    let rules = [rule(1, "a", true, Assigned::Set(&empty))];
    assert_eq!(decide("u", &rules, false).desired, Desired::Absent);
    assert_eq!(decide("u", &rules, true).desired, Desired::Newest);
}

#[test]
fn an_object_that_was_deleted_stays_while_the_revision_has_it() {
    let set = set("1");
    assert_eq!(
        decide("u", &[rule(1, "a", false, Assigned::Set(&set))], false).desired,
        Desired::Version(&entry("1"))
    );
}

#[test]
fn nothing_changes_before_the_first_revision_and_without_bodies() {
    assert_eq!(decide("u", &[rule(1, "a", true, Assigned::None)], false).desired, Desired::Newest);
    assert_eq!(decide("u", &[rule(1, "a", false, Assigned::None)], false).desired, Desired::Absent);
    for (selects, is_placed) in [(false, false), (true, false), (true, true)] {
        let rules = [rule(1, "a", selects, Assigned::Lost)];
        assert_eq!(decide("u", &rules, is_placed).desired, Desired::Unchanged);
    }
}

#[test]
fn lost_revision_holds_up_no_object_of_others() {
    let lost = rule(1, "a", false, Assigned::Lost);
    assert_eq!(decide("u", &[lost], true).desired, Desired::Newest);
    let set = set("1");
    let rules = [lost, rule(2, "b", false, Assigned::Set(&set))];
    let decision = decide("u", &rules, false);
    assert_eq!((decision.desired, decision.by.unwrap().name), (Desired::Version(&entry("1")), "b"));
}
