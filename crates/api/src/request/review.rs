//! What clients ask about themselves, by path. Pure.

/// A review, by the path that it is posted to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Review {
    /// Who asks: `kubectl auth whoami`.
    Myself,
    /// Whether they may do one thing: `kubectl auth can-i`.
    Access,
    /// All that they may do: `kubectl auth can-i --list`.
    Rules,
}

impl Review {
    /// The review behind a group, a version and a plural.
    pub(crate) fn of(group: &str, version: &str, plural: &str) -> Option<Self> {
        match (group, version, plural) {
            ("authentication.k8s.io", "v1", "selfsubjectreviews") => Some(Self::Myself),
            ("authorization.k8s.io", "v1", "selfsubjectaccessreviews") => Some(Self::Access),
            ("authorization.k8s.io", "v1", "selfsubjectrulesreviews") => Some(Self::Rules),
            _ => None,
        }
    }
}
