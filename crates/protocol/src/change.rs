//! Changes that one message requests of the edge: put an object, or delete it.

use std::sync::Arc;

use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use edgesync_object::{ObjectKey, Resource, ResourceVersion};
pub use edgesync_object::{ObjectRef, Uid};

use super::patch::Patch;

/// A change of the desired objects of the edge.
#[derive(Debug)]
pub enum Change {
    /// Stores the object in this version.
    Put(Put),
    /// Stores the object in the version that a patch makes of the held one.
    Patch(Arc<Patch>),
    /// Deletes the object with this UID.
    Delete(Delete),
}

/// A validated object: names are valid, UID and version are present, the body is one JSON object.
#[derive(Debug)]
pub struct Put {
    /// The UID, which identifies the object.
    pub uid: Uid,
    /// The version of the body.
    pub version: ResourceVersion,
    /// The newer version on the edge that this older one deliberately replaces.
    pub supersedes: Option<ResourceVersion>,
    /// The kind, shared by all objects of that kind in a frame.
    pub resource: Arc<Resource>,
    /// The namespace, empty for cluster-scoped kinds.
    pub namespace: Arc<str>,
    /// The object's name, unique per kind and namespace.
    pub name: Arc<str>,
    /// The object as JSON text, unchanged from the sender.
    pub body: Box<RawValue>,
}

/// The deletion of an object. The UID alone decides; the key is for logs and local readers.
#[derive(Debug)]
pub struct Delete {
    /// The UID of the object to remove. An object of another UID under the same name stays.
    pub uid: Uid,
    /// Kind, namespace and name, as far as the sender knows them.
    pub key: ObjectKey,
}

impl Change {
    /// Returns the UID of the changed object.
    #[must_use]
    pub fn uid(&self) -> &Uid {
        match self {
            Self::Put(put) => &put.uid,
            Self::Patch(patch) => patch.uid(),
            Self::Delete(delete) => &delete.uid,
        }
    }
}

impl Put {
    /// Returns the reference (API version, kind, namespace, name) of the object.
    #[must_use]
    pub fn object_ref(&self) -> ObjectRef {
        ObjectRef {
            api_version: self.resource.api_version().into(),
            kind: self.resource.kind.as_str().into(),
            namespace: self.namespace.clone(),
            name: self.name.clone(),
        }
    }

    /// Returns the kind, namespace and name that local readers look up.
    #[must_use]
    pub fn key(&self) -> ObjectKey {
        self.resource.key(&self.namespace, &self.name)
    }
}

/// The reason why an object could not be applied. All other objects of the frame are applied
/// nevertheless.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub enum RejectReason {
    /// The object exceeds the size limit of the node.
    TooLarge,
    /// The object is not a valid Kubernetes object, or differs from the one its message names.
    Invalid,
    /// The edge holds a newer object of another UID under the same name.
    Stale,
    /// The database or its disk is full.
    StoreFull,
    /// The database is temporarily not writable.
    StoreUnavailable,
    /// A reason unknown to this version.
    #[serde(other)]
    Other,
}

/// An object that the edge could not apply.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Rejected {
    /// The UID of the object, empty if the message had none.
    pub uid: Uid,
    /// The rejected version of the object.
    pub resource_version: ResourceVersion,
    /// The reason, for programs.
    pub reason: RejectReason,
    /// The problem and its remedy for people, at most 256 bytes.
    pub message: String,
    /// The object, as far as the edge can identify it. Not sent: the cloud knows it.
    #[serde(skip)]
    pub object: Option<Box<ObjectRef>>,
}
