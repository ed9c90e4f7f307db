//! Why an object is on a node, or is not, as operators are told.

use serde_json::{Value, json};

use super::Fleet;
use crate::source::Source;
use edgesync_placement::{RuleId, Summary};
use edgesync_protocol::cloud::{CloudPhase, DesiredState};

impl<S: Source> Fleet<S> {
    /// What the rules say of a node and an object, and what has come of it. None if the node is not known.
    pub(super) fn explain(&self, name: &str, object: Option<&Summary>) -> Option<Value> {
        if self.removals.has(name) {
            let why = "the node was removed from the fleet";
            return Some(
                json!({ "node": name, "rules": [], "object": object.map(|_| json!({ "wanted": false, "state": why })) }),
            );
        }
        let node = self.nodes.get(name)?;
        let verdicts = self.placement.verdicts(name, object);
        let rules: Vec<Value> = verdicts
            .iter()
            .map(|verdict| {
                json!({
                    "rule": self.rule_name(verdict.rule),
                    "selectsNode": verdict.node.is_none(),
                    "nodeMismatch": verdict.node,
                    "selectsObject": object.is_some().then_some(verdict.object.is_none()),
                    "objectMismatch": verdict.object,
                })
            })
            .collect();
        let mut shown = json!({ "node": name, "labels": self.labels.get(name), "rules": rules });
        let Some(object) = object else { return Some(shown) };
        let selecting = verdicts.iter().filter(|verdict| verdict.node.is_none() && verdict.object.is_none());
        let mut because: Vec<String> = selecting.map(|verdict| self.rule_name(verdict.rule)).collect();
        because.extend(self.placement.other_reasons(name, object));

        let wishes = self.replicas.desired(self.placement.on(name), &self.work);
        let machine = &node.machine;
        let wanted = wishes.get(&object.uid).is_some();
        let held = machine.recorded_version(&object.uid, &wishes);
        let refusal = machine.refused().find(|(uid, _)| **uid == object.uid).map(|(_, refusal)| refusal);
        let is_held_back = machine.held(&wishes).any(|(uid, _)| *uid == object.uid);
        let newest = held.as_ref() == Some(&object.version);
        let state = match (wanted, machine.phase()) {
            _ if self.pairing.is_revoked(name) => "the node is revoked: nothing is sent to it".to_owned(),
            (true, _) if newest => "the node holds the newest version".to_owned(),
            (true, _) if let Some(refusal) = refusal => {
                format!("the node rejects it, {:?}: {}", refusal.reason, refusal.message)
            }
            (true, CloudPhase::Offline) => {
                "the node is not connected: it is sent when the node comes back".to_owned()
            }
            (true, _) => "it is on its way, or waits for its turn".to_owned(),
            (false, _) if is_held_back => {
                "its removal is held back until 'edgesync-cloud confirm-deletions' is said".to_owned()
            }
            (false, _) if held.is_some() => "the node holds it, and is to remove it".to_owned(),
            (false, _) => "nothing places it on the node".to_owned(),
        };
        shown["object"] = json!({
            "uid": &*object.uid,
            "version": object.version,
            "labels": object.labels,
            "wanted": wanted,
            "because": because,
            "held": held,
            "state": state,
        });
        Some(shown)
    }

    /// A rule as operators know it.
    fn rule_name(&self, id: RuleId) -> String {
        self.rules
            .name(id)
            .unwrap_or_else(|| format!("[[placement]] {} of the configuration", id.number() + 1))
    }
}
