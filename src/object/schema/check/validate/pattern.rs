//! Regular expressions in schemas. Depends on `regex-lite`: linear in the text, and small.

use std::collections::HashMap;
use std::sync::Arc;

use regex_lite::{Regex, RegexBuilder};

/// The longest pattern that is accepted, in bytes.
const MAX_PATTERN: usize = 4096;
/// The most memory that a compiled pattern may take, in bytes: also bounds the time that a match takes.
const MAX_COMPILED: usize = 256 * 1024;

/// Patterns compiled so far, each once.
#[derive(Default)]
pub(super) struct Patterns(HashMap<Arc<str>, Option<Regex>>);

impl Patterns {
    /// Whether a text matches somewhere. A pattern that cannot be read, which [`check_pattern`] has refused
    /// before, matches everything.
    pub(super) fn matches(&mut self, pattern: &Arc<str>, text: &str) -> bool {
        if !self.0.contains_key(pattern) {
            self.0.insert(Arc::clone(pattern), compile(pattern).ok());
        }
        self.0.get(pattern).and_then(Option::as_ref).is_none_or(|regex| regex.is_match(text))
    }
}

/// Whether a pattern can be used.
///
/// # Errors
/// What is wrong with it.
pub(in crate::object::schema) fn check_pattern(pattern: &str) -> Result<(), String> {
    compile(pattern).map(|_| ())
}

fn compile(pattern: &str) -> Result<Regex, String> {
    if pattern.len() > MAX_PATTERN {
        return Err(format!("must have at most {MAX_PATTERN} bytes"));
    }
    RegexBuilder::new(pattern)
        .size_limit(MAX_COMPILED)
        .build()
        .map_err(|error| format!("must be a valid regular expression: {error}"))
}
