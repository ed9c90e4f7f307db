//! Identity of kinds: group, version, kind, plural and scope.

use std::fmt;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

/// Scope of a kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Scope {
    /// Objects have a namespace.
    Namespaced,
    /// Objects are unique in the cluster.
    Cluster,
}

/// A kind as served by an API: maps between a path and a `kind` field.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Resource {
    /// API group, empty for the core group.
    pub group: String,
    /// API version within the group, such as `v1`.
    pub version: String,
    /// Kind in CamelCase, such as `ConfigMap`.
    pub kind: String,
    /// Lower-case plural of the path, such as `configmaps`.
    pub plural: String,
    /// Whether objects of the kind have a namespace.
    pub scope: Scope,
}

/// Identity of an object by name: unique among the objects that exist at one time.
///
/// Without the API version: `apps/v1` and `apps/v1beta1` show the same object.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ObjectKey {
    /// API group, empty for the core group.
    pub group: Arc<str>,
    /// Kind in CamelCase, such as `Pod`; unique only within `group`.
    pub kind: Arc<str>,
    /// Namespace, empty for cluster-scoped objects.
    pub namespace: Arc<str>,
    /// Name of the object.
    pub name: Arc<str>,
}

impl Resource {
    /// Returns `group/version`, or only the version in the core group.
    #[must_use]
    pub fn api_version(&self) -> String {
        if self.group.is_empty() { self.version.clone() } else { format!("{}/{}", self.group, self.version) }
    }

    /// Returns `plural.group`, or only the plural in the core group, for messages.
    #[must_use]
    pub(crate) fn qualified(&self) -> String {
        if self.group.is_empty() { self.plural.clone() } else { format!("{}.{}", self.plural, self.group) }
    }

    /// Returns the key of an object of this kind.
    #[must_use]
    pub fn key(&self, namespace: &str, name: &str) -> ObjectKey {
        ObjectKey {
            group: self.group.as_str().into(),
            kind: self.kind.as_str().into(),
            namespace: namespace.into(),
            name: name.into(),
        }
    }
}

/// Splits an `apiVersion` into group and version; the core group is the empty string.
#[must_use]
pub fn split_api_version(api_version: &str) -> (&str, &str) {
    api_version.split_once('/').unwrap_or(("", api_version))
}

impl fmt::Display for ObjectKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.namespace.is_empty() {
            write!(f, "{} '{}'", self.kind, self.name)
        } else {
            write!(f, "{} '{}/{}'", self.kind, self.namespace, self.name)
        }
    }
}
