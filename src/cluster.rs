//! A Kubernetes cluster as what a fleet follows: who one is there, and what is to be watched.
//!
//! The cluster is the store then: it gives UIDs and versions, and this part only reads. Nothing else knows the client
//! library. May depend on [`crate::object`] and [`crate::placement`].

mod access;
mod kinds;
mod plan;

pub use access::{AccessError, Cluster, Credentials, Unserved};
pub use plan::{
    Cause, Interest, KindId, Kinds, MAX_NAMESPACES, MAX_WATCHES, Origin, Place, Plan, Problem, Spot, Watch,
};
