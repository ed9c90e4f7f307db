//! What operators and Prometheus ask about all nodes: gathered from some of them in each turn of the loop. An answer is
//! exact for each node, though not of the same moment for all of them.

use std::collections::VecDeque;
use std::ops::Bound;
use std::sync::Arc;

use jiff::Timestamp;
use serde_json::Value;
use tokio::sync::oneshot;

use super::Fleet;
use super::looking::Gathered;
use crate::metrics::CloudNumbers;
use crate::source::Source;
use crate::summary::Wanted;
use edgesync_admin::cloud::{NodeInfo, NodeList};
use edgesync_placement::Placed;

/// What was asked, with the answer as far as it is known, and the node that was looked at last.
#[derive(Debug)]
pub(super) enum Asked {
    Nodes {
        answer: oneshot::Sender<NodeList>,
        items: Vec<(String, NodeInfo)>,
        at: Option<String>,
    },
    /// The same, after the nodes those that were removed.
    Removed {
        answer: oneshot::Sender<NodeList>,
        items: Vec<(String, NodeInfo)>,
        at: Option<String>,
    },
    /// Objects by name, from the one of this number on.
    Find {
        answer: oneshot::Sender<Value>,
        wanted: Wanted,
        found: Vec<Arc<Placed>>,
        from: u32,
    },
    /// The labels of all nodes, or one of them.
    Labels {
        answer: oneshot::Sender<Value>,
        key: Option<String>,
        gathered: Gathered,
        at: Option<String>,
    },
    Numbers {
        answer: oneshot::Sender<Box<CloudNumbers>>,
        numbers: Box<CloudNumbers>,
        at: Option<String>,
    },
}

/// Those that are not answered.
pub(super) type Questions = VecDeque<Asked>;

pub(super) fn after(at: Option<&str>) -> (Bound<&str>, Bound<&str>) {
    (at.map_or(Bound::Unbounded, Bound::Excluded), Bound::Unbounded)
}

impl<S: Source> Fleet<S> {
    /// Goes on with what is asked about all nodes, as far as one turn may. Tells whether something is left.
    pub(super) fn gather(&mut self) -> bool {
        let end = self.work.part();
        while let Some(asked) = self.questions.pop_front() {
            if let Some(asked) = self.gather_on(asked) {
                self.questions.push_front(asked);
            }
            if self.work.has_reached(end) {
                return !self.questions.is_empty();
            }
        }
        false
    }

    /// Looks at the next node. Without one the question is answered, unless removed nodes are asked for too.
    fn gather_on(&self, asked: Asked) -> Option<Asked> {
        // Those who asked may have gone.
        match asked {
            Asked::Nodes { answer, mut items, at } => {
                let Some((name, node)) = self.nodes.range::<str, _>(after(at.as_deref())).next() else {
                    return Some(Asked::Removed { answer, items, at: None });
                };
                self.work.frame(0);
                let mut shown = node.show(name, &self.lifecycle, self.registered.contains(name));
                shown.labels = self.labels.get(name).cloned();
                items.push((name.clone(), NodeInfo::Served(shown)));
                Some(Asked::Nodes { answer, items, at: Some(name.clone()) })
            }
            Asked::Removed { answer, mut items, at } => {
                if let Some((name, removed)) = self.removals.next(at.as_deref()) {
                    self.work.frame(0);
                    items.push((name.to_owned(), removed));
                    return Some(Asked::Removed { answer, items, at: Some(name.to_owned()) });
                }
                items.sort_by(|(one, _), (other, _)| one.cmp(other));
                let bad_frames = self.bad_frames.iter().map(|(what, count)| ((*what).to_owned(), *count));
                let shown = NodeList {
                    incarnation: self.incarnation.to_string(),
                    bad_frames: Some(bad_frames.collect()),
                    frames_of_removed_nodes: Some(self.removals.dropped_frames()),
                    items: items.into_iter().map(|(_, node)| node).collect(),
                };
                let _ = answer.send(shown);
                None
            }
            Asked::Find { answer, wanted, mut found, from } => {
                if let Some(from) = self.find_some(&wanted, from, &mut found) {
                    return Some(Asked::Find { answer, wanted, found, from });
                }
                let _ = answer.send(Self::show_found(found));
                None
            }
            Asked::Labels { answer, key, mut gathered, at } => {
                let Some((name, _)) = self.nodes.range::<str, _>(after(at.as_deref())).next() else {
                    let _ = answer.send(gathered.show(key.as_deref()));
                    return None;
                };
                self.gather_labels(name, key.as_deref(), &mut gathered);
                Some(Asked::Labels { answer, key, gathered, at: Some(name.clone()) })
            }
            Asked::Numbers { answer, mut numbers, at } => {
                let Some((name, node)) = self.nodes.range::<str, _>(after(at.as_deref())).next() else {
                    self.complete(&mut numbers);
                    let _ = answer.send(numbers);
                    return None;
                };
                self.work.change();
                let node = node.numbers(name, self.now(), Timestamp::now(), &self.lifecycle);
                numbers.nodes.add(&node);
                if self.metrics_per_node {
                    numbers.each.push(node);
                }
                Some(Asked::Numbers { answer, numbers, at: Some(name.clone()) })
            }
        }
    }
}
