//! The directory of the CA, and reading the files in it. They are written by [`durable`](edgesync_store::durable), mode 0600.

use std::fs::{self, DirBuilder};
use std::io::ErrorKind;
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::path::Path;

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

    #[test]
    fn the_directory_is_for_its_owner_only_and_a_secret_is_read_also_where_it_is_open() {
        let dir = tempfile::tempdir().unwrap();
        let inner = dir.path().join("a/pki");
        open_directory(&inner).unwrap();
        assert_eq!(fs::metadata(&inner).unwrap().permissions().mode() & 0o777, 0o700);
        let path = inner.join("key");
        fs::write(&path, "secret").unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o644)).unwrap();
        assert_eq!(read_secret(&path).unwrap().unwrap(), b"secret");
    }

    #[test]
    fn a_file_that_is_not_there_is_none_and_a_huge_one_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("ca.crt");
        assert_eq!(read(&path).unwrap(), None);
        fs::File::create(&path).unwrap().set_len(MAX_BYTES + 1).unwrap();
        assert!(read(&path).unwrap_err().to_string().contains("longer than"));
    }
}
