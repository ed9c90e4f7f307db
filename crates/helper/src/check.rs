//! Execution of a rule's check on its candidates.

use std::path::Path;

use super::hook;
use super::sandbox::{Candidate, LIST, Sandbox};
use edgesync_files::{Failure, Rule};

/// Runs the check as an unprivileged user. `directory` is the one of the helper's records.
///
/// # Errors
/// The sandbox is not possible, or the output of the check that failed.
pub(super) fn in_sandbox(rule: &Rule, candidates: &[Candidate], directory: &Path) -> Result<(), Failure> {
    let sandbox = Sandbox::new(directory, candidates)?;
    let first = sandbox.first();
    let start = |command: &mut std::process::Command| sandbox.spawn(command);
    hook::run_started(&rule.check, &environment(rule, &first, LIST), rule.timeout, start).map(|_| ())
}

/// Runs the check as the user of the helper. `list` is the file for the list of candidates.
///
/// # Errors
/// The list cannot be written, or the output of the check that failed.
pub(super) fn as_helper(rule: &Rule, candidates: &[Candidate], list: &Path) -> Result<(), Failure> {
    let paths: Vec<String> = candidates.iter().map(|candidate| candidate.at.path()).collect();
    let lines: String = paths.iter().zip(candidates).map(|(path, candidate)| candidate.line(path)).collect();
    let shown = list.display().to_string();
    std::fs::write(list, lines).map_err(|error| Failure::new(format!("write {shown}: {error}")))?;
    let first = paths.first().map_or("", String::as_str);
    let checked = hook::run(&rule.check, &environment(rule, first, &shown), rule.timeout).map(|_| ());
    let _ = std::fs::remove_file(list);
    checked
}

/// Returns the variables of a check.
fn environment<'a>(rule: &'a Rule, first: &'a str, list: &'a str) -> [(&'a str, &'a str); 3] {
    [("EDGESYNC_RULE", &rule.name), ("EDGESYNC_CANDIDATE", first), ("EDGESYNC_CANDIDATES", list)]
}
