//! What every process of edgesync has, whichever side it is: the service skeleton, systemd, the log, the allocator's settings,
//! random numbers, and connections made from the configuration. Knows nothing of agent or cloud.

pub(crate) mod connection;
pub mod log;
pub mod memory;
pub(crate) mod metrics;
mod random;
mod service;
pub mod systemd;

pub(crate) use random::random;
pub use service::{Service, StartError};

/// An error with its causes in one line.
pub(crate) fn chain(error: &dyn std::error::Error) -> String {
    let causes = std::iter::successors(Some(error), |error| error.source());
    causes.map(ToString::to_string).collect::<Vec<_>>().join(": ")
}
