//! Common parts of `backup`, `verify`, `repair` and `support-bundle` of both programs.

use std::fmt::Display;
use std::fs;
use std::io::{self, Write};
use std::os::unix::fs::{MetadataExt as _, chown};
use std::path::Path;

use anyhow::{Context as _, bail};

use edgesync_store::durable;

use crate::bundle::Bundle;
use crate::output::size;
use crate::{CliError, EXIT_FAILED};

/// Writes a bundle and prints its contents.
pub fn write_bundle(bundle: &Bundle, file: &Path) -> anyhow::Result<u8> {
    let packed = bundle.pack().context("pack archive")?;
    if let Err(error) = durable::write_new(file, &packed, 0o600) {
        let exists = error.cause.kind() == io::ErrorKind::AlreadyExists;
        return refused(&format!("{error}{}", if exists { "; hint: name a new file" } else { "" }));
    }
    let mut out = io::stdout();
    let mut sheet = KeyValueSheet(&mut out);
    sheet.line("archive", format!("{}, {}", file.display(), size(packed.len() as u64)))?;
    for (name, content) in bundle.files() {
        sheet.line("", format!("{name}, {}", size(content.len() as u64)))?;
    }
    sheet.line("unpack", format!("tar --zstd -xf {}", file.display()))?;
    Ok(0)
}

/// Prints the reason for a refusal on standard error.
pub fn refused(why: &str) -> anyhow::Result<u8> {
    writeln!(io::stderr(), "error: {why}")?;
    Ok(EXIT_FAILED)
}

/// Returns the refusal of a database file that does not exist. `start` is the quoted command that
/// creates it.
#[must_use]
pub fn missing_database(path: &Path, start: &str) -> Option<String> {
    let error = fs::metadata(path).err()?;
    (error.kind() == io::ErrorKind::NotFound)
        .then(|| format!("open database {}: no such file or directory; hint: {start}", path.display()))
}

/// Prints lines of a name and a value.
pub struct KeyValueSheet<'a>(pub &'a mut dyn Write);

impl KeyValueSheet<'_> {
    pub fn line(&mut self, name: &str, value: impl Display) -> anyhow::Result<()> {
        writeln!(self.0, "{name:<10} {value}").map_err(CliError::Output)?;
        Ok(())
    }
}

/// The owner of the database: root may repair it, and the agent's user must still be able to open
/// it.
#[derive(Clone, Copy)]
pub struct Owner {
    uid: u32,
    gid: u32,
}

impl Owner {
    pub fn of(path: &Path) -> io::Result<Self> {
        let metadata = fs::metadata(path)?;
        Ok(Self { uid: metadata.uid(), gid: metadata.gid() })
    }

    /// Gives all database files that were created back to the owner.
    pub fn give(self, path: &Path) -> anyhow::Result<()> {
        let Some(name) = path.file_name() else { bail!("{} is not a file name", path.display()) };
        for entry in fs::read_dir(durable::directory_of(path))?.flatten() {
            let is_database_file = entry.file_name().to_string_lossy().starts_with(&*name.to_string_lossy());
            let file = entry.path();
            if is_database_file
                && Self::of(&file).is_ok_and(|found| (found.uid, found.gid) != (self.uid, self.gid))
            {
                chown(&file, Some(self.uid), Some(self.gid))
                    .with_context(|| format!("restore the owner of {}", file.display()))?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn missing_database_is_named_with_the_command_that_creates_it() {
        let directory = tempfile::tempdir().unwrap();
        assert_eq!(missing_database(directory.path(), "'edgesync run'"), None);
        let path = directory.path().join("edgesync.db");
        let expected =
            format!("open database {}: no such file or directory; hint: 'edgesync run'", path.display());
        assert_eq!(missing_database(&path, "'edgesync run'"), Some(expected));
    }
}
