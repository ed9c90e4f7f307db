//! Queries of operators and Prometheus over all nodes. Each turn of the loop visits a part of the
//! nodes. An answer is exact per node, but not a snapshot of one moment.

use std::collections::VecDeque;
use std::sync::Arc;

use edgesync_admin::cloud::{LabelAnswer, NodeInfo, NodeList, ObjectList};
use jiff::Timestamp;
use tokio::sync::oneshot;

use super::node::Node;
use super::numbers::Counts;
use super::reconciler::Reconciler;
use super::removals::Removals;
use super::search::{self, Gathered};
use crate::metrics::CloudNumbers;
use crate::summary::ObjectFilter;
use edgesync_object::NodeName;
use edgesync_placement::Placed;

/// A query with its partial answer and the node visited last.
#[derive(Debug)]
pub(super) enum Query {
    Nodes {
        answer: oneshot::Sender<NodeList>,
        items: Vec<(NodeName, NodeInfo)>,
        at: Option<NodeName>,
    },
    /// The second part of [`Query::Nodes`]: the removed nodes.
    Removed {
        answer: oneshot::Sender<NodeList>,
        items: Vec<(NodeName, NodeInfo)>,
        at: Option<NodeName>,
    },
    /// Objects by name, from an index on.
    Find {
        answer: oneshot::Sender<ObjectList>,
        filter: ObjectFilter,
        found: Vec<Arc<Placed>>,
        from: u32,
    },
    /// Labels of all nodes, or the values of one key.
    Labels {
        answer: oneshot::Sender<LabelAnswer>,
        key: Option<String>,
        gathered: Gathered,
        at: Option<NodeName>,
    },
    Numbers {
        answer: oneshot::Sender<Box<CloudNumbers>>,
        numbers: Box<CloudNumbers>,
        at: Option<NodeName>,
    },
}

/// Unanswered queries, in order.
#[derive(Debug, Default)]
pub(super) struct Queries(VecDeque<Query>);

/// The state that queries read.
pub(super) struct View<'a> {
    pub(super) reconciler: &'a Reconciler,
    pub(super) removals: &'a Removals,
    pub(super) counts: &'a Counts,
    /// Adds the numbers that belong to no single node.
    pub(super) complete: &'a dyn Fn(&mut CloudNumbers),
}

impl Queries {
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(super) fn ask(&mut self, query: Query) {
        self.0.push_back(query);
    }

    /// Continues the queries within the budget of one turn. Returns whether work is left.
    pub(super) fn gather(&mut self, view: &View<'_>) -> bool {
        let work = &view.reconciler.work;
        let end = work.part();
        while let Some(query) = self.0.pop_front() {
            if let Some(query) = view.answer(query) {
                self.0.push_front(query);
            }
            if work.has_reached(end) {
                return !self.is_empty();
            }
        }
        false
    }
}

impl View<'_> {
    /// Visits the next node. After the last one, answers the query, or continues it with the
    /// removed nodes.
    fn answer(&self, query: Query) -> Option<Query> {
        let (nodes, work) = (&self.reconciler.nodes, &self.reconciler.work);
        // The requester may have disconnected.
        match query {
            Query::Nodes { answer, mut items, at } => {
                let Some(node) = nodes.next(at.as_ref()) else {
                    return Some(Query::Removed { answer, items, at: None });
                };
                work.frame(0);
                let mut shown = node.show(&nodes.lifecycle, nodes.is_registered(&node.name));
                shown.labels = nodes.labels(&node.name).cloned();
                items.push((node.name.clone(), NodeInfo::Served(shown)));
                Some(Query::Nodes { answer, items, at: Some(node.name.clone()) })
            }
            Query::Removed { answer, mut items, at } => {
                if let Some((name, removed)) = self.removals.next(at.as_ref()) {
                    work.frame(0);
                    items.push((name.clone(), removed));
                    return Some(Query::Removed { answer, items, at: Some(name.clone()) });
                }
                items.sort_by(|(one, _), (other, _)| one.cmp(other));
                let bad_frames =
                    self.counts.bad_frames.iter().map(|(what, count)| ((*what).to_owned(), *count));
                let shown = NodeList {
                    incarnation: self.reconciler.timeline.incarnation().to_string(),
                    bad_frames: Some(bad_frames.collect()),
                    frames_of_removed_nodes: Some(self.removals.dropped_frames()),
                    items: items.into_iter().map(|(_, node)| node).collect(),
                };
                let _ = answer.send(shown);
                None
            }
            Query::Find { answer, filter, mut found, from } => {
                if let Some(from) = search::find_some(self.reconciler, &filter, from, &mut found) {
                    return Some(Query::Find { answer, filter, found, from });
                }
                let _ = answer.send(search::show_found(found));
                None
            }
            Query::Labels { answer, key, mut gathered, at } => {
                let Some(Node { name, .. }) = nodes.next(at.as_ref()) else {
                    let _ = answer.send(gathered.show(key));
                    return None;
                };
                work.node();
                gathered.add(nodes, name, key.as_deref());
                Some(Query::Labels { answer, key, gathered, at: Some(name.clone()) })
            }
            Query::Numbers { answer, mut numbers, at } => {
                let Some(node) = nodes.next(at.as_ref()) else {
                    (self.complete)(&mut numbers);
                    let _ = answer.send(numbers);
                    return None;
                };
                work.change();
                let shown = node.numbers(self.reconciler.now(), Timestamp::now(), &nodes.lifecycle);
                numbers.nodes.add(&shown);
                if self.reconciler.settings.metrics_per_node {
                    numbers.each.push(shown);
                }
                Some(Query::Numbers { answer, numbers, at: Some(node.name.clone()) })
            }
        }
    }
}
