//! The Node: registered as EdgeCore does, patched if it exists.
//!
//! Its content is the node's report and the condition `Ready`. The node runs no pods: its capacity
//! has no room for any, a taint repels them, and it claims nothing that only a kubelet knows
//! (`MemoryPressure`, a port, attached volumes).

use jiff::Timestamp;
use serde::Deserialize;
use serde_json::{Map, Value, json};

use super::{Next, Refusal, failure_text, invalid, refuse};
use crate::message::{self, Draft, Failure};
use edgesync_object::file_rules::FILE_RULES_ANNOTATION;
use edgesync_object::time::rfc3339;
use edgesync_object::{NodeName, Object};
use edgesync_protocol::node::{NodeReport, READY, agent_ready, merge_report, new_node, set_node_condition};
use edgesync_protocol::upload::RefusedReason;

/// The largest report, in bytes.
const MAX_REPORT: usize = 64 << 10;
/// The most conditions read from a Node.
const MAX_CONDITIONS: usize = 64;
/// The most immediate switches between registration and patch.
const MAX_SWITCHES: u32 = 2;
/// The taint that repels pods.
const TAINT: &str = "edgesync.io/no-pods";
/// The role labels. Without the first one CloudCore ignores the node.
const ROLES: [&str; 2] = ["node-role.kubernetes.io/edge", "node-role.kubernetes.io/agent"];
/// Labels that kubelets set under two names.
const OLD_LABELS: [(&str, &str); 2] =
    [("kubernetes.io/arch", "beta.kubernetes.io/arch"), ("kubernetes.io/os", "beta.kubernetes.io/os")];

/// The way to write the Node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::upload) enum NodeWrite {
    Insert,
    Patch,
}

/// A node report in flight.
#[derive(Debug)]
pub(in crate::upload) struct NodeTask {
    write: NodeWrite,
    switches: u32,
    node: NodeName,
    /// The contents of both messages.
    insert: String,
    patch: String,
}

impl NodeTask {
    /// Parses a report. `registered` means that the Node exists.
    pub(in crate::upload) fn read(
        json: &str,
        node: &NodeName,
        wall: i64,
        received: &NodeConditions,
        registered: bool,
    ) -> Result<Self, Refusal> {
        if json.len() > MAX_REPORT {
            return Err(invalid(format!("node report must be at most {MAX_REPORT} bytes")));
        }
        let report: NodeReport =
            serde_json::from_str(json).map_err(|error| invalid(format!("parse node report: {error}")))?;
        report.check().map_err(|problems| invalid(problems.to_string()))?;
        let whole = whole(node, &report, received, wall);
        Ok(Self {
            write: if registered { NodeWrite::Patch } else { NodeWrite::Insert },
            switches: 0,
            node: node.clone(),
            insert: insert(&whole),
            patch: message::quoted(&patch(&whole)),
        })
    }

    pub(in crate::upload) fn draft(&self) -> Draft<'_> {
        match self.write {
            NodeWrite::Insert => {
                message::write("node", "insert", format!("null/node/{}", self.node), self.insert.as_str())
            }
            NodeWrite::Patch => {
                message::write("node", "patch", patch_resource(&self.node), self.patch.as_str())
            }
        }
    }

    /// Switches the way: at once, unless CloudCore keeps contradicting itself.
    pub(in crate::upload) fn switch_to(&mut self, write: NodeWrite) -> Next {
        self.switches = self.switches.saturating_add(1);
        self.write = write;
        if self.switches <= MAX_SWITCHES { Next::Now } else { Next::Later }
    }

    /// Handles a failure. The report is refused, unless the Node only exists already, or does not
    /// exist.
    pub(in crate::upload) fn failed(&mut self, failure: &Failure) -> Next {
        match (self.write, failure.code) {
            (NodeWrite::Insert, 409) => self.switch_to(NodeWrite::Patch),
            (NodeWrite::Patch, 404) => self.switch_to(NodeWrite::Insert),
            (NodeWrite::Patch, 409) => Next::Later,
            (_, 400 | 422) => refuse(invalid(failure_text(failure))),
            _ => refuse((RefusedReason::Other, failure_text(failure))),
        }
    }
}

/// Returns the resource of Node patches.
pub(in crate::upload) fn patch_resource(node: &NodeName) -> String {
    format!("null/nodepatch/{node}")
}

/// The conditions of the last received Node, for their transition times.
#[derive(Debug, Default)]
pub(in crate::upload) struct NodeConditions(Vec<ReceivedCondition>);

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct ReceivedCondition {
    #[serde(rename = "type")]
    condition: String,
    status: String,
    #[serde(default)]
    last_transition_time: Option<String>,
}

impl NodeConditions {
    /// Parses a Node; an unreadable one has no conditions.
    pub(in crate::upload) fn read(node: &str) -> Self {
        #[derive(Deserialize)]
        struct Node {
            status: Status,
        }
        #[derive(Deserialize)]
        struct Status {
            conditions: Vec<ReceivedCondition>,
        }
        let mut conditions =
            serde_json::from_str::<Node>(node).map(|node| node.status.conditions).unwrap_or_default();
        conditions.truncate(MAX_CONDITIONS);
        Self(conditions)
    }

    pub(in crate::upload) fn is_ready(&self) -> bool {
        self.0.iter().any(|received| received.condition == READY && received.status == "True")
    }

    /// Returns the conditions in the form of a Node.
    fn conditions(&self) -> Vec<Value> {
        let since = |received: &ReceivedCondition| received.last_transition_time.clone().unwrap_or_default();
        let value = |received: &ReceivedCondition| json!({ "type": received.condition, "status": received.status, "lastTransitionTime": since(received) });
        self.0.iter().map(value).collect()
    }
}

/// Returns the whole Node, as far as the node determines it.
fn whole(name: &NodeName, report: &NodeReport, received: &NodeConditions, wall: i64) -> Object {
    let now = Timestamp::from_millisecond(wall).unwrap_or_default();
    let mut node = new_node(name);
    if let Some(status) = node.fields_mut().get_mut("status") {
        *status = json!({ "conditions": received.conditions() });
    }
    merge_report(&mut node, report, now);
    // No part of the Node that a kubelet reports.
    node.set_annotation(FILE_RULES_ANNOTATION, None);
    set_node_condition(&mut node, &agent_ready(), now);
    let is_reported = |condition: &Value| {
        let kind = condition.get("type").and_then(Value::as_str).unwrap_or_default();
        kind == READY || report.conditions.iter().any(|reported| reported.condition == kind)
    };
    if let Some(Value::Array(conditions)) = status(&mut node).and_then(|status| status.get_mut("conditions"))
    {
        conditions.retain(is_reported);
        for condition in conditions.iter_mut().filter_map(Value::as_object_mut) {
            condition.insert("lastHeartbeatTime".to_owned(), rfc3339(now).into());
        }
    }
    let mut labels: Map<String, Value> =
        node.labels().iter().map(|(key, value)| ((*key).to_owned(), Value::from(&**value))).collect();
    for (key, old) in OLD_LABELS {
        if let Some(value) = labels.get(key).cloned() {
            labels.entry(old).or_insert(value);
        }
    }
    for role in ROLES {
        labels.entry(role).or_insert_with(|| "".into());
    }
    node.set_metadata("labels", labels);
    node
}

fn status(node: &mut Object) -> Option<&mut Map<String, Value>> {
    node.fields_mut().get_mut("status").and_then(Value::as_object_mut)
}

/// Returns the content of the registration.
fn insert(whole: &Object) -> String {
    let mut node = whole.clone();
    node.set_metadata("creationTimestamp", Value::Null);
    let mut fields = node.into_fields();
    fields.retain(|field, _| matches!(field.as_str(), "metadata" | "status"));
    fields.insert("spec".to_owned(), json!({ "taints": [{ "key": TAINT, "effect": "NoSchedule" }] }));
    Value::Object(fields).to_string()
}

/// Returns a strategic merge patch of the status. Labels and annotations are merged too; nothing is
/// removed.
fn patch(whole: &Object) -> String {
    let mut whole = whole.clone();
    let mut changed = status(&mut whole).map(std::mem::take).unwrap_or_default();
    if let Some(Value::Array(addresses)) = changed.get_mut("addresses") {
        // Addresses are merged by type otherwise, and a removed one would stay.
        addresses.push(json!({ "$patch": "replace" }));
    }
    set_element_order(&mut changed);
    let metadata = json!({ "labels": whole.labels(), "annotations": whole.annotations() });
    json!({ "metadata": metadata, "status": changed }).to_string()
}

/// Returns a patch with nothing but the condition `Ready`.
pub(in crate::upload) fn ready_patch(name: &NodeName, received: &NodeConditions, wall: i64) -> String {
    let mut whole = whole(name, &NodeReport::default(), received, wall);
    let mut changed = status(&mut whole).map(std::mem::take).unwrap_or_default();
    set_element_order(&mut changed);
    json!({ "status": changed }).to_string()
}

/// Adds the order of conditions, as kubelets do.
fn set_element_order(status: &mut Map<String, Value>) {
    let conditions = status.get("conditions").and_then(Value::as_array);
    let kinds = conditions.into_iter().flatten().map(|condition| json!({ "type": condition.get("type") }));
    let kinds = kinds.collect::<Vec<_>>();
    status.insert("$setElementOrder/conditions".to_owned(), kinds.into());
}
