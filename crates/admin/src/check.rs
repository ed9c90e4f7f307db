//! Report of `check -o json` of both programs, also in support bundles.

use serde::{Deserialize, Serialize};

use crate::answer::Answer;

/// Result of all checks. Its keys are stable.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CheckReport {
    /// Version of the program.
    pub version: String,
    /// The worst status; skipped checks do not count.
    pub result: CheckStatus,
    pub counts: CheckCounts,
    /// In the order of the checks.
    pub checks: Vec<CheckResult>,
}

impl Answer for CheckReport {
    const NAME: &'static str = "check report";
}

/// Status of a check.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum CheckStatus {
    Ok,
    /// Works, but needs attention.
    Warning,
    /// Not checked.
    Skipped,
    /// Does not work as it must.
    Failed,
}

impl CheckStatus {
    /// Returns the name used in JSON.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Warning => "warning",
            Self::Skipped => "skipped",
            Self::Failed => "failed",
        }
    }
}

/// Numbers of checks by status.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CheckCounts {
    pub ok: u64,
    pub warning: u64,
    pub skipped: u64,
    pub failed: u64,
}

/// Result of one check.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct CheckResult {
    pub id: String,
    pub title: String,
    pub status: CheckStatus,
    pub message: String,
    /// Action that the user should take next; only of warnings and failures.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next_step: Option<String>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn name_of_a_status_is_its_json() {
        for status in [CheckStatus::Ok, CheckStatus::Warning, CheckStatus::Skipped, CheckStatus::Failed] {
            assert_eq!(serde_json::to_value(status).unwrap(), status.name());
        }
    }
}
