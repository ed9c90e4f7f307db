//! The Lease of the node: `kube-node-lease/<node>`, asked for when a session begins, written whenever the machine renews
//! it. It carries the [`Marker`] of the database: what Hello is for `edgesync-cloud`, in one annotation of a message
//! that goes anyway.

use std::time::Duration;

use jiff::Timestamp;
use serde_json::{Map, Value, json};

use super::message::MessageId;
use super::message::{self, Incoming};
use super::outbound::Outbound;
use super::types::BridgeEffect;
use edgesync_object::time::rfc3339_micros;
use edgesync_protocol::digest::Epoch;
use edgesync_protocol::frame::Lease;
use edgesync_protocol::replica::Totals;
use edgesync_protocol::timing::{Now, backoff, earlier};

/// Where Leases of nodes are.
const NAMESPACE: &str = "kube-node-lease";
/// The shortest delay after a write that was refused. What CloudCore reads from is some milliseconds behind.
const RETRY_MIN: Duration = Duration::from_secs(1);
/// So many questions without an answer, or anything else, tell a session that CloudCore does not serve.
const SILENT: u32 = 4;
/// A session that begins within this time after the last answer about the Lease does not ask for it.
const SOON: Duration = Duration::from_secs(60);
/// The annotation with the marker.
pub(super) const ANNOTATION: &str = "edgesync.io/store";

/// Which database the node had, and how far it was: `<epoch>.<revision>`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Marker {
    /// The identity of the database file.
    pub epoch: Epoch,
    /// Its newest change.
    pub revision: u64,
}

impl Marker {
    /// The marker of a database.
    #[must_use]
    pub(crate) fn of(totals: &Totals) -> Self {
        Self { epoch: totals.epoch, revision: totals.revision }
    }

    /// Whether a database holds everything that it held when the marker was made: it is the same file, and not an older
    /// copy of it.
    #[must_use]
    pub(crate) fn is_held_by(&self, totals: &Totals) -> bool {
        self.epoch == totals.epoch && self.revision <= totals.revision
    }

    /// Reads the annotation.
    #[must_use]
    pub(crate) fn parse(text: &str) -> Option<Self> {
        let (epoch, revision) = text.split_once('.')?;
        // What parses as a number may have a sign.
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

/// What an answer about the Lease says.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum LeaseNews {
    /// There is one: with this marker, owned by the Node with this UID.
    Found { marker: Option<Marker>, owner: Option<String> },
    /// There is none. The Node is to be registered.
    Missing,
    /// It was written, and has this marker.
    Renewed { marker: Option<Marker> },
    /// It has gone since it was read.
    Gone,
}

/// What is known of the Lease.
#[derive(Debug, Default)]
enum Known {
    #[default]
    Nothing,
    Missing,
    /// Its metadata, which are repeated in each write but for `managedFields`: nobody reads those of a write, and they
    /// are half of it.
    There(Map<String, Value>),
}

/// What the machine wants to be written.
#[derive(Debug)]
struct Renewal {
    lease: Lease,
    owner: Option<String>,
    marker: Option<Marker>,
}

/// What is done for the Lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    /// It is asked for: a session begins.
    Ask,
    /// It is asked for because a write was refused: that is no news.
    AskAnew,
    /// It is written.
    Write,
}

/// A question or write under way.
#[derive(Debug)]
struct Flight {
    id: MessageId,
    step: Step,
    /// What is written.
    renewal: Option<Renewal>,
    until: Now,
}

/// See the module.
#[derive(Debug, Default)]
pub(super) struct LeaseKeeper {
    known: Known,
    flight: Option<Flight>,
    /// What is done next, and not before this time.
    due: Option<(Now, Step)>,
    /// The renewal that waits for the flight, or for the Node.
    waiting: Option<Renewal>,
    /// Failures in a row.
    attempts: u32,
    /// The Lease as it was when the last session ended, and since when it was known to be so.
    past: Option<(Map<String, Value>, Now)>,
    /// When the last answer about it came.
    known_at: Now,
    /// Whether it is taken for what it was at the end of the last session: nothing was written or asked since.
    is_resumed: bool,
    /// The last renewal of this session.
    last: Option<Lease>,
    /// Messages that had been received when the first of the questions under way was put.
    heard: u64,
    /// The version that was answered last, and when.
    pub(super) answered: Option<(String, i64)>,
}

impl LeaseKeeper {
    /// The session is over.
    pub(super) fn forget(&mut self) {
        let past = match std::mem::take(&mut self.known) {
            Known::There(metadata) => Some((metadata, self.known_at)),
            Known::Nothing | Known::Missing => self.past.take(),
        };
        let (answered, known_at) = (self.answered.take(), self.known_at);
        *self = Self { answered, past, known_at, ..Self::default() };
    }

    /// Asks for the Lease.
    pub(super) fn ask(&mut self, outbound: &mut Outbound) {
        // What waits is of an earlier session.
        (self.waiting, self.past, self.is_resumed) = (None, None, false);
        self.attempts = 0;
        self.heard = outbound.counters.received;
        self.run(outbound, Step::Ask);
    }

    /// A new session soon after the last one: if the Lease had the marker of this database then, it is believed to have it
    /// still, until it is renewed. Somebody else's write would make that a conflict. Returns whether it is so, and the
    /// owner of the Lease.
    pub(super) fn resume(&mut self, outbound: &Outbound, totals: &Totals) -> Option<LeaseNews> {
        let is_ours = |(metadata, at): &(Map<String, Value>, Now)| {
            outbound.at.now.saturating_sub(*at) < SOON
                && owner(metadata).is_some()
                && marker(metadata).is_some_and(|marker| marker.is_held_by(totals))
        };
        let (metadata, at) = self.past.take_if(|past| is_ours(past))?;
        let news = LeaseNews::Found { marker: marker(&metadata), owner: owner(&metadata) };
        (self.known, self.known_at, self.is_resumed) = (Known::There(metadata), at, true);
        self.heard = outbound.counters.received;
        Some(news)
    }

    /// Whether it is known that there is one, or none.
    pub(super) fn is_known(&self) -> bool {
        !matches!(self.known, Known::Nothing)
    }

    /// Renews the Lease. Only the latest renewal matters: one that waits is replaced. Without a Lease it is made once the
    /// UID of the Node, its owner, is known. `marker` is that of the database if that is proven; otherwise the annotation
    /// stays as it is.
    pub(super) fn renew(
        &mut self,
        outbound: &mut Outbound,
        lease: Lease,
        owner: Option<String>,
        marker: Option<Marker>,
    ) {
        self.last = Some(lease.clone());
        self.waiting = Some(Renewal { lease, owner, marker });
        let due = self.known_at + outbound.config.lease_interval;
        if self.is_resumed && self.flight.is_none() && self.due.is_none() && due > outbound.at.now {
            self.due = Some((due, Step::Write));
        }
        self.write_waiting(outbound);
    }

    /// Writes the marker as soon as may be.
    pub(super) fn mark(&mut self, outbound: &mut Outbound, owner: Option<String>, marker: Marker) {
        if let Some(last) = self.last.take() {
            let renewed = outbound.at.wall.saturating_mul(1000);
            self.renew(outbound, Lease { renewed, ..last }, owner, Some(marker));
        }
    }

    /// Writes the renewal that waits, unless something is under way or due.
    fn write_waiting(&mut self, outbound: &mut Outbound) {
        if self.waiting.is_some() && self.flight.is_none() && self.due.is_none() {
            self.run(outbound, Step::Write);
        }
    }

    fn run(&mut self, outbound: &mut Outbound, step: Step) {
        self.due = None;
        let step = if step == Step::Write && !self.is_known() { Step::Ask } else { step };
        let resource = format!("{NAMESPACE}/lease/{}", outbound.config.node);
        let (draft, renewal) = match step {
            Step::Ask | Step::AskAnew => (message::write("lease", "query", resource, "null"), None),
            Step::Write => {
                let Some(renewal) = self.waiting.take() else { return };
                let Some((operation, content)) = self.content(outbound, &renewal) else {
                    self.waiting = Some(renewal);
                    return;
                };
                (message::write("lease", operation, resource, content), Some(renewal))
            }
        };
        let until = outbound.at.now + self.patience(outbound);
        self.flight = Some(Flight { id: outbound.send(&draft), step, renewal, until });
    }

    /// How long an answer may take; longer after each that did not come.
    fn patience(&self, outbound: &mut Outbound) -> Duration {
        match self.attempts {
            0 => outbound.config.answer_timeout,
            attempts => {
                let min = outbound.config.answer_timeout.saturating_mul(2);
                backoff(min, outbound.config.retry_max.max(min), attempts - 1, outbound.draw())
            }
        }
    }

    /// Operation and content of a write; none as long as the Lease would have no owner.
    fn content(&self, outbound: &Outbound, renewal: &Renewal) -> Option<(&'static str, String)> {
        let Renewal { lease, owner, marker } = renewal;
        let (operation, mut metadata) = match &self.known {
            Known::Nothing => return None,
            Known::Missing if owner.is_none() => return None,
            Known::Missing => ("insert", new_metadata(&outbound.config.node)),
            Known::There(metadata) => ("update", metadata.clone()),
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

    /// Takes an answer if it is one to a question or a write of this keeper. A conflict asks anew and is no news.
    pub(super) fn answered(&mut self, outbound: &mut Outbound, incoming: &Incoming<'_>) -> Option<LeaseNews> {
        let parent = incoming.parent?;
        let Flight { step, renewal, .. } = self.flight.take_if(|flight| flight.id == parent)?;
        let outcome = incoming.content.and_then(message::outcome);
        let error = outcome.as_ref().and_then(|outcome| outcome.error.clone());
        let metadata = outcome.and_then(|outcome| metadata(outcome.object?.get()));
        if let (None, Some(metadata)) = (&error, metadata) {
            return self.is_there(outbound, step, metadata);
        }
        // It is still to be written, unless there is a later one.
        self.waiting = self.waiting.take().or(renewal);
        self.failed(outbound, step, error.map_or(0, |failure| failure.code))
    }

    fn is_there(
        &mut self,
        outbound: &mut Outbound,
        step: Step,
        metadata: Map<String, Value>,
    ) -> Option<LeaseNews> {
        let version = metadata.get("resourceVersion").and_then(Value::as_str).unwrap_or_default();
        self.answered = Some((version.to_owned(), outbound.at.wall));
        let was_resumed = std::mem::replace(&mut self.is_resumed, false);
        let news = match step {
            Step::AskAnew if !was_resumed => None,
            // What it was taken for was a guess: now it is known.
            Step::Ask | Step::AskAnew => {
                Some(LeaseNews::Found { marker: marker(&metadata), owner: owner(&metadata) })
            }
            Step::Write => Some(LeaseNews::Renewed { marker: marker(&metadata) }),
        };
        self.known_at = outbound.at.now;
        self.known = Known::There(metadata);
        if step != Step::AskAnew {
            self.attempts = 0;
        }
        self.write_waiting(outbound);
        news
    }

    fn failed(&mut self, outbound: &mut Outbound, step: Step, code: u16) -> Option<LeaseNews> {
        let is_update = matches!(self.known, Known::There(_));
        match (step, code) {
            (Step::Ask, 404) => {
                self.known = Known::Missing;
                self.attempts = 0;
                self.write_waiting(outbound);
                return Some(LeaseNews::Missing);
            }
            (Step::Write, 404) if is_update => {
                self.forget();
                self.past = None;
                return Some(LeaseNews::Gone);
            }
            (Step::AskAnew, 404) => {
                self.known = Known::Missing;
                self.later(outbound, Step::Write);
            }
            // Somebody else has written it, or what was told last was not the latest: once that is asked for at once.
            (Step::Write, 409) if self.attempts == 0 => {
                self.attempts = 1;
                self.run(outbound, Step::AskAnew);
            }
            (Step::Write, _) => self.later(outbound, Step::AskAnew),
            (Step::Ask | Step::AskAnew, _) => self.later(outbound, step),
        }
        None
    }

    fn later(&mut self, outbound: &mut Outbound, step: Step) {
        let delay = backoff(RETRY_MIN, outbound.config.retry_max, self.attempts, outbound.draw());
        self.attempts = self.attempts.saturating_add(1);
        self.due = Some((outbound.at.now + delay, step));
    }

    /// Asks or writes again what was not answered.
    pub(super) fn tick(&mut self, outbound: &mut Outbound) {
        let now = outbound.at.now;
        if let Some(Flight { step, renewal, .. }) = self.flight.take_if(|flight| flight.until <= now) {
            self.attempts = self.attempts.saturating_add(1);
            if self.attempts == SILENT && outbound.counters.received == self.heard {
                outbound.effects.push_back(BridgeEffect::Reconnect);
            }
            self.waiting = self.waiting.take().or(renewal);
            self.run(outbound, step);
        } else if let Some((_, step)) = self.due.take_if(|(due, _)| *due <= now) {
            self.run(outbound, step);
        }
    }

    pub(super) fn deadline(&self) -> Option<Now> {
        earlier(self.flight.as_ref().map(|flight| flight.until), self.due.map(|(due, _)| due))
    }
}

/// The metadata of a new Lease, as EdgeCore writes them.
fn new_metadata(node: &str) -> Map<String, Value> {
    let fields = [("name", node.into()), ("namespace", NAMESPACE.into()), ("creationTimestamp", Value::Null)];
    fields.into_iter().map(|(field, value)| (field.to_owned(), value)).collect()
}

/// The metadata of a Lease, as they are written back; none if the text is no object with a version.
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

/// The UID of the Node that owns the Lease.
fn owner(metadata: &Map<String, Value>) -> Option<String> {
    let references = metadata.get("ownerReferences")?.as_array()?;
    let uid = references.iter().find(|reference| is_node(reference))?.get("uid")?.as_str()?;
    Some(uid.to_owned())
}

/// Makes the Node the owner; owners of other kinds stay. A Lease whose owner is gone is removed.
fn own(metadata: &mut Map<String, Value>, node: &str, uid: &str) {
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
