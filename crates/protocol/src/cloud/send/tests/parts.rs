//! Messages in parts over several sessions.

use super::*;

/// The bytes of the object that is sent in parts.
const LARGE: usize = 3 << 20;

/// Begins a session with a node that holds a part of this message.
fn welcome_with(cloud: &mut CloudMachine, wishes: &DesiredObjects, partial: Option<&PartialMessage>) {
    let Up::Hello(hello) = hello("b") else { panic!("must be a Hello") };
    let hello = Hello { partial: partial.cloned().map(Box::new), ..hello };
    crate::cloud::testing::welcome(cloud, Up::Hello(hello), wishes);
    assert!(matches!(cloud.output.next_frame(), Some(Down::Welcome(_))));
}

fn next_part(cloud: &mut CloudMachine, wishes: &DesiredObjects) -> Part {
    let mut frames = std::iter::from_fn(|| cloud.poll_frame(Now::ZERO, wishes));
    let next = frames.find(|frame| !matches!(frame, Down::Confirm(_)));
    match next {
        Some(Down::Part(part)) => part,
        other => panic!("must be a part: {other:?}"),
    }
}

/// Answers a load, if there is one, and returns the next part.
fn part_after_load(cloud: &mut CloudMachine, wishes: &DesiredObjects) -> (bool, Part) {
    let requested = load(cloud, wishes);
    let is_loaded = requested.is_some();
    if let Some((token, uids)) = requested {
        cloud.loaded(Now::ZERO, token, bodies(&uids, LARGE), wishes);
    }
    (is_loaded, next_part(cloud, wishes))
}

/// Returns a machine whose connection has ended after a part, and what the node holds of it.
fn interrupted() -> (CloudMachine, DesiredObjects, PartialMessage) {
    let (mut cloud, mut wishes) = (machine(), DesiredObjects::default());
    desire(&mut cloud, &mut wishes, 0, LARGE);
    welcome(&mut cloud, "a", &wishes);
    let (_, part) = part_after_load(&mut cloud, &wishes);
    let Part { uid, receipt, resource_version, total, data, digest, .. } = part;
    let received = data.len() as u64;
    let receiving = Some(uid.clone());
    let answer = Report { receiving, received: Some(received), receipt, ..Report::default() };
    report(&mut cloud, &wishes, Now::ZERO, answer);
    cloud.disconnected();
    let partial = PartialMessage { uid, resource_version, total, digest: digest.unwrap(), received };
    (cloud, wishes, partial)
}

#[test]
fn a_message_continues_where_the_node_holds_it() {
    let (mut cloud, wishes, partial) = interrupted();
    assert!(cloud.has_begun());
    welcome_with(&mut cloud, &wishes, Some(&partial));
    let (is_loaded, part) = part_after_load(&mut cloud, &wishes);
    assert_eq!((is_loaded, part.offset), (false, partial.received));
    assert_eq!((part.total, part.digest), (partial.total, Some(partial.digest)));
    // Another cloud side, or one without the text, loads the object.
    let (mut cloud, wishes, partial) = interrupted();
    cloud.forget_begun();
    assert!(!cloud.has_begun());
    welcome_with(&mut cloud, &wishes, Some(&partial));
    let (is_loaded, part) = part_after_load(&mut cloud, &wishes);
    assert_eq!((is_loaded, part.offset), (true, partial.received));
}

#[test]
fn parts_without_an_answer_are_sent_again_from_the_first_one() {
    let (mut cloud, mut wishes) = (machine(), DesiredObjects::default());
    desire(&mut cloud, &mut wishes, 0, LARGE);
    welcome(&mut cloud, "a", &wishes);
    assert_eq!(part_after_load(&mut cloud, &wishes).1.offset, 0);
    let mut offsets = Vec::new();
    while let Some(now) = cloud.deadline().filter(|now| *now < Duration::from_secs(60)) {
        cloud.tick(now, &wishes);
        while let Some(frame) = cloud.poll_frame(now, &wishes) {
            offsets.extend(if let Down::Part(part) = frame { Some(part.offset) } else { None });
        }
    }
    assert!(offsets.contains(&0), "{offsets:?}");
    let resent = offsets.iter().filter(|offset| **offset == 0).count();
    assert!(cloud.counters().resent >= resent as u64, "{resent}, {:?}", cloud.counters());
}

#[test]
fn a_claim_that_fits_no_message_continues_nothing() {
    let lies: [fn(&mut PartialMessage); 7] = [
        |partial| partial.digest = MessageDigest(1),
        |partial| partial.total += 1,
        |partial| partial.total = u64::MAX,
        |partial| partial.received = partial.total,
        |partial| partial.received = u64::MAX,
        |partial| partial.resource_version = 2.into(),
        |partial| partial.uid = "uid-other".into(),
    ];
    for (number, lie) in lies.into_iter().enumerate() {
        for forgets in [false, true] {
            let (mut cloud, wishes, mut partial) = interrupted();
            if forgets {
                cloud.forget_begun();
            }
            lie(&mut partial);
            welcome_with(&mut cloud, &wishes, Some(&partial));
            let (_, part) = part_after_load(&mut cloud, &wishes);
            assert_eq!(part.offset, 0, "lie {number}");
            cloud.disconnected();
            welcome_with(&mut cloud, &wishes, None);
            assert!(!cloud.sender.transfer.has_begun(), "nothing is kept for a node that holds nothing");
        }
    }
}

#[test]
fn a_begun_version_goes_first_unless_a_newer_one_is_shorter() {
    let (mut cloud, mut wishes, partial) = interrupted();
    desire_version(&mut cloud, &mut wishes, 0, 2, LARGE);
    welcome_with(&mut cloud, &wishes, Some(&partial));
    let (is_loaded, part) = part_after_load(&mut cloud, &wishes);
    assert_eq!((is_loaded, part.resource_version, part.offset), (false, 1.into(), partial.received));
    // While it is being sent, too.
    desire_version(&mut cloud, &mut wishes, 0, 3, LARGE);
    cloud.pacer.on_idle();
    assert_eq!(next_part(&mut cloud, &wishes).resource_version, 1.into());
    desire_version(&mut cloud, &mut wishes, 0, 4, KIB);
    cloud.pacer.on_idle();
    assert!(cloud.poll_frame(Now::ZERO, &wishes).is_none());
    assert_eq!(load(&mut cloud, &wishes).unwrap().1, [name(0)]);

    let (mut cloud, mut wishes, partial) = interrupted();
    desire_version(&mut cloud, &mut wishes, 0, 2, KIB);
    welcome_with(&mut cloud, &wishes, Some(&partial));
    assert_eq!(load(&mut cloud, &wishes).unwrap().1, [name(0)]);
    assert!(!cloud.sender.transfer.has_begun());

    let (mut cloud, mut wishes, partial) = interrupted();
    wishes.tell(Now::ZERO, Some(&mut cloud), &name(0), None);
    welcome_with(&mut cloud, &wishes, Some(&partial));
    assert_eq!((load(&mut cloud, &wishes), cloud.pending()), (None, 0), "it is deleted");
}

#[test]
fn parts_of_an_object_deleted_while_behind_are_not_pending() {
    let (mut cloud, mut wishes, partial) = interrupted();
    cloud.forget_begun();
    welcome_with(&mut cloud, &wishes, Some(&partial));
    cloud.fall_behind();
    wishes.tell(Now::ZERO, Some(&mut cloud), &name(0), None);
    let mut effects = std::iter::from_fn(|| cloud.poll_effect(&wishes));
    assert!(effects.any(|effect| matches!(effect, CloudEffect::ReadRecords)));
    cloud.opened(Now::ZERO, Some(Vec::new()), &wishes);
    assert_eq!(cloud.pending(), 0);
}

#[test]
fn parts_of_an_object_deleted_during_its_load_are_not_pending() {
    let (mut cloud, mut wishes, partial) = interrupted();
    cloud.forget_begun();
    welcome_with(&mut cloud, &wishes, Some(&partial));
    let (token, _) = load(&mut cloud, &wishes).unwrap();
    wishes.tell(Now::ZERO, Some(&mut cloud), &name(0), None);
    cloud.loaded(Now::ZERO, token, Vec::new(), &wishes);
    assert_eq!(cloud.pending(), 0);
}

#[test]
fn parts_of_a_refused_object_are_not_pending() {
    let (mut cloud, mut wishes, partial) = interrupted();
    desire_version(&mut cloud, &mut wishes, 0, 2, KIB);
    welcome_with(&mut cloud, &wishes, Some(&partial));
    assert_eq!(cloud.pending(), 1);
    let rejected = Rejected {
        uid: name(0),
        resource_version: 2.into(),
        reason: RejectReason::Invalid,
        message: "bad".into(),
        object: None,
    };
    let answer = Report { session: "b".into(), rejected: vec![rejected], ..Report::default() };
    cloud.received(Now::ZERO, Up::Report(answer), &wishes);
    assert_eq!((cloud.refused().count(), cloud.pending()), (1, 0));
    cloud.disconnected();
    assert!(!cloud.has_begun());
    welcome_with(&mut cloud, &wishes, Some(&partial));
    assert_eq!(cloud.pending(), 0);
}

#[test]
fn no_text_survives_a_rollback_of_the_store() {
    let (mut cloud, mut wishes, partial) = interrupted();
    cloud.restart_after_rollback();
    assert!(!cloud.has_begun());
    // Its version may be one that the store has lost.
    let issued = Issued { gaps: vec![(0, 2000)], since: None };
    cloud.set_incarnation("next".into(), Arc::new(issued));
    desire_version(&mut cloud, &mut wishes, 0, 2001, LARGE);
    welcome_with(&mut cloud, &wishes, Some(&partial));
    let (is_loaded, part) = part_after_load(&mut cloud, &wishes);
    assert_eq!((is_loaded, part.offset), (true, 0));
}

#[test]
fn a_lost_last_part_resumes_there() {
    let (mut cloud, mut wishes) = (machine(), DesiredObjects::default());
    desire(&mut cloud, &mut wishes, 0, 300 * KIB);
    welcome(&mut cloud, "a", &wishes);
    let (token, uids) = load(&mut cloud, &wishes).unwrap();
    cloud.loaded(Now::ZERO, token, bodies(&uids, 300 * KIB), &wishes);
    let answer = |cloud: &mut CloudMachine, part: &Part, received: u64| {
        let receiving = Some(part.uid.clone());
        let receipt = part.receipt;
        let answer = Report { receiving, received: Some(received), receipt, ..Report::default() };
        report(cloud, &wishes, Now::ZERO, answer);
    };
    let mut held = 0;
    let last = loop {
        let part = next_part(&mut cloud, &wishes);
        let end = part.offset + part.data.len() as u64;
        if end == part.total {
            break part;
        }
        held = end;
        answer(&mut cloud, &part, end);
        cloud.pacer.on_idle();
    };
    assert_eq!(cloud.in_flight(), 1);
    answer(&mut cloud, &last, held);
    assert_eq!((load(&mut cloud, &wishes), cloud.counters().resent), (None, 1));
    cloud.pacer.on_idle();
    assert_eq!(next_part(&mut cloud, &wishes).offset, held);
}

#[test]
fn a_message_that_the_node_cannot_keep_waits() {
    let (mut cloud, mut wishes) = (machine(), DesiredObjects::default());
    desire(&mut cloud, &mut wishes, 0, LARGE);
    welcome(&mut cloud, "a", &wishes);
    part_after_load(&mut cloud, &wishes);
    let rejected = Rejected {
        uid: name(0),
        resource_version: 1.into(),
        reason: RejectReason::StoreFull,
        message: "no room".into(),
        object: None,
    };
    report(&mut cloud, &wishes, Now::ZERO, Report { rejected: vec![rejected], ..Report::default() });
    cloud.pacer.on_idle();
    let effects: Vec<_> = std::iter::from_fn(|| cloud.poll_effect(&wishes)).collect();
    assert!(!effects.iter().any(|effect| matches!(effect, CloudEffect::Load { .. })), "{effects:?}");
    assert_eq!((cloud.refused().count(), cloud.in_flight()), (1, 0));
    let mut frames = std::iter::from_fn(|| cloud.poll_frame(Now::ZERO, &wishes));
    assert!(frames.all(|frame| matches!(frame, Down::Confirm(_))), "nothing more of it");
}
