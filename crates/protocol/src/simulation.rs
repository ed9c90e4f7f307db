//! The deterministic simulation: both machines, a lossy link, crashes, lost and rolled-back
//! databases, in virtual time and from a seed. The guarantees are checked at every step,
//! convergence at the end.
//!
//! `EDGESYNC_TEST_SEED=<n> cargo test -p edgesync-protocol simulation::seeded::one_seed -- --nocapture`
//! shows one run step by step; `EDGESYNC_TEST_SEEDS=<n>` sets how many seeds the long tests try,
//! `EDGESYNC_TEST_MAX_SEEDS=<n>` lowers it.

#![allow(missing_docs, reason = "for tests")]
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a simulation fails by panicking")]
#![allow(
    clippy::len_without_is_empty,
    clippy::should_implement_trait,
    reason = "a model has what its tests ask for"
)]

#[cfg(test)]
mod fleet;
#[cfg(test)]
mod metered;
pub mod model;
pub mod numbered;
#[cfg(test)]
mod replicas;
#[cfg(test)]
mod scenarios;
#[cfg(test)]
mod seeded;
pub mod seeds;
pub mod timeline;
#[cfg(test)]
mod world;
