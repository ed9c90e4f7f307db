//! Aggregated discovery: all of `/api` or `/apis` in one document. Pure.

use std::sync::Arc;

use serde_json::{Value, json};

use super::{
    CREATABLE, FINALIZABLE, Group, STATUS_WRITABLE, Version, add_names, groups_with_reviews, status_verbs,
    verbs,
};
use crate::accept::choose;
use crate::kind::Kind;
use crate::request::Review;
use edgesync_object::Scope;

/// The root of a discovery document.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Root {
    /// `/api`: the core group.
    Core,
    /// `/apis`: all other groups.
    Named,
}

/// The form of the documents under `/api` and `/apis`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Form {
    /// `APIVersions` and `APIGroupList`, in a negotiated format.
    Plain,
    /// `APIGroupDiscoveryList` for clients since Kubernetes 1.30.
    V2,
    /// `APIGroupDiscoveryList` for older clients.
    V2Beta1,
}

impl Form {
    /// Negotiates the form by an `Accept` header. Plain unless the client requests another form
    /// explicitly.
    pub(crate) fn accepted(accept: Option<&str>) -> Self {
        let offer = |media_type: &str, parameters: &[(&str, &str)]| {
            let parameter =
                |name| parameters.iter().find(|(found, _)| *found == name).map(|(_, value)| *value);
            let known = matches!(media_type, "application/json" | "application/*" | "*/*");
            match (parameter("as"), parameter("g"), parameter("v")) {
                (None, ..) if known || media_type == "application/yaml" => Some(Self::Plain),
                (Some("APIGroupDiscoveryList"), Some("apidiscovery.k8s.io"), Some(version)) if known => {
                    match version {
                        "v2" => Some(Self::V2),
                        "v2beta1" => Some(Self::V2Beta1),
                        _ => None,
                    }
                }
                _ => None,
            }
        };
        choose(accept.unwrap_or_default(), offer).unwrap_or(Self::Plain)
    }

    /// Returns the content type of an aggregated form; `None` for the plain one.
    pub(crate) fn content_type(self) -> Option<&'static str> {
        match self {
            Self::Plain => None,
            Self::V2 => Some("application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList"),
            Self::V2Beta1 => {
                Some("application/json;g=apidiscovery.k8s.io;v=v2beta1;as=APIGroupDiscoveryList")
            }
        }
    }
}

/// Builds the document of a root in a form.
pub(crate) fn aggregated(kinds: &[Arc<Kind>], root: Root, form: Form) -> Value {
    let version = match form {
        Form::Plain if root == Root::Core => return super::core_versions(kinds),
        Form::Plain => return super::group_list(kinds),
        Form::V2 => "v2",
        Form::V2Beta1 => "v2beta1",
    };
    let groups = groups_with_reviews(kinds);
    let selected = groups.iter().filter(|group| group.name.is_empty() == (root == Root::Core));
    let items: Vec<Value> = selected.map(group).collect();
    json!({
        "kind": "APIGroupDiscoveryList",
        "apiVersion": format!("apidiscovery.k8s.io/{version}"),
        "metadata": {},
        "items": items,
    })
}

fn group(group: &Group<'_>) -> Value {
    let metadata = if group.name.is_empty() { json!({}) } else { json!({ "name": group.name }) };
    let versions: Vec<Value> = group.versions.iter().map(version).collect();
    json!({ "metadata": metadata, "versions": versions })
}

fn version(version: &Version<'_>) -> Value {
    let resources = version.kinds.iter().map(|kind| resource(kind));
    let resources: Vec<Value> = resources.chain(version.reviews.iter().copied().map(review)).collect();
    json!({ "version": version.name, "resources": resources, "freshness": "Current" })
}

fn review(review: Review) -> Value {
    let response = json!({ "group": review.group(), "version": Review::VERSION, "kind": review.kind() });
    json!({
        "resource": review.plural(),
        "responseKind": response,
        "scope": "Cluster",
        "singularResource": review.kind().to_ascii_lowercase(),
        "verbs": CREATABLE,
    })
}

fn resource(kind: &Kind) -> Value {
    let Kind { resource, .. } = kind;
    let response = json!({ "group": resource.group, "version": resource.version, "kind": resource.kind });
    let scope = match resource.scope {
        Scope::Namespaced => "Namespaced",
        Scope::Cluster => "Cluster",
    };
    let mut entry = json!({
        "resource": resource.plural,
        "responseKind": response,
        "scope": scope,
        "singularResource": kind.singular,
        "verbs": verbs(kind),
    });
    add_names(&mut entry, kind);
    let mut parts = Vec::new();
    if kind.is_finalized() {
        parts.push(json!({ "subresource": "finalize", "responseKind": response, "verbs": FINALIZABLE }));
    }
    if kind.scale.is_some() {
        let response = json!({ "group": "autoscaling", "version": "v1", "kind": "Scale" });
        parts.push(json!({ "subresource": "scale", "responseKind": response, "verbs": STATUS_WRITABLE }));
    }
    if kind.status_subresource {
        parts.push(json!({ "subresource": "status", "responseKind": response, "verbs": status_verbs(kind) }));
    }
    if !parts.is_empty() {
        entry["subresources"] = parts.into();
    }
    entry
}
