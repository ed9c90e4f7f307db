//! State of a node that other replicas and operators publish in its Node, and state of the
//! ObjectSyncs that this replica writes.

use edgesync_placement::{FilesInEffect, NodeSync};

/// Published state of a node; see the module.
#[derive(Debug, Default)]
pub(crate) struct ReplicaState {
    /// Confirmation of an operator at any replica; empty without one.
    confirmed: Box<str>,
    /// Whether the objects under rules for files are in effect; `None` without such rules.
    in_effect: Option<FilesInEffect>,
    sync: NodeSync,
    /// Whether the node is queued for ObjectSyncs of its differences.
    is_queued: bool,
    has_syncs: bool,
}

impl ReplicaState {
    /// Adopts the state in the Node.
    pub(crate) fn observe(&mut self, confirmed: Box<str>, in_effect: Option<FilesInEffect>, sync: NodeSync) {
        self.confirmed = confirmed;
        self.in_effect = in_effect;
        self.sync = sync;
    }

    /// Returns the incarnation and the count that an operator has confirmed.
    pub(crate) fn confirmation(&self) -> Option<(&str, u64)> {
        let (incarnation, count) = self.confirmed.rsplit_once('/')?;
        Some((incarnation, count.parse().unwrap_or(0)))
    }

    /// Clears the confirmation. Returns whether there was one.
    pub(crate) fn end_confirmation(&mut self) -> bool {
        !std::mem::take(&mut self.confirmed).is_empty()
    }

    pub(crate) fn in_effect(&self) -> Option<FilesInEffect> {
        self.in_effect
    }

    /// Returns whether the Node names no object that is not in effect.
    pub(crate) fn is_all_in_effect(&self) -> bool {
        matches!(self.in_effect, None | Some(FilesInEffect::Yes))
    }

    pub(crate) fn sync(&self) -> NodeSync {
        self.sync
    }

    pub(crate) fn has_syncs(&self) -> bool {
        self.has_syncs
    }

    pub(crate) fn set_has_syncs(&mut self, has_syncs: bool) {
        self.has_syncs = has_syncs;
    }

    /// Marks the node as queued for ObjectSyncs. Returns whether it was not before.
    pub(crate) fn queue(&mut self) -> bool {
        !std::mem::replace(&mut self.is_queued, true)
    }

    /// Marks the node as not queued.
    pub(crate) fn unqueue(&mut self) {
        self.is_queued = false;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn confirmation_is_returned_until_it_is_ended() {
        let mut state = ReplicaState::default();
        assert!(state.confirmation().is_none() && !state.end_confirmation());
        for (text, read) in [("one/7", Some(("one", 7))), ("a/b/x", Some(("a/b", 0))), ("nonsense", None)] {
            state.observe(text.into(), None, NodeSync::Pending);
            assert_eq!(state.confirmation(), read);
        }
        assert!(state.end_confirmation() && !state.end_confirmation());
    }
}
