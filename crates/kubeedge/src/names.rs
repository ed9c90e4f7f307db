//! What is asked for: names of ConfigMaps and Secrets, rules of the configuration, references of Pods.

use std::fmt;

use serde_json::{Map, Value};

use edgesync_object::name::{check_label, check_subdomain};
use edgesync_object::{Target, member, pod_references};
use edgesync_protocol::message::clip;

#[cfg(test)]
mod tests;

/// The most names that one Pod is taken to reference.
const MAX_REFERENCES: usize = 1024;
/// How keys and rules call the core group.
const CORE: &str = "core";
/// The most bytes of a wrong value that are shown.
const MAX_SHOWN: usize = 200;

/// The kinds that CloudCore answers a `query` for, of those that are kept here.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum AskedKind {
    /// A ConfigMap.
    ConfigMap,
    /// A Secret.
    Secret,
}

impl AskedKind {
    const ALL: [Self; 2] = [Self::ConfigMap, Self::Secret];

    /// As messages name it.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            Self::ConfigMap => "configmap",
            Self::Secret => "secret",
        }
    }

    /// The kind in CamelCase.
    #[must_use]
    pub fn kind(self) -> &'static str {
        match self {
            Self::ConfigMap => "ConfigMap",
            Self::Secret => "Secret",
        }
    }
}

/// The name of a ConfigMap or a Secret.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Name {
    /// Namespace.
    pub namespace: Box<str>,
    /// Kind.
    pub kind: AskedKind,
    /// Name.
    pub name: Box<str>,
}

impl fmt::Display for Name {
    /// As in messages: `<namespace>/<type>/<name>`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}/{}", self.namespace, self.kind.word(), self.name)
    }
}

/// What the configuration lists: `default/configmap/app-*`. A `*` stands for any number of letters, in the name only.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FetchRule {
    namespace: Box<str>,
    kind: AskedKind,
    pattern: Box<str>,
}

impl FetchRule {
    /// Reads a rule.
    ///
    /// # Errors
    /// What it must be.
    pub fn parse(text: &str) -> Result<Self, String> {
        let parts = text.split_once('/').and_then(|(namespace, rest)| {
            let (kind, pattern) = rest.split_once('/')?;
            let kind = AskedKind::ALL.into_iter().find(|known| known.word() == kind)?;
            // What a `*` stands for can only be letters that a name may have.
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

    /// The one name that it stands for, if it has no `*`: such a name is asked for with a `query`. All others need a
    /// list and a watch of the dynamic controller.
    #[must_use]
    pub fn exact(&self) -> Option<Name> {
        (!self.pattern.contains('*')).then(|| Name {
            namespace: self.namespace.clone(),
            kind: self.kind,
            name: self.pattern.clone(),
        })
    }

    /// Whether an object of this name is meant.
    #[must_use]
    pub fn matches(&self, name: &Name) -> bool {
        self.kind == name.kind && self.namespace == name.namespace && matches(&self.pattern, &name.name)
    }

    /// The namespace.
    #[must_use]
    pub fn namespace(&self) -> &str {
        &self.namespace
    }

    /// The kind.
    #[must_use]
    pub fn kind(&self) -> AskedKind {
        self.kind
    }
}

impl fmt::Display for FetchRule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}/{}", self.namespace, self.kind.word(), self.pattern)
    }
}

/// Whether a text matches a pattern. Takes the time of one search for each part between two `*`.
fn matches(pattern: &str, text: &str) -> bool {
    let Some((first, rest)) = pattern.split_once('*') else { return pattern == text };
    let (middle, last) = rest.rsplit_once('*').unwrap_or(("", rest));
    let Some(inner) = text.strip_prefix(first).and_then(|text| text.strip_suffix(last)) else { return false };
    let behind = |text, part| str::split_once(text, part).map(|(_, behind)| behind);
    middle.split('*').filter(|part| !part.is_empty()).try_fold(inner, behind).is_some()
}

/// A wrong value in quotes, cut to a length that can be shown.
fn shown(text: &str) -> String {
    format!("{:?}", clip(text, MAX_SHOWN))
}

/// A kind that is watched through the dynamic controller: `lab.io/v1/widgets` in all namespaces, or
/// `lab.io/v1/widgets/NAMESPACE`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct WatchRule {
    /// API group, empty for the core group, which rules and keys call `core`.
    pub group: Box<str>,
    /// Version within the group.
    pub version: Box<str>,
    /// Lower-case plural.
    pub plural: Box<str>,
    /// The namespace, if it is one.
    pub namespace: Option<Box<str>>,
}

impl WatchRule {
    /// Reads a rule.
    ///
    /// # Errors
    /// What it must be.
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

    /// The group as keys and rules write it.
    pub(super) fn group_word(&self) -> &str {
        if self.group.is_empty() { CORE } else { &self.group }
    }
}

impl fmt::Display for WatchRule {
    /// As [`WatchRule::parse`] reads it.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}/{}", self.group_word(), self.version, self.plural)?;
        match &self.namespace {
            Some(namespace) => write!(f, "/{namespace}"),
            None => Ok(()),
        }
    }
}

/// The ConfigMaps and Secrets that a Pod references: volumes (projected ones too), `envFrom`, `env`, of all kinds of
/// containers, and `imagePullSecrets`. `body` is the Pod as JSON text; one that cannot be read references nothing. Each
/// once, at most 1,024.
#[must_use]
pub fn references(body: &str) -> Vec<Name> {
    let text = |path: &[&str]| member(body, path).and_then(|text| serde_json::from_str::<String>(text).ok());
    let spec = member(body, &["spec"]).and_then(|text| serde_json::from_str::<Map<String, Value>>(text).ok());
    let namespace = text(&["metadata", "namespace"]).filter(|namespace| check_label(namespace).is_ok());
    let (Some(spec), Some(namespace)) = (spec, namespace) else { return Vec::new() };
    let name = |reference: edgesync_object::Reference| Name {
        namespace: namespace.as_str().into(),
        kind: match reference.target {
            Target::ConfigMap => AskedKind::ConfigMap,
            Target::Secret => AskedKind::Secret,
        },
        name: (&*reference.name).into(),
    };
    pod_references(&spec).into_iter().take(MAX_REFERENCES).map(name).collect()
}
