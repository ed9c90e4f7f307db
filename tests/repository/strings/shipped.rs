//! Collects the texts of files that are no Rust sources: comments, descriptions, annotations of
//! alerts, labels of the dashboard, and messages of scripts.

use std::fs;
use std::path::{Path, PathBuf};

use edgesync_testkit::programs::root;
use regex_lite::Regex;

use super::{Text, is_text};

/// Files and directories, from the top of the repository, without the manifests of the crates.
const PLACES: [&str; 8] = [
    ".cargo",
    "Cargo.toml",
    "benches/Cargo.toml",
    "clippy.toml",
    "config",
    "deny.toml",
    "packaging",
    "tests/Cargo.toml",
];
/// Beginnings of lines whose rest is a text: fields in YAML, and the description of a unit.
const FIELDS: [&str; 4] = ["description: ", "summary: ", "message: ", "Description="];
/// Marks of a text in YAML that the following, deeper lines contain.
const BLOCKS: [&str; 4] = [">-", ">", "|-", "|"];
/// Opens and closes a text of several lines in TOML.
const QUOTES: &str = "\"\"\"";

/// Collects the texts of all files.
pub(super) fn texts() -> Vec<Text> {
    let mut files = Vec::new();
    PLACES.iter().for_each(|place| collect(&root().join(place), &mut files));
    for entry in fs::read_dir(root().join("crates")).unwrap() {
        files.push(entry.unwrap().path().join("Cargo.toml"));
    }
    let texts = files.iter().flat_map(|path| {
        let name = path.strip_prefix(root()).unwrap().to_str().unwrap();
        of_file(name, &String::from_utf8_lossy(&fs::read(path).unwrap()))
    });
    texts.collect()
}

fn collect(path: &Path, found: &mut Vec<PathBuf>) {
    if path.is_symlink() {
        // The chart links to manifests.
    } else if path.is_dir() {
        for entry in fs::read_dir(path).unwrap() {
            collect(&entry.unwrap().path(), found);
        }
    } else {
        found.push(path.to_owned());
    }
}

/// Collects the texts of a file by its extension. Scripts and most files of packages have none.
fn of_file(name: &str, text: &str) -> Vec<Text> {
    match Path::new(name).extension().and_then(|extension| extension.to_str()) {
        Some("rs") => super::rust(&(name.to_owned(), text.to_owned())),
        Some("json") => labels(name, text),
        Some("txt") => notes(name, text),
        _ => [comments(name, text), descriptions(name, text), messages(name, text)].concat(),
    }
}

/// Collects comments. Lines of one paragraph are one text, indented lines are texts of their own.
fn comments(name: &str, text: &str) -> Vec<Text> {
    let mut found: Vec<Text> = Vec::new();
    let mut in_paragraph = false;
    for (line, number) in text.lines().zip(1..) {
        let comment = line.trim_start().strip_prefix("# ");
        let is_plain = comment.is_some_and(|words| !words.starts_with(' '));
        if let Some(words) = comment {
            match found.last_mut().filter(|_| in_paragraph && is_plain) {
                Some(paragraph) => {
                    paragraph.text.push(' ');
                    paragraph.text.push_str(words.trim());
                }
                None => found.push(Text::new(name, number, words.trim())),
            }
        }
        in_paragraph = is_plain;
    }
    found.retain(|text| is_text(&text.text));
    found
}

/// Collects descriptions in YAML, TOML and units.
fn descriptions(name: &str, text: &str) -> Vec<Text> {
    let quoted = Regex::new(r#"\b(?:description|summary|reason) = "([^"]+)""#).unwrap();
    let lines: Vec<&str> = text.lines().collect();
    let mut found: Vec<Text> = Vec::new();
    for (at, line) in lines.iter().enumerate() {
        let field = FIELDS.iter().find_map(|field| line.trim_start().strip_prefix(field));
        let below = &lines[at + 1..];
        let value = match field {
            Some(mark) if BLOCKS.contains(&mark) => Some(block(line, below)),
            Some(value) => Some(value.trim_matches('"').to_owned()),
            None if line.ends_with(&format!("description = {QUOTES}")) => Some(until_quotes(below)),
            None => quoted.captures(line).map(|found| found[1].to_owned()),
        };
        found.extend(value.map(|value| Text::new(name, at + 1, value)));
    }
    found.retain(|text| is_text(&text.text));
    found
}

/// Returns the lines that are deeper than their field, as one text.
fn block(field: &str, below: &[&str]) -> String {
    let indent = |line: &str| line.len() - line.trim_start().len();
    let deeper = |line: &&&str| line.trim().is_empty() || indent(line) > indent(field);
    let lines: Vec<&str> = below.iter().take_while(deeper).map(|line| line.trim()).collect();
    lines.join(" ").trim().to_owned()
}

/// Returns the lines up to the closing quotes, as one text.
fn until_quotes(below: &[&str]) -> String {
    let end = below.iter().position(|line| line.contains(QUOTES)).map_or(below.len(), |last| last + 1);
    below[..end].join(" ").replace(QUOTES, "")
}

/// Collects messages of scripts, and comments and errors of templates.
fn messages(name: &str, text: &str) -> Vec<Text> {
    let message = Regex::new(r#"\b(?:echo|fail|say|exit)[ (]+(?:printf )?f?(?:"([^"]+)|'([^']+))"#).unwrap();
    let comment = Regex::new(r"/\* (.+?) \*/").unwrap();
    let mut found: Vec<Text> = Vec::new();
    for (line, number) in text.lines().zip(1..) {
        let quoted = message.captures_iter(line).filter_map(|found| found.get(1).or(found.get(2)));
        found.extend(quoted.map(|found| Text::new(name, number, found.as_str())));
        if line.contains("{{") {
            let comments = comment.captures_iter(line).filter_map(|found| found.get(1));
            found.extend(comments.map(|found| Text::new(name, number, found.as_str())));
        }
        // The second line of a message.
        if line.starts_with("hint:") {
            found.push(Text::new(name, number, line));
        }
    }
    found.retain(|text| is_text(&text.text));
    found
}

/// Collects titles, descriptions, legends and column names of the dashboard and of schemas.
fn labels(name: &str, text: &str) -> Vec<Text> {
    let label = Regex::new(
        r#""(?:title|description|legendFormat|label|text|displayName|Value #\w+)": "((?:[^"\\]|\\.)*)""#,
    )
    .unwrap();
    let mut found: Vec<Text> = Vec::new();
    for (line, number) in text.lines().zip(1..) {
        let values = label.captures_iter(line).filter_map(|found| found.get(1));
        let values = values.map(|value| value.as_str()).filter(|value| value.contains(char::is_alphabetic));
        // Grafana's own word for "no legend".
        let values = values.filter(|value| *value != "__auto");
        found.extend(values.map(|value| Text::new(name, number, value)));
    }
    found
}

/// Collects the lines that Helm prints after an installation.
fn notes(name: &str, text: &str) -> Vec<Text> {
    let lines = text.lines().zip(1..).filter(|(line, _)| is_text(line) && !line.starts_with("{{"));
    lines.map(|(line, number)| Text::new(name, number, line.trim())).collect()
}

#[test]
fn texts_of_shipped_files_are_found() {
    let found = |name: &str, text: &str| -> Vec<(usize, String)> {
        of_file(name, text).into_iter().map(|text| (text.line, text.text)).collect()
    };
    let expected = |texts: &[(usize, &str)]| -> Vec<(usize, String)> {
        texts.iter().map(|(line, text)| (*line, (*text).to_owned())).collect()
    };
    let config = "# The name of\n# this node.\n#\n#   indented = 1 # an example\n#name = \"\"\n\n# Another key.\n#b = 1\n";
    assert_eq!(
        found("a.toml", config),
        expected(&[(1, "The name of this node."), (4, "indented = 1 # an example"), (7, "Another key.")])
    );
    let manifest = "description = \"A small crate\"\nextended-description = \"\"\"\nThe agent: stores\nobjects.\"\"\"\n\
                    deny = [{ crate = \"a\", reason = \"too large\" }]\n";
    assert_eq!(
        found("b.toml", manifest),
        expected(&[(1, "A small crate"), (2, "The agent: stores objects."), (5, "too large")])
    );
    let definition = "spec:\n  description: >-\n    Number of\n    objects.\n  type: integer\n  description: The name: short.\n\
                      \x20 annotations:\n    summary: \"Node {{ $labels.node }} is behind.\"\n";
    assert_eq!(
        found("c.yaml", definition),
        expected(&[
            (2, "Number of objects."),
            (6, "The name: short."),
            (8, "Node {{ $labels.node }} is behind."),
        ])
    );
    let script = "#!/bin/sh\nfail \"$key is missing\nhint: create it\"\necho 'not found' >&2\nrun \"a b\"\n";
    assert_eq!(
        found("d", script),
        expected(&[(2, "$key is missing"), (3, "hint: create it\""), (4, "not found")])
    );
    let template =
        "{{/* Prints the image. */}}\n{{- fail (printf \"no image %s; hint: set it\" .a) -}}\ncp a/* b/*\n";
    assert_eq!(
        found("e.tpl", template),
        expected(&[(1, "Prints the image."), (2, "no image %s; hint: set it")])
    );
    let dashboard = "{ \"title\": \"Fleet\",\n\"legendFormat\": \"__auto\", \"expr\": \"up\",\n\"Value #D\": \"Lease age\" }";
    assert_eq!(found("f.json", dashboard), expected(&[(1, "Fleet"), (3, "Lease age")]));
    assert_eq!(
        found("g.txt", "{{- $a := 1 -}}\nWait for it:\n\n    kubectl get\n"),
        expected(&[(2, "Wait for it:"), (4, "kubectl get")])
    );
    assert_eq!(
        found("h.service", "Description=The edgesync agent\n"),
        expected(&[(1, "The edgesync agent")])
    );
}

#[test]
fn texts_of_all_shipped_files_are_read() {
    let all = texts();
    for name in [
        "Cargo.toml",
        "config/edgesync.toml",
        "crates/api/Cargo.toml",
        "packaging/alerts.yaml",
        "packaging/deb/postrm",
        "packaging/edgesync.service",
        "packaging/grafana-dashboard.json",
        "packaging/kubernetes/chart/templates/_helpers.tpl",
        "packaging/kubernetes/crds/placements.yaml",
    ] {
        assert!(all.iter().any(|text| text.file == name), "{name} was not read");
    }
    assert!(all.iter().all(|text| !text.file.starts_with("packaging/kubernetes/chart/manifests/")));
}
