//! Regular expressions in schemas. Depends on `cel`, whose rules use them too.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use edgesync_cel::{Pattern, pattern};

/// Maximum memory of all patterns in a schema, in bytes: used ones stay in memory while an object
/// is checked.
const MAX_WEIGHT: usize = 64 * 1024 * 1024;

/// Compiled patterns, each once.
#[derive(Default)]
pub(super) struct Patterns(HashMap<Arc<str>, Option<Pattern>>);

impl Patterns {
    /// Returns whether a part of the text matches. An invalid pattern, which [`PatternCheck`]
    /// refuses, matches everything.
    pub(super) fn matches(&mut self, text_of: &Arc<str>, text: &str) -> bool {
        if !self.0.contains_key(text_of) {
            self.0.insert(Arc::clone(text_of), pattern(text_of).ok());
        }
        self.0.get(text_of).and_then(Option::as_ref).is_none_or(|pattern| pattern.regex.is_match(text))
    }
}

/// Checks the patterns of one schema.
#[derive(Default)]
pub(crate) struct PatternCheck {
    known: HashSet<String>,
    weight: usize,
}

impl PatternCheck {
    /// Checks a pattern, in addition to the earlier ones.
    ///
    /// # Errors
    /// The pattern is invalid, or all together are too large.
    pub(crate) fn check(&mut self, given: &str) -> Result<(), String> {
        if self.known.contains(given) {
            return Ok(());
        }
        let compiled =
            pattern(given).map_err(|error| format!("must be a valid regular expression: {error}"))?;
        self.weight += compiled.weight();
        if self.weight > MAX_WEIGHT {
            return Err("is one too many: the patterns of the schema are too large together".to_owned());
        }
        self.known.insert(given.to_owned());
        Ok(())
    }
}
