//! What the agent asks of the helper, and what it is told: frames of JSON behind their length. There is no path, command,
//! user or mode in it.

use serde::{Deserialize, Serialize};

use super::record::{Member, Status};

/// The most objects that are listed: beyond it nobody means files.
pub const MAX_LISTED: usize = 200_000;
/// The most changed objects that are named before a request; if there are more, all are listed.
pub const MAX_CHANGED: usize = 64;
/// The longest frame, in bytes: an object is not longer.
pub const MAX_FRAME: u32 = 64 << 20;

/// What the helper is asked, once for a connection. Before it come the objects that have changed, a list of [`Listed`], and an
/// empty frame. If the helper does not know the others it asks for all that the rule concerns: in lists with some of
/// them each, and an empty frame, so that neither side has to keep a frame with all of them.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Request {
    /// What is to be done.
    pub verb: Verb,
    /// The rule.
    pub rule: String,
    /// Whether places that nothing is new for are looked at, too.
    pub look: bool,
    /// Whether what failed is tried again at once.
    pub force: bool,
    /// Whether files of objects that are not listed stay: the database was lost, and is not filled again yet.
    pub keep: bool,
    /// Up to where the agent has been told what is in effect.
    pub told: Told,
    /// The number of the list since which the objects before the request have changed; those without a version are gone. None
    /// if all are to be listed.
    pub since: Option<u64>,
}

/// What is to be done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Verb {
    /// Say what is in effect.
    #[default]
    Show,
    /// Clear away what rules have left that are not in the configuration any more.
    Clear,
    /// Bring the objects into effect.
    Apply,
    /// Say what that would mean.
    Check,
}

/// An object that a rule concerns.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Listed {
    /// UID.
    pub uid: String,
    /// `v1`.
    pub api_version: String,
    /// `ConfigMap`.
    pub kind: String,
    /// Namespace.
    pub namespace: String,
    /// Name.
    pub name: String,
    /// The version held; empty if it is not held any more, or is none of the rule's.
    pub version: String,
    /// Whether its kind is sealed in the database: it is treated as a Secret.
    #[serde(default)]
    pub sealed: bool,
}

/// Up to where somebody has been told what is in effect. In another epoch the numbers mean nothing.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Told {
    /// Names the records: new when they are lost.
    pub epoch: u64,
    /// The last number that was told.
    pub seq: u64,
}

/// What the helper says.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Reply {
    /// It needs the objects with these UIDs, in these versions. Each is then sent in a frame of its own; an empty frame says
    /// that it has changed meanwhile.
    Want(Vec<Member>),
    /// It knows the objects in another state than that from which they have changed: they are all to be listed, once more.
    Whole,
    /// It is done.
    Done(Box<Outcome>),
    /// It cannot do that.
    Refused(String),
}

/// What came of a request.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Outcome {
    /// What is new in the state of objects, of all rules, with the UID: what [`Request::told`] does not cover.
    pub news: Vec<News>,
    /// What is to be said to be told after it.
    pub told: Told,
    /// The rules.
    pub rules: Vec<RuleShown>,
    /// What would be done, in words.
    pub plan: Vec<String>,
    /// In how many milliseconds the rule is to be tried again.
    pub retry: Option<u64>,
    /// The number of the list of the rule's objects, if it is remembered: what changes is named from now on.
    pub known: Option<u64>,
}

/// The state of an object, over all rules that concern it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct News {
    /// UID.
    pub uid: String,
    /// The rule that decides.
    pub rule: String,
    /// The state.
    pub status: Status,
}

/// A rule, as it is shown.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct RuleShown {
    /// Its name.
    pub name: String,
    /// Objects in effect.
    pub in_effect: u64,
    /// Objects that are not.
    pub not_in_effect: u64,
    /// Objects whose files somebody else has had a hand in.
    pub conflicts: u64,
    /// How often the program was made to read its files.
    pub reloads: u64,
    /// How often files were put back.
    pub rollbacks: u64,
    /// The files that are there.
    pub files: u64,
    /// The last lines of the last check or reload that failed.
    pub output: String,
    /// The objects, if they were asked for.
    pub objects: Vec<Status>,
}
