//! Reviews of the client's own identity and permissions, by path. Pure.

/// A review, by the path that it is posted to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Review {
    /// The client's identity: `kubectl auth whoami`.
    Myself,
    /// Permission for one action: `kubectl auth can-i`.
    Access,
    /// All permissions: `kubectl auth can-i --list`.
    Rules,
}

impl Review {
    /// Returns the review of a group, version and plural.
    pub(crate) fn of(group: &str, version: &str, plural: &str) -> Option<Self> {
        match (group, version, plural) {
            ("authentication.k8s.io", "v1", "selfsubjectreviews") => Some(Self::Myself),
            ("authorization.k8s.io", "v1", "selfsubjectaccessreviews") => Some(Self::Access),
            ("authorization.k8s.io", "v1", "selfsubjectrulesreviews") => Some(Self::Rules),
            _ => None,
        }
    }
}
