//! Messages between agent and helper: length-prefixed JSON frames. They contain no path, command,
//! user or mode.

use serde::{Deserialize, Serialize};

use super::gate::Closed;
use super::record::{Member, Status};
use edgesync_object::kinds::{KINDS, guess};
use edgesync_object::name::{self, Problem};
use edgesync_object::{Resource, check_reference, split_api_version};

/// Maximum number of listed objects.
pub const MAX_LISTED: usize = 200_000;
/// Maximum number of changed objects named in a request; beyond it all are listed.
pub const MAX_CHANGED: usize = 64;
/// Maximum size of a frame in bytes; objects are smaller.
pub const MAX_FRAME: u32 = 64 << 20;

/// A request, one per connection. A list of [`Listed`] with the changed objects and an empty frame
/// precede it. If the helper does not know the others, it requests the whole list of the rule: in
/// several frames and an empty one, so that neither side needs to hold a frame with all of them.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Request {
    /// Operation to execute; `Show` and `Clear` ignore `rule`.
    pub verb: Verb,
    /// Name of the rule.
    pub rule: String,
    /// Whether places without changes are inspected, too.
    pub look: bool,
    /// Whether failed places are retried at once.
    pub force: bool,
    /// Whether files of unlisted objects are kept: the database was lost and is not filled yet.
    pub keep: bool,
    /// Status changes that the agent has already received.
    pub told: ReportPosition,
    /// Checksum of the list since which the named objects have changed; those without a version are
    /// deleted. None to list all objects.
    pub since: Option<u64>,
}

/// An operation of the helper.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Verb {
    /// Report the objects in effect.
    #[default]
    Show,
    /// Remove files of rules that are no longer configured.
    Clear,
    /// Bring the files in line with the listed objects.
    Apply,
    /// Describe what `Apply` would change.
    Check,
}

/// An object that a rule selects.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Listed {
    /// UID of the object.
    pub uid: String,
    /// API version, such as `v1`.
    pub api_version: String,
    /// Kind, such as `ConfigMap`.
    pub kind: String,
    /// Plural of the kind, by which a rule may name it; empty if it follows from the kind.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub plural: String,
    /// Namespace of the object.
    pub namespace: String,
    /// Name of the object.
    pub name: String,
    /// Version held by the node; empty if it is deleted or no longer selected.
    pub version: String,
    /// Whether its kind is sealed in the database: then it is treated as a Secret.
    #[serde(default)]
    pub sealed: bool,
}

/// A field of a listed object that no stored object has, with its requirement.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ListedError {
    /// The UID is invalid.
    #[error("`metadata.uid` {0}")]
    Uid(Problem),
    /// API version, kind, namespace or name is invalid.
    #[error("{0}")]
    Reference(Problem),
    /// The plural of the kind is invalid.
    #[error("`plural` {0}")]
    Plural(Problem),
    /// The version is too long.
    #[error("`metadata.resourceVersion` {0}")]
    Version(Problem),
}

impl Listed {
    /// Checks all words, as the agent does when it stores an object: they become parts of paths and
    /// reach the programs of rules. A deleted object has a UID only.
    ///
    /// # Errors
    /// A field is invalid, with the requirement.
    pub fn check(&self) -> Result<(), ListedError> {
        name::check_uid(&self.uid).map_err(ListedError::Uid)?;
        let is_held = !self.version.is_empty();
        if !is_held && self.name.is_empty() {
            return Ok(());
        }
        check_reference(&self.api_version, &self.kind, &self.namespace, &self.name)
            .map_err(ListedError::Reference)?;
        if !self.plural.is_empty() {
            name::check_label(&self.plural).map_err(ListedError::Plural)?;
        }
        let checked = if is_held { name::check_version(&self.version) } else { Ok(()) };
        checked.map_err(ListedError::Version)
    }

    /// Returns the kind as a resource. The plural of a built-in kind is not the agent's choice.
    #[must_use]
    pub(crate) fn resource(&self) -> Resource {
        let mut resource = guess(&self.api_version, &self.kind, !self.namespace.is_empty());
        let (group, _) = split_api_version(&self.api_version);
        let built_in = KINDS.iter().find(|known| known.group == group && known.kind == self.kind);
        match built_in {
            Some(known) => known.plural.clone_into(&mut resource.plural),
            None if self.plural.is_empty() => {}
            None => self.plural.clone_into(&mut resource.plural),
        }
        resource
    }
}

/// Position up to which status changes were received. In another epoch it is meaningless.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReportPosition {
    /// Identifies the records: changes when they are lost.
    pub epoch: u64,
    /// Sequence number of the last received status.
    pub seq: u64,
}

/// A message of the helper.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Reply {
    /// Requests the objects with these UIDs and versions. Each follows in its own frame; an empty
    /// frame means that it has changed meanwhile.
    Want(Vec<Member>),
    /// The helper knows another list than the one named: requests the whole list.
    Whole,
    /// The operation is completed.
    Done(Box<Outcome>),
    /// The operation is refused, with the reason.
    Refused(String),
}

/// Result of a request.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Outcome {
    /// Statuses, over all rules, that the position in the [`Request`] does not cover.
    #[serde(rename = "news")]
    pub updates: Vec<StatusUpdate>,
    /// Position for the next request.
    pub told: ReportPosition,
    /// Statistics of the rules.
    pub rules: Vec<RuleStatistics>,
    /// Numbers of objects over all rules; `None` from an older helper.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub objects: Option<ObjectCounts>,
    /// Description of the planned changes.
    pub plan: Vec<String>,
    /// Milliseconds until the rule must be retried.
    pub retry: Option<u64>,
    /// Checksum of the rule's list, if it is remembered: the next request may name changes only.
    pub known: Option<u64>,
    /// Holds in force.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub holds: Vec<HoldInfo>,
}

/// A hold in force, in the time of the wall clock.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct HoldInfo {
    /// Number of the hold.
    pub id: u64,
    /// Name of the rule.
    pub rule: String,
    /// Number of the user that made it.
    pub uid: u32,
    /// Name of that user; empty if it has no account.
    pub owner: String,
    /// Its reason.
    pub why: String,
    /// When it began, in microseconds since 1970.
    pub since: i64,
    /// When it ends by itself, in microseconds since 1970.
    pub until: i64,
}

/// A request on the socket of holds, one per connection.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum HoldRequest {
    /// Lists the holds in force.
    List,
    /// Makes a hold on a rule.
    Hold {
        /// Name of the rule.
        rule: String,
        /// Duration in seconds.
        seconds: u64,
        /// Its reason.
        why: String,
    },
    /// Ends the hold with this number.
    Release(u64),
    /// Ends the caller's holds on this rule, or all of the caller.
    ReleaseOwn(Option<String>),
}

/// The answer to a [`HoldRequest`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum HoldReply {
    /// The holds that were made, ended or listed.
    Done(Vec<HoldInfo>),
    /// The hold was made, but not all of what is in effect outlives a reboot, with the reason.
    Unkept(Vec<HoldInfo>, String),
    /// The request is refused, with the reason.
    Refused(String),
}

/// Status of an object, over all rules that select it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct StatusUpdate {
    /// UID of the object.
    pub uid: String,
    /// The rule whose status decides.
    pub rule: String,
    /// Status of the object.
    pub status: Status,
}

/// Numbers of objects by state, over all rules. An object that several rules select counts once, in
/// the state of its [`StatusUpdate`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct ObjectCounts {
    /// Number of objects in effect.
    pub in_effect: u64,
    /// Number of objects not in effect.
    pub not_in_effect: u64,
    /// Number of objects in conflict: their files were changed by another party.
    pub conflicts: u64,
    /// Number of objects that wait for a window, a condition, or the end of a hold.
    pub waiting: u64,
}

/// Statistics of a rule.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct RuleStatistics {
    /// Name of the rule.
    pub name: String,
    /// Number of objects in effect.
    pub in_effect: u64,
    /// Number of objects not in effect.
    pub not_in_effect: u64,
    /// Number of objects in conflict: their files were changed by another party.
    pub conflicts: u64,
    /// Number of successful reloads.
    pub reloads: u64,
    /// Number of transactions rolled back.
    pub rollbacks: u64,
    /// Number of held files.
    pub files: u64,
    /// Last lines of the last failed check or reload.
    pub output: String,
    /// Statuses of the objects, if requested.
    pub objects: Vec<Status>,
    /// Number of objects that wait.
    #[serde(default)]
    pub waiting: u64,
    /// What they wait for; none if no object waits.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub closed: Option<Closed>,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn listed() -> Listed {
        let [uid, api_version, kind, namespace, name, version] =
            ["u", "v1", "ConfigMap", "plant", "web", "1"].map(str::to_owned);
        Listed { uid, api_version, kind, namespace, name, version, ..Listed::default() }
    }

    #[test]
    fn listed_words_are_those_of_kubernetes() {
        assert_eq!(listed().check(), Ok(()));
        assert_eq!(Listed { uid: "u".into(), ..Listed::default() }.check(), Ok(()));
        let unselected = Listed { version: String::new(), ..listed() };
        assert_eq!(unselected.check(), Ok(()));
        let field = |set: fn(&mut Listed, String), word: &str| {
            let mut listed = listed();
            set(&mut listed, word.to_owned());
            listed.check()
        };
        for word in ["a b", "*", "$(reboot)", "../x", "a\nb", "\u{1b}[2J", "ä"] {
            assert!(field(|of, word| of.uid = word, word).is_err(), "{word:?}");
            assert!(field(|of, word| of.api_version = word, word).is_err(), "{word:?}");
            assert!(field(|of, word| of.kind = word, word).is_err(), "{word:?}");
            assert!(field(|of, word| of.plural = word, word).is_err(), "{word:?}");
            assert!(field(|of, word| of.namespace = word, word).is_err(), "{word:?}");
            assert!(field(|of, word| of.name = word, word).is_err(), "{word:?}");
        }
        assert!(field(|of, word| of.version = word, &"9".repeat(129)).is_err());
        assert!(field(|of, word| of.uid = word, "").is_err());
    }
}
