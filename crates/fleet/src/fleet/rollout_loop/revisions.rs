//! Reads the sets of revisions. Nodes keep what they hold until then.

use std::sync::Arc;

use super::{MAX_READS, RETRY};
use crate::fleet::Fleet;
use crate::fleet::assignments::{Revision, RuleIndex};
use crate::fleet::requests::Response;
use crate::source::{Result, RevisionKey, Source};
use edgesync_rollout::Set;

impl<S: Source> Fleet<S> {
    /// Reads the set of a revision that the status has and this process does not.
    pub(super) fn read_revision(&mut self, index: RuleIndex) {
        let rule = self.reconciler.desired.rollouts.rule(index);
        let unread = rule.and_then(|rule| rule.first_awaited().or_else(|| rule.first_unread()));
        if let Some(key) = unread {
            self.request_revision(index, key);
        }
    }

    /// Reads a revision again after bodies were missing. If it is lost, nodes keep what they hold.
    pub(in crate::fleet) fn check_revision(&mut self, key: RevisionKey) {
        let index = self.reconciler.desired.rollouts.index(&key.rule);
        if let Some(index) = index.filter(|index| self.has_set(*index, &key)) {
            self.request_revision(index, key);
        }
    }

    /// Returns whether the set of a revision is known.
    fn has_set(&self, index: RuleIndex, key: &RevisionKey) -> bool {
        let rule = self.reconciler.desired.rollouts.rule(index);
        rule.and_then(|rule| rule.revision(key)).is_some_and(|known| known.set.is_some())
    }

    fn request_revision(&mut self, index: RuleIndex, key: RevisionKey) {
        let now = self.reconciler.now();
        let Some(moved) = self.rollout_loop.rules.get_mut(&index) else { return };
        if moved.is_reading || moved.read_at > now {
            return;
        }
        moved.is_reading = true;
        self.requests.ask(|source| async move {
            let set = source.revision(key.clone()).await;
            Response::RevisionRead(index, key, set)
        });
    }

    pub(in crate::fleet) fn revision_read(
        &mut self,
        index: RuleIndex,
        key: RevisionKey,
        set: Result<Option<Arc<Set>>>,
    ) {
        let now = self.reconciler.now();
        let has_set = self.has_set(index, &key);
        let mut failed = 0;
        if let Some(moved) = self.rollout_loop.rules.get_mut(&index) {
            moved.is_reading = false;
            // A known one is read again when bodies are missing, at most once in a while.
            moved.read_at = if set.is_err() || has_set { now + RETRY } else { now };
            if !has_set {
                moved.failed_reads = if set.is_err() { moved.failed_reads.saturating_add(1) } else { 0 };
            }
            failed = moved.failed_reads;
        }
        match set {
            Ok(Some(_)) if has_set => {}
            Ok(set) => {
                self.add_revision(index, key, set);
                self.queue_nodes(index);
            }
            Err(error) => {
                tracing::error!(rule = %key.rule, revision = key.number, %error, "reading a revision failed");
                if !has_set && failed >= MAX_READS {
                    self.reconciler.desired.rollouts.set_unreadable(index, key);
                    self.queue_nodes(index);
                }
            }
        }
    }

    /// Adds a revision whose set was read; one that is missing or damaged is lost.
    pub(in crate::fleet) fn add_revision(
        &mut self,
        index: RuleIndex,
        key: RevisionKey,
        set: Option<Arc<Set>>,
    ) {
        let set = set.filter(|set| set.digest() == key.digest);
        if set.is_none() {
            tracing::error!(rule = %key.rule, revision = key.number, "bodies of a revision are lost, nodes keep what they hold");
        }
        let desired = &mut self.reconciler.desired;
        let resource = |uid: &str| desired.placement.object(uid).map(|object| object.resource.clone());
        let revision = Revision::new(key, set, resource);
        desired.rollouts.add_revision(index, revision);
    }
}
