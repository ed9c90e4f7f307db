//! Searches for pages: objects by name, the objects of a node, the labels of nodes. Each step
//! visits a bounded part.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use edgesync_admin::cloud::{
    LabelAnswer, LabelKey, LabelKeys, LabelValues, NodeObject, NodeObjects, ObjectList, Rejection,
};

use super::nodes::Nodes;
use super::reconciler::Reconciler;
use super::rollouts::show_object;
use crate::summary::ObjectFilter;
use edgesync_object::{NodeName, Resource};
use edgesync_placement::Placed;
use edgesync_protocol::cloud::{CloudPhase, DesiredState as _};

/// Maximum number of objects in an answer.
const MOST: usize = 200;
/// Number of objects visited per step.
const PART: u32 = 1024;
/// Number of visited objects per unit of work.
const OBJECTS_A_UNIT: usize = 8;
/// Maximum number of distinct keys of labels, and of values per key.
const MOST_VALUES: usize = 1000;

/// Labels of nodes gathered so far.
#[derive(Debug, Default)]
pub(crate) struct Gathered {
    /// By key: the number of nodes that have it, and its values.
    keys: BTreeMap<String, (usize, BTreeSet<String>)>,
    /// By value of the requested key: the nodes.
    nodes: BTreeMap<String, Vec<String>>,
}

impl Gathered {
    pub(super) fn show(self, key: Option<String>) -> LabelAnswer {
        match key {
            Some(key) => LabelAnswer::Values(LabelValues { key, values: self.nodes }),
            None => {
                let keys = self.keys.into_iter();
                let shown = keys.map(|(key, (nodes, values))| LabelKey { key, nodes, values: values.len() });
                LabelAnswer::Keys(LabelKeys { keys: shown.collect() })
            }
        }
    }

    /// Adds the labels of a node.
    pub(super) fn add(&mut self, nodes: &Nodes, name: &NodeName, key: Option<&str>) {
        let Some(labels) = nodes.labels(name) else { return };
        match key {
            Some(key) => {
                let Some(value) = labels.get(key) else { return };
                if self.nodes.len() < MOST_VALUES || self.nodes.contains_key(value) {
                    self.nodes.entry(value.clone()).or_default().push(name.to_string());
                }
            }
            None => {
                for (key, value) in labels {
                    if self.keys.len() >= MOST_VALUES && !self.keys.contains_key(key) {
                        continue;
                    }
                    let (nodes, values) = self.keys.entry(key.clone()).or_default();
                    *nodes += 1;
                    if values.len() < MOST_VALUES {
                        values.insert(value.clone());
                    }
                }
            }
        }
    }
}

/// Visits a part of the objects. Returns where to continue, if there are more and fewer than the
/// maximum were found.
pub(super) fn find_some(
    reconciler: &Reconciler,
    filter: &ObjectFilter,
    from: u32,
    found: &mut Vec<Arc<Placed>>,
) -> Option<u32> {
    reconciler.work.objects(PART as usize / OBJECTS_A_UNIT);
    let fits = |resource: &Resource, namespace: &str, name: &str| filter.fits(resource, namespace, name);
    let (more, next) = reconciler.desired.placement.find(from, PART, fits);
    found.extend(more);
    next.filter(|_| found.len() <= MOST)
}

/// Returns the found objects, up to the maximum.
pub(super) fn show_found(mut found: Vec<Arc<Placed>>) -> ObjectList {
    let more = found.len() > MOST;
    found.truncate(MOST);
    found.sort_by_key(|one| one.object.key());
    ObjectList { items: found.iter().map(|object| show_object(object)).collect(), more }
}

/// Returns the objects of a node, differing ones first; `None` if the node is unknown.
pub(super) fn objects_on(
    reconciler: &Reconciler,
    name: &NodeName,
    filter: &ObjectFilter,
) -> Option<NodeObjects> {
    let node = reconciler.nodes.named(name)?;
    let on_node = reconciler.desired.placement.on(name);
    let desired = reconciler.desired_on(name);
    let is_known = node.machine.phase() == CloudPhase::Live;
    let (mut items, mut more) = (Vec::new(), false);
    let fits = |object: &Placed| filter.fits(&object.resource, &object.object.namespace, &object.object.name);
    let mut add = |object: &Placed| {
        if items.len() >= MOST {
            more = true;
            return false;
        }
        let stands = is_known.then(|| node.machine.stands_with(&object.uid)).flatten();
        let held = stands.map(|stands| match stands.other {
            None => desired.get(&object.uid).map(|it| it.version.to_string()).unwrap_or_default(),
            Some(other) => other.map(|record| record.version.to_string()).unwrap_or_default(),
        });
        let refusal = stands.and_then(|stands| stands.refusal);
        let rejection = refusal.map(|refusal| Rejection {
            reason: format!("{:?}", refusal.reason),
            message: refusal.message.clone(),
        });
        items.push(NodeObject { object: show_object(object), held, rejection });
        true
    };
    let differing: BTreeSet<&str> =
        node.machine.differing().into_iter().flatten().take(MOST).map(|uid| &**uid).collect();
    for uid in &differing {
        reconciler.work.object();
        if let Some(object) = on_node.get(uid).filter(|object| fits(object)) {
            add(&object);
        }
    }
    for (uid, _) in on_node.iter() {
        reconciler.work.object();
        if differing.contains(uid) {
            continue;
        }
        if let Some(object) = on_node.get(uid).filter(|object| fits(object))
            && !add(&object)
        {
            break;
        }
    }
    Some(NodeObjects { items, more, known: is_known })
}
