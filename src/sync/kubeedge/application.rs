//! Applications: requests that the dynamic controller of CloudCore makes at the API server for a node. Lists and
//! watches of any kind, status of custom resources.

use serde_json::value::RawValue;

use super::message::Failure;
use super::names::WatchRule;

/// What is listed or watched.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Scope {
    pub(super) rule: WatchRule,
    /// A field selector such as `spec.nodeName=edge-1`; empty for none.
    pub(super) fields: Box<str>,
}

impl Scope {
    /// The key of an Application: `/<group>/<version>/<plural>/<namespace>/null`, `null` for what is not given and
    /// `core` for the empty group.
    pub(super) fn key(&self) -> String {
        todo!()
    }
}

/// A request.
#[derive(Clone, Debug)]
pub(super) enum Request<'a> {
    /// One page of a list.
    List { scope: &'a Scope, limit: u32, continues: Option<&'a str> },
    /// Push what changes.
    Watch { scope: &'a Scope },
    /// Replace the status of an object by a merge patch of the subresource.
    PatchStatus { key: String, name: &'a str, patch: &'a str },
}

impl Request<'_> {
    /// The content of the message.
    pub(super) fn to_json(&self, node: &str) -> String {
        let _ = (node, id);
        todo!()
    }
}

/// The id of a request: 64 hexadecimal digits that depend on everything in it. CloudCore knows listeners by it alone, of
/// all nodes: so it has the node's name in it, and a watch that is asked for again has the same one.
fn id(node: &str, key: &str, verb: &str, option: &str) -> String {
    let _ = (node, key, verb, option);
    todo!()
}

/// The content of `watchapp/sync`: all watches that are to be; CloudCore forgets those of this node that are not in it.
pub(super) fn all_watches(node: &str, scopes: &[Scope]) -> String {
    let _ = (node, scopes);
    todo!()
}

/// An answer.
#[derive(Debug)]
pub(super) enum Response {
    /// It was done. The body of the API server, decoded; empty for a watch.
    Approved { body: String },
    /// It was refused, or failed.
    Refused(Failure),
}

/// Reads the content of an `applicationResponse`; none if it cannot be read.
pub(super) fn response(content: &RawValue) -> Option<Response> {
    let _ = content;
    todo!()
}

/// A page of a list.
#[derive(Debug)]
pub(super) struct Page<'a> {
    pub(super) api_version: Box<str>,
    /// The kind of the items, from that of the list (`WidgetList`).
    pub(super) kind: Box<str>,
    /// The version of the list, the same on all its pages.
    pub(super) resource_version: Box<str>,
    /// Where the next page begins; empty after the last.
    pub(super) continues: Box<str>,
    pub(super) items: Vec<&'a RawValue>,
}

/// Reads the body of a list; none if it is none.
pub(super) fn page(body: &str) -> Option<Page<'_>> {
    let _ = body;
    todo!()
}
