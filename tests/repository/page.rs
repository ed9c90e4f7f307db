//! Compares the scripts of the browser page with the admin protocol: paths of requests, actions
//! on nodes, and states of nodes.

// Clippy takes only the functions marked #[test] for tests, not what they call.
#![allow(clippy::unwrap_used, clippy::panic)]

use std::collections::BTreeSet;
use std::fs;

use edgesync_admin::cloud::SummaryState;
use edgesync_admin::{NodeAction, PREFIX, Route};
use edgesync_testkit::programs::root;
use regex_lite::Regex;

/// The directory of the page's files.
const SITE: &str = "crates/fleet/src/page/site";
/// The script that defines the functions for requests; its paths are parameters.
const REQUESTS: &str = "api.js";

fn script(name: &str) -> String {
    fs::read_to_string(root().join(SITE).join(name)).unwrap()
}

/// Returns the scripts that send requests.
fn scripts() -> Vec<(String, String)> {
    let names = fs::read_dir(root().join(SITE)).unwrap();
    let names = names.map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let names = names.filter(|name| name.ends_with(".js") && name != REQUESTS);
    names.map(|name| (name.clone(), script(&name))).collect()
}

fn captures(pattern: &str, text: &str) -> Vec<String> {
    let pattern = Regex::new(pattern).unwrap();
    pattern.captures_iter(text).map(|found| found[1].to_owned()).collect()
}

/// Returns the keys of the table `ACTIONS`.
fn actions(text: &str) -> Vec<String> {
    let Some((_, table)) = text.split_once("const ACTIONS = {") else { return Vec::new() };
    let (table, _) = table.split_once("\n};").unwrap();
    captures(r"(?m)^  '?([a-z-]+)'?: \[", table)
}

/// Returns the paths of calls of `path`, with `x` for each argument that is no literal.
fn built(text: &str) -> Vec<String> {
    let segment = |argument: &str| match argument.trim().strip_prefix('\'') {
        Some(literal) => literal.trim_end_matches('\'').to_owned(),
        None => "x".to_owned(),
    };
    let path = |arguments: String| arguments.split(',').map(segment).collect::<Vec<_>>().join("/");
    captures(r"\bpath\(([^()]*)\)", text).into_iter().map(path).collect()
}

/// Returns the values of a name in a path: of a constant its definition, of a variable the paths
/// that functions of the script return, of a parameter the actions. Others are not known.
fn values(name: &str, text: &str) -> Vec<String> {
    let literal = captures(&format!(r"\bconst {name} = '([^']*)';"), text);
    let definition = captures(&format!(r"\bconst {name} = (path\([^()]*\));"), text);
    if !literal.is_empty() {
        literal
    } else if !definition.is_empty() {
        built(&definition[0])
    } else if Regex::new(&format!(r"\blet {name}\b")).unwrap().is_match(text) {
        text.lines().filter(|line| line.trim_start().starts_with("return ")).flat_map(built).collect()
    } else {
        actions(text)
    }
}

/// Returns the paths that the first argument of a call may be, without the query.
fn paths(arguments: &str, text: &str) -> Vec<String> {
    let is_word = |letter: char| letter.is_alphanumeric() || letter == '_';
    let Some(quote) = arguments.chars().next().filter(|first| ['\'', '`'].contains(first)) else {
        let end = arguments.find(|letter| !is_word(letter)).unwrap_or(arguments.len());
        return values(&arguments[..end], text);
    };
    let literal = arguments[1..].split([quote, '?']).next().unwrap_or_default();
    let mut paths = vec![String::new()];
    for (place, part) in literal.split("${").enumerate() {
        let (expression, rest) = if place == 0 { ("", part) } else { part.split_once('}').unwrap() };
        let inserted = match (place, expression.chars().all(is_word)) {
            (0, _) => vec![String::new()],
            (_, true) => values(expression, text),
            (_, false) => vec!["x".to_owned()],
        };
        let longer = |path: String| inserted.iter().map(move |value| format!("{path}{value}{rest}"));
        paths = paths.into_iter().flat_map(longer).collect();
    }
    paths
}

/// Returns method and path of all requests of a script.
fn requests(text: &str) -> Vec<(&'static str, String)> {
    let calls = Regex::new(r"(?:^|[^.\w])(get|find|act|lines)\(").unwrap();
    let calls = calls.captures_iter(text).flat_map(|call| {
        let method = if &call[1] == "act" { "POST" } else { "GET" };
        let end = call.get(0).unwrap().end();
        let paths = paths(&text[end..], text);
        assert!(!paths.is_empty(), "the path is not known: {}", text[end..].lines().next().unwrap());
        paths.into_iter().map(move |path| (method, path))
    });
    calls.collect()
}

#[test]
fn requests_of_scripts_are_found() {
    let text = "const where = path('nodes', named);\n\
                let seen;\nconst KINDS = '/edgesync/v1/resources';\n\
                const ACTIONS = {\n  'confirm-deletions': [1],\n  admit: [2],\n};\n\
                await get('labels'); find(`labels?key=${encodeURIComponent(key)}`); find(KINDS); nodes.get(name);\n\
                find(where); act(`${where}/${what}`); find(`${where}/objects?${query({ name })}`);\n\
                lines(`nodes/${a.b}/history`); find(`rollouts/${seen}`);\n\
                return rule ? path('configured', rule.name) : path('placements', rule.uid);\n";
    let expected = [
        ("GET", "labels"),
        ("GET", "labels"),
        ("GET", "/edgesync/v1/resources"),
        ("GET", "nodes/x"),
        ("POST", "nodes/x/confirm-deletions"),
        ("POST", "nodes/x/admit"),
        ("GET", "nodes/x/objects"),
        ("GET", "nodes/x/history"),
        ("GET", "rollouts/configured/x"),
        ("GET", "rollouts/placements/x"),
    ];
    let expected = expected.map(|(method, path)| (method, path.to_owned()));
    assert_eq!(requests(text), expected);
}

#[test]
fn requests_of_the_page_are_routes() {
    assert!(script(REQUESTS).contains(&format!("const OWN = '{PREFIX}';")), "{REQUESTS}");
    let mut count = 0;
    for (name, text) in scripts() {
        for (method, path) in requests(&text) {
            // Kubernetes serves the paths of other groups.
            if path.starts_with("/api/") || path.starts_with("/apis/") {
                continue;
            }
            let route = path.strip_prefix(PREFIX).unwrap_or(&path);
            assert!(Route::parse(method, route).is_some(), "{name} requests {method} {path}: no route");
            count += 1;
        }
    }
    assert!(count > 15, "only {count} requests were found");
}

#[test]
fn actions_of_the_page_are_those_of_the_protocol() {
    let actions: BTreeSet<String> = actions(&script("node.js")).into_iter().collect();
    let expected = NodeAction::ALL.into_iter().filter(|action| action.is_on_page());
    let expected: BTreeSet<String> = expected.map(|action| action.name().to_owned()).collect();
    assert_eq!(actions, expected);
}

#[test]
fn states_of_the_page_are_those_of_the_summary() {
    let text = script("states.js");
    assert_eq!(captures(r"(?m)^  \['([^']+)', ", &text), SummaryState::names());
    for (name, state) in [("OFFLINE", SummaryState::Offline), ("REMOVED", SummaryState::Removed)] {
        let index = captures(&format!(r"const {name} = (\d+);"), &text);
        assert_eq!(index, [(state as usize).to_string()], "{name}");
    }
    let urgency = captures(r"const URGENCY = \[([\d, ]+)\];", &text).remove(0);
    let mut urgency: Vec<usize> = urgency.split(", ").map(|index| index.parse().unwrap()).collect();
    urgency.sort_unstable();
    assert_eq!(urgency, Vec::from_iter(0..SummaryState::ALL.len()));
}
