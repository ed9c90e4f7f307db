//! Messages and refusals whose object has changed since.

use super::*;
use crate::change::Change;
use crate::frame::Received;
use edgesync_object::Budget;

/// Returns a live machine whose node holds the one object in version 1.
fn holding() -> (CloudMachine, DesiredObjects) {
    let (mut cloud, wishes) = sending();
    let objects = vec![held(0)];
    report(&mut cloud, &wishes, Now::ZERO, Report { to: 1, objects, ..Report::default() });
    store(&mut cloud, &wishes);
    assert!(cloud.in_sync());
    (cloud, wishes)
}

/// Prepares the removal of the object, changes the desired state, and returns the changes that all
/// frames bring to the node.
fn sent_after(then: impl FnOnce(&mut CloudMachine, &mut DesiredObjects)) -> Vec<Change> {
    let (mut cloud, mut wishes) = holding();
    wishes.tell(Now::ZERO, Some(&mut cloud), &name(0), None);
    assert_eq!(load(&mut cloud, &wishes), None, "a removal needs no body");
    assert!(cloud.sender.has_ready());
    then(&mut cloud, &mut wishes);
    let mut changes = sent_changes(&mut cloud, &wishes);
    while let Some((token, uids)) = load(&mut cloud, &wishes) {
        let body = |mut loaded: Loaded| {
            loaded.version = wishes.0[&loaded.uid].version.clone();
            let text = loaded
                .body
                .as_str()
                .replace(r#""resourceVersion":"1""#, &format!(r#""resourceVersion":"{}""#, loaded.version));
            Loaded { body: Body::new(text).unwrap(), ..loaded }
        };
        let bodies = bodies(&uids, KIB).into_iter().map(body).collect();
        cloud.loaded(Now::ZERO, token, bodies, &wishes);
        changes.extend(sent_changes(&mut cloud, &wishes));
    }
    changes
}

/// Returns the changes in the ready frames, as the node decodes them.
fn sent_changes(cloud: &mut CloudMachine, wishes: &DesiredObjects) -> Vec<Change> {
    let decoded = |frame: Down| {
        let bytes = frame.encode(usize::MAX).unwrap();
        match Received::decode(&bytes, &mut Budget::of(1 << 20), 1 << 20).unwrap() {
            Received::Objects(objects) => objects.changes,
            _ => Vec::new(),
        }
    };
    std::iter::from_fn(|| cloud.poll_frame(Now::ZERO, wishes)).flat_map(decoded).collect()
}

#[test]
fn a_ready_removal_is_sent_while_its_object_is_not_desired() {
    let sent = sent_after(|_, _| {});
    assert!(matches!(&sent[..], [Change::Delete(delete)] if delete.uid == name(0)), "{sent:?}");
}

#[test]
fn a_ready_removal_of_an_object_desired_again_is_not_sent() {
    let sent = sent_after(|cloud, wishes| {
        desire(cloud, wishes, 0, KIB);
    });
    assert!(sent.is_empty(), "the node still holds it: {sent:?}");
    let sent = sent_after(|cloud, wishes| {
        desire_version(cloud, wishes, 0, 2, KIB);
    });
    let [Change::Put(put)] = &sent[..] else { panic!("must be its new version: {sent:?}") };
    assert_eq!((&put.uid, &put.version), (&name(0), &2.into()));
}

/// Reports that the node refuses version 1 of the object.
fn refuse_first(cloud: &mut CloudMachine, wishes: &DesiredObjects) {
    let rejected = Rejected {
        uid: name(0),
        resource_version: 1.into(),
        reason: RejectReason::Invalid,
        message: "no".into(),
        object: None,
    };
    report(cloud, wishes, Now::ZERO, Report { rejected: vec![rejected], ..Report::default() });
}

#[test]
fn a_refusal_does_not_delay_a_newer_version() {
    let (mut cloud, mut wishes) = sending();
    desire_version(&mut cloud, &mut wishes, 0, 2, KIB);
    assert_eq!(load(&mut cloud, &wishes), None, "version 1 is in flight");
    refuse_first(&mut cloud, &wishes);
    assert_eq!(cloud.refused().count(), 0);
    assert_eq!(load(&mut cloud, &wishes).map(|(_, uids)| uids), Some(vec![name(0)]));
}

#[test]
fn a_late_refusal_of_an_older_version_leaves_a_newer_one_in_flight() {
    let (mut cloud, mut wishes) = (machine(), DesiredObjects::default());
    desire_version(&mut cloud, &mut wishes, 0, 2, KIB);
    welcome(&mut cloud, "a", &wishes);
    let (token, uids) = load(&mut cloud, &wishes).unwrap();
    let mut bodies = bodies(&uids, KIB);
    bodies[0].version = 2.into();
    cloud.loaded(Now::ZERO, token, bodies, &wishes);
    assert_eq!(frames(&mut cloud, &wishes), [1]);
    refuse_first(&mut cloud, &wishes);
    assert_eq!((cloud.refused().count(), cloud.in_flight()), (0, 1));
}
