//! Kubernetes backend of the cloud side: objects, Placements, Nodes, Leases, Events and ObjectSyncs
//! live in the cluster, and any number of stateless replicas serve nodes from it. Implements the
//! traits of [`edgesync_fleet`] and [`edgesync_enrollment`]; depends on neither protocol frames nor
//! node connections. Start with [`source`], then [`cluster`] (the informer) and [`cache`] (a
//! replica's disposable copy of objects).

pub mod cache;
pub mod cluster;
#[cfg(test)]
mod membership;
pub mod source;
pub mod via_cluster;

#[cfg(test)]
fn node_name(name: &str) -> edgesync_object::NodeName {
    edgesync_object::NodeName::parse(name).unwrap()
}
