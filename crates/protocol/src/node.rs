//! The Node object: what a node says of itself, and conditions by the rules of the API conventions ("Typical status
//! properties"): one of each type, `lastTransitionTime` moves only when the status does. Pure.

use std::collections::BTreeMap;

use edgesync_object::name::{Problem, check_label_key};
use edgesync_object::node_labels::claim_labels;
use edgesync_object::status::Cause;
use edgesync_object::time::rfc3339;
use edgesync_object::{FieldProblem, Object, Problems};
use edgesync_schema as schema;
use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

/// What a node says of itself. It travels as one item of the outbox, whenever it differs from what was said last.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct NodeReport {
    /// Labels of the configuration and those that describe the machine.
    #[serde(default)]
    pub labels: BTreeMap<String, String>,
    /// The fields of `status` that the node knows, but for conditions: `nodeInfo`, `capacity`, `allocatable`,
    /// `addresses`.
    #[serde(default)]
    pub status: Map<String, Value>,
    /// The conditions that the node alone can know.
    #[serde(default)]
    pub conditions: Vec<Condition>,
}

/// Whether a condition holds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum ConditionStatus {
    /// It holds.
    True,
    /// It does not.
    False,
    /// Nobody knows.
    #[default]
    #[serde(other)]
    Unknown,
}

/// A condition of a Node.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Condition {
    /// Its type, such as `Ready` or `edgesync.io/InSync`.
    #[serde(rename = "type")]
    pub condition: String,
    /// Whether it holds.
    pub status: ConditionStatus,
    /// Why it came to be so: one word in CamelCase.
    pub reason: String,
    /// The same for people.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub message: String,
    /// Since when the status is what it is; left out by those who leave it to [`set_condition`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_transition_time: Option<Timestamp>,
}

/// The node takes part in the fleet: its Lease is renewed.
pub const READY: &str = "Ready";
/// The node holds what it is to hold.
pub const IN_SYNC: &str = "edgesync.io/InSync";
/// The node's database takes changes.
pub const STORE_HEALTHY: &str = "edgesync.io/StoreHealthy";
/// The cloud side and the node talk to each other.
pub const CLOUD_REACHABLE: &str = "edgesync.io/CloudReachable";
/// The disk of the node's database is almost full.
pub const DISK_PRESSURE: &str = "edgesync.io/DiskPressure";
/// The node's budget of bytes for the day is spent.
pub const TRAFFIC_BUDGET_SPENT: &str = "edgesync.io/TrafficBudgetSpent";
/// All objects that rules for files concern are in effect on the node. There is none without rules.
pub const FILES_IN_EFFECT: &str = "edgesync.io/FilesInEffect";

/// The node's certificate is good, and is not about to end.
pub const CERTIFICATE_VALID: &str = "edgesync.io/CertificateValid";

/// The most conditions that a node sets; further ones are ignored.
pub(crate) const MAX_NODE_CONDITIONS: usize = 32;
/// The longest reason of a condition, in bytes.
const MAX_REASON: usize = 1024;
/// The longest message of a condition, in bytes.
const MAX_MESSAGE: usize = 32 << 10;
/// What of the status is the node's to say, and goes when it no longer says it.
const REPORTED_STATUS: [&str; 4] = ["addresses", "allocatable", "capacity", "nodeInfo"];
/// Conditions that the cloud sets: a node cannot know them, or would not be believed.
const CLOUD_CONDITIONS: [&str; 3] = [READY, IN_SYNC, CLOUD_REACHABLE];

impl ConditionStatus {
    /// As objects have it.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::True => "True",
            Self::False => "False",
            Self::Unknown => "Unknown",
        }
    }
}

/// What the rules for files have come to on a node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FilesSummary {
    /// Rules.
    pub rules: u64,
    /// Objects that they concern.
    pub objects: u64,
    /// Of these: in effect in the version that the node holds.
    pub in_effect: u64,
    /// Of these: not in effect in that version, whatever is.
    pub not_in_effect: u64,
    /// Of these: not in effect because somebody else has what is to be written.
    pub conflicts: u64,
    /// Rules that cannot be carried out at all: nobody knows what is in effect by them.
    pub stuck: u64,
}

impl FilesSummary {
    /// The condition [`FILES_IN_EFFECT`] of the Node; none without rules. Whoever tells it waits until a change has
    /// settled: its message has the counts.
    #[must_use]
    pub fn condition(&self) -> Option<Condition> {
        if self.rules == 0 {
            return None;
        }
        let (status, reason) = match (self.stuck, self.not_in_effect, self.conflicts) {
            (1.., ..) => (ConditionStatus::False, "NotCarriedOut"),
            (0, 0, 0) => (ConditionStatus::True, "InEffect"),
            (0, 0, _) => (ConditionStatus::False, "Conflict"),
            (0, ..) => (ConditionStatus::False, "NotInEffect"),
        };
        let Self { rules, objects, in_effect, not_in_effect, conflicts, stuck } = self;
        let mut message = format!(
            "{in_effect} of {objects} objects in effect, {not_in_effect} not, {conflicts} in conflict; rules: {rules}"
        );
        if *stuck > 0 {
            message.push_str(&format!(", {stuck} of them not carried out: see 'edgesync files' on the node"));
        }
        let condition = FILES_IN_EFFECT.to_owned();
        Some(Condition { condition, status, reason: reason.to_owned(), message, last_transition_time: None })
    }
}

impl FilesSummary {
    /// The counts in the message of a condition: how many objects are in effect, and how many are not.
    #[must_use]
    pub fn read(message: &str) -> Option<(u64, u64)> {
        let (in_effect, rest) = message.split_once(" of ")?;
        let (objects, _) = rest.split_once(' ')?;
        let (in_effect, objects): (u64, u64) = (in_effect.parse().ok()?, objects.parse().ok()?);
        Some((in_effect, objects.checked_sub(in_effect)?))
    }
}

impl NodeReport {
    /// Checks what would make the Node one that clients cannot read. Labels are not looked at: those that a node may
    /// not set are left out when the report is merged.
    ///
    /// # Errors
    /// Every problem found.
    pub fn check(&self) -> Result<(), Problems> {
        let mut problems = Problems::default();
        if let Some(schema) = schema::builtin("", "v1", "Node") {
            let fields = [("status".to_owned(), Value::Object(self.status.clone()))].into_iter().collect();
            // A device that cannot tell all of `nodeInfo` tells a part.
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

/// The most problems of a report that are listed.
const MAX_PROBLEMS: usize = 16;

/// Paths hold keys that the node chose: no more than 128 characters are shown.
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

/// A Node of which nothing is known but its name.
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

/// That a node is ready, in the words of its agent.
#[must_use]
pub fn agent_ready() -> Condition {
    Condition {
        condition: READY.to_owned(),
        status: ConditionStatus::True,
        reason: "AgentReady".to_owned(),
        message: "edgesync keeps objects; it runs no pods".to_owned(),
        last_transition_time: None,
    }
}

/// Puts what a node says of itself in the place of what it said before. All else stays: labels that somebody else has
/// set, even under a name that the node uses, and conditions and fields of the status that it does not mention. But what
/// is in effect is told by nodes with rules for files alone: without that condition there are none any more.
pub fn merge_report(node: &mut Object, report: &NodeReport, now: Timestamp) {
    claim_labels(node, &report.labels);
    let mut status = take_map(node.fields_mut(), "status");
    status.retain(|field, _| !REPORTED_STATUS.contains(&field.as_str()));
    let said = report.status.iter().filter(|(field, _)| *field != "conditions");
    status.extend(said.map(|(field, value)| (field.clone(), value.clone())));
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

/// When a condition of a Node was heard of last, as far as it is told: when it last said something else. Anything more often
/// would be a write of the whole Node for every heartbeat, and say nothing that the Lease does not say.
fn heard(fields: &mut Map<String, Value>, is_new: bool, now: Timestamp) {
    const HEARTBEAT: &str = "lastHeartbeatTime";
    if is_new {
        fields.insert(HEARTBEAT.to_owned(), rfc3339(now).into());
    } else if text(Some(fields), HEARTBEAT).is_empty()
        && let Some(since) = fields.get("lastTransitionTime").cloned()
    {
        fields.insert(HEARTBEAT.to_owned(), since);
    }
}

/// Sets a condition of a Node; see [`set_condition`]. There, `lastHeartbeatTime` is when it last said something else.
pub fn set_node_condition(node: &mut Object, condition: &Condition, now: Timestamp) {
    let mut status = take_map(node.fields_mut(), "status");
    let mut conditions = match status.remove("conditions") {
        Some(Value::Array(conditions)) => conditions,
        _ => Vec::new(),
    };
    let said = |conditions: &[Value]| {
        let found = conditions.iter().find(|item| text(item.as_object(), "type") == condition.condition);
        found.map(|item| ["status", "reason", "message"].map(|field| item[field].clone()))
    };
    let before = said(&conditions);
    set_condition(&mut conditions, condition, now);
    let is_new = before.is_some() && before != said(&conditions);
    let item = conditions.iter_mut().find(|item| text(item.as_object(), "type") == condition.condition);
    if let Some(fields) = item.and_then(Value::as_object_mut) {
        heard(fields, is_new, now);
    }
    status.insert("conditions".to_owned(), Value::Array(conditions));
    node.fields_mut().insert("status".to_owned(), Value::Object(status));
}

/// Sets a condition in a list that has one of each type. If its status stays, so does its `lastTransitionTime`;
/// otherwise that becomes the time that the condition gives, but no time before the last transition nor after `now`.
///
/// Fields that others have put into the condition stay.
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

/// The fields of a condition after a change.
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

/// Takes the map under a name out; an empty one if there is none.
fn take_map(fields: &mut Map<String, Value>, name: &str) -> Map<String, Value> {
    match fields.remove(name) {
        Some(Value::Object(map)) => map,
        _ => Map::new(),
    }
}

#[cfg(test)]
mod tests;
