//! Admin protocol of the fleet under `/edgesync/v1/`, and the metrics of the cloud side.

mod redaction;

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use serde_json::Value;
use tokio::sync::{mpsc, oneshot, watch};

pub(super) use super::answers::unknown;
use super::answers::{self, answer, node_name, parse_request};
use super::metrics::{self, CloudNumbers};
use super::page::{self, Page};
use super::summary::{Board, ObjectFilter, RolloutAnswer, RolloutOf};
use edgesync_admin::cloud::{
    AdmitRequest, Admitted, BrokerConfigRequest, BrokerFiles, Confirmed, LabelAnswer, NodeHistory, NodeInfo,
    NodeList, NodeObjects, ObjectList, ObjectNotInEffect, PageInvitation, PlacementExplanation, Removed,
    RevokedCertificates, RevokedPageKeys, RolloutAction, RolloutCommand, RolloutStatus, RuleList,
};
use edgesync_admin::{NodeAction, RolloutSubject, Route};
use edgesync_api::{Caller, Credential, Extension, ExtensionCall, MetricsWriter, PageFile, Prebuilt, Role};
use edgesync_broker::Downlink;
use edgesync_cloud_store::{CloudError, CloudStore};
use edgesync_enrollment::broker_config::{self, BrokerConfig, Flavor};
use edgesync_enrollment::{EnrollmentService, reserved_namespaces};
use edgesync_object::status::{Reason, Result};
use edgesync_object::time::rfc3339;
use edgesync_object::{NodeName, Object, Resource, Scope, Status};
use edgesync_placement::Summary;
use edgesync_protocol::change::Uid;
use edgesync_protocol::cloud::Record;
use edgesync_protocol::upload::EffectState;
use edgesync_rollout::Command;
use edgesync_rollout::status::PauseReason;
use edgesync_store::engine::wal_path;
use edgesync_transport::shared::SharedCounters;

/// Maximum wait of a metrics request for the fleet; shorter than Prometheus' timeout.
const METRICS_PATIENCE: Duration = Duration::from_secs(5);

/// Reason why no page exists for keys.
const NO_PAGE: &str = "no page without certificates is served: page.enabled or page.listen disables it, or its address was in use \
                       at the start";

/// A request to the fleet.
#[derive(Debug)]
pub enum AdminRequest {
    /// Lists all nodes, also those that were removed.
    Nodes(oneshot::Sender<NodeList>),
    /// Returns one node, with its rejected objects and held-back removals.
    Node(NodeName, oneshot::Sender<Option<NodeInfo>>),
    /// Confirms held-back removals of a node; returns their number.
    ConfirmDeletions(NodeName, oneshot::Sender<Option<u64>>),
    /// Explains why an object is on a node or is not.
    Explain(NodeName, Option<Box<Summary>>, oneshot::Sender<Option<PlacementExplanation>>),
    /// Removes a node from the fleet; returns whether it was not removed before.
    Remove(NodeName, Answer),
    /// Readmits a removed node; returns whether it was removed.
    Admit(NodeName, Answer),
    /// Returns the last hour of a node.
    Past(NodeName, oneshot::Sender<Option<NodeHistory>>),
    /// Returns the objects of a node.
    Objects(NodeName, ObjectFilter, oneshot::Sender<Option<NodeObjects>>),
    /// Returns the progress of a roll-out.
    Rollout(RolloutOf, RolloutAnswer),
    /// Returns the status of the roll-out of a rule, by `NAME` or `NAMESPACE/NAME`.
    ShowRollout(String, RolloutStatusAnswer),
    /// Moves the roll-out of a rule, and returns its status.
    MoveRollout(String, edgesync_rollout::Command, RolloutStatusAnswer),
    /// Lists all rules that place objects on nodes.
    Rules(oneshot::Sender<RuleList>),
    /// Finds objects of all nodes.
    Find(ObjectFilter, oneshot::Sender<ObjectList>),
    /// Returns the keys of all labels of nodes, or the nodes by the values of one key.
    Labels(Option<String>, oneshot::Sender<LabelAnswer>),
    /// Returns the numbers for the metrics, except those of store and broker, which need no turn of
    /// the fleet.
    Numbers(oneshot::Sender<Box<CloudNumbers>>),
}

/// Receives the result of a request that changes the fleet.
pub(super) type Answer = oneshot::Sender<Result<bool>>;

/// Receives the status of a roll-out.
pub(super) type RolloutStatusAnswer = oneshot::Sender<Result<RolloutStatus>>;

/// Other components that the admin protocol reads.
pub struct Parts {
    /// The embedded store and its file; `None` if a cluster is the store.
    pub database: Option<(CloudStore, PathBuf)>,
    /// The downlink to the nodes.
    pub downlink: Downlink,
    /// The enrollment of the fleet.
    pub enrollment_service: EnrollmentService,
    /// Defaults for a broker's configuration.
    pub broker: BrokerDefaults,
    /// URL of the join service, if known: `https://HOST:PORT`.
    pub service: Option<String>,
    /// The overview of the whole fleet.
    pub board: Arc<Board>,
    /// The page, if it is served.
    pub page: Option<Page>,
    /// Whether the API is served with TLS, for certificates of operators.
    pub has_tls_api: bool,
    /// Counters of the port that services share, if it is configured.
    pub shared: Option<Arc<SharedCounters>>,
}

/// Serves `summary`, `rollouts`, `objects` and `labels` for pages; `nodes`, `nodes/NODE`, and
/// `confirm-deletions`, `remove`, `admit`, `revoke` and `forget` below that; `tokens`, `operators`
/// and `broker-config`; and the metrics of the cloud side.
#[derive(Clone)]
pub struct Admin {
    requests: mpsc::Sender<AdminRequest>,
    parts: Arc<Parts>,
}

impl Admin {
    pub fn new(requests: mpsc::Sender<AdminRequest>, parts: Parts) -> Self {
        Self { requests, parts: Arc::new(parts) }
    }

    async fn ask<T>(&self, request: impl FnOnce(oneshot::Sender<T>) -> AdminRequest) -> Result<T> {
        let stopping = || Status::unavailable("the cloud side is stopping", 5);
        let (answer, answered) = oneshot::channel();
        self.requests.send(request(answer)).await.map_err(|_| stopping())?;
        answered.await.map_err(|_| stopping())
    }
}

impl Admin {
    /// Returns the numbers for the metrics, or `None` if the fleet does not answer in time: then
    /// only the families of the API and the process are exported, and an alert can detect that.
    pub(super) async fn numbers(&self) -> Option<Box<CloudNumbers>> {
        let answered = tokio::time::timeout(METRICS_PATIENCE, self.ask(AdminRequest::Numbers)).await;
        let mut numbers = answered.ok()?.ok()?;
        if let Some((store, path)) = &self.parts.database {
            numbers.store = store.stats();
            numbers.database_bytes = size(path);
            numbers.log_bytes = size(&wal_path(path));
        }
        numbers.shared = self.parts.shared.as_ref().map(|counters| counters.counts());
        match &self.parts.downlink {
            Downlink::Embedded(broker) => numbers.endpoint = Some(broker.traffic()),
            Downlink::External(external) => {
                numbers.link = Some((external.link().traffic(), external.link().endings()));
            }
        }
        Some(numbers)
    }

    /// Returns all nodes, including those that have joined and never connected.
    async fn nodes(&self) -> Result<NodeList> {
        let mut shown = self.ask(AdminRequest::Nodes).await?;
        let members = self.parts.enrollment_service.enrollment().store().members().await?;
        shown.items = answers::with_members(shown.items, &members);
        Ok(shown)
    }

    /// Returns one node in full, without what may quote Secrets for callers who may not read them.
    async fn node(&self, node: &NodeName, role: Role) -> Result<NodeInfo> {
        let found = self.ask(|answer| AdminRequest::Node(node.clone(), answer)).await?;
        let member = self.parts.enrollment_service.enrollment().store().member(node).await?;
        let mut found = answers::with_member(found, member.as_ref()).ok_or_else(|| unknown(node))?;
        self.add_effects(node, &mut found, role).await?;
        if !reads_secrets(role)
            && let NodeInfo::Served(served) = &mut found
            && let Some(rejected) = &mut served.refused_objects
        {
            redaction::hide_rejections(rejected);
        }
        Ok(found)
    }

    /// Explains why an object is on a node or is not; without an object, returns the verdicts of
    /// the rules on the node.
    async fn placement(&self, node: &NodeName, query: &[(String, String)]) -> Result<PlacementExplanation> {
        let of = |field: &str| {
            query.iter().find(|(name, _)| name == field).map(|(_, value)| value.clone()).unwrap_or_default()
        };
        let object = if of("name").is_empty() {
            None
        } else {
            let scope = if of("namespace").is_empty() { Scope::Cluster } else { Scope::Namespaced };
            let (group, version, kind, plural) = (of("group"), of("version"), of("kind"), of("plural"));
            let resource = Resource { group, version, kind, plural, scope };
            let found = self.object(&resource, &of("namespace"), &of("name")).await?;
            let version = found.resource_version().into();
            Some(Box::new(Summary::of(&found, Arc::new(resource), version)))
        };
        let explained = self.ask(|answer| AdminRequest::Explain(node.clone(), object, answer)).await?;
        match explained {
            Some(explained) => Ok(explained),
            None => Err(self.not_here(node).await),
        }
    }

    /// Returns the current state of an object. Those in the namespaces of edgesync itself are not
    /// read: their keys must not depend on who asks.
    async fn object(&self, resource: &Resource, namespace: &str, name: &str) -> Result<Object> {
        let missing = || {
            let mut status = Status::not_found(resource, name);
            if !namespace.is_empty() {
                status.message.push_str(&format!(" in namespace {namespace}"));
            }
            status
        };
        if let Some((cluster, own)) = self.parts.enrollment_service.enrollment().store().cluster() {
            if reserved_namespaces(own).iter().any(|reserved| reserved == namespace) {
                let message =
                    format!("namespace {namespace} is reserved for edgesync: its objects are never placed");
                return Err(Status::new(Reason::Forbidden, message));
            }
            let found = cluster.get(resource, namespace, name).await;
            return found.map_err(|error| Status::unavailable(error.to_string(), 5))?.ok_or_else(missing);
        }
        let Some((store, _)) = &self.parts.database else { return Err(missing()) };
        match store.get(resource.key(namespace, name)).await {
            Ok(stored) => serde_json::from_str(&stored.body).map_err(Status::internal),
            Err(CloudError::NotFound { .. }) => Err(missing()),
            Err(error) => Err(Status::unavailable(format!("read object: {error}"), 5)),
        }
    }

    /// Returns the error for a node that the fleet does not know.
    async fn not_here(&self, node: &NodeName) -> Status {
        match self.parts.enrollment_service.enrollment().store().member(node).await {
            Ok(Some(_)) => answers::never_connected(node),
            Ok(None) => unknown(node),
            Err(error) => error.into(),
        }
    }

    /// Adds the objects that are not in effect on a node, if this process stores them.
    async fn add_effects(&self, node: &NodeName, shown: &mut NodeInfo, role: Role) -> Result<()> {
        let Some((store, _)) = &self.parts.database else { return Ok(()) };
        let unavailable = |error| Status::unavailable(format!("read objects in effect: {error}"), 5);
        let mut known = store.in_effect(node).await.map_err(unavailable)?;
        let records =
            if known.is_empty() { Vec::new() } else { store.records(node).await.map_err(unavailable)? };
        let objects: HashMap<Uid, Record> = records.into_iter().collect();
        if !reads_secrets(role) {
            redaction::hide_effects(&mut known, &objects);
        }
        let not = known.into_iter().filter(|one| one.state != EffectState::InEffect).map(|one| {
            let record = objects.get(&one.uid);
            ObjectNotInEffect {
                uid: one.uid.to_string(),
                object: record.map(|record| (*record.object).clone()),
                held: record.map(|record| record.version.to_string()),
                in_effect: one.version.map(|version| version.to_string()),
                desired: one.wanted.to_string(),
                state: one.state.name().to_owned(),
                rule: one.rule,
                message: one.message,
                since: Timestamp::from_microsecond(one.since).ok().map(rfc3339),
            }
        });
        shown.set_not_in_effect(not.collect());
        Ok(())
    }

    async fn revoke(&self, node: &NodeName) -> Result<RevokedCertificates> {
        let certificates = self.parts.enrollment_service.revoke_node(node).await?;
        let known = certificates > 0 || self.parts.enrollment_service.knows_name(node).await?;
        if !known {
            return Err(answers::unknown(node));
        }
        Ok(answers::certificates(node, certificates))
    }

    /// Revokes a node, removes it, and frees its name; steps done earlier are skipped.
    async fn forget(&self, node: &NodeName) -> Result<RevokedCertificates> {
        let certificates = self.parts.enrollment_service.revoke_node(node).await?;
        let mut known = certificates > 0;
        let requests: [fn(NodeName, Answer) -> AdminRequest; 2] = [AdminRequest::Remove, AdminRequest::Admit];
        for request in requests {
            match self.ask(|answer| request(node.clone(), answer)).await? {
                Ok(_) => known = true,
                Err(status) if status.code == 404 => {}
                Err(status) => return Err(status),
            }
        }
        known |= self.parts.enrollment_service.forget_node(node).await?;
        if !known {
            return Err(unknown(node));
        }
        tracing::warn!(node = node.as_str(), "node forgotten, its name is free");
        Ok(answers::certificates(node, certificates))
    }

    /// Answers requests open to every role; returns `None` for other routes.
    async fn look(&self, route: Route<'_>, call: &ExtensionCall) -> Result<Option<Value>> {
        let filter = || ObjectFilter {
            kind: call.parameter("kind").into(),
            namespace: call.parameter("namespace").into(),
            name: call.parameter("name").into(),
            exact: call.parameter("exact") == "1",
            secrets: reads_secrets(call.caller.role),
        };
        let gone = || Status::new(Reason::NotFound, "object or rule not found".to_owned());
        let shown = match route {
            Route::Nodes => answer(&self.nodes().await?)?,
            Route::Node(node) => answer(&self.node(&node_name(node)?, call.caller.role).await?)?,
            Route::Placement(node) => answer(&self.placement(&node_name(node)?, &call.query).await?)?,
            Route::NodeHistory(node) => {
                let name = node_name(node)?;
                let past = self.ask(|answer| AdminRequest::Past(name, answer)).await?;
                answer(&past.ok_or_else(|| unknown(node))?)?
            }
            Route::NodeObjects(node) => {
                let name = node_name(node)?;
                let objects = self.ask(|answer| AdminRequest::Objects(name, filter(), answer)).await?;
                answer(&objects.ok_or_else(|| unknown(node))?)?
            }
            Route::Objects => answer(&self.ask(|answer| AdminRequest::Find(filter(), answer)).await?)?,
            Route::Labels => {
                let key = Some(call.parameter("key")).filter(|key| !key.is_empty()).map(str::to_owned);
                answer(&self.ask(|answer| AdminRequest::Labels(key, answer)).await?)?
            }
            Route::Rollouts => answer(&self.ask(AdminRequest::Rules).await?)?,
            Route::Rollout(subject) => {
                let of = match subject {
                    RolloutSubject::Object(uid) => RolloutOf::Object(uid.into()),
                    RolloutSubject::Placement(uid) => RolloutOf::Rule(uid.into()),
                    RolloutSubject::Configured(number) => {
                        let number = number.parse::<usize>().ok().and_then(|number| number.checked_sub(1));
                        RolloutOf::Configured(number.ok_or_else(gone)?)
                    }
                };
                answer(&self.ask(|answer| AdminRequest::Rollout(of, answer)).await?.ok_or_else(gone)?)?
            }
            Route::RolloutStatus(rule) => {
                answer(&self.ask(|answer| AdminRequest::ShowRollout(rule.to_owned(), answer)).await??)?
            }
            Route::Tokens | Route::Operators => {
                answers::enrollment(&self.parts.enrollment_service, route, &call.body, None).await?
            }
            _ => return Ok(None),
        };
        Ok(Some(shown))
    }

    /// Performs a change requested by an administrator.
    async fn change(&self, route: Route<'_>, body: &Value) -> Result<Value> {
        let enrollment_service = &self.parts.enrollment_service;
        match route {
            Route::ChangeNode(node, action) => self.change_node(&node_name(node)?, action, body).await,
            Route::CreateOperator if !self.parts.has_tls_api => {
                let message = "create operator certificate: api.listen is \"off\", so no address accepts it; hint: set api.listen \
                               and restart the cloud side";
                Err(Status::new(Reason::Conflict, message))
            }
            Route::RevokePageKeys => answer(&self.revoke_page_keys().await?),
            Route::BrokerConfig => {
                let config = self.parts.broker.complete(parse_request(body)?)?;
                answer(&BrokerFiles(broker_config::files(enrollment_service, &config)?))
            }
            _ => {
                let service = self.parts.service.as_deref();
                answers::enrollment(enrollment_service, route, body, service).await
            }
        }
    }

    /// Moves the roll-out of a rule by a command of the caller.
    async fn move_rollout(&self, rule: &str, call: &ExtensionCall) -> Result<Value> {
        let command = command_of(parse_request(&call.body)?, &call.caller.name)?;
        let request = |answer| AdminRequest::MoveRollout(rule.to_owned(), command, answer);
        answer(&self.ask(request).await??)
    }

    async fn change_node(&self, node: &NodeName, action: NodeAction, body: &Value) -> Result<Value> {
        match action {
            NodeAction::ConfirmDeletions => {
                let request = |answer| AdminRequest::ConfirmDeletions(node.clone(), answer);
                let confirmed = self.ask(request).await?;
                let Some(confirmed) = confirmed else { return Err(self.not_here(node).await) };
                answer(&Confirmed { node: node.to_string(), confirmed })
            }
            NodeAction::Remove => {
                match self.ask(|answer| AdminRequest::Remove(node.clone(), answer)).await? {
                    Err(status) if status.code == 404 => Err(self.not_here(node).await),
                    removed => answer(&Removed { node: node.to_string(), removed: removed? }),
                }
            }
            NodeAction::Admit => {
                let request: AdmitRequest = parse_request::<Option<_>>(body)?.unwrap_or_default();
                if request.broker_updated {
                    let noted = self.parts.enrollment_service.broker_updated(node).await?;
                    return answer(&answers::certificates(node, noted));
                }
                let admitted = self.ask(|answer| AdminRequest::Admit(node.clone(), answer)).await??;
                answer(&Admitted { node: node.to_string(), admitted })
            }
            NodeAction::Forget => answer(&self.forget(node).await?),
            NodeAction::Revoke => answer(&self.revoke(node).await?),
        }
    }

    /// Returns the URL of the page, with a key for the requester. The holder of a key gets no
    /// other: its end would have no effect.
    fn invite(&self, caller: &Caller) -> Result<PageInvitation> {
        if caller.credential == Credential::PageKey {
            let message = "a page key creates no other key; hint: run 'edgesync-cloud page' on the machine of the cloud side";
            return Err(Status::new(Reason::Forbidden, message));
        }
        let invitation = self.parts.page.as_ref().and_then(|page| page.invitation(caller));
        invitation.ok_or_else(|| Status::new(Reason::NotFound, NO_PAGE))
    }

    /// Revokes all keys of the page.
    async fn revoke_page_keys(&self) -> Result<RevokedPageKeys> {
        let page = self.parts.page.clone().ok_or_else(|| Status::new(Reason::NotFound, NO_PAGE))?;
        tokio::task::spawn_blocking(move || page.revoke_keys()).await.map_err(Status::internal)??;
        Ok(RevokedPageKeys { revoked: true })
    }
}

/// Parts of a broker's configuration derived from that of the cloud side.
#[derive(Clone, Debug)]
pub struct BrokerDefaults {
    /// Host names of the broker, if a request has none: `enrollment.names`.
    pub names: Vec<String>,
    /// Prefix of all topics: `link.prefix`.
    pub prefix: String,
    /// The largest packet, in bytes.
    pub max_packet: u32,
}

impl BrokerDefaults {
    fn complete(&self, request: BrokerConfigRequest) -> Result<BrokerConfig> {
        let flavor = match request.broker.as_str() {
            "mosquitto" => Flavor::Mosquitto,
            "emqx" => Flavor::Emqx,
            other => {
                let message = format!("broker must be \"mosquitto\" or \"emqx\", not {other:?}");
                return Err(Status::new(Reason::BadRequest, message));
            }
        };
        let names = if request.names.is_empty() { self.names.clone() } else { request.names };
        let (prefix, max_packet) = (self.prefix.clone(), self.max_packet);
        Ok(BrokerConfig {
            flavor,
            directory: request.directory,
            names,
            port: request.port,
            prefix,
            max_packet,
        })
    }
}

impl Extension for Admin {
    async fn call(&self, call: ExtensionCall) -> Result<Value> {
        let route = Route::parse(&call.method, &call.path);
        if route == Some(Route::Page) {
            return answer(&self.invite(&call.caller)?);
        }
        if let Some(route) = route
            && let Some(shown) = self.look(route, &call).await?
        {
            return Ok(shown);
        }
        if let Some(Route::MoveRollout(rule)) = route {
            answers::check_role(&call, Role::Edit)?;
            return self.move_rollout(rule, &call).await;
        }
        answers::check_change(&call)?;
        self.change(route.ok_or_else(Status::no_such_path)?, &call.body).await
    }

    async fn ready(&self, call: &ExtensionCall, stopping: watch::Receiver<bool>) -> Result<Option<Prebuilt>> {
        let board = &self.parts.board;
        Ok(match Route::parse(&call.method, &call.path) {
            Some(Route::Summary) if matches!(call.parameter("watch"), "1" | "true") => {
                let revision = call.parameter("revision").parse().ok();
                let from = revision.map(|revision| (call.parameter("start"), revision));
                Some(Prebuilt::Lines(board.watch(from, stopping)))
            }
            Some(Route::Summary) => Some(Prebuilt::Whole(board.snapshot())),
            Some(Route::SummaryHistory) => Some(Prebuilt::Whole(board.history())),
            _ => None,
        })
    }

    fn file(&self, path: &str) -> Option<PageFile> {
        self.parts.page.as_ref().and_then(|_| page::file(path))
    }

    async fn metrics(&self, out: &mut MetricsWriter<'_>) {
        if let Some(numbers) = self.numbers().await {
            metrics::write(&numbers, out);
        }
    }
}

/// Converts a request about a roll-out to the command of an operator.
fn command_of(request: RolloutCommand, by: &str) -> Result<Command> {
    let missing = |field: &str| {
        let message = format!("{field}: must be what the status of the roll-out shows, for this action");
        Status::new(Reason::BadRequest, message)
    };
    let RolloutCommand { action, revision, open, reason, override_windows } = request;
    let (by, revision) = (by.to_owned(), revision.ok_or_else(|| missing("revision")));
    Ok(match action {
        RolloutAction::Pause => Command::Pause { by },
        RolloutAction::Resume => {
            let reason = match reason.as_deref() {
                Some("Command") => PauseReason::Command,
                Some("FailuresExceeded") => PauseReason::FailuresExceeded,
                Some("WavesChanged") => PauseReason::WavesChanged,
                _ => return Err(missing("reason")),
            };
            Command::Resume { by, reason }
        }
        RolloutAction::Promote => {
            Command::Promote { by, revision: revision?, open: open.ok_or_else(|| missing("open"))? }
        }
        RolloutAction::Undo => Command::Undo { by, revision: revision?, override_windows },
    })
}

/// Returns whether a role may read Secrets.
fn reads_secrets(role: Role) -> bool {
    role >= Role::Edit
}

/// Returns the size of a file in bytes; zero if it does not exist.
fn size(path: &Path) -> u64 {
    std::fs::metadata(path).map_or(0, |metadata| metadata.len())
}
