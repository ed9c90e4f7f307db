//! The newest version delivered that the cluster's own store has assigned. Pure.
//!
//! An aggregated API server may have a separate store, whose versions have no relation to those
//! of the cluster. Only versions of the cluster's own API groups are therefore compared: those of
//! Kubernetes and of CustomResourceDefinitions.

use std::collections::BTreeSet;
use std::sync::Arc;

use edgesync_object::ResourceVersion;
use edgesync_placement::Summary;
use edgesync_protocol::cloud::Reached;

/// API groups of Kubernetes itself.
const BUILT_IN: [&str; 20] = [
    "",
    "admissionregistration.k8s.io",
    "apiextensions.k8s.io",
    "apiregistration.k8s.io",
    "apps",
    "autoscaling",
    "batch",
    "certificates.k8s.io",
    "coordination.k8s.io",
    "discovery.k8s.io",
    "events.k8s.io",
    "flowcontrol.apiserver.k8s.io",
    "networking.k8s.io",
    "node.k8s.io",
    "policy",
    "rbac.authorization.k8s.io",
    "resource.k8s.io",
    "scheduling.k8s.io",
    "storage.k8s.io",
    "storagemigration.k8s.io",
];

/// API groups of the cluster's own store.
pub(super) type Groups = Arc<BTreeSet<String>>;

/// Returns the groups of Kubernetes and of these CustomResourceDefinitions, by name.
pub(super) fn groups<'a>(definitions: impl Iterator<Item = &'a String>) -> Groups {
    let custom = definitions.filter_map(|name| name.split_once('.')).map(|(_, group)| group);
    Arc::new(BUILT_IN.into_iter().chain(custom).map(str::to_owned).collect())
}

/// The newest version delivered, and the groups whose versions count.
#[derive(Debug)]
pub(super) struct StoreVersion {
    newest: ResourceVersion,
    groups: Groups,
}

impl StoreVersion {
    pub(super) fn new() -> Self {
        Self { newest: 0.into(), groups: Groups::default() }
    }

    pub(super) fn newest(&self) -> &ResourceVersion {
        &self.newest
    }

    pub(super) fn set_groups(&mut self, groups: Groups) {
        self.groups = groups;
    }

    /// Records the version of a delivered object.
    pub(super) fn record(&mut self, object: &Summary) {
        if self.newest.is_older_than(&object.version) && self.groups.contains(&object.resource.group) {
            self.newest = object.version.clone();
        }
    }

    /// Goes back to the version of a restored cluster.
    pub(super) fn reset(&mut self, reached: ResourceVersion) {
        self.newest = reached;
    }

    /// Returns what the store is known to have assigned: this version, or a newer one delivered.
    pub(super) fn reached(&self, version: ResourceVersion) -> Reached {
        let version = if version.is_older_than(&self.newest) { self.newest.clone() } else { version };
        Reached { version, groups: Some(Arc::clone(&self.groups)) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use edgesync_object::kinds::{self, KINDS};
    use serde_json::json;

    fn object(api_version: &str, kind: &str, version: u64) -> Summary {
        let object = json!({"metadata": {"namespace": "shop", "name": "a", "uid": "u"}});
        let resource = Arc::new(kinds::guess(api_version, kind, true));
        Summary::of(&serde_json::from_value(object).unwrap(), resource, version.into())
    }

    #[test]
    fn versions_of_another_store_are_not_recorded() {
        let mut store = StoreVersion::new();
        store.set_groups(groups(["widgets.lab.io".to_owned()].iter()));
        store.record(&object("v1", "ConfigMap", 7));
        store.record(&object("metrics.example.com/v1", "Sample", 9_000));
        assert_eq!(*store.newest(), 7.into());
        store.record(&object("lab.io/v1", "Widget", 8));
        store.record(&object("apps/v1", "Deployment", 6));
        assert_eq!(*store.newest(), 8.into());
        assert_eq!((store.reached(5.into()).version, store.reached(9.into()).version), (8.into(), 9.into()));
        store.reset(3.into());
        assert_eq!(store.reached(5.into()).version, 5.into());
    }

    #[test]
    fn groups_of_kubernetes_need_no_definition() {
        let groups = groups([].iter());
        let own = |group: &str| !group.ends_with(".kubeedge.io");
        for kind in KINDS.iter().filter(|kind| own(kind.group)) {
            assert!(groups.contains(kind.group), "{kind:?}");
        }
    }
}
