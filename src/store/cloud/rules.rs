//! What has come of rules that are objects: their status.

use serde_json::Value;

use super::objects::{find, parse, resource_id, version_of};
use super::{CloudError, CloudStore};
use crate::object::{ObjectKey, Resource};
use crate::sync::change::Uid;

/// What one status takes in the queue of the writer, about, in bytes.
const STATUS_BYTES: usize = 4096;

/// The status of a Placement or ClusterPlacement.
#[derive(Clone, Debug)]
pub struct RuleStatus {
    /// The kind.
    pub resource: std::sync::Arc<Resource>,
    /// Which one it is.
    pub key: ObjectKey,
    /// Its UID.
    pub uid: Uid,
    /// The value of the field `status`.
    pub status: Value,
}

impl CloudStore {
    /// Replaces statuses and nothing else, all in one transaction. What changes nothing costs no version; an object that
    /// is no more, or another one, is left alone.
    ///
    /// # Errors
    /// The store's.
    pub async fn set_rule_statuses(&self, statuses: Vec<RuleStatus>) -> Result<(), CloudError> {
        if statuses.is_empty() {
            return Ok(());
        }
        let bytes = statuses.len().saturating_mul(STATUS_BYTES);
        self.write(bytes, move |tx| {
            for RuleStatus { resource, key, uid, status } in &statuses {
                let Some(kind) = resource_id(tx.conn, &resource.group, &resource.kind)? else { continue };
                let row = find(tx.conn, kind, &key.namespace, &key.name)?;
                let Some(row) = row.filter(|row| *row.stored.uid == **uid) else { continue };
                let mut object = parse(&row.stored)?;
                object.fields_mut().insert("status".to_owned(), status.clone());
                // Both have sorted keys: equal objects are equal texts.
                if object.to_json() != row.stored.body {
                    let version = version_of(&object).to_owned();
                    let resource = std::sync::Arc::new(Resource { version, ..Resource::clone(resource) });
                    tx.change(&resource, row, object)?;
                }
            }
            Ok(())
        })
        .await
    }
}
