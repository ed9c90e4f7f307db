//! Rules for files and their objects.

use serde::{Deserialize, Serialize};

use crate::answer::{Answer, nullable};

/// All rules with their objects.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FilesList {
    pub rules: Vec<FilesRule>,
}

impl Answer for FilesList {
    const NAME: &'static str = "the agent's list of files";
}

/// A rule. Applying it answers with it too.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct FilesRule {
    pub name: String,
    pub in_effect: u64,
    pub not_in_effect: u64,
    /// Objects whose files another program has changed.
    pub conflicts: u64,
    pub reloads: u64,
    pub rollbacks: u64,
    /// Files that exist.
    pub files: u64,
    /// The last lines of the last check or reload that failed.
    pub output: String,
    pub objects: Vec<FilesObject>,
}

impl Answer for FilesRule {
    const NAME: &'static str = "the agent's answer about a rule for files";
}

/// Whether an object is in effect.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum FilesState {
    /// No rule selects it any more.
    Gone,
    InEffect,
    NotInEffect,
    /// Another program has changed its files.
    Conflict,
}

impl FilesState {
    /// The name, as in JSON.
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

/// An object that a rule selects.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct FilesObject {
    pub api_version: String,
    pub kind: String,
    /// Empty for cluster-scoped objects.
    pub namespace: String,
    pub name: String,
    pub sealed: bool,
    /// The version in effect.
    #[serde(deserialize_with = "nullable")]
    pub version: Option<String>,
    /// The version tried last.
    #[serde(deserialize_with = "nullable")]
    pub wanted: Option<String>,
    pub state: FilesState,
    /// Why it is not in effect.
    pub message: String,
    pub rolled_back: bool,
    /// Microseconds since 1970.
    pub since: i64,
    /// Grows with each state.
    pub seq: u64,
}

/// What the rules would do.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FilesCheck {
    pub rules: Vec<PlannedSteps>,
}

impl Answer for FilesCheck {
    const NAME: &'static str = "the agent's check of files";
}

/// What a rule would do.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PlannedSteps {
    pub name: String,
    pub steps: Vec<String>,
}
