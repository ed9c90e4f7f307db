//! A Kubernetes cluster as the store of a fleet: objects, placements, Nodes, Leases, Events and ObjectSyncs live there, and
//! any number of replicas serve nodes over it.
//!
//! [`cluster`] is the client and follows what is selected; [`source`] implements the fleet's store over it; [`cache`] is the
//! disposable copy of a replica. Read [`source`] first.

pub mod afar;
pub mod cache;
pub mod cluster;
#[cfg(test)]
mod membership;
pub mod source;
