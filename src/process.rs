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
