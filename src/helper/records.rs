//! What was written and what is in effect, kept in a directory of the helper: a file for each rule, and beside it what is about
//! to be done, while it is.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use serde::Serialize;
use serde::de::DeserializeOwned;

use super::HelperError;
use crate::files::wire::{News, RuleShown, Told};
use crate::files::{Intent, Record, State};
use crate::object::Gather as _;
use crate::process::random;
use crate::store::durable::{self, FileError};

const RECORD: &str = "json";
const INTENT: &str = "intent";

/// All records.
#[derive(Debug)]
pub(super) struct Records {
    directory: PathBuf,
    /// By rule.
    pub(super) all: BTreeMap<String, Record>,
    /// Changes by rule that an end of the helper has left in their middle.
    pub(super) begun: BTreeMap<String, Intent>,
    epoch: u64,
    /// The last number that was given to a state.
    pub(super) seq: u64,
}

impl Records {
    /// Reads the records; one that cannot be read counts as lost.
    pub(super) fn open(directory: &Path) -> Result<Self, HelperError> {
        std::fs::create_dir_all(directory).map_err(FileError::tried("make", directory))?;
        let set = std::fs::set_permissions(directory, std::os::unix::fs::PermissionsExt::from_mode(0o700));
        set.map_err(FileError::tried("protect", directory))?;
        let (mut all, mut begun) = (BTreeMap::new(), BTreeMap::new());
        let entries = std::fs::read_dir(directory).map_err(FileError::tried("read", directory))?;
        let mut lost = false;
        for path in entries.flatten().map(|entry| entry.path()) {
            let (Some(name), Some(ending)) = (path.file_stem(), path.extension()) else { continue };
            let name = name.to_string_lossy().into_owned();
            match ending.to_string_lossy().as_ref() {
                RECORD => match read::<Record>(&path) {
                    Some(record) => drop(all.insert(name, record)),
                    None => lost = true,
                },
                INTENT => drop(read(&path).map(|intent| begun.insert(name, intent))),
                _ => {}
            }
        }
        let path = directory.join("epoch");
        let known = read::<u64>(&path).filter(|_| !lost);
        let epoch = known.unwrap_or_else(|| random() >> 11);
        if known.is_none() {
            durable::write(&path, epoch.to_string().as_bytes(), 0o600)?;
        }
        let states = all.values().flat_map(|record: &Record| record.objects.values());
        let seq = states.map(|status| status.seq).max().unwrap_or(0);
        Ok(Self { directory: directory.to_owned(), all, begun, epoch, seq })
    }

    /// The record of a rule, which is new if there is none.
    pub(super) fn take(&mut self, rule: &str) -> Record {
        self.all.remove(rule).unwrap_or_else(|| Record::new((random(), random())))
    }

    /// The files of a rule.
    pub(super) fn files(&self, rule: &str) -> RuleFiles {
        let path = |ending: &str| self.directory.join(format!("{rule}.{ending}"));
        RuleFiles { record: path(RECORD), intent: path(INTENT), candidates: path("candidates") }
    }

    /// Forgets who is gone and was told to be, and rules of which nothing is left.
    pub(super) fn prune(&mut self, told: &Told, rules: &BTreeSet<&str>) {
        let Some(seq) = self.known(told) else { return };
        for record in self.all.values_mut() {
            record.objects.retain(|_, status| status.state != State::Gone || status.seq > seq);
        }
        let is_empty = |record: &Record| record.places.is_empty() && record.objects.is_empty();
        let over =
            self.all.iter().filter(|(name, record)| !rules.contains(name.as_str()) && is_empty(record));
        for name in over.map(|(name, _)| name.clone()).collect::<Vec<_>>() {
            // One that stays is found again, and is as empty.
            let _ = durable::remove(&self.files(&name).record);
            self.all.remove(&name);
        }
    }

    fn known(&self, told: &Told) -> Option<u64> {
        (told.epoch == self.epoch).then_some(told.seq)
    }

    /// What somebody has not been told, over all rules: of each object the worst that a rule says.
    pub(super) fn news(&self, told: &Told) -> Vec<News> {
        let seq = self.known(told).unwrap_or(0);
        let states = self.all.values().flat_map(|record| &record.objects);
        let new: BTreeSet<&String> =
            states.filter(|(_, status)| status.seq > seq).map(|(uid, _)| uid).gather();
        let worst = |uid: &String| {
            let of_rules =
                self.all.iter().filter_map(|(rule, record)| Some((rule, record.objects.get(uid)?)));
            let (rule, status) = of_rules.max_by_key(|(_, status)| status.state)?;
            Some(News { uid: uid.clone(), rule: rule.clone(), status: status.clone() })
        };
        new.into_iter().filter_map(worst).collect()
    }

    /// What whoever is told all of it has been told.
    pub(super) fn told(&self) -> Told {
        Told { epoch: self.epoch, seq: self.seq }
    }

    /// The rules as they are shown.
    pub(super) fn show(&self, with_objects: bool) -> Vec<RuleShown> {
        let shown = |(name, record): (&String, &Record)| {
            let [in_effect, not_in_effect, conflicts] = record.counts();
            let objects =
                record.objects.values().filter(|status| with_objects && status.state != State::Gone);
            RuleShown {
                name: name.clone(),
                in_effect,
                not_in_effect,
                conflicts,
                reloads: record.reloads,
                rollbacks: record.rollbacks,
                files: record.places.values().map(|held| held.files.len() as u64).sum(),
                output: record.output.clone(),
                objects: objects.cloned().collect(),
            }
        };
        self.all.iter().map(shown).collect()
    }
}

/// The files that the helper keeps for a rule.
#[derive(Clone, Debug)]
pub(super) struct RuleFiles {
    record: PathBuf,
    intent: PathBuf,
    /// The paths of candidates, for the program that checks them.
    pub(super) candidates: PathBuf,
}

impl RuleFiles {
    pub(super) fn write_record(&self, record: &Record) -> Result<(), FileError> {
        write(&self.record, record)
    }

    /// Notes what is about to be done; with it the key of its digests.
    pub(super) fn write_intent(&self, intent: &Intent, key: (u64, u64)) -> Result<(), FileError> {
        if !self.record.exists() {
            self.write_record(&Record::new(key))?;
        }
        write(&self.intent, intent)
    }

    pub(super) fn remove_intent(&self) -> Result<(), FileError> {
        durable::remove(&self.intent)?;
        durable::sync_directory(&self.intent)
    }
}

fn read<T: DeserializeOwned>(path: &Path) -> Option<T> {
    let text = std::fs::read(path).ok()?;
    let read = serde_json::from_slice(&text);
    read.map_err(|error| tracing::warn!(path = %path.display(), %error, "a record cannot be read")).ok()
}

fn write(path: &Path, value: &impl Serialize) -> Result<(), FileError> {
    let text = serde_json::to_vec(value).map_err(|error| FileError::tried("write", path)(error.into()))?;
    durable::write(path, &text, 0o600)
}
