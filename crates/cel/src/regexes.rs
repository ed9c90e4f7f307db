//! Regular expressions, each compiled once. Depends on `regex-lite`: linear in the text, and small.

use std::collections::HashMap;

use regex_lite::{Regex, RegexBuilder};

use super::meter::{Meter, Outcome, cut, failed};

/// The longest pattern, in bytes.
const MAX_PATTERN: usize = 4096;
/// How much memory a compiled pattern may take, in bytes. The time of a match grows with it, so the smallest that is
/// enough says what a match costs.
const COMPILED: [usize; 5] = [1024, 4 * 1024, 16 * 1024, 64 * 1024, 256 * 1024];
/// So many bytes of a compiled pattern, for each byte of a text, cost a step.
const BYTES_A_STEP: usize = 400;
/// The most groups of a pattern, the whole counted. To match, as much memory is taken as the pattern has, for each group.
const MAX_GROUPS: usize = 50;
/// The most memory that a pattern may take to match, in bytes.
const MAX_WEIGHT: usize = 4 * 1024 * 1024;
/// The most memory of all that are kept.
const MAX_KEPT: usize = 8 * 1024 * 1024;

/// A compiled pattern.
pub struct Pattern {
    pub regex: Regex,
    size: usize,
}

impl Pattern {
    /// Pays for one look through a text of so many bytes.
    pub(super) fn pay(&self, text: usize, meter: &mut Meter) -> Outcome<()> {
        meter.spend(1 + text.saturating_mul(self.size) / BYTES_A_STEP)
    }

    /// How much memory it takes to match, in bytes.
    pub fn weight(&self) -> usize {
        self.size.saturating_mul(self.regex.captures_len())
    }
}

/// Compiles a pattern and pays for the sizes that are tried. What is wrong with it is the inner error.
///
/// # Errors
/// It costs too much.
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
                wrong = cut(&error.to_string()).to_owned();
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

/// Compiles a pattern for those who match it without a meter.
///
/// # Errors
/// What is wrong with it.
pub fn pattern(pattern: &str) -> Result<Pattern, String> {
    compile(pattern, &mut Meter::new(u64::MAX)).unwrap_or_else(|_| Err("costs too much".to_owned()))
}

/// What functions need.
pub(super) struct Tools<'m> {
    pub(super) meter: &'m mut Meter,
    pub(super) regexes: &'m mut Regexes,
}

/// Those compiled so far.
#[derive(Default)]
pub struct Regexes {
    known: HashMap<String, Pattern>,
    weight: usize,
}

impl Regexes {
    /// A compiled pattern, after one look through a text of so many bytes was paid for.
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
