//! Validates items of a node's outbox before they take effect: format, content, and the node's
//! authority over the object. Pure.

use std::collections::HashMap;
use std::sync::Arc;

use serde_json::Value;

use edgesync_api::check_event;
use edgesync_object::objectsync::is_placeable;
use edgesync_object::status::Cause;
use edgesync_object::{Budget, NodeName, Object, ObjectRef, Resource, kinds};
use edgesync_placement::Placed;
use edgesync_protocol::change::Uid;
use edgesync_protocol::digest::Epoch;
use edgesync_protocol::node::NodeReport;
use edgesync_protocol::upload::{Content, EffectContent, Lane, RefusedReason, StatusContent, Upload};
use edgesync_schema as schema;
use edgesync_schema::Schema;

use super::source::{Effect, UploadBatch, UploadEffect};

/// Maximum length of a node's report, in bytes of JSON.
const MAX_REPORT: usize = 64 << 10;
/// Maximum length of an Event, in bytes of JSON: a device accepts 64 KiB, and adds fields.
const MAX_EVENT: usize = 72 << 10;
/// Maximum length of a refusal's message, in bytes.
const MAX_MESSAGE: usize = 256;
/// Maximum number of problems in a refusal's message.
const MAX_CAUSES: usize = 4;

/// Placement of an object, as seen from a node.
#[derive(Clone, Debug)]
pub(super) enum NodePlacement {
    /// Placed on this node.
    Placed(Arc<Placed>),
    /// Placed on other nodes or on none, or nonexistent.
    NotPlaced,
}

type Refusal = (RefusedReason, String);

fn invalid(message: impl Into<String>) -> Refusal {
    (RefusedReason::Invalid, message.into())
}

/// Returns the placement of the objects that an upload reports on, by UID: their status, or effects
/// in files. Only the status lane has any.
pub(super) fn placements(
    upload: &Upload,
    place: impl Fn(&str) -> NodePlacement,
) -> HashMap<Uid, NodePlacement> {
    if upload.lane != Lane::Status {
        return HashMap::new();
    }
    let contents = upload.items.iter().filter_map(|item| serde_json::from_str(item.content.get()).ok());
    let uids = contents.filter_map(|content| match content {
        Content::Status(status) => Some(status.uid),
        Content::Effect(effect) => Some(effect.uid),
        Content::Node(_) | Content::Event(_) => None,
    });
    uids.map(|uid| (uid.clone(), place(&uid))).collect()
}

/// Validates an upload from a node with this database file, and returns the batch to store.
/// `placements` is the result of [`placements`]; `schema` returns the schema of a kind, if there is
/// one.
pub(super) fn prepare(
    (node, epoch): (&NodeName, Epoch),
    upload: &Upload,
    placements: &HashMap<Uid, NodePlacement>,
    schema: impl Fn(&Resource) -> Option<Arc<Schema>>,
) -> UploadBatch {
    let items = upload.items.iter().map(|item| {
        let effect = effect(item.content.get(), epoch, placements, &schema);
        UploadEffect { seq: item.seq, effect: effect.map_err(|(reason, message)| (reason, clip(message))) }
    });
    UploadBatch {
        node: node.clone(),
        outbox: upload.outbox.clone(),
        lane: upload.lane,
        confirmed: upload.confirmed,
        items: items.collect(),
    }
}

/// Truncates a text to [`MAX_MESSAGE`] bytes at a character boundary.
pub(super) fn clip(mut text: String) -> String {
    text.truncate(text.floor_char_boundary(MAX_MESSAGE));
    text
}

fn effect(
    content: &str,
    epoch: Epoch,
    placements: &HashMap<Uid, NodePlacement>,
    schema: &impl Fn(&Resource) -> Option<Arc<Schema>>,
) -> Result<Effect, Refusal> {
    let depth = Budget::of(content.len()).check_depth(content);
    depth.map_err(|exceeded| invalid(format!("item {exceeded}")))?;
    match serde_json::from_str(content) {
        Ok(Content::Node(report)) => node_report(report.get()),
        Ok(Content::Status(status)) => object_status(&status, placements, schema),
        Ok(Content::Event(event)) => node_event(event.get()),
        Ok(Content::Effect(effect)) => in_effect(effect, epoch, placements),
        Err(error) => Err(invalid(format!("parse item: {error}"))),
    }
}

fn check_length(what: &str, json: &str, limit: usize) -> Result<(), Refusal> {
    let length = json.len();
    if length > limit {
        return Err(invalid(format!("{what} must be at most {limit} bytes, is {length}")));
    }
    Ok(())
}

fn node_report(json: &str) -> Result<Effect, Refusal> {
    check_length("node report", json, MAX_REPORT)?;
    let report: NodeReport =
        serde_json::from_str(json).map_err(|error| invalid(format!("parse node report: {error}")))?;
    report.check().map_err(|problems| invalid(problems.to_string()))?;
    Ok(Effect::Node(Box::new(report)))
}

fn node_event(json: &str) -> Result<Effect, Refusal> {
    check_length("Event", json, MAX_EVENT)?;
    let event = Object::parse(json).map_err(|error| invalid(error.to_string()))?;
    let event = check_event(event).map_err(|causes| invalid(describe(&causes)))?;
    Ok(Effect::Event(Box::new(event)))
}

fn object_status(
    content: &StatusContent<'_>,
    placements: &HashMap<Uid, NodePlacement>,
    schema: &impl Fn(&Resource) -> Option<Arc<Schema>>,
) -> Result<Effect, Refusal> {
    let StatusContent { uid, object, status } = content;
    let resource = match placements.get(uid) {
        Some(NodePlacement::Placed(placed)) => same_object(placed, object)?,
        // The store distinguishes a deleted object, a replaced one, and one not placed on this
        // node.
        Some(NodePlacement::NotPlaced) => {
            let guessed = kinds::guess(&object.api_version, &object.kind, !object.namespace.is_empty());
            if !is_placeable(&guessed) {
                return Err(not_placed(object));
            }
            guessed
        }
        None => return Err(invalid("object status outside of the status lane")),
    };
    let mut status: Value =
        serde_json::from_str(status.get()).map_err(|error| invalid(format!("parse status: {error}")))?;
    if let Some(schema) = schema(&resource) {
        check_status(&schema, &resource, &mut status)?;
    }
    Ok(Effect::Status {
        resource,
        namespace: object.namespace.to_string(),
        name: object.name.to_string(),
        uid: uid.clone(),
        placed: matches!(placements.get(uid), Some(NodePlacement::Placed(_))),
        status,
    })
}

/// Validates the reported effects of an object. The store accepts them if the object is placed on
/// the node or recorded for it.
fn in_effect(
    effect: EffectContent,
    epoch: Epoch,
    placements: &HashMap<Uid, NodePlacement>,
) -> Result<Effect, Refusal> {
    if !effect.is_sane() {
        return Err(invalid("effect exceeds its limits, or is inconsistent"));
    }
    let placed = match placements.get(&effect.uid) {
        Some(NodePlacement::Placed(placed)) => same_object(placed, &effect.object).map(|_| true)?,
        Some(NodePlacement::NotPlaced) => false,
        None => return Err(invalid("effect outside of the status lane")),
    };
    Ok(Effect::InEffect { effect: Box::new(effect), epoch, placed })
}

fn not_placed(object: &ObjectRef) -> Refusal {
    (RefusedReason::NotPlaced, format!("{} is not placed on this node", object.key()))
}

/// Returns the kind of the object if its key matches the one that the node sent.
fn same_object(placed: &Placed, object: &ObjectRef) -> Result<Resource, Refusal> {
    let key = placed.object.key();
    if key == object.key() {
        return Ok(Resource::clone(&placed.resource));
    }
    Err(invalid(format!("UID belongs to {key}, not to {}", object.key())))
}

/// Validates a status against its kind, as for an API request.
fn check_status(schema: &Schema, resource: &Resource, status: &mut Value) -> Result<(), Refusal> {
    let Some(schema) = schema.field("status") else {
        return Err(invalid(format!("kind {} has no status", resource.kind)));
    };
    let Some(fields) = status.as_object_mut() else {
        return Err(invalid("status must be an object"));
    };
    let mut wrong = schema::wrong_types(schema, fields);
    if wrong.is_empty() {
        schema::prune(schema, fields);
        wrong = schema::validate(schema, fields);
    }
    if wrong.is_empty() { Ok(()) } else { Err(invalid(format!("status: {}", describe(&wrong)))) }
}

fn describe(causes: &[Cause]) -> String {
    let cause = |cause: &Cause| format!("{}: {}", cause.field, cause.message);
    causes.iter().take(MAX_CAUSES).map(cause).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests;
