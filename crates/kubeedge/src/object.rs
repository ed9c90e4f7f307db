//! From a message about an object to a change of what is held.

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
    Fault, check_extent, check_names, check_uid, check_version, clip, invalid, read_head, rejected,
};

#[cfg(test)]
mod tests;

/// The kinds whose types are known before an object has said what it is.
const KNOWN: &[&str] = &["configmap", "device", "devicemodel", "node", "pod", "secret"];
/// The most kinds that are learned.
const MAX_KINDS: usize = 256;

/// What a message about an object comes to.
#[derive(Debug)]
pub(super) enum About {
    /// Hold it, or hold it no more.
    Change(Change),
    /// It cannot be held; the message is acknowledged nevertheless.
    Rejected(Rejected),
    /// A delete without a UID: the name may belong to a new object by now.
    Unclear,
}

/// The kinds by the lower-case name that messages use. Pods, ConfigMaps, Secrets, Nodes, Devices and DeviceModels are
/// known; all others are learned from objects that say what they are.
#[derive(Debug, Default)]
pub(super) struct Kinds {
    learned: Vec<Arc<Resource>>,
}

impl Kinds {
    /// The kind of a type, if it is known.
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

    /// Notes the kind of an object, with the plural that it has; at most 256 are kept.
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

    /// The kind of an object, which is learned from it. The plural is that of the rule that watches it, if there is one,
    /// or that of an object of the same kind that came before.
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

/// The kind of a type that is known before an object has said what it is.
fn known(kind: &str) -> Option<&'static KnownKind> {
    let is_meant =
        |known: &&KnownKind| known.singular == kind && matches!(known.group, "" | "devices.kubeedge.io");
    KNOWN.contains(&kind).then(|| kinds::KINDS.iter().find(is_meant)).flatten()
}

/// Whether the dynamic controller guesses this singular from the plural: it calls objects by that, whatever their kind is.
fn is_singular(word: &str, plural: &str) -> bool {
    if let Some(stem) = plural.strip_suffix("ies") {
        return word.strip_suffix('y') == Some(stem);
    }
    let cut = if plural.ends_with("ses") { "es" } else { "s" };
    plural.strip_suffix(cut).unwrap_or(plural) == word
}

/// Reads a message with one of the operations `insert`, `update`, `patch`, `delete` and `response`. None if it is not
/// about an object that is kept here (no object in it, or a type such as `lease`).
///
/// * `insert`, `update`, `patch`, `response`: content is the whole object, and is held if it is newer.
/// * `delete`: the UID in content counts; kind, version, and everything else may be missing.
/// * What is missing in content is taken from the route: `kind` and `apiVersion` of kinds that are known.
/// * `metadata.managedFields` is left out unless it is to be kept.
/// * The version is that of content. A header that says another one is a fault of the object.
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

/// Whether a message without an object is one that must have it: all that these two push is about objects.
fn is_broken(incoming: &Incoming<'_>) -> bool {
    matches!(&*incoming.source, "edgecontroller" | DYNAMIC_CONTROLLER)
        && incoming.operation != Operation::Response
        && (incoming.is_kept() || incoming.target().is_none())
}

/// What is to be removed: the UID must be there, the kind is found as well as may be.
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

/// Checks that content is the object that the route names. The dynamic controller guesses the type from the plural: it
/// need not be the kind.
fn check_route(head: &Head<'_>, target: Target<'_>, incoming: &Incoming<'_>) -> Result<(), String> {
    let meta = &head.metadata;
    let is_kind = head.kind.eq_ignore_ascii_case(target.kind)
        || incoming.source == DYNAMIC_CONTROLLER
        || known(target.kind).is_none();
    if is_kind && meta.name == target.name && meta.namespace == target.namespace {
        return Ok(());
    }
    Err(format!(
        "`content` must be the object that `route.resource` names: '{}' is not {} '{}/{}'",
        clip(&incoming.resource, 80),
        clip(&head.kind, 40),
        clip(&meta.namespace, 40),
        clip(&meta.name, 80)
    ))
}

/// Reads an object of a list: as [`read`], but the text is the object, and its kind is that of the list where it has none.
///
/// # Errors
/// Why it cannot be held.
pub(super) fn read_item(
    text: &str,
    resource: &Arc<Resource>,
    config: &BridgeConfig,
) -> Result<Change, Rejected> {
    let kind = |head: &Head<'_>| {
        if head.kind == resource.kind && head.api_version == resource.api_version() {
            return Ok(resource.clone());
        }
        let (api_version, kind) = (clip(&head.api_version, 80), clip(&head.kind, 40));
        Err(format!("must be a {}, like the list it is in, is a {api_version} {kind}", resource.kind))
    };
    put(text, Some(resource), None, config, kind).map(Change::Put)
}

/// An object to be held. `known` is the kind that it has if it does not say so itself, `claimed` the version that it must
/// have; `kind` checks what is particular to where it comes from, and tells its kind.
fn put(
    text: &str,
    known: Option<&Resource>,
    claimed: Option<&str>,
    config: &BridgeConfig,
    kind: impl FnOnce(&Head<'_>) -> Result<Arc<Resource>, String>,
) -> Result<Put, Rejected> {
    let unread = |message| rejected(None, claimed.unwrap_or_default(), invalid(message));
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
    kind: impl FnOnce(&Head<'_>) -> Result<Arc<Resource>, String>,
) -> Result<Put, Rejected> {
    let meta = &head.metadata;
    let version = claimed.unwrap_or(&meta.resource_version);
    let reject = |fault: Fault| rejected(Some(head), version, fault);
    check_extent(text, config.max_object).map_err(reject)?;
    let resource = checked(head, claimed, kind).map_err(|message| reject(invalid(message)))?;
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
    kind: impl FnOnce(&Head<'_>) -> Result<Arc<Resource>, String>,
) -> Result<Arc<Resource>, String> {
    check_uid(head)?;
    check_names(head)?;
    check_version(head, claimed)?;
    let resource = kind(head)?;
    if (resource.scope == Scope::Cluster) != head.metadata.namespace.is_empty() {
        return Err(format!("`metadata.namespace` must fit the scope, which is {:?}", resource.scope));
    }
    Ok(resource)
}

/// The text with `kind` and `apiVersion` in it; nothing if it has them, or if the one that it has is another one's.
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

/// The text that is stored.
fn body(text: &str, config: &BridgeConfig) -> serde_json::Result<Box<RawValue>> {
    let text = text.to_owned();
    RawValue::from_string(if config.managed_fields { text } else { without_managed_fields(text) })
}
