//! Overview of all nodes for pages. Each turn of the loop visits a part of the nodes; a pass takes
//! place once a second while a client is watching, and every ten seconds otherwise.

use std::sync::Arc;
use std::time::Duration;

use edgesync_admin::cloud::SummaryState;
use jiff::Timestamp;

use super::node::Node;
use super::reconciler::Reconciler;
use super::removals::Removals;
use crate::lifecycle::{NodeLifecycle, ShownAbsence};
use crate::summary::{Board, Found, MinuteSample, Row, Sample};
use edgesync_object::NodeName;
use edgesync_placement::NodeSync;
use edgesync_protocol::cloud::CloudPhase;
use edgesync_protocol::timing::Now;

/// Interval between two passes while a client is watching.
const WATCHED_INTERVAL: Duration = Duration::from_secs(1);
/// Interval between two passes otherwise, and between two samples of the fleet's history.
const SAMPLE_INTERVAL: Duration = Duration::from_secs(10);
/// Interval between two samples of each node's history.
const MINUTE: Duration = Duration::from_secs(60);
/// Number of passes between two publications of frequently changing numbers, for a fleet larger
/// than [`SMALL`].
const NUMBERS_EVERY: u64 = 5;
/// Number of nodes up to which every pass publishes all numbers.
const SMALL: usize = 500;

/// Schedule and state of the passes; see the module.
#[derive(Debug)]
pub(super) struct Overview {
    board: Arc<Board>,
    /// The pass in progress.
    pass: Option<Pass>,
    passes: u64,
    /// Start of the next pass, without and with a watching client.
    next: Now,
    next_watched: Now,
    next_sample: Now,
    next_minute: Now,
    /// Time of the last minute sample of all nodes, in seconds since 1970.
    minute: i64,
    /// Number of requests at the start of the last pass.
    requests: u64,
}

/// Total bytes of frames to and from all nodes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Traffic {
    pub(super) sent: u64,
    pub(super) received: u64,
}

#[derive(Debug, Default)]
struct Pass {
    at: Option<NodeName>,
    removed: bool,
    found: Found,
    count: usize,
    minute: bool,
}

impl Overview {
    pub(super) fn new(board: Arc<Board>) -> Self {
        Self {
            board,
            pass: None,
            passes: 0,
            next: Now::ZERO,
            next_watched: Now::ZERO,
            next_sample: Now::ZERO,
            next_minute: MINUTE,
            minute: 0,
            requests: 0,
        }
    }

    /// Returns the time of the last minute sample of all nodes, in seconds since 1970.
    pub(super) fn minute(&self) -> i64 {
        self.minute
    }

    /// Returns whether a pass is due, and schedules the next ones.
    fn is_due(&mut self, now: Now) -> bool {
        let (streams, requests) = self.board.interest();
        let is_watched = streams > 0 || requests != self.requests;
        if now < if is_watched { self.next_watched } else { self.next } {
            return false;
        }
        self.requests = requests;
        self.next_watched = now + WATCHED_INTERVAL;
        self.next = now + SAMPLE_INTERVAL;
        true
    }

    /// Returns the time of the next check.
    pub(super) fn deadline(&self) -> Now {
        if self.board.interest().0 > 0 { self.next_watched } else { self.next }
    }
}

impl Overview {
    /// Continues a pass over all nodes within the budget of one turn. Returns whether work is left.
    pub(super) fn run(&mut self, reconciler: &mut Reconciler, removals: &Removals, traffic: Traffic) -> bool {
        let now = reconciler.now();
        let mut pass = match self.pass.take() {
            Some(pass) => pass,
            None if !self.is_due(now) => return false,
            None => {
                let minute = now >= self.next_minute;
                if minute {
                    self.next_minute = now + MINUTE;
                    self.minute = Timestamp::now().as_second();
                }
                self.passes += 1;
                Pass { minute, ..Pass::default() }
            }
        };
        let (clock, end) = (Timestamp::now(), reconciler.work.part());
        while self.visit_next(&mut pass, reconciler, removals, clock) {
            if reconciler.work.has_reached(end) {
                self.pass = Some(pass);
                return true;
            }
        }
        self.end_pass(pass, reconciler, removals, clock, traffic);
        false
    }

    /// Visits the next node, or the next removed one. Returns whether there was one.
    fn visit_next(
        &self,
        pass: &mut Pass,
        reconciler: &mut Reconciler,
        removals: &Removals,
        clock: Timestamp,
    ) -> bool {
        reconciler.work.node();
        if pass.removed {
            let Some((name, _)) = removals.next(pass.at.as_ref()) else { return false };
            let name = name.clone();
            pass.at = Some(name.clone());
            pass.count += 1;
            let before = self.board.row(&name);
            if before.is_none_or(|before| before.state != SummaryState::Removed) {
                let row = Row { state: SummaryState::Removed, since: clock.as_second(), ..Row::default() };
                pass.found.rows.push((name, row));
            }
            return true;
        }
        let all = reconciler.nodes.len() <= SMALL || self.passes.is_multiple_of(NUMBERS_EVERY);
        let is_shared = reconciler.is_shared;
        let Some((node, lifecycle)) = reconciler.nodes.next_mut(pass.at.as_ref()) else {
            (pass.removed, pass.at) = (true, None);
            return true;
        };
        pass.at = Some(node.name.clone());
        pass.count += 1;
        let mut row = row_of(node, lifecycle, is_shared);
        let is_new = node.shown.row.is_none();
        let before = node.shown.row.unwrap_or(row);
        row.since = match row.state == before.state && !is_new {
            true => before.since,
            false => clock.as_second(),
        };
        if is_new || !row.is_like(&before) || (all && row != before) {
            node.shown.row = Some(row);
            pass.found.rows.push((node.name.clone(), row));
        }
        if pass.minute {
            let latency = node.machine.round_trip().filter(|_| node.session.is_connected());
            let latency =
                latency.map_or(0, |time| u64::try_from(time.as_millis()).unwrap_or(u64::MAX).max(1));
            let (sent, received) = (node.session.sent(), node.session.received());
            node.shown.past.push(MinuteSample { latency, sent, received });
        }
        true
    }

    fn end_pass(
        &mut self,
        mut pass: Pass,
        reconciler: &Reconciler,
        removals: &Removals,
        clock: Timestamp,
        traffic: Traffic,
    ) {
        let now = reconciler.now();
        let new = pass.found.rows.iter().filter(|(name, _)| self.board.row(name).is_none()).count();
        if self.board.len() + new != pass.count {
            let gone = |name: &NodeName| !reconciler.nodes.contains(name) && !removals.has(name);
            pass.found.gone = self.board.names().into_iter().filter(gone).collect();
        }
        self.board.publish(clock.as_millisecond(), pass.found);
        if now >= self.next_sample {
            self.next_sample = now + SAMPLE_INTERVAL;
            let (at, Traffic { sent, received }) = (clock.as_second(), traffic);
            self.board.sample(|tally| Sample { at, tally: *tally, sent, received });
        }
    }
}

/// Returns the published row of a node, without `since`.
pub(super) fn row_of(node: &Node, lifecycle: &NodeLifecycle, is_shared: bool) -> Row {
    let machine = &node.machine;
    let rejected = machine.refused().count() as u64;
    let effects = node.reported.effects.counts();
    let not_in_effect = effects.not_in_effect + effects.conflicts;
    let elsewhere = is_shared && !node.session.is_connected() && lifecycle.show(&node.name).0 == Some(true);
    // A wait is no problem, and still not in effect.
    let all_in_effect = not_in_effect + effects.waiting == 0 && node.replicas.is_all_in_effect();
    let state = match machine.phase() {
        CloudPhase::Offline if elsewhere => match node.replicas.sync() {
            NodeSync::InSync if all_in_effect => SummaryState::InSync,
            NodeSync::Waiting => SummaryState::Waiting,
            _ if !node.replicas.is_all_in_effect() => SummaryState::NotInEffect,
            _ => SummaryState::Syncing,
        },
        CloudPhase::Offline => match lifecycle.absence(&node.name) {
            Some(ShownAbsence { is_overdue: true, .. }) => SummaryState::Overdue,
            Some(_) => SummaryState::Away,
            None => SummaryState::Offline,
        },
        CloudPhase::Replaying | CloudPhase::Repairing => SummaryState::Connecting,
        CloudPhase::Live if machine.held_count() > 0 => SummaryState::HeldBack,
        CloudPhase::Live if rejected > 0 => SummaryState::Rejecting,
        CloudPhase::Live if !machine.is_settled() => SummaryState::Syncing,
        CloudPhase::Live if !machine.waiting().is_none() => SummaryState::Waiting,
        CloudPhase::Live if !all_in_effect => SummaryState::NotInEffect,
        CloudPhase::Live => SummaryState::InSync,
    };
    Row {
        state,
        since: 0,
        held: machine.recorded_tally().count,
        desired: node.progress.desired(),
        pending: machine.pending(),
        problems: rejected + machine.held_count() + not_in_effect,
    }
}
