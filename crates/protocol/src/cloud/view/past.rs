//! What a node was to hold lately. A node that was in sync when it left holds what it was to hold then. So the changes since
//! then are taken back one after the other, the last one first, until what was to be held is what the Hello says. The digest
//! proves that, whoever has served the node in between.

use std::collections::VecDeque;

use crate::change::Uid;
use crate::cloud::ledger::Differences;
use crate::cloud::{Desired, DesiredState, Record};
use crate::digest::{Epoch, Tally};

/// So many changes of what a node is to hold are remembered: 40 bytes each, and the version of before.
const MAX_CHANGES: usize = 64;

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Past(VecDeque<(Uid, Option<Record>)>);

impl Past {
    /// What the node is to hold of a UID has changed: until now it was `before`.
    pub(super) fn note(&mut self, uid: &Uid, before: Option<Record>) {
        if self.0.len() == MAX_CHANGES {
            self.0.pop_front();
        }
        self.0.push_back((uid.clone(), before));
    }

    /// What a node that holds this holds of the UIDs that have changed since it was in sync; none if it never was, as far as
    /// that is remembered.
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
    use crate::cloud::testing::Wishes;
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

    /// The node holds these, and is to hold nothing.
    fn found(past: &Past, held: &[(&str, u64)]) -> Option<Vec<String>> {
        let mut tally = Tally::default();
        held.iter().for_each(|(uid, version)| tally.add(EPOCH, uid, &(*version).into()));
        let then = past.find(EPOCH, tally, &Wishes::default())?;
        let mut then: Vec<_> = then
            .into_iter()
            .map(|(uid, record)| format!("{uid} {:?}", record.map(|record| record.version.to_string())))
            .collect();
        then.sort();
        Some(then)
    }

    #[test]
    fn changes_are_taken_back_until_the_node_was_in_sync() {
        let mut past = Past::default();
        past.note(&"a".into(), None);
        past.note(&"a".into(), Some(record(3)));
        past.note(&"b".into(), None);
        past.note(&"a".into(), Some(record(4)));
        past.note(&"b".into(), Some(record(5)));
        assert!(found(&past, &[]).unwrap().is_empty());
        assert_eq!(found(&past, &[("b", 5)]).unwrap(), ["b Some(\"5\")"]);
        assert_eq!(found(&past, &[("b", 5), ("a", 4)]).unwrap(), ["a Some(\"4\")", "b Some(\"5\")"]);
        assert_eq!(found(&past, &[("a", 3)]).unwrap(), ["a Some(\"3\")", "b None"]);
        assert!(found(&past, &[("b", 5), ("a", 3)]).is_none(), "that was never to be held");
    }

    #[test]
    fn what_is_long_ago_is_forgotten() {
        let mut past = Past::default();
        past.note(&"a".into(), Some(record(3)));
        past.note(&"a".into(), Some(record(4)));
        for n in 0..MAX_CHANGES as u64 - 1 {
            past.note(&"b".into(), (n % 2 == 1).then(|| record(n)));
        }
        assert!(found(&past, &[("a", 4)]).is_some());
        assert!(found(&past, &[("a", 3)]).is_none());
    }
}
