//! Changes that wait: outside of windows and under holds they are checked, and recorded as pending.
//! What is in effect stays, and its files in memory are kept for the next reboot.

use std::collections::{BTreeMap, BTreeSet};

use super::super::fault::{Fault, planted};
use super::super::gate::WaitReason;
use super::super::record::{Held, Member, Pending, Record, State, Status, tail};
use super::super::{Effects, Failure};
use super::{Pass, Purpose, Task, status_of};

impl<H: Effects> Pass<'_, H> {
    /// Finds out whether changes wait, if there are any. Those that passed their check are not
    /// needed again then, unless they are urgent.
    pub(super) fn find_closed(&mut self) {
        let has_removals =
            !self.options.keep && self.record.places.keys().any(|path| !self.places.contains_key(path));
        if self.due.is_empty() && !self.record.owes_reload && !has_removals {
            return;
        }
        self.closed = self.effects.closed(false);
        let Some(closed) = &self.closed else {
            if planted(Fault::PendingForgotten) {
                let pending = &self.record.pending;
                self.due.retain(|path| !pending.contains_key(path));
            }
            return;
        };
        if self.options.force {
            return;
        }
        let is_urgent = self.record.pending.values().any(|pending| pending.urgent);
        let asks = self.rule.overridable && closed.reason == WaitReason::Window && is_urgent;
        if asks {
            self.closed_to_urgent = self.effects.closed(true);
        }
        let overrides = asks && self.closed_to_urgent.is_none();
        let is_checked = |path: &String| {
            let numbers = self.places.get(path).map(|(_, numbers)| numbers.as_slice()).unwrap_or_default();
            self.record.pending.get(path).is_some_and(|pending| {
                pending.rule == self.text
                    && self.matches(&pending.members, numbers)
                    && !(overrides && pending.urgent)
            })
        };
        let checked: Vec<String> = self.due.iter().filter(|path| is_checked(path)).cloned().collect();
        for path in checked {
            self.due.remove(&path);
        }
    }

    /// Applies changes, or checks those that wait. Returns whether a transaction is unfinished.
    pub(super) fn run_or_wait(&mut self, tasks: Vec<Task>) -> bool {
        let Some(closed) = &self.closed else { return self.run(tasks, Purpose::Apply(false)) };
        let is_window = closed.reason == WaitReason::Window || planted(Fault::HoldOverridden);
        let overrides = self.rule.overridable && is_window;
        let (urgent, rest): (Vec<Task>, Vec<Task>) = tasks
            .into_iter()
            .partition(|(change, desired)| overrides && change.new.is_some() && desired.is_urgent);
        let (urgent, rest) = match planted(Fault::UrgencyOfNeighbours) && !urgent.is_empty() {
            true => (urgent.into_iter().chain(rest).collect(), Vec::new()),
            false => (urgent, rest),
        };
        if !urgent.is_empty() {
            // It may have to wait for something else than a window, too.
            if self.run(urgent, Purpose::Apply(true)) {
                return true;
            }
        }
        !rest.is_empty() && self.run(rest, Purpose::Check)
    }

    /// Postpones changes that no program checks, and returns the others.
    pub(super) fn postpone_unchecked(&mut self, tasks: Vec<Task>) -> Vec<Task> {
        let has_check = !self.rule.check.is_empty();
        let (checked, rest): (Vec<Task>, Vec<Task>) =
            tasks.into_iter().partition(|(change, _)| has_check && change.new.is_some());
        rest.iter().for_each(|task| self.postpone(task));
        checked
    }

    /// Records that a change waits.
    pub(super) fn postpone(&mut self, (change, desired): &Task) {
        let path = change.place.path();
        let members = match (&change.new, &change.old) {
            (None, Some(old)) => old.members.clone(),
            _ => desired.members.clone(),
        };
        let urgent = change.new.is_some() && desired.is_urgent;
        self.record.waits.remove(&path);
        let pending = Pending { members, rule: self.text, urgent };
        self.dirty |= self.record.pending.insert(path, pending.clone()) != Some(pending);
    }

    /// Reports the objects of pending changes: what they wait for, beside the version in effect.
    pub(super) fn show_pending(&mut self) {
        let (places, held) = (&self.places, &self.record.places);
        let before = self.record.pending.len();
        self.record.pending.retain(|path, _| places.contains_key(path) || held.contains_key(path));
        self.dirty |= before != self.record.pending.len();
        let Some(closed) = self.closed.clone() else { return };
        let to_urgent = self.closed_to_urgent.clone().unwrap_or_else(|| closed.clone());
        let pending = self.record.pending.iter();
        let paths: Vec<_> = pending.map(|(path, pending)| (path.clone(), pending.urgent)).collect();
        let listed: BTreeSet<&str> = self.listed.iter().map(|object| object.uid.as_str()).collect();
        for (path, urgent) in paths {
            let closed = if urgent { &to_urgent } else { &closed };
            let waiting = |status: Status| Status {
                message: tail(&closed.message),
                reason: Some(closed.reason),
                until: closed.until,
                ..status
            };
            let numbers = self.places.get(&path).map(|(_, numbers)| numbers.clone()).unwrap_or_default();
            for number in numbers {
                let version = self.held_version(&path, number);
                let Some(object) = self.listed.get(number) else { continue };
                let status = waiting(status_of(object, State::Waiting, version, "", false));
                self.set(&object.uid, status);
            }
            // Objects whose removal waits have no desired version.
            let held = self.record.places.get(&path);
            let is_lost = held.is_some_and(|held| held.lost);
            let members = held.map(|held| held.members.clone()).unwrap_or_default();
            for Member { uid, version } in members.iter().filter(|of| !listed.contains(of.uid.as_str())) {
                let Some(before) = self.record.objects.get(uid).cloned() else { continue };
                let is_there = !self.record.owes_reload && !is_lost;
                let version = Some(version.clone()).filter(|_| is_there);
                let (state, wanted, rolled_back) = (State::Waiting, None, false);
                let status = waiting(Status { state, version, wanted, rolled_back, ..before });
                self.set(uid, status);
            }
        }
    }

    /// Keeps the files in memory of a rule whose changes wait, also those that were written while
    /// it had nothing to wait for.
    pub(super) fn keep_all(&mut self) {
        if (self.closed.is_some() || self.rule.may_wait()) && !planted(Fault::NothingKept) {
            match keep_all(self.effects, self.record) {
                Ok(any) => self.dirty |= any,
                Err(failure) => self.record.output = failure.message,
            }
        }
    }
}

/// Keeps the files of all places in memory that have no copy yet. Returns whether there were any.
///
/// # Errors
/// The first failure; other places are kept.
pub fn keep_all<H: Effects>(effects: &mut H, record: &mut Record) -> Result<bool, Failure> {
    let (mut any, mut failed) = (false, None);
    let mut memory: BTreeMap<String, bool> = BTreeMap::new();
    for held in record.places.values_mut().filter(|held| held.kept.is_none() && !held.lost) {
        let known = memory.get(&held.place.base).copied();
        let in_memory = known.unwrap_or_else(|| effects.is_memory(&held.place, held.shape));
        if known.is_none() {
            memory.insert(held.place.base.clone(), in_memory);
        }
        if !in_memory {
            continue;
        }
        let copy = Held { kept: Some(held.stamp), ..held.clone() };
        let sealed = |of: &Member| record.objects.get(&of.uid).is_none_or(|object| object.sealed);
        match effects.keep(&copy, None, copy.members.iter().any(sealed)) {
            Ok(()) => {
                *held = copy;
                any = true;
            }
            Err(failure) => failed = failed.or(Some(failure)),
        }
    }
    failed.map_or(Ok(any), Err)
}
