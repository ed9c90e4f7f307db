//! Snapshots: reads the bodies of what a rule selects, and stores them as the next revision.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use super::count::selection;
use super::{MAX_MAKE_DELAY, RETRY, RuleIndex};
use crate::fleet::Fleet;
use crate::fleet::requests::Response;
use crate::source::{MAX_BODIES, Result, RevisionKey, RuleKey, Source};
use edgesync_object::{ObjectRef, OmittedFields, ResourceVersion};
use edgesync_protocol::change::Uid;
use edgesync_protocol::cloud::Loaded;
use edgesync_rollout::engine::Wanted;
use edgesync_rollout::revision::{Entry, Origin, Plan, Selection};
use edgesync_rollout::{Set, Snapshot};

/// A snapshot to make.
struct Job {
    rule: RuleKey,
    wanted: Wanted,
    selection: Selection,
    plan: Plan,
    /// Names of the objects that the source has.
    objects: HashMap<Uid, Arc<ObjectRef>>,
    /// The newest revision, which has the versions that are taken from below.
    below: Option<RevisionKey>,
    left_out: OmittedFields,
}

impl<S: Source> Fleet<S> {
    /// Begins a snapshot of what a rule selects now.
    pub(super) fn make_snapshot(&mut self, index: RuleIndex, wanted: Wanted) {
        let desired = &self.reconciler.desired;
        let Some(rule) = desired.rollouts.rule(index) else { return };
        let selection = selection(&desired.placement, rule);
        let below = rule.status.top().map(|top| rule.revision_key(top));
        let set = below.as_ref().and_then(|key| rule.revision(key)?.set.as_deref());
        let Ok(plan) = rule.status.rejected.plan(&selection, set) else { return };
        let object = |uid: &Uid| Some((uid.clone(), desired.placement.object(uid)?.object.clone()));
        let objects = selection.keys().filter_map(object).collect();
        let (rule, left_out) = (rule.key.clone(), self.reconciler.settings.left_out);
        let Some(moved) = self.rollout_loop.rules.get_mut(&index) else { return };
        moved.is_making = true;
        let job = Job { rule, wanted, selection, plan, objects, below, left_out };
        self.requests.ask(|source| async move { Response::SnapshotMade(index, job.make(&source).await) });
    }

    /// Handles a snapshot whose bodies are stored; `None` if the objects have changed meanwhile.
    pub(in crate::fleet) fn snapshot_made(&mut self, index: RuleIndex, made: Result<Option<Snapshot>>) {
        let now = self.reconciler.now();
        let Some(moved) = self.rollout_loop.rules.get_mut(&index) else { return };
        moved.is_making = false;
        let is_in_vain = std::mem::take(&mut moved.is_made_in_vain);
        match made {
            Ok(snapshot) => {
                (moved.failed_makes, moved.observed.unstored) = (0, None);
                moved.snapshot = snapshot.filter(|_| !is_in_vain);
            }
            Err(error) => {
                // A refused store stays refused, and costs all bodies each time.
                let delay = RETRY.saturating_mul(1_u32.checked_shl(moved.failed_makes).unwrap_or(u32::MAX));
                moved.make_at = now + delay.min(MAX_MAKE_DELAY);
                moved.failed_makes = moved.failed_makes.saturating_add(1);
                tracing::error!(%error, "making a revision of a rule failed");
                moved.observed.unstored = Some(error.to_string());
            }
        }
    }
}

impl Job {
    /// Reads and stores the bodies. Returns `None` if a version is not to be had any more: the rule
    /// is looked at again.
    async fn make<S: Source>(self, source: &S) -> Result<Option<Snapshot>> {
        let (mut from_source, mut from_below) = (Vec::new(), Vec::new());
        let mut entries: BTreeMap<Uid, Entry> = BTreeMap::new();
        let mut versions: HashMap<Uid, ResourceVersion> = HashMap::new();
        for (uid, origin) in self.plan.objects() {
            match origin {
                Origin::Source(version) => {
                    versions.insert(uid.clone(), version.clone());
                    from_source.push(uid.clone());
                }
                Origin::Below(entry) => {
                    versions.insert(uid.clone(), entry.version.clone());
                    entries.insert(uid.clone(), entry.clone());
                    from_below.push(uid.clone());
                }
            }
        }
        let mut bodies: Vec<Loaded> = Vec::with_capacity(versions.len());
        for uids in from_source.chunks(MAX_BODIES) {
            bodies.extend(source.bodies(uids.to_vec(), self.left_out).await?);
        }
        if let Some(below) = &self.below {
            for uids in from_below.chunks(MAX_BODIES) {
                bodies.extend(source.revision_bodies(below.clone(), uids.to_vec()).await?);
            }
        }
        bodies.retain(|loaded| versions.get(&loaded.uid) == Some(&loaded.version));
        if bodies.len() != versions.len() {
            return Ok(None);
        }
        for loaded in &bodies {
            if entries.contains_key(&loaded.uid) {
                continue;
            }
            let Some(object) = self.objects.get(&loaded.uid) else { return Ok(None) };
            let entry = Entry::new(loaded.version.clone(), (**object).clone(), loaded.body.as_str());
            entries.insert(loaded.uid.clone(), entry);
        }
        let set = Arc::new(Set::new(entries));
        let key = RevisionKey { rule: self.rule, number: self.wanted.number, digest: set.digest() };
        source.store_revision(key, Arc::clone(&set), bodies).await?;
        Ok(Some(Snapshot { wanted: self.wanted, set, selection: self.selection }))
    }
}
