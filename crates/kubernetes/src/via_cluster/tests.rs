//! Tests of the node information derived from Nodes and Leases.

use jiff::Timestamp;

use super::*;

fn object(value: Value) -> Object {
    let Value::Object(fields) = value else { panic!("an object") };
    Object::from(fields)
}

/// A Node with the conditions `Ready` and `InSync`, given as status and message.
fn node(ready: &str, in_sync: &[(&str, &str)]) -> Object {
    let mut conditions = vec![json!({"type": "Ready", "status": ready})];
    let sync = |(status, message): &(&str, &str)| json!({"type": "edgesync.io/InSync", "status": status, "message": message});
    conditions.extend(in_sync.iter().map(sync));
    object(json!({
        "metadata": {"name": "edge-1"},
        "status": {"conditions": conditions, "nodeInfo": {"kubeletVersion": "v0.1.0-edgesync"}},
    }))
}

fn at(second: i64) -> Timestamp {
    Timestamp::from_second(second).unwrap()
}

#[test]
fn the_state_of_a_node_follows_its_conditions() {
    let held = "3 objects to be sent or removed, 20 objects held back from removal until confirmed";
    for (ready, in_sync, state, shown) in [
        ("True", vec![("True", "")], "in sync", [Some(0), Some(0), Some(0)]),
        ("True", vec![("False", "1 object to be sent or removed")], "syncing", [Some(1), Some(0), Some(0)]),
        ("True", vec![("False", "2 objects rejected by the node")], "live", [Some(0), Some(2), Some(0)]),
        ("True", vec![("False", held)], "held back", [Some(3), Some(0), Some(20)]),
        ("True", vec![], "connecting", [None; 3]),
        ("Unknown", vec![("Unknown", held)], "offline", [None; 3]),
    ] {
        let node = json!(nodes::show(&node(ready, &in_sync), None, None));
        assert_eq!(node["state"], state, "{node}");
        assert_eq!(node["ready"], ready == "True");
        for (field, count) in ["pending", "rejected", "heldBack"].iter().zip(shown) {
            assert_eq!(node[field], json!(count), "{field} of {node}");
        }
    }
    let silent = object(json!({"metadata": {"name": "edge-1"}}));
    let shown = json!(nodes::show(&silent, None, None));
    assert_eq!((&shown["state"], &shown["ready"]), (&json!("offline"), &Value::Null));
    assert_eq!(nodes::held_back(&silent), None);
}

#[test]
fn a_node_has_its_replica_and_its_removal() {
    let lease = object(json!({
        "metadata": {"name": "edge-1", "annotations": {"edgesync.io/served-by": "cloud-a"}},
        "spec": {"renewTime": "2026-11-23T06:00:00.000000Z"},
    }));
    let node = node("True", &[("True", "")]);
    let shown = json!(nodes::show(&node, Some(&lease), None));
    assert_eq!(shown["servedBy"], "cloud-a");
    assert_eq!(shown["lastRenewal"], "2026-11-23T06:00:00.000000Z");
    let claimed = object(json!({"spec": {"renewTime": "1970-01-01T00:00:00.000000Z"}}));
    assert_eq!(
        json!(nodes::show(&node, Some(&claimed), None))["lastRenewal"],
        Value::Null,
        "it has none yet"
    );
    assert_eq!(shown["agentVersion"], "0.1.0");
    assert_eq!(json!(nodes::show(&node, None, Some(at(1))))["state"], "being removed");

    let removed = ["a", "edge-1", "z"].map(|name| NodeName::parse(name).unwrap());
    let removed: Vec<_> = removed.into_iter().zip(1..).map(|(name, second)| (name, at(second))).collect();
    let all = json!(nodes::all(&[node], &[lease], &removed));
    let states: Vec<_> =
        all.as_array().unwrap().iter().map(|node| (node["name"].as_str().unwrap(), &node["state"])).collect();
    assert_eq!(
        states,
        [("a", &json!("removed")), ("edge-1", &json!("being removed")), ("z", &json!("removed"))]
    );
}

#[test]
fn cluster_failures_keep_their_message_and_get_a_code() {
    let key = kinds::guess("v1", "Node", false).key("", "a");
    for (failure, code) in [
        (Failure::Forbidden("User \"eve\" cannot list nodes".into()), 403),
        (Failure::NotFound(key.clone()), 404),
        (Failure::Conflict(key), 503),
        (Failure::Invalid("no".into()), 400),
    ] {
        let message = failure.to_string();
        let status = membership_status(failure.into());
        assert_eq!((status.code, status.message), (code, message));
    }
}
