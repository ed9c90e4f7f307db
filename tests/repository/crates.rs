//! What cargo does not say of the crates: pure ones reach no clock, file or network, each outer library has its place, files
//! stay short and say what they are for.

// Clippy takes only the functions marked #[test] for tests, not what they call.
#![allow(clippy::unwrap_used, clippy::panic)]

use std::fs;

use edgesync_testkit::programs::root;
use proc_macro2::{TokenStream, TokenTree};

use super::sources::{is_test, packages, product};

/// Crates whose inputs are arguments and whose effects are values.
const PURE: [&str; 5] = ["cel", "object", "schema", "protocol", "placement"];
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

/// Outer libraries, each with the packages that may name it: it can be replaced there.
const PLACES: &[(&str, &[&str])] = &[
    ("rumqttc", &["transport", "broker"]),
    ("tokio-tungstenite", &["kubeedge"]),
    ("rustls", &["transport"]),
    ("tokio-rustls", &["transport"]),
    ("backoff", &["transport"]),
    ("x509-parser", &["enrollment"]),
    ("rusqlite", &["store", "cloud-store", "kubernetes", "edgesync"]),
    ("hyper", &["api"]),
    ("kube", &["kubernetes"]),
    ("clap", &["cli", "cloud", "demo", "edgesync"]),
];

/// A file beyond this many lines must be two; unit tests at its end are not counted.
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

/// The code as words without spaces, without comments, strings and what is compiled for tests alone.
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
fn pure_crates_reach_no_clock_file_or_network() {
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
fn impure_code_is_found() {
    assert_eq!(impure(&code("use std::time::Instant;")), Some("std::time::Instant"));
    assert_eq!(impure(&code("fn f() { jiff::Timestamp::now(); }")), Some("Timestamp::now"));
    assert_eq!(impure(&code("// std::fs\nconst A: &str = \"std::fs\";")), None);
    assert_eq!(impure(&code("fn f() {}\n#[cfg(test)]\nmod tests {\nuse std::fs;\n}")), None);
}

#[test]
fn each_outer_library_has_its_place() {
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

#[test]
fn the_device_knows_neither_cluster_nor_fleet() {
    let mut reached = vec!["edgesync".to_owned()];
    let mut next = 0;
    while let Some(package) = reached.get(next).cloned() {
        for name in dependencies(&package) {
            let ours = name.strip_prefix("edgesync-").map(str::to_owned);
            reached.extend(ours.filter(|name| !reached.contains(name)));
        }
        next += 1;
    }
    for other in
        ["fleet", "cloud", "cloud-store", "broker", "enrollment", "kubernetes", "placement", "testkit"]
    {
        assert!(!reached.contains(&other.to_owned()), "the device's program contains {other}: {reached:?}");
    }
}

#[test]
fn no_file_is_too_long_to_read() {
    let lines = |text: &str| {
        let body = text.split("\n#[cfg(test)]\nmod tests {").next().unwrap_or_default();
        body.lines().filter(|line| !line.trim_start().starts_with("//") && !line.trim().is_empty()).count()
    };
    let long = product().into_iter().map(|(path, text)| (lines(&text), path));
    let long: Vec<_> = long.filter(|(lines, _)| *lines > LONGEST).collect();
    assert!(long.is_empty(), "beyond {LONGEST} lines: {long:?}");
}

#[test]
fn every_module_opens_with_its_job() {
    let silent = product().into_iter().filter(|(_, text)| !text.starts_with("//!")).map(|(path, _)| path);
    let silent = silent.filter(|path| !path.ends_with("/tests.rs")).collect::<Vec<_>>();
    assert!(silent.is_empty(), "without a //! at the top: {silent:?}");
}

#[test]
fn unsafe_code_is_in_one_file() {
    let found =
        product().into_iter().filter(|(_, text)| code(text).contains("unsafe{")).map(|(path, _)| path);
    assert_eq!(found.collect::<Vec<_>>(), ["crates/runtime/src/memory.rs"]);
}
