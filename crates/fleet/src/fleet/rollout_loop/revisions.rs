//! Reads the sets of revisions, of which nodes keep what they hold until then.

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
        let now = self.reconciler.now();
        let rule = self.reconciler.desired.rollouts.rule(index);
        let unread = rule.and_then(|rule| rule.first_awaited().or_else(|| rule.first_unread()));
        let (Some(key), Some(moved)) = (unread, self.rollout_loop.rules.get_mut(&index)) else { return };
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
        if let Some(moved) = self.rollout_loop.rules.get_mut(&index) {
            moved.is_reading = false;
            moved.read_at = if set.is_err() { now + RETRY } else { now };
            moved.failed_reads = if set.is_err() { moved.failed_reads.saturating_add(1) } else { 0 };
        }
        match set {
            Ok(set) => {
                self.add_revision(index, key, set);
                self.queue_nodes(index);
            }
            Err(error) => {
                tracing::error!(rule = %key.rule, revision = key.number, %error, "reading a revision failed");
                let failed = self.rollout_loop.rules.get(&index).map_or(0, |moved| moved.failed_reads);
                if failed >= MAX_READS {
                    self.reconciler.desired.rollouts.set_unreadable(index, key);
                    self.queue_nodes(index);
                }
            }
        }
    }

    /// Reads a revision again, of which bodies were missing: if it is lost, nodes keep what they
    /// hold.
    pub(in crate::fleet) fn check_revision(&mut self, key: RevisionKey) {
        let now = self.reconciler.now();
        let rollouts = &self.reconciler.desired.rollouts;
        let index = rollouts.index(&key.rule);
        let rule = index.and_then(|index| rollouts.rule(index));
        let has_set = rule.and_then(|rule| rule.revision(&key)).is_some_and(|known| known.set.is_some());
        let Some((index, moved)) =
            index.and_then(|index| Some((index, self.rollout_loop.rules.get_mut(&index)?)))
        else {
            return;
        };
        if !has_set || moved.is_reading || moved.read_at > now {
            return;
        }
        (moved.is_reading, moved.read_at) = (true, now + RETRY);
        self.requests.ask(|source| async move {
            let set = source.revision(key.clone()).await;
            Response::RevisionChecked(index, key, set)
        });
    }

    pub(in crate::fleet) fn revision_checked(
        &mut self,
        index: RuleIndex,
        key: RevisionKey,
        set: Result<Option<Arc<Set>>>,
    ) {
        if let Some(moved) = self.rollout_loop.rules.get_mut(&index) {
            moved.is_reading = false;
        }
        match set {
            Ok(None) => {
                self.add_revision(index, key, None);
                self.queue_nodes(index);
            }
            Ok(Some(_)) => {}
            Err(error) => {
                tracing::error!(rule = %key.rule, revision = key.number, %error, "reading a revision failed");
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
