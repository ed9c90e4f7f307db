//! Types of local objects.

/// The kinds of local objects.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum LocalKind {
    /// Lease of `coordination.k8s.io/v1`; code 1 in the database.
    Lease,
    /// Event of `events.k8s.io/v1`; code 2 in the database.
    Event,
}

impl LocalKind {
    pub(super) fn code(self) -> i64 {
        match self {
            Self::Lease => 1,
            Self::Event => 2,
        }
    }

    pub(super) fn of_code(code: i64) -> Option<Self> {
        [Self::Lease, Self::Event].into_iter().find(|kind| kind.code() == code)
    }
}

/// An object created on the node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LocalObject {
    pub kind: LocalKind,
    pub namespace: String,
    pub name: String,
    /// Its version; ignored in writes.
    pub version: u64,
    /// The object as JSON text, with its version.
    pub body: String,
}
