//! Status of Placements and ClusterPlacements.

use super::requests::Requests;
use crate::cluster::Failure;
pub(super) use edgesync_fleet::source::{Result, RuleStatus};
use edgesync_object::kinds;

/// Writes the status of rules. Cheap to clone.
#[derive(Clone, Debug)]
pub(super) struct Rules {
    requests: Requests,
}

/// Attempts to write a status that conflicts with other changes.
const ATTEMPTS: usize = 3;
/// The version of both kinds.
const API_VERSION: &str = "edgesync.io/v1alpha1";

impl Rules {
    /// Creates a writer with background priority.
    pub(super) fn new(requests: &Requests) -> Self {
        Self { requests: requests.in_background() }
    }

    /// Replaces the status of a rule, and nothing else. Skips an unchanged status and a rule that
    /// was deleted or recreated.
    ///
    /// # Errors
    /// The rule could not be read or written.
    pub(super) async fn set_status(&self, rule: RuleStatus) -> Result<()> {
        let RuleStatus { key, uid, status } = rule;
        let resource = kinds::guess(API_VERSION, &key.kind, !key.namespace.is_empty());
        for attempt in 1.. {
            let found = self.requests.get(&resource, &key.namespace, &key.name).await?;
            let Some(mut object) = found.filter(|object| *object.uid() == *uid) else { break };
            if object.fields().get("status") == Some(&status) {
                break;
            }
            object.fields_mut().insert("status".to_owned(), status.clone());
            match self.requests.replace_status(&resource, &object).await {
                Ok(_) => break,
                Err(Failure::Conflict(_)) if attempt < ATTEMPTS => {}
                // The next attempt shows whether the rule was deleted.
                Err(Failure::NotFound(_)) if attempt < ATTEMPTS => {}
                Err(failure) => return Err(failure.into()),
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
