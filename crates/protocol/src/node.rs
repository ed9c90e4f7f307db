//! The Node object: node reports and conditions.
//!
//! Conditions follow the API conventions ("Typical status properties"): one of each type, and
//! `lastTransitionTime` changes only with the status.

mod reason;

use std::collections::BTreeMap;

use edgesync_object::file_rules::{FILE_RULES_ANNOTATION, MAX_FILE_RULES};
use edgesync_object::name::{Problem, check_label_key};
use edgesync_object::node_labels::set_reported_labels;
use edgesync_object::status::Cause;
use edgesync_object::time::rfc3339;
use edgesync_object::{FieldProblem, Object, Problems};
use edgesync_schema as schema;
use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

pub use reason::{ConditionFields, NodeReason};

/// The node's report about itself. It travels as one outbox item whenever it differs from the last
/// one.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct NodeReport {
    /// Labels from the configuration and labels that describe the machine.
    #[serde(default)]
    pub labels: BTreeMap<String, String>,
    /// The known fields of `status` except conditions: `nodeInfo`, `capacity`, `allocatable`,
    /// `addresses`.
    #[serde(default)]
    pub status: Map<String, Value>,
    /// The conditions that only the node can determine.
    #[serde(default)]
    pub conditions: Vec<Condition>,
    /// The value of [`FILE_RULES_ANNOTATION`]. Absent without file rules, and with too many.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub file_rules: Option<String>,
}

/// The status of a condition.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum ConditionStatus {
    /// The condition holds for the node.
    True,
    /// The condition does not hold.
    False,
    /// The status is not known.
    #[default]
    #[serde(other)]
    Unknown,
}

/// A condition of a Node.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Condition {
    /// The condition type, such as `Ready` or `edgesync.io/InSync`.
    #[serde(rename = "type")]
    pub condition: String,
    /// Whether the condition holds.
    pub status: ConditionStatus,
    /// The reason of the last transition: one word in CamelCase.
    pub reason: String,
    /// The explanation for people.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub message: String,
    /// The time of the last status transition; `None` leaves it to [`set_condition`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_transition_time: Option<Timestamp>,
}

/// The condition type for a node that takes part in the fleet: its Lease is renewed.
pub const READY: &str = "Ready";
/// The condition type for a node that holds all desired objects.
pub const IN_SYNC: &str = "edgesync.io/InSync";
/// The condition type for a writable node database.
pub const STORE_HEALTHY: &str = "edgesync.io/StoreHealthy";
/// The condition type for a working session between cloud side and node.
pub const CLOUD_REACHABLE: &str = "edgesync.io/CloudReachable";
/// The condition type for an almost full disk of the node's database.
pub const DISK_PRESSURE: &str = "edgesync.io/DiskPressure";
/// The condition type for an exhausted daily traffic budget.
pub const TRAFFIC_BUDGET_SPENT: &str = "edgesync.io/TrafficBudgetSpent";
/// The condition type for all rule-managed objects in effect on the node. Absent without file
/// rules.
pub const FILES_IN_EFFECT: &str = "edgesync.io/FilesInEffect";

/// The condition type for a valid node certificate that does not expire soon.
pub(crate) const CERTIFICATE_VALID: &str = "edgesync.io/CertificateValid";

/// The most conditions that a node may set; further ones are ignored.
pub(crate) const MAX_NODE_CONDITIONS: usize = 32;
/// The longest reason of a condition, in bytes.
const MAX_REASON: usize = 1024;
/// The longest message of a condition, in bytes.
const MAX_MESSAGE: usize = 32 << 10;
/// The status fields that the node owns; a field missing in its report is removed.
const REPORTED_STATUS: [&str; 4] = ["addresses", "allocatable", "capacity", "nodeInfo"];
/// Conditions that only the cloud sets: a node cannot determine them, or is not trusted with them.
const CLOUD_CONDITIONS: [&str; 3] = [READY, IN_SYNC, CLOUD_REACHABLE];

impl ConditionStatus {
    /// Returns the value used in objects.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::True => "True",
            Self::False => "False",
            Self::Unknown => "Unknown",
        }
    }
}

/// Counts of the file rules and their objects on a node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FilesSummary {
    /// The number of rules.
    pub rules: u64,
    /// The objects that the rules select; `None` until the helper has counted them.
    pub objects: Option<FilesCounts>,
    /// The number of rules that failed; their effect is unknown.
    pub failed: u64,
    /// The failure that blocks all rules, which is none of those counted in `failed`.
    pub blocked: Option<FilesFailure>,
}

/// Numbers of the objects that file rules select, by state. Each object counts once.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FilesCounts {
    /// The number of objects in effect in the version that the node holds.
    pub in_effect: u64,
    /// The number of objects not in effect in that version, without those in conflict.
    pub not_in_effect: u64,
    /// The number of objects not in effect because another owner holds a file.
    pub conflicts: u64,
    /// The number of objects that wait for a window, a condition, or the end of a hold.
    pub waiting: u64,
}

impl FilesCounts {
    /// Returns the number of objects in any state.
    #[must_use]
    pub fn total(self) -> u64 {
        [self.not_in_effect, self.conflicts, self.waiting]
            .into_iter()
            .fold(self.in_effect, u64::saturating_add)
    }
}

/// A failure that concerns no single file rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FilesFailure {
    /// The helper is unreachable: no rule runs, and the counts of objects are those of its last
    /// answer.
    HelperUnreachable,
    /// The helper or the database refused a request about all rules.
    RequestFailed,
}

impl FilesSummary {
    /// Returns the condition [`FILES_IN_EFFECT`] of the Node; `None` without rules. The message
    /// contains the counts, so callers wait until a change has settled before they report it.
    #[must_use]
    pub fn condition(&self) -> Option<Condition> {
        if self.rules == 0 {
            return None;
        }
        let reason = match (self.blocked, self.failed, self.objects) {
            (Some(FilesFailure::HelperUnreachable), ..) => NodeReason::HelperUnreachable,
            (Some(FilesFailure::RequestFailed), ..) | (None, 1.., _) => NodeReason::RuleFailed,
            (None, 0, None) => NodeReason::NoReport,
            (None, 0, Some(FilesCounts { not_in_effect: 1.., .. })) => NodeReason::NotInEffect,
            (None, 0, Some(FilesCounts { conflicts: 1.., .. })) => NodeReason::Conflict,
            (None, 0, Some(FilesCounts { waiting: 1.., .. })) => NodeReason::Waiting,
            (None, 0, Some(_)) => NodeReason::InEffect,
        };
        Some(Condition::new(reason, self.message()))
    }
}

impl FilesSummary {
    /// Formats the counts, and the failures with the command that shows their causes.
    fn message(&self) -> String {
        let Self { rules, objects, failed, blocked } = self;
        let mut message = match objects {
            None => format!("states of objects unknown; rules: {rules}"),
            Some(counts) => {
                let FilesCounts { in_effect, not_in_effect, conflicts, waiting } = counts;
                let total = counts.total();
                let waiting = if *waiting > 0 { format!(", {waiting} waiting") } else { String::new() };
                format!(
                    "{in_effect} of {total} objects in effect, {not_in_effect} not, {conflicts} in conflict{waiting}; rules: {rules}"
                )
            }
        };
        if *failed > 0 {
            message.push_str(&format!(", {failed} failed"));
        }
        message.push_str(match blocked {
            // 'edgesync files' needs the helper.
            Some(FilesFailure::HelperUnreachable) => {
                "; helper unreachable; hint: 'edgesync check' on the node"
            }
            Some(FilesFailure::RequestFailed) => {
                "; request to the helper failed; hint: 'edgesync files' on the node"
            }
            None if *failed > 0 => "; hint: 'edgesync files' on the node",
            None => "",
        });
        message
    }

    /// Parses the counts of objects in effect and not in effect from the message of a condition.
    #[must_use]
    pub fn read(message: &str) -> Option<(u64, u64)> {
        let (in_effect, rest) = message.split_once(" of ")?;
        let (objects, _) = rest.split_once(' ')?;
        let (in_effect, objects): (u64, u64) = (in_effect.parse().ok()?, objects.parse().ok()?);
        Some((in_effect, objects.checked_sub(in_effect)?))
    }
}

impl NodeReport {
    /// Checks everything that would make the Node unreadable for clients. Labels are not checked:
    /// merging the report drops the ones a node may not set.
    ///
    /// # Errors
    /// Returns every problem found.
    pub fn check(&self) -> Result<(), Problems> {
        let mut problems = Problems::default();
        if let Some(schema) = schema::builtin("", "v1", "Node") {
            let fields = [("status".to_owned(), Value::Object(self.status.clone()))].into_iter().collect();
            // A device that cannot determine all of `nodeInfo` reports a part.
            let causes = schema::validate(&schema, &fields).into_iter();
            let wrong = causes.filter(|cause| cause.reason != "FieldValueRequired");
            problems.0.extend(
                wrong.map(|Cause { field, message, .. }| FieldProblem { field: show(field), message }),
            );
        }
        for (number, condition) in self.conditions.iter().enumerate() {
            let problem = check_condition(condition);
            problems.0.extend(problem.err().map(|(field, message)| {
                let field = format!("status.conditions[{number}].{field}");
                FieldProblem { field, message }
            }));
        }
        problems.0.truncate(MAX_PROBLEMS);
        if problems.0.is_empty() { Ok(()) } else { Err(problems) }
    }
}

/// The most problems listed for one report.
const MAX_PROBLEMS: usize = 16;

/// Truncates a field path to 128 characters: it contains keys that the node chose.
fn show(mut field: String) -> String {
    if let Some((end, _)) = field.char_indices().nth(128) {
        field.truncate(end);
        field.push('…');
    }
    field
}

fn check_condition(condition: &Condition) -> Result<(), (&'static str, Problem)> {
    check_label_key(&condition.condition).map_err(|problem| ("type", problem))?;
    let reason = condition.reason.as_str();
    let inner = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'_' | b',' | b':');
    let is_word = reason.len() <= MAX_REASON
        && reason.starts_with(|c: char| c.is_ascii_alphabetic())
        && reason.ends_with(|c: char| c.is_ascii_alphanumeric() || c == '_')
        && reason.bytes().all(inner);
    if !is_word {
        return Err(("reason", format!("must be one word in CamelCase of at most {MAX_REASON} letters")));
    }
    if condition.message.len() > MAX_MESSAGE {
        return Err(("message", format!("must be at most {MAX_MESSAGE} bytes")));
    }
    Ok(())
}

/// Returns a Node with nothing but a name.
#[must_use]
pub fn new_node(name: &str) -> Object {
    let text = |text: &str| Value::String(text.to_owned());
    let metadata = [("name".to_owned(), text(name))].into_iter().collect();
    let fields = [
        ("apiVersion".to_owned(), text("v1")),
        ("kind".to_owned(), text("Node")),
        ("metadata".to_owned(), Value::Object(metadata)),
        ("spec".to_owned(), Value::Object(Map::new())),
        ("status".to_owned(), Value::Object(Map::new())),
    ];
    Object::from(fields.into_iter().collect::<Map<_, _>>())
}

/// Returns the condition `Ready` as the agent reports it.
#[must_use]
pub fn agent_ready() -> Condition {
    Condition::new(NodeReason::AgentReady, "edgesync stores objects; it runs no Pods")
}

/// Replaces the fields of the previous report with those of this one.
///
/// Everything else stays: labels set by others, even under a name that the node uses, and
/// conditions and status fields that the report does not mention. Exception: only nodes with file
/// rules report [`FILES_IN_EFFECT`] and [`FILE_RULES_ANNOTATION`], so a report without them removes
/// them. Rules that are too long count as not reported.
pub fn merge_report(node: &mut Object, report: &NodeReport, now: Timestamp) {
    set_reported_labels(node, &report.labels);
    let rules = report.file_rules.as_deref().filter(|rules| rules.len() <= MAX_FILE_RULES);
    node.set_annotation(FILE_RULES_ANNOTATION, rules);
    let mut status = take_map(node.fields_mut(), "status");
    status.retain(|field, _| !REPORTED_STATUS.contains(&field.as_str()));
    let content_of = report.status.iter().filter(|(field, _)| *field != "conditions");
    status.extend(content_of.map(|(field, value)| (field.clone(), value.clone())));
    let is_files = |condition: &str| condition == FILES_IN_EFFECT;
    if let Some(Value::Array(conditions)) = status.get_mut("conditions")
        && !report.conditions.iter().any(|own| is_files(&own.condition))
    {
        conditions.retain(|condition| !is_files(text(condition.as_object(), "type")));
    }
    node.fields_mut().insert("status".to_owned(), Value::Object(status));
    let own = report.conditions.iter().filter(|own| !CLOUD_CONDITIONS.contains(&own.condition.as_str()));
    for condition in own.take(MAX_NODE_CONDITIONS) {
        set_node_condition(node, condition, now);
    }
}

/// Updates `lastHeartbeatTime` of a Node condition: the time of its last changed content.
///
/// A more frequent update would write the whole Node for every heartbeat and add nothing to the
/// Lease.
fn set_heartbeat(fields: &mut Map<String, Value>, is_new: bool, now: Timestamp) {
    const HEARTBEAT: &str = "lastHeartbeatTime";
    if is_new {
        fields.insert(HEARTBEAT.to_owned(), rfc3339(now).into());
    } else if text(Some(fields), HEARTBEAT).is_empty()
        && let Some(since) = fields.get("lastTransitionTime").cloned()
    {
        fields.insert(HEARTBEAT.to_owned(), since);
    }
}

/// Sets a condition of a Node by the rules of [`set_condition`], and `lastHeartbeatTime` when its
/// content changes.
pub fn set_node_condition(node: &mut Object, condition: &Condition, now: Timestamp) {
    let mut status = take_map(node.fields_mut(), "status");
    let mut conditions = match status.remove("conditions") {
        Some(Value::Array(conditions)) => conditions,
        _ => Vec::new(),
    };
    let content_of = |conditions: &[Value]| {
        let found = conditions.iter().find(|item| text(item.as_object(), "type") == condition.condition);
        found.map(|item| ["status", "reason", "message"].map(|field| item[field].clone()))
    };
    let before = content_of(&conditions);
    set_condition(&mut conditions, condition, now);
    let is_new = before.is_some() && before != content_of(&conditions);
    let item = conditions.iter_mut().find(|item| text(item.as_object(), "type") == condition.condition);
    if let Some(fields) = item.and_then(Value::as_object_mut) {
        set_heartbeat(fields, is_new, now);
    }
    status.insert("conditions".to_owned(), Value::Array(conditions));
    node.fields_mut().insert("status".to_owned(), Value::Object(status));
}

/// Sets a condition in a list with one of each type.
///
/// If its status stays, so does its `lastTransitionTime`. Otherwise that becomes the time of the
/// condition, clamped between the last transition and `now`. Fields that others have put into the
/// condition stay.
pub(crate) fn set_condition(conditions: &mut Vec<Value>, condition: &Condition, now: Timestamp) {
    let is_same = |item: &Value| text(item.as_object(), "type") == condition.condition;
    let mut first = true;
    conditions.retain(|item| !is_same(item) || std::mem::take(&mut first));
    let Some(item) = conditions.iter_mut().find(|item| is_same(item)) else {
        conditions.push(Value::Object(changed(Map::new(), condition, now)));
        return;
    };
    if let Value::Object(fields) = item.take() {
        *item = Value::Object(changed(fields, condition, now));
    }
}

/// Returns the fields of a condition after a change.
fn changed(mut fields: Map<String, Value>, condition: &Condition, now: Timestamp) -> Map<String, Value> {
    let before = text(Some(&fields), "lastTransitionTime");
    if before.is_empty() || text(Some(&fields), "status") != condition.status.as_str() {
        let earliest = before.parse::<Timestamp>().unwrap_or(Timestamp::MIN);
        let time = condition.last_transition_time.unwrap_or(now).max(earliest).min(now);
        fields.insert("lastTransitionTime".to_owned(), rfc3339(time).into());
    }
    fields.insert("type".to_owned(), condition.condition.as_str().into());
    fields.insert("status".to_owned(), condition.status.as_str().into());
    fields.insert("reason".to_owned(), condition.reason.as_str().into());
    match condition.message.as_str() {
        "" => drop(fields.remove("message")),
        message => drop(fields.insert("message".to_owned(), message.into())),
    }
    fields
}

fn text<'a>(fields: Option<&'a Map<String, Value>>, field: &str) -> &'a str {
    fields.and_then(|fields| fields.get(field)).and_then(Value::as_str).unwrap_or_default()
}

/// Removes and returns the map under a name; an empty one if there is none.
fn take_map(fields: &mut Map<String, Value>, name: &str) -> Map<String, Value> {
    match fields.remove(name) {
        Some(Value::Object(map)) => map,
        _ => Map::new(),
    }
}

#[cfg(test)]
mod tests;
