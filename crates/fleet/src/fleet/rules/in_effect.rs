//! Counts the nodes on which the objects of a rule are in effect. Works in steps: a rule may select
//! a thousand objects on each of ten thousand nodes.

use std::collections::VecDeque;
use std::sync::Arc;

use super::Rules;
use crate::fleet::reconciler::Reconciler;
use crate::reasons::PlacementReason;
use crate::source::key_of;
use edgesync_object::NodeName;
use edgesync_protocol::change::Uid;

/// A count in progress.
#[derive(Debug)]
pub(super) struct Count {
    /// UID of the rule.
    pub(super) rule: Uid,
    /// Keys of its objects and their versions.
    objects: Vec<(u64, u64)>,
    /// Nodes left to visit.
    nodes: VecDeque<NodeName>,
    /// Number of nodes that have reported whether one of the objects is in effect.
    reporting: u64,
    /// Number of those on which all reported objects are in effect.
    in_effect: u64,
}

impl Count {
    /// Returns reason and message of the condition `InEffect`.
    pub(super) fn condition(&self) -> (PlacementReason, String) {
        let Self { reporting, in_effect, .. } = self;
        let reason = match reporting {
            0 => PlacementReason::NoReport,
            _ if reporting == in_effect => PlacementReason::InEffect,
            _ => PlacementReason::NotInEffect,
        };
        let message = format!(
            "{in_effect} of {reporting} nodes with file rules for its objects have the newest versions in effect"
        );
        (reason, message)
    }

    /// Counts a node, if it has reported the effect of one of the objects.
    fn add(&mut self, reconciler: &Reconciler, name: &NodeName) {
        let Some(node) = reconciler.nodes.named(name) else { return };
        reconciler.work.objects(self.objects.len() / OBJECTS_A_UNIT + 1);
        let effects =
            self.objects.iter().filter_map(|(uid, version)| node.reported.effects.has(*uid, *version));
        let (mut reports, mut all) = (false, true);
        for is_in_effect in effects {
            reports = true;
            all &= is_in_effect;
        }
        // Reports to another replica, or to an earlier run of this one, are summarized in its Node,
        // for all of its objects.
        reports |= node.replicas.in_effect().is_some();
        all &= node.replicas.is_all_in_effect();
        self.reporting += u64::from(reports);
        self.in_effect += u64::from(reports && all);
    }
}

impl Rules {
    /// Begins or continues the count for a rule within the budget of one turn. Returns it when it
    /// is complete.
    pub(super) fn count_in_effect(&mut self, reconciler: &Reconciler) -> Option<Count> {
        let mut count = match self.counting.take() {
            Some(count) => count,
            None => {
                let rule = self.due.pop_front()?;
                self.begin_count(reconciler, rule)
            }
        };
        let end = reconciler.work.part();
        while let Some(name) = count.nodes.pop_front() {
            count.add(reconciler, &name);
            if reconciler.work.has_reached(end) {
                break;
            }
        }
        if count.nodes.is_empty() {
            return Some(count);
        }
        self.counting = Some(count);
        None
    }

    fn begin_count(&self, reconciler: &Reconciler, rule: Uid) -> Count {
        let placement = &reconciler.desired.placement;
        let id = self.known.get(&rule).and_then(|known| known.id);
        let reports = |name: &&NodeName| {
            let node = reconciler.nodes.named(name);
            node.is_some_and(|node| {
                node.reported.effects.counts().objects() > 0 || node.replicas.in_effect().is_some()
            })
        };
        let nodes: VecDeque<NodeName> =
            id.into_iter().flat_map(|id| placement.nodes_of(id)).filter(reports).cloned().collect();
        let objects = id.filter(|_| !nodes.is_empty()).map(|id| placement.objects_of(id));
        let keys =
            |object: Arc<edgesync_placement::Placed>| (key_of(&object.uid), key_of(object.version.as_str()));
        let objects: Vec<(u64, u64)> = objects.into_iter().flatten().map(keys).collect();
        reconciler.work.objects(objects.len());
        Count { rule, objects, nodes, reporting: 0, in_effect: 0 }
    }
}

/// Number of objects of a node looked up per unit of work.
const OBJECTS_A_UNIT: usize = 32;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rule_is_in_effect_once_it_is_on_all_reporting_nodes() {
        let count = |in_effect, reporting| {
            let (objects, nodes) = (Vec::new(), VecDeque::new());
            let (reason, message) =
                Count { rule: "u".into(), objects, nodes, reporting, in_effect }.condition();
            assert!(message.starts_with(&format!("{in_effect} of {reporting} nodes")), "{message}");
            reason
        };
        assert_eq!(count(0, 0), PlacementReason::NoReport);
        assert_eq!(count(0, 1), PlacementReason::NotInEffect);
        assert_eq!(count(1, 2), PlacementReason::NotInEffect);
        assert_eq!(count(2, 2), PlacementReason::InEffect);
    }
}
