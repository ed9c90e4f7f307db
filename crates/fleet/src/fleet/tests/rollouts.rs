//! Roll-outs at the start, and those whose revisions cannot be read.

use std::sync::atomic::{AtomicI64, Ordering};

use super::turns::{State, World};
use super::*;
use crate::fleet::assignments::RuleIndex;
use crate::node_name;
use crate::source::{RevisionKey, RolloutWrite, RuleKey, SourceError};
use edgesync_object::{Labels, ObjectRef};
use edgesync_placement::Summary;
use edgesync_protocol::cloud::DesiredState as _;
use edgesync_rollout::revision::Entry;
use edgesync_rollout::status::Revision;
use edgesync_rollout::{Command, Digest, Rollout, Set, Status};

const RULE: &str = r#"
[[placement]]
name = "web"
nodes = { names = ["*"] }
objects = { kinds = ["ConfigMap"] }
rollout = { waves = [{}] }
"#;

/// A status with a stable revision.
fn status() -> Status {
    let at = "2026-01-01T00:00:00Z";
    let revision =
        json!({"number": 1, "digest": Digest::of(b"x"), "open": 1, "startedAt": at, "openedAt": at});
    let waves = Rollout::parse(&json!({"waves": [{}]}), "rollout").unwrap().waves.digests();
    let status = json!({"sequence": 1, "nextNumber": 2, "revisions": [revision], "waves": waves});
    Status::read(Some(&status)).unwrap()
}

fn rule(world: &World<true>) -> (RuleIndex, RevisionKey) {
    let key = RuleKey::Configured("web".into());
    let index = world.fleet.reconciler.desired.rollouts.index(&key).unwrap();
    (index, RevisionKey { rule: key, number: 1, digest: Digest::of(b"x") })
}

#[tokio::test]
async fn fleet_starts_without_revisions_that_cannot_be_read() {
    let statuses = vec![("web".to_owned(), status().to_value().to_string())];
    let state = State { statuses, ..State::default() };
    let mut world = World::<false>::of(1, RULE, state).await;
    let rollouts = &world.fleet.reconciler.desired.rollouts;
    assert!(!rollouts.is_reading() && rollouts.rules().all(|(_, rule)| rule.is_active()));
    let name = node_name("node-00000");
    world.fleet.meet(&name).unwrap();
    let desired = world.fleet.reconciler.desired_on(&name);
    let held = ObjectRef {
        api_version: "v1".into(),
        kind: "ConfigMap".into(),
        namespace: "plant".into(),
        name: "x".into(),
    };
    assert!(desired.count() == 0 && desired.is_unread(&held), "the node keeps what it holds");
}

/// With another roll-out under the name, the fleet went back to the old revision.
#[tokio::test]
async fn start_deletes_the_status_of_a_rule_that_has_no_roll_out_any_more() {
    let directory = tempfile::tempdir().unwrap();
    let store = CloudStore::open(&directory.path().join("cloud.db"), &CloudOptions::default()).unwrap();
    let (rule, set) = (RuleKey::Configured("web".into()), Set::default());
    let key = RevisionKey { rule: rule.clone(), number: 1, digest: set.digest() };
    store.store_revision(key.clone(), &set, Vec::new()).await.unwrap();
    let status = Some(status().to_value().to_string());
    assert!(store.write_rollout(RolloutWrite { rule, object: None, expected: 0, status }).await.unwrap());
    let site = Site::over(store, directory).await;
    assert!(site.store.rollout_statuses().await.unwrap().is_empty());
    assert_eq!(site.store.revision(key).await.unwrap(), None);
}

#[tokio::test]
async fn unread_revision_does_not_hold_up_other_changes() {
    let mut world = World::<true>::of(1, RULE, State::default()).await;
    let (index, key) = rule(&world);
    world.fleet.adopt(index, status(), None);
    world.put("x");
    let object = Arc::new(world.summary("x"));
    world.fleet.changed(Change::CaughtUp { question: 1, reached: 1.into() });
    world.fleet.changed(Change::Set(object));
    while world.fleet.deliver_changes() {}
    let is_behind =
        |world: &World<true>| world.fleet.rollout_loop.is_behind(&world.fleet.reconciler.desired.rollouts);
    assert!(is_behind(&world) && world.fleet.reconciler.desired.placement.object("x").is_some());
    for _ in 0..3 {
        assert!(is_behind(&world));
        let failed = Err(SourceError::Unread("the source is gone".into()));
        world.fleet.revision_read(index, key.clone(), failed);
    }
    assert!(!is_behind(&world), "nodes keep what they hold instead");
}

/// A deleted Secret of a revision was noticed after a restart only.
#[tokio::test]
async fn revision_whose_bodies_are_missing_is_read_again() {
    let mut world = World::<true>::of(1, RULE, State::default()).await;
    let (index, key) = rule(&world);
    let set = Arc::new(Set::new([("u".into(), entry())].into()));
    let key = RevisionKey { digest: set.digest(), ..key };
    let mut status = status();
    status.revisions[0].digest = set.digest();
    world.fleet.adopt(index, status, Some(set));
    let is_lost = |world: &World<true>| {
        let rule = world.fleet.reconciler.desired.rollouts.rule(index).unwrap();
        rule.revision(&key).unwrap().set.is_none()
    };
    world.fleet.check_revision(key.clone());
    let failed = Err(SourceError::Unread("the source is gone".into()));
    world.fleet.revision_read(index, key.clone(), failed);
    assert!(!is_lost(&world));
    world.fleet.revision_read(index, key.clone(), Ok(None));
    assert!(is_lost(&world));
    let rule = world.fleet.reconciler.desired.rollouts.rule(index).unwrap();
    assert_eq!(rule.lost(), [1].into());
}

#[tokio::test]
async fn invalid_roll_out_refuses_commands_and_keeps_what_nodes_hold() {
    let mut world = World::<true>::of(1, "", State::default()).await;
    let mut status = status();
    let canary = Revision { number: 2, ..status.revisions[0].clone() };
    status.revisions.push(canary);
    let object = json!({
        "metadata": {"name": "web", "uid": "u"},
        "spec": {"objects": {"kinds": ["ConfigMap"]}, "rollout": {"waves": []}},
        "status": {"rollout": Status { next_number: 3, ..status }},
    });
    let resource = Arc::new(kinds::guess("edgesync.io/v1alpha1", "ClusterPlacement", false));
    let object: Object = serde_json::from_value(object).unwrap();
    world.fleet.changed(Change::Set(Arc::new(Summary::of(&object, resource, 1.into()))));
    while world.fleet.deliver_changes() {}
    let rollouts = &world.fleet.reconciler.desired.rollouts;
    assert!(rollouts.rules().all(|(_, rule)| rule.is_frozen() && rule.status.revisions.len() == 2));
    let (answer, mut answered) = tokio::sync::oneshot::channel();
    let command = Command::Pause { by: "ada".to_owned() };
    world.fleet.administer(AdminRequest::MoveRollout("web".to_owned(), command, answer));
    let refused = answered.try_recv().unwrap().unwrap_err();
    assert!(refused.message.contains("the roll-out of the rule is invalid"), "{refused:?}");
}

/// A ClusterPlacement of this generation, with the status of a roll-out, and with one or not.
fn placement(generation: u64, has_rollout: bool, status: Option<&Status>) -> Change {
    let rollout = if has_rollout { json!({"waves": [{}]}) } else { json!(null) };
    let object = json!({
        "metadata": {"name": "web", "uid": "u", "generation": generation},
        "spec": {"objects": {"kinds": ["ConfigMap"]}, "rollout": rollout},
        "status": {"rollout": status},
    });
    let resource = Arc::new(kinds::guess("edgesync.io/v1alpha1", "ClusterPlacement", false));
    let object: Object = serde_json::from_value(object).unwrap();
    Change::Set(Arc::new(Summary::of(&object, resource, generation.into())))
}

/// The first deletion fails; the process did not lead when the roll-out was removed.
#[tokio::test]
async fn status_of_a_removed_roll_out_is_deleted_until_it_is_gone() {
    let state = State { follows: true, fails_writes: true, ..State::default() };
    let mut world = World::<true>::of(1, "", state).await;
    world.fleet.changed(placement(3, false, Some(&status())));
    for _ in 0..3 {
        world.turn().await;
    }
    assert!(world.store.0.lock().unwrap().written.is_empty(), "another process leads");
    world.store.0.lock().unwrap().follows = false;
    for _ in 0..100 {
        world.turn().await;
    }
    let writes = std::mem::take(&mut world.store.0.lock().unwrap().written);
    assert!(writes.len() >= 2, "{writes:?}");
    let (key, generation) = writes[1].object.clone().unwrap();
    assert_eq!((&*key.name, generation, writes[1].expected, &writes[1].status), ("web", 3, 1, &None));
    assert_eq!(writes[0], writes[1]);
    world.fleet.changed(placement(3, false, None));
    for _ in 0..100 {
        world.turn().await;
    }
    assert!(world.store.0.lock().unwrap().written.is_empty(), "its status has no roll-out any more");
}

/// What was placed before the roll-out was removed is not the new roll-out's.
#[tokio::test]
async fn roll_out_that_is_removed_and_added_begins_without_the_status_of_before() {
    let mut world = World::<true>::of(1, "", State { follows: true, ..State::default() }).await;
    world.fleet.changed(placement(1, true, Some(&status())));
    world.turn().await;
    world.fleet.changed(placement(2, false, Some(&status())));
    world.fleet.changed(placement(2, false, None));
    world.fleet.changed(placement(3, true, None));
    for _ in 0..5 {
        world.turn().await;
    }
    let rollouts = &world.fleet.reconciler.desired.rollouts;
    let rule = rollouts.rule(rollouts.index(&RuleKey::Object("u".into())).unwrap()).unwrap();
    assert!(rule.is_active() && rule.status == Status::default(), "{rule:?}");
    assert!(world.fleet.rollout_loop.leftover.is_empty());
}

#[tokio::test]
async fn command_that_waits_when_its_roll_out_ends_is_answered() {
    let mut world = World::<true>::of(1, "", State::default()).await;
    world.fleet.changed(placement(1, true, Some(&status())));
    while world.fleet.deliver_changes() {}
    let (answer, mut answered) = tokio::sync::oneshot::channel();
    let command = Command::Pause { by: "ada".to_owned() };
    world.fleet.administer(AdminRequest::MoveRollout("web".to_owned(), command, answer));
    world.fleet.changed(placement(2, false, Some(&status())));
    world.turn().await;
    let refused = answered.try_recv().unwrap().unwrap_err();
    assert!(refused.message.contains("has no roll-out any more"), "{refused:?}");
    assert!(world.store.0.lock().unwrap().written.iter().all(|write| write.status.is_none()));
}

/// Bodies of rules that were deleted while this process did not run, or did not lead.
#[tokio::test]
async fn bodies_are_swept_without_any_roll_out() {
    let mut world = World::<false>::of(1, "", State::default()).await;
    for _ in 0..3 {
        world.turn().await;
    }
    assert_eq!(world.store.0.lock().unwrap().sweeps, 1);
    tokio::time::advance(Duration::from_secs(700)).await;
    for _ in 0..3 {
        world.turn().await;
    }
    assert_eq!(world.store.0.lock().unwrap().sweeps, 2);
}

#[tokio::test]
async fn refused_bodies_are_reported_and_tried_ever_more_seldom() {
    let state = State { refused: Some(0), ..State::default() };
    let mut world = World::<true>::of(1, RULE, state).await;
    world.fleet.reconciler.clock = || {
        static CALLS: AtomicI64 = AtomicI64::new(0);
        Timestamp::from_second(60 * CALLS.fetch_add(1, Ordering::Relaxed)).unwrap()
    };
    let (index, _) = rule(&world);
    for _ in 0..1000 {
        world.turn().await;
    }
    let refused = world.store.0.lock().unwrap().refused.unwrap();
    assert!((3..=20).contains(&refused), "{refused} attempts");
    let (answer, mut answered) = tokio::sync::oneshot::channel();
    world.fleet.administer(AdminRequest::ShowRollout("web".to_owned(), answer));
    let shown = answered.try_recv().unwrap().unwrap();
    let message = &shown.conditions.iter().find(|shown| shown.r#type == "Degraded").unwrap().message;
    assert!(message.contains("no space"), "{shown:?}");
    world.store.0.lock().unwrap().refused = None;
    for _ in 0..1000 {
        world.turn().await;
    }
    let rule = world.fleet.reconciler.desired.rollouts.rule(index).unwrap();
    assert_eq!(rule.status.revisions.len(), 1);
}

/// A count of ten thousand nodes takes several turns.
#[tokio::test]
async fn command_does_not_wait_for_counts() {
    let mut world = World::<true>::of(1, RULE, State::default()).await;
    let (answer, mut answered) = tokio::sync::oneshot::channel();
    let command = Command::Undo { by: "ada".to_owned(), revision: 9, override_windows: false };
    world.fleet.administer(AdminRequest::MoveRollout("web".to_owned(), command, answer));
    world.fleet.reconciler.work.set_part(0);
    assert!(world.fleet.move_rollouts(), "the count is left");
    assert!(answered.try_recv().unwrap().is_err(), "no such revision");
}

#[tokio::test]
async fn one_snapshot_is_made_at_a_time() {
    let text = [RULE, &RULE.replace("web", "other")].concat();
    let mut world = World::<true>::of(1, &text, State::default()).await;
    world.fleet.reconciler.clock = || {
        static CALLS: AtomicI64 = AtomicI64::new(0);
        Timestamp::from_second(60 * CALLS.fetch_add(1, Ordering::Relaxed)).unwrap()
    };
    let is_begun = |world: &World<true>| {
        world.fleet.reconciler.desired.rollouts.rules().all(|(_, rule)| !rule.status.revisions.is_empty())
    };
    for _ in 0..200 {
        world.turn().await;
    }
    assert!(is_begun(&world));
    assert_eq!(world.store.0.lock().unwrap().storing, (0, 1), "none now, one at most");
}

/// Returns whether a rule for the first of two nodes overlaps an older one for these nodes.
async fn overlaps(nodes: &str) -> bool {
    let younger = RULE.replace("\"*\"", "\"node-00000\"");
    let older = RULE.replace("web", "older").replace("\"*\"", &format!("{nodes:?}"));
    let mut world = World::<true>::of(2, &[younger, older].concat(), State::default()).await;
    world.fleet.reconciler.clock = || {
        static CALLS: AtomicI64 = AtomicI64::new(0);
        Timestamp::from_second(60 * CALLS.fetch_add(1, Ordering::Relaxed)).unwrap()
    };
    world.put("x");
    world.connect_all();
    for _ in 0..500 {
        world.carry();
        world.turn().await;
    }
    let rollouts = &world.fleet.reconciler.desired.rollouts;
    assert!(rollouts.rules().all(|(_, rule)| !rule.status.revisions.is_empty()));
    let (answer, mut answered) = tokio::sync::oneshot::channel();
    world.fleet.administer(AdminRequest::ShowRollout("web".to_owned(), answer));
    let shown = answered.try_recv().unwrap().unwrap();
    shown.conditions.iter().any(|shown| shown.reason == "Overlaps")
}

#[tokio::test]
async fn rules_for_a_common_node_overlap() {
    assert!(overlaps("*").await);
}

/// They were said to overlap.
#[tokio::test]
async fn rules_for_different_nodes_do_not_overlap() {
    assert!(!overlaps("node-00001").await);
}

/// What an away node holds was compared with all that is desired there, each second.
#[tokio::test]
async fn away_node_is_compared_once() {
    const OBJECTS: usize = 2000;
    let (stable, newest) = (Arc::new(Set::default()), Arc::new(Set::new([("u".into(), entry())].into())));
    let mut status = status();
    status.revisions[0].digest = stable.digest();
    let canary = Revision { number: 2, digest: newest.digest(), ..status.revisions[0].clone() };
    status.revisions.push(canary);
    status.next_number = 3;
    let statuses = vec![("web".to_owned(), status.to_value().to_string())];
    let state = State { statuses, revisions: vec![stable, newest], ..State::default() };
    let text =
        [RULE.replace("ConfigMap", "Secret"), "[[placement]]\nobjects = { kinds = [\"ConfigMap\"] }".into()];
    let mut world = World::<false>::of(1, &text.concat(), state).await;
    world.fleet.meet(&node_name("node-00000")).unwrap();
    for number in 0..OBJECTS {
        let name = format!("object-{number}");
        world.put(&name);
        let object = Arc::new(world.summary(&name));
        world.fleet.changed(Change::Set(object));
    }
    while world.fleet.deliver_changes() {}
    let mut counts = Vec::new();
    for _ in 0..3 {
        let before = world.fleet.reconciler.work.done();
        while world.fleet.move_rollouts() {}
        counts.push(world.fleet.reconciler.work.done() - before);
        tokio::time::advance(Duration::from_secs(2)).await;
    }
    assert!(counts[0] >= OBJECTS as u64 && counts[1] < 100 && counts[2] < 100, "{counts:?}");
}

fn entry() -> Entry {
    let object = ObjectRef {
        api_version: "v1".into(),
        kind: "Secret".into(),
        namespace: "plant".into(),
        name: "u".into(),
    };
    Entry { version: 1.into(), object, labels: Labels::new(), size: 1, digest: "".into() }
}
