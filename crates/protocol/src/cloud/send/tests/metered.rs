//! The credit of a metered link: what is sent with it, and when the node is asked for another one.

use super::*;
use crate::frame::{Credit, DEFAULT_MAX_FRAME};
use crate::metered::{MeteredLink, Waiting};

/// Returns a live machine of a node on a metered link with this credit.
fn metered(credit: u64) -> (CloudMachine, DesiredObjects) {
    let (mut cloud, wishes) = (machine(), DesiredObjects::default());
    let link = MeteredLink { credit: Some(0), ..MeteredLink::default() };
    let hello = Hello { metered: Some(link), ..Hello::of_empty_node("edge", "a") };
    crate::cloud::testing::welcome(&mut cloud, Up::Hello(hello), &wishes);
    assert!(matches!(cloud.output.next_frame(), Some(Down::Welcome(_))));
    grant(&mut cloud, &wishes, credit);
    (cloud, wishes)
}

fn grant(cloud: &mut CloudMachine, wishes: &DesiredObjects, bytes: u64) {
    cloud.received(Now::ZERO, Up::Credit(Credit { session: "a".into(), bytes, receipt: 0 }), wishes);
}

/// Returns the number of objects in the next frame.
fn sent(cloud: &mut CloudMachine, wishes: &DesiredObjects) -> usize {
    match cloud.poll_frame(Now::ZERO, wishes) {
        Some(Down::Objects(objects)) => objects.messages.len(),
        other => panic!("must be objects: {other:?}"),
    }
}

/// The object without a credit was first among the ready ones, and nothing else was loaded.
#[test]
fn object_without_a_credit_holds_up_no_smaller_one() {
    let (mut cloud, mut wishes) = metered(8 * KIB as u64);
    desire(&mut cloud, &mut wishes, 0, 4 * KIB);
    let (token, uids) = load(&mut cloud, &wishes).unwrap();
    cloud.loaded(Now::ZERO, token, bodies(&uids, 4 * KIB), &wishes);
    grant(&mut cloud, &wishes, 2 * KIB as u64);
    desire(&mut cloud, &mut wishes, 1, KIB);
    let (token, uids) = load(&mut cloud, &wishes).unwrap();
    assert_eq!(uids, [name(1)]);
    cloud.loaded(Now::ZERO, token, bodies(&uids, KIB), &wishes);
    assert_eq!(sent(&mut cloud, &wishes), 1);
    assert_eq!((load(&mut cloud, &wishes), cloud.waiting().credit), (None, 1));
    assert!(cloud.waits_for_link(&name(0)) && !cloud.waits_for_link(&name(1)));
}

/// Returns the counts in the next frame, which is a Confirm.
fn confirmed(cloud: &mut CloudMachine, now: Now, wishes: &DesiredObjects) -> Option<Waiting> {
    cloud.poll_frame(now, wishes).map(|frame| match frame {
        Down::Confirm(confirm) => confirm.waiting,
        other => panic!("must be a Confirm: {other:?}"),
    })
}

/// A lost Confirm, or a lost credit, left the node without objects until its next session.
#[test]
fn credit_is_requested_again_ever_more_seldom() {
    let (mut cloud, mut wishes) = metered(0);
    desire(&mut cloud, &mut wishes, 0, KIB);
    let waits = Some(Waiting { credit: 1, ..Waiting::default() });
    assert_eq!((load(&mut cloud, &wishes), confirmed(&mut cloud, Now::ZERO, &wishes)), (None, waits));
    let mut now = Now::ZERO;
    for minutes in [0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 32.0] {
        assert_eq!(cloud.deadline(), Some(now + Duration::from_secs_f64(60.0 * minutes)));
        now = cloud.deadline().unwrap();
        cloud.tick(now, &wishes);
        assert_eq!(confirmed(&mut cloud, now, &wishes), waits);
        // A credit that does not suffice is no progress.
        grant(&mut cloud, &wishes, 1);
        assert_eq!(confirmed(&mut cloud, now, &wishes), None);
    }
}

/// Each object that began to wait cost the link a Confirm.
#[test]
fn number_of_waiting_objects_is_confirmed_once_a_minute() {
    let (mut cloud, mut wishes) = metered(0);
    desire(&mut cloud, &mut wishes, 0, KIB);
    assert!(confirmed(&mut cloud, Now::ZERO, &wishes).is_some());
    (1..10).for_each(|number| desire(&mut cloud, &mut wishes, number, KIB));
    assert_eq!(confirmed(&mut cloud, Now::ZERO, &wishes), None);
    let due = cloud.deadline().unwrap();
    assert!(due > Now::ZERO && due <= Duration::from_secs(60));
    cloud.tick(due, &wishes);
    let waits = Waiting { credit: 10, ..Waiting::default() };
    assert_eq!(confirmed(&mut cloud, due, &wishes), Some(waits));
}

/// It had the urgency of the large object before it, and less urgent ones came first.
#[test]
fn object_larger_than_estimated_waits_with_its_own_urgency() {
    let (mut cloud, mut wishes) = metered(100_000_000);
    desire(&mut cloud, &mut wishes, 0, KIB);
    let (token, uids) = load(&mut cloud, &wishes).unwrap();
    cloud.loaded(Now::ZERO, token, bodies(&uids, DEFAULT_MAX_FRAME as usize), &wishes);
    let low = DesiredObject { urgency: Urgency::Low, ..wish(1, 1, KIB) };
    wishes.tell(Now::ZERO, Some(&mut cloud), &name(1), Some(low));
    desire(&mut cloud, &mut wishes, 2, KIB);
    assert_eq!(load(&mut cloud, &wishes).unwrap().1, [name(2)]);
}

/// It was counted as a failure of the delivery, and its node as one that lags.
#[test]
fn lost_object_that_waits_for_a_credit_is_no_lag() {
    let (mut cloud, mut wishes) = metered(3 * KIB as u64);
    desire(&mut cloud, &mut wishes, 0, 2 * KIB);
    let (token, uids) = load(&mut cloud, &wishes).unwrap();
    cloud.loaded(Now::ZERO, token, bodies(&uids, 2 * KIB), &wishes);
    assert_eq!(sent(&mut cloud, &wishes), 1);
    assert!(!cloud.is_settled());
    while cloud.waiting().credit == 0 {
        let now = cloud.deadline().unwrap();
        assert!(now < DAY);
        cloud.tick(now, &wishes);
        assert_eq!(load(&mut cloud, &wishes), None);
    }
    assert!(cloud.is_settled() && !cloud.in_sync());
}
