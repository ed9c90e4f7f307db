//! Cache of compiled regular expressions. Uses `regex-lite`, whose matches are linear in the text.

use std::collections::HashMap;

use regex_lite::{Regex, RegexBuilder};

use super::meter::{Meter, Outcome, failed, truncated};

/// Longest pattern, in bytes.
const MAX_PATTERN: usize = 4096;
/// Memory limits that compilation tries in turn, in bytes. The time of a match grows with the
/// compiled size, so the smallest limit that suffices prices a match.
const COMPILED: [usize; 5] = [1024, 4 * 1024, 16 * 1024, 64 * 1024, 256 * 1024];
/// Bytes of compiled pattern, times bytes of text, that one step pays for.
const BYTES_A_STEP: usize = 400;
/// Capture groups of a pattern, including group 0. A match takes the compiled size once for each
/// group.
const MAX_GROUPS: usize = 50;
/// Memory that a match of one pattern may take, in bytes.
const MAX_WEIGHT: usize = 4 * 1024 * 1024;
/// Memory that all cached patterns together may take for a match, in bytes.
const MAX_KEPT: usize = 8 * 1024 * 1024;

/// A compiled pattern of bounded size: at most 4,096 bytes of source, 49 groups, and 4 MiB for a
/// match.
pub struct Pattern {
    /// The pattern, for a caller that matches without a [`Meter`].
    pub regex: Regex,
    size: usize,
}

impl Pattern {
    /// Spends the cost of one match over a text of this many bytes.
    pub(super) fn pay(&self, text: usize, meter: &mut Meter) -> Outcome<()> {
        meter.spend(1 + text.saturating_mul(self.size) / BYTES_A_STEP)
    }

    /// Returns an upper bound of the memory that a match takes, in bytes: the sum over all patterns
    /// that a caller keeps is what it has to limit.
    pub fn weight(&self) -> usize {
        self.size.saturating_mul(self.regex.captures_len())
    }
}

/// Compiles a pattern and spends the cost of each size that is tried. The inner error is a mistake
/// in the pattern.
///
/// # Errors
/// The meter is empty.
pub(super) fn compile(pattern: &str, meter: &mut Meter) -> Outcome<Result<Pattern, String>> {
    if pattern.len() > MAX_PATTERN {
        return Ok(Err(format!("must have at most {MAX_PATTERN} bytes")));
    }
    let mut wrong = String::new();
    for size in COMPILED {
        meter.spend(pattern.len())?;
        meter.bytes(size)?;
        let regex = match RegexBuilder::new(pattern).size_limit(size).build() {
            Ok(regex) => regex,
            Err(error) => {
                wrong = truncated(&error.to_string()).to_owned();
                continue;
            }
        };
        let found = Pattern { regex, size };
        if found.regex.captures_len() > MAX_GROUPS {
            return Ok(Err(format!("must have less than {MAX_GROUPS} groups")));
        }
        if found.weight() > MAX_WEIGHT {
            return Ok(Err("is too large for so many groups".to_owned()));
        }
        return Ok(Ok(found));
    }
    Ok(Err(wrong))
}

/// Compiles a pattern for a caller that matches without a meter, such as the keyword `pattern` of a
/// schema.
///
/// # Errors
/// A syntax error, or a pattern beyond the limits of [`Pattern`].
pub fn pattern(pattern: &str) -> Result<Pattern, String> {
    compile(pattern, &mut Meter::new(u64::MAX)).unwrap_or_else(|_| Err("costs too much".to_owned()))
}

/// The mutable state of an evaluation, as functions take it.
pub(super) struct Tools<'m> {
    pub(super) meter: &'m mut Meter,
    pub(super) regexes: &'m mut Regexes,
}

/// A cache of compiled patterns, shared by the evaluations of one caller. It is emptied when its
/// patterns would take more than 8 MiB to match.
#[derive(Default)]
pub struct Regexes {
    known: HashMap<String, Pattern>,
    weight: usize,
}

impl Regexes {
    /// Returns a compiled pattern and spends the cost of one match over a text of this many bytes.
    pub(super) fn get(&mut self, pattern: &str, text: usize, meter: &mut Meter) -> Outcome<&Pattern> {
        if !self.known.contains_key(pattern) {
            match compile(pattern, meter)? {
                Ok(regex) => {
                    meter.bytes(regex.weight())?;
                    if self.weight + regex.weight() > MAX_KEPT {
                        self.known.clear();
                        self.weight = 0;
                    }
                    self.weight += regex.weight();
                    self.known.insert(pattern.to_owned(), regex);
                }
                Err(error) => return failed(format!("error parsing regexp: {error}")),
            }
        }
        let Some(found) = self.known.get(pattern) else { return failed("error parsing regexp") };
        found.pay(text, meter)?;
        Ok(found)
    }
}
