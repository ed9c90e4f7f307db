//! Discovery documents: the groups, versions and kinds served. Pure.
//!
//! `/api` and `/apis` have two forms: the plain one, from which a client requests a resource list
//! per group and version, and the aggregated one with everything at once.

use std::sync::Arc;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use ring::digest::{SHA256, digest};
use serde_json::{Value, json};

use super::kind::{Kind, Writable};
use super::request::Review;
use edgesync_object::{Resource, Scope};

mod aggregated;
mod etag;
mod groups;

pub(super) use aggregated::{Form, Root, aggregated};
pub(super) use etag::{Digest, etag, matches_etag};
pub(super) use groups::{Group, Version, groups, groups_with_reviews};

/// Bytes of a storage version hash.
const STORAGE_HASH_BYTES: usize = 8;
/// Verbs of a writable kind.
const WRITABLE: &[&str] =
    &["create", "delete", "deletecollection", "get", "list", "patch", "update", "watch"];
/// Verbs of a writable kind without deletion of collections.
const WRITABLE_ONE_BY_ONE: &[&str] = &["create", "delete", "get", "list", "patch", "update", "watch"];
/// Verbs of a review.
const CREATABLE: &[&str] = &["create"];
/// Verbs of a read-only kind.
const READABLE: &[&str] = &["get", "list", "watch"];
/// Verbs of the subresource `/finalize`.
const FINALIZABLE: &[&str] = &["update"];
/// Verbs of a writable status.
const STATUS_WRITABLE: &[&str] = &["get", "patch", "update"];
/// Verbs of a read-only status.
const STATUS_READABLE: &[&str] = &["get"];

/// `/api`: the versions of the core group.
pub(super) fn core_versions(kinds: &[Arc<Kind>]) -> Value {
    let core = groups(kinds).into_iter().find(|group| group.name.is_empty());
    let versions: Vec<&str> =
        core.iter().flat_map(|group| group.versions.iter().map(|version| version.name)).collect();
    // Clients in some languages require the list of addresses; it is always empty.
    json!({ "kind": "APIVersions", "versions": versions, "serverAddressByClientCIDRs": [] })
}

/// `/apis`: every group but the core group.
pub(super) fn group_list(kinds: &[Arc<Kind>]) -> Value {
    let groups: Vec<Value> = named(kinds).iter().map(group_value).collect();
    json!({ "kind": "APIGroupList", "apiVersion": "v1", "groups": groups })
}

/// `/apis/GROUP`; `None` if the group is not served.
pub(super) fn group(kinds: &[Arc<Kind>], name: &str) -> Option<Value> {
    let groups = named(kinds);
    let mut value = group_value(groups.iter().find(|group| group.name == name)?);
    value["kind"] = json!("APIGroup");
    value["apiVersion"] = json!("v1");
    Some(value)
}

/// `/api/VERSION` for the core group, else `/apis/GROUP/VERSION`; `None` if the version is not
/// served.
pub(super) fn resource_list(kinds: &[Arc<Kind>], group: &str, version: &str) -> Option<Value> {
    let groups = groups_with_reviews(kinds);
    let version_entry = groups.iter().find(|candidate| candidate.name == group)?;
    let version_entry = version_entry.versions.iter().find(|candidate| candidate.name == version)?;
    let resources = version_entry.kinds.iter().flat_map(|kind| resources(kind));
    let resources: Vec<Value> = resources.chain(version_entry.reviews.iter().copied().map(review)).collect();
    Some(json!({
        "kind": "APIResourceList",
        "apiVersion": "v1",
        "groupVersion": api_version(group, version),
        "resources": resources,
    }))
}

/// `/`: every path; `more` are those served elsewhere.
pub(super) fn root_paths(kinds: &[Arc<Kind>], more: &[&str]) -> Value {
    let mut paths: Vec<String> = ["/api", "/apis", "/healthz", "/livez", "/metrics"].map(String::from).into();
    paths.extend(["/openapi/v2", "/openapi/v3", "/readyz", "/version"].map(String::from));
    paths.extend(more.iter().map(|path| (*path).to_owned()));
    for group in groups_with_reviews(kinds) {
        if !group.name.is_empty() {
            paths.push(format!("/apis/{}", group.name));
        }
        paths.extend(group.versions.iter().map(|version| version.path(group.name)));
    }
    paths.sort_unstable();
    paths.dedup();
    json!({ "paths": paths })
}

/// Joins group and version; only the version for the core group.
fn api_version(group: &str, version: &str) -> String {
    if group.is_empty() { version.to_owned() } else { format!("{group}/{version}") }
}

/// Returns every group but the core group.
fn named(kinds: &[Arc<Kind>]) -> Vec<Group<'_>> {
    groups_with_reviews(kinds).into_iter().filter(|group| !group.name.is_empty()).collect()
}

fn group_value(group: &Group<'_>) -> Value {
    let version = |version: &Version<'_>| json!({ "groupVersion": api_version(group.name, version.name), "version": version.name });
    let versions: Vec<Value> = group.versions.iter().map(version).collect();
    let preferred = versions.first().cloned().unwrap_or_default();
    json!({ "name": group.name, "versions": versions, "preferredVersion": preferred })
}

/// Returns the entries of a kind in a resource list: the kind and its subresources.
fn resources(kind: &Kind) -> Vec<Value> {
    let namespaced = kind.resource.scope == Scope::Namespaced;
    let mut own = json!({
        "name": kind.resource.plural,
        "singularName": kind.singular,
        "namespaced": namespaced,
        "kind": kind.resource.kind,
        "verbs": verbs(kind),
        "storageVersionHash": storage_version_hash(&kind.stored_as),
    });
    add_names(&mut own, kind);
    let mut entries = vec![own];
    if kind.is_finalized() {
        entries.push(json!({
            "name": format!("{}/finalize", kind.resource.plural),
            "singularName": "",
            "namespaced": namespaced,
            "kind": kind.resource.kind,
            "verbs": FINALIZABLE,
        }));
    }
    if kind.status_subresource {
        entries.push(json!({
            "name": format!("{}/status", kind.resource.plural),
            "singularName": "",
            "namespaced": namespaced,
            "kind": kind.resource.kind,
            "verbs": status_verbs(kind),
        }));
    }
    if kind.scale.is_some() {
        entries.push(json!({
            "name": format!("{}/scale", kind.resource.plural),
            "singularName": "",
            "namespaced": namespaced,
            "group": "autoscaling",
            "version": "v1",
            "kind": "Scale",
            "verbs": STATUS_WRITABLE,
        }));
    }
    entries
}

/// Returns the entry of a review in a resource list.
fn review(review: Review) -> Value {
    json!({
        "name": review.plural(),
        "singularName": review.kind().to_ascii_lowercase(),
        "namespaced": false,
        "kind": review.kind(),
        "verbs": CREATABLE,
    })
}

/// Hashes the storage version of a kind as an API server does: clients compare it to detect a
/// change, also across servers.
fn storage_version_hash(stored_as: &Resource) -> String {
    let Resource { group, version, kind, .. } = stored_as;
    let digest = digest(&SHA256, format!("{group}/{version}/{kind}").as_bytes());
    STANDARD.encode(digest.as_ref().get(..STORAGE_HASH_BYTES).unwrap_or_default())
}

/// Adds short names and categories, if any.
fn add_names(entry: &mut Value, kind: &Kind) {
    if !kind.short_names.is_empty() {
        entry["shortNames"] = json!(kind.short_names);
    }
    if !kind.categories.is_empty() {
        entry["categories"] = json!(kind.categories);
    }
}

fn verbs(kind: &Kind) -> &'static [&'static str] {
    match kind.writable {
        Writable::Everything if kind.deletes_collections() => WRITABLE,
        Writable::Everything => WRITABLE_ONE_BY_ONE,
        Writable::Status | Writable::Nothing => READABLE,
    }
}

fn status_verbs(kind: &Kind) -> &'static [&'static str] {
    if kind.writable == Writable::Nothing { STATUS_READABLE } else { STATUS_WRITABLE }
}

#[cfg(test)]
mod tests;
