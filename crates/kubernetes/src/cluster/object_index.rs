//! Index of objects by the watches that report them. Several watches may report one object, and
//! each may relist at any time. An object is deleted when no watch reports it any more. Pure.

use std::collections::hash_map::Entry;
use std::collections::{BTreeSet, HashMap, HashSet};
use std::sync::Arc;

use edgesync_object::urgency::Urgency;
use edgesync_object::{Labels, Relation, Resource, ResourceVersion, Uid};
use edgesync_placement::{NamedNodes, Summary};

/// The number of a watch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct WatchId(pub(super) u32);

/// All objects reported by watches.
#[derive(Debug, Default)]
pub(super) struct ObjectIndex {
    objects: HashMap<Uid, IndexedObject>,
    /// Number of objects per watch.
    counts: HashMap<WatchId, usize>,
    /// UIDs listed so far, for watches with a list in progress.
    listing: HashMap<WatchId, HashSet<Uid>>,
}

/// An object's identity and version.
#[derive(Debug)]
struct IndexedObject {
    version: ResourceVersion,
    resource: Arc<Resource>,
    namespace: Arc<str>,
    name: Arc<str>,
    /// The watches that report it; never empty.
    by: Vec<WatchId>,
}

impl IndexedObject {
    /// Returns the remaining summary of a deleted object.
    fn into_summary(self, uid: Uid) -> Summary {
        let Self { version, resource, namespace, name, .. } = self;
        Summary {
            uid,
            version,
            resource,
            namespace,
            name,
            labels: Labels::new(),
            notes: None,
            nodes: NamedNodes::default(),
            references: BTreeSet::new(),
            rule: None,
            size: 0,
            urgency: Urgency::default(),
        }
    }
}

impl ObjectIndex {
    /// Starts the list of a watch.
    pub(super) fn start_list(&mut self, watch: WatchId) {
        self.listing.insert(watch, HashSet::new());
    }

    /// Records a listed object. Returns whether it is a change.
    pub(super) fn list(&mut self, watch: WatchId, object: &Summary) -> bool {
        if let Some(listed) = self.listing.get_mut(&watch) {
            listed.insert(object.uid.clone());
        }
        self.set(watch, object)
    }

    /// Records an object of a watch. Returns whether it is a change: another watch may have
    /// reported the same or a newer version.
    pub(super) fn set(&mut self, watch: WatchId, object: &Summary) -> bool {
        let mut known = match self.objects.entry(object.uid.clone()) {
            Entry::Vacant(entry) => {
                let Summary { version, resource, namespace, name, .. } = object.clone();
                entry.insert(IndexedObject { version, resource, namespace, name, by: vec![watch] });
                *self.counts.entry(watch).or_default() += 1;
                return true;
            }
            Entry::Occupied(entry) => entry,
        };
        let known = known.get_mut();
        if !known.by.contains(&watch) {
            known.by.push(watch);
            *self.counts.entry(watch).or_default() += 1;
        }
        let is_change = match object.version.relation(&known.version) {
            Relation::Equal => known.resource != object.resource,
            // Watches are not in step, so an older version is ignored. The only watch of an object
            // goes back only if its cluster does.
            Relation::Older => known.by.len() == 1,
            Relation::Newer | Relation::Different => true,
        };
        if is_change {
            known.version = object.version.clone();
            known.resource = Arc::clone(&object.resource);
        }
        is_change
    }

    /// Completes the list of a watch. Returns the objects deleted since its previous list.
    pub(super) fn finish_list(&mut self, watch: WatchId) -> Vec<Summary> {
        let listed = self.listing.remove(&watch).unwrap_or_default();
        // Each listed object is also counted, so equal counts mean that nothing is missing.
        if self.counts.get(&watch).is_none_or(|count| *count == listed.len()) {
            return Vec::new();
        }
        self.drop_from(watch, |uid| !listed.contains(uid))
    }

    /// Removes an object from a watch, after a delete or a selector mismatch. Returns whether no
    /// watch is left.
    pub(super) fn remove(&mut self, watch: WatchId, uid: &str) -> bool {
        if let Some(listed) = self.listing.get_mut(&watch) {
            listed.remove(uid);
        }
        let Some(known) = self.objects.get_mut(uid).filter(|known| known.by.contains(&watch)) else {
            return false;
        };
        known.by.retain(|by| *by != watch);
        let is_deleted = known.by.is_empty();
        if is_deleted {
            self.objects.remove(uid);
        }
        if let Some(count) = self.counts.get_mut(&watch) {
            *count -= 1;
        }
        is_deleted
    }

    /// Releases a watch. Returns the objects that only it reported.
    pub(super) fn release(&mut self, watch: WatchId) -> Vec<Summary> {
        self.listing.remove(&watch);
        let deleted = self.drop_from(watch, |_| true);
        self.counts.remove(&watch);
        deleted
    }

    /// Invalidates all versions after a restore of the cluster, so that older ones count as
    /// changes.
    pub(super) fn invalidate_versions(&mut self) {
        for known in self.objects.values_mut() {
            known.version = 0.into();
        }
    }

    fn drop_from(&mut self, watch: WatchId, mut dropped: impl FnMut(&Uid) -> bool) -> Vec<Summary> {
        let count = self.counts.entry(watch).or_default();
        let deleted = self.objects.extract_if(|uid, known| {
            if known.by.contains(&watch) && dropped(uid) {
                known.by.retain(|by| *by != watch);
                *count -= 1;
            }
            known.by.is_empty()
        });
        deleted.map(|(uid, known)| known.into_summary(uid)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use edgesync_object::kinds;
    use serde_json::json;

    const ONE: WatchId = WatchId(1);
    const TWO: WatchId = WatchId(2);

    fn object(uid: &str, version: u64) -> Summary {
        let resource = Arc::new(kinds::by_word("cm").unwrap().resource());
        let object = json!({"metadata": {"namespace": "shop", "name": "a", "uid": uid}});
        Summary::of(&serde_json::from_value(object).unwrap(), resource, version.into())
    }

    fn uids(deleted: &[Summary]) -> BTreeSet<&str> {
        deleted.iter().map(|summary| &*summary.uid).collect()
    }

    fn listed(index: &mut ObjectIndex, watch: WatchId, uids: &[&str]) -> Vec<Summary> {
        index.start_list(watch);
        for uid in uids {
            index.list(watch, &object(uid, 1));
        }
        index.finish_list(watch)
    }

    #[test]
    fn only_a_complete_list_deletes_missing_objects() {
        let mut index = ObjectIndex::default();
        assert!(listed(&mut index, ONE, &["a", "b", "c"]).is_empty());
        // The list breaks off after its first part and restarts.
        index.start_list(ONE);
        assert!(!index.list(ONE, &object("a", 1)), "it is known in this version");
        index.start_list(ONE);
        assert!(index.list(ONE, &object("b", 2)));
        assert!(index.set(ONE, &object("d", 3)));
        index.list(ONE, &object("d", 3));
        let deleted = index.finish_list(ONE);
        assert_eq!(uids(&deleted), BTreeSet::from(["a", "c"]));
        assert_eq!(
            (&*deleted[0].namespace, &*deleted[0].name, &*deleted[0].resource.kind),
            ("shop", "a", "ConfigMap")
        );
    }

    #[test]
    fn an_object_stays_while_another_watch_reports_it() {
        let mut index = ObjectIndex::default();
        listed(&mut index, ONE, &["a", "b"]);
        listed(&mut index, TWO, &["a"]);
        assert!(!index.remove(ONE, "a") && index.remove(ONE, "b"));
        assert!(listed(&mut index, ONE, &[]).is_empty());
        assert!(index.remove(TWO, "a") && !index.remove(TWO, "a"));
        assert_eq!(index.counts, HashMap::from([(ONE, 0), (TWO, 0)]));
    }

    #[test]
    fn a_lagging_watch_reverts_nothing() {
        let mut index = ObjectIndex::default();
        listed(&mut index, ONE, &["a"]);
        assert!(index.set(ONE, &object("a", 5)));
        assert!(!index.set(TWO, &object("a", 4)) && !index.set(TWO, &object("a", 5)));
        assert!(index.set(TWO, &object("a", 6)));
        // As the only watch, it reports a cluster that was restored.
        assert!(!index.remove(ONE, "a"));
        assert!(index.set(TWO, &object("a", 3)));
    }

    #[test]
    fn a_restored_cluster_may_report_older_versions() {
        let mut index = ObjectIndex::default();
        index.set(ONE, &object("a", 5));
        assert!(!index.set(TWO, &object("a", 3)));
        index.invalidate_versions();
        assert!(index.set(TWO, &object("a", 3)) && !index.set(ONE, &object("a", 3)));
        assert!(!index.remove(ONE, "a"), "the other watch still reports it");
    }

    #[test]
    fn a_released_watch_deletes_objects_that_only_it_reported() {
        let mut index = ObjectIndex::default();
        listed(&mut index, ONE, &["a", "b"]);
        listed(&mut index, TWO, &["b", "c"]);
        assert_eq!(uids(&index.release(ONE)), BTreeSet::from(["a"]));
        assert_eq!(uids(&index.release(TWO)), BTreeSet::from(["b", "c"]));
        assert!(index.objects.is_empty() && index.listing.is_empty() && index.counts.is_empty());
    }
}
