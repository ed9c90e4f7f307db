//! File rules and their objects.

use serde::{Deserialize, Serialize};

use crate::answer::{Answer, nullable};

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FilesList {
    pub rules: Vec<FilesRule>,
    /// Holds in force.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub holds: Vec<FilesHold>,
}

impl Answer for FilesList {
    const NAME: &'static str = "file rules";
}

/// A file rule; also the response to applying it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct FilesRule {
    pub name: String,
    pub in_effect: u64,
    pub not_in_effect: u64,
    /// Objects whose files were changed by another program.
    pub conflicts: u64,
    pub reloads: u64,
    pub rollbacks: u64,
    /// Files that exist on disk.
    pub files: u64,
    /// Last output lines of the last failed check or reload.
    pub output: String,
    pub objects: Vec<FilesObject>,
    /// Objects that wait until changes may take effect.
    pub waiting: u64,
    /// What they wait for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub wait: Option<FilesWait>,
}

/// What the changes of a rule wait for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FilesWait {
    pub rule: String,
    /// `Window`, `Busy`, `Condition` or `Hold`.
    pub reason: String,
    /// In microseconds since 1970; `None` if unknown.
    #[serde(deserialize_with = "nullable")]
    pub until: Option<i64>,
    pub message: String,
}

/// A hold of a program on the device.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FilesHold {
    pub id: u64,
    pub rule: String,
    pub uid: u32,
    /// Name of the user; empty if it has no account.
    pub owner: String,
    pub why: String,
    /// In microseconds since 1970.
    pub since: i64,
    /// When it ends by itself, in microseconds since 1970.
    pub until: i64,
}

impl FilesHold {
    /// Returns name and number of the user.
    #[must_use]
    pub fn shown_owner(&self) -> String {
        if self.owner.is_empty() {
            format!("user {}", self.uid)
        } else {
            format!("{} ({})", self.owner, self.uid)
        }
    }
}

impl Answer for FilesRule {
    const NAME: &'static str = "file rule";
}

/// State of an object under a file rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum FilesState {
    /// No rule selects the object any more.
    Gone,
    InEffect,
    NotInEffect,
    /// Another program has changed the object's files.
    Conflict,
    /// The version passed its check, and waits until changes may take effect.
    Waiting,
}

impl FilesState {
    /// Returns the name used in JSON.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Gone => "Gone",
            Self::InEffect => "InEffect",
            Self::NotInEffect => "NotInEffect",
            Self::Conflict => "Conflict",
            Self::Waiting => "Waiting",
        }
    }
}

/// An object selected by a rule.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct FilesObject {
    pub api_version: String,
    pub kind: String,
    /// Empty for cluster-scoped objects.
    pub namespace: String,
    pub name: String,
    pub sealed: bool,
    /// Version that is in effect.
    #[serde(deserialize_with = "nullable")]
    pub version: Option<String>,
    /// Version tried last; differs from `version` while it is not in effect.
    #[serde(deserialize_with = "nullable")]
    pub desired: Option<String>,
    pub state: FilesState,
    /// The reason why the object is not in effect.
    pub message: String,
    pub rolled_back: bool,
    /// Time of the last change of state, in microseconds since 1970.
    pub since: i64,
    /// Increases with each change of state.
    pub seq: u64,
    /// What it waits for: `Window`, `Busy`, `Condition` or `Hold`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// When the wait may end, in microseconds since 1970.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub until: Option<i64>,
}

/// Dry run of the file rules.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FilesCheck {
    pub rules: Vec<RulePlan>,
}

impl Answer for FilesCheck {
    const NAME: &'static str = "file check";
}

/// Planned steps of a rule.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RulePlan {
    pub name: String,
    pub steps: Vec<String>,
}
