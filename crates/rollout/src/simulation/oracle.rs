//! The oracle: decides from the nodes and the source alone what may be opened, and checks each
//! write of the status and each assignment. It shares no code with the engine but the digests, the
//! sets, and the wave of a node.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::time::Duration;

use edgesync_object::ResourceVersion;
use jiff::Timestamp;

use super::leader::Cause;
use super::world::{Key, Kind, Node, World, later};
use crate::engine::Command;
use crate::observed::Link;
use crate::revision::{Set, Uid};
use crate::spec::{OnChange, OnFailure, Rollout};
use crate::status::Reason;
use crate::status::{PauseReason, Revision, Status};

/// What the oracle remembers.
#[derive(Clone, Default)]
pub(super) struct Oracle {
    /// All versions that the source ever had.
    pub(super) existed: HashSet<(Uid, ResourceVersion)>,
    /// Revisions by number: none is ever another one.
    numbers: BTreeMap<u64, Key>,
    /// For how many waves each revision was opened by the rules.
    opened: BTreeMap<Key, usize>,
    /// How many waves of it were accepted by hand.
    accepted: BTreeMap<Key, usize>,
    /// The revision that nodes may have in any wave.
    stable: Option<Key>,
    /// Sets of all revisions that have begun.
    sets: BTreeMap<Key, Set>,
    /// The newest revision with its number of open waves, and since when the last one is good.
    good: Option<(Key, usize, Timestamp)>,
    /// The newest revision, if changed waves have closed it completely.
    closed: Option<Key>,
    /// Undone versions, and undone removals.
    undone: HashSet<(Uid, Option<ResourceVersion>)>,
}

/// State of a node, as the issue says it.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Truth {
    Success,
    HeldOnly,
    Failure,
    WaitedFor,
    NotWaitedFor,
}

fn key(revision: &Revision) -> Key {
    (revision.number, revision.digest)
}

impl Oracle {
    pub(super) fn lose(&mut self) {
        let existed = std::mem::take(&mut self.existed);
        *self = Self { existed, ..Self::default() };
    }

    /// Forgets what an older copy does not have.
    pub(super) fn restore(&mut self, before: Self) {
        let existed = std::mem::take(&mut self.existed);
        *self = Self { existed, ..before };
    }

    /// Checks an assignment.
    pub(super) fn assigned(
        &self,
        rollout: &Rollout,
        key: Key,
        wave: Option<usize>,
        set: &Set,
    ) -> Result<(), String> {
        if self.sets.get(&key) != Some(set) {
            return Err(format!("bodies of {key:?} are not those of its set"));
        }
        let open = self.opened.get(&key).copied().unwrap_or(0).min(rollout.waves.count());
        if self.stable == Some(key) || wave.is_some_and(|wave| wave < open) {
            return Ok(());
        }
        Err(format!("{key:?} was assigned in wave {wave:?}, it is open for {open}"))
    }
}

impl World {
    fn truth(&self, node: &Node, top: Key) -> Truth {
        let Some((_, at)) = node.assigned.filter(|(key, _)| *key == top) else { return Truth::WaitedFor };
        let passed = |since: Timestamp, time: Duration| later(since, time) <= self.now;
        let holds = node.held.filter(|(held, _)| *held == top);
        let set = &self.oracle.sets[&top];
        let site = node.labels.get("site");
        let is_bad = set.entries().iter().any(|(uid, entry)| {
            let bad = self.bad.get(&(uid.clone(), entry.version.clone()));
            bad.is_some_and(|only| only.is_none() || only.as_ref() == site)
        }) || self.bad_absences.iter().any(|uid| set.version(uid).is_none());
        let in_effect = node.effect_at <= self.now;
        if let Some((_, since)) = holds {
            match node.kind {
                _ if is_bad => return Truth::Failure,
                Kind::Old => return Truth::HeldOnly,
                _ if in_effect => return Truth::Success,
                Kind::Windowed if passed(since, self.rollout.waiting_after) => return Truth::NotWaitedFor,
                _ => {}
            }
        }
        let waits = holds.is_some() && node.kind == Kind::Windowed;
        match node.link {
            Link::Connected(since) if !waits && passed(since.max(at), self.rollout.healthy_within) => {
                Truth::Failure
            }
            Link::Disconnected { last_heard, expected }
                if passed(expected.unwrap_or(last_heard).max(last_heard), self.rollout.offline_after) =>
            {
                Truth::NotWaitedFor
            }
            _ => match node.first_connected {
                Some(first)
                    if !waits
                        && passed(
                            first.max(at),
                            self.rollout.healthy_within + self.rollout.offline_after,
                        ) =>
                {
                    Truth::NotWaitedFor
                }
                _ => Truth::WaitedFor,
            },
        }
    }

    fn truths(&self, wave: usize, top: Key) -> Vec<(&Node, Truth)> {
        let is_in = |node: &&Node| self.rollout.waves.wave_of(&node.name, &node.labels) == Some(wave);
        self.nodes.iter().filter(is_in).map(|node| (node, self.truth(node, top))).collect()
    }

    /// Returns whether a wave has more failures than it may, whatever the nodes do that are waited
    /// for.
    fn fails_truly(&self, wave: usize, top: Key) -> bool {
        let truths = self.truths(wave, top);
        let label = self.rollout.max_failures.group_by.as_deref();
        let group = |node: &Node| label.and_then(|label| node.labels.get(label).cloned());
        let groups: BTreeSet<_> = truths.iter().map(|(node, _)| group(node)).collect();
        groups.into_iter().any(|value| {
            let count = |which: &[Truth]| {
                truths.iter().filter(|(node, truth)| group(node) == value && which.contains(truth)).count()
            };
            let failed = count(&[Truth::Failure]);
            let others = count(&[Truth::Success, Truth::HeldOnly, Truth::WaitedFor]);
            failed * 100 > usize::from(self.rollout.max_failures.percent) * (failed + others)
        })
    }

    /// Returns the reason why a wave is not good; `soaking` waves do not wait for nodes.
    fn lacks(&self, wave: usize, top: Key, soaking: bool) -> Option<Reason> {
        let truths = self.truths(wave, top);
        let config = &self.rollout.waves.as_slice()[wave];
        let count = |which: Truth| truths.iter().filter(|(_, truth)| *truth == which).count();
        let successes = count(Truth::Success) + if config.held_only { count(Truth::HeldOnly) } else { 0 };
        let is_enough = successes * 100 >= truths.len() * usize::from(self.rollout.min_success.percent)
            && successes >= self.rollout.min_success.at_least as usize;
        if self.fails_truly(wave, top) {
            Some(Reason::FailuresExceeded)
        } else if truths.is_empty() {
            let allowed = config.allow_empty || wave + 1 == self.rollout.waves.count();
            (!allowed).then_some(Reason::WaveEmpty)
        } else if !soaking && count(Truth::WaitedFor) > 0 {
            Some(Reason::Opening)
        } else {
            (!is_enough).then_some(Reason::NoAnswers)
        }
    }

    /// Returns the first open wave that was not accepted by hand and has too many failures.
    fn failed_wave(&self, top: Key, open: usize) -> Option<usize> {
        let accepted = self.oracle.accepted.get(&top).copied().unwrap_or(0);
        (accepted..open).find(|wave| self.fails_truly(*wave, top))
    }

    /// Follows how long the last open wave has been good: at each look of a leader whose write, if
    /// it had one, was stored. `before` is the status before that write.
    pub(super) fn oracle_observed(&mut self, before: Option<&Status>) {
        let status = before.unwrap_or(&self.status);
        let Some(top) = status.progressing() else {
            self.oracle.good = None;
            return;
        };
        let key = key(top);
        let open = self.oracle.opened.get(&key).copied().unwrap_or(0).min(top.open);
        if !self.oracle.sets.contains_key(&key) || open == 0 || open > self.rollout.waves.count() {
            self.oracle.good = None;
            return;
        }
        let since = self.oracle.good.filter(|(good, waves, _)| (*good, *waves) == (key, open));
        let is_good =
            self.failed_wave(key, open).is_none() && self.lacks(open - 1, key, since.is_some()).is_none();
        let since = since.map_or(self.now, |(.., since)| since);
        self.oracle.good = is_good.then_some((key, open, since));
    }

    /// Returns why the newest revision must not move by itself to the next wave.
    fn must_not_open(&self, before: &Status, top: Key, open: usize) -> Option<String> {
        if before.paused.is_some() {
            return Some(format!("opened while paused: {:?}", before.paused));
        }
        if open == 0 {
            let is_closed = self.oracle.closed == Some(top);
            return is_closed.then(|| "opened after a change of all waves".to_owned());
        }
        if let Some(wave) = self.failed_wave(top, open) {
            return Some(format!("opened although wave {wave} has too many failures"));
        }
        let since = self.oracle.good.filter(|(good, waves, _)| (*good, *waves) == (top, open));
        if let Some(reason) = self.lacks(open - 1, top, since.is_some()) {
            return Some(format!("opened although wave {} is not good: {reason:?}", open - 1));
        }
        // Nothing has looked before: good since now.
        let since = since.map_or(self.now, |(.., since)| since);
        (later(since, self.rollout.soak) > self.now)
            .then(|| format!("opened although wave {} is good since {since} only", open - 1))
    }

    /// Checks a write of the status.
    pub(super) fn oracle_committed(&mut self, before: &Status, cause: &Cause<'_>) -> Result<(), String> {
        let after = self.status.clone();
        if after.sequence != before.sequence + 1 || after.next_number < before.next_number {
            return Err(format!("a write without its number: {} {}", after.sequence, after.next_number));
        }
        if Status::read(Some(&after.to_value())) != Ok(after.clone()) {
            return Err(format!("the status is not read back: {:?}", Status::read(Some(&after.to_value()))));
        }
        self.check_paused(before, &after)?;
        let is_closed = |reason| reason == PauseReason::WavesChanged;
        if matches!(cause, Cause::Command(Command::Resume { reason, .. }) if is_closed(*reason)) {
            self.oracle.closed = None;
        }
        self.check_waves(before, &after);
        self.check_removed(before, &after, cause)?;
        self.check_begun(before, &after, cause)?;
        self.check_opened(before, &after, cause)?;
        self.check_stable(before, &after, cause)?;
        let keys: BTreeSet<Key> = after.revisions.iter().map(key).collect();
        let missing = keys.iter().find(|key| !self.bodies.contains_key(*key) && !self.lost.contains(&key.0));
        missing.map_or(Ok(()), |key| Err(format!("bodies of {key:?} are missing")))
    }

    /// Closes waves that have changed.
    fn check_waves(&mut self, before: &Status, after: &Status) {
        if before.waves == after.waves || before.revisions.is_empty() {
            return;
        }
        let same = before.waves.iter().zip(&after.waves).take_while(|(old, new)| old == new).count();
        for open in self.oracle.opened.values_mut().filter(|open| **open > same) {
            *open = same;
        }
        for accepted in self.oracle.accepted.values_mut() {
            *accepted = (*accepted).min(same.saturating_sub(1));
        }
        self.oracle.closed = after.progressing().map(key).filter(|_| same == 0);
    }

    /// A roll-out that pauses itself because of failures has them.
    fn check_paused(&self, before: &Status, after: &Status) -> Result<(), String> {
        let is_failed = |status: &Status| {
            status.paused.as_ref().is_some_and(|pause| pause.reason == PauseReason::FailuresExceeded)
        };
        let Some(top) = after.progressing().filter(|_| is_failed(after) && !is_failed(before)) else {
            return Ok(());
        };
        match self.failed_wave(key(top), top.open) {
            Some(_) => Ok(()),
            None => Err("paused without failures".to_owned()),
        }
    }

    fn is_promoted(cause: &Cause<'_>) -> bool {
        matches!(cause, Cause::Command(Command::Promote { .. }))
    }

    fn check_removed(&mut self, before: &Status, after: &Status, cause: &Cause<'_>) -> Result<(), String> {
        let is_kept = |revision: &&Revision| after.revisions.iter().any(|kept| key(kept) == key(revision));
        let stable = after.stable().map(key);
        for (index, revision) in before.revisions.iter().enumerate().filter(|(_, it)| !is_kept(it)) {
            let this = key(revision);
            let is_top = index + 1 == before.revisions.len();
            if index > 0 && self.lost.contains(&revision.number) {
                continue;
            }
            if index > 0 && stable.is_some_and(|stable| stable.0 > revision.number) {
                continue;
            }
            let open = self.oracle.opened.get(&this).copied().unwrap_or(0);
            let mut above = after.revisions.iter().skip(1).filter(|it| it.number > revision.number);
            if index > 0 && above.any(|above| above.open >= open) {
                continue;
            }
            if index == 0 {
                // The change of the stable revision is checked on its own.
                continue;
            }
            let by_failure = self.rollout.on_failure == OnFailure::RollBack
                && before.paused.is_none()
                && self.failed_wave(this, open).is_some();
            let by_hand =
                matches!(cause, Cause::Command(Command::Undo { revision, .. }) if *revision == this.0);
            if !is_top || !(by_failure || by_hand) {
                return Err(format!("{this:?} was dropped without a reason"));
            }
            let below = key(&before.revisions[index - 1]);
            let undone = self.oracle.sets[&this].difference(&self.oracle.sets[&below]);
            self.oracle.undone.extend(undone.into_iter().map(|it| (it.uid, it.version)));
        }
        Ok(())
    }

    fn check_begun(&mut self, before: &Status, after: &Status, cause: &Cause<'_>) -> Result<(), String> {
        for (index, revision) in after.revisions.iter().enumerate() {
            let this = key(revision);
            if before.revisions.iter().any(|old| key(old) == this) {
                continue;
            }
            let Cause::Snapshot(set) = cause else { return Err(format!("{this:?} has begun by itself")) };
            if self.oracle.numbers.insert(this.0, this).is_some_and(|old| old != this) {
                return Err(format!("the number {} is used again", this.0));
            }
            if index + 1 != after.revisions.len() || set.digest() != this.1 {
                return Err(format!("{this:?} is not the newest revision"));
            }
            for (uid, entry) in set.entries() {
                if !self.oracle.existed.contains(&(uid.clone(), entry.version.clone())) {
                    return Err(format!("{uid} {} never existed", entry.version));
                }
            }
            if let Some(top) = before.top() {
                self.check_begun_over(before, key(top), set)?;
            }
            self.oracle.opened.insert(this, 1);
            self.oracle.sets.insert(this, (*set).clone());
        }
        Ok(())
    }

    fn check_begun_over(&mut self, before: &Status, top: Key, set: &Set) -> Result<(), String> {
        if before.paused.as_ref().is_some_and(|pause| pause.reason == PauseReason::Command) {
            return Err("a revision has begun while an operator has paused".to_owned());
        }
        if self.rollout.on_change == OnChange::Queue
            && before.revisions.len() > 1
            && self.status.revisions.iter().any(|it| key(it) == top)
        {
            return Err("a revision has begun during another one".to_owned());
        }
        // A removal counts as undone until the object is selected again.
        let selected = self.source.clone();
        self.oracle.undone.retain(|(uid, version)| version.is_some() || !selected.contains_key(uid));
        let below = self.oracle.sets.get(&top).ok_or("no set below")?;
        for (uid, version) in &self.oracle.undone {
            if set.version(uid) == version.as_ref() && below.version(uid) != version.as_ref() {
                return Err(format!("{uid} {version:?} was undone, and is back"));
            }
        }
        // And an undone version costs no object that was there.
        for (uid, version) in &self.oracle.undone {
            let is_source = version.is_some() && selected.get(uid) == version.as_ref();
            if is_source && below.version(uid).is_some() && set.version(uid).is_none() {
                return Err(format!("{uid} was removed because {version:?} was undone"));
            }
        }
        Ok(())
    }

    fn check_opened(&mut self, before: &Status, after: &Status, cause: &Cause<'_>) -> Result<(), String> {
        let count = self.rollout.waves.count();
        let mut last = None;
        for (index, revision) in after.revisions.iter().enumerate().skip(1) {
            let this = key(revision);
            let open = self.oracle.opened.get(&this).copied().ok_or("a revision from nowhere")?;
            let is_top = index + 1 == after.revisions.len();
            if revision.open > count {
                return Err(format!("{this:?} is open for {} of {count} waves", revision.open));
            }
            if last.is_some_and(|last| revision.open >= last) {
                return Err(format!("{this:?} is open for as many waves as the one below"));
            }
            last = Some(revision.open);
            if revision.open < open {
                return Err(format!("{this:?} was closed: {} of {open}", revision.open));
            }
            if revision.open == open {
                continue;
            }
            if !is_top || revision.open != open + 1 {
                return Err(format!("{this:?} is open for {} waves, not {open}", revision.open));
            }
            if Self::is_promoted(cause) {
                self.check_promotion(this, open, cause)?;
                self.oracle.accepted.insert(this, open);
            } else if before.waves != after.waves {
                return Err(format!("changed waves have opened {this:?}"));
            } else if let Some(why) = self.must_not_open(before, this, open) {
                return Err(format!("{this:?}: {why}"));
            }
            self.oracle.opened.insert(this, revision.open);
        }
        if after.revisions.len() > 4 {
            return Err(format!("{} revisions", after.revisions.len()));
        }
        Ok(())
    }

    /// A promotion opens the wave that the operator has meant.
    fn check_promotion(&self, this: Key, open: usize, cause: &Cause<'_>) -> Result<(), String> {
        match cause {
            Cause::Command(Command::Promote { revision, open: seen, .. })
                if (*revision, *seen) != (this.0, open) =>
            {
                Err(format!("{this:?} was promoted from {open}, the operator has seen {seen}"))
            }
            _ => Ok(()),
        }
    }

    fn check_stable(&mut self, before: &Status, after: &Status, cause: &Cause<'_>) -> Result<(), String> {
        let (old, new) = (before.stable().map(key), after.stable().map(key));
        if old == new {
            return Ok(());
        }
        let Some(new) = new else { return Err("the stable revision is gone".to_owned()) };
        if old.is_some() {
            if before.top().map(key) != Some(new) || after.revisions.len() != 1 {
                return Err(format!("{new:?} is stable, and was not the newest"));
            }
            let open = self.oracle.opened.get(&new).copied().unwrap_or(0);
            if open != self.rollout.waves.count() {
                return Err(format!("{new:?} is stable, and open for {open} waves"));
            }
            if Self::is_promoted(cause) {
                self.check_promotion(new, open, cause)?;
            } else if let Some(why) = self.must_not_open(before, new, open) {
                return Err(format!("{new:?} is stable: {why}"));
            }
        }
        self.oracle.stable = Some(new);
        self.oracle.opened.insert(new, usize::MAX);
        Ok(())
    }

    /// Checks the end: the newest objects are stable everywhere, or the status says why not.
    pub(super) fn oracle_end(&mut self) -> Result<String, String> {
        let status = &self.status;
        let Some(conditions) = &status.conditions else { return Err("no status at the end".to_owned()) };
        let reason = conditions.progressing.reason;
        let told = format!("{reason:?}");
        let stack: Vec<_> = status.revisions.iter().map(|it| (it.number, it.open)).collect();
        let fail = |why: &str| Err(format!("at the end: {why}; the status says {told}, {stack:?}"));
        let Some(top) = status.progressing() else {
            return self.check_ended().map(|()| told.clone()).or_else(|why| fail(&why));
        };
        let (this, open) = (key(top), top.open);
        let paused = status.paused.as_ref().map(|pause| pause.reason);
        let is_true = match (paused, reason) {
            (Some(PauseReason::Command), Reason::Paused) => true,
            (Some(PauseReason::WavesChanged), Reason::WavesChanged) => open == 0,
            (Some(PauseReason::FailuresExceeded), Reason::FailuresExceeded) => open > 0,
            (None, Reason::WaveEmpty | Reason::NoAnswers) => self.lacks(open - 1, this, true) == Some(reason),
            _ => false,
        };
        let assigned = self.nodes.iter().all(|node| {
            let wave = self.rollout.waves.wave_of(&node.name, &node.labels);
            let expected =
                status.revisions.iter().rev().find(|it| wave.is_some_and(|wave| wave < it.open)).map(key);
            node.assigned.map(|(key, _)| key) == expected.or(status.stable().map(key))
        });
        match (is_true, assigned) {
            (true, true) => Ok(told),
            (false, _) => fail("the roll-out is stuck"),
            (true, false) => fail("a node has another revision"),
        }
    }

    /// Checks that the stable revision is what the source has, but for what was undone.
    fn check_ended(&self) -> Result<(), String> {
        let status = &self.status;
        let Some(stable) = status.stable().map(key) else { return Err("no revision".to_owned()) };
        if let Some(node) = self.nodes.iter().find(|node| node.assigned.map(|(key, _)| key) != Some(stable)) {
            return Err(format!("{} has {:?}", node.name, node.assigned));
        }
        if status.paused.as_ref().is_some_and(|pause| pause.reason == PauseReason::Command) {
            return Ok(());
        }
        let set = &self.oracle.sets[&stable];
        let undone = |uid: &Uid, version: Option<&ResourceVersion>| {
            self.oracle.undone.contains(&(uid.clone(), version.cloned()))
        };
        let uids: BTreeSet<&Uid> = set.entries().keys().chain(self.source.keys()).collect();
        for uid in uids {
            let (has, wants) = (set.version(uid), self.source.get(uid));
            if has != wants && !undone(uid, wants) {
                return Err(format!("{uid} is {has:?}, the source has {wants:?}"));
            }
        }
        Ok(())
    }
}
