//! The Node: registered as EdgeCore does, patched when there is one. What is said of it is what the node reports, and
//! that it is ready. It runs no pods: it has no room for any, a taint keeps them away, and nothing is claimed that only a
//! kubelet can know (`MemoryPressure`, a port, attached volumes).

use jiff::Timestamp;
use serde::Deserialize;
use serde_json::{Map, Value, json};

use super::{Next, Refusal, invalid, refuse, words};
use crate::message::{self, Draft, Failure};
use edgesync_object::Object;
use edgesync_object::time::rfc3339;
use edgesync_protocol::node::{NodeReport, READY, agent_ready, merge_report, new_node, set_node_condition};
use edgesync_protocol::upload::RefusedReason;

/// The largest report, in bytes.
const MAX_REPORT: usize = 64 << 10;
/// The most conditions of a Node that are looked at.
const MAX_CONDITIONS: usize = 64;
/// So often in a row registration and patch may lead to each other at once.
const MAX_TURNS: u32 = 2;
/// What keeps pods away.
const TAINT: &str = "edgesync.io/no-pods";
/// Without the first CloudCore does nothing for the node.
const ROLES: [&str; 2] = ["node-role.kubernetes.io/edge", "node-role.kubernetes.io/agent"];
/// Labels that kubelets set under two names.
const OLD_LABELS: [(&str, &str); 2] =
    [("kubernetes.io/arch", "beta.kubernetes.io/arch"), ("kubernetes.io/os", "beta.kubernetes.io/os")];

/// How the Node is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::upload) enum Way {
    /// It is made.
    Insert,
    /// It is changed.
    Patch,
}

/// A report on its way.
#[derive(Debug)]
pub(in crate::upload) struct NodeTask {
    way: Way,
    turns: u32,
    node: String,
    /// The contents of both messages.
    insert: String,
    patch: String,
}

impl NodeTask {
    /// Reads a report. `registered` tells that there is a Node.
    pub(in crate::upload) fn read(
        json: &str,
        node: &str,
        wall: i64,
        seen: &Seen,
        registered: bool,
    ) -> Result<Self, Refusal> {
        if json.len() > MAX_REPORT {
            return Err(invalid(format!("the report of a node must be at most {MAX_REPORT} bytes")));
        }
        let report: NodeReport = serde_json::from_str(json)
            .map_err(|error| invalid(format!("the report of the node cannot be read: {error}")))?;
        report.check().map_err(|problems| invalid(problems.to_string()))?;
        let whole = whole(node, &report, seen, wall);
        Ok(Self {
            way: if registered { Way::Patch } else { Way::Insert },
            turns: 0,
            node: node.to_owned(),
            insert: insert(&whole),
            patch: message::quoted(&patch(&whole)),
        })
    }

    pub(in crate::upload) fn draft(&self) -> Draft<'_> {
        match self.way {
            Way::Insert => {
                message::write("node", "insert", format!("null/node/{}", self.node), self.insert.as_str())
            }
            Way::Patch => message::write("node", "patch", patch_resource(&self.node), self.patch.as_str()),
        }
    }

    /// The other way round: at once, unless CloudCore says now this and now that.
    pub(in crate::upload) fn turn_to(&mut self, way: Way) -> Next {
        self.turns = self.turns.saturating_add(1);
        self.way = way;
        if self.turns <= MAX_TURNS { Next::Now } else { Next::Later }
    }

    /// The report is refused, unless the failure only says that there is a Node, or none.
    pub(in crate::upload) fn failed(&mut self, failure: &Failure) -> Next {
        match (self.way, failure.code) {
            (Way::Insert, 409) => self.turn_to(Way::Patch),
            (Way::Patch, 404) => self.turn_to(Way::Insert),
            (Way::Patch, 409) => Next::Later,
            (_, 400 | 422) => refuse(invalid(words(failure))),
            _ => refuse((RefusedReason::Other, words(failure))),
        }
    }
}

/// Where patches of a Node go.
pub(in crate::upload) fn patch_resource(node: &str) -> String {
    format!("null/nodepatch/{node}")
}

/// The conditions of the Node as it was seen last: since when they are what they are.
#[derive(Debug, Default)]
pub(in crate::upload) struct Seen(Vec<SeenCondition>);

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct SeenCondition {
    #[serde(rename = "type")]
    condition: String,
    status: String,
    #[serde(default)]
    last_transition_time: Option<String>,
}

impl Seen {
    /// Reads a Node; of one that cannot be read nothing is known.
    pub(in crate::upload) fn read(node: &str) -> Self {
        #[derive(Deserialize)]
        struct Node {
            status: Status,
        }
        #[derive(Deserialize)]
        struct Status {
            conditions: Vec<SeenCondition>,
        }
        let mut conditions =
            serde_json::from_str::<Node>(node).map(|node| node.status.conditions).unwrap_or_default();
        conditions.truncate(MAX_CONDITIONS);
        Self(conditions)
    }

    pub(in crate::upload) fn is_ready(&self) -> bool {
        self.0.iter().any(|seen| seen.condition == READY && seen.status == "True")
    }

    /// As a Node has them.
    fn conditions(&self) -> Vec<Value> {
        let since = |seen: &SeenCondition| seen.last_transition_time.clone().unwrap_or_default();
        let value = |seen: &SeenCondition| json!({ "type": seen.condition, "status": seen.status, "lastTransitionTime": since(seen) });
        self.0.iter().map(value).collect()
    }
}

/// The whole Node, as far as it is the node's to say.
fn whole(name: &str, report: &NodeReport, seen: &Seen, wall: i64) -> Object {
    let now = Timestamp::from_millisecond(wall).unwrap_or_default();
    let mut node = new_node(name);
    if let Some(status) = node.fields_mut().get_mut("status") {
        *status = json!({ "conditions": seen.conditions() });
    }
    merge_report(&mut node, report, now);
    set_node_condition(&mut node, &agent_ready(), now);
    let is_told = |condition: &Value| {
        let kind = condition.get("type").and_then(Value::as_str).unwrap_or_default();
        kind == READY || report.conditions.iter().any(|told| told.condition == kind)
    };
    if let Some(Value::Array(conditions)) = status(&mut node).and_then(|status| status.get_mut("conditions"))
    {
        conditions.retain(is_told);
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

/// The content of the registration.
fn insert(whole: &Object) -> String {
    let mut node = whole.clone();
    node.set_metadata("creationTimestamp", Value::Null);
    let mut fields = node.into_fields();
    fields.retain(|field, _| matches!(field.as_str(), "metadata" | "status"));
    fields.insert("spec".to_owned(), json!({ "taints": [{ "key": TAINT, "effect": "NoSchedule" }] }));
    Value::Object(fields).to_string()
}

/// A strategic merge patch of the status. Labels and annotations can be set by it too: nothing is removed.
fn patch(whole: &Object) -> String {
    let mut whole = whole.clone();
    let mut changed = status(&mut whole).map(std::mem::take).unwrap_or_default();
    if let Some(Value::Array(addresses)) = changed.get_mut("addresses") {
        // They are merged by their type otherwise, and one that is no longer there would stay.
        addresses.push(json!({ "$patch": "replace" }));
    }
    order(&mut changed);
    let metadata = json!({ "labels": whole.labels(), "annotations": whole.annotations() });
    json!({ "metadata": metadata, "status": changed }).to_string()
}

/// Only that the Node is ready.
pub(in crate::upload) fn ready_patch(name: &str, seen: &Seen, wall: i64) -> String {
    let mut whole = whole(name, &NodeReport::default(), seen, wall);
    let mut changed = status(&mut whole).map(std::mem::take).unwrap_or_default();
    order(&mut changed);
    json!({ "status": changed }).to_string()
}

/// Adds what kubelets say of the order of conditions.
fn order(status: &mut Map<String, Value>) {
    let conditions = status.get("conditions").and_then(Value::as_array);
    let kinds = conditions.into_iter().flatten().map(|condition| json!({ "type": condition.get("type") }));
    let kinds = kinds.collect::<Vec<_>>();
    status.insert("$setElementOrder/conditions".to_owned(), kinds.into());
}
