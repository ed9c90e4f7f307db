//! Where an identity is on disk, and how it gets there in one piece.
//!
//! `<directory>/<set>/ca.crt` and `<directory>/<set>/node.pem` (certificates and key in one file, mode 0600). A join
//! writes a set with a name of its own, makes it durable, and then replaces the configuration file, whose
//! `identity.directory` names the set: that rename is the moment at which the new identity counts. Before it nothing
//! that is in use has been touched; after it the old set is removed. A renewal replaces `node.pem` by one rename and
//! keeps the one before as `node.previous.pem` until the new one has worked.

use std::io;
use std::path::{Path, PathBuf};

use crate::tls::{Certificate, Identity, TlsError};

/// The CA beside the identity.
pub const CA_FILE: &str = "ca.crt";
/// Certificate and key.
pub const IDENTITY_FILE: &str = "node.pem";
/// Certificate and key before the last renewal, until the new ones have worked.
pub const PREVIOUS_FILE: &str = "node.previous.pem";

/// What is done to the file system, so that tests can cut the power after each step.
pub trait Disk {
    /// Makes a directory and those above it that are missing; the last one gets this mode.
    ///
    /// # Errors
    /// The system's.
    fn make_directory(&mut self, path: &Path, mode: u32) -> io::Result<()>;
    /// Writes a file that does not exist yet, and flushes its content.
    ///
    /// # Errors
    /// The system's.
    fn write_new(&mut self, path: &Path, content: &[u8], mode: u32) -> io::Result<()>;
    /// Gives a file or directory to the owner of another (root joins, the agent's user reads). Without the right to
    /// do so nothing happens.
    ///
    /// # Errors
    /// The system's, but for a missing right.
    fn give_to_owner_of(&mut self, path: &Path, like: &Path) -> io::Result<()>;
    /// Renames, replacing what is there.
    ///
    /// # Errors
    /// The system's.
    fn rename(&mut self, from: &Path, to: &Path) -> io::Result<()>;
    /// Flushes the entries of a directory.
    ///
    /// # Errors
    /// The system's.
    fn sync_directory(&mut self, path: &Path) -> io::Result<()>;
    /// Removes a file, or a directory with all in it; one that does not exist is no error.
    ///
    /// # Errors
    /// The system's.
    fn remove(&mut self, path: &Path) -> io::Result<()>;
    /// Reads a file.
    ///
    /// # Errors
    /// The system's.
    fn read(&self, path: &Path) -> io::Result<Vec<u8>>;
    /// The names in a directory; none if it does not exist.
    ///
    /// # Errors
    /// The system's.
    fn names(&self, path: &Path) -> io::Result<Vec<String>>;
}

/// The file system.
#[derive(Clone, Copy, Debug, Default)]
pub struct RealDisk;

/// An identity could not be read or written.
#[derive(Debug, thiserror::Error)]
pub enum FilesError {
    /// The system refuses.
    #[error("cannot {what} {}: {source}", path.display())]
    Io {
        /// "read", "write", …
        what: &'static str,
        /// Which file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// A file is not what it is to be.
    #[error(transparent)]
    Content(#[from] TlsError),
}

/// An identity as it is on disk.
#[derive(Clone, Debug)]
pub struct Stored {
    /// The authorities.
    pub ca: Vec<Certificate>,
    /// What the node shows.
    pub identity: Identity,
    /// What it showed before, if the new one has not worked yet.
    pub previous: Option<Identity>,
}

/// Reads the identity of a set. A previous one that cannot be read is left out.
///
/// # Errors
/// See [`FilesError`].
pub fn load(disk: &impl Disk, set: &Path) -> Result<Stored, FilesError> {
    todo!()
}

/// A join: writes a new set below `root`, replaces the configuration (its text comes from `text`, given the
/// directory of the set), and removes other sets. Gives the directory of the set.
///
/// # Errors
/// See [`FilesError`]. After an error before the configuration was replaced, the old identity is in force and what was
/// written is removed.
pub fn install(
    disk: &mut impl Disk,
    root: &Path,
    set: &str,
    ca: &Certificate,
    identity: &Identity,
    config: &Path,
    text: impl FnOnce(&Path) -> Result<String, FilesError>,
) -> Result<PathBuf, FilesError> {
    todo!()
}

/// A renewal: the new identity counts, the one before stays as [`PREVIOUS_FILE`].
///
/// # Errors
/// See [`FilesError`]; then the old one counts.
pub fn renew(disk: &mut impl Disk, set: &Path, identity: &Identity) -> Result<(), FilesError> {
    todo!()
}

/// The new identity has worked: the one before is removed.
///
/// # Errors
/// See [`FilesError`].
pub fn forget_previous(disk: &mut impl Disk, set: &Path) -> Result<(), FilesError> {
    todo!()
}
