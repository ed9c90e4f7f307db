//! The first form of the API over what the node holds: synced objects as they came, and the records about
//! them.

use std::sync::Arc;

use crate::api::{ListOptions, ListPage, Objects};
use crate::object::status::Result;
use crate::object::{Object, ObjectRef, ObjectSync, Resource, Scope, Status, objectsync};
use crate::store::edge::{Entry, InventoryCursor, ListCursor};
use crate::sync::digest::BucketSet;

use super::{EdgeObjects, unavailable};

fn object_ref(entry: &Entry) -> ObjectRef {
    ObjectRef {
        api_version: entry.object.resource.api_version().into(),
        kind: entry.object.resource.kind.as_str().into(),
        namespace: entry.object.namespace.as_str().into(),
        name: entry.object.name.as_str().into(),
    }
}

impl EdgeObjects {
    /// The record of one held object as JSON text.
    fn record_text(&self, object: &ObjectRef, uid: &str, version: &str) -> Option<String> {
        let name = objectsync::sync_name(&self.node, uid).ok()?;
        let mut json = Vec::with_capacity(400);
        ObjectSync::new(&name, object, version).write_json(&mut json).ok()?;
        String::from_utf8(json).ok()
    }

    async fn get_record(&self, resource: &Resource, namespace: &str, name: &str) -> Result<Option<String>> {
        let Some((node, uid)) = objectsync::split_sync_name(name) else { return Ok(None) };
        if *node != *self.node {
            return Ok(None);
        }
        let stored = self.store.by_uid(uid.into()).await.map_err(|error| unavailable(&error))?;
        let Some(stored) = stored.filter(|stored| stored.object.namespace == namespace) else {
            return Ok(None);
        };
        let object = ObjectRef {
            api_version: stored.object.resource.api_version().into(),
            kind: stored.object.resource.kind.as_str().into(),
            namespace: stored.object.namespace.as_str().into(),
            name: stored.object.name.as_str().into(),
        };
        let cluster = resource.scope == Scope::Cluster;
        Ok((cluster == object.is_cluster_scoped())
            .then(|| self.record_text(&object, &stored.uid, stored.version.as_str()))
            .flatten())
    }

    async fn list_records(
        &self,
        resource: &Resource,
        namespace: Option<&str>,
        options: &ListOptions,
    ) -> Result<ListPage> {
        let cursor = match options.continue_token.as_str() {
            "" => None,
            token => Some(token.parse::<u64>().map_err(|_| bad_token())?),
        };
        let cursor = cursor.and_then(InventoryCursor::from_number);
        let page = self
            .store
            .inventory(BucketSet::ALL, cursor, options.limit)
            .await
            .map_err(|error| unavailable(&error))?;
        let wanted = |object: &ObjectRef| {
            object.is_cluster_scoped() == (resource.scope == Scope::Cluster)
                && namespace.is_none_or(|namespace| *object.namespace == *namespace)
        };
        let items = page
            .entries
            .iter()
            .map(|entry| (entry, object_ref(entry)))
            .filter(|(_, object)| wanted(object))
            .filter_map(|(entry, object)| {
                let name = objectsync::sync_name(&self.node, &entry.uid).ok()?;
                let selected = options.fields.matches(&object.namespace, &name);
                selected.then(|| self.record_text(&object, &entry.uid, entry.version.as_ref()?.as_str()))?
            })
            .collect();
        Ok(ListPage {
            items,
            resource_version: page.totals.revision.to_string(),
            continue_token: page.next.map(|next| next.number().to_string()),
            remaining: None,
        })
    }
}

fn bad_token() -> Status {
    Status::bad_request("the continue token is not one that this server gave")
}

fn is_record(resource: &Resource) -> bool {
    objectsync::is_sync_record(resource)
}

impl Objects for EdgeObjects {
    fn resource(&self, group: &str, version: &str, plural: &str) -> Option<Arc<Resource>> {
        self.kinds.find(group, version, plural)
    }

    fn resources(&self) -> Vec<Arc<Resource>> {
        self.kinds.all()
    }

    async fn get(&self, resource: &Resource, namespace: &str, name: &str) -> Result<Option<String>> {
        if is_record(resource) {
            return self.get_record(resource, namespace, name).await;
        }
        let resource = Arc::new(resource.clone());
        let stored = self.store.get(resource, namespace.to_owned(), name.to_owned()).await;
        Ok(stored.map_err(|error| unavailable(&error))?.map(|stored| stored.body))
    }

    async fn list(
        &self,
        resource: &Resource,
        namespace: Option<&str>,
        options: &ListOptions,
    ) -> Result<ListPage> {
        if is_record(resource) {
            return self.list_records(resource, namespace, options).await;
        }
        let after = match options.continue_token.as_str() {
            "" => None,
            token => {
                let (namespace, name) = token.split_once('/').ok_or_else(bad_token)?;
                Some(ListCursor { namespace: namespace.to_owned(), name: name.to_owned() })
            }
        };
        let namespace = match resource.scope {
            Scope::Cluster => None,
            Scope::Namespaced => namespace.or(options.fields.only_namespace()).map(str::to_owned),
        };
        let list = self
            .store
            .list(Arc::new(resource.clone()), namespace, after, options.limit)
            .await
            .map_err(|error| unavailable(&error))?;
        let all = options.labels == crate::object::Selector::default();
        let selected = |body: &str| {
            all || Object::parse(body).is_ok_and(|object| options.labels.matches(&object.labels()))
        };
        let items = list
            .items
            .into_iter()
            .filter(|item| options.fields.matches(&item.object.namespace, &item.object.name))
            .map(|item| item.body)
            .filter(|body| selected(body))
            .collect();
        Ok(ListPage {
            items,
            resource_version: list.revision.to_string(),
            continue_token: list.next.map(|next| format!("{}/{}", next.namespace, next.name)),
            remaining: None,
        })
    }
}
