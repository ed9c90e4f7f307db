//! Compares the tables of conditions in docs/events.md with the reasons in the code.

// Clippy takes only the functions marked #[test] for tests, not what they call.
#![allow(clippy::unwrap_used, clippy::panic)]

use std::fs;

use edgesync_fleet::reasons::{DefinitionReason, PlacementReason};
use edgesync_protocol::node::{Condition, ConditionFields, NodeReason};
use edgesync_testkit::programs::root;

/// Type, status and reason of a condition.
type Row = [String; 3];

fn row(kind: &str, status: &str, reason: &str) -> Row {
    [kind, status, reason].map(str::to_owned)
}

fn fields_of(fields: ConditionFields) -> Row {
    row(fields.condition, fields.status.as_str(), fields.reason)
}

/// Returns the rows of the table in a section of a page. Each must have a meaning.
fn documented(page: &str, heading: &str) -> Vec<Row> {
    let from =
        page.split_once(&format!("\n### {heading}\n")).unwrap_or_else(|| panic!("no section {heading}")).1;
    let section = from.split("\n## ").next().unwrap().split("\n### ").next().unwrap();
    let lines = section.lines().filter(|line| line.starts_with('|')).skip(2);
    let rows = lines.map(|line| {
        let cells: Vec<&str> = line.trim_matches('|').split('|').map(str::trim).collect();
        let [kind, status, reason, meaning] = cells[..] else { panic!("{line}: four cells") };
        assert!(meaning.len() > 15 && meaning.ends_with('.'), "{line}: a sentence that explains it");
        row(kind.trim_matches('`'), status, reason.trim_matches('`'))
    });
    rows.collect()
}

#[test]
fn conditions_are_documented_with_all_their_reasons() {
    let page = fs::read_to_string(root().join("docs/events.md")).unwrap();
    let mut of_nodes: Vec<Row> = NodeReason::ALL.iter().map(|reason| fields_of(reason.fields())).collect();
    let unknown = Condition::unknown("all");
    of_nodes.push(row(&unknown.condition, unknown.status.as_str(), &unknown.reason));
    assert_eq!(documented(&page, "Conditions of a Node"), of_nodes);

    let of_rules = PlacementReason::ALL.map(|reason| fields_of(reason.fields()));
    assert_eq!(documented(&page, "Conditions of a Placement"), of_rules);

    let of_definitions = DefinitionReason::ALL.map(|reason| fields_of(reason.fields()));
    assert_eq!(documented(&page, "Conditions of a CustomResourceDefinition"), of_definitions);
}

#[test]
fn rows_of_a_section_are_read() {
    let page = "# A\n\n### One\n\nText.\n\n| Type | Status | Reason | Meaning |\n|---|---|---|---|\n\
                | `Ready` | True | `Works` | The node is working. |\n\n### Two\n\n| `a` |\n";
    assert_eq!(documented(page, "One"), [row("Ready", "True", "Works")]);
}
