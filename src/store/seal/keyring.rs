//! Data keys in memory, and their file.

use super::{Binding, KeySource, SealError, Unopened};

/// The data keys: the newest seals, all open. Cheap to clone; clones see a rotation at once. Not shown.
#[derive(Clone)]
pub struct Keyring {}

/// What became of the keys at the start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Opened {
    /// All are there.
    Kept,
    /// There was no file: a first start, or it was lost.
    Made,
    /// The file could not be read or unwrapped; it is set aside with `.lost` at its end, and a new one was made.
    Lost,
}

impl Keyring {
    /// Reads the keys, or makes the first one. A file that is damaged, or wrapped with a credential that is not there,
    /// is a loss and no error: what was sealed with its keys comes again from the cloud.
    ///
    /// # Errors
    /// The file cannot be read or made for other reasons (permissions, a full disk).
    pub fn open(source: &KeySource) -> Result<(Self, Opened), SealError> {
        todo!()
    }

    /// Seals a body.
    #[must_use]
    pub fn seal(&self, binding: Binding<'_>, body: &str) -> String {
        todo!()
    }

    /// Opens a body that was sealed.
    ///
    /// # Errors
    /// See [`Unopened`].
    pub fn open_body(&self, binding: Binding<'_>, sealed: &str) -> Result<String, Unopened> {
        todo!()
    }

    /// Whether a sealed body was sealed with the newest key.
    #[must_use]
    pub fn is_current(&self, sealed: &str) -> bool {
        todo!()
    }

    /// Adds a new key, which seals from now on. It is durable when this returns.
    ///
    /// # Errors
    /// The file cannot be written; then nothing has changed.
    pub fn add_key(&self) -> Result<(), SealError> {
        todo!()
    }

    /// Forgets all keys but the newest, durably.
    ///
    /// # Errors
    /// The file cannot be written; then nothing has changed.
    pub fn forget_old(&self) -> Result<(), SealError> {
        todo!()
    }

    /// Whether so much has been sealed with the newest key that it should be replaced (2^30 bodies in this run).
    #[must_use]
    pub fn is_worn(&self) -> bool {
        todo!()
    }

    /// How many keys there are, whether they are wrapped, and when the newest was made (RFC 3339), for the status.
    #[must_use]
    pub fn facts(&self) -> KeyFacts {
        todo!()
    }
}

/// What the status says of the keys.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyFacts {
    /// Number of keys: two while a rotation is under way.
    pub keys: usize,
    /// Whether they are wrapped with a credential.
    pub wrapped: bool,
    /// When the newest was made.
    pub newest: String,
}
