//! The fleet: the only owner of the nodes' machines and of the placement. One loop: what comes from nodes,
//! source and operators goes into the machines, their effects come out.

pub mod asked;
mod bodies;
mod effects;
mod explain;
mod line;
mod looking;
mod news;
mod numbers;
mod opening;
mod placing;
mod removal;
mod replicas;
mod rollouts;
mod rules;
mod summing;
mod upstream;

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use tokio::sync::mpsc;
use tokio::time::Instant;

use crate::config::Config;
use edgesync_admin::cloud::NodeInfo;
use edgesync_broker::{Channel, Downlink, FleetEvent, FleetEvents};
use edgesync_object::{Budget, LeftOut};
use edgesync_placement::Placement;
use edgesync_protocol::change::Uid;
use edgesync_protocol::cloud::{CloudConfig, CloudMachine, Issued, Loaded, Record, Records, Witnesses};
use edgesync_protocol::frame::{FrameError, MAX_WORD, Up, other_protocol};
use edgesync_protocol::timing::{Now, earlier};
use edgesync_runtime::Service;
use edgesync_runtime::random;
use edgesync_runtime::systemd::{self, Request, Signals, Watchdog};
use edgesync_transport::link::presence::{CloudPresence, Presence};

use super::admin::AdminRequest;
use super::lifecycle::NodeLifecycle;
use super::node::{DesiredOn, Node};
use super::source::{Change, Changes, MAX_BODIES, NodeFacts, Result, Source};
use super::summary::Board;
use super::work::Work;
use asked::{Asked, Questions};
use bodies::Bodies;
use edgesync_enrollment::Pairing;
use line::Line;
use looking::Gathered;
use news::News;
use numbers::Counts;
use opening::Openings;
use removal::Removals;
use replicas::Replicas;
use rollouts::Rollouts;
use rules::Rules;
use summing::Summing;
use upstream::{Events, Intake, Stored};

/// Answers of the source, and links that have room again, that wait for the loop.
const INBOX: usize = 4096;
/// Events that are handled before the machines get their turn, at most.
const BURST: usize = 64;
/// Machines that get their turn before the loop looks for events again, at most.
const TURNS: usize = 256;
/// Nodes that are known by name; more are refused.
const MAX_NODES: usize = 100_000;

/// What tasks report to the loop.
enum Inbox {
    /// The records of a node, of which so many differences were expected.
    Opened(String, usize, Result<Vec<(Uid, Record)>>),
    Bodies(Vec<Uid>, Result<Vec<Loaded>>),
    Recorded(String, u64, Result<Vec<(Uid, String)>>),
    Room(String),
    Incarnation(Result<Arc<str>>),
    Taken(String, u64, Option<Stored>),
    LeasesWritten(Result<u64>),
    NodesChanged(Result<()>),
    EventsExpired(Result<u64>),
    RuleStatusWritten(Result<()>),
    Confirmed(String, Result<()>),
    Removed(String, Result<bool>),
    Admitted(String, Result<bool>),
}

/// See the module.
pub struct Fleet<S: Source> {
    source: S,
    changes: S::Changes,
    /// While all is told once more: the UIDs of the objects and the names of the Nodes that were.
    told: Option<HashSet<Arc<str>>>,
    downlink: Downlink,
    bodies: Bodies,
    line: Line,
    placement: Placement,
    rules: Rules,
    news: News,
    work: Work,
    nodes: BTreeMap<String, Node>,
    /// The labels of all Nodes, as far as they are believed.
    labels: HashMap<String, edgesync_object::Labels>,
    /// `nodes.trusted_labels`.
    trusted_labels: Vec<String>,
    deadlines: BTreeSet<(Duration, String)>,
    /// Nodes whose machine may have something to do, in their order.
    touched: VecDeque<String>,
    /// Nodes whose links have taken something.
    moved: VecDeque<String>,
    /// Bytes of frames that were written so far.
    written: u64,
    /// Bytes of frames, decoded, that were read of the event of now.
    decoded: usize,
    config: Arc<CloudConfig>,
    left_out: LeftOut,
    compress_above: usize,
    max_frame: usize,
    incarnation: Arc<str>,
    renewing: bool,
    witnesses: Witnesses,
    issued: Arc<Issued>,
    boot: String,
    origin: Instant,
    inbox: mpsc::Sender<Inbox>,
    arrived: mpsc::Receiver<Inbox>,
    bad_frames: BTreeMap<&'static str, u64>,
    metrics_per_node: bool,
    counts: Counts,
    lifecycle: NodeLifecycle,
    /// Nodes that have reported themselves.
    registered: HashSet<String>,
    intake: Intake,
    removals: Removals,
    openings: Openings,
    events: Events,
    pairing: Pairing,
    questions: Questions,
    replicas: Replicas,
    summing: Summing,
    rollouts: Rollouts,
}

fn cloud_config(config: &Config) -> CloudConfig {
    CloudConfig {
        window_objects: config.sync.window_objects,
        window_bytes: config.sync.window_bytes,
        frame_objects: config.sync.frame_objects.min(MAX_BODIES),
        max_frame: u32::try_from(config.link.max_frame).unwrap_or(u32::MAX),
        resend_min: config.sync.resend_min,
        resend_max: config.sync.resend_max,
        reject_retry_min: config.sync.resend_max,
        reject_retry_max: config.sync.resend_max * 12,
        answer_timeout: config.sync.resend_min * 2,
        mass_delete_share: config.sync.mass_delete_share,
        mass_delete_min: config.sync.mass_delete_min as u64,
        max_unknown: config.sync.max_unknown,
    }
}

/// What of objects does not travel.
fn left_out(config: &Config) -> LeftOut {
    LeftOut { managed_fields: config.sync.strip_managed_fields, last_applied: config.sync.strip_last_applied }
}

impl<S: Source> Fleet<S> {
    /// Reads what is to be where.
    ///
    /// # Errors
    /// The source's.
    pub async fn start(config: &Config, source: S, downlink: Downlink, pairing: Pairing) -> Result<Self> {
        let changes = source.follow();
        let mut known = source.registered().await?;
        // A Lease without a Node is nobody's.
        let orphans: HashSet<String> = known.orphans.drain(..).collect();
        known.leases.retain(|lease| !orphans.contains(&lease.node));
        let (inbox, arrived) = mpsc::channel(INBOX);
        let mut fleet = Self {
            incarnation: source.incarnation(),
            issued: source.issued(),
            source,
            changes,
            told: None,
            downlink,
            bodies: Bodies::new(config.sync.bodies),
            line: Line::default(),
            placement: Placement::new(config.placement.rules.clone()),
            rules: Rules::default(),
            news: News::default(),
            work: Work::default(),
            nodes: BTreeMap::new(),
            labels: HashMap::new(),
            trusted_labels: config.nodes.trusted_labels.clone(),
            deadlines: BTreeSet::new(),
            touched: VecDeque::new(),
            moved: VecDeque::new(),
            written: 0,
            decoded: 0,
            config: Arc::new(cloud_config(config)),
            left_out: left_out(config),
            compress_above: config.sync.compress_above.unwrap_or(usize::MAX),
            max_frame: config.link.max_frame,
            renewing: false,
            witnesses: Witnesses::default(),
            boot: format!("{:016x}", random()),
            origin: Instant::now(),
            inbox,
            arrived,
            bad_frames: BTreeMap::new(),
            metrics_per_node: config.nodes.metrics_per_node,
            counts: Counts::default(),
            lifecycle: match S::IS_SHARED {
                true => NodeLifecycle::of_replica(Now::ZERO, Timestamp::now(), config.nodes.lease_flush),
                false => NodeLifecycle::new(Now::ZERO, Timestamp::now(), &known, config.nodes.lease_flush),
            },
            registered: known.nodes.into_iter().collect(),
            intake: Intake::default(),
            removals: Removals::new(known.removed),
            openings: Openings::default(),
            events: Events::new(config.nodes.event_ttl),
            pairing,
            questions: Questions::new(),
            replicas: Replicas::default(),
            summing: Summing::new(Board::new(String::new())),
            rollouts: Rollouts::new(config.placement.rules.len()),
        };
        fleet.read_all().await?;
        let mut standings = fleet.source.standings().await?;
        for (name, facts) in fleet.source.nodes().await? {
            if orphans.contains(&name) {
                tracing::warn!(node = name, "its Node was deleted before the last end: it is removed");
                fleet.dismiss(&name, None);
            } else {
                fleet.meet_known(&name, Some(facts));
                if let Some((node, standing)) = fleet.nodes.get_mut(&name).zip(standings.remove(&name)) {
                    node.standing = standing;
                }
            }
        }
        fleet.announce();
        Ok(fleet)
    }

    /// Takes in all that there is. Nodes wait so long: what is not known yet must not look like what is no more.
    async fn read_all(&mut self) -> Result<()> {
        let watchdog = Watchdog::start();
        let (mut claiming, mut complete) = (0, false);
        loop {
            watchdog.turned();
            let change = self.changes.next().await;
            if let Change::Listed(objects) = &change {
                claiming += objects.iter().filter(|object| self.claims_more(object)).count();
            }
            match change {
                // A cluster comes back; nobody else repairs a database.
                Change::Failed(error) if !S::IS_SHARED => return Err(error),
                change => {
                    complete |= matches!(change, Change::Complete);
                    self.changed(change);
                }
            }
            while self.spread_news() {}
            if complete && self.rules.are_complete() {
                break;
            }
        }
        let (objects, nodes) = (self.placement.len(), self.labels.len());
        tracing::info!(objects, nodes, took = ?self.now(), "what is to be where is known: nodes are served");
        if claiming > 0 {
            tracing::warn!(
                nodes = claiming,
                "labels that nodes give themselves would place other objects on them, and do not count: give them with a \
                 token or 'kubectl label', or name their keys in nodes.trusted_labels"
            );
        }
        Ok(())
    }

    /// Names this start of the cloud.
    pub fn boot(&self) -> &str {
        &self.boot
    }

    fn now(&self) -> Now {
        self.origin.elapsed()
    }

    fn announce(&self) {
        self.downlink.set_cloud(CloudPresence { boot: self.boot.clone(), online: true }.to_json());
    }

    /// Runs until the process is told to stop.
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
                change = self.changes.next(), if self.news.is_told() => self.changed(change),
                Some(answer) = self.arrived.recv() => self.take_answers(answer),
                moved = self.downlink.moved(), if self.moved.is_empty() => self.moved.extend(moved),
                Some(request) = admin.recv(), if self.questions.is_empty() => self.administer(request),
                nodes = self.pairing.nodes_to_cut() => nodes.iter().for_each(|name| self.cut(name)),
                () = tokio::time::sleep_until(wake) => self.tick(),
            }
        }
    }

    /// Does what can be done without waiting, as far as one turn may. Tells when the next turn is due.
    fn begin_turn(&mut self) -> Instant {
        self.follow_incarnation();
        let untold = self.spread_news();
        let unanswered = self.gather();
        self.look_at_rules();
        let uncounted = self.sum_up() || self.count_rollouts();
        let more = self.drain() || untold || unanswered || uncounted || self.has_rules_due();
        self.read_next();
        self.write_due();
        let idle = Instant::now() + if more { Duration::ZERO } else { Duration::from_secs(1) };
        let next = earlier(self.deadlines.first().map(|(at, _)| *at), self.lifecycle.deadline());
        let next = earlier(next, earlier(self.reading_deadline(), self.differences_deadline()));
        let next = earlier(next, earlier(Some(self.summing.deadline()), self.rollouts_deadline()));
        next.map_or(idle, |at| (self.origin + at).min(idle))
    }

    /// Takes an event, and those that came with it.
    fn hear(&mut self, event: FleetEvent, events: &mut FleetEvents) {
        let next = |fleet: &mut Self| {
            events.came_to(std::mem::take(&mut fleet.decoded));
            events.try_recv()
        };
        self.burst(event, next, Self::event);
        events.came_to(std::mem::take(&mut self.decoded));
    }

    /// Takes an answer, and those that came with it.
    fn take_answers(&mut self, answer: Inbox) {
        self.burst(answer, |fleet| fleet.arrived.try_recv().ok(), Self::answered);
    }

    /// Takes what has come, and what came with it, as far as one turn may.
    fn burst<T>(&mut self, first: T, mut next: impl FnMut(&mut Self) -> Option<T>, take: fn(&mut Self, T)) {
        let end = self.work.part();
        take(self, first);
        for _ in 1..BURST {
            if self.work.has_reached(end) {
                return;
            }
            let Some(item) = next(self) else { return };
            take(self, item);
        }
    }

    fn reload(&mut self, service: &mut Service<Config>) {
        systemd::reloading();
        // What is wrong with a new configuration is in the log.
        let _ = service.reload();
        self.configure(service.config());
        systemd::ready("reloaded");
    }

    fn configure(&mut self, config: &Config) {
        self.config = Arc::new(cloud_config(config));
        self.left_out = left_out(config);
        self.bodies.set_limit(config.sync.bodies);
        self.compress_above = config.sync.compress_above.unwrap_or(usize::MAX);
        self.metrics_per_node = config.nodes.metrics_per_node;
        self.lifecycle.set_flush(self.origin.elapsed(), config.nodes.lease_flush);
        self.events.ttl = config.nodes.event_ttl;
        self.pairing.reconfigure(config.pairing.certificate_lifetime, config.pairing.renewal_grace);
        self.news.reloaded();
    }

    fn tick(&mut self) {
        let (now, end) = (self.now(), self.work.part());
        while let Some((at, name)) = self.deadlines.first().cloned() {
            if at > now || self.work.has_reached(end) {
                return;
            }
            self.work.node();
            self.deadlines.pop_first();
            if let Some(node) = self.nodes.get_mut(&name) {
                node.deadline = None;
            }
            self.tell_progress(&name);
            self.with_machine(&name, |machine, desired| machine.tick(now, desired));
        }
    }

    // --- nodes

    /// Does something with the machine of a node, which then gets its turn.
    fn with_machine<T>(
        &mut self,
        name: &str,
        act: impl FnOnce(&mut CloudMachine, &DesiredOn<'_>) -> T,
    ) -> Option<T> {
        self.inform(name);
        let node = self.nodes.get_mut(name)?;
        let result = act(&mut node.machine, &self.replicas.desired(self.placement.on(name), &self.work));
        self.touch(name);
        Some(result)
    }

    fn touch(&mut self, name: &str) {
        if let Some(node) = self.nodes.get_mut(name)
            && !std::mem::replace(&mut node.touched, true)
        {
            self.touched.push_back(name.to_owned());
        }
    }

    /// Makes a node known that may never have reported.
    fn meet(&mut self, name: &str) {
        self.meet_known(name, None);
    }

    fn meet_known(&mut self, name: &str, facts: Option<NodeFacts>) {
        self.inform(name);
        if self.nodes.contains_key(name) || self.nodes.len() >= MAX_NODES || self.removals.has(name) {
            return;
        }
        let labels = self.labels.get(name).cloned().unwrap_or_default();
        self.placement.meet_node(name, labels);
        let ledger = facts.as_ref().map(|facts| facts.ledger.clone()).unwrap_or_default();
        let records = if S::IS_SHARED { Records::Proven } else { Records::Stored(ledger) };
        let (config, issued) = (self.config.clone(), self.issued.clone());
        let mut machine = CloudMachine::new(config, self.incarnation.clone(), issued, records);
        machine.set_registered(self.registered.contains(name) && !self.lifecycle.wants_report(name));
        let mut node = Node::new(machine, self.news.count());
        node.desired = self.placement.count(name) as u64;
        self.work.objects(self.placement.on(name).direct_count());
        if let Some(facts) = facts {
            node.agent = facts.agent_version;
            node.last_report = Some(facts.last_seen);
        }
        self.nodes.insert(name.to_owned(), node);
    }

    fn event(&mut self, event: FleetEvent) {
        self.work.frame(0);
        match event {
            FleetEvent::Open { .. } => {
                if matches!(self.downlink, Downlink::External(_)) {
                    tracing::info!("connected to the broker");
                }
                // With an external broker: nodes that see a new boot id say Hello again.
                self.boot = format!("{:016x}", random());
                self.announce();
            }
            FleetEvent::Closed { cause, retry_in } => {
                tracing::warn!(%cause, ?retry_in, "no connection to the broker");
                self.news.closed();
                self.removals.disconnected();
            }
            FleetEvent::NodeConnected { node, connection, .. } => {
                if self.pairing.is_revoked(&node) {
                    return self.cut(&node);
                }
                if self.removals.connected(&node, Some(&connection.to_string())) {
                    return;
                }
                self.meet(&node);
                self.disconnected(&node);
                if let Some(node) = self.nodes.get_mut(&node) {
                    node.connection = Some(connection.to_string());
                }
            }
            FleetEvent::NodeDisconnected { node, connection, why } => {
                tracing::debug!(node, %why, "disconnected");
                if self.connection(&node) == Some(connection.to_string().as_str()) {
                    self.disconnected(&node);
                }
            }
            FleetEvent::Message { node, channel: Channel::Presence, payload } => {
                self.presence(&node, &payload);
            }
            FleetEvent::Message { node, channel: Channel::Up, payload } => self.frame(&node, &payload),
        }
    }

    /// The connection in use of a node, removed or not.
    fn connection(&self, name: &str) -> Option<&str> {
        let of_node = self.nodes.get(name).and_then(|node| node.connection.as_deref());
        of_node.or_else(|| self.removals.connection(name))
    }

    fn disconnected(&mut self, name: &str) {
        self.removals.connected(name, None);
        if let Some(node) = self.nodes.get_mut(name) {
            self.bodies.forget(name);
            node.connection = None;
            node.waiting = None;
            node.machine.disconnected();
            self.touch(name);
        }
        if S::IS_SHARED {
            self.gone_from_here(name);
        }
    }

    /// A node that was shut out loses its connection, also one that it has made while that was under way.
    fn cut(&mut self, name: &str) {
        if let Downlink::Embedded(broker) = &self.downlink {
            broker.disconnect(name);
        }
        self.disconnected(name);
    }

    /// With an external broker presence is all that tells of connections.
    fn presence(&mut self, name: &str, payload: &[u8]) {
        if matches!(self.downlink, Downlink::Embedded(_)) || self.is_shut_out(name) {
            return;
        }
        let Ok(presence) = serde_json::from_slice::<Presence>(payload) else {
            if self.may_log(name) {
                tracing::warn!(node = name, "a presence that cannot be read");
            }
            return;
        };
        if presence.online {
            if self.removals.connected(name, Some(&presence.connection)) {
                return;
            }
            self.meet(name);
            if let Some(node) = self.nodes.get_mut(name) {
                node.connection = Some(presence.connection);
            }
            return;
        }
        // The will of a connection that was replaced says nothing about the new one.
        if presence.connection.is_empty() || self.connection(name) == Some(&presence.connection) {
            if self.may_log(name) {
                tracing::info!(node = name, "disconnected");
            }
            self.disconnected(name);
        }
    }

    /// Whether what comes in a name does not count. An external broker may not know the newest revocation list, and cuts
    /// nobody who is connected.
    fn is_shut_out(&mut self, name: &str) -> bool {
        let is_revoked = self.pairing.is_revoked(name);
        if is_revoked {
            *self.bad_frames.entry("revoked").or_default() += 1;
        }
        is_revoked
    }

    fn frame(&mut self, name: &str, payload: &[u8]) {
        self.decoded = payload.len();
        self.summing.received += payload.len() as u64;
        if self.is_shut_out(name) {
            return;
        }
        let now = self.now();
        if self.nodes.get(name).is_some_and(|node| node.refused_until > now) {
            *self.bad_frames.entry("quota").or_default() += 1;
            return;
        }
        let mut budget = Budget::of(self.max_frame);
        let frame = Up::decode(payload, &mut budget);
        self.decoded = budget.spent().max(payload.len());
        let frame = match frame {
            Ok(Up::Hello(hello)) if hello.node != name => {
                *self.bad_frames.entry("node").or_default() += 1;
                if self.may_log(name) {
                    let claimed = hello.node.chars().take(64).collect::<String>();
                    tracing::warn!(node = name, claimed, "a Hello in another node's name");
                }
                return;
            }
            Ok(frame) => frame,
            Err(error) => return self.unreadable(name, payload.len(), error),
        };
        if self.removals.has(name) {
            return self.frame_of_removed(name, &frame);
        }
        self.work.frame(self.decoded);
        self.meet(name);
        let registered = self.registered.contains(name) && !self.lifecycle.wants_report(name);
        let Some(node) = self.nodes.get_mut(name) else { return };
        node.received += payload.len() as u64;
        match &frame {
            Up::Hello(hello) => {
                node.agent = Some(hello.agent.chars().take(64).collect());
                node.session = Some(hello.session.clone());
                node.machine.set_registered(registered);
            }
            Up::Report(_) => node.last_report = Some(Timestamp::now()),
            Up::Inventory(_) | Up::Lease(_) | Up::Upload(_) => {}
        }
        self.with_machine(name, |machine, desired| machine.received(now, frame, desired));
    }

    /// Whether what a node has said may cause another line in the log.
    pub(super) fn may_log(&self, name: &str) -> bool {
        self.nodes.get(name).is_none_or(|node| node.quiet.line().is_some())
    }

    /// A frame that is no frame, or one of another version.
    fn unreadable(&mut self, name: &str, bytes: usize, error: FrameError) {
        let count = self.bad_frames.entry(error.label()).or_default();
        *count += 1;
        if error.is_of_another_version() && *count > 1 {
            tracing::debug!(node = name, bytes, %error, "a frame of another version");
        } else if self.may_log(name) {
            tracing::warn!(node = name, bytes, %error, "a frame that cannot be read");
        }
        if let FrameError::Protocol { found, hello: Some(session) } = error {
            let session = session.chars().take(MAX_WORD).collect();
            self.request_hello(name, other_protocol(session, found));
        }
    }

    // --- operators

    fn administer(&mut self, request: AdminRequest) {
        // Those who asked may have gone.
        match request {
            AdminRequest::Nodes(answer) => {
                self.questions.push_back(Asked::Nodes { answer, items: Vec::new(), at: None });
            }
            AdminRequest::Node(name, answer) => {
                let desired = self.replicas.desired(self.placement.on(&name), &self.work);
                let is_registered = self.registered.contains(&name);
                let node = self.nodes.get(&name);
                let node = node.map(|node| node.show_all(&name, &self.lifecycle, is_registered, &desired));
                let node = node.map(|mut node| {
                    node.labels = self.labels.get(&name).cloned();
                    NodeInfo::Served(node)
                });
                let _ = answer.send(node.or_else(|| self.removals.show_one(&name)));
            }
            AdminRequest::Explain(name, object, answer) => {
                let _ = answer.send(self.explain(&name, object.as_deref()));
            }
            AdminRequest::Remove(name, answer) => self.remove_on_request(&name, answer),
            AdminRequest::Admit(name, answer) => self.admit_on_request(&name, answer),
            AdminRequest::ConfirmDeletions(name, answer) => {
                let _ = answer.send(self.confirm_deletions(&name));
            }
            AdminRequest::Past(name, answer) => {
                let node = self.nodes.get(&name);
                let _ = answer.send(node.map(|node| node.past.show(self.summing.minute)));
            }
            AdminRequest::Objects(name, wanted, answer) => {
                let _ = answer.send(self.objects_on(&name, &wanted));
            }
            AdminRequest::Rollout(of, answer) => self.ask_rollout(of, answer),
            AdminRequest::Rules(answer) => drop(answer.send(self.show_rules())),
            AdminRequest::Find(wanted, answer) => {
                self.questions.push_back(Asked::Find { answer, wanted, found: Vec::new(), from: 0 });
            }
            AdminRequest::Labels(key, answer) => {
                self.questions.push_back(Asked::Labels {
                    answer,
                    key,
                    gathered: Gathered::default(),
                    at: None,
                });
            }
            AdminRequest::Numbers(answer) => {
                self.questions.push_back(Asked::Numbers { answer, numbers: Box::default(), at: None });
            }
        }
    }
}

#[cfg(test)]
mod tests;
