//! The send queue of one node: each UID at most once, ordered by urgency, then by object name, or
//! on a metered link by size.
//!
//! A removal precedes a new object of the same name, so that a replacement travels in one frame.
//! Objects larger than a frame have a lane of their own and block no others. Objects that may not
//! come over the node's link are held in no lane.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use crate::change::{ObjectRef, Uid};
use edgesync_object::ObjectKey;
use edgesync_object::urgency::Urgency;

use super::metered::HeldFor;

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

/// The position of an entry among those of its lane and urgency: its size on a metered link, else
/// zero, and then its name.
type Position = (usize, Arc<ObjectRef>, Action, Uid);

/// An entry of the queue.
#[derive(Clone, Debug)]
pub(super) struct Entry {
    pub(super) object: Arc<ObjectRef>,
    pub(super) action: Action,
    pub(super) lane: Lane,
    pub(super) urgency: Urgency,
    /// The size in bytes if the order depends on it, else zero.
    pub(super) size: usize,
}

impl Entry {
    fn position(&self, uid: &Uid) -> Position {
        (self.size, self.object.clone(), self.action, uid.clone())
    }
}

#[derive(Debug)]
enum Place {
    Lane(Entry),
    Held(HeldFor, Arc<ObjectRef>),
}

#[derive(Debug, Default)]
pub(super) struct Queue {
    order: Lanes<BTreeMap<Reverse<Urgency>, BTreeSet<Position>>>,
    by_uid: HashMap<Uid, Place>,
    /// The numbers of objects held for their urgency and for their size.
    held: (u32, u32),
    /// Only on a metered link, or with objects of another urgency than the normal one.
    replacements: Option<Box<Replacements>>,
}

/// Objects by name, and the removals that wait for them.
#[derive(Debug, Default)]
struct Replacements {
    /// The objects to send, by name.
    puts: HashMap<ObjectKey, Uid>,
    /// The delayed removals by the replacement of each.
    delayed: HashMap<Uid, BTreeSet<Uid>>,
    /// The number of delayed removals.
    count: usize,
}

impl Queue {
    pub(super) fn insert(&mut self, uid: &Uid, entry: Entry) {
        self.remove(uid);
        let order = self.order.of_mut(entry.lane).entry(Reverse(entry.urgency)).or_default();
        order.insert(entry.position(uid));
        if entry.action == Action::Put && (entry.size > 0 || entry.urgency != Urgency::Normal) {
            self.replacements().puts.insert(entry.object.key(), uid.clone());
        }
        self.by_uid.insert(uid.clone(), Place::Lane(entry));
    }

    /// Holds an object that may not come over the link.
    pub(super) fn hold(&mut self, uid: &Uid, reason: HeldFor, object: Arc<ObjectRef>) {
        self.remove(uid);
        match reason {
            HeldFor::Urgency => self.held.0 += 1,
            HeldFor::Size => self.held.1 += 1,
            HeldFor::Replacement => self.replacements().count += 1,
        }
        if reason != HeldFor::Replacement {
            self.replacements().puts.insert(object.key(), uid.clone());
        }
        self.by_uid.insert(uid.clone(), Place::Held(reason, object));
    }

    fn replacements(&mut self) -> &mut Replacements {
        self.replacements.get_or_insert_default()
    }

    /// Holds a removal until its replacement has arrived.
    pub(super) fn delay(&mut self, uid: &Uid, object: Arc<ObjectRef>, replacement: Uid) {
        self.hold(uid, HeldFor::Replacement, object);
        self.replacements().delayed.entry(replacement).or_default().insert(uid.clone());
    }

    /// Returns the removals that an object has delayed, and forgets them.
    pub(super) fn take_replaced(&mut self, replacement: &Uid) -> BTreeSet<Uid> {
        let Some(replacements) = &mut self.replacements else { return BTreeSet::new() };
        let mut replaced = replacements.delayed.remove(replacement).unwrap_or_default();
        let is_delayed =
            |uid: &Uid| matches!(self.by_uid.get(uid), Some(Place::Held(HeldFor::Replacement, _)));
        replaced.retain(is_delayed);
        replaced
    }

    /// Returns the urgency of the object of this name that waits to be sent.
    pub(super) fn urgency_named(&self, key: &ObjectKey) -> Option<Urgency> {
        Some(self.entry(self.put_named(key)?)?.urgency)
    }

    /// Sets the urgency of an entry that waits to be sent.
    pub(super) fn set_urgency(&mut self, uid: &Uid, urgency: Urgency) {
        if let Some(entry) = self.entry(uid).cloned() {
            self.insert(uid, Entry { urgency, ..entry });
        }
    }

    /// Returns the object of this name that waits here to be sent, on a metered link.
    pub(super) fn put_named(&self, key: &ObjectKey) -> Option<&Uid> {
        self.replacements.as_ref()?.puts.get(key)
    }

    pub(super) fn remove(&mut self, uid: &Uid) {
        let entry = match self.by_uid.remove(uid) {
            Some(Place::Lane(entry)) => entry,
            Some(Place::Held(reason, object)) => {
                match reason {
                    HeldFor::Urgency => self.held.0 -= 1,
                    HeldFor::Size => self.held.1 -= 1,
                    HeldFor::Replacement => self.replacements().count -= 1,
                }
                self.forget_name(&object, uid);
                return;
            }
            None => return,
        };
        self.forget_name(&entry.object, uid);
        let lane = self.order.of_mut(entry.lane);
        let Some(order) = lane.get_mut(&Reverse(entry.urgency)) else { return };
        order.remove(&entry.position(uid));
        if order.is_empty() {
            lane.remove(&Reverse(entry.urgency));
        }
    }

    fn forget_name(&mut self, object: &ObjectRef, uid: &Uid) {
        if let Some(Replacements { puts, .. }) = self.replacements.as_deref_mut()
            && puts.get(&object.key()) == Some(uid)
        {
            puts.remove(&object.key());
        }
    }

    /// Returns the next removal.
    pub(super) fn first_removal(&self) -> Option<(Uid, Action)> {
        let (.., action, uid) = self.order.of(Lane::Small).get(&Reverse(Urgency::Normal))?.first()?;
        (*action == Action::Delete).then(|| (uid.clone(), *action))
    }

    /// Returns the next entry of a lane.
    pub(super) fn first(&self, lane: Lane) -> Option<(Uid, Action)> {
        let first = self.order.of(lane).values().find_map(BTreeSet::first);
        first.map(|(.., action, uid)| (uid.clone(), *action))
    }

    /// Returns the next entry of a lane with at most this size and at least this urgency, on a
    /// metered link.
    pub(super) fn first_within(&self, lane: Lane, size: usize, urgency: Urgency) -> Option<(Uid, Action)> {
        let mut orders = self.order.of(lane).range(..=Reverse(urgency));
        let first = orders.find_map(|(_, order)| order.first().filter(|(least, ..)| *least <= size));
        first.map(|(.., action, uid)| (uid.clone(), *action))
    }

    /// Returns the urgency of the next entry of a lane.
    pub(super) fn most_urgent(&self, lane: Lane) -> Option<Urgency> {
        self.order.of(lane).first_key_value().map(|(urgency, _)| urgency.0)
    }

    /// Returns the entry of a UID that waits to be sent.
    fn entry(&self, uid: &Uid) -> Option<&Entry> {
        match self.by_uid.get(uid)? {
            Place::Lane(entry) => Some(entry),
            Place::Held(..) => None,
        }
    }

    /// Returns the action on a UID that waits in a lane.
    pub(super) fn in_lane(&self, uid: &Uid, lane: Lane) -> Option<Action> {
        self.entry(uid).filter(|entry| entry.lane == lane).map(|entry| entry.action)
    }

    pub(super) fn clear(&mut self) {
        *self = Self::default();
    }

    /// Returns the number of entries that may be sent.
    pub(super) fn len(&self) -> usize {
        let delayed = self.replacements.as_ref().map_or(0, |replacements| replacements.count);
        self.by_uid.len() - self.held.0 as usize - self.held.1 as usize - delayed
    }

    /// Returns the numbers of objects held for their urgency and for their size.
    pub(super) fn held(&self) -> (u64, u64) {
        (self.held.0.into(), self.held.1.into())
    }

    /// Returns whether a UID waits here, to be sent or held.
    pub(super) fn contains(&self, uid: &Uid) -> bool {
        self.by_uid.contains_key(uid)
    }

    /// Returns whether an object may not come over the link.
    pub(super) fn is_held(&self, uid: &Uid) -> bool {
        matches!(self.by_uid.get(uid), Some(Place::Held(..)))
    }

    /// Returns whether a UID waits to be sent.
    pub(super) fn is_queued(&self, uid: &Uid) -> bool {
        self.entry(uid).is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(name: &str, action: Action, urgency: Urgency, size: usize) -> (Uid, Entry) {
        let (api_version, kind) = ("v1".into(), "ConfigMap".into());
        let object = Arc::new(ObjectRef { api_version, kind, namespace: "n".into(), name: name.into() });
        let uid = format!("{name}-{action:?}").into();
        (uid, Entry { object, action, lane: Lane::Small, urgency, size })
    }

    fn drain(queue: &mut Queue, next: impl Fn(&Queue) -> Option<(Uid, Action)>) -> Vec<String> {
        std::iter::from_fn(|| {
            let (uid, _) = next(queue)?;
            queue.remove(&uid);
            Some(uid.to_string())
        })
        .collect()
    }

    #[test]
    fn urgency_orders_entries_before_names() {
        let mut queue = Queue::default();
        for (uid, entry) in [
            entry("a", Action::Put, Urgency::Low, 0),
            entry("b", Action::Put, Urgency::Normal, 0),
            entry("b", Action::Delete, Urgency::Normal, 0),
            entry("z", Action::Put, Urgency::High, 0),
        ] {
            queue.insert(&uid, entry);
        }
        let order = drain(&mut queue, |queue| queue.first(Lane::Small));
        assert_eq!(order, ["z-Put", "b-Delete", "b-Put", "a-Put"]);
    }

    /// A removal and the object that replaces it travel in one frame.
    #[test]
    fn removal_has_the_urgency_of_its_replacement() {
        let mut queue = Queue::default();
        for (uid, entry) in [
            entry("b", Action::Delete, Urgency::Normal, 0),
            entry("c", Action::Put, Urgency::Normal, 0),
            entry("b", Action::Put, Urgency::Low, 0),
        ] {
            queue.insert(&uid, entry);
        }
        let (removed, entry) = entry("b", Action::Delete, Urgency::Normal, 0);
        queue.set_urgency(&removed, queue.urgency_named(&entry.object.key()).unwrap());
        let order = drain(&mut queue, |queue| queue.first(Lane::Small));
        assert_eq!(order, ["c-Put", "b-Delete", "b-Put"]);
    }

    #[test]
    fn size_orders_entries_of_one_urgency_and_limits_them() {
        let mut queue = Queue::default();
        for (name, urgency, size) in
            [("a", Urgency::High, 90), ("b", Urgency::Normal, 20), ("c", Urgency::Normal, 10)]
        {
            let (uid, entry) = entry(name, Action::Put, urgency, size);
            queue.insert(&uid, entry);
        }
        let within = |size, urgency| move |queue: &Queue| queue.first_within(Lane::Small, size, urgency);
        assert_eq!(within(50, Urgency::High)(&queue), None);
        assert_eq!(queue.most_urgent(Lane::Small), Some(Urgency::High));
        assert_eq!(drain(&mut queue, within(50, Urgency::Low)), ["c-Put", "b-Put"]);
        assert_eq!(drain(&mut queue, within(90, Urgency::Low)), ["a-Put"]);
        assert_eq!(queue.most_urgent(Lane::Small), None);
    }

    #[test]
    fn held_objects_are_counted_and_in_no_lane() {
        let mut queue = Queue::default();
        let (uid, entry) = entry("a", Action::Put, Urgency::Low, 1);
        queue.insert(&uid, entry.clone());
        queue.hold(&uid, HeldFor::Size, entry.object.clone());
        assert_eq!((queue.len(), queue.held(), queue.first(Lane::Small)), (0, (0, 1), None));
        assert!(queue.contains(&uid) && !queue.is_queued(&uid));
        queue.hold(&uid, HeldFor::Urgency, entry.object.clone());
        assert_eq!(queue.held(), (1, 0));
        queue.insert(&uid, entry);
        assert_eq!((queue.len(), queue.held()), (1, (0, 0)));
    }
}
