//! Handles requests of operators, and builds the views for pages and metrics.

use edgesync_admin::cloud::NodeInfo;

use super::Fleet;
use super::explain::explain;
use super::overview::{Overview, Traffic};
use super::queries::{Queries, Query, View};
use super::rollouts::Rollouts;
use super::search::{self, Gathered};
use crate::admin::AdminRequest;
use crate::metrics::CloudNumbers;
use crate::source::{Replication, Source};

/// Results gathered over several turns of the loop.
#[derive(Debug)]
pub(super) struct Views {
    pub(super) queries: Queries,
    pub(super) overview: Overview,
    pub(super) rollouts: Rollouts,
}

impl<S: Source> Fleet<S> {
    /// Continues the queries over all nodes within the budget of one turn. Returns whether work is
    /// left.
    pub(super) fn gather(&mut self) -> bool {
        let Self { views, reconciler, removals, counts, bodies, requests, .. } = self;
        let complete = |numbers: &mut CloudNumbers| {
            numbers.objects = reconciler.desired.placement.len() as u64;
            numbers.bodies = bodies.numbers();
            numbers.cluster = requests.replication().map(Replication::numbers);
            numbers.nodes.waiting = reconciler.ledgers.waiting() as u64;
            counts.add_to(numbers);
        };
        views.queries.gather(&View { reconciler, removals, counts, complete: &complete })
    }

    /// Continues the overview or the tracked roll-outs. Returns whether work is left.
    pub(super) fn update_views(&mut self) -> bool {
        let traffic = Traffic { sent: self.sender.written(), received: self.counts.received };
        let Views { overview, rollouts, .. } = &mut self.views;
        overview.sum_up(&mut self.reconciler, &self.removals, traffic)
            || rollouts.count(&self.reconciler, &self.rules)
    }

    pub(super) fn administer(&mut self, request: AdminRequest) {
        // The requester may have disconnected.
        match request {
            AdminRequest::Nodes(answer) => {
                self.views.queries.ask(Query::Nodes { answer, items: Vec::new(), at: None });
            }
            AdminRequest::Node(name, answer) => {
                let nodes = &self.reconciler.nodes;
                let shown = nodes.named(&name).map(|node| {
                    let desired = self.reconciler.desired_on(&name);
                    let is_registered = nodes.is_registered(&name);
                    let mut shown = node.show_all(&nodes.lifecycle, is_registered, &desired);
                    shown.labels = nodes.labels(&name).cloned();
                    NodeInfo::Served(shown)
                });
                let _ = answer.send(shown.or_else(|| self.removals.show_one(&name)));
            }
            AdminRequest::Explain(name, object, answer) => {
                let parts = (&self.reconciler, &self.rules, &self.removals);
                let is_revoked = self.enrollment.is_revoked(&name);
                let _ = answer.send(explain(parts, &name, is_revoked, object.as_deref()));
            }
            AdminRequest::Remove(name, answer) => self.remove_on_request(&name, answer),
            AdminRequest::Admit(name, answer) => self.admit_on_request(&name, answer),
            AdminRequest::ConfirmDeletions(name, answer) => {
                let _ = answer.send(self.confirm_deletions(&name));
            }
            AdminRequest::Past(name, answer) => {
                let node = self.reconciler.nodes.named(&name);
                let minute = self.views.overview.minute();
                let _ = answer.send(node.map(|node| node.shown.past.show(minute)));
            }
            AdminRequest::Objects(name, filter, answer) => {
                let _ = answer.send(search::objects_on(&self.reconciler, &name, &filter));
            }
            AdminRequest::Rollout(of, answer) => self.views.rollouts.ask(self.reconciler.now(), of, answer),
            AdminRequest::Rules(answer) => {
                let placement = &self.reconciler.desired.placement;
                let _ = answer.send(self.views.rollouts.show_rules(placement, &self.rules));
            }
            AdminRequest::Find(filter, answer) => {
                self.views.queries.ask(Query::Find { answer, filter, found: Vec::new(), from: 0 });
            }
            AdminRequest::Labels(key, answer) => {
                self.views.queries.ask(Query::Labels {
                    answer,
                    key,
                    gathered: Gathered::default(),
                    at: None,
                });
            }
            AdminRequest::Numbers(answer) => {
                self.views.queries.ask(Query::Numbers { answer, numbers: Box::default(), at: None });
            }
        }
    }
}
