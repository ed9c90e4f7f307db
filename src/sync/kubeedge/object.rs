//! From a message about an object to a change of what is held.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::message::Incoming;
use super::types::BridgeConfig;
use crate::object::Resource;
use crate::sync::change::{Change, Rejected};

/// What a message about an object comes to.
#[derive(Debug)]
pub(super) enum About {
    /// Hold it, or hold it no more.
    Change(Change),
    /// It cannot be held; the message is acknowledged nevertheless.
    Rejected(Rejected),
    /// A delete without a UID: the name may belong to a new object by now.
    Unclear,
}

/// The kinds by the lower-case name that messages use. Pods, ConfigMaps, Secrets and Nodes are known; all others are
/// learned from objects that say what they are.
#[derive(Debug, Default)]
pub(super) struct Kinds {
    learned: BTreeMap<Box<str>, Arc<Resource>>,
}

impl Kinds {
    /// The kind of a type, if it is known.
    pub(super) fn get(&self, kind: &str) -> Option<Arc<Resource>> {
        let _ = (kind, &self.learned);
        todo!()
    }

    /// Notes the kind of an object. `plural` is that of the rule that has asked for it, if one has; at most 256 are kept.
    pub(super) fn learn(&mut self, resource: &Arc<Resource>) {
        let _ = resource;
        todo!()
    }
}

/// Reads a message with one of the operations `insert`, `update`, `patch`, `delete` and `response`. None if it is not
/// about an object that is kept here (no object in it, or a type such as `lease`).
///
/// * `insert`, `update`, `patch`, `response`: content is the whole object, and is held if it is newer.
/// * `delete`: the UID in content counts; kind, version, and everything else may be missing.
/// * What is missing in content is taken from the route: `kind` and `apiVersion` of kinds that are known.
/// * `metadata.managedFields` is left out unless it is to be kept.
/// * The version is that of content. A header that says another one is a fault of the object.
pub(super) fn read(incoming: &Incoming<'_>, config: &BridgeConfig, kinds: &mut Kinds) -> Option<About> {
    let _ = (incoming, config, kinds);
    todo!()
}

/// Reads an object of a list: as [`read`], but the text is the object, and its kind is that of the list where it has none.
///
/// # Errors
/// Why it cannot be held.
pub(super) fn read_item(
    text: &str,
    resource: &Arc<Resource>,
    config: &BridgeConfig,
) -> Result<Change, Rejected> {
    let _ = (text, resource, config);
    todo!()
}
