//! Executes the transaction steps of a rule: files, programs, and the record of what is in effect.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use super::disk::{Disk, system_error};
use super::gate::Gate;
use super::kept::Copies;
use super::owner::{self, OwnerError};
use super::records::{Log, Records, RuleFiles};
use super::sandbox::Candidate;
use super::{check, hook};
use edgesync_config::edge::Config;
use edgesync_files::contents::{Desired, Files};
use edgesync_files::pass::{Options, Pass, keep_all};
use edgesync_files::rule::CheckUser;
use edgesync_files::steps::recover;
use edgesync_files::verify::{Verdict, verify};
use edgesync_files::wire::{Listed, ListedError};
use edgesync_files::{
    Change, Closed, Digest, Effects, Failure, Held, Intent, Observed, Place, Record, Refusal, Rule, Shape,
};
use edgesync_runtime::chain;

/// Reason why a request is refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum RequestError {
    /// The request names another rule than the configured ones.
    #[error("no rule {0:?} in the configuration")]
    UnknownRule(String),
    /// The list has an object that no agent stores.
    #[error("invalid object in the list: {0}")]
    Listed(ListedError),
    /// The system does not have the owner that the rule names.
    #[error(transparent)]
    Owner(#[from] OwnerError),
    /// The outcome of an interrupted transaction cannot be recorded.
    #[error("record of an interrupted change cannot be written")]
    Interrupted,
}

/// Executes the transaction steps of a rule.
pub(super) struct Executor<'a> {
    rule: &'a Rule,
    pub(super) disk: Disk,
    files: RuleFiles,
    log: Log,
    systemctl: PathBuf,
    phase: Phase,
    gate: Gate<'a>,
    copies: Copies,
}

/// Phases of a transaction: everything written in one phase is flushed before the next begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Recording,
    Staging,
    Swapping,
    Reloading,
    CleaningUp,
}

/// Number of changes above which file systems are flushed as a whole.
const MAX_SINGLE_FLUSHES: usize = 16;

impl<'a> Executor<'a> {
    pub(super) fn new(rule: &'a Rule, config: &Config, records: &mut Records) -> Result<Self, RequestError> {
        let owner = owner::find(&rule.owner, Path::new("/etc"))?;
        let disk = Disk {
            rule: rule.name.clone(),
            keys: records.keys,
            owner,
            modes: [rule.modes(false), rule.modes(true)],
            max_size: rule.max_size,
            checks: !rule.check.is_empty(),
            batch_flush: false,
            unflushed: RefCell::default(),
            unchecked: RefCell::default(),
            #[cfg(test)]
            fuse: std::rc::Rc::default(),
            #[cfg(test)]
            flushed: None,
        };
        let (files, systemctl) = (records.files(&rule.name), config.helper.systemctl.clone());
        let (holds, clock) = (records.holds.holds().clone(), records.holds.clock());
        let gate = Gate {
            rule,
            holds,
            elapsed: clock.elapsed(),
            is_clock_known: clock.is_known(),
            last_known: clock.last_known(),
            state: records.holds.path().to_owned(),
            stand: files.directory().to_owned(),
            condition: None,
        };
        let (log, phase, copies) = (Log::default(), Phase::Recording, Copies::new(&rule.name, config));
        Ok(Self { rule, disk, files, log, systemctl, phase, gate, copies })
    }

    /// Recovers from a crash, and runs a pass; discards the state of a dry run.
    pub(super) fn run_pass<T>(
        &mut self,
        records: &mut Records,
        listed: &[Listed],
        options: Options,
        is_dry_run: bool,
        pass: impl FnOnce(Pass<'_, Self>) -> T,
    ) -> Result<T, RequestError> {
        let mut record = records.all.remove(&self.rule.name).unwrap_or_default();
        self.log = records.logs.remove(&self.rule.name).unwrap_or_default();
        let (mut options, rule) = (options, self.rule);
        let mut done = Err(RequestError::Interrupted);
        let begun = self.files.read_intent();
        // Places of an interrupted transaction are inspected.
        options.look |= begun.is_some();
        if recover(self, rule, &mut record, begun.as_ref(), options.look) {
            let before = is_dry_run.then(|| (record.clone(), records.seq));
            done = Ok(pass(Pass::begin(self, rule, &mut record, &mut records.seq, listed, options)));
            if let Some((before, seq)) = before {
                (record, records.seq) = (before, seq);
            }
        } else if record.owes_reload {
            record.withhold(&mut records.seq, options.now);
        }
        records.all.insert(rule.name.clone(), record);
        records.logs.insert(rule.name.clone(), std::mem::take(&mut self.log));
        done
    }

    /// Keeps the files in memory of the rule, which is held from now on; first recovers from a
    /// crash.
    pub(super) fn keep_all(&mut self, records: &mut Records) -> Result<(), String> {
        let Some(mut record) = records.all.remove(&self.rule.name) else { return Ok(()) };
        self.log = records.logs.remove(&self.rule.name).unwrap_or_default();
        let begun = self.files.read_intent();
        let rule = self.rule;
        let kept = match recover(self, rule, &mut record, begun.as_ref(), false) {
            true => keep_all(self, &mut record).and_then(|any| match any {
                true => self.commit(&record),
                false => Ok(()),
            }),
            false => Err(Failure::new(RequestError::Interrupted.to_string())),
        };
        records.all.insert(rule.name.clone(), record);
        records.logs.insert(rule.name.clone(), std::mem::take(&mut self.log));
        kept.map_err(|failure| failure.message)
    }

    /// Enters a phase, and flushes the writes of the previous one.
    fn enter(&mut self, phase: Phase) -> Result<(), Failure> {
        if self.phase != phase {
            self.disk.flush().map_err(|error| Failure::new(system_error("flush", "files", error)))?;
        }
        self.phase = phase;
        Ok(())
    }

    /// Prepares for a write to the record or the intent.
    fn begin_record(&mut self) -> Result<(), Failure> {
        self.enter(Phase::Recording)?;
        self.disk.step().map_err(|error| Failure::new(std::io::Error::from(error).to_string()))
    }

    fn failed_with(
        &self,
        what: &str,
        change: &Change,
        result: Result<(), rustix::io::Errno>,
    ) -> Result<(), Failure> {
        result.map_err(|error| Failure::new(system_error(what, &change.place.path(), error)))
    }
}

impl Effects for Executor<'_> {
    fn inspect(
        &mut self,
        place: &Place,
        shape: Shape,
        held: Option<&Held>,
        desired: Option<&Desired>,
    ) -> Result<Observed, Failure> {
        self.disk
            .inspect(place, shape, held, desired)
            .map_err(|error| Failure::new(system_error("inspect", &place.path(), error)))
    }

    fn key(&self, place: &Place) -> (u64, u64) {
        self.disk.key(place)
    }

    fn is_memory(&mut self, place: &Place, shape: Shape) -> bool {
        self.disk.is_memory(place, shape)
    }

    fn intend(&mut self, intent: &Intent) -> Result<(), Failure> {
        self.begin_record()?;
        self.disk.batch_flush = intent.changes.len() > MAX_SINGLE_FLUSHES;
        self.files.write_intent(intent).map_err(|error| Failure::new(chain(&error)))
    }

    fn stage(&mut self, change: &Change, desired: &Desired) -> Result<(), Failure> {
        self.enter(Phase::Staging)?;
        self.failed_with("write", change, self.disk.stage(change, desired))
    }

    fn check(&mut self, changes: &[Change]) -> Result<(), Failure> {
        self.enter(Phase::Reloading)?;
        let written = changes.iter().filter(|change| change.new.is_some());
        let candidate =
            |change: &Change| Candidate { at: self.disk.candidate(change), destination: change.place.path() };
        let candidates: Vec<Candidate> = written.map(candidate).collect();
        match self.rule.check_user {
            CheckUser::Transient => check::in_sandbox(self.rule, &candidates, self.files.directory()),
            CheckUser::Root => check::as_helper(self.rule, &candidates, &self.files.candidates),
        }?;
        changes.iter().try_for_each(|change| {
            self.failed_with("change the owner of", change, self.disk.give_to_owner(change))
        })
    }

    fn swap(&mut self, change: &Change) -> Result<(), Failure> {
        self.enter(Phase::Swapping)?;
        self.failed_with("replace", change, self.disk.swap(change))
    }

    fn restore(&mut self, change: &Change) -> Result<(), Failure> {
        self.enter(Phase::Swapping)?;
        self.failed_with("roll back", change, self.disk.restore(change))
    }

    fn reload(&mut self) -> Result<(), Failure> {
        self.enter(Phase::Reloading)?;
        hook::reload(self.rule, &self.systemctl)
    }

    fn commit(&mut self, record: &Record) -> Result<(), Failure> {
        self.begin_record()?;
        self.files.write_record(&mut self.log, record).map_err(|error| Failure::new(chain(&error)))
    }

    fn discard(&mut self, change: &Change, keep_new: bool) -> Result<(), Failure> {
        self.enter(Phase::CleaningUp)?;
        let discarded = self.failed_with("clean up", change, self.disk.discard(change, keep_new));
        discarded.inspect_err(|failure| {
            tracing::warn!(rule = self.rule.name, error = failure.message, "leftover files not removed");
        })
    }

    fn forget(&mut self) -> Result<(), Failure> {
        self.begin_record()?;
        self.files.remove_intent().map_err(|error| Failure::new(chain(&error)))
    }

    fn closed(&mut self, override_windows: bool) -> Option<Closed> {
        self.gate.closed(override_windows)
    }

    fn keep(&mut self, held: &Held, files: Option<&Files>, is_secret: bool) -> Result<(), Failure> {
        self.begin_record()?;
        let stamp = held.kept.ok_or_else(|| Failure::new("copy without a stamp"))?;
        let read = match files {
            Some(_) => None,
            None => {
                let failed = |error| Failure::new(system_error("copy", &held.place.path(), error));
                Some(self.disk.read(held).map_err(failed)?)
            }
        };
        let Some(files) = files.or(read.as_ref()) else { return Ok(()) };
        self.copies.write(stamp, &held.place, files, is_secret)
    }

    fn revive(&mut self, held: &Held, stamp: u64) -> Result<BTreeMap<String, Digest>, Failure> {
        let kept = held.kept.ok_or_else(|| Failure::new("no copy of the files was kept"))?;
        let (files, is_secret) = self.copies.read(kept, &held.place)?;
        // Its file system in memory may not be mounted yet.
        if is_secret && !self.rule.plain_text_on_disk && !self.is_memory(&held.place, held.shape) {
            return Err(Failure::new(Refusal::OnDisk(held.place.base.clone()).to_string()));
        }
        let desired = Desired { files, is_secret, ..Desired::default() };
        let digests = desired.digests(self.key(&held.place));
        let observed = self.inspect(&held.place, held.shape, None, Some(&desired))?;
        let name = held.place.name();
        // A copy that was interrupted is ours, files of others are not replaced.
        if let Verdict::Conflict(why) =
            verify(held.shape, name, None, Some(&digests), &observed, self.rule.overwrite)
        {
            return Err(Failure::new(why));
        }
        let change = Change {
            place: held.place.clone(),
            shape: held.shape,
            stamp,
            old: None,
            exists: observed.entries.contains_key(name),
            makes: held.made,
            parents: held.parents,
            new: Some(digests.clone()),
        };
        self.stage(&change, &desired)?;
        self.enter(Phase::Reloading)?;
        self.failed_with("change the owner of", &change, self.disk.give_to_owner(&change))?;
        self.swap(&change)?;
        self.enter(Phase::CleaningUp)?;
        // Leftovers block nothing.
        let _ = self.discard(&change, true);
        Ok(digests)
    }

    fn prune(&mut self, record: &Record) {
        self.copies.prune(&record.places.values().filter_map(|held| held.kept).collect());
    }
}
