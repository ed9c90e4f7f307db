//! Reviews of identities and permissions, by path. Pure.

/// A review, by the path that it is posted to. It has an answer and no stored object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Review {
    /// The client's identity: `kubectl auth whoami`.
    Myself,
    /// The identity behind a token.
    Token,
    /// Permission for one action: `kubectl auth can-i`.
    Access,
    /// All permissions: `kubectl auth can-i --list`.
    Rules,
}

impl Review {
    /// All reviews, in the order of discovery.
    pub(crate) const ALL: [Self; 4] = [Self::Myself, Self::Token, Self::Access, Self::Rules];
    /// The API version of each review.
    pub(crate) const VERSION: &str = "v1";

    /// Returns the review of a group, version and plural.
    pub(crate) fn of(group: &str, version: &str, plural: &str) -> Option<Self> {
        Self::ALL
            .into_iter()
            .find(|review| (group, version, plural) == (review.group(), Self::VERSION, review.plural()))
    }

    /// Returns group, kind and plural.
    fn names(self) -> [&'static str; 3] {
        match self {
            Self::Myself => ["authentication.k8s.io", "SelfSubjectReview", "selfsubjectreviews"],
            Self::Token => ["authentication.k8s.io", "TokenReview", "tokenreviews"],
            Self::Access => ["authorization.k8s.io", "SelfSubjectAccessReview", "selfsubjectaccessreviews"],
            Self::Rules => ["authorization.k8s.io", "SelfSubjectRulesReview", "selfsubjectrulesreviews"],
        }
    }

    /// Returns the API group.
    pub(crate) fn group(self) -> &'static str {
        let [group, ..] = self.names();
        group
    }

    /// Returns the kind, such as `TokenReview`.
    pub(crate) fn kind(self) -> &'static str {
        let [_, kind, _] = self.names();
        kind
    }

    /// Returns the lower-case plural of the path.
    pub(crate) fn plural(self) -> &'static str {
        let [.., plural] = self.names();
        plural
    }
}
