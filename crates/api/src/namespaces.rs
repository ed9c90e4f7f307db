//! Namespace provisioning: creates a namespace with its first object, and refuses objects in a
//! terminating one. Depends on the storage and on `object`.
//!
//! As with the admission plugin `NamespaceAutoProvision` of Kubernetes, creating an object in a
//! missing namespace creates the namespace.

use std::collections::HashSet;
use std::sync::{Arc, PoisonError, RwLock};

use jiff::Timestamp;
use serde_json::{Value, json};

use super::rules;
use super::storage::Storage;
use edgesync_object::name::check_label;
use edgesync_object::status::{Cause, Reason, Result};
use edgesync_object::time::rfc3339;
use edgesync_object::{Object, Resource, Scope, Status};

/// Namespaces that every cluster has and that cannot be deleted: node Leases are renewed there
/// every few seconds.
pub const SYSTEM_NAMESPACES: [&str; 4] = ["default", "kube-system", "kube-public", "kube-node-lease"];
/// Maximum number of names cached; beyond it the cache is cleared.
const MAX_REMEMBERED: usize = 4096;

/// Handling of a create in a namespace that does not exist.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MissingNamespace {
    /// The namespace is created.
    Create,
    /// The namespace would be created: dry run.
    DryRun,
    /// The create is refused: the caller may not create namespaces.
    Refuse,
}

/// Cache of the existing namespaces. Callers that observe a Namespace change or deletion call
/// [`Namespaces::forget`].
#[derive(Debug)]
pub struct Namespaces {
    resource: Arc<Resource>,
    active: RwLock<HashSet<Box<str>>>,
}

impl Default for Namespaces {
    fn default() -> Self {
        let resource = Resource {
            group: String::new(),
            version: "v1".to_owned(),
            kind: "Namespace".to_owned(),
            plural: "namespaces".to_owned(),
            scope: Scope::Cluster,
        };
        Self { resource: Arc::new(resource), active: RwLock::default() }
    }
}

impl Namespaces {
    /// Returns the resource of namespaces.
    #[must_use]
    pub fn resource(&self) -> &Arc<Resource> {
        &self.resource
    }

    /// Ensures that an object of `kind` can be created in a namespace; `missing` selects the
    /// handling of one that does not exist.
    ///
    /// # Errors
    /// 403 if the namespace is terminating, 404 if it is missing and refused, 400 for an invalid
    /// name, and errors of the storage.
    pub async fn ensure<K: Storage>(
        &self,
        storage: &K,
        kind: &Resource,
        object: &str,
        namespace: &str,
        missing: MissingNamespace,
    ) -> Result<()> {
        if self.active.read().unwrap_or_else(PoisonError::into_inner).contains(namespace) {
            return Ok(());
        }
        check_label(namespace).map_err(|problem| Status::bad_request(format!("the namespace {problem}")))?;
        let found = match storage.get(&self.resource, "", namespace).await? {
            None => match missing {
                MissingNamespace::DryRun => return Ok(()),
                MissingNamespace::Create => self.create(storage, namespace).await?,
                MissingNamespace::Refuse => return Err(Status::not_found(&self.resource, namespace)),
            },
            Some(stored) => Object::parse(&stored.json).map_err(Status::internal)?,
        };
        if found.deletion_timestamp().is_some() {
            return Err(terminating(kind, object, namespace));
        }
        let mut active = self.active.write().unwrap_or_else(PoisonError::into_inner);
        if active.len() >= MAX_REMEMBERED {
            active.clear();
        }
        active.insert(namespace.into());
        Ok(())
    }

    /// Ensures that [`SYSTEM_NAMESPACES`] exist.
    ///
    /// # Errors
    /// Errors of the storage.
    pub async fn ensure_system<K: Storage>(&self, storage: &K) -> Result<()> {
        for name in SYSTEM_NAMESPACES {
            if storage.get(&self.resource, "", name).await?.is_none() {
                self.create(storage, name).await?;
            }
        }
        Ok(())
    }

    /// Drops a namespace from the cache: the next create looks it up.
    pub fn forget(&self, namespace: &str) {
        self.active.write().unwrap_or_else(PoisonError::into_inner).remove(namespace);
    }

    /// Creates a namespace; one created concurrently is returned.
    async fn create<K: Storage>(&self, storage: &K, name: &str) -> Result<Object> {
        let now = rfc3339(Timestamp::now());
        let uid = uuid::Uuid::new_v4().to_string();
        let metadata = json!({"name": name, "uid": uid, "creationTimestamp": now});
        let fields = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": metadata});
        let mut object = match fields {
            Value::Object(fields) => Object::from(fields),
            _ => Object::default(),
        };
        rules::complete(&self.resource, None, &mut object);
        match storage.create(&self.resource, object.clone()).await {
            Ok(_) => Ok(object),
            Err(status) if status.is(&Reason::AlreadyExists) => {
                let stored = storage.get(&self.resource, "", name).await?;
                let stored = stored.ok_or_else(|| Status::modified(&self.resource, name))?;
                Object::parse(&stored.json).map_err(Status::internal)
            }
            Err(status) => Err(status),
        }
    }
}

fn terminating(kind: &Resource, object: &str, namespace: &str) -> Status {
    let why = format!("unable to create new content in namespace {namespace} because it is being terminated");
    let mut status = Status::forbidden(kind, object, &why);
    if let Some(details) = &mut status.details {
        details.causes.push(Cause {
            reason: "NamespaceTerminating".to_owned(),
            message: format!("namespace {namespace} is being terminated"),
            field: "metadata.namespace".to_owned(),
        });
    }
    status
}
