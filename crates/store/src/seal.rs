//! Sealed bodies: encryption of objects that must not be readable on the flash of a stolen device.
//!
//! A sealed body is the text `sealed:1:<key number>:<base64 of nonce, ciphertext and tag>`. The
//! plain text is a byte, 0 or 1, and the body, raw or compressed with zstd. JSON begins with a
//! brace, so the two cannot be confused. The cipher is AES-256-GCM (ring) with a random 96-bit
//! nonce for each write. The row's UID, version and name are authenticated with it, so that one
//! sealed body cannot replace another. At most 2^32 bodies may be sealed under one key (NIST SP
//! 800-38D); [`Keyring::needs_rotation`] requests a rotation long before.
//!
//! Data keys are in a file beside the database with mode 0600, raw or wrapped with a key from a
//! systemd credential ([`KeySource`]). A rotation creates a new data key, reseals every row, and
//! then forgets the old one. `docs/decisions/0011-sealed-bodies.md` has the reasons.

use std::path::PathBuf;

use super::durable::FileError;
use super::random::NoRandomness;
use edgesync_object::{ObjectKey, Resource};

mod file;
pub mod keyring;

pub use keyring::Keyring;

/// The location and protection of data keys.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KeySource {
    /// The key file; created if missing.
    pub file: PathBuf,
    /// A systemd credential: a file with at least 32 bytes of secret, from which the key that wraps
    /// the data keys is derived (HKDF-SHA-256). Without one, data keys are stored raw.
    pub credential: Option<PathBuf>,
    /// The previous credential: data keys wrapped with it are rewrapped with the current one.
    pub previous_credential: Option<PathBuf>,
    /// Whether keys must be wrapped: without a credential they are neither read nor created.
    pub require_credential: bool,
}

/// The kinds to seal and the source of the keys.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SealOptions {
    /// Kinds as in `kubectl`, with the group after a dot outside of the core group: `secrets`,
    /// `widgets.example.com`. Secrets are always included.
    pub kinds: Vec<String>,
    /// The source of the data keys.
    pub keys: KeySource,
}

impl SealOptions {
    /// Returns whether bodies of a kind are sealed.
    #[must_use]
    pub fn covers(&self, resource: &Resource) -> bool {
        let Resource { group, kind, plural, .. } = resource;
        let secret = group.is_empty() && (kind == "Secret" || plural == "secrets");
        secret || self.kinds.iter().any(|word| plural_and_group(word) == (plural, group))
    }

    /// Returns whether status and Events about an object are sealed, by the known kinds. An object
    /// of an unknown kind, whose plural is unknown, counts as sealed if any kind of its group is.
    #[must_use]
    pub fn covers_object<'a>(
        &self,
        object: &ObjectKey,
        known: impl IntoIterator<Item = &'a Resource>,
    ) -> bool {
        let (group, kind) = (&*object.group, &*object.kind);
        let is_its_kind = |known: &&Resource| known.group == group && known.kind == kind;
        let mut its_kinds = known.into_iter().filter(is_its_kind).peekable();
        if its_kinds.peek().is_some() {
            return its_kinds.any(|resource| self.covers(resource));
        }
        let mut others = self.kinds.iter().filter(|word| *word != "secrets");
        (group, kind) == ("", "Secret") || others.any(|word| plural_and_group(word).1 == group)
    }
}

fn plural_and_group(word: &str) -> (&str, &str) {
    word.split_once('.').unwrap_or((word, ""))
}

/// The identity that a sealed body is bound to. Rows of the outbox use it for their own identity.
#[derive(Clone, Copy, Debug)]
pub struct Binding<'a> {
    /// The UID of the object.
    pub uid: &'a str,
    /// The resourceVersion of the body.
    pub version: &'a str,
    /// Namespace, empty for cluster-scoped objects.
    pub namespace: &'a str,
    /// The name of the object.
    pub name: &'a str,
}

/// The error for a sealed body that cannot be opened. Contains no content.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum UnsealError {
    /// The key is not in the ring: lost, or of another database.
    #[error("seal key lost")]
    KeyLost,
    /// The body was altered, or belongs to another row.
    #[error("sealed body damaged")]
    Damaged,
}

/// Returns whether a body is sealed.
#[must_use]
pub fn is_sealed(body: &str) -> bool {
    body.starts_with("sealed:")
}

/// Returns the numbers of the keys in a key file and whether each is wrapped, without the keys;
/// `None` if the file is damaged.
#[must_use]
pub fn keys_in(text: &str) -> Option<Vec<(u32, bool)>> {
    Some(file::parse(text)?.iter().map(|line| (line.number, line.wrapped)).collect())
}

/// The error for keys that cannot be read or created.
#[derive(Debug, thiserror::Error)]
pub enum SealError {
    /// The file system refused an operation.
    #[error(transparent)]
    Io(#[from] FileError),
    /// The credential is missing, and raw keys are not allowed.
    #[error(
        "open seal keys '{}': credential missing, and `seal.require_credential` is set; hint: load the credential edgesync-seal in the unit of the service", file.display()
    )]
    NoCredential {
        /// The key file, left unchanged.
        file: PathBuf,
    },
    /// The system provides no randomness.
    #[error("{NoRandomness}")]
    NoRandomness,
}

impl From<NoRandomness> for SealError {
    fn from(_: NoRandomness) -> Self {
        Self::NoRandomness
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use edgesync_object::Scope;

    fn resource(group: &str, kind: &str, plural: &str) -> Resource {
        Resource {
            group: group.into(),
            version: "v1".into(),
            kind: kind.into(),
            plural: plural.into(),
            scope: Scope::Namespaced,
        }
    }

    #[test]
    fn secrets_are_always_covered_and_others_by_name_and_group() {
        let options = |kinds: &[&str]| SealOptions {
            kinds: kinds.iter().map(|&kind| kind.to_owned()).collect(),
            keys: KeySource::default(),
        };
        assert!(options(&[]).covers(&resource("", "Secret", "secrets")));
        assert!(!options(&["secrets"]).covers(&resource("example.com", "Secret", "secrets")));
        let widgets = options(&["widgets.shop.example.com", "configmaps"]);
        assert!(widgets.covers(&resource("shop.example.com", "Widget", "widgets")));
        assert!(widgets.covers(&resource("", "ConfigMap", "configmaps")));
        for (group, plural) in
            [("", "widgets"), ("example.com", "widgets"), ("shop.example.com", "configmaps")]
        {
            assert!(!widgets.covers(&resource(group, "X", plural)), "{plural}.{group}");
        }
    }

    #[test]
    fn status_and_events_are_sealed_with_their_kind() {
        let kinds = ["secrets", "mice.example.com"].map(str::to_owned).into();
        let options = SealOptions { kinds, keys: KeySource::default() };
        let known = [resource("example.com", "Mouse", "mice"), resource("", "Pod", "pods")];
        let covers =
            |object: &Resource, known: &[Resource]| options.covers_object(&object.key("plant", "x"), known);
        assert!(covers(&known[0], &known) && !covers(&known[1], &known));
        assert!(covers(&known[0], &[]) && covers(&resource("", "Secret", "secrets"), &[]));
        let other = resource("example.com", "Cat", "cats");
        assert!(!covers(&other, std::slice::from_ref(&other)) && covers(&other, &known), "nobody knows");
        assert!(!covers(&resource("", "Node", "nodes"), &known));
    }
}
