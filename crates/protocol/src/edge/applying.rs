//! Applies arriving changes in order, one transaction per frame, and reports them after the commit.

use std::collections::VecDeque;

use crate::apply::{Applied, check_length};
use crate::change::{Change, RejectReason, Rejected, Uid};
#[cfg(any(test, feature = "simulation"))]
use crate::fault::{Fault, planted};
use crate::frame::{Objects, PartialMessage, Patches, Report};
use crate::timing::Now;
use edgesync_object::ResourceVersion;

use super::pages::split;
use super::{Commit, EdgeEffect, EdgeMachine, EdgeNotice, Phase};

/// A batch in commit.
#[derive(Debug)]
struct Applying {
    token: u64,
    session: String,
    /// UID and version of each change, to reject all of them if the commit fails.
    versions: Vec<(Uid, ResourceVersion)>,
    rejected: Vec<Rejected>,
    receipt: u64,
    /// Whether the store assembles the change from the bytes that it keeps.
    is_assembled: bool,
}

/// The batches in commit, in the order of their start.
#[derive(Debug, Default)]
pub(super) struct Commits {
    in_flight: VecDeque<Applying>,
    next_token: u64,
}

impl Commits {
    pub(super) fn is_empty(&self) -> bool {
        self.in_flight.is_empty()
    }

    pub(super) fn len(&self) -> usize {
        self.in_flight.len()
    }

    /// Begins a batch and returns the token that the store's answer repeats.
    fn begin(&mut self, session: &str, changes: &[Change], rejected: Vec<Rejected>, receipt: u64) -> u64 {
        let token = self.next_token;
        self.next_token += 1;
        let version = |change: &Change| match change {
            Change::Put(put) => (put.uid.clone(), put.version.clone()),
            Change::Patch(patch) => (patch.uid().clone(), patch.version().clone()),
            Change::Delete(delete) => (delete.uid.clone(), ResourceVersion::new("")),
        };
        let versions = changes.iter().map(version).collect();
        self.in_flight.push_back(Applying {
            token,
            session: session.to_owned(),
            versions,
            rejected,
            receipt,
            is_assembled: false,
        });
        token
    }

    /// Begins a batch of one change, which is known once the store has assembled its message.
    fn begin_parts(&mut self, session: &str, message: &PartialMessage, receipt: u64) -> u64 {
        let token = self.begin(session, &[], Vec::new(), receipt);
        if let Some(applying) = self.in_flight.back_mut() {
            applying.versions.push((message.uid.clone(), message.resource_version.clone()));
            applying.is_assembled = true;
        }
        token
    }

    /// Ends a batch, not necessarily the oldest one.
    fn end(&mut self, token: u64) -> Option<Applying> {
        let at = self.in_flight.iter().position(|applying| applying.token == token)?;
        self.in_flight.remove(at)
    }
}

impl EdgeMachine {
    pub(super) fn objects(&mut self, now: Now, objects: Objects) {
        if !self.is_live(&objects.session) {
            return self.foreign(now);
        }
        self.extend_waits_for_objects(now);
        self.apply(objects.changes, objects.rejected, objects.receipt);
    }

    pub(super) fn patches(&mut self, now: Now, frame: Patches) {
        if !self.is_live(&frame.session) {
            return self.foreign(now);
        }
        self.extend_waits_for_objects(now);
        let max_object = self.config.max_object as usize;
        let (mut changes, mut rejected) = (Vec::with_capacity(frame.patches.len()), Vec::new());
        for patch in frame.patches {
            match check_length(&patch, max_object) {
                Ok(()) => changes.push(Change::Patch(patch)),
                Err(problem) => rejected.push(problem),
            }
        }
        self.apply(changes, rejected, frame.receipt);
    }

    pub(super) fn apply(&mut self, changes: Vec<Change>, rejected: Vec<Rejected>, receipt: u64) {
        self.metered.received(receipt);
        let mut uids = changes.iter().map(Change::uid).chain(rejected.iter().map(|rejected| &rejected.uid));
        if uids.any(|uid| self.receiving.is_about(uid)) {
            // The cloud has sent another version as a whole, or removes the object.
            self.drop_parts();
        }
        let Phase::Live { session, .. } = &self.phase else { return };
        let token = self.commits.begin(session, &changes, rejected, receipt);
        #[cfg(any(test, feature = "simulation"))]
        let early = crate::fault::planted(crate::fault::Fault::AckBeforeCommit)
            .then(|| crate::apply::observe_early(&changes));
        self.effects.push_back(EdgeEffect::Apply { token, changes });
        #[cfg(any(test, feature = "simulation"))]
        if let Some(applied) = early {
            self.report_applied(self.totals.revision, self.totals.revision, applied, receipt);
        }
    }

    /// Completes a message whose first bytes the store keeps.
    pub(super) fn apply_parts(&mut self, message: PartialMessage, rest: String, receipt: u64) {
        let Phase::Live { session, .. } = &self.phase else { return };
        let token = self.commits.begin_parts(session, &message, receipt);
        let max_object = self.config.max_object as usize;
        self.effects.push_back(EdgeEffect::ApplyParts { token, message, rest, max_object });
    }

    /// Handles the store's answer to [`EdgeEffect::ApplyParts`] that the kept bytes are damaged or
    /// gone: nothing was applied, and the cloud sends the message from its start.
    pub fn parts_lost(&mut self, now: Now, token: u64, random: u64) {
        let Some(applying) = self.commits.end(token) else { return };
        if self.is_live(&applying.session) {
            let uid = applying.versions.into_iter().next().map(|(uid, _)| uid);
            self.report_parts(uid, 0, applying.receipt);
            self.arm_repeat(now);
        } else if matches!(self.phase, Phase::Settling) {
            self.settle(now, random, 0);
        }
    }

    /// Handles the store's answer to a batch: committed or failed.
    pub fn applied(
        &mut self,
        now: Now,
        token: u64,
        result: Result<Commit, (RejectReason, String)>,
        random: u64,
    ) {
        let Some(applying) = self.commits.end(token) else { return };
        let mut rejected = applying.rejected;
        let (from, to, mut applied) = match result {
            Ok(commit) => {
                let Commit { before, totals, applied } = commit;
                self.counters.applied += totals.revision.saturating_sub(before);
                if totals.epoch == self.totals.epoch {
                    // After a retried batch, a later one may be committed first and answered
                    // second.
                    if totals.revision > self.totals.revision {
                        self.totals = totals;
                    }
                    (before, totals.revision, applied)
                } else {
                    // The answer precedes or follows a reset of the store, which is reported
                    // separately.
                    (self.totals.revision, self.totals.revision, applied)
                }
            }
            Err((reason, message)) => {
                if applying.is_assembled && !self.receiving.is_kept() {
                    // The cloud sends it from its start, after a while.
                    self.effects.push_back(EdgeEffect::DropParts);
                }
                let refuse = |(uid, resource_version)| Rejected {
                    uid,
                    resource_version,
                    reason,
                    message: message.clone(),
                    object: None,
                };
                rejected.extend(applying.versions.into_iter().map(refuse));
                (self.totals.revision, self.totals.revision, Applied::default())
            }
        };
        applied.rejected.extend(rejected);
        self.counters.rejected += applied.rejected.len() as u64;
        self.counters.patched += applied.patched.len() as u64;
        self.counters.unpatched += applied.unpatched.len() as u64;
        for rejected in &applied.rejected {
            self.effects.push_back(EdgeEffect::Notice(EdgeNotice::Rejected(rejected.clone())));
        }
        if self.is_live(&applying.session) {
            self.report_applied(from, to, applied, applying.receipt);
            self.arm_repeat(now);
        } else if matches!(self.phase, Phase::Settling) {
            self.settle(now, random, 0);
        }
    }

    fn report_applied(&mut self, from: u64, to: u64, applied: Applied, receipt: u64) {
        let (objects, removed) = split(applied.observed, |observed| (observed.uid, observed.version, None));
        let (rejected, unpatched) = (applied.rejected, applied.unpatched);
        #[cfg(any(test, feature = "simulation"))]
        let unpatched = if planted(Fault::UnpatchedUnreported) { Vec::new() } else { unpatched };
        self.report(Report { from, to, objects, removed, rejected, unpatched, receipt, ..Report::default() });
    }
}

#[cfg(test)]
mod tests;
