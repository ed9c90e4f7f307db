//! The send queue of one node: each UID at most once, ordered by object name.
//!
//! A removal precedes a new object of the same name, so that a replacement travels in one frame.
//! Objects larger than a frame have a lane of their own and block no others.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use crate::change::{ObjectRef, Uid};

/// The pending action on one UID.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Action {
    /// Remove the object from the node.
    Delete,
    /// Send its latest version.
    Put,
}

/// The framing of an object.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Lane {
    /// Together with others in a frame.
    #[default]
    Small,
    /// In parts, one message over several frames.
    Large,
}

/// One value per lane.
#[derive(Debug, Default)]
pub(super) struct Lanes<T> {
    small: T,
    large: T,
}

impl<T> Lanes<T> {
    pub(super) fn of(&self, lane: Lane) -> &T {
        match lane {
            Lane::Small => &self.small,
            Lane::Large => &self.large,
        }
    }

    pub(super) fn of_mut(&mut self, lane: Lane) -> &mut T {
        match lane {
            Lane::Small => &mut self.small,
            Lane::Large => &mut self.large,
        }
    }
}

#[derive(Debug, Default)]
pub(super) struct Queue {
    order: Lanes<BTreeSet<(Arc<ObjectRef>, Action, Uid)>>,
    by_uid: HashMap<Uid, (Arc<ObjectRef>, Action, Lane)>,
}

impl Queue {
    pub(super) fn insert(&mut self, uid: &Uid, object: &Arc<ObjectRef>, action: Action, lane: Lane) {
        self.remove(uid);
        self.order.of_mut(lane).insert((object.clone(), action, uid.clone()));
        self.by_uid.insert(uid.clone(), (object.clone(), action, lane));
    }

    pub(super) fn remove(&mut self, uid: &Uid) {
        if let Some((object, action, lane)) = self.by_uid.remove(uid) {
            self.order.of_mut(lane).remove(&(object, action, uid.clone()));
        }
    }

    /// Returns the next entry of a lane.
    pub(super) fn first(&self, lane: Lane) -> Option<(Uid, Action)> {
        self.order.of(lane).first().map(|(_, action, uid)| (uid.clone(), *action))
    }

    /// Returns the action on a UID that waits in a lane.
    pub(super) fn in_lane(&self, uid: &Uid, lane: Lane) -> Option<Action> {
        self.by_uid.get(uid).filter(|(.., of)| *of == lane).map(|(_, action, _)| *action)
    }

    pub(super) fn clear(&mut self) {
        *self = Self::default();
    }

    pub(super) fn len(&self) -> usize {
        self.by_uid.len()
    }

    pub(super) fn contains(&self, uid: &Uid) -> bool {
        self.by_uid.contains_key(uid)
    }
}
