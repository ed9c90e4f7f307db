//! Restricts a replica whose view of the desired state may be older than another replica's.
//!
//! Replicas share the desired state, but each receives changes in its own time. A node that arrives
//! from another replica may hold objects that this one has not received yet, and may lack objects
//! that this one still considers desired. Invariant: within a session, only replacing a held object
//! by a newer version happens at once. For everything else this replica first catches up: its view
//! must be at least as new as the store was at the time of the Hello, because no other replica can
//! have sent the node anything newer.
//!
//! Catching up does not cover unreadable objects, because another replica may have read them
//! longer. The node's version of such an object is never replaced by the last known one.

mod history;

use crate::change::Uid;
use crate::digest::{Epoch, Tally};
#[cfg(any(test, feature = "simulation"))]
use crate::fault::{Fault, planted};

use super::desired::{Desired, DesiredState};
use super::ledger::{Differences, Ledger, Records};
use history::ChangeHistory;

/// The lent desired state, compared with the state that other replicas may have sent to the node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// Possibly older than the state sent by other replicas.
    Unknown,
    /// Possibly older, with this request to catch up in flight.
    Requested(u64),
    /// At least as new as anything sent to the node before its Hello.
    Current,
}

#[derive(Debug)]
struct Shared {
    state: State,
    next_token: u64,
    /// The incarnation in the Hello, while its removals are not checked yet.
    incarnation: Option<String>,
    history: ChangeHistory,
}

/// The view of a replica; empty without other replicas.
#[derive(Debug)]
pub(super) struct View(Option<Box<Shared>>);

impl View {
    pub(super) fn new(records: &Records) -> Self {
        let (state, history) = (State::Unknown, ChangeHistory::default());
        let shared = || Box::new(Shared { state, next_token: 0, incarnation: None, history });
        Self(matches!(records, Records::Proven).then(shared))
    }

    /// Returns whether there may be other replicas.
    pub(super) fn is_shared(&self) -> bool {
        self.0.is_some()
    }

    /// Handles a change of the desired object of a UID; `before` is the previous one.
    pub(super) fn note_change(&mut self, uid: &Uid, before: Option<&Desired>) {
        if let Some(shared) = &mut self.0 {
            shared.history.note(uid, before.map(Desired::record));
        }
    }

    /// Reconstructs what a node with this digest holds; `None` if it matches no remembered state.
    pub(super) fn proven(
        &self,
        epoch: Epoch,
        held: Tally,
        desired: &impl DesiredState,
    ) -> Option<Differences> {
        self.0.as_ref()?.history.find(epoch, held, desired)
    }

    /// Ends the session: another replica may serve the node before the next one.
    pub(super) fn end_session(&mut self) {
        if let Some(shared) = &mut self.0 {
            (shared.state, shared.incarnation) = (State::Unknown, None);
        }
    }

    /// Defers the check of removals until this replica has caught up. `incarnation` is
    /// the one in the Hello.
    pub(super) fn defer_removals(&mut self, incarnation: Option<String>) {
        if let Some(shared) = &mut self.0 {
            shared.incarnation = incarnation;
        }
    }

    fn state(&self) -> State {
        self.0.as_ref().map_or(State::Current, |shared| shared.state)
    }

    /// Returns whether the lent desired state is at least as new as anything sent to the node
    /// before its Hello.
    pub(super) fn is_current(&self) -> bool {
        self.state() == State::Current
    }

    /// Returns whether this replica has to catch up first.
    pub(super) fn is_awaited(&self) -> bool {
        matches!(self.state(), State::Requested(_))
    }

    /// Begins a request to catch up and returns its token, if none is in flight.
    pub(super) fn request(&mut self) -> Option<u64> {
        let shared = self.0.as_mut().filter(|shared| shared.state == State::Unknown)?;
        let token = shared.next_token;
        (shared.state, shared.next_token) = (State::Requested(token), token + 1);
        Some(token)
    }

    /// Ends the request to catch up. Returns the incarnation in the Hello, for the check of
    /// removals; `None` if the request belongs to an earlier session.
    pub(super) fn catch_up(&mut self, token: u64) -> Option<Option<String>> {
        let shared = self.0.as_mut().filter(|shared| shared.state == State::Requested(token))?;
        shared.state = State::Current;
        Some(shared.incarnation.take())
    }

    /// Returns whether the action that a UID needs is right regardless of other replicas. If not,
    /// it waits until this replica has caught up, or can read the object.
    pub(super) fn permits(&self, uid: &Uid, ledger: &Ledger, desired: &impl DesiredState) -> bool {
        let both = (ledger.get(uid, desired), desired.get(uid));
        let is_right = matches!(&both, (Some(held), Some(new)) if held.version.is_older_than(&new.version));
        let is_unread = match &both {
            (held, Some(new)) if !is_right => {
                // Also an object that takes the name of an undesired one, whatever its version: it
                // may come from a life of the store after everything known here.
                let stays = match held {
                    Some(held) => !held.version.is_older_than(&new.version),
                    None => ledger.replaced_under(&new.object.key(), desired).is_some(),
                };
                stays && desired.is_unread(&new.object)
            }
            _ => false,
        };
        #[cfg(any(test, feature = "simulation"))]
        let is_unread = is_unread && !planted(Fault::UnreadIsKnown);
        if self.state() == State::Current && !is_unread {
            return true;
        }
        #[cfg(any(test, feature = "simulation"))]
        let is_right = is_right
            || planted(match both {
                (_, None) => Fault::DeleteUnasked,
                (Some(_), Some(_)) => Fault::RollBackUnasked,
                (None, Some(_)) => Fault::RestoreUnasked,
            });
        is_right
    }
}

#[cfg(test)]
mod tests;
