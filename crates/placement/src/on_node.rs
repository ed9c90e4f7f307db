//! View of the index for one node.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::slots::{Id, Placed, Slot};
use super::{Placement, Reasons, RuleId};
use edgesync_object::{ObjectRef, Resource, ResourceVersion, kinds};

/// Desired state of one node, as a view of the index.
#[derive(Clone, Copy, Debug)]
pub struct OnNode<'a> {
    pub(super) placement: &'a Placement,
    pub(super) direct: Option<&'a BTreeSet<Id>>,
    /// The rules that select the node, ascending.
    pub(super) rules: &'a [usize],
}

impl<'a> OnNode<'a> {
    /// Returns the object, if it is desired on the node.
    #[must_use]
    pub fn get(&self, uid: &str) -> Option<Arc<Placed>> {
        let id = self.placement.slots.by_uid(uid)?;
        let slot = self.placement.slots.get(id)?;
        let is_desired = self.is_direct(id) || self.placement.is_selected(slot, self.rules);
        self.placement.slots.whole(slot).filter(|_| is_desired)
    }

    /// Returns the name of an object that the index has.
    #[must_use]
    pub fn name(&self, uid: &str) -> Option<&'a str> {
        let slots = &self.placement.slots;
        Some(slots.get(slots.by_uid(uid)?)?.name())
    }

    /// Returns the desired objects that `matches` accepts (kind, namespace, name). Examines all of
    /// them.
    #[must_use]
    pub fn find(&self, matches: impl Fn(&Resource, &str, &str) -> bool) -> Vec<Arc<Placed>> {
        let found = self.slots().filter(|slot| {
            let words = self.placement.slots.words(slot);
            words.is_some_and(|(resource, namespace)| matches(resource, namespace, slot.name()))
        });
        found.filter_map(|slot| self.placement.slots.whole(slot)).collect()
    }

    /// Returns UID and version of every desired object, each once, in no particular order.
    pub fn iter(&self) -> impl Iterator<Item = (&'a str, ResourceVersion)> + use<'a> {
        self.slots().map(|slot| (slot.uid(), slot.version()))
    }

    /// Returns why an object would be desired on the node, and its newest state; `None` if the
    /// index does not have it.
    #[must_use]
    pub fn with_reasons(&self, uid: &str) -> Option<(Arc<Placed>, Reasons)> {
        let id = self.placement.slots.by_uid(uid)?;
        let slot = self.placement.slots.get(id)?;
        let selecting = self.placement.selections.get(slot.rules);
        let reasons = Reasons::of(self.is_direct(id), selecting, self.rules);
        Some((self.placement.slots.whole(slot)?, reasons))
    }

    /// Returns why an object would be desired on the node; `None` if the index does not have it.
    #[must_use]
    pub fn reasons(&self, uid: &str) -> Option<Reasons> {
        let id = self.placement.slots.by_uid(uid)?;
        let slot = self.placement.slots.get(id)?;
        Some(Reasons::of(self.is_direct(id), self.placement.selections.get(slot.rules), self.rules))
    }

    /// Returns the rules that select the node, ascending.
    pub fn rules(&self) -> impl Iterator<Item = RuleId> + use<'a> {
        self.rules.iter().map(|number| RuleId::of(*number))
    }

    /// Returns whether a rule may select an object with this kind, namespace and name, whatever its
    /// labels. The plural of the kind is guessed.
    #[must_use]
    pub fn may_be_selected(&self, rule: RuleId, object: &ObjectRef) -> bool {
        let ObjectRef { api_version, kind, namespace, name } = object;
        let resource = kinds::guess(api_version, kind, !namespace.is_empty());
        let rule = self.placement.rules.get(rule.number());
        rule.is_some_and(|rule| rule.rule.objects.names(&resource, namespace, name))
    }

    /// Returns the number of objects desired for reasons other than rules.
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

    /// Returns the objects desired for reasons other than rules.
    pub(super) fn named(&self) -> impl Iterator<Item = &'a Slot> + use<'a> {
        let Self { placement, direct, .. } = *self;
        direct.into_iter().flatten().filter_map(|id| placement.slots.get(*id))
    }

    fn is_direct(&self, id: Id) -> bool {
        self.direct.is_some_and(|ids| ids.contains(&id))
    }
}
