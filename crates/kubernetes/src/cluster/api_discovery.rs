//! API discovery, group by group, so that an unavailable group hides no other.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use futures_util::{StreamExt as _, stream};
use k8s_openapi::api::core::v1::Node;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{APIGroup, APIResource};
use kube::Client;
use kube::api::{Api, ApiResource, DynamicObject, GetParams, ListParams, Request};

use super::plan::Kinds;
use edgesync_object::{Resource, ResourceVersion, Scope};

/// Maximum number of API groups discovered at a time.
const CONCURRENCY: usize = 8;
/// Group in which Kubernetes before 1.22 serves resources of other groups a second time.
const OLD_GROUP: &str = "extensions";

/// Discovers the kinds that support list and watch.
pub(super) async fn discover(client: &Client) -> Result<Kinds, kube::Error> {
    check_ready(client).await?;
    let core = client.list_core_api_resources("v1").await?;
    let groups = client.list_api_groups().await?.groups;
    let mut kinds = Kinds { served: watchable("", "v1", core.resources), undiscovered: BTreeSet::new() };
    let groups = groups.into_iter().filter(|group| group.name != OLD_GROUP);
    let mut discovered =
        stream::iter(groups.map(|group| of_group(client, group))).buffer_unordered(CONCURRENCY);
    while let Some((group, served)) = discovered.next().await {
        match served {
            Ok(served) => kinds.served.extend(served),
            Err(error) => {
                tracing::debug!(group, %error, "discovery of an API group failed");
                kinds.undiscovered.insert(group);
            }
        }
    }
    kinds.served.sort_by(|one, other| (&one.group, &one.plural).cmp(&(&other.group, &other.plural)));
    Ok(kinds)
}

/// Fails while the server starts: it serves before it knows all kinds, and answers 404 for the
/// rest.
async fn check_ready(client: &Client) -> Result<(), kube::Error> {
    let request = Request::new("").get("readyz", &GetParams::default()).map_err(kube::Error::BuildRequest)?;
    match client.request_text(request).await {
        Err(kube::Error::Api(mut status)) if status.code >= 500 => {
            // The body has one line per check.
            let failed = status.message.lines().filter_map(|line| line.strip_prefix("[-]"));
            let failed: Vec<&str> = failed.filter_map(|line| line.split(' ').next()).collect();
            status.message = format!("not ready: {}", failed.join(", "));
            Err(kube::Error::Api(status))
        }
        // The path may be missing or forbidden.
        Ok(_) | Err(kube::Error::Api(_)) => Ok(()),
        Err(error) => Err(error),
    }
}

/// Returns the newest version that the cluster has assigned.
pub(super) async fn reached(client: &Client) -> Result<ResourceVersion, kube::Error> {
    let nodes = ApiResource::erase::<Node>(&());
    let nodes = Api::<DynamicObject>::all_with(client.clone(), &nodes);
    // A list without a version is a quorum read, not answered from the watch cache.
    let list = nodes.list_metadata(&ListParams::default().limit(1)).await?;
    Ok(ResourceVersion::new(list.metadata.resource_version.unwrap_or_default()))
}

/// Converts a kind to the client library's type.
pub(super) fn api_resource(resource: &Resource) -> ApiResource {
    ApiResource {
        group: resource.group.clone(),
        version: resource.version.clone(),
        api_version: resource.api_version(),
        kind: resource.kind.clone(),
        plural: resource.plural.clone(),
    }
}

/// Returns the kinds of a group, each in the preferred version, or else in the first one that has
/// it.
async fn of_group(client: &Client, group: APIGroup) -> (String, Result<Vec<Arc<Resource>>, kube::Error>) {
    let preferred = group.preferred_version.map(|version| version.version).unwrap_or_default();
    let mut versions: Vec<String> = group.versions.into_iter().map(|version| version.version).collect();
    versions.sort_by_key(|version| *version != preferred);
    let mut found: BTreeMap<String, Arc<Resource>> = BTreeMap::new();
    for version in versions {
        match client.list_api_group_resources(&format!("{}/{version}", group.name)).await {
            Ok(list) => {
                for resource in watchable(&group.name, &version, list.resources) {
                    found.entry(resource.plural.clone()).or_insert(resource);
                }
            }
            // The version was removed meanwhile.
            Err(kube::Error::Api(status)) if status.is_not_found() => {}
            Err(error) => return (group.name, Err(error)),
        }
    }
    (group.name, Ok(found.into_values().collect()))
}

fn watchable(group: &str, version: &str, resources: Vec<APIResource>) -> Vec<Arc<Resource>> {
    let can = |resource: &APIResource, verb: &str| resource.verbs.iter().any(|have| have == verb);
    let watched = resources
        .into_iter()
        .filter(|resource| !resource.name.contains('/') && can(resource, "list") && can(resource, "watch"));
    let resource = |found: APIResource| {
        let scope = if found.namespaced { Scope::Namespaced } else { Scope::Cluster };
        let (group, version) = (group.to_owned(), version.to_owned());
        Arc::new(Resource { group, version, kind: found.kind, plural: found.name, scope })
    };
    watched.map(resource).collect()
}
