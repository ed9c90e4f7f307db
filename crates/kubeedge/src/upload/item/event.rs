//! Events: stored as `events.k8s.io/v1`, sent to CloudCore in the form of the core group.
//!
//! An Event that has occurred more than once may exist already, which CloudCore does not report: it
//! is inserted and then patched. The patch waits until the insert was read, because CloudCore
//! handles two messages in any order.

use jiff::Timestamp;
use serde_json::{Map, Value, json};

use super::{Refusal, invalid};
use crate::message::{self, Draft};
use edgesync_object::event::event_to_core;
use edgesync_object::name::{check_label, check_path_segment};
use edgesync_object::time::rfc3339;
use edgesync_object::{NodeName, Object};

/// The largest Event, in bytes.
const MAX_EVENT: usize = 64 << 10;
/// The metadata fields of the insert; the server sets the others.
const METADATA: [&str; 4] = ["name", "namespace", "labels", "annotations"];

/// An Event in flight.
#[derive(Debug)]
pub(in crate::upload) struct EventTask {
    resource: String,
    insert: String,
    /// The content of the patch, for a repeated Event.
    patch: Option<String>,
    is_patching: bool,
}

impl EventTask {
    /// Parses an Event in either form.
    pub(in crate::upload) fn read(json: &str, node: &NodeName) -> Result<Self, Refusal> {
        if json.len() > MAX_EVENT {
            return Err(invalid(format!("Event must be at most {MAX_EVENT} bytes")));
        }
        let mut event = Object::parse(json).map_err(|error| invalid(format!("parse Event: {error}")))?;
        event_to_core(&mut event);
        if (event.api_version(), event.kind()) != ("v1", "Event") {
            return Err(invalid("must be an Event of 'events.k8s.io/v1' or 'v1'"));
        }
        complete(&mut event, node);
        check_path_segment(event.name()).map_err(|problem| invalid(format!("metadata.name: {problem}")))?;
        check_label(event.namespace())
            .map_err(|problem| invalid(format!("metadata.namespace: {problem}")))?;
        let resource = format!("{}/event/{}", event.namespace(), event.name());
        let patch = repeats(&event)
            .then(|| json!({ "event": event.fields(), "patchData": patch_data(&event) }).to_string());
        Ok(Self { resource, insert: event.to_json(), patch, is_patching: false })
    }

    pub(in crate::upload) fn draft(&self) -> Draft<'_> {
        let (operation, content) = match &self.patch {
            Some(patch) if self.is_patching => ("patch", patch),
            _ => ("insert", &self.insert),
        };
        message::write("event", operation, self.resource.as_str(), content.as_str())
    }

    /// Handles the pong after a message. Returns whether another message follows.
    pub(in crate::upload) fn advance(&mut self) -> bool {
        let more = self.patch.is_some() && !self.is_patching;
        self.is_patching |= more;
        more
    }
}

/// Derives the fields that readers of the core form expect from the other form.
fn complete(event: &mut Object, node: &NodeName) {
    if event.namespace().is_empty() {
        event.set_metadata("namespace", "default");
    }
    let fields = event.fields_mut();
    if let Some(Value::Object(metadata)) = fields.get_mut("metadata") {
        metadata.retain(|field, _| METADATA.contains(&field.as_str()));
        metadata.insert("creationTimestamp".to_owned(), Value::Null);
    }
    let series = fields.get("series").and_then(Value::as_object);
    let first = fields.get("eventTime").and_then(seconds);
    let last = series.and_then(|series| series.get("lastObservedTime")).and_then(seconds);
    let count = series.and_then(|series| series.get("count")).cloned();
    let component = fields.get("reportingComponent").cloned();
    let source = component.map(|component| json!({ "component": component, "host": node }));
    set(fields, "lastTimestamp", last.or_else(|| first.clone()));
    set(fields, "firstTimestamp", first);
    set(fields, "count", count.or_else(|| Some(1.into())));
    set(fields, "source", source);
}

/// Sets an absent field.
fn set(fields: &mut Map<String, Value>, field: &str, value: Option<Value>) {
    let is_there = fields.get(field).is_some_and(|value| !value.is_null());
    if let Some(value) = value.filter(|_| !is_there) {
        fields.insert(field.to_owned(), value);
    }
}

/// Truncates a time to whole seconds.
fn seconds(time: &Value) -> Option<Value> {
    let time: Timestamp = time.as_str()?.parse().ok()?;
    Some(rfc3339(time).into())
}

/// Returns whether the Event has occurred more than once.
fn repeats(event: &Object) -> bool {
    let is_series = event.fields().get("series").is_some_and(Value::is_object);
    is_series || event.fields().get("count").and_then(Value::as_i64).is_some_and(|count| count > 1)
}

/// Returns a strategic merge patch of the changing fields of a series.
fn patch_data(event: &Object) -> String {
    let fields = event.fields();
    let mut patch: Map<String, Value> = ["count", "lastTimestamp", "message", "series"]
        .into_iter()
        .filter_map(|field| Some((field.to_owned(), fields.get(field)?.clone())))
        .collect();
    let annotations = event.annotations();
    if !annotations.is_empty() {
        patch.insert("metadata".to_owned(), json!({ "annotations": annotations }));
    }
    Value::Object(patch).to_string()
}
