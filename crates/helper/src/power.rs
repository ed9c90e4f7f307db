//! A model of what a power cut leaves of a directory: what was flushed, and of the rest what is worst. A step that is not flushed
//! in time is found by it; the tests leave out each flush in turn, to see that it would be.

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

/// A file or directory: numbers are given again, so the time at which it was made belongs to it.
type Id = (u64, Option<Timestamp>);

#[derive(Clone, Debug, PartialEq)]
enum What {
    File(Id),
    Directory(Id),
    Link(PathBuf),
}

/// What is flushed.
#[derive(Debug, Default)]
pub(super) struct Flushed {
    /// All that there is.
    root: PathBuf,
    files: RefCell<BTreeMap<Id, Vec<u8>>>,
    directories: RefCell<BTreeMap<Id, BTreeMap<String, What>>>,
    /// How often it was flushed.
    times: Cell<u32>,
    /// The flush that is left out.
    pub(super) forgotten: Cell<Option<u32>>,
}

/// What becomes of what was not flushed. The contents of files are lost in any case.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Rest {
    /// It is lost.
    Lost,
    /// All names are there.
    Names,
    /// What has taken the place of something is there, what has a new name is not.
    Replaced,
}

fn id(path: &Path) -> Id {
    let found = fs::symlink_metadata(path).unwrap();
    (found.ino(), found.created().ok().and_then(|made| Timestamp::try_from(made).ok()))
}

fn entries(directory: &Path) -> BTreeMap<String, What> {
    let each = |entry: std::io::Result<fs::DirEntry>| {
        let path = entry.unwrap().path();
        let kind = fs::symlink_metadata(&path).unwrap().file_type();
        let what = if kind.is_symlink() {
            What::Link(fs::read_link(&path).unwrap())
        } else if kind.is_dir() {
            What::Directory(id(&path))
        } else {
            What::File(id(&path))
        };
        (path.file_name().unwrap().to_str().unwrap().to_owned(), what)
    };
    fs::read_dir(directory).unwrap().map(each).collect()
}

impl Flushed {
    fn is_forgotten(&self) -> bool {
        self.times.set(self.times.get() + 1);
        self.forgotten.get() == Some(self.times.get() - 1)
    }

    /// A file or a directory was flushed.
    pub(super) fn one(&self, file: &OwnedFd) {
        if !self.is_forgotten() {
            self.note(&fs::read_link(format!("/proc/self/fd/{}", file.as_raw_fd())).unwrap());
        }
    }

    /// The whole file system was.
    pub(super) fn all(&self) {
        if !self.is_forgotten() {
            self.note_all(&self.root);
        }
    }

    fn note_all(&self, directory: &Path) {
        self.note(directory);
        for (name, what) in entries(directory) {
            match what {
                What::Directory(_) => self.note_all(&directory.join(name)),
                What::File(_) => self.note(&directory.join(name)),
                What::Link(_) => {}
            }
        }
    }

    fn note(&self, path: &Path) {
        if path.is_dir() {
            self.directories.borrow_mut().insert(id(path), entries(path));
        } else {
            self.files.borrow_mut().insert(id(path), fs::read(path).unwrap());
        }
    }

    /// The power is cut: what is left of a directory takes its place.
    fn cut(&self, directory: &Path, rest: Rest) {
        let left = directory.with_extension("left");
        fs::create_dir(&left).unwrap();
        self.write(&left, id(directory), Some(directory), rest);
        fs::remove_dir_all(directory).unwrap();
        fs::rename(left, directory).unwrap();
    }

    fn write(&self, to: &Path, of: Id, current: Option<&Path>, rest: Rest) {
        let flushed = self.directories.borrow().get(&of).cloned().unwrap_or_default();
        let there = current.map(entries).unwrap_or_default();
        let names = match rest {
            Rest::Lost => flushed,
            Rest::Names => there,
            Rest::Replaced => there.into_iter().filter(|(name, _)| flushed.contains_key(name)).collect(),
        };
        for (name, what) in names {
            let path = to.join(&name);
            match what {
                What::Link(target) => symlink(target, path).unwrap(),
                What::File(of) => {
                    let content = self.files.borrow().get(&of).cloned().unwrap_or_default();
                    fs::write(path, content).unwrap();
                }
                What::Directory(of) => {
                    fs::create_dir(&path).unwrap();
                    let current = current.filter(|_| rest != Rest::Lost).map(|at| at.join(&name));
                    self.write(&path, of, current.as_deref(), rest);
                }
            }
        }
    }
}

/// A rule with some objects, of which all change.
struct Story {
    write: Write,
    objects: usize,
}

impl Story {
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

    /// What a reader sees of an object.
    fn seen(&self, bed: &Bed, number: usize) -> Vec<Option<String>> {
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

    /// The power is cut after so many calls of a change, in which one flush is left out. What is wrong afterwards; whether
    /// the change was over before; and how often it was flushed.
    fn cut(&self, calls: u32, rest: Rest, forgotten: Option<u32>) -> (Option<String>, bool, u32) {
        let bed = Bed::in_memory();
        let rule = self.rule(&bed);
        bed.pass(&rule, &self.objects(1), None);
        let flushed = std::rc::Rc::new(Flushed { root: bed.base(), ..Flushed::default() });
        flushed.note_all(&flushed.root);
        flushed.forgotten.set(forgotten);
        let (_, ended) = bed.pass_with(&rule, &self.objects(2), Some(calls), Some(flushed.clone()));
        flushed.cut(&bed.base(), rest);
        let noted = Records::open(&bed.config).unwrap().all.remove("r").unwrap();
        let mut wrong = None;
        for number in 0..self.objects {
            let seen = self.seen(&bed, number);
            let claimed = noted.objects[&format!("u{number:02}")].version.as_deref() == Some("2");
            let right = seen == self.whole(2) || (seen == self.whole(1) && !claimed);
            if !right {
                wrong = Some(format!("a reader sees {seen:?}, noted is {:?}", noted.objects));
            }
        }
        let (record, _) = bed.pass(&rule, &self.objects(2), None);
        for number in 0..self.objects {
            let status = &record.objects[&format!("u{number:02}")];
            if status.state != State::InEffect || self.seen(&bed, number) != self.whole(2) {
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
        (wrong, ended, flushed.times.get())
    }

    /// The first thing that is wrong after a cut at any call, and how often it was flushed at most.
    fn first_wrong(&self, forgotten: Option<u32>, step: usize) -> (Option<String>, u32) {
        let mut times = 0;
        for calls in (0..).step_by(step) {
            let mut over = false;
            for rest in [Rest::Lost, Rest::Names, Rest::Replaced] {
                let (wrong, ended, flushed) = self.cut(calls, rest, forgotten);
                if let Some(wrong) = wrong {
                    return (Some(format!("after {calls} calls, {rest:?}: {wrong}")), times);
                }
                times = times.max(flushed);
                over = !ended;
            }
            if over {
                break;
            }
        }
        (None, times)
    }
}

#[test]
fn a_power_cut_at_any_call_leaves_whole_sets_of_what_is_flushed_and_each_flush_matters() {
    for (write, flushes) in [(Write::Keys, 7), (Write::Field("/data/a".into()), 3)] {
        let story = Story { write, objects: 1 };
        let (wrong, times) = story.first_wrong(None, 1);
        assert_eq!((wrong, times), (None, flushes), "{:?}", story.write);
        for forgotten in 0..times {
            let (wrong, _) = story.first_wrong(Some(forgotten), 1);
            assert!(wrong.is_some(), "{:?}: nobody misses flush {forgotten}", story.write);
        }
    }
}

#[test]
fn many_changes_that_are_flushed_at_once_are_as_safe() {
    let story = Story { write: Write::Keys, objects: 17 };
    assert_eq!(story.first_wrong(None, 13).0, None);
    for forgotten in 0..3 {
        assert!(story.first_wrong(Some(forgotten), 29).0.is_some(), "nobody misses flush {forgotten}");
    }
}
