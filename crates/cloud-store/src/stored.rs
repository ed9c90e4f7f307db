//! Stored form of an object.

use std::sync::Arc;

/// A stored object: its text, and the fields used most.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stored {
    pub uid: Arc<str>,
    /// The version; for a deleted object, that of the deletion.
    pub version: u64,
    /// Namespace, empty for cluster-scoped objects.
    pub namespace: String,
    pub name: String,
    /// The object as JSON text with sorted keys.
    pub body: String,
}
