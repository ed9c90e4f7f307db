//! Rules that are objects: added, updated and deleted, with their status.
//!
//! The index does not keep objects that no rule selects, so a new rule makes the source list those
//! that it may select. A replaced rule stays in force until that relist ends: an object that both
//! versions select stays in place.

mod in_effect;

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use serde_json::{Value, json};

use super::broadcasts::QueuedChange;
use super::reconciler::{DesiredObjects, Reconciler};
use crate::reasons::PlacementReason;
use crate::source::{RuleProblem, RuleStatus};
use edgesync_admin::cloud::RolloutCondition;
use edgesync_object::NodeName;
use edgesync_object::time::rfc3339;
use edgesync_placement::spec::{InForce, RuleRollout};
use edgesync_placement::{KindMatch, NodeSync, RuleId, Selection, Summary};
use edgesync_protocol::change::Uid;
#[cfg(test)]
use edgesync_protocol::fault::{Fault, planted};
use edgesync_protocol::node::ConditionFields;
use edgesync_protocol::timing::Now;
use in_effect::Count;

/// Interval between two checks of all statuses.
const CHECK_INTERVAL: Duration = Duration::from_secs(2);
/// Maximum number of problems named in a rule's status.
const MAX_PROBLEMS: usize = 4;
/// Number of nodes of a rule checked per unit of work.
const NODES_A_UNIT: usize = 8;

/// Known rules and their status checks; see the module.
#[derive(Debug, Default)]
pub(super) struct Rules {
    known: BTreeMap<Uid, Known>,
    /// Replaced rules, which are removed when the relist ends.
    replaced: Vec<RuleId>,
    relist: Relist,
    /// Whether an object that may be placed has been listed. Before that, a rule has missed none.
    any_object: bool,
    /// Rules whose status check is due.
    due: VecDeque<Uid>,
    /// The status check in progress.
    counting: Option<Count>,
    next_check: Now,
    /// The rule whose status is being written.
    writing: Option<Uid>,
}

#[derive(Debug)]
struct Known {
    summary: Arc<Summary>,
    in_force: InForce,
    /// Its id in the index, if it is in force.
    id: Option<RuleId>,
}

/// Progress of the source's relist.
#[derive(Debug, Default, PartialEq, Eq)]
enum Relist {
    /// No relist is in progress.
    #[default]
    Idle,
    /// A relist is in progress that covers all rules.
    InProgress,
    /// A relist is in progress, and another follows for rules that have arrived since: these were
    /// replaced, and these objects are selected.
    Outdated(Vec<RuleId>, Selection),
}

impl Rules {
    /// Returns whether all objects that the rules select are known.
    pub(super) fn are_complete(&self) -> bool {
        self.relist == Relist::Idle
    }

    /// Records that an object other than a rule was listed.
    pub(super) fn object_listed(&mut self) {
        self.any_object = true;
    }

    /// Returns the UIDs of all rules.
    pub(super) fn uids(&self) -> impl Iterator<Item = &Uid> {
        self.known.keys()
    }

    /// Returns a rule, its id if it is in force, and whether it is valid.
    pub(super) fn one(&self, uid: &str) -> Option<(&Arc<Summary>, Option<RuleId>, bool)> {
        let Known { summary, in_force, id } = self.known.get(uid)?;
        Some((summary, *id, in_force.problems.0.is_empty()))
    }

    /// Returns the roll-out of a rule; none of a rule that is not known.
    pub(super) fn rollout(&self, uid: &str) -> RuleRollout {
        self.known.get(uid).map(|known| known.in_force.rollout.clone()).unwrap_or_default()
    }

    /// Returns whether the status of this rule is being written.
    pub(super) fn is_writing(&self, uid: &Uid) -> bool {
        self.writing.as_ref() == Some(uid)
    }

    pub(super) fn has(&self, uid: &str) -> bool {
        self.known.contains_key(uid)
    }

    /// Returns the name of a rule for operators: the key of the object, or the position in the
    /// configuration.
    pub(super) fn name(&self, id: RuleId) -> String {
        let Some(known) = self.known.values().find(|known| known.id == Some(id)) else {
            return format!("configuration [[placement]] {}", id.number() + 1);
        };
        let Summary { resource, namespace, name, .. } = &*known.summary;
        let prefix = if namespace.is_empty() { String::new() } else { format!("{namespace}/") };
        format!("{} {prefix}{name}", resource.kind)
    }
}

impl Rules {
    /// Adds or updates a rule. Returns the objects that the source must relist, if any.
    #[must_use]
    pub(super) fn set(&mut self, reconciler: &mut Reconciler, summary: &Arc<Summary>) -> Option<Selection> {
        let text = summary.rule.as_ref()?;
        let known = self.known.get_mut(&summary.uid);
        let replaced = known.as_ref().and_then(|known| known.id);
        let in_force = InForce::of(text, &summary.namespace);
        // A change of the roll-out alone selects no other objects or nodes.
        if let Some(known) = known.filter(|known| known.in_force.rule == in_force.rule) {
            known.summary = Arc::clone(summary);
            known.in_force = in_force;
            return None;
        }
        let objects = in_force.rule.as_ref().map(|rule| Selection::from(rule.objects.clone()));
        let id = in_force.rule.clone().map(|rule| reconciler.desired.placement.add_rule(rule));
        // Before any object is selected by the new number.
        if let (Some(old), Some(new)) = (replaced, id) {
            reconciler.desired.rollouts.add_id(old, new);
            let DesiredObjects { placement, rollouts, .. } = &mut reconciler.desired;
            if rollouts.governs(new) {
                // It may select other nodes.
                reconciler.work.objects(placement.selected_by(new).1 / NODES_A_UNIT);
                rollouts.queue(placement.nodes_of(new).cloned());
            }
        }
        let known = Known { summary: Arc::clone(summary), in_force, id };
        self.known.insert(summary.uid.clone(), known);
        let key = summary.resource.key(&summary.namespace, &summary.name);
        tracing::info!(rule = %key, in_force = id.is_some(), "placement rule updated");
        let Some(objects) = objects.filter(|_| self.any_object) else {
            // It has missed nothing.
            replaced.into_iter().for_each(|id| retire(reconciler, id));
            return None;
        };
        #[cfg(test)]
        let objects = if planted(Fault::NewRuleUnlisted) { Selection::default() } else { objects };
        match &mut self.relist {
            Relist::Idle => {
                self.replaced.extend(replaced);
                self.relist = Relist::InProgress;
                return Some(objects);
            }
            Relist::InProgress => self.relist = Relist::Outdated(replaced.into_iter().collect(), objects),
            Relist::Outdated(next, selected) => {
                next.extend(replaced);
                selected.extend(objects);
            }
        }
        None
    }

    /// Removes a deleted rule.
    pub(super) fn drop(&mut self, reconciler: &mut Reconciler, uid: &str) {
        let Some(Known { summary, id, .. }) = self.known.remove(uid) else { return };
        let key = summary.resource.key(&summary.namespace, &summary.name);
        tracing::info!(rule = %key, "placement rule deleted");
        id.into_iter().for_each(|id| retire(reconciler, id));
    }

    /// Ends a relist, and removes the rules replaced before it. Returns the objects that the source
    /// must relist next, if any.
    #[must_use]
    pub(super) fn relisted(&mut self, reconciler: &mut Reconciler) -> Option<Selection> {
        for id in std::mem::take(&mut self.replaced) {
            retire(reconciler, id);
        }
        let Relist::Outdated(replaced, objects) = std::mem::take(&mut self.relist) else { return None };
        self.replaced = replaced;
        self.relist = Relist::InProgress;
        Some(objects)
    }

    // --- status

    /// Checks rules, one per turn. Returns a status that must be written; [`Rules::status_written`]
    /// follows. `rollout` returns the conditions of the roll-out of a rule, or `None` while that is
    /// being written: the rule waits for the next check. `problems` returns the source's problems
    /// with a rule.
    pub(super) fn check_next(
        &mut self,
        reconciler: &Reconciler,
        rollout: impl FnOnce(&Uid) -> Option<Vec<RolloutCondition>>,
        problems: impl FnOnce(&Uid, &[KindMatch]) -> Vec<RuleProblem>,
    ) -> Option<RuleStatus> {
        let now = reconciler.now();
        if self.writing.is_some() {
            return None;
        }
        if !self.has_due() && now >= self.next_check {
            self.next_check = now + CHECK_INTERVAL;
            self.due = self.known.keys().cloned().collect();
        }
        let count = self.count_in_effect(reconciler)?;
        let rollout = rollout(&count.rule)?;
        let status = self.status(reconciler, &count, rollout, problems)?;
        self.writing = Some(count.rule);
        Some(status)
    }

    /// Records that the write of a status has ended.
    pub(super) fn status_written(&mut self) {
        self.writing = None;
    }

    /// Returns whether the next turn has rules to check.
    pub(super) fn has_due(&self) -> bool {
        self.writing.is_none() && (!self.due.is_empty() || self.counting.is_some())
    }

    /// Returns the status of a rule if it differs from the stored one.
    fn status(
        &self,
        reconciler: &Reconciler,
        count: &Count,
        rollout: Vec<RolloutCondition>,
        problems: impl FnOnce(&Uid, &[KindMatch]) -> Vec<RuleProblem>,
    ) -> Option<RuleStatus> {
        let placement = &reconciler.desired.placement;
        let uid = &count.rule;
        let Known { summary, in_force, id } = self.known.get(uid)?;
        let text = summary.rule.as_ref()?;
        let mut before: Value = serde_json::from_str(&text.status).unwrap_or_default();
        // Its roll-out has writes of its own.
        if let Value::Object(fields) = &mut before {
            fields.remove("rollout");
        }
        let (objects, nodes) = id.map_or((0, 0), |id| placement.selected_by(id));
        let in_sync = |name: &&NodeName| {
            let node = reconciler.nodes.named(name);
            node.is_some_and(|node| match node.session.is_connected() {
                true => node.machine.in_sync(),
                false => node.replicas.sync() == NodeSync::InSync,
            })
        };
        let in_sync = id.map_or(0, |id| placement.nodes_of(id).filter(in_sync).count());
        reconciler.work.objects(nodes / NODES_A_UNIT);
        let kinds = in_force.rule.as_ref().map_or(&[][..], |rule| &rule.objects.kinds);
        let problems = problems(uid, kinds);
        let accepted = match (in_force.problems.0.is_empty(), problems.first()) {
            (false, _) => (PlacementReason::Invalid, in_force.problems.to_string()),
            (true, None) => (PlacementReason::Accepted, "rule is in force".to_owned()),
            (true, Some(first)) => (first.reason, join(&problems)),
        };
        let reason = match in_sync == nodes && self.are_complete() {
            _ if problems.iter().any(|problem| problem.hides) => PlacementReason::ObjectsUnread,
            true => PlacementReason::InSync,
            false => PlacementReason::NodesBehind,
        };
        let synced = (reason, format!("{in_sync} of {nodes} nodes are connected and in sync"));
        let now = rfc3339(Timestamp::now());
        let fields = |kind: &str, status: &str, reason: &str, message: String| {
            let conditions = before["conditions"].as_array().map(Vec::as_slice).unwrap_or_default();
            let old = conditions.iter().find(|old| old["type"] == kind && old["status"] == status);
            json!({
                "type": kind, "status": status, "reason": reason, "message": message,
                "observedGeneration": text.generation,
                "lastTransitionTime": old.map_or(json!(now), |old| old["lastTransitionTime"].clone()),
            })
        };
        let condition = |(reason, message): (PlacementReason, String)| {
            let ConditionFields { condition: kind, status, reason } = reason.fields();
            fields(kind, status.as_str(), reason, message)
        };
        let mut shown = vec![condition(accepted), condition(synced), condition(count.condition())];
        shown.extend(rollout.into_iter().map(|one| {
            fields(&one.r#type, if one.status { "True" } else { "False" }, &one.reason, one.message)
        }));
        let status = json!({
            "observedGeneration": text.generation,
            "objects": objects, "nodes": nodes, "nodesInSync": in_sync,
            "conditions": shown,
        });
        let key = summary.resource.key(&summary.namespace, &summary.name);
        (status != before).then(|| RuleStatus { key, uid: uid.clone(), status })
    }
}

/// Removes a rule from the index, one object at a time.
fn retire(reconciler: &mut Reconciler, id: RuleId) {
    reconciler.desired.placement.retire_rule(id);
    reconciler.broadcasts.queue([QueuedChange::Shrink(id)]);
}

/// Removes one object from a rule that is being removed.
pub(super) fn shrink(reconciler: &mut Reconciler, id: RuleId) {
    if let Some(differences) = reconciler.desired.placement.shrink_rule(id) {
        reconciler.spread(differences);
        reconciler.broadcasts.queue([QueuedChange::Shrink(id)]);
    } else {
        reconciler.desired.rollouts.forget_id(id);
    }
}

/// Formats problems for the message of a condition.
fn join(problems: &[RuleProblem]) -> String {
    let messages = problems.iter().take(MAX_PROBLEMS).map(|problem| problem.message.as_str());
    let mut messages: Vec<&str> = messages.collect();
    if problems.len() > MAX_PROBLEMS {
        messages.push("and others");
    }
    messages.join("; ")
}
