//! Checks the rules for crates that cargo does not enforce: pure crates reach no clock, file or
//! network, each external library has its crates, files are short and documented.

// Clippy takes only the functions marked #[test] for tests, not what they call.
#![allow(clippy::unwrap_used, clippy::panic)]

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use edgesync_testkit::programs::root;
use proc_macro2::{TokenStream, TokenTree};

use super::sources::{FOR_TESTS, File, is_test, packages, product};

/// Crates whose inputs are arguments and whose effects are values.
const PURE: [&str; 6] = ["cel", "object", "schema", "protocol", "placement", "rollout"];
/// Paths that lead out of a pure crate.
const IMPURE: [&str; 9] = [
    "std::fs",
    "std::net",
    "std::env",
    "std::thread",
    "std::process",
    "std::time::Instant",
    "std::time::SystemTime",
    "Timestamp::now",
    "Zoned::now",
];
/// Libraries that pure crates do not depend on.
const IMPURE_LIBRARIES: [&str; 8] =
    ["tokio", "rusqlite", "rumqttc", "hyper", "rustls", "kube", "clap", "uuid"];

/// External libraries, each with the only packages that may name it, so that it can be replaced
/// there.
const PLACES: &[(&str, &[&str])] = &[
    ("rumqttc", &["transport", "broker"]),
    ("tokio-tungstenite", &["kubeedge", "transport"]),
    ("httparse", &["transport"]),
    ("rcgen", &["enrollment", "transport"]),
    ("yasna", &["transport"]),
    ("ring", &["api", "enrollment", "store", "transport"]),
    ("rustls", &["transport"]),
    ("tokio-rustls", &["transport"]),
    ("backoff", &["transport"]),
    ("x509-parser", &["enrollment"]),
    ("rusqlite", &["store", "cloud-store", "kubernetes", "edgesync"]),
    ("hyper", &["api"]),
    ("hyper-util", &["api"]),
    ("http-body-util", &["api"]),
    ("kube", &["kubernetes"]),
    ("k8s-openapi", &["kubernetes"]),
    ("anyhow", &["cli", "cloud", "edgesync", "enrollment", "runtime"]),
    ("clap", &["cli", "cloud", "demo", "edgesync"]),
];

/// Maximum lines of code in a file; unit tests at its end are not counted.
const LONGEST: usize = 700;

/// The names of the dependencies of a package, without those of its tests.
fn dependencies(package: &str) -> Vec<String> {
    let manifest = match package {
        "edgesync" => root().join("Cargo.toml"),
        package => root().join("crates").join(package).join("Cargo.toml"),
    };
    let manifest = fs::read_to_string(manifest).unwrap();
    let table = manifest.split("\n[dependencies]\n").nth(1).unwrap_or_default();
    let lines = table.lines().take_while(|line| !line.starts_with('['));
    let names = lines.filter_map(|line| line.split(['.', ' ', '=']).next());
    names.filter(|name| !name.is_empty() && !name.starts_with('#')).map(str::to_owned).collect()
}

/// Returns the tokens of a file without spaces, comments, strings and unit tests.
fn code(text: &str) -> String {
    let body = text.split("\n#[cfg(test)]\nmod tests {").next().unwrap_or_default();
    let mut out = String::new();
    let tokens: TokenStream = body.parse().unwrap_or_else(|error| panic!("{error}: {body}"));
    spell(tokens, &mut out);
    out
}

fn spell(tokens: TokenStream, out: &mut String) {
    for token in tokens {
        match token {
            TokenTree::Group(group) => {
                out.push('{');
                spell(group.stream(), out);
                out.push('}');
            }
            TokenTree::Ident(word) => {
                if out.ends_with(|c: char| c.is_alphanumeric() || c == '_') {
                    out.push(' ');
                }
                out.push_str(&word.to_string());
            }
            TokenTree::Punct(sign) => out.push(sign.as_char()),
            TokenTree::Literal(_) => out.push('_'),
        }
    }
}

fn impure(code: &str) -> Option<&'static str> {
    IMPURE.into_iter().find(|path| code.contains(path))
}

#[test]
fn pure_crates_use_no_clock_file_or_network() {
    let packages = packages();
    for name in PURE {
        let outer: Vec<String> =
            dependencies(name).into_iter().filter(|name| IMPURE_LIBRARIES.contains(&name.as_str())).collect();
        assert!(outer.is_empty(), "crates/{name} depends on {outer:?}");
        for (path, text) in packages[name].iter().filter(|(path, _)| !is_test(path)) {
            assert_eq!(impure(&code(text)), None, "{path}");
        }
    }
}

#[test]
fn impure_code_is_detected() {
    assert_eq!(impure(&code("use std::time::Instant;")), Some("std::time::Instant"));
    assert_eq!(impure(&code("fn f() { jiff::Timestamp::now(); }")), Some("Timestamp::now"));
    assert_eq!(impure(&code("// std::fs\nconst A: &str = \"std::fs\";")), None);
    assert_eq!(impure(&code("fn f() {}\n#[cfg(test)]\nmod tests {\nuse std::fs;\n}")), None);
}

#[test]
fn external_libraries_stay_in_their_crates() {
    for package in packages().into_keys().filter(|name| !["testkit", "fuzz"].contains(&name.as_str())) {
        for name in dependencies(&package) {
            if let Some((_, places)) = PLACES.iter().find(|(library, _)| *library == name) {
                assert!(
                    places.contains(&package.as_str()),
                    "{package} depends on {name}, which belongs to {places:?}"
                );
            }
        }
    }
}

/// Returns the modules at the top of a crate, each with those that it uses. Test code counts as
/// unused. `crate` in the path of a macro counts as well.
fn top_modules(files: &[File]) -> BTreeMap<String, BTreeSet<String>> {
    let mut modules: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    let mut of_tests = Vec::new();
    for (path, text) in files.iter().filter(|(path, _)| !is_test(path)) {
        let (_, inside) = path.split_once("src/").unwrap();
        let segments: Vec<&str> =
            inside.trim_end_matches(".rs").trim_end_matches("/mod").split('/').collect();
        if ["lib", "main", "bin"].contains(&segments[0]) {
            let declared = text.split("#[cfg(test)]\n").skip(1);
            let declared = declared.filter_map(|rest| rest.lines().next()?.strip_suffix(';'));
            of_tests.extend(declared.filter_map(|line| line.rsplit(' ').next()).map(str::to_owned));
            continue;
        }
        let used = modules.entry(segments[0].to_owned()).or_default();
        let code = code(text);
        for root in ["crate::".to_owned(), "super::".repeat(segments.len())] {
            for (at, _) in code.match_indices(&root) {
                if !code[..at].ends_with("::") {
                    used.extend(first_segments(&code[at + root.len()..]));
                }
            }
        }
    }
    modules.retain(|name, _| !of_tests.contains(name));
    let names: BTreeSet<String> = modules.keys().cloned().collect();
    for (name, used) in &mut modules {
        used.retain(|other| names.contains(other) && other != name);
    }
    modules
}

/// Returns the first segment of each path after a prefix: `a` of `a::b`, `a` and `c` of
/// `{a::b, c}`.
fn first_segments(rest: &str) -> Vec<String> {
    let word = |text: &str| text.chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect::<String>();
    let Some(list) = rest.strip_prefix('{') else { return vec![word(rest)] };
    let (mut depth, mut begins, mut found) = (0, true, Vec::new());
    for (at, c) in list.char_indices() {
        if begins && depth == 0 {
            found.push(word(&list[at..]));
        }
        begins = c == ',';
        match c {
            '{' => depth += 1,
            '}' if depth == 0 => break,
            '}' => depth -= 1,
            _ => {}
        }
    }
    found
}

/// Returns the modules that lie on circles of uses, or between two of them.
fn circles(mut modules: BTreeMap<String, BTreeSet<String>>) -> BTreeMap<String, BTreeSet<String>> {
    loop {
        let before = modules.len();
        let used: BTreeSet<String> = modules.values().flatten().cloned().collect();
        let names: BTreeSet<String> = modules.keys().cloned().collect();
        modules.retain(|name, uses| used.contains(name) && uses.iter().any(|other| names.contains(other)));
        for uses in modules.values_mut() {
            uses.retain(|other| names.contains(other));
        }
        if modules.len() == before {
            return modules;
        }
    }
}

/// Cargo refuses circles of crates; within a crate only this test does.
#[test]
fn modules_at_the_top_of_a_crate_form_no_circle() {
    for (name, files) in packages().iter().filter(|(name, _)| !FOR_TESTS.contains(&name.as_str())) {
        let circles = circles(top_modules(files));
        assert!(circles.is_empty(), "{name}: these modules use each other: {circles:#?}");
    }
}

#[test]
fn circles_of_modules_are_detected() {
    let crate_of = |files: &[(&str, &str)]| {
        let files = files.iter().map(|(path, text)| (format!("src/{path}.rs"), (*text).to_owned()));
        circles(top_modules(&files.collect::<Vec<_>>()))
    };
    let found = crate_of(&[
        ("a", "use crate::{b::{c, d}, e};"),
        ("b/c", "use super::super::f;"),
        ("f", "use super::a;"),
    ]);
    assert_eq!(found.into_keys().collect::<Vec<_>>(), ["a", "b", "f"]);
    let chain = [("a", "use super::b;"), ("b", "use super::c::a;"), ("c/a", "use super::b; // crate::a")];
    assert!(crate_of(&chain).is_empty());
    let tested = [("lib", "#[cfg(test)]\nmod b;"), ("a", "use crate::b;"), ("b", "use crate::a;")];
    assert!(crate_of(&tested).is_empty());
}

#[test]
fn agent_depends_on_neither_cluster_nor_fleet_crates() {
    let mut reached = vec!["edgesync".to_owned()];
    let mut next = 0;
    while let Some(package) = reached.get(next).cloned() {
        for name in dependencies(&package) {
            let ours = name.strip_prefix("edgesync-").map(str::to_owned);
            reached.extend(ours.filter(|name| !reached.contains(name)));
        }
        next += 1;
    }
    for other in [
        "fleet",
        "cloud",
        "cloud-store",
        "broker",
        "enrollment",
        "kubernetes",
        "placement",
        "rollout",
        "testkit",
    ] {
        assert!(!reached.contains(&other.to_owned()), "the device's program contains {other}: {reached:?}");
    }
}

#[test]
fn architecture_lists_the_dependencies_of_each_crate() {
    let page = fs::read_to_string(root().join("docs/architecture.md")).unwrap();
    let (_, table) = page.split_once("| crate | job | may use |\n|---|---|---|\n").unwrap();
    let rows = table.lines().take_while(|line| line.starts_with('|'));
    let documented: BTreeMap<String, BTreeSet<String>> = rows
        .map(|row| {
            let columns: Vec<&str> = row.trim_matches('|').split(" | ").collect();
            let quoted =
                |column: &str| column.split('`').skip(1).step_by(2).map(str::to_owned).collect::<Vec<_>>();
            (quoted(columns[0]).remove(0), quoted(columns[2]).into_iter().collect())
        })
        .collect();
    let crates = packages().into_keys().filter(|name| !FOR_TESTS.contains(&name.as_str()));
    let declared: BTreeMap<String, BTreeSet<String>> = crates
        .map(|name| {
            let ours = |name: String| match name.as_str() {
                "edgesync" => Some(name),
                _ => name.strip_prefix("edgesync-").map(str::to_owned),
            };
            let used = dependencies(&name).into_iter().filter_map(ours).collect();
            (name, used)
        })
        .collect();
    assert_eq!(documented, declared);
}

#[test]
fn source_files_stay_under_the_line_limit() {
    let lines = |text: &str| {
        let body = text.split("\n#[cfg(test)]\nmod tests {").next().unwrap_or_default();
        body.lines().filter(|line| !line.trim_start().starts_with("//") && !line.trim().is_empty()).count()
    };
    let long = product().into_iter().map(|(path, text)| (lines(&text), path));
    let long: Vec<_> = long.filter(|(lines, _)| *lines > LONGEST).collect();
    assert!(long.is_empty(), "beyond {LONGEST} lines: {long:?}");
}

#[test]
fn modules_open_with_their_job() {
    let silent = product().into_iter().filter(|(_, text)| !text.starts_with("//!")).map(|(path, _)| path);
    let silent = silent.filter(|path| !path.ends_with("/tests.rs")).collect::<Vec<_>>();
    assert!(silent.is_empty(), "without a //! at the top: {silent:?}");
}

#[test]
fn unsafe_code_stays_in_one_file() {
    let found =
        product().into_iter().filter(|(_, text)| code(text).contains("unsafe{")).map(|(path, _)| path);
    assert_eq!(found.collect::<Vec<_>>(), ["crates/runtime/src/memory.rs"]);
}

/// Returns all files below a directory, relative to it; none if there is no such directory.
fn files_below(directory: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut open = vec![directory.to_owned()];
    while let Some(next) = open.pop() {
        for entry in fs::read_dir(&next).into_iter().flatten() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                open.push(path);
            } else {
                found.push(path.strip_prefix(directory).unwrap().to_owned());
            }
        }
    }
    found
}

/// proptest reads the seeds of `src/a/tests.rs` from `proptest-regressions/a/tests.txt` beside
/// `src`, the nearest directory with a `lib.rs` or `main.rs`; those of `tests` from the top.
#[test]
fn recorded_seeds_are_where_proptest_reads_them() {
    let crates = fs::read_dir(root().join("crates")).unwrap().map(|entry| entry.unwrap().path());
    let mut directories: Vec<PathBuf> = crates.collect();
    directories.extend([root().to_owned(), root().join("tests"), root().join("benches")]);
    let mut seeds = 0;
    for directory in directories {
        for file in files_below(&directory.join("proptest-regressions")) {
            let sources = ["src", "tests", "benches"].map(|name| directory.join(name)).into_iter();
            let mut sources = sources.filter(|sources| sources.join("lib.rs").exists());
            let reads = |sources: PathBuf| {
                let source = fs::read_to_string(sources.join(&file).with_extension("rs"));
                source.is_ok_and(|text| text.contains("proptest!"))
            };
            assert!(sources.any(reads), "no test reads {} of {}", file.display(), directory.display());
            seeds += 1;
        }
    }
    assert!(seeds > 1, "the seeds were not found");
}
