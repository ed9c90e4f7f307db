//! Converts messages about objects into changes of the held objects.

use std::sync::Arc;

use serde_json::value::RawValue;

use super::message::{DYNAMIC_CONTROLLER, Incoming, Operation, Target, quoted};
use super::types::BridgeConfig;
use edgesync_object::kinds::{self, KnownKind};
use edgesync_object::{
    Head, ObjectKey, Resource, Scope, name, pluralize, split_api_version, with_field, without_managed_fields,
};
use edgesync_protocol::change::{Change, Delete, Put, Rejected};
use edgesync_protocol::message::{
    Fault, ObjectError, check_extent, check_names, check_uid, check_version, clip, invalid, read_head,
    rejected,
};

#[cfg(test)]
mod tests;

/// The kinds known before an object has named its own.
const KNOWN: &[&str] = &["configmap", "device", "devicemodel", "node", "pod", "secret"];
/// The most learned kinds.
const MAX_KINDS: usize = 256;

/// Problem of an object.
#[derive(Debug, thiserror::Error)]
enum ItemError {
    /// It is invalid on every link.
    #[error(transparent)]
    Object(#[from] ObjectError),
    /// It is in a list of another kind; the texts of the object are truncated.
    #[error("must be a {list}, like the list it is in, is a {api_version} {kind}")]
    OtherKind { list: String, api_version: String, kind: String },
}

/// The outcome of a message about an object.
#[derive(Debug)]
pub(super) enum About {
    /// A change to apply.
    Change(Change),
    /// The object cannot be held; the message is acknowledged nevertheless.
    Rejected(Rejected),
    /// A delete without a UID: the name may belong to a new object by now.
    Unclear,
}

/// The kinds by the lower-case names of messages. Pods, ConfigMaps, Secrets, Nodes, Devices and
/// DeviceModels are known; all others are learned from objects.
#[derive(Debug, Default)]
pub(super) struct Kinds {
    learned: Vec<Arc<Resource>>,
}

impl Kinds {
    /// Returns the kind of a type, if known.
    pub(super) fn get(&self, kind: &str) -> Option<Arc<Resource>> {
        let Some(known) = known(kind) else {
            let named = |resource: &&Arc<Resource>| {
                resource.kind.eq_ignore_ascii_case(kind) || is_singular(kind, &resource.plural)
            };
            return self.learned.iter().find(named).cloned();
        };
        let same = |resource: &&Arc<Resource>| resource.group == known.group && resource.kind == known.kind;
        let learned = self.learned.iter().find(same).cloned();
        Some(learned.unwrap_or_else(|| Arc::new(known.resource())))
    }

    /// Learns the kind of an object with its plural; at most 256 are kept.
    pub(super) fn learn(&mut self, resource: &Arc<Resource>) {
        let same = |known: &&mut Arc<Resource>| {
            (&known.group, &known.version, &known.kind)
                == (&resource.group, &resource.version, &resource.kind)
        };
        if let Some(known) = self.learned.iter_mut().find(same) {
            known.clone_from(resource);
        } else if self.learned.len() < MAX_KINDS {
            self.learned.push(resource.clone());
        }
    }

    /// Returns the kind of an object and learns it. The plural comes from the rule that watches it,
    /// or from an earlier object of the same kind.
    fn of(&mut self, head: &Head<'_>, kind: &str, config: &BridgeConfig) -> Arc<Resource> {
        let (group, version) = split_api_version(&head.api_version);
        let (plural, lower) = (pluralize(&head.kind), head.kind.to_ascii_lowercase());
        let rule = config.watch.iter().find(|rule| {
            (&*rule.group, &*rule.version) == (group, version)
                && (*rule.plural == *plural
                    || [kind, &lower].iter().any(|word| is_singular(word, &rule.plural)))
        });
        let known = self.learned.iter().find(|resource| {
            (&*resource.group, &*resource.version, &*resource.kind) == (group, version, &*head.kind)
                && rule.is_none_or(|rule| *resource.plural == *rule.plural)
        });
        if let Some(known) = known {
            return known.clone();
        }
        let mut resource = kinds::guess(&head.api_version, &head.kind, !head.metadata.namespace.is_empty());
        if let Some(rule) = rule {
            resource.plural = rule.plural.as_ref().to_owned();
        }
        let resource = Arc::new(resource);
        self.learn(&resource);
        resource
    }
}

/// Returns the kind of a type known in advance.
fn known(kind: &str) -> Option<&'static KnownKind> {
    let is_meant =
        |known: &&KnownKind| known.singular == kind && matches!(known.group, "" | "devices.kubeedge.io");
    KNOWN.contains(&kind).then(|| kinds::KINDS.iter().find(is_meant)).flatten()
}

/// Returns whether the dynamic controller derives this singular from the plural: it names objects
/// by it, whatever their kind.
fn is_singular(word: &str, plural: &str) -> bool {
    if let Some(stem) = plural.strip_suffix("ies") {
        return word.strip_suffix('y') == Some(stem);
    }
    let cut = if plural.ends_with("ses") { "es" } else { "s" };
    plural.strip_suffix(cut).unwrap_or(plural) == word
}

/// Reads a message with one of the operations `insert`, `update`, `patch`, `delete` and `response`.
/// Returns `None` if it carries no object of a stored kind.
///
/// * `insert`, `update`, `patch`, `response`: the content is the whole object, and is held if it is
///   newer.
/// * `delete`: the UID in the content counts; kind, version, and everything else may be missing.
/// * Missing `kind` and `apiVersion` of known kinds are taken from the route.
/// * `metadata.managedFields` is removed unless configured otherwise.
/// * The version is that of the content. A header with another one makes the object invalid.
pub(super) fn read(incoming: &Incoming<'_>, config: &BridgeConfig, kinds: &mut Kinds) -> Option<About> {
    if incoming.operation == Operation::Delete {
        let target = incoming.target().filter(|_| incoming.is_kept())?;
        return Some(delete(incoming, target, kinds));
    }
    if !incoming.is_object() {
        return is_broken(incoming).then(|| {
            let version = incoming.resource_version.as_deref().unwrap_or_default();
            let message = format!("`content` must be an object, in '{}'", clip(&incoming.resource, 120));
            About::Rejected(rejected(None, version, invalid(message)))
        });
    }
    let (target, content) = (incoming.target()?, incoming.content?.get());
    let claimed = incoming.resource_version.as_deref();
    let known = kinds.get(target.kind);
    let kind = |head: &Head<'_>| {
        check_route(head, target, incoming)?;
        Ok(kinds.of(head, target.kind, config))
    };
    Some(match put(content, known.as_deref(), claimed, config, kind) {
        Ok(put) => About::Change(Change::Put(put)),
        Err(rejected) => About::Rejected(rejected),
    })
}

/// Returns whether a message lacks its object: these two sources push nothing but objects.
fn is_broken(incoming: &Incoming<'_>) -> bool {
    matches!(&*incoming.source, "edgecontroller" | DYNAMIC_CONTROLLER)
        && incoming.operation != Operation::Response
        && (incoming.is_kept() || incoming.target().is_none())
}

/// Returns the deletion. The UID is required, the kind is derived as well as possible.
fn delete(incoming: &Incoming<'_>, target: Target<'_>, kinds: &Kinds) -> About {
    let head = incoming.content.and_then(|content| read_head(content.get()).ok());
    let Some(head) = head.filter(|head| check_uid(head).is_ok()) else { return About::Unclear };
    let Target { namespace, kind, name } = target;
    let is_name = (namespace.is_empty() || name::check_label(namespace).is_ok())
        && name::check_label(&kind.to_ascii_lowercase()).is_ok()
        && name::check_path_segment(name).is_ok();
    if !is_name {
        return About::Unclear;
    }
    let key = match kinds.get(kind) {
        Some(resource) if head.kind.is_empty() || head.kind == resource.kind => resource.key(namespace, name),
        _ => {
            let said = check_names(&head).is_ok().then(|| split_api_version(&head.api_version));
            let (group, kind) = said.map_or(("", kind), |(group, _)| (group, &*head.kind));
            ObjectKey {
                group: group.into(),
                kind: kind.into(),
                namespace: namespace.into(),
                name: name.into(),
            }
        }
    };
    About::Change(Change::Delete(Delete { uid: Arc::from(&*head.metadata.uid), key }))
}

/// Checks that the content is the object that the route names. The dynamic controller derives the
/// type from the plural, so it may differ from the kind.
fn check_route(head: &Head<'_>, target: Target<'_>, incoming: &Incoming<'_>) -> Result<(), ObjectError> {
    let meta = &head.metadata;
    let is_kind = head.kind.eq_ignore_ascii_case(target.kind)
        || incoming.source == DYNAMIC_CONTROLLER
        || known(target.kind).is_none();
    if is_kind && meta.name == target.name && meta.namespace == target.namespace {
        return Ok(());
    }
    Err(ObjectError::other_object(&incoming.resource, head))
}

/// Reads an object of a list like [`read`]. The text is the object; a missing kind is the list's.
///
/// # Errors
/// Returns the reason why the object cannot be held.
pub(super) fn read_item(
    text: &str,
    resource: &Arc<Resource>,
    config: &BridgeConfig,
) -> Result<Change, Rejected> {
    let kind = |head: &Head<'_>| {
        if head.kind == resource.kind && head.api_version == resource.api_version() {
            return Ok(resource.clone());
        }
        Err(ItemError::OtherKind {
            list: resource.kind.clone(),
            api_version: clip(&head.api_version, 80).to_owned(),
            kind: clip(&head.kind, 40).to_owned(),
        })
    };
    put(text, Some(resource), None, config, kind).map(Change::Put)
}

/// Validates an object to hold. `known` is its kind if it names none, `claimed` the version it must
/// have; `kind` runs the checks of the source and returns the kind.
fn put(
    text: &str,
    known: Option<&Resource>,
    claimed: Option<&str>,
    config: &BridgeConfig,
    kind: impl FnOnce(&Head<'_>) -> Result<Arc<Resource>, ItemError>,
) -> Result<Put, Rejected> {
    let unread = |error: ObjectError| rejected(None, claimed.unwrap_or_default(), invalid(error.to_string()));
    let head = read_head(text).map_err(unread)?;
    let Some(text) = completed(text, &head, known) else { return hold(text, &head, claimed, config, kind) };
    let head = read_head(&text).map_err(unread)?;
    hold(&text, &head, claimed, config, kind)
}

fn hold(
    text: &str,
    head: &Head<'_>,
    claimed: Option<&str>,
    config: &BridgeConfig,
    kind: impl FnOnce(&Head<'_>) -> Result<Arc<Resource>, ItemError>,
) -> Result<Put, Rejected> {
    let meta = &head.metadata;
    let version = claimed.unwrap_or(&meta.resource_version);
    let reject = |fault: Fault| rejected(Some(head), version, fault);
    check_extent(text, config.max_object).map_err(reject)?;
    let resource = checked(head, claimed, kind).map_err(|error| reject(invalid(error.to_string())))?;
    let body = body(text, config).map_err(|error| reject(invalid(error.to_string())))?;
    Ok(Put {
        uid: Arc::from(&*meta.uid),
        version: (&*meta.resource_version).into(),
        supersedes: None,
        resource,
        namespace: (&*meta.namespace).into(),
        name: (&*meta.name).into(),
        body,
    })
}

fn checked(
    head: &Head<'_>,
    claimed: Option<&str>,
    kind: impl FnOnce(&Head<'_>) -> Result<Arc<Resource>, ItemError>,
) -> Result<Arc<Resource>, ItemError> {
    check_uid(head)?;
    check_names(head)?;
    check_version(head, claimed)?;
    let resource = kind(head)?;
    if (resource.scope == Scope::Cluster) != head.metadata.namespace.is_empty() {
        return Err(ObjectError::Scope(resource.scope).into());
    }
    Ok(resource)
}

/// Returns the text with `kind` and `apiVersion` added; `None` if it has them, or has those of
/// another kind.
fn completed(text: &str, head: &Head<'_>, known: Option<&Resource>) -> Option<String> {
    let known = known?;
    let api_version = known.api_version();
    let fields = [("apiVersion", &head.api_version, &*api_version), ("kind", &head.kind, &*known.kind)];
    let is_other = fields.iter().any(|(_, has, known)| !has.is_empty() && has != known);
    let mut missing = fields.iter().filter(|(_, has, _)| has.is_empty()).peekable();
    if is_other || missing.peek().is_none() {
        return None;
    }
    missing.try_fold(text.to_owned(), |text, (field, _, value)| {
        let value = quoted(value);
        with_field(&text, field, &value)
            .or_else(|| Some(format!("{{\"{field}\":{value},{}", text.strip_prefix('{')?)))
    })
}

/// Returns the text to store.
fn body(text: &str, config: &BridgeConfig) -> serde_json::Result<Box<RawValue>> {
    let text = text.to_owned();
    RawValue::from_string(if config.managed_fields { text } else { without_managed_fields(text) })
}
