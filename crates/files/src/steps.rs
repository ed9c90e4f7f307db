//! Execution of transaction steps on [`Effects`]: in a pass and in recovery.

use super::contents::Desired;
use super::record::{Change, Intent, Record, Shape};
use super::rule::Rule;
use super::transaction::{Step, Transaction};
use super::{Effects, Failure};

/// Rolls back or completes an interrupted transaction. Returns whether it is finished.
pub fn recover<H: Effects>(effects: &mut H, rule: &Rule, record: &mut Record, intent: &Intent) -> bool {
    let committed = record.done >= intent.run;
    let newest = intent.changes.iter().map(|change| change.stamp).max();
    record.stamp = record.stamp.max(newest.unwrap_or(0));
    let mut transaction = Transaction::recovering(intent.changes.len(), rule.reloads(), committed);
    while let Some(step) = transaction.step() {
        transaction.completed(execute(effects, intent, step, committed));
    }
    let ended = transaction.ended();
    record.owes_reload |= ended.owes_reload;
    !ended.unfinished
}

/// Executes a step. Staging and committing are left to the pass.
pub(super) fn execute<H: Effects>(
    effects: &mut H,
    intent: &Intent,
    step: Step,
    succeeded: bool,
) -> Result<(), Failure> {
    let change = |at: usize| intent.changes.get(at).ok_or_else(|| Failure::new("no such change"));
    match step {
        Step::Intend => effects.intend(intent),
        Step::Check => effects.check(&intent.changes),
        Step::Swap(at) => effects.swap(change(at)?),
        Step::Reload | Step::ReloadOld => effects.reload(),
        Step::Restore(at) => effects.restore(change(at)?),
        Step::Discard(at) => effects.discard(change(at)?, succeeded),
        Step::Forget => effects.forget(),
        Step::Stage(_) | Step::Commit => Ok(()),
    }
}

/// Describes a change for the plan.
pub(super) fn describe(change: &Change, desired: &Desired) -> String {
    let path = change.place.path();
    match (&change.new, change.shape) {
        (None, _) => format!("remove {path}"),
        (Some(_), Shape::File) => format!("write {path}, {} bytes", desired.bytes()),
        (Some(files), Shape::Directory) => {
            let names: Vec<&str> = files.keys().map(String::as_str).take(8).collect();
            let more = if files.len() > names.len() { ", …" } else { "" };
            format!(
                "write {path}: {}{more}, {} files, {} bytes",
                names.join(", "),
                files.len(),
                desired.bytes()
            )
        }
    }
}
