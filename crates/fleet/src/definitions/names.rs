//! Name resolution of custom kinds, and the status of definitions. Pure.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;

use serde_json::{Map, Value, json};

use super::read::{Definition, Names};
use crate::reasons::{DefinitionReason, RULES_NOT_EVALUATED};
use edgesync_api::Kind;
use edgesync_protocol::node::ConditionFields;

/// Maximum number of rules listed in the condition [`RULES_NOT_EVALUATED`].
const MAX_LISTED: usize = 16;

/// Result of a definition.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Outcome {
    /// Reason and message if a name belongs to another kind.
    pub(super) conflict: Option<(DefinitionReason, String)>,
    /// The names under which it is served, if it is.
    pub(super) accepted: Names,
    /// Whether it is served.
    pub(super) established: bool,
}

/// Names in use in a group.
#[derive(Default)]
struct Taken<'a> {
    resources: HashSet<&'a str>,
    kinds: HashSet<&'a str>,
}

impl<'a> Taken<'a> {
    fn conflict(&self, names: &Names) -> Option<(DefinitionReason, String)> {
        let resource = names.of_resource().find(|(_, name)| self.resources.contains(name));
        let kind = || names.of_kind().into_iter().find(|(_, name)| self.kinds.contains(name));
        let (reason, name) = resource.or_else(kind)?;
        Some((reason, format!("'{name}' is already in use")))
    }

    fn take(&mut self, names: &'a Names) {
        self.resources.extend(names.of_resource().map(|(_, name)| name).filter(|name| !name.is_empty()));
        self.kinds.extend(names.of_kind().map(|(_, name)| name).into_iter().filter(|name| !name.is_empty()));
    }
}

/// Assigns names: to built-in kinds first, then to established definitions, then to the older
/// definition. A definition in conflict keeps its accepted names.
pub(super) fn resolve(
    definitions: &BTreeMap<String, Definition>,
    served: &[Arc<Kind>],
) -> BTreeMap<String, Outcome> {
    let mut taken: HashMap<&str, Taken<'_>> = HashMap::new();
    // A learnt kind, and a known one without a schema, yield to a definition.
    for kind in served.iter().filter(|kind| !kind.custom && kind.schema.is_some()) {
        let group = taken.entry(&kind.resource.group).or_default();
        let words = kind.short_names.iter().map(String::as_str);
        group.resources.extend(words.chain([kind.resource.plural.as_str(), kind.singular.as_str()]));
        group.kinds.extend([kind.resource.kind.as_str(), kind.list_kind.as_str()]);
    }
    // Established definitions keep their names against all others.
    let mut order: Vec<(&String, &Definition)> = definitions.iter().collect();
    order.sort_by_key(|(name, definition)| (!definition.established, &definition.created, *name));
    let mut outcomes = BTreeMap::new();
    for (name, definition) in order {
        let group = taken.entry(&definition.group).or_default();
        let conflict = group.conflict(&definition.names);
        let accepted = if conflict.is_none() { &definition.names } else { &definition.accepted };
        let established = definition.established || (conflict.is_none() && definition.problem.is_none());
        group.take(accepted);
        outcomes.insert(name.clone(), Outcome { conflict, accepted: accepted.clone(), established });
    }
    outcomes
}

/// Returns the new status of a definition; `now` is the time of transitions, in RFC 3339.
pub(super) fn status(definition: &Definition, outcome: &Outcome, now: &str) -> Map<String, Value> {
    let current = &definition.status;
    let mut conditions = Conditions {
        list: current.get("conditions").and_then(Value::as_array).cloned().unwrap_or_default(),
        now,
    };
    match &outcome.conflict {
        None => conditions.set(DefinitionReason::NoConflicts, "no conflicts found"),
        Some((reason, message)) => conditions.set(*reason, message),
    }
    if outcome.established {
        conditions.set(DefinitionReason::InitialNamesAccepted, "the initial names have been accepted");
    } else if let Some(problem) = &definition.problem {
        conditions.set(DefinitionReason::InvalidDefinition, problem);
    } else {
        conditions.set(DefinitionReason::NotAccepted, "not all names are accepted");
    }
    if definition.lacking.is_empty() {
        conditions.remove(RULES_NOT_EVALUATED);
    } else {
        let listed: Vec<&str> = definition.lacking.iter().map(String::as_str).take(MAX_LISTED).collect();
        let more = if definition.lacking.len() > MAX_LISTED { "; and more" } else { "" };
        conditions.set(DefinitionReason::NotSupported, &format!("{}{more}", listed.join("; ")));
    }
    if definition.deleting {
        let message = "the objects of the kind are being deleted";
        conditions.set(DefinitionReason::InstanceDeletionInProgress, message);
    }
    let mut stored = current.get("storedVersions").and_then(Value::as_array).cloned().unwrap_or_default();
    if !definition.storage.is_empty() && !stored.iter().any(|version| *version == definition.storage) {
        stored.push(definition.storage.as_str().into());
    }
    let mut status = current.clone();
    status.insert("acceptedNames".to_owned(), json!(outcome.accepted));
    status.insert("conditions".to_owned(), Value::Array(conditions.list));
    status.insert("storedVersions".to_owned(), Value::Array(stored));
    status
}

struct Conditions<'a> {
    list: Vec<Value>,
    now: &'a str,
}

impl Conditions<'_> {
    fn remove(&mut self, kind: &str) {
        self.list.retain(|condition| condition.get("type").and_then(Value::as_str) != Some(kind));
    }

    /// Sets a condition. Its time is that of the last transition of its status.
    fn set(&mut self, reason: DefinitionReason, message: &str) {
        let ConditionFields { condition: kind, status, reason } = reason.fields();
        let state = status.as_str();
        let text =
            |condition: &Value, field: &str| condition.get(field).and_then(Value::as_str).map(str::to_owned);
        let place = self.list.iter().position(|condition| text(condition, "type").as_deref() == Some(kind));
        let old = place.and_then(|place| self.list.get(place));
        let since = old.filter(|old| text(old, "status").as_deref() == Some(state));
        let since = since.and_then(|old| text(old, "lastTransitionTime"));
        let condition = json!({
            "type": kind, "status": state, "reason": reason, "message": message,
            "lastTransitionTime": since.unwrap_or_else(|| self.now.to_owned()),
        });
        match place.and_then(|place| self.list.get_mut(place)) {
            Some(old) => *old = condition,
            None => self.list.push(condition),
        }
    }
}
