//! Roll-outs: statuses are replaced by compare-and-swap; a revision is stored as a whole, and its
//! bodies as long as a revision has them.

use super::*;
use edgesync_protocol::body::Body;
use edgesync_rollout::revision::Entry;
use edgesync_rollout::{Digest, Set, Status};

/// Bodies of objects with these versions, under the UIDs `u0`, `u1`, and so on.
fn loaded(versions: &[u64]) -> Vec<Loaded> {
    let load = |(number, version): (usize, &u64)| {
        let body = json!({"data": {"number": number, "version": version}}).to_string();
        Loaded {
            uid: format!("u{number}").into(),
            version: (*version).into(),
            body: Body::new(body).unwrap(),
            patch: None,
        }
    };
    versions.iter().enumerate().map(load).collect()
}

fn set(bodies: &[Loaded]) -> Set {
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

fn key(rule: &RuleKey, number: u64, set: &Set) -> RevisionKey {
    RevisionKey { rule: rule.clone(), number, digest: set.digest() }
}

fn rule(name: &str) -> RuleKey {
    RuleKey::Configured(name.into())
}

/// Stores a revision of these versions.
async fn store_revision(store: &CloudStore, name: &str, number: u64, versions: &[u64]) -> RevisionKey {
    let bodies = loaded(versions);
    let set = set(&bodies);
    let key = key(&rule(name), number, &set);
    store.store_revision(key.clone(), &set, bodies).await.unwrap();
    key
}

/// Returns the texts of the bodies of a revision.
async fn texts(store: &CloudStore, key: &RevisionKey, count: usize) -> Vec<String> {
    let uids = (0..count).map(|number| format!("u{number}").into()).collect();
    let bodies = store.revision_bodies(key.clone(), uids).await.unwrap();
    bodies.iter().map(|loaded| loaded.body.as_str().to_owned()).collect()
}

/// Returns the numbers of stored revisions and of stored bodies.
async fn counts(store: &CloudStore) -> (u64, u64) {
    let count = |table: &'static str| async move {
        let sql = format!("SELECT count(*) FROM {table}");
        let count = store
            .readers
            .run(move |conn| -> Result<u64, CloudError> { Ok(conn.query_row(&sql, [], |row| row.get(0))?) });
        count.await.unwrap()
    };
    (count("revisions").await, count("revision_bodies").await)
}

fn status(numbers: &[(u64, Digest)], next_number: u64) -> Status {
    let revision = |(number, digest): &(u64, Digest)| {
        json!({
            "number": number, "digest": digest, "open": 1,
            "startedAt": REMOVED, "openedAt": REMOVED,
        })
    };
    let revisions: Vec<Value> = numbers.iter().map(revision).collect();
    serde_json::from_value(json!({"revisions": revisions, "nextNumber": next_number})).unwrap()
}

#[tokio::test]
async fn a_revision_survives_a_crash_and_shares_its_bodies() {
    let fixture = fixture();
    let first = store_revision(&fixture.store, "web", 1, &[1, 2, 3]).await;
    let second = store_revision(&fixture.store, "web", 2, &[1, 2, 4]).await;
    let other = store_revision(&fixture.store, "db", 1, &[1, 2, 3]).await;
    let crashed = fixture.after_crash();
    let store = &crashed.store;
    assert_eq!(counts(store).await, (3, 4));
    for (key, versions) in [(&first, [1, 2, 3]), (&second, [1, 2, 4]), (&other, [1, 2, 3])] {
        let bodies = loaded(&versions);
        assert_eq!(store.revision(key.clone()).await.unwrap(), Some(set(&bodies)));
        let expected: Vec<_> = bodies.iter().map(|loaded| loaded.body.as_str().to_owned()).collect();
        // The last UID is in no revision.
        assert_eq!(texts(store, key, 4).await, expected);
    }
    let unknown = RevisionKey { number: 3, ..second };
    assert_eq!(store.revision(unknown.clone()).await.unwrap(), None);
    assert_eq!(texts(store, &unknown, 4).await, Vec::<String>::new());
    store.look_through().await.unwrap();
}

#[tokio::test]
async fn storing_a_revision_again_changes_nothing() {
    let Fixture { store, .. } = &fixture();
    let first = store_revision(store, "web", 1, &[1, 2]).await;
    let before = counts(store).await;
    assert_eq!(store_revision(store, "web", 1, &[1, 2]).await, first);
    assert_eq!(counts(store).await, before);
}

#[tokio::test]
async fn large_revision_is_stored_in_several_transactions() {
    let Fixture { store, .. } = &fixture();
    let versions: Vec<u64> = (0..1000).collect();
    let key = store_revision(store, "web", 1, &versions).await;
    assert_eq!(texts(store, &key, versions.len()).await.len(), versions.len());
    let empty = store_revision(store, "web", 2, &[]).await;
    assert_eq!(store.revision(empty).await.unwrap(), Some(Set::default()));
}

#[tokio::test]
async fn interrupted_revision_is_not_visible_and_is_stored_again() {
    let Fixture { store, .. } = &fixture();
    let bodies = loaded(&[1, 2]);
    let set = set(&bodies);
    let key = key(&rule("web"), 1, &set);
    let row = (key.rule.to_string(), key.digest.to_string());
    // As left by a crash, with a set that describes other bodies of the same versions.
    store
        .write(64, move |tx| {
            let sql =
                "INSERT INTO revisions (rule, number, digest, objects, complete) VALUES (?1, 1, ?2, '{}', 0)";
            tx.conn.execute(sql, (&row.0, &row.1))?;
            Ok(())
        })
        .await
        .unwrap();
    assert_eq!(store.revision(key.clone()).await.unwrap(), None);
    store.store_revision(key.clone(), &set, bodies).await.unwrap();
    assert_eq!(store.revision(key.clone()).await.unwrap(), Some(set));
    assert_eq!((counts(store).await, texts(store, &key, 2).await.len()), ((1, 2), 2));
}

#[tokio::test]
async fn bodies_other_than_those_of_the_set_are_refused() {
    let Fixture { store, .. } = &fixture();
    let bodies = loaded(&[1, 2]);
    let set = set(&bodies);
    let key = key(&rule("web"), 1, &set);
    let other_digest = RevisionKey { digest: Digest::of(b""), ..key.clone() };
    let other_version = vec![bodies[0].clone(), Loaded { version: 3.into(), ..bodies[1].clone() }];
    let other_text = vec![bodies[0].clone(), Loaded { body: bodies[0].body.clone(), ..bodies[1].clone() }];
    for (key, bodies, problem) in [
        (&other_digest, bodies.clone(), "the set has the digest"),
        (&key, bodies[..1].to_vec(), "no body of object 'u1'"),
        (&key, other_version, "the body of object 'u1' is not that of version 2"),
        (&key, other_text, "the body of object 'u1' is not that of version 2"),
        (&key, loaded(&[1, 2, 3]), "the set has no object 'u2'"),
    ] {
        let error = store.store_revision(key.clone(), &set, bodies).await.unwrap_err();
        let CloudError::Revision(refused) = &error else { panic!("{error}") };
        assert!(refused.problem.contains(problem), "{error}");
        assert!(error.to_string().starts_with("store revision 1 of rule name/web: "), "{error}");
    }
    assert_eq!(counts(store).await, (0, 0));
}

#[tokio::test]
async fn sweep_deletes_garbage_and_rules_that_are_gone() {
    let Fixture { store, .. } = &fixture();
    let first = store_revision(store, "web", 1, &[1, 2]).await;
    let second = store_revision(store, "web", 2, &[1, 3]).await;
    // Prepared, but no status has it yet.
    let prepared = store_revision(store, "web", 3, &[4, 3]).await;
    let gone = store_revision(store, "db", 1, &[9]).await;
    for name in ["web", "db"] {
        let status = Some(r#"{"sequence":1}"#.to_owned());
        let write = RolloutWrite { rule: rule(name), object: None, expected: 0, status };
        assert!(store.write_rollout(write).await.unwrap());
    }
    let sweep = Sweep([(rule("web"), status(&[(2, second.digest)], 3))].into());
    store.sweep_revisions(sweep).await.unwrap();
    for (key, is_kept) in [(&first, false), (&second, true), (&prepared, true), (&gone, false)] {
        assert_eq!(store.revision(key.clone()).await.unwrap().is_some(), is_kept, "{key}");
    }
    assert_eq!(counts(store).await, (2, 3));
    assert_eq!(texts(store, &second, 2).await.len(), 2);
    let names: Vec<_> = store.rollout_statuses().await.unwrap().into_iter().map(|(name, _)| name).collect();
    assert_eq!(names, ["web"]);
}

#[tokio::test]
async fn deleted_status_of_a_configured_rule_takes_its_revisions_along() {
    let Fixture { store, .. } = &fixture();
    let ours = store_revision(store, "web", 1, &[1, 2]).await;
    let other = store_revision(store, "db", 1, &[1, 3]).await;
    let write = async |expected: u64, status: Option<&str>| {
        let status = status.map(str::to_owned);
        store.write_rollout(RolloutWrite { rule: rule("web"), object: None, expected, status }).await.unwrap()
    };
    assert!(write(0, Some(r#"{"sequence":1}"#)).await);
    assert!(!write(0, None).await && store.revision(ours.clone()).await.unwrap().is_some());
    assert!(write(1, None).await);
    assert_eq!(store.revision(ours).await.unwrap(), None);
    assert_eq!((counts(store).await, texts(store, &other, 2).await.len()), ((1, 2), 2));
}

#[tokio::test]
async fn damaged_body_is_found() {
    let Fixture { store, .. } = &fixture();
    let key = store_revision(store, "web", 1, &[1, 2]).await;
    store
        .write(64, |tx| {
            tx.conn.execute("UPDATE revision_bodies SET body = '{}' WHERE id = 1", [])?;
            Ok(())
        })
        .await
        .unwrap();
    let read = store.revision_bodies(key, vec!["u0".into(), "u1".into()]).await.unwrap();
    assert_eq!(read.iter().map(|loaded| &*loaded.uid).collect::<Vec<_>>(), ["u1"], "without the lost one");
    assert!(store.look_through().await.is_err());
}

#[tokio::test]
async fn damaged_set_is_a_lost_one() {
    let Fixture { store, .. } = &fixture();
    let key = store_revision(store, "web", 1, &[1]).await;
    for text in ["{}", "no JSON"] {
        store
            .write(64, move |tx| {
                tx.conn.execute("UPDATE revisions SET objects = ?1", [text])?;
                Ok(())
            })
            .await
            .unwrap();
        assert_eq!(store.revision(key.clone()).await.unwrap(), None);
        assert!(store.revision_bodies(key.clone(), vec!["u0".into()]).await.unwrap().is_empty());
    }
}

#[tokio::test]
async fn configured_roll_out_is_replaced_if_the_sequence_is_the_stored_one() {
    let Fixture { store, .. } = &fixture();
    let write = async |expected: u64, sequence: u64| {
        let status = Some(json!({"sequence": sequence}).to_string());
        let write = RolloutWrite { rule: rule("web"), object: None, expected, status };
        store.write_rollout(write).await.unwrap()
    };
    assert!(!write(1, 2).await, "nothing is stored");
    assert!(write(0, 1).await);
    assert!(!write(0, 1).await);
    assert!(write(1, 2).await);
    assert_eq!(store.rollout_statuses().await.unwrap(), [("web".to_owned(), r#"{"sequence":2}"#.to_owned())]);
    // A status that no roll-out can have is a lost one.
    store
        .write(64, |tx| {
            tx.conn.execute("UPDATE rollouts SET status = '[7]'", [])?;
            Ok(())
        })
        .await
        .unwrap();
    assert!(!write(2, 3).await);
    assert!(write(0, 1).await);
    let delete = async |expected| {
        let write = RolloutWrite { rule: rule("web"), object: None, expected, status: None };
        store.write_rollout(write).await.unwrap()
    };
    assert!(!delete(0).await);
    assert!(delete(1).await);
    assert!(store.rollout_statuses().await.unwrap().is_empty());
}

#[tokio::test]
async fn roll_out_of_a_rule_is_replaced_if_the_spec_is_the_one_that_was_read() {
    let Fixture { store, .. } = &fixture();
    let resource = kinds::guess("edgesync.io/v1alpha1", "Placement", true);
    let placement = json!({
        "apiVersion": "edgesync.io/v1alpha1", "kind": "Placement", "metadata": {"name": "web", "namespace": "lab"},
        "spec": {"objects": {"kinds": ["cm"]}, "nodes": {}},
    });
    let created = store.create(&resource, serde_json::from_value(placement).unwrap()).await.unwrap();
    let write_status = async |uid: &str, generation: u64, expected: u64, status: Option<String>| {
        let rule = RuleKey::Object(uid.into());
        let object = Some((resource.key("lab", "web"), generation));
        store.write_rollout(RolloutWrite { rule, object, expected, status }).await.unwrap()
    };
    let write = async |uid: &str, generation: u64, expected: u64| {
        let status = json!({"sequence": expected + 1}).to_string();
        write_status(uid, generation, expected, Some(status)).await
    };
    let read = async || object(&store.get(resource.key("lab", "web")).await.unwrap());
    assert!(!write("another", 1, 0).await);
    assert!(!write(&created.uid, 2, 0).await);
    assert!(!write(&created.uid, 1, 1).await);
    assert!(write(&created.uid, 1, 0).await);
    assert_eq!(rollout_sequence(&read().await), 1);
    // Other parts of the status have their own writes.
    let progress = RuleStatus {
        key: resource.key("lab", "web"),
        uid: created.uid.clone(),
        status: json!({"nodes": 3, "rollout": {"sequence": 9}}),
    };
    store.set_rule_status(progress.clone()).await.unwrap();
    let after = read().await;
    assert_eq!(after.fields()["status"], json!({"nodes": 3, "rollout": {"sequence": 1}}));
    store.set_rule_status(progress).await.unwrap();
    assert_eq!(read().await, after, "an equal status costs no version");
    assert!(write(&created.uid, 1, 1).await);
    assert_eq!(read().await.fields()["status"], json!({"nodes": 3, "rollout": {"sequence": 2}}));
    assert!(!write_status(&created.uid, 1, 1, None).await);
    assert!(write_status(&created.uid, 1, 2, None).await);
    assert_eq!(read().await.fields()["status"], json!({"nodes": 3}));
    store.delete(&resource, "lab", "web", None).await.unwrap();
    assert!(!write(&created.uid, 1, 0).await);
}
