//! Status of Placements and ClusterPlacements, and of their roll-outs.

use serde_json::Value;

use super::requests::Requests;
use crate::cluster::Failure;
use edgesync_cloud_store::{keep_rollout, rollout_sequence, with_rollout};
pub(super) use edgesync_fleet::source::{Result, RolloutWrite, RuleKey, RuleStatus, SourceError};
use edgesync_object::kinds;

/// Writes the status of rules. Cheap to clone.
#[derive(Clone, Debug)]
pub(super) struct Rules {
    requests: Requests,
}

/// Attempts to write a status that conflicts with other changes.
const ATTEMPTS: usize = 3;
/// The version of both kinds.
pub(super) const API_VERSION: &str = "edgesync.io/v1alpha1";

impl Rules {
    /// Creates a writer. Roll-outs have priority over other statuses.
    pub(super) fn new(requests: &Requests) -> Self {
        Self { requests: requests.clone() }
    }

    /// Replaces the status of a rule except for its roll-out, and nothing else. Skips an unchanged
    /// status and a rule that was deleted or recreated.
    ///
    /// # Errors
    /// The rule could not be read or written.
    pub(super) async fn set_status(&self, rule: RuleStatus) -> Result<()> {
        let RuleStatus { key, uid, status } = rule;
        let resource = kinds::guess(API_VERSION, &key.kind, !key.namespace.is_empty());
        let requests = self.requests.in_background();
        for attempt in 1.. {
            let found = requests.get(&resource, &key.namespace, &key.name).await?;
            let Some(mut object) = found.filter(|object| *object.uid() == *uid) else { break };
            let status = keep_rollout(&object, &status);
            if object.fields().get("status") == Some(&status) {
                break;
            }
            object.fields_mut().insert("status".to_owned(), status);
            match requests.replace_status(&resource, &object).await {
                Ok(_) => break,
                Err(Failure::Conflict(_)) if attempt < ATTEMPTS => {}
                // The next attempt shows whether the rule was deleted.
                Err(Failure::NotFound(_)) if attempt < ATTEMPTS => {}
                Err(failure) => return Err(failure.into()),
            }
        }
        Ok(())
    }

    /// Replaces the roll-out in the status of a rule, and nothing else, if the spec and the
    /// sequence are as expected. Returns whether they were.
    ///
    /// # Errors
    /// The rule could not be read or written. It is not known whether it was written.
    pub(super) async fn write_rollout(&self, write: RolloutWrite) -> Result<bool> {
        let RolloutWrite { rule, object, expected, status } = write;
        let name = rule.to_string();
        let (RuleKey::Object(uid), Some((key, generation))) = (rule, object) else {
            return Err(SourceError::Missing { kind: "placement rule", name });
        };
        let status: Option<Value> =
            status.as_deref().map(serde_json::from_str).transpose().map_err(|error| {
                Failure::Invalid(format!("the roll-out of rule {name} is no JSON: {error}"))
            })?;
        let resource = kinds::guess(API_VERSION, &key.kind, !key.namespace.is_empty());
        for _ in 0..ATTEMPTS {
            // A quorum read. Its version is the precondition of the write.
            let found = self.requests.get(&resource, &key.namespace, &key.name).await?;
            let Some(mut object) = found.filter(|object| *object.uid() == *uid) else { return Ok(false) };
            if object.generation() != generation || rollout_sequence(&object) != expected {
                return Ok(false);
            }
            let status = with_rollout(&object, status.clone());
            object.fields_mut().insert("status".to_owned(), status);
            match self.requests.replace_status(&resource, &object).await {
                Ok(_) => return Ok(true),
                // Other parts of the rule may have changed. The next attempt shows whether it was
                // deleted.
                Err(Failure::Conflict(_) | Failure::NotFound(_)) => {}
                Err(failure) => return Err(failure.into()),
            }
        }
        Err(SourceError::Contended { kind: "placement rule", name })
    }
}

#[cfg(test)]
mod tests;
