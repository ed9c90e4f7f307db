//! The cloud side: the embedded store, what belongs on which node, and the fleet of nodes.
//!
//! Composes `sync`, `store`, `broker`, `link` and `api`, which do not know one another. Between the fleet and whoever keeps
//! its objects stands one trait, `source::Source`: a database of this process, or a Kubernetes cluster.

mod admin;
#[cfg(feature = "kubernetes")]
mod afar;
mod answers;
mod bare;
mod collect;
mod definitions;
mod fleet;
mod lifecycle;
#[cfg(test)]
mod memory;
pub mod metrics;
mod node;
mod objects;
mod page;
mod pairing;
mod probes;
mod service;
mod source;
mod summary;
mod upkeep;
mod uploads;
mod work;

#[cfg(feature = "kubernetes")]
pub use afar::Afar;
pub use objects::{CloudList, CloudObjects};
#[cfg(feature = "kubernetes")]
pub use pairing::register::ClusterRegister;
pub use pairing::register::{Changed, Changes, Membership, Register, RegisterError, RevocationChange};
pub use pairing::{NewToken, Office, Pairing, PairingOptions};
pub use service::run;
pub use upkeep::Upkeep;
