//! Regular expressions, each compiled once. Depends on `regex-lite`: linear in the text, and small.

use std::collections::HashMap;

use regex_lite::{Regex, RegexBuilder};

use super::meter::{Meter, Outcome, failed};

/// The longest pattern, in bytes.
const MAX_PATTERN: usize = 4096;
/// The most memory that a compiled pattern may take, in bytes: also bounds the time that a match takes.
const MAX_COMPILED: usize = 256 * 1024;
/// The most patterns that are kept.
const MAX_KEPT: usize = 64;

/// Compiles a pattern.
///
/// # Errors
/// What is wrong with it.
pub(super) fn compile(pattern: &str) -> Result<Regex, String> {
    if pattern.len() > MAX_PATTERN {
        return Err(format!("must have at most {MAX_PATTERN} bytes"));
    }
    RegexBuilder::new(pattern).size_limit(MAX_COMPILED).build().map_err(|error| error.to_string())
}

/// What functions need.
pub(super) struct Tools<'m> {
    pub(super) meter: &'m mut Meter,
    pub(super) regexes: &'m mut Regexes,
}

/// Those compiled so far.
#[derive(Default)]
pub(crate) struct Regexes(HashMap<String, Regex>);

impl Regexes {
    /// A compiled pattern, after its match with a text of so many bytes was paid for.
    pub(super) fn get(&mut self, pattern: &str, text: usize, meter: &mut Meter) -> Outcome<&Regex> {
        meter.spend(1 + (pattern.len() / 4 + 1).saturating_mul(text / 16 + 1))?;
        if !self.0.contains_key(pattern) {
            meter.spend(100 + pattern.len())?;
            if self.0.len() >= MAX_KEPT {
                self.0.clear();
            }
            match compile(pattern) {
                Ok(regex) => drop(self.0.insert(pattern.to_owned(), regex)),
                Err(error) => return failed(format!("error parsing regexp: {error}")),
            }
        }
        self.0.get(pattern).map_or_else(|| failed("error parsing regexp"), Ok)
    }
}
