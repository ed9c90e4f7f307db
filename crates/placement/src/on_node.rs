//! What the index says of one node.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::Placement;
use super::slots::{Id, Placed, Slot};
use edgesync_object::ResourceVersion;

/// What one node is to hold, seen through the index.
#[derive(Clone, Copy, Debug)]
pub struct OnNode<'a> {
    pub(super) placement: &'a Placement,
    pub(super) direct: Option<&'a BTreeSet<Id>>,
    /// The rules that select the node, ascending.
    pub(super) rules: &'a [usize],
}

impl<'a> OnNode<'a> {
    /// The object, if the node is to hold it.
    #[must_use]
    pub fn get(&self, uid: &str) -> Option<Arc<Placed>> {
        let id = self.placement.slots.by_uid(uid)?;
        let slot = self.placement.slots.get(id)?;
        let wanted = self.is_direct(id) || self.placement.is_selected(slot, self.rules);
        self.placement.slots.whole(slot).filter(|_| wanted)
    }

    /// UID and version of everything that the node is to hold, each object once, in no particular
    /// order.
    pub fn iter(&self) -> impl Iterator<Item = (&'a str, ResourceVersion)> + use<'a> {
        self.slots().map(|slot| (slot.uid(), slot.version()))
    }

    /// How many objects the node is to hold for other reasons than a rule.
    #[must_use]
    pub fn direct_count(&self) -> usize {
        self.direct.map_or(0, BTreeSet::len)
    }

    pub(super) fn slots(&self) -> impl Iterator<Item = &'a Slot> + use<'a> {
        let Self { placement, direct, rules } = *self;
        let ruled = rules.iter().enumerate().flat_map(move |(place, number)| {
            let earlier = rules.get(..place).unwrap_or_default();
            let ids = placement.rules.get(*number).into_iter().flat_map(|rule| &rule.objects);
            ids.filter(move |id| direct.is_none_or(|direct| !direct.contains(id)))
                .filter_map(|id| placement.slots.get(*id))
                .filter(move |slot| !placement.is_selected(slot, earlier))
        });
        self.named().chain(ruled)
    }

    /// What it is to hold for other reasons than a rule.
    pub(super) fn named(&self) -> impl Iterator<Item = &'a Slot> + use<'a> {
        let Self { placement, direct, .. } = *self;
        direct.into_iter().flatten().filter_map(|id| placement.slots.get(*id))
    }

    fn is_direct(&self, id: Id) -> bool {
        self.direct.is_some_and(|ids| ids.contains(&id))
    }
}
