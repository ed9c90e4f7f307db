//! The planner of files: which files the rules make of objects, which steps bring them into effect, and what is in effect.
//! It is pure: it knows no file system, process or clock, and reaches the device through one trait, which the helper and the
//! simulation implement. Read [`pass::Pass`] first, then [`run::Run`]; `docs/files.md` has the user's view.
//!
//! An object decides the contents of files and, by its validated name, a directory below that of the rule. It never decides a
//! path, a command, a user or a mode.

#![warn(missing_docs)]

pub mod contents;
pub mod judge;
pub mod list;
pub mod pass;
pub mod record;
pub mod rule;
pub mod run;
#[cfg(test)]
mod simulation;
pub mod steps;
pub mod template;
pub mod wire;

pub use judge::{Entry, Seen};
pub use record::{Change, Delta, Digest, Held, Intent, Member, Place, Record, Shape, State, Status};
pub use rule::Rule;
pub use run::Failure;

use std::collections::BTreeMap;

use contents::Fresh;

/// What can be done on the device, for one rule. Each that has returned is durable.
pub trait Hands {
    /// What is found at a place, as far as what is held there and what is to be there are concerned.
    ///
    /// # Errors
    /// Why it cannot be looked at.
    fn look(
        &mut self,
        place: &Place,
        shape: Shape,
        held: Option<&Held>,
        wanted: Option<&BTreeMap<String, Digest>>,
    ) -> Result<Seen, String>;

    /// The key of the digests of what is at a place.
    fn key(&self, place: &Place) -> (u64, u64);

    /// Whether what is written at a place is kept in memory only.
    fn is_memory(&mut self, place: &Place, shape: Shape) -> bool;

    /// Notes what is about to be done.
    ///
    /// # Errors
    /// The system's.
    fn intend(&mut self, intent: &Intent) -> Result<(), Failure>;

    /// Writes new files beside the old ones.
    ///
    /// # Errors
    /// The system's; what was written so far may stay until [`Hands::discard`].
    fn stage(&mut self, change: &Change, fresh: &Fresh) -> Result<(), Failure>;

    /// Has the candidates checked.
    ///
    /// # Errors
    /// What the program said.
    fn check(&mut self, changes: &[Change]) -> Result<(), Failure>;

    /// Puts the new files in the place of the old ones.
    ///
    /// # Errors
    /// The system's; it may have happened in part until [`Hands::restore`].
    fn swap(&mut self, change: &Change) -> Result<(), Failure>;

    /// Puts the old files back, if they are not there.
    ///
    /// # Errors
    /// The system's.
    fn restore(&mut self, change: &Change) -> Result<(), Failure>;

    /// Has the program read its files again.
    ///
    /// # Errors
    /// What the program said, or that it does not run.
    fn reload(&mut self) -> Result<(), Failure>;

    /// Notes what is in effect now.
    ///
    /// # Errors
    /// The system's; then what was noted before holds.
    fn commit(&mut self, record: &Record) -> Result<(), Failure>;

    /// Removes what a change has left: the old files if the new ones are to stay, or else the candidates.
    ///
    /// # Errors
    /// The system's.
    fn discard(&mut self, change: &Change, keep_new: bool) -> Result<(), Failure>;

    /// Forgets what was intended.
    ///
    /// # Errors
    /// The system's.
    fn forget(&mut self) -> Result<(), Failure>;
}
