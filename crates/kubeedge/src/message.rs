//! The codec of KubeEdge messages: JSON objects with `header`, `route` and `content`.
//!
//! The formats are those observed between a stock CloudCore and EdgeCore; `tests/fixtures/kubeedge`
//! contains them.

use std::borrow::Cow;

use serde::Deserialize;
use serde_json::Value;
use serde_json::value::RawValue;

use super::names::Name;
use edgesync_object::member;
use edgesync_protocol::message::clip;

#[cfg(test)]
mod tests;

/// The identity of a message: a UUID (RFC 9562, version 4).
pub(super) type MessageId = u128;

/// The source of messages that a watch pushes.
pub(super) const DYNAMIC_CONTROLLER: &str = "dynamiccontroller";
/// Types that are not stored or occur only in answers. A watch may nevertheless push objects of
/// these names.
const NOT_KEPT: &[&str] = &[
    "certificatesigningrequest",
    "event",
    "lease",
    "membership",
    "nodepatch",
    "nodestatus",
    "podlist",
    "podpatch",
    "podstatus",
    "serviceaccountaccess",
    "serviceaccounttoken",
    "twin",
];
/// The longest error text, in bytes.
const MAX_PROBLEM: usize = 200;
/// The longest stored message of a failure, in bytes.
const MAX_FAILURE: usize = 256;

/// The operation of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Operation {
    Insert,
    Update,
    Patch,
    Delete,
    Response,
    ApplicationResponse,
    Error,
    Other,
}

impl Operation {
    fn of(word: &str) -> Self {
        match word {
            "insert" => Self::Insert,
            "update" => Self::Update,
            "patch" => Self::Patch,
            "delete" => Self::Delete,
            "response" => Self::Response,
            "applicationResponse" => Self::ApplicationResponse,
            "error" => Self::Error,
            _ => Self::Other,
        }
    }
}

/// A message from CloudCore.
#[derive(Debug)]
pub(super) struct Incoming<'a> {
    /// `None` if it is not a UUID: such a message cannot be acknowledged.
    pub(super) id: Option<MessageId>,
    /// The message of this side that it answers.
    pub(super) parent: Option<MessageId>,
    pub(super) resource_version: Option<Cow<'a, str>>,
    pub(super) source: Cow<'a, str>,
    pub(super) operation: Operation,
    /// `<namespace>/<type>/<name>`, unchanged from the sender.
    pub(super) resource: Cow<'a, str>,
    /// `None` for `null` or absence.
    pub(super) content: Option<&'a RawValue>,
}

/// The parts of a resource: namespace (empty for `null`), type in lower case, name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Target<'a> {
    pub(super) namespace: &'a str,
    pub(super) kind: &'a str,
    pub(super) name: &'a str,
}

impl Incoming<'_> {
    /// Returns `None` if the resource has fewer than three parts. A name may contain slashes.
    pub(super) fn target(&self) -> Option<Target<'_>> {
        let mut parts = self.resource.splitn(3, '/');
        let (namespace, kind, name) = (parts.next()?, parts.next()?, parts.next()?);
        let namespace = if namespace == "null" { "" } else { namespace };
        (!kind.is_empty() && !name.is_empty()).then_some(Target { namespace, kind, name })
    }

    /// Returns whether objects of the resource's type are stored.
    pub(super) fn is_kept(&self) -> bool {
        self.target()
            .is_some_and(|target| self.source == DYNAMIC_CONTROLLER || !NOT_KEPT.contains(&target.kind))
    }

    /// Returns whether the content is an object of a stored kind, not "OK", `{"Object", "Err"}`, or
    /// a type such as `nodepatch`, `podpatch` or `lease`.
    pub(super) fn is_object(&self) -> bool {
        let metadata = |content: &'_ RawValue| {
            member(content.get(), &["metadata"]).is_some_and(|metadata| metadata.starts_with('{'))
        };
        self.content.is_some_and(metadata) && self.is_kept()
    }
}

/// Returns whether CloudCore waits for the acknowledgement of this message: every message that is
/// not an answer, and answers with an object (except Leases and Nodes).
///
/// EdgeCore acknowledges more. That has no effect at CloudCore and costs 2 MB a day for the Lease
/// alone.
pub(super) fn wants_acknowledgement(incoming: &Incoming<'_>) -> bool {
    match incoming.operation {
        Operation::ApplicationResponse | Operation::Error => false,
        Operation::Response if incoming.is_object() => {
            incoming.target().is_some_and(|target| target.kind != "node")
        }
        Operation::Response => {
            let settled = |content: &RawValue| content.get() == "\"OK\"" || failure(content).is_some();
            incoming.parent.is_none() && !incoming.content.is_some_and(settled)
        }
        _ => true,
    }
}

/// A message to encode.
#[derive(Deserialize)]
struct Written<'a> {
    #[serde(borrow)]
    header: Header<'a>,
    #[serde(borrow)]
    route: Route<'a>,
    #[serde(borrow, default)]
    content: Option<&'a RawValue>,
}

#[derive(Deserialize)]
struct Header<'a> {
    #[serde(borrow, default)]
    msg_id: Option<Cow<'a, str>>,
    #[serde(borrow, default)]
    parent_msg_id: Option<Cow<'a, str>>,
    #[serde(borrow, default)]
    resourceversion: Option<Cow<'a, str>>,
}

#[derive(Deserialize)]
struct Route<'a> {
    #[serde(borrow, default)]
    source: Cow<'a, str>,
    #[serde(borrow, default)]
    operation: Cow<'a, str>,
    #[serde(borrow)]
    resource: Cow<'a, str>,
}

/// Decodes one message.
///
/// # Errors
/// Returns the problem, in at most 200 bytes, if the text is not JSON or lacks header or route.
pub(super) fn decode(text: &[u8]) -> Result<Incoming<'_>, String> {
    let problem = |error: &dyn std::fmt::Display| clip(&error.to_string(), MAX_PROBLEM).to_owned();
    let whole = std::str::from_utf8(text).map_err(|error| problem(&error))?;
    let Written { header, route, content } = serde_json::from_str(whole).map_err(|error| problem(&error))?;
    Ok(Incoming {
        id: header.msg_id.as_deref().and_then(parse_id),
        parent: header.parent_msg_id.as_deref().and_then(parse_id),
        resource_version: header.resourceversion.filter(|version| !version.is_empty()),
        source: route.source,
        operation: Operation::of(&route.operation),
        resource: route.resource,
        content,
    })
}

/// Parses a UUID: 32 hexadecimal digits in groups of 8, 4, 4, 4 and 12.
fn parse_id(text: &str) -> Option<MessageId> {
    if text.len() != 36 {
        return None;
    }
    text.bytes().enumerate().try_fold(0, |id: MessageId, (at, byte)| match (at, byte) {
        (8 | 13 | 18 | 23, b'-') => Some(id),
        (8 | 13 | 18 | 23, _) => None,
        _ => Some((id << 4) | MessageId::from(char::from(byte).to_digit(16)?)),
    })
}

fn id_text(id: MessageId) -> String {
    let part = |shift: u32, bits: u32| (id >> shift) & ((1 << bits) - 1);
    let (time, version) = (part(96, 32), part(64, 16));
    format!("{time:08x}-{:04x}-{version:04x}-{:04x}-{:012x}", part(80, 16), part(48, 16), part(0, 48))
}

/// The content of an answer to a write: `{"Object": …, "Err": …}`.
#[derive(Debug)]
pub(super) struct Outcome<'a> {
    /// The current object; `None` for `null`. Meaningless beside an error.
    pub(super) object: Option<&'a RawValue>,
    /// The error of the write.
    pub(super) error: Option<Failure>,
}

/// `Err.ErrStatus`, a Kubernetes Status.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Failure {
    pub(super) code: u16,
    /// The reason, such as `NotFound`, `AlreadyExists`, `Conflict`.
    pub(super) reason: String,
    pub(super) message: String,
}

/// A Kubernetes Status within an error.
#[derive(Deserialize)]
struct Wrapped<'a> {
    #[serde(rename = "ErrStatus", borrow)]
    status: Status<'a>,
}

#[derive(Deserialize)]
struct Status<'a> {
    #[serde(default)]
    code: u16,
    #[serde(borrow, default)]
    reason: Cow<'a, str>,
    #[serde(borrow, default)]
    message: Cow<'a, str>,
}

impl Failure {
    /// Creates a failure, its texts truncated for display.
    pub(super) fn new(code: u16, reason: &str, message: &str) -> Self {
        let shown = |text| clip(text, MAX_FAILURE).to_owned();
        Self { code, reason: shown(reason), message: shown(message) }
    }
}

impl From<Wrapped<'_>> for Failure {
    fn from(Wrapped { status }: Wrapped<'_>) -> Self {
        Self::new(status.code, &status.reason, &status.message)
    }
}

/// Parses a bare `{"ErrStatus": …}`, the answer to a query for a missing object; `None` for another
/// form.
pub(super) fn failure(content: &RawValue) -> Option<Failure> {
    serde_json::from_str::<Wrapped<'_>>(content.get()).ok().map(Failure::from)
}

/// Parses the content of an answer; `None` for another form.
pub(super) fn outcome(content: &RawValue) -> Option<Outcome<'_>> {
    #[derive(Deserialize)]
    #[serde(rename_all = "PascalCase")]
    struct Parts<'a> {
        #[serde(borrow)]
        object: &'a RawValue,
        #[serde(borrow)]
        err: &'a RawValue,
    }
    let Parts { object, err } = serde_json::from_str(content.get()).ok()?;
    let is_null = |value: &RawValue| value.get() == "null";
    // An error without a Status is an error too.
    let error = (!is_null(err)).then(|| failure(err).unwrap_or_else(|| Failure::new(0, "", err.get())));
    let object = (error.is_none() && !is_null(object)).then_some(object);
    Some(Outcome { object, error })
}

/// Returns a text as a quoted JSON string.
pub(super) fn quoted(text: &str) -> String {
    Value::from(text).to_string()
}

/// A message to send, without id and timestamp.
#[derive(Clone, Debug)]
pub(super) struct Draft<'a> {
    /// A short fixed label for metrics.
    pub(super) name: &'static str,
    pub(super) parent: Option<MessageId>,
    pub(super) source: &'a str,
    pub(super) group: &'a str,
    pub(super) operation: &'a str,
    pub(super) resource: Cow<'a, str>,
    /// The content as JSON text.
    pub(super) content: Cow<'a, str>,
}

impl Draft<'_> {
    /// Encodes the message as JSON with a trailing newline, fields in the order of the captures.
    pub(super) fn to_text(&self, id: MessageId, wall: i64) -> String {
        let parent = match self.parent {
            Some(parent) => format!(r#""parent_msg_id":"{}","#, id_text(parent)),
            None => String::new(),
        };
        format!(
            concat!(
                r#"{{"header":{{"msg_id":"{}",{}"timestamp":{}}},"#,
                r#""route":{{"source":{},"group":{},"operation":{},"resource":{}}},"content":{}}}"#,
                "\n"
            ),
            id_text(id),
            parent,
            wall,
            quoted(self.source),
            quoted(self.group),
            quoted(self.operation),
            quoted(&self.resource),
            self.content
        )
    }
}

/// The acknowledgement of a message, sent later.
#[derive(Clone, Debug)]
pub(super) struct Answer {
    parent: Option<MessageId>,
    source: Box<str>,
    resource: Box<str>,
}

impl Answer {
    pub(super) fn to(incoming: &Incoming<'_>) -> Self {
        Self {
            parent: incoming.id,
            source: (&*incoming.source).into(),
            resource: (&*incoming.resource).into(),
        }
    }

    /// Returns the draft: `response` "OK", group `resource`, with source and resource of the
    /// message.
    pub(super) fn draft(&self) -> Draft<'_> {
        Draft {
            name: "acknowledgement",
            parent: self.parent,
            source: &self.source,
            group: "resource",
            operation: "response",
            resource: Cow::Borrowed(&self.resource),
            content: "\"OK\"".into(),
        }
    }
}

/// Returns the keepalive: source `websocket`, as EdgeCore writes it.
pub(super) fn keepalive() -> Draft<'static> {
    Draft {
        name: "keepalive",
        parent: None,
        source: "websocket",
        group: "resource",
        operation: "keepalive",
        resource: "node".into(),
        content: "\"ping\"".into(),
    }
}

/// Returns a query: `query` with `null`, source `edged`, group `meta`.
pub(super) fn query(name: &Name) -> Draft<'static> {
    write("query", "query", name.to_string(), "null")
}

/// Returns a write: source `edged`, group `meta`.
pub(super) fn write<'a>(
    name: &'static str,
    operation: &'a str,
    resource: impl Into<Cow<'a, str>>,
    content: impl Into<Cow<'a, str>>,
) -> Draft<'a> {
    Draft {
        name,
        parent: None,
        source: "edged",
        group: "meta",
        operation,
        resource: resource.into(),
        content: content.into(),
    }
}

/// Returns an Application: source `metaserver`, group `dynamiccontroller`, operation `null`,
/// resource `null` or `watchapp/sync`.
pub(super) fn application<'a>(resource: &'a str, content: String) -> Draft<'a> {
    Draft {
        name: "application",
        parent: None,
        source: "metaserver",
        group: DYNAMIC_CONTROLLER,
        operation: "null",
        resource: resource.into(),
        content: content.into(),
    }
}
