//! Counts what the nodes of a rule have answered to its newest revision, in steps.

use std::collections::{BTreeSet, HashMap};
use std::sync::{Arc, Weak};
use std::vec::IntoIter;

use jiff::Timestamp;

use super::Moved;
use crate::fleet::Fleet;
use crate::fleet::assignments::{GoverningRule, Revision, RuleIndex};
use crate::fleet::node::Node;
use crate::fleet::reconciler::Reconciler;
use crate::source::{RevisionKey, Source, key_of};
use crate::work::Work;
use edgesync_object::NodeName;
use edgesync_object::file_rules::FileRules;
use edgesync_placement::{FilesInEffect, NodeSync, Placement};
use edgesync_protocol::cloud::{CloudPhase, DesiredState as _};
use edgesync_protocol::digest::Tally;
use edgesync_protocol::timing::Now;
use edgesync_protocol::upload::EffectState;
use edgesync_rollout::Set;
use edgesync_rollout::observed::{Answer, Link, NodeFacts, TooLarge, WaveCounts};
use edgesync_rollout::revision::{MAX_REJECTED, Selection};

/// Limit of the objects of a rule with a roll-out.
const MAX_OBJECTS: usize = MAX_REJECTED;
/// Limit of the bytes of their bodies.
const MAX_BYTES: u64 = 64 << 20;
/// Number of objects of a node looked up per unit of work.
const OBJECTS_A_UNIT: usize = 32;
/// Number of nodes gathered per unit of work.
const NODES_A_UNIT: usize = 8;
/// Time after the assignment from which the state that another replica publishes is believed.
const PUBLISHED: std::time::Duration = std::time::Duration::from_secs(60);

/// Replaces messages of nodes that may quote a Secret.
const QUOTES: &str = "message hidden, it may quote a Secret";

/// For each object of a revision in their order, whether a file rule concerns it; `None` if that is
/// not known.
type Flags = Option<Arc<[bool]>>;

/// Which objects of a revision the file rules of nodes concern. Computed once for equal rules.
#[derive(Debug, Default)]
pub(super) struct Concerned {
    /// The revision; `None` before the first count.
    revision: Option<RevisionKey>,
    /// By the address of the rules, which is in use as long as the entry refers to it.
    by_rules: HashMap<usize, (Weak<FileRules>, Flags)>,
}

impl Concerned {
    /// Begins a count of a revision. Forgets rules that no node has any more.
    fn begin(&mut self, revision: Option<&RevisionKey>) {
        if self.revision.as_ref() != revision {
            *self = Self { revision: revision.cloned(), by_rules: HashMap::new() };
        }
        self.by_rules.retain(|_, (rules, _)| rules.strong_count() > 0);
    }

    /// Returns which objects of the revision these rules concern.
    fn of(&mut self, revision: &Revision, rules: &Arc<FileRules>, work: &Work) -> Flags {
        let (_, concerned) = self.by_rules.entry(Arc::as_ptr(rules).addr()).or_insert_with(|| {
            let concerned = revision.concerned(rules);
            work.objects(concerned.as_ref().map_or(OBJECTS_A_UNIT, Vec::len));
            (Arc::downgrade(rules), concerned.map(Into::into))
        });
        concerned.clone()
    }
}

/// A count in progress.
#[derive(Debug)]
pub(super) struct Count {
    at: Timestamp,
    /// The revision that is counted, and the number of waves that it is open for.
    counted: Option<(RevisionKey, usize)>,
    nodes: IntoIter<NodeName>,
    waves: Vec<WaveCounts>,
    /// Nodes of open waves that were visited.
    visited: BTreeSet<NodeName>,
}

/// Facts about a node under the counted revision.
#[derive(Debug, Default)]
pub(super) struct Fact {
    /// Number of that revision.
    revision: u64,
    assigned_at: Option<Timestamp>,
    first_connected: Option<Timestamp>,
    connected_since: Option<Timestamp>,
    is_waiting: bool,
    /// When it began to wait; a wait that is interrupted goes on.
    waiting_since: Option<Timestamp>,
    waited_until: Option<Timestamp>,
    /// Its last answer, which counts while it is away.
    answer: Option<Answer>,
    /// Tally of its records when they differed from the desired state.
    differing: Option<Tally>,
}

/// Returns what a rule selects now.
pub(super) fn selection(placement: &Placement, rule: &GoverningRule) -> Selection {
    let objects = rule.ids().iter().flat_map(|id| placement.objects_of(*id));
    objects.map(|object| (object.uid.clone(), object.version.clone())).collect()
}

/// Returns the limits, if the objects of a rule exceed them.
fn too_large(placement: &Placement, selection: &Selection) -> Option<TooLarge> {
    let sizes = selection.keys().filter_map(|uid| placement.object(uid)).map(|object| object.size as u64);
    let (objects, bytes) = (selection.len(), sizes.sum::<u64>());
    let is_too_large = objects > MAX_OBJECTS || bytes > MAX_BYTES;
    is_too_large.then_some(TooLarge { objects, max_objects: MAX_OBJECTS, bytes, max_bytes: MAX_BYTES })
}

impl<S: Source> Fleet<S> {
    /// Observes what a rule selects, and begins to count its nodes.
    pub(super) fn begin_count(&mut self, index: RuleIndex) {
        let now = (self.reconciler.clock)();
        let Self { reconciler, rollout_loop, .. } = self;
        let placement = &reconciler.desired.placement;
        let Some(rule) = reconciler.desired.rollouts.rule(index) else { return };
        let Some(moved) = rollout_loop.rules.get_mut(&index) else { return };
        let selection = selection(placement, rule);
        reconciler.work.objects(selection.len() / OBJECTS_A_UNIT + 1);
        let top = rule.status.top();
        let set = top.and_then(|top| rule.revision(&rule.revision_key(top))?.set.as_deref());
        let digest = rule.status.rejected.plan(&selection, set).ok().map(|plan| plan.digest());
        let observed = &mut moved.observed;
        if observed.planned.digest != digest {
            // The objects that could not be stored have changed.
            (moved.make_at, moved.failed_makes) = (Now::ZERO, 0);
        }
        observed.planned.follow(now, digest, top.map(|top| top.digest));
        observed.too_large = too_large(placement, &selection);
        if digest == top.map(|top| top.digest) {
            // The change that could not be stored was taken back.
            observed.unstored = None;
        }
        observed.lost = rule.lost();
        observed.overlaps = overlaps(reconciler, index, rule);
        let assignment = rule.status.assignment(&rule.rollout.waves);
        let counted = assignment.counted().map(|(revision, open)| (rule.revision_key(revision), open));
        moved.counter.concerned.begin(counted.as_ref().map(|(key, _)| key));
        let nodes: BTreeSet<NodeName> = match counted {
            Some(_) => rule.ids().iter().flat_map(|id| placement.nodes_of(*id)).cloned().collect(),
            None => BTreeSet::new(),
        };
        reconciler.work.objects(nodes.len() / NODES_A_UNIT);
        let waves = vec![WaveCounts::default(); rule.rollout.waves.count()];
        let nodes: Vec<NodeName> = nodes.into_iter().collect();
        moved.counter.count =
            Some(Count { at: now, counted, nodes: nodes.into_iter(), waves, visited: BTreeSet::new() });
    }

    /// Continues a count within the budget of one turn. Returns whether it is complete.
    pub(super) fn continue_count(&mut self, index: RuleIndex, end: u64) -> bool {
        let Self { reconciler, rollout_loop, .. } = self;
        let Some(moved) = rollout_loop.rules.get_mut(&index) else { return true };
        let Some(mut count) = moved.counter.count.take() else { return true };
        let Some(rule) = reconciler.desired.rollouts.rule(index) else { return true };
        let counted = count.counted.clone();
        let counted = counted.as_ref().map(|(key, open)| Counted::new((index, rule), key, *open));
        while let Some(name) = count.nodes.next() {
            if let Some(counted) = &counted {
                count.add(reconciler, counted, moved, &name);
            }
            if reconciler.work.has_reached(end) {
                moved.counter.count = Some(count);
                return false;
            }
        }
        let Count { waves, visited, .. } = count;
        moved.counter.facts.retain(|name, _| visited.contains(name));
        let (revision, open) = counted.map_or((0, 0), |counted| (counted.key.number, counted.open));
        (moved.observed.revision, moved.observed.open) = (revision, open);
        moved.observed.waves = waves;
        true
    }
}

/// Returns the names of older rules that govern objects of the newest revision of a rule on a node
/// of both.
fn overlaps(reconciler: &Reconciler, index: RuleIndex, rule: &GoverningRule) -> Vec<String> {
    let Some(set) = newest_set(rule) else { return Vec::new() };
    let rules = reconciler.desired.rollouts.rules();
    let older = rules.filter(|(other, older)| *other != index && older.is_older_than(rule));
    let placement = &reconciler.desired.placement;
    let nodes_of = |rule: &GoverningRule| -> BTreeSet<&NodeName> {
        let nodes: BTreeSet<&NodeName> = rule.ids().iter().flat_map(|id| placement.nodes_of(*id)).collect();
        reconciler.work.objects(nodes.len() / NODES_A_UNIT);
        nodes
    };
    let overlapping = older.filter(|(_, older)| {
        let has_object = |older: &Set| older.entries().keys().any(|uid| set.version(uid).is_some());
        newest_set(older).is_some_and(has_object) && !nodes_of(rule).is_disjoint(&nodes_of(older))
    });
    overlapping.map(|(_, older)| older.shown_name()).collect()
}

fn newest_set(rule: &GoverningRule) -> Option<&Set> {
    rule.revision(&rule.revision_key(rule.status.top()?))?.set.as_deref()
}

/// The revision that nodes are counted under.
struct Counted<'a> {
    index: RuleIndex,
    rule: &'a GoverningRule,
    key: &'a RevisionKey,
    /// Number of the waves that it is open for.
    open: usize,
    /// Its content, if it is known.
    revision: Option<&'a Revision>,
    /// The content of the revision below, if it is known.
    before: Option<&'a Set>,
}

impl<'a> Counted<'a> {
    fn new((index, rule): (RuleIndex, &'a GoverningRule), key: &'a RevisionKey, open: usize) -> Self {
        let revision = rule.revision(key).map(|revision| &**revision);
        let revision = revision.filter(|revision| revision.set.is_some());
        let place = rule.status.revisions.iter().position(|revision| revision.number == key.number);
        let below = place.and_then(|place| rule.status.revisions.get(place.checked_sub(1)?));
        let before = below.and_then(|below| rule.revision(&rule.revision_key(below))?.set.as_deref());
        Self { index, rule, key, open, revision, before }
    }
}

impl Count {
    /// Counts a node.
    fn add(&mut self, reconciler: &Reconciler, counted: &Counted<'_>, moved: &mut Moved, name: &NodeName) {
        let Counted { rule, key, open, revision, .. } = *counted;
        reconciler.work.node();
        let labels = reconciler.nodes.assigned_labels(name);
        let Some(wave) = rule.rollout.waves.wave_of(name, labels) else { return };
        let Some(counts) = self.waves.get_mut(wave) else { return };
        if wave >= open {
            return counts.add_unopened();
        }
        self.visited.insert(name.clone());
        let fact = moved.counter.facts.entry(name.clone()).or_default();
        if fact.revision != key.number {
            *fact = Fact { revision: key.number, ..Fact::default() };
        }
        let rules = reconciler.nodes.file_rules(name);
        let concerned = revision
            .zip(rules)
            .and_then(|(revision, rules)| moved.counter.concerned.of(revision, rules, &reconciler.work));
        let facts = fact.observe(reconciler, counted, concerned.as_deref(), name, self.at);
        let state = facts.classify(self.at, &rule.rollout).state;
        let group = rule.rollout.max_failures.group_by.as_ref().and_then(|key| labels.get(key));
        counts.add(name, group.map(String::as_str), &state);
    }
}

/// The content of a revision that is assigned to a node.
#[derive(Clone, Copy)]
struct Assigned<'a> {
    revision: &'a Revision,
    set: &'a Set,
    /// The content of the revision below, if it is known.
    before: Option<&'a Set>,
    /// For each object in their order, whether a file rule of the node concerns it; `None` if its
    /// rules are not known.
    concerned: Option<&'a [bool]>,
}

impl Fact {
    /// Observes a node, and returns the facts by which it is judged.
    fn observe(
        &mut self,
        reconciler: &Reconciler,
        counted: &Counted<'_>,
        concerned: Option<&[bool]>,
        name: &NodeName,
        now: Timestamp,
    ) -> NodeFacts {
        let Counted { index, rule, key, revision, before, .. } = *counted;
        let Some(node) = reconciler.nodes.named(name) else {
            // It has never connected.
            let assigned_at = Some(*self.assigned_at.get_or_insert(now));
            let link = Link::Disconnected { last_heard: Timestamp::MIN, expected: None };
            let answer = Answer::Incomplete;
            return NodeFacts { assigned_at, first_connected: None, waited_until: None, answer, link };
        };
        let is_assigned =
            reconciler.desired.rollouts.revision_of(name, index).is_some_and(|revision| revision.key == *key);
        self.assigned_at = is_assigned.then(|| self.assigned_at.unwrap_or(now));
        let lifecycle = &reconciler.nodes.lifecycle;
        let (ready, renewed) = lifecycle.show(name);
        let is_here = node.session.is_connected();
        let expected = lifecycle.absence(name).map(|absence| absence.next);
        // Another replica may serve the node: a valid Lease says so, unless the node is away.
        let is_elsewhere = !is_here && reconciler.is_shared && ready == Some(true) && expected.is_none();
        self.connected_since = (is_here || is_elsewhere).then(|| self.connected_since.unwrap_or(now));
        if is_assigned && self.first_connected.is_none() {
            self.first_connected = self.connected_since.map(|_| now);
        }
        let link = match self.connected_since {
            Some(since) => Link::Connected(since),
            None => Link::Disconnected {
                last_heard: renewed.max(node.reported.last_report).unwrap_or(Timestamp::MIN),
                expected,
            },
        };
        if is_assigned && let Some((revision, set)) = revision.and_then(|it| Some((it, it.set.as_deref()?))) {
            let assigned = Assigned { revision, set, before, concerned };
            let answer = match is_here || !reconciler.is_shared {
                true => self.answer_of(reconciler, rule, node, assigned, now),
                false => self.published(node, now),
            };
            self.answer = answer.or_else(|| self.answer.take());
        } else {
            self.answer = None;
        }
        let answer = self.answer.clone().unwrap_or(Answer::Incomplete);
        let waits = matches!(answer, Answer::Waiting(_));
        if std::mem::replace(&mut self.is_waiting, waits) && !waits {
            // A node that waits again and again gets no more time by it.
            let latest =
                self.waiting_since.and_then(|since| since.checked_add(rule.rollout.waiting_after).ok());
            self.waited_until = Some(latest.map_or(now, |latest| latest.min(now)));
        }
        if matches!(answer, Answer::InEffect | Answer::HeldOnly) {
            self.waiting_since = None;
        }
        let Self { assigned_at, first_connected, waited_until, .. } = *self;
        NodeFacts { assigned_at, first_connected, waited_until, answer, link }
    }

    /// Returns the answer of a node by what it has reported to this process; `None` if that is not
    /// known now.
    fn answer_of(
        &mut self,
        reconciler: &Reconciler,
        rule: &GoverningRule,
        node: &Node,
        assigned: Assigned<'_>,
        now: Timestamp,
    ) -> Option<Answer> {
        let machine = &node.machine;
        if machine.phase() != CloudPhase::Live {
            // Before its first answer to this process: the stored digest of what it holds.
            if self.answer.is_some() || reconciler.is_shared {
                return None;
            }
            // A comparison with all that is desired, once for as long as the node is away.
            let recorded = machine.recorded_tally();
            if self.differing == Some(recorded) {
                return None;
            }
            let desired = reconciler.desired_on(&node.name);
            let holds_all = desired.tally(machine.epoch()) == recorded;
            self.differing = (!holds_all).then_some(recorded);
            return holds_all.then(|| self.effect(reconciler, node, assigned, now));
        }
        reconciler.work.objects(machine.differences());
        let is_of_rule = |uid: &str| {
            let mut sets = rule
                .status
                .revisions
                .iter()
                .filter_map(|revision| rule.revision(&rule.revision_key(revision))?.set.as_deref());
            sets.any(|set| set.version(uid).is_some())
        };
        let (mut is_incomplete, mut waits) = (false, false);
        for uid in machine.differing()? {
            if !is_of_rule(uid) {
                continue;
            }
            match machine.waits_for_link(uid) {
                true => waits = true,
                false => is_incomplete = true,
            }
            let refusal = machine.stands_with(uid).and_then(|stands| stands.refusal);
            if let Some((refusal, entry)) = refusal.zip(assigned.set.entries().get(uid))
                && refusal.version == entry.version
            {
                // A message may quote the object.
                return Some(Answer::Failed(format!(
                    "{} rejected: {:?}",
                    entry.object.key(),
                    refusal.reason
                )));
            }
        }
        Some(match (is_incomplete, waits) {
            (true, _) => Answer::Incomplete,
            (false, true) => self.waiting(now),
            (false, false) => self.effect(reconciler, node, assigned, now),
        })
    }

    /// Returns the answer of a node that holds the revision.
    fn effect(
        &mut self,
        reconciler: &Reconciler,
        node: &Node,
        Assigned { revision, set, before, concerned }: Assigned<'_>,
        now: Timestamp,
    ) -> Answer {
        let effects = &node.reported.effects;
        if concerned.is_none() && effects.counts().objects() == 0 {
            return self.conditions(node, now);
        }
        reconciler.work.objects(set.entries().len() / OBJECTS_A_UNIT + 1);
        let (mut is_waiting, mut is_pending, mut is_unreported) = (false, false, false);
        for (place, (uid, entry)) in set.entries().iter().enumerate() {
            if revision.is_hidden(uid) {
                continue;
            }
            match effects.state(key_of(uid), key_of(entry.version.as_str())) {
                None => {
                    let is_new = || before.and_then(|set| set.version(uid)) != Some(&entry.version);
                    is_unreported |= concerned.is_some_and(|concerned| concerned.get(place) == Some(&true))
                        && (!reconciler.is_shared || is_new());
                }
                Some(Some(EffectState::InEffect | EffectState::Gone)) => {}
                Some(None) => is_pending = true,
                Some(Some(EffectState::Waiting)) => is_waiting = true,
                Some(Some(
                    state @ (EffectState::NotInEffect | EffectState::Conflict | EffectState::Other),
                )) => {
                    let failed = format!("{}: {}", entry.object.key(), state.name());
                    let rules = reconciler.nodes.file_rules(&node.name).map(|rules| &**rules);
                    return Answer::Failed(match effects.message(key_of(uid)) {
                        None => failed,
                        // All roles see it, also in the status of the rule.
                        Some(_) if revision.may_quote_secrets(uid, rules) => format!("{failed}: {QUOTES}"),
                        Some(message) => format!("{failed}: {message}"),
                    });
                }
            }
        }
        // Over a cluster, effects are known that were reported in this session. What was in effect
        // before it stays so until the node reports otherwise; for the rest there is the Node.
        if is_unreported {
            match (reconciler.is_shared, &self.answer) {
                (false, _) => is_pending = true,
                (true, Some(Answer::InEffect)) => {}
                (true, _) => match self.published(node, now) {
                    Some(Answer::InEffect) => {}
                    Some(Answer::Waiting(_)) => is_waiting = true,
                    _ => is_pending = true,
                },
            }
        }
        match (is_pending, is_waiting) {
            (true, _) => Answer::NotYetInEffect,
            (false, true) => self.waiting(now),
            (false, false) => Answer::InEffect,
        }
    }

    /// Returns the answer of a node that waits, since the first such answer.
    fn waiting(&mut self, now: Timestamp) -> Answer {
        Answer::Waiting(*self.waiting_since.get_or_insert(now))
    }

    /// Returns the answer of a node by the conditions that another replica has published. They may
    /// refer to the revision before, until that replica has assigned this one.
    fn published(&mut self, node: &Node, now: Timestamp) -> Option<Answer> {
        let assigned_at = self.assigned_at?;
        let age = std::time::Duration::try_from(now.duration_since(assigned_at)).unwrap_or_default();
        if age < PUBLISHED {
            return Some(Answer::Incomplete);
        }
        Some(match node.replicas.sync() {
            NodeSync::InSync => self.conditions(node, now),
            NodeSync::Waiting => self.waiting(now),
            NodeSync::Pending => Answer::Incomplete,
        })
    }

    /// Returns the answer by the conditions of the Node of a node that holds what is desired.
    fn conditions(&mut self, node: &Node, now: Timestamp) -> Answer {
        match node.replicas.in_effect() {
            Some(FilesInEffect::Yes) => Answer::InEffect,
            Some(FilesInEffect::Waiting) => self.waiting(now),
            Some(FilesInEffect::No) => Answer::NotYetInEffect,
            None => Answer::HeldOnly,
        }
    }
}
