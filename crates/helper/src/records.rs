//! Persistent state of the helper: a record per rule, and the intent of a running transaction.

use std::borrow::Cow;
use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::io::Write as _;
use std::path::{Path, PathBuf};

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::hold_state::HoldState;
use super::kept::KEPT;
use super::{HelperError, disk};
use edgesync_config::edge::Config;
use edgesync_files::wire::{ObjectCounts, ReportPosition, RuleStatistics, StatusUpdate};
use edgesync_files::{Closed, Delta, Intent, Record, State};
use edgesync_runtime::random;
use edgesync_store::durable::{self, FileError};

const RECORD: &str = "json";
const INTENT: &str = "intent";
const LOG: &str = "log";
/// Maximum number of deleted objects that a rule remembers until they are reported.
pub(super) const MAX_GONE: usize = 10_000;
/// The log of changes may be as long as the record, and at least this many bytes.
const MIN_LOG: u64 = 16 << 10;
/// Replaces the output of programs where Secrets are concerned.
const REDACTED: &str = "output not kept: it may quote a Secret";
/// Upper bound of accepted sequence numbers; leaves enough for all future ones.
const MAX_SEQ: u64 = 1 << 62;

/// Records of all rules.
#[derive(Debug)]
pub(super) struct Records {
    directory: PathBuf,
    /// Current record of each rule, by the rule's name.
    pub(super) all: BTreeMap<String, Record>,
    /// Persisted state of each record, by rule.
    pub(super) logs: BTreeMap<String, Log>,
    epoch: u64,
    /// Keys of the digests: for files on disks, and for files in memory, which is itself in memory.
    /// So the digests of files in memory are useless to an attacker with the disk.
    pub(super) keys: [(u64, u64); 2],
    /// Last assigned sequence number.
    pub(super) seq: u64,
    /// Holds in force, and the clock that they end by.
    pub(super) holds: HoldState,
}

/// Persistent identity of the records.
#[derive(Debug, Serialize, Deserialize)]
struct Epoch {
    epoch: u64,
    key: (u64, u64),
}

/// Creates a key that cannot be derived from the other random numbers, which are reported.
fn new_key() -> Result<(u64, u64), HelperError> {
    let half = || Ok::<_, HelperError>(u64::from_le_bytes(edgesync_store::random::bytes()?));
    Ok((half()?, half()?))
}

impl Records {
    /// Loads the records; an unreadable one counts as lost.
    pub(super) fn open(config: &Config) -> Result<Self, HelperError> {
        let directory = &config.helper.state;
        std::fs::create_dir_all(directory).map_err(FileError::tried("create", directory))?;
        let set = std::fs::set_permissions(directory, std::os::unix::fs::PermissionsExt::from_mode(0o700));
        set.map_err(FileError::tried("set the mode of", directory))?;
        let (mut all, mut logs, mut lost) = (BTreeMap::new(), BTreeMap::new(), false);
        let entries = std::fs::read_dir(directory).map_err(FileError::tried("read", directory))?;
        for path in entries.flatten().map(|entry| entry.path()) {
            let (Some(name), Some(ending)) = (path.file_stem(), path.extension()) else { continue };
            if ending.to_string_lossy() == RECORD {
                match Log::read(&path) {
                    Some((record, log)) => {
                        let name = name.to_string_lossy().into_owned();
                        logs.insert(name.clone(), log);
                        all.insert(name, record);
                    }
                    None => lost = true,
                }
            }
        }
        let path = directory.join("epoch");
        let known = read::<Epoch>(&path);
        if known.is_none() {
            // Their digests were computed with another key.
            all.clear();
        }
        let kept = match known {
            Some(known) if !lost => known,
            known => {
                let key = known.map_or_else(new_key, |known| Ok(known.key))?;
                let epoch = Epoch { epoch: random() >> 11, key };
                write(&path, &epoch)?;
                epoch
            }
        };
        let in_memory = config.helper.socket.with_extension("key");
        let memory_key = match read(&in_memory) {
            Some(key) => key,
            None => {
                let key = new_key()?;
                write(&in_memory, &key)?;
                // Files found there are verified as after a loss of the record, unless a copy of
                // them outlives the reboot.
                let records = all.values_mut();
                records.for_each(|record: &mut Record| {
                    record.places.retain(|_, held| {
                        let is_lost = disk::is_in_memory(&held.place.base);
                        held.lost |= is_lost;
                        !is_lost || held.kept.is_some()
                    });
                });
                key
            }
        };
        let states = all.values().flat_map(|record: &Record| record.objects.values());
        let seq = states.map(|status| status.seq).max().unwrap_or(0);
        let Epoch { epoch, key } = kept;
        let holds = HoldState::open(directory)?;
        Ok(Self { directory: directory.to_owned(), all, logs, epoch, keys: [key, memory_key], seq, holds })
    }

    /// Continues sequence numbers after those already reported: the record with them may be lost or
    /// was never persisted.
    pub(super) fn continue_after(&mut self, reported: &ReportPosition) {
        self.seq = self.seq.max(self.reported_seq(reported).unwrap_or(0).min(MAX_SEQ));
    }

    /// Returns the paths of a rule's files.
    pub(super) fn files(&self, rule: &str) -> RuleFiles {
        let path = |ending: &str| self.directory.join(format!("{rule}.{ending}"));
        RuleFiles { record: path(RECORD), intent: path(INTENT), candidates: path("candidates") }
    }

    /// Drops deleted objects that were reported or exceed the limit, and empty records of rules no
    /// longer configured.
    pub(super) fn prune(&mut self, reported: &ReportPosition, rules: &BTreeSet<&str>) {
        let seq = self.reported_seq(reported).unwrap_or(0);
        for record in self.all.values_mut() {
            let gone = record.objects.values().filter(|status| status.state == State::Gone);
            let mut gone: Vec<u64> = gone.map(|status| status.seq).collect();
            gone.sort_unstable_by(|one, other| other.cmp(one));
            let least = gone.get(MAX_GONE).map_or(seq, |least| seq.max(*least));
            record.objects.retain(|_, status| status.state != State::Gone || status.seq > least);
        }
        let is_empty = |record: &Record| {
            record.places.is_empty() && record.objects.is_empty() && record.stuck.is_empty()
        };
        let over =
            self.all.iter().filter(|(name, record)| !rules.contains(name.as_str()) && is_empty(record));
        for name in over.map(|(name, _)| name.clone()).collect::<Vec<_>>() {
            // A file that remains is loaded again, and is as empty.
            let record = self.files(&name).record;
            let _ = durable::remove(&record).and_then(|()| durable::remove(&record.with_extension(LOG)));
            self.all.remove(&name);
            self.logs.remove(&name);
        }
    }

    /// Removes copies of files whose record was lost, unless their rule is configured and may find
    /// its files again.
    pub(super) fn remove_strays(&self, rules: &BTreeSet<&str>) {
        let Ok(entries) = std::fs::read_dir(&self.directory) else { return };
        for path in entries.flatten().map(|entry| entry.path()) {
            let is_kept = path.extension().is_some_and(|ending| ending == KEPT);
            let rule = path.file_stem().map(|name| name.to_string_lossy().into_owned());
            if is_kept
                && rule.is_some_and(|rule| !rules.contains(rule.as_str()) && !self.all.contains_key(&rule))
            {
                // What remains is tried again with the next request of this kind.
                let _ = std::fs::remove_dir_all(path);
            }
        }
    }

    fn reported_seq(&self, reported: &ReportPosition) -> Option<u64> {
        (reported.epoch == self.epoch).then_some(reported.seq)
    }

    /// Returns the statuses that were not reported yet, over all rules: per object the worst
    /// status, and among equal ones the oldest. An object is in effect if it is by every rule.
    pub(super) fn updates(&self, reported: &ReportPosition) -> Vec<StatusUpdate> {
        let seq = self.reported_seq(reported).unwrap_or(0);
        let states = self.all.values().flat_map(|record| &record.objects);
        let new: BTreeSet<&String> =
            states.filter(|(_, status)| status.seq > seq).map(|(uid, _)| uid).collect();
        let worst = |uid: &String| {
            let of_rules =
                self.all.iter().filter_map(|(rule, record)| Some((rule, record.objects.get(uid)?)));
            let (rule, status) = of_rules.max_by_key(|(_, status)| (status.state, Reverse(status.seq)))?;
            Some(StatusUpdate { uid: uid.clone(), rule: rule.clone(), status: status.clone() })
        };
        new.into_iter().filter_map(worst).collect()
    }

    /// Returns the current position, reached once all statuses are received.
    pub(super) fn reported(&self) -> ReportPosition {
        ReportPosition { epoch: self.epoch, seq: self.seq }
    }

    /// Returns the numbers of objects over all rules: each counts once, in its worst state.
    pub(super) fn counts(&self) -> ObjectCounts {
        let all = |record: &Record| {
            let [in_effect, not_in_effect, conflicts] = record.counts();
            [in_effect, not_in_effect, conflicts, record.waiting()]
        };
        let [in_effect, not_in_effect, conflicts, waiting] = match self.all.len() {
            // Spares a device with one rule the comparison of UIDs.
            0 | 1 => self.all.values().next().map_or([0; 4], all),
            _ => {
                let mut worst: BTreeMap<&str, State> = BTreeMap::new();
                for (uid, status) in self.all.values().flat_map(|record| &record.objects) {
                    let state = worst.entry(uid).or_default();
                    *state = status.state.max(*state);
                }
                let count = |state: State| worst.values().filter(|worst| **worst == state).count() as u64;
                [State::InEffect, State::NotInEffect, State::Conflict, State::Waiting].map(count)
            }
        };
        ObjectCounts { in_effect, not_in_effect, conflicts, waiting }
    }

    /// Returns the statistics of all rules.
    pub(super) fn show(&self, with_objects: bool) -> Vec<RuleStatistics> {
        let shown = |(name, record): (&String, &Record)| {
            let [in_effect, not_in_effect, conflicts] = record.counts();
            let objects =
                record.objects.values().filter(|status| with_objects && status.state != State::Gone);
            RuleStatistics {
                name: name.clone(),
                in_effect,
                not_in_effect,
                conflicts,
                reloads: record.reloads,
                rollbacks: record.rollbacks,
                files: record.places.values().map(|held| held.files.len() as u64).sum(),
                output: record.output.clone(),
                objects: objects.cloned().collect(),
                waiting: record.waiting(),
                closed: closed(record),
            }
        };
        self.all.iter().map(shown).collect()
    }
}

/// Returns what the objects of a rule wait for.
fn closed(record: &Record) -> Option<Closed> {
    let waiting = record.objects.values().find(|status| status.state == State::Waiting)?;
    Some(Closed { reason: waiting.reason?, until: waiting.until, message: waiting.message.clone() })
}

/// Paths of the helper's files for one rule.
#[derive(Clone, Debug)]
pub(super) struct RuleFiles {
    record: PathBuf,
    intent: PathBuf,
    /// List of candidates for the check program.
    pub(super) candidates: PathBuf,
}

impl RuleFiles {
    /// Returns the directory of the files.
    pub(super) fn directory(&self) -> &Path {
        self.candidates.parent().unwrap_or(&self.candidates)
    }

    /// Persists a record; replaces program output that could quote a Secret.
    pub(super) fn write_record(&self, log: &mut Log, record: &Record) -> Result<(), FileError> {
        let mut kept = Cow::Borrowed(record);
        if record.objects.values().any(|status| status.sealed) {
            let kept = kept.to_mut();
            // No program has written what an object waits for.
            let programs = kept.objects.values_mut().filter(|status| status.state != State::Waiting);
            let messages = programs.map(|status| &mut status.message);
            for text in messages.chain([&mut kept.output]).filter(|text| !text.is_empty()) {
                REDACTED.clone_into(text);
            }
        }
        log.persist(&self.record, &kept)
    }

    /// Persists an intent. A partial one, left by a power cut, is unreadable and ignored: then
    /// nothing was done.
    pub(super) fn write_intent(&self, intent: &Intent) -> Result<(), FileError> {
        let text = to_text(&self.intent, intent)?;
        durable::remove(&self.intent)?;
        let written = durable::write_new(&self.intent, &text, 0o600);
        let written = written.and_then(|()| durable::sync_directory(&self.intent));
        written.inspect_err(|_| drop(durable::remove(&self.intent)))
    }

    /// Reads the intent of an unfinished transaction.
    pub(super) fn read_intent(&self) -> Option<Intent> {
        self.intent.exists().then(|| read(&self.intent)).flatten()
    }

    /// Removes the intent. If a power cut restores it, the recovery finds nothing to do.
    pub(super) fn remove_intent(&self) -> Result<(), FileError> {
        durable::remove(&self.intent)
    }
}

/// Persisted form of a record: a snapshot, and a log with one line per change. So the change of one
/// object in a thousand writes one kilobyte instead of four hundred.
#[derive(Debug, Default)]
pub(super) struct Log {
    kept: Record,
    /// Generation of the snapshot; the log belongs to it if it begins with the same number. None if
    /// the files are unknown.
    generation: Option<u64>,
    /// Lengths of snapshot and log in bytes. The log does not exist while its length is 0.
    whole: u64,
    changes: u64,
}

/// Content of the snapshot file; `generation` links the log to it.
#[derive(Serialize, Deserialize)]
struct Snapshot<R> {
    generation: u64,
    record: R,
}

impl Log {
    /// Loads a record; none if it is unreadable. A partial last line, left by a power cut, was
    /// never committed.
    fn read(path: &Path) -> Option<(Record, Self)> {
        let Snapshot { generation, record } = read::<Snapshot<Record>>(path)?;
        let whole = std::fs::metadata(path).map_or(0, |found| found.len());
        let mut log = Self { kept: record, generation: Some(generation), whole, changes: 0 };
        let text = std::fs::read(path.with_extension(LOG)).unwrap_or_default();
        let head = format!("{generation}\n");
        if let Some(lines) = text.strip_prefix(head.as_bytes()) {
            let mut clean = true;
            for line in lines.split_inclusive(|byte| *byte == b'\n') {
                match serde_json::from_slice::<Delta>(line) {
                    Ok(delta) if clean && line.ends_with(b"\n") => log.kept.apply(delta),
                    _ => clean = false,
                }
            }
            log.changes = text.len() as u64;
            if !clean {
                log.generation = None;
            }
        }
        Some((log.kept.clone(), log))
    }

    fn persist(&mut self, path: &Path, record: &Record) -> Result<(), FileError> {
        let delta = record.since(&self.kept);
        let mut line = to_text(path, &delta)?;
        line.push(b'\n');
        // Set again after success.
        let known = self.generation.take();
        let known = known.filter(|_| self.changes + line.len() as u64 <= self.whole.max(MIN_LOG));
        let generation = match known {
            None => {
                let generation = random() >> 11;
                write(path, &Snapshot { generation, record })?;
                self.whole = std::fs::metadata(path).map_or(0, |found| found.len());
                self.changes = 0;
                generation
            }
            Some(generation) => {
                let path = path.with_extension(LOG);
                if self.changes == 0 {
                    let head = format!("{generation}\n");
                    durable::write(&path, &[head.as_bytes(), &line].concat(), 0o600)?;
                    self.changes = head.len() as u64;
                } else {
                    append(&path, &line).map_err(FileError::tried("write", &path))?;
                }
                self.changes += line.len() as u64;
                generation
            }
        };
        self.generation = Some(generation);
        self.kept.apply(delta);
        Ok(())
    }
}

fn append(path: &Path, line: &[u8]) -> std::io::Result<()> {
    let mut file = std::fs::OpenOptions::new().append(true).open(path)?;
    file.write_all(line)?;
    file.sync_data()
}

fn read<T: DeserializeOwned>(path: &Path) -> Option<T> {
    let text = std::fs::read(path).ok()?;
    let read = serde_json::from_slice(&text);
    read.map_err(|error| tracing::warn!(path = %path.display(), %error, "unreadable record ignored")).ok()
}

fn write(path: &Path, value: &impl Serialize) -> Result<(), FileError> {
    durable::write(path, &to_text(path, value)?, 0o600)
}

fn to_text(path: &Path, value: &impl Serialize) -> Result<Vec<u8>, FileError> {
    serde_json::to_vec(value).map_err(|error| FileError::tried("write", path)(error.into()))
}
