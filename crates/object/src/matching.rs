//! Selection of objects by kind, namespace, name and labels, shared by placement rules and file
//! rules.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

use super::objectsync::is_placeable;
use super::{Resource, Selector, kinds};

/// Maximum length of a glob in bytes: no matching name is longer.
const MAX_GLOB: usize = 253;
/// Maximum number of matches in a [`Selection`]: comparing objects with more takes longer than
/// reading all of them.
const MAX_MATCHES: usize = 16;

/// Selector of objects by kind, namespace, name and labels; all given criteria must match.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ObjectMatch {
    /// Kinds. If empty, any kind except those that structure the cluster: Namespaces, which follow
    /// their first object, and CustomResourceDefinitions.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub kinds: Vec<KindMatch>,
    /// Namespace patterns; one must match. If empty, any namespace, and cluster-scoped objects too.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub namespaces: Vec<Glob>,
    /// Object names; one must match. Any name if empty.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub names: Vec<String>,
    /// Requirements for the labels.
    #[serde(skip_serializing_if = "Selector::is_empty")]
    pub selector: Selector,
}

impl ObjectMatch {
    /// Returns whether an object with this kind, namespace and name may be selected; ignores
    /// labels.
    #[must_use]
    pub fn names(&self, resource: &Resource, namespace: &str, name: &str) -> bool {
        self.takes(resource) && self.takes_namespace(namespace) && self.takes_name(name)
    }

    /// Returns whether objects of a namespace may be selected; of none if it is empty.
    pub(crate) fn takes_namespace(&self, namespace: &str) -> bool {
        any(&self.namespaces, |glob| !namespace.is_empty() && glob.matches(namespace))
    }

    /// Returns whether objects of a name may be selected.
    pub(crate) fn takes_name(&self, name: &str) -> bool {
        any(&self.names, |expected| expected == name)
    }

    /// Returns whether objects of a kind may be selected.
    #[must_use]
    pub fn takes(&self, resource: &Resource) -> bool {
        match self.kinds.as_slice() {
            [] => !structures_the_cluster(resource),
            kinds => kinds.iter().any(|kind| kind.matches(resource)),
        }
    }
}

/// Objects that at least one of some [`ObjectMatch`]es selects. Any object, if there are too many
/// of those.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Selection(Vec<ObjectMatch>);

impl From<ObjectMatch> for Selection {
    fn from(objects: ObjectMatch) -> Self {
        Self(vec![objects])
    }
}

impl Selection {
    /// Adds the objects of another selection.
    pub fn extend(&mut self, other: Self) {
        self.0.extend(other.0);
        self.0.truncate(MAX_MATCHES + 1);
    }

    fn any(&self, selects: impl Fn(&ObjectMatch) -> bool) -> bool {
        self.0.len() > MAX_MATCHES || self.0.iter().any(selects)
    }

    /// Returns whether objects of a kind may be selected.
    #[must_use]
    pub fn takes(&self, resource: &Resource) -> bool {
        self.any(|objects| objects.takes(resource))
    }

    /// Returns whether an object is selected. `labels` returns whether a selector matches its
    /// labels.
    #[must_use]
    pub fn selects(
        &self,
        (resource, namespace, name): (&Resource, &str, &str),
        labels: impl Fn(&Selector) -> bool,
    ) -> bool {
        self.any(|objects| objects.names(resource, namespace, name) && labels(&objects.selector))
    }
}

/// Returns whether the kind structures the cluster, so that nodes only get its objects if a rule
/// names it.
fn structures_the_cluster(resource: &Resource) -> bool {
    matches!(
        (resource.group.as_str(), resource.kind.as_str()),
        ("", "Namespace") | ("apiextensions.k8s.io", "CustomResourceDefinition")
    )
}

/// Returns whether a pattern matches, or none is given.
pub fn any<T>(patterns: &[T], fits: impl Fn(&T) -> bool) -> bool {
    patterns.is_empty() || patterns.iter().any(fits)
}

/// A pattern for names: `*` matches any text, `?` one character.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Glob(String);

/// Reason why a name pattern was refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "the name pattern '{}' must be 1 to {MAX_GLOB} lower-case letters, digits, '-', '.', '*' or '?'",
    .0.chars().take(64).collect::<String>().escape_debug()
)]
pub struct GlobError(String);

impl Glob {
    /// Returns the only matching name, if the pattern has no wildcard.
    #[must_use]
    pub fn name(&self) -> Option<&str> {
        (!self.0.contains(['*', '?'])).then_some(self.0.as_str())
    }

    /// Returns whether the whole name matches. Takes at most pattern length × name length steps.
    #[must_use]
    pub fn matches(&self, name: &str) -> bool {
        // Patterns and names are ASCII: bytes are characters.
        let (pattern, name) = (self.0.as_bytes(), name.as_bytes());
        let (mut p, mut n) = (0, 0);
        // The last star, and the end of the text it has matched: the only point to backtrack to.
        let mut star: Option<(usize, usize)> = None;
        while n < name.len() {
            match pattern.get(p) {
                Some(b'*') => {
                    star = Some((p, n));
                    p += 1;
                }
                Some(b) if *b == b'?' || name.get(n) == Some(b) => {
                    p += 1;
                    n += 1;
                }
                _ => {
                    let Some((at, end)) = star else { return false };
                    star = Some((at, end + 1));
                    p = at + 1;
                    n = end + 1;
                }
            }
        }
        pattern.get(p..).unwrap_or_default().iter().all(|b| *b == b'*')
    }
}

impl fmt::Display for Glob {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl FromStr for Glob {
    type Err = GlobError;

    fn from_str(text: &str) -> Result<Self, GlobError> {
        let allowed =
            |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || matches!(b, b'-' | b'.' | b'*' | b'?');
        if (1..=MAX_GLOB).contains(&text.len()) && text.bytes().all(allowed) {
            return Ok(Self(text.to_owned()));
        }
        Err(GlobError(text.to_owned()))
    }
}

impl Serialize for Glob {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Glob {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(de::Error::custom)
    }
}

/// A kind as written by users: `ConfigMap`, `cm`, `configmaps`, `deployments.apps`,
/// `Widget.lab.io`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum KindMatch {
    /// A built-in kind of one group.
    Known {
        /// API group, empty for the core group.
        group: String,
        /// Kind in CamelCase, also if users write the plural or a short name.
        kind: String,
    },
    /// Any other kind, by kind or plural.
    Other {
        /// Kind in CamelCase, or lower-case plural or singular.
        word: String,
        /// API group; any if absent.
        group: Option<String>,
    },
}

impl fmt::Display for KindMatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (name, group) = match self {
            Self::Known { group, kind } => (kind, group.as_str()),
            Self::Other { word, group } => (word, group.as_deref().unwrap_or_default()),
        };
        if group.is_empty() { f.write_str(name) } else { write!(f, "{name}.{group}") }
    }
}

/// Reason why a kind was refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum KindError {
    /// Not a kind, nor a plural with an optional group.
    #[error("the kind '{}' must be a kind or a plural, with an optional '.' and group", .0.chars().take(64).collect::<String>().escape_debug())]
    Syntax(String),
    /// Such objects come from nodes or describe them.
    #[error("objects of kind '{0}' cannot be placed on nodes")]
    NotPlaceable(String),
}

impl KindMatch {
    /// Returns whether the resource is of this kind.
    #[must_use]
    pub fn matches(&self, resource: &Resource) -> bool {
        match self {
            Self::Known { group, kind } => resource.kind == *kind && resource.group == *group,
            Self::Other { word, group } => {
                let named = resource.kind.eq_ignore_ascii_case(word) || resource.plural == *word;
                named && group.as_ref().is_none_or(|group| resource.group == *group)
            }
        }
    }
}

impl FromStr for KindMatch {
    type Err = KindError;

    fn from_str(text: &str) -> Result<Self, KindError> {
        if let Some(known) = kinds::by_word(text) {
            if !is_placeable(&known.resource()) {
                return Err(KindError::NotPlaceable(known.kind.to_owned()));
            }
            return Ok(Self::Known { group: known.group.to_owned(), kind: known.kind.to_owned() });
        }
        let (word, group) = match text.split_once('.') {
            Some((word, group)) => (word, Some(group)),
            None => (text, None),
        };
        let word_fits = (1..=63).contains(&word.len()) && word.bytes().all(|b| b.is_ascii_alphanumeric());
        let group_fits = group.is_none_or(|group| crate::name::check_subdomain(group).is_ok());
        if !word_fits || !group_fits {
            return Err(KindError::Syntax(text.to_owned()));
        }
        Ok(Self::Other { word: word.to_owned(), group: group.map(str::to_owned) })
    }
}

impl Serialize for KindMatch {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for KindMatch {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kinds::guess;
    use proptest::prelude::*;

    #[test]
    fn kinds_are_parsed_in_all_forms() {
        let widget = guess("lab.io/v1", "Widget", true);
        for word in ["Widget", "widgets", "widget", "widgets.lab.io", "Widget.lab.io"] {
            assert!(word.parse::<KindMatch>().unwrap().matches(&widget), "{word}");
        }
        assert!(!"widgets.other.io".parse::<KindMatch>().unwrap().matches(&widget));
        let deployment: KindMatch = "deploy".parse().unwrap();
        assert!(deployment.matches(&guess("apps/v1beta1", "Deployment", true)));
        assert!(!deployment.matches(&guess("extensions/v1beta1", "Deployment", true)));
    }

    /// Reference implementation: matches a pattern recursively.
    fn fits(pattern: &[u8], name: &[u8]) -> bool {
        match pattern {
            [] => name.is_empty(),
            [b'*', rest @ ..] => (0..=name.len()).any(|n| fits(rest, &name[n..])),
            [first, rest @ ..] => {
                name.first().is_some_and(|b| *first == b'?' || first == b) && fits(rest, &name[1..])
            }
        }
    }

    proptest! {
        #[test]
        fn globs_match_like_the_reference(pattern in "[ab?*]{1,8}", name in "[ab]{0,8}") {
            let expected = fits(pattern.as_bytes(), name.as_bytes());
            prop_assert_eq!(pattern.parse::<Glob>().unwrap().matches(&name), expected);
        }
    }

    #[test]
    fn selection_is_what_one_of_its_matches_selects() {
        let of = |namespace: &str| {
            let namespaces = vec![namespace.parse().unwrap()];
            Selection::from(ObjectMatch { kinds: vec!["cm".parse().unwrap()], namespaces, ..<_>::default() })
        };
        let [config_map, secret] = ["cm", "secrets"].map(|word| kinds::by_word(word).unwrap().resource());
        let mut selection = of("a");
        selection.extend(of("b-*"));
        let in_namespace = |selection: &Selection, namespace| {
            selection.selects((&config_map, namespace, "x"), Selector::is_empty)
        };
        assert!(in_namespace(&selection, "a") && in_namespace(&selection, "b-1"));
        assert!(!in_namespace(&selection, "c") && selection.takes(&config_map) && !selection.takes(&secret));
        assert!(!selection.selects((&config_map, "a", "x"), |_| false));
        (0..MAX_MATCHES).for_each(|_| selection.extend(of("a")));
        assert!(in_namespace(&selection, "c") && selection.takes(&secret));
    }

    #[test]
    fn pattern_without_wildcards_is_a_name() {
        let name = |glob: &str| glob.parse::<Glob>().unwrap().name().map(str::to_owned);
        assert_eq!(name("shop").as_deref(), Some("shop"));
        assert_eq!((name("shop-*"), name("sho?")), (None, None));
    }

    #[test]
    fn pattern_full_of_stars_matches_quickly() {
        let glob: Glob = "a*".repeat(100).parse().unwrap();
        assert!(!glob.matches(&"a".repeat(99)));
        assert!(glob.matches(&"a".repeat(100)));
    }
}
