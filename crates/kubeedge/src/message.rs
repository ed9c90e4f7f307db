//! KubeEdge's messages: one JSON object each, `header`, `route` and `content`. The formats are those that a stock
//! CloudCore and EdgeCore were seen to use; `tests/fixtures/kubeedge` holds them.

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

/// The source of what a watch pushes.
pub(super) const DYNAMIC_CONTROLLER: &str = "dynamiccontroller";
/// Types that are no objects to be kept, or are answers only. A watch may push objects of these names nevertheless.
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
/// The longest text of an error, in bytes.
const MAX_PROBLEM: usize = 200;
/// The longest message of a failure that is kept, in bytes.
const MAX_FAILURE: usize = 256;

/// What a message wants.
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

/// A message of CloudCore.
#[derive(Debug)]
pub(super) struct Incoming<'a> {
    /// None if it is no UUID: such a message cannot be acknowledged.
    pub(super) id: Option<MessageId>,
    /// The message of ours that it answers.
    pub(super) parent: Option<MessageId>,
    pub(super) resource_version: Option<Cow<'a, str>>,
    pub(super) source: Cow<'a, str>,
    pub(super) operation: Operation,
    /// `<namespace>/<type>/<name>` as it was sent.
    pub(super) resource: Cow<'a, str>,
    /// None for `null` or nothing.
    pub(super) content: Option<&'a RawValue>,
}

/// What a resource names: namespace (empty for `null`), type in lower case, name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Target<'a> {
    pub(super) namespace: &'a str,
    pub(super) kind: &'a str,
    pub(super) name: &'a str,
}

impl Incoming<'_> {
    /// None if the resource has not three parts. A name may have slashes in it.
    pub(super) fn target(&self) -> Option<Target<'_>> {
        let mut parts = self.resource.splitn(3, '/');
        let (namespace, kind, name) = (parts.next()?, parts.next()?, parts.next()?);
        let namespace = if namespace == "null" { "" } else { namespace };
        (!kind.is_empty() && !name.is_empty()).then_some(Target { namespace, kind, name })
    }

    /// Whether objects of the type that the resource names are kept here.
    pub(super) fn is_kept(&self) -> bool {
        self.target()
            .is_some_and(|target| self.source == DYNAMIC_CONTROLLER || !NOT_KEPT.contains(&target.kind))
    }

    /// Whether the content is an object of a kind that is kept here: neither "OK", nor `{"Object", "Err"}`, nor that of
    /// a type such as `nodepatch`, `podpatch` or `lease`.
    pub(super) fn is_object(&self) -> bool {
        let metadata = |content: &'_ RawValue| {
            member(content.get(), &["metadata"]).is_some_and(|metadata| metadata.starts_with('{'))
        };
        self.content.is_some_and(metadata) && self.is_kept()
    }
}

/// Whether CloudCore waits for the acknowledgement of this message: everything that answers nothing, and answers with an
/// object in them (but for Leases and Nodes). EdgeCore acknowledges more; that changes nothing at CloudCore and costs 2 MB
/// a day for the Lease alone.
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

/// A message as it is written.
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

/// Reads one message.
///
/// # Errors
/// It is no JSON, or has no header or route; says what is wrong, in at most 200 bytes.
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

/// Reads a UUID: 32 hexadecimal digits in groups of 8, 4, 4, 4 and 12.
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

/// A UUID as text.
fn id_text(id: MessageId) -> String {
    let part = |shift: u32, bits: u32| (id >> shift) & ((1 << bits) - 1);
    let (time, version) = (part(96, 32), part(64, 16));
    format!("{time:08x}-{:04x}-{version:04x}-{:04x}-{:012x}", part(80, 16), part(48, 16), part(0, 48))
}

/// The content of an answer to something that was written: `{"Object": …, "Err": …}`.
#[derive(Debug)]
pub(super) struct Outcome<'a> {
    /// The object as it is now; none for `null`, and what is there beside an error means nothing.
    pub(super) object: Option<&'a RawValue>,
    /// The error.
    pub(super) error: Option<Failure>,
}

/// `Err.ErrStatus`, a Status of Kubernetes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Failure {
    pub(super) code: u16,
    /// Such as `NotFound`, `AlreadyExists`, `Conflict`.
    pub(super) reason: String,
    pub(super) message: String,
}

/// A Status of Kubernetes within an error.
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
    /// A failure in these words, cut to a length that can be shown.
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

/// Reads a bare `{"ErrStatus": …}`, the answer to a question for what does not exist; none if it has another form.
pub(super) fn failure(content: &RawValue) -> Option<Failure> {
    serde_json::from_str::<Wrapped<'_>>(content.get()).ok().map(Failure::from)
}

/// Reads the content of an answer; none if it has another form.
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
    // An error of another form than a Status is one nevertheless.
    let error = (!is_null(err)).then(|| failure(err).unwrap_or_else(|| Failure::new(0, "", err.get())));
    let object = (error.is_none() && !is_null(object)).then_some(object);
    Some(Outcome { object, error })
}

/// A text as JSON, in its quotes.
pub(super) fn quoted(text: &str) -> String {
    Value::from(text).to_string()
}

/// A message to be sent, but for identity and time.
#[derive(Clone, Debug)]
pub(super) struct Draft<'a> {
    /// A short fixed word, for counters.
    pub(super) name: &'static str,
    pub(super) parent: Option<MessageId>,
    pub(super) source: &'a str,
    pub(super) group: &'a str,
    pub(super) operation: &'a str,
    pub(super) resource: Cow<'a, str>,
    /// JSON text.
    pub(super) content: Cow<'a, str>,
}

impl Draft<'_> {
    /// The message as JSON with a newline at its end, fields in the order of the captures.
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

/// The acknowledgement of a message, to be sent later.
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

    /// `response` "OK", group `resource`; source and resource as they came.
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

/// The sign of life: source `websocket`, as EdgeCore writes it.
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

/// A question: `query` with `null`, source `edged`, group `meta`.
pub(super) fn query(name: &Name) -> Draft<'static> {
    write("query", "query", name.to_string(), "null")
}

/// A write: source `edged`, group `meta`.
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

/// An Application: source `metaserver`, group `dynamiccontroller`, operation `null`, resource `null` or
/// `watchapp/sync`.
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
