//! Listed objects that a pass refuses, and the delay until it tries them again.

use edgesync_object::matching::ObjectMatch;
use serde_json::{Value, json};

use crate::pass::{Options, Pass};
use crate::record::{Record, State};
use crate::rule::Rule;
use crate::template::Template;
use crate::testing::EmptyDevice;
use crate::wire::Listed;

fn listed(kind: &str, name: &str) -> Listed {
    let [uid, api_version, kind, namespace, name, version] =
        [name, "v1", kind, "n", name, "1"].map(str::to_owned);
    Listed { uid, api_version, kind, namespace, name, version, ..Listed::default() }
}

fn rule_to(path: &str) -> Rule {
    Rule { to: Template::parse(path).unwrap(), ..Rule::default() }
}

/// Applies objects with this `data`, and returns the delay until the next attempt.
fn apply(rule: &Rule, record: &mut Record, listed: &[Listed], data: &Value, now: i64) -> Option<i64> {
    let (mut device, mut seq) = (EmptyDevice(|_, _| {}), 0);
    let options = Options { now, ..Options::default() };
    let pass = Pass::begin(&mut device, rule, record, &mut seq, listed, options);
    pass.apply(&mut |number: usize| {
        let Listed { api_version, kind, namespace, name, .. } = listed.get(number)?;
        let metadata = json!({ "namespace": namespace, "name": name });
        Some(json!({ "apiVersion": api_version, "kind": kind, "metadata": metadata, "data": data }))
    })
}

#[test]
fn objects_without_a_place_are_reported_with_the_reason() {
    let objects = ObjectMatch { kinds: vec!["configmaps".parse().unwrap()], ..ObjectMatch::default() };
    let rule = Rule { objects, ..rule_to("/b/{metadata.name}") };
    let twin = Listed { uid: "twin".into(), namespace: "other".into(), ..listed("ConfigMap", "a") };
    let list = [listed("ConfigMap", "a"), listed("Secret", "key"), listed("ConfigMap", ".ssh"), twin];
    let mut record = Record::default();
    apply(&rule, &mut record, &list, &json!({ "k": "" }), 0);
    assert_eq!((record.counts(), record.objects["a"].state), ([1, 3, 0], State::InEffect));
    for (uid, why) in
        [("key", "not selected by kind"), (".ssh", "hidden file"), ("twin", "same destination as n/a")]
    {
        let status = &record.objects[uid];
        assert!(status.message.contains(why), "{status:?}");
    }
}

#[test]
fn only_sealed_objects_must_not_be_on_a_disk() {
    let sealed = Listed { sealed: true, ..listed("ConfigMap", "sealed") };
    let list = [listed("ConfigMap", "plain"), listed("Secret", "secret"), sealed];
    let applied = |rule: Rule| {
        let mut record = Record::default();
        apply(&rule, &mut record, &list, &json!({ "k": "" }), 0);
        record
    };
    assert_eq!(applied(rule_to("/memory/{metadata.name}")).counts(), [3, 0, 0]);
    let on_disk = rule_to("/disk/{metadata.name}");
    let permitted = Rule { plain_text_on_disk: true, ..on_disk.clone() };
    assert_eq!(applied(permitted).counts(), [3, 0, 0]);
    let record = applied(on_disk);
    assert_eq!((record.counts(), record.objects["plain"].state), ([1, 2, 0], State::InEffect));
    for uid in ["secret", "sealed"] {
        let status = &record.objects[uid];
        assert!(status.message.contains("plain_text_on_disk = true"), "{status:?}");
    }
}

#[test]
fn next_attempt_is_due_when_the_first_backoff_ends() {
    let rule = rule_to("/b/{metadata.name}");
    let list = [listed("ConfigMap", "a"), listed("ConfigMap", "b")];
    let (mut record, refused) = (Record::default(), json!({ "k": 1 }));
    assert_eq!(apply(&rule, &mut record, &list[..1], &refused, 0), Some(10_000_000));
    assert_eq!(apply(&rule, &mut record, &list, &refused, 4_000_000), Some(6_000_000));
    assert_eq!(record.counts(), [0, 2, 0]);
}
