//! Reading of held files, for the copies that outlive a reboot.

use std::fs::File;
use std::io::Read as _;

use rustix::io::Errno;

use super::{Disk, Result, errno, open_directory, open_file, version};
use edgesync_files::contents::Files;
use edgesync_files::{Digest, Held, Shape};

impl Disk {
    /// Reads the files of a place as they were written; an error if another party changed them.
    pub(crate) fn read(&self, held: &Held) -> Result<Files> {
        let directory = self.open_existing(&held.place, held.shape)?.ok_or(Errno::NOENT)?;
        let directory = match held.shape {
            Shape::File => directory,
            Shape::Directory => open_directory(&directory, &version(held.stamp))?.ok_or(Errno::NOENT)?,
        };
        let (key, mut files) = (self.key(&held.place), Files::new());
        for ((name, digest), (_, sizes)) in held.files.iter().zip(held.sizes()) {
            let at = if held.shape == Shape::File { held.place.name() } else { name };
            let file = File::from(open_file(&directory, at)?);
            let mut content = Vec::new();
            file.take(sizes.end().saturating_add(1)).read_to_end(&mut content).map_err(errno)?;
            if Digest::of(key, &content) != *digest {
                return Err(Errno::BADMSG);
            }
            files.insert(name.clone(), content);
        }
        Ok(files)
    }
}
