//! Where an identity is on disk, and how it gets there in one piece.
//!
//! `<directory>/<set>/ca.crt` and `<directory>/<set>/node.pem` (certificates and key in one file, mode 0600). A join
//! writes a set with a name of its own, makes it durable, and then replaces the configuration file, whose
//! `identity.directory` names the set: that rename is the moment at which the new identity counts. Before it nothing
//! that is in use has been touched; after it the old set is removed. A renewal replaces `node.pem` by one rename and
//! keeps the one before as `node.previous.pem` until the new one has worked.

mod real;
#[cfg(test)]
mod tests;

use std::io;
use std::path::{Path, PathBuf};

pub use real::RealDisk;

use edgesync_store::durable::{FileError, directory_of};
use edgesync_transport::tls::{Certificate, Identity, TlsError};

/// The CA beside the identity.
pub const CA_FILE: &str = "ca.crt";
/// Certificate and key.
pub const IDENTITY_FILE: &str = "node.pem";
/// Certificate and key before the last renewal, until the new ones have worked.
pub const PREVIOUS_FILE: &str = "node.previous.pem";
/// What is not in place yet ends so.
const UNFINISHED: &str = ".new";
/// Sets are named by so many hexadecimal digits.
const SET_DIGITS: usize = 16;
/// No file here is longer, in bytes.
const MAX_FILE: u64 = 1 << 20;

/// What is done to the file system, so that tests can cut the power after each step.
pub trait Disk {
    /// Makes a directory and those above it that are missing, and flushes their entries; the last one gets this mode.
    /// One that exists stays as it is.
    ///
    /// # Errors
    /// The system's.
    fn make_directory(&mut self, path: &Path, mode: u32) -> io::Result<()>;
    /// Writes a file that does not exist yet, and flushes its content. At no time has it a wider mode.
    ///
    /// # Errors
    /// The system's.
    fn write_new(&mut self, path: &Path, content: &[u8], mode: u32) -> io::Result<()>;
    /// Gives a file or directory to the owner of another (root joins, the agent's user reads), and flushes that.
    /// Without the right to do so nothing happens.
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
    /// The permission bits of a file; none if it does not exist.
    ///
    /// # Errors
    /// The system's.
    fn mode(&self, path: &Path) -> io::Result<Option<u32>>;
}

/// An identity could not be read or written.
#[derive(Debug, thiserror::Error)]
pub enum FilesError {
    /// The system refuses.
    #[error(transparent)]
    Io(#[from] FileError),
    /// A file is not what it is to be.
    #[error(transparent)]
    Content(#[from] TlsError),
    /// The configuration cannot be given the new values.
    #[error("{}: {problem}", path.display())]
    Settings {
        /// The configuration.
        path: PathBuf,
        /// Why not, and what to do.
        problem: String,
    },
}

/// Names what was tried on a path.
fn tried<'p>(what: &'static str, path: &'p Path) -> impl FnOnce(io::Error) -> FilesError + use<'p> {
    move |cause| FileError::tried(what, path)(cause).into()
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
    let (ca, text) = read_text(disk, &set.join(CA_FILE))?;
    let ca = Certificate::all_from_pem(&ca, &text)?;
    let identity = read_identity(disk, &set.join(IDENTITY_FILE))?;
    let previous = read_identity(disk, &set.join(PREVIOUS_FILE)).ok();
    // Between the two steps of a renewal both are the same.
    let previous = previous.filter(|previous| previous.certificate() != identity.certificate());
    Ok(Stored { ca, identity, previous })
}

fn read_identity(disk: &impl Disk, path: &Path) -> Result<Identity, FilesError> {
    let (name, text) = read_text(disk, path)?;
    Ok(Identity::from_pem(&name, &text)?)
}

/// The name of a file for errors, and its text.
fn read_text(disk: &impl Disk, path: &Path) -> Result<(String, String), FilesError> {
    let bytes = disk.read(path).map_err(tried("read", path))?;
    // Bytes that are no text are no PEM either, which the reader of PEM says.
    Ok((path.display().to_string(), String::from_utf8_lossy(&bytes).into_owned()))
}

/// A new name for a set.
#[must_use]
pub(crate) fn new_set_name() -> String {
    let mut name = uuid::Uuid::new_v4().simple().to_string();
    name.truncate(SET_DIGITS);
    name
}

fn is_set_name(name: &str) -> bool {
    name.len() == SET_DIGITS && name.bytes().all(|b| b.is_ascii_hexdigit())
}

/// Finds out, before a token is used up, whether a join could write where it has to.
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

/// A join: writes a new set below `root` and replaces the configuration (its text comes from `text`, given the
/// directory of the set). Gives the directory of the set. Other sets are still there: see [`remove_others`].
///
/// # Errors
/// See [`FilesError`]. After an error before the configuration was replaced, the old identity is in force and what was
/// written is removed. If the very last step fails, nobody knows which of the two a power cut would leave: both are
/// whole.
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
        // An error does not prove that nothing has happened.
        renamed.or_else(|error| match disk.read(config) {
            Ok(found) if found == text.as_bytes() => Ok(()),
            _ => Err(error),
        })
    });
    if let Err(error) = renamed {
        // What cannot be removed now is removed by the next join.
        let _ = disk.remove(&new);
        let _ = disk.remove(&directory);
        return Err(error);
    }
    let beside = directory_of(config);
    disk.sync_directory(beside).map_err(tried("flush", beside))?;
    Ok(directory)
}

/// Removes all sets below `root` but the one in `directory`.
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

/// Writes a file that belongs to the owner of another.
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

/// Writes the configuration under another name, with mode and owner of the one that exists.
fn write_config(disk: &mut impl Disk, new: &Path, config: &Path, text: &str) -> Result<(), FilesError> {
    let beside = directory_of(config);
    disk.make_directory(beside, 0o755).map_err(tried("make", beside))?;
    disk.remove(new).map_err(tried("remove", new))?;
    match disk.mode(config).map_err(tried("read", config))? {
        Some(mode) => write_like(disk, new, text.as_bytes(), mode, config),
        None => disk.write_new(new, text.as_bytes(), 0o644).map_err(tried("write", new)),
    }
}

/// A renewal: the new identity counts, the one before stays as [`PREVIOUS_FILE`].
///
/// # Errors
/// See [`FilesError`]; then the old one counts, but for a failure of the very last step, after which either may.
pub fn renew(disk: &mut impl Disk, set: &Path, identity: &Identity) -> Result<(), FilesError> {
    let (current, previous) = (set.join(IDENTITY_FILE), set.join(PREVIOUS_FILE));
    let new = unfinished(&current);
    let prepared = write_anew(disk, set, &new, identity.to_pem().as_bytes());
    let prepared = prepared.and_then(|()| keep_as_previous(disk, set, &current, &previous));
    let renamed = prepared.and_then(|()| disk.rename(&new, &current).map_err(tried("replace", &current)));
    if let Err(error) = renamed {
        // What cannot be removed now is removed by the next renewal.
        let _ = disk.remove(&new);
        let _ = disk.remove(&unfinished(&previous));
        return Err(error);
    }
    disk.sync_directory(set).map_err(tried("flush", set))
}

/// Copies what is there, so that its place can be taken by a rename.
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
    write_anew(disk, set, &copy, &content)?;
    disk.rename(&copy, previous).map_err(tried("replace", previous))?;
    disk.sync_directory(set).map_err(tried("flush", set))
}

/// Writes a secret file, in the place of one that was left unfinished.
fn write_anew(disk: &mut impl Disk, set: &Path, path: &Path, content: &[u8]) -> Result<(), FilesError> {
    disk.remove(path).map_err(tried("remove", path))?;
    write_like(disk, path, content, 0o600, set)
}

/// The new identity has worked: the one before is removed.
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

/// Where a file is written before it takes its place: hidden, beside it.
fn unfinished(path: &Path) -> PathBuf {
    let mut name = std::ffi::OsString::from(".");
    name.push(path.file_name().unwrap_or_default());
    name.push(UNFINISHED);
    path.with_file_name(name)
}
