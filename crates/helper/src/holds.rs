//! Holds of programs on the device: their persistent state, and the requests of their owners.
//!
//! Only root and the group of the socket can connect, and the kernel names the peer's user. The
//! agent is in neither, so it makes no hold and ends none, even if it is compromised.

use std::io;
use std::path::{Path, PathBuf};

use rustix::time::{ClockId, clock_gettime};
use serde::{Deserialize, Serialize};

use super::records::Records;
use super::serve::{Executor, now};
use super::{HelperError, owner};
use edgesync_config::edge::Config;
use edgesync_files::clock::{Clock, Reading};
use edgesync_files::hold::{Hold, Holds, Limits, NewHold, Which};
use edgesync_files::wire::{HoldInfo, HoldReply, HoldRequest};
use edgesync_runtime::chain;
use edgesync_store::durable::{self, FileError};

/// Identity of this boot.
const BOOT_ID: &str = "/proc/sys/kernel/random/boot_id";
/// File of holds and clock, in the directory of the records.
const FILE: &str = "holds";
/// Maximum size of such a request in bytes.
pub(super) const MAX_REQUEST: u32 = 4 << 10;
/// Time that may pass until the clock is persisted again, in microseconds: while it is not known
/// and a hold is in force, and otherwise.
const SAVE_EVERY: [u64; 2] = [60_000_000, 600_000_000];

/// State of holds and clock, persisted.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
struct State {
    clock: Clock,
    holds: Holds,
}

/// Holds in force, and the clock that they end by.
#[derive(Debug)]
pub(super) struct HoldState {
    path: PathBuf,
    saved: State,
    current: State,
}

/// Returns the configured limits of holds.
pub(super) fn limits(config: &Config) -> Limits {
    Limits { longest: config.helper.longest_hold, gap: config.helper.hold_gap }
}

impl HoldState {
    /// Loads the state. One that cannot be read is an error, and not a device without holds.
    pub(super) fn open(directory: &Path) -> Result<Self, HelperError> {
        let path = directory.join(FILE);
        let saved = match std::fs::read(&path) {
            Ok(text) => serde_json::from_slice(&text).map_err(|source| {
                let cause = io::Error::new(io::ErrorKind::InvalidData, source);
                HelperError::Holds { path: path.clone(), cause }
            })?,
            Err(error) if error.kind() == io::ErrorKind::NotFound => State::default(),
            Err(cause) => return Err(HelperError::Holds { path, cause }),
        };
        Ok(Self { path, current: saved.clone(), saved })
    }

    /// Reads the clocks, and ends the holds whose time is over.
    pub(super) fn observe(&mut self, config: &Config) {
        // Messages advise to remove it, if a time in the future was recorded by mistake.
        if self.saved != State::default() && matches!(self.path.try_exists(), Ok(false)) {
            tracing::warn!(path = %self.path.display(), "state of holds and clock was removed: starting with none");
            (self.saved, self.current) = Default::default();
        }
        if let Some(unpowered) = self.current.clock.observe(reading()) {
            self.current.holds.shift(unpowered);
        }
        let elapsed = self.current.clock.elapsed();
        let has_ended = self.current.holds.expire(elapsed, limits(config));
        let has_holds = !self.current.holds.all().is_empty();
        let is_used = has_holds || config.files.rules.iter().any(|rule| !rule.apply.is_empty());
        let is_known = self.current.clock.is_known();
        let since = elapsed.saturating_sub(self.saved.clock.elapsed());
        let [often, seldom] = SAVE_EVERY;
        let is_due = since >= if has_holds && !is_known { often } else { seldom };
        let is_new = is_known != self.saved.clock.is_known();
        if has_ended || (is_used && (is_due || is_new)) {
            // Without it the next reading counts from an earlier one.
            if let Err(error) = self.save() {
                tracing::warn!(error = chain(&error), "state of holds and clock not written");
            }
        }
    }

    fn save(&mut self) -> Result<(), FileError> {
        let text = serde_json::to_vec(&self.current)
            .map_err(|error| FileError::tried("write", &self.path)(error.into()))?;
        durable::write(&self.path, &text, 0o600)?;
        self.saved = self.current.clone();
        Ok(())
    }

    /// Persists a change, or takes it back.
    fn keep(&mut self, before: Holds) -> Result<(), String> {
        self.save().map_err(|error| {
            self.current.holds = before;
            chain(&error)
        })
    }

    pub(super) fn holds(&self) -> &Holds {
        &self.current.holds
    }

    pub(super) fn clock(&self) -> &Clock {
        &self.current.clock
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the holds in force, in the time of the wall clock.
    pub(super) fn infos(&self) -> Vec<HoldInfo> {
        self.current.holds.all().iter().map(|hold| self.info(hold)).collect()
    }

    fn info(&self, hold: &Hold) -> HoldInfo {
        let (elapsed, now) = (self.current.clock.elapsed(), now());
        let span = |from: u64, to: u64| i64::try_from(to.saturating_sub(from)).unwrap_or(i64::MAX);
        HoldInfo {
            id: hold.id,
            rule: hold.rule.clone(),
            uid: hold.uid,
            owner: hold.owner.clone(),
            why: hold.why.clone(),
            since: now.saturating_sub(span(hold.since, elapsed)),
            until: now.saturating_add(span(elapsed, hold.ends)),
        }
    }
}

/// Reads both clocks.
fn reading() -> Reading {
    let boot = std::fs::read_to_string(BOOT_ID).map(|text| text.trim().to_owned());
    let boot = boot.unwrap_or_default();
    let since = clock_gettime(ClockId::Boottime);
    let since_boot = since.tv_sec.saturating_mul(1_000_000).saturating_add(since.tv_nsec / 1_000);
    Reading { boot, since_boot, wall: now() }
}

/// Executes a request of a user.
pub(super) fn execute(config: &Config, records: &mut Records, uid: u32, request: &HoldRequest) -> HoldReply {
    records.holds.observe(config);
    let which = match request {
        HoldRequest::List => return HoldReply::Done(records.holds.infos()),
        HoldRequest::Hold { rule, seconds, why } => {
            return hold(config, records, uid, (rule, *seconds, why));
        }
        HoldRequest::Release(id) => Which::Id(*id),
        HoldRequest::ReleaseOwn(None) => Which::Own,
        HoldRequest::ReleaseOwn(Some(rule)) => Which::Rule(rule),
    };
    let (before, elapsed) = (records.holds.current.holds.clone(), records.holds.clock().elapsed());
    match records.holds.current.holds.release(elapsed, uid, &which, limits(config)) {
        Err(why) => HoldReply::Refused(why.to_string()),
        Ok(ended) => match records.holds.keep(before) {
            Err(why) => HoldReply::Refused(why),
            Ok(()) => {
                for hold in &ended {
                    tracing::info!(id = hold.id, rule = hold.rule, owner = hold.uid, by = uid, "hold ended");
                }
                HoldReply::Done(ended.iter().map(|hold| records.holds.info(hold)).collect())
            }
        },
    }
}

fn hold(
    config: &Config,
    records: &mut Records,
    uid: u32,
    (name, seconds, why): (&str, u64, &str),
) -> HoldReply {
    let Some(rule) = config.files.rules.iter().find(|rule| rule.name == name) else {
        let names: Vec<&str> = config.files.rules.iter().map(|rule| rule.name.as_str()).collect();
        let known = if names.is_empty() { "there are none".to_owned() } else { names.join(", ") };
        return HoldReply::Refused(format!("no rule {name:?} in the configuration; rules: {known}"));
    };
    let owner = owner::name_of(uid, Path::new("/etc")).unwrap_or_default();
    let new = NewHold { rule: name, uid, owner: &owner, why, seconds };
    let (before, elapsed) = (records.holds.current.holds.clone(), records.holds.clock().elapsed());
    let made = match records.holds.current.holds.hold(elapsed, &new, limits(config)) {
        Ok(made) => made,
        Err(refused) => return HoldReply::Refused(refused.to_string()),
    };
    if let Err(why) = records.holds.keep(before) {
        return HoldReply::Refused(why);
    }
    tracing::info!(id = made.id, rule = name, owner = uid, why, "hold made");
    let info = vec![records.holds.info(&made)];
    // What is in effect must outlive a reboot from now on.
    let kept = Executor::new(rule, config, records).map_err(|error| error.to_string());
    match kept.and_then(|mut executor| executor.keep_all(records)) {
        Ok(()) => HoldReply::Done(info),
        Err(why) => HoldReply::Unkept(info, why),
    }
}
