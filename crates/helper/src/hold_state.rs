//! Holds in force and the clock that they end by, persisted.

use std::io;
use std::path::{Path, PathBuf};

use rustix::time::{ClockId, clock_gettime};
use serde::{Deserialize, Serialize};

use super::{HelperError, now};
use edgesync_config::edge::Config;
use edgesync_files::clock::{Clock, Reading};
use edgesync_files::hold::{Hold, Holds, Limits};
use edgesync_files::wire::HoldInfo;
use edgesync_runtime::chain;
use edgesync_store::durable::{self, FileError};

/// Identity of this boot.
const BOOT_ID: &str = "/proc/sys/kernel/random/boot_id";
/// File of holds and clock, in the directory of the records.
const FILE: &str = "holds";
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

    /// Changes the holds, at the current time of the clock, and persists them. If that fails, takes
    /// the change back.
    pub(super) fn change<T, E: ToString>(
        &mut self,
        change: impl FnOnce(&mut Holds, u64) -> Result<T, E>,
    ) -> Result<T, String> {
        let before = self.current.holds.clone();
        let elapsed = self.current.clock.elapsed();
        let changed = change(&mut self.current.holds, elapsed).map_err(|refused| refused.to_string())?;
        match self.save() {
            Ok(()) => Ok(changed),
            Err(error) => {
                self.current.holds = before;
                Err(chain(&error))
            }
        }
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

    pub(super) fn info(&self, hold: &Hold) -> HoldInfo {
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
