//! Moves the roll-outs of rules: counts what nodes have answered, lets the engine decide, makes
//! snapshots, and writes statuses.
//!
//! For each rule at most one write and one snapshot are in flight. A status is used when it is
//! stored; after a refusal nothing is written until the stored one is known. Only the leader counts
//! and moves; a command of an operator is executed by the replica that receives it.

mod count;
mod revisions;
mod rule;
mod snapshot;

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use super::Fleet;
use super::assignments::{Assignments, GoverningRule, RuleIndex};
use super::requests::{EventCause, Response};
use crate::admin::RolloutStatusAnswer;
use crate::metrics::RolloutNumbers;
use crate::source::{RolloutWrite, RuleKey, Source, Sweep};
use edgesync_admin::cloud::{RolloutCondition, RolloutStatus};
use edgesync_object::status::Reason;
use edgesync_object::{NodeName, ObjectKey, Status as Error};
use edgesync_protocol::change::Uid;
#[cfg(test)]
use edgesync_protocol::fault::{Fault, planted};
use edgesync_protocol::timing::Now;
use edgesync_rollout::engine::Happened;
use edgesync_rollout::{Command, Input, Observed, Set, Snapshot, Status, Step, step};

use count::{Concerned, Count, Fact};

/// API version and kinds of rules that are objects.
const API_VERSION: &str = "edgesync.io/v1alpha1";
const RULE_KINDS: [&str; 2] = ["Placement", "ClusterPlacement"];
/// Interval between two counts of a rule without nodes.
const COUNT_EVERY: Duration = Duration::from_secs(1);
/// Addition to the interval for each node of the rule.
const COUNT_EVERY_NODE: Duration = Duration::from_micros(300);
/// Delay after a failed request.
const RETRY: Duration = Duration::from_secs(5);
/// Number of failed reads of a revision after which nothing waits for it any more.
const MAX_READS: u32 = 3;
/// Maximum wait for a written status to arrive with its rule.
const AWAITED: Duration = Duration::from_secs(30);
/// Interval between two sweeps of bodies.
const SWEEP_EVERY: Duration = Duration::from_secs(600);
/// Number of nodes queued per unit of work.
const NODES_A_UNIT: usize = 8;
/// Maximum delay after snapshots that could not be stored.
const MAX_MAKE_DELAY: Duration = Duration::from_secs(600);
/// Maximum number of waiting commands of a rule.
const MAX_COMMANDS: usize = 16;

/// State of all roll-outs that is not persisted; see the module.
#[derive(Debug, Default)]
pub(super) struct RolloutLoop {
    rules: BTreeMap<RuleIndex, Moved>,
    /// The rule that is moved first in the next turn.
    next: Option<RuleIndex>,
    /// Whether the sets of the start were read.
    is_loaded: bool,
    next_sweep: Now,
    is_sweeping: bool,
    /// Rules that are objects and have no roll-out, but one in their status, with the time of the
    /// next attempt to delete it.
    pub(super) leftover: BTreeMap<Uid, Now>,
    /// When the statuses of configured rules are read again, which other replicas write too.
    next_statuses: Now,
}

/// State of one roll-out.
#[derive(Debug, Default)]
struct Moved {
    /// Whether `rollout` of the rule is valid; the last valid one stays in force otherwise.
    is_valid: bool,
    observed: Observed,
    counter: Counter,
    /// Whether the set of a revision is being read, and when to try again after a failure.
    is_reading: bool,
    read_at: Now,
    /// Number of reads that have failed since the last one that has not.
    failed_reads: u32,
    is_making: bool,
    /// Whether the snapshot that is being made is of a lost timeline of the source.
    is_made_in_vain: bool,
    /// When the next snapshot may be made, and number of failures in a row.
    make_at: Now,
    failed_makes: u32,
    /// A snapshot whose bodies are stored.
    snapshot: Option<Snapshot>,
    /// The write in flight.
    writing: Option<Writing>,
    /// The sequence that was written and has not arrived with its rule, and until when to wait.
    awaited: Option<(u64, Now)>,
    commands: VecDeque<(Command, RolloutStatusAnswer)>,
}

/// Counts of the nodes, and the facts that they are made from.
#[derive(Debug, Default)]
struct Counter {
    /// Facts about the nodes of open waves.
    facts: HashMap<NodeName, Fact>,
    concerned: Concerned,
    count: Option<Count>,
    next: Now,
}

/// A status that is being written.
#[derive(Debug)]
struct Writing {
    next: Status,
    happened: Vec<Happened>,
    /// The revision that begins with it.
    begun: Option<Arc<Set>>,
    answer: Option<RolloutStatusAnswer>,
    /// Whether an older copy has replaced the source since it was sent: it may have lost the write.
    is_uncertain: bool,
}

impl Writing {
    fn new(
        next: Status,
        happened: Vec<Happened>,
        begun: Option<Arc<Set>>,
        answer: Option<RolloutStatusAnswer>,
    ) -> Self {
        Self { next, happened, begun, answer, is_uncertain: false }
    }
}

impl Moved {
    fn is_writing(&self) -> bool {
        self.writing.is_some() || self.awaited.is_some()
    }

    /// Returns whether the status that is known is the stored one, as far as this process knows.
    fn may_write(&mut self, now: Now) -> bool {
        self.awaited.take_if(|(_, until)| *until <= now);
        !self.is_writing()
    }

    /// Answers all waiting commands with an error.
    fn answer_all(&mut self, error: &Error) {
        self.commands.drain(..).for_each(|(_, answer)| answer_with(answer, Err(error.clone())));
    }
}

impl RolloutLoop {
    /// Returns the conditions of a roll-out for the status of its rule. `None` while the status of
    /// the roll-out is being written or awaited: the other writer waits meanwhile.
    pub(super) fn conditions(
        &self,
        rollouts: &Assignments,
        index: RuleIndex,
    ) -> Option<Vec<RolloutCondition>> {
        let Some((moved, rule)) = self.rules.get(&index).zip(rollouts.rule(index)) else {
            return Some(Vec::new());
        };
        (!moved.is_writing()).then(|| rule::conditions(rule, &moved.observed))
    }

    /// Returns whether a status has arrived whose revisions are still to be read before they can be
    /// assigned. It ends, whatever cannot be read.
    pub(super) fn is_behind(&self, rollouts: &Assignments) -> bool {
        self.is_loaded && rollouts.is_reading()
    }

    /// Handles that an older copy has replaced the source: statuses may go back.
    pub(super) fn restored(&mut self) {
        for moved in self.rules.values_mut() {
            moved.awaited = None;
            moved.snapshot = None;
            moved.is_made_in_vain = moved.is_making;
            if let Some(writing) = &mut moved.writing {
                writing.is_uncertain = true;
            }
            moved.counter.facts.clear();
            moved.counter.count = None;
        }
    }

    /// Returns whether a snapshot is being made.
    fn is_making(&self) -> bool {
        self.rules.values().any(|moved| moved.is_making)
    }

    /// Returns the numbers of all roll-outs for the metrics.
    pub(super) fn numbers(&self, rollouts: &Assignments) -> Vec<RolloutNumbers> {
        let numbers = rollouts.rules().filter_map(|(index, rule)| {
            let observed = self.observed(index)?;
            Some(rule::numbers(rule, observed))
        });
        numbers.collect()
    }

    /// Returns what was observed of a rule.
    fn observed(&self, index: RuleIndex) -> Option<&Observed> {
        self.rules.get(&index).map(|moved| &moved.observed)
    }
}

impl<S: Source> Fleet<S> {
    /// Moves the roll-outs within the budget of one turn. Returns whether work is left.
    pub(super) fn move_rollouts(&mut self) -> bool {
        let more = !self.reconciler.desired.rollouts.is_empty() && self.move_rules();
        // Also after the last roll-out.
        if self.requests.source().leads_rollouts() {
            self.delete_leftover();
            self.sweep();
        }
        more
    }

    fn move_rules(&mut self) -> bool {
        let end = self.reconciler.work.part();
        let mut indexes: Vec<RuleIndex> = self.rollout_loop.rules.keys().copied().collect();
        // Commands and reads do not wait for the counts of other rules.
        for index in &indexes {
            self.read_revision(*index);
            self.execute_command(*index);
        }
        self.follow_replicas();
        if !self.requests.source().leads_rollouts() {
            return false;
        }
        let first = self.rollout_loop.next.take();
        let place = first.and_then(|first| indexes.iter().position(|index| *index >= first));
        indexes.rotate_left(place.unwrap_or(0));
        let mut more = false;
        for index in indexes {
            if self.reconciler.work.has_reached(end) {
                self.rollout_loop.next = Some(index);
                return true;
            }
            let is_counting = self.lead(index, end);
            if is_counting {
                self.rollout_loop.next = Some(index);
            }
            more |= is_counting;
        }
        more
    }

    /// Reads the statuses of configured rules from time to time, where other replicas write them
    /// too.
    fn follow_replicas(&mut self) {
        let now = self.reconciler.now();
        let mut rules = self.reconciler.desired.rollouts.rules();
        let has_configured = rules.any(|(_, rule)| matches!(rule.key, RuleKey::Configured(_)));
        if self.reconciler.is_shared && has_configured && now >= self.rollout_loop.next_statuses {
            self.rollout_loop.next_statuses = now + RETRY;
            self.read_statuses();
        }
    }

    /// Reads the statuses of configured rules.
    fn read_statuses(&self) {
        self.requests.ask(|source| async move { Response::RolloutStatuses(source.rollout_statuses().await) });
    }

    /// Returns whether all rules that are objects are known.
    fn are_rules_known(&self) -> bool {
        self.rules.are_complete() && !self.replicas.is_being_restored() && !self.reconciler.desired.is_listing
    }

    /// Handles the end of the queue of assignments. Returns whether nodes were queued again.
    pub(super) fn rollouts_settled(&mut self) -> bool {
        if self.reconciler.desired.rollouts.is_empty() {
            return false;
        }
        let active = self.reconciler.settle_rollouts();
        for index in &active {
            self.queue_nodes(*index);
        }
        let rollouts = &self.reconciler.desired.rollouts;
        self.rollout_loop.rules.retain(|index, moved| {
            let stays = rollouts.rule(*index).is_some();
            if !stays {
                moved.answer_all(&not_moving());
            }
            stays
        });
        !active.is_empty() && !rollouts.is_settled()
    }

    /// Queues all nodes that a rule selects, or that have an assignment under it.
    pub(super) fn queue_nodes(&mut self, index: RuleIndex) {
        let desired = &mut self.reconciler.desired;
        let Some(rule) = desired.rollouts.rule(index) else { return };
        let nodes = rule.ids().iter().flat_map(|id| desired.placement.nodes_of(*id));
        let nodes: Vec<_> = nodes.cloned().collect();
        self.reconciler.work.objects(nodes.len() / NODES_A_UNIT);
        desired.rollouts.queue(nodes);
        desired.rollouts.queue_assigned(index);
    }

    /// Deletes the roll-out in the status of a rule that has none any more: with another roll-out,
    /// what is placed then becomes stable. Repeats it until the rule arrives without.
    fn delete_leftover(&mut self) {
        let now = self.reconciler.now();
        let mut due = self.rollout_loop.leftover.iter_mut().filter(|(_, at)| **at <= now);
        let Some((uid, at)) = due.next() else { return };
        *at = now + AWAITED;
        let rule = RuleKey::Object(uid.clone());
        let stored =
            self.rules.one(uid).and_then(|(summary, ..)| rule::stored_rollout(summary.rule.as_ref()?));
        let expected = Status::sequence_of(stored.as_ref());
        let Some(object) = self.rule_object(&rule) else { return };
        let write = RolloutWrite { rule, object: Some(object), expected, status: None };
        self.requests
            .ask(|source| async move { Response::RolloutDeleted(source.write_rollout(write).await) });
    }

    // --- steps

    /// Executes the next command of an operator.
    fn execute_command(&mut self, index: RuleIndex) {
        let now = self.reconciler.now();
        let is_writing = self.is_status_written(index);
        let is_ending = self.reconciler.desired.rollouts.rule(index).is_none_or(GoverningRule::is_ending);
        let Some(moved) = self.rollout_loop.rules.get_mut(&index) else { return };
        if is_ending {
            return moved.answer_all(&not_moving());
        }
        if moved.commands.is_empty() || is_writing || !moved.may_write(now) {
            return;
        }
        let is_valid = moved.is_valid;
        let Some((command, answer)) = moved.commands.pop_front() else { return };
        if !is_valid {
            return answer_with(answer, Err(invalid()));
        }
        match self.step(index, Input::Command(&command)) {
            None => answer_with(answer, Err(not_moving())),
            Some(Step { refused: Some(refusal), .. }) => {
                answer_with(answer, Err(Error::new(Reason::Conflict, refusal.to_string())));
            }
            Some(Step { next: None, .. }) => {
                let shown = self.rollout_status(index).ok_or_else(not_moving);
                answer_with(answer, shown);
            }
            Some(Step { next: Some(next), happened, .. }) => {
                self.write(index, Writing::new(next, happened, None, Some(answer)));
            }
        }
    }

    /// Moves a roll-out by what was observed. Returns whether its count continues in the next turn.
    fn lead(&mut self, index: RuleIndex, end: u64) -> bool {
        let now = self.reconciler.now();
        let is_active = self.reconciler.desired.rollouts.rule(index).is_some_and(GoverningRule::is_active);
        let is_writing = self.is_status_written(index);
        let is_known = self.are_rules_known();
        let Some(moved) = self.rollout_loop.rules.get_mut(&index) else { return false };
        if !is_active || !moved.is_valid {
            // It refers to what was known before.
            moved.snapshot = None;
            return false;
        }
        if !is_writing
            && moved.may_write(now)
            && let Some(snapshot) = moved.snapshot.take()
        {
            match self.step(index, Input::Snapshot(&snapshot)) {
                Some(Step { next: Some(next), happened, refused: None, .. }) => {
                    let begun = Some(snapshot.set);
                    self.write(index, Writing::new(next, happened, begun, None));
                }
                step => {
                    let refused = step.and_then(|step| step.refused);
                    tracing::debug!(?refused, "snapshot of a roll-out discarded");
                    if let Some(moved) = self.rollout_loop.rules.get_mut(&index) {
                        moved.counter.next = now + RETRY;
                    }
                }
            }
            return false;
        }
        let Some(moved) = self.rollout_loop.rules.get_mut(&index) else { return false };
        if moved.counter.count.is_none() {
            let is_settled = self.reconciler.desired.rollouts.is_settled();
            if now < moved.counter.next || !is_settled || !is_known {
                return false;
            }
            self.begin_count(index);
        }
        if !self.continue_count(index, end) {
            return true;
        }
        let Some(moved) = self.rollout_loop.rules.get_mut(&index) else { return false };
        let nodes: usize = moved.observed.waves.iter().map(|wave| wave.nodes).sum();
        moved.counter.next = now + COUNT_EVERY + COUNT_EVERY_NODE * u32::try_from(nodes).unwrap_or(u32::MAX);
        let may_make = now >= moved.make_at;
        if is_writing || !moved.may_write(now) {
            return false;
        }
        // All bodies of a revision are in memory meanwhile, and a sweep may not know of them.
        let is_making = self.rollout_loop.is_making() || self.rollout_loop.is_sweeping;
        let Some(Step { next, snapshot, happened, .. }) = self.step(index, Input::Observe) else {
            return false;
        };
        if let Some(next) = next {
            self.write(index, Writing::new(next, happened, None, None));
        } else if let Some(wanted) = snapshot.filter(|_| !is_making && may_make) {
            self.make_snapshot(index, wanted);
        }
        false
    }

    /// Returns whether the other writer of the status of a rule writes it now.
    fn is_status_written(&self, index: RuleIndex) -> bool {
        let rule = self.reconciler.desired.rollouts.rule(index);
        rule.is_some_and(|rule| matches!(&rule.key, RuleKey::Object(uid) if self.rules.is_writing(uid)))
    }

    fn step(&self, index: RuleIndex, input: Input<'_>) -> Option<Step> {
        let rule = self.reconciler.desired.rollouts.rule(index)?;
        let observed = self.rollout_loop.observed(index)?;
        let now = (self.reconciler.clock)();
        Some(step(now, &rule.rollout, &rule.status, observed, &rule.sets(), input))
    }

    /// Begins the write of a status, on the condition that the one that is known is stored.
    fn write(&mut self, index: RuleIndex, writing: Writing) {
        let Some(rule) = self.reconciler.desired.rollouts.rule(index) else { return };
        let object = self.rule_object(&rule.key);
        if object.is_none() && matches!(rule.key, RuleKey::Object(_)) {
            // The rule was deleted.
            return;
        }
        let write = RolloutWrite {
            rule: rule.key.clone(),
            object,
            expected: rule.status.sequence,
            status: Some(writing.next.to_value().to_string()),
        };
        #[cfg(test)]
        if planted(Fault::StatusUnstored) {
            self.adopt(index, writing.next.clone(), writing.begun.clone());
        }
        let Some(moved) = self.rollout_loop.rules.get_mut(&index) else { return };
        moved.writing = Some(writing);
        self.requests
            .ask(|source| async move { Response::RolloutWritten(index, source.write_rollout(write).await) });
    }

    /// Returns the key and the known generation of a rule that is an object.
    fn rule_object(&self, key: &RuleKey) -> Option<(ObjectKey, u64)> {
        let RuleKey::Object(uid) = key else { return None };
        let (summary, ..) = self.rules.one(uid)?;
        let text = summary.rule.as_ref()?;
        Some((summary.resource.key(&summary.namespace, &summary.name), text.generation))
    }

    /// Handles the end of the write of a status.
    pub(super) fn rollout_written(&mut self, index: RuleIndex, written: crate::source::Result<bool>) {
        let now = self.reconciler.now();
        let Some(moved) = self.rollout_loop.rules.get_mut(&index) else { return };
        let Some(Writing { next, happened, begun, answer, is_uncertain }) = moved.writing.take() else {
            return;
        };
        let Some(rule) = self.reconciler.desired.rollouts.rule(index) else { return };
        let is_object = matches!(rule.key, RuleKey::Object(_));
        let (key, name) = (rule.key.clone(), rule.shown_name());
        match written {
            Ok(true) if !is_uncertain => {
                // The rule may have arrived with it, or with a newer one, before the answer.
                let has_arrived = is_object && rule.status.sequence >= next.sequence;
                moved.awaited = (is_object && !has_arrived).then(|| (next.sequence, now + AWAITED));
                let status = if has_arrived { rule.status.clone() } else { next };
                moved.counter.next = now;
                let begun = begun.filter(|set| status.top().is_some_and(|top| top.digest == set.digest()));
                self.adopt(index, status, begun);
                for happened in happened {
                    tracing::info!(rule = name, ?happened, "roll-out moved");
                    self.emit_rollout_event(&key, &happened);
                }
                if let Some(answer) = answer {
                    let shown = self.rollout_status(index).ok_or_else(not_moving);
                    answer_with(answer, shown);
                }
                self.rollout_loop.next_sweep = self.rollout_loop.next_sweep.min(now + COUNT_EVERY);
            }
            Ok(_) | Err(_) => {
                if let Err(error) = &written {
                    tracing::error!(rule = name, %error, "writing the status of a roll-out failed");
                }
                moved.counter.next = now + RETRY;
                if let Some(answer) = answer {
                    let message = "the rule has changed meanwhile; look at its status and repeat the command";
                    let outcome = match written {
                        Err(error) => Error::unavailable(format!("write roll-out: {error}"), 5),
                        _ => Error::new(Reason::Conflict, message),
                    };
                    answer_with(answer, Err(outcome));
                }
                // The status of a rule that is an object arrives with it.
                if !is_object {
                    self.read_statuses();
                }
            }
        }
    }

    /// Uses a stored status from now on.
    pub(super) fn adopt(&mut self, index: RuleIndex, status: Status, begun: Option<Arc<Set>>) {
        let rollouts = &mut self.reconciler.desired.rollouts;
        rollouts.set_status(index, status);
        let begun = begun.and_then(|set| {
            let rule = rollouts.rule(index)?;
            Some((rule.revision_key(rule.status.top()?), set))
        });
        if let Some((key, set)) = begun {
            self.add_revision(index, key, Some(set));
        }
        self.queue_nodes(index);
    }

    /// Deletes bodies that no roll-out needs any more.
    fn sweep(&mut self) {
        let now = self.reconciler.now();
        let is_known = self.are_rules_known() && !self.reconciler.may_have_unread(API_VERSION, &RULE_KINDS);
        let is_busy = |moved: &Moved| moved.is_writing() || moved.is_making || moved.snapshot.is_some();
        let is_busy = self.rollout_loop.rules.values().any(is_busy);
        if self.rollout_loop.is_sweeping || is_busy || !is_known || now < self.rollout_loop.next_sweep {
            return;
        }
        // A status counts until it is deleted: the rule may get a roll-out again.
        let leftover = self.rollout_loop.leftover.keys().filter_map(|uid| {
            let (summary, ..) = self.rules.one(uid)?;
            let stored = rule::stored_rollout(summary.rule.as_ref()?);
            Some((RuleKey::Object(uid.clone()), Status::read(stored.as_ref()).unwrap_or_default()))
        });
        #[cfg(test)]
        let leftover = leftover.filter(|_| !planted(Fault::SweepOfLeftover));
        let rules = self.reconciler.desired.rollouts.rules();
        let statuses = rules.map(|(_, rule)| (rule.key.clone(), rule.status.clone()));
        let sweep = Sweep(leftover.chain(statuses).collect());
        self.rollout_loop.is_sweeping = true;
        self.rollout_loop.next_sweep = now + SWEEP_EVERY;
        self.requests
            .ask(|source| async move { Response::RevisionsSwept(source.sweep_revisions(sweep).await) });
    }

    pub(super) fn revisions_swept(&mut self, swept: &crate::source::Result<()>) {
        self.rollout_loop.is_sweeping = false;
        if let Err(error) = swept {
            tracing::error!(%error, "deleting bodies of ended revisions failed");
        }
    }

    // --- operators

    /// Queues a command of an operator for the rule of this name.
    pub(super) fn command_rollout(&mut self, name: &str, command: Command, answer: RolloutStatusAnswer) {
        let Some(index) = self.rollout_named(name) else {
            return answer_with(answer, Err(no_rollout(name)));
        };
        let Some(moved) = self.rollout_loop.rules.get_mut(&index) else {
            return answer_with(answer, Err(no_rollout(name)));
        };
        if !moved.is_valid {
            return answer_with(answer, Err(invalid()));
        }
        if moved.commands.len() >= MAX_COMMANDS {
            return answer_with(answer, Err(Error::unavailable("too many commands wait for this rule", 5)));
        }
        moved.commands.push_back((command, answer));
    }

    /// Answers with the status of the rule of this name.
    pub(super) fn show_rollout(&self, name: &str, answer: RolloutStatusAnswer) {
        let shown = self.rollout_named(name).and_then(|index| self.rollout_status(index));
        answer_with(answer, shown.ok_or_else(|| no_rollout(name)));
    }

    /// Returns the rule of a name: `NAME` or `NAMESPACE/NAME`.
    fn rollout_named(&self, name: &str) -> Option<RuleIndex> {
        let mut rules = self.reconciler.desired.rollouts.rules();
        rules.find(|(_, rule)| rule.shown_name() == name).map(|(index, _)| index)
    }

    /// Returns the status of a roll-out for operators.
    fn rollout_status(&self, index: RuleIndex) -> Option<RolloutStatus> {
        let rule = self.reconciler.desired.rollouts.rule(index)?;
        let moved = self.rollout_loop.rules.get(&index)?;
        Some(rule::show(rule, &moved.observed, moved.is_valid))
    }

    /// Emits the Event of a transition, if the rule is an object.
    fn emit_rollout_event(&self, key: &RuleKey, happened: &Happened) {
        let RuleKey::Object(uid) = key else { return };
        let Some((summary, ..)) = self.rules.one(uid) else { return };
        let event = rule::event(summary, happened, (self.reconciler.clock)());
        self.requests.ask(|source| async move {
            Response::EventEmitted(source.emit_event(event).await, EventCause::Rollout)
        });
    }
}

/// Answers a requester, who may have disconnected.
fn answer_with(answer: RolloutStatusAnswer, result: Result<RolloutStatus, Error>) {
    let _ = answer.send(result);
}

fn no_rollout(name: &str) -> Error {
    let message = format!(
        "no rule named '{name}' has a roll-out; hint: NAME of a ClusterPlacement or a configured rule, NAMESPACE/NAME \
         of a Placement"
    );
    Error::new(Reason::NotFound, message)
}

fn invalid() -> Error {
    let message =
        "the roll-out of the rule is invalid and moves nothing; correct 'rollout' of the rule first";
    Error::new(Reason::Conflict, message)
}

fn not_moving() -> Error {
    Error::new(Reason::NotFound, "the rule has no roll-out any more")
}
