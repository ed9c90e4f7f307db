//! The status of an object: a Pod's by `podpatch`, a custom resource's by the dynamic controller.
//! The UID is part of it, so that an object recreated under the same name is not changed.

use super::{Refusal, failure_text, invalid};
use crate::application::Request;
use crate::message::{self, Draft, Failure, quoted};
use edgesync_object::name::{check_label, check_path_segment, check_subdomain};
use edgesync_object::{NodeName, kinds};
use edgesync_protocol::upload::{RefusedReason, StatusContent};

/// A status in flight.
#[derive(Debug)]
pub(in crate::upload) enum StatusTask {
    /// The status of a Pod.
    Pod { resource: String, content: String },
    /// The status of a custom resource.
    Custom { request: String },
}

impl StatusTask {
    pub(in crate::upload) fn draft(&self) -> Draft<'_> {
        match self {
            Self::Pod { resource, content } => {
                message::write("status", "patch", resource.as_str(), content.as_str())
            }
            Self::Custom { request } => message::application("null", request.clone()),
        }
    }
}

/// Validates a status and builds its request.
pub(in crate::upload) fn read(content: &StatusContent<'_>, node: &NodeName) -> Result<StatusTask, Refusal> {
    let StatusContent { uid, object, status } = content;
    let resource = kinds::guess(&object.api_version, &object.kind, !object.namespace.is_empty());
    if resource.group.is_empty() && matches!(&*object.kind, "ConfigMap" | "Secret" | "Node") {
        let message = format!("objects of kind {} have no status that a node sets", object.kind);
        return Err((RefusedReason::Other, message));
    }
    check_path_segment(&object.name).map_err(|problem| invalid(format!("name: {problem}")))?;
    for (field, part) in [("namespace", &*object.namespace), ("group", &resource.group)] {
        if !part.is_empty() {
            check_subdomain(part).map_err(|problem| invalid(format!("{field}: {problem}")))?;
        }
    }
    for (field, part) in [("version", &resource.version), ("kind", &resource.plural)] {
        check_label(part).map_err(|problem| invalid(format!("{field}: {problem}")))?;
    }
    if !status.get().starts_with('{') {
        return Err(invalid("the status must be an object"));
    }
    let patch = format!(r#"{{"metadata":{{"uid":{}}},"status":{}}}"#, quoted(uid), status.get());
    let or = |part: &str, other: &str| if part.is_empty() { other.to_owned() } else { part.to_owned() };
    let namespace = or(&object.namespace, "null");
    if resource.group.is_empty() && &*object.kind == "Pod" {
        let resource = format!("{namespace}/podpatch/{}", object.name);
        return Ok(StatusTask::Pod { resource, content: quoted(&patch) });
    }
    let group = or(&resource.group, "core");
    let key = format!("/{group}/{}/{}/{namespace}/{}", resource.version, resource.plural, object.name);
    let request = Request::PatchStatus { key, name: &object.name, patch: &patch };
    Ok(StatusTask::Custom { request: request.to_json(node) })
}

/// Returns the refusal for a failed status.
pub(in crate::upload) fn refusal(failure: &Failure) -> Refusal {
    let is_other_uid = failure.code == 422 && failure.message.contains("metadata.uid");
    let reason = match failure.code {
        404 => RefusedReason::Gone,
        409 => RefusedReason::Recreated,
        422 if is_other_uid => RefusedReason::Recreated,
        400 | 422 => RefusedReason::Invalid,
        _ => RefusedReason::Other,
    };
    (reason, failure_text(failure))
}
