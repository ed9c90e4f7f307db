//! File rules and their objects.

use serde::{Deserialize, Serialize};

use crate::answer::{Answer, nullable};

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FilesList {
    pub rules: Vec<FilesRule>,
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
