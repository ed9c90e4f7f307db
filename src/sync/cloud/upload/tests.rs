use std::sync::Arc;
use std::time::Duration;

use super::*;
use crate::sync::cloud::{CloudConfig, CloudPhase, Desired, DesiredState, Issued, LedgerFacts};
use crate::sync::digest::{Digest, Epoch};
use crate::sync::frame::{DEFAULT_MAX_OBJECT, Hello, MIN_MAX_FRAME, Up};
use crate::sync::upload::{Lanes, MAX_SEQ, RefusedReason, UploadItem};

fn machine() -> CloudMachine {
    let config = CloudConfig {
        window_objects: 10,
        window_bytes: 10_000,
        frame_objects: 10,
        max_frame: 1 << 20,
        resend_min: Duration::from_secs(5),
        resend_max: Duration::from_secs(60),
        reject_retry_min: Duration::from_secs(60),
        reject_retry_max: Duration::from_secs(600),
        answer_timeout: Duration::from_secs(10),
        mass_delete_share: 0.5,
        mass_delete_min: 10,
    };
    CloudMachine::new(Arc::new(config), "inc".into(), Arc::new(Issued::default()), LedgerFacts::default())
}

/// A node that is to hold nothing.
struct Nothing;

impl DesiredState for Nothing {
    fn get(&self, _: &str) -> Option<Desired<'_>> {
        None
    }

    fn iter(&self) -> impl Iterator<Item = (&crate::sync::change::Uid, Desired<'_>)> {
        std::iter::empty()
    }
}

fn hello(session: &str) -> Up {
    Up::Hello(Hello {
        node: "edge".into(),
        agent: "test".into(),
        session: session.into(),
        epoch: Epoch(7),
        revision: 0,
        confirmed: None,
        count: 0,
        digest: Digest::default(),
        incarnation: None,
        max_frame: MIN_MAX_FRAME,
        max_object: DEFAULT_MAX_OBJECT,
    })
}

/// Brings the node into a session, and answers with the names of the frames for it.
fn welcome(cloud: &mut CloudMachine, session: &str) -> Vec<Down> {
    cloud.received(Now::ZERO, hello(session), &Nothing);
    while let Some(effect) = cloud.poll_effect(&Nothing) {
        match effect {
            CloudEffect::Open => cloud.opened(Now::ZERO, Some(Vec::new()), &Nothing),
            CloudEffect::Record(batch) => cloud.recorded(Now::ZERO, batch.token, true, 0, &Nothing),
            _ => {}
        }
    }
    assert_eq!(cloud.phase(), CloudPhase::Live);
    frames(cloud)
}

fn frames(cloud: &mut CloudMachine) -> Vec<Down> {
    std::iter::from_fn(|| cloud.poll_frame(Now::ZERO, &Nothing)).collect()
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
    match cloud.poll_effect(&Nothing)? {
        CloudEffect::Take { token, .. } => Some(token),
        other => panic!("must be a take: {other:?}"),
    }
}

fn taken(events: u64) -> Taken {
    Taken { outbox: "box".into(), last: Lanes { events, ..Lanes::default() } }
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
    Up::Lease(Lease { session: session.into(), seconds: 40, acquired: 1, renewed: 2 })
}

#[test]
fn an_upload_is_confirmed_when_its_effects_are_stored() {
    let mut cloud = machine();
    welcome(&mut cloud, "a");
    cloud.received(Now::ZERO, upload("a", 1..=3), &Nothing);
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
    cloud.received(Now::ZERO, upload("a", 1..=3), &Nothing);
    let token = take(&mut cloud).unwrap();
    cloud.received(Now::ZERO, upload("a", 1..=3), &Nothing);
    assert!(take(&mut cloud).is_none());
    welcome(&mut cloud, "b");
    cloud.received(Now::ZERO, upload("b", 4..=4), &Nothing);
    assert!(take(&mut cloud).is_none());
    cloud.taken(Now::ZERO, token, Some((taken(3), Vec::new())));
    assert!(confirm(&mut cloud).is_none(), "it was for the session before");
    cloud.received(Now::ZERO, upload("b", 4..=4), &Nothing);
    assert!(take(&mut cloud).is_some());
}

#[test]
fn what_could_not_be_stored_is_not_confirmed_and_may_come_again() {
    let mut cloud = machine();
    welcome(&mut cloud, "a");
    cloud.received(Now::ZERO, upload("a", 1..=3), &Nothing);
    let token = take(&mut cloud).unwrap();
    cloud.taken(Now::ZERO, token, None);
    cloud.taken(Now::ZERO, token, Some((taken(3), Vec::new())));
    assert!(confirm(&mut cloud).is_none());
    cloud.received(Now::ZERO, upload("a", 1..=3), &Nothing);
    assert!(take(&mut cloud).is_some());
}

#[test]
fn a_session_that_is_not_known_is_asked_for_a_hello() {
    for frame in [upload("x", 1..=1), lease("x")] {
        let mut cloud = machine();
        welcome(&mut cloud, "a");
        cloud.received(Now::ZERO, frame, &Nothing);
        assert!(cloud.poll_effect(&Nothing).is_none());
        assert!(
            matches!(&frames(&mut cloud)[..], [Down::HelloRequest(it)] if it.session == "x" && !it.removed)
        );
    }
}

#[test]
fn a_node_that_is_not_welcome_yet_lives_but_its_outbox_waits() {
    let mut cloud = machine();
    cloud.received(Now::ZERO, hello("a"), &Nothing);
    while cloud.poll_effect(&Nothing).is_some() {}
    cloud.received(Now::ZERO, upload("a", 1..=1), &Nothing);
    cloud.received(Now::ZERO, lease("a"), &Nothing);
    cloud.received(Now::ZERO, lease("a"), &Nothing);
    assert!(matches!(cloud.poll_effect(&Nothing), Some(CloudEffect::Renew(_))));
    assert!(cloud.poll_effect(&Nothing).is_none(), "only the latest matters");
    assert!(frames(&mut cloud).is_empty());
    assert_eq!((cloud.counters().leases, cloud.counters().uploads), (2, 0));
}

#[test]
fn a_lease_does_not_put_off_what_is_overdue() {
    let mut cloud = machine();
    welcome(&mut cloud, "a");
    let heard = cloud.last_heard;
    cloud.received(Duration::from_secs(9), lease("a"), &Nothing);
    assert_eq!(cloud.last_heard, heard);
}

#[test]
fn refusals_are_told_again_when_their_confirm_was_lost() {
    let mut cloud = machine();
    welcome(&mut cloud, "a");
    for (answer, expected) in [(vec![refused(2)], 1), (vec![], 1), (vec![], 1)] {
        cloud.received(Now::ZERO, upload("a", 1..=3), &Nothing);
        let token = take(&mut cloud).unwrap();
        cloud.taken(Now::ZERO, token, Some((taken(3), answer)));
        let told = confirm(&mut cloud).unwrap().refused;
        assert_eq!(told.len(), expected);
        assert_eq!((told[0].seq, told[0].message.len()), (2, 256));
    }
    assert_eq!(cloud.counters().uploads_refused, 1);
    cloud.received(Now::ZERO, upload("a", 4..=5), &Nothing);
    let token = take(&mut cloud).unwrap();
    cloud.taken(Now::ZERO, token, Some((taken(5), Vec::new())));
    assert!(confirm(&mut cloud).unwrap().refused.is_empty());
}

#[test]
fn a_confirm_fits_into_the_smallest_frame_whatever_is_refused() {
    let mut cloud = machine();
    welcome(&mut cloud, "a");
    for count in [128, 5000] {
        cloud.received(Now::ZERO, upload("a", 1..=count), &Nothing);
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
    cloud.received(Now::ZERO, upload("a", MAX_SEQ + 1..=MAX_SEQ + 1), &Nothing);
    assert!(take(&mut cloud).is_none());
}

#[test]
fn the_welcome_asks_for_a_node_that_is_not_known() {
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
