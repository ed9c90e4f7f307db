//! Reads the files in the directory of the CA. [`durable`](edgesync_store::durable) writes them,
//! mode 0600.

use std::fs::{self, DirBuilder};
use std::io::ErrorKind;
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::path::Path;

use anyhow::{Context, Result};

/// Maximum size of a file.
const MAX_BYTES: u64 = 1 << 20;

/// Creates the directory, mode 0700. An existing one is left unchanged, with a warning if other
/// users can read it.
pub(super) fn open_directory(directory: &Path) -> Result<()> {
    let failed = || format!("create directory {}", directory.display());
    DirBuilder::new().recursive(true).mode(0o700).create(directory).with_context(failed)?;
    warn_if_open(directory, "directory of the CA key", "chmod 700")
}

/// Reads a file; `None` if it does not exist.
pub(super) fn read(path: &Path) -> Result<Option<Vec<u8>>> {
    let failed = || format!("read {}", path.display());
    match fs::metadata(path) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error).with_context(failed),
        Ok(metadata) if metadata.len() > MAX_BYTES => {
            anyhow::bail!("read {}: longer than {MAX_BYTES} bytes", path.display());
        }
        Ok(_) => {}
    }
    fs::read(path).map(Some).with_context(failed)
}

/// Reads a file that holds a secret. Warns if other users can read it.
pub(super) fn read_secret(path: &Path) -> Result<Option<Vec<u8>>> {
    let content = read(path)?;
    if content.is_some() {
        warn_if_open(path, "secret key", "chmod 600")?;
    }
    Ok(content)
}

fn warn_if_open(path: &Path, what: &str, remedy: &str) -> Result<()> {
    let metadata = fs::metadata(path).with_context(|| format!("stat {}", path.display()))?;
    let mode = metadata.permissions().mode() & 0o777;
    if mode & 0o077 != 0 {
        let path = path.display();
        tracing::warn!("{what} accessible to other users (mode {mode:o}); hint: {remedy} {path}");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_directory_is_private_and_an_open_secret_is_still_read() {
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
    fn a_missing_file_is_none_and_a_huge_one_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("ca.crt");
        assert_eq!(read(&path).unwrap(), None);
        fs::File::create(&path).unwrap().set_len(MAX_BYTES + 1).unwrap();
        assert!(read(&path).unwrap_err().to_string().contains("longer than"));
    }
}
