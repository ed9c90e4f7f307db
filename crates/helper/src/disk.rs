//! On-disk layout of the files, and durability of each step.
//!
//! A directory keeps its files in a hidden subdirectory per version, such as `..v7`. The link
//! `..data` leads to the current version, and each file is a link through it, so one rename
//! replaces all of them, as in the kubelet's volumes. A single file is written beside the old one
//! and renamed over it. Below the directory that the rule names, no foreign link is followed.

use std::cell::RefCell;
use std::collections::{BTreeMap, btree_map};
use std::ffi::{CStr, CString};
use std::io::{self, Read as _, Write as _};
use std::os::fd::OwnedFd;
use std::path::Path;

use rustix::fs::{
    AtFlags, CWD, Dir, FileType, Gid, Mode, OFlags, RawMode, ResolveFlags, StatFs, Uid, fchmod, fchown,
    fstat, fsync, linkat, mkdirat, openat, openat2, readlinkat, renameat, statat, symlinkat, syncfs,
    unlinkat,
};
use rustix::io::{Errno, fcntl_dupfd_cloexec};
use rustix::path::Arg;

use super::owner::Owner;
use edgesync_files::contents::Desired;
use edgesync_files::{Change, Digest, Entry, Held, Observed, Place, Shape};

const DATA: &str = "..data";
/// Upper bound of stamps; a larger one is foreign.
const MAX_STAMP: u64 = 1 << 62;
/// Maximum depth of foreign directories inside one of ours, for its removal.
const MAX_DEPTH: u32 = 8;
/// Maximum number of files kept open before they are flushed.
const MAX_OPEN: usize = 64;
/// Memory file systems (tmpfs, ramfs), by their `statfs` number.
const MEMORY_FILE_SYSTEMS: [u64; 2] = [0x0102_1994, 0x8584_58f6];

/// Returns whether a directory is in memory only, or will be once it is created.
pub(super) fn is_in_memory(base: &str) -> bool {
    let above = Path::new(base).ancestors().find(|path| path.exists());
    above.and_then(|above| rustix::fs::statfs(above).ok()).is_some_and(|found| is_memory(&found))
}

fn is_memory(found: &StatFs) -> bool {
    // The number has 32 bits; some systems store it in a signed word.
    MEMORY_FILE_SYSTEMS.contains(&((found.f_type as u64) & 0xffff_ffff))
}

/// File access of one rule.
#[derive(Debug)]
pub(super) struct Disk {
    pub(super) rule: String,
    /// Keys of the digests: for files on disks, and for those in memory.
    pub(super) keys: [(u64, u64); 2],
    pub(super) owner: Owner,
    /// Modes of files and directories: without Secrets, and with them.
    pub(super) modes: [(u32, u32); 2],
    /// The most bytes of a file that can be one of the rule.
    pub(super) max_size: u64,
    /// Whether what is written is flushed all at once, by [`Disk::flush`].
    pub(super) batch_flush: bool,
    /// A file or directory of each file system on which something was written since, by the number
    /// of its device.
    pub(super) unflushed: RefCell<BTreeMap<u64, OwnedFd>>,
    /// Number of steps until a simulated crash; used by tests.
    #[cfg(test)]
    pub(super) fuse: std::rc::Rc<std::cell::Cell<Option<u32>>>,
    /// Model of what survives a power cut.
    #[cfg(test)]
    pub(super) flushed: Option<std::rc::Rc<super::power::Flushed>>,
}

type Result<T> = std::result::Result<T, Errno>;

impl Disk {
    /// Counts a call that changes something; fails at a simulated crash.
    pub(super) fn step(&self) -> Result<()> {
        #[cfg(test)]
        if let Some(left) = self.fuse.get() {
            if left == 0 {
                return Err(Errno::IO);
            }
            self.fuse.set(Some(left - 1));
        }
        Ok(())
    }

    /// Flushes a file or directory, or marks its file system for [`Disk::flush`].
    pub(super) fn fsync(&self, file: &OwnedFd) -> Result<()> {
        if self.batch_flush {
            if let btree_map::Entry::Vacant(place) = self.unflushed.borrow_mut().entry(fstat(file)?.st_dev) {
                place.insert(fcntl_dupfd_cloexec(file, 0)?);
            }
            return Ok(());
        }
        #[cfg(test)]
        if let Some(flushed) = self.flushed.as_ref().filter(|_| self.fuse.get() != Some(0)) {
            flushed.one(file);
        }
        fsync(file)
    }

    fn fsync_all(&self, files: &[OwnedFd]) -> Result<()> {
        files.iter().try_for_each(|file| self.fsync(file))
    }

    /// Flushes the file systems marked for it.
    pub(super) fn flush(&self) -> Result<()> {
        for (_, file) in self.unflushed.take() {
            #[cfg(test)]
            if let Some(flushed) = self.flushed.as_ref().filter(|_| self.fuse.get() != Some(0)) {
                flushed.all();
            }
            syncfs(file)?;
        }
        Ok(())
    }

    /// Opens the directory of a place: the place itself, or the parent of its file.
    fn directory(&self, place: &Place, shape: Shape, make: bool) -> Result<OwnedFd> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let base = match openat(CWD, place.base.as_str(), flags, Mode::empty()) {
            Err(Errno::NOENT) if make => {
                self.step()?;
                let missing = Path::new(&place.base).ancestors().take_while(|path| !path.exists());
                let above: Vec<&Path> = missing.filter_map(Path::parent).collect();
                let made = std::fs::create_dir_all(&place.base);
                made.map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::IO))?;
                for parent in above {
                    fsync(openat(CWD, parent, flags, Mode::empty())?)?;
                }
                openat(CWD, place.base.as_str(), flags, Mode::empty())?
            }
            opened => opened?,
        };
        let mut parts: Vec<&str> = place.below.split('/').collect();
        if shape == Shape::File {
            parts.pop();
        }
        let mut at = base;
        for part in parts {
            let open = |at: &OwnedFd| openat2(at, part, flags, Mode::empty(), BENEATH);
            at = match open(&at) {
                Err(Errno::NOENT) if make => {
                    self.step()?;
                    match mkdirat(&at, part, Mode::from_raw_mode(0o755)) {
                        Err(Errno::EXIST) => {}
                        made => made?,
                    }
                    self.fsync(&at)?;
                    open(&at)?
                }
                opened => opened?,
            };
        }
        Ok(at)
    }

    fn open_existing(&self, place: &Place, shape: Shape) -> Result<Option<OwnedFd>> {
        match self.directory(place, shape, false) {
            Ok(directory) => Ok(Some(directory)),
            Err(Errno::NOENT) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Implements [`edgesync_files::Effects::inspect`]; a missing place is empty.
    pub(super) fn inspect(
        &self,
        place: &Place,
        shape: Shape,
        held: Option<&Held>,
        desired: Option<&BTreeMap<String, Digest>>,
    ) -> Result<Observed> {
        let Some(directory) = self.open_existing(place, shape)? else { return Ok(Observed::default()) };
        let (mut observed, key) = (Observed { directory: true, ..Observed::default() }, self.key(place));
        if shape == Shape::File {
            let name = place.name();
            observed.entries.extend(self.entry(key, &directory, name)?.map(|entry| (name.to_owned(), entry)));
            return Ok(observed);
        }
        if let Some(target) = link(&directory, DATA)? {
            let stamp = target.strip_prefix("..v").and_then(|stamp| stamp.parse().ok());
            let stamp = stamp.filter(|stamp| *stamp < MAX_STAMP);
            observed.data = Some(stamp);
            if let Some(version) =
                stamp.map(|stamp| open_directory(&directory, version(stamp))).transpose()?.flatten()
            {
                for name in names(&version)? {
                    // A name that is not UTF-8 is foreign.
                    let Ok(name) = name.into_string() else { continue };
                    if let Some(Entry::File(digest)) = self.entry(key, &version, &name)? {
                        observed.inside.insert(name, digest);
                    }
                }
            }
        } else if exists(&directory, DATA)? {
            observed.data = Some(None);
        }
        for name in
            held.iter().flat_map(|held| held.files.keys()).chain(desired.iter().flat_map(|new| new.keys()))
        {
            if !observed.entries.contains_key(name) {
                observed
                    .entries
                    .extend(self.entry(key, &directory, name)?.map(|entry| (name.clone(), entry)));
            }
        }
        Ok(observed)
    }

    fn entry(&self, key: (u64, u64), directory: &OwnedFd, name: &str) -> Result<Option<Entry>> {
        let stat = match statat(directory, name, AtFlags::SYMLINK_NOFOLLOW) {
            Err(Errno::NOENT) => return Ok(None),
            stat => stat?,
        };
        Ok(Some(match FileType::from_raw_mode(stat.st_mode) {
            FileType::Symlink if is_our_link(directory, name)? => Entry::Link,
            FileType::RegularFile => {
                let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
                let file = std::fs::File::from(openat(directory, name, flags, Mode::empty())?);
                if u64::try_from(stat.st_size).is_ok_and(|size| size > self.max_size) {
                    return Ok(Some(Entry::Other));
                }
                let mut content = Vec::new();
                let read = file.take(self.max_size).read_to_end(&mut content);
                read.map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::IO))?;
                Entry::File(Digest::of(key, &content))
            }
            _ => Entry::Other,
        }))
    }

    /// Returns the digest key of a place: files in memory have a key of their own.
    pub(super) fn key(&self, place: &Place) -> (u64, u64) {
        self.keys[usize::from(is_in_memory(&place.base))]
    }

    /// Returns whether the place, or its base while it is missing, is on a memory file system.
    pub(super) fn is_memory(&self, place: &Place, shape: Shape) -> bool {
        let beneath =
            self.open_existing(place, shape).ok().flatten().and_then(|at| rustix::fs::fstatfs(at).ok());
        beneath.map_or_else(|| is_in_memory(&place.base), |found| is_memory(&found))
    }

    /// Returns the path of a candidate.
    pub(super) fn candidate(&self, change: &Change) -> String {
        let path = change.place.path();
        match change.shape {
            Shape::Directory => format!("{path}/{}", version(change.stamp)),
            Shape::File => {
                let parent = path.rsplit_once('/').map_or("", |(parent, _)| parent);
                format!("{parent}/{}", self.candidate_name(change))
            }
        }
    }

    /// Returns the name of a file's candidate, beside the file.
    fn candidate_name(&self, change: &Change) -> String {
        format!(".edgesync-{}-{}", self.rule, change.stamp)
    }

    /// Writes the candidate of a change, see [`edgesync_files::Effects::stage`].
    pub(super) fn stage(&self, change: &Change, desired: &Desired) -> Result<()> {
        let (file_mode, directory_mode) = self.modes[usize::from(desired.is_secret)];
        let directory = self.directory(&change.place, change.shape, true)?;
        if change.shape == Shape::File {
            let name = self.candidate_name(change);
            self.remove(&directory, &name)?;
            for content in desired.files.values().take(1) {
                self.fsync(&self.write(&directory, &name, content, file_mode)?)?;
            }
            // The name is flushed after the rename.
            return Ok(());
        }
        if change.makes {
            self.set_owner_and_mode(&directory, directory_mode)?;
        }
        let name = version(change.stamp);
        self.remove_directory(&directory, &name)?;
        self.step()?;
        mkdirat(&directory, &name, Mode::RWXU)?;
        let beneath = open_directory(&directory, &name)?.ok_or(Errno::NOENT)?;
        // All files are written before the first flush: then the file system can commit them
        // together.
        let mut written = Vec::new();
        for (name, content) in &desired.files {
            written.push(self.write(&beneath, name, content, file_mode)?);
            if written.len() == MAX_OPEN {
                self.fsync_all(&written)?;
                written.clear();
            }
        }
        self.set_owner_and_mode(&beneath, directory_mode)?;
        self.fsync_all(&written)?;
        self.fsync(&beneath)?;
        self.fsync(&directory)
    }

    /// Creates and writes a file, without flushing it.
    fn write(&self, directory: &OwnedFd, name: &str, content: &[u8], mode: u32) -> Result<OwnedFd> {
        self.step()?;
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let mut file = std::fs::File::from(openat(directory, name, flags, Mode::RUSR | Mode::WUSR)?);
        self.step()?;
        file.write_all(content).map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::IO))?;
        let file = OwnedFd::from(file);
        self.set_owner_and_mode(&file, mode)?;
        Ok(file)
    }

    fn set_owner_and_mode(&self, file: &OwnedFd, mode: u32) -> Result<()> {
        self.step()?;
        let (user, group) = self.owner;
        if user.is_some() || group.is_some() {
            fchown(file, user.map(Uid::from_raw), group.map(Gid::from_raw))?;
        }
        fchmod(file, Mode::from_raw_mode(mode as RawMode))
    }

    /// Replaces the files by the candidate, see [`edgesync_files::Effects::swap`].
    pub(super) fn swap(&self, change: &Change) -> Result<()> {
        let Some(directory) = self.open_existing(&change.place, change.shape)? else {
            // A removal is complete without the place; a candidate has been lost.
            return if change.new.is_some() { Err(Errno::NOENT) } else { Ok(()) };
        };
        let name = change.place.name();
        match (change.shape, &change.new) {
            (Shape::File, new) => {
                if exists(&directory, name)? {
                    self.back_up(&directory, name, &self.backup_name(change))?;
                }
                self.step()?;
                match new {
                    Some(_) => renameat(&directory, self.candidate_name(change), &directory, name)?,
                    None => self.remove(&directory, name)?,
                }
            }
            (Shape::Directory, Some(new)) => {
                for file in new.keys() {
                    if exists(&directory, file)? && !is_our_link(&directory, file)? {
                        self.set_foreign_aside(&directory, change, file)?;
                    }
                }
                self.point_data_at(&directory, change.stamp)?;
                self.links(&directory, new.keys())?;
                self.unlink(&directory, old_files(change).filter(|file| !new.contains_key(*file)))?;
            }
            (Shape::Directory, None) => {
                self.release_foreign(&directory, change)?;
                self.remove(&directory, DATA)?;
                self.unlink(&directory, old_files(change))?;
            }
        }
        self.fsync(&directory)
    }

    /// Moves foreign files of a version over their links before the version is removed: they stay.
    fn release_foreign(&self, directory: &OwnedFd, change: &Change) -> Result<()> {
        let Some(old) = &change.old else { return Ok(()) };
        let Some(beneath) = open_directory(directory, version(old.stamp))? else { return Ok(()) };
        let key = self.key(&change.place);
        for name in names(&beneath)? {
            let Ok(name) = name.into_string() else { continue };
            // A file that was not written here is foreign, whatever it is.
            let foreign = match (old.files.get(&name), self.entry(key, &beneath, &name)?) {
                (Some(ours), Some(Entry::File(found))) => *ours != found,
                (ours, _) => ours.is_none(),
            };
            if foreign && (!exists(directory, &name)? || is_our_link(directory, &name)?) {
                self.step()?;
                renameat(&beneath, &name, directory, &name)?;
            }
        }
        Ok(())
    }

    /// Returns the name of the backup of a file, beside the file.
    fn backup_name(&self, change: &Change) -> String {
        format!("{}-old", self.candidate_name(change))
    }

    /// Keeps a file under a second name: a hard link if possible, otherwise a copy.
    fn back_up(&self, directory: &OwnedFd, name: &str, kept: &str) -> Result<()> {
        self.remove(directory, kept)?;
        self.step()?;
        match linkat(directory, name, directory, kept, AtFlags::empty()) {
            Err(Errno::PERM | Errno::OPNOTSUPP | Errno::MLINK | Errno::NOSYS) => {
                let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
                let file = openat(directory, name, flags, Mode::empty())?;
                let mode = rustix::fs::fstat(&file)?.st_mode & 0o7777;
                let mut content = Vec::new();
                let read = std::fs::File::from(file).read_to_end(&mut content);
                read.map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::IO))?;
                self.fsync(&self.write(directory, kept, &content, mode)?)
            }
            linked => linked,
        }
    }

    /// Makes `..data` lead to a version.
    fn point_data_at(&self, directory: &OwnedFd, stamp: u64) -> Result<()> {
        let new = format!("{DATA}-{stamp}");
        self.remove(directory, &new)?;
        self.step()?;
        symlinkat(version(stamp), directory, &new)?;
        self.step()?;
        renameat(directory, &new, directory, DATA)
    }

    fn links<'n>(&self, directory: &OwnedFd, names: impl Iterator<Item = &'n String>) -> Result<()> {
        for name in names {
            if !exists(directory, name)? {
                self.step()?;
                symlinkat(format!("{DATA}/{name}"), directory, name)?;
            }
        }
        Ok(())
    }

    fn unlink<'n>(&self, directory: &OwnedFd, names: impl Iterator<Item = &'n String>) -> Result<()> {
        for name in names {
            if is_our_link(directory, name)? {
                self.remove(directory, name)?;
            }
        }
        Ok(())
    }

    /// Moves a foreign file aside until the change is committed.
    fn set_foreign_aside(&self, directory: &OwnedFd, change: &Change, name: &str) -> Result<()> {
        let aside = aside(change);
        self.step()?;
        match mkdirat(directory, &aside, Mode::RWXU) {
            Err(Errno::EXIST) => {}
            made => made?,
        }
        let kept = open_directory(directory, &aside)?.ok_or(Errno::NOENT)?;
        self.step()?;
        renameat(directory, name, &kept, name)?;
        self.fsync(&kept)
    }

    /// Undoes a swap, also a partial one, see [`edgesync_files::Effects::restore`].
    pub(super) fn restore(&self, change: &Change) -> Result<()> {
        let Some(directory) = self.open_existing(&change.place, change.shape)? else { return Ok(()) };
        if change.shape == Shape::File {
            self.restore_file(&directory, change)?;
            return self.fsync(&directory);
        }
        let old =
            change.old.as_ref().filter(|held| exists(&directory, &version(held.stamp)).unwrap_or(false));
        let leads_to = link(&directory, DATA)?;
        match old {
            Some(held) if leads_to.as_deref() != Some(version(held.stamp).as_str()) => {
                self.point_data_at(&directory, held.stamp)?;
            }
            None if leads_to.as_deref() == Some(version(change.stamp).as_str()) => {
                self.remove(&directory, DATA)?;
            }
            _ => {}
        }
        let is_old = |name: &String| old.is_some_and(|held| held.files.contains_key(name));
        let new = change.new.iter().flat_map(|new| new.keys());
        self.unlink(&directory, new.filter(|name| !is_old(name)))?;
        if let Some(kept) = open_directory(&directory, aside(change))? {
            for name in names(&kept)? {
                self.step()?;
                renameat(&kept, &name, &directory, &name)?;
            }
        }
        self.links(&directory, old.iter().flat_map(|held| held.files.keys()))?;
        self.fsync(&directory)
    }

    fn restore_file(&self, directory: &OwnedFd, change: &Change) -> Result<()> {
        let (name, kept) = (change.place.name(), self.backup_name(change));
        if exists(directory, &kept)? {
            self.step()?;
            // Renaming between two links of the same file has no effect.
            return renameat(directory, &kept, directory, name);
        }
        let new = change.new.iter().flat_map(|new| new.values()).next();
        let is_new = || {
            Ok(new.is_some()
                && self.entry(self.key(&change.place), directory, name)? == new.map(|new| Entry::File(*new)))
        };
        if !change.exists && !exists(directory, &self.candidate_name(change))? && is_new()? {
            self.remove(directory, name)?;
        }
        Ok(())
    }

    /// Removes leftovers and the version not kept, see [`edgesync_files::Effects::discard`].
    pub(super) fn discard(&self, change: &Change, keep_new: bool) -> Result<()> {
        let Some(directory) = self.open_existing(&change.place, change.shape)? else { return Ok(()) };
        if change.shape == Shape::File {
            self.remove(&directory, &self.candidate_name(change))?;
            self.remove(&directory, &self.backup_name(change))?;
            return self.fsync(&directory);
        }
        self.remove(&directory, &format!("{DATA}-{}", change.stamp))?;
        self.remove_directory(&directory, &aside(change))?;
        if keep_new {
            if let Some(held) = &change.old {
                self.remove_directory(&directory, &version(held.stamp))?;
            }
        } else {
            self.remove_directory(&directory, &version(change.stamp))?;
        }
        self.fsync(&directory)?;
        drop(directory);
        let removes_directory = match (&change.old, keep_new) {
            (Some(old), true) => old.made && change.new.is_none(),
            (old, _) => old.is_none() && change.makes && !keep_new,
        };
        if removes_directory {
            let parent = self.directory(&change.place, Shape::File, false)?;
            self.step()?;
            // Fails if another party has put files there.
            let _ = unlinkat(&parent, change.place.name(), AtFlags::REMOVEDIR);
        }
        Ok(())
    }

    fn remove(&self, directory: &OwnedFd, name: &str) -> Result<()> {
        if !exists(directory, name)? {
            return Ok(());
        }
        self.step()?;
        unlinkat(directory, name, AtFlags::empty())
    }

    /// Removes a directory with all its contents.
    fn remove_directory(&self, directory: &OwnedFd, name: &str) -> Result<()> {
        let name = CString::new(name).map_err(|_| Errno::INVAL)?;
        self.remove_all(directory, &name, MAX_DEPTH)
    }

    fn remove_all(&self, directory: &OwnedFd, name: &CStr, deepest: u32) -> Result<()> {
        let Some(beneath) = open_directory(directory, name)? else { return Ok(()) };
        for file in names(&beneath)? {
            self.step()?;
            match unlinkat(&beneath, &file, AtFlags::empty()) {
                Err(Errno::ISDIR) if deepest > 0 => self.remove_all(&beneath, &file, deepest - 1)?,
                removed => removed?,
            }
        }
        self.step()?;
        unlinkat(directory, name, AtFlags::REMOVEDIR)
    }
}

const BENEATH: ResolveFlags = ResolveFlags::BENEATH.union(ResolveFlags::NO_SYMLINKS);

fn version(stamp: u64) -> String {
    format!("..v{stamp}")
}

fn aside(change: &Change) -> String {
    format!("..old{}", change.stamp)
}

fn old_files(change: &Change) -> impl Iterator<Item = &String> {
    change.old.iter().flat_map(|held| held.files.keys())
}

fn exists(directory: &OwnedFd, name: &str) -> Result<bool> {
    match statat(directory, name, AtFlags::SYMLINK_NOFOLLOW) {
        Ok(_) => Ok(true),
        Err(Errno::NOENT) => Ok(false),
        Err(error) => Err(error),
    }
}

/// Returns the target of a link; none if it is no link.
fn link(directory: &OwnedFd, name: &str) -> Result<Option<String>> {
    match readlinkat(directory, name, Vec::new()) {
        Ok(target) => Ok(Some(target.to_string_lossy().into_owned())),
        Err(Errno::NOENT | Errno::INVAL) => Ok(None),
        Err(error) => Err(error),
    }
}

fn is_our_link(directory: &OwnedFd, name: &str) -> Result<bool> {
    Ok(link(directory, name)?.is_some_and(|target| target.strip_prefix(DATA) == Some(&format!("/{name}"))))
}

fn open_directory(directory: &OwnedFd, name: impl Arg) -> Result<Option<OwnedFd>> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    match openat2(directory, name, flags, Mode::empty(), BENEATH) {
        Ok(found) => Ok(Some(found)),
        Err(Errno::NOENT) => Ok(None),
        Err(error) => Err(error),
    }
}

fn names(directory: &OwnedFd) -> Result<Vec<CString>> {
    let mut found = Vec::new();
    for entry in Dir::read_from(directory)? {
        let name = entry?.file_name().to_owned();
        if !matches!(name.to_bytes(), b"." | b"..") {
            found.push(name);
        }
    }
    Ok(found)
}

/// Formats an error of the system about a place.
pub(super) fn system_error(what: &str, path: &str, error: Errno) -> String {
    let more = match error {
        Errno::LOOP | Errno::XDEV => " (symbolic links on the path are not followed)",
        _ => "",
    };
    format!("{what} {path}: {}{more}", io::Error::from(error))
}
