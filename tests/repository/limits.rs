//! Generates `docs/limits.md` from the constants and configuration keys that `limits.txt` lists.

// Clippy takes only the functions marked #[test] for tests, not what they call.
#![allow(clippy::unwrap_used, clippy::panic)]

use std::fmt::Write as _;
use std::fs;
use std::path::PathBuf;

use edgesync_testkit::programs::root;

use super::generated;

const MANIFEST: &str = include_str!("limits.txt");

const INTRODUCTION: &str = "\
# Limits

`EDGESYNC_TEST_WRITE_DOCS=1 tests/run repository::` writes this page from the constants in the code, their documentation, and
the defaults of the configuration keys; do not edit it. `broker/accept.rs` is `crates/broker/src/accept.rs`, `src/…` is the
program of devices. A key can be changed by an operator, a constant only in the code.
[architecture.md](architecture.md#back-pressure-and-bounds) describes what happens at a limit.
";

/// A row of the page.
struct Row {
    subject: String,
    text: String,
    value: String,
    set_in: String,
}

/// The declaration or assignment of a limit.
struct Setting {
    documentation: String,
    expression: String,
}

/// Returns the path of a file: `broker/accept.rs` is in the crate `broker`, `src/agent.rs` in the
/// agent's package.
fn source(file: &str) -> PathBuf {
    match file.split_once('/') {
        Some((name, path)) if name != "src" => root().join("crates").join(name).join("src").join(path),
        _ => root().join(file),
    }
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

/// Returns the expressions that a text assigns to a name, in a constant, a field or an assignment.
fn expressions(text: &str, name: &str) -> Vec<String> {
    let of_name = |at: usize| {
        let (before, rest) = (&text[..at], &text[at + name.len()..]);
        let is_word = !before.ends_with(|c: char| c.is_alphanumeric() || c == '_');
        let given = rest.strip_prefix(':').or_else(|| rest.strip_prefix(" ="))?;
        let given = given[..given.find([',', ';', '}'])?].rsplit('=').next()?.trim();
        (is_word && value(given).is_some()).then(|| given.to_owned())
    };
    let mut found: Vec<String> = text.match_indices(name).filter_map(|(at, _)| of_name(at)).collect();
    found.dedup();
    found
}

/// Returns the documentation of the first declaration of a name.
fn documentation(text: &str, name: &str) -> String {
    let mut lines: Vec<&str> = Vec::new();
    for line in text.lines().map(str::trim) {
        let item = line.trim_start_matches("pub ").trim_start_matches("const ");
        let item = item.split_once(") ").map_or(item, |(visibility, item)| match visibility {
            "pub(super" | "pub(crate" => item.trim_start_matches("const "),
            _ => line,
        });
        match line.strip_prefix("///") {
            Some(documented) => lines.push(documented.trim()),
            None if line.starts_with("#[") => {}
            None if item.strip_prefix(name).is_some_and(|rest| rest.starts_with(':'))
                && !lines.is_empty() =>
            {
                let paragraph: Vec<&str> = lines.into_iter().take_while(|line| !line.is_empty()).collect();
                return links_removed(&paragraph.join(" "));
            }
            None => lines.clear(),
        }
    }
    String::new()
}

/// Replaces the links of rustdoc, such as [`BURST`] or [`crate::BURST`], with their names.
fn links_removed(text: &str) -> String {
    let mut out = String::new();
    let mut rest = text;
    while let Some((before, after)) = rest.split_once("[`") {
        let Some((name, after)) = after.split_once("`]") else { break };
        write!(out, "{before}`{}`", name.rsplit("::").next().unwrap_or(name)).unwrap();
        rest = after;
    }
    out + rest
}

/// Finds a limit in a file, or in one function of it.
fn setting(place: &str, name: &str) -> Setting {
    let (file, function) = place.split_once('#').unwrap_or((place, ""));
    let text = fs::read_to_string(source(file)).unwrap_or_else(|error| panic!("{file}: {error}"));
    let body = match text.split_once(&format!("fn {function}(")) {
        Some((_, rest)) if !function.is_empty() => rest.split("\n    }").next().unwrap_or(rest),
        _ => text.split("\n#[cfg(test)]\nmod tests {").next().unwrap_or(&text),
    };
    match &expressions(body, name)[..] {
        [expression] => Setting { documentation: documentation(&text, name), expression: expression.clone() },
        found => panic!("{place}: {name} must have one value, has {found:?}"),
    }
}

/// Separates groups of three digits.
fn grouped(value: u64) -> String {
    let digits = value.to_string();
    let groups = digits.as_bytes().rchunks(3).rev().map(String::from_utf8_lossy);
    groups.collect::<Vec<_>>().join(",")
}

/// Writes a number with the largest unit that divides it.
fn with_unit(value: u64, units: &[(u64, &str)]) -> String {
    let (size, unit) =
        units.iter().rev().find(|(size, _)| value.is_multiple_of(*size) && value > 0).unwrap_or(&units[0]);
    format!("{} {unit}", grouped(value / size))
}

/// Writes a value as a count, a size or a time.
fn shown(name: &str, setting: &Setting) -> String {
    let Setting { documentation, expression } = setting;
    let number = value(expression).unwrap();
    let seconds =
        expression.contains("Duration") || name.ends_with("SECONDS") || documentation.starts_with("Seconds");
    if seconds {
        return with_unit(number, &[(1, "s"), (60, "min"), (3600, "h")]);
    }
    let kibibytes = name.ends_with("_KIB");
    let is_shift = expression.contains("<<") || expression.contains("* 1024");
    let words = ["byte", "size", "memory"].iter().any(|word| documentation.to_lowercase().contains(word));
    let is_count = documentation.contains("umber of");
    let bytes = kibibytes
        || name.to_lowercase().contains("bytes")
        || documentation.contains("in bytes")
        || is_shift && words && !is_count;
    match bytes {
        true => {
            let number = if kibibytes { number * 1024 } else { number };
            with_unit(number, &[(1, "bytes"), (1 << 10, "KiB"), (1 << 20, "MiB")])
        }
        false => grouped(number),
    }
}

/// Returns the default of a configuration key.
fn default_of(file: &str, key: &str) -> String {
    let text = fs::read_to_string(root().join("config").join(file)).unwrap();
    let (section, name) = key.split_once('.').unwrap();
    let (_, rest) = text.split_once(&format!("\n[{section}]\n")).unwrap_or_else(|| panic!("no {section}"));
    let lines = rest.lines().take_while(|line| !line.starts_with('['));
    let mut found = lines.filter_map(|line| line.strip_prefix(&format!("#{name} = ")));
    let value = found.next().unwrap_or_else(|| panic!("{file} has no {key}")).trim_matches('"');
    match value.parse() {
        Ok(number) => grouped(number),
        Err(_) => value.replace("KiB", " KiB").replace("MiB", " MiB").replace("GiB", " GiB"),
    }
}

/// Makes the rows of a line of the manifest.
fn rows(program: &str, line: &str) -> Vec<Row> {
    let (subject, rest) = line.split_once(" | ").unwrap_or_else(|| panic!("no subject: {line}"));
    let (rest, text) = rest.split_once(": ").unwrap_or((rest, ""));
    let (rest, addition) = rest.split_once(" + ").unwrap_or((rest, ""));
    let mut words = rest.split(' ');
    let file = words.next().unwrap();
    let row = |name: &str| {
        if file == "key" {
            return Row {
                subject: subject.to_owned(),
                text: text.to_owned(),
                value: default_of(program, name),
                set_in: format!("`{name}`"),
            };
        }
        let setting = setting(file, name);
        let documented = if text.is_empty() { &*setting.documentation } else { text };
        assert!(!documented.is_empty(), "{file}: {name} has no documentation");
        let path = file.split('#').next().unwrap_or(file);
        Row {
            subject: subject.to_owned(),
            text: format!("{documented} {addition}").trim().to_owned(),
            value: shown(name, &setting),
            set_in: format!("`{path}` `{name}`"),
        }
    };
    words.map(row).collect()
}

/// Generates the page from [`MANIFEST`].
fn page() -> String {
    let mut page = INTRODUCTION.to_owned();
    let mut program = "";
    let mut last = String::new();
    for line in MANIFEST.lines().filter(|line| !line.is_empty() && !line.starts_with("# ")) {
        if let Some(title) = line.strip_prefix("## ") {
            program = if title == "Agent" { "edgesync.toml" } else { "edgesync-cloud.toml" };
            write!(page, "\n## {title}\n\n| subject | limit | value | set in |\n|---|---|---|---|\n")
                .unwrap();
            last.clear();
            continue;
        }
        for Row { subject, text, value, set_in } in rows(program, line) {
            let named = if subject == last { "" } else { &*subject };
            writeln!(page, "| {named} | {} | {value} | {set_in} |", text.replace('|', "\\|")).unwrap();
            last = subject;
        }
    }
    page
}

#[test]
fn limits_page_equals_the_constants() {
    generated::check("docs/limits.md", &page());
}

#[test]
fn values_are_found_in_every_notation() {
    let text = "/// The most.\npub(super) const A: u64 = 64 << 10;\nSelf { b: 1_024, cc: 5 }\n\
                options.d = Duration::from_secs(5 * 60);\nxb: 7,";
    assert_eq!(expressions(text, "A"), ["64 << 10"]);
    assert_eq!(expressions(text, "b"), ["1_024"]);
    assert_eq!(expressions(text, "c"), [""; 0]);
    assert_eq!(value(&expressions(text, "d")[0]), Some(300));
    assert_eq!(documentation(text, "A"), "The most.");
    assert_eq!(links_removed("beyond [`super::BURST`], then [`A`]."), "beyond `BURST`, then `A`.");
}

#[test]
fn values_are_written_with_their_units() {
    let write = |name: &str, documentation: &str, expression: &str| {
        shown(name, &Setting { documentation: documentation.to_owned(), expression: expression.to_owned() })
    };
    assert_eq!(write("MAX_BYTES", "", "32 << 10"), "32 KiB");
    assert_eq!(write("CACHE_KIB", "", "2048"), "2 MiB");
    assert_eq!(write("WAITING", "Maximum number of connections, 1 KB in size.", "16 << 10"), "16,384");
    assert_eq!(write("IDLE", "", "Duration::from_secs(300)"), "5 min");
    assert_eq!(write("RETRY", "Seconds until then.", "61"), "61 s");
    assert_eq!(write("MAX_NODES", "Nodes of 200 bytes.", "100_000"), "100,000");
}
