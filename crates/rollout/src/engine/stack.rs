//! The stack of revisions: begins, opens, completes, undoes and drops them.

use std::mem;

use super::{Engine, Happened, Refusal, Snapshot};
use crate::fault::{Fault, planted};
use crate::revision::Uid;
use crate::status::{FIRST_OPEN, Outcome, Pause, PauseReason, Revision};

impl Engine<'_> {
    /// Begins a revision with the first wave; the first one of all is stable at once.
    pub(super) fn begin(&mut self, snapshot: &Snapshot) -> Result<(), Refusal> {
        self.may_begin()?;
        let Snapshot { wanted, set, selection } = snapshot;
        let is_over_top = *wanted == self.wanted();
        if !is_over_top && !planted(Fault::SnapshotOfAnyTop) {
            return Err(Refusal::Outdated);
        }
        let digest = set.digest();
        if let Some(top) = self.status.top() {
            if top.digest == digest {
                return Err(Refusal::Unchanged);
            }
            match self.sets.get(&top.number) {
                Some(below) => {
                    let rejected = self.status.rejected.first_in(set, below);
                    let is_checked = !planted(Fault::RejectedTaken) && !planted(Fault::SnapshotOfAnyTop);
                    if (rejected.is_some() || !set.follows(below)) && is_checked {
                        return Err(Refusal::OldVersion);
                    }
                }
                None if self.status.rejected.is_in(set) => return Err(Refusal::BodiesLost),
                None => {}
            }
        }
        let is_first = self.status.revisions.is_empty();
        let number = self.wanted().number;
        let open = if is_first { self.rollout.waves.count() } else { FIRST_OPEN };
        let revision = Revision {
            number,
            digest,
            open,
            promoted: 0,
            started_at: self.now,
            opened_at: self.now,
            good_since: None,
            overrides_windows_of: None,
        };
        if is_first {
            self.happened.push(Happened::Initialized { revision: number });
        } else {
            let replaces_early = self.status.progressing().is_some_and(|top| top.open <= FIRST_OPEN);
            let replaced = self.status.replaced_in_a_row;
            self.status.replaced_in_a_row = if replaces_early { replaced.saturating_add(1) } else { 0 };
            self.happened.push(Happened::Begun { revision: number });
        }
        self.status.paused.take_if(|pause| pause.reason != PauseReason::Command);
        // A revision that returns to the top has to prove itself again, and windows hold for nodes
        // that leave the new one.
        for covered in &mut self.status.revisions {
            (covered.good_since, covered.overrides_windows_of) = (None, None);
        }
        self.status.revisions.push(revision);
        self.status.next_number = number.saturating_add(1);
        self.status.waves = self.rollout.waves.digests();
        self.drop_overtaken();
        let sets = self.sets;
        let is_in_a_set =
            |uid: &Uid| set.version(uid).is_some() || sets.values().any(|set| set.version(uid).is_some());
        self.status.rejected.prune(selection, is_in_a_set);
        Ok(())
    }

    /// Opens the next wave of the newest revision, or completes it if all are open. `by` is who has
    /// promoted it; empty if the last wave is good.
    pub(super) fn open_next(&mut self, by: &str) {
        let (count, now) = (self.rollout.waves.count(), self.now);
        let Some(top) = self.status.revisions.last_mut() else { return };
        if top.open >= count {
            return self.complete(by);
        }
        top.open += if planted(Fault::OpensTwo) { 2.min(count - top.open) } else { 1 };
        top.opened_at = now;
        top.good_since = None;
        let (revision, wave) = (top.number, top.open);
        self.happened.push(Happened::WaveOpened { revision, wave, by: by.to_owned() });
        if wave > FIRST_OPEN {
            self.status.replaced_in_a_row = 0;
        }
        self.drop_overtaken();
        if wave >= count && planted(Fault::StableUnproven) {
            self.complete(by);
        }
    }

    /// Makes the newest revision the stable one.
    fn complete(&mut self, by: &str) {
        let Some(mut top) = self.status.revisions.pop() else { return };
        (top.good_since, top.promoted) = (None, 0);
        self.happened.push(Happened::Completed { revision: top.number, by: by.to_owned() });
        for (index, below) in mem::take(&mut self.status.revisions).into_iter().enumerate() {
            self.end(&below, if index == 0 { Outcome::Superseded } else { Outcome::Replaced }, "");
        }
        self.status.replaced_in_a_row = 0;
        self.status.revisions.push(top);
    }

    /// Drops revisions that are open for no more waves than the one above. The stable one stays
    /// until a newer one has proven itself in all waves.
    fn drop_overtaken(&mut self) {
        if planted(Fault::OvertakenKept) {
            return;
        }
        let count = self.rollout.waves.count();
        let mut kept = mem::take(&mut self.status.revisions);
        let mut highest_above = None;
        let mut dropped = Vec::new();
        for index in (0..kept.len()).rev() {
            let open = kept.get(index).map_or(0, |revision| revision.open);
            let is_overtaken = highest_above.is_some_and(|above| open <= above);
            let is_kept_as_stable =
                index == 0 && !(planted(Fault::StableDropped) && highest_above == Some(count));
            if is_overtaken && !is_kept_as_stable {
                dropped.push(kept.remove(index));
            } else {
                highest_above = Some(open);
            }
        }
        self.status.revisions = kept;
        for revision in dropped {
            self.end(&revision, Outcome::Replaced, "");
        }
    }

    /// Takes the newest revision off the stack, and rejects what it has changed.
    pub(super) fn undo(&mut self, by: &str, override_windows: bool) -> Result<(), Refusal> {
        let [.., below, top] = self.status.revisions.as_slice() else { return Err(Refusal::NothingBelow) };
        let set = |revision: &Revision| self.sets.get(&revision.number).ok_or(Refusal::BodiesLost);
        let undone = set(top)?.difference(set(below)?);
        let Some(top) = self.status.revisions.pop() else { return Err(Refusal::NothingBelow) };
        if !planted(Fault::UndoForgotten) {
            self.status.rejected.add(undone);
        }
        if planted(Fault::NumberReused) {
            self.status.next_number = top.number;
        }
        self.status.paused.take_if(|pause| pause.reason != PauseReason::Command);
        if let Some(below) = self.status.revisions.last_mut() {
            below.overrides_windows_of = override_windows.then_some(top.number);
        }
        let outcome = if by.is_empty() { Outcome::RolledBack } else { Outcome::Undone };
        self.end(&top, outcome, by);
        Ok(())
    }

    pub(super) fn pause(&mut self, reason: PauseReason, by: &str) {
        self.status.paused = Some(Pause { by: by.to_owned(), at: self.now, reason });
        self.happened.push(Happened::Paused { reason, by: by.to_owned() });
    }

    /// Adopts waves that were changed: each revision stays open for those at the beginning that are
    /// unchanged, and nothing is opened. Returns whether they were.
    pub(super) fn adopt_waves(&mut self) -> bool {
        let new = self.rollout.waves.digests();
        if self.status.revisions.is_empty() || self.status.waves == new {
            return false;
        }
        let unchanged = self.status.unchanged_waves(&new);
        self.status.waves = new;
        if planted(Fault::WavesChangeIgnored) {
            return true;
        }
        let count = self.rollout.waves.count();
        let mut revisions = self.status.revisions.iter_mut();
        if let Some(stable) = revisions.next() {
            stable.open = count;
        }
        for revision in revisions.filter(|revision| revision.open > unchanged) {
            revision.open = unchanged;
            // An acceptance by hand does not open a wave that has changed since.
            revision.promoted = revision.promoted.min(unchanged.saturating_sub(1));
            revision.good_since = None;
        }
        self.happened.push(Happened::WavesChanged { unchanged });
        self.drop_overtaken();
        let is_closed = self.status.progressing().is_some_and(|top| top.open == 0);
        if is_closed && !self.status.is_paused_by_hand() && !planted(Fault::WavesChangeOpens) {
            self.pause(PauseReason::WavesChanged, "");
        }
        true
    }

    /// Drops revisions whose bodies are lost, but the stable one: its nodes keep what they hold.
    pub(super) fn drop_lost(&mut self) {
        let before = self.status.top().map(|top| top.number);
        let mut index = 1;
        while let Some(revision) = self.status.revisions.get(index) {
            if self.observed.lost.contains(&revision.number) {
                let lost = self.status.revisions.remove(index);
                self.end(&lost, Outcome::Lost, "");
            } else {
                index += 1;
            }
        }
        if self.status.top().map(|top| top.number) != before {
            self.status.paused.take_if(|pause| pause.reason != PauseReason::Command);
        }
    }

    fn end(&mut self, revision: &Revision, outcome: Outcome, by: &str) {
        self.happened.push(Happened::Ended { revision: revision.number, outcome, by: by.to_owned() });
        self.status.record(revision, self.now, outcome, by);
    }
}
