//! Progress of a roll-out of an object's version or of a rule's selection: the nodes that hold it,
//! those that do not, and the reasons. Counted in steps, and repeated while clients ask for it.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use edgesync_admin::cloud::{
    Curve, PlacedObject, Rollout, RolloutTarget, RuleItem, RuleList, RuleName, RuleRollout,
    Straggler as NamedStraggler, SummaryState,
};
use jiff::Timestamp;

use super::assignments::GoverningRule;
use super::node::Node;
use super::overview::row_of;
use super::reconciler::Reconciler;
use super::rules::Rules;
use crate::source::{RuleKey, key_of};
use crate::summary::{RolloutAnswer, RolloutOf};
use edgesync_object::NodeName;
use edgesync_object::time::rfc3339;
use edgesync_placement::{Placed, Placement, RuleId, Summary};
use edgesync_protocol::change::Uid;
use edgesync_protocol::cloud::CloudPhase;
use edgesync_protocol::timing::Now;

/// Interval between two counts.
const COUNT_EVERY: Duration = Duration::from_secs(1);
/// Time for which counting continues after the last request, so that a returning client finds the
/// curve.
const KEPT: Duration = Duration::from_secs(600);
/// Maximum number of tracked roll-outs.
const MOST: usize = 32;
/// Maximum number of points of a curve.
const POINTS: usize = 720;
/// Maximum distance of two points of a curve, in milliseconds.
const POINT_EVERY: i64 = 10_000;
/// Maximum number of nodes named per reason.
const NAMED: usize = 50;
/// Number of nodes gathered per unit of work.
const NODES_A_UNIT: usize = 8;

/// Tracked roll-outs, and the count in progress; see the module.
#[derive(Debug, Default)]
pub(super) struct Rollouts {
    tracked: Vec<Tracked>,
    counting: Option<Counting>,
    /// Number of rules in the configuration.
    configured: usize,
}

impl Rollouts {
    pub(super) fn new(configured: usize) -> Self {
        Self { configured, ..Self::default() }
    }
}

#[derive(Debug)]
struct Tracked {
    of: RolloutOf,
    asked: Now,
    counted: Option<Now>,
    /// Version at the last count, as text that differs after any change.
    version: String,
    /// Time of the change to this version, in milliseconds since 1970, if it was observed.
    since: Option<i64>,
    points: VecDeque<(i64, [usize; 3])>,
    shown: Option<Rollout>,
    waiting: Vec<RolloutAnswer>,
}

#[derive(Debug)]
struct Counting {
    of: RolloutOf,
    what: What,
    nodes: std::vec::IntoIter<NodeName>,
    desired: usize,
    holding: usize,
    in_effect: [usize; 2],
    behind: [(usize, Vec<NamedStraggler>); SummaryState::ALL.len()],
}

#[derive(Debug)]
enum What {
    Object(Arc<Placed>),
    Rule(RuleId, RuleName, String),
}

/// Reason why a node does not hold its desired version.
struct Straggler {
    why: SummaryState,
    held: Option<String>,
    object: Option<String>,
    message: Option<String>,
}

impl Straggler {
    fn new(why: SummaryState) -> Self {
        Self { why, held: None, object: None, message: None }
    }

    /// Returns `None` if the node holds the desired version.
    fn with_object(reconciler: &Reconciler, node: &Node, object: &Placed) -> Option<Self> {
        match node.machine.phase() {
            CloudPhase::Offline => Self::away(reconciler, node),
            CloudPhase::Replaying | CloudPhase::Repairing => Some(Self::new(SummaryState::Connecting)),
            CloudPhase::Live => {
                let Some(stands) = node.machine.stands_with(&object.uid) else {
                    return Some(Self::new(SummaryState::Connecting));
                };
                let other = stands.other?;
                let held = other.map(|record| record.version.to_string());
                let why = match stands.refusal {
                    Some(_) => SummaryState::Rejecting,
                    None if node.machine.waits_for_link(&object.uid) => SummaryState::Waiting,
                    None => SummaryState::Syncing,
                };
                // All roles get the same roll-out, and a message may quote the object.
                let refusal = stands.refusal.filter(|_| !Placement::is_secret(&object.resource));
                let message = refusal.map(|refusal| refusal.message.clone());
                Some(Self { why, held, object: None, message })
            }
        }
    }

    /// Returns `None` if the node holds all objects that the rule selects.
    fn with_rule(reconciler: &Reconciler, node: &Node, rule: RuleId) -> Option<Self> {
        let placement = &reconciler.desired.placement;
        match node.machine.phase() {
            CloudPhase::Offline => Self::away(reconciler, node),
            CloudPhase::Replaying | CloudPhase::Repairing => Some(Self::new(SummaryState::Connecting)),
            CloudPhase::Live => {
                reconciler.work.objects(node.machine.differences());
                let of_rule = |uid: &&Uid| placement.is_of_rule(uid, rule);
                let Some(uid) = node.machine.differing() else {
                    return Some(Self::new(SummaryState::Connecting));
                };
                let uid = uid.filter(of_rule).min_by_key(|uid| {
                    node.machine.stands_with(uid).is_none_or(|stands| stands.refusal.is_none())
                })?;
                let object = placement.object(uid);
                let mut straggler = match &object {
                    Some(object) => Self::with_object(reconciler, node, object)?,
                    None => Self::new(SummaryState::Syncing),
                };
                straggler.object = object.map(|object| object.object.key().to_string());
                Some(straggler)
            }
        }
    }

    /// Handles a node that is not connected here. Its state is known if another replica serves it
    /// and publishes it.
    fn away(reconciler: &Reconciler, node: &Node) -> Option<Self> {
        let state = row_of(node, &reconciler.nodes.lifecycle, reconciler.is_shared).state;
        (state != SummaryState::InSync).then(|| Self::new(state))
    }
}

impl Counting {
    /// Counts the next node.
    fn add(&mut self, reconciler: &Reconciler, name: &NodeName) {
        reconciler.work.node();
        let straggler = match reconciler.nodes.named(name) {
            None => Some(Straggler::new(SummaryState::Offline)),
            Some(node) => match &self.what {
                What::Object(object) => {
                    let version = key_of(object.version.as_str());
                    if let Some(is) = node.reported.effects.has(key_of(&object.uid), version) {
                        self.in_effect[usize::from(!is)] += 1;
                    }
                    Straggler::with_object(reconciler, node, object)
                }
                What::Rule(id, ..) => Straggler::with_rule(reconciler, node, *id),
            },
        };
        let Some(Straggler { why, held, object, message }) = straggler else {
            self.holding += 1;
            return;
        };
        let (count, named) = &mut self.behind[why as usize];
        *count += 1;
        if named.len() < NAMED {
            let since = reconciler.nodes.named(name).and_then(|node| node.shown.row).map(|row| row.since);
            let since = since.and_then(|second| Timestamp::from_second(second).ok()).map(rfc3339);
            let (node, why) = (name.to_string(), why.name().to_owned());
            named.push(NamedStraggler { node, why, since, held, object, message });
        }
    }
}

impl Rollouts {
    /// Tracks a roll-out, and answers at once if a recent count exists.
    pub(super) fn ask(&mut self, now: Now, of: RolloutOf, answer: RolloutAnswer) {
        let tracked = &mut self.tracked;
        let place = tracked.iter().position(|tracked| tracked.of == of).unwrap_or_else(|| {
            if tracked.len() >= MOST {
                let oldest = tracked.iter().enumerate().min_by_key(|(_, tracked)| tracked.asked);
                if let Some((oldest, _)) = oldest {
                    tracked.swap_remove(oldest);
                }
            }
            tracked.push(Tracked {
                of,
                asked: now,
                counted: None,
                version: String::new(),
                since: None,
                points: VecDeque::new(),
                shown: None,
                waiting: Vec::new(),
            });
            tracked.len() - 1
        });
        let Some(tracked) = tracked.get_mut(place) else { return };
        tracked.asked = now;
        match &tracked.shown {
            Some(shown) if tracked.counted.is_some_and(|at| now < at + COUNT_EVERY) => {
                // The client may have disconnected.
                let _ = answer.send(Some(shown.clone()));
            }
            _ => tracked.waiting.push(answer),
        }
    }

    /// Begins or continues a count within the budget of one turn. Returns whether work is left.
    pub(super) fn count(&mut self, reconciler: &Reconciler, rules: &Rules) -> bool {
        let mut counting = match self.counting.take() {
            Some(counting) => counting,
            None => match self.begin(reconciler, rules) {
                Some(counting) => counting,
                None => return false,
            },
        };
        let end = reconciler.work.part();
        while let Some(name) = counting.nodes.next() {
            counting.add(reconciler, &name);
            if reconciler.work.has_reached(end) {
                self.counting = Some(counting);
                return true;
            }
        }
        self.end(reconciler, counting);
        self.tracked.iter().any(|tracked| !tracked.waiting.is_empty())
    }

    /// Returns when the next count is due.
    pub(super) fn deadline(&self) -> Option<Now> {
        self.tracked.iter().map(|tracked| tracked.counted.map_or(Now::ZERO, |at| at + COUNT_EVERY)).min()
    }

    fn begin(&mut self, reconciler: &Reconciler, rules: &Rules) -> Option<Counting> {
        let (now, placement) = (reconciler.now(), &reconciler.desired.placement);
        self.tracked.retain(|tracked| now < tracked.asked + KEPT);
        let is_due = |tracked: &&mut Tracked| tracked.counted.is_none_or(|at| now >= at + COUNT_EVERY);
        let tracked = self.tracked.iter_mut().filter(is_due).min_by_key(|tracked| tracked.counted)?;
        tracked.counted = Some(now);
        let of = tracked.of.clone();
        let Some(what) = self.what_of(&of, reconciler, rules) else {
            let gone = self.tracked.iter().position(|tracked| tracked.of == of)?;
            // The requester may have disconnected.
            self.tracked.swap_remove(gone).waiting.into_iter().for_each(|answer| drop(answer.send(None)));
            return None;
        };
        let nodes: Vec<NodeName> = match &what {
            What::Object(object) => placement.nodes_with(&object.uid),
            What::Rule(id, ..) => placement.nodes_of(*id).cloned().collect(),
        };
        reconciler.work.objects(nodes.len() / NODES_A_UNIT);
        let desired = nodes.len();
        let behind = std::array::from_fn(|_| (0, Vec::new()));
        Some(Counting { of, what, nodes: nodes.into_iter(), desired, holding: 0, in_effect: [0, 0], behind })
    }

    fn what_of(&self, of: &RolloutOf, reconciler: &Reconciler, rules: &Rules) -> Option<What> {
        let placement = &reconciler.desired.placement;
        match of {
            RolloutOf::Object(uid) => placement.object(uid).map(What::Object),
            RolloutOf::Rule(uid) => {
                let (summary, id, _) = rules.one(uid)?;
                let shown = rule_name(summary, None);
                let generation = summary.rule.as_ref().map_or(0, |rule| rule.generation);
                Some(What::Rule(id?, shown, generation.to_string()))
            }
            RolloutOf::Configured(number) => {
                let id = placement.configured(*number).filter(|_| *number < self.configured)?;
                Some(What::Rule(id, configured(*number), String::new()))
            }
        }
    }

    fn end(&mut self, reconciler: &Reconciler, counting: Counting) {
        let selection = &reconciler.desired.placement;
        let Counting { of, what, desired, holding, in_effect, behind, .. } = counting;
        let Some(tracked) = self.tracked.iter_mut().find(|tracked| tracked.of == of) else { return };
        let now = Timestamp::now().as_millisecond();
        let (version, target) = match what {
            What::Object(object) => {
                let version = object.version.to_string();
                (version.clone(), RolloutTarget::Object { object: show_object(&object), version })
            }
            What::Rule(id, placement, version) => {
                let objects = selection.selected_by(id).0 as u64;
                (version, RolloutTarget::Placement { placement, objects })
            }
        };
        if tracked.version != version {
            tracked.since = (!tracked.version.is_empty()).then_some(now);
            tracked.version = version;
        }
        let away = behind[SummaryState::Offline as usize].0;
        let numbers = [holding, desired, away];
        if tracked.points.back().is_none_or(|(at, last)| *last != numbers || now - at >= POINT_EVERY) {
            if tracked.points.len() == POINTS {
                tracked.points.pop_front();
            }
            tracked.points.push_back((now, numbers));
        }
        let column = |which: usize| tracked.points.iter().map(|(_, all)| all[which]).collect::<Vec<_>>();
        let counts: Vec<usize> = behind.iter().map(|(count, _)| *count).collect();
        let curve = Curve {
            at: tracked.points.iter().map(|(at, _)| *at).collect(),
            holding: column(0),
            desired: column(1),
            offline: column(2),
        };
        // The most obstructive reasons come first.
        let order = [
            SummaryState::Rejecting,
            SummaryState::HeldBack,
            SummaryState::Syncing,
            SummaryState::Connecting,
            SummaryState::NotInEffect,
            SummaryState::Waiting,
            SummaryState::Overdue,
            SummaryState::Offline,
            SummaryState::Away,
        ];
        let mut behind = behind.map(|(_, named)| named);
        let stragglers = order.iter().flat_map(|state| std::mem::take(&mut behind[*state as usize]));
        let shown = Rollout {
            of: target,
            at: now,
            since: tracked.since,
            desired,
            holding,
            in_effect: in_effect[0],
            not_in_effect: in_effect[1],
            states: SummaryState::names(),
            behind: counts,
            curve,
            stragglers: stragglers.collect(),
        };
        // The requester may have disconnected.
        tracked.waiting.drain(..).for_each(|answer| drop(answer.send(Some(shown.clone()))));
        tracked.shown = Some(shown);
    }

    /// Returns all rules in force: the possible roll-outs.
    pub(super) fn show_rules(&self, reconciler: &Reconciler, rules: &Rules) -> RuleList {
        let (placement, rollouts) = (&reconciler.desired.placement, &reconciler.desired.rollouts);
        let mut items = Vec::new();
        let mut add =
            |rule: RuleName, (objects, nodes): (usize, usize), governing: Option<&GoverningRule>| {
                let (objects, nodes) = (objects as u64, nodes as u64);
                items.push(RuleItem { rule, objects, nodes, rollout: governing.map(rule_rollout) });
            };
        for number in 0..self.configured {
            if let Some(id) = placement.configured(number) {
                let mut governing = rollouts.rules().map(|(_, rule)| rule);
                let governing = governing.find(|rule| rule.ids().contains(&id));
                add(configured(number), placement.selected_by(id), governing);
            }
        }
        let mut known: Vec<_> = rules.uids().filter_map(|uid| rules.one(uid)).collect();
        known.sort_by_key(|(summary, ..)| (summary.namespace.clone(), summary.name.clone()));
        for (summary, id, _) in known {
            let selected = id.map_or((0, 0), |id| placement.selected_by(id));
            let index = rollouts.index(&RuleKey::Object(summary.uid.clone()));
            let governing = index.and_then(|index| rollouts.rule(index));
            add(rule_name(summary, Some(id.is_some())), selected, governing);
        }
        RuleList { items }
    }
}

/// Summarizes a roll-out for the list of rules.
fn rule_rollout(rule: &GoverningRule) -> RuleRollout {
    let (status, waves) = (&rule.status, rule.rollout.waves.count());
    RuleRollout {
        rule: rule.shown_name(),
        revision: status.top().map(|top| top.number),
        open: status.progressing().map_or(waves, |top| top.open),
        waves,
        paused: status.paused.as_ref().map(|pause| format!("{:?}", pause.reason)),
    }
}

/// Names a rule of the configuration by its number.
fn configured(number: usize) -> RuleName {
    RuleName {
        kind: "configuration".to_owned(),
        namespace: String::new(),
        name: (number + 1).to_string(),
        uid: None,
        in_force: Some(true),
    }
}

/// Names a rule that is an object.
fn rule_name(summary: &Summary, in_force: Option<bool>) -> RuleName {
    RuleName {
        kind: summary.resource.kind.clone(),
        namespace: summary.namespace.to_string(),
        name: summary.name.to_string(),
        uid: Some(summary.uid.to_string()),
        in_force,
    }
}

/// Returns the identity and size of an object.
pub(super) fn show_object(object: &Placed) -> PlacedObject {
    let Placed { uid, version, object, resource, size, .. } = object;
    PlacedObject {
        uid: uid.to_string(),
        resource_version: version.to_string(),
        api_version: object.api_version.to_string(),
        kind: object.kind.to_string(),
        plural: resource.plural.clone(),
        namespace: object.namespace.to_string(),
        name: object.name.to_string(),
        bytes: *size,
    }
}
