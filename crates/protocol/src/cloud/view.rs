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
use crate::timing::Now;
use edgesync_object::ResourceVersion;

use super::desired::{Desired, DesiredState};
use super::ledger::{Differences, Records};
use super::types::Record;
use super::{CloudEffect, CloudMachine};
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

    /// The token of a request to catch up, if none is under way.
    fn ask(&mut self) -> Option<u64> {
        let shared = self.0.as_mut().filter(|shared| shared.state == State::Unknown)?;
        let token = shared.next_token;
        (shared.state, shared.next_token) = (State::Asked(token), token + 1);
        Some(token)
    }
}

impl CloudMachine {
    /// Whether what is needed for a UID is right whatever other replicas have told the node. If not, it waits until this one
    /// has caught up.
    pub(super) fn may_act(&mut self, uid: &Uid, desired: &impl DesiredState) -> bool {
        let both = (self.ledger.get(uid, desired), desired.get(uid));
        let is_right = matches!(&both, (Some(held), Some(new)) if held.version.is_older_than(&new.version));
        let is_unread = match &both {
            (held, Some(new)) if !is_right => {
                // Also what has the name of an object that the node lacks, whatever its version: it may be of a life of the
                // store that came after all that is known here.
                let stays = match held {
                    Some(held) => !held.version.is_older_than(&new.version),
                    None => self.replaced_under(&new.object.key(), desired).is_some(),
                };
                stays && desired.is_unread(&new.object)
            }
            _ => false,
        };
        #[cfg(any(test, feature = "simulation"))]
        let is_unread = is_unread && !planted(Fault::UnreadIsKnown);
        if self.view.state() == State::Current && !is_unread {
            return true;
        }
        #[cfg(any(test, feature = "simulation"))]
        let is_right = is_right
            || planted(match both {
                (_, None) => Fault::DeleteUnasked,
                (Some(_), Some(_)) => Fault::RollBackUnasked,
                (None, Some(_)) => Fault::RestoreUnasked,
            });
        if is_right {
            return true;
        }
        // Its turn comes when this replica has caught up, or can read it.
        if let Some(trouble) = self.trouble.get_mut(uid) {
            trouble.retry_at = Now::MAX;
        }
        if let Some(token) = self.view.ask() {
            self.effects.push_back(CloudEffect::CatchUp { token });
        }
        false
    }

    /// What has waited until this replica has caught up waits no longer.
    pub(super) fn resume(&mut self, now: Now) {
        for trouble in self.trouble.values_mut().filter(|trouble| trouble.retry_at == Now::MAX) {
            trouble.retry_at = now;
        }
    }

    /// What is lent as desired is by now at least as new as the store was when [`CloudEffect::CatchUp`] was polled.
    /// `reached` is the newest version that the store is known to have given by now: nothing that was lent or loaded is
    /// newer. What the node holds beyond it was given in a life of the store that is lost.
    pub fn caught_up(
        &mut self,
        now: Now,
        token: u64,
        reached: &ResourceVersion,
        desired: &impl DesiredState,
    ) {
        let asked = self.view.0.as_mut().filter(|shared| shared.state == State::Asked(token));
        let Some(shared) = asked else { return }; // it is of an earlier session
        shared.state = State::Current;
        let named = shared.named.take();
        let is_lost = |record: &Record| reached.is_older_than(&record.version);
        if self.ledger.differences().filter_map(|(_, record)| record).any(is_lost) {
            self.doubt();
            self.tell_that_the_store_went_back();
        }
        self.guard_deletions(named.as_deref(), desired);
        self.resume(now);
        self.reconsider_all(now, desired);
        self.confirm();
        self.flush_records(desired);
    }
}

#[cfg(test)]
mod tests;
