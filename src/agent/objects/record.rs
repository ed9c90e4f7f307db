//! Derives ObjectSync records from the rows of held objects. Pure.

use crate::store as edge;
use edgesync_api::Stored;
use edgesync_object::objectsync::{record_uid, sync_name};
use edgesync_object::{NodeName, ObjectRef, ObjectSync};

/// Returns the record of a held object under a version of this store; `None` if no record name can
/// contain its UID.
pub(super) fn of_stored(node: &NodeName, stored: &edge::Stored, own_version: u64) -> Option<Stored> {
    of(node, &stored.uid, stored.version.as_str(), &stored.object, own_version)
}

/// Like [`of_stored`], for a row without its body.
pub(super) fn of_entry(node: &NodeName, entry: &edge::Entry, own_version: u64) -> Option<Stored> {
    of(node, &entry.uid, entry.version.as_ref()?.as_str(), &entry.object, own_version)
}

fn of(node: &NodeName, uid: &str, held: &str, object: &edge::ObjectRef, own_version: u64) -> Option<Stored> {
    let name = sync_name(node, uid).ok()?;
    let about = ObjectRef {
        api_version: object.resource.api_version().into(),
        kind: object.resource.kind.as_str().into(),
        namespace: object.namespace.as_str().into(),
        name: object.name.as_str().into(),
    };
    let mut record = ObjectSync::new(&name, &about, held);
    record.metadata.uid = record_uid(&name).into();
    record.metadata.resource_version = own_version.to_string().into();
    let mut json = Vec::with_capacity(512);
    record.write_json(&mut json).ok()?;
    let json = String::from_utf8(json).ok()?;
    Some(Stored { namespace: object.namespace.clone(), name, version: own_version, json })
}
