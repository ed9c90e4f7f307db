//! Compares every object and every record on both sides.

use std::collections::BTreeMap;

use serde_json::Value;

use super::DemoError;
use super::objects::NAMESPACES;
use edgesync_admin::Route;
use edgesync_api::Client;
use edgesync_cli::get::Pages;
use edgesync_object::{Resource, objectsync};

/// The most differences listed.
const MAX_LISTED: usize = 10;
/// Record fields that both sides must agree on; the store sets the others.
const RECORD_FIELDS: [&str; 5] =
    ["/kind", "/metadata/name", "/metadata/namespace", "/spec", "/status/objectResourceVersion"];

/// Metadata fields that each side sets for itself.
const OWN_FIELDS: [&str; 2] = ["resourceVersion", "managedFields"];

/// All objects of one side.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Side {
    /// Objects by kind, namespace and name.
    pub(super) objects: BTreeMap<String, Value>,
    /// ObjectSyncs and ClusterObjectSyncs, likewise.
    pub(super) records: BTreeMap<String, Value>,
}

impl Side {
    /// Reads every object that a side serves, of any kind.
    ///
    /// # Errors
    /// The side does not answer.
    pub(super) async fn fetch(client: &Client) -> Result<Self, DemoError> {
        let resources: Vec<Resource> = client.get(&Route::Resources.path()).await?;
        let mut side = Self::default();
        for resource in &resources {
            let target =
                if objectsync::is_sync_record(resource) { &mut side.records } else { &mut side.objects };
            let mut pages = Pages::new(client, resource, None, "");
            while let Some(items) = pages.next().await? {
                for item in items {
                    let object: Value = serde_json::from_str(item.get())
                        .map_err(|error| DemoError::Unexpected(format!("parse object: {error}")))?;
                    target.insert(key(resource, &object), object);
                }
            }
        }
        Ok(side)
    }

    /// Retains the objects that the demo placed, without Namespaces, which the cloud side creates,
    /// and without the reports of node and agent.
    pub(super) fn placed(mut self) -> Self {
        let namespace = |object: &Value| {
            object.pointer("/metadata/namespace").and_then(Value::as_str).unwrap_or_default().to_owned()
        };
        self.objects.retain(|_, object| NAMESPACES.contains(&&*namespace(object)));
        self
    }
}

fn key(resource: &Resource, object: &Value) -> String {
    let field = |pointer| object.pointer(pointer).and_then(Value::as_str).unwrap_or_default();
    let (namespace, name) = (field("/metadata/namespace"), field("/metadata/name"));
    if namespace.is_empty() {
        format!("{} {name}", resource.kind)
    } else {
        format!("{} {namespace}/{name}", resource.kind)
    }
}

/// Result of a comparison.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Comparison {
    /// Objects on the cloud side.
    pub(super) objects: usize,
    /// Records on the cloud side.
    pub(super) records: usize,
    /// Number of objects and records that differ.
    pub(super) differing: usize,
    /// Descriptions of the first differences.
    pub(super) differences: Vec<String>,
}

impl Comparison {
    fn add_difference(&mut self, difference: String) {
        self.differing += 1;
        if self.differences.len() < MAX_LISTED {
            self.differences.push(difference);
        }
    }

    fn sides(
        &mut self,
        cloud: &BTreeMap<String, Value>,
        node: &BTreeMap<String, Value>,
        view: fn(&Value) -> Value,
    ) {
        for (key, in_cloud) in cloud {
            match node.get(key).map(view) {
                None => self.add_difference(format!("{key}: missing on the node")),
                Some(on_node) => {
                    if let Some((field, cloud, node)) =
                        first_difference("", Some(&view(in_cloud)), Some(&on_node))
                    {
                        let field = if field.is_empty() { "/" } else { &field };
                        self.add_difference(format!(
                            "{key}: {field} is {cloud} in the cloud and {node} on the node"
                        ));
                    }
                }
            }
        }
        for key in node.keys().filter(|key| !cloud.contains_key(*key)) {
            self.add_difference(format!("{key}: on the node only"));
        }
    }
}

/// Compares objects except for fields that each side sets, records with each other, and records
/// with their objects.
pub(super) fn compare(cloud: &Side, node: &Side, node_name: &str) -> Comparison {
    let mut found =
        Comparison { objects: cloud.objects.len(), records: cloud.records.len(), ..Comparison::default() };
    found.sides(&cloud.objects, &node.objects, object);
    found.sides(&cloud.records, &node.records, record);
    let held: BTreeMap<&str, &str> = cloud.records.values().filter_map(held).collect();
    for (key, object) in &cloud.objects {
        let field = |name: &str| object.pointer(name).and_then(Value::as_str).unwrap_or_default();
        let name = format!("{node_name}.{}", field("/metadata/uid"));
        let (version, recorded) = (field("/metadata/resourceVersion"), held.get(name.as_str()));
        if recorded != Some(&version) {
            let recorded = recorded.unwrap_or(&"none");
            found.add_difference(format!("{key}: version {version}, recorded as held: {recorded}"));
        }
    }
    found
}

/// Returns an object without the fields that its store sets; the record has the cloud's version.
fn object(object: &Value) -> Value {
    let mut object = object.clone();
    if let Some(metadata) = object.get_mut("metadata").and_then(Value::as_object_mut) {
        for field in OWN_FIELDS {
            metadata.remove(field);
        }
    }
    object
}

fn record(record: &Value) -> Value {
    RECORD_FIELDS.iter().map(|field| record.pointer(field).unwrap_or(&Value::Null).clone()).collect()
}

/// Returns the name of a record, and its held version.
fn held(record: &Value) -> Option<(&str, &str)> {
    let field = |pointer| record.pointer(pointer).and_then(Value::as_str);
    Some((field("/metadata/name")?, field("/status/objectResourceVersion")?))
}

/// Returns the first field that differs, as a JSON pointer, with both values.
fn first_difference(
    at: &str,
    one: Option<&Value>,
    other: Option<&Value>,
) -> Option<(String, String, String)> {
    if one == other {
        return None;
    }
    if let (Some(Value::Object(one)), Some(Value::Object(other))) = (one, other) {
        let mut names = one.keys().chain(other.keys());
        return names
            .find_map(|name| first_difference(&format!("{at}/{name}"), one.get(name), other.get(name)));
    }
    let short = |value: Option<&Value>| match value {
        Some(value) => value.to_string().chars().take(60).collect(),
        None => "missing".to_owned(),
    };
    Some((at.to_owned(), short(one), short(other)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn side(objects: &[(&str, &str)]) -> Side {
        let mut side = Side::default();
        for (name, version) in objects {
            let uid = format!("uid-{name}");
            let object = json!({
                "metadata": {"name": name, "namespace": "a", "uid": uid, "resourceVersion": version},
                "data": {"k": version},
            });
            side.objects.insert(format!("ConfigMap a/{name}"), object);
            let record = json!({
                "kind": "ObjectSync",
                "metadata": {"name": format!("n.{uid}"), "namespace": "a"},
                "spec": {"objectName": name},
                "status": {"objectResourceVersion": version},
            });
            side.records.insert(format!("ObjectSync a/n.{uid}"), record);
        }
        side
    }

    fn differences(cloud: &Side, node: &Side) -> Vec<String> {
        compare(cloud, node, "n").differences
    }

    #[test]
    fn equal_sides_have_no_differences() {
        let cloud = side(&[("x", "1"), ("y", "2")]);
        let mut node = cloud.clone();
        for record in node.records.values_mut() {
            record["metadata"]["uid"] = json!("other");
            record["metadata"]["resourceVersion"] = json!("99");
        }
        for object in node.objects.values_mut() {
            object["metadata"]["resourceVersion"] = json!("99");
        }
        let found = compare(&cloud, &node, "n");
        assert_eq!(found, Comparison { objects: 2, records: 2, ..Comparison::default() });
    }

    #[test]
    fn missing_extra_and_changed_objects_are_listed_by_name() {
        let cloud = side(&[("x", "1"), ("y", "2")]);
        let mut node = side(&[("y", "2"), ("z", "3")]);
        node.objects.get_mut("ConfigMap a/y").unwrap()["data"]["k"] = json!("changed");
        let differences = differences(&cloud, &node);
        for expected in [
            "ConfigMap a/x: missing on the node",
            "ConfigMap a/y: /data/k is \"2\" in the cloud and \"changed\" on the node",
            "ConfigMap a/z: on the node only",
            "ObjectSync a/n.uid-x: missing on the node",
        ] {
            assert!(
                differences.iter().any(|differences| differences == expected),
                "{expected} is not in {differences:?}"
            );
        }
    }

    #[test]
    fn record_with_another_version_is_a_difference() {
        let mut cloud = side(&[("x", "1")]);
        let record = cloud.records.values_mut().next().unwrap();
        record["status"]["objectResourceVersion"] = json!("0");
        let node = cloud.clone();
        assert_eq!(differences(&cloud, &node), ["ConfigMap a/x: version 1, recorded as held: 0"]);
    }

    #[test]
    fn differences_are_all_counted_and_some_listed() {
        let names: Vec<String> = (0..50).map(|number| format!("o{number}")).collect();
        let objects: Vec<(&str, &str)> = names.iter().map(|name| (name.as_str(), "1")).collect();
        let found = compare(&side(&objects), &Side::default(), "n");
        assert_eq!((found.differing, found.differences.len()), (100, MAX_LISTED));
    }
}
