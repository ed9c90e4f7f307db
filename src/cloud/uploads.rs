//! Checks what a node sends from its outbox before it takes effect: whether it can be read, is valid, and is this
//! node's to say. Pure.

use std::sync::Arc;

use crate::object::Summary;
use crate::store::cloud::UploadBatch;
use crate::sync::upload::Upload;

/// What is to be stored for an upload of a node. `placed` finds an object that the node is to hold by its UID.
pub(super) fn prepare<'s>(
    _node: &str,
    _upload: &Upload,
    _placed: impl Fn(&str) -> Option<&'s Arc<Summary>>,
) -> UploadBatch {
    todo!()
}
