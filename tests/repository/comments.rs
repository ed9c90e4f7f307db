//! Checks the width of comments: rustfmt wraps code and leaves comments as they are.

// Clippy takes only the functions marked #[test] for tests, not what they call.
#![allow(clippy::unwrap_used)]

use std::fs;
use std::path::{Path, PathBuf};

use super::sources::below;
use edgesync_testkit::programs::root;

/// Maximum columns of a line that is a comment.
const COLUMNS: usize = 100;
/// The same in scripts, units, YAML and TOML.
const SCRIPT_COLUMNS: usize = 130;

/// Returns whether a comment may be wider: an address, a row of a table, or a command alone.
fn may_be_wider(comment: &str) -> bool {
    let is_command = comment.starts_with('`') && comment.trim_end_matches(['.', ',', ':']).ends_with('`');
    comment.contains("://") || comment.starts_with('|') || is_command
}

/// Returns the numbers of the lines whose comments are too wide. Examples in fences are code.
fn too_wide(text: &str) -> Vec<usize> {
    let (mut found, mut in_fence) = (Vec::new(), false);
    for (line, number) in text.lines().zip(1..) {
        let Some(comment) = line.trim_start().strip_prefix("//") else {
            in_fence = false;
            continue;
        };
        let comment = comment.trim_start_matches(['/', '!']).trim();
        if comment.starts_with("```") {
            in_fence = !in_fence;
        } else if line.chars().count() > COLUMNS && !in_fence && !may_be_wider(comment) {
            found.push(number);
        }
    }
    found
}

#[test]
fn comments_fit_into_their_columns() {
    let files: Vec<_> = ["src", "crates", "tests", "benches"].into_iter().flat_map(below).collect();
    assert!(files.len() > 500, "the sources were not found");
    let lines = files
        .iter()
        .flat_map(|(path, text)| too_wide(text).into_iter().map(move |number| format!("{path}:{number}")));
    let lines: Vec<String> = lines.collect();
    assert!(lines.is_empty(), "comments wider than {COLUMNS} columns:\n{}", lines.join("\n"));
}

#[test]
fn wide_comments_are_found_outside_of_examples() {
    let wide = "word ".repeat(20);
    for bad in [format!("// {wide}"), format!("    /// {wide}"), format!("//! See `a`. {wide}`b`")] {
        assert_eq!(too_wide(&bad), [1], "{bad}");
    }
    for good in [
        format!("//! ```\n//! {wide}\n//! ```"),
        format!("// https://example.com/{wide}"),
        format!("/// | {wide} |"),
        format!("//! `cargo test {wide}`"),
        format!("let text = \"{wide}\"; // short"),
        "// short".to_owned(),
    ] {
        assert_eq!(too_wide(&good), [0_usize; 0], "{good}");
    }
}

/// Collects the files below a directory whose comments begin with `#`.
fn scripts(directory: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(directory).unwrap().map(Result::unwrap) {
        let (path, kind) = (entry.path(), entry.file_type().unwrap());
        let extension = path.extension().and_then(|extension| extension.to_str()).unwrap_or_default();
        if kind.is_dir() && entry.file_name() != "fixtures" {
            scripts(&path, found);
        } else if kind.is_file() && !["json", "md", "mjs", "png", "rs", "tpl", "txt"].contains(&extension) {
            found.push(path);
        }
    }
}

#[test]
fn comments_of_scripts_and_manifests_fit_into_their_columns() {
    let mut files = ["Cargo.toml", "clippy.toml", "deny.toml"].map(|name| root().join(name)).to_vec();
    for directory in [".ci", "config", "packaging", "tests"] {
        scripts(&root().join(directory), &mut files);
    }
    assert!(files.len() > 60, "the scripts were not found");
    let mut lines = Vec::new();
    for path in files {
        // A program of Python may leave compiled files beside itself.
        let Ok(text) = fs::read_to_string(&path) else { continue };
        for (line, number) in text.lines().zip(1..) {
            let comment = line.trim_start().strip_prefix('#').map(str::trim);
            let is_wide = line.chars().count() > SCRIPT_COLUMNS;
            if is_wide && comment.is_some_and(|comment| !may_be_wider(comment)) {
                lines.push(format!("{}:{number}", path.display()));
            }
        }
    }
    assert!(lines.is_empty(), "comments wider than {SCRIPT_COLUMNS} columns:\n{}", lines.join("\n"));
}
