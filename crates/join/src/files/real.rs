//! [`Disk`] on the real file system.

use std::fs::{self, DirBuilder, File, OpenOptions, Permissions};
use std::io::{self, Read as _};
use std::os::unix::fs::{
    DirBuilderExt as _, MetadataExt as _, OpenOptionsExt as _, PermissionsExt as _, fchown,
};
use std::path::Path;

use super::{Disk, MAX_FILE};
use edgesync_store::durable;

/// The real file system.
#[derive(Clone, Copy, Debug, Default)]
pub struct RealDisk;

impl Disk for RealDisk {
    fn make_directory(&mut self, path: &Path, mode: u32) -> io::Result<()> {
        let missing = path
            .ancestors()
            .take_while(|path| !path.as_os_str().is_empty() && !path.exists())
            .collect::<Vec<_>>();
        if missing.is_empty() && !path.is_dir() {
            return Err(io::ErrorKind::NotADirectory.into());
        }
        for directory in missing.into_iter().rev() {
            let mode = if directory == path { mode } else { 0o755 };
            DirBuilder::new().mode(mode).create(directory)?;
            // The umask may have removed permissions that the agent needs.
            fs::set_permissions(directory, Permissions::from_mode(mode))?;
            self.sync_directory(durable::directory_of(directory))?;
        }
        Ok(())
    }

    fn write_new(&mut self, path: &Path, content: &[u8], mode: u32) -> io::Result<()> {
        durable::write_new(path, content, mode).map_err(|error| error.cause)
    }

    fn give_to_owner_of(&mut self, path: &Path, like: &Path) -> io::Result<()> {
        let like = fs::metadata(like)?;
        // Must not follow a link that was planted meanwhile.
        let file = OpenOptions::new().read(true).custom_flags(libc::O_NOFOLLOW).open(path)?;
        let own = file.metadata()?;
        if (own.uid(), own.gid()) == (like.uid(), like.gid()) {
            return Ok(());
        }
        match fchown(&file, Some(like.uid()), Some(like.gid())) {
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => Ok(()),
            Err(error) => Err(error),
            Ok(()) => file.sync_all(),
        }
    }

    fn rename(&mut self, from: &Path, to: &Path) -> io::Result<()> {
        fs::rename(from, to)
    }

    fn sync_directory(&mut self, path: &Path) -> io::Result<()> {
        File::open(path)?.sync_all()
    }

    fn remove(&mut self, path: &Path) -> io::Result<()> {
        let removed = match fs::symlink_metadata(path) {
            Ok(found) if found.is_dir() => fs::remove_dir_all(path),
            Ok(_) => fs::remove_file(path),
            Err(error) => Err(error),
        };
        removed.or_else(|error| if error.kind() == io::ErrorKind::NotFound { Ok(()) } else { Err(error) })
    }

    fn read(&self, path: &Path) -> io::Result<Vec<u8>> {
        let mut bytes = Vec::new();
        File::open(path)?.take(MAX_FILE + 1).read_to_end(&mut bytes)?;
        if bytes.len() as u64 > MAX_FILE {
            return Err(io::Error::new(io::ErrorKind::FileTooLarge, "larger than 1 MiB"));
        }
        Ok(bytes)
    }

    fn names(&self, path: &Path) -> io::Result<Vec<String>> {
        let entries = match fs::read_dir(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            entries => entries?,
        };
        entries.map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned())).collect()
    }

    fn mode(&self, path: &Path) -> io::Result<Option<u32>> {
        match fs::metadata(path) {
            Ok(found) => Ok(Some(found.permissions().mode() & 0o777)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }
}
