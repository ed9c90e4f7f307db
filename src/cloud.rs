//! The cloud side: the embedded store, what belongs on which node, and the fleet of nodes.
//!
//! Composes `sync`, `store`, `broker`, `link` and `api`, which do not know one another.

mod admin;
#[allow(dead_code, unused_imports, reason = "started with the service")]
mod collect;
#[allow(dead_code, reason = "started with the service")]
mod definitions;
pub mod demo;
mod fleet;
#[cfg(test)]
mod memory;
mod node;
mod objects;
pub mod placement;
mod service;

pub use objects::{CloudObjects, MAX_LEARNT_KINDS};
pub use service::run;
