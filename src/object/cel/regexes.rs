//! Regular expressions, each compiled once. Depends on `regex-lite`: linear in the text, and small.

use std::collections::HashMap;

use regex_lite::{Regex, RegexBuilder};

use super::meter::{Meter, Outcome, failed};

/// The longest pattern, in bytes.
const MAX_PATTERN: usize = 4096;
/// How much memory a compiled pattern may take, in bytes. The time of a match grows with it, so the smallest that is
/// enough says what a match costs.
const COMPILED: [usize; 5] = [1024, 4 * 1024, 16 * 1024, 64 * 1024, 256 * 1024];
/// So many bytes of a compiled pattern, for each byte of a text, cost a step.
const BYTES_A_STEP: usize = 400;
/// The most patterns that are kept.
const MAX_KEPT: usize = 64;

/// A compiled pattern.
pub(super) struct Pattern {
    pub(super) regex: Regex,
    size: usize,
}

impl Pattern {
    /// Pays for one look through a text of so many bytes.
    pub(super) fn pay(&self, text: usize, meter: &mut Meter) -> Outcome<()> {
        meter.spend(1 + text.saturating_mul(self.size) / BYTES_A_STEP)
    }
}

/// Compiles a pattern.
///
/// # Errors
/// What is wrong with it.
pub(super) fn compile(pattern: &str) -> Result<Pattern, String> {
    if pattern.len() > MAX_PATTERN {
        return Err(format!("must have at most {MAX_PATTERN} bytes"));
    }
    let mut wrong = String::new();
    for size in COMPILED {
        match RegexBuilder::new(pattern).size_limit(size).build() {
            Ok(regex) => return Ok(Pattern { regex, size }),
            Err(error) => wrong = error.to_string(),
        }
    }
    Err(wrong)
}

/// What functions need.
pub(super) struct Tools<'m> {
    pub(super) meter: &'m mut Meter,
    pub(super) regexes: &'m mut Regexes,
}

/// Those compiled so far.
#[derive(Default)]
pub(crate) struct Regexes(HashMap<String, Pattern>);

impl Regexes {
    /// A compiled pattern, after one look through a text of so many bytes was paid for.
    pub(super) fn get(&mut self, pattern: &str, text: usize, meter: &mut Meter) -> Outcome<&Pattern> {
        if !self.0.contains_key(pattern) {
            meter.spend(1000 + pattern.len())?;
            if self.0.len() >= MAX_KEPT {
                self.0.clear();
            }
            match compile(pattern) {
                Ok(regex) => drop(self.0.insert(pattern.to_owned(), regex)),
                Err(error) => return failed(format!("error parsing regexp: {error}")),
            }
        }
        let Some(found) = self.0.get(pattern) else { return failed("error parsing regexp") };
        found.pay(text, meter)?;
        Ok(found)
    }
}
