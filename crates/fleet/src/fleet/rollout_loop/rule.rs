//! Rules with a roll-out: their configuration, and what is shown of them.

use std::sync::Arc;

use jiff::Timestamp;
use serde_json::{Value, json};

use super::{COUNT_EVERY, MAX_READS};
use crate::config::Config;
use crate::fleet::Fleet;
use crate::fleet::assignments::{GoverningRule, RuleIdentity};
use crate::fleet::cloud_events::CloudEvent;
use crate::metrics::RolloutNumbers;
use crate::source::{Result, RolloutWrite, RuleKey, Source};
use edgesync_admin::cloud::{
    EndedRevision, FailedNode, RejectedVersion, RolloutCondition, RolloutRevision, RolloutStatus, RolloutWave,
};
use edgesync_object::Object;
use edgesync_object::event::shorten;
use edgesync_object::time::rfc3339;
use edgesync_placement::spec::RuleRollout;
use edgesync_placement::{RuleId, RuleText, Summary};
use edgesync_protocol::change::Uid;
#[cfg(test)]
use edgesync_protocol::fault::{Fault, planted};
use edgesync_rollout::conditions::messages;
use edgesync_rollout::engine::Happened;
use edgesync_rollout::observed::WaveCounts;
use edgesync_rollout::status::Outcome;
use edgesync_rollout::status::{Condition, Reason};
use edgesync_rollout::waves::Wave;
use edgesync_rollout::{Observed, Rollout, Status};
use edgesync_runtime::systemd::Watchdog;

/// Maximum length of a rule's name in the names of its Events, which have at most 253 characters.
const MAX_NAME: usize = 200;

/// Whether the roll-out of a rule is valid.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Validity {
    /// It is.
    Valid,
    /// It is not; the last valid one stays in force, and moves nothing.
    Kept,
    /// It is not, and this process knows no valid one.
    Unknown,
}

/// Returns the rules of the configuration that have a roll-out: number, name, and roll-out.
fn configured_rollouts(config: &Config) -> Vec<(usize, Arc<str>, Arc<Rollout>)> {
    let rules = config.placement.rules.iter().enumerate();
    let rollouts =
        rules.filter_map(|(number, rule)| Some((number, rule.name.clone()?, rule.rollout.clone()?)));
    rollouts.collect()
}

/// Returns `status.rollout` of a rule as it is stored, unless it is null.
pub(super) fn stored_rollout(text: &RuleText) -> Option<Value> {
    let mut status: Value = serde_json::from_str(&text.status).unwrap_or_default();
    let rollout = status.get_mut("rollout").map(Value::take);
    rollout.filter(|rollout| !rollout.is_null())
}

/// Returns `status.rollout` of a rule; a lost one is the default.
fn status_of(text: &RuleText, name: &str) -> Status {
    Status::read(stored_rollout(text).as_ref()).unwrap_or_else(|why| {
        tracing::error!(rule = name, why, "status of a roll-out is lost, the placed objects become stable");
        Status::default()
    })
}

/// Returns a roll-out that moves nothing, for a rule whose own is invalid and was never valid for
/// this process.
fn frozen() -> Option<Arc<Rollout>> {
    let waves = json!({"waves": [{"selector": "no-node=true"}]});
    Rollout::parse(&waves, "spec.rollout").ok().map(Arc::new)
}

impl<S: Source> Fleet<S> {
    /// Lets the rules of the configuration that have a roll-out govern their objects, and deletes
    /// the statuses of those that have none any more: with another roll-out, what is placed then
    /// becomes stable.
    pub(in crate::fleet) async fn govern_configured(&mut self, config: &Config) -> Result<()> {
        let rollouts = configured_rollouts(config);
        let statuses = self.requests.source().rollout_statuses().await?;
        for (name, status) in &statuses {
            if rollouts.iter().any(|(_, rule, _)| **rule == **name) {
                continue;
            }
            tracing::info!(rule = name, "rule has no roll-out any more, deleting its status");
            let status = serde_json::from_str::<Value>(status).ok();
            let write = RolloutWrite {
                rule: RuleKey::Configured(name.as_str().into()),
                object: None,
                expected: Status::sequence_of(status.as_ref()),
                status: None,
            };
            self.requests.source().write_rollout(write).await?;
        }
        for (number, name, rollout) in rollouts {
            let Some(id) = self.reconciler.desired.placement.configured(number) else { continue };
            let stored = statuses.iter().find(|(rule, _)| **rule == *name).map(|(_, status)| status);
            let value =
                stored.map(|status| serde_json::from_str::<Value>(status).unwrap_or(Value::Bool(false)));
            let status = Status::read(value.as_ref()).unwrap_or_else(|why| {
                tracing::error!(
                    rule = &*name,
                    why,
                    "status of a roll-out is lost, the placed objects become stable"
                );
                Status::default()
            });
            let key = RuleKey::Configured(Arc::clone(&name));
            let identity = RuleIdentity { key, created: Timestamp::MIN, namespace: "".into(), name };
            self.govern(identity, (rollout, Validity::Valid), status, vec![id], true);
        }
        Ok(())
    }

    /// Reads the sets of all assigned revisions, at the start. Nodes of those that cannot be read
    /// keep what they hold; the loop reads them again.
    pub(in crate::fleet) async fn load_rollouts(&mut self) {
        let watchdog = Watchdog::start();
        let mut attempts = MAX_READS;
        while let Some((index, key)) = self.reconciler.desired.rollouts.first_awaited() {
            watchdog.turned();
            match self.requests.source().revision(key.clone()).await {
                Ok(set) => {
                    self.add_revision(index, key, set);
                    self.queue_nodes(index);
                }
                Err(error) => {
                    tracing::error!(rule = %key.rule, revision = key.number, %error, "reading a revision failed");
                    attempts = attempts.saturating_sub(1);
                    match attempts {
                        0 => {
                            self.reconciler.desired.rollouts.set_unreadable(index, key);
                            self.queue_nodes(index);
                        }
                        _ => tokio::time::sleep(COUNT_EVERY).await,
                    }
                }
            }
        }
        while self.deliver_changes() {}
        self.rollout_loop.is_loaded = true;
    }

    fn govern(
        &mut self,
        identity: RuleIdentity,
        (rollout, validity): (Arc<Rollout>, Validity),
        status: Status,
        ids: Vec<RuleId>,
        places: bool,
    ) {
        let desired = &mut self.reconciler.desired;
        desired.placement.set_reports_reasons(true);
        let index = desired.rollouts.govern(identity, rollout, status, ids, places);
        desired.rollouts.set_frozen(index, validity == Validity::Unknown);
        self.rollout_loop.rules.entry(index).or_default().is_valid = validity == Validity::Valid;
        self.queue_nodes(index);
    }

    /// Follows a rule that is an object: its roll-out, and the status of it. `was_known` is whether
    /// the rule has placed objects before.
    pub(in crate::fleet) fn rule_changed(&mut self, summary: &Summary, was_known: bool) {
        let Some(text) = &summary.rule else { return };
        let key = RuleKey::Object(summary.uid.clone());
        let known = self.reconciler.desired.rollouts.index(&key);
        let name = summary.resource.key(&summary.namespace, &summary.name).to_string();
        let rollout = self.rules.rollout(&summary.uid);
        let is_leftover = matches!(rollout, RuleRollout::None) && stored_rollout(text).is_some();
        let leftover = &mut self.rollout_loop.leftover;
        match is_leftover {
            true => drop(leftover.entry(summary.uid.clone()).or_default()),
            false => drop(leftover.remove(&summary.uid)),
        }
        let (rollout, validity) = match rollout {
            RuleRollout::None => {
                #[cfg(test)]
                if planted(Fault::RolloutRemovalIgnored) {
                    return;
                }
                if let Some(index) = known {
                    tracing::info!(rule = name, "rule has no roll-out any more");
                    self.reconciler.desired.rollouts.leave(index);
                    self.queue_nodes(index);
                }
                return;
            }
            RuleRollout::Valid(rollout) => (rollout, Validity::Valid),
            RuleRollout::Invalid => {
                tracing::error!(rule = name, "roll-out of a rule is invalid, it moves nothing");
                let before = known.and_then(|index| self.reconciler.desired.rollouts.rule(index));
                match before.filter(|rule| !rule.is_frozen()) {
                    Some(rule) => (Arc::clone(&rule.rollout), Validity::Kept),
                    None => {
                        let Some(rollout) = frozen() else { return };
                        (rollout, Validity::Unknown)
                    }
                }
            }
        };
        let status = status_of(text, &name);
        let ids: Vec<_> = self.rules.one(&summary.uid).and_then(|(_, id, _)| id).into_iter().collect();
        if let Some(index) = known {
            self.follow_status(index, &status);
            let is_same =
                self.reconciler.desired.rollouts.rule(index).is_some_and(|rule| {
                    rule.rollout == rollout && ids.iter().all(|id| rule.ids().contains(id))
                });
            let moved = self.rollout_loop.rules.entry(index).or_default();
            if is_same && moved.is_valid == (validity == Validity::Valid) {
                return;
            }
        }
        let identity = RuleIdentity {
            key,
            created: text.created.parse().unwrap_or(Timestamp::MIN),
            namespace: summary.namespace.clone(),
            name: summary.name.clone(),
        };
        // A rule without a status places the newest versions until it has one.
        let places = was_known || status.revisions.is_empty();
        self.govern(identity, (rollout, validity), status, ids, places);
    }

    /// Adopts a status that has arrived with its rule, unless a newer one was written meanwhile.
    fn follow_status(&mut self, index: super::RuleIndex, status: &Status) {
        let Some(rule) = self.reconciler.desired.rollouts.rule(index) else { return };
        let moved = self.rollout_loop.rules.entry(index).or_default();
        if moved.awaited.is_some_and(|(sequence, _)| status.sequence < sequence) {
            return;
        }
        #[cfg(test)]
        if planted(Fault::RestoredStatusIgnored) && status.sequence < rule.status.sequence {
            return;
        }
        moved.awaited = None;
        if rule.status != *status {
            moved.snapshot = None;
            self.adopt(index, status.clone(), None);
        }
    }

    /// Adopts the stored statuses of rules of the configuration, after a write was refused.
    pub(in crate::fleet) fn statuses_read(&mut self, statuses: Result<Vec<(String, String)>>) {
        let statuses = match statuses {
            Ok(statuses) => statuses,
            Err(error) => return tracing::error!(%error, "reading the statuses of roll-outs failed"),
        };
        for (name, text) in statuses {
            let key = RuleKey::Configured(name.as_str().into());
            let Some(index) = self.reconciler.desired.rollouts.index(&key) else { continue };
            let value = serde_json::from_str::<Value>(&text).ok();
            let Ok(status) = Status::read(value.as_ref()) else { continue };
            let known = self.reconciler.desired.rollouts.rule(index).map_or(0, |rule| rule.status.sequence);
            // The answer may be older than a write that has ended since.
            if status.sequence > known {
                self.follow_status(index, &status);
            }
        }
    }

    /// Handles the deletion of a rule.
    pub(in crate::fleet) fn rule_deleted(&mut self, uid: &Uid) {
        let index = self.reconciler.desired.rollouts.rule_deleted(&RuleKey::Object(uid.clone()));
        self.rules.drop(&mut self.reconciler, uid);
        self.rollout_loop.leftover.remove(uid);
        if let Some(index) = index {
            self.queue_nodes(index);
        }
    }
}

// --- what is shown

fn shown_wave(wave: &Wave, is_open: bool, counts: &WaveCounts) -> RolloutWave {
    let failures = counts
        .failures
        .iter()
        .map(|failed| FailedNode { node: failed.node.to_string(), message: failed.message.clone() });
    RolloutWave {
        selector: wave.selector.to_string(),
        percent: wave.percent,
        open: is_open,
        nodes: counts.nodes,
        good: counts.good,
        held_only: counts.held_only,
        pending: counts.pending,
        waiting: counts.waiting + counts.excused,
        failed: counts.failed + counts.silent,
        away: counts.away,
        failures: failures.collect(),
    }
}

/// Returns the status of a roll-out for operators.
pub(super) fn show(rule: &GoverningRule, observed: &Observed, is_valid: bool) -> RolloutStatus {
    let GoverningRule { rollout, status, .. } = rule;
    let shown = messages(rollout, status, observed);
    let conditions = status.conditions.as_ref().map(|conditions| {
        vec![
            shown_condition("Progressing", &conditions.progressing, shown.progressing),
            shown_condition("Paused", &conditions.paused, shown.paused),
            shown_condition("Degraded", &conditions.degraded, shown.degraded),
        ]
    });
    let revisions = status.revisions.iter().map(|revision| {
        let set = rule.revision(&rule.revision_key(revision)).and_then(|read| read.set.as_ref());
        RolloutRevision {
            number: revision.number,
            open: revision.open,
            objects: set.map(|set| set.entries().len()),
            started_at: rfc3339(revision.started_at),
            opened_at: rfc3339(revision.opened_at),
            good_since: revision.good_since.map(rfc3339),
        }
    });
    let (none, open) = (WaveCounts::default(), status.progressing().map_or(0, |top| top.open));
    let waves = rollout
        .waves
        .as_slice()
        .iter()
        .enumerate()
        .map(|(index, wave)| shown_wave(wave, index < open, observed.waves.get(index).unwrap_or(&none)));
    let rejected = status.rejected.as_slice().iter().map(|rejected| RejectedVersion {
        uid: rejected.uid.to_string(),
        version: rejected.version.as_ref().map(ToString::to_string),
    });
    let history = status.history.iter().map(|ended| EndedRevision {
        number: ended.number,
        open: ended.open,
        started_at: rfc3339(ended.started_at),
        ended_at: rfc3339(ended.ended_at),
        outcome: format!("{:?}", ended.outcome),
        by: ended.by.clone(),
    });
    RolloutStatus {
        rule: rule.shown_name(),
        valid: is_valid,
        paused: status.paused.as_ref().map(|pause| format!("{:?}", pause.reason)),
        conditions: conditions.unwrap_or_default(),
        revisions: revisions.collect(),
        waves: waves.collect(),
        rejected: rejected.collect(),
        history: history.collect(),
    }
}

/// Returns the numbers of a roll-out for the metrics.
pub(super) fn numbers(rule: &GoverningRule, observed: &Observed) -> RolloutNumbers {
    let status = &rule.status;
    let sum = |count: fn(&WaveCounts) -> usize| observed.waves.iter().map(count).sum::<usize>() as u64;
    RolloutNumbers {
        rule: rule.shown_name(),
        revision: status.top().map_or(0, |top| top.number),
        waves_open: status.progressing().map_or(rule.rollout.waves.count(), |top| top.open) as u64,
        is_paused: status.paused.is_some(),
        is_degraded: status.conditions.as_ref().is_some_and(|conditions| conditions.degraded.status),
        good: sum(|counts| counts.good + counts.held_only),
        failed: sum(|counts| counts.failed + counts.silent),
        awaited: sum(|counts| counts.pending + counts.waiting),
        away: sum(|counts| counts.away + counts.excused),
    }
}

/// Returns the conditions of a roll-out for the status of its rule. They have counts only after too
/// many failures.
pub(super) fn conditions(rule: &GoverningRule, observed: &Observed) -> Vec<RolloutCondition> {
    let GoverningRule { rollout, status, .. } = rule;
    let Some(conditions) = &status.conditions else { return Vec::new() };
    let message = match status.progressing() {
        Some(top) => {
            format!("revision {} is open for {} of {} waves", top.number, top.open, rollout.waves.count())
        }
        None => match status.top() {
            Some(top) => format!("revision {} is stable", top.number),
            None => "no revision yet".to_owned(),
        },
    };
    let degraded = match conditions.degraded.reason {
        Reason::FailuresExceeded => format!("{message}: {}", messages(rollout, status, observed).degraded),
        _ => message.clone(),
    };
    vec![
        shown_condition("Progressing", &conditions.progressing, message.clone()),
        shown_condition("Paused", &conditions.paused, message),
        shown_condition("Degraded", &conditions.degraded, degraded),
    ]
}

fn shown_condition(kind: &str, condition: &Condition, message: String) -> RolloutCondition {
    RolloutCondition {
        r#type: kind.to_owned(),
        status: condition.status,
        reason: format!("{:?}", condition.reason),
        message,
    }
}

/// Returns reason, note and whether it is a warning, for the Event of a transition.
fn described(happened: &Happened) -> (&'static str, String, bool) {
    let by = |by: &str| if by.is_empty() { String::new() } else { format!(", by {by}") };
    match happened {
        Happened::Initialized { revision } => {
            ("RolloutInitialized", format!("revision {revision} holds the objects placed now"), false)
        }
        Happened::Begun { revision } => {
            ("RevisionBegun", format!("revision {revision} begins with the first wave"), false)
        }
        Happened::WaveOpened { revision, wave, by: operator } => {
            let note = format!("revision {revision} is open for wave {wave}{}", by(operator));
            ("WaveOpened", note, false)
        }
        Happened::Completed { revision, by: operator } => {
            ("RolloutCompleted", format!("revision {revision} is stable{}", by(operator)), false)
        }
        Happened::Paused { reason, by: operator } => {
            ("RolloutPaused", format!("paused: {reason:?}{}", by(operator)), operator.is_empty())
        }
        Happened::Resumed { by: operator } => ("RolloutResumed", format!("resumed{}", by(operator)), false),
        Happened::Ended { revision, outcome, by: operator } => {
            let note = format!("revision {revision} has ended: {outcome:?}{}", by(operator));
            ("RevisionEnded", note, matches!(outcome, Outcome::RolledBack | Outcome::Lost))
        }
        Happened::WavesChanged { unchanged } => {
            ("WavesChanged", format!("the first {unchanged} waves are unchanged and stay open"), false)
        }
    }
}

/// Returns the Event of a transition.
pub(super) fn event(rule: &Summary, happened: &Happened, now: Timestamp) -> Object {
    let (reason, note, is_warning) = described(happened);
    let resource = &rule.resource;
    let namespace = if rule.namespace.is_empty() { "default" } else { &*rule.namespace };
    let event = CloudEvent {
        name: format!(
            "{}.{:x}.{}",
            shorten(&rule.name, MAX_NAME),
            now.as_microsecond(),
            reason.to_lowercase()
        ),
        namespace,
        regarding: json!({
            "apiVersion": format!("{}/{}", resource.group, resource.version), "kind": resource.kind,
            "namespace": &*rule.namespace, "name": &*rule.name, "uid": &*rule.uid,
        }),
        action: "RollOut",
        reason,
        note,
        is_warning,
    };
    event.at(now)
}
