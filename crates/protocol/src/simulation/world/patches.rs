//! Patches on their way, and their oracle: a patch is applied exactly if it is undamaged and starts
//! from the text that the node holds, and its result is the text that was written.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use crate::apply::Applied;
use crate::change::{Change, Uid};
use crate::frame::{Down, Up};
use crate::patch::{Damage, PatchProblem, Unpatched};
use edgesync_object::{Relation, ResourceVersion};

use super::World;

/// The oracle's record of texts and patches.
#[derive(Default)]
pub(super) struct Patches {
    /// The text of each version ever written.
    texts: HashMap<(Uid, ResourceVersion), Arc<str>>,
    /// The entries that were damaged. Damaged data may happen to mean the same.
    damaged: HashMap<Vec<u8>, Damage>,
    /// The sessions, objects and bases that the cloud knows to be refused.
    refused: HashSet<(String, Uid, ResourceVersion)>,
    /// The patches applied and refused.
    counts: (usize, usize),
}

impl Patches {
    pub(super) fn wrote(&mut self, uid: &Uid, version: &ResourceVersion, text: String) {
        self.texts.insert((uid.clone(), version.clone()), text.into());
    }

    /// Records refusals that the cloud has taken notice of.
    pub(super) fn refuse(&mut self, (session, unpatched): (String, Vec<Unpatched>)) {
        let refused = unpatched.into_iter().map(|it| (session.clone(), it.uid, it.base));
        self.refused.extend(refused);
    }

    pub(super) fn counts(&self) -> (usize, usize) {
        self.counts
    }

    fn text(&self, uid: &Uid, version: &ResourceVersion) -> Option<&str> {
        self.texts.get(&(uid.clone(), version.clone())).map(|text| &**text)
    }
}

/// Returns the refused patches in a report, with its session.
pub(super) fn unpatched(frame: &Up) -> (String, Vec<Unpatched>) {
    match frame {
        Up::Report(report) => (report.session.clone(), report.unpatched.clone()),
        _ => Default::default(),
    }
}

/// The expected outcome of a patch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Expected {
    /// It is no patch.
    NoPatch,
    /// It is applied.
    Applied,
    /// It changes nothing: the node holds that version or a newer one.
    Stale,
    /// It is refused for this reason.
    Refused(PatchProblem),
    /// It is refused, for whatever reason.
    Damaged,
    /// It is refused, or its result is right.
    DamagedData,
}

impl World {
    /// Checks that the cloud may send the patches of a frame.
    pub(super) fn check_patches(&mut self, frame: &Down) {
        if let Down::Welcome(welcome) = frame {
            // A Hello that a broker repeats after the end of the connection begins its session
            // again, without the refusals of the first one.
            self.patches.refused.retain(|(session, ..)| *session != welcome.session);
        }
        let Down::Patches(frame) = frame else { return };
        if self.is_old || self.is_cloud_old {
            self.time.violation = Some("patches: one side does not know them".into());
        }
        for patch in &frame.patches {
            let it = (frame.session.clone(), patch.uid().clone(), patch.base().clone());
            if self.patches.refused.contains(&it) {
                self.time.violation = Some(format!("patches: {it:?} was refused, and is sent again"));
            }
        }
    }

    /// Damages one patch of a frame, sometimes.
    pub(super) fn damage_patches(&mut self, frame: &mut Down) {
        let Down::Patches(frame) = frame else { return };
        if !self.time.random.percent(self.chaos.damage) {
            return;
        }
        let damage = [Damage::Data, Damage::Length, Damage::BaseDigest, Damage::Digest];
        let damage = damage[usize::try_from(self.time.random.below(4)).unwrap()];
        let random = self.time.random.below(1 << 20);
        if let Some(patch) = frame.patches.first_mut() {
            let damaged = patch.damaged(damage, random);
            self.patches.damaged.insert(damaged.bytes(), damage);
            *patch = Arc::new(damaged);
        }
    }

    /// Gives one of the held objects another text.
    pub(super) fn reformat_something(&mut self) {
        let held: Vec<Uid> = self.agents[0].db.held().into_keys().collect();
        if held.is_empty() {
            return;
        }
        let uid = &held[usize::try_from(self.time.random.below(held.len() as u64)).unwrap()];
        self.agents[0].db.reformat(uid);
        self.time.say(|| format!("{uid} gets another text"));
    }

    /// Returns the number of held objects with another text than the cloud has written.
    pub(super) fn reformatted(&self) -> u64 {
        let db = &self.agents[0].db;
        let held = db.held().into_iter();
        held.filter(|(uid, version)| self.patches.text(uid, version) != db.text(uid)).count() as u64
    }

    /// Returns the expected outcome of a change.
    pub(super) fn expect(&self, agent: usize, change: &Change) -> Expected {
        let Change::Patch(patch) = change else { return Expected::NoPatch };
        match self.patches.damaged.get(&patch.bytes()) {
            Some(Damage::Data) => return Expected::DamagedData,
            Some(_) => return Expected::Damaged,
            None => {}
        }
        let db = &self.agents[agent].db;
        let Some(held) = db.version(patch.uid()) else {
            return Expected::Refused(PatchProblem::NotHeld);
        };
        let is_stale = match patch.version().relation(held) {
            Relation::Equal => true,
            Relation::Older => held != patch.base(),
            Relation::Newer | Relation::Different => false,
        };
        if is_stale {
            return Expected::Stale;
        }
        if held != patch.base() {
            return Expected::Refused(PatchProblem::OtherVersion);
        }
        match db.text(patch.uid()) == self.patches.text(patch.uid(), held) {
            true => Expected::Applied,
            false => Expected::Refused(PatchProblem::OtherBase),
        }
    }

    /// Checks the outcome of the patches in a batch.
    pub(super) fn check_patched(
        &mut self,
        agent: usize,
        changes: &[Change],
        expected: &[Expected],
        applied: &Applied,
    ) -> Result<(), String> {
        self.patches.counts.0 += applied.patched.len();
        self.patches.counts.1 += applied.unpatched.len();
        for (change, expected) in changes.iter().zip(expected) {
            let Change::Patch(patch) = change else { continue };
            let is_applied = applied.patched.iter().any(|it| it.uid == *patch.uid());
            let refused = applied.unpatched.iter().find(|it| it.uid == *patch.uid()).map(|it| it.reason);
            let is_right = match expected {
                Expected::NoPatch | Expected::DamagedData => true,
                Expected::Applied => is_applied && refused.is_none(),
                Expected::Stale => !is_applied && refused.is_none(),
                Expected::Refused(reason) => !is_applied && refused == Some(*reason),
                Expected::Damaged => !is_applied,
            };
            if !is_right {
                return Err(format!(
                    "patches: {patch:?} must be {expected:?}, applied: {is_applied}, refused: {refused:?}"
                ));
            }
            let text = self.agents[agent].db.text(patch.uid());
            if is_applied && text != self.patches.text(patch.uid(), patch.version()) {
                return Err(format!("G2: {patch:?} made another text"));
            }
        }
        Ok(())
    }
}
