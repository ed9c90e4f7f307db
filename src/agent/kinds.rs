//! The kinds of which the node has held objects: what the local API serves.

use std::collections::HashMap;
use std::sync::{Arc, PoisonError, RwLock};

use crate::object::{Resource, kinds, objectsync};

/// Kinds by group, version and plural.
#[derive(Debug, Default)]
pub(super) struct KnownKinds(RwLock<HashMap<(String, String, String), Arc<Resource>>>);

fn path(resource: &Resource) -> (String, String, String) {
    (resource.group.clone(), resource.version.clone(), resource.plural.clone())
}

impl KnownKinds {
    pub(super) fn learn_all(&self, held: Vec<(Arc<Resource>, u64)>) {
        for (resource, _) in held {
            self.learn(&resource);
        }
    }

    /// Makes a kind known.
    pub(super) fn learn(&self, resource: &Arc<Resource>) {
        let path = path(resource);
        let known = self.0.read().unwrap_or_else(PoisonError::into_inner).contains_key(&path);
        if !known {
            let mut kinds = self.0.write().unwrap_or_else(PoisonError::into_inner);
            kinds.insert(path, resource.clone());
        }
    }

    /// The kind served under a path: one that was held, or a built-in one of which nothing is held.
    pub(super) fn find(&self, group: &str, version: &str, plural: &str) -> Option<Arc<Resource>> {
        let path = (group.to_owned(), version.to_owned(), plural.to_owned());
        let held = self.0.read().unwrap_or_else(PoisonError::into_inner).get(&path).cloned();
        held.or_else(|| kinds::by_plural(group, version, plural).map(|known| Arc::new(known.resource())))
    }

    /// The kinds held, and the records about them.
    pub(super) fn all(&self) -> Vec<Arc<Resource>> {
        let records = [objectsync::OBJECT_SYNC, objectsync::CLUSTER_OBJECT_SYNC]
            .into_iter()
            .filter_map(|kind| kinds::by_kind(objectsync::API_VERSION, kind))
            .map(|known| Arc::new(known.resource()));
        let held = self.0.read().unwrap_or_else(PoisonError::into_inner);
        let mut all: Vec<_> = held.values().cloned().chain(records).collect();
        all.sort();
        all.dedup();
        all
    }
}
