//! Errors of a configuration, shown with file, line, column and a caret under the value.

use std::fmt;
use std::ops::Range;
use std::path::PathBuf;

/// All problems of one configuration; never empty.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConfigErrors {
    /// Path of the file.
    pub path: PathBuf,
    /// Problems in the order of the file.
    pub problems: Vec<Problem>,
}

/// One problem of a configuration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// Position of the problem.
    pub place: Place,
    /// The key, and the requirement for its value.
    pub message: String,
}

/// Position of a problem.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Place {
    /// The file as a whole, or built-in values.
    Whole,
    /// A part of a line.
    Line {
        /// Line number, from 1.
        line: usize,
        /// Column of the first character, from 1.
        column: usize,
        /// Number of wrong characters, at least 1.
        width: usize,
        /// Text of the line.
        excerpt: String,
    },
    /// The environment variable of this name.
    Variable(String),
}

/// Maximum length of a shown line, in characters.
const EXCERPT: usize = 120;

impl Place {
    /// Returns the position of `span` (bytes) in `text`.
    pub(super) fn of_span(text: &str, span: &Range<usize>) -> Self {
        let start = floor(text, span.start);
        let end = floor(text, span.end).max(start);
        let line_start = text[..start].rfind('\n').map_or(0, |at| at + 1);
        let line_end = text[start..].find('\n').map_or(text.len(), |at| start + at);
        let line = text[line_start..line_end].trim_end_matches('\r');
        Self::Line {
            line: text[..line_start].matches('\n').count() + 1,
            column: text[line_start..start].chars().count() + 1,
            width: text[start..end.min(line_end)].chars().count().max(1),
            excerpt: line.chars().map(|c| if c.is_control() { ' ' } else { c }).collect(),
        }
    }
}

/// Returns the last character boundary at or before `at`.
fn floor(text: &str, at: usize) -> usize {
    let at = at.min(text.len());
    (0..=at).rev().find(|at| text.is_char_boundary(*at)).unwrap_or(0)
}

impl std::error::Error for ConfigErrors {}

impl fmt::Display for ConfigErrors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, problem) in self.problems.iter().enumerate() {
            if index > 0 {
                f.write_str("\n\n")?;
            }
            self.write_problem(f, problem)?;
        }
        Ok(())
    }
}

impl ConfigErrors {
    fn write_problem(&self, f: &mut fmt::Formatter<'_>, problem: &Problem) -> fmt::Result {
        let path = self.path.display();
        match &problem.place {
            Place::Whole => write!(f, "{path}: {}", problem.message),
            Place::Variable(name) => write!(f, "environment variable {name}: {}", problem.message),
            Place::Line { line, column, width, excerpt } => {
                // A very long line is truncated around the wrong value.
                let skipped = (column - 1).saturating_sub(EXCERPT / 2);
                let shown = excerpt.chars().skip(skipped).take(EXCERPT).collect::<String>();
                let before = " ".repeat(column - 1 - skipped);
                let carets = "^".repeat((*width).min(EXCERPT - before.len()));
                let number = line.to_string();
                let margin = " ".repeat(number.len());
                writeln!(f, "{path}:{line}:{column}: {}", problem.message)?;
                writeln!(f, "{margin} |")?;
                writeln!(f, "{number} | {shown}")?;
                write!(f, "{margin} | {before}{carets}")
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(text: &str, span: Range<usize>) -> String {
        let problem = Problem { place: Place::of_span(text, &span), message: "must be odd".into() };
        ConfigErrors { path: "/etc/e.toml".into(), problems: vec![problem] }.to_string()
    }

    #[test]
    fn caret_is_under_the_value() {
        let text = "[link]\nkeepalive = \"1s\"\n";
        let start = text.find("\"1s\"").unwrap();
        let expected = "/etc/e.toml:2:13: must be odd\n  |\n2 | keepalive = \"1s\"\n  |             ^^^^";
        assert_eq!(shown(text, start..start + 4), expected);
    }

    #[test]
    fn columns_count_characters_and_tabs_do_not_move_the_caret() {
        let text = "\tä = 1";
        assert_eq!(shown(text, 6..7), "/etc/e.toml:1:6: must be odd\n  |\n1 |  ä = 1\n  |      ^");
    }

    #[test]
    fn any_span_has_a_position() {
        let text = "ä\r\nb";
        for start in 0..8 {
            for end in 0..8 {
                assert!(shown(text, start..end).contains("must be odd"));
            }
        }
    }

    #[test]
    fn long_line_is_truncated_around_the_error() {
        let text = format!("{}X{}", "a".repeat(5000), "b".repeat(5000));
        let shown = shown(&text, 5000..5001);
        assert!(shown.len() < 400, "{}", shown.len());
        let mut lines = shown.lines().skip(2);
        let at = lines.next().unwrap().find('X');
        assert_eq!(lines.next().unwrap().find('^'), at);
    }
}
