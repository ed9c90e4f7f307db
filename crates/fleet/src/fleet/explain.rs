//! Explains to operators why an object is on a node or is not.

use edgesync_admin::cloud::{ObjectFacts, ObjectVerdict, PlacementExplanation, RuleVerdict};

use super::assignments::{GoverningRule, RuleIndex};
use super::reconciler::Reconciler;
use super::removals::Removals;
use super::rules::Rules;
use edgesync_object::{NodeName, ObjectRef};
use edgesync_placement::{Placement, Summary};
use edgesync_protocol::cloud::{CloudPhase, DesiredState};

/// Returns the verdicts of the rules on a node and an object, and the resulting state. `None` if
/// the node is unknown.
pub(super) fn explain(
    (reconciler, rules, removals): (&Reconciler, &Rules, &Removals),
    name: &NodeName,
    is_revoked: bool,
    object: Option<&Summary>,
) -> Option<PlacementExplanation> {
    if removals.has(name) {
        let why = "node was removed from the fleet";
        let verdict = |_| ObjectVerdict { desired: false, state: why.to_owned(), facts: None };
        let object = object.map(verdict);
        return Some(PlacementExplanation {
            node: name.to_string(),
            labels: None,
            rules: Vec::new(),
            object,
        });
    }
    let (nodes, placement) = (&reconciler.nodes, &reconciler.desired.placement);
    let node = nodes.named(name)?;
    let verdicts = placement.verdicts(name, object);
    let shown_rules = verdicts.iter().map(|verdict| RuleVerdict {
        rule: rules.name(verdict.rule),
        selects_node: verdict.node.is_none(),
        node_mismatch: verdict.node.clone(),
        selects_object: object.is_some().then_some(verdict.object.is_none()),
        object_mismatch: verdict.object.clone(),
    });
    let mut shown = PlacementExplanation {
        node: name.to_string(),
        labels: nodes.labels(name).cloned(),
        rules: shown_rules.collect(),
        object: None,
    };
    let Some(object) = object else { return Some(shown) };
    let selecting = verdicts.iter().filter(|verdict| verdict.node.is_none() && verdict.object.is_none());
    let mut because: Vec<String> = selecting.map(|verdict| rules.name(verdict.rule)).collect();
    because.extend(placement.other_reasons(name, object));

    let wishes = reconciler.desired_on(name);
    let machine = &node.machine;
    let desired = wishes.get(&object.uid).is_some();
    let held = machine.recorded_version(&object.uid, &wishes);
    let refusal = machine.refused().find(|(uid, _)| **uid == object.uid).map(|(_, refusal)| refusal);
    let is_held_back = machine.held(&wishes).any(|(uid, _)| *uid == object.uid);
    let wanted = wishes.get(&object.uid).map(|desired| desired.version);
    let is_newest = held.as_ref() == Some(&object.version);
    let is_held = held.is_some() && held == wanted;
    let revision = wishes.revision(&object.uid);
    if let Some((revision, version)) = revision.zip(wanted.as_ref()) {
        let mut rules = reconciler.desired.rollouts.rules();
        let of_rule = |(_, rule): &(RuleIndex, &GoverningRule)| rule.key == revision.key.rule;
        let number = revision.key.number;
        because.extend(rules.find(of_rule).map(|(_, rule)| {
            let waves = &rule.rollout.waves;
            let wave = match waves.wave_of(name, nodes.assigned_labels(name)) {
                Some(wave) => format!("wave {} of {}", wave + 1, waves.count()),
                None => "a node that no wave selects".to_owned(),
            };
            format!(
                "revision {number} of the roll-out of {}, for {wave}, has version {version}",
                rule.shown_name()
            )
        }));
    }
    let state = match (desired, machine.phase()) {
        _ if is_revoked => "node revoked; nothing is sent".to_owned(),
        (true, _) if is_held && revision.is_some() => "held at the version of its revision".to_owned(),
        (true, _) if is_newest && revision.is_none() => "held at the newest version".to_owned(),
        // All roles get the same answer, and a message may quote the object.
        (true, _) if let Some(refusal) = refusal => match Placement::is_secret(&object.resource) {
            true => format!("rejected by the node, {:?}", refusal.reason),
            false => format!("rejected by the node, {:?}: {}", refusal.reason, refusal.message),
        },
        (true, CloudPhase::Offline) => "node offline; sent when it reconnects".to_owned(),
        (true, _) => "in flight or queued".to_owned(),
        (false, _) if is_held_back => {
            format!("removal held back; hint: 'edgesync-cloud confirm-deletions {name}'")
        }
        (false, _) if held.is_some() && wishes.is_unread(&object_ref(object)) => {
            "held; kept because its revision or selector cannot be read".to_owned()
        }
        (false, _) if held.is_some() => "held; removal pending".to_owned(),
        (false, _) if reconciler.desired.rollouts.of(name).is_some() && !because.is_empty() => {
            "the revision of a roll-out that the node has does not contain it".to_owned()
        }
        (false, _) if placement.ignores_name(name, object) => {
            "object names the node, but kubernetes.labelled, annotated and pods do not permit it".to_owned()
        }
        (false, _) => "no rule, label or reference places it on the node".to_owned(),
    };
    let facts = ObjectFacts {
        uid: object.uid.to_string(),
        version: object.version.to_string(),
        labels: object.labels.clone(),
        because,
        held: held.map(|version| version.to_string()),
    };
    shown.object = Some(ObjectVerdict { desired, state, facts: Some(facts) });
    Some(shown)
}

fn object_ref(object: &Summary) -> ObjectRef {
    ObjectRef {
        api_version: object.resource.api_version().into(),
        kind: object.resource.kind.as_str().into(),
        namespace: object.namespace.clone(),
        name: object.name.clone(),
    }
}
