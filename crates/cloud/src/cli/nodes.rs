//! `nodes`: those of a fleet that are asked for, in the order that is wanted, and one of them in full.

use std::cmp::Ordering;
use std::collections::BTreeMap;

use jiff::Timestamp;
use serde_json::{Value, json};

use super::args_cloud::{NodesArgs, STATES};
use super::server::Fleet;
use edgesync_api::encode;
use edgesync_cli::output::{Output, Table, cell, key_values, render};
use edgesync_cli::records::{self, RecordColumn};
use edgesync_cli::{CliError, Terminal};
use edgesync_object::{Labels, Selector};

/// What the cloud side answers about its nodes: an object with `items`.
pub const NODES_PATH: &str = "/edgesync/v1/nodes";

/// What `nodes` shows of each of them.
const COLUMNS: &[RecordColumn] = &[
    RecordColumn::value("name", "/name"),
    RecordColumn::value("state", "/state"),
    RecordColumn::value("ready", "/ready"),
    RecordColumn::value("objects", "/objects"),
    RecordColumn::value("pending", "/pending"),
    RecordColumn::value("rejected", "/rejected"),
    RecordColumn::value("held back", "/heldBack"),
    RecordColumn::rare("in effect", "/filesInEffect"),
    RecordColumn::rare("not in effect", "/filesNotInEffect"),
    RecordColumn::age("last renewal", "/lastRenewal"),
    RecordColumn::age("last report", "/lastReport"),
    RecordColumn::value("agent", "/agentVersion"),
];
/// What `-o wide` shows beside.
const WIDE: &[RecordColumn] = &[
    RecordColumn::rare("served by", "/servedBy"),
    RecordColumn::value("certificate ends", "/certificateEnds"),
    RecordColumn::value("labels", "/shownLabels"),
];

/// What nodes can be sorted by: the word, the field, and whether the greatest comes first.
const SORTS: [(&str, &str, bool); 9] = [
    ("name", "/name", false),
    ("state", "/state", false),
    ("objects", "/objects", true),
    ("pending", "/pending", true),
    ("rejected", "/rejected", true),
    ("held-back", "/heldBack", true),
    ("last-renewal", "/lastRenewal", false),
    ("last-report", "/lastReport", false),
    ("certificate", "/certificateEnds", false),
];

/// Shows nodes.
///
/// # Errors
/// The request fails; a name is not known.
pub(super) async fn run(args: NodesArgs, terminal: &mut Terminal<'_>) -> Result<(), CliError> {
    let NodesArgs { names, states, selector, sort_by, output, server } = args;
    let (output, now) = (output.output, Timestamp::now());
    let fleet = Fleet::open(server).await?;
    if !names.is_empty() {
        return show(&fleet, &names, output, terminal).await;
    }
    let selector: Selector =
        selector.parse().map_err(|error| CliError::Usage(format!("--selector: {error}")))?;
    let mut answer = fleet.get(NODES_PATH).await?;
    let nodes = match answer["items"].take() {
        Value::Array(nodes) => nodes,
        _ => Vec::new(),
    };
    let mut nodes: Vec<Value> =
        nodes.into_iter().filter(|node| is_wanted(node, &states, &selector)).collect();
    sort(&mut nodes, &sort_by);
    let summary = summary(&nodes);
    if output == Output::Name {
        for node in &nodes {
            writeln!(terminal.out, "node/{}", cell(&node["name"]))?;
        }
        return Ok(());
    }
    if matches!(output, Output::Table | Output::Wide) {
        nodes.iter_mut().for_each(show_labels);
    }
    let columns: Vec<RecordColumn> = match output {
        Output::Wide => [COLUMNS, WIDE].concat(),
        _ => COLUMNS.to_vec(),
    };
    answer["items"] = Value::Array(nodes);
    records::table_of(&answer, &columns, output, now, terminal)?;
    // For people: whatever reads the table finds nothing but the table.
    if let Some(summary) = summary.filter(|_| matches!(output, Output::Table | Output::Wide)) {
        terminal.out.flush()?;
        writeln!(terminal.err, "{summary}")?;
    }
    Ok(())
}

fn is_wanted(node: &Value, states: &[String], selector: &Selector) -> bool {
    let state = node["state"].as_str().unwrap_or_default();
    let is_in = states.is_empty() || states.iter().any(|wanted| wanted == state);
    is_in && (selector.is_empty() || selector.matches(&labels(node)))
}

fn labels(node: &Value) -> Labels {
    let pairs = node["labels"].as_object().into_iter().flatten();
    pairs.filter_map(|(key, value)| Some((key.clone(), value.as_str()?.to_owned()))).collect()
}

fn show_labels(node: &mut Value) {
    let pairs: Vec<String> = labels(node).iter().map(|(key, value)| format!("{key}={value}")).collect();
    node["shownLabels"] = pairs.join(",").into();
}

/// Sorts by a field; those of which it is not known come last, and equal ones stay in the order of their names.
fn sort(nodes: &mut [Value], by: &str) {
    let Some((_, field, is_falling)) = SORTS.iter().find(|(word, ..)| *word == by) else { return };
    nodes.sort_by(|one, other| {
        let (one, other) =
            (one.pointer(field).unwrap_or(&Value::Null), other.pointer(field).unwrap_or(&Value::Null));
        let order = match (one, other) {
            (Value::Null, Value::Null) => return Ordering::Equal,
            (Value::Null, _) => return Ordering::Greater,
            (_, Value::Null) => return Ordering::Less,
            (Value::Number(one), Value::Number(other)) => one.as_u64().cmp(&other.as_u64()),
            (one, other) => one.as_str().cmp(&other.as_str()),
        };
        if *is_falling { order.reverse() } else { order }
    });
}

/// How many there are in which state; nothing for one node, which says it itself.
fn summary(nodes: &[Value]) -> Option<String> {
    let mut states: BTreeMap<&str, usize> = BTreeMap::new();
    for node in nodes {
        *states.entry(node["state"].as_str().unwrap_or("unknown")).or_default() += 1;
    }
    let rank = |state: &str| STATES.iter().position(|known| *known == state).unwrap_or(STATES.len());
    let mut counts: Vec<(&str, usize)> = states.into_iter().collect();
    counts.sort_by_key(|(state, _)| rank(state));
    let counts: Vec<String> = counts.iter().map(|(state, count)| format!("{count} {state}")).collect();
    (nodes.len() > 1).then(|| format!("{} nodes: {}", nodes.len(), counts.join(", ")))
}

/// Shows some nodes in full.
async fn show(
    fleet: &Fleet,
    names: &[String],
    output: Output,
    terminal: &mut Terminal<'_>,
) -> Result<(), CliError> {
    let mut nodes = Vec::with_capacity(names.len());
    for name in names {
        nodes.push(fleet.get(&format!("{NODES_PATH}/{}", encode(name))).await?);
    }
    let text = match (output, nodes.as_slice()) {
        (Output::Yaml | Output::Json, [node]) => render(node, output)?,
        (Output::Yaml | Output::Json, _) => render(&json!({ "items": nodes }), output)?,
        (Output::Name, _) => names.iter().map(|name| format!("node/{name}\n")).collect(),
        _ => nodes.iter().map(sheet).collect::<Vec<_>>().join("\n"),
    };
    Ok(terminal.out.write_all(text.as_bytes())?)
}

/// What stands in tables below the rest: the field, its title, and its columns beside the object.
const TABLES: [(&str, &str, &[&str]); 3] = [
    ("refusedObjects", "Rejected", &["reason", "message"]),
    ("heldBackObjects", "Held back from removal", &[]),
    ("objectsNotInEffect", "Not in effect in files", &["state", "rule", "message"]),
];

/// A node in full: its objects that are not as they should be in tables of their own.
fn sheet(node: &Value) -> String {
    let mut plain = node.clone();
    let mut tables = String::new();
    for (field, title, columns) in TABLES {
        let Some(Value::Array(objects)) = plain.as_object_mut().and_then(|fields| fields.remove(field))
        else {
            continue;
        };
        if objects.is_empty() {
            continue;
        }
        let mut table = Table::new(["kind", "namespace", "name"].iter().chain(columns));
        for entry in &objects {
            let object = &entry["object"];
            let name = if object.is_null() { &entry["uid"] } else { &object["name"] };
            let first = [&object["kind"], &object["namespace"], name];
            table.row(first.into_iter().chain(columns.iter().map(|column| &entry[*column])).map(cell));
        }
        tables.push_str(&format!("\n{title}:\n{}", table.render()));
    }
    key_values(&plain) + &tables
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::args_cloud::SORT_WORDS;

    fn fleet() -> Vec<Value> {
        vec![
            json!({"name": "a", "state": "in sync", "pending": 0, "labels": {"site": "north"}, "certificateEnds": "2027-01-02"}),
            json!({"name": "b", "state": "offline", "pending": 7, "labels": {"site": "south"}, "certificateEnds": "2027-01-01"}),
            json!({"name": "c", "state": "never connected"}),
            json!({"name": "d", "state": "in sync", "pending": 9, "labels": {"site": "north"}}),
        ]
    }

    fn names(nodes: &[Value]) -> String {
        nodes.iter().map(|node| node["name"].as_str().unwrap()).collect()
    }

    #[test]
    fn nodes_are_chosen_by_state_and_labels() {
        let chosen = |states: &[&str], selector: &str| {
            let states: Vec<String> = states.iter().map(|state| (*state).to_owned()).collect();
            let selector = selector.parse().unwrap();
            let mut nodes = fleet();
            nodes.retain(|node| is_wanted(node, &states, &selector));
            names(&nodes)
        };
        assert_eq!(chosen(&[], ""), "abcd");
        assert_eq!(chosen(&["offline", "never connected"], ""), "bc");
        assert_eq!(chosen(&["in sync"], "site=north"), "ad");
        assert_eq!(chosen(&[], "!site"), "c");
    }

    #[test]
    fn nodes_are_sorted_and_what_is_not_known_comes_last() {
        for (by, expected) in [
            ("name", "abcd"),
            ("state", "adcb"),
            ("pending", "dbac"),
            ("certificate", "bacd"),
            ("rejected", "abcd"),
        ] {
            let mut nodes = fleet();
            sort(&mut nodes, by);
            assert_eq!(names(&nodes), expected, "{by}");
        }
        let words: Vec<&str> = SORTS.iter().map(|(word, ..)| *word).collect();
        assert_eq!(words, SORT_WORDS);
    }

    #[test]
    fn the_states_are_counted() {
        assert_eq!(summary(&fleet()).unwrap(), "4 nodes: 2 in sync, 1 offline, 1 never connected");
        assert_eq!(summary(&fleet()[..1]), None);
    }

    #[test]
    fn what_a_node_rejects_is_named() {
        let node = json!({"name": "a", "rejected": 1, "heldBackObjects": [], "refusedObjects": [{
            "uid": "u-1", "reason": "TooLarge", "message": "must be at most 9 bytes",
            "object": {"kind": "ConfigMap", "namespace": "plant", "name": "big"}}]});
        let shown = sheet(&node);
        assert!(shown.contains("Rejected:\nKIND        NAMESPACE   NAME   REASON     MESSAGE\n"), "{shown}");
        assert!(
            shown.contains("ConfigMap   plant       big    TooLarge   must be at most 9 bytes\n"),
            "{shown}"
        );
        assert!(!shown.contains("Held back from"), "{shown}");
    }
}
