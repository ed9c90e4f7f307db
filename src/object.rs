//! Kubernetes objects: identity, versions, names. Pure: no I/O, no clock, no database, no network.

mod meta;
pub mod name;
mod resource;
pub mod status;
mod version;
pub mod yaml;

pub use meta::{Head, HeadMeta, MAX_DEPTH, too_deep};
pub use resource::{ObjectKey, Resource, Scope, split_api_version};
pub use status::Status;
pub use version::{Relation, ResourceVersion};
