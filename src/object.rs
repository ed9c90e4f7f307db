//! Kubernetes objects: identity, versions, names. Pure: no I/O, no clock, no database, no network.

mod meta;
pub mod name;
mod resource;
mod version;

pub use meta::{Head, HeadMeta, MAX_DEPTH, too_deep};
pub use resource::{ObjectKey, Resource, Scope, pluralize, split_api_version};
pub use version::{Relation, ResourceVersion};
