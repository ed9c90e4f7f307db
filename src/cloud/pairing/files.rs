//! Small files that hold secrets: read whole, written so that a power cut leaves the old one or the new one, mode 0600.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{ErrorKind, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

/// Longer files are none of ours.
const MAX_BYTES: u64 = 1 << 20;

/// Makes the directory, mode 0700. One that exists stays as it is, with a warning if others can look into it.
pub(super) fn open_directory(directory: &Path) -> Result<()> {
    let failed = || format!("cannot make the directory {}", directory.display());
    DirBuilder::new().recursive(true).mode(0o700).create(directory).with_context(failed)?;
    warn_if_open(directory, "the directory of the CA's key", "chmod 700")
}

/// Reads a file; none if there is none.
pub(super) fn read(path: &Path) -> Result<Option<Vec<u8>>> {
    let failed = || format!("cannot read {}", path.display());
    match fs::metadata(path) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error).with_context(failed),
        Ok(metadata) if metadata.len() > MAX_BYTES => {
            anyhow::bail!("{} is longer than any key or certificate", path.display());
        }
        Ok(_) => {}
    }
    fs::read(path).map(Some).with_context(failed)
}

/// Reads a file that holds a secret; warns if others can read it too.
pub(super) fn read_secret(path: &Path) -> Result<Option<Vec<u8>>> {
    let content = read(path)?;
    if content.is_some() {
        warn_if_open(path, "a file with a secret key", "chmod 600")?;
    }
    Ok(content)
}

/// Writes a file in the place of whatever has its name.
pub(super) fn write(path: &Path, content: &[u8]) -> Result<()> {
    let failed = || format!("cannot write {}", path.display());
    let temporary = beside(path, ".tmp");
    remove(&temporary)?;
    let mut file =
        OpenOptions::new().write(true).create_new(true).mode(0o600).open(&temporary).with_context(failed)?;
    file.write_all(content).and_then(|()| file.sync_all()).with_context(failed)?;
    rename(&temporary, path)
}

/// Renames a file and makes that durable.
pub(super) fn rename(from: &Path, to: &Path) -> Result<()> {
    let directory = to.parent().unwrap_or(Path::new("."));
    fs::rename(from, to)
        .and_then(|()| File::open(directory)?.sync_all())
        .with_context(|| format!("cannot write {}", to.display()))
}

/// Removes a file, if it is there.
pub(super) fn remove(path: &Path) -> Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != ErrorKind::NotFound => {
            Err(error).with_context(|| format!("cannot remove {}", path.display()))
        }
        _ => Ok(()),
    }
}

/// The path with something added to the file's name.
pub(super) fn beside(path: &Path, suffix: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(suffix);
    name.into()
}

fn warn_if_open(path: &Path, what: &str, remedy: &str) -> Result<()> {
    let metadata = fs::metadata(path).with_context(|| format!("cannot read {}", path.display()))?;
    let mode = metadata.permissions().mode() & 0o777;
    if mode & 0o077 != 0 {
        let path = path.display();
        tracing::warn!("{what} is open to other users (mode {mode:o}): {remedy} {path}");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mode(path: &Path) -> u32 {
        fs::metadata(path).unwrap().permissions().mode() & 0o777
    }

    #[test]
    fn files_are_for_their_owner_only_also_in_the_place_of_open_ones() {
        let dir = tempfile::tempdir().unwrap();
        let inner = dir.path().join("a/pki");
        open_directory(&inner).unwrap();
        assert_eq!(mode(&inner), 0o700);
        let path = inner.join("key");
        fs::write(&path, "open").unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o644)).unwrap();
        // What an interrupted write has left behind is no hindrance.
        fs::write(beside(&path, ".tmp"), "half").unwrap();
        write(&path, b"secret").unwrap();
        assert_eq!(mode(&path), 0o600);
        assert_eq!(read_secret(&path).unwrap().unwrap(), b"secret");
        assert_eq!(fs::read_dir(&inner).unwrap().count(), 1);
    }

    #[test]
    fn a_file_that_is_not_there_is_none_and_a_huge_one_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("ca.crt");
        assert_eq!(read(&path).unwrap(), None);
        File::create(&path).unwrap().set_len(MAX_BYTES + 1).unwrap();
        assert!(read(&path).unwrap_err().to_string().contains("longer than"));
    }
}
