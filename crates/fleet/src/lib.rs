//! The cloud side: the embedded store, what belongs on which node, and the fleet of nodes.
//!
//! Composes `sync`, `store`, `broker`, `link` and `api`, which do not know one another. Between the fleet and whoever keeps
//! its objects stands one trait, `source::Source`: a database of this process, or a Kubernetes cluster.

pub mod admin;
pub mod answers;
pub mod bare;
mod collect;
pub mod config;
mod definitions;
pub mod fleet;
pub mod lifecycle;
#[cfg(test)]
mod memory;
pub mod metrics;
mod node;
pub mod objects;
pub mod page;
pub mod probes;
pub mod source;
pub mod summary;
pub mod upkeep;
mod uploads;
mod work;

pub use objects::{CloudList, CloudObjects};
pub use upkeep::Upkeep;
