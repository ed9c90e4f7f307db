//! The controller of the cloud side: one loop with the protocol machine of every node, placement,
//! roll-outs, Leases of nodes, uploads, garbage collection, admin requests and the page. It does
//! not know where objects are stored: a database of this process or a Kubernetes cluster implements
//! [`source::Source`]. Read [`fleet`] first, then [`source`].

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
pub mod objects;
pub mod page;
pub mod probes;
pub mod reasons;
pub mod source;
pub mod summary;
pub mod upkeep;
mod uploads;
mod work;

pub use edgesync_placement::STAY_ANNOTATION;
pub use objects::{CloudList, CloudObjects};
pub use upkeep::Upkeep;
pub use uploads::event_tokens;

#[cfg(test)]
fn node_name(name: &str) -> edgesync_object::NodeName {
    edgesync_object::NodeName::parse(name).unwrap()
}
