//! Sealed bodies: what must not be readable on the flash of a stolen device.
//!
//! A sealed body is the text `sealed:1:<key number>:<base64 of nonce, ciphertext and tag>`; JSON begins with a brace, so
//! the two cannot be confused. The cipher is AES-256-GCM (ring) with a random 96-bit nonce for each write; the row's
//! UID, version and name are authenticated with it, so that one sealed body cannot stand in for another. At most 2^32
//! bodies are sealed under one key (NIST SP 800-38D): [`Keyring::is_worn`] asks for a rotation long before.
//!
//! Data keys are in a file beside the database, mode 0600: as they are, or wrapped with a key from a systemd credential
//! ([`KeySource`]). Rotation makes a new data key, seals every row anew, and then forgets the old one.

use std::path::{Path, PathBuf};

use crate::object::Resource;

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
        todo!()
    }
}

/// What a row is bound to.
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

/// The keys could not be read or made.
#[derive(Debug, thiserror::Error)]
pub enum SealError {
    /// The system refuses.
    #[error("cannot {what} {}: {source}", path.display())]
    Io {
        /// "read", "write".
        what: &'static str,
        /// Which file.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// The system has no randomness.
    #[error("the system gives no random numbers")]
    NoRandomness,
}

/// The files' modes and directories are as [`crate::store`] makes databases: for their owner only.
pub(super) fn write_private(path: &Path, content: &[u8]) -> Result<(), SealError> {
    todo!("write beside, fsync, rename, fsync the directory")
}
