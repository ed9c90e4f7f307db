//! Status of placement rules.

use std::sync::Arc;

use serde_json::Value;

use super::objects::{find, parse, resource_id};
use super::rollouts::keep_rollout;
use super::{CloudError, CloudStore};
use edgesync_object::ObjectKey;
use edgesync_protocol::change::Uid;

/// Approximate size of a status in the writer's queue, in bytes.
const STATUS_BYTES: usize = 4096;

/// Status of a Placement or ClusterPlacement.
#[derive(Clone, Debug)]
pub struct RuleStatus {
    /// Key of the rule.
    pub key: ObjectKey,
    /// UID of the rule.
    pub uid: Uid,
    /// The value of the field `status`, without `rollout`.
    pub status: Value,
}

impl CloudStore {
    /// Replaces only the status of a rule, and keeps the roll-out in it. An equal status costs no
    /// version; a rule that was deleted or recreated is left alone.
    ///
    /// # Errors
    /// The store's.
    pub async fn set_rule_status(&self, rule: RuleStatus) -> Result<(), CloudError> {
        let shared = Arc::clone(&self.shared);
        self.write(STATUS_BYTES, move |tx| {
            let RuleStatus { key, uid, status } = &rule;
            let Some(kind) = resource_id(tx.conn, &key.group, &key.kind)? else { return Ok(()) };
            match find(tx.conn, kind, &key.namespace, &key.name)? {
                Some(row) if *row.stored.uid == **uid => {
                    let status = keep_rollout(&parse(&row.stored)?, status);
                    tx.set_status(kind, row, key.clone(), &status, &shared)
                }
                _ => Ok(()),
            }
        })
        .await
    }
}
