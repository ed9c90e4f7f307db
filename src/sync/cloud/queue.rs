//! What is to be sent to one node: each UID at most once, in the order of the objects' names, a removal
//! before a new object of the same name, so that a replacement travels in one frame.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use crate::sync::change::{ObjectRef, Uid};

/// What is to be done about one UID.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Action {
    /// Have it removed.
    Delete,
    /// Send its latest version.
    Put,
}

#[derive(Debug, Default)]
pub(super) struct Queue {
    order: BTreeSet<(Arc<ObjectRef>, Action, Uid)>,
    by_uid: HashMap<Uid, (Arc<ObjectRef>, Action)>,
}

impl Queue {
    pub(super) fn insert(&mut self, uid: &Uid, object: &Arc<ObjectRef>, action: Action) {
        self.remove(uid);
        self.order.insert((object.clone(), action, uid.clone()));
        self.by_uid.insert(uid.clone(), (object.clone(), action));
    }

    pub(super) fn remove(&mut self, uid: &Uid) {
        if let Some((object, action)) = self.by_uid.remove(uid) {
            self.order.remove(&(object, action, uid.clone()));
        }
    }

    pub(super) fn pop(&mut self) -> Option<(Uid, Action)> {
        let (_, action, uid) = self.order.pop_first()?;
        self.by_uid.remove(&uid);
        Some((uid, action))
    }

    pub(super) fn clear(&mut self) {
        *self = Self::default();
    }

    pub(super) fn len(&self) -> usize {
        self.order.len()
    }

    pub(super) fn contains(&self, uid: &Uid) -> bool {
        self.by_uid.contains_key(uid)
    }
}
