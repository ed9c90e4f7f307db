//! A Kubernetes cluster as the store of a fleet: objects, Placements, Nodes, Leases, Events and
//! ObjectSyncs live there, and any number of stateless replicas serve nodes over it. It implements
//! the traits of [`edgesync_fleet`] and [`edgesync_enrollment`] and knows neither the protocol's
//! frames nor connections to nodes. Read [`source`] first, then [`cluster`], the informer;
//! [`cache`] is the disposable copy that a replica keeps.

pub mod afar;
pub mod cache;
pub mod cluster;
#[cfg(test)]
mod membership;
pub mod source;

#[cfg(test)]
fn node_name(name: &str) -> edgesync_object::NodeName {
    edgesync_object::NodeName::parse(name).unwrap()
}
