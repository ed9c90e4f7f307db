//! Propagation of a delete to dependents. Pure.

/// Handling of the dependents of a deleted object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Propagation {
    /// Dependents are deleted after their owner.
    Background,
    /// Dependents are deleted before their owner.
    Foreground,
    /// Dependents stay, without their owner.
    Orphan,
}

impl Propagation {
    /// Returns the finalizer that delays the deletion of the owner.
    pub(super) fn finalizer(self) -> Option<&'static str> {
        match self {
            Self::Background => None,
            Self::Foreground => Some("foregroundDeletion"),
            Self::Orphan => Some("orphan"),
        }
    }
}
