use std::time::Duration;

use super::*;
use crate::cloud::CloudMachine;
use crate::cloud::testing::{self, DesiredObjects, hello, hello_with, machine};
use crate::frame::{Down, MIN_MAX_FRAME, Up};
use crate::renewal::Lease;
use crate::timing::Now;
use crate::upload::MAX_SEQ;

/// Completes the handshake and returns the frames for the node.
fn welcome(cloud: &mut CloudMachine, session: &str) -> Vec<Down> {
    testing::welcome(cloud, hello_with(session, MIN_MAX_FRAME), &nothing());
    frames(cloud)
}

fn nothing() -> DesiredObjects {
    DesiredObjects::default()
}

fn frames(cloud: &mut CloudMachine) -> Vec<Down> {
    std::iter::from_fn(|| cloud.poll_frame(Now::ZERO, &nothing())).collect()
}

fn upload(session: &str, numbers: std::ops::RangeInclusive<u64>) -> Up {
    let content = || serde_json::value::RawValue::from_string("{}".into()).unwrap();
    Up::Upload(Upload {
        session: session.into(),
        outbox: "box".into(),
        lane: Lane::Events,
        confirmed: 0,
        items: numbers.map(|seq| UploadItem { seq, content: content() }).collect(),
    })
}

fn take(cloud: &mut CloudMachine) -> Option<u64> {
    match cloud.poll_effect(&nothing())? {
        CloudEffect::Ingest { token, .. } => Some(token),
        other => panic!("must be a take: {other:?}"),
    }
}

fn taken(events: u64) -> IngestCursor {
    IngestCursor { outbox: "box".into(), last: Lanes { events, ..Lanes::default() } }
}

fn refused(seq: u64) -> Refused {
    Refused { seq, reason: RefusedReason::Gone, message: "x".repeat(1000) }
}

fn confirm(cloud: &mut CloudMachine) -> Option<UploadConfirm> {
    match frames(cloud).pop()? {
        Down::UploadConfirm(confirm) => Some(confirm),
        other => panic!("must be a confirm: {other:?}"),
    }
}

fn lease(session: &str) -> Up {
    Up::Lease(Lease { session: session.into(), seconds: 40, acquired: 1, renewed: 2, check_in: None })
}

#[test]
fn an_upload_is_confirmed_when_its_effects_are_stored() {
    let mut cloud = machine();
    welcome(&mut cloud, "a");
    cloud.received(Now::ZERO, upload("a", 1..=3), &nothing());
    let token = take(&mut cloud).unwrap();
    assert!(confirm(&mut cloud).is_none());
    cloud.taken(Now::ZERO, token, Some((taken(3), Vec::new())));
    let expected = UploadConfirm {
        session: "a".into(),
        outbox: "box".into(),
        last: Lanes { events: 3, ..Lanes::default() },
        refused: Vec::new(),
    };
    assert_eq!(confirm(&mut cloud), Some(expected));
    assert_eq!((cloud.counters().uploads, cloud.counters().upload_items), (1, 3));
}

#[test]
fn one_upload_at_a_time_goes_to_the_store_even_across_sessions() {
    let mut cloud = machine();
    welcome(&mut cloud, "a");
    cloud.received(Now::ZERO, upload("a", 1..=3), &nothing());
    let token = take(&mut cloud).unwrap();
    cloud.received(Now::ZERO, upload("a", 1..=3), &nothing());
    assert!(take(&mut cloud).is_none());
    welcome(&mut cloud, "b");
    cloud.received(Now::ZERO, upload("b", 4..=4), &nothing());
    assert!(take(&mut cloud).is_none());
    cloud.taken(Now::ZERO, token, Some((taken(3), Vec::new())));
    assert!(confirm(&mut cloud).is_none(), "it was for the session before");
    cloud.received(Now::ZERO, upload("b", 4..=4), &nothing());
    assert!(take(&mut cloud).is_some());
}

#[test]
fn a_failed_upload_is_unconfirmed_and_may_be_repeated() {
    let mut cloud = machine();
    welcome(&mut cloud, "a");
    cloud.received(Now::ZERO, upload("a", 1..=3), &nothing());
    let token = take(&mut cloud).unwrap();
    cloud.taken(Now::ZERO, token, None);
    cloud.taken(Now::ZERO, token, Some((taken(3), Vec::new())));
    assert!(confirm(&mut cloud).is_none());
    cloud.received(Now::ZERO, upload("a", 1..=3), &nothing());
    assert!(take(&mut cloud).is_some());
}

#[test]
fn an_unknown_session_gets_a_hello_request() {
    for frame in [upload("x", 1..=1), lease("x")] {
        let mut cloud = machine();
        welcome(&mut cloud, "a");
        cloud.received(Now::ZERO, frame, &nothing());
        assert!(cloud.poll_effect(&nothing()).is_none());
        assert!(
            matches!(&frames(&mut cloud)[..], [Down::HelloRequest(it)] if it.session == "x" && !it.removed)
        );
    }
}

#[test]
fn a_node_that_is_not_welcome_yet_lives_but_its_outbox_waits() {
    let mut cloud = machine();
    cloud.received(Now::ZERO, hello("a"), &nothing());
    while cloud.poll_effect(&nothing()).is_some() {}
    cloud.received(Now::ZERO, upload("a", 1..=1), &nothing());
    cloud.received(Now::ZERO, lease("a"), &nothing());
    cloud.received(Now::ZERO, lease("a"), &nothing());
    assert!(matches!(cloud.poll_effect(&nothing()), Some(CloudEffect::Renew(_))));
    assert!(cloud.poll_effect(&nothing()).is_none(), "only the latest matters");
    assert!(frames(&mut cloud).is_empty());
    assert_eq!((cloud.counters().leases, cloud.counters().uploads), (2, 0));
}

#[test]
fn a_lease_does_not_delay_overdue_objects() {
    let mut cloud = machine();
    welcome(&mut cloud, "a");
    let heard = cloud.last_received;
    cloud.received(Duration::from_secs(9), lease("a"), &nothing());
    assert_eq!(cloud.last_received, heard);
}

#[test]
fn refusals_are_repeated_when_their_confirm_was_lost() {
    let mut cloud = machine();
    welcome(&mut cloud, "a");
    for (answer, expected) in [(vec![refused(2)], 1), (vec![], 1), (vec![], 1)] {
        cloud.received(Now::ZERO, upload("a", 1..=3), &nothing());
        let token = take(&mut cloud).unwrap();
        cloud.taken(Now::ZERO, token, Some((taken(3), answer)));
        let claimed = confirm(&mut cloud).unwrap().refused;
        assert_eq!(claimed.len(), expected);
        assert_eq!((claimed[0].seq, claimed[0].message.len()), (2, 256));
    }
    assert_eq!(cloud.counters().uploads_refused, 1);
    cloud.received(Now::ZERO, upload("a", 4..=5), &nothing());
    let token = take(&mut cloud).unwrap();
    cloud.taken(Now::ZERO, token, Some((taken(5), Vec::new())));
    assert!(confirm(&mut cloud).unwrap().refused.is_empty());
}

#[test]
fn a_confirm_fits_into_the_smallest_frame_whatever_is_refused() {
    let mut cloud = machine();
    welcome(&mut cloud, "a");
    for count in [128, 5000] {
        cloud.received(Now::ZERO, upload("a", 1..=count), &nothing());
        let token = take(&mut cloud).unwrap();
        cloud.taken(Now::ZERO, token, Some((taken(count), (1..=count).map(refused).collect())));
        let confirm = confirm(&mut cloud).unwrap();
        assert_eq!(confirm.refused.len() == 128, count == 128);
        let bytes = Down::UploadConfirm(confirm).encode(usize::MAX).unwrap();
        assert!(bytes.len() <= MIN_MAX_FRAME as usize, "{}", bytes.len());
    }
}

#[test]
fn numbers_that_cannot_be_kept_go_nowhere() {
    let mut cloud = machine();
    welcome(&mut cloud, "a");
    cloud.received(Now::ZERO, upload("a", MAX_SEQ + 1..=MAX_SEQ + 1), &nothing());
    assert!(take(&mut cloud).is_none());
}

#[test]
fn the_welcome_requests_an_unknown_node() {
    let mut cloud = machine();
    for (registered, asked) in [(false, true), (true, false)] {
        cloud.set_registered(registered);
        let frames = welcome(&mut cloud, if registered { "a" } else { "b" });
        assert!(
            frames.iter().any(|it| matches!(it, Down::Welcome(it) if it.register == asked)),
            "{frames:?}"
        );
    }
}
