//! What a replica may do although others may know more than it does.
//!
//! Replicas share what the nodes are to hold, but each hears of changes in its own time. A node that comes from another
//! replica may hold what this one has not heard of yet, and may no longer hold what this one takes for wanted. So within a
//! session only one thing is done at once: an object that the node holds is replaced by a newer version. For all else this
//! replica first catches up: what it knows must be at least as new as the store was when the node said Hello. No other
//! replica can have told the node more than that. That says nothing of what cannot be read: another replica may have read it
//! for longer. So nothing of it goes back to what is known here.

mod past;

use crate::change::Uid;
use crate::digest::{Epoch, Tally};
#[cfg(any(test, feature = "simulation"))]
use crate::fault::{Fault, planted};

use super::desired::{Desired, DesiredState};
use super::ledger::{Differences, Ledger, Records};
use past::Past;

/// What is lent as desired, compared with what other replicas may have told the node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// Perhaps older.
    Unknown,
    /// The same, and this request to catch up is under way.
    Asked(u64),
    /// At least as new as anything that the node was told before its Hello.
    Current,
}

#[derive(Debug)]
struct Shared {
    state: State,
    next_token: u64,
    /// The incarnation that the Hello names, if the removals that it calls for are still to be judged.
    named: Option<String>,
    past: Past,
}

/// See the module. Empty where there are no other replicas.
#[derive(Debug)]
pub(super) struct View(Option<Box<Shared>>);

impl View {
    pub(super) fn new(records: &Records) -> Self {
        let (state, past) = (State::Unknown, Past::default());
        let shared = || Box::new(Shared { state, next_token: 0, named: None, past });
        Self(matches!(records, Records::Proven).then(shared))
    }

    /// Whether there may be other replicas.
    pub(super) fn is_shared(&self) -> bool {
        self.0.is_some()
    }

    /// What the node is to hold of a UID has changed: until now it was `before`.
    pub(super) fn note_change(&mut self, uid: &Uid, before: Option<&Desired>) {
        if let Some(shared) = &mut self.0 {
            shared.past.note(uid, before.map(Desired::record));
        }
    }

    /// What a node that holds this holds of the UIDs that have changed since it was in sync, if it lately was.
    pub(super) fn proven(
        &self,
        epoch: Epoch,
        held: Tally,
        desired: &impl DesiredState,
    ) -> Option<Differences> {
        self.0.as_ref()?.past.find(epoch, held, desired)
    }

    /// A session is over: another replica may serve the node before the next one.
    pub(super) fn end_session(&mut self) {
        if let Some(shared) = &mut self.0 {
            (shared.state, shared.named) = (State::Unknown, None);
        }
    }

    /// The removals that a Hello calls for are judged once this replica has caught up. It names this incarnation.
    pub(super) fn judge_later(&mut self, named: Option<String>) {
        if let Some(shared) = &mut self.0 {
            shared.named = named;
        }
    }

    fn state(&self) -> State {
        self.0.as_ref().map_or(State::Current, |shared| shared.state)
    }

    /// Whether something waits until this replica has caught up.
    pub(super) fn is_awaited(&self) -> bool {
        matches!(self.state(), State::Asked(_))
    }

    /// Returns the token of a request to catch up, if none is under way.
    pub(super) fn ask(&mut self) -> Option<u64> {
        let shared = self.0.as_mut().filter(|shared| shared.state == State::Unknown)?;
        let token = shared.next_token;
        (shared.state, shared.next_token) = (State::Asked(token), token + 1);
        Some(token)
    }

    /// Ends the request to catch up. Returns the incarnation that the Hello named, for the removals that it calls for; none
    /// if the request is of an earlier session.
    pub(super) fn catch_up(&mut self, token: u64) -> Option<Option<String>> {
        let shared = self.0.as_mut().filter(|shared| shared.state == State::Asked(token))?;
        shared.state = State::Current;
        Some(shared.named.take())
    }

    /// Returns whether what is needed for a UID is right whatever other replicas have told the node. If not, it waits until
    /// this replica has caught up, or can read the object.
    pub(super) fn permits(&self, uid: &Uid, ledger: &Ledger, desired: &impl DesiredState) -> bool {
        let both = (ledger.get(uid, desired), desired.get(uid));
        let is_right = matches!(&both, (Some(held), Some(new)) if held.version.is_older_than(&new.version));
        let is_unread = match &both {
            (held, Some(new)) if !is_right => {
                // Also what has the name of an object that the node lacks, whatever its version: it may be of a life of the
                // store that came after all that is known here.
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
