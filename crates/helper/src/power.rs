//! Model of a directory after a power cut: flushed data survives, the rest in its worst
//! combination. It detects missing flushes; the tests skip each flush in turn to prove that.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::fs;
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::os::unix::fs::{MetadataExt as _, symlink};
use std::path::{Path, PathBuf};

use jiff::Timestamp;
use serde_json::{Value, json};

use super::records::Records;
use super::tests::{Bed, config_map};
use edgesync_files::State;
use edgesync_files::rule::{Rule, Write};

/// Identity of a file or directory: inode numbers are reused, so the creation time is part of it.
type Id = (u64, Option<Timestamp>);

#[derive(Clone, Debug, PartialEq)]
enum Entry {
    File(Id),
    Directory(Id),
    Link(PathBuf),
}

/// Contents and names as last flushed, which survive a power cut.
#[derive(Debug, Default)]
pub(super) struct Flushed {
    /// Root of the modelled tree.
    root: PathBuf,
    files: RefCell<BTreeMap<Id, Vec<u8>>>,
    directories: RefCell<BTreeMap<Id, BTreeMap<String, Entry>>>,
    /// Number of flushes so far.
    count: Cell<u32>,
    /// Index of the flush to skip.
    pub(super) skipped: Cell<Option<u32>>,
}

/// Fate of unflushed names. Unflushed contents are lost in any case.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Unflushed {
    /// All unflushed names are lost.
    Lost,
    /// All unflushed names survive.
    Names,
    /// Replaced names survive, new names are lost.
    Replaced,
}

fn id(path: &Path) -> Id {
    let found = fs::symlink_metadata(path).unwrap();
    (found.ino(), found.created().ok().and_then(|made| Timestamp::try_from(made).ok()))
}

fn entries(directory: &Path) -> BTreeMap<String, Entry> {
    let each = |entry: std::io::Result<fs::DirEntry>| {
        let path = entry.unwrap().path();
        let kind = fs::symlink_metadata(&path).unwrap().file_type();
        let what = if kind.is_symlink() {
            Entry::Link(fs::read_link(&path).unwrap())
        } else if kind.is_dir() {
            Entry::Directory(id(&path))
        } else {
            Entry::File(id(&path))
        };
        (path.file_name().unwrap().to_str().unwrap().to_owned(), what)
    };
    fs::read_dir(directory).unwrap().map(each).collect()
}

impl Flushed {
    fn is_skipped(&self) -> bool {
        self.count.set(self.count.get() + 1);
        self.skipped.get() == Some(self.count.get() - 1)
    }

    /// Records the flush of a file or directory.
    pub(super) fn one(&self, file: &OwnedFd) {
        if !self.is_skipped() {
            self.record(&fs::read_link(format!("/proc/self/fd/{}", file.as_raw_fd())).unwrap());
        }
    }

    /// Records the flush of the whole file system.
    pub(super) fn all(&self) {
        if !self.is_skipped() {
            self.record_all(&self.root);
        }
    }

    fn record_all(&self, directory: &Path) {
        self.record(directory);
        for (name, what) in entries(directory) {
            match what {
                Entry::Directory(_) => self.record_all(&directory.join(name)),
                Entry::File(_) => self.record(&directory.join(name)),
                Entry::Link(_) => {}
            }
        }
    }

    fn record(&self, path: &Path) {
        if path.is_dir() {
            self.directories.borrow_mut().insert(id(path), entries(path));
        } else {
            self.files.borrow_mut().insert(id(path), fs::read(path).unwrap());
        }
    }

    /// Cuts the power: replaces a directory by its surviving state.
    fn cut(&self, directory: &Path, rest: Unflushed) {
        let left = directory.with_extension("left");
        fs::create_dir(&left).unwrap();
        self.write(&left, id(directory), Some(directory), rest);
        fs::remove_dir_all(directory).unwrap();
        fs::rename(left, directory).unwrap();
    }

    fn write(&self, to: &Path, of: Id, current: Option<&Path>, rest: Unflushed) {
        let flushed = self.directories.borrow().get(&of).cloned().unwrap_or_default();
        let there = current.map(entries).unwrap_or_default();
        let names = match rest {
            Unflushed::Lost => flushed,
            Unflushed::Names => there,
            Unflushed::Replaced => there.into_iter().filter(|(name, _)| flushed.contains_key(name)).collect(),
        };
        for (name, what) in names {
            let path = to.join(&name);
            match what {
                Entry::Link(target) => symlink(target, path).unwrap(),
                Entry::File(of) => {
                    let content = self.files.borrow().get(&of).cloned().unwrap_or_default();
                    fs::write(path, content).unwrap();
                }
                Entry::Directory(of) => {
                    fs::create_dir(&path).unwrap();
                    let current = current.filter(|_| rest != Unflushed::Lost).map(|at| at.join(&name));
                    self.write(&path, of, current.as_deref(), rest);
                }
            }
        }
    }
}

/// A rule whose objects all change.
struct Scenario {
    write: Write,
    objects: usize,
}

impl Scenario {
    fn rule(&self, bed: &Bed) -> Rule {
        let to = if self.write == Write::Keys { "{metadata.name}" } else { "{metadata.name}.conf" };
        bed.rule(to, self.write.clone())
    }

    fn objects(&self, version: u32) -> Vec<Value> {
        let data = [json!({ "a": "one", "b": "one" }), json!({ "a": "two", "b": "two", "c": "two" })];
        let each = |number: usize| {
            let mut object = config_map(version, &data[version as usize - 1]);
            object["metadata"]["name"] = format!("o{number:02}").into();
            object["metadata"]["uid"] = format!("u{number:02}").into();
            object
        };
        (0..self.objects).map(each).collect()
    }

    /// Returns the files of an object as a reader sees them.
    fn observed(&self, bed: &Bed, number: usize) -> Vec<Option<String>> {
        let base = bed.base();
        let files: Vec<PathBuf> = match self.write {
            Write::Keys => ["a", "b", "c"].map(|key| base.join(format!("o{number:02}/..data/{key}"))).into(),
            _ => vec![base.join(format!("o{number:02}.conf"))],
        };
        files.iter().map(|file| fs::read_to_string(file).ok()).collect()
    }

    fn whole(&self, version: usize) -> Vec<Option<String>> {
        let word = |word: &str| Some(word.to_owned());
        match (&self.write, version) {
            (Write::Keys, 1) => vec![word("one"), word("one"), None],
            (Write::Keys, _) => vec![word("two"), word("two"), word("two")],
            (_, 1) => vec![word("one")],
            (..) => vec![word("two")],
        }
    }

    /// Cuts the power after `calls` calls of a change that skips one flush. Returns the violation,
    /// whether the change was completed before, and the number of flushes.
    fn cut(&self, calls: u32, rest: Unflushed, skipped: Option<u32>) -> (Option<String>, bool, u32) {
        let bed = Bed::in_memory();
        let rule = self.rule(&bed);
        bed.pass(&rule, &self.objects(1), None);
        let flushed = std::rc::Rc::new(Flushed { root: bed.base(), ..Flushed::default() });
        flushed.record_all(&flushed.root);
        flushed.skipped.set(skipped);
        let (_, ended) = bed.pass_with(&rule, &self.objects(2), Some(calls), Some(flushed.clone()));
        flushed.cut(&bed.base(), rest);
        let recorded = Records::open(&bed.config).unwrap().all.remove("r").unwrap();
        let mut wrong = None;
        for number in 0..self.objects {
            let observed = self.observed(&bed, number);
            let claimed = recorded.objects[&format!("u{number:02}")].version.as_deref() == Some("2");
            let right = observed == self.whole(2) || (observed == self.whole(1) && !claimed);
            if !right {
                wrong = Some(format!("a reader sees {observed:?}, noted is {:?}", recorded.objects));
            }
        }
        let (record, _) = bed.pass(&rule, &self.objects(2), None);
        for number in 0..self.objects {
            let status = &record.objects[&format!("u{number:02}")];
            if status.state != State::InEffect || self.observed(&bed, number) != self.whole(2) {
                wrong = Some(format!("in the end {status:?}"));
            }
            if self.write == Write::Keys {
                let mut names = bed.names(&format!("o{number:02}"));
                names.retain(|name| !name.starts_with("..v"));
                let versions = bed.names(&format!("o{number:02}")).len() - names.len();
                if names != ["..data", "a", "b", "c"] || versions != 1 {
                    wrong = Some(format!("in the end there are {names:?} and {versions} versions"));
                }
            } else if bed.names("").len() != self.objects {
                wrong = Some(format!("in the end there are {:?}", bed.names("")));
            }
        }
        (wrong, ended, flushed.count.get())
    }

    /// Returns the first violation after a cut at any call, and the maximum number of flushes.
    fn first_wrong(&self, skipped: Option<u32>, step: usize) -> (Option<String>, u32) {
        let mut count = 0;
        for calls in (0..).step_by(step) {
            let mut over = false;
            for rest in [Unflushed::Lost, Unflushed::Names, Unflushed::Replaced] {
                let (wrong, ended, flushed) = self.cut(calls, rest, skipped);
                if let Some(wrong) = wrong {
                    return (Some(format!("after {calls} calls, {rest:?}: {wrong}")), count);
                }
                count = count.max(flushed);
                over = !ended;
            }
            if over {
                break;
            }
        }
        (None, count)
    }
}

#[test]
fn power_cut_leaves_whole_versions_and_each_flush_matters() {
    for (write, flushes) in [(Write::Keys, 7), (Write::Field("/data/a".into()), 3)] {
        let scenario = Scenario { write, objects: 1 };
        let (wrong, count) = scenario.first_wrong(None, 1);
        assert_eq!((wrong, count), (None, flushes), "{:?}", scenario.write);
        for skipped in 0..count {
            let (wrong, _) = scenario.first_wrong(Some(skipped), 1);
            assert!(wrong.is_some(), "{:?}: nobody misses flush {skipped}", scenario.write);
        }
    }
}

#[test]
fn power_cut_leaves_whole_versions_after_bulk_flushes() {
    let scenario = Scenario { write: Write::Keys, objects: 17 };
    assert_eq!(scenario.first_wrong(None, 13).0, None);
    for skipped in 0..3 {
        assert!(scenario.first_wrong(Some(skipped), 29).0.is_some(), "nobody misses flush {skipped}");
    }
}
