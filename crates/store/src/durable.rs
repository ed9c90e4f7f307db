//! Small files that a power cut leaves whole and that only those read whom they are for: keys, tokens, certificates,
//! kubeconfigs. Its steps serve the files of databases, too. Knows nothing but the file system.

use std::fs::{self, File, Permissions};
use std::io::{self, ErrorKind, Write as _};
use std::os::unix::fs::{OpenOptionsExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

/// The system refuses something about a file.
#[derive(Debug, thiserror::Error)]
#[error("cannot {what} {}: {cause}", path.display())]
pub struct FileError {
    /// "read", "write", …
    pub what: &'static str,
    /// Which file.
    pub path: PathBuf,
    /// Why.
    pub cause: io::Error,
}

impl FileError {
    /// Names what was tried on a path.
    pub fn tried<'p>(what: &'static str, path: &'p Path) -> impl FnOnce(io::Error) -> Self + use<'p> {
        move |cause| Self { what, path: path.to_owned(), cause }
    }
}

/// Writes a file in the place of whatever has its name. When this returns it is on the disk; a power cut before leaves
/// the old one or the new one. It has exactly this mode, whatever the umask, and never a wider one.
///
/// # Errors
/// The system's, with the path; what was written is removed.
pub fn write(path: &Path, content: &[u8], mode: u32) -> Result<(), FileError> {
    let new = with_suffix(path, ".new");
    // One that a crash has left may have another mode.
    let written =
        remove(&new).and_then(|()| write_new(&new, content, mode)).and_then(|()| rename(&new, path));
    written.map_err(|error| {
        // What cannot be removed is replaced by the next attempt.
        let _ = remove(&new);
        FileError::tried("write", path)(error.cause)
    })
}

/// Writes a file that does not exist yet and flushes its content, not its name. It has exactly this mode, whatever the
/// umask, and never a wider one.
///
/// # Errors
/// The system's; a file that exists is not touched.
pub fn write_new(path: &Path, content: &[u8], mode: u32) -> Result<(), FileError> {
    let mut file = create(path)?;
    let written = file.write_all(content).and_then(|()| {
        file.set_permissions(Permissions::from_mode(mode))?;
        file.sync_all()
    });
    written.map_err(|error| {
        // Half a file is in the way of the next try.
        drop(fs::remove_file(path));
        FileError::tried("write", path)(error)
    })
}

/// Makes an empty file for its owner only.
///
/// # Errors
/// The system's; a file that exists is not touched.
pub fn create(path: &Path) -> Result<File, FileError> {
    let file = File::options().write(true).create_new(true).mode(0o600).open(path);
    file.map_err(FileError::tried("write", path))
}

/// Renames a file, replacing what is there, and makes that durable.
///
/// # Errors
/// The system's.
pub fn rename(from: &Path, to: &Path) -> Result<(), FileError> {
    fs::rename(from, to).map_err(FileError::tried("write", to))?;
    sync_directory(to)
}

/// Removes a file; one that does not exist is no error.
///
/// # Errors
/// The system's.
pub fn remove(path: &Path) -> Result<(), FileError> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != ErrorKind::NotFound => Err(FileError::tried("remove", path)(error)),
        _ => Ok(()),
    }
}

/// Makes names in the directory of a file durable.
///
/// # Errors
/// The system's.
pub fn sync_directory(path: &Path) -> Result<(), FileError> {
    let directory = directory_of(path);
    let flushed = File::open(directory).and_then(|directory| directory.sync_all());
    flushed.map_err(FileError::tried("flush", directory))
}

/// The directory that a file is in.
#[must_use]
pub fn directory_of(path: &Path) -> &Path {
    match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        None if path.has_root() => path,
        _ => Path::new("."),
    }
}

/// The path with text added at its end.
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
    fn a_file_is_replaced_as_a_whole_with_the_mode_asked_for() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("key");
        // What an interrupted write has left behind is no hindrance, nor are wider modes.
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
        assert!(error.starts_with("cannot write") && error.contains("no/key: No such file"), "{error}");
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
