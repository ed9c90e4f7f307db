//! The documents against the repository: what they link to exists, and so do the tests they name.

// Clippy takes only the functions marked #[test] for tests, not what they call.
#![allow(clippy::unwrap_used, clippy::panic)]

use std::fs;
use std::path::{Path, PathBuf};

/// What somebody reads who only wants to know what this is.
const README_LINES: usize = 200;

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// All files with this extension under some directories.
fn files(directories: &[&str], extension: &str) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut open: Vec<PathBuf> = directories.iter().map(|directory| root().join(directory)).collect();
    while let Some(directory) = open.pop() {
        for entry in fs::read_dir(directory).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                open.push(path);
            } else if path.extension().is_some_and(|found| found == extension) {
                found.push(path);
            }
        }
    }
    found
}

fn documents() -> Vec<PathBuf> {
    let mut documents = files(&["docs"], "md");
    documents.extend(["README.md", "CONTRIBUTING.md", "CHANGELOG.md"].map(|name| root().join(name)));
    assert!(documents.len() > 8, "the documents were not found");
    documents
}

/// The text without fenced blocks.
fn prose(text: &str) -> String {
    text.split("\n```").step_by(2).collect()
}

/// A heading as it stands in the address of its section.
fn anchor(heading: &str) -> String {
    let letters = heading.trim().to_lowercase();
    letters
        .chars()
        .filter(|c| c.is_alphanumeric() || "-_ ".contains(*c))
        .collect::<String>()
        .replace(' ', "-")
}

fn has_section(text: &str, wanted: &str) -> bool {
    let mut headings = text.lines().filter(|line| line.starts_with('#'));
    headings.any(|line| anchor(line.trim_start_matches('#')) == wanted)
}

#[test]
fn every_link_between_documents_leads_somewhere() {
    for document in documents() {
        let text = fs::read_to_string(&document).unwrap();
        for link in prose(&text).split("](").skip(1).filter_map(|rest| rest.split(')').next()) {
            if link.starts_with("https://") {
                continue;
            }
            let (file, section) = link.split_once('#').unwrap_or((link, ""));
            let target = match file {
                "" => document.clone(),
                file => document.parent().unwrap().join(file),
            };
            assert!(target.exists(), "{}: {link} does not exist", document.display());
            let found = section.is_empty() || has_section(&fs::read_to_string(&target).unwrap(), section);
            assert!(found, "{}: {link} has no such section", document.display());
        }
    }
}

#[test]
fn the_readme_can_be_read_to_its_end() {
    let readme = fs::read_to_string(root().join("README.md")).unwrap();
    let lines = readme.lines().count();
    assert!(lines <= README_LINES, "README.md has {lines} lines, {README_LINES} at most");
}

#[test]
fn every_test_that_the_guarantees_name_exists() {
    let guarantees = fs::read_to_string(root().join("docs/guarantees.md")).unwrap();
    // Names of tests are the only words with so many underscores.
    let named: Vec<&str> =
        guarantees.split('`').filter(|word| !word.contains(' ') && word.matches('_').count() >= 4).collect();
    assert!(named.len() >= 10, "the tests were not found: {named:?}");
    let sources: Vec<String> =
        files(&["src", "tests"], "rs").iter().map(|path| fs::read_to_string(path).unwrap()).collect();
    for name in named {
        let definition = format!("fn {name}(");
        assert!(sources.iter().any(|source| source.contains(&definition)), "there is no test {name}");
    }
}
