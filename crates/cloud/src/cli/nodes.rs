//! `nodes`: a selection of a fleet's nodes as a sorted table, or single nodes in full.

use std::cmp::Ordering;
use std::collections::BTreeMap;

use jiff::Timestamp;
use serde_json::{Map, Value};

use super::args_cloud::{NodesArgs, STATES};
use super::server::Fleet;
use edgesync_admin::cloud::{NodeInfo, NodeList, state};
use edgesync_admin::{InvalidResponse, Route, read};
use edgesync_cli::output::{Output, Table, age, cell, key_values, render};
use edgesync_cli::records::{self, RecordColumn};
use edgesync_cli::{CliError, Terminal};
use edgesync_object::{Labels, ObjectRef, Selector, label_pairs};

const COLUMNS: &[RecordColumn<NodeInfo>] = &[
    RecordColumn::value("name", |node| node.name().into()),
    RecordColumn::value("state", |node| node.state().into()),
    RecordColumn::value("ready", |node| node.ready().into()),
    RecordColumn::value("objects", |node| node.objects().into()),
    RecordColumn::value("pending", |node| node.pending().into()),
    RecordColumn::value("rejected", |node| node.rejected().into()),
    RecordColumn::value("held back", |node| node.held_back().into()),
    RecordColumn::rare("waiting", |node| node.waiting_for_link().into()),
    RecordColumn::rare("in effect", |node| node.files_in_effect().into()),
    RecordColumn::rare("not in effect", |node| node.files_not_in_effect().into()),
    RecordColumn::age("last renewal", |node: &NodeInfo| node.last_renewal().into()).instead(check_in),
    RecordColumn::age("last report", |node| node.last_report().into()),
    RecordColumn::value("agent", |node| node.agent_version().into()),
];
/// Further columns with `-o wide`.
const WIDE: &[RecordColumn<NodeInfo>] = &[
    RecordColumn::rare("served by", |node| node.served_by().into()),
    RecordColumn::value("certificate ends", |node| certificate_ends(node).into()),
    RecordColumn::value("labels", |node| node.labels().map(label_pairs).into()),
];

/// The value of a sort key.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Key {
    Number(u64),
    Text(String),
}

/// A sort key: its word, its value, and whether the order is descending.
type Sort = (&'static str, fn(&NodeInfo) -> Option<Key>, bool);
const SORTS: [Sort; 9] = [
    ("name", |node| text(Some(node.name())), false),
    ("state", |node| text(Some(node.state())), false),
    ("objects", |node| node.objects().map(Key::Number), true),
    ("pending", |node| node.pending().map(Key::Number), true),
    ("rejected", |node| node.rejected().map(Key::Number), true),
    ("held-back", |node| node.held_back().map(Key::Number), true),
    ("last-renewal", |node| text(node.last_renewal()), false),
    ("last-report", |node| text(node.last_report()), false),
    ("certificate", |node| text(certificate_ends(node)), false),
];

fn text(text: Option<&str>) -> Option<Key> {
    text.map(|text| Key::Text(text.to_owned()))
}

/// Shows when a node that is away connects next, or for how long it is overdue.
fn check_in(node: &NodeInfo, now: Timestamp) -> Option<String> {
    let text = node.next_check_in()?;
    let next: Timestamp = text.parse().ok()?;
    match node.state() {
        state::OVERDUE => Some(format!("overdue {}", age(now, text))),
        state::AWAY if next <= now => Some("next now".to_owned()),
        state::AWAY => Some(format!("next in {}", age(next, &now.to_string()))),
        _ => None,
    }
}

fn certificate_ends(node: &NodeInfo) -> Option<&str> {
    node.membership()?.certificate_ends.as_deref()
}

/// Runs `nodes`.
///
/// # Errors
/// The request fails; a name is unknown; the answer is of another version.
pub(super) async fn run(args: NodesArgs, terminal: &mut Terminal<'_>) -> Result<(), CliError> {
    let NodesArgs { names, states, selector, sort_by, output, server } = args;
    let (output, now) = (output.output, Timestamp::now());
    let fleet = Fleet::open(server).await?;
    if !names.is_empty() {
        return show(&fleet, &names, output, terminal).await;
    }
    let selector: Selector =
        selector.parse().map_err(|error| CliError::Usage(format!("--selector: {error}")))?;
    let mut answer = fleet.call(Route::Nodes, &Value::Null).await?;
    let NodeList { items, .. } = read(&answer)?;
    let Value::Array(documents) = answer["items"].take() else { return Ok(()) };
    let mut nodes: Vec<(Value, NodeInfo)> = documents.into_iter().zip(items).collect();
    nodes.retain(|(_, node)| is_selected(node, &states, &selector));
    sort(&mut nodes, &sort_by);
    let (documents, nodes): (Vec<Value>, Vec<NodeInfo>) = nodes.into_iter().unzip();
    match output {
        Output::Name => {
            for node in &nodes {
                writeln!(terminal.out, "node/{}", cell(&node.name().into()))?;
            }
            return Ok(());
        }
        Output::Yaml | Output::Json => {
            answer["items"] = Value::Array(documents);
            return Ok(terminal.out.write_all(render(&answer, output)?.as_bytes())?);
        }
        Output::Table | Output::Wide => {}
    }
    let wide = if output == Output::Wide { WIDE } else { &[] };
    let columns: Vec<&RecordColumn<NodeInfo>> = COLUMNS.iter().chain(wide).collect();
    records::table(&nodes, &columns, now, terminal)?;
    // Goes to standard error: programs that read the table see only the table.
    if let Some(summary) = summary(&nodes) {
        terminal.out.flush()?;
        writeln!(terminal.err, "{summary}")?;
    }
    Ok(())
}

fn is_selected(node: &NodeInfo, states: &[String], selector: &Selector) -> bool {
    let is_in = states.is_empty() || states.iter().any(|wanted| wanted == node.state());
    let none = Labels::new();
    is_in && (selector.is_empty() || selector.matches(node.labels().unwrap_or(&none)))
}

/// Sorts nodes by a key. Nodes without a value come last; equal ones keep the order of their names.
fn sort(nodes: &mut [(Value, NodeInfo)], by: &str) {
    let Some((_, key, is_falling)) = SORTS.iter().find(|(word, ..)| *word == by) else { return };
    nodes.sort_by(|(_, one), (_, other)| match (key(one), key(other)) {
        (None, None) => Ordering::Equal,
        (None, _) => Ordering::Greater,
        (_, None) => Ordering::Less,
        (one, other) if *is_falling => other.cmp(&one),
        (one, other) => one.cmp(&other),
    });
}

/// Counts the nodes by state; `None` for a single node.
fn summary(nodes: &[NodeInfo]) -> Option<String> {
    let mut states: BTreeMap<&str, usize> = BTreeMap::new();
    for node in nodes {
        *states.entry(node.state()).or_default() += 1;
    }
    let rank = |state: &str| STATES.iter().position(|listed| *listed == state).unwrap_or(STATES.len());
    let mut counts: Vec<(&str, usize)> = states.into_iter().collect();
    counts.sort_by_key(|(state, _)| rank(state));
    let counts: Vec<String> = counts.iter().map(|(state, count)| format!("{count} {state}")).collect();
    (nodes.len() > 1).then(|| format!("{} nodes: {}", nodes.len(), counts.join(", ")))
}

/// Shows the named nodes in full.
async fn show(
    fleet: &Fleet,
    names: &[String],
    output: Output,
    terminal: &mut Terminal<'_>,
) -> Result<(), CliError> {
    let mut nodes = Vec::with_capacity(names.len());
    for name in names {
        nodes.push(fleet.call(Route::Node(name), &Value::Null).await?);
    }
    let text = match (output, nodes.as_slice()) {
        (Output::Yaml | Output::Json, [node]) => render(node, output)?,
        (Output::Yaml | Output::Json, _) => {
            render(&Map::from_iter([("items".to_owned(), Value::Array(nodes))]).into(), output)?
        }
        (Output::Name, _) => names.iter().map(|name| format!("node/{name}\n")).collect(),
        _ => nodes.iter().map(sheet).collect::<Result<Vec<_>, _>>()?.join("\n"),
    };
    Ok(terminal.out.write_all(text.as_bytes())?)
}

/// Formats a node in full, with tables of the objects that need attention.
fn sheet(document: &Value) -> Result<String, InvalidResponse> {
    let node = read::<NodeInfo>(document)?;
    let mut plain = document.clone();
    if let Some(fields) = plain.as_object_mut() {
        fields.retain(|key, _| !IN_TABLES.contains(&key.as_str()));
    }
    let refused = node.served().and_then(|node| node.refused_objects.as_deref()).unwrap_or_default();
    let held = node.served().and_then(|node| node.held_back_objects.as_deref()).unwrap_or_default();
    let tables = [
        table(
            "Rejected",
            &["reason", "message"],
            refused.iter().map(|one| (&one.uid, &one.object, vec![&one.reason, &one.message])),
        ),
        table("Held back from removal", &[], held.iter().map(|one| (&one.uid, &one.object, Vec::new()))),
        table(
            "Not in effect in files",
            &["state", "rule", "message"],
            node.not_in_effect()
                .iter()
                .map(|one| (&one.uid, &one.object, vec![&one.state, &one.rule, &one.message])),
        ),
    ];
    Ok(key_values(&plain) + &tables.concat())
}

/// The keys shown as tables below the others.
const IN_TABLES: [&str; 3] = ["refusedObjects", "heldBackObjects", "objectsNotInEffect"];

/// Formats a table of objects with a title; empty without objects.
fn table<'a>(
    title: &str,
    columns: &[&str],
    rows: impl Iterator<Item = (&'a String, &'a Option<ObjectRef>, Vec<&'a String>)>,
) -> String {
    let mut table = Table::new(["kind", "namespace", "name"].iter().chain(columns));
    let cell = |text: &str| cell(&Value::from(text));
    for (uid, object, rest) in rows {
        let first = match object {
            Some(object) => [&*object.kind, &*object.namespace, &*object.name],
            None => ["", "", uid],
        };
        table.row(first.into_iter().chain(rest.into_iter().map(String::as_str)).map(cell));
    }
    if table.is_empty() { String::new() } else { format!("\n{title}:\n{}", table.render()) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::args_cloud::SORT_WORDS;
    use edgesync_admin::cloud::{JoinedNode, Membership, NodeObjectCounts, ServedNode};
    use edgesync_admin::samples;
    use serde_json::json;

    /// A node with this name and state, pending objects, label `site` and expiry of its
    /// certificate.
    fn node(
        name: &str,
        state: &str,
        pending: Option<u64>,
        site: Option<&str>,
        ends: Option<&str>,
    ) -> NodeInfo {
        let membership = Membership { certificate_ends: ends.map(str::to_owned), revoked: false };
        let (name, state) = (name.to_owned(), state.to_owned());
        let Some(pending) = pending else {
            return NodeInfo::Joined(JoinedNode { name, state, membership, ..samples::joined_node() });
        };
        let labels = site.map(|site| Labels::from([("site".to_owned(), site.to_owned())]));
        let (membership, served) = (Some(membership), samples::served_node());
        let objects = NodeObjectCounts { pending, ..served.objects };
        NodeInfo::Served(Box::new(ServedNode { name, state, objects, labels, membership, ..served }))
    }

    fn nodes() -> Vec<NodeInfo> {
        vec![
            node("a", "in sync", Some(0), Some("north"), Some("2027-01-02")),
            node("b", "offline", Some(7), Some("south"), Some("2027-01-01")),
            node("c", "never connected", None, None, None),
            node("d", "in sync", Some(9), Some("north"), None),
        ]
    }

    fn with_documents() -> Vec<(Value, NodeInfo)> {
        nodes().into_iter().map(|node| (json!(node), node)).collect()
    }

    fn names(nodes: &[(Value, NodeInfo)]) -> String {
        nodes.iter().map(|(_, node)| node.name()).collect()
    }

    #[test]
    fn nodes_are_chosen_by_state_and_labels() {
        let chosen = |states: &[&str], selector: &str| {
            let states: Vec<String> = states.iter().map(|state| (*state).to_owned()).collect();
            let selector = selector.parse().unwrap();
            let mut nodes = with_documents();
            nodes.retain(|(_, node)| is_selected(node, &states, &selector));
            names(&nodes)
        };
        assert_eq!(chosen(&[], ""), "abcd");
        assert_eq!(chosen(&["offline", "never connected"], ""), "bc");
        assert_eq!(chosen(&["in sync"], "site=north"), "ad");
        assert_eq!(chosen(&[], "!site"), "c");
    }

    #[test]
    fn nodes_without_the_sort_key_come_last() {
        for (by, expected) in [
            ("name", "abcd"),
            ("state", "adcb"),
            ("pending", "dbac"),
            ("certificate", "bacd"),
            ("rejected", "abdc"),
        ] {
            let mut nodes = with_documents();
            sort(&mut nodes, by);
            assert_eq!(names(&nodes), expected, "{by}");
        }
        let words: Vec<&str> = SORTS.iter().map(|(word, ..)| *word).collect();
        assert_eq!(words, SORT_WORDS);
    }

    #[test]
    fn the_summary_counts_nodes_by_state() {
        assert_eq!(summary(&nodes()).unwrap(), "4 nodes: 2 in sync, 1 offline, 1 never connected");
        assert_eq!(summary(&nodes()[..1]), None);
    }

    #[test]
    fn absence_is_shown_in_place_of_the_last_renewal() {
        let now: Timestamp = "2026-11-21T10:00:00Z".parse().unwrap();
        for (state, next, expected) in [
            ("away", "2026-11-21T13:00:00Z", Some("next in 3h")),
            ("away", "2026-11-21T09:59:00Z", Some("next now")),
            ("overdue", "2026-11-21T09:48:00Z", Some("overdue 12m")),
            ("in sync", "2026-11-21T13:00:00Z", None),
            ("away", "soon", None),
        ] {
            let served = samples::served_node();
            let (state, next_check_in) = (state.to_owned(), Some(next.to_owned()));
            let node = NodeInfo::Served(Box::new(ServedNode { state, next_check_in, ..served }));
            assert_eq!(check_in(&node, now).as_deref(), expected, "{next}");
        }
    }

    #[test]
    fn rejected_objects_have_a_table_of_their_own() {
        let served = samples::served_node();
        let node = NodeInfo::Served(Box::new(ServedNode {
            objects: NodeObjectCounts { rejected: 1, ..served.objects },
            held_back_objects: Some(Vec::new()),
            refused_objects: Some(vec![samples::rejected()]),
            ..served
        }));
        let shown = sheet(&json!(node)).unwrap();
        assert!(shown.contains("Rejected:\nKIND        NAMESPACE   NAME   REASON     MESSAGE\n"), "{shown}");
        assert!(
            shown.contains("ConfigMap   plant       big    TooLarge   must be at most 9 bytes\n"),
            "{shown}"
        );
        assert!(!shown.contains("Held back from"), "{shown}");
    }
}
