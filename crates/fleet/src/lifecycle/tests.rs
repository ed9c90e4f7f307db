use std::sync::LazyLock;

use super::*;
use crate::node_name;
use edgesync_protocol::node::{
    CLOUD_REACHABLE, ConditionStatus, DISK_PRESSURE, IN_SYNC, READY, STORE_HEALTHY,
};
use proptest::prelude::*;

const FLUSH: Duration = Duration::from_secs(5);
static NODE: LazyLock<NodeName> = LazyLock::new(|| node_name("edge-1"));

fn seconds(seconds: u64) -> Now {
    Duration::from_secs(seconds)
}

fn clock(now: Now) -> Timestamp {
    let start: Timestamp = "2024-01-02T00:00:00Z".parse().unwrap();
    start + now
}

fn lease(acquired: Timestamp, renewed: Timestamp) -> Lease {
    Lease {
        session: "s".into(),
        seconds: 40,
        acquired: acquired.as_microsecond(),
        renewed: renewed.as_microsecond(),
        check_in: None,
    }
}

fn lifecycle(known: &Registered) -> NodeLifecycle {
    NodeLifecycle::new(Now::ZERO, clock(Now::ZERO), known, FLUSH)
}

fn renew(lifecycle: &mut NodeLifecycle, now: Now) {
    lifecycle.renewed(now, clock(now), &NODE, &lease(clock(Now::ZERO), clock(now)));
}

fn registered(renewed: Timestamp) -> Registered {
    let (acquired, transitions) = (renewed, 3);
    let lease = LeaseRenewal { node: NODE.clone(), seconds: 40, acquired, renewed, transitions, next: None };
    Registered { nodes: vec![NODE.clone()], leases: vec![lease], ..Registered::default() }
}

/// Returns status and reason of a condition in the next write.
fn written<'a>(changes: &'a [NodeChange], condition: &str) -> Option<(ConditionStatus, &'a str)> {
    let all = changes.iter().flat_map(|change| &change.conditions);
    let mut found = all.filter(|found| found.condition == condition);
    let one = found.next()?;
    assert!(found.next().is_none(), "{condition} twice");
    Some((one.status, &one.reason))
}

/// Writes the changes that are due, after the debounce time if necessary.
fn write(lifecycle: &mut NodeLifecycle, now: Now) -> Vec<NodeChange> {
    let mut changes = lifecycle.changes_due(now);
    if changes.is_empty() {
        changes = lifecycle.changes_due(now + DEBOUNCE);
    }
    lifecycle.changes_written(now, true);
    changes
}

fn write_leases(lifecycle: &mut NodeLifecycle, now: Now) -> Vec<LeaseRenewal> {
    let leases = lifecycle.leases_due(now);
    if !leases.is_empty() {
        lifecycle.leases_written(now, true);
    }
    leases
}

const TRUE: ConditionStatus = ConditionStatus::True;
const FALSE: ConditionStatus = ConditionStatus::False;
const UNKNOWN: ConditionStatus = ConditionStatus::Unknown;

#[test]
fn node_is_ready_while_it_renews_and_unknown_afterwards() {
    let mut lifecycle = lifecycle(&Registered::default());
    lifecycle.welcomed(seconds(1), &NODE);
    assert_eq!(lifecycle.show(&NODE), (None, None));
    renew(&mut lifecycle, seconds(1));
    let changes = write(&mut lifecycle, seconds(1));
    assert_eq!(written(&changes, READY), Some((TRUE, "AgentReady")));
    assert_eq!(written(&changes, CLOUD_REACHABLE), Some((TRUE, "Connected")));
    assert_eq!(lifecycle.show(&NODE), (Some(true), Some(clock(seconds(1)))));

    for now in [11, 21, 31, 71, 110] {
        renew(&mut lifecycle, seconds(now));
        assert_eq!(write(&mut lifecycle, seconds(now)), [], "{now}");
    }
    write_leases(&mut lifecycle, seconds(115));
    assert_eq!(lifecycle.deadline(), Some(seconds(150)));
    assert_eq!(lifecycle.changes_due(seconds(149)), []);
    let changes = write(&mut lifecycle, seconds(150));
    for condition in [READY, CLOUD_REACHABLE, IN_SYNC, STORE_HEALTHY, DISK_PRESSURE] {
        assert_eq!(written(&changes, condition), Some((UNKNOWN, "NodeStatusUnknown")), "{condition}");
    }
    assert_eq!(lifecycle.show(&NODE).0, Some(false));
    assert_eq!(lifecycle.deadline(), None);

    renew(&mut lifecycle, seconds(200));
    let changes = write(&mut lifecycle, seconds(200));
    assert_eq!(written(&changes, READY), Some((TRUE, "AgentReady")));
}

#[test]
fn reported_conditions_are_unknown_while_the_node_is_away() {
    let own = Condition {
        condition: DISK_PRESSURE.into(),
        status: TRUE,
        reason: "DiskAlmostFull".into(),
        ..Condition::default()
    };
    let mut lifecycle = lifecycle(&Registered::default());
    lifecycle.welcomed(seconds(0), &NODE);
    renew(&mut lifecycle, seconds(0));
    lifecycle.reported(seconds(0), &NODE, std::slice::from_ref(&own));
    assert_eq!(written(&write(&mut lifecycle, seconds(0)), DISK_PRESSURE), None, "the report says it");
    let changes = write(&mut lifecycle, seconds(40));
    assert_eq!(written(&changes, DISK_PRESSURE), Some((UNKNOWN, "NodeStatusUnknown")));
    assert_eq!(written(&changes, STORE_HEALTHY), None, "it has never reported that");

    renew(&mut lifecycle, seconds(50));
    assert!(!lifecycle.wants_report(&NODE), "it is known here");
    assert_eq!(lifecycle.changes_due(seconds(50) + DEBOUNCE).len(), 1);
    lifecycle.changes_written(seconds(51), false);
    assert_eq!(lifecycle.changes_due(seconds(51)), [], "a write that failed is not tried again at once");
    let changes = write(&mut lifecycle, seconds(52));
    assert_eq!(written(&changes, DISK_PRESSURE), Some((TRUE, "DiskAlmostFull")));
    lifecycle.in_sync(seconds(53), &NODE, SyncState { in_sync: true, ..SyncState::default() });
    let changes = write(&mut lifecycle, seconds(53));
    assert_eq!(written(&changes, DISK_PRESSURE), None, "once is enough");
    assert_eq!(written(&changes, IN_SYNC), Some((TRUE, "InSync")));
}

#[test]
fn report_during_a_write_is_written_after_it() {
    let report = |reason: &str| Condition {
        condition: DISK_PRESSURE.into(),
        status: FALSE,
        reason: reason.into(),
        ..Condition::default()
    };
    let mut lifecycle = lifecycle(&Registered::default());
    renew(&mut lifecycle, seconds(0));
    lifecycle.reported(seconds(0), &NODE, &[report("Old")]);
    write(&mut lifecycle, seconds(40));
    renew(&mut lifecycle, seconds(50));
    let in_flight = lifecycle.changes_due(seconds(51));
    assert_eq!(written(&in_flight, DISK_PRESSURE), Some((FALSE, "Old")));
    lifecycle.reported(seconds(51), &NODE, &[report("New")]);
    lifecycle.changes_written(seconds(51), true);
    assert_eq!(written(&write(&mut lifecycle, seconds(51)), DISK_PRESSURE), Some((FALSE, "New")));
}

#[test]
fn nodes_keep_the_time_of_their_lease_after_a_start() {
    let fresh = registered(clock(Now::ZERO) - Duration::from_secs(10));
    let mut again = lifecycle(&fresh);
    assert!(!again.wants_report(&NODE), "it was ready when the cloud side stopped");
    assert_eq!(again.changes_due(seconds(39)), []);
    assert_eq!(written(&write(&mut again, seconds(40)), READY), Some((UNKNOWN, "NodeStatusUnknown")));
    assert!(again.wants_report(&NODE));

    let mut away = lifecycle(&registered(clock(Now::ZERO) - Duration::from_secs(41)));
    assert!(away.wants_report(&NODE));
    renew(&mut away, seconds(1));
    away.reported(seconds(1), &NODE, &[]);
    assert!(!away.wants_report(&NODE));
    assert_eq!(away.leases_due(seconds(4)), []);
    let leases = write_leases(&mut away, seconds(5));
    assert_eq!(leases[0].transitions, 4, "the agent restarted");
    renew(&mut away, seconds(11));
    assert_eq!(write_leases(&mut away, seconds(16))[0].transitions, 4);
}

#[test]
fn leases_are_written_in_batches_and_retried() {
    let mut lifecycle = lifecycle(&Registered::default());
    for (now, node) in [(1, "a"), (2, "b"), (3, "a")] {
        lifecycle.renewed(
            seconds(now),
            clock(seconds(now)),
            &node_name(node),
            &lease(clock(Now::ZERO), clock(seconds(now))),
        );
    }
    assert_eq!(lifecycle.leases_due(seconds(4)), []);
    let leases = lifecycle.leases_due(seconds(5));
    let shown: Vec<_> = leases.iter().map(|lease| (&*lease.node, lease.renewed)).collect();
    assert_eq!(shown, [("a", clock(seconds(3))), ("b", clock(seconds(2)))]);
    renew(&mut lifecycle, seconds(6));
    assert_eq!(lifecycle.leases_due(seconds(20)), [], "one write at a time");
    assert!(lifecycle.is_writing(&node_name("a")) && !lifecycle.is_writing(&NODE));
    lifecycle.forget(&node_name("b"));
    lifecycle.leases_written(seconds(20), false);
    assert_eq!(lifecycle.leases_due(seconds(24)), []);
    let names: Vec<NodeName> =
        lifecycle.leases_due(seconds(25)).into_iter().map(|lease| lease.node).collect();
    assert_eq!(names, ["a", NODE.as_str()]);
    lifecycle.leases_written(seconds(25), true);
    renew(&mut lifecycle, seconds(26));
    assert_eq!(lifecycle.leases_left().len(), 1, "the end does not wait");
}

#[test]
fn wrong_node_clock_is_replaced_by_the_time_of_arrival() {
    let mut lifecycle = lifecycle(&Registered::default());
    for (now, wrong) in [(1, i64::MIN), (2, 0), (3, i64::MAX)] {
        let lease =
            Lease { session: String::new(), seconds: 40, acquired: wrong, renewed: wrong, check_in: None };
        lifecycle.renewed(seconds(now), clock(seconds(now)), &NODE, &lease);
        let leases = lifecycle.leases_left();
        assert_eq!(leases[0].renewed, clock(seconds(now)));
        lifecycle.leases_written(seconds(now), true);
    }
    let little = clock(seconds(4)) - Duration::from_secs(30);
    lifecycle.renewed(seconds(4), clock(seconds(4)), &NODE, &lease(little, little));
    assert_eq!(lifecycle.leases_left()[0].renewed, little, "a small deviation is kept");
    let lease = Lease { session: String::new(), seconds: 0, acquired: 0, renewed: 0, check_in: None };
    lifecycle.renewed(seconds(5), clock(seconds(5)), &NODE, &lease);
    assert_eq!(lifecycle.deadlines.first().map(|(at, _)| *at), Some(seconds(6)));
    let lease = Lease { seconds: u32::MAX, ..lease };
    lifecycle.renewed(seconds(5), clock(seconds(5)), &NODE, &lease);
    assert_eq!(lifecycle.deadlines.first().map(|(at, _)| *at), Some(seconds(86_405)));
}

#[test]
fn out_of_sync_is_published_once_it_is_steady() {
    let mut lifecycle = lifecycle(&Registered::default());
    lifecycle.in_sync(seconds(0), &NODE, SyncState { in_sync: true, ..SyncState::default() });
    assert_eq!(lifecycle.deadline(), None, "a node that is not connected is neither");
    renew(&mut lifecycle, seconds(0));
    lifecycle.in_sync(seconds(0), &NODE, SyncState { pending: 9, ..SyncState::default() });
    assert_eq!(written(&write(&mut lifecycle, seconds(0)), IN_SYNC), Some((FALSE, "ObjectsPending")));
    let mut see = |now: u64, view: (bool, u64, u64, u64)| {
        renew(&mut lifecycle, seconds(now));
        lifecycle.in_sync(
            seconds(now),
            &NODE,
            SyncState { in_sync: view.0, pending: view.1, rejected: view.2, held: view.3, waiting: 0 },
        );
        let changes = write(&mut lifecycle, seconds(now));
        written(&changes, IN_SYNC).map(|(status, reason)| (status, reason.to_owned()))
    };
    let (yes, pending, rejected, held) =
        ((true, 0, 0, 0), (false, 2, 0, 0), (false, 1, 1, 0), (false, 0, 1, 4));
    assert_eq!(see(1, (false, 5, 0, 0)), None, "numbers alone are not published");
    assert_eq!(see(2, yes), None);
    assert_eq!(see(11, yes), None);
    assert_eq!(see(12, yes), Some((TRUE, "InSync".into())));
    for now in 13..60 {
        assert_eq!(see(now, if now % 2 == 0 { yes } else { pending }), None, "{now}");
    }
    assert_eq!(see(61, pending), None);
    assert_eq!(see(66, rejected), None);
    assert_eq!(see(71, rejected), Some((FALSE, "ObjectsRejected".into())), "it was false for ten seconds");
    assert_eq!(see(72, held), None);
    assert_eq!(see(82, held), Some((FALSE, "RemovalsHeldBack".into())));
    // The number of held-back removals is published, for the operator who confirms them.
    assert_eq!(see(83, (false, 0, 1, 5)), None);
    assert_eq!(see(88, (false, 7, 1, 5)), None, "other numbers alone are not published");
    assert_eq!(see(93, (false, 0, 1, 5)), Some((FALSE, "RemovalsHeldBack".into())));
    assert_eq!(see(94, (false, 3, 1, 5)), None);
    assert_eq!(see(110, (false, 3, 1, 5)), None);
}

#[test]
fn removed_node_is_not_written() {
    let mut lifecycle = lifecycle(&registered(clock(Now::ZERO)));
    renew(&mut lifecycle, seconds(1));
    lifecycle.forget(&NODE);
    assert_eq!(lifecycle.deadline(), None);
    assert_eq!((lifecycle.leases_due(seconds(100)), lifecycle.changes_due(seconds(100))), (vec![], vec![]));
}

#[test]
fn ten_thousand_nodes_are_written_in_consecutive_batches() {
    let mut lifecycle = lifecycle(&Registered::default());
    let names: Vec<NodeName> = (0..10_000).map(|number| node_name(&format!("edge-{number}"))).collect();
    for name in &names {
        lifecycle.renewed(seconds(1), clock(seconds(1)), name, &lease(clock(Now::ZERO), clock(seconds(1))));
    }
    let (mut leases, mut changes) = (BTreeSet::new(), BTreeSet::new());
    let mut writes = 0;
    while lifecycle.deadline() == Some(seconds(5)) || lifecycle.deadline() == Some(seconds(1) + DEBOUNCE) {
        let (some, others) = (lifecycle.leases_due(seconds(5)), lifecycle.changes_due(seconds(5)));
        assert!(some.len() <= BATCH && others.len() <= BATCH);
        leases.extend(some.into_iter().map(|lease| lease.node));
        changes.extend(others.into_iter().map(|change| change.node));
        lifecycle.leases_written(seconds(5), true);
        lifecycle.changes_written(seconds(5), true);
        writes += 1;
    }
    assert_eq!((leases.len(), changes.len(), writes), (10_000, 10_000, 5));
    assert_eq!(lifecycle.deadline(), Some(seconds(41)));
}

/// An event of a node.
#[derive(Clone, Debug)]
enum Step {
    Wait(u64),
    Renew,
    Welcome,
    See(bool),
    Write(bool),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        (0..30_000u64).prop_map(Step::Wait),
        Just(Step::Renew),
        Just(Step::Welcome),
        any::<bool>().prop_map(Step::See),
        any::<bool>().prop_map(Step::Write),
    ];
    proptest::collection::vec(step, 0..80)
}

/// Conditions in a store after some writes.
#[derive(Default)]
struct Stored(std::collections::BTreeMap<String, ConditionStatus>);

impl Stored {
    fn apply(&mut self, changes: Vec<NodeChange>) {
        for condition in changes.into_iter().flat_map(|change| change.conditions) {
            self.0.insert(condition.condition, condition.status);
        }
    }
}

proptest! {
    #[test]
    fn what_is_stored_in_the_end_follows_from_the_last_sign_of_life(steps in steps()) {
        let mut lifecycle = lifecycle(&Registered::default());
        let mut stored = Stored::default();
        let own = Condition { condition: STORE_HEALTHY.into(), status: TRUE, ..Condition::default() };
        let mut now = Now::ZERO;
        let mut renewed = None;
        let mut alive_until = None;
        for step in steps {
            match step {
                Step::Wait(millis) => now += Duration::from_millis(millis),
                Step::Renew => {
                    renew(&mut lifecycle, now);
                    if renewed.is_none() {
                        lifecycle.reported(now, &NODE, std::slice::from_ref(&own));
                        stored.0.insert(STORE_HEALTHY.into(), TRUE);
                    }
                    renewed = Some(now);
                    alive_until = Some(now + seconds(40));
                }
                Step::Welcome => {
                    // A welcome of a node that renews does not extend its life.
                    if lifecycle.show(&NODE).0 != Some(true) {
                        alive_until = Some(now + seconds(40));
                    }
                    lifecycle.welcomed(now, &NODE);
                }
                Step::See(in_sync) => lifecycle.in_sync(now, &NODE, SyncState { in_sync, pending: u64::from(!in_sync), ..SyncState::default() }),
                Step::Write(succeeds) => {
                    let changes = lifecycle.changes_due(now);
                    if succeeds {
                        stored.apply(changes);
                    }
                    lifecycle.changes_written(now, succeeds);
                }
            }
        }
        loop {
            now += RETRY;
            stored.apply(lifecycle.changes_due(now));
            lifecycle.changes_written(now, true);
            if lifecycle.changes.due.is_empty() {
                break;
            }
        }
        let alive = alive_until.is_some_and(|until| until > now);
        if let Some(at) = renewed {
            let ready = stored.0.get(READY).copied();
            if at + seconds(40) > now {
                prop_assert_eq!(ready, Some(TRUE));
                prop_assert_eq!(lifecycle.show(&NODE), (Some(true), Some(clock(at))));
            } else {
                prop_assert_eq!(ready, Some(UNKNOWN));
            }
            prop_assert_eq!(stored.0.get(STORE_HEALTHY), Some(&if alive { TRUE } else { UNKNOWN }));
        }
        if alive_until.is_some() {
            let expected = if alive { TRUE } else { UNKNOWN };
            prop_assert_eq!(stored.0.get(CLOUD_REACHABLE), Some(&expected));
        }
        if let Some(at) = lifecycle.deadline() {
            prop_assert!(at > now || lifecycle.leases.next() == Some(at));
        }
    }

    #[test]
    fn no_lease_panics_or_makes_a_time_that_objects_cannot_have(
        seconds: u32,
        acquired: i64,
        renewed: i64,
        at in 0..1_000_000u64,
    ) {
        let now = Duration::from_secs(at);
        let mut lifecycle = lifecycle(&Registered::default());
        let lease = Lease { session: String::new(), seconds, acquired, renewed, check_in: None };
        lifecycle.renewed(now, clock(now), &NODE, &lease);
        let lease = lifecycle.leases_left().remove(0);
        prop_assert!((1..=MAX_SECONDS).contains(&lease.seconds));
        for time in [lease.acquired, lease.renewed] {
            prop_assert!(time >= Timestamp::UNIX_EPOCH && !time.to_string().starts_with('+'));
        }
    }
}

#[test]
fn live_node_found_silent_elsewhere_is_written_ready() {
    let mut lifecycle = NodeLifecycle::of_replica(Now::ZERO, clock(Now::ZERO), FLUSH);
    // A node that is not connected here is not judged.
    lifecycle.found_silent(seconds(1), &NODE);
    assert!(write(&mut lifecycle, seconds(2)).is_empty());
    lifecycle.welcomed(seconds(3), &NODE);
    renew(&mut lifecycle, seconds(3));
    let written_again = write(&mut lifecycle, seconds(4));
    assert_eq!(written(&written_again, READY).map(|(status, _)| status), Some(TRUE));
    assert!(write(&mut lifecycle, seconds(5)).is_empty());
    lifecycle.found_silent(seconds(6), &NODE);
    assert_eq!(write(&mut lifecycle, seconds(7)), written_again);
    // A node that stops renewing here may be alive at another replica: nothing is written.
    assert!(write(&mut lifecycle, seconds(3600)).is_empty());
}
