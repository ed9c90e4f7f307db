//! Roll-outs in waves: which node gets which revision of a placement rule, when a wave opens, and
//! when a revision is dropped. The crate is pure: times are arguments, effects are values. Read
//! [`status::Status`] first, then [`engine::step`].
//!
//! A *revision* is an immutable set of objects in certain versions. The status of a rule is a stack
//! of revisions, each open for a number of waves; a node gets the newest one that is open for its
//! wave ([`status::Assignment`]). Each transition is one write of the status, by compare
//! and swap. So a process that is killed between any two steps continues where it was, and a second
//! one with an old status changes nothing.
//!
//! # Layout
//!
//! - [`spec`]: `spec.rollout` of a rule, with all problems of bad input
//! - [`waves`]: the wave of a node
//! - [`revision`]: sets, their differences, rejected versions
//! - [`status`]: the persisted state
//! - [`observed`]: what nodes have answered, counted per wave and group
//! - [`verdict`]: whether a wave is good
//! - [`engine`]: the transitions
//! - [`conditions`]: reasons and messages
//! - [`desired`]: which of several rules decides about an object on a node

#![warn(missing_docs)]

pub mod conditions;
pub mod desired;
pub mod engine;
mod fault;
pub mod observed;
pub mod revision;
#[cfg(test)]
mod simulation;
pub mod spec;
pub mod status;
pub mod verdict;
pub mod waves;

pub use engine::{Command, Input, Snapshot, Step, step};
pub use observed::Observed;
pub use revision::{Digest, Set};
pub use spec::Rollout;
pub use status::Status;
pub use waves::Waves;
