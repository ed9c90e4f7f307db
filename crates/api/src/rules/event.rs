//! Events: required and immutable fields, in both API groups. Pure.

use serde_json::{Map, Value};

use super::causes::{Causes, Path};
use super::{map, text};
use edgesync_object::event::PAIRS;
use edgesync_object::name::check_label_key;
use edgesync_object::{Object, Resource};

/// Maximum length of a reason, action and instance, in characters.
const MAX_WORD: usize = 128;
/// Maximum length of a note, in bytes.
const MAX_NOTE: usize = 1024;

/// The write of an Event.
#[derive(Clone, Copy)]
pub(super) enum Write<'a> {
    Create,
    /// An update of this Event.
    Update(&'a Object),
}

/// Field names in the version of the request.
struct Form {
    core: bool,
}

impl Form {
    /// Returns the name of an `events.k8s.io` field.
    fn name(&self, new: &'static str) -> &'static str {
        let pair = PAIRS.iter().find(|(_, name)| self.core && *name == new);
        pair.map_or(new, |(core, _)| core)
    }

    fn at(&self, new: &'static str) -> Path {
        Path::new(self.name(new))
    }
}

/// Checks an Event in the version of its kind. Core-group Events without a time are legacy ones
/// with few rules.
pub(super) fn check(kind: &Resource, event: &Object, write: Write<'_>, causes: &mut Causes) {
    let form = Form { core: kind.group.is_empty() };
    let fields = event.fields();
    let has_time = !text(fields, "eventTime").is_empty();
    check_namespace(&form, event, has_time, causes);
    if has_time {
        check_words(&form, fields, causes);
    }
    if form.core {
        return;
    }
    check_series(fields, causes);
    match write {
        Write::Create => check_new(has_time, fields, causes),
        Write::Update(old) => check_unchanged(old.fields(), fields, causes),
    }
}

/// The namespace must be that of the regarding object; Events about cluster-scoped objects are in
/// `default` or `kube-system`.
fn check_namespace(form: &Form, event: &Object, has_time: bool, causes: &mut Causes) {
    let regarding = text(map(event.fields(), form.name("regarding")), "namespace");
    let fits = match event.namespace() {
        namespace if !regarding.is_empty() => namespace == regarding,
        "" | "default" => true,
        "kube-system" => has_time,
        _ => false,
    };
    if !fits {
        let must = format!("must be '{}', the namespace of the event", event.namespace());
        causes.invalid(&form.at("regarding").field("namespace"), regarding, &must);
    }
}

fn check_words(form: &Form, fields: &Map<String, Value>, causes: &mut Causes) {
    for field in ["reportingController", "reportingInstance", "action", "reason"] {
        let value = text(fields, form.name(field));
        if value.is_empty() {
            causes.required(&form.at(field), "must not be empty");
        } else if value.chars().count() > MAX_WORD {
            causes.invalid(&form.at(field), value, &format!("must be at most {MAX_WORD} characters"));
        } else if field == "reportingController" {
            causes.name(&form.at(field), value, check_label_key(value));
        }
    }
    let note = text(fields, form.name("note"));
    if note.len() > MAX_NOTE {
        causes.invalid(&form.at("note"), note, &format!("must be at most {MAX_NOTE} bytes"));
    }
}

fn check_series(fields: &Map<String, Value>, causes: &mut Causes) {
    let Some(series) = fields.get("series").and_then(Value::as_object) else { return };
    let at = Path::new("series");
    let count = series.get("count").and_then(Value::as_i64).unwrap_or_default();
    if count < 2 {
        causes.invalid(&at.field("count"), &count.to_string(), "must be greater than or equal to 2");
    }
    if text(series, "lastObservedTime").is_empty() {
        causes.required(&at.field("lastObservedTime"), "must not be empty");
    }
}

fn check_new(has_time: bool, fields: &Map<String, Value>, causes: &mut Causes) {
    if !has_time {
        causes.required(&Path::new("eventTime"), "must not be empty");
    }
    if text(fields, "type").is_empty() {
        causes.required(&Path::new("type"), "must not be empty");
    }
    causes.choice(&Path::new(""), fields, "type", &["Normal", "Warning"]);
    for field in
        ["deprecatedFirstTimestamp", "deprecatedLastTimestamp", "deprecatedCount", "deprecatedSource"]
    {
        let set = match fields.get(field) {
            None | Some(Value::Null) => false,
            Some(Value::Object(source)) => source.values().any(|value| value != ""),
            Some(value) => value != 0,
        };
        if set {
            causes.forbidden(&Path::new(field), "must be absent");
        }
    }
}

/// Only the series of an Event may change.
fn check_unchanged(old: &Map<String, Value>, new: &Map<String, Value>, causes: &mut Causes) {
    let fixed = [
        "regarding",
        "reason",
        "note",
        "deprecatedFirstTimestamp",
        "deprecatedLastTimestamp",
        "deprecatedCount",
        "deprecatedSource",
        "eventTime",
        "action",
        "related",
        "reportingController",
        "reportingInstance",
        "type",
    ];
    for field in fixed {
        if old.get(field).filter(|value| !value.is_null()) != new.get(field).filter(|value| !value.is_null())
        {
            causes.immutable(&Path::new(field), new.get(field));
        }
    }
}
