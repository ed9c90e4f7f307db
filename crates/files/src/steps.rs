//! Execution of transaction steps on [`Effects`]: in a pass and in recovery.

use super::contents::Desired;
use super::fault::{Fault, planted};
use super::record::{Change, Held, Intent, Record, Shape, Stuck};
use super::rule::Rule;
use super::transaction::{Step, Transaction};
use super::{Effects, Failure};

/// Rolls back or completes an interrupted transaction, if there is one, and the changes that could
/// not be rolled back before. Then writes kept files again whose memory was lost; with `look`, also
/// those that others have removed. Returns whether another transaction may begin.
pub fn recover<H: Effects>(
    effects: &mut H,
    rule: &Rule,
    record: &mut Record,
    intent: Option<&Intent>,
    look: bool,
) -> bool {
    let finished = intent.is_none_or(|intent| finish(effects, rule, record, intent));
    if finished {
        retry_stuck(effects, rule, record);
        revive(effects, record, look);
    }
    finished
}

/// Writes kept files again. A place whose copy cannot be written has no version in effect; each
/// call tries again.
fn revive<H: Effects>(effects: &mut H, record: &mut Record, look: bool) {
    let kept = record.places.iter().filter(|(path, held)| {
        held.kept.is_some() && (held.lost || look) && !record.stuck.contains_key(*path)
    });
    let kept: Vec<(String, Held)> = kept.map(|(path, held)| (path.clone(), held.clone())).collect();
    let mut any = false;
    for (path, held) in kept {
        let observed = effects.inspect(&held.place, held.shape, Some(&held), None);
        let is_empty = observed.is_ok_and(|found| found.data.is_none() && found.entries.is_empty());
        if !held.lost && !is_empty {
            continue;
        }
        any = true;
        record.stamp += 1;
        match effects.revive(&held, record.stamp) {
            Ok(files) => {
                let stamp = record.stamp;
                record.places.insert(path, Held { stamp, files, lost: false, ..held });
            }
            Err(failure) => {
                record.output = failure.message;
                record.places.insert(path, Held { lost: true, ..held });
            }
        }
    }
    if any {
        // If it is not recorded, the next request does the same again.
        let _ = effects.commit(record);
    }
}

fn finish<H: Effects>(effects: &mut H, rule: &Rule, record: &mut Record, intent: &Intent) -> bool {
    let committed = record.done >= intent.run;
    let newest = intent.changes.iter().map(|change| change.stamp).max();
    record.stamp = record.stamp.max(newest.unwrap_or(0));
    // The change has ended with the process that carried it out: outside of windows, and under a
    // hold, its rollback is no reason to reload. Nor is it while lost files are not back.
    let mut transaction = if intent.check_only {
        Transaction::abandoning(intent.changes.len())
    } else {
        let is_complete = record.places.values().all(|held| !held.lost);
        let is_open = effects.closed(false).is_none() || planted(Fault::RecoveryReloads);
        let may_reload = is_complete && !committed && is_open;
        Transaction::recovering(intent.changes.len(), rule.reloads(), committed, may_reload)
    };
    let committed = committed && !intent.check_only;
    while let Some(step) = transaction.step() {
        let result = match step {
            Step::Keep => keep_unfinished(effects, record, intent, &transaction),
            _ => execute(effects, intent, step, committed),
        };
        transaction.completed(result);
    }
    let ended = transaction.ended();
    record.owes_reload |= ended.owes_reload;
    !ended.unfinished
}

/// Records what outlasts a transaction, before its intent is removed: the changes whose rollback
/// failed, and a reload that is owed.
pub(super) fn keep_unfinished<H: Effects>(
    effects: &mut H,
    record: &mut Record,
    intent: &Intent,
    transaction: &Transaction,
) -> Result<(), Failure> {
    record.owes_reload |= transaction.owes_reload();
    for (at, failure) in transaction.unrestored() {
        if let Some(change) = intent.changes.get(*at) {
            let stuck = Stuck { change: change.clone(), message: failure.message.clone() };
            record.stuck.insert(change.place.path(), stuck);
        }
    }
    effects.commit(record)
}

/// Tries to roll back what could not be. A place is free again once its old files are back.
fn retry_stuck<H: Effects>(effects: &mut H, rule: &Rule, record: &mut Record) {
    let mut stuck = record.stuck.clone();
    stuck.retain(|path, Stuck { change, message }| match effects.restore(change) {
        Ok(()) => {
            // Nothing has looked at the files since: no version counts as there until they are
            // written.
            if let Some(held) = record.places.get_mut(path) {
                held.members.clear();
            }
            // A failure leaves files that the next change of the place removes.
            let _ = effects.discard(change, false);
            false
        }
        Err(failure) => {
            *message = failure.message;
            true
        }
    });
    if stuck != record.stuck {
        record.owes_reload |= rule.reloads() && stuck.len() < record.stuck.len();
        record.stuck = stuck;
        // If it is not recorded, the next request does the same again.
        let _ = effects.commit(record);
    }
}

/// Executes a step. Staging and the record are left to the caller.
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
        Step::Stage(_) | Step::Commit | Step::Keep => Ok(()),
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
