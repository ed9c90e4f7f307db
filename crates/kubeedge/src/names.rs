//! The names and rules that the bridge queries: ConfigMaps and Secrets, watched kinds, references
//! of Pods.

use std::fmt;

use serde_json::{Map, Value};

use edgesync_object::name::{check_label, check_subdomain};
use edgesync_object::{Target, member, pod_references};
use edgesync_protocol::message::clip;

#[cfg(test)]
mod tests;

/// The most names that one Pod may reference.
const MAX_REFERENCES: usize = 1024;
/// The core group in keys and rules.
const CORE: &str = "core";
/// The most bytes of a wrong value in an error.
const MAX_SHOWN: usize = 200;

/// The stored kinds that CloudCore answers a `query` for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum QueriedKind {
    /// ConfigMaps of the core group.
    ConfigMap,
    /// Secrets of the core group.
    Secret,
}

impl QueriedKind {
    const ALL: [Self; 2] = [Self::ConfigMap, Self::Secret];

    /// Returns the lower-case name used in messages.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            Self::ConfigMap => "configmap",
            Self::Secret => "secret",
        }
    }

    /// Returns the kind in CamelCase.
    #[must_use]
    pub fn kind(self) -> &'static str {
        match self {
            Self::ConfigMap => "ConfigMap",
            Self::Secret => "Secret",
        }
    }
}

/// The full name of a ConfigMap or a Secret.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Name {
    /// The namespace of the object.
    pub namespace: Box<str>,
    /// The kind of the object.
    pub kind: QueriedKind,
    /// The name within the namespace.
    pub name: Box<str>,
}

impl fmt::Display for Name {
    /// Formats `<namespace>/<type>/<name>`, as in messages.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}/{}", self.namespace, self.kind.word(), self.name)
    }
}

/// A fetch rule of the configuration: `default/configmap/app-*`. A `*` matches any number of
/// characters, in the name only.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FetchRule {
    namespace: Box<str>,
    kind: QueriedKind,
    pattern: Box<str>,
}

impl FetchRule {
    /// Parses a rule.
    ///
    /// # Errors
    /// Returns the form that a rule must have.
    pub fn parse(text: &str) -> Result<Self, String> {
        let parts = text.split_once('/').and_then(|(namespace, rest)| {
            let (kind, pattern) = rest.split_once('/')?;
            let kind = QueriedKind::ALL.into_iter().find(|known| known.word() == kind)?;
            // A `*` can only match characters that a name may have.
            let is_name = check_subdomain(&pattern.replace('*', "x")).is_ok();
            (is_name && check_label(namespace).is_ok()).then_some((namespace, kind, pattern))
        });
        let Some((namespace, kind, pattern)) = parts else {
            return Err(format!(
                "must be <namespace>/<configmap|secret>/<name>, '*' in the name for any letters, not {}",
                shown(text)
            ));
        };
        Ok(Self { namespace: namespace.into(), kind, pattern: pattern.into() })
    }

    /// Returns the one name of a rule without `*`, which a `query` fetches. All other rules need a
    /// list and a watch of the dynamic controller.
    #[must_use]
    pub fn exact(&self) -> Option<Name> {
        (!self.pattern.contains('*')).then(|| Name {
            namespace: self.namespace.clone(),
            kind: self.kind,
            name: self.pattern.clone(),
        })
    }

    /// Returns whether the rule matches an object of this name.
    #[must_use]
    pub fn matches(&self, name: &Name) -> bool {
        self.kind == name.kind && self.namespace == name.namespace && matches(&self.pattern, &name.name)
    }

    /// Returns the rule's namespace.
    #[must_use]
    pub fn namespace(&self) -> &str {
        &self.namespace
    }

    /// Returns the rule's kind.
    #[must_use]
    pub fn kind(&self) -> QueriedKind {
        self.kind
    }
}

impl fmt::Display for FetchRule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}/{}", self.namespace, self.kind.word(), self.pattern)
    }
}

/// Returns whether a text matches a pattern. Takes one search per part between two `*`.
fn matches(pattern: &str, text: &str) -> bool {
    let Some((first, rest)) = pattern.split_once('*') else { return pattern == text };
    let (middle, last) = rest.rsplit_once('*').unwrap_or(("", rest));
    let Some(inner) = text.strip_prefix(first).and_then(|text| text.strip_suffix(last)) else { return false };
    let behind = |text, part| str::split_once(text, part).map(|(_, behind)| behind);
    middle.split('*').filter(|part| !part.is_empty()).try_fold(inner, behind).is_some()
}

/// Quotes and truncates a wrong value for an error.
fn shown(text: &str) -> String {
    format!("{:?}", clip(text, MAX_SHOWN))
}

/// A watch rule for the dynamic controller: `lab.io/v1/widgets` in all namespaces, or
/// `lab.io/v1/widgets/NAMESPACE`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct WatchRule {
    /// The API group; empty for the core group, which rules and keys write as `core`.
    pub group: Box<str>,
    /// The version within the group.
    pub version: Box<str>,
    /// The plural in lower case.
    pub plural: Box<str>,
    /// The namespace; `None` for all.
    pub namespace: Option<Box<str>>,
}

impl WatchRule {
    /// Parses a rule.
    ///
    /// # Errors
    /// Returns the form that a rule must have.
    pub fn parse(text: &str) -> Result<Self, String> {
        Self::of_parts(text).ok_or_else(|| {
            format!(
                "must be <group>/<version>/<plural> or <group>/<version>/<plural>/<namespace>, 'core' for the core \
                 group, not {}",
                shown(text)
            )
        })
    }

    fn of_parts(text: &str) -> Option<Self> {
        let mut parts = text.splitn(4, '/');
        let (group, version, plural) = (parts.next()?, parts.next()?, parts.next()?);
        let namespace = parts.next();
        let labels = [version, plural].into_iter().chain(namespace);
        let is_valid =
            check_subdomain(group).is_ok() && labels.map(check_label).all(|checked| checked.is_ok());
        let group = if group == CORE { "" } else { group };
        is_valid.then(|| Self {
            group: group.into(),
            version: version.into(),
            plural: plural.into(),
            namespace: namespace.map(Into::into),
        })
    }

    /// Returns the group as keys and rules write it.
    pub(super) fn group_word(&self) -> &str {
        if self.group.is_empty() { CORE } else { &self.group }
    }
}

impl fmt::Display for WatchRule {
    /// Formats the rule as [`WatchRule::parse`] reads it.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}/{}", self.group_word(), self.version, self.plural)?;
        match &self.namespace {
            Some(namespace) => write!(f, "/{namespace}"),
            None => Ok(()),
        }
    }
}

/// Returns the ConfigMaps and Secrets that a Pod references: volumes (projected ones too),
/// `envFrom`, `env` of all kinds of containers, and `imagePullSecrets`.
///
/// `body` is the Pod as JSON text; an unreadable one references nothing. Each name occurs once; at
/// most 1,024 are returned.
#[must_use]
pub fn references(body: &str) -> Vec<Name> {
    let text = |path: &[&str]| member(body, path).and_then(|text| serde_json::from_str::<String>(text).ok());
    let spec = member(body, &["spec"]).and_then(|text| serde_json::from_str::<Map<String, Value>>(text).ok());
    let namespace = text(&["metadata", "namespace"]).filter(|namespace| check_label(namespace).is_ok());
    let (Some(spec), Some(namespace)) = (spec, namespace) else { return Vec::new() };
    let name = |reference: edgesync_object::Reference| Name {
        namespace: namespace.as_str().into(),
        kind: match reference.target {
            Target::ConfigMap => QueriedKind::ConfigMap,
            Target::Secret => QueriedKind::Secret,
        },
        name: (&*reference.name).into(),
    };
    pod_references(&spec).into_iter().take(MAX_REFERENCES).map(name).collect()
}
