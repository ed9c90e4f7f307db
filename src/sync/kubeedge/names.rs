//! What is asked for: names of ConfigMaps and Secrets, rules of the configuration, references of Pods.

use std::fmt;

/// The kinds that CloudCore answers a `query` for, of those that are kept here.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum AskedKind {
    /// A ConfigMap.
    ConfigMap,
    /// A Secret.
    Secret,
}

impl AskedKind {
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
        let _ = text;
        todo!()
    }

    /// The one name that it stands for, if it has no `*`: such a name is asked for with a `query`. All others need a
    /// list and a watch of the dynamic controller.
    #[must_use]
    pub fn exact(&self) -> Option<Name> {
        todo!()
    }

    /// Whether an object of this name is meant.
    #[must_use]
    pub fn matches(&self, name: &Name) -> bool {
        let _ = name;
        todo!()
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

/// A kind that is watched through the dynamic controller: `lab.io/v1/widgets` in all namespaces, or
/// `lab.io/v1/widgets/NAMESPACE`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct WatchRule {
    /// API group; `core` in a key stands for the empty one.
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
        let _ = text;
        todo!()
    }
}

impl fmt::Display for WatchRule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}/{}", self.group, self.version, self.plural)?;
        match &self.namespace {
            Some(namespace) => write!(f, "/{namespace}"),
            None => Ok(()),
        }
    }
}

/// The ConfigMaps and Secrets that a Pod references: volumes (projected ones too), `envFrom`, `env`, of all kinds of
/// containers, and `imagePullSecrets`. `body` is the Pod as JSON text; one that cannot be read references nothing. Each
/// once, at most 256.
#[must_use]
pub fn references(body: &str) -> Vec<Name> {
    let _ = body;
    todo!()
}
