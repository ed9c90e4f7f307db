//! Generates the tables of `docs/metrics.md` from the output of `/metrics`: names, types, labels
//! and HELP of both programs. A comment `<!-- metrics: PREFIX… -->` marks each table; the longest
//! matching prefix decides the table of a family.

// Clippy takes only the functions marked #[test] for tests, not what they call.
#![allow(clippy::unwrap_used, clippy::panic)]

use std::collections::BTreeSet;
use std::fmt::Write as _;

use edgesync_testkit::programs::root;

use super::generated;
use crate::api::metrics::{agent_text, api_text, cloud_text};

const PAGE: &str = "docs/metrics.md";
const MARK: &str = "<!-- metrics: ";
const HEAD: &str = "| name | type | labels | help |\n|---|---|---|---|\n";

/// A metric family of the Prometheus text format.
#[derive(Debug, PartialEq, Eq)]
struct Family {
    name: String,
    kind: String,
    labels: BTreeSet<String>,
    help: String,
}

/// Parses Prometheus' text format, in the order of the output.
fn families(text: &str) -> Vec<Family> {
    let mut found: Vec<Family> = Vec::new();
    for line in text.lines() {
        if let Some((name, help)) = line.strip_prefix("# HELP ").and_then(|rest| rest.split_once(' ')) {
            found.push(Family {
                name: name.to_owned(),
                kind: String::new(),
                labels: BTreeSet::new(),
                help: help.to_owned(),
            });
            continue;
        }
        let family = found.last_mut().unwrap_or_else(|| panic!("{line} has no family"));
        if let Some(described) = line.strip_prefix("# TYPE ") {
            described.rsplit(' ').next().unwrap_or_default().clone_into(&mut family.kind);
        } else if let Some((labels, _)) = line.split_once('{').and_then(|(_, rest)| rest.rsplit_once('}')) {
            let names = labels.split("\",").filter_map(|label| label.split_once('='));
            family.labels.extend(names.map(|(name, _)| name.to_owned()).filter(|name| name != "le"));
        }
    }
    found
}

fn row(family: &Family) -> String {
    let labels: Vec<String> = family.labels.iter().map(|label| format!("`{label}`")).collect();
    let labels = if labels.is_empty() { "–".to_owned() } else { labels.join(", ") };
    let help = family.help.replace('|', "\\|");
    format!("| `{}` | {} | {labels} | {help} |\n", family.name, family.kind)
}

/// Returns the prefixes of a mark.
fn prefixes(line: &str) -> Option<Vec<&str>> {
    Some(line.strip_prefix(MARK)?.strip_suffix(" -->")?.split(' ').collect())
}

/// Replaces the tables of a page.
fn page(text: &str, families: &[Family]) -> String {
    let all: Vec<&str> = text.lines().filter_map(prefixes).flatten().collect();
    let prefix_of = |family: &Family| {
        let fitting = all.iter().copied().filter(|prefix| family.name.starts_with(prefix));
        fitting.max_by_key(|prefix| prefix.len()).unwrap_or_else(|| panic!("no table for {}", family.name))
    };
    let mut out = String::new();
    let mut lines = text.lines().peekable();
    while let Some(line) = lines.next() {
        writeln!(out, "{line}").unwrap();
        let Some(prefixes) = prefixes(line) else { continue };
        while lines.next_if(|line| line.starts_with('|')).is_some() {}
        out.push_str(HEAD);
        families
            .iter()
            .filter(|family| prefixes.contains(&prefix_of(family)))
            .for_each(|family| out.push_str(&row(family)));
    }
    out
}

#[tokio::test]
async fn metrics_tables_equal_the_output() {
    let text = [agent_text(), cloud_text(), api_text().await].concat();
    let document = std::fs::read_to_string(root().join(PAGE)).unwrap();
    generated::check(PAGE, &page(&document, &families(&text)));
}

#[test]
fn families_fill_the_table_of_their_longest_prefix() {
    let text = "# HELP a_total Items | of a queue.\n# TYPE a_total counter\na_total 1\n\
                # HELP a_b_seconds Time.\n# TYPE a_b_seconds histogram\n\
                a_b_seconds_bucket{verb=\"get\",le=\"1\"} 0\na_b_seconds_sum{verb=\"get\"} 0\n";
    let document = "# A\n<!-- metrics: a_ -->\n| old |\n\n## B\n<!-- metrics: a_b c_ -->\n\nText.\n";
    let expected = format!(
        "# A\n<!-- metrics: a_ -->\n{HEAD}| `a_total` | counter | – | Items \\| of a queue. |\n\n\
         ## B\n<!-- metrics: a_b c_ -->\n{HEAD}| `a_b_seconds` | histogram | `verb` | Time. |\n\nText.\n"
    );
    assert_eq!(page(document, &families(text)), expected);
    assert_eq!(page(&expected, &families(text)), expected);
}
