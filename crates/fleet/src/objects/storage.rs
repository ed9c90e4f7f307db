//! Implements the API's storage over the cloud's store.

use std::sync::Arc;

use edgesync_api::{
    Batch, Cursor, Kind, MAX_BATCH, MissingNamespace, PAGE_ROWS, Page, PageQuery, Snapshot, Storage, Stored,
};
use edgesync_cloud_store as cloud;
use edgesync_cloud_store::{CloudError, CloudSnapshot, HistoryQuery, KindName, Listed, Scan};
use edgesync_object::node_labels::note_changed_labels;
use edgesync_object::status::Result;
use edgesync_object::{Object, Resource, Status};
use edgesync_placement::RuleText;
use edgesync_placement::spec::{InForce, RuleRollout};

use super::super::definitions;
use super::{CloudObjects, RETRY_SECONDS, read_token, status, watch, write_token};

/// Approximate bytes that a watch behind the ring reads at a time; such reads are not shared.
const HISTORY_BYTES: usize = 256 << 10;

/// An open list over the cloud's store.
#[derive(Debug)]
pub struct CloudList {
    snapshot: CloudSnapshot,
    resource: Arc<Resource>,
}

pub(super) fn name_of(resource: &Resource) -> KindName {
    KindName { group: resource.group.clone(), kind: resource.kind.clone() }
}

fn kept(stored: cloud::Stored) -> Stored {
    let cloud::Stored { version, namespace, name, body, .. } = stored;
    Stored { namespace, name, version, json: body }
}

/// Refuses a rule that could not be in force at all: it would release all objects placed so far.
/// Also refuses one with an invalid roll-out, which would stop.
fn admit_rule(kind: &Kind, object: &Object) -> Result<()> {
    let Some(text) = RuleText::of(object, &kind.resource) else { return Ok(()) };
    match InForce::of(&text, object.namespace()) {
        InForce { rule: None, problems, .. } | InForce { rollout: RuleRollout::Invalid, problems, .. } => {
            let key = kind.resource.key(object.namespace(), object.name());
            Err(status(&kind.resource, object.name(), &CloudError::Invalid { key, problems }))
        }
        InForce { rule: Some(_), .. } => Ok(()),
    }
}

impl Storage for CloudObjects {
    type Snapshot = CloudList;

    fn kind(&self, group: &str, version: &str, plural: &str) -> Option<Arc<Kind>> {
        self.kinds.get(group, version, plural)
    }

    fn kinds(&self) -> Vec<Arc<Kind>> {
        self.kinds.all()
    }

    fn kinds_version(&self) -> u64 {
        self.kinds.version()
    }

    fn checks(&self) -> Vec<(&'static str, Result<()>)> {
        let damage = |damage| Status::unavailable(format!("database is damaged: {damage}"), RETRY_SECONDS);
        vec![
            ("store", self.watches.ring.check()),
            ("database", self.store.damage().map_or(Ok(()), |what| Err(damage(what)))),
        ]
    }

    fn version(&self, _: &Resource) -> u64 {
        self.store.version()
    }

    async fn get(&self, resource: &Resource, namespace: &str, name: &str) -> Result<Option<Stored>> {
        match self.store.get(resource.key(namespace, name)).await {
            Ok(stored) => Ok(Some(kept(stored))),
            Err(CloudError::NotFound { .. }) => Ok(None),
            Err(error) => Err(status(resource, name, &error)),
        }
    }

    async fn snapshot(&self, resource: &Arc<Resource>) -> Result<CloudList> {
        let snapshot = self.store.snapshot().await.map_err(|error| status(resource, "", &error))?;
        Ok(CloudList { snapshot, resource: Arc::clone(resource) })
    }

    async fn changes(&self, resource: &Arc<Resource>, after: u64) -> Result<Batch> {
        self.watches.ring.wait(after).await?;
        let of = name_of(resource);
        if let Some(batch) = self.watches.after(&of, after) {
            return Ok(batch);
        }
        let query = HistoryQuery { after, of, limit: MAX_BATCH, bytes: HISTORY_BYTES };
        let page = self.store.history(query).await.map_err(|error| status(resource, "", &error))?;
        let changes = page.changes.into_iter().map(|change| Arc::new(watch::shared(change))).collect();
        Ok(Batch { changes, version: page.version })
    }

    async fn ensure_namespace(
        &self,
        kind: &Resource,
        namespace: &str,
        name: &str,
        dry_run: bool,
    ) -> Result<()> {
        let missing = if dry_run { MissingNamespace::DryRun } else { MissingNamespace::Create };
        self.namespaces.ensure(self, kind, name, namespace, missing).await
    }

    fn has_garbage_collector(&self) -> bool {
        true
    }

    fn admit(&self, kind: &Kind, old: Option<&Object>, object: &mut Object) -> Result<Vec<String>> {
        if kind.resource.group.is_empty() && kind.resource.kind == "Node" {
            note_changed_labels(object);
        }
        admit_rule(kind, object)?;
        definitions::admit(kind, old, object)
    }

    async fn create(&self, resource: &Arc<Resource>, object: Object) -> Result<Stored> {
        let name = object.name().to_owned();
        let created = self.store.create(resource, object).await;
        if let Err(CloudError::NamespaceLeft { namespace }) = &created {
            self.namespaces.forget(namespace);
        }
        created.map(kept).map_err(|error| status(resource, &name, &error))
    }

    async fn update(&self, resource: &Arc<Resource>, object: Object, expected: u64) -> Result<Stored> {
        let name = object.name().to_owned();
        let updated = self.store.update(resource, object, expected).await;
        updated.map(kept).map_err(|error| status(resource, &name, &error))
    }

    async fn remove(&self, resource: &Arc<Resource>, old: &Stored) -> Result<Stored> {
        let removed = self.store.delete(resource, &old.namespace, &old.name, Some(old.version)).await;
        removed.map(kept).map_err(|error| status(resource, &old.name, &error))
    }
}

impl Snapshot for CloudList {
    fn version(&self) -> u64 {
        self.snapshot.version()
    }

    async fn page(&mut self, query: PageQuery) -> Result<Page> {
        let PageQuery { namespace, after, limit, name, labels, filter } = query;
        let after = match &after {
            Some(Cursor(token)) => read_token(token)?,
            None => None,
        };
        let limit = limit.clamp(1, PAGE_ROWS);
        let scan = Scan { of: name_of(&self.resource), namespace, name, labels, limit, after };
        let keep = move |listed: Listed| {
            let Listed { namespace, name, version, body } = listed;
            let stored = Stored { namespace, name, version, json: body };
            filter.as_ref().is_none_or(|filter| filter(&stored)).then_some(stored)
        };
        let page = self.snapshot.scan(scan, keep).await;
        let (items, next) = page.map_err(|error| status(&self.resource, "", &error))?;
        Ok(Page { items, next: next.map(|place| Cursor(write_token(&place))) })
    }

    async fn count(&mut self, namespace: Option<&str>) -> Result<u64> {
        let count = self.snapshot.count(name_of(&self.resource), namespace.map(str::to_owned)).await;
        count.map_err(|error| status(&self.resource, "", &error))
    }
}
