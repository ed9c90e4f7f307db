//! Kubernetes objects: identity, versions, names, selectors, references, Status, ObjectSync, and
//! YAML as kubectl reads it. Pure: no I/O, clock, database or network, and no other crate of the
//! workspace. Read [`Object`] and [`ResourceVersion`] first.

#![warn(missing_docs)]

// This crate is the first of the workspace to be compiled, so this error precedes those about
// missing types.
#[cfg(not(target_has_atomic = "64"))]
compile_error!(
    "edgesync counts in 64-bit atomic integers, which this target lacks (32-bit MIPS and PowerPC, ARMv5); \
     hint: docs/devices.md lists the targets that have them"
);

mod budget;
pub mod encoding;
pub mod event;
mod fields;
pub mod file_rules;
pub mod kinds;
pub mod matching;
mod meta;
pub mod name;
pub mod node_labels;
mod node_name;
pub mod number;
pub mod objectsync;
mod owned;
pub mod random;
mod references;
mod resource;
pub mod selector;
pub mod status;
pub mod time;
pub mod urgency;
mod version;
pub mod yaml;

pub use budget::{Budget, Exceeded};
pub use fields::{FieldSelector, FieldSelectorError};
pub use kinds::pluralize;
pub use meta::{
    Head, HeadMeta, LAST_APPLIED, MAX_DEPTH, OmittedFields, member, too_deep, with_field,
    with_managed_fields, with_resource_version, with_status, without_managed_fields,
};
pub use node_name::NodeName;
pub use objectsync::{ObjectRef, ObjectSync, check_reference};
pub use owned::{
    FieldProblem, MAX_ANNOTATIONS, Object, ParseObjectError, Problems, SERVER_METADATA, map_field, text_field,
};
pub use references::{MAX_REFERENCES, Reference, Target, pod_references};
pub use resource::{ObjectKey, Resource, Scope, split_api_version};
pub use selector::{LabelSelector, Labels, Selector, label_pairs, labels_of};
pub use status::Status;
pub use version::{Relation, ResourceVersion};

/// The UID of an object, reference-counted because several tables share it.
pub type Uid = std::sync::Arc<str>;
