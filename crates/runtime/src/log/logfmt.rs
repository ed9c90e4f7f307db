//! Fields of text lines in logfmt: `key=value key="value with spaces"`.
//!
//! Each line stays one line, whatever foreign text it has: control characters are escaped, so that
//! text can neither forge lines nor send escape sequences to a terminal.

use std::fmt;

use tracing::field::Field;
use tracing_subscriber::fmt::format::Writer;

/// Writes the message of a line, or one of its fields.
pub(super) fn write_field(out: &mut Writer<'_>, field: &Field, value: &dyn fmt::Debug) -> fmt::Result {
    let text = format!("{value:?}");
    let name = field.name();
    if name == "message" {
        return write_escaped(out, &text);
    }
    let name = name.strip_prefix("r#").unwrap_or(name);
    match out.has_ansi_escapes() {
        true => write!(out, "{ITALIC}{name}{RESET}{DIMMED}={RESET}")?,
        false => write!(out, "{name}=")?,
    }
    match is_plain(&text) || is_quoted(&text) {
        true => out.write_str(&text),
        false => write!(out, "{text:?}"),
    }
}

const ITALIC: &str = "\x1b[3m";
const DIMMED: &str = "\x1b[2m";
const RESET: &str = "\x1b[0m";

fn write_escaped(out: &mut Writer<'_>, text: &str) -> fmt::Result {
    for c in text.chars() {
        match c {
            '\t' => out.write_char(c)?,
            c if c.is_control() => write!(out, "{}", c.escape_default())?,
            c => out.write_char(c)?,
        }
    }
    Ok(())
}

/// Returns whether a value needs no quotes.
fn is_plain(text: &str) -> bool {
    let ends_value = |c: char| c.is_whitespace() || c.is_control() || matches!(c, '=' | '"');
    !text.is_empty() && !text.contains(ends_value)
}

/// Returns whether a text is in quotes already, as the debug format of a string is.
fn is_quoted(text: &str) -> bool {
    let Some(inner) = text.strip_prefix('"').and_then(|text| text.strip_suffix('"')) else { return false };
    let mut chars = inner.chars();
    while let Some(c) = chars.next() {
        let fits = match c {
            '\\' => chars.next().is_some_and(|escaped| !escaped.is_control()),
            '"' => false,
            c => !c.is_control(),
        };
        if !fits {
            return false;
        }
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_that_would_end_too_early_are_quoted() {
        for text in ["eu/edge-1", "127.0.0.1:1883", "12ms", "ä"] {
            assert!(is_plain(text), "{text:?}");
        }
        for text in ["", "connection refused", "app=web", "say \"no\"", "a\nb", "a\u{1b}[2J", "a\u{a0}b"] {
            assert!(!is_plain(text), "{text:?}");
        }
    }

    #[test]
    fn quoted_values_are_not_quoted_again() {
        for text in ["a b", "say \"no\"", "a\nb", "back\\slash", "\u{1b}", ""] {
            assert!(is_quoted(&format!("{text:?}")), "{text:?}");
        }
        for text in ["\"", "\"a\" or \"b\"", "\"a\\\"", "\"a\nb\"", "\"a\\\n\"", "a\"", "Some(\"a\")"] {
            assert!(!is_quoted(text), "{text:?}");
        }
    }
}
