//! Queue of Events that wait for the store. When it is full, new Events replace the oldest. Pure.

use std::collections::VecDeque;

use super::correlate::EventState;

/// Maximum number of waiting Events.
pub(super) const MAX_PENDING: usize = 256;

/// A waiting Event, with the record about the run to write in the same transaction.
#[derive(Clone, Debug)]
pub(super) struct Item {
    pub(super) state: EventState,
    pub(super) run: Option<String>,
}

/// Events that wait for the store, in order; each once, in its latest state.
#[derive(Debug, Default)]
pub(super) struct Pending {
    items: VecDeque<Item>,
}

impl Pending {
    /// Adds an Event or updates its waiting state. Returns how many others were dropped for it.
    pub(super) fn add(&mut self, state: EventState, run: Option<String>) -> u64 {
        if let Some(item) = self.items.iter_mut().find(|item| item.state.id == state.id) {
            item.state = state;
            item.run = run.or(item.run.take());
            return 0;
        }
        self.items.push_back(Item { state, run });
        if self.items.len() <= MAX_PENDING {
            return 0;
        }
        // Records about the run must not be lost; there are at most two.
        let oldest = self.items.iter().position(|item| item.run.is_none());
        u64::from(oldest.and_then(|at| self.items.remove(at)).is_some())
    }

    /// Returns the first items.
    pub(super) fn first(&self, count: usize) -> impl Iterator<Item = &Item> {
        self.items.iter().take(count)
    }

    /// Removes the first items, which are written.
    pub(super) fn remove_first(&mut self, count: usize) {
        self.items.drain(..count.min(self.items.len()));
    }

    pub(super) fn len(&self) -> usize {
        self.items.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.items.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use jiff::Timestamp;

    use super::*;
    use crate::agent::events::Regarding;
    use crate::agent::events::correlate::{Occurrence, Stamp};
    use crate::agent::events::reason::EventReason;
    use crate::store::MonotonicTime;

    fn state(id: u128, count: u32) -> EventState {
        let stamp = Stamp { wall: Timestamp::UNIX_EPOCH, at: MonotonicTime::default() };
        let reason = EventReason::LimitHit;
        let occurrence = Occurrence { reason, regarding: Regarding::Node, note: Arc::from("n"), stamp };
        EventState { count, ..EventState::new(id, occurrence) }
    }

    fn ids(pending: &Pending) -> Vec<(u128, u32)> {
        pending.first(usize::MAX).map(|item| (item.state.id, item.state.count)).collect()
    }

    #[test]
    fn a_later_state_replaces_the_earlier_one_and_keeps_its_record() {
        let mut pending = Pending::default();
        pending.add(state(1, 1), Some("running".into()));
        pending.add(state(2, 1), None);
        pending.add(state(1, 5), None);
        assert_eq!(ids(&pending), [(1, 5), (2, 1)]);
        assert_eq!(pending.first(1).next().unwrap().run.as_deref(), Some("running"));
        pending.remove_first(1);
        assert_eq!(ids(&pending), [(2, 1)]);
    }

    #[test]
    fn the_newest_events_and_the_run_records_stay() {
        let mut pending = Pending::default();
        pending.add(state(0, 1), Some("running".into()));
        let gone: u64 = (1..1000).map(|id| pending.add(state(id, 1), None)).sum();
        assert_eq!((pending.len(), gone), (MAX_PENDING, 1000 - MAX_PENDING as u64));
        let ids = ids(&pending);
        assert_eq!(ids[0], (0, 1));
        assert_eq!(ids[1..], (1000 - 255..1000).map(|id| (id, 1)).collect::<Vec<_>>());
    }
}
