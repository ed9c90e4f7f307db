//! KubeEdge's messages: one JSON object each, `header`, `route` and `content`. The formats are those that a stock
//! CloudCore and EdgeCore were seen to use; `tests/fixtures/kubeedge` holds them.

use std::borrow::Cow;

use serde_json::value::RawValue;

use super::desk::MessageId;
use super::names::Name;

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

/// A message of CloudCore.
#[derive(Debug)]
pub(super) struct Incoming<'a> {
    /// None if it is no UUID: such a message cannot be acknowledged.
    pub(super) id: Option<MessageId>,
    /// The message of ours that it answers.
    pub(super) parent: Option<MessageId>,
    pub(super) resource_version: Option<Cow<'a, str>>,
    pub(super) source: Cow<'a, str>,
    pub(super) group: Cow<'a, str>,
    pub(super) operation: Operation,
    /// `<namespace>/<type>/<name>` as it was sent.
    pub(super) resource: Cow<'a, str>,
    /// None for `null` or nothing.
    pub(super) content: Option<&'a RawValue>,
    /// How long the whole message is, in bytes.
    pub(super) bytes: usize,
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
        todo!()
    }

    /// Whether the content is an object of a kind that is kept here: neither "OK", nor `{"Object", "Err"}`, nor that of
    /// a type such as `nodepatch`, `podpatch` or `lease`.
    pub(super) fn is_object(&self) -> bool {
        todo!()
    }
}

/// Whether CloudCore waits for the acknowledgement of this message: everything that answers nothing, and answers with an
/// object in them (but for Leases and Nodes). EdgeCore acknowledges more; that changes nothing at CloudCore and costs 2 MB
/// a day for the Lease alone.
pub(super) fn wants_acknowledgement(incoming: &Incoming<'_>) -> bool {
    let _ = incoming;
    todo!()
}

/// Reads one message.
///
/// # Errors
/// It is no JSON, or has no header or route; says what is wrong, in at most 200 bytes.
pub(super) fn decode(text: &[u8]) -> Result<Incoming<'_>, String> {
    let _ = text;
    todo!()
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

/// Reads a bare `{"ErrStatus": …}`, the answer to a question for what does not exist; none if it has another form.
pub(super) fn failure(content: &RawValue) -> Option<Failure> {
    let _ = content;
    todo!()
}

/// Reads the content of an answer; none if it has another form.
pub(super) fn outcome(content: &RawValue) -> Option<Outcome<'_>> {
    let _ = content;
    todo!()
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
        let _ = (id, wall);
        todo!()
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
        let _ = incoming;
        todo!()
    }

    /// `response` "OK", group `resource`; source and resource as they came.
    pub(super) fn draft(&self) -> Draft<'_> {
        todo!()
    }
}

/// The sign of life: source `websocket`, as EdgeCore writes it.
pub(super) fn keepalive() -> Draft<'static> {
    todo!()
}

/// A question: `query` with `null`, source `edged`, group `meta`.
pub(super) fn query(name: &Name) -> Draft<'static> {
    let _ = name;
    todo!()
}

/// A write: source `edged`, group `meta`.
pub(super) fn write<'a>(
    name: &'static str,
    operation: &'a str,
    resource: impl Into<Cow<'a, str>>,
    content: impl Into<Cow<'a, str>>,
) -> Draft<'a> {
    let _ = (name, operation, resource.into(), content.into());
    todo!()
}

/// An Application: source `metaserver`, group `dynamiccontroller`, operation `null`, resource `null` or
/// `watchapp/sync`.
pub(super) fn application<'a>(resource: &'a str, content: String) -> Draft<'a> {
    let _ = (resource, content);
    todo!()
}
