//! The steps of a run, done by hands: in a pass, and after an end in the middle of one.

use super::contents::Fresh;
use super::record::{Change, Intent, Record, Shape};
use super::rule::Rule;
use super::run::{Run, Step};
use super::{Failure, Hands};

/// Takes back, or finishes, what an end in the middle of a run has left. Whether nothing is left of it.
pub fn recover<H: Hands>(hands: &mut H, rule: &Rule, record: &mut Record, intent: &Intent) -> bool {
    let committed = record.done >= intent.run;
    let newest = intent.changes.iter().map(|change| change.stamp).max();
    record.stamp = record.stamp.max(newest.unwrap_or(0));
    let mut run = Run::recovering(intent.changes.len(), rule.reloads(), committed);
    while let Some(step) = run.step() {
        run.did(do_step(hands, intent, step, committed));
    }
    let ended = run.ended();
    record.owes_reload |= ended.owes_reload;
    !ended.unfinished
}

/// Has a step done. What is staged and committed is known to the pass alone.
pub(super) fn do_step<H: Hands>(
    hands: &mut H,
    intent: &Intent,
    step: Step,
    went_well: bool,
) -> Result<(), Failure> {
    let change = |at: usize| intent.changes.get(at).ok_or_else(|| Failure::new("there is no such change"));
    match step {
        Step::Intend => hands.intend(intent),
        Step::Check => hands.check(&intent.changes),
        Step::Swap(at) => hands.swap(change(at)?),
        Step::Reload | Step::ReloadOld => hands.reload(),
        Step::Restore(at) => hands.restore(change(at)?),
        Step::Discard(at) => hands.discard(change(at)?, went_well),
        Step::Forget => hands.forget(),
        Step::Stage(_) | Step::Commit => Ok(()),
    }
}

/// A change in words.
pub(super) fn shown(change: &Change, fresh: &Fresh) -> String {
    let path = change.place.path();
    match (&change.new, change.shape) {
        (None, _) => format!("remove {path}"),
        (Some(_), Shape::File) => format!("write {path}, {} bytes", fresh.bytes()),
        (Some(files), Shape::Directory) => {
            let names: Vec<&str> = files.keys().map(String::as_str).take(8).collect();
            let more = if files.len() > names.len() { ", …" } else { "" };
            format!(
                "write {path}: {}{more}, {} files, {} bytes",
                names.join(", "),
                files.len(),
                fresh.bytes()
            )
        }
    }
}
