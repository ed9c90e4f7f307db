//! In-memory disk that loses unflushed data. After a power cut at any step, each unflushed
//! directory entry and content survives or not, in every combination.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};

use crate::files::Disk;
use edgesync_store::durable::directory_of;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Entry {
    Directory,
    File(usize),
}

type Tree = BTreeMap<PathBuf, Entry>;

#[derive(Clone, Debug)]
struct Content {
    live: Vec<u8>,
    /// Content at the last flush.
    safe: Vec<u8>,
    mode: u32,
}

/// An unflushed change of a directory.
#[derive(Clone, Debug)]
enum Change {
    Add(PathBuf, Entry),
    Remove(PathBuf),
    Rename(PathBuf, PathBuf, Entry),
}

impl Change {
    fn directory(&self) -> &Path {
        match self {
            Self::Add(path, _) | Self::Remove(path) | Self::Rename(path, _, _) => directory_of(path),
        }
    }

    fn apply(&self, tree: &mut Tree) {
        match self {
            Self::Add(path, entry) => {
                tree.insert(path.clone(), *entry);
            }
            Self::Remove(path) => {
                tree.remove(path);
            }
            Self::Rename(from, to, entry) => {
                tree.remove(from);
                tree.insert(to.clone(), *entry);
            }
        }
    }
}

/// A fault at a step.
#[derive(Clone, Copy, Debug)]
pub(super) enum Fault {
    /// The power is cut before the step.
    PowerCut,
    /// The step fails once.
    Fails(io::ErrorKind),
}

/// An in-memory disk with faults.
#[derive(Clone, Debug)]
pub(super) struct TestDisk {
    live: Tree,
    safe: Tree,
    contents: Vec<Content>,
    pending: Vec<Change>,
    steps: usize,
    fault: Option<(usize, Fault)>,
    is_off: bool,
}

impl TestDisk {
    /// Creates a disk with these directories.
    pub(super) fn new(directories: &[&str]) -> Self {
        let all = directories.iter().flat_map(|path| Path::new(path).ancestors());
        let tree = all.map(|path| (path.to_owned(), Entry::Directory)).collect::<Tree>();
        Self {
            safe: tree.clone(),
            live: tree,
            contents: Vec::new(),
            pending: Vec::new(),
            steps: 0,
            fault: None,
            is_off: false,
        }
    }

    /// Returns a copy of the disk with a fault at a later step.
    pub(super) fn with(&self, step: usize, fault: Fault) -> Self {
        Self { steps: 0, fault: Some((step, fault)), ..self.clone() }
    }

    /// Returns a copy of the disk without faults.
    pub(super) fn healthy(&self) -> Self {
        Self { steps: 0, fault: None, is_off: false, ..self.clone() }
    }

    /// Returns the number of steps so far.
    pub(super) fn steps(&self) -> usize {
        self.steps
    }

    /// Returns the paths of all files.
    pub(super) fn files(&self) -> Vec<String> {
        let files = self.live.iter().filter(|(_, entry)| matches!(entry, Entry::File(_)));
        files.map(|(path, _)| path.display().to_string()).collect()
    }

    /// Returns every possible disk after a power cut.
    pub(super) fn after_power_cut(&self) -> Vec<Self> {
        assert!(self.pending.len() <= 10, "too much is unflushed: {:?}", self.pending);
        let mut found = Vec::new();
        for kept in 0..1_u32 << self.pending.len() {
            let mut tree = self.safe.clone();
            let changes = self.pending.iter().enumerate();
            changes.filter(|(at, _)| kept & (1 << at) != 0).for_each(|(_, change)| change.apply(&mut tree));
            let all = tree.clone();
            // Entries of a lost directory are lost.
            let is_reachable = |path: &Path| path.ancestors().skip(1).all(|above| all.contains_key(above));
            tree.retain(|path, _| is_reachable(path));
            for share in [0, 1, 2] {
                found.push(self.with_tree(&tree, share));
            }
        }
        found
    }

    /// Returns the disk with this tree, and `halves` halves of the unflushed contents.
    fn with_tree(&self, tree: &Tree, halves: usize) -> Self {
        let mut contents = self.contents.clone();
        for content in contents.iter_mut().filter(|content| content.safe != content.live) {
            content.live.truncate(content.live.len() * halves / 2);
            content.safe = content.live.clone();
        }
        Self {
            live: tree.clone(),
            safe: tree.clone(),
            contents,
            pending: Vec::new(),
            steps: 0,
            fault: None,
            is_off: false,
        }
    }

    fn step(&mut self) -> io::Result<()> {
        if self.is_off {
            return Err(io::Error::other("the power is off"));
        }
        let step = self.steps;
        self.steps += 1;
        match self.fault {
            Some((at, Fault::PowerCut)) if at == step => {
                self.is_off = true;
                Err(io::Error::other("the power goes off"))
            }
            Some((at, Fault::Fails(kind))) if at == step => Err(kind.into()),
            _ => Ok(()),
        }
    }

    fn change(&mut self, change: Change) {
        change.apply(&mut self.live);
        self.pending.push(change);
    }

    fn entry(&self, path: &Path) -> io::Result<Entry> {
        if self.is_off {
            return Err(io::Error::other("the power is off"));
        }
        self.live.get(path).copied().ok_or_else(|| io::ErrorKind::NotFound.into())
    }

    fn content(&self, path: &Path) -> io::Result<&Content> {
        match self.entry(path)? {
            Entry::File(at) => Ok(&self.contents[at]),
            Entry::Directory => Err(io::ErrorKind::IsADirectory.into()),
        }
    }
}

impl Disk for TestDisk {
    fn make_directory(&mut self, path: &Path, _: u32) -> io::Result<()> {
        let missing = path.ancestors().take_while(|path| !self.live.contains_key(*path)).collect::<Vec<_>>();
        for directory in missing.into_iter().rev() {
            self.step()?;
            self.change(Change::Add(directory.to_owned(), Entry::Directory));
            self.sync_directory(directory_of(directory))?;
        }
        Ok(())
    }

    fn write_new(&mut self, path: &Path, content: &[u8], mode: u32) -> io::Result<()> {
        assert_eq!(self.entry(directory_of(path)).unwrap_or(Entry::Directory), Entry::Directory);
        self.step()?;
        if self.live.contains_key(path) {
            return Err(io::ErrorKind::AlreadyExists.into());
        }
        let at = self.contents.len();
        self.contents.push(Content { live: Vec::new(), safe: Vec::new(), mode });
        self.change(Change::Add(path.to_owned(), Entry::File(at)));
        let written = self.step();
        let length = if written.is_ok() { content.len() } else { content.len() / 2 };
        self.contents[at].live = content[..length].to_vec();
        written?;
        self.step()?;
        self.contents[at].safe = content.to_vec();
        Ok(())
    }

    fn give_to_owner_of(&mut self, path: &Path, like: &Path) -> io::Result<()> {
        self.step()?;
        self.entry(path).and(self.entry(like)).map(drop)
    }

    fn rename(&mut self, from: &Path, to: &Path) -> io::Result<()> {
        self.step()?;
        let entry = self.entry(from)?;
        self.change(Change::Rename(from.to_owned(), to.to_owned(), entry));
        Ok(())
    }

    fn sync_directory(&mut self, path: &Path) -> io::Result<()> {
        self.step()?;
        assert_eq!(self.entry(path)?, Entry::Directory);
        let (flushed, pending): (Vec<Change>, _) =
            self.pending.drain(..).partition(|change| change.directory() == path);
        self.pending = pending;
        flushed.iter().for_each(|change| change.apply(&mut self.safe));
        Ok(())
    }

    fn remove(&mut self, path: &Path) -> io::Result<()> {
        let all = self.live.keys().filter(|found| found.starts_with(path)).cloned().collect::<Vec<_>>();
        for path in all.into_iter().rev() {
            self.step()?;
            self.change(Change::Remove(path));
        }
        Ok(())
    }

    fn read(&self, path: &Path) -> io::Result<Vec<u8>> {
        Ok(self.content(path)?.live.clone())
    }

    fn names(&self, path: &Path) -> io::Result<Vec<String>> {
        let children = self.live.keys().filter(|found| found.parent() == Some(path));
        Ok(children.map(|found| found.file_name().unwrap().to_str().unwrap().to_owned()).collect())
    }

    fn mode(&self, path: &Path) -> io::Result<Option<u32>> {
        match self.content(path) {
            Ok(content) => Ok(Some(content.mode)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }
}
