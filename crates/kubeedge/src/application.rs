//! Applications: requests of a node that CloudCore's dynamic controller executes at the API server.
//! Lists and watches of any kind, status of custom resources.

use std::borrow::Cow;
use std::hash::Hasher as _;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use serde::Deserialize;
use serde_json::value::RawValue;
use siphasher::sip128::{Hasher128 as _, SipHasher24};

use super::message::{Failure, failure, quoted};
use super::names::WatchRule;
use edgesync_object::NodeName;

#[cfg(test)]
mod tests;

/// The scope of a list or a watch.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Scope {
    pub(super) rule: WatchRule,
    /// A field selector such as `spec.nodeName=edge-1`; empty for none.
    pub(super) fields: Box<str>,
}

impl Scope {
    /// Returns the scope of the same kind in all namespaces.
    pub(super) fn everywhere(&self) -> Self {
        Self { rule: WatchRule { namespace: None, ..self.rule.clone() }, fields: "".into() }
    }

    /// Returns the key of an Application: `/<group>/<version>/<plural>/<namespace>/null`, with
    /// `null` for absent parts and `core` for the empty group.
    pub(super) fn key(&self) -> String {
        let WatchRule { version, plural, namespace, .. } = &self.rule;
        let namespace = namespace.as_deref().unwrap_or("null");
        format!("/{}/{version}/{plural}/{namespace}/null", self.rule.group_word())
    }
}

/// A request to the dynamic controller.
#[derive(Clone, Debug)]
pub(super) enum Request<'a> {
    /// Requests one page of a list.
    List { scope: &'a Scope, limit: u32, continues: Option<&'a str> },
    /// Starts to push changes.
    Watch { scope: &'a Scope },
    /// Replaces the status of an object by a merge patch of the subresource.
    PatchStatus { key: String, name: &'a str, patch: &'a str },
}

impl Request<'_> {
    /// Returns the content of the message.
    pub(super) fn to_json(&self, node: &NodeName) -> String {
        let (_, json) = self.application(node);
        json
    }

    /// Returns the id and the content.
    fn application(&self, node: &NodeName) -> (String, String) {
        let (verb, key) = match self {
            Self::List { scope, .. } => ("list", scope.key()),
            Self::Watch { scope } => ("watch", scope.key()),
            Self::PatchStatus { key, .. } => ("patch", key.clone()),
        };
        let option = self.option();
        let id = id(node, &key, verb, &option);
        let json = format!(
            concat!(
                r#"{{"ID":"{id}","Key":{key},"Verb":"{verb}","Nodename":{node},"Option":"{option}","#,
                r#""ReqBody":null,"Subresource":"","RespBody":null,"Status":"InApplying","Reason":"","#,
                r#""Error":{{"ErrStatus":{{"metadata":{{}}}}}},"Timestamp":"0001-01-01T00:00:00Z"}}"#
            ),
            id = id,
            key = quoted(&key),
            verb = verb,
            node = quoted(node),
            option = BASE64.encode(option)
        );
        (id, json)
    }

    /// Returns the options of the verb as JSON.
    fn option(&self) -> String {
        let mut members = Vec::new();
        match self {
            Self::List { scope, limit, continues } => {
                members.extend(field_selector(scope));
                if *limit > 0 {
                    members.push(format!(r#""limit":{limit}"#));
                }
                members.extend(continues.map(|token| format!(r#""continue":{}"#, quoted(token))));
            }
            Self::Watch { scope } => {
                members.extend(field_selector(scope));
                let initial =
                    r#""watch":true,"resourceVersionMatch":"NotOlderThan","sendInitialEvents":true"#;
                members.push(initial.to_owned());
            }
            Self::PatchStatus { name, patch, .. } => {
                members
                    .push(format!(r#""Name":{},"PatchType":"application/merge-patch+json""#, quoted(name)));
                members.push(format!(r#""Data":"{}""#, BASE64.encode(patch)));
                members.push(r#""Options":{},"Subresources":["status"]"#.to_owned());
            }
        }
        format!("{{{}}}", members.join(","))
    }
}

fn field_selector(scope: &Scope) -> Option<String> {
    (!scope.fields.is_empty()).then(|| format!(r#""fieldSelector":{}"#, quoted(&scope.fields)))
}

/// Returns the id of a request: 64 hexadecimal digits that depend on all of its parts. CloudCore
/// identifies the listeners of all nodes by it alone, so it includes the node's name, and a
/// repeated watch has the same id.
fn id(node: &NodeName, key: &str, verb: &str, option: &str) -> String {
    let half = |half: u64| {
        let mut hasher = SipHasher24::new_with_keys(0x6564_6765_7379_6e63, half);
        for part in [node.as_str(), key, verb, option] {
            hasher.write(part.as_bytes());
            // The byte 0xff occurs in no UTF-8 text: it separates the parts.
            hasher.write_u8(0xff);
        }
        hasher.finish128().as_u128()
    };
    format!("{:032x}{:032x}", half(0), half(1))
}

/// Returns the content of `watchapp/sync`: all desired watches; CloudCore drops others of this
/// node.
pub(super) fn all_watches(node: &NodeName, scopes: &[Scope]) -> String {
    let watch = |scope| {
        let (id, json) = Request::Watch { scope }.application(node);
        format!("\"{id}\":{json}")
    };
    format!("{{{}}}", scopes.iter().map(watch).collect::<Vec<_>>().join(","))
}

/// A response of the dynamic controller.
#[derive(Debug)]
pub(super) enum Response {
    /// The request was executed. The decoded body of the API server; empty for a watch.
    Approved { body: String },
    /// The request was refused or failed.
    Refused(Failure),
}

/// Parses the content of an `applicationResponse`; `None` if it is unreadable.
pub(super) fn response(content: &RawValue) -> Option<Response> {
    #[derive(Deserialize)]
    #[serde(rename_all = "PascalCase")]
    struct Answered<'a> {
        #[serde(borrow)]
        status: Cow<'a, str>,
        #[serde(borrow, default)]
        reason: Cow<'a, str>,
        #[serde(borrow, default)]
        resp_body: Option<Cow<'a, str>>,
        #[serde(borrow, default)]
        error: Option<&'a RawValue>,
    }
    let answered: Answered<'_> = serde_json::from_str(content.get()).ok()?;
    match &*answered.status {
        "Approved" => {
            let body = BASE64.decode(answered.resp_body.unwrap_or_default().as_bytes()).ok()?;
            Some(Response::Approved { body: String::from_utf8(body).ok()? })
        }
        "Rejected" | "Failed" => {
            let failure = answered.error.and_then(failure).filter(|failure| *failure != Failure::default());
            Some(Response::Refused(failure.unwrap_or_else(|| by_words(&answered.reason))))
        }
        _ => None,
    }
}

/// Derives the failure of a list from its text, because it has no Status.
fn by_words(words: &str) -> Failure {
    let has = |part: &str| words.contains(part);
    let (code, reason) = match () {
        () if has("forbidden") || has("not allowed") => (403, "Forbidden"),
        () if has("too old") => (410, "Expired"),
        () if has("not found") || has("could not find") => (404, "NotFound"),
        () => (0, ""),
    };
    Failure::new(code, reason, words)
}

/// One page of a list.
#[derive(Debug)]
pub(super) struct Page<'a> {
    pub(super) api_version: Box<str>,
    /// The kind of the items, derived from the list's (`WidgetList`).
    pub(super) kind: Box<str>,
    /// The version of the list, the same on all its pages.
    pub(super) resource_version: Box<str>,
    /// The continue token of the next page; empty after the last.
    pub(super) continues: Box<str>,
    pub(super) items: Vec<&'a RawValue>,
}

/// Parses the body of a list; `None` if it is not one.
pub(super) fn page(body: &str) -> Option<Page<'_>> {
    #[derive(Deserialize)]
    #[serde(rename_all = "camelCase")]
    struct List<'a> {
        #[serde(borrow)]
        api_version: Cow<'a, str>,
        #[serde(borrow)]
        kind: Cow<'a, str>,
        #[serde(borrow, default)]
        metadata: ListMeta<'a>,
        #[serde(borrow)]
        items: Option<Vec<&'a RawValue>>,
    }
    #[derive(Deserialize, Default)]
    #[serde(rename_all = "camelCase")]
    struct ListMeta<'a> {
        #[serde(borrow, default)]
        resource_version: Cow<'a, str>,
        #[serde(borrow, default, rename = "continue")]
        continues: Cow<'a, str>,
    }
    let list: List<'_> = serde_json::from_str(body).ok()?;
    Some(Page {
        api_version: (&*list.api_version).into(),
        kind: list.kind.strip_suffix("List").filter(|kind| !kind.is_empty())?.into(),
        resource_version: (&*list.metadata.resource_version).into(),
        continues: (&*list.metadata.continues).into(),
        items: list.items.unwrap_or_default(),
    })
}
