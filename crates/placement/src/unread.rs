//! Unreadable objects: objects that rules select, but that the source does not report.

use std::fmt;
use std::sync::Arc;

use super::rules::KindMatch;
use edgesync_object::{ObjectRef, kinds, split_api_version};

/// Set of desired objects whose existence is unknown. Objects of this set that a node holds must
/// not count as deleted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Unread {
    /// One kind, in one namespace or in all.
    Kind(KindMatch, Option<Arc<str>>),
    /// All kinds of an API group.
    Group(String),
}

impl Unread {
    /// Returns whether an object may belong to the set.
    #[must_use]
    pub fn may_have(&self, object: &ObjectRef) -> bool {
        let namespace = match self {
            Self::Kind(_, namespace) => namespace.as_ref(),
            Self::Group(_) => None,
        };
        namespace.is_none_or(|namespace| *namespace == object.namespace)
            && self.may_have_kind(&object.api_version, &object.kind)
    }

    /// Returns whether objects of a kind may belong to the set.
    #[must_use]
    pub fn may_have_kind(&self, api_version: &str, kind: &str) -> bool {
        match self {
            // The plural matches too, as far as it can be guessed from the kind.
            Self::Kind(of, _) => of.matches(&kinds::guess(api_version, kind, true)),
            Self::Group(group) => split_api_version(api_version).0 == group,
        }
    }
}

impl fmt::Display for Unread {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Kind(kind, None) => kind.fmt(f),
            Self::Kind(kind, Some(namespace)) => write!(f, "{kind} in namespace {namespace}"),
            Self::Group(group) => write!(f, "*.{group}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn object_may_be_unread_by_kind_namespace_or_group() {
        let object = |api_version: &str, kind: &str, namespace: &str| ObjectRef {
            api_version: api_version.into(),
            kind: kind.into(),
            namespace: namespace.into(),
            name: "a".into(),
        };
        let group = Unread::Group("lab.io".to_owned());
        assert!(group.may_have(&object("lab.io/v2", "Widget", "shop")));
        assert!(!group.may_have(&object("v1", "ConfigMap", "shop")));

        let named = Unread::Kind("gizmos".parse().unwrap(), None);
        assert!(named.may_have(&object("x.io/v1", "Gizmo", "")), "whatever its group and version");
        assert!(!named.may_have(&object("x.io/v1", "Lamp", "")));

        let secrets = Unread::Kind("secret".parse().unwrap(), Some("shop".into()));
        assert!(secrets.may_have(&object("v1", "Secret", "shop")));
        assert!(!secrets.may_have(&object("v1", "Secret", "other")));
        let shown = [group, named, secrets].map(|unread| unread.to_string());
        assert_eq!(shown, ["*.lab.io", "gizmos", "Secret in namespace shop"]);
    }
}
