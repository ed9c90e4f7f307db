//! The times and reasons of the next rounds.

use edgesync_protocol::timing::{Now, earlier};

use crate::types::RoundReason;

/// A routine walk interrupted by the end of its session, or by another round.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct SuspendedWalk {
    pub(super) cursor: u64,
    pub(super) compared: u64,
    pub(super) differed: u64,
}

/// When the next round begins, unless one is running.
#[derive(Debug, Default)]
pub(super) struct Schedule {
    /// A routine walk that continues as soon as possible.
    suspended: Option<SuspendedWalk>,
    /// The reason of a round demanded before it is due.
    demanded: Option<RoundReason>,
    /// The time of the next comparison.
    next_at: Option<Now>,
    /// The time of the next relist of new rules whose lists have failed.
    relist_at: Option<Now>,
}

impl Schedule {
    /// Demands a round for this reason, now or with the next session.
    pub(super) fn demand(&mut self, reason: RoundReason) {
        self.demanded = Some(reason);
    }

    /// Returns the reason of a demanded round, once.
    pub(super) fn take_demanded(&mut self) -> Option<RoundReason> {
        self.demanded.take()
    }

    /// Sets the time of the next comparison, if one is known from an earlier run.
    pub(super) fn restore(&mut self, next_at: Option<Now>) {
        self.next_at = next_at;
    }

    /// Lets a routine round continue later at this position.
    pub(super) fn suspend(&mut self, walk: SuspendedWalk) {
        self.suspended = Some(walk);
    }

    /// Lets a routine round begin again, because it has not compared anything yet.
    pub(super) fn restart(&mut self) {
        self.next_at = Some(Now::ZERO);
    }

    /// Records the start of a round. Returns the walk that it continues.
    pub(super) fn started(&mut self, reason: RoundReason, next_at: Now) -> Option<SuspendedWalk> {
        if reason != RoundReason::Routine {
            self.relist_at = None;
        }
        if !reason.compares() {
            return None;
        }
        self.next_at = Some(next_at);
        self.suspended.take().filter(|_| reason == RoundReason::Routine)
    }

    /// Records the end of a round with a failed list, which is repeated at `again`.
    pub(super) fn failed(&mut self, reason: RoundReason, again: Now) {
        if reason.compares() {
            self.next_at = Some(again);
        } else {
            self.relist_at = Some(again);
        }
    }

    /// Records the end of a complete round; `next_at` counts if no comparison is scheduled. Returns
    /// whether none was: without it no comparison would ever be due, so the round counts as one.
    pub(super) fn completed(&mut self, next_at: Now) -> bool {
        let is_first = self.next_at.is_none();
        self.next_at.get_or_insert(next_at);
        is_first
    }

    /// Returns the time at which a routine round, or the rest of one, may begin.
    pub(super) fn routine_at(&self) -> Option<Now> {
        self.suspended.map(|_| Now::ZERO).or(self.next_at)
    }

    /// Returns the time of the next relist of new rules.
    pub(super) fn relist_at(&self) -> Option<Now> {
        self.relist_at
    }

    /// Returns the time at which a round may begin: only a demanded one while another one runs,
    /// and a relist if that may be suspended.
    pub(super) fn deadline(&self, is_idle: bool, is_suspendable: bool) -> Option<Now> {
        let routine = self.routine_at().filter(|_| is_idle);
        let relist = self.relist_at.filter(|_| is_suspendable);
        earlier(earlier(routine, relist), self.demanded.map(|_| Now::ZERO))
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn at(seconds: u64) -> Now {
        Now::ZERO + Duration::from_secs(seconds)
    }

    #[test]
    fn suspended_walk_continues_in_a_routine_round_only() {
        let walk = SuspendedWalk { cursor: 7, compared: 3, differed: 1 };
        for (reason, continues) in
            [(RoundReason::Routine, Some(walk)), (RoundReason::Lost, None), (RoundReason::Reconnect, None)]
        {
            let mut schedule = Schedule::default();
            schedule.suspend(walk);
            assert_eq!(schedule.routine_at(), Some(Now::ZERO));
            assert_eq!(schedule.started(reason, at(60)), continues, "{reason:?}");
            let is_dropped = reason.compares();
            assert_eq!(schedule.routine_at(), Some(if is_dropped { at(60) } else { Now::ZERO }));
        }
    }

    #[test]
    fn failed_round_is_repeated_in_its_own_way() {
        let mut schedule = Schedule::default();
        schedule.failed(RoundReason::Reconnect, at(10));
        assert_eq!((schedule.relist_at(), schedule.routine_at()), (Some(at(10)), None));
        schedule.failed(RoundReason::Routine, at(20));
        assert_eq!(schedule.routine_at(), Some(at(20)));
        schedule.started(RoundReason::Routine, at(60));
        assert_eq!(schedule.relist_at(), Some(at(10)), "a routine round lists no new rules");
        schedule.started(RoundReason::Rules, at(60));
        assert_eq!(schedule.relist_at(), None);
    }

    #[test]
    fn first_complete_round_schedules_the_comparison() {
        let mut schedule = Schedule::default();
        assert!(schedule.completed(at(60)));
        assert!(!schedule.completed(at(90)));
        assert_eq!(schedule.routine_at(), Some(at(60)));
    }

    #[test]
    fn only_a_demanded_round_interrupts_another_one() {
        let mut schedule = Schedule::default();
        schedule.restore(Some(at(5)));
        schedule.failed(RoundReason::Rules, at(9));
        assert_eq!(schedule.deadline(true, true), Some(at(5)));
        assert_eq!(schedule.deadline(false, true), Some(at(9)));
        assert_eq!(schedule.deadline(false, false), None);
        schedule.demand(RoundReason::Asked);
        assert_eq!(schedule.deadline(false, false), Some(Now::ZERO));
        assert_eq!(schedule.take_demanded(), Some(RoundReason::Asked));
        assert_eq!(schedule.deadline(false, false), None);
    }
}
