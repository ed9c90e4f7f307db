//! Checks the table of limits in `docs/architecture.md` against the constants that set them.

// Clippy takes only the functions marked #[test] for tests, not what they call.
#![allow(clippy::unwrap_used, clippy::panic)]

use std::fs;
use std::path::{Path, PathBuf};

use edgesync_testkit::programs::root;

/// A constant or field as a row names it: file and name.
type Setting<'a> = (&'a str, &'a str);

/// Returns the file that a row names: `broker/accept.rs` is in the crate `broker`, `src/agent.rs`
/// in the agent's package.
fn source(file: &str) -> PathBuf {
    match file.split_once('/') {
        Some((name, path)) if name != "src" => root().join("crates").join(name).join("src").join(path),
        _ => root().join(file),
    }
}

/// Returns the words in backticks.
fn quoted(text: &str) -> impl Iterator<Item = &str> {
    text.split('`').skip(1).step_by(2)
}

/// Parses the last column of a row: the files, and the names that follow each file.
fn settings(column: &str) -> (Vec<&str>, Vec<Setting<'_>>) {
    let (mut files, mut settings) = (Vec::new(), Vec::new());
    for word in quoted(column) {
        match (Path::new(word).extension(), files.last()) {
            (Some(_), _) => files.push(word),
            (None, Some(file)) => settings.push((*file, word)),
            (None, None) => panic!("{word} is in no file: {column}"),
        }
    }
    (files, settings)
}

/// Evaluates an expression such as `4 << 20`, `5 * 60` or `Duration::from_secs(30)`.
fn value(expression: &str) -> Option<u64> {
    let expression = expression.trim().trim_start_matches("Duration::from_secs(").trim_end_matches(')');
    let number = |text: &str| text.trim().replace('_', "").parse::<u64>().ok();
    if let Some((base, places)) = expression.split_once("<<") {
        return Some(number(base)? << number(places)?);
    }
    expression.split('*').map(number).product()
}

/// Returns all values that a file assigns to a name, in a constant, a field or an assignment.
fn values(text: &str, name: &str) -> Vec<u64> {
    let of_name = |at: usize| {
        let (before, rest) = (&text[..at], &text[at + name.len()..]);
        let apart = !before.ends_with(|c: char| c.is_alphanumeric() || c == '_');
        let given = rest.strip_prefix(':').or_else(|| rest.strip_prefix(" ="))?;
        let given = &given[..given.find([',', ';', '}'])?];
        let unit = if name.ends_with("_KIB") { 1024 } else { 1 };
        value(given.rsplit('=').next()?).filter(|_| apart).map(|value| value * unit)
    };
    text.match_indices(name).filter_map(|(at, _)| of_name(at)).collect()
}

/// Returns the ways to write a number as a count, bytes or seconds.
fn written(value: u64) -> Vec<String> {
    let digits = value.to_string();
    let groups = digits.as_bytes().rchunks(3).rev().map(String::from_utf8_lossy);
    let mut forms = vec![groups.collect::<Vec<_>>().join(","), format!("{value} s")];
    for (unit, name) in [(1 << 10, "KiB"), (1 << 20, "MiB"), (60, "min"), (3600, "h")] {
        if value.is_multiple_of(unit) {
            forms.push(format!("{} {name}", value / unit));
        }
    }
    forms
}

/// Returns whether a text contains a number in one of its forms, and not as a part of another
/// number.
fn says(text: &str, value: u64) -> bool {
    let part_of_a_number = |c: char| c.is_ascii_digit() || c == ',';
    written(value).iter().any(|form| {
        text.match_indices(form.as_str()).any(|(at, _)| {
            let after = &text[at + form.len()..];
            let in_a_unit = form.ends_with(|c: char| c.is_ascii_digit())
                && ["KiB", "MiB", "min", "s ", "s,"].iter().any(|unit| after.trim_start().starts_with(unit));
            let goes_on = after.starts_with(|c: char| c.is_ascii_digit())
                || after.strip_prefix(',').is_some_and(|rest| rest.starts_with(|c: char| c.is_ascii_digit()));
            !text[..at].ends_with(part_of_a_number) && !goes_on && !in_a_unit
        })
    })
}

/// Lists the errors in a row of the table.
fn problems(row: &str) -> Vec<String> {
    let columns: Vec<&str> = row.trim_matches('|').split(" | ").collect();
    let [what, bound, set_in] = columns[..] else { panic!("not three columns: {row}") };
    let (files, settings) = settings(set_in);
    let missing = files.iter().filter(|file| !source(file).exists());
    let mut found: Vec<String> = missing.map(|file| format!("{what}: there is no {file}")).collect();
    for (file, name) in settings {
        let values = values(&fs::read_to_string(source(file)).unwrap_or_default(), name);
        if !values.iter().any(|value| says(bound, *value)) {
            found.push(format!("{what}: {name} in {file} is {values:?}, the table says {bound}"));
        }
    }
    found
}

#[test]
fn architecture_lists_the_limits_of_the_code() {
    let page = fs::read_to_string(root().join("docs/architecture.md")).unwrap();
    let (_, table) = page.split_once("| resource | limit | set in |\n|---|---|---|\n").unwrap();
    let rows = table.lines().take_while(|line| line.starts_with('|')).filter(|row| !row.starts_with("| **"));
    let rows: Vec<&str> = rows.collect();
    assert!(rows.len() > 50, "the table was not found");
    let found: Vec<String> = rows.into_iter().flat_map(problems).collect();
    assert!(found.is_empty(), "{}", found.join("\n"));
}

#[test]
fn values_are_found_in_every_notation() {
    let text = "const A: u64 = 64 << 10;\nSelf { b: 1_024, cc: 5 }\noptions.d = Duration::from_secs(5 * 60);\nxb: 7,";
    assert_eq!(values(text, "A"), [65_536]);
    assert_eq!(values(text, "b"), [1024]);
    assert_eq!(values(text, "c"), [0; 0]);
    assert_eq!(values(text, "d"), [300]);
    assert!(says("bodies of 64 KiB, others wait", 65_536) && says("5 min in all", 300));
    assert!(says("1,024 jobs and 4 MiB", 1024) && says("100,000", 100_000));
    assert!(!says("bodies of 64 KiB", 64) && !says("100,000", 100) && !says("1,024", 24));
}
