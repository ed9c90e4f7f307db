//! Source of a fleet in the database of this process.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;

use super::{
    Admission, Change, Changes, NodeStore, ObjectSource, Removal, RemovalCause, Replication, Result,
    RolloutStore, RuleProblem, Source, SourceError,
};
use super::{
    Effect, LeaseRenewal, NodeChange, NodeEffects, NodeFacts, Registered, RevisionKey, RolloutWrite,
    RuleStatus, Sweep, UploadBatch, UploadOutcome, clip,
};
use crate::CloudObjects;
use crate::config::ObjectSyncs;
use crate::reasons::PlacementReason;
use edgesync_api::{MissingNamespace, Storage as _};
use edgesync_cloud_store::{ChangeKind, CloudError, CloudStore, Feed, FeedItem};
use edgesync_enrollment::membership::MembershipStore;
use edgesync_object::{NodeName, Object, OmittedFields, Resource, ResourceVersion, kinds};
use edgesync_placement::{KindMatch, Selection};
use edgesync_protocol::change::Uid;
use edgesync_protocol::cloud::{Issued, Loaded, Record, RecordBatch};
use edgesync_protocol::upload::RefusedReason;
use edgesync_rollout::Set;
use edgesync_schema::Schema;

/// Source over [`CloudObjects`]; see the module.
#[derive(Clone, Debug)]
pub struct Embedded {
    objects: Arc<CloudObjects>,
    members: MembershipStore,
}

impl Embedded {
    pub fn new(objects: Arc<CloudObjects>) -> Self {
        let members = objects.store().clone().into();
        Self { objects, members }
    }

    fn store(&self) -> &CloudStore {
        self.objects.store()
    }

    /// Refuses Events in namespaces that do not exist or are being deleted: nodes create no
    /// namespaces.
    async fn check_namespaces(&self, batch: &mut UploadBatch) -> Result<()> {
        let kind = kinds::guess("events.k8s.io/v1", "Event", true);
        let names: Vec<String> = batch.event_namespaces().into_iter().map(str::to_owned).collect();
        let mut closed = BTreeMap::new();
        for name in names {
            if let Err(status) = self
                .objects
                .namespaces()
                .ensure(&*self.objects, &kind, "", &name, MissingNamespace::Refuse)
                .await
            {
                if !(400..500).contains(&status.code) || status.code == 429 {
                    return Err(SourceError::Namespace { namespace: name, message: status.message });
                }
                closed.insert(name, clip(status.message));
            }
        }
        for item in &mut batch.items {
            if let Ok(Effect::Event(event)) = &item.effect
                && let Some(why) = closed.get(event.namespace())
            {
                item.effect = Err((RefusedReason::Invalid, why.clone()));
            }
        }
        Ok(())
    }
}

impl Changes for Feed {
    async fn next(&mut self) -> Change {
        match Feed::next(self).await {
            FeedItem::ListStarted => Change::ListStarted,
            FeedItem::Listed(summaries) => Change::Listed(summaries),
            FeedItem::Complete => Change::Complete,
            FeedItem::Relisted => Change::Relisted,
            FeedItem::Change(change) => match change.kind {
                ChangeKind::Added | ChangeKind::Modified => Change::Set(change.object),
                ChangeKind::Deleted => Change::Deleted(change.object),
            },
            FeedItem::CaughtUp { question, version } => {
                Change::CaughtUp { question, reached: version.into() }
            }
            FeedItem::Failed(error) => Change::Failed(error.into()),
            // The store closes only when the process ends.
            FeedItem::Closed => std::future::pending().await,
        }
    }

    fn relist(&mut self, objects: Selection) {
        Feed::relist(self, objects);
    }

    fn catch_up(&mut self) -> u64 {
        Feed::catch_up(self)
    }
}

impl ObjectSource for Embedded {
    type Changes = Feed;

    fn follow(&self) -> Feed {
        self.store().follow()
    }

    async fn bodies(&self, uids: Vec<Uid>, left_out: OmittedFields) -> Result<Vec<Loaded>> {
        Ok(self.store().bodies(uids, left_out).await?)
    }

    async fn bases(
        &self,
        wanted: Vec<(Uid, ResourceVersion)>,
        left_out: OmittedFields,
    ) -> Result<Vec<(Uid, ResourceVersion, String)>> {
        Ok(self.store().bases(wanted, left_out).await?)
    }

    fn schema(&self, resource: &Resource) -> Option<Arc<Schema>> {
        self.objects.kind(&resource.group, &resource.version, &resource.plural)?.schema.clone()
    }

    fn rule_problems(&self, _: &Uid, kinds: &[KindMatch]) -> Vec<RuleProblem> {
        let served = self.objects.kinds();
        let is_served = |kind: &KindMatch| served.iter().any(|served| kind.matches(&served.resource));
        let unknown: Vec<String> =
            kinds.iter().filter(|kind| !is_served(kind)).map(ToString::to_string).collect();
        if unknown.is_empty() {
            return Vec::new();
        }
        let message = format!("unknown kinds: {}", unknown.join(", "));
        vec![RuleProblem { reason: PlacementReason::KindUnknown, message, hides: false }]
    }

    async fn set_rule_status(&self, status: RuleStatus) -> Result<()> {
        Ok(self.store().set_rule_status(status).await?)
    }

    fn incarnation(&self) -> Arc<str> {
        self.store().incarnation()
    }

    async fn new_incarnation(&self) -> Result<Arc<str>> {
        Ok(self.store().new_incarnation().await?)
    }

    fn issued(&self) -> Arc<Issued> {
        self.store().issued()
    }
}

impl NodeStore for Embedded {
    async fn registered(&self) -> Result<Registered> {
        Ok(self.store().registered().await?)
    }

    async fn nodes(&self) -> Result<Vec<(NodeName, NodeFacts)>> {
        Ok(self.store().nodes().await?)
    }

    async fn effects_by_node(&self) -> Result<HashMap<NodeName, NodeEffects>> {
        Ok(self.store().effects_by_node().await?)
    }

    async fn records(&self, node: &NodeName) -> Result<Vec<(Uid, Record)>> {
        Ok(self.store().records(node).await?)
    }

    async fn record(
        &self,
        node: &NodeName,
        agent_version: Option<String>,
        batch: RecordBatch,
    ) -> Result<Vec<(Uid, String)>> {
        Ok(self.store().record(node, agent_version, batch).await?.refused)
    }

    async fn renew_leases(&self, renewals: Vec<LeaseRenewal>) -> Result<()> {
        Ok(self.store().renew_leases(renewals).await?)
    }

    async fn change_nodes(&self, changes: Vec<NodeChange>) -> Result<()> {
        Ok(self.store().change_nodes(changes).await?)
    }

    async fn remove_node(&self, node: &NodeName, _: RemovalCause) -> Result<Removal> {
        let removal = self.members.remove_node(node, None, Timestamp::now()).await?;
        Ok(Removal::Removed(Some(removal)))
    }

    async fn admit_node(&self, node: &NodeName, removal: Option<Timestamp>) -> Result<Admission> {
        Ok(match self.members.admit_from(node, removal).await? {
            true => Admission::Admitted,
            false => Admission::RemovedAgain,
        })
    }

    async fn ingest(&self, mut batch: UploadBatch) -> Result<UploadOutcome> {
        self.check_namespaces(&mut batch).await?;
        Ok(self.store().take(batch).await?)
    }

    async fn emit_event(&self, event: Object) -> Result<()> {
        match self.store().create(&kinds::guess("events.k8s.io/v1", "Event", true), event).await {
            // An earlier process has emitted it.
            Ok(_) | Err(CloudError::AlreadyExists { .. }) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    async fn expire_events(&self, ttl: Duration, limit: usize) -> Result<u64> {
        Ok(self.store().expire_events(ttl, limit).await?)
    }
}

impl RolloutStore for Embedded {
    async fn rollout_statuses(&self) -> Result<Vec<(String, String)>> {
        Ok(self.store().rollout_statuses().await?)
    }

    async fn write_rollout(&self, write: RolloutWrite) -> Result<bool> {
        Ok(self.store().write_rollout(write).await?)
    }

    async fn store_revision(&self, key: RevisionKey, set: Arc<Set>, bodies: Vec<Loaded>) -> Result<()> {
        match self.store().store_revision(key, &set, bodies).await {
            Err(CloudError::Revision(error)) => Err(error.into()),
            stored => Ok(stored?),
        }
    }

    async fn revision(&self, key: RevisionKey) -> Result<Option<Arc<Set>>> {
        Ok(self.store().revision(key).await?.map(Arc::new))
    }

    async fn revision_bodies(&self, key: RevisionKey, uids: Vec<Uid>) -> Result<Vec<Loaded>> {
        Ok(self.store().revision_bodies(key, uids).await?)
    }

    async fn sweep_revisions(&self, sweep: Sweep) -> Result<()> {
        Ok(self.store().sweep_revisions(sweep).await?)
    }
}

impl Source for Embedded {
    type Replication = Alone;

    fn replication(&self) -> Option<&Alone> {
        None
    }
}

/// Uninhabited type: this source has no other replicas.
#[derive(Clone, Debug)]
pub enum Alone {}

impl Replication for Alone {
    fn object_syncs(&self) -> ObjectSyncs {
        match *self {}
    }

    fn removal(&self, _: &NodeName) -> Option<Timestamp> {
        match *self {}
    }

    async fn confirm_deletions(&self, _: &NodeName, _: &str, _: Option<u64>) -> Result<()> {
        match *self {}
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::source::RuleKey;
    use edgesync_cloud_store::{CloudOptions, UploadEffect};
    use edgesync_protocol::upload::Lane;
    use edgesync_rollout::Digest;

    #[tokio::test]
    async fn node_events_create_no_namespaces() {
        let dir = tempfile::tempdir().unwrap();
        let store = CloudStore::open(&dir.path().join("cloud.db"), &CloudOptions::default()).unwrap();
        let objects = Arc::new(CloudObjects::new(store).await.unwrap());
        objects.namespaces().ensure_system(&*objects).await.unwrap();
        let item = |(seq, namespace): (u64, &str)| {
            let event = json!({
                "apiVersion": "events.k8s.io/v1", "kind": "Event", "metadata": { "name": "e", "namespace": namespace },
                "eventTime": "2026-11-22T00:00:00.000000Z", "reportingController": "c", "reportingInstance": "i",
                "action": "A", "reason": "R", "type": "Normal",
                "regarding": { "kind": "ConfigMap", "namespace": namespace, "name": "m" },
            });
            let event = Object::parse(&event.to_string()).unwrap();
            UploadEffect { seq, effect: Ok(Effect::Event(Box::new(event))) }
        };
        let namespaces = ["default", "invented-1", "invented-2", "kube-system"];
        let batch = UploadBatch {
            node: NodeName::parse("edge-1").unwrap(),
            outbox: "00000000000000000000000000000001".into(),
            lane: Lane::Events,
            confirmed: 0,
            items: (1..).zip(namespaces).map(item).collect(),
        };
        let UploadOutcome { taken, refused, .. } =
            Embedded::new(Arc::clone(&objects)).ingest(batch).await.unwrap();
        assert_eq!(taken.last.get(Lane::Events), 4);
        assert_eq!(refused.iter().map(|one| one.seq).collect::<Vec<_>>(), [2, 3]);
        assert!(refused[0].message.contains("invented-1"), "{refused:?}");
        let kind = kinds::by_word("namespaces").unwrap().resource();
        assert!(objects.get(&kind, "", "invented-1").await.unwrap().is_none());
    }

    /// Each restart failed to create the Events of all nodes that were overdue before.
    #[tokio::test]
    async fn event_that_an_earlier_process_has_emitted_is_no_error() {
        let dir = tempfile::tempdir().unwrap();
        let store = CloudStore::open(&dir.path().join("cloud.db"), &CloudOptions::default()).unwrap();
        let objects = Arc::new(CloudObjects::new(store).await.unwrap());
        objects.namespaces().ensure_system(&*objects).await.unwrap();
        let event = json!({
            "apiVersion": "events.k8s.io/v1", "kind": "Event", "metadata": { "name": "e", "namespace": "default" },
        });
        let event = Object::parse(&event.to_string()).unwrap();
        let source = Embedded::new(objects);
        for _ in 0..2 {
            source.emit_event(event.clone()).await.unwrap();
        }
    }

    #[tokio::test]
    async fn revision_without_its_bodies_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let store = CloudStore::open(&dir.path().join("cloud.db"), &CloudOptions::default()).unwrap();
        let source = Embedded::new(Arc::new(CloudObjects::new(store).await.unwrap()));
        let set = Arc::new(Set::default());
        let rule = RuleKey::Configured("web".into());
        let key = RevisionKey { rule, number: 1, digest: set.digest() };
        source.store_revision(key.clone(), set.clone(), Vec::new()).await.unwrap();
        assert_eq!(source.revision(key.clone()).await.unwrap(), Some(set.clone()));
        let other = RevisionKey { digest: Digest::of(b""), ..key };
        let refused = source.store_revision(other.clone(), set, Vec::new()).await;
        assert!(matches!(refused, Err(SourceError::Revision(_))), "{refused:?}");
        assert_eq!(source.revision(other).await.unwrap(), None);
    }
}
