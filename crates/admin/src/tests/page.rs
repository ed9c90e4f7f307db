//! Properties read by the page: each must occur in the fixtures of the responses that it requests.

use std::collections::BTreeSet;

use serde_json::Value;

use super::path;

/// A script of the page.
struct Script {
    name: &'static str,
    text: &'static str,
    /// Variables that hold responses or parts of them.
    variables: &'static [&'static str],
    /// Fixtures of the responses that it requests.
    fixtures: &'static [&'static str],
    /// Properties of these variables that belong to JavaScript or Kubernetes.
    others: &'static [&'static str],
}

macro_rules! script {
    ($name:literal) => {
        include_str!(concat!("../../../fleet/src/page/site/", $name))
    };
}

const SCRIPTS: [Script; 6] = [
    Script {
        name: "fleet.js",
        text: script!("fleet.js"),
        variables: &["line"],
        fixtures: &["summary"],
        others: &[],
    },
    Script {
        name: "node.js",
        text: script!("node.js"),
        variables: &["found", "seen", "one"],
        fixtures: &["node", "nodes", "node-objects", "node-history"],
        // A Node and Events of Kubernetes.
        others: &[
            "status",
            "metadata",
            "type",
            "lastTransitionTime",
            "series",
            "deprecatedLastTimestamp",
            "eventTime",
            "note",
        ],
    },
    Script {
        name: "objects.js",
        text: script!("objects.js"),
        variables: &["one", "get"],
        fixtures: &["objects"],
        others: &[],
    },
    Script {
        name: "overview.js",
        text: script!("overview.js"),
        variables: &["seen", "one", "get"],
        fixtures: &["summary-history", "labels", "label-values"],
        others: &["localeCompare"],
    },
    Script {
        name: "rollout.js",
        text: script!("rollout.js"),
        variables: &["seen", "rule", "one", "points", "get"],
        fixtures: &["rules", "rollout", "rollout-of-rule", "objects"],
        others: &[],
    },
    Script {
        name: "waves.js",
        text: script!("waves.js"),
        variables: &["seen", "wave", "one", "top"],
        fixtures: &["rollout-status"],
        others: &[],
    },
];

/// Collects all keys of a document, at any depth.
fn keys(value: &Value, into: &mut BTreeSet<String>) {
    match value {
        Value::Object(fields) => {
            for (key, value) in fields {
                into.insert(key.clone());
                keys(value, into);
            }
        }
        Value::Array(items) => items.iter().for_each(|item| keys(item, into)),
        _ => {}
    }
}

fn is_word(letter: char) -> bool {
    letter.is_alphanumeric() || letter == '_' || letter == '$'
}

fn word(text: &str) -> &str {
    &text[..text.find(|letter| !is_word(letter)).unwrap_or(text.len())]
}

/// Returns the properties of a variable that a script reads: `variable.property` and `{ property, …
/// } = variable`.
fn read_of(variable: &str, text: &str) -> BTreeSet<String> {
    let mut read = BTreeSet::new();
    for (at, _) in text.match_indices(variable) {
        let (before, after) = (&text[..at], &text[at + variable.len()..]);
        // Not part of another word nor a property itself, but possibly spread into a list.
        if before.ends_with(is_word) || (before.ends_with('.') && !before.ends_with("...")) {
            continue;
        }
        if let Some(rest) = after.strip_prefix("?.").or_else(|| after.strip_prefix('.')) {
            read.extend(Some(word(rest).to_owned()).filter(|name| !name.is_empty()));
        }
        let before = before.trim_end().trim_end_matches("await").trim_end();
        if let Some(list) =
            before.strip_suffix('=').map(str::trim_end).and_then(|text| text.strip_suffix('}'))
            && let Some((_, list)) = list.rsplit_once('{')
            && !after.starts_with(is_word)
        {
            read.extend(list.split(',').map(|name| word(name.trim()).to_owned()));
        }
    }
    read
}

#[test]
fn properties_read_by_scripts_are_found() {
    let text = "const { desired, curve: points } = seen; x(seen.object?.kind, ...seen.rows, unseen.a, b.seen.c);\n\
                const { items, more } = await seen(`objects`);";
    let read: Vec<String> = read_of("seen", text).into_iter().collect();
    assert_eq!(read, ["curve", "desired", "items", "more", "object", "rows"]);
}

#[test]
fn page_reads_only_properties_of_responses() {
    for Script { name, text, variables, fixtures, others } in SCRIPTS {
        let mut known = BTreeSet::new();
        for fixture in fixtures {
            let text = std::fs::read_to_string(path(fixture)).unwrap();
            keys(&serde_json::from_str(&text).unwrap(), &mut known);
        }
        let read: BTreeSet<String> = variables.iter().flat_map(|variable| read_of(variable, text)).collect();
        assert!(!read.is_empty(), "{name} reads nothing: its variables have other names");
        for property in &read {
            let is_known = known.contains(property) || others.contains(&property.as_str());
            assert!(is_known, "{name} reads '{property}', which is in none of {fixtures:?}");
        }
        for other in others {
            assert!(
                read.contains(*other) && !known.contains(*other),
                "{name}: '{other}' is no exception any more"
            );
        }
    }
}
