//! Validates items of a node's outbox before they take effect: format, content, and the node's
//! authority over the objects that they refer to. Pure.

mod event;
mod references;

use std::sync::Arc;

use serde_json::Value;

use edgesync_api::check_event;
use edgesync_object::status::Cause;
use edgesync_object::{NodeName, Object, ObjectRef, Resource};
use edgesync_placement::Placed;
use edgesync_protocol::digest::Epoch;
use edgesync_protocol::node::NodeReport;
use edgesync_protocol::upload::{Content, EffectContent, RefusedReason, StatusContent, Upload, not_placed};
use edgesync_schema as schema;
use edgesync_schema::Schema;

use super::source::{Effect, UploadBatch, UploadEffect, clip};
use references::NodePlacement;
pub use references::event_tokens;
pub(super) use references::{References, Targets};

/// Maximum length of a node's report, in bytes of JSON.
const MAX_REPORT: usize = 64 << 10;
/// Maximum length of an Event, in bytes of JSON: a device accepts 64 KiB, and adds fields.
const MAX_EVENT: usize = 72 << 10;
/// Maximum number of problems in a refusal's message.
const MAX_CAUSES: usize = 4;

type Refusal = (RefusedReason, String);

fn invalid(message: impl Into<String>) -> Refusal {
    (RefusedReason::Invalid, message.into())
}

/// Validates an upload from a node with this database file, and returns the batch to store.
/// `targets` are the references of the upload; `schema` returns the schema of a kind, if there is
/// one.
pub(super) fn prepare(
    (node, epoch): (&NodeName, Epoch),
    upload: &Upload,
    targets: &Targets,
    schema: impl Fn(&Resource) -> Option<Arc<Schema>>,
) -> UploadBatch {
    let items = upload.items.iter().map(|item| {
        let effect = effect(item.content.get(), (node, epoch), targets, &schema);
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

fn effect(
    content: &str,
    (node, epoch): (&NodeName, Epoch),
    targets: &Targets,
    schema: &impl Fn(&Resource) -> Option<Arc<Schema>>,
) -> Result<Effect, Refusal> {
    match Content::parse(content).map_err(invalid)? {
        Content::Node(report) => node_report(report.get()),
        Content::Status(status) => object_status(&status, targets, schema),
        Content::Event(event) => node_event(event.get(), node, targets),
        Content::Effect(effect) => in_effect(effect, epoch, targets),
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

fn node_event(json: &str, node: &NodeName, targets: &Targets) -> Result<Effect, Refusal> {
    check_length("Event", json, MAX_EVENT)?;
    if targets.refuses_events() {
        let message = "Events exceed the rate of a node (nodes.event_burst, nodes.event_refill)";
        return Err((RefusedReason::Other, message.to_owned()));
    }
    let event = Object::parse(json).map_err(|error| invalid(error.to_string()))?;
    let mut event = check_event(event).map_err(|causes| invalid(describe(&causes)))?;
    event::attribute(&mut event, node, targets)?;
    Ok(Effect::Event(Box::new(event)))
}

/// Validates the status of an object: only that of an object which is placed on the node may
/// change.
fn object_status(
    content: &StatusContent<'_>,
    targets: &Targets,
    schema: &impl Fn(&Resource) -> Option<Arc<Schema>>,
) -> Result<Effect, Refusal> {
    let StatusContent { uid, object, status } = content;
    let resource = match targets.reported(uid) {
        Some(NodePlacement::Placed(placed)) => same_object(placed, object)?,
        Some(NodePlacement::Held(_) | NodePlacement::NotPlaced) => return Err(not_placed(&object.key())),
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
        status,
    })
}

/// Validates the reported effects of an object, which is placed on the node or held by it. The
/// store accepts those of another object if it has recorded the object for the node, and the end of
/// any.
fn in_effect(mut effect: EffectContent, epoch: Epoch, targets: &Targets) -> Result<Effect, Refusal> {
    let known = match targets.reported(&effect.uid) {
        Some(NodePlacement::Placed(placed)) => {
            same_object(placed, &effect.object)?;
            Some(&placed.object)
        }
        Some(NodePlacement::Held(object)) if object.key() == effect.object.key() => Some(object),
        Some(NodePlacement::Held(_)) => return Err(not_placed(&effect.object.key())),
        Some(NodePlacement::NotPlaced) => None,
        None => return Err(invalid("effect outside of the status lane")),
    };
    if let Some(object) = known {
        effect.object = ObjectRef::clone(object);
    }
    let known = known.is_some();
    Ok(Effect::InEffect { effect: Box::new(effect), epoch, known })
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
