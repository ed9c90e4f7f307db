//! The database of this process as the source of a fleet.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use super::{Change, Changes, Result, Source, SourceError};
use super::{Effect, LeaseRenewal, NodeChange, NodeFacts, Registered, UploadBatch};
use crate::api::Storage as _;
use crate::cloud::CloudObjects;
use crate::cloud::uploads::clip;
use crate::object::schema::Schema;
use crate::object::{Resource, kinds};
use crate::store::cloud::{ChangeKind, CloudError, CloudStore, Feed, FeedItem};
use crate::sync::change::Uid;
use crate::sync::cloud::{Issued, Loaded, Record, RecordBatch};
use crate::sync::upload::{Refused, RefusedReason, Taken};

/// See the module.
#[derive(Clone, Debug)]
pub(in crate::cloud) struct Embedded(Arc<CloudObjects>);

impl Embedded {
    pub(in crate::cloud) fn new(objects: Arc<CloudObjects>) -> Self {
        Self(objects)
    }

    fn store(&self) -> &CloudStore {
        self.0.store()
    }

    /// Makes the namespaces of Events, as the API does; Events of those that take nothing are refused.
    async fn ensure_namespaces(&self, batch: &mut UploadBatch) -> Result<()> {
        let kind = kinds::guess("events.k8s.io/v1", "Event", true);
        let names: Vec<String> = batch.event_namespaces().into_iter().map(str::to_owned).collect();
        let mut closed = BTreeMap::new();
        for name in names {
            if let Err(status) = self.0.namespaces().ensure(&*self.0, &kind, "", &name, false).await {
                if !(400..500).contains(&status.code) || status.code == 429 {
                    let problem = format!("the namespace '{name}' could not be made: {}", status.message);
                    return Err(SourceError::new(problem));
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

impl From<CloudError> for SourceError {
    fn from(error: CloudError) -> Self {
        Self::new(error)
    }
}

impl Changes for Feed {
    async fn next(&mut self) -> Change {
        match Feed::next(self).await {
            FeedItem::Begun => Change::Begun,
            FeedItem::Listed(summaries) => Change::Listed(summaries),
            FeedItem::Complete => Change::Complete,
            FeedItem::Change(change) => match change.kind {
                ChangeKind::Added | ChangeKind::Modified => Change::Set(change.object),
                ChangeKind::Deleted => Change::Gone(change.object),
            },
            FeedItem::Failed(error) => Change::Failed(error.into()),
            // The store closes only when the process ends.
            FeedItem::Closed => std::future::pending().await,
        }
    }
}

impl Source for Embedded {
    type Changes = Feed;

    fn follow(&self) -> Feed {
        self.store().follow()
    }

    async fn bodies(&self, uids: Vec<Uid>, managed_fields: bool) -> Result<Vec<Loaded>> {
        Ok(self.store().bodies(uids, managed_fields).await?)
    }

    fn schema(&self, resource: &Resource) -> Option<Arc<Schema>> {
        self.0.kind(&resource.group, &resource.version, &resource.plural)?.schema.clone()
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

    async fn nodes(&self) -> Result<Vec<(String, NodeFacts)>> {
        Ok(self.store().nodes().await?)
    }

    async fn records(&self, node: &str) -> Result<Vec<(Uid, Record)>> {
        Ok(self.store().records(node).await?)
    }

    async fn record(
        &self,
        node: &str,
        agent_version: Option<String>,
        batch: RecordBatch,
    ) -> Result<Vec<(Uid, String)>> {
        Ok(self.store().record(node, agent_version, batch).await?.refused)
    }

    async fn registered(&self) -> Result<Registered> {
        Ok(self.store().registered().await?)
    }

    async fn renew_leases(&self, renewals: Vec<LeaseRenewal>) -> Result<()> {
        Ok(self.store().renew_leases(renewals).await?)
    }

    async fn change_nodes(&self, changes: Vec<NodeChange>) -> Result<()> {
        Ok(self.store().change_nodes(changes).await?)
    }

    async fn remove_node(&self, node: &str) -> Result<bool> {
        Ok(self.store().remove_node(node).await?)
    }

    async fn admit_node(&self, node: &str) -> Result<bool> {
        Ok(self.store().admit_node(node).await?)
    }

    async fn take(&self, mut batch: UploadBatch) -> Result<(Taken, Vec<Refused>)> {
        self.ensure_namespaces(&mut batch).await?;
        Ok(self.store().take(batch).await?)
    }

    async fn expire_events(&self, ttl: Duration, limit: usize) -> Result<u64> {
        Ok(self.store().expire_events(ttl, limit).await?)
    }
}
