//! The node's Lease `kube-node-lease/<node>`: queried at session start, written with each renewal
//! of the machine.
//!
//! It carries the [`Marker`] of the database, which serves the purpose of Hello for
//! `edgesync-cloud`, in one annotation of a message that is sent anyway.

use std::time::Duration;

use jiff::Timestamp;
use serde_json::{Map, Value, json};

use super::message::MessageId;
use super::message::{self, Incoming};
use super::outbound::Outbound;
use super::types::BridgeEffect;
use edgesync_object::NodeName;
use edgesync_object::time::rfc3339_micros;
use edgesync_protocol::apply::Totals;
use edgesync_protocol::digest::Epoch;
use edgesync_protocol::frame::Lease;
use edgesync_protocol::timing::{Now, backoff, earlier};

/// The namespace of node Leases.
const NAMESPACE: &str = "kube-node-lease";
/// The shortest delay after a refused write. CloudCore reads from a cache that lags by some
/// milliseconds.
const RETRY_MIN: Duration = Duration::from_secs(1);
/// The number of unanswered queries, without any other message, that mean CloudCore does not serve
/// the session.
const MAX_UNANSWERED: u32 = 4;
/// The time after the last answer about the Lease within which a new session does not query it.
const RESUME_WINDOW: Duration = Duration::from_secs(60);
/// The annotation of the marker.
pub(super) const ANNOTATION: &str = "edgesync.io/store";

/// The node's database and its revision: `<epoch>.<revision>`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Marker {
    /// The identity of the database file.
    pub epoch: Epoch,
    /// The newest revision of the database.
    pub revision: u64,
}

impl Marker {
    /// Returns the marker of a database.
    #[must_use]
    pub(crate) fn of(totals: &Totals) -> Self {
        Self { epoch: totals.epoch, revision: totals.revision }
    }

    /// Returns whether a database still contains everything up to the marker: the same file, and
    /// not an older copy.
    #[must_use]
    pub(crate) fn is_held_by(&self, totals: &Totals) -> bool {
        self.epoch == totals.epoch && self.revision <= totals.revision
    }

    /// Parses the annotation's text.
    #[must_use]
    pub(crate) fn parse(text: &str) -> Option<Self> {
        let (epoch, revision) = text.split_once('.')?;
        // A parsed number may have a sign.
        let is_number = revision.bytes().all(|b| b.is_ascii_digit());
        let revision = revision.parse().ok().filter(|_| is_number)?;
        Some(Self { epoch: epoch.parse().ok()?, revision })
    }
}

impl std::fmt::Display for Marker {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}.{}", self.epoch, self.revision)
    }
}

/// The content of an answer about the Lease.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum LeaseAnswer {
    /// The Lease exists, with this marker, owned by the Node with this UID.
    Found { marker: Option<Marker>, owner: Option<String> },
    /// The Lease does not exist. The Node has to be registered.
    Missing,
    /// The Lease was written with this marker.
    Renewed { marker: Option<Marker> },
    /// The Lease was deleted since it was read.
    Gone,
}

/// The known state of the Lease.
#[derive(Debug, Default)]
enum LeaseState {
    #[default]
    Nothing,
    Missing,
    /// Its metadata, repeated in each write without `managedFields`, which are half of it and
    /// ignored in writes.
    There(Map<String, Value>),
}

/// A renewal to write.
#[derive(Debug)]
struct Renewal {
    lease: Lease,
    owner: Option<String>,
    marker: Option<Marker>,
}

/// An operation on the Lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    /// Query at session start.
    Query,
    /// Query after a refused write; its answer is not reported.
    Requery,
    /// Write the pending renewal.
    Write,
}

/// A query or write in flight.
#[derive(Debug)]
struct InFlight {
    id: MessageId,
    step: Step,
    /// The renewal being written.
    renewal: Option<Renewal>,
    until: Now,
}

/// The state machine of the Lease: one query or write in flight.
#[derive(Debug, Default)]
pub(super) struct LeaseKeeper {
    state: LeaseState,
    in_flight: Option<InFlight>,
    /// The next operation and its earliest time.
    due: Option<(Now, Step)>,
    /// The latest renewal that waits for the operation in flight, or for the Node.
    pending: Option<Renewal>,
    /// The number of consecutive failures.
    attempts: u32,
    /// The Lease at the end of the last session, and the time of the last answer about it.
    previous: Option<(Map<String, Value>, Now)>,
    /// The time of the last answer.
    known_at: Now,
    /// Whether the state is assumed from the last session: nothing was written or queried since.
    is_assumed: bool,
    /// The last renewal of this session.
    last: Option<Lease>,
    /// The received messages when the first open query was sent.
    received_before: u64,
    /// The version and time of the last answer.
    pub(super) answered: Option<(String, i64)>,
}

impl LeaseKeeper {
    /// Ends the session and keeps the Lease for [`LeaseKeeper::resume`].
    pub(super) fn forget(&mut self) {
        let previous = match std::mem::take(&mut self.state) {
            LeaseState::There(metadata) => Some((metadata, self.known_at)),
            LeaseState::Nothing | LeaseState::Missing => self.previous.take(),
        };
        let (answered, known_at) = (self.answered.take(), self.known_at);
        *self = Self { answered, previous, known_at, ..Self::default() };
    }

    /// Queries the Lease at session start.
    pub(super) fn query(&mut self, outbound: &mut Outbound) {
        // A pending renewal belongs to an earlier session.
        (self.pending, self.previous, self.is_assumed) = (None, None, false);
        self.attempts = 0;
        self.received_before = outbound.counters.received;
        self.run(outbound, Step::Query);
    }

    /// Resumes the Lease of a recent session: if it had the marker of this database then, it is
    /// assumed unchanged until its renewal. A write by another client would make that a conflict.
    /// Returns the assumed marker and owner.
    pub(super) fn resume(&mut self, outbound: &Outbound, totals: &Totals) -> Option<LeaseAnswer> {
        let is_ours = |(metadata, at): &(Map<String, Value>, Now)| {
            outbound.at.now.saturating_sub(*at) < RESUME_WINDOW
                && owner(metadata).is_some()
                && marker(metadata).is_some_and(|marker| marker.is_held_by(totals))
        };
        let (metadata, at) = self.previous.take_if(|previous| is_ours(previous))?;
        let news = LeaseAnswer::Found { marker: marker(&metadata), owner: owner(&metadata) };
        (self.state, self.known_at, self.is_assumed) = (LeaseState::There(metadata), at, true);
        self.received_before = outbound.counters.received;
        Some(news)
    }

    /// Returns whether the existence of the Lease is known.
    pub(super) fn is_known(&self) -> bool {
        !matches!(self.state, LeaseState::Nothing)
    }

    /// Renews the Lease. Only the latest renewal matters: a pending one is replaced. A missing
    /// Lease is created once the UID of the Node, its owner, is known. `marker` is the database's
    /// if it is proven; `None` leaves the annotation unchanged.
    pub(super) fn renew(
        &mut self,
        outbound: &mut Outbound,
        lease: Lease,
        owner: Option<String>,
        marker: Option<Marker>,
    ) {
        self.last = Some(lease.clone());
        self.pending = Some(Renewal { lease, owner, marker });
        let due = self.known_at + outbound.config.lease_interval;
        if self.is_assumed && self.in_flight.is_none() && self.due.is_none() && due > outbound.at.now {
            self.due = Some((due, Step::Write));
        }
        self.write_pending(outbound);
    }

    /// Creates a missing Lease now that its owner is known, if a renewal waits for that.
    pub(super) fn set_owner(&mut self, outbound: &mut Outbound, uid: &str) {
        if let Some(renewal) = self.pending.as_mut().filter(|renewal| renewal.owner.is_none()) {
            renewal.owner = Some(uid.to_owned());
            self.write_pending(outbound);
        }
    }

    /// Writes the marker as soon as possible.
    pub(super) fn mark(&mut self, outbound: &mut Outbound, owner: Option<String>, marker: Marker) {
        if let Some(last) = self.last.take() {
            let renewed = outbound.at.wall.saturating_mul(1000);
            self.renew(outbound, Lease { renewed, ..last }, owner, Some(marker));
        }
    }

    /// Writes the pending renewal, unless an operation is in flight or due.
    fn write_pending(&mut self, outbound: &mut Outbound) {
        if self.pending.is_some() && self.in_flight.is_none() && self.due.is_none() {
            self.run(outbound, Step::Write);
        }
    }

    fn run(&mut self, outbound: &mut Outbound, step: Step) {
        self.due = None;
        let step = if step == Step::Write && !self.is_known() { Step::Query } else { step };
        let resource = format!("{NAMESPACE}/lease/{}", outbound.config.node);
        let (draft, renewal) = match step {
            Step::Query | Step::Requery => (message::write("lease", "query", resource, "null"), None),
            Step::Write => {
                let Some(renewal) = self.pending.take() else { return };
                let Some((operation, content)) = self.content(outbound, &renewal) else {
                    self.pending = Some(renewal);
                    return;
                };
                (message::write("lease", operation, resource, content), Some(renewal))
            }
        };
        let until = outbound.at.now + self.timeout(outbound);
        self.in_flight = Some(InFlight { id: outbound.send(&draft), step, renewal, until });
    }

    /// Returns the timeout of an answer; grows with each expired one.
    fn timeout(&self, outbound: &mut Outbound) -> Duration {
        match self.attempts {
            0 => outbound.config.answer_timeout,
            attempts => {
                let min = outbound.config.answer_timeout.saturating_mul(2);
                backoff(min, outbound.config.retry_max.max(min), attempts - 1, outbound.draw())
            }
        }
    }

    /// Returns operation and content of a write; `None` if the Lease would lack an owner.
    fn content(&self, outbound: &Outbound, renewal: &Renewal) -> Option<(&'static str, String)> {
        let Renewal { lease, owner, marker } = renewal;
        let (operation, mut metadata) = match &self.state {
            LeaseState::Nothing => return None,
            LeaseState::Missing if owner.is_none() => return None,
            LeaseState::Missing => ("insert", new_metadata(&outbound.config.node)),
            LeaseState::There(metadata) => ("update", metadata.clone()),
        };
        if let Some(uid) = owner {
            own(&mut metadata, &outbound.config.node, uid);
        }
        if let Some(marker) = marker {
            annotate(&mut metadata, marker);
        }
        let renewed = Timestamp::from_microsecond(lease.renewed);
        let renewed = renewed.or_else(|_| Timestamp::from_millisecond(outbound.at.wall)).unwrap_or_default();
        let spec = json!({
            "holderIdentity": outbound.config.node,
            "leaseDurationSeconds": lease.seconds,
            "renewTime": rfc3339_micros(renewed),
        });
        Some((operation, json!({ "metadata": metadata, "spec": spec }).to_string()))
    }

    /// Handles an answer to an operation of this table. A conflict triggers another query and is
    /// not reported.
    pub(super) fn answered(
        &mut self,
        outbound: &mut Outbound,
        incoming: &Incoming<'_>,
    ) -> Option<LeaseAnswer> {
        let parent = incoming.parent?;
        let InFlight { step, renewal, .. } = self.in_flight.take_if(|in_flight| in_flight.id == parent)?;
        let outcome = incoming.content.and_then(message::outcome);
        let error = outcome.as_ref().and_then(|outcome| outcome.error.clone());
        let metadata = outcome.and_then(|outcome| metadata(outcome.object?.get()));
        if let (None, Some(metadata)) = (&error, metadata) {
            return self.found(outbound, step, metadata);
        }
        // The renewal is still pending, unless there is a later one.
        self.pending = self.pending.take().or(renewal);
        self.failed(outbound, step, error.map_or(0, |failure| failure.code))
    }

    fn found(
        &mut self,
        outbound: &mut Outbound,
        step: Step,
        metadata: Map<String, Value>,
    ) -> Option<LeaseAnswer> {
        let version = metadata.get("resourceVersion").and_then(Value::as_str).unwrap_or_default();
        self.answered = Some((version.to_owned(), outbound.at.wall));
        let was_assumed = std::mem::replace(&mut self.is_assumed, false);
        let news = match step {
            Step::Requery if !was_assumed => None,
            // The assumed state is replaced by the known one.
            Step::Query | Step::Requery => {
                Some(LeaseAnswer::Found { marker: marker(&metadata), owner: owner(&metadata) })
            }
            Step::Write => Some(LeaseAnswer::Renewed { marker: marker(&metadata) }),
        };
        self.known_at = outbound.at.now;
        self.state = LeaseState::There(metadata);
        if step != Step::Requery {
            self.attempts = 0;
        }
        self.write_pending(outbound);
        news
    }

    fn failed(&mut self, outbound: &mut Outbound, step: Step, code: u16) -> Option<LeaseAnswer> {
        let is_update = matches!(self.state, LeaseState::There(_));
        match (step, code) {
            (Step::Query, 404) => {
                self.state = LeaseState::Missing;
                self.attempts = 0;
                self.write_pending(outbound);
                return Some(LeaseAnswer::Missing);
            }
            (Step::Write, 404) if is_update => {
                self.forget();
                self.previous = None;
                return Some(LeaseAnswer::Gone);
            }
            (Step::Requery, 404) => {
                self.state = LeaseState::Missing;
                self.schedule(outbound, Step::Write);
            }
            // Another client has written it, or the known version was outdated: the first conflict
            // is queried at once.
            (Step::Write, 409) if self.attempts == 0 => {
                self.attempts = 1;
                self.run(outbound, Step::Requery);
            }
            (Step::Write, _) => self.schedule(outbound, Step::Requery),
            (Step::Query | Step::Requery, _) => self.schedule(outbound, step),
        }
        None
    }

    fn schedule(&mut self, outbound: &mut Outbound, step: Step) {
        let delay = backoff(RETRY_MIN, outbound.config.retry_max, self.attempts, outbound.draw());
        self.attempts = self.attempts.saturating_add(1);
        self.due = Some((outbound.at.now + delay, step));
    }

    /// Repeats unanswered operations with backoff.
    pub(super) fn tick(&mut self, outbound: &mut Outbound) {
        let now = outbound.at.now;
        if let Some(InFlight { step, renewal, .. }) =
            self.in_flight.take_if(|in_flight| in_flight.until <= now)
        {
            self.attempts = self.attempts.saturating_add(1);
            if self.attempts == MAX_UNANSWERED && outbound.counters.received == self.received_before {
                outbound.effects.push_back(BridgeEffect::Reconnect);
            }
            self.pending = self.pending.take().or(renewal);
            self.run(outbound, step);
        } else if let Some((_, step)) = self.due.take_if(|(due, _)| *due <= now) {
            self.run(outbound, step);
        }
    }

    pub(super) fn deadline(&self) -> Option<Now> {
        earlier(self.in_flight.as_ref().map(|in_flight| in_flight.until), self.due.map(|(due, _)| due))
    }
}

/// Returns the metadata of a new Lease, as EdgeCore writes them.
fn new_metadata(node: &NodeName) -> Map<String, Value> {
    let fields =
        [("name", node.as_str().into()), ("namespace", NAMESPACE.into()), ("creationTimestamp", Value::Null)];
    fields.into_iter().map(|(field, value)| (field.to_owned(), value)).collect()
}

/// Returns the metadata of a Lease for the next write; `None` if the text is not an object with a
/// version.
fn metadata(lease: &str) -> Option<Map<String, Value>> {
    let mut lease: Map<String, Value> = serde_json::from_str(lease).ok()?;
    let Some(Value::Object(mut metadata)) = lease.remove("metadata") else { return None };
    metadata.remove("managedFields");
    metadata.get("resourceVersion").is_some_and(Value::is_string).then_some(metadata)
}

fn marker(metadata: &Map<String, Value>) -> Option<Marker> {
    metadata.get("annotations")?.get(ANNOTATION)?.as_str().and_then(Marker::parse)
}

fn is_node(reference: &Value) -> bool {
    reference.get("kind").and_then(Value::as_str) == Some("Node")
}

/// Returns the UID of the Node that owns the Lease.
fn owner(metadata: &Map<String, Value>) -> Option<String> {
    let references = metadata.get("ownerReferences")?.as_array()?;
    let uid = references.iter().find(|reference| is_node(reference))?.get("uid")?.as_str()?;
    Some(uid.to_owned())
}

/// Sets the Node as the owner and keeps owners of other kinds. The cluster garbage-collects a Lease
/// without its owner.
fn own(metadata: &mut Map<String, Value>, node: &NodeName, uid: &str) {
    let mut references = match metadata.remove("ownerReferences") {
        Some(Value::Array(references)) => references,
        _ => Vec::new(),
    };
    references.retain(|reference| !is_node(reference));
    references.push(json!({ "apiVersion": "v1", "kind": "Node", "name": node, "uid": uid }));
    metadata.insert("ownerReferences".to_owned(), references.into());
}

fn annotate(metadata: &mut Map<String, Value>, marker: &Marker) {
    let mut annotations = match metadata.remove("annotations") {
        Some(Value::Object(annotations)) => annotations,
        _ => Map::new(),
    };
    annotations.insert(ANNOTATION.to_owned(), marker.to_string().into());
    metadata.insert("annotations".to_owned(), annotations.into());
}

#[cfg(test)]
mod tests;
