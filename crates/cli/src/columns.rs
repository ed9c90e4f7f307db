//! Table columns of each kind. Pure.

use jiff::Timestamp;
use serde_json::Value;

use super::output::{NONE, age};
use edgesync_object::{Resource, objectsync};

/// A column: header, source of its cells, and whether it is shown in wide output only.
#[derive(Clone, Copy)]
pub(super) struct Column {
    pub(super) header: &'static str,
    cell: Cell,
    wide: bool,
}

#[derive(Clone, Copy)]
enum Cell {
    Field(&'static str),
    /// The total length of several maps.
    Count(&'static [&'static str]),
    /// The age of a time field.
    Age(&'static str),
    /// `key=value,…` of a map.
    Pairs(&'static str),
    /// The node in the name of an ObjectSync.
    SyncNode,
    /// The ready state of a Node.
    Ready,
}

const fn column(header: &'static str, cell: Cell) -> Column {
    Column { header, cell, wide: false }
}

const fn wide(header: &'static str, cell: Cell) -> Column {
    Column { header, cell, wide: true }
}

const NAME: Column = column("NAME", Cell::Field("/metadata/name"));
const NAMESPACE: Column = column("NAMESPACE", Cell::Field("/metadata/namespace"));
const AGE: Column = column("AGE", Cell::Age("/metadata/creationTimestamp"));
const RESOURCE_VERSION: Cell = Cell::Field("/metadata/resourceVersion");
const UID: Column = wide("UID", Cell::Field("/metadata/uid"));
const LABELS: Column = wide("LABELS", Cell::Pairs("/metadata/labels"));

/// Returns the columns between name and age.
fn specific_columns(group: &str, kind: &str) -> &'static [Column] {
    const CONFIG_MAP: &[Column] = &[column("DATA", Cell::Count(&["/data", "/binaryData"]))];
    const SECRET: &[Column] =
        &[column("TYPE", Cell::Field("/type")), column("DATA", Cell::Count(&["/data"]))];
    const POD: &[Column] =
        &[column("STATUS", Cell::Field("/status/phase")), column("NODE", Cell::Field("/spec/nodeName"))];
    const NODE: &[Column] = &[column("STATUS", Cell::Ready)];
    const NAMESPACE: &[Column] = &[column("STATUS", Cell::Field("/status/phase"))];
    const LEASE: &[Column] = &[
        column("HOLDER", Cell::Field("/spec/holderIdentity")),
        column("RENEWED", Cell::Age("/spec/renewTime")),
    ];
    const EVENT: &[Column] = &[
        column("TYPE", Cell::Field("/type")),
        column("REASON", Cell::Field("/reason")),
        column("OBJECT", Cell::Field("/involvedObject/name")),
        column("MESSAGE", Cell::Field("/message")),
    ];
    match (group, kind) {
        ("", "ConfigMap") => CONFIG_MAP,
        ("", "Secret") => SECRET,
        ("", "Pod") => POD,
        ("", "Node") => NODE,
        ("", "Namespace") => NAMESPACE,
        ("", "Event") => EVENT,
        ("coordination.k8s.io", "Lease") => LEASE,
        _ => &[],
    }
}

/// Columns of ObjectSyncs; the fields of the synced object matter most.
const SYNC: [Column; 9] = [
    column("NODE", Cell::SyncNode),
    column("KIND", Cell::Field("/spec/objectKind")),
    NAMESPACE,
    column("OBJECT", Cell::Field("/spec/objectName")),
    column("VERSION", Cell::Field("/status/objectResourceVersion")),
    wide("IN EFFECT", Cell::Field("/metadata/labels/edgesync.io~1in-effect")),
    wide("STATE", Cell::Field("/metadata/labels/edgesync.io~1effect-state")),
    AGE,
    wide("RECORD VERSION", RESOURCE_VERSION),
];

/// Order of the rows of ObjectSyncs: by node, namespace, name and kind of the synced object.
pub(super) const SYNC_ORDER: [usize; 4] = [0, 2, 3, 1];

/// Returns the columns of a kind, with the namespace if several are shown.
pub(super) fn columns(resource: &Resource, all_namespaces: bool, is_wide: bool) -> Vec<Column> {
    let mut columns = Vec::new();
    if objectsync::is_sync_record(resource) {
        columns.extend(SYNC);
    } else {
        columns.extend(all_namespaces.then_some(NAMESPACE));
        columns.push(NAME);
        columns.extend_from_slice(specific_columns(&resource.group, &resource.kind));
        columns.extend([AGE, wide("VERSION", RESOURCE_VERSION)]);
    }
    columns.extend([UID, LABELS]);
    columns.retain(|column| is_wide || !column.wide);
    columns
}

impl Column {
    /// Returns the cell of an object.
    pub(super) fn cell_of(&self, object: &Value, now: Timestamp) -> String {
        let text = |pointer: &str| object.pointer(pointer).and_then(Value::as_str).unwrap_or_default();
        let or_none = |text: &str| if text.is_empty() { NONE.to_owned() } else { text.to_owned() };
        match self.cell {
            Cell::Field(pointer) => match object.pointer(pointer) {
                Some(value @ (Value::Number(_) | Value::Bool(_))) => value.to_string(),
                _ => or_none(text(pointer)),
            },
            Cell::Count(pointers) => {
                let entries = |pointer: &&str| {
                    object.pointer(pointer).and_then(Value::as_object).map_or(0, serde_json::Map::len)
                };
                pointers.iter().map(entries).sum::<usize>().to_string()
            }
            Cell::Age(pointer) => age(now, text(pointer)),
            Cell::Pairs(pointer) => {
                let pairs = object.pointer(pointer).and_then(Value::as_object).into_iter().flatten();
                let pairs: Vec<String> = pairs
                    .map(|(key, value)| format!("{key}={}", value.as_str().unwrap_or_default()))
                    .collect();
                or_none(&pairs.join(","))
            }
            Cell::SyncNode => {
                or_none(objectsync::split_sync_name(text("/metadata/name")).map_or("", |(node, _)| node))
            }
            Cell::Ready => {
                let conditions = object.pointer("/status/conditions").and_then(Value::as_array);
                let ready = conditions.into_iter().flatten().find(|condition| condition["type"] == "Ready");
                let shown = ready.map(|ready| if ready["status"] == "True" { "Ready" } else { "NotReady" });
                shown.unwrap_or("Unknown").to_owned()
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use edgesync_object::kinds;
    use serde_json::json;

    fn line(word: &str, all_namespaces: bool, is_wide: bool, object: &Value) -> String {
        let resource = kinds::by_word(word).unwrap().resource();
        let now = "2024-01-02T00:00:00Z".parse().unwrap();
        let columns = columns(&resource, all_namespaces, is_wide);
        columns.iter().map(|column| format!("{}={} ", column.header, column.cell_of(object, now))).collect()
    }

    #[test]
    fn kinds_show_their_specific_columns() {
        let config_map = json!({
            "metadata": {"name": "c", "namespace": "n", "creationTimestamp": "2024-01-01T23:00:00Z",
                "resourceVersion": "7", "labels": {"a": "b", "c": "d"}},
            "data": {"x": "1"}, "binaryData": {"y": ""},
        });
        assert_eq!(line("cm", false, false, &config_map), "NAME=c DATA=2 AGE=60m ");
        assert_eq!(
            line("cm", true, true, &config_map),
            "NAMESPACE=n NAME=c DATA=2 AGE=60m VERSION=7 UID=<none> LABELS=a=b,c=d "
        );
        assert_eq!(line("deploy", false, false, &config_map), "NAME=c AGE=60m ");
        let node = json!({"status": {"conditions": [{"type": "Ready", "status": "True"}]}});
        assert_eq!(line("nodes", false, false, &node), "NAME=<none> STATUS=Ready AGE=<unknown> ");
    }

    #[test]
    fn headers_of_a_table_are_unique() {
        for word in ["cm", "secrets", "pods", "nodes", "ns", "leases", "events", "deploy", "objectsyncs"] {
            let resource = kinds::by_word(word).unwrap().resource();
            let mut headers: Vec<_> =
                columns(&resource, true, true).iter().map(|column| column.header).collect();
            let all = headers.len();
            headers.sort_unstable();
            headers.dedup();
            assert_eq!(headers.len(), all, "{word}: {headers:?}");
        }
    }

    #[test]
    fn sync_records_show_node_object_and_version() {
        let sync = json!({
            "metadata": {"name": "edge.1.lab.413d5245-1fd6", "namespace": "n", "resourceVersion": "12"},
            "spec": {"objectKind": "Pod", "objectName": "p"}, "status": {"objectResourceVersion": "9"},
        });
        let expected = "NODE=edge.1.lab KIND=Pod NAMESPACE=n OBJECT=p VERSION=9 AGE=<unknown> ";
        assert_eq!(line("objectsyncs", false, false, &sync), expected);
        let wide = |sync: &Value| line("objectsyncs", false, true, sync);
        assert!(wide(&sync).contains(" VERSION=9 IN EFFECT=<none> STATE=<none> AGE="), "{}", wide(&sync));
        assert!(wide(&sync).contains(" RECORD VERSION=12 UID=<none> "), "{}", wide(&sync));
        let mut labelled = sync.clone();
        labelled["metadata"]["labels"] =
            json!({objectsync::IN_EFFECT_LABEL: "8", objectsync::EFFECT_STATE_LABEL: "NotInEffect"});
        assert!(
            wide(&labelled).contains(" VERSION=9 IN EFFECT=8 STATE=NotInEffect AGE="),
            "{}",
            wide(&labelled)
        );
    }
}
