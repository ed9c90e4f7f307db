//! An object as the store keeps it.

use std::sync::Arc;

/// A stored object: the text and what is most asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stored {
    /// The UID.
    pub uid: Arc<str>,
    /// The version; that of the deletion for a deleted object.
    pub version: u64,
    /// Namespace, empty for cluster-scoped objects.
    pub namespace: String,
    /// Name.
    pub name: String,
    /// The object as JSON text with sorted keys.
    pub body: String,
}
