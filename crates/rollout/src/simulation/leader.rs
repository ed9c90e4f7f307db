//! A leader: reads the status, steps, writes by compare and swap; may be late or be killed.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::world::{World, entry};
use crate::engine::{Command, Input, Snapshot, Step, step};
use crate::observed::{Observed, Planned};
use crate::revision::{Origin, Set};
use crate::spec::Rollout;
use crate::status::Status;

/// What a leader has in memory.
#[derive(Default)]
pub(super) struct Leader {
    /// Status and rule as read last.
    read: Option<(u64, Rollout, Status)>,
    planned: Planned,
    /// Counts of an earlier state.
    counted: Option<Observed>,
    snapshot: Option<Snapshot>,
}

impl World {
    /// Reads the status; a late leader keeps what it has.
    fn read(&mut self, index: usize, late: u64) -> (u64, Rollout, Status) {
        let is_late = self.random.percent(late);
        let leader = &mut self.leaders[index];
        if leader.read.is_none() || !is_late {
            leader.read = Some((self.generation, self.rollout.clone(), self.status.clone()));
        }
        leader.read.clone().unwrap()
    }

    /// Lets a leader do one thing.
    pub(super) fn lead(&mut self, index: usize, disturbed: bool) -> Result<(), String> {
        let late = if disturbed { 40 } else { 0 };
        let (generation, rollout, status) = self.read(index, late);
        let sets = self.sets(&status);
        let top = status.top().and_then(|top| sets.get(&top.number)).map(|set| &**set);
        let plan = status.rejected.plan(&self.source, top).ok();
        let digest = plan.as_ref().map(crate::revision::Plan::digest);
        let (now, leader) = (self.now, &mut self.leaders[index]);
        leader.planned.follow(now, digest, status.top().map(|top| top.digest));
        let planned = leader.planned.clone();
        let mut observed = self.observe(&status, &rollout, &planned);
        // The counts may be of another revision, or of one wave less.
        let before = self.leaders[index].counted.replace(observed.clone());
        let is_late = before.as_ref().is_some_and(|before| {
            (before.revision, before.open) != (observed.revision, observed.open)
                && before.waves.len() == observed.waves.len()
        });
        if let Some(before) = before.filter(|_| is_late) {
            let Observed { planned, lost, .. } = observed;
            observed = Observed { planned, lost, ..before };
        }

        let pending = self.leaders[index].snapshot.take();
        if let Some(snapshot) = pending {
            let done = step(now, &rollout, &status, &observed, &sets, Input::Snapshot(&snapshot));
            return self.write(index, generation, &status, done, &Cause::Snapshot(&snapshot.set));
        }
        if self.random.percent(20) {
            let kept = |(number, digest): &(u64, _)| !status.is_garbage(*number, *digest);
            self.bodies.retain(|key, _| kept(key));
            if !disturbed {
                let most = crate::status::MAX_REVISIONS + self.leaders.len();
                let count = self.bodies.len();
                if count > most && self.status == status {
                    return Err(format!("bodies of {count} revisions are stored"));
                }
            }
        }
        let done = step(now, &rollout, &status, &observed, &sets, Input::Observe);
        if let (Some(wanted), Some(plan)) = (done.snapshot, plan) {
            let below = |origin: &Origin| match origin {
                Origin::Source(version) => entry(version),
                Origin::Below(entry) => entry.clone(),
            };
            let entries: BTreeMap<_, _> =
                plan.objects().iter().map(|(uid, origin)| (uid.clone(), below(origin))).collect();
            let set = Arc::new(Set::new(entries));
            self.bodies.insert((wanted.number, set.digest()), set.clone());
            let selection = self.source.clone();
            self.leaders[index].snapshot = Some(Snapshot { wanted, set, selection });
        }
        let cause = if is_late { Cause::Late } else { Cause::Observed };
        self.write(index, generation, &status, done, &cause)
    }

    pub(super) fn lead_command(&mut self, index: usize, command: &Command) -> Result<(), String> {
        let (generation, rollout, status) = self.read(index, 30);
        let planned = self.leaders[index].planned.clone();
        let observed = self.observe(&status, &rollout, &planned);
        let sets = self.sets(&status);
        let done = step(self.now, &rollout, &status, &observed, &sets, Input::Command(command));
        self.say(|| format!("{command:?}: {:?}", done.refused));
        let cause = if done.refused.is_some() { Cause::Late } else { Cause::Command(command) };
        self.write(index, generation, &status, done, &cause)
    }

    /// Writes the status, unless another write was first. Writes and their answers may get lost.
    fn write(
        &mut self,
        index: usize,
        generation: u64,
        before: &Status,
        done: Step,
        cause: &Cause<'_>,
    ) -> Result<(), String> {
        let is_current = before.sequence == self.status.sequence && generation == self.generation;
        let is_observed = matches!(cause, Cause::Observed);
        let Some(next) = done.next else {
            if is_current && is_observed && *before == self.status {
                self.oracle_observed(None);
            }
            return Ok(());
        };
        let is_lost = self.random.percent(10);
        let is_answer_lost = self.random.percent(10);
        if !is_current || is_lost {
            self.leaders[index].read = None;
            return Ok(());
        }
        self.say(|| {
            format!(
                "{index} {:?} {:?}",
                done.happened,
                next.revisions.iter().map(|it| (it.number, it.open)).collect::<Vec<_>>()
            )
        });
        let before = std::mem::replace(&mut self.status, next);
        self.oracle_committed(&before, cause)?;
        if is_observed {
            self.oracle_observed(Some(&before));
        }
        let leader = &mut self.leaders[index];
        leader.read = None;
        if is_answer_lost {
            *leader = Leader::default();
        }
        Ok(())
    }
}

/// Why a status was written.
pub(super) enum Cause<'a> {
    Observed,
    /// The counts were of an earlier state, or a command was refused.
    Late,
    Command(&'a Command),
    Snapshot(&'a Set),
}
