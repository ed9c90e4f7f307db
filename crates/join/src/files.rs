//! On-disk layout of an identity, and its atomic replacement.
//!
//! `<directory>/<set>/ca.crt` and `<directory>/<set>/node.pem` (certificates and key in one file,
//! mode 0600). A join writes a set under a new name, makes it durable, and then replaces the
//! configuration file, whose `identity.directory` names the set: that rename commits the new
//! identity. Before it no file in use has been touched; after it the old set is removed. A renewal
//! replaces `node.pem` by one rename and keeps the previous one as `node.previous.pem` until the
//! new one has been accepted.

mod real;
#[cfg(test)]
mod tests;

use std::io;
use std::path::{Path, PathBuf};

pub use real::RealDisk;

use edgesync_store::durable::{FileError, directory_of};
use edgesync_transport::tls::{Certificate, Identity, TlsError};

/// Name of the CA's file.
pub const CA_FILE: &str = "ca.crt";
/// Name of the file with certificate and key.
pub const IDENTITY_FILE: &str = "node.pem";
/// Name of the file with the previous certificate and key, kept until the new ones have been
/// accepted.
pub const PREVIOUS_FILE: &str = "node.previous.pem";
/// Suffix of files before their rename.
const UNFINISHED: &str = ".new";
/// Length of a set's name in hexadecimal digits.
const SET_DIGITS: usize = 16;
/// Maximum size of a file in bytes.
const MAX_FILE: u64 = 1 << 20;

/// File system operations, so that tests can cut the power after each step.
pub trait Disk {
    /// Creates a directory with the given mode, and its missing ancestors, and flushes their
    /// entries. An existing one stays unchanged.
    ///
    /// # Errors
    /// Those of the system.
    fn make_directory(&mut self, path: &Path, mode: u32) -> io::Result<()>;
    /// Creates a file, and flushes its content. It never has a wider mode.
    ///
    /// # Errors
    /// Those of the system.
    fn write_new(&mut self, path: &Path, content: &[u8], mode: u32) -> io::Result<()>;
    /// Changes the owner to that of another path (root joins, the agent's user reads), and flushes
    /// the change. Does nothing without the permission.
    ///
    /// # Errors
    /// Those of the system, except a missing permission.
    fn give_to_owner_of(&mut self, path: &Path, like: &Path) -> io::Result<()>;
    /// Renames a file, replacing an existing one.
    ///
    /// # Errors
    /// Those of the system.
    fn rename(&mut self, from: &Path, to: &Path) -> io::Result<()>;
    /// Flushes the entries of a directory.
    ///
    /// # Errors
    /// Those of the system.
    fn sync_directory(&mut self, path: &Path) -> io::Result<()>;
    /// Removes a file, or a directory with its contents, if it exists.
    ///
    /// # Errors
    /// Those of the system.
    fn remove(&mut self, path: &Path) -> io::Result<()>;
    /// Reads a whole file.
    ///
    /// # Errors
    /// Those of the system.
    fn read(&self, path: &Path) -> io::Result<Vec<u8>>;
    /// Returns the names in a directory; none if it does not exist.
    ///
    /// # Errors
    /// Those of the system.
    fn names(&self, path: &Path) -> io::Result<Vec<String>>;
    /// Returns the permission bits of a file; none if it does not exist.
    ///
    /// # Errors
    /// Those of the system.
    fn mode(&self, path: &Path) -> io::Result<Option<u32>>;
}

/// Reason why an identity could not be read or written.
#[derive(Debug, thiserror::Error)]
pub enum FilesError {
    /// Error of the system.
    #[error(transparent)]
    Io(#[from] FileError),
    /// A file has invalid content.
    #[error(transparent)]
    Content(#[from] TlsError),
    /// The configuration cannot be edited.
    #[error("{}: {problem}", path.display())]
    Settings {
        /// Path of the configuration.
        path: PathBuf,
        /// Problem and remedy, shown after the path.
        problem: String,
    },
}

/// Adds operation and path to an error.
fn tried<'p>(what: &'static str, path: &'p Path) -> impl FnOnce(io::Error) -> FilesError + use<'p> {
    move |cause| FileError::tried(what, path)(cause).into()
}

/// An identity loaded from disk.
#[derive(Clone, Debug)]
pub struct Stored {
    /// Certificates of the trusted authorities.
    pub ca: Vec<Certificate>,
    /// Current identity of the node.
    pub identity: Identity,
    /// Previous identity, if the current one has not been accepted yet.
    pub previous: Option<Identity>,
}

/// Loads the identity of a set. An unreadable previous one is ignored.
///
/// # Errors
/// See [`FilesError`].
pub fn load(disk: &impl Disk, set: &Path) -> Result<Stored, FilesError> {
    let (ca, text) = read_text(disk, &set.join(CA_FILE))?;
    let ca = Certificate::all_from_pem(&ca, &text)?;
    let identity = read_identity(disk, &set.join(IDENTITY_FILE))?;
    let previous = read_identity(disk, &set.join(PREVIOUS_FILE)).ok();
    // Between the two steps of a renewal both files are the same.
    let previous = previous.filter(|previous| previous.certificate() != identity.certificate());
    Ok(Stored { ca, identity, previous })
}

fn read_identity(disk: &impl Disk, path: &Path) -> Result<Identity, FilesError> {
    let (name, text) = read_text(disk, path)?;
    Ok(Identity::from_pem(&name, &text)?)
}

/// Returns the name of a file for errors, and its text.
fn read_text(disk: &impl Disk, path: &Path) -> Result<(String, String), FilesError> {
    let bytes = disk.read(path).map_err(tried("read", path))?;
    // Invalid UTF-8 is no PEM either, which the PEM parser reports.
    Ok((path.display().to_string(), String::from_utf8_lossy(&bytes).into_owned()))
}

/// Returns a new name for a set.
#[must_use]
pub(crate) fn new_set_name() -> String {
    let mut name = uuid::Uuid::new_v4().simple().to_string();
    name.truncate(SET_DIGITS);
    name
}

fn is_set_name(name: &str) -> bool {
    name.len() == SET_DIGITS && name.bytes().all(|b| b.is_ascii_hexdigit())
}

/// Tests whether a join could write its files, before it spends a token.
///
/// # Errors
/// See [`FilesError`].
pub fn probe(disk: &mut impl Disk, root: &Path, config: &Path) -> Result<(), FilesError> {
    make_root(disk, root)?;
    let beside = directory_of(config);
    disk.make_directory(beside, 0o755).map_err(tried("make", beside))?;
    for path in [root.join(UNFINISHED), unfinished(config)] {
        disk.remove(&path).map_err(tried("remove", &path))?;
        let written = disk.write_new(&path, b"\n", 0o600);
        // Also after a failure: a full disk may have taken the entry.
        let removed = disk.remove(&path);
        written.map_err(tried("write", &path))?;
        removed.map_err(tried("remove", &path))?;
    }
    Ok(())
}

/// Installs a new set below `root` and replaces the configuration, whose text `text` creates for
/// the directory of the set. Returns that directory. Other sets remain: see [`remove_others`].
///
/// # Errors
/// See [`FilesError`]. After an error before the configuration was replaced, the old identity
/// applies and new files are removed. If the very last step fails, either of the two may survive a
/// power cut; both are complete.
pub fn install(
    disk: &mut impl Disk,
    root: &Path,
    set: &str,
    ca: &Certificate,
    identity: &Identity,
    config: &Path,
    text: impl FnOnce(&Path) -> Result<String, FilesError>,
) -> Result<PathBuf, FilesError> {
    let directory = root.join(set);
    let new = unfinished(config);
    let prepared = write_set(disk, root, &directory, ca, identity)
        .and_then(|()| text(&directory))
        .and_then(|text| write_config(disk, &new, config, &text).map(|()| text));
    let renamed = prepared.and_then(|text| {
        let renamed = disk.rename(&new, config).map_err(tried("replace", config));
        // An error does not prove that the rename had no effect.
        renamed.or_else(|error| match disk.read(config) {
            Ok(found) if found == text.as_bytes() => Ok(()),
            _ => Err(error),
        })
    });
    if let Err(error) = renamed {
        // The next join removes leftovers.
        let _ = disk.remove(&new);
        let _ = disk.remove(&directory);
        return Err(error);
    }
    let beside = directory_of(config);
    disk.sync_directory(beside).map_err(tried("flush", beside))?;
    Ok(directory)
}

/// Removes all sets below `root` except `directory`.
///
/// # Errors
/// See [`FilesError`].
pub(crate) fn remove_others(disk: &mut impl Disk, root: &Path, directory: &Path) -> Result<(), FilesError> {
    let names = disk.names(root).map_err(tried("read", root))?;
    for name in names.iter().filter(|name| is_set_name(name)) {
        let other = root.join(name);
        if other != directory {
            disk.remove(&other).map_err(tried("remove", &other))?;
        }
    }
    disk.sync_directory(root).map_err(tried("flush", root))
}

fn make_root(disk: &mut impl Disk, root: &Path) -> Result<(), FilesError> {
    disk.make_directory(root, 0o700).map_err(tried("make", root))?;
    disk.give_to_owner_of(root, directory_of(root)).map_err(tried("give away", root))
}

fn write_set(
    disk: &mut impl Disk,
    root: &Path,
    directory: &Path,
    ca: &Certificate,
    identity: &Identity,
) -> Result<(), FilesError> {
    make_root(disk, root)?;
    disk.make_directory(directory, 0o700).map_err(tried("make", directory))?;
    for (name, text, mode) in [(CA_FILE, ca.to_pem(), 0o644), (IDENTITY_FILE, identity.to_pem(), 0o600)] {
        write_like(disk, &directory.join(name), text.as_bytes(), mode, root)?;
    }
    disk.sync_directory(directory).map_err(tried("flush", directory))?;
    disk.give_to_owner_of(directory, root).map_err(tried("give away", directory))?;
    disk.sync_directory(root).map_err(tried("flush", root))
}

/// Creates a file with the owner of another.
fn write_like(
    disk: &mut impl Disk,
    path: &Path,
    content: &[u8],
    mode: u32,
    like: &Path,
) -> Result<(), FilesError> {
    disk.write_new(path, content, mode).map_err(tried("write", path))?;
    disk.give_to_owner_of(path, like).map_err(tried("give away", path))
}

/// Writes the configuration under a temporary name, with mode and owner of the existing one.
fn write_config(disk: &mut impl Disk, new: &Path, config: &Path, text: &str) -> Result<(), FilesError> {
    let beside = directory_of(config);
    disk.make_directory(beside, 0o755).map_err(tried("make", beside))?;
    disk.remove(new).map_err(tried("remove", new))?;
    match disk.mode(config).map_err(tried("read", config))? {
        Some(mode) => write_like(disk, new, text.as_bytes(), mode, config),
        None => disk.write_new(new, text.as_bytes(), 0o644).map_err(tried("write", new)),
    }
}

/// Installs a renewed identity; the previous one stays as [`PREVIOUS_FILE`].
///
/// # Errors
/// See [`FilesError`]; then the old one applies, except if the very last step failed, after which
/// either may.
pub fn renew(disk: &mut impl Disk, set: &Path, identity: &Identity) -> Result<(), FilesError> {
    let (current, previous) = (set.join(IDENTITY_FILE), set.join(PREVIOUS_FILE));
    let new = unfinished(&current);
    let prepared = write_secret(disk, set, &new, identity.to_pem().as_bytes());
    let prepared = prepared.and_then(|()| keep_as_previous(disk, set, &current, &previous));
    let renamed = prepared.and_then(|()| disk.rename(&new, &current).map_err(tried("replace", &current)));
    if let Err(error) = renamed {
        // The next renewal removes leftovers.
        let _ = disk.remove(&new);
        let _ = disk.remove(&unfinished(&previous));
        return Err(error);
    }
    disk.sync_directory(set).map_err(tried("flush", set))
}

/// Copies the current identity, so that a rename can replace it.
fn keep_as_previous(
    disk: &mut impl Disk,
    set: &Path,
    current: &Path,
    previous: &Path,
) -> Result<(), FilesError> {
    let content = match disk.read(current) {
        Ok(content) => content,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(tried("read", current)(error)),
    };
    let copy = unfinished(previous);
    write_secret(disk, set, &copy, &content)?;
    disk.rename(&copy, previous).map_err(tried("replace", previous))?;
    disk.sync_directory(set).map_err(tried("flush", set))
}

/// Creates a secret file, replacing an unfinished one.
fn write_secret(disk: &mut impl Disk, set: &Path, path: &Path, content: &[u8]) -> Result<(), FilesError> {
    disk.remove(path).map_err(tried("remove", path))?;
    write_like(disk, path, content, 0o600, set)
}

/// Removes the previous identity, because the new one has been accepted.
///
/// # Errors
/// See [`FilesError`].
pub fn forget_previous(disk: &mut impl Disk, set: &Path) -> Result<(), FilesError> {
    let previous = set.join(PREVIOUS_FILE);
    for path in [&previous, &unfinished(&previous), &unfinished(&set.join(IDENTITY_FILE))] {
        disk.remove(path).map_err(tried("remove", path))?;
    }
    disk.sync_directory(set).map_err(tried("flush", set))
}

/// Returns the temporary path of a file: hidden, in the same directory.
fn unfinished(path: &Path) -> PathBuf {
    let mut name = std::ffi::OsString::from(".");
    name.push(path.file_name().unwrap_or_default());
    name.push(UNFINISHED);
    path.with_file_name(name)
}
