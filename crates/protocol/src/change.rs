//! What one message asks of the edge: to hold an object, or to hold it no more.

use std::sync::Arc;

use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

pub use edgesync_object::ObjectRef;
use edgesync_object::{ObjectKey, Resource, ResourceVersion};

/// The UID of an object, shared: it stands in several tables of a side at once.
pub type Uid = Arc<str>;

/// A change of what the edge is to hold.
#[derive(Debug)]
pub enum Change {
    /// Hold this object, in this version.
    Put(Put),
    /// Hold the object with this UID no more.
    Delete(Delete),
}

/// An object to hold, checked: names are valid, UID and version are present, the body is one JSON object.
#[derive(Debug)]
pub struct Put {
    /// The UID, the identity of the object.
    pub uid: Uid,
    /// The version of the body.
    pub version: ResourceVersion,
    /// The version that the sender knows the edge holds and that this one replaces although it is newer.
    pub supersedes: Option<ResourceVersion>,
    /// The kind, shared by all objects of a frame that are of that kind.
    pub resource: Arc<Resource>,
    /// Namespace, empty for cluster-scoped kinds.
    pub namespace: Arc<str>,
    /// Name.
    pub name: Arc<str>,
    /// The object as JSON text, as it was sent.
    pub body: Box<RawValue>,
}

/// An object to hold no more. The UID alone decides; the rest is for logs and local readers.
#[derive(Debug)]
pub struct Delete {
    /// The UID of the object to remove. An object of another UID under the same name stays.
    pub uid: Uid,
    /// Kind, namespace and name, as far as the sender knew them.
    pub key: ObjectKey,
}

impl Change {
    /// The UID that the change is about.
    #[must_use]
    pub fn uid(&self) -> &Uid {
        match self {
            Self::Put(put) => &put.uid,
            Self::Delete(delete) => &delete.uid,
        }
    }
}

impl Put {
    /// Which object it is.
    #[must_use]
    pub fn object_ref(&self) -> ObjectRef {
        ObjectRef {
            api_version: self.resource.api_version().into(),
            kind: self.resource.kind.as_str().into(),
            namespace: self.namespace.clone(),
            name: self.name.clone(),
        }
    }

    /// Kind, namespace and name.
    #[must_use]
    pub fn key(&self) -> ObjectKey {
        self.resource.key(&self.namespace, &self.name)
    }
}

/// Why an object could not be applied. All others of its frame are applied nevertheless.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub enum RejectReason {
    /// Larger than the node accepts.
    TooLarge,
    /// Not a valid Kubernetes object, or not the one its message speaks of.
    Invalid,
    /// The edge holds a newer object of another UID under the same name.
    Stale,
    /// No room in the database or on its disk.
    StoreFull,
    /// The database cannot be written at the moment.
    StoreUnavailable,
    /// A reason that this version does not know.
    #[serde(other)]
    Other,
}

/// An object that the edge could not apply.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Rejected {
    /// The UID of the object, empty if the message had none.
    pub uid: Uid,
    /// The version that was refused.
    pub resource_version: ResourceVersion,
    /// A reason that programs can tell apart.
    pub reason: RejectReason,
    /// What is wrong and what would be right, for people. At most 256 bytes.
    pub message: String,
    /// Which object it is, as far as the edge can tell. Not sent: the cloud knows.
    #[serde(skip)]
    pub object: Option<Box<ObjectRef>>,
}
