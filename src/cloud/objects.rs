//! The cloud's store as the keeper of objects behind the API: requests in, statuses out.

mod keeper;
mod kinds;
mod ring;
#[cfg(test)]
mod tests;

use std::error::Error;
use std::sync::Arc;

use base64::Engine;
use base64::engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::api::{Kind, ListOptions, ListPage, Objects, Preconditions};
use crate::object::status::{Cause, Reason, Result};
use crate::object::{Object, Resource, Status};
use crate::store::StoreError;
use crate::store::cloud::{self, CloudError, CloudStore, Cursor, ListQuery};
use kinds::Kinds;
use ring::Ring;

pub use keeper::CloudList;
pub use ring::RingLimits;

/// The most kinds that are learnt: what a client that makes up kinds can take of memory.
pub const MAX_LEARNT_KINDS: usize = 2048;
/// How long a client is asked to wait while the database cannot be used, in seconds.
const RETRY_SECONDS: u32 = 5;
/// How long a client is asked to wait while too many lists are open, in seconds.
const SNAPSHOT_RETRY_SECONDS: u32 = 1;

/// The objects of a [`CloudStore`], read and written.
pub struct CloudObjects {
    store: CloudStore,
    kinds: Kinds,
    /// The newest changes, for watches.
    ring: Arc<Ring>,
}

impl std::fmt::Debug for CloudObjects {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("CloudObjects").field("store", &self.store).finish_non_exhaustive()
    }
}

impl CloudObjects {
    /// Reads the kinds that the store has met before and observes its changes. There can be one for a store.
    ///
    /// # Errors
    /// The store's.
    pub async fn new(store: CloudStore) -> Result<Self, CloudError> {
        Self::with_limits(store, RingLimits::default()).await
    }

    /// The same with other bounds of what is kept in memory for watches.
    ///
    /// # Errors
    /// The store's.
    pub async fn with_limits(store: CloudStore, limits: RingLimits) -> Result<Self, CloudError> {
        let ring = Arc::new(Ring::new(limits));
        store.observe(Arc::clone(&ring) as Arc<_>).await?;
        let kinds = Kinds::new(store.resources().await?);
        Ok(Self { store, kinds, ring })
    }

    /// The store behind.
    #[must_use]
    pub fn store(&self) -> &CloudStore {
        &self.store
    }

    /// Replaces the kinds of CustomResourceDefinitions: all versions that are served, those of a group together.
    /// A kind that was served only because the store has objects of it gives way for good.
    pub fn set_custom(&self, kinds: &[Arc<Kind>]) {
        self.kinds.set_custom(kinds);
    }

    /// A list that can have one object at most.
    async fn list_one(
        &self,
        resource: &Resource,
        namespace: &str,
        name: &str,
        options: &ListOptions,
    ) -> Result<ListPage> {
        // Read before the object, so that the list is never newer than it says.
        let resource_version = self.store.version().to_string();
        let found = Objects::get(self, resource, namespace, name).await?;
        let selected = |json: &String| {
            Object::parse(json).is_ok_and(|object| {
                options.fields.matches(namespace, name) && options.labels.matches(&object.labels())
            })
        };
        let items = found.into_iter().filter(selected).collect();
        Ok(ListPage { items, resource_version, ..ListPage::default() })
    }
}

impl Objects for CloudObjects {
    fn resource(&self, group: &str, version: &str, plural: &str) -> Option<Arc<Resource>> {
        self.kinds.get(group, version, plural).map(|kind| Arc::clone(&kind.resource))
    }

    fn resources(&self) -> Vec<Arc<Resource>> {
        let mut all: Vec<_> = self.kinds.all().iter().map(|kind| Arc::clone(&kind.resource)).collect();
        all.sort();
        all
    }

    fn writable(&self, _: &Resource) -> bool {
        true
    }

    async fn learn(&self, resource: Resource) -> Result<Arc<Resource>> {
        if self.kinds.learnt_len() >= MAX_LEARNT_KINDS {
            return Err(Status::forbidden(&resource, "", "this server has learnt as many kinds as it may"));
        }
        let same_kind = |known: &&Arc<Resource>| known.group == resource.group && known.kind == resource.kind;
        match self.resources().iter().find(same_kind) {
            Some(known) if known.plural != resource.plural || known.scope != resource.scope => {
                let message = format!(
                    "kind {} of group '{}' is known as {} {}: use that path",
                    known.kind,
                    known.group,
                    if known.scope == crate::object::Scope::Namespaced {
                        "namespaced"
                    } else {
                        "cluster-scoped"
                    },
                    known.plural
                );
                Err(Status::new(Reason::Conflict, message))
            }
            _ => Ok(Arc::new(resource)),
        }
    }

    async fn get(&self, resource: &Resource, namespace: &str, name: &str) -> Result<Option<String>> {
        match self.store.get(resource.key(namespace, name)).await {
            Ok(stored) => Ok(Some(stored.body)),
            Err(CloudError::NotFound { .. }) => Ok(None),
            Err(error) => Err(status(resource, name, &error)),
        }
    }

    async fn list(
        &self,
        resource: &Resource,
        namespace: Option<&str>,
        options: &ListOptions,
    ) -> Result<ListPage> {
        let cluster = resource.scope == crate::object::Scope::Cluster;
        let namespace = match (namespace, options.fields.only_namespace()) {
            _ if cluster => Some(""),
            (Some(namespace), _) => Some(namespace),
            (None, only) => only,
        };
        if let (Some(namespace), Some(name)) = (namespace, options.fields.only_name()) {
            return self.list_one(resource, namespace, name, options).await;
        }
        let query = ListQuery {
            group: resource.group.clone(),
            kind: resource.kind.clone(),
            namespace: namespace.filter(|_| !cluster).map(str::to_owned),
            selector: options.labels.clone(),
            limit: Some(options.limit),
            after: read_token(&options.continue_token)?,
        };
        let page = self.store.list(query).await.map_err(|error| status(resource, "", &error))?;
        let selected =
            page.items.into_iter().filter(|item| options.fields.matches(&item.namespace, &item.name));
        Ok(ListPage {
            items: selected.map(|item| item.body).collect(),
            resource_version: page.version.to_string(),
            continue_token: page.next.map(|cursor| write_token(&cursor)),
            remaining: None,
        })
    }

    async fn create(&self, resource: &Resource, mut object: Object) -> Result<String> {
        encode_string_data(resource, object.fields_mut())?;
        for field in cloud::SERVER_METADATA {
            object.remove_metadata(field);
        }
        let name = object.name().to_owned();
        let created = self.store.create(resource, object).await;
        let created = created.map_err(|error| status(resource, &name, &error))?;
        self.kinds.learn(resource);
        Ok(created.body)
    }

    async fn replace(&self, resource: &Resource, mut object: Object) -> Result<String> {
        encode_string_data(resource, object.fields_mut())?;
        let (namespace, name) = (object.namespace().to_owned(), object.name().to_owned());
        let replaced = self.store.replace(resource, &namespace, &name, object).await;
        replaced.map(|stored| stored.body).map_err(|error| status(resource, &name, &error))
    }

    async fn delete(
        &self,
        resource: &Resource,
        namespace: &str,
        name: &str,
        preconditions: &Preconditions,
    ) -> Result<String> {
        let preconditions = cloud::Preconditions {
            uid: preconditions.uid.clone(),
            resource_version: preconditions.resource_version.clone(),
        };
        let deleted = self.store.delete(resource, namespace, name, preconditions).await;
        deleted.map(|stored| stored.body).map_err(|error| status(resource, name, &error))
    }
}

/// What the API answers for an error of the store.
fn status(resource: &Resource, name: &str, error: &CloudError) -> Status {
    match error {
        CloudError::AlreadyExists { .. } => Status::already_exists(resource, name),
        CloudError::NotFound { .. } => Status::not_found(resource, name),
        CloudError::Conflict { .. } => Status::modified(resource, name),
        CloudError::OtherUid { given, current, .. } => {
            let why =
                format!("Precondition failed: UID in precondition: {given}, UID in object meta: {current}");
            Status::conflict(resource, name, &why)
        }
        CloudError::Invalid { problems, .. } => {
            let causes = problems.0.iter().map(|problem| Cause {
                reason: "FieldValueInvalid".to_owned(),
                message: problem.message.clone(),
                field: problem.field.clone(),
            });
            Status::invalid(&resource.group, &resource.kind, name, causes.collect())
        }
        CloudError::TooLarge { limit, .. } => Status::too_large(*limit),
        CloudError::Expired { after, oldest } => {
            Status::expired(format!("too old resource version: {after} ({oldest})"))
        }
        CloudError::Store(failure @ StoreError::TooManySnapshots { .. }) => {
            Status::too_many_requests(chain(failure), SNAPSHOT_RETRY_SECONDS)
        }
        CloudError::Store(
            failure @ (StoreError::Full(_) | StoreError::Unavailable(_) | StoreError::Closed),
        ) => {
            tracing::warn!(error = chain(failure), "the API cannot use the database");
            Status::unavailable(chain(failure), RETRY_SECONDS)
        }
        CloudError::Store(failure) => {
            tracing::error!(error = chain(failure), "the API failed at the database");
            Status::internal(chain(failure))
        }
    }
}

fn chain(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        text.push_str(&format!(": {error}"));
        cause = error.source();
    }
    text
}

/// Moves the plain texts of a Secret to its data, as the API of Kubernetes does: they can be written but
/// are never read.
fn encode_string_data(resource: &Resource, object: &mut Map<String, Value>) -> Result<()> {
    if !(resource.group.is_empty() && resource.kind == "Secret") {
        return Ok(());
    }
    let Some(plain) = object.remove("stringData") else { return Ok(()) };
    let name = object.get("metadata").and_then(|metadata| metadata.get("name")).and_then(Value::as_str);
    let name = name.unwrap_or_default().to_owned();
    let wrong =
        |field: &str, must: &str| Status::invalid("", "Secret", &name, vec![Cause::wrong_type(field, must)]);
    let plain = match plain {
        Value::Null => return Ok(()),
        Value::Object(plain) => plain,
        _ => return Err(wrong("stringData", "must be an object")),
    };
    let data = object.entry("data").or_insert(Value::Null);
    if data.is_null() {
        *data = Value::Object(Map::new());
    }
    let Value::Object(data) = data else { return Err(wrong("data", "must be an object")) };
    for (key, text) in plain {
        let Value::String(text) = text else {
            return Err(wrong(&format!("stringData[{key}]"), "must be a string"));
        };
        data.insert(key, Value::String(STANDARD.encode(text)));
    }
    Ok(())
}

/// What a `continue` token carries.
#[derive(Serialize, Deserialize)]
struct Token {
    namespace: String,
    name: String,
}

fn write_token(cursor: &Cursor) -> String {
    let token = Token { namespace: cursor.namespace.clone(), name: cursor.name.clone() };
    URL_SAFE_NO_PAD.encode(serde_json::to_vec(&token).unwrap_or_default())
}

fn read_token(token: &str) -> Result<Option<Cursor>> {
    if token.is_empty() {
        return Ok(None);
    }
    let bytes = URL_SAFE_NO_PAD.decode(token).ok();
    let token = bytes.and_then(|bytes| serde_json::from_slice::<Token>(&bytes).ok());
    match token {
        Some(Token { namespace, name }) => Ok(Some(Cursor { namespace, name })),
        None => Err(Status::bad_request("the continue token is not one that this server gave")),
    }
}
