//! Regular expressions in schemas. Depends on `cel`, whose rules have them too.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use edgesync_cel::{Pattern, pattern};

/// The most memory that all patterns of a schema may take, in bytes: those that are needed are kept while an object is
/// checked.
const MAX_WEIGHT: usize = 64 * 1024 * 1024;

/// Patterns compiled so far, each once.
#[derive(Default)]
pub(super) struct Patterns(HashMap<Arc<str>, Option<Pattern>>);

impl Patterns {
    /// Whether a text matches somewhere. A pattern that cannot be read, which [`PatternCheck`] has refused
    /// before, matches everything.
    pub(super) fn matches(&mut self, text_of: &Arc<str>, text: &str) -> bool {
        if !self.0.contains_key(text_of) {
            self.0.insert(Arc::clone(text_of), pattern(text_of).ok());
        }
        self.0.get(text_of).and_then(Option::as_ref).is_none_or(|pattern| pattern.regex.is_match(text))
    }
}

/// Finds out whether the patterns of one schema can be used.
#[derive(Default)]
pub(crate) struct PatternCheck {
    known: HashSet<String>,
    weight: usize,
}

impl PatternCheck {
    /// Whether a pattern can be used, besides those before.
    ///
    /// # Errors
    /// What is wrong with it.
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
