//! Sealed bodies: what must not be readable on the flash of a stolen device.
//!
//! A sealed body is the text `sealed:1:<key number>:<base64 of nonce, ciphertext and tag>`, where the plain text is a
//! byte, 0 or 1, and the body as it is or compressed with zstd. JSON begins with a brace, so
//! the two cannot be confused. The cipher is AES-256-GCM (ring) with a random 96-bit nonce for each write; the row's
//! UID, version and name are authenticated with it, so that one sealed body cannot stand in for another. At most 2^32
//! bodies are sealed under one key (NIST SP 800-38D): [`Keyring::is_worn`] asks for a rotation long before.
//!
//! Data keys are in a file beside the database, mode 0600: as they are, or wrapped with a key from a systemd credential
//! ([`KeySource`]). Rotation makes a new data key, seals every row anew, and then forgets the old one.
//! `docs/decisions/0011-sealed-bodies.md` has the reasons.

use std::path::PathBuf;

use super::durable::FileError;
use edgesync_object::{ObjectKey, Resource};

mod file;
pub mod keyring;

pub use keyring::Keyring;

/// Where data keys come from.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KeySource {
    /// The file with the data keys; made when it is missing.
    pub file: PathBuf,
    /// A file with at least 32 bytes of secret, from which the key that wraps the data keys is derived (HKDF-SHA-256):
    /// a systemd credential. None: data keys stand in the file as they are.
    pub credential: Option<PathBuf>,
    /// The credential before it was changed: data keys wrapped with it are wrapped anew with the current one.
    pub previous_credential: Option<PathBuf>,
    /// Whether keys must be wrapped: without a credential they are neither read nor made.
    pub require_credential: bool,
}

/// What is sealed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SealOptions {
    /// Kinds as in `kubectl`, with the group behind a dot if it is not the core group: `secrets`, `widgets.example.com`.
    /// Secrets always are among them.
    pub kinds: Vec<String>,
    /// Where the keys are.
    pub keys: KeySource,
}

impl SealOptions {
    /// Whether bodies of a kind are sealed.
    #[must_use]
    pub fn covers(&self, resource: &Resource) -> bool {
        let Resource { group, kind, plural, .. } = resource;
        let secret = group.is_empty() && (kind == "Secret" || plural == "secrets");
        secret || self.kinds.iter().any(|word| plural_and_group(word) == (plural, group))
    }

    /// Whether what is said of an object is sealed, told by the kinds that are known. If its own is not among them nobody
    /// knows the plural: then it is, if anything of its group may be.
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

/// What the body of a row is bound to. Rows of the outbox put into it what says where they belong.
#[derive(Clone, Copy, Debug)]
pub struct Binding<'a> {
    /// UID.
    pub uid: &'a str,
    /// resourceVersion.
    pub version: &'a str,
    /// Namespace, empty for cluster-scoped objects.
    pub namespace: &'a str,
    /// Name.
    pub name: &'a str,
}

/// A sealed body that cannot be opened. Holds no content.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unopened {
    /// Its key is not in the ring: lost, or another database's.
    #[error("the key it was sealed with is lost")]
    KeyLost,
    /// It is not as it was sealed, or stands in another's place.
    #[error("the sealed body is damaged")]
    Damaged,
}

/// Whether a body is sealed.
#[must_use]
pub fn is_sealed(body: &str) -> bool {
    body.starts_with("sealed:")
}

/// What the text of a key file says of its keys without the keys: their numbers, and whether they are wrapped. None if
/// it is damaged.
#[must_use]
pub fn keys_in(text: &str) -> Option<Vec<(u32, bool)>> {
    Some(file::parse(text)?.iter().map(|line| (line.number, line.wrapped)).collect())
}

/// The keys could not be read or made.
#[derive(Debug, thiserror::Error)]
pub enum SealError {
    /// The system refuses.
    #[error(transparent)]
    Io(#[from] FileError),
    /// The credential is not there, and keys must not stand in plain text.
    #[error(
        "the credential that wraps the keys of sealed objects is missing, and `seal.require_credential` demands it; '{}' \
         is left as it is: see that the unit of the service loads edgesync-seal", file.display()
    )]
    NoCredential {
        /// The file with the keys.
        file: PathBuf,
    },
    /// The system has no randomness.
    #[error("the system gives no random numbers")]
    NoRandomness,
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
    fn what_is_said_of_an_object_is_sealed_if_its_kind_is_or_may_be() {
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
