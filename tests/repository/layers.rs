//! The dependency rule, read from the sources: the floors that `src/lib.rs` draws hold for every import, no modules of a
//! folder need one another in a circle, each outer crate has its place, and files stay short.

// Clippy takes only the functions marked #[test] for tests, not what they call.
#![allow(clippy::unwrap_used, clippy::panic)]

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use crate::repository::imports::{Import, Sources, circles};

/// A part of the sources, and the words that must not stand in its code, each with the reason.
struct Rule {
    /// Files and directories under `src`, and the exceptions within them.
    within: &'static [&'static str],
    except: &'static [&'static str],
    forbidden: &'static [&'static str],
    because: &'static str,
}

const EVERYWHERE: &[&str] = &[""];

const RULES: &[Rule] = &[
    Rule {
        within: &["object", "placement", "sync"],
        // Tests alone: they read captured sessions and samples.
        except: &["sync/kubeedge/captures.rs", "sync/kubeedge/testing.rs", "object/fuzz.rs"],
        forbidden: &[
            "tokio",
            "rusqlite",
            "rumqttc",
            "hyper",
            "backoff::",
            "toml",
            "clap",
            "uuid",
            "std::fs",
            "std::net",
            "std::env",
            "std::thread",
            "std::time::Instant",
            "SystemTime",
            "Timestamp::now",
            "Zoned::now",
        ],
        because: "object, placement and sync are pure: time, randomness and data come in as arguments, effects go out as values",
    },
    Rule {
        within: EVERYWHERE,
        except: &["link/mqtt.rs", "link/mqtt", "broker.rs", "broker"],
        forbidden: &["rumqttc"],
        because: "the MQTT library can be replaced in one place",
    },
    Rule {
        within: EVERYWHERE,
        except: &["link/kubeedge.rs", "link/kubeedge"],
        forbidden: &["tungstenite"],
        because: "the WebSocket library can be replaced in one place",
    },
    Rule {
        within: EVERYWHERE,
        except: &["tls.rs", "tls"],
        forbidden: &["rustls", "tokio_rustls", "yasna"],
        because: "TLS can be replaced in one place",
    },
    Rule {
        within: EVERYWHERE,
        except: &["tls.rs", "tls", "cloud/pairing/authority.rs"],
        forbidden: &["rcgen"],
        because: "certificates are made by the device's key and by the authority",
    },
    Rule {
        within: EVERYWHERE,
        except: &["cloud/pairing/authority.rs", "cloud/pairing/request.rs"],
        forbidden: &["x509_parser"],
        because: "only the authority looks deeper into certificates than crate::repository::tls does",
    },
    Rule {
        within: EVERYWHERE,
        except: &[
            "tls.rs",
            "tls",
            "store/seal.rs",
            "store/seal",
            "cloud/pairing/tokens.rs",
            "cloud/pairing/pages.rs",
        ],
        forbidden: &[
            "ring::aead",
            "ring::digest",
            "ring::hkdf",
            "ring::hmac",
            "ring::rand",
            "ring::signature",
        ],
        because: "cryptography is in few places, each of which can be read by itself",
    },
    Rule {
        within: EVERYWHERE,
        except: &["link/retry.rs"],
        forbidden: &["backoff::"],
        because: "the backoff crate is unmaintained and must stay replaceable in one place",
    },
    Rule {
        within: EVERYWHERE,
        except: &["cluster.rs", "cluster"],
        forbidden: &["kube::", "k8s_openapi"],
        because: "the client of a Kubernetes cluster can be replaced in one place",
    },
    Rule {
        within: EVERYWHERE,
        except: &["store.rs", "store"],
        forbidden: &["rusqlite"],
        because: "only the store knows SQLite",
    },
    Rule {
        within: &[
            "cloud/fleet.rs",
            "cloud/fleet",
            "cloud/lifecycle.rs",
            "cloud/lifecycle",
            "cloud/node.rs",
            "cloud/uploads.rs",
            "cloud/uploads",
        ],
        except: &[],
        forbidden: &["store::cloud", "CloudStore", "CloudObjects"],
        because: "the fleet knows whoever keeps the objects by the trait of cloud/source alone",
    },
    Rule {
        within: EVERYWHERE,
        except: &["api.rs", "api"],
        forbidden: &["hyper::", "hyper_util", "http_body_util"],
        because: "only the api knows HTTP",
    },
    Rule {
        within: EVERYWHERE,
        except: &["process/memory.rs"],
        forbidden: &["unsafe ", "allow(unsafe_code)"],
        because: "unsafe code is confined to the allocator's settings",
    },
    Rule {
        within: EVERYWHERE,
        except: &[
            "cli.rs",
            "cli",
            "bin",
            "agent.rs",
            "cloud/service.rs",
            "process/connection.rs",
            "cloud/pairing.rs",
            "cloud/pairing",
        ],
        forbidden: &["anyhow"],
        because: "errors have types below what the command line runs",
    },
    Rule {
        within: EVERYWHERE,
        except: &["cli.rs", "cli", "demo/program.rs", "bin"],
        forbidden: &["clap::"],
        because: "only the command line parses arguments",
    },
];

/// A file beyond this many lines, tests not counted, should be two.
const LONG_FILE: usize = 500;
/// A file beyond this many lines must be two.
const TOO_LONG_FILE: usize = 700;

fn source() -> PathBuf {
    edgesync_testkit::programs::root().join("src")
}

/// All Rust files under a directory, by their path relative to `src`.
fn files(directory: &Path, found: &mut Vec<(String, String)>) {
    for entry in fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            files(&path, found);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            let name = path.strip_prefix(source()).unwrap().to_str().unwrap().to_owned();
            found.push((name, fs::read_to_string(&path).unwrap()));
        }
    }
}

fn all_files() -> Vec<(String, String)> {
    let mut found = Vec::new();
    files(&source(), &mut found);
    found.sort();
    assert!(found.len() > 10, "the sources were not found");
    found
}

/// Whether a path is `part`, `part.rs`, or lies below `part`; the empty part is everything.
fn lies_in(path: &str, part: &str) -> bool {
    let rest = path.strip_prefix(part);
    part.is_empty() || rest.is_some_and(|rest| rest.is_empty() || rest == ".rs" || rest.starts_with('/'))
}

/// The code without comments, strings and unit tests, line by line with its number.
fn code(text: &str) -> impl Iterator<Item = (usize, String)> {
    let body = text.split("\n#[cfg(test)]\nmod tests {").next().unwrap_or_default();
    let lines = bare(body).lines().map(str::to_owned).collect::<Vec<_>>();
    lines.into_iter().enumerate().map(|(index, line)| (index + 1, line))
}

/// The text with comments and the insides of string and character literals left out, on the same lines.
fn bare(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(c) = rest.chars().next() {
        let skipped = match c {
            '/' if rest.starts_with("//") => rest.find('\n').unwrap_or(rest.len()),
            'r' if rest.starts_with("r#\"") => rest.find("\"#").map_or(rest.len(), |end| end + 2),
            '"' => string_end(rest),
            '\'' if rest.starts_with("'\"'") => 3,
            _ => 0,
        };
        let (literal, after) = rest.split_at(skipped.max(c.len_utf8()));
        if skipped == 0 {
            out.push(c);
        } else {
            out.extend(literal.chars().filter(|c| *c == '\n'));
        }
        rest = after;
    }
    out
}

/// Where the string literal that `text` starts with ends.
fn string_end(text: &str) -> usize {
    let mut chars = text.char_indices().skip(1);
    while let Some((at, c)) = chars.next() {
        match c {
            '\\' => {
                chars.next();
            }
            '"' => return at + 1,
            _ => {}
        }
    }
    text.len()
}

/// Whether a word stands in a line, not as the end of a longer one.
fn names(line: &str, word: &str) -> bool {
    let joins = |c: char| c.is_alphanumeric() || c == '_';
    line.match_indices(word).any(|(at, _)| {
        let before = line[..at].chars().next_back();
        let after = line[at + word.len()..].chars().next();
        let open_end = !word.ends_with(joins) || !after.is_some_and(joins);
        open_end && !before.is_some_and(joins)
    })
}

fn broken(rules: &[Rule], files: &[(String, String)]) -> Vec<String> {
    let mut found = Vec::new();
    for rule in rules {
        let concerned = |path: &&(String, String)| {
            let test_file = ["/tests.rs", "/tests/", "/simulation"].iter().any(|part| path.0.contains(part));
            !test_file
                && rule.within.iter().any(|part| lies_in(&path.0, part))
                && !rule.except.iter().any(|part| lies_in(&path.0, part.trim_end_matches(".rs")))
        };
        for (path, text) in files.iter().filter(concerned) {
            for (number, line) in code(text) {
                for word in rule.forbidden.iter().filter(|word| names(&line, word)) {
                    found.push(format!("src/{path}:{number}: '{word}': {}", rule.because));
                }
            }
        }
    }
    found
}

/// The floor of each part, as the picture in a document tells it; 0 is the lowest.
fn floors(document: &str) -> BTreeMap<String, usize> {
    let picture = document.split("```text floors\n").nth(1).and_then(|rest| rest.split("```").next());
    let lines = picture.unwrap().lines().map(|line| line.trim_start_matches("//!").trim());
    let lines = lines.filter(|line| !line.is_empty());
    let mut floors = BTreeMap::new();
    for line in lines {
        let (number, rest) = line.split_once(' ').unwrap();
        // Columns are two spaces apart; what follows the parts, behind a dash, is said to people.
        let parts = rest.split('—').next().unwrap();
        for part in parts.split_whitespace() {
            floors.insert(part.to_owned(), number.parse().unwrap());
        }
    }
    floors
}

/// The part of the library that a file belongs to: what comes first in its path.
fn part(file: &str) -> &str {
    file.split('/').next().unwrap_or_default().trim_end_matches(".rs")
}

/// Imports that do not lead to a lower floor.
fn climbing(imports: &BTreeSet<Import>, floors: &BTreeMap<String, usize>) -> Vec<String> {
    let floor = |file: &str| *floors.get(part(file)).unwrap_or_else(|| panic!("{file} has no floor"));
    let apart =
        imports.iter().filter(|import| part(&import.to) != "lib" && part(&import.from) != part(&import.to));
    let wrong = apart.filter(|import| floor(&import.from) <= floor(&import.to));
    wrong.map(|Import { from, to, name }| format!("src/{from} imports {name} from src/{to}")).collect()
}

/// Circles among the modules of one folder, each taken with all that is below it. What a module and those below it have
/// of one another is not looked at: they are one thing in several files.
fn circles_in_folders(imports: &BTreeSet<Import>) -> Vec<String> {
    let mut folders: BTreeMap<String, BTreeSet<Import>> = BTreeMap::new();
    for import in imports {
        let path =
            |file: &str| file.trim_end_matches(".rs").split('/').map(str::to_owned).collect::<Vec<_>>();
        let (from, to) = (path(&import.from), path(&import.to));
        let common = from.iter().zip(&to).take_while(|(from, to)| from == to).count();
        if let (Some(next_from), Some(next_to)) = (from.get(common), to.get(common)) {
            let name = format!("{} needs {} of {}", import.from, import.name, import.to);
            let between = Import { from: next_from.clone(), to: next_to.clone(), name };
            folders.entry(from[..common].join("/")).or_default().insert(between);
        }
    }
    let mut found = Vec::new();
    for (folder, imports) in folders {
        for circle in circles(&imports) {
            let inside = |import: &&Import| circle.contains(&import.from) && circle.contains(&import.to);
            let ties: Vec<&str> = imports.iter().filter(inside).map(|import| import.name.as_str()).collect();
            found.push(format!("src/{folder}: {circle:?} form a circle:\n  {}", ties.join("\n  ")));
        }
    }
    found
}

fn the_floors() -> BTreeMap<String, usize> {
    floors(&fs::read_to_string(source().join("lib.rs")).unwrap())
}

#[test]
fn every_import_leads_to_a_lower_floor() {
    let found = climbing(&Sources::read(&source()).imports(), &the_floors());
    assert!(found.is_empty(), "{}", found.join("\n"));
}

#[test]
fn every_part_of_the_library_has_one_floor() {
    let files = all_files().into_iter().map(|(path, _)| part(&path).to_owned());
    let parts: BTreeSet<String> = files.filter(|part| part != "lib").collect();
    let drawn: BTreeSet<String> = the_floors().into_keys().collect();
    assert_eq!(parts, drawn);
}

#[test]
fn the_architecture_shows_the_same_floors() {
    let page = fs::read_to_string(source().with_file_name("docs/architecture.md")).unwrap();
    assert_eq!(floors(&page), the_floors());
}

#[test]
fn no_folder_has_a_circle() {
    let found = circles_in_folders(&Sources::read(&source()).imports());
    assert!(found.is_empty(), "{}", found.join("\n"));
}

#[test]
fn imports_are_found_however_they_are_written() {
    let top = "pub mod a; pub mod b;";
    let a = "pub mod inner; pub use inner::Thing; pub fn of_a() {}";
    for (written, file) in [
        ("use crate::repository::a::of_a;", "a.rs"),
        ("use super::a::{self, of_a};", "a.rs"),
        ("use crate::repository::a::Thing as Other;", "a/inner.rs"),
        ("use crate::repository::a::{inner::*};", "a/inner.rs"),
        ("fn f() { crate::repository::a::Thing::new(); }", "a/inner.rs"),
        ("fn f() -> super::a::Thing { todo!() }", "a/inner.rs"),
        ("fn f() { println!(\"{}\", crate::repository::a::of_a()); }", "a.rs"),
    ] {
        let files = [("lib.rs", top), ("a.rs", a), ("a/inner.rs", "pub struct Thing;"), ("b.rs", written)];
        let imports = Sources::of(&files).imports();
        let found: Vec<&str> =
            imports.iter().filter(|import| import.from == "b.rs").map(|import| import.to.as_str()).collect();
        assert!(found.contains(&file), "{written}: {found:?}");
    }
    for harmless in [
        "use std::fmt;",
        "#[cfg(test)]\nmod tests { use crate::repository::a::of_a; }",
        "// crate::repository::a::of_a",
    ] {
        let files = [("lib.rs", top), ("a.rs", a), ("a/inner.rs", "pub struct Thing;"), ("b.rs", harmless)];
        assert!(Sources::of(&files).imports().iter().all(|import| import.from != "b.rs"), "{harmless}");
    }
}

#[test]
fn imports_that_climb_and_circles_are_found() {
    let files = [
        ("lib.rs", ""),
        ("low.rs", "use crate::repository::high::Top; pub struct Bottom;"),
        ("high.rs", "pub mod x; pub mod y; use crate::repository::low::Bottom; pub struct Top;"),
        ("high/x.rs", "use super::y::Y; pub struct X;"),
        ("high/y.rs", "use super::x::X; use super::Top; pub struct Y;"),
    ];
    let imports = Sources::of(&files).imports();
    let floors = [("low".to_owned(), 0), ("high".to_owned(), 1)].into();
    assert_eq!(
        climbing(&imports, &floors),
        ["src/low.rs imports crate::repository::high::Top from src/high.rs"]
    );
    let circles = circles_in_folders(&imports);
    assert_eq!(circles.len(), 2, "{circles:?}");
    assert!(circles[1].starts_with("src/high: {\"x\", \"y\"} form a circle"), "{circles:?}");
}

#[test]
fn no_module_imports_what_its_layer_must_not_know() {
    let found = broken(RULES, &all_files());
    assert!(found.is_empty(), "{}", found.join("\n"));
}

#[test]
fn no_file_is_too_long_to_read() {
    let lines = |text: &str| code(text).count();
    let long = all_files()
        .into_iter()
        .map(|(path, text)| (lines(&text), path))
        .filter(|(lines, _)| *lines > LONG_FILE);
    let (too_long, long): (Vec<_>, Vec<_>) = long.partition(|(lines, _)| *lines > TOO_LONG_FILE);
    for (lines, path) in long {
        println!("src/{path} has {lines} lines; beyond {LONG_FILE} a file should be two");
    }
    assert!(too_long.is_empty(), "beyond {TOO_LONG_FILE} lines: {too_long:?}");
}

#[test]
fn every_module_opens_with_its_job() {
    let silent = all_files().into_iter().filter(|(_, text)| !text.starts_with("//!")).map(|(path, _)| path);
    let silent = silent.filter(|path| !path.ends_with("/tests.rs")).collect::<Vec<_>>();
    assert!(silent.is_empty(), "without a //! at the top: {silent:?}");
}

#[test]
fn the_rules_find_what_they_forbid() {
    let file = |path: &str, text: &str| vec![(path.to_owned(), text.to_owned())];
    for (path, text) in [
        ("sync/edge.rs", "use std::time::Instant;"),
        ("sync.rs", "let now = jiff::Timestamp::now();"),
        ("object/meta.rs", "use tokio::time;"),
        ("agent/run.rs", "use rumqttc::v5::Event;"),
        ("link/mqtt.rs", "use backoff::ExponentialBackoff;"),
        ("cloud.rs", "use rusqlite::Connection;"),
        ("cloud/fleet/removal.rs", "use crate::repository::store::cloud::CloudError;"),
        ("cloud/source.rs", "use kube::Client;"),
        ("link/mqtt.rs", "unsafe { x() }"),
        ("sync.rs", "let x = (\"a\", '\"', 'b'); use tokio::time;"),
    ] {
        assert!(!broken(RULES, &file(path, text)).is_empty(), "{path}: {text}");
    }
    for (path, text) in [
        ("sync/edge.rs", "// a tokio task drives this"),
        ("sync/edge.rs", "let x = \"tokio\";"),
        ("sync/edge.rs", "let x = \"a \\\" \\\n tokio\";"),
        ("sync/edge.rs", "let x = ('\"', r#\"tokio\"#, '\"');"),
        ("sync/edge.rs", "x();\n#[cfg(test)]\nmod tests {\nuse tokio::time;"),
        ("link/mqtt.rs", "use rumqttc::v5::Event;"),
        ("link/retry.rs", "use backoff::ExponentialBackoff;"),
        ("broker/session.rs", "use rumqttc::v5::mqttbytes;"),
        ("config/link.rs", "let x = self.taken_over_backoff::y;"),
    ] {
        assert_eq!(broken(RULES, &file(path, text)), Vec::<String>::new(), "{path}: {text}");
    }
}
