//! On-disk layout of the files, and durability of each step.
//!
//! A directory keeps its files in a hidden subdirectory per version, such as `..v7`. The link
//! `..data` leads to the current version, and each file is a link through it, so one rename
//! replaces all of them, as in the kubelet's volumes. A single file is written beside the old one
//! and renamed over it. Below the directory that the rule names, no foreign link is followed.
//!
//! The owner of a rule's files may write to their directories while they are worked on. So nothing
//! that others put there is read beyond the bytes of the rule's own files, counted without a limit,
//! or trusted to be what was left there.

mod reading;
mod removal;

use std::cell::RefCell;
use std::collections::{BTreeMap, btree_map};
use std::ffi::CString;
use std::io::{self, Read};
use std::ops::RangeInclusive;
use std::os::fd::OwnedFd;
use std::path::Path;

use rustix::fs::{
    AtFlags, CWD, Dir, FileType, Gid, Mode, OFlags, RawMode, StatFs, Uid, fchmod, fchown, fstat, fsync,
    linkat, mkdirat, openat, readlinkat, renameat, statat, symlinkat, syncfs, unlinkat,
};
use rustix::io::{Errno, fcntl_dupfd_cloexec};
use rustix::path::Arg;
use rustix::process::geteuid;

use super::owner::Owner;
use edgesync_files::contents::Desired;
use edgesync_files::{Change, Digest, Entry, Held, Observed, Place, Shape};
use removal::MAX_REMOVED;

const DATA: &str = "..data";
/// Upper bound of stamps; a larger one is foreign.
const MAX_STAMP: u64 = 1 << 62;
/// Maximum number of entries of others that are listed in a directory of the rule.
const MAX_FOREIGN: usize = 1_000;
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
    /// The most bytes of all files of the rule.
    pub(super) max_size: u64,
    /// Whether candidates are checked before they are used.
    pub(super) checks: bool,
    /// Whether what is written is flushed all at once, by [`Disk::flush`].
    pub(super) batch_flush: bool,
    /// A file or directory of each file system on which something was written since, by the number
    /// of its device.
    pub(super) unflushed: RefCell<BTreeMap<u64, OwnedFd>>,
    /// Candidates that belong to this process until they are checked, by stamp.
    pub(super) unchecked: RefCell<BTreeMap<u64, Unchecked>>,
    /// Number of steps until a simulated crash; used by tests.
    #[cfg(test)]
    pub(super) fuse: std::rc::Rc<std::cell::Cell<Option<u32>>>,
    /// Model of what survives a power cut.
    #[cfg(test)]
    pub(super) flushed: Option<std::rc::Rc<super::power::Flushed>>,
}

type Result<T> = std::result::Result<T, Errno>;

/// A candidate before its check: which file or directory it is, and what it becomes.
#[derive(Debug)]
pub(super) struct Unchecked {
    identity: (u64, u64),
    file_mode: u32,
    directory_mode: u32,
}

/// The directory of a place, as far as it exists.
struct Found {
    directory: Option<OwnedFd>,
    /// Number of directories between base and place that do not exist.
    missing_parents: u32,
}

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

    /// Opens the directory of a place, the place itself or the parent of its file, and creates what
    /// is missing.
    fn directory(&self, place: &Place, shape: Shape) -> Result<OwnedFd> {
        let mut at = match open_base(place) {
            Err(Errno::NOENT) => self.make_base(place)?,
            opened => opened?,
        };
        for part in directories(place, shape) {
            at = match open_directory(&at, part)? {
                Some(opened) => opened,
                None => {
                    self.step()?;
                    match mkdirat(&at, part, Mode::from_raw_mode(0o755)) {
                        Err(Errno::EXIST) => {}
                        made => made?,
                    }
                    self.fsync(&at)?;
                    open_directory(&at, part)?.ok_or(Errno::NOENT)?
                }
            };
        }
        Ok(at)
    }

    fn make_base(&self, place: &Place) -> Result<OwnedFd> {
        self.step()?;
        let missing = Path::new(&place.base).ancestors().take_while(|path| !path.exists());
        let above: Vec<&Path> = missing.filter_map(Path::parent).collect();
        std::fs::create_dir_all(&place.base).map_err(errno)?;
        for parent in above {
            fsync(openat(CWD, parent, DIRECTORY, Mode::empty())?)?;
        }
        open_base(place)
    }

    /// Opens the directory of a place, as far as it exists.
    fn find(&self, place: &Place, shape: Shape) -> Result<Found> {
        let parents = place.below.matches('/').count();
        let missing = |opened: usize| Found {
            directory: None,
            missing_parents: u32::try_from(parents.saturating_sub(opened)).unwrap_or(u32::MAX),
        };
        let mut at = match open_base(place) {
            Err(Errno::NOENT) => return Ok(missing(0)),
            opened => opened?,
        };
        for (opened, part) in directories(place, shape).enumerate() {
            match open_directory(&at, part)? {
                Some(found) => at = found,
                None => return Ok(missing(opened)),
            }
        }
        Ok(Found { directory: Some(at), missing_parents: 0 })
    }

    fn open_existing(&self, place: &Place, shape: Shape) -> Result<Option<OwnedFd>> {
        self.find(place, shape).map(|found| found.directory)
    }

    /// Implements [`edgesync_files::Effects::inspect`]; a missing place is empty.
    pub(super) fn inspect(
        &self,
        place: &Place,
        shape: Shape,
        held: Option<&Held>,
        desired: Option<&Desired>,
    ) -> Result<Observed> {
        let Found { directory, missing_parents } = self.find(place, shape)?;
        let mut observed = Observed { missing_parents, ..Observed::default() };
        let Some(directory) = directory else { return Ok(observed) };
        observed.directory = true;
        let key = self.key(place);
        let mut expected = Expected::new();
        for (name, size) in held.iter().flat_map(|held| held.sizes()) {
            expected.entry(name).or_default().push(size);
        }
        for (name, content) in desired.iter().flat_map(|desired| &desired.files) {
            let size = content.len() as u64;
            expected.entry(name).or_default().push(size..=size);
        }
        if shape == Shape::File {
            let (name, sizes) = (place.name(), expected.into_values().flatten().collect::<Vec<_>>());
            let entry = entry(key, &directory, name, &sizes)?;
            observed.entries.extend(entry.map(|entry| (name.to_owned(), entry)));
            return Ok(observed);
        }
        if let Some(target) = link(&directory, DATA)? {
            let stamp = target.strip_prefix("..v").and_then(|stamp| stamp.parse().ok());
            let stamp = stamp.filter(|stamp| *stamp < MAX_STAMP);
            observed.data = Some(stamp);
            if let Some(version) =
                stamp.map(|stamp| open_directory(&directory, &version(stamp))).transpose()?.flatten()
            {
                read_version(key, &version, &expected, &mut observed)?;
            }
        } else if exists(&directory, DATA)? {
            observed.data = Some(None);
        }
        for (name, sizes) in expected {
            let entry = entry(key, &directory, name, &sizes)?;
            observed.entries.extend(entry.map(|entry| (name.to_owned(), entry)));
        }
        Ok(observed)
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

    /// Returns the location of a candidate.
    pub(super) fn candidate(&self, change: &Change) -> Place {
        let Place { base, below } = &change.place;
        let below = match change.shape {
            Shape::Directory => format!("{below}/{}", version(change.stamp)),
            Shape::File => {
                let parents = below.strip_suffix(change.place.name()).unwrap_or_default();
                format!("{parents}{}", self.candidate_name(change))
            }
        };
        Place { base: base.clone(), below }
    }

    /// Returns the name of a file's candidate, beside the file.
    fn candidate_name(&self, change: &Change) -> String {
        format!(".edgesync-{}-{}", self.rule, change.stamp)
    }

    /// Writes the candidate of a change, see [`edgesync_files::Effects::stage`].
    pub(super) fn stage(&self, change: &Change, desired: &Desired) -> Result<()> {
        let (file_mode, directory_mode) = self.modes[usize::from(desired.is_secret)];
        let directory = self.directory(&change.place, change.shape)?;
        // Until it is checked, a candidate belongs to this process: the owner could change it.
        let owner = if self.checks { (None, None) } else { self.owner };
        if change.shape == Shape::File {
            let name = self.candidate_name(change);
            self.remove(&directory, &name)?;
            for content in desired.files.values().take(1) {
                let file = self.write(&directory, &name, content.as_slice(), owner, file_mode)?;
                self.fsync(&file)?;
                self.remember_unchecked(change, &file, desired.is_secret)?;
            }
            // The name is flushed after the rename.
            return Ok(());
        }
        if change.makes {
            self.set_owner_and_mode(&directory, self.owner, directory_mode)?;
        }
        let name = version(change.stamp);
        self.remove_names(&directory, [name.clone()])?;
        self.step()?;
        mkdirat(&directory, &name, Mode::RWXU)?;
        let beneath = open_directory(&directory, &name)?.ok_or(Errno::NOENT)?;
        require_new(&beneath)?;
        // All files are written before the first flush: then the file system can commit them
        // together.
        let mut written = Vec::new();
        for (name, content) in &desired.files {
            written.push(self.write(&beneath, name, content.as_slice(), owner, file_mode)?);
            if written.len() == MAX_OPEN {
                self.fsync_all(&written)?;
                written.clear();
            }
        }
        self.set_owner_and_mode(&beneath, owner, directory_mode)?;
        self.fsync_all(&written)?;
        self.fsync(&beneath)?;
        self.fsync(&directory)?;
        self.remember_unchecked(change, &beneath, desired.is_secret)
    }

    /// Remembers a candidate whose owner changes after the check.
    fn remember_unchecked(&self, change: &Change, candidate: &OwnedFd, is_secret: bool) -> Result<()> {
        if self.checks && self.owner != (None, None) {
            let (file_mode, directory_mode) = self.modes[usize::from(is_secret)];
            let unchecked = Unchecked { identity: identity(candidate)?, file_mode, directory_mode };
            self.unchecked.borrow_mut().insert(change.stamp, unchecked);
        }
        Ok(())
    }

    /// Gives a checked candidate to the owner of the rule, unless it was replaced: the owner may
    /// write to the directory that it is in.
    pub(super) fn give_to_owner(&self, change: &Change) -> Result<()> {
        let Some(checked) = self.unchecked.borrow_mut().remove(&change.stamp) else { return Ok(()) };
        let Unchecked { identity: known, file_mode, directory_mode } = checked;
        let directory = self.open_existing(&change.place, change.shape)?.ok_or(Errno::NOENT)?;
        let same = |candidate: OwnedFd| {
            if identity(&candidate)? == known { Ok(candidate) } else { Err(Errno::STALE) }
        };
        if change.shape == Shape::File {
            let file = same(open_file(&directory, self.candidate_name(change))?)?;
            self.set_owner_and_mode(&file, self.owner, file_mode)?;
            return self.fsync(&file);
        }
        let found = open_directory(&directory, &version(change.stamp))?.ok_or(Errno::NOENT)?;
        // Only this process could change the directory so far, so its files are those written to
        // it.
        let beneath = same(found)?;
        for name in change.new.iter().flat_map(|new| new.keys()) {
            let file = open_file(&beneath, name)?;
            self.set_owner_and_mode(&file, self.owner, file_mode)?;
            self.fsync(&file)?;
        }
        self.set_owner_and_mode(&beneath, self.owner, directory_mode)?;
        self.fsync(&beneath)
    }

    /// Creates and writes a file, without flushing it.
    fn write(
        &self,
        directory: &OwnedFd,
        name: &str,
        mut content: impl Read,
        owner: Owner,
        mode: u32,
    ) -> Result<OwnedFd> {
        self.step()?;
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let mut file = std::fs::File::from(openat(directory, name, flags, Mode::RUSR | Mode::WUSR)?);
        self.step()?;
        io::copy(&mut content, &mut file).map_err(errno)?;
        let file = OwnedFd::from(file);
        self.set_owner_and_mode(&file, owner, mode)?;
        Ok(file)
    }

    fn set_owner_and_mode(&self, file: &OwnedFd, (user, group): Owner, mode: u32) -> Result<()> {
        self.step()?;
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
        let Some(beneath) = open_directory(directory, &version(old.stamp))? else { return Ok(()) };
        let (key, sizes) = (self.key(&change.place), old.sizes().collect::<BTreeMap<_, _>>());
        let found = names(&beneath, old.files.len() + MAX_REMOVED)?;
        if found.len() > old.files.len() + MAX_REMOVED {
            return Err(Errno::TOOBIG);
        }
        for name in found {
            let Ok(name) = name.into_string() else { continue };
            // A file that was not written here is foreign, whatever it is.
            let foreign = match (old.files.get(&name), sizes.get(name.as_str())) {
                (Some(ours), Some(size)) => match entry(key, &beneath, &name, std::slice::from_ref(size))? {
                    Some(Entry::File(found)) => *ours != found,
                    Some(Entry::Unread) => true,
                    _ => false,
                },
                _ => true,
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
                self.copy(directory, name, kept)
            }
            linked => linked,
        }
    }

    /// Copies a file with its owner and mode, if it is not larger than all files of the rule may
    /// be. The copy gets its name when it is whole.
    pub(super) fn copy(&self, directory: &OwnedFd, name: &str, kept: &str) -> Result<()> {
        let file = open_file(directory, name)?;
        let found = fstat(&file)?;
        let (owner, mode) = ((Some(found.st_uid), Some(found.st_gid)), found.st_mode & 0o7777);
        let partial = partial(kept);
        self.remove(directory, &partial)?;
        let content = std::fs::File::from(file).take(self.max_size.saturating_add(1));
        let copied = self.write(directory, &partial, content, owner, mode)?;
        if u64::try_from(fstat(&copied)?.st_size).is_ok_and(|size| size > self.max_size) {
            return Err(Errno::FBIG);
        }
        self.fsync(&copied)?;
        self.step()?;
        renameat(directory, &partial, directory, kept)
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
        let kept = match open_directory(&directory, &aside(change)) {
            // Planted by another party: nothing was set aside there.
            Err(Errno::LOOP | Errno::NOTDIR) => None,
            kept => kept?,
        };
        if let Some(kept) = kept {
            for name in change.new.iter().flat_map(|new| new.keys()) {
                if exists(&kept, name)? {
                    self.step()?;
                    renameat(&kept, name, &directory, name)?;
                }
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
        let is_new = || -> Result<bool> {
            let Some(new) = new else { return Ok(false) };
            let found = entry(self.key(&change.place), directory, name, &[0..=self.max_size])?;
            Ok(found == Some(Entry::File(*new)))
        };
        if !change.exists && !exists(directory, &self.candidate_name(change))? && is_new()? {
            self.remove(directory, name)?;
        }
        Ok(())
    }

    /// Removes leftovers and the version not kept, see [`edgesync_files::Effects::discard`].
    pub(super) fn discard(&self, change: &Change, keep_new: bool) -> Result<()> {
        if let Some(directory) = self.open_existing(&change.place, change.shape)? {
            let removed = match change.shape {
                Shape::File => {
                    // A directory there is another party's, and stays with its contents.
                    let (new, kept) = (self.candidate_name(change), self.backup_name(change));
                    let names = [new, partial(&kept), kept];
                    names.iter().map(|name| self.remove(&directory, name)).fold(Ok(()), Result::and)
                }
                Shape::Directory => self.remove_leftovers(&directory, change, keep_new),
            };
            self.fsync(&directory)?;
            removed?;
        }
        let removes_directory = match (&change.old, keep_new) {
            (Some(old), true) => old.made && change.new.is_none(),
            (old, _) => old.is_none() && change.makes && !keep_new,
        };
        if removes_directory && let Some(parent) = self.open_existing(&change.place, Shape::File)? {
            self.step()?;
            // Fails if another party has put files there.
            if unlinkat(&parent, change.place.name(), AtFlags::REMOVEDIR).is_ok() {
                self.fsync(&parent)?;
            }
        }
        self.remove_parents(change, keep_new)
    }
}

#[cfg(test)]
thread_local! {
    static READ: std::cell::Cell<u64> = const { std::cell::Cell::new(0) };
}

/// Returns the bytes of files that this thread has read.
#[cfg(test)]
pub(super) fn read_bytes() -> u64 {
    READ.get()
}

/// The names of held and desired files, with the sizes that they can have.
type Expected<'a> = BTreeMap<&'a str, Vec<RangeInclusive<u64>>>;

/// Reads the expected files of a version, and lists others.
fn read_version(
    key: (u64, u64),
    version: &OwnedFd,
    expected: &Expected<'_>,
    observed: &mut Observed,
) -> Result<()> {
    for (name, sizes) in expected {
        match entry(key, version, name, sizes)? {
            Some(Entry::File(digest)) => drop(observed.inside.insert((*name).to_owned(), digest)),
            Some(Entry::Unread) => drop(observed.foreign.insert((*name).to_owned())),
            _ => {}
        }
    }
    for name in names(version, expected.len() + MAX_FOREIGN)? {
        // A name that is not UTF-8 is no key of an object.
        let Ok(name) = name.into_string() else { continue };
        let is_other = !expected.contains_key(name.as_str());
        if is_other && file_type(version, &name)? == Some(FileType::RegularFile) {
            observed.foreign.insert(name);
        }
    }
    Ok(())
}

/// Inspects an entry. Reads a file if it has one of the sizes.
fn entry(
    key: (u64, u64),
    directory: &OwnedFd,
    name: &str,
    sizes: &[RangeInclusive<u64>],
) -> Result<Option<Entry>> {
    let stat = match statat(directory, name, AtFlags::SYMLINK_NOFOLLOW) {
        Err(Errno::NOENT) => return Ok(None),
        stat => stat?,
    };
    Ok(Some(match FileType::from_raw_mode(stat.st_mode) {
        FileType::Symlink if is_our_link(directory, name)? => Entry::Link,
        FileType::RegularFile => {
            let size = u64::try_from(stat.st_size).unwrap_or(u64::MAX);
            if !sizes.iter().any(|sizes| sizes.contains(&size)) {
                return Ok(Some(Entry::Unread));
            }
            let mut content = Vec::new();
            let file = std::fs::File::from(open_file(directory, name)?);
            file.take(size.saturating_add(1)).read_to_end(&mut content).map_err(errno)?;
            #[cfg(test)]
            READ.set(READ.get() + content.len() as u64);
            // It may change while it is read.
            if content.len() as u64 == size { Entry::File(Digest::of(key, &content)) } else { Entry::Unread }
        }
        _ => Entry::Other,
    }))
}

const DIRECTORY: OFlags = OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::CLOEXEC);

fn version(stamp: u64) -> String {
    format!("..v{stamp}")
}

fn aside(change: &Change) -> String {
    format!("..old{}", change.stamp)
}

/// Returns the name of a backup until it is whole.
fn partial(kept: &str) -> String {
    format!("{kept}-partial")
}

/// Returns whether edgesync gives such a name to a version, a new link, or files set aside.
fn is_ours(name: &str) -> bool {
    let number = ["..v", "..old", "..data-"].iter().find_map(|prefix| name.strip_prefix(prefix));
    number.is_some_and(|number| number.parse::<u64>().is_ok())
}

/// Returns the names of the directories below the base, down to that of the place.
fn directories(place: &Place, shape: Shape) -> impl Iterator<Item = &str> {
    let parents = place.below.matches('/').count();
    place.below.split('/').take(parents + usize::from(shape == Shape::Directory))
}

#[expect(clippy::needless_pass_by_value, reason = "for map_err")]
fn errno(error: io::Error) -> Errno {
    Errno::from_io_error(&error).unwrap_or(Errno::IO)
}

/// Returns the device and inode of an open file.
fn identity(file: &OwnedFd) -> Result<(u64, u64)> {
    fstat(file).map(|found| (found.st_dev, found.st_ino))
}

/// Returns the type of a file that is no link; none if it does not exist.
fn file_type(directory: &OwnedFd, name: &str) -> Result<Option<FileType>> {
    match statat(directory, name, AtFlags::SYMLINK_NOFOLLOW) {
        Ok(found) => Ok(Some(FileType::from_raw_mode(found.st_mode))),
        Err(Errno::NOENT) => Ok(None),
        Err(error) => Err(error),
    }
}

fn old_files(change: &Change) -> impl Iterator<Item = &String> {
    change.old.iter().flat_map(|held| held.files.keys())
}

fn exists(directory: &OwnedFd, name: &str) -> Result<bool> {
    file_type(directory, name).map(|found| found.is_some())
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

/// Opens a directory by its name, which is one component of a path; none if it does not exist.
/// Links are not followed.
fn open_directory(directory: &OwnedFd, name: impl Arg + Copy) -> Result<Option<OwnedFd>> {
    match openat(directory, name, DIRECTORY | OFlags::NOFOLLOW, Mode::empty()) {
        Ok(found) => Ok(Some(found)),
        Err(Errno::NOENT) => Ok(None),
        // The system returns this for a link, too.
        Err(Errno::NOTDIR) if readlinkat(directory, name, Vec::new()).is_ok() => Err(Errno::LOOP),
        Err(error) => Err(error),
    }
}

fn open_base(place: &Place) -> Result<OwnedFd> {
    openat(CWD, place.base.as_str(), DIRECTORY, Mode::empty())
}

/// Opens a file or directory, one directory after the other: systemd may refuse openat2(2).
pub(super) fn open_place(place: &Place) -> Result<OwnedFd> {
    let mut at = open_base(place)?;
    for part in directories(place, Shape::File) {
        at = open_directory(&at, part)?.ok_or(Errno::NOENT)?;
    }
    open_file(&at, place.name())
}

/// Opens a file for reading; neither a link nor a pipe is followed or waited for.
pub(super) fn open_file(directory: &OwnedFd, name: impl Arg) -> Result<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    openat(directory, name, flags, Mode::empty())
}

/// Refuses a directory that is not the one just created: the owner of the directory that it is in
/// can move another one to its name, and it would get the owner of the rule.
fn require_new(directory: &OwnedFd) -> Result<()> {
    let found = fstat(directory)?;
    let is_ours = found.st_uid == geteuid().as_raw() && found.st_mode & 0o777 == 0o700;
    if is_ours && names(directory, 0)?.is_empty() { Ok(()) } else { Err(Errno::BADMSG) }
}

/// Lists a directory: all names, or one more than `most` of them.
pub(super) fn names(directory: &OwnedFd, most: usize) -> Result<Vec<CString>> {
    let mut found = Vec::new();
    for entry in Dir::read_from(directory)? {
        let name = entry?.file_name().to_owned();
        if !matches!(name.to_bytes(), b"." | b"..") {
            found.push(name);
        }
        if found.len() > most {
            break;
        }
    }
    Ok(found)
}

/// Formats an error of the system about a place.
pub(super) fn system_error(what: &str, path: &str, error: Errno) -> String {
    let more = match error {
        Errno::LOOP => " (symbolic links on the path are not followed)",
        Errno::TOOBIG => " (too many files of others)",
        Errno::STALE => " (candidate replaced during the check)",
        Errno::BADMSG => " (changed by another program)",
        _ => "",
    };
    format!("{what} {path}: {}{more}", io::Error::from(error))
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    /// Their owner decides how many they are.
    #[test]
    fn files_of_others_are_listed_up_to_a_limit() {
        let base = tempfile::tempdir().unwrap();
        let create = |name: &str| fs::write(base.path().join(name), "1").unwrap();
        (0..2 * MAX_FOREIGN).for_each(|number| create(&format!("theirs-{number}")));
        create("ours");
        let directory = OwnedFd::from(fs::File::open(base.path()).unwrap());
        let expected = Expected::from([("ours", vec![1..=1])]);
        let mut observed = Observed::default();
        read_version((1, 2), &directory, &expected, &mut observed).unwrap();
        // Looked up by name: that many others do not hide it.
        assert!(observed.inside.keys().eq(["ours"]), "{:?}", observed.inside);
        // One more than the limit, and one more if the expected file is not among those listed.
        let listed = observed.foreign.len();
        assert!((MAX_FOREIGN + 1..=MAX_FOREIGN + 2).contains(&listed), "{listed}");
    }

    #[test]
    fn directory_that_is_not_new_is_refused() {
        let base = tempfile::tempdir().unwrap();
        let path = base.path().join("new");
        fs::create_dir(&path).unwrap();
        let require = |mode: u32| {
            fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
            require_new(&OwnedFd::from(fs::File::open(&path).unwrap()))
        };
        assert_eq!(require(0o700), Ok(()));
        assert_eq!(require(0o755), Err(Errno::BADMSG), "created by another program");
        fs::write(path.join("key"), "root's").unwrap();
        assert_eq!(require(0o700), Err(Errno::BADMSG), "has contents");
    }
}
