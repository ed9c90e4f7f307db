//! Views of the fleet for operators, pages and metrics, and the admin requests that read them.

use edgesync_admin::cloud::NodeInfo;
use tokio::sync::oneshot;

use super::explain::explain;
use super::overview::{Overview, Traffic};
use super::queries::{Queries, Query};
use super::reconciler::Reconciler;
use super::removals::Removals;
use super::rollouts::Rollouts;
use super::rules::Rules;
use super::search::{self, Gathered};
use crate::admin::{AdminRequest, Answer, RolloutStatusAnswer};
use edgesync_object::NodeName;

/// Results gathered over several turns of the loop.
#[derive(Debug)]
pub(super) struct Views {
    pub(super) queries: Queries,
    pub(super) overview: Overview,
    pub(super) rollouts: Rollouts,
}

/// The state that admin requests read.
pub(super) struct AdminState<'a> {
    pub(super) reconciler: &'a Reconciler,
    pub(super) rules: &'a Rules,
    pub(super) removals: &'a Removals,
    /// Returns whether a node is revoked.
    pub(super) is_revoked: &'a dyn Fn(&NodeName) -> bool,
}

/// An admin request that changes the fleet, or reads state that is not in [`AdminState`].
pub(super) enum Command {
    Remove(NodeName, Answer),
    Admit(NodeName, Answer),
    ConfirmDeletions(NodeName, oneshot::Sender<Option<u64>>),
    ShowRollout(String, RolloutStatusAnswer),
    MoveRollout(String, edgesync_rollout::Command, RolloutStatusAnswer),
}

impl Views {
    /// Updates the overview or the tracked roll-outs. Returns whether work is left.
    pub(super) fn update(
        &mut self,
        reconciler: &mut Reconciler,
        (removals, rules): (&Removals, &Rules),
        traffic: Traffic,
    ) -> bool {
        self.overview.run(reconciler, removals, traffic) || self.rollouts.count(reconciler, rules)
    }

    /// Answers a request, or begins to gather its answer. Returns the command of a request that
    /// changes the fleet.
    pub(super) fn answer(&mut self, state: &AdminState<'_>, request: AdminRequest) -> Option<Command> {
        let AdminState { reconciler, rules, removals, is_revoked } = state;
        // The requester may have disconnected.
        match request {
            AdminRequest::Remove(name, answer) => return Some(Command::Remove(name, answer)),
            AdminRequest::Admit(name, answer) => return Some(Command::Admit(name, answer)),
            AdminRequest::ConfirmDeletions(name, answer) => {
                return Some(Command::ConfirmDeletions(name, answer));
            }
            AdminRequest::ShowRollout(rule, answer) => return Some(Command::ShowRollout(rule, answer)),
            AdminRequest::MoveRollout(rule, command, answer) => {
                return Some(Command::MoveRollout(rule, command, answer));
            }
            AdminRequest::Nodes(answer) => {
                self.queries.ask(Query::Nodes { answer, items: Vec::new(), at: None });
            }
            AdminRequest::Node(name, answer) => {
                let nodes = &reconciler.nodes;
                let shown = nodes.named(&name).map(|node| {
                    let desired = reconciler.desired_on(&name);
                    let is_registered = nodes.is_registered(&name);
                    let mut shown = node.show_all(&nodes.lifecycle, is_registered, &desired);
                    shown.labels = nodes.labels(&name).cloned();
                    NodeInfo::Served(shown)
                });
                let _ = answer.send(shown.or_else(|| removals.show_one(&name)));
            }
            AdminRequest::Explain(name, object, answer) => {
                let parts = (*reconciler, *rules, *removals);
                let _ = answer.send(explain(parts, &name, is_revoked(&name), object.as_deref()));
            }
            AdminRequest::Past(name, answer) => {
                let node = reconciler.nodes.named(&name);
                let minute = self.overview.minute();
                let _ = answer.send(node.map(|node| node.shown.past.show(minute)));
            }
            AdminRequest::Objects(name, filter, answer) => {
                let _ = answer.send(search::objects_on(reconciler, &name, &filter));
            }
            AdminRequest::Rollout(of, answer) => self.rollouts.ask(reconciler.now(), of, answer),
            AdminRequest::Rules(answer) => {
                let _ = answer.send(self.rollouts.show_rules(reconciler, rules));
            }
            AdminRequest::Find(filter, answer) => {
                self.queries.ask(Query::Find { answer, filter, found: Vec::new(), from: 0 });
            }
            AdminRequest::Labels(key, answer) => {
                self.queries.ask(Query::Labels { answer, key, gathered: Gathered::default(), at: None });
            }
            AdminRequest::Numbers(answer) => {
                self.queries.ask(Query::Numbers { answer, numbers: Box::default(), at: None });
            }
        }
        None
    }
}
