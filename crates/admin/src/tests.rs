//! Fixtures: documents as sent on the wire, in `tests/fixtures/admin`.

mod page;

use std::path::PathBuf;

use serde::Serialize;
use serde_json::Value;

use crate::{Answer, read, samples};

/// Environment variable that rewrites the fixtures instead of comparing them.
const REWRITE: &str = "REWRITE_FIXTURES";

fn path(name: &str) -> PathBuf {
    [env!("CARGO_MANIFEST_DIR"), "../../tests/fixtures/admin", &format!("{name}.json")].iter().collect()
}

/// Compares a response with its fixture, and the parsed fixture with the response.
fn compare<T: Answer + Serialize + PartialEq + std::fmt::Debug>(name: &str, answer: &T) {
    let path = path(name);
    let text = serde_json::to_string_pretty(&serde_json::to_value(answer).unwrap()).unwrap() + "\n";
    if std::env::var_os(REWRITE).is_some() {
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(&path, &text).unwrap();
    }
    let known = std::fs::read_to_string(&path).unwrap_or_default();
    assert_eq!(known, text, "{}: run the tests with {REWRITE}=1 if the change is meant", path.display());
    let known: Value = serde_json::from_str(&known).unwrap();
    assert_eq!(read::<T>(&known).unwrap(), *answer, "{name}");
}

#[test]
fn agent_responses_equal_the_fixtures() {
    compare("status", &samples::full_status());
    compare("traffic", &samples::traffic());
    compare("files", &samples::files());
    compare("files-check", &samples::files_check());
    compare("seal", &samples::seal());
    compare("verification", &samples::verification());
    compare("check", &samples::check_report());
}

#[test]
fn cloud_responses_equal_the_fixtures() {
    compare("nodes", &samples::node_list());
    compare("node", &samples::full_node());
    compare("node-history", &samples::node_history());
    compare("node-objects", &samples::node_objects());
    compare("summary", &samples::summary());
    compare("summary-history", &samples::fleet_history());
    compare("objects", &samples::objects());
    compare("labels", &samples::label_keys());
    compare("label-values", &samples::label_values());
    compare("placement", &samples::placement());
    compare("rules", &samples::rules());
    compare("rollout", &samples::rollout());
    compare("rollout-of-rule", &samples::rollout_of_rule());
    compare("rollout-status", &samples::rollout_status());
    compare("tokens", &samples::token_list());
    compare("new-token", &samples::new_token());
    compare("operators", &samples::operator_list());
    compare("page", &samples::page());
}

/// Removes each key of a document in turn.
fn without_each(value: &Value, take: &mut dyn FnMut(&str, Value)) {
    match value {
        Value::Object(fields) => {
            for key in fields.keys() {
                let mut less = fields.clone();
                less.remove(key);
                take(key, Value::Object(less));
                without_each(&fields[key], &mut |name, changed| {
                    let mut other = fields.clone();
                    other.insert(key.clone(), changed);
                    take(name, Value::Object(other));
                });
            }
        }
        Value::Array(items) => {
            for (place, item) in items.iter().enumerate() {
                without_each(item, &mut |name, changed| {
                    let mut other = items.clone();
                    other[place] = changed;
                    take(name, Value::Array(other));
                });
            }
        }
        _ => {}
    }
}

#[test]
fn every_missing_key_of_the_status_is_an_error() {
    // Except keys of maps, and optional keys of conditions, object references and the link.
    let optional = [
        "status",
        "v1/ConfigMap",
        "protocol",
        "secrets",
        "message",
        "lastTransitionTime",
        "namespace",
        "plan",
    ];
    let full = serde_json::to_value(samples::full_status()).unwrap();
    let mut count = 0;
    without_each(&full, &mut |key, less| match read::<crate::agent::AgentStatus>(&less) {
        Ok(_) => assert!(optional.contains(&key), "{key}"),
        Err(error) => {
            count += 1;
            assert!(error.to_string().contains(&format!("missing field `{key}`;")), "{key}: {error}");
        }
    });
    assert!(count > 100, "{count}");
}

#[test]
fn every_missing_key_of_a_served_node_is_an_error() {
    // Except keys of maps, keys in the response for one node only, and those of the certificates,
    // which stand beside the node's and are absent together.
    let optional = [
        "site",
        "namespace",
        "certificateEnds",
        "revoked",
        "refusedObjects",
        "heldBackObjects",
        "objectsNotInEffect",
        "nextCheckIn",
        "waitingForLink",
    ];
    let full = serde_json::to_value(samples::full_node()).unwrap();
    let mut count = 0;
    without_each(&full, &mut |key, less| match read::<crate::cloud::NodeInfo>(&less) {
        Ok(_) => assert!(optional.contains(&key), "{key}"),
        Err(error) => {
            count += 1;
            assert!(error.to_string().contains(&format!("missing field `{key}`;")), "{key}: {error}");
        }
    });
    assert!(count > 40, "{count}");
}
