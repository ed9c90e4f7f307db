//! Checks the width of comments: rustfmt wraps code and leaves comments as they are.

use super::sources::below;

/// Maximum columns of a line that is a comment.
const COLUMNS: usize = 100;

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
