//! Responses of a cloud side.

use std::collections::BTreeMap;

use jiff::Timestamp;

use super::rejected;
use crate::cloud::*;
use edgesync_object::{Labels, NodeName, ObjectRef};

const TIME: &str = "2026-11-21T10:00:00Z";

fn some(text: &str) -> Option<String> {
    Some(text.to_owned())
}

fn labels() -> Labels {
    Labels::from([("site".to_owned(), "north".to_owned())])
}

fn object() -> ObjectRef {
    ObjectRef {
        api_version: "v1".into(),
        kind: "ConfigMap".into(),
        namespace: "plant".into(),
        name: "web".into(),
    }
}

fn membership() -> Membership {
    Membership { certificate_ends: some("2027-11-21T10:00:00Z"), revoked: false }
}

/// A node in sync, as in a list.
#[must_use]
pub fn served_node() -> ServedNode {
    ServedNode {
        name: "edge-1".to_owned(),
        state: "in sync".to_owned(),
        ready: Some(true),
        labels: Some(labels()),
        last_renewal: some(TIME),
        agent_version: some("0.1.0"),
        last_report: some(TIME),
        objects: NodeObjectCounts {
            held: 3,
            desired: 3,
            pending: 0,
            rejected: 0,
            held_back: 0,
            files_in_effect: None,
            files_not_in_effect: None,
        },
        traffic: NodeTraffic {
            confirmed_revision: 3,
            bytes_sent: 4096,
            bytes_received: 2048,
            round_trip_milliseconds: Some(1.5),
        },
        counters: NodeCounters::default(),
        membership: Some(membership()),
        refused_objects: None,
        held_back_objects: None,
        objects_not_in_effect: None,
        next_check_in: None,
        waiting_for_link: None,
    }
}

#[must_use]
pub fn not_in_effect() -> ObjectNotInEffect {
    ObjectNotInEffect {
        uid: "u-2".to_owned(),
        object: Some(object()),
        held: some("8"),
        in_effect: some("7"),
        desired: "8".to_owned(),
        state: "NotInEffect".to_owned(),
        rule: "nginx".to_owned(),
        message: "exit status: 1".to_owned(),
        since: some(TIME),
    }
}

/// A node in full, with an object in each out-of-sync state.
#[must_use]
pub fn full_node() -> NodeInfo {
    let node = served_node();
    let objects = NodeObjectCounts { files_in_effect: Some(2), files_not_in_effect: Some(1), ..node.objects };
    NodeInfo::Served(Box::new(ServedNode {
        objects,
        refused_objects: Some(vec![rejected()]),
        held_back_objects: Some(vec![HeldBackObject { uid: "u-3".to_owned(), object: Some(object()) }]),
        objects_not_in_effect: Some(vec![not_in_effect()]),
        next_check_in: some(TIME),
        waiting_for_link: Some(super::waiting_for_link()),
        ..node
    }))
}

/// A node as recorded in a cluster.
#[must_use]
pub fn recorded_node() -> RecordedNode {
    RecordedNode {
        name: "edge-2".to_owned(),
        state: "syncing".to_owned(),
        ready: Some(true),
        labels: labels(),
        last_renewal: some(TIME),
        agent_version: some("0.1.0"),
        served_by: some("replica-0"),
        pending: Some(2),
        rejected: Some(0),
        held_back: Some(0),
        files_in_effect: None,
        files_not_in_effect: None,
        removed: None,
        next_check_in: None,
        membership: Some(membership()),
    }
}

#[must_use]
pub fn removed_node() -> RemovedNode {
    RemovedNode {
        name: "edge-3".to_owned(),
        state: state::REMOVED.to_owned(),
        removed: TIME.to_owned(),
        connected: Some(true),
        objects_not_in_effect: None,
    }
}

/// A node that has only joined.
#[must_use]
pub fn joined_node() -> JoinedNode {
    JoinedNode {
        name: "edge-4".to_owned(),
        state: state::NEVER_CONNECTED.to_owned(),
        membership: membership(),
        ready: None,
        objects_not_in_effect: None,
    }
}

/// A list with one node of each variant.
#[must_use]
pub fn node_list() -> NodeList {
    NodeList {
        incarnation: "i-1".to_owned(),
        bad_frames: Some(BTreeMap::from([("protocol".to_owned(), 1)])),
        frames_of_removed_nodes: Some(2),
        items: vec![
            NodeInfo::Served(Box::new(served_node())),
            NodeInfo::Recorded(Box::new(recorded_node())),
            NodeInfo::Removed(removed_node()),
            NodeInfo::Joined(joined_node()),
        ],
    }
}

/// Two minutes of a node.
#[must_use]
pub fn node_history() -> NodeHistory {
    NodeHistory {
        last: 1_795_255_200,
        seconds: 60,
        latency_milliseconds: vec![3, 4],
        bytes_sent: vec![50, 5],
        bytes_received: vec![60, 0],
    }
}

fn states() -> Vec<String> {
    vec!["in sync".to_owned(), "syncing".to_owned()]
}

/// One sample of the fleet.
#[must_use]
pub fn fleet_history() -> FleetHistory {
    FleetHistory {
        states: states(),
        at: vec![1_795_255_200],
        counts: vec![vec![1], vec![0]],
        held: vec![3],
        desired: vec![3],
        bytes_sent: vec![4096],
        bytes_received: vec![2048],
    }
}

#[allow(clippy::expect_used, reason = "the samples are for tests")]
fn node_name(name: &str) -> NodeName {
    NodeName::parse(name).expect("a valid name")
}

/// A summary of one node.
#[must_use]
pub fn summary() -> SummaryLine {
    SummaryLine::Snapshot(SummaryRows {
        start: "s".to_owned(),
        revision: 1,
        at: 1_795_255_200_000,
        states: states(),
        counts: vec![1, 0],
        held: 3,
        desired: 3,
        gone: vec![node_name("edge-9")],
        nodes: vec![SummaryRow(node_name("edge-1"), 0, 1_795_255_200, 3, 3, 0, 0)],
    })
}

#[must_use]
pub fn placed_object() -> PlacedObject {
    PlacedObject {
        uid: "u-2".to_owned(),
        resource_version: "8".to_owned(),
        api_version: "v1".to_owned(),
        kind: "ConfigMap".to_owned(),
        plural: "configmaps".to_owned(),
        namespace: "plant".to_owned(),
        name: "web".to_owned(),
        bytes: 512,
    }
}

/// A list of one object.
#[must_use]
pub fn objects() -> ObjectList {
    ObjectList { items: vec![placed_object()], more: false }
}

/// A node that rejects an object.
#[must_use]
pub fn node_objects() -> NodeObjects {
    let rejection =
        Rejection { reason: "TooLarge".to_owned(), message: "must be at most 9 bytes".to_owned() };
    NodeObjects {
        items: vec![NodeObject { object: placed_object(), held: some("7"), rejection: Some(rejection) }],
        more: false,
        known: true,
    }
}

/// Returns one label key, which two nodes have with the same value.
#[must_use]
pub fn label_keys() -> LabelKeys {
    LabelKeys { keys: vec![LabelKey { key: "site".to_owned(), nodes: 2, values: 1 }] }
}

/// One value with its nodes.
#[must_use]
pub fn label_values() -> LabelValues {
    let values = BTreeMap::from([("north".to_owned(), vec!["edge-1".to_owned()])]);
    LabelValues { key: "site".to_owned(), values }
}

/// An object placed by one rule and not by another.
#[must_use]
pub fn placement() -> PlacementExplanation {
    let verdict = |rule: &str, node_mismatch: Option<&str>| RuleVerdict {
        rule: rule.to_owned(),
        selects_node: node_mismatch.is_none(),
        node_mismatch: node_mismatch.map(str::to_owned),
        selects_object: Some(true),
        object_mismatch: None,
    };
    PlacementExplanation {
        node: "edge-1".to_owned(),
        labels: Some(labels()),
        rules: vec![
            verdict("Placement plant/web", None),
            verdict("configuration [[placement]] 1", Some("nodes.names: x")),
        ],
        object: Some(ObjectVerdict {
            desired: true,
            state: "rejected by the node, TooLarge: no".to_owned(),
            facts: Some(ObjectFacts {
                uid: "u-2".to_owned(),
                version: "8".to_owned(),
                labels: labels(),
                because: vec!["Placement plant/web".to_owned()],
                held: None,
            }),
        }),
    }
}

fn rule() -> RuleName {
    RuleName {
        kind: "Placement".to_owned(),
        namespace: "plant".to_owned(),
        name: "web".to_owned(),
        uid: some("u-5"),
        in_force: None,
    }
}

/// A rule object, and a rule of the configuration.
#[must_use]
pub fn rules() -> RuleList {
    let configured = RuleName {
        kind: "configuration".to_owned(),
        namespace: String::new(),
        name: "1".to_owned(),
        uid: None,
        in_force: Some(true),
    };
    let rollout = RuleRollout {
        rule: "plant/web".to_owned(),
        revision: Some(2),
        open: 1,
        waves: 2,
        paused: some("FailuresExceeded"),
    };
    let placement = RuleName { in_force: Some(true), ..rule() };
    RuleList {
        items: vec![
            RuleItem { rule: configured, objects: 1, nodes: 2, rollout: None },
            RuleItem { rule: placement, objects: 1, nodes: 2, rollout: Some(rollout) },
        ],
    }
}

/// A roll-out of an object that one of two nodes holds.
#[must_use]
pub fn rollout() -> Rollout {
    Rollout {
        of: RolloutTarget::Object { object: placed_object(), version: "8".to_owned() },
        at: 1_795_255_200_000,
        since: Some(1_795_255_100_000),
        desired: 2,
        holding: 1,
        in_effect: 1,
        not_in_effect: 0,
        states: states(),
        behind: vec![0, 1],
        curve: Curve { at: vec![1_795_255_200_000], holding: vec![1], desired: vec![2], offline: vec![0] },
        stragglers: vec![Straggler {
            node: "edge-2".to_owned(),
            why: "syncing".to_owned(),
            since: some(TIME),
            held: some("7"),
            object: some("ConfigMap plant/web"),
            message: some("must be at most 9 bytes"),
        }],
    }
}

/// The same roll-out for a rule.
#[must_use]
pub fn rollout_of_rule() -> Rollout {
    Rollout { of: RolloutTarget::Placement { placement: rule(), objects: 1 }, ..rollout() }
}

fn time() -> Timestamp {
    Timestamp::from_second(1_795_255_200).unwrap_or_default()
}

fn token() -> Token {
    Token {
        id: "t".to_owned(),
        node: some("edge-1"),
        created: time(),
        expires: time(),
        uses: 2,
        used: 1,
        revoked: Some(time()),
        labels: labels(),
        state: "revoked".to_owned(),
    }
}

#[must_use]
pub fn token_list() -> TokenList {
    TokenList { items: vec![token()] }
}

#[must_use]
pub fn new_token() -> NewToken {
    NewToken { record: token(), token: "t.secret".to_owned(), cloud: some("https://cloud:10002") }
}

#[must_use]
pub fn operator_list() -> OperatorList {
    let operator = Operator {
        serial: "01".to_owned(),
        name: "ada".to_owned(),
        role: "admin".to_owned(),
        created: time(),
        expires: time(),
        revoked: None,
        state: "usable".to_owned(),
    };
    OperatorList { items: vec![operator] }
}

#[must_use]
pub fn page() -> PageInvitation {
    PageInvitation {
        url: "http://127.0.0.1:10003/page/#key=k".to_owned(),
        role: "admin".to_owned(),
        expires: TIME.to_owned(),
    }
}

/// Returns the status of a roll-out that has paused.
pub fn rollout_status() -> RolloutStatus {
    let condition = |kind: &str, status, reason: &str, message: &str| RolloutCondition {
        r#type: kind.to_owned(),
        status,
        reason: reason.to_owned(),
        message: message.to_owned(),
    };
    let revision = |number, open| RolloutRevision {
        number,
        open,
        objects: Some(3),
        started_at: "2026-11-27T10:00:00Z".to_owned(),
        opened_at: "2026-11-27T10:00:00Z".to_owned(),
        good_since: None,
    };
    let wave = |selector: &str, open, failed| RolloutWave {
        selector: selector.to_owned(),
        percent: None,
        open,
        nodes: 2,
        good: 0,
        held_only: 0,
        pending: 0,
        waiting: 0,
        failed,
        away: 0,
        failures: Vec::new(),
    };
    let message = "v1/ConfigMap plant/a: NotInEffect".to_owned();
    let failures = vec![FailedNode { node: "edge-7".to_owned(), message }];
    RolloutStatus {
        rule: "plant/config".to_owned(),
        valid: true,
        paused: some("FailuresExceeded"),
        conditions: vec![
            condition("Progressing", false, "FailuresExceeded", "revision 2, wave 1 of 2"),
            condition("Paused", true, "FailuresExceeded", "too many nodes have failed"),
        ],
        revisions: vec![revision(1, 2), revision(2, 1)],
        waves: vec![RolloutWave { failures, ..wave("stage=canary", true, 1) }, wave("", false, 0)],
        rejected: vec![RejectedVersion { uid: "u-1".to_owned(), version: some("7") }],
        history: vec![EndedRevision {
            number: 0,
            open: 2,
            started_at: "2026-11-26T10:00:00Z".to_owned(),
            ended_at: "2026-11-27T10:00:00Z".to_owned(),
            outcome: "Superseded".to_owned(),
            by: String::new(),
        }],
    }
}
