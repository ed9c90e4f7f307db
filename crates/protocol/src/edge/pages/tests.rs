use std::time::Duration;

use super::*;
use crate::apply::Totals;
use crate::digest::Epoch;
use crate::edge::{EdgeConfig, EdgePhase};
use crate::frame::{Confirm, Received, Welcome};

const NOW: Now = Duration::from_secs(1);
const SESSION: &str = "00000001";

/// A node with these revisions after its Hello.
fn greeting(revision: u64, confirmed: u64) -> EdgeMachine {
    let totals = Totals { epoch: Epoch(1), revision, count: revision, ..Totals::default() };
    let mut machine = EdgeMachine::new(EdgeConfig::defaults("edge"), totals, confirmed, None);
    machine.connected(NOW, 256 << 10, 1 << 32);
    assert!(matches!(machine.poll_frame(NOW), Some(Up::Hello(_))));
    machine
}

fn welcome(machine: &mut EdgeMachine, confirmed: u64) {
    let (session, incarnation) = (SESSION.into(), None);
    let welcome = Welcome {
        session,
        incarnation,
        confirmed,
        pending: 1,
        held: 0,
        register: false,
        features: Vec::new(),
        waiting: Default::default(),
    };
    machine.received(NOW, Received::Welcome(welcome), 0);
}

fn confirm(machine: &mut EdgeMachine, revision: u64) {
    let confirm = Confirm { session: SESSION.into(), revision, pending: 1, held: 0, ..Confirm::default() };
    machine.received(NOW, Received::Confirm(confirm), 0);
}

/// Returns the revision after which the machine reads changes, if it does.
fn next_read(machine: &mut EdgeMachine) -> Option<u64> {
    while machine.poll_frame(NOW).is_some() {}
    let effects = std::iter::from_fn(|| machine.poll_effect());
    effects
        .filter_map(
            |effect| if let EdgeEffect::ReadChanges { after, .. } = effect { Some(after) } else { None },
        )
        .last()
}

/// The order after a power cut: the node's own record of what is confirmed is older than the
/// cloud's, the Welcome carries the newer one, and a commit cuts the journal there before the read
/// runs.
#[test]
fn a_read_overtaken_by_a_confirmation_continues_after_it() {
    let mut machine = greeting(30, 4);
    assert_eq!(next_read(&mut machine), Some(4));
    welcome(&mut machine, 20);
    machine.changes_compacted(NOW, 4);
    assert_eq!(next_read(&mut machine), Some(20), "at once, not after a timeout");
    machine.changes_read(NOW, ChangesPage { from: 20, to: 30, entries: Vec::new() });
    let Some(Up::Report(report)) = machine.poll_frame(NOW) else { panic!("must be reported") };
    assert_eq!((report.from, report.to), (20, 30));
}

#[test]
fn a_read_overtaken_before_the_welcome_keeps_the_session() {
    let mut machine = greeting(30, 4);
    assert_eq!(next_read(&mut machine), Some(4));
    machine.changes_read(NOW, ChangesPage { from: 4, to: 10, entries: Vec::new() });
    assert_eq!(next_read(&mut machine), Some(10));
    confirm(&mut machine, 20);
    machine.changes_compacted(NOW, 10);
    assert_eq!(next_read(&mut machine), Some(20));
    assert_eq!((machine.phase(), machine.session()), (EdgePhase::Greeting, Some(SESSION)));
}

#[test]
fn nothing_is_read_once_everything_is_confirmed() {
    let mut machine = greeting(30, 4);
    // The read waits behind the Hello.
    welcome(&mut machine, 30);
    assert_eq!(next_read(&mut machine), None);
    let mut machine = greeting(30, 4);
    assert_eq!(next_read(&mut machine), Some(4));
    welcome(&mut machine, 30);
    machine.changes_compacted(NOW, 4);
    assert_eq!(next_read(&mut machine), None);
}

#[test]
fn a_compacted_read_of_a_replaced_store_is_not_repeated_at_once() {
    let mut machine = greeting(30, 4);
    assert_eq!(next_read(&mut machine), Some(4));
    machine.changes_compacted(NOW, 4);
    assert_eq!(next_read(&mut machine), None);
    machine.changes_compacted(NOW, 4);
    assert_eq!(next_read(&mut machine), None);
}

#[test]
fn the_answer_of_an_earlier_read_does_not_end_a_later_one() {
    let mut machine = greeting(30, 4);
    assert_eq!(next_read(&mut machine), Some(4));
    welcome(&mut machine, 20);
    machine.changes_compacted(NOW, 4);
    machine.changes_compacted(NOW, 4);
    assert_eq!(next_read(&mut machine), Some(20));
}
