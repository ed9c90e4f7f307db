//! The planner of files: derives files from objects by rules, plans the steps that apply them, and
//! tracks which objects are in effect. It is pure: no file system, process or clock. It reaches the
//! device through one trait, [`Effects`], which the helper and the simulation implement. Read
//! [`pass::Pass`] first, then [`transaction::Transaction`]; `docs/files.md` has the user's view.
//!
//! An object decides the contents of files and, by its validated name, a directory below that of
//! the rule. It never decides a path, a command, a user or a mode. Neither does the agent that
//! sends it: whether the rule selects an object is decided here, from its body.

#![warn(missing_docs)]

pub mod calendar;
pub mod clock;
pub mod contents;
mod fault;
pub mod gate;
pub mod hold;
pub mod list;
pub mod pass;
pub mod record;
mod refusal;
pub mod rule;
mod selection;
#[cfg(test)]
mod simulation;
pub mod steps;
pub mod template;
#[cfg(any(test, feature = "testing"))]
pub mod testing;
pub mod transaction;
pub mod verify;
pub mod wire;

pub use gate::{Closed, WaitReason};
pub use record::{Change, Delta, Digest, Held, Intent, Member, Place, Record, Shape, State, Status};
pub use refusal::{NameError, Refusal};
pub use rule::Rule;
pub use transaction::Failure;
pub use verify::{Entry, Observed};

use std::collections::BTreeMap;

use contents::{Desired, Files};

/// Effects on the device, for one rule. Each is durable when it returns.
///
/// Order of calls, decided by [`transaction::Transaction`]: `intend`, `stage` for each change,
/// `check`, `swap` for each change, `reload`, `commit`, `discard` for each change, `forget`. After
/// a failure: `restore` for each swapped change, `reload`, `discard` for each change, `forget`; and
/// `commit` before `forget`, if a change could not be rolled back.
///
/// While changes wait, they are only checked: `intend`, `stage`, `check`, `discard`, `forget`.
pub trait Effects {
    /// Inspects a place, as far as its held and desired files are concerned. Reads only files of
    /// their names and sizes, whatever others put there.
    ///
    /// # Errors
    /// The place cannot be read.
    fn inspect(
        &mut self,
        place: &Place,
        shape: Shape,
        held: Option<&Held>,
        desired: Option<&Desired>,
    ) -> Result<Observed, Failure>;

    /// Returns the key of the digests of a place's files.
    fn key(&self, place: &Place) -> (u64, u64);

    /// Returns whether files written to a place are in memory only.
    fn is_memory(&mut self, place: &Place, shape: Shape) -> bool;

    /// Records the changes before they begin.
    ///
    /// # Errors
    /// Those of the system.
    fn intend(&mut self, intent: &Intent) -> Result<(), Failure>;

    /// Writes new files beside the old ones.
    ///
    /// # Errors
    /// Those of the system; files written so far may stay until [`Effects::discard`].
    fn stage(&mut self, change: &Change, desired: &Desired) -> Result<(), Failure>;

    /// Runs the check program on the candidates, then gives them to the owner of the rule: until
    /// then, it cannot change them.
    ///
    /// # Errors
    /// The output of the program.
    fn check(&mut self, changes: &[Change]) -> Result<(), Failure>;

    /// Replaces the old files by the new ones.
    ///
    /// # Errors
    /// Those of the system; the change may be partly applied until [`Effects::restore`].
    fn swap(&mut self, change: &Change) -> Result<(), Failure>;

    /// Rolls back to the old files, if they were replaced.
    ///
    /// # Errors
    /// Those of the system.
    fn restore(&mut self, change: &Change) -> Result<(), Failure>;

    /// Makes the program reload its files.
    ///
    /// # Errors
    /// The output of the program, or that it does not run.
    fn reload(&mut self) -> Result<(), Failure>;

    /// Records the objects that are in effect.
    ///
    /// # Errors
    /// Those of the system; then the previous record holds.
    fn commit(&mut self, record: &Record) -> Result<(), Failure>;

    /// Removes the leftovers of a change: the old files if the new ones stay, otherwise the
    /// candidates. Removes what is left of earlier changes of the place, too.
    ///
    /// # Errors
    /// Those of the system. They block nothing: no later change uses the names of leftovers.
    fn discard(&mut self, change: &Change, keep_new: bool) -> Result<(), Failure>;

    /// Removes the record of intended changes.
    ///
    /// # Errors
    /// Those of the system.
    fn forget(&mut self) -> Result<(), Failure>;

    /// Returns why changes of the rule wait now; `None` if they may take effect.
    /// `override_windows` is whether they are urgent and the rule permits that.
    fn closed(&mut self, override_windows: bool) -> Option<Closed>;

    /// Stores a copy of the held files of a place in memory, under the stamp `held.kept`: until
    /// their successors take effect, a reboot must not lose them. `files` are their contents, if
    /// they are known; `is_secret` is whether one of the objects is a Secret.
    ///
    /// # Errors
    /// Those of the system, or the files are not as written.
    fn keep(&mut self, held: &Held, files: Option<&Files>, is_secret: bool) -> Result<(), Failure>;

    /// Writes the kept files of a place again, which is as it was before a reboot: without a check
    /// and a reload. The version gets the stamp `stamp`. Returns the digests of the files.
    ///
    /// # Errors
    /// Those of the system, or there is no copy.
    fn revive(&mut self, held: &Held, stamp: u64) -> Result<BTreeMap<String, Digest>, Failure>;

    /// Removes all copies of files but those that the record names. Failures are left to the next
    /// call.
    fn prune(&mut self, record: &Record);
}
