use std::time::Duration;

use super::*;
use crate::apply::Totals;
use crate::digest::{Epoch, MessageDigest};
use crate::edge::{Commit, EdgeConfig, EdgePhase};
use crate::frame::{Confirm, Hello, Objects, Received, Up, Welcome};

const NOW: Now = Duration::from_secs(1);
/// The frame limit, which is also that of a piece in memory.
const LIMIT: usize = 16 * 1024;
const TOTAL: usize = 50_000;

fn machine() -> EdgeMachine {
    let totals = Totals { epoch: Epoch(1), ..Totals::default() };
    EdgeMachine::new(EdgeConfig::of_tests("edge", LIMIT, 60_000), totals, 0, None)
}

/// Begins a connection and returns the Hello of its session.
fn connect(machine: &mut EdgeMachine, session: u64) -> Option<Hello> {
    machine.connected(NOW, LIMIT, session << 32);
    hello(machine)
}

fn hello(machine: &mut EdgeMachine) -> Option<Hello> {
    std::iter::from_fn(|| machine.poll_frame(NOW)).find_map(|frame| match frame {
        Up::Hello(hello) => Some(hello),
        _ => None,
    })
}

fn welcome(machine: &mut EdgeMachine, pending: u64) {
    announce(machine, pending, 0);
}

/// Passes a Welcome that announces objects, and removals that the cloud holds back.
fn announce(machine: &mut EdgeMachine, pending: u64, held: u64) {
    let session = machine.session().unwrap().to_owned();
    let welcome = Welcome {
        session,
        incarnation: None,
        confirmed: 0,
        pending,
        held,
        register: false,
        features: Vec::new(),
        waiting: Default::default(),
    };
    machine.received(NOW, Received::Welcome(welcome), 0);
}

fn live() -> EdgeMachine {
    let mut machine = machine();
    connect(&mut machine, 1);
    welcome(&mut machine, 1);
    effects(&mut machine);
    machine
}

/// The text of the message, which is none that can be applied.
fn text() -> String {
    "0123456789".repeat(TOTAL / 10)
}

fn digest() -> MessageDigest {
    Epoch(1).message_digest([&*text()])
}

fn message(received: usize) -> PartialMessage {
    PartialMessage {
        uid: "large".into(),
        resource_version: 7.into(),
        total: TOTAL as u64,
        digest: digest(),
        received: received as u64,
    }
}

/// Passes the bytes from `from` to `to` in one part.
fn receive(machine: &mut EdgeMachine, from: usize, to: usize) {
    let part = Part {
        session: machine.session().unwrap().to_owned(),
        receipt: 3,
        uid: "large".into(),
        resource_version: 7.into(),
        offset: from as u64,
        total: TOTAL as u64,
        data: text()[from..to].to_owned(),
        digest: Some(digest()),
        object: None,
    };
    machine.received(NOW, Received::Part(part), 0);
}

/// Returns the number of received bytes in the last report about parts.
fn received(machine: &mut EdgeMachine) -> Option<u64> {
    let frames = std::iter::from_fn(|| machine.poll_frame(NOW));
    let reports = frames.filter_map(|frame| match frame {
        Up::Report(report) if report.receiving.is_some() => report.received,
        _ => None,
    });
    reports.last()
}

#[derive(Debug, PartialEq)]
enum Work {
    Keep(u64, usize),
    Complete(u64, usize),
    Drop,
    Read,
    Apply,
}

/// Returns the work of the store.
fn effects(machine: &mut EdgeMachine) -> Vec<Work> {
    let work = |effect| match effect {
        EdgeEffect::KeepPart { message, text } => Some(Work::Keep(message.received, text.len())),
        EdgeEffect::ApplyParts { message, rest, .. } => Some(Work::Complete(message.received, rest.len())),
        EdgeEffect::DropParts => Some(Work::Drop),
        EdgeEffect::ReadParts => Some(Work::Read),
        EdgeEffect::Apply { .. } => Some(Work::Apply),
        _ => None,
    };
    std::iter::from_fn(|| machine.poll_effect()).filter_map(work).collect()
}

#[test]
fn announced_objects_and_removals_are_those_of_the_session() {
    let mut machine = machine();
    assert_eq!(machine.announced(), (0, 0));
    connect(&mut machine, 1);
    announce(&mut machine, 3, 2);
    assert_eq!(machine.announced(), (3, 2));
    machine.disconnected();
    assert_eq!(machine.announced(), (0, 0), "another replica may announce others");
}

#[test]
fn incarnation_is_that_of_the_last_welcome() {
    let mut machine = machine();
    assert_eq!(machine.incarnation(), None);
    for (number, incarnation) in [(1, "one"), (2, "two")] {
        connect(&mut machine, number);
        let session = machine.session().unwrap().to_owned();
        let welcome = Welcome {
            session,
            incarnation: Some(incarnation.into()),
            confirmed: 0,
            pending: 0,
            held: 0,
            register: false,
            features: Vec::new(),
            waiting: Default::default(),
        };
        machine.received(NOW, Received::Welcome(welcome), 0);
        assert_eq!(machine.incarnation(), Some(incarnation));
        machine.disconnected();
    }
}

#[test]
fn memory_holds_a_piece_and_the_store_the_rest() {
    let mut machine = live();
    receive(&mut machine, 0, 10_000);
    assert_eq!((effects(&mut machine), received(&mut machine)), (vec![], Some(10_000)));
    receive(&mut machine, 10_000, 20_000);
    assert_eq!(effects(&mut machine), [Work::Keep(0, 20_000)]);
    receive(&mut machine, 20_000, 40_000);
    assert_eq!(effects(&mut machine), [Work::Keep(20_000, 20_000)]);
    assert_eq!(received(&mut machine), Some(40_000));
    receive(&mut machine, 40_000, TOTAL);
    assert_eq!(effects(&mut machine), [Work::Complete(40_000, 10_000)]);
}

#[test]
fn pieces_that_the_store_has_not_kept_hold_frames_back() {
    let mut machine = live();
    machine.config.max_applying = 2;
    receive(&mut machine, 0, 20_000);
    assert!(machine.wants_frame());
    receive(&mut machine, 20_000, 40_000);
    assert!(!machine.wants_frame());
    machine.part_kept(&message(0), Ok(true));
    assert!(machine.wants_frame());
}

#[test]
fn the_next_hello_names_what_has_arrived() {
    let mut machine = live();
    receive(&mut machine, 0, 20_000);
    receive(&mut machine, 20_000, 21_000);
    effects(&mut machine);
    machine.disconnected();
    assert_eq!(effects(&mut machine), [], "a thousand bytes are not worth a commit");
    let hello = connect(&mut machine, 2).unwrap();
    assert_eq!(hello.partial, Some(Box::new(message(21_000))));
    welcome(&mut machine, 1);
    receive(&mut machine, 21_000, 24_000);
    assert_eq!(received(&mut machine), Some(24_000), "the transfer goes on");
    effects(&mut machine);
    machine.disconnected();
    assert_eq!(effects(&mut machine), [Work::Keep(20_000, 4000)]);
}

#[test]
fn a_restarted_machine_says_hello_once_it_knows_what_is_kept() {
    let mut restarted = machine();
    restarted.restore_parts();
    assert_eq!(connect(&mut restarted, 1), None);
    assert_eq!((restarted.phase(), effects(&mut restarted)), (EdgePhase::Settling, vec![Work::Read]));
    restarted.parts_read(NOW, Some(message(30_000)), 2 << 32);
    assert_eq!(hello(&mut restarted).unwrap().partial, Some(Box::new(message(30_000))));
    welcome(&mut restarted, 1);
    receive(&mut restarted, 30_000, TOTAL);
    assert_eq!(effects(&mut restarted), [Work::Complete(30_000, 20_000)]);

    let mut fresh = machine();
    fresh.restore_parts();
    fresh.parts_read(NOW, None, 0);
    assert_eq!(effects(&mut fresh), [Work::Read, Work::Drop], "pieces after a damaged one");
    assert_eq!(connect(&mut fresh, 1).unwrap().partial, None);
}

#[test]
fn what_is_not_continued_is_dropped() {
    // Nothing is pending.
    let mut machine = live();
    receive(&mut machine, 0, 20_000);
    effects(&mut machine);
    connect(&mut machine, 2);
    welcome(&mut machine, 0);
    assert_eq!(effects(&mut machine), [Work::Drop]);
    assert_eq!(connect(&mut machine, 3).unwrap().partial, None);

    let mut machine = live();
    receive(&mut machine, 0, 20_000);
    effects(&mut machine);
    let session = machine.session().unwrap().to_owned();
    machine.received(
        NOW,
        Received::Confirm(Confirm { session, revision: 0, pending: 0, held: 0, ..Confirm::default() }),
        0,
    );
    assert_eq!(effects(&mut machine), [Work::Drop]);

    // The database is another one.
    let mut machine = live();
    receive(&mut machine, 0, 20_000);
    effects(&mut machine);
    machine.store_reset(NOW, Totals { epoch: Epoch(2), ..Totals::default() }, 0, 0);
    assert_eq!(effects(&mut machine), [Work::Drop]);
    assert_eq!(hello(&mut machine).unwrap().partial, None);
}

#[test]
fn another_version_in_a_frame_ends_the_transfer() {
    let mut machine = live();
    receive(&mut machine, 0, 20_000);
    effects(&mut machine);
    let deletes = |uid: &str| {
        let json = format!(
            r#"{{"header":{{}},"route":{{"operation":"delete","resource":"n/configmap/c"}},"content":
            {{"apiVersion":"v1","kind":"ConfigMap","metadata":{{"uid":"{uid}","name":"c","namespace":"n"}}}}}}"#
        );
        vec![parts::parse(&json, 1000).unwrap()]
    };
    let session = machine.session().unwrap().to_owned();
    let objects = |uid: &str| Objects {
        session: session.clone(),
        changes: deletes(uid),
        rejected: Vec::new(),
        receipt: 4,
    };
    machine.received(NOW, Received::Objects(objects("other")), 0);
    assert_eq!(effects(&mut machine), [Work::Apply]);
    machine.received(NOW, Received::Objects(objects("large")), 0);
    assert_eq!(effects(&mut machine), [Work::Drop, Work::Apply]);

    // Also one that the node cannot take.
    receive(&mut machine, 0, 20_000);
    effects(&mut machine);
    let bad = Rejected {
        uid: "large".into(),
        resource_version: 2.into(),
        reason: RejectReason::Invalid,
        message: "bad".into(),
        object: None,
    };
    let rejected = Objects { session, changes: Vec::new(), rejected: vec![bad], receipt: 5 };
    machine.received(NOW, Received::Objects(rejected), 0);
    assert_eq!(effects(&mut machine), [Work::Drop, Work::Apply]);
}

#[test]
fn a_piece_that_cannot_be_kept_rejects_the_message() {
    let mut machine = live();
    receive(&mut machine, 0, 20_000);
    effects(&mut machine);
    let full = || Err((RejectReason::StoreFull, "no room".to_owned()));
    machine.part_kept(&PartialMessage { uid: "other".into(), ..message(0) }, full());
    assert_eq!(effects(&mut machine), [], "it is about another message");
    machine.part_kept(&message(0), full());
    assert_eq!(effects(&mut machine), [Work::Drop, Work::Apply]);
    let commit = Commit { before: 0, totals: machine.totals(), applied: crate::apply::Applied::default() };
    machine.applied(NOW, 0, Ok(commit), 0);
    let rejected = std::iter::from_fn(|| machine.poll_frame(NOW)).find_map(|frame| match frame {
        Up::Report(report) => report.rejected.into_iter().next(),
        _ => None,
    });
    let rejected = rejected.unwrap();
    assert_eq!((&*rejected.uid, rejected.reason), ("large", RejectReason::StoreFull));
}

#[test]
fn a_piece_after_bytes_that_are_gone_starts_the_message_over() {
    let mut machine = live();
    receive(&mut machine, 0, 20_000);
    receive(&mut machine, 20_000, 40_000);
    effects(&mut machine);
    machine.part_kept(&message(20_000), Ok(false));
    assert_eq!(effects(&mut machine), [Work::Drop]);
    receive(&mut machine, 40_000, 45_000);
    assert_eq!(received(&mut machine), Some(0));
}

#[test]
fn damaged_bytes_are_reported_as_missing() {
    let mut machine = live();
    receive(&mut machine, 0, 20_000);
    receive(&mut machine, 20_000, TOTAL);
    effects(&mut machine);
    received(&mut machine);
    machine.parts_lost(NOW, 0, 0);
    assert_eq!(received(&mut machine), Some(0));

    // In memory, and cut off by a reconnect.
    let mut machine = live();
    receive(&mut machine, 0, 10_000);
    let mut wrong = text();
    wrong.replace_range(20_000..20_001, "x");
    let part = Part {
        session: machine.session().unwrap().to_owned(),
        receipt: 4,
        uid: "large".into(),
        resource_version: 7.into(),
        offset: 10_000,
        total: TOTAL as u64,
        data: wrong[10_000..].to_owned(),
        digest: Some(digest()),
        object: None,
    };
    machine.received(NOW, Received::Part(part), 0);
    assert_eq!((effects(&mut machine), received(&mut machine)), (vec![], Some(0)));
}

#[test]
fn a_failed_store_keeps_nothing_of_a_message() {
    let mut machine = live();
    receive(&mut machine, 0, 20_000);
    receive(&mut machine, 20_000, TOTAL);
    effects(&mut machine);
    machine.applied(NOW, 0, Err((RejectReason::StoreUnavailable, "no disk".into())), 0);
    assert_eq!(effects(&mut machine), [Work::Drop]);
}
