//! Rules that are objects: taken in, followed by what they select, given up, and told what has come of them.
//!
//! The index does not keep what nothing selects, so a rule that comes makes the source tell everything once more. What it
//! replaces stays in force until that is done: an object that both select stays where it is.

mod in_effect;

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use serde_json::{Value, json};

use super::news::Waiting;
use super::{Fleet, Inbox};
use crate::source::{Changes as _, Result, RuleProblem, RuleStatus, Source};
use edgesync_object::time::rfc3339;
use edgesync_placement::spec::InForce;
use edgesync_placement::{RuleId, Summary};
use edgesync_protocol::change::Uid;
use edgesync_protocol::timing::Now;
use in_effect::Count;

/// How often is looked what has come of the rules.
const LOOK_EVERY: Duration = Duration::from_secs(2);
/// The most problems of a rule that its status names.
const MAX_PROBLEMS: usize = 4;
/// So many nodes of a rule are looked at in a unit of work.
const NODES_A_UNIT: usize = 8;

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Rules {
    known: HashMap<Uid, Known>,
    /// Those that others have replaced: they go once everything has been told.
    replaced: Vec<RuleId>,
    telling: Telling,
    /// Whether an object that may be placed has been told: until then, a rule has missed none.
    any_object: bool,
    /// Those that are to be looked at.
    due: VecDeque<Uid>,
    /// The one that is being looked at.
    counting: Option<Count>,
    next_look: Now,
    writing: bool,
}

#[derive(Debug)]
struct Known {
    summary: Arc<Summary>,
    in_force: InForce,
    /// Its number in the index, if it is in force.
    id: Option<RuleId>,
}

/// How far the source is with telling everything once more.
#[derive(Debug, Default, PartialEq, Eq)]
enum Telling {
    /// It was not asked for.
    #[default]
    Done,
    /// It is at it, for all rules that there are.
    UnderWay,
    /// It is at it, and is to do it again: another rule has come since, and these were replaced.
    Outdated(Vec<RuleId>),
}

impl Rules {
    /// Whether all that the rules select is known.
    pub(super) fn are_complete(&self) -> bool {
        self.telling == Telling::Done
    }

    /// Takes note of an object that is no rule.
    pub(super) fn object_told(&mut self) {
        self.any_object = true;
    }

    /// The UIDs of all.
    pub(super) fn uids(&self) -> impl Iterator<Item = &Uid> {
        self.known.keys()
    }

    /// One of them: what it is, its number if it is in force, and whether it is as it was written.
    pub(super) fn one(&self, uid: &str) -> Option<(&Arc<Summary>, Option<RuleId>, bool)> {
        let Known { summary, in_force, id } = self.known.get(uid)?;
        Some((summary, *id, in_force.problems.0.is_empty()))
    }

    pub(super) fn has(&self, uid: &str) -> bool {
        self.known.contains_key(uid)
    }

    /// The object that a rule is.
    pub(super) fn name(&self, id: RuleId) -> Option<String> {
        let known = self.known.values().find(|known| known.id == Some(id))?;
        let Summary { resource, namespace, name, .. } = &*known.summary;
        let place = if namespace.is_empty() { String::new() } else { format!("{namespace}/") };
        Some(format!("{} {place}{name}", resource.kind))
    }
}

impl<S: Source> Fleet<S> {
    /// Takes in a rule that is new, or has changed.
    pub(super) fn set_rule(&mut self, summary: &Arc<Summary>) {
        let Some(text) = &summary.rule else { return };
        let known = self.rules.known.get_mut(&summary.uid);
        let replaced = known.as_ref().and_then(|known| known.id);
        let in_force = InForce::of(text, &summary.namespace);
        if let Some(known) = known.filter(|known| known.in_force == in_force) {
            known.summary = Arc::clone(summary);
            return;
        }
        let id = in_force.rule.clone().map(|rule| self.placement.add_rule(rule));
        let known = Known { summary: Arc::clone(summary), in_force, id };
        self.rules.known.insert(summary.uid.clone(), known);
        let key = summary.resource.key(&summary.namespace, &summary.name);
        tracing::info!(rule = %key, in_force = id.is_some(), "a rule has come or changed");
        if id.is_none() || !self.rules.any_object {
            // It has missed nothing.
            return replaced.into_iter().for_each(|id| self.give_up_rule(id));
        }
        match &mut self.rules.telling {
            Telling::Done => {
                self.rules.replaced.extend(replaced);
                self.rules.telling = Telling::UnderWay;
                self.changes.again();
            }
            Telling::UnderWay => self.rules.telling = Telling::Outdated(replaced.into_iter().collect()),
            Telling::Outdated(next) => next.extend(replaced),
        }
    }

    /// A rule is no more.
    pub(super) fn drop_rule(&mut self, uid: &str) {
        let Some(Known { summary, id, .. }) = self.rules.known.remove(uid) else { return };
        let key = summary.resource.key(&summary.namespace, &summary.name);
        tracing::info!(rule = %key, "a rule is no more");
        id.into_iter().for_each(|id| self.give_up_rule(id));
    }

    /// Everything was told once more: what was replaced before that goes.
    pub(super) fn told_again(&mut self) {
        for id in std::mem::take(&mut self.rules.replaced) {
            self.give_up_rule(id);
        }
        if let Telling::Outdated(replaced) = std::mem::take(&mut self.rules.telling) {
            self.rules.replaced = replaced;
            self.rules.telling = Telling::UnderWay;
            self.changes.again();
        }
    }

    fn give_up_rule(&mut self, id: RuleId) {
        self.placement.retire_rule(id);
        self.news.wait([Waiting::Shrink(id)]);
    }

    /// Takes one object out of a rule that is given up.
    pub(super) fn shrink_rule(&mut self, id: RuleId) {
        if let Some(differences) = self.placement.shrink_rule(id) {
            self.spread(differences);
            self.news.wait([Waiting::Shrink(id)]);
        }
    }

    // --- what has come of them

    /// Looks at rules, one in a turn, and has it written where something has changed.
    pub(super) fn look_at_rules(&mut self) {
        let now = self.now();
        if self.rules.writing {
            return;
        }
        if !self.has_rules_due() && now >= self.rules.next_look {
            self.rules.next_look = now + LOOK_EVERY;
            self.rules.due = self.rules.known.keys().cloned().collect();
        }
        let Some(status) = self.count_in_effect().and_then(|count| self.rule_status(&count)) else { return };
        self.rules.writing = true;
        let (source, inbox) = (self.source.clone(), self.inbox.clone());
        tokio::spawn(async move {
            let written = source.set_rule_status(status).await;
            let _ = inbox.send(Inbox::RuleStatusWritten(written)).await;
        });
    }

    pub(super) fn rule_status_written(&mut self, written: &Result<()>) {
        self.rules.writing = false;
        if let Err(error) = written {
            tracing::error!(%error, "the status of a rule could not be written");
        }
    }

    /// Whether the next turn has rules to look at.
    pub(super) fn has_rules_due(&self) -> bool {
        !self.rules.writing && (!self.rules.due.is_empty() || self.rules.counting.is_some())
    }

    /// The status of a rule, if it is to be another one than it is.
    fn rule_status(&self, count: &Count) -> Option<RuleStatus> {
        let uid = &count.rule;
        let Known { summary, in_force, id } = self.rules.known.get(uid)?;
        let text = summary.rule.as_ref()?;
        let before: Value = serde_json::from_str(&text.status).unwrap_or_default();
        let (objects, nodes) = id.map_or((0, 0), |id| self.placement.selected_by(id));
        let in_sync = |name: &&Arc<str>| {
            let node = self.nodes.get(&***name);
            node.is_some_and(|node| match node.connection {
                Some(_) => node.machine.in_sync(),
                None => node.in_sync_elsewhere,
            })
        };
        let in_sync = id.map_or(0, |id| self.placement.nodes_of(id).filter(in_sync).count());
        self.work.objects(nodes / NODES_A_UNIT);
        let kinds = in_force.rule.as_ref().map_or(&[][..], |rule| &rule.objects.kinds);
        let problems = self.source.rule_problems(uid, kinds);
        let accepted = match (in_force.problems.0.is_empty(), problems.first()) {
            (false, _) => ("False", "Invalid", in_force.problems.to_string()),
            (true, None) => ("True", "Accepted", "it is in force".to_owned()),
            (true, Some(first)) => ("False", first.reason, told(&problems)),
        };
        let (state, reason) = match in_sync == nodes && self.rules.are_complete() {
            _ if problems.iter().any(|problem| problem.hides) => ("Unknown", "ObjectsUnread"),
            true => ("True", "InSync"),
            false => ("False", "NodesBehind"),
        };
        let message =
            format!("nodes that are connected and hold what they are to hold: {in_sync} of {nodes}");
        let synced = (state, reason, message);
        let now = rfc3339(Timestamp::now());
        let condition = |kind: &str, (status, reason, message): (&str, &str, String)| {
            let conditions = before["conditions"].as_array().map(Vec::as_slice).unwrap_or_default();
            let old = conditions.iter().find(|old| old["type"] == kind && old["status"] == status);
            json!({
                "type": kind, "status": status, "reason": reason, "message": message,
                "observedGeneration": text.generation,
                "lastTransitionTime": old.map_or(json!(now), |old| old["lastTransitionTime"].clone()),
            })
        };
        let status = json!({
            "observedGeneration": text.generation,
            "objects": objects, "nodes": nodes, "nodesInSync": in_sync,
            "conditions": [
                condition("Accepted", accepted),
                condition("InSync", synced),
                condition("InEffect", count.condition()),
            ],
        });
        let key = summary.resource.key(&summary.namespace, &summary.name);
        (status != before).then(|| RuleStatus { key, uid: uid.clone(), status })
    }
}

/// Problems in words, as far as a condition has room.
fn told(problems: &[RuleProblem]) -> String {
    let told = problems.iter().take(MAX_PROBLEMS).map(|problem| problem.message.as_str());
    let mut told: Vec<&str> = told.collect();
    if problems.len() > MAX_PROBLEMS {
        told.push("and others");
    }
    told.join("; ")
}
