//! Nodes with plans over virtual time: what is stored of them at each moment is compared with what
//! they did. Faults in [`super`] are planted, and must be found.

use std::collections::BTreeMap;

use super::*;
use crate::source::{NodeChange, Registered};
use edgesync_protocol::fault;
use edgesync_protocol::node::{CLOUD_REACHABLE, ConditionStatus, IN_SYNC, READY};
use edgesync_protocol::renewal::Lease;

const HOUR: u64 = 3600;
const INTERVAL: u64 = 6 * HOUR;
/// Seconds of a check-in, with renewals every ten.
const VISIT: u64 = 20;
const WEEK: u64 = 7 * 24 * HOUR;

/// What a node does at the end of a check-in.
#[derive(Clone, Copy, PartialEq, Eq)]
enum End {
    /// Announces its absence, and disconnects in order.
    Planned,
    /// The same, and the DISCONNECT arrives before the Lease.
    Reordered,
    /// Its connection is cut before it announces anything.
    Cut,
    /// It announces its absence; then the connection is cut.
    CutAfterPlan,
    /// It disconnects in order without a plan.
    NoPlan,
}

/// The cloud side's lifecycle over a model of its store.
struct World {
    lifecycle: NodeLifecycle,
    /// Start of this process in the time of the world.
    started: u64,
    now: u64,
    /// Deviation of the wall clock, in seconds.
    skew: i64,
    conditions: BTreeMap<NodeName, BTreeMap<String, (ConditionStatus, String)>>,
    leases: BTreeMap<NodeName, LeaseRenewal>,
    missed: Vec<(NodeName, u64)>,
}

fn name(number: usize) -> NodeName {
    NodeName::parse(&format!("edge-{number:04}")).unwrap()
}

impl World {
    fn new() -> Self {
        let mut world = Self {
            lifecycle: NodeLifecycle::new(Now::ZERO, Timestamp::UNIX_EPOCH, &Registered::default(), FLUSH),
            started: 0,
            now: 0,
            skew: 0,
            conditions: BTreeMap::new(),
            leases: BTreeMap::new(),
            missed: Vec::new(),
        };
        world.restart();
        world
    }

    fn clock(&self) -> Timestamp {
        let second = 1_795_000_000 + i64::try_from(self.now).unwrap() + self.skew;
        Timestamp::from_second(second).unwrap()
    }

    /// Time since the start of the process.
    fn monotonic(&self) -> Now {
        Duration::from_secs(self.now - self.started)
    }

    /// Starts another process from what is stored.
    fn restart(&mut self) {
        self.started = self.now;
        let known = Registered {
            nodes: self.leases.keys().cloned().collect(),
            leases: self.leases.values().cloned().collect(),
            ..Registered::default()
        };
        self.lifecycle = NodeLifecycle::new(Now::ZERO, self.clock(), &known, FLUSH);
        self.lifecycle.set_max_absence(Duration::from_secs(24 * HOUR));
    }

    fn pass(&mut self, until: u64) {
        loop {
            let next = self
                .lifecycle
                .deadline()
                .map_or(u64::MAX, |at| self.started + at.as_secs() + u64::from(at.subsec_nanos() > 0));
            let at = next.max(self.now).min(until);
            self.now = at;
            self.write();
            if at == until {
                return;
            }
            if next <= at {
                // Batches that are due at once, or a debounce within the second.
                self.now = at + 1;
            }
        }
    }

    fn write(&mut self) {
        let (now, second) = (self.monotonic(), self.now);
        let changes: Vec<NodeChange> = self.lifecycle.changes_due(now);
        for change in changes {
            let stored = self.conditions.entry(change.node).or_default();
            for condition in change.conditions {
                stored.insert(condition.condition, (condition.status, condition.message));
            }
        }
        self.lifecycle.changes_written(now, true);
        for lease in self.lifecycle.leases_due(now) {
            self.leases.insert(lease.node.clone(), lease);
        }
        self.lifecycle.leases_written(now, true);
        while let Some(missed) = self.lifecycle.next_missed() {
            self.missed.push((missed.node, second));
            self.lifecycle.missed_written();
        }
    }

    fn renew(&mut self, node: &NodeName, check_in: Option<CheckIn>) {
        let clock = self.clock();
        let micros = clock.as_microsecond();
        let lease = Lease { session: String::new(), seconds: 40, acquired: 1, renewed: micros, check_in };
        self.lifecycle.renewed(self.monotonic(), clock, node, &lease);
    }

    /// Connects a node, lets it stay, and ends the check-in. Returns when it announced to return.
    fn visit(&mut self, node: &NodeName, within: u64, end: End) -> u64 {
        self.lifecycle.welcomed(self.monotonic(), node);
        self.renew(node, None);
        let from = self.now;
        self.lifecycle.in_sync(self.monotonic(), node, SyncState { in_sync: true, ..SyncState::default() });
        self.pass(from + VISIT / 2);
        self.renew(node, None);
        self.pass(from + VISIT);
        let within_seconds = u32::try_from(within).unwrap();
        let plan = CheckIn { within: within_seconds, reason: CheckInReason::Interval };
        match end {
            End::Planned => {
                self.renew(node, Some(plan));
                self.lifecycle.left(self.monotonic(), self.clock(), node);
            }
            End::Reordered => {
                self.lifecycle.left(self.monotonic(), self.clock(), node);
                self.renew(node, Some(plan));
            }
            End::Cut => {}
            End::CutAfterPlan => self.renew(node, Some(plan)),
            End::NoPlan => self.lifecycle.left(self.monotonic(), self.clock(), node),
        }
        self.now + within
    }

    fn status(&self, node: &NodeName, condition: &str) -> Option<ConditionStatus> {
        Some(self.conditions.get(node)?.get(condition)?.0)
    }

    fn is_ready(&self, node: &NodeName) -> bool {
        self.status(node, READY) == Some(ConditionStatus::True)
    }

    /// Checks that a node becomes Unknown between two times.
    fn lost_between(&mut self, node: &NodeName, from: u64, to: u64) -> Result<(), String> {
        self.pass(from);
        if !self.is_ready(node) {
            return Err(format!("{node} is lost before {from}"));
        }
        self.pass(to);
        if self.status(node, READY) != Some(ConditionStatus::Unknown) {
            return Err(format!("{node} is still ready at {to}"));
        }
        Ok(())
    }
}

const FLUSH: Duration = Duration::from_secs(5);

/// Runs many nodes with the same interval and their own phases for a week. All but one come back;
/// that one stops after a day.
fn fleet_for_a_week() -> Result<(), String> {
    const NODES: usize = 1000;
    const STOPPED: usize = 500;
    let mut world = World::new();
    // Starts of check-ins, in order of time; one node after the other, 21 s apart.
    let mut due: BTreeMap<u64, usize> =
        (0..NODES).map(|number| (u64::try_from(number).unwrap() * INTERVAL / 1000, number)).collect();
    let mut term = None;
    while let Some((at, number)) = due.pop_first() {
        if at > WEEK {
            break;
        }
        world.pass(at.max(world.now));
        if number == STOPPED && at > 24 * HOUR {
            continue;
        }
        let node = name(number);
        let next = world.visit(&node, INTERVAL - VISIT + 10, End::Planned);
        if number == STOPPED {
            term = Some(next);
        }
        due.insert(at + INTERVAL, number);
        let others = world.conditions.iter().filter(|(node, _)| **node != name(STOPPED));
        for (node, conditions) in others {
            if conditions.values().any(|(status, _)| *status == ConditionStatus::Unknown) {
                return Err(format!("{node} is Unknown at {}: {conditions:?}", world.now));
            }
        }
    }
    let term = term.unwrap();
    let missed: Vec<_> = world.missed.iter().filter(|(node, _)| *node == name(STOPPED)).collect();
    match missed[..] {
        // The tolerance is 5 minutes at this length.
        [(_, at)] if (term + 300..=term + 360).contains(at) => {}
        _ => return Err(format!("due at {term} and 300 s, missed {:?}", world.missed)),
    }
    if world.missed.len() != 1 || world.status(&name(STOPPED), READY) != Some(ConditionStatus::Unknown) {
        return Err(format!("one node has stopped, missed are {:?}", world.missed));
    }
    Ok(())
}

#[test]
fn nodes_with_a_plan_are_never_unknown_and_a_missing_one_is_overdue() {
    assert_eq!(fleet_for_a_week(), Ok(()));
    let planted = fault::with(Some(Fault::AbsenceTooShort), fleet_for_a_week);
    assert!(planted.is_err(), "the planted bug is found");
}

/// The process does nothing for absent nodes until the first one is overdue, and keeps one entry
/// of bounded size for each of them.
#[test]
fn absent_nodes_cost_no_work_before_their_term() {
    const NODES: usize = 1000;
    let mut world = World::new();
    let within = 12 * HOUR;
    let mut terms = (0..NODES).map(|number| world.visit(&name(number), within, End::Planned) + 300);
    let first = terms.next().unwrap();
    assert_eq!(terms.count(), NODES - 1);
    // The last ones to leave are written.
    world.pass(world.now + 60);
    assert!(world.now + HOUR < first);
    assert_eq!(world.lifecycle.deadline(), Some(Duration::from_secs(first)));
    world.now = first - 1;
    assert!(world.lifecycle.changes_due(world.monotonic()).is_empty());
    assert!(world.lifecycle.leases_due(world.monotonic()).is_empty());
    assert_eq!(world.lifecycle.nodes.len(), NODES);
    assert_eq!(world.lifecycle.deadlines.len(), NODES, "one deadline each");
    let bytes = size_of::<(NodeName, Liveness)>() + size_of::<(Now, NodeName)>();
    assert!(bytes <= 512, "{bytes} bytes for each node, besides its conditions");
}

fn ends_without_a_planned_absence() -> Result<(), String> {
    for end in [End::Cut, End::CutAfterPlan, End::NoPlan] {
        let (mut world, node) = (World::new(), name(1));
        world.visit(&node, INTERVAL, end);
        let renewed = world.now;
        world.lost_between(&node, renewed + 25, renewed + 60)?;
        if !world.missed.is_empty() {
            return Err("no check-in was planned".into());
        }
    }
    Ok(())
}

#[test]
fn cut_link_and_half_a_plan_are_lost_after_the_usual_term() {
    assert_eq!(ends_without_a_planned_absence(), Ok(()));
    let planted = fault::with(Some(Fault::AbsentWithoutDisconnect), ends_without_a_planned_absence);
    assert!(planted.is_err(), "the planted bug is found");
}

#[test]
fn plan_counts_in_whichever_order_lease_and_disconnect_arrive() {
    for end in [End::Planned, End::Reordered] {
        let (mut world, node) = (World::new(), name(1));
        let next = world.visit(&node, INTERVAL, end);
        world.lost_between(&node, next + 290, next + 360).unwrap();
        assert_eq!(world.missed.len(), 1);
    }
}

/// The process is off for a while in the middle of an absence; the wall clock may jump meanwhile.
fn restart(after: u64, off: u64, skew: i64) -> Result<(World, u64), String> {
    let (mut world, node) = (World::new(), name(1));
    let next = world.visit(&node, INTERVAL, End::Planned);
    world.pass(world.now + after);
    world.now += off;
    world.skew = skew;
    world.restart();
    if !world.is_ready(&node) {
        return Err("unknown after the restart".into());
    }
    Ok((world, next))
}

fn restart_within_the_term() -> Result<(), String> {
    let (mut world, next) = restart(HOUR, HOUR, 0)?;
    world.lost_between(&name(1), next + 290, next + 360)?;
    if world.missed.len() == 1 { Ok(()) } else { Err(format!("missed {:?}", world.missed)) }
}

#[test]
fn term_is_continued_by_the_next_process() {
    assert_eq!(restart_within_the_term(), Ok(()));
    let planted = fault::with(Some(Fault::AbsenceForgotten), restart_within_the_term);
    assert!(planted.is_err(), "the planted bug is found");
}

#[test]
fn process_that_was_off_beyond_the_term_gives_the_usual_grace() {
    let (mut world, _) = restart(HOUR, 10 * HOUR, 0).unwrap();
    let start = world.now;
    world.pass(start + 35);
    assert!(world.is_ready(&name(1)) && world.missed.is_empty());
    // It connects within the grace: nothing was missed.
    world.visit(&name(1), INTERVAL, End::Planned);
    world.pass(start + HOUR);
    assert!(world.is_ready(&name(1)) && world.missed.is_empty());
    let (mut world, _) = restart(HOUR, 10 * HOUR, 0).unwrap();
    let start = world.now;
    world.lost_between(&name(1), start + 35, start + 45).unwrap();
    assert_eq!(world.missed.len(), 1);
}

#[test]
fn jump_of_the_wall_clock_shortens_no_term_below_the_grace_and_extends_none() {
    // Without a restart the monotonic clock decides.
    let (mut world, node) = (World::new(), name(1));
    let next = world.visit(&node, INTERVAL, End::Planned);
    world.skew = 30 * 86_400;
    world.lost_between(&node, next + 290, next + 360).unwrap();
    // A clock far ahead at a restart: the grace, no less.
    let (mut world, _) = restart(HOUR, 0, 30 * 86_400).unwrap();
    let start = world.now;
    world.lost_between(&name(1), start + 35, start + 45).unwrap();
    // A clock far behind: the whole term again, no more.
    let (mut world, _) = restart(HOUR, 0, -30 * 86_400).unwrap();
    let start = world.now;
    world.lost_between(&name(1), start + INTERVAL + 290, start + INTERVAL + 360).unwrap();
}

/// It was overdue at once, with an Event for each reconnect.
#[test]
fn node_that_announces_no_time_has_a_minute_to_return() {
    let (mut world, node) = (World::new(), name(1));
    for within in [0, 1, 59] {
        for _ in 0..3 {
            let next = world.visit(&node, within, End::Planned);
            world.pass(next + 50);
            assert!(world.is_ready(&node) && world.missed.is_empty(), "{within}: {:?}", world.missed);
        }
    }
    let next = world.visit(&node, 0, End::Planned);
    world.lost_between(&node, next + 55, next + 65).unwrap();
    assert_eq!(world.missed.len(), 1);
}

/// Behind a broker a Lease may arrive twice, or late.
#[test]
fn absence_has_one_event_whatever_arrives_late() {
    let (mut world, node) = (World::new(), name(1));
    let next = world.visit(&node, HOUR, End::Planned);
    world.pass(next + 2 * HOUR);
    assert_eq!(world.missed.len(), 1);
    for _ in 0..3 {
        world.renew(&node, Some(CheckIn { within: 0, reason: CheckInReason::Interval }));
        world.pass(world.now + HOUR);
        assert_eq!(world.status(&node, READY), Some(ConditionStatus::Unknown));
    }
    assert_eq!(world.missed.len(), 1);
    // The next absence has its own.
    let next = world.visit(&node, HOUR, End::Planned);
    world.pass(next + 2 * HOUR);
    assert_eq!(world.missed.len(), 2);
}

#[test]
fn events_of_many_overdue_nodes_are_written_a_few_at_a_time() {
    const NODES: usize = 100;
    let mut world = World::new();
    for number in 0..NODES {
        world.lifecycle.welcomed(world.monotonic(), &name(number));
        world.renew(&name(number), Some(CheckIn { within: 0, reason: CheckInReason::Interval }));
        world.lifecycle.left(world.monotonic(), world.clock(), &name(number));
    }
    world.now += HOUR;
    world.lifecycle.changes_due(world.monotonic());
    let mut events: Vec<NodeName> = Vec::new();
    for number in 0..NODES {
        let writing = std::iter::from_fn(|| world.lifecycle.next_missed());
        events.extend(writing.map(|missed| missed.node));
        assert_eq!(events.len(), (MAX_EVENT_WRITES + number).min(NODES));
        world.lifecycle.missed_written();
    }
    events.sort();
    events.dedup();
    assert_eq!(events.len(), NODES);
}

fn longest_absence() -> Result<(), String> {
    let (mut world, node) = (World::new(), name(1));
    world.visit(&node, u64::from(u32::MAX), End::Planned);
    let left = world.now;
    world.lost_between(&node, left + 24 * HOUR + 290, left + 24 * HOUR + 360)
}

#[test]
fn announced_absence_is_bounded() {
    assert_eq!(longest_absence(), Ok(()));
    let planted = fault::with(Some(Fault::AbsenceUnbounded), longest_absence);
    assert!(planted.is_err(), "the planted bug is found");
}

#[test]
fn absent_node_is_ready_not_reachable_and_waits_for_changed_objects() {
    let (mut world, node) = (World::new(), name(1));
    world.visit(&node, INTERVAL, End::Planned);
    world.pass(world.now + 60);
    let shown = world.lifecycle.absence(&node).unwrap();
    assert!(!shown.is_overdue);
    assert_eq!(world.status(&node, CLOUD_REACHABLE), Some(ConditionStatus::False));
    assert_eq!(world.status(&node, IN_SYNC), Some(ConditionStatus::True));
    let lease = &world.leases[&node];
    assert_eq!((lease.seconds, lease.next), (21_900, Some(shown.next)));
    for _ in 0..3 {
        world.lifecycle.desired_changed(world.monotonic(), &node);
    }
    world.pass(world.now + 60);
    assert_eq!(world.status(&node, IN_SYNC), Some(ConditionStatus::False));
    assert!(world.conditions[&node][IN_SYNC].1.contains("wait for the check-in"));
    world.visit(&node, INTERVAL, End::Planned);
    world.pass(world.now + 60);
    assert_eq!(world.status(&node, IN_SYNC), Some(ConditionStatus::True));
    // A node that stays has the usual Lease again.
    world.lifecycle.welcomed(world.monotonic(), &node);
    world.renew(&node, None);
    world.pass(world.now + 10);
    let lease = &world.leases[&node];
    assert_eq!((lease.seconds, lease.next), (40, None));
    assert!(world.is_ready(&node) && world.lifecycle.absence(&node).is_none());
}
