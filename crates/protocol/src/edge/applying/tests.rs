use std::time::Duration;

use super::*;
use crate::apply::Totals;
use crate::digest::Epoch;
use crate::edge::{EdgeConfig, EdgePhase};
use crate::frame::{Confirm, Received, Up, Welcome};

const NOW: Now = Duration::from_secs(1);
const TIMEOUT: Duration = Duration::from_secs(10);
const LIMIT: usize = 16 * 1024;

fn totals(epoch: u128, revision: u64) -> Totals {
    Totals { epoch: Epoch(epoch), revision, count: revision, ..Totals::default() }
}

fn greeting(revision: u64, confirmed: u64) -> EdgeMachine {
    let config = EdgeConfig {
        node: "edge".into(),
        agent: "test".into(),
        max_frame: u32::try_from(LIMIT).unwrap(),
        max_object: 60_000,
        hello_timeout: TIMEOUT,
        report_timeout: TIMEOUT,
        retry_max: Duration::from_secs(60),
        report_attempts: 4,
        max_applying: 8,
        lease_interval: TIMEOUT,
        lease_duration: TIMEOUT * 4,
        patches: false,
    };
    let mut machine = EdgeMachine::new(config, totals(1, revision), confirmed, None);
    machine.connected(NOW, LIMIT, 1 << 32);
    machine
}

fn live() -> EdgeMachine {
    let mut machine = greeting(0, 0);
    let (session, incarnation) = ("00000001".into(), None);
    let welcome = Welcome {
        session,
        incarnation,
        confirmed: 0,
        pending: 2,
        held: 0,
        register: false,
        features: Vec::new(),
        waiting: Default::default(),
    };
    machine.received(NOW, Received::Welcome(welcome), 0);
    for _ in 0..2 {
        let objects =
            Objects { session: "00000001".into(), changes: Vec::new(), rejected: Vec::new(), receipt: 0 };
        machine.received(NOW, Received::Objects(objects), 0);
    }
    machine
}

fn answer(machine: &mut EdgeMachine, token: u64, before: u64, totals: Totals) {
    let commit = Commit { before, totals, applied: Applied::default() };
    machine.applied(NOW, token, Ok(commit), 0);
}

fn frames(machine: &mut EdgeMachine) -> Vec<Up> {
    std::iter::from_fn(|| machine.poll_frame(NOW)).collect()
}

fn hello(machine: &mut EdgeMachine) -> (u64, u64) {
    match frames(machine).pop() {
        Some(Up::Hello(hello)) => (hello.revision, hello.count),
        other => panic!("must be a Hello: {other:?}"),
    }
}

#[test]
fn a_retried_batch_does_not_roll_the_totals_back() {
    let mut machine = live();
    frames(&mut machine);
    answer(&mut machine, 0, 1, totals(1, 2));
    answer(&mut machine, 1, 0, totals(1, 1));
    let ranges: Vec<_> = frames(&mut machine)
        .iter()
        .map(|frame| match frame {
            Up::Report(report) => (report.from, report.to),
            other => panic!("must be a Report: {other:?}"),
        })
        .collect();
    assert_eq!(ranges, [(1, 2), (0, 1)], "none says more than was committed with it");
    machine.connected(NOW, LIMIT, 2 << 32);
    assert_eq!(hello(&mut machine), (2, 2));
}

#[test]
fn a_hello_after_a_reset_waits_for_all_commits_in_any_order() {
    let mut machine = live();
    machine.store_reset(NOW, totals(2, 5), 0, 2 << 32);
    frames(&mut machine);
    answer(&mut machine, 0, 6, totals(2, 7));
    assert_eq!(machine.phase(), EdgePhase::Settling);
    answer(&mut machine, 1, 5, totals(2, 6));
    assert_eq!(hello(&mut machine), (7, 7));
}

#[test]
fn a_commit_of_another_epoch_claims_nothing_in_this_one() {
    let mut machine = live();
    frames(&mut machine);
    answer(&mut machine, 0, 0, totals(2, 1));
    let Some(Up::Report(report)) = frames(&mut machine).pop() else { panic!("must be reported") };
    assert_eq!((report.from, report.to, machine.totals()), (0, 0, totals(1, 0)));
}

#[test]
fn before_the_welcome_nothing_but_the_hello_waits_for_an_answer() {
    let mut machine = greeting(9, 3);
    frames(&mut machine);
    let until = machine.deadline();
    let confirm =
        Confirm { session: "00000001".into(), revision: 5, pending: 0, held: 0, ..Confirm::default() };
    machine.received(NOW, Received::Confirm(confirm), 0);
    machine.read_failed(NOW);
    assert_eq!(machine.deadline(), until);
}
