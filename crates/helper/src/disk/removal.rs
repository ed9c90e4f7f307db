//! Removal of files and directories: of what a change leaves behind, and of empty parents.

use std::collections::BTreeMap;
use std::ffi::{CStr, CString};
use std::os::fd::OwnedFd;

use rustix::fs::{AtFlags, unlinkat};
use rustix::io::Errno;

use super::{
    DATA, Disk, MAX_FOREIGN, Result, aside, directories, exists, is_ours, link, names, old_files, open_base,
    open_directory, version,
};
use edgesync_files::{Change, Shape};

/// Maximum depth of foreign directories inside one of ours, for its removal.
const MAX_DEPTH: u32 = 8;
/// Maximum number of entries that are removed, or kept for others, after one change of a place.
pub(super) const MAX_REMOVED: usize = 100_000;

impl Disk {
    /// Removes what a change leaves behind in the directory of a place, and what earlier ones did
    /// whose removal failed.
    pub(super) fn remove_leftovers(
        &self,
        directory: &OwnedFd,
        change: &Change,
        keep_new: bool,
    ) -> Result<()> {
        let old = change.old.as_ref().map(|held| held.stamp);
        let (goes, stays) = match keep_new {
            true => (old, change.new.as_ref().map(|_| change.stamp)),
            false => (Some(change.stamp), old),
        };
        let link_name = format!("{DATA}-{}", change.stamp);
        let names_left = [Some(link_name), Some(aside(change)), goes.map(version)];
        let removed = self.remove_names(directory, names_left.into_iter().flatten());
        let used = [stays.map(version), link(directory, DATA)?];
        let is_unused = |name: &String| is_ours(name) && used.iter().flatten().all(|used| used != name);
        let ours = old_files(change).count() + change.new.as_ref().map_or(0, BTreeMap::len);
        let there = names(directory, ours + MAX_FOREIGN)?.into_iter();
        let earlier = there.filter_map(|name| name.into_string().ok()).filter(is_unused);
        removed.and(self.remove_names(directory, earlier))
    }

    /// Removes files, and directories with their contents. Tries all, and returns the last error.
    pub(super) fn remove_names(
        &self,
        directory: &OwnedFd,
        names: impl IntoIterator<Item = String>,
    ) -> Result<()> {
        let (mut left, mut result) = (MAX_REMOVED, Ok(()));
        for name in names {
            let removed = match exists(directory, &name) {
                Ok(true) => self.remove_entry(directory, &name, &mut left),
                other => other.map(|_| ()),
            };
            result = removed.and(result);
        }
        result
    }

    /// Removes the parent directories that were created for a place which is gone, from the nearest
    /// one up to the first that is not empty.
    pub(super) fn remove_parents(&self, change: &Change, keep_new: bool) -> Result<()> {
        let count = match (&change.old, &change.new, keep_new) {
            (Some(old), None, true) => old.parents,
            (None, _, false) => change.parents,
            _ => 0,
        };
        if count == 0 {
            return Ok(());
        }
        let names: Vec<&str> = directories(&change.place, Shape::File).collect();
        let mut at = open_base(&change.place)?;
        // Each existing directory with the one that it is in; the nearest may be removed already.
        let mut there = Vec::new();
        for name in &names {
            let Some(found) = open_directory(&at, *name)? else { break };
            there.push((std::mem::replace(&mut at, found), *name));
        }
        let others = names.len().saturating_sub(count as usize);
        for (parent, name) in there.iter().skip(others).rev() {
            self.step()?;
            if unlinkat(parent, *name, AtFlags::REMOVEDIR).is_err() {
                break;
            }
            self.fsync(parent)?;
        }
        Ok(())
    }

    pub(super) fn remove(&self, directory: &OwnedFd, name: &str) -> Result<()> {
        if !exists(directory, name)? {
            return Ok(());
        }
        self.step()?;
        unlinkat(directory, name, AtFlags::empty())
    }

    /// Removes a file, or a directory with its contents: at most `left` entries.
    fn remove_entry(&self, directory: &OwnedFd, name: &str, left: &mut usize) -> Result<()> {
        let name = CString::new(name).map_err(|_| Errno::INVAL)?;
        self.remove_all(directory, &name, MAX_DEPTH, left)
    }

    /// Removes a file, or a directory with its contents down to a depth, and at most `left`
    /// entries. Goes on after an error, and returns the last one.
    fn remove_all(&self, directory: &OwnedFd, name: &CStr, deepest: u32, left: &mut usize) -> Result<()> {
        *left = left.checked_sub(1).ok_or(Errno::TOOBIG)?;
        self.step()?;
        match unlinkat(directory, name, AtFlags::empty()) {
            Err(Errno::NOENT) => return Ok(()),
            Err(Errno::ISDIR) if deepest > 0 => {}
            removed => return removed,
        }
        let Some(beneath) = open_directory(directory, name)? else { return Ok(()) };
        let mut result = Ok(());
        for file in names(&beneath, *left)? {
            if let Err(error) = self.remove_all(&beneath, &file, deepest - 1, left) {
                result = Err(error);
            }
        }
        result?;
        self.step()?;
        unlinkat(directory, name, AtFlags::REMOVEDIR)
    }
}
