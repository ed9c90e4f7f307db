//! Checks that the links, files, tests and configuration keys that the documents name exist.

// Clippy takes only the functions marked #[test] for tests, not what they call.
#![allow(clippy::unwrap_used, clippy::panic)]

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use clap::CommandFactory as _;
use edgesync_cloud::cli::args_cloud::CloudArgs;

/// Maximum lines of README.md, which introduces the project.
const README_LINES: usize = 200;

/// Sentences of README.md about what edgesync does not do, each with the test that shows it.
/// Nothing can show that it is tested on Linux only.
const LIMITATIONS: [(&str, &str); 5] = [
    ("It runs no containers.", "kubectl_commands_work_or_are_refused_with_a_reason"),
    ("three roles for the whole fleet", "operators_have_three_roles"),
    ("no RBAC", "role_bindings_grant_operators_nothing"),
    ("admission webhooks", "admission_webhooks_are_not_called"),
    ("conversion webhooks", "conversion_webhooks_are_refused"),
];

/// Words in the documents of claims that look like names of tests: keys of file rules, and an alert
/// of TLS.
const NO_TESTS: [&str; 5] =
    ["condition_network", "max_files", "max_size", "no_application_protocol", "pid_file"];

fn root() -> &'static Path {
    edgesync_testkit::programs::root()
}

/// Returns all files with this extension below some directories.
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
    documents.extend(
        ["README.md", "CONTRIBUTING.md", "SECURITY.md", "CHANGELOG.md"].map(|name| root().join(name)),
    );
    assert!(documents.len() > 8, "the documents were not found");
    documents
}

/// Returns the text without fenced blocks.
fn prose(text: &str) -> String {
    text.split("\n```").step_by(2).collect()
}

/// Converts a heading to the anchor of its section.
fn anchor(heading: &str) -> String {
    let letters = heading.trim().to_lowercase();
    letters
        .chars()
        .filter(|c| c.is_alphanumeric() || "-_ ".contains(*c))
        .collect::<String>()
        .replace(' ', "-")
}

fn has_section(text: &str, expected: &str) -> bool {
    let mut headings = text.lines().filter(|line| line.starts_with('#'));
    headings.any(|line| anchor(line.trim_start_matches('#')) == expected)
}

#[test]
fn document_links_resolve() {
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
fn files_named_in_documents_exist() {
    let mut named = 0;
    for document in documents() {
        let text = fs::read_to_string(&document).unwrap();
        for word in prose(&text).split('`').skip(1).step_by(2).filter_map(|word| word.split(' ').next()) {
            let is_path =
                ["crates/", "src/", "tests/", "docs/", "packaging/"].iter().any(|top| word.starts_with(top));
            if is_path && !word.contains(['*', '…']) {
                named += 1;
                assert!(root().join(word).exists(), "{}: there is no {word}", document.display());
            }
        }
    }
    assert!(named > 50, "{named} files were found");
}

#[test]
fn index_links_every_document() {
    let index = fs::read_to_string(root().join("docs/README.md")).unwrap();
    for document in files(&["docs"], "md").iter().filter(|path| !path.ends_with("docs/README.md")) {
        let name = document.strip_prefix(root().join("docs")).unwrap().display();
        let leads = index.contains(&format!("]({name})")) || index.contains(&format!("]({name}#"));
        assert!(leads, "docs/README.md does not lead to {name}");
    }
}

/// Returns the keys of a configuration file as `section.key`.
fn keys(file: &str) -> Vec<String> {
    let text = fs::read_to_string(root().join("config").join(file)).unwrap();
    let (mut section, mut keys) = (String::new(), Vec::new());
    for line in text.lines() {
        let key = line.strip_prefix('#').and_then(|line| line.split_once(" = ")).map(|(key, _)| key);
        match key.filter(|key| key.chars().all(|c| c.is_ascii_lowercase() || c == '_')) {
            Some(key) => keys.push(format!("{section}.{key}")),
            None if line.starts_with('[') => section = line.trim_matches(['[', ']']).to_owned(),
            None => {}
        }
    }
    keys
}

#[test]
fn configuration_keys_named_in_documents_exist() {
    let mut known = keys("edgesync.toml");
    known.extend(keys("edgesync-cloud.toml"));
    assert!(known.len() > 60, "the keys were not found: {known:?}");
    let sections: BTreeSet<&str> = known.iter().filter_map(|key| key.split('.').next()).collect();
    let mut named = 0;
    for document in documents() {
        let text = fs::read_to_string(&document).unwrap();
        for word in prose(&text).split('`').skip(1).step_by(2) {
            let word = word.split(' ').next().unwrap_or_default();
            let Some((section, key)) = word.split_once('.') else { continue };
            // File names have the same form as keys.
            let file = ["pem", "key", "rs", "toml", "db"].contains(&key);
            let is_key = key.chars().all(|c| c.is_ascii_lowercase() || c == '_') && !key.is_empty();
            if sections.contains(section) && is_key && !file {
                named += 1;
                assert!(known.iter().any(|known| known == word), "{}: no key {word}", document.display());
            }
        }
    }
    assert!(named > 50, "{named} keys were found");
}

#[test]
fn readme_stays_under_its_line_limit() {
    let readme = fs::read_to_string(root().join("README.md")).unwrap();
    let lines = readme.lines().count();
    assert!(lines <= README_LINES, "README.md has {lines} lines, {README_LINES} at most");
}

fn sources() -> Vec<String> {
    files(&["src", "crates", "tests"], "rs").iter().map(|path| fs::read_to_string(path).unwrap()).collect()
}

/// Returns the names of all tests.
fn tests() -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    for source in sources() {
        // This macro makes a test for each API server of a function.
        for names in source.split("over_each!(").skip(1).filter_map(|rest| rest.split(')').next()) {
            found.extend(names.split(',').map(|name| name.trim().to_owned()));
        }
        let mut is_test = false;
        for line in source.lines().map(str::trim) {
            is_test |= line.starts_with("#[test]") || line.starts_with("#[tokio::test");
            let function = line.trim_start_matches("async ").strip_prefix("fn ");
            if let Some(name) = function.and_then(|rest| rest.split('(').next()) {
                if is_test {
                    found.insert(name.to_owned());
                }
                is_test = false;
            }
        }
    }
    found
}

#[test]
fn tests_named_beside_claims_exist() {
    let tests = tests();
    for document in ["docs/guarantees.md", "docs/kubernetes.md", "docs/security.md"] {
        let text = fs::read_to_string(root().join(document)).unwrap();
        let is_name = |word: &str| {
            let is_letter = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_';
            word.trim_matches('_').contains('_') && word.chars().all(is_letter)
        };
        let words = prose(&text);
        let named: Vec<&str> =
            words.split('`').filter(|word| is_name(word) && !NO_TESTS.contains(word)).collect();
        assert!(named.len() >= 10, "{document}: the tests were not found: {named:?}");
        for name in named {
            assert!(tests.contains(name), "{document}: there is no test {name}");
        }
    }
}

/// Returns whether `tests/run` selects tests by this path of modules, such as `e2e::objects`.
fn is_test_module(path: &str) -> bool {
    let mut parent = root().join("tests");
    let mut declares = ["parts.rs", "processes.rs"].map(|file| parent.join(file)).to_vec();
    for module in path.split("::") {
        let line = format!("mod {module};");
        let is_declared = declares
            .iter()
            .filter_map(|file| fs::read_to_string(file).ok())
            .any(|text| text.lines().any(|found| found == line || found == format!("pub(crate) {line}")));
        if !is_declared {
            return false;
        }
        parent = parent.join(module);
        declares = vec![parent.join("mod.rs"), parent.with_extension("rs")];
    }
    true
}

/// Returns the last cells of the rows of README's comparison.
fn commands_that_reproduce(readme: &str) -> Vec<&str> {
    let table = readme.split("| reproduce it with |\n").nth(1).unwrap_or_default();
    let rows = table.lines().skip(1).take_while(|line| line.starts_with('|'));
    rows.filter_map(|row| row.trim_end_matches(['|', ' ']).rsplit("| ").next()).collect()
}

#[test]
fn commands_that_reproduce_claims_exist() {
    let readme = fs::read_to_string(root().join("README.md")).unwrap();
    let budgets = fs::read_to_string(root().join("benches/budgets.rs")).unwrap();
    let commands = commands_that_reproduce(&readme);
    assert!(commands.len() >= 10, "the commands were not found: {commands:?}");
    for command in commands {
        let command = command.trim_matches('`');
        let exists = match (command.strip_prefix("tests/run "), command.strip_prefix("cargo bench -- ")) {
            (Some(module), _) => is_test_module(module),
            (_, Some(section)) => budgets.contains(&format!("\n    (\"{section}\", ")),
            (None, None) => false,
        };
        assert!(exists, "README.md: {command} runs nothing");
    }
    assert!(is_test_module("store::edge") && !is_test_module("store::e2e") && !is_test_module("edge"));
}

#[test]
fn benchmark_sections_named_in_documents_exist() {
    let budgets = fs::read_to_string(root().join("benches/budgets.rs")).unwrap();
    for document in documents() {
        let text = fs::read_to_string(&document).unwrap();
        for rest in text.split("cargo bench -- ").skip(1) {
            let names = rest.split('`').next().unwrap_or_default();
            for name in names.split_whitespace().filter(|name| !name.starts_with("--")) {
                let exists = budgets.contains(&format!("\n    (\"{name}\", "));
                assert!(exists, "{}: benches/budgets.rs has no section {name}", document.display());
            }
        }
    }
}

#[test]
fn limitations_in_readme_have_tests() {
    let readme = fs::read_to_string(root().join("README.md")).unwrap();
    let limitations = readme.split("\n## What it does not do\n").nth(1).unwrap_or_default();
    let limitations = limitations.split("\n## ").next().unwrap_or_default();
    let tests = tests();
    for (sentence, test) in LIMITATIONS {
        assert!(limitations.contains(sentence), "README.md no longer says: {sentence}");
        assert!(tests.contains(test), "there is no test {test} for: {sentence}");
    }
}

#[test]
fn operators_have_three_roles() {
    let command = CloudArgs::command();
    let kubeconfig = command.find_subcommand("kubeconfig").unwrap();
    let role = kubeconfig.get_arguments().find(|argument| argument.get_id() == "role").unwrap();
    let roles: Vec<String> =
        role.get_possible_values().iter().map(|role| role.get_name().to_owned()).collect();
    assert_eq!(roles, ["view", "edit", "admin"]);
    let readme = fs::read_to_string(root().join("README.md")).unwrap();
    assert!(readme.contains("three roles for the whole fleet"));
}
