use super::*;
use crate::body::Body;
use crate::change::{RejectReason, Rejected};
use crate::cloud::testing::{DesiredObject, DesiredObjects, hello, machine};
use crate::cloud::{CloudConfig, Issued};
use crate::digest::MessageDigest;
use crate::fault;
use crate::frame::{Hello, Item, Part, PartialMessage, Report, Up};
use edgesync_object::ObjectRef;
use edgesync_object::urgency::Urgency;
use std::time::Duration;

mod metered;
mod outdated;
mod parts;

const KIB: usize = 1 << 10;

/// Completes the handshake of a node that holds nothing.
fn welcome(cloud: &mut CloudMachine, session: &str, wishes: &DesiredObjects) {
    crate::cloud::testing::welcome(cloud, hello(session), wishes);
    assert!(matches!(cloud.output.next_frame(), Some(Down::Welcome(_))));
}

fn name(number: usize) -> Uid {
    format!("uid-{number:04}").into()
}

fn desire(cloud: &mut CloudMachine, wishes: &mut DesiredObjects, number: usize, size: usize) {
    desire_version(cloud, wishes, number, 1, size);
}

fn desire_version(
    cloud: &mut CloudMachine,
    wishes: &mut DesiredObjects,
    number: usize,
    version: u64,
    size: usize,
) {
    wishes.tell(Now::ZERO, Some(cloud), &name(number), Some(wish(number, version, size)));
}

fn wish(number: usize, version: u64, size: usize) -> DesiredObject {
    DesiredObject {
        version: version.into(),
        object: Arc::new(ObjectRef {
            api_version: "v1".into(),
            kind: "ConfigMap".into(),
            namespace: "default".into(),
            name: name(number),
        }),
        resource: Arc::new(Resource {
            group: String::new(),
            version: "v1".into(),
            kind: "ConfigMap".into(),
            plural: "configmaps".into(),
            scope: Scope::Namespaced,
        }),
        size,
        urgency: Urgency::Normal,
    }
}

fn load(cloud: &mut CloudMachine, wishes: &DesiredObjects) -> Option<(u64, Vec<Uid>)> {
    loop {
        match cloud.poll_effect(wishes)? {
            CloudEffect::Load { token, objects } => {
                return Some((token, objects.into_iter().map(|request| request.uid).collect()));
            }
            CloudEffect::Notice(_) => {}
            other => panic!("must be a load: {other:?}"),
        }
    }
}

fn bodies(uids: &[Uid], size: usize) -> Vec<Loaded> {
    let body = |uid: &Uid| {
        let fill = "x".repeat(size.saturating_sub(150));
        let meta = format!(r#"{{"name":"{uid}","namespace":"default","uid":"{uid}","resourceVersion":"1"}}"#);
        format!(r#"{{"apiVersion":"v1","kind":"ConfigMap","metadata":{meta},"data":{{"x":"{fill}"}}}}"#)
    };
    let loaded = |uid: &Uid| Loaded {
        uid: uid.clone(),
        version: 1.into(),
        body: Body::new(body(uid)).unwrap(),
        patch: None,
    };
    uids.iter().map(loaded).collect()
}

/// Returns the number of objects in each ready frame.
fn frames(cloud: &mut CloudMachine, wishes: &DesiredObjects) -> Vec<usize> {
    let frame = std::iter::from_fn(|| cloud.poll_frame(Now::ZERO, wishes));
    let objects = |frame| match frame {
        Down::Objects(objects) => objects.messages.len(),
        other => panic!("must be objects: {other:?}"),
    };
    frame.map(objects).collect()
}

#[test]
fn a_load_answer_of_an_earlier_session_is_ignored() {
    let (mut cloud, mut wishes) = (machine(), DesiredObjects::default());
    (0..300).for_each(|number| desire(&mut cloud, &mut wishes, number, KIB));
    welcome(&mut cloud, "a", &wishes);
    let (old, uids) = load(&mut cloud, &wishes).unwrap();
    welcome(&mut cloud, "b", &wishes);
    // The first request differs from the previous session's.
    desire(&mut cloud, &mut wishes, 1000, KIB);
    let (new, again) = load(&mut cloud, &wishes).unwrap();
    assert_ne!(old, new);
    cloud.loaded(Now::ZERO, old, bodies(&uids[..1], KIB), &wishes);
    assert_eq!(
        (frames(&mut cloud, &wishes), load(&mut cloud, &wishes)),
        (vec![], None),
        "nothing but the answer to the last counts"
    );
    cloud.loaded(Now::ZERO, new, bodies(&again, KIB), &wishes);
    assert!(frames(&mut cloud, &wishes).iter().sum::<usize>() > 1);
    let in_flight = cloud.in_flight();
    cloud.loaded(Now::ZERO, new, bodies(&again, KIB), &wishes);
    assert_eq!(cloud.in_flight(), in_flight, "an answer counts once");
}

#[test]
fn failed_loads_are_retried_later() {
    let (mut cloud, mut wishes) = (machine(), DesiredObjects::default());
    (0..3).for_each(|number| desire(&mut cloud, &mut wishes, number, KIB));
    welcome(&mut cloud, "a", &wishes);
    let (token, uids) = load(&mut cloud, &wishes).unwrap();
    cloud.loaded(Now::ZERO, token, bodies(&uids[1..], KIB), &wishes);
    assert_eq!((frames(&mut cloud, &wishes), load(&mut cloud, &wishes)), (vec![2], None));
    let due = cloud.deadline().unwrap();
    cloud.tick(due, &wishes);
    assert!(load(&mut cloud, &wishes).unwrap().1.contains(&uids[0]));
}

/// Returns a live machine with the version of its one object in flight.
fn sending() -> (CloudMachine, DesiredObjects) {
    let (mut cloud, mut wishes) = (machine(), DesiredObjects::default());
    let issued = Issued { gaps: vec![(1000, 2000)], since: None };
    cloud.set_incarnation("inc".into(), Arc::new(issued));
    desire(&mut cloud, &mut wishes, 0, KIB);
    welcome(&mut cloud, "a", &wishes);
    let (token, uids) = load(&mut cloud, &wishes).unwrap();
    cloud.loaded(Now::ZERO, token, bodies(&uids, KIB), &wishes);
    assert_eq!(frames(&mut cloud, &wishes), [1]);
    (cloud, wishes)
}

fn report(cloud: &mut CloudMachine, wishes: &DesiredObjects, now: Now, report: Report) {
    cloud.received(now, Up::Report(Report { session: "a".into(), ..report }), wishes);
}

/// Returns the times at which it sends within `time` to a node that answers like this.
fn times(
    cloud: &mut CloudMachine,
    wishes: &DesiredObjects,
    time: Duration,
    answer: impl Fn(&mut CloudMachine, Now),
) -> Vec<Now> {
    let mut times = Vec::new();
    while let Some(now) = cloud.deadline().filter(|now| *now < time) {
        cloud.tick(now, wishes);
        while let Some(effect) = cloud.poll_effect(wishes) {
            match effect {
                CloudEffect::Load { token, objects } => {
                    let uids: Vec<Uid> = objects.into_iter().map(|request| request.uid).collect();
                    cloud.loaded(now, token, bodies(&uids, KIB), wishes);
                }
                CloudEffect::Record(batch) => cloud.recorded(now, batch.token, true, 0, wishes),
                _ => {}
            }
        }
        while let Some(frame) = cloud.poll_frame(now, wishes) {
            if let Down::Objects(_) = frame {
                times.push(now);
                answer(cloud, now);
            }
        }
    }
    times
}

const DAY: Duration = Duration::from_secs(24 * 3600);

fn longest_pause(times: &[Now]) -> Duration {
    times.windows(2).map(|pair| pair[1] - pair[0]).max().unwrap()
}

#[test]
fn round_trip_is_known_after_the_first_report() {
    let (mut cloud, wishes) = sending();
    assert_eq!(cloud.round_trip(), None);
    let now = Duration::from_millis(700);
    let objects = vec![held(0)];
    report(&mut cloud, &wishes, now, Report { from: 1, to: 1, objects, ..Report::default() });
    assert_eq!(cloud.round_trip(), Some(now));
}

#[test]
fn unreported_objects_are_resent_with_bounded_backoff() {
    let (mut cloud, wishes) = sending();
    let sent = times(&mut cloud, &wishes, DAY, |_, _| {});
    assert!((5..=6).contains(&sent[0].as_secs()), "{:?}", sent[0]);
    assert_eq!(longest_pause(&sent), CloudConfig::defaults().resend_max);
    assert!(sent.len() > 280, "{}", sent.len());
}

#[test]
fn one_confirm_covers_the_reports_of_a_moment() {
    let (mut cloud, mut wishes) = sending();
    let (mut confirms, mut now) = (Vec::new(), Now::ZERO);
    for version in 1..=20 {
        let item = Item { uid: name(0), resource_version: version.into(), object: None };
        let (from, to) = (version - 1, version);
        report(&mut cloud, &wishes, now, Report { from, to, objects: vec![item], ..Report::default() });
        desire_version(&mut cloud, &mut wishes, 0, version + 1, KIB);
        loop {
            match cloud.poll_effect(&wishes) {
                Some(CloudEffect::Record(batch)) => cloud.recorded(now, batch.token, true, 0, &wishes),
                Some(CloudEffect::Load { token, objects }) => {
                    let mut loaded = bodies(&[objects[0].uid.clone()], KIB);
                    loaded[0].version = (version + 1).into();
                    cloud.loaded(now, token, loaded, &wishes);
                }
                Some(_) => {}
                None => break,
            }
        }
        for frame in std::iter::from_fn(|| cloud.poll_frame(now, &wishes)) {
            if let Down::Confirm(confirm) = frame {
                confirms.push((now.as_millis(), confirm.revision));
            }
        }
        now += Duration::from_millis(10);
    }
    assert_eq!(confirms, [(0, 1), (50, 6), (100, 11), (150, 16)]);
    let due = cloud.deadline().unwrap();
    assert_eq!(due.as_millis(), 200, "the last ones are confirmed, too");
    cloud.tick(due, &wishes);
    let last = std::iter::from_fn(|| cloud.poll_frame(due, &wishes)).find_map(|frame| match frame {
        Down::Confirm(confirm) => Some(confirm.revision),
        _ => None,
    });
    assert_eq!(last, Some(20));
    assert!(cloud.deadline().is_some_and(|next| next > due), "and only once");
}

#[test]
fn rejected_objects_back_off_to_once_an_hour() {
    let (mut cloud, wishes) = sending();
    let reject = |cloud: &mut CloudMachine, now| {
        let rejected = Rejected {
            uid: name(0),
            resource_version: 1.into(),
            reason: RejectReason::StoreFull,
            message: "no room".into(),
            object: None,
        };
        report(cloud, &wishes, now, Report { rejected: vec![rejected], ..Report::default() });
    };
    reject(&mut cloud, Now::ZERO);
    let sent = times(&mut cloud, &wishes, DAY, reject);
    assert!((24..60).contains(&sent.len()), "{}", sent.len());
    assert_eq!(cloud.refused().count(), 1);
}

#[test]
fn a_node_with_unrelated_reports_is_sent_with_backoff() {
    let (mut cloud, wishes) = sending();
    let sent = times(&mut cloud, &wishes, DAY, |cloud, now| {
        // The node acknowledges, and names none of the sent objects.
        let receipt = cloud.pacer.next_frame() - 1;
        report(cloud, &wishes, now, Report { receipt, ..Report::default() });
    });
    assert!(sent.len() < 400, "{}", sent.len());
}

#[test]
fn numbers_that_no_frame_has_answer_nothing() {
    let (mut cloud, wishes) = sending();
    for receipt in [3, 1000, u64::MAX] {
        let receiving = Some(name(0));
        let received = Some(u64::MAX);
        report(&mut cloud, &wishes, Now::ZERO, Report { receipt, receiving, received, ..Report::default() });
        assert_eq!((cloud.in_flight(), cloud.counters().resent), (1, 0));
    }
}

#[test]
fn ten_thousand_reports_make_one_batch_and_one_confirm() {
    let (mut cloud, wishes) = sending();
    let item = |n: u64| Item { uid: name(7), resource_version: n.into(), object: None };
    for n in 0..10_000 {
        report(
            &mut cloud,
            &wishes,
            Now::ZERO,
            Report { from: n, to: n + 1, objects: vec![item(n)], ..Report::default() },
        );
    }
    let records = std::iter::from_fn(|| cloud.poll_effect(&wishes));
    assert!(records.filter(|effect| matches!(effect, CloudEffect::Record(_))).count() <= 1);
    assert!(std::iter::from_fn(|| cloud.poll_frame(Now::ZERO, &wishes)).count() <= 1);
}

#[test]
fn repeated_lost_versions_begin_one_incarnation() {
    let (mut cloud, wishes) = sending();
    let lost = |cloud: &mut CloudMachine, n: u64| {
        let object = Some(ObjectRef {
            api_version: "v1".into(),
            kind: "ConfigMap".into(),
            namespace: "default".into(),
            name: name(9),
        });
        let item = Item { uid: name(9), resource_version: (1500 + n).into(), object };
        report(
            cloud,
            &wishes,
            Now::ZERO,
            Report { from: n, to: n + 1, objects: vec![item], ..Report::default() },
        );
        let effects = std::iter::from_fn(|| cloud.poll_effect(&wishes));
        effects.filter(|effect| matches!(effect, CloudEffect::RollbackClaimed)).count()
    };
    assert_eq!([lost(&mut cloud, 0), lost(&mut cloud, 1)], [1, 0]);
    let issued = Arc::new(cloud.settings.issued.renewed());
    cloud.set_incarnation("next".into(), issued);
    assert_eq!([lost(&mut cloud, 2), lost(&mut cloud, 3)], [0, 0]);
    let mut issued = cloud.settings.issued.renewed();
    issued.gaps.push((1_000_000, 2_000_000));
    cloud.set_incarnation("next".into(), Arc::new(issued));
    assert_eq!(lost(&mut cloud, 1_000_000), 1, "another loss is another matter");
}

/// Sends everything permitted and answers loads at once, over a line without limits. Returns the
/// UIDs sent completely, in order, and the most bodies alive at a time.
fn send_all(cloud: &mut CloudMachine, wishes: &DesiredObjects, size: usize) -> (Vec<Uid>, usize) {
    let (mut sent, mut alive, mut most, mut is_blocked) = (Vec::new(), Vec::new(), 0, false);
    loop {
        if let Some((token, uids)) = load(cloud, wishes) {
            let bodies = bodies(&uids, size);
            alive.extend(bodies.iter().map(|loaded| loaded.body.downgrade()));
            cloud.loaded(Now::ZERO, token, bodies, wishes);
            alive.retain(|body| body.upgrade().is_some());
            most = most.max(alive.len());
            continue;
        }
        let frame = cloud.poll_frame(Now::ZERO, wishes);
        let was_blocked = std::mem::replace(&mut is_blocked, frame.is_none());
        match frame {
            Some(Down::Part(part)) if part.offset + part.data.len() as u64 == part.total => {
                sent.push(part.uid);
            }
            Some(Down::Part(_)) => {}
            Some(other) => panic!("must be a part: {other:?}"),
            None if was_blocked => return (sent, most),
            None => cloud.pacer.on_idle(),
        }
    }
}

/// Reports the received objects.
fn holds(cloud: &mut CloudMachine, wishes: &DesiredObjects, to: u64, uids: &[Uid]) {
    let item = |uid: &Uid| Item { uid: uid.clone(), resource_version: 1.into(), object: None };
    let objects = uids.iter().map(item).collect();
    let from = to - 1;
    cloud.received(
        Now::ZERO,
        Up::Report(Report { session: "a".into(), from, to, objects, ..Report::default() }),
        wishes,
    );
    while let Some(CloudEffect::Record(batch)) = cloud.output.next_effect() {
        cloud.recorded(Now::ZERO, batch.token, true, 0, wishes);
    }
    cloud.output.clear_frames();
}

#[test]
fn large_objects_respect_the_window_one_body_at_a_time() {
    let (mut cloud, mut wishes) = (machine(), DesiredObjects::default());
    (0..20).for_each(|number| desire(&mut cloud, &mut wishes, number, 300 * KIB));
    welcome(&mut cloud, "a", &wishes);
    let (mut sent, mut to) = (0, 0);
    while sent < 20 {
        let (uids, alive) = send_all(&mut cloud, &wishes, 300 * KIB);
        assert!((1..=3).contains(&uids.len()), "a window of 1 MiB: {uids:?}");
        assert!(alive <= 2, "one on its way, and one that was sent: {alive}");
        sent += uids.len();
        to += 1;
        holds(&mut cloud, &wishes, to, &uids);
    }
    assert!(cloud.in_sync());
}

#[test]
fn an_object_larger_than_the_window_is_under_way_alone() {
    let (mut cloud, mut wishes) = (machine(), DesiredObjects::default());
    (0..3).for_each(|number| desire(&mut cloud, &mut wishes, number, 3 << 20));
    welcome(&mut cloud, "a", &wishes);
    for number in 0..3 {
        let (uids, alive) = send_all(&mut cloud, &wishes, 3 << 20);
        assert_eq!((&uids[..], alive), (&[name(number)][..], 1));
        holds(&mut cloud, &wishes, 1 + number as u64, &uids);
    }
    assert!(cloud.in_sync());
}

#[test]
fn small_objects_do_not_wait_for_large_ones() {
    let (mut cloud, mut wishes) = (machine(), DesiredObjects::default());
    desire(&mut cloud, &mut wishes, 0, 3 << 20);
    desire(&mut cloud, &mut wishes, 1, 3 << 20);
    welcome(&mut cloud, "a", &wishes);
    let (token, uids) = load(&mut cloud, &wishes).unwrap();
    cloud.loaded(Now::ZERO, token, bodies(&uids, 3 << 20), &wishes);
    assert!(matches!(cloud.poll_frame(Now::ZERO, &wishes), Some(Down::Part(_))));
    desire(&mut cloud, &mut wishes, 2, KIB);
    let (token, uids) = load(&mut cloud, &wishes).unwrap();
    assert_eq!(uids, [name(2)]);
    cloud.loaded(Now::ZERO, token, bodies(&uids, KIB), &wishes);
    cloud.pacer.on_idle();
    let next: Vec<&str> = (0..2).map(|_| cloud.poll_frame(Now::ZERO, &wishes).unwrap().name()).collect();
    assert!(next.contains(&"Objects"), "{next:?}");
}

#[test]
fn loads_stop_at_one_frame_until_it_has_left() {
    let (mut cloud, mut wishes) = (machine(), DesiredObjects::default());
    (0..100).for_each(|number| desire(&mut cloud, &mut wishes, number, 20 * KIB));
    welcome(&mut cloud, "a", &wishes);
    let (token, uids) = load(&mut cloud, &wishes).unwrap();
    assert_eq!(uids.len(), 12);
    cloud.loaded(Now::ZERO, token, bodies(&uids, 20 * KIB), &wishes);
    let mut left = uids.len();
    while left > 0 {
        assert_eq!(load(&mut cloud, &wishes), None);
        left -= frames(&mut cloud, &wishes).iter().sum::<usize>();
        cloud.pacer.on_idle();
    }
    assert!(load(&mut cloud, &wishes).is_some());
}

#[test]
fn a_rejection_reason_is_kept_up_to_its_limit() {
    let (mut cloud, mut wishes) = (machine(), DesiredObjects::default());
    desire(&mut cloud, &mut wishes, 0, KIB);
    welcome(&mut cloud, "a", &wishes);
    let (token, uids) = load(&mut cloud, &wishes).unwrap();
    cloud.loaded(Now::ZERO, token, bodies(&uids, KIB), &wishes);
    assert!(matches!(cloud.poll_frame(Now::ZERO, &wishes), Some(Down::Objects(_))));
    let rejected = Rejected {
        uid: name(0),
        resource_version: 1.into(),
        reason: RejectReason::Invalid,
        message: "ü".repeat(50_000),
        object: None,
    };
    let report = Report { session: "a".into(), rejected: vec![rejected], ..Report::default() };
    cloud.received(Now::ZERO, Up::Report(report), &wishes);
    let kept: Vec<_> = cloud.refused().map(|(uid, refusal)| (uid.clone(), refusal.message.len())).collect();
    assert_eq!(kept, [(name(0), 256)]);
}

fn held(number: usize) -> Item {
    Item { uid: name(number), resource_version: 1.into(), object: None }
}

/// Answers the store's oldest batch of records.
fn store(cloud: &mut CloudMachine, wishes: &DesiredObjects) {
    loop {
        match cloud.poll_effect(wishes) {
            Some(CloudEffect::Record(batch)) => {
                return cloud.recorded(Now::ZERO, batch.token, true, 0, wishes);
            }
            Some(_) => {}
            None => panic!("must store records"),
        }
    }
}

/// While records of another object are stored, a node reports that it has removed an object, then
/// that it holds it again; or the other way round. Returns how often the message is sent again
/// within a minute.
fn resent_after_contradiction(is_removal: bool) -> usize {
    let (mut cloud, mut wishes) = (machine(), DesiredObjects::default());
    desire(&mut cloud, &mut wishes, 0, KIB);
    desire(&mut cloud, &mut wishes, 1, KIB);
    welcome(&mut cloud, "a", &wishes);
    let (token, uids) = load(&mut cloud, &wishes).unwrap();
    cloud.loaded(Now::ZERO, token, bodies(&uids, KIB), &wishes);
    assert_eq!(frames(&mut cloud, &wishes), [2]);
    let (with, without) = (|| vec![held(0)], || vec![name(0)]);
    let mut at = 0;
    if is_removal {
        let objects = vec![held(0), held(1)];
        report(&mut cloud, &wishes, Now::ZERO, Report { from: 0, to: 2, objects, ..Report::default() });
        store(&mut cloud, &wishes);
        wishes.tell(Now::ZERO, Some(&mut cloud), &name(0), None);
        desire(&mut cloud, &mut wishes, 2, KIB);
        let (token, uids) = load(&mut cloud, &wishes).unwrap();
        cloud.loaded(Now::ZERO, token, bodies(&uids, KIB), &wishes);
        let sent = std::iter::from_fn(|| cloud.poll_frame(Now::ZERO, &wishes));
        assert_eq!(sent.filter(|frame| matches!(frame, Down::Objects(_))).count(), 1);
        at = 2;
    }
    let other = vec![held(if is_removal { 2 } else { 1 })];
    report(
        &mut cloud,
        &wishes,
        Now::ZERO,
        Report { from: at, to: at + 1, objects: other, ..Report::default() },
    );
    let now = Report { from: at + 1, to: at + 1, ..Report::default() };
    let (first, then) = match is_removal {
        true => (Report { removed: without(), ..now.clone() }, Report { objects: with(), ..now }),
        false => (Report { objects: with(), ..now.clone() }, Report { removed: without(), ..now }),
    };
    report(&mut cloud, &wishes, Now::ZERO, first);
    report(&mut cloud, &wishes, Now::ZERO, then);
    store(&mut cloud, &wishes);
    times(&mut cloud, &wishes, Duration::from_secs(60), |_, _| {}).len()
}

#[test]
fn a_message_whose_answer_is_contradicted_is_sent_again() {
    assert!(resent_after_contradiction(true) > 0);
    assert!(resent_after_contradiction(false) > 0);
}

#[test]
fn a_first_answer_that_counts_for_good_is_found() {
    for is_removal in [true, false] {
        let resent = fault::with(Some(Fault::AnsweredForGood), || resent_after_contradiction(is_removal));
        assert_eq!(resent, 0);
    }
}

/// A source that has gone back returns the version that the node holds. Returns the number of
/// frames with objects.
fn frames_of_a_held_version() -> usize {
    let (mut cloud, mut wishes) = sending();
    let objects = vec![held(0)];
    report(&mut cloud, &wishes, Now::ZERO, Report { to: 1, objects, ..Report::default() });
    store(&mut cloud, &wishes);
    desire_version(&mut cloud, &mut wishes, 0, 2, KIB);
    let (token, uids) = load(&mut cloud, &wishes).unwrap();
    cloud.loaded(Now::ZERO, token, bodies(&uids, KIB), &wishes);
    let frames = std::iter::from_fn(|| cloud.poll_frame(Now::ZERO, &wishes));
    let sent = frames.filter(|frame| matches!(frame, Down::Objects(_))).count();
    if sent == 0 {
        let due = cloud.deadline().unwrap();
        cloud.tick(due, &wishes);
        assert_eq!(load(&mut cloud, &wishes).unwrap().1, [name(0)], "it is loaded again");
    }
    sent
}

#[test]
fn a_loaded_version_that_the_node_holds_is_not_sent() {
    assert_eq!(frames_of_a_held_version(), 0);
}

#[test]
fn a_held_version_that_is_sent_is_found() {
    assert_eq!(fault::with(Some(Fault::HeldVersionSent), frames_of_a_held_version), 1);
}
