use std::collections::BTreeMap;

use super::super::rules::{RolloutWrite, Rules};
use super::super::testing::{NAMESPACE, Rig};
use super::*;
use edgesync_object::ObjectRef;
use edgesync_protocol::body::Body;
use edgesync_rollout::revision::Entry;
use edgesync_rollout::{Digest, Status};

/// Returns bodies of about these sizes, which do not compress well, with UIDs in the order of the
/// numbers.
pub(super) fn loaded(sizes: &[(usize, usize)]) -> Vec<Loaded> {
    let load = |(number, size): &(usize, usize)| {
        let mut text = String::new();
        while text.len() < *size {
            text.push_str(&Digest::of(format!("{number} {}", text.len()).as_bytes()).to_string());
        }
        Loaded {
            uid: format!("u{number:05}").into(),
            version: (*number as u64 + 1).into(),
            body: Body::new(json!({"data": text}).to_string()).unwrap(),
            patch: None,
        }
    };
    sizes.iter().map(load).collect()
}

pub(super) fn set(bodies: &[Loaded]) -> Set {
    let entry = |loaded: &Loaded| {
        let object = ObjectRef {
            api_version: "v1".into(),
            kind: "ConfigMap".into(),
            namespace: "lab".into(),
            name: loaded.uid.clone(),
        };
        (loaded.uid.clone(), Entry::new(loaded.version.clone(), object, loaded.body.as_str()))
    };
    Set::new(bodies.iter().map(entry).collect())
}

fn rule() -> RuleKey {
    RuleKey::Object("2f4b".into())
}

pub(super) fn key(number: u64, set: &Set) -> RevisionKey {
    RevisionKey { rule: rule(), number, digest: set.digest() }
}

/// The revisions of a replica that has read nothing yet.
fn replica(rig: &Rig) -> Revisions {
    Revisions::new(&rig.requests(), NAMESPACE)
}

/// Stores a revision of some objects.
async fn store(rig: &Rig, number: u64, sizes: &[(usize, usize)]) -> RevisionKey {
    let bodies = loaded(sizes);
    let set = Arc::new(set(&bodies));
    let key = key(number, &set);
    replica(rig).store(key.clone(), set, bodies).await.unwrap();
    key
}

/// Returns the names of all Secrets of revisions, those with an index first.
async fn names(rig: &Rig) -> Vec<String> {
    let revisions = replica(rig);
    let secrets = revisions.requests.list_metadata(&revisions.secrets, NAMESPACE, LABEL).await.unwrap();
    let mut names: Vec<String> = secrets.iter().map(|secret| secret.name().to_owned()).collect();
    names.sort_by_key(|name| !is_index(name));
    names
}

/// Returns the texts of the bodies of a revision, by UID.
async fn texts(rig: &Rig, key: &RevisionKey, uids: &[&str]) -> BTreeMap<String, String> {
    let uids = uids.iter().map(|uid| (*uid).into()).collect();
    let bodies = replica(rig).bodies(key, uids).await.unwrap();
    bodies.iter().map(|loaded| (loaded.uid.to_string(), loaded.body.as_str().to_owned())).collect()
}

/// The roll-outs of this rule, with these revisions.
fn sweep(revisions: &[&RevisionKey], next_number: u64) -> Sweep {
    let revisions: Vec<Value> = revisions
        .iter()
        .map(|key| {
            json!({
                "number": key.number, "digest": key.digest, "open": 1,
                "startedAt": "2026-11-27T00:00:00Z", "openedAt": "2026-11-27T00:00:00Z",
            })
        })
        .collect();
    let status: Status =
        serde_json::from_value(json!({"revisions": revisions, "nextNumber": next_number})).unwrap();
    Sweep([(rule(), status)].into())
}

#[tokio::test]
async fn a_revision_is_read_by_another_replica() {
    let rig = Rig::start().await;
    // The second body needs several Secrets.
    let sizes = [(0, 100), (1, 2 << 20), (2, 100)];
    let key = store(&rig, 1, &sizes).await;
    let bodies = loaded(&sizes);
    assert_eq!(replica(&rig).set(&key).await.unwrap(), Some(Arc::new(set(&bodies))));
    for wanted in [&["u00000", "u00001", "u00002"][..], &["u00002", "another"], &[]] {
        let expected = bodies.iter().filter(|loaded| wanted.contains(&&*loaded.uid));
        let expected: BTreeMap<_, _> =
            expected.map(|loaded| (loaded.uid.to_string(), loaded.body.as_str().to_owned())).collect();
        assert_eq!(texts(&rig, &key, wanted).await, expected);
    }
    let unknown = RevisionKey { number: 2, ..key };
    assert_eq!(replica(&rig).set(&unknown).await.unwrap(), None);
    assert_eq!(texts(&rig, &unknown, &["u00000"]).await, BTreeMap::new());
}

#[tokio::test]
async fn secrets_of_a_revision_are_marked_and_immutable() {
    let rig = Rig::start().await;
    let key = store(&rig, 1, &[(0, 100)]).await;
    let names = names(&rig).await;
    assert_eq!(names.len(), 2);
    for name in names {
        let secret = rig.get("v1", "Secret", NAMESPACE, &name).await.unwrap();
        assert_eq!(secret.fields()["type"], TYPE);
        assert_eq!(secret.fields()["immutable"], json!(true));
        assert_eq!(key_of(&secret), Some(key.clone()));
    }
}

#[tokio::test]
async fn storing_a_revision_again_changes_nothing() {
    let rig = Rig::start().await;
    let sizes = [(0, 100), (1, 100)];
    let key = store(&rig, 1, &sizes).await;
    let before = names(&rig).await;
    store(&rig, 1, &sizes).await;
    assert_eq!(names(&rig).await, before);
    // Another replica with another configuration sends other texts of the same versions.
    let mut others = loaded(&sizes);
    others[0].body = Body::new("{}".to_owned()).unwrap();
    let other = Arc::new(set(&others));
    assert_eq!(self::key(1, &other), key);
    replica(&rig).store(key.clone(), other, others).await.unwrap();
    let bodies = loaded(&sizes);
    assert_eq!(replica(&rig).set(&key).await.unwrap(), Some(Arc::new(set(&bodies))));
    assert_eq!(texts(&rig, &key, &["u00000"]).await["u00000"], bodies[0].body.as_str());
}

#[tokio::test]
async fn lost_secrets_are_noticed_and_stored_again() {
    let rig = Rig::start().await;
    let sizes = [(0, 100)];
    let key = store(&rig, 1, &sizes).await;
    for name in names(&rig).await {
        rig.delete(&rig.get("v1", "Secret", NAMESPACE, &name).await.unwrap()).await;
        assert_eq!(replica(&rig).set(&key).await.unwrap(), None, "{name}");
        assert!(texts(&rig, &key, &["u00000"]).await.is_empty(), "{name}");
        store(&rig, 1, &sizes).await;
        assert!(replica(&rig).set(&key).await.unwrap().is_some(), "{name}");
    }
}

#[tokio::test]
async fn each_pack_is_read_once_for_all_nodes() {
    let rig = Rig::start().await;
    // Two packs, the second one in two Secrets.
    let key = store(&rig, 1, &[(0, 100), (1, 100), (2, 2 << 20)]).await;
    assert_eq!(names(&rig).await.len(), 4);
    let revisions = replica(&rig);
    revisions.set(&key).await.unwrap();
    let urgent = revisions.requests.used().urgent;
    let mut calls = tokio::task::JoinSet::new();
    for number in 0..20 {
        let (revisions, key) = (revisions.clone(), key.clone());
        let uid: Uid = format!("u{:05}", number % 3).into();
        calls.spawn(async move { revisions.bodies(&key, vec![uid]).await.unwrap().len() });
    }
    while let Some(found) = calls.join_next().await {
        assert_eq!(found.unwrap(), 1);
    }
    let used = revisions.requests.used();
    assert_eq!((used.urgent, used.background), (urgent + 3, 0), "one for each Secret of a pack");
}

#[tokio::test]
async fn damaged_pack_is_noticed_by_its_revision_until_it_is_restored() {
    let rig = Rig::start().await;
    let key = store(&rig, 1, &[(0, 100), (1, 2 << 20)]).await;
    let revisions = replica(&rig);
    assert!(revisions.set(&key).await.unwrap().is_some());
    let name = names(&rig).await.pop().unwrap();
    let good = rig.get("v1", "Secret", NAMESPACE, &name).await.unwrap();
    rig.delete(&good).await;
    let other = revisions.secret(&name, &key, b"damaged");
    let damaged = rig.create(Value::Object(other.into_fields())).await;
    assert!(revisions.set(&key).await.unwrap().is_some(), "a Secret of the name exists");
    // Objects that the revision does not have are no loss.
    assert!(revisions.bodies(&key, vec!["another".into()]).await.unwrap().is_empty());
    assert!(revisions.set(&key).await.unwrap().is_some());
    let uids: Vec<Uid> = vec!["u00000".into(), "u00001".into()];
    assert_eq!(revisions.bodies(&key, uids.clone()).await.unwrap().len(), 1);
    assert!(revisions.set(&key).await.unwrap().is_none());
    assert!(revisions.set(&key).await.unwrap().is_none(), "it is not forgotten");
    rig.delete(&damaged).await;
    let mut fields = good.into_fields();
    for field in ["uid", "resourceVersion", "creationTimestamp", "managedFields"] {
        fields["metadata"].as_object_mut().unwrap().remove(field);
    }
    rig.create(Value::Object(fields)).await;
    assert!(revisions.set(&key).await.unwrap().is_some());
    assert_eq!(revisions.bodies(&key, uids).await.unwrap().len(), 2);
}

#[tokio::test]
async fn revision_that_is_too_large_leaves_no_secrets() {
    let rig = Rig::start().await;
    let sizes: Vec<_> = (0..6).map(|number| (number, 2 << 20)).collect();
    let bodies = loaded(&sizes);
    let set = Arc::new(set(&bodies));
    let refused = replica(&rig).store(key(1, &set), set, bodies).await;
    assert!(matches!(refused, Err(SourceError::RevisionTooLarge { .. })), "{refused:?}");
    assert!(names(&rig).await.is_empty());
}

#[tokio::test]
async fn damaged_index_is_replaced() {
    let rig = Rig::start().await;
    let sizes = [(0, 100)];
    let bodies = loaded(&sizes);
    let key = key(1, &set(&bodies));
    let damaged = replica(&rig).secret(&index_name(&key), &key, b"damaged");
    rig.create(Value::Object(damaged.into_fields())).await;
    assert_eq!(replica(&rig).set(&key).await.unwrap(), None);
    store(&rig, 1, &sizes).await;
    assert!(replica(&rig).set(&key).await.unwrap().is_some());
}

#[tokio::test]
async fn bodies_other_than_those_of_the_set_are_refused() {
    let rig = Rig::start().await;
    let bodies = loaded(&[(0, 100), (1, 100)]);
    let set = Arc::new(set(&bodies));
    let refused = replica(&rig).store(key(1, &set), set, bodies[..1].to_vec()).await;
    assert!(matches!(refused, Err(SourceError::Revision(_))), "{refused:?}");
    assert!(names(&rig).await.is_empty());
}

#[tokio::test]
async fn sweep_deletes_garbage_and_old_secrets_of_unknown_rules() {
    let rig = Rig::start().await;
    let now = Timestamp::now();
    let first = store(&rig, 1, &[(0, 100)]).await;
    let second = store(&rig, 2, &[(0, 100), (1, 100)]).await;
    let prepared = store(&rig, 3, &[(2, 100)]).await;
    replica(&rig).sweep(&sweep(&[&second], 3), now).await.unwrap();
    for (key, is_kept) in [(&first, false), (&second, true), (&prepared, true)] {
        assert_eq!(replica(&rig).set(key).await.unwrap().is_some(), is_kept, "{key}");
    }
    assert_eq!(names(&rig).await.len(), 4, "an index and a pack of two revisions");
    // The rule may be so new that this replica does not know it.
    replica(&rig).sweep(&Sweep::default(), now).await.unwrap();
    assert_eq!(names(&rig).await.len(), 4);
    let later = now + SignedDuration::from_hours(2);
    replica(&rig).sweep(&Sweep::default(), later).await.unwrap();
    assert!(names(&rig).await.is_empty());
}

/// A late leader deleted the bodies of a restored roll-out, and of one that was begun again.
#[tokio::test]
async fn sweep_with_an_older_status_keeps_what_the_stored_one_has() {
    let rig = Rig::start().await;
    let now = Timestamp::now();
    let rule = rig
        .create(json!({
            "apiVersion": API_VERSION, "kind": "ClusterPlacement", "metadata": {"name": "maps"},
            "spec": {"objects": {"kinds": ["cm"]}, "nodes": {}},
        }))
        .await;
    let rule = RuleKey::Object(rule.uid().into());
    let stored = async |number, sizes: &[(usize, usize)]| {
        let bodies = loaded(sizes);
        let set = Arc::new(set(&bodies));
        let key = RevisionKey { rule: rule.clone(), number, digest: set.digest() };
        replica(&rig).store(key.clone(), set, bodies).await.unwrap();
        key
    };
    let (first, second) = (stored(1, &[(0, 100)]).await, stored(2, &[(1, 100)]).await);
    let late = |status: Sweep| Sweep([(rule.clone(), status.0.into_values().next().unwrap())].into());
    let late = late(sweep(&[&second], 9));
    // The status was dropped, and the first revision is about to begin.
    replica(&rig).sweep(&late, now).await.unwrap();
    assert_eq!(names(&rig).await.len(), 4);
    let status = sweep(&[&first], 3).0.into_values().next().unwrap().to_value();
    let object = Some((kinds::guess(API_VERSION, "ClusterPlacement", false).key("", "maps"), 1));
    let write = RolloutWrite { rule: rule.clone(), object, expected: 0, status: Some(status.to_string()) };
    assert!(Rules::new(&rig.requests()).write_rollout(write).await.unwrap());
    replica(&rig).sweep(&late, now).await.unwrap();
    assert_eq!(names(&rig).await.len(), 4, "the stored status has the first, the late one the second");
    replica(&rig).sweep(&Sweep([(rule, Status::read(Some(&status)).unwrap())].into()), now).await.unwrap();
    assert!(replica(&rig).set(&first).await.unwrap().is_some());
    assert!(replica(&rig).set(&second).await.unwrap().is_none());
}

#[tokio::test]
async fn other_secrets_with_the_label_stay() {
    let rig = Rig::start().await;
    let metadata = json!({"name": "mine", "namespace": NAMESPACE, "labels": {LABEL: "x"}});
    rig.create(json!({"apiVersion": "v1", "kind": "Secret", "metadata": metadata})).await;
    let later = Timestamp::now() + SignedDuration::from_hours(2);
    replica(&rig).sweep(&Sweep::default(), later).await.unwrap();
    assert_eq!(names(&rig).await, ["mine"]);
}
