//! A short history of a node's desired state.
//!
//! A node that was in sync when it disconnected holds the desired state of that time. The history
//! is undone change by change, the latest first, until count and digest equal those in the Hello.
//! The digest proves the match, whichever replica has served the node in between.

use std::collections::VecDeque;

use crate::change::Uid;
use crate::cloud::ledger::Differences;
use crate::cloud::{Desired, DesiredState, Record};
use crate::digest::{Epoch, Tally};

/// The most changes remembered per node: 40 bytes each, and the previous version.
const MAX_CHANGES: usize = 64;

/// The latest changes of the desired state, each with the previous record.
#[derive(Debug, Default)]
pub(super) struct ChangeHistory(VecDeque<(Uid, Option<Record>)>);

impl ChangeHistory {
    /// Appends a change of the desired object of a UID; `before` is the previous one.
    pub(super) fn note(&mut self, uid: &Uid, before: Option<Record>) {
        if self.0.len() == MAX_CHANGES {
            self.0.pop_front();
        }
        self.0.push_back((uid.clone(), before));
    }

    /// Returns what a node with this digest holds of the UIDs changed since it was in sync; `None`
    /// if no remembered state matches.
    pub(super) fn find(&self, epoch: Epoch, held: Tally, desired: &impl DesiredState) -> Option<Differences> {
        let (mut tally, mut then) = (desired.tally(epoch), Differences::new());
        let mut changes = self.0.iter().rev();
        while tally != held {
            let (uid, before) = changes.next()?;
            let after = then.insert(uid.clone(), before.clone());
            if let Some(after) = after.unwrap_or_else(|| desired.get(uid).as_ref().map(Desired::record)) {
                tally.remove(epoch, uid, &after.version);
            }
            if let Some(before) = before {
                tally.add(epoch, uid, &before.version);
            }
        }
        Some(then)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::cloud::testing::DesiredObjects;
    use edgesync_object::ObjectRef;

    const EPOCH: Epoch = Epoch(7);

    fn record(version: u64) -> Record {
        let object = ObjectRef {
            api_version: "v1".into(),
            kind: "ConfigMap".into(),
            namespace: "default".into(),
            name: "a".into(),
        };
        Record { version: version.into(), object: Arc::new(object) }
    }

    /// Finds the state of a node that holds these versions; the desired state is empty.
    fn found(history: &ChangeHistory, held: &[(&str, u64)]) -> Option<Vec<String>> {
        let mut tally = Tally::default();
        held.iter().for_each(|(uid, version)| tally.add(EPOCH, uid, &(*version).into()));
        let then = history.find(EPOCH, tally, &DesiredObjects::default())?;
        let mut then: Vec<_> = then
            .into_iter()
            .map(|(uid, record)| format!("{uid} {:?}", record.map(|record| record.version.to_string())))
            .collect();
        then.sort();
        Some(then)
    }

    #[test]
    fn changes_are_taken_back_until_the_node_was_in_sync() {
        let mut history = ChangeHistory::default();
        history.note(&"a".into(), None);
        history.note(&"a".into(), Some(record(3)));
        history.note(&"b".into(), None);
        history.note(&"a".into(), Some(record(4)));
        history.note(&"b".into(), Some(record(5)));
        assert!(found(&history, &[]).unwrap().is_empty());
        assert_eq!(found(&history, &[("b", 5)]).unwrap(), ["b Some(\"5\")"]);
        assert_eq!(found(&history, &[("b", 5), ("a", 4)]).unwrap(), ["a Some(\"4\")", "b Some(\"5\")"]);
        assert_eq!(found(&history, &[("a", 3)]).unwrap(), ["a Some(\"3\")", "b None"]);
        assert!(found(&history, &[("b", 5), ("a", 3)]).is_none(), "that was never to be held");
    }

    #[test]
    fn old_changes_are_forgotten() {
        let mut history = ChangeHistory::default();
        history.note(&"a".into(), Some(record(3)));
        history.note(&"a".into(), Some(record(4)));
        for n in 0..MAX_CHANGES as u64 - 1 {
            history.note(&"b".into(), (n % 2 == 1).then(|| record(n)));
        }
        assert!(found(&history, &[("a", 4)]).is_some());
        assert!(found(&history, &[("a", 3)]).is_none());
    }
}
