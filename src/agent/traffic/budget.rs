//! The daily budget of bytes. Pure.

/// Whether the day's budget is spent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::agent) enum BudgetState {
    /// Bytes are left, or there is no limit.
    Within,
    /// Nothing is left until the day ends.
    Spent,
}

/// A daily limit and its use.
///
/// Each change is returned once: a restart during a spent day starts as spent and returns no
/// change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::agent) struct Budget {
    limit: Option<u64>,
    used: u64,
    state: BudgetState,
}

impl Budget {
    /// Starts with today's use: see [`super::Meter::today`].
    pub(in crate::agent) fn new(limit: Option<u64>, used: u64) -> Self {
        Self { limit, used, state: state(limit, used) }
    }

    /// Updates today's use. Returns the state if it has changed.
    pub(in crate::agent) fn update(&mut self, used: u64) -> Option<BudgetState> {
        self.used = used;
        self.update_state()
    }

    /// Sets another limit, which applies at once. Returns the state if it has changed.
    pub(in crate::agent) fn set_limit(&mut self, limit: Option<u64>) -> Option<BudgetState> {
        self.limit = limit;
        self.update_state()
    }

    pub(in crate::agent) fn is_spent(&self) -> bool {
        self.state == BudgetState::Spent
    }

    /// Returns the bytes used today, as of the last update.
    pub(in crate::agent) fn used(&self) -> u64 {
        self.used
    }

    /// Returns the limit in bytes.
    pub(in crate::agent) fn limit(&self) -> Option<u64> {
        self.limit
    }

    fn update_state(&mut self) -> Option<BudgetState> {
        let state = state(self.limit, self.used);
        if state == self.state {
            return None;
        }
        self.state = state;
        Some(state)
    }
}

fn state(limit: Option<u64>, used: u64) -> BudgetState {
    if limit.is_some_and(|limit| used >= limit) { BudgetState::Spent } else { BudgetState::Within }
}

#[cfg(test)]
mod tests {
    use super::BudgetState::{Spent, Within};
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_budget_is_spent_once_and_renewed_the_next_day() {
        let mut budget = Budget::new(Some(100), 0);
        assert_eq!(budget.update(99), None);
        assert!(!budget.is_spent());
        assert_eq!(budget.update(100), Some(Spent));
        assert_eq!(budget.update(200), None);
        assert_eq!((budget.is_spent(), budget.used()), (true, 200));
        assert_eq!(budget.update(0), Some(Within));
        assert!(!budget.is_spent());
    }

    #[test]
    fn a_start_during_a_spent_day_is_no_change() {
        let mut budget = Budget::new(Some(100), 150);
        assert!(budget.is_spent());
        assert_eq!(budget.update(151), None);
    }

    #[test]
    fn a_new_limit_applies_at_once() {
        let mut budget = Budget::new(None, u64::MAX);
        assert!(!budget.is_spent());
        assert_eq!(budget.set_limit(Some(100)), Some(Spent));
        assert_eq!(budget.set_limit(Some(101)), None);
        assert_eq!(budget.set_limit(None), Some(Within));
        assert_eq!(budget.limit(), None);
    }

    proptest! {
        #[test]
        fn updates_return_exactly_the_changes(
            limit in prop::option::of(0u64..100),
            used in prop::collection::vec(0u64..200, 0..50),
        ) {
            let mut budget = Budget::new(limit, 0);
            let mut state = if budget.is_spent() { Spent } else { Within };
            for used in used {
                let returned = budget.update(used);
                let spent = limit.is_some_and(|limit| used >= limit);
                prop_assert_eq!(budget.is_spent(), spent);
                prop_assert_eq!(returned, (spent != (state == Spent)).then_some(if spent { Spent } else { Within }));
                state = returned.unwrap_or(state);
            }
        }
    }
}
