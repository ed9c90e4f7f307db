//! Namespaces that come with the first object in them, and those that take no more. Depends on the storage and on
//! `object`.
//!
//! Creating an object in a namespace that does not exist creates the namespace, as the admission plugin
//! `NamespaceAutoProvision` of Kubernetes does. In one that is being deleted, nothing can be created.

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

/// The namespaces that every cluster has, for good: the Leases of nodes come back into theirs every few seconds.
pub const SYSTEM_NAMESPACES: [&str; 4] = ["default", "kube-system", "kube-public", "kube-node-lease"];
/// The most names that are remembered; with more, all are looked up again.
const MAX_REMEMBERED: usize = 4096;

/// What becomes of a namespace that does not exist, when something is to be created in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Missing {
    /// It is made.
    Made,
    /// It would be made: nothing is, in a dry run.
    Passed,
    /// Nothing can be created in it: who asks makes no namespaces.
    Refused,
}

/// Which namespaces are known to exist. Whoever sees a Namespace change or go calls [`Namespaces::forget`].
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
    /// The kind of namespaces.
    #[must_use]
    pub fn resource(&self) -> &Arc<Resource> {
        &self.resource
    }

    /// Makes sure that an object of `kind` can be created in a namespace; `missing` says what happens if it does not exist.
    ///
    /// # Errors
    /// 403 if the namespace is being deleted, 404 if it is refused, 400 if it cannot be one's name, and the storage's.
    pub async fn ensure<K: Storage>(
        &self,
        storage: &K,
        kind: &Resource,
        object: &str,
        namespace: &str,
        missing: Missing,
    ) -> Result<()> {
        if self.active.read().unwrap_or_else(PoisonError::into_inner).contains(namespace) {
            return Ok(());
        }
        check_label(namespace).map_err(|problem| Status::bad_request(format!("the namespace {problem}")))?;
        let found = match storage.get(&self.resource, "", namespace).await? {
            None => match missing {
                Missing::Passed => return Ok(()),
                Missing::Made => self.create(storage, namespace).await?,
                Missing::Refused => return Err(Status::not_found(&self.resource, namespace)),
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

    /// Makes sure that [`SYSTEM_NAMESPACES`] exist.
    ///
    /// # Errors
    /// The storage's.
    pub async fn ensure_system<K: Storage>(&self, storage: &K) -> Result<()> {
        for name in SYSTEM_NAMESPACES {
            if storage.get(&self.resource, "", name).await?.is_none() {
                self.create(storage, name).await?;
            }
        }
        Ok(())
    }

    /// Looks a namespace up again before the next object is created in it.
    pub fn forget(&self, namespace: &str) {
        self.active.write().unwrap_or_else(PoisonError::into_inner).remove(namespace);
    }

    /// Creates a namespace, unless somebody else just has.
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
    let why = format!("nothing can be created in namespace {namespace}: it is being terminated");
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
