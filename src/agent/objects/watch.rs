//! Converts the store's commits to changes for the API: one ring each for synced objects, for their
//! records, and for local objects.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use crate::store as edge;
use crate::store::{CommitListener, CommittedChanges, LocalTransition, Part, Transition, Versions};
use edgesync_api::{Change, ChangeType, Stored};
use edgesync_object::{NodeName, Resource, Scope, with_resource_version};

use super::ring::{Entry, LazyRing};
use super::{ObjectSource, SynthesizedKind, kinds, record, shown, shown_local};

/// Bytes of changes kept for watches of the Node, or of the namespaces.
const SYNTHESIZED_BYTES: usize = 32 << 10;

/// The rings, updated as a commit listener: see [`CommitListener`].
#[derive(Debug)]
pub(super) struct Watches {
    node: NodeName,
    objects: LazyRing,
    records: LazyRing,
    local: LazyRing,
    nodes: LazyRing,
    namespaces: LazyRing,
    object_syncs: Arc<Resource>,
    cluster_object_syncs: Arc<Resource>,
}

impl Watches {
    /// `bytes` is for synced objects; records and local objects, which are small, get a quarter of
    /// it each.
    pub(super) fn new(node: NodeName, bytes: usize, keep: Duration, versions: Versions) -> Self {
        let now = jiff::Timestamp::now().as_microsecond().unsigned_abs();
        Self {
            node,
            objects: LazyRing::new(bytes, keep, versions.objects),
            records: LazyRing::new(bytes / 4, keep, versions.objects),
            local: LazyRing::new(bytes / 4, keep, versions.local),
            // Not stored: with a correct clock, no run reuses a version of an earlier one.
            nodes: LazyRing::new(SYNTHESIZED_BYTES, keep, versions.objects.max(now)),
            namespaces: LazyRing::new(SYNTHESIZED_BYTES, keep, versions.objects),
            object_syncs: kinds::object_syncs(Scope::Namespaced),
            cluster_object_syncs: kinds::object_syncs(Scope::Cluster),
        }
    }

    /// Returns the rings that follow the store.
    fn stored(&self) -> [&LazyRing; 3] {
        [&self.objects, &self.records, &self.local]
    }

    fn all(&self) -> [&LazyRing; 5] {
        [&self.objects, &self.records, &self.local, &self.nodes, &self.namespaces]
    }

    pub(super) fn of(&self, source: &ObjectSource) -> &LazyRing {
        match source {
            ObjectSource::Synced => &self.objects,
            ObjectSource::Records(_) => &self.records,
            ObjectSource::Local(_) => &self.local,
            ObjectSource::Synthesized(SynthesizedKind::Node) => &self.nodes,
            ObjectSource::Synthesized(SynthesizedKind::Namespace) => &self.namespaces,
        }
    }

    /// Advances to versions whose changes were not observed.
    pub(super) fn catch_up(&self, versions: Versions) {
        self.objects.skip(versions.objects);
        self.records.skip(versions.objects);
        self.local.skip(versions.local);
    }

    /// Clears rings without recent requests. Returns whether one held anything.
    pub(super) fn tidy(&self) -> bool {
        // All of them, not just up to the first one.
        self.all().map(LazyRing::tidy).contains(&true)
    }

    /// Returns the change of the record that belongs to a change of an object.
    fn record(&self, transition: &Transition) -> Option<Entry> {
        let side = transition.after.as_ref().or(transition.before.as_ref())?;
        let cluster = side.object.namespace.is_empty();
        let resource = if cluster { &self.cluster_object_syncs } else { &self.object_syncs };
        let version_before =
            |stored: &edge::Stored| record::of_stored(&self.node, stored, stored.own_version);
        let before = transition.before.as_ref().and_then(version_before);
        let object = record::of_stored(&self.node, side, transition.version)?;
        Some(entry(resource, transition.after.is_some(), object, before.map(|before| before.json)))
    }
}

pub(super) fn entry(
    resource: &Arc<Resource>,
    lives: bool,
    object: Stored,
    previous: Option<String>,
) -> Entry {
    let kind = match (lives, &previous) {
        (false, _) => ChangeType::Deleted,
        (true, None) => ChangeType::Added,
        (true, Some(_)) => ChangeType::Modified,
    };
    (resource.clone(), Change { kind, object, previous, line: OnceLock::new() })
}

/// Returns the deletion of an object: its last state, with the version of the deletion.
pub(super) fn removed(resource: &Arc<Resource>, before: Stored, version: u64) -> Entry {
    let object = Stored { version, json: with_resource_version(&before.json, version), ..before.clone() };
    entry(resource, false, object, Some(before.json))
}

/// Returns the changes of objects for a change of a row. There are two if the object has moved to
/// another version of its group, which is another kind to watches.
fn objects(transition: Transition) -> impl Iterator<Item = Entry> {
    let Transition { version, before, after } = transition;
    let resource = |side: &Option<edge::Stored>| side.as_ref().map(|side| side.object.resource.clone());
    let (was, is) = (resource(&before), resource(&after));
    let before = before.map(shown);
    let (gone, previous) = match (was, before) {
        (Some(was), Some(before)) if is.as_deref() != Some(&*was) => {
            (Some(removed(&was, before, version)), None)
        }
        (_, before) => (None, before.map(|before| before.json)),
    };
    let here = is.zip(after).map(|(is, after)| entry(&is, true, shown(after), previous));
    gone.into_iter().chain(here)
}

fn local(transition: LocalTransition) -> Option<Entry> {
    let LocalTransition { version, before, after } = transition;
    let resource = kinds::local_resource(after.as_ref().or(before.as_ref())?.kind);
    let before = before.map(shown_local);
    Some(match after {
        Some(after) => entry(&resource, true, shown_local(after), before.map(|before| before.json)),
        None => removed(&resource, before?, version),
    })
}

impl CommitListener for Watches {
    fn appetite(&self) -> usize {
        self.stored().into_iter().map(LazyRing::wanted_bytes).sum()
    }

    fn committed(&self, commit: CommittedChanges) {
        let CommittedChanges { versions, objects: synced, local: made } = commit;
        match synced {
            Part::Same => {}
            Part::Unknown => {
                self.records.skip(versions.objects);
                self.objects.skip(versions.objects);
            }
            Part::Changed(changes) => {
                self.records
                    .note(versions.objects, || changes.iter().filter_map(|change| self.record(change)));
                self.objects.note(versions.objects, || changes.into_iter().flat_map(objects));
            }
        }
        match made {
            Part::Same => {}
            Part::Unknown => self.local.skip(versions.local),
            Part::Changed(changes) => {
                self.local.note(versions.local, || changes.into_iter().filter_map(local));
            }
        }
    }

    fn closed(&self) {
        self.all().into_iter().for_each(LazyRing::close);
    }
}
