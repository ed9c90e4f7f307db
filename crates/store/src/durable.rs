//! Small private files written atomically: keys, tokens, certificates, kubeconfigs.
//!
//! A power cut leaves the old or the new file whole. The single steps also serve the files of
//! databases.

use std::fs::{self, File, Permissions};
use std::io::{self, ErrorKind, Write as _};
use std::os::unix::fs::{OpenOptionsExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

/// A failed operation of the file system.
#[derive(Debug, thiserror::Error)]
#[error("{what} {}: {cause}", path.display())]
pub struct FileError {
    /// The operation, such as "read" or "write".
    pub what: &'static str,
    /// The path of the file.
    pub path: PathBuf,
    /// The error that the system returned.
    pub cause: io::Error,
}

impl FileError {
    /// Adds the operation and the path to a system error.
    pub fn tried<'p>(what: &'static str, path: &'p Path) -> impl FnOnce(io::Error) -> Self + use<'p> {
        move |cause| Self { what, path: path.to_owned(), cause }
    }
}

/// Replaces or creates a file durably.
///
/// When this returns, the file is on the disk; a power cut before leaves the old one or the new
/// one. The file has exactly this mode, whatever the umask, and never a wider one.
///
/// # Errors
/// The system's, with the path; the partial file is removed.
pub fn write(path: &Path, content: &[u8], mode: u32) -> Result<(), FileError> {
    let new = with_suffix(path, ".new");
    // A leftover of a crash may have another mode.
    let written =
        remove(&new).and_then(|()| write_new(&new, content, mode)).and_then(|()| rename(&new, path));
    written.map_err(|error| {
        // The next attempt replaces a leftover.
        let _ = remove(&new);
        FileError::tried("write", path)(error.cause)
    })
}

/// Writes a new file and flushes its content, not its name. The file has exactly this mode,
/// whatever the umask, and never a wider one.
///
/// # Errors
/// The system's; an existing file is not touched.
pub fn write_new(path: &Path, content: &[u8], mode: u32) -> Result<(), FileError> {
    let mut file = create(path)?;
    let written = file.write_all(content).and_then(|()| {
        file.set_permissions(Permissions::from_mode(mode))?;
        file.sync_all()
    });
    written.map_err(|error| {
        // A partial file would block the next attempt.
        drop(fs::remove_file(path));
        FileError::tried("write", path)(error)
    })
}

/// Creates an empty file readable by its owner only.
///
/// # Errors
/// The system's; an existing file is not touched.
pub fn create(path: &Path) -> Result<File, FileError> {
    let file = File::options().write(true).create_new(true).mode(0o600).open(path);
    file.map_err(FileError::tried("write", path))
}

/// Renames a file, replacing the target, and flushes the directory.
///
/// # Errors
/// The system's.
pub fn rename(from: &Path, to: &Path) -> Result<(), FileError> {
    fs::rename(from, to).map_err(FileError::tried("write", to))?;
    sync_directory(to)
}

/// Removes a file; a missing one is no error.
///
/// # Errors
/// The system's.
pub fn remove(path: &Path) -> Result<(), FileError> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != ErrorKind::NotFound => Err(FileError::tried("remove", path)(error)),
        _ => Ok(()),
    }
}

/// Flushes the directory of a file, so that its names are durable.
///
/// # Errors
/// The system's.
pub fn sync_directory(path: &Path) -> Result<(), FileError> {
    let directory = directory_of(path);
    let flushed = File::open(directory).and_then(|directory| directory.sync_all());
    flushed.map_err(FileError::tried("flush", directory))
}

/// Returns the directory of a file.
#[must_use]
pub fn directory_of(path: &Path) -> &Path {
    match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        None if path.has_root() => path,
        _ => Path::new("."),
    }
}

/// Returns the path with a suffix appended.
#[must_use]
pub fn with_suffix(path: &Path, suffix: &str) -> PathBuf {
    let mut text = path.as_os_str().to_owned();
    text.push(suffix);
    text.into()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mode(path: &Path) -> u32 {
        fs::metadata(path).unwrap().permissions().mode() & 0o777
    }

    #[test]
    fn a_file_is_replaced_atomically_with_the_requested_mode() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("key");
        // Neither leftovers of an interrupted write nor wider modes matter.
        for left_over in [with_suffix(&path, ".new"), path.clone()] {
            fs::write(&left_over, "left by a crash").unwrap();
            fs::set_permissions(&left_over, Permissions::from_mode(0o644)).unwrap();
        }
        for (content, wanted) in [("one", 0o600), ("two", 0o640), ("three", 0o600)] {
            write(&path, content.as_bytes(), wanted).unwrap();
            assert_eq!((fs::read_to_string(&path).unwrap().as_str(), mode(&path)), (content, wanted));
        }
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
    }

    #[test]
    fn a_file_that_cannot_be_written_is_named_and_nothing_is_left() {
        let dir = tempfile::tempdir().unwrap();
        let error = write(&dir.path().join("no/key"), b"x", 0o600).unwrap_err().to_string();
        assert!(error.starts_with("write ") && error.contains("no/key: No such file"), "{error}");
        let taken = dir.path().join("taken");
        fs::create_dir(&taken).unwrap();
        assert_eq!(write(&taken, b"x", 0o600).unwrap_err().cause.kind(), ErrorKind::IsADirectory);
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
    }

    #[test]
    fn a_new_file_does_not_take_the_place_of_another() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("copy");
        write_new(&path, b"first", 0o640).unwrap();
        assert_eq!(mode(&path), 0o640);
        assert_eq!(write_new(&path, b"second", 0o600).unwrap_err().cause.kind(), ErrorKind::AlreadyExists);
        assert_eq!(fs::read(&path).unwrap(), b"first");
    }

    #[test]
    fn the_directory_of_a_bare_name_is_the_current_one() {
        for (path, directory) in [("a", "."), ("a/b", "a"), ("/a", "/"), ("/", "/"), ("", ".")] {
            assert_eq!(directory_of(Path::new(path)), Path::new(directory), "{path}");
        }
    }
}
