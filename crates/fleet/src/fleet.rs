//! The fleet's control loop, sole owner of the nodes' machines and of the placement. Events of
//! nodes, changes of the source and requests of operators go into the machines; their effects come
//! out.
//!
//! # Layout
//! Each part owns its state and returns the effects it wants:
//! - `reconciler`: the machines with the objects that they reconcile with; `nodes`, `broadcasts`,
//!   `ledger_loader`, `timeline` and `settings` are parts of it;
//! - `assignments` with `rollout_loop`: revisions of rules with a roll-out, and what moves them;
//! - `bodies`, `patches`, `sender` with `send_queue`: downstream, to nodes; `ingest`: upstream,
//!   from nodes;
//! - `rules`, `removals`, `replicas`, `requests`, `writes`, `numbers`;
//! - `views` with `queries`, `overview`, `rollouts`, `search`, `explain`: for operators and pages.
//!
//! [`Fleet`] composes them: `events`, `changes`, `effects` and `departures` hold its methods,
//! grouped by their cause.

mod absences;
pub(crate) mod assignments;
mod bodies;
mod broadcasts;
mod changes;
mod cloud_events;
mod departures;
mod effects;
mod events;
mod explain;
mod ingest;
mod interner;
mod interrupted;
mod ledger_loader;
mod node;
mod nodes;
mod numbers;
mod overview;
mod patches;
mod queries;
mod reconciler;
mod removals;
mod replicas;
mod requests;
mod rollout_loop;
mod rollouts;
mod rules;
mod search;
mod send_queue;
mod sender;
mod settings;
mod timeline;
mod views;
mod writes;

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use tokio::sync::mpsc;
use tokio::time::Instant;

use crate::config::Config;
use edgesync_broker::{Downlink, FleetEvent, FleetEvents};
use edgesync_enrollment::EnrollmentService;
use edgesync_object::NodeName;
use edgesync_object::time::rounded;
use edgesync_placement::Placement;
use edgesync_protocol::change::Uid;
use edgesync_protocol::timing::{Now, earlier};
use edgesync_runtime::Service;
use edgesync_runtime::systemd::{self, Request, Signals, Watchdog};

use super::admin::AdminRequest;
use super::lifecycle::NodeLifecycle;
use super::metrics::CloudNumbers;
use super::source::{Change, NodeFacts, RemovalCause, Replication, Result, RuleKey, Source};
use super::summary::Board;
use bodies::Bodies;
use changes::Feed;
use ingest::Intake;
use interrupted::Interrupted;
use nodes::{NodeId, Nodes};
use numbers::Counts;
use overview::{Overview, Traffic};
use patches::Patches;
use queries::{Queries, View};
use reconciler::Reconciler;
use removals::Removals;
use replicas::Replicas;
use requests::{Requests, Response};
use rollout_loop::RolloutLoop;
use rollouts::Rollouts;
use rules::Rules;
use sender::Sender;
use settings::Settings;
use timeline::Timeline;
use views::{AdminState, Command, Views};
use writes::EventExpiry;

/// Maximum number of events handled before the machines get their turn.
const BURST: usize = 64;

/// Control loop with all its parts; see the module.
pub struct Fleet<S: Source> {
    requests: Requests<S>,
    feed: Feed<S::Changes>,
    reconciler: Reconciler,
    sender: Sender,
    bodies: Bodies,
    patches: Patches,
    interrupted: Interrupted,
    rules: Rules,
    rollout_loop: RolloutLoop,
    removals: Removals,
    intake: Intake,
    expiry: EventExpiry,
    replicas: Replicas,
    views: Views,
    counts: Counts,
    enrollment: EnrollmentService,
}

impl<S: Source> Fleet<S> {
    /// Lists the source, then the stored nodes. Returns when the placement index is complete.
    ///
    /// # Errors
    /// Returns those of the source.
    pub async fn start(
        config: &Config,
        source: S,
        downlink: Downlink,
        enrollment: EnrollmentService,
    ) -> Result<Self> {
        let changes = source.follow();
        let mut known = source.registered().await?;
        // A Lease without a Node belongs to no node.
        let orphans: HashSet<NodeName> = known.orphans.drain(..).collect();
        known.leases.retain(|lease| !orphans.contains(&lease.node));
        let is_shared = source.replication().is_some();
        let mut lifecycle = match is_shared {
            true => NodeLifecycle::of_replica(Now::ZERO, Timestamp::now(), config.nodes.lease_flush),
            false => NodeLifecycle::new(Now::ZERO, Timestamp::now(), &known, config.nodes.lease_flush),
        };
        lifecycle.set_max_absence(config.nodes.max_absence);
        let mut fleet = Self {
            reconciler: Reconciler::new(
                Nodes::new(lifecycle, known.nodes),
                Placement::new(config.placement.rules.iter().map(|rule| rule.rule.clone()).collect())
                    .with_reserved(config.reserved_namespaces())
                    .with_naming(config.naming()),
                Timeline::new(source.incarnation(), source.issued()),
                Settings::new(config),
                is_shared,
            ),
            requests: Requests::new(source),
            feed: Feed::new(changes),
            sender: Sender::new(downlink),
            bodies: Bodies::new(config.sync.bodies),
            patches: Patches::new(config.sync.patches),
            interrupted: Interrupted::default(),
            rules: Rules::default(),
            rollout_loop: RolloutLoop::default(),
            removals: Removals::new(known.removed, known.removing),
            intake: Intake::default(),
            expiry: EventExpiry::new(config.nodes.event_ttl),
            replicas: Replicas::default(),
            views: Views {
                queries: Queries::default(),
                overview: Overview::new(Board::new(String::new())),
                rollouts: Rollouts::new(config.placement.rules.len()),
            },
            counts: Counts::default(),
            enrollment,
        };
        fleet.govern_configured(config).await?;
        fleet.read_all().await?;
        fleet.load_rollouts().await;
        fleet.load_nodes(&orphans).await?;
        fleet.resume_removals();
        fleet.sender.announce();
        Ok(fleet)
    }

    /// Adds the nodes that have reported before, and removes those whose Node was deleted since.
    async fn load_nodes(&mut self, orphans: &HashSet<NodeName>) -> Result<()> {
        let mut effects = self.requests.source().effects_by_node().await?;
        for (name, facts) in self.requests.source().nodes().await? {
            if orphans.contains(&name) {
                tracing::warn!(
                    node = name.as_str(),
                    "Node was deleted while the cloud side was down, removing the node"
                );
                self.dismiss(&name, RemovalCause::NodeDeleted(None), None);
            } else {
                self.add_node(&name, Some(facts));
                if let Some((node, effects)) =
                    self.reconciler.nodes.named_mut(&name).zip(effects.remove(&name))
                {
                    node.reported.effects = effects;
                }
            }
        }
        Ok(())
    }

    /// Reads the initial list. Nodes are not served until it is complete: an object not listed yet
    /// must not look like a deleted one.
    async fn read_all(&mut self) -> Result<()> {
        let watchdog = Watchdog::start();
        let (mut claiming, mut complete) = (0, false);
        loop {
            watchdog.turned();
            let change = self.feed.next().await;
            if let Change::Listed(objects) = &change {
                claiming += objects.iter().filter(|object| self.reconciler.claims_more(object)).count();
            }
            match change {
                Change::Failed(error) if !error.is_retryable() => return Err(error),
                change => {
                    complete |= matches!(change, Change::Complete);
                    self.changed(change);
                }
            }
            while self.deliver_changes() {}
            if complete && self.rules.are_complete() {
                break;
            }
        }
        let (objects, nodes) = (self.reconciler.desired.placement.len(), self.reconciler.nodes.names().len());
        let took = rounded(self.reconciler.now());
        tracing::info!(objects, nodes, %took, "placement index ready, serving nodes");
        if claiming > 0 {
            tracing::warn!(
                nodes = claiming,
                "placement ignores labels that nodes set on themselves; hint: set them with 'edgesync-cloud token create \
                 --label KEY=VALUE' or 'kubectl label', or add their keys to nodes.trusted_labels"
            );
        }
        Ok(())
    }

    /// Returns the id of this start of the cloud.
    pub fn boot(&self) -> &str {
        self.sender.boot()
    }

    /// Publishes the overview of all nodes on this board.
    pub fn show_on(&mut self, board: Arc<Board>) {
        self.views.overview = Overview::new(board);
    }

    /// Runs until the process is asked to stop.
    pub async fn run(
        &mut self,
        service: &mut Service<Config>,
        signals: &mut Signals,
        mut events: FleetEvents,
        mut admin: mpsc::Receiver<AdminRequest>,
    ) {
        let watchdog = Watchdog::start();
        loop {
            watchdog.turned();
            let wake = self.begin_turn();
            tokio::select! {
                request = signals.next() => match request {
                    Request::Stop => break,
                    Request::Reload => self.reload(service),
                },
                event = events.recv() => {
                    let Some(event) = event else { break };
                    self.hear(event, &mut events);
                }
                change = self.feed.next(), if self.reconciler.broadcasts.is_delivered() => self.changed(change),
                Some(answer) = self.requests.next() => self.handle_responses(answer),
                moved = self.sender.moved(), if self.reconciler.nodes.is_settled() => {
                    self.reconciler.nodes.links_moved(&moved);
                }
                Some(request) = admin.recv(), if self.views.queries.is_empty() => self.administer(request),
                nodes = self.enrollment.nodes_to_disconnect() => {
                    nodes.iter().for_each(|name| self.cut(name));
                }
                () = tokio::time::sleep_until(wake) => self.tick(),
            }
        }
    }

    /// Writes the last Leases before the process ends.
    pub async fn finish(&mut self) {
        writes::finish(&mut self.reconciler, &mut self.requests, &mut self.counts).await;
    }

    /// Does the work that needs no waiting, within the budget of one turn. Returns when the next
    /// turn is due.
    fn begin_turn(&mut self) -> Instant {
        self.follow_incarnation();
        let undelivered = self.deliver_changes();
        let unanswered = self.run_queries();
        self.check_rules();
        let uncounted = self.update_views();
        let unmoved = self.move_rollouts();
        let more = self.drain() || undelivered || unanswered || uncounted || unmoved || self.rules.has_due();
        self.read_ledgers();
        writes::begin(&mut self.reconciler, &self.requests, &mut self.expiry);
        self.emit_missed();
        self.retry_removals();
        self.replicas.write_differences(&mut self.reconciler, &self.requests);
        let idle = Instant::now() + if more { Duration::ZERO } else { Duration::from_secs(1) };
        let Reconciler { nodes, ledgers, .. } = &self.reconciler;
        let next = earlier(nodes.deadline(), nodes.lifecycle.deadline());
        let next = earlier(next, earlier(ledgers.deadline(), self.replicas.deadline()));
        let Views { overview, rollouts, .. } = &self.views;
        let next = earlier(next, earlier(Some(overview.deadline()), rollouts.deadline()));
        next.map_or(idle, |at| self.reconciler.instant(at).min(idle))
    }

    /// Continues the queries over all nodes within the budget of one turn. Returns whether work is
    /// left.
    fn run_queries(&mut self) -> bool {
        let Self { views, reconciler, removals, counts, bodies, patches, requests, rollout_loop, .. } = self;
        let complete = |numbers: &mut CloudNumbers| {
            numbers.objects = reconciler.desired.placement.len() as u64;
            numbers.bodies = bodies.numbers();
            numbers.rollouts = rollout_loop.numbers(&reconciler.desired.rollouts);
            numbers.patches = patches.numbers();
            numbers.cluster = requests.replication().map(Replication::numbers);
            numbers.nodes.waiting = reconciler.ledgers.waiting() as u64;
            counts.add_to(numbers);
        };
        views.queries.gather(&View { reconciler, removals, counts, complete: &complete })
    }

    /// Continues the overview or the tracked roll-outs. Returns whether work is left.
    fn update_views(&mut self) -> bool {
        let traffic = Traffic { sent: self.sender.written(), received: self.counts.received };
        self.views.update(&mut self.reconciler, (&self.removals, &self.rules), traffic)
    }

    fn administer(&mut self, request: AdminRequest) {
        let Self { views, reconciler, rules, removals, enrollment, .. } = self;
        let is_revoked = |name: &NodeName| enrollment.is_revoked(name);
        let state = AdminState { reconciler, rules, removals, is_revoked: &is_revoked };
        match views.answer(&state, request) {
            None => {}
            Some(Command::Remove(name, answer)) => self.remove_on_request(&name, answer),
            Some(Command::Admit(name, answer)) => self.admit_on_request(&name, answer),
            Some(Command::ShowRollout(rule, answer)) => self.show_rollout(&rule, answer),
            Some(Command::MoveRollout(rule, command, answer)) => self.command_rollout(&rule, command, answer),
            Some(Command::ConfirmDeletions(name, answer)) => {
                let confirmed = replicas::confirm_deletions(&mut self.reconciler, &self.requests, &name);
                // The requester may have disconnected.
                let _ = answer.send(confirmed);
            }
        }
    }

    /// Handles an event, and those already queued behind it.
    fn hear(&mut self, event: FleetEvent, events: &mut FleetEvents) {
        let next = |fleet: &mut Self| {
            events.came_to(std::mem::take(&mut fleet.counts.decoded));
            events.try_recv()
        };
        self.burst(event, next, Self::event);
        events.came_to(std::mem::take(&mut self.counts.decoded));
    }

    /// Handles an answer, and those already queued behind it.
    fn handle_responses(&mut self, answer: Response) {
        self.burst(answer, |fleet| fleet.requests.try_next(), Self::handle_response);
    }

    /// Handles the first item and those queued behind it, within the budget of one turn.
    fn burst<T>(&mut self, first: T, mut next: impl FnMut(&mut Self) -> Option<T>, take: fn(&mut Self, T)) {
        let end = self.reconciler.work.part();
        take(self, first);
        for _ in 1..BURST {
            if self.reconciler.work.has_reached(end) {
                return;
            }
            let Some(item) = next(self) else { return };
            take(self, item);
        }
    }

    fn reload(&mut self, service: &mut Service<Config>) {
        systemd::reloading();
        // The service logs errors of a new configuration.
        let _ = service.reload();
        self.configure(service.config());
        systemd::ready("reloaded");
    }

    fn configure(&mut self, config: &Config) {
        self.bodies.set_limit(config.sync.bodies);
        self.patches.set_limit(config.sync.patches);
        self.expiry.ttl = config.nodes.event_ttl;
        self.enrollment.reconfigure(config.enrollment.certificate_lifetime, config.enrollment.renewal_grace);
        let now = self.reconciler.now();
        let Reconciler { nodes, broadcasts, settings, .. } = &mut self.reconciler;
        settings.reload(config);
        nodes.lifecycle.set_flush(now, config.nodes.lease_flush);
        nodes.lifecycle.set_max_absence(config.nodes.max_absence);
        broadcasts.reloaded();
    }

    fn tick(&mut self) {
        let (now, end) = (self.reconciler.now(), self.reconciler.work.part());
        while !self.reconciler.work.has_reached(end)
            && let Some(id) = self.reconciler.nodes.next_due(now)
        {
            self.reconciler.work.node();
            self.sender.report_progress(&mut self.reconciler, id);
            self.reconciler.with_machine(id, |machine, desired| machine.tick(now, desired));
        }
    }

    /// Adds a node that may never have reported. Returns `None` if it was removed or the limit of
    /// nodes is reached.
    fn meet(&mut self, name: &NodeName) -> Option<NodeId> {
        self.add_node(name, None)
    }

    fn add_node(&mut self, name: &NodeName, facts: Option<NodeFacts>) -> Option<NodeId> {
        if self.removals.has(name) { None } else { self.reconciler.meet(name, facts) }
    }

    /// Checks the next rule, and writes its status if it has changed.
    fn check_rules(&mut self) {
        let Self { requests, rules, reconciler, rollout_loop, .. } = self;
        let rollouts = &reconciler.desired.rollouts;
        let rollout = |rule: &Uid| match rollouts.index(&RuleKey::Object(rule.clone())) {
            Some(index) => rollout_loop.conditions(rollouts, index),
            None => Some(Vec::new()),
        };
        let source = requests.source();
        let status = rules.check_next(reconciler, rollout, |rule, kinds| source.rule_problems(rule, kinds));
        if let Some(status) = status {
            self.requests.ask(|source| async move {
                Response::RuleStatusWritten(source.set_rule_status(status).await)
            });
        }
    }
}

#[cfg(test)]
mod simulation;
#[cfg(test)]
mod tests;
