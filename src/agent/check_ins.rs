//! Decides when the node connects and disconnects by its plan. Pure: times are parameters.
//!
//! A node with a plan connects, comes into sync, empties its outbox, announces when it will return,
//! and disconnects. It starts connected, and keeps trying to connect when a check-in fails.

use std::time::Duration;

use jiff::Timestamp;

use edgesync_config::ConnectPlan;
use edgesync_protocol::renewal::{CheckIn, CheckInReason};
use edgesync_protocol::timing::Now;

/// Time without work before the node disconnects: longer than two checks of the device, so that its
/// reports are sent.
const QUIET: Duration = Duration::from_secs(3);
/// Time over which the nodes of a fleet connect after their budgets have renewed.
const RENEWAL_SPREAD: u64 = 600;
/// Shortest time between the end of a check-in and the next one; a quarter of the interval at most.
const MIN_REST: u64 = 60;
const DAY: u64 = 86_400;
const MINUTE: u64 = 60;

/// The plan of the node, and where it is in it.
#[derive(Debug)]
pub(super) struct CheckIns {
    plan: ConnectPlan,
    /// Spreads the check-ins of many nodes: a digest of the name.
    phase: u64,
    /// Time that a connection may take.
    connect_timeout: Duration,
    state: State,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// Connected, or trying to.
    Online {
        /// Time since which there is nothing left to do.
        quiet_since: Option<Now>,
    },
    /// Disconnected until this time, or about to be.
    Away {
        until: Now,
        /// Whether the cause is a spent budget.
        is_spent: bool,
    },
}

/// What the plan depends on.
#[derive(Clone, Copy, Debug)]
pub(super) struct Activity {
    /// Whether the node is in sync, and nothing waits to be sent or acknowledged.
    pub(super) is_quiet: bool,
    /// End of the time for which the cloud side asks the node to stay.
    pub(super) stay_until: Option<Now>,
    /// Time until the budget of the link has renewed, if it is spent.
    pub(super) spent_for: Option<Duration>,
    /// Whether class or limits of the link have changed since the last call.
    pub(super) has_other_link: bool,
}

/// What the owner of the link has to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Step {
    Nothing,
    /// Announce this absence, and disconnect.
    Leave(CheckIn),
    Connect,
}

impl CheckIns {
    pub(super) fn new(plan: ConnectPlan, node: &str, connect_timeout: Duration) -> Self {
        Self { plan, phase: digest(node), connect_timeout, state: State::Online { quiet_since: None } }
    }

    pub(super) fn plan(&self) -> ConnectPlan {
        self.plan
    }

    /// Changes the plan. A node that is away keeps the time that it has announced, unless it is to
    /// be connected always.
    pub(super) fn set_plan(&mut self, plan: ConnectPlan) {
        self.plan = plan;
    }

    /// Returns the time of the next check-in of a node that is away.
    pub(super) fn until(&self) -> Option<Now> {
        match self.state {
            State::Away { until, .. } => Some(until),
            State::Online { .. } => None,
        }
    }

    /// Returns whether the node is away because a budget is spent.
    pub(super) fn is_spent(&self) -> bool {
        matches!(self.state, State::Away { is_spent: true, .. })
    }

    /// Ends an absence before its time. Returns whether there was one.
    pub(super) fn connect_now(&mut self) -> bool {
        let was_away = self.until().is_some();
        self.state = State::Online { quiet_since: None };
        was_away
    }

    /// Repeats the last connection step with the next call of [`CheckIns::tick`].
    pub(super) fn retry(&mut self) {
        self.state = State::Away { until: Now::ZERO, is_spent: false };
    }

    /// Decides the next step. Call it about once a second; `wall` is the time of the clock.
    pub(super) fn tick(&mut self, now: Now, wall: Timestamp, activity: Activity) -> Step {
        if let Some(rest) = activity.spent_for {
            return self.wait_for_budget(now, rest);
        }
        if let State::Away { until, is_spent: true } = self.state {
            // The budget has renewed, perhaps earlier than the clock promised; or it is another
            // one.
            let spread = if activity.has_other_link { Duration::ZERO } else { self.spread() };
            self.state = State::Away { until: until.min(now + spread), is_spent: true };
        }
        let quiet_since = match self.state {
            State::Away { until, is_spent }
                if now < until && (is_spent || self.plan != ConnectPlan::Always) =>
            {
                return Step::Nothing;
            }
            State::Away { .. } => {
                self.state = State::Online { quiet_since: None };
                return Step::Connect;
            }
            State::Online { quiet_since } => quiet_since,
        };
        let may_leave = activity.is_quiet && activity.stay_until.is_none_or(|until| until <= now);
        let since = may_leave.then(|| quiet_since.unwrap_or(now));
        self.state = State::Online { quiet_since: since };
        if since.is_none_or(|since| now < since + QUIET) {
            return Step::Nothing;
        }
        let Some((rest, reason)) = self.rest(wall) else { return Step::Nothing };
        self.state = State::Away { until: now + rest, is_spent: false };
        let within = u32::try_from((rest + self.connect_timeout).as_secs()).unwrap_or(u32::MAX);
        Step::Leave(CheckIn { within, reason })
    }

    /// Leaves, or stays away, until the budget has renewed, regardless of unsent items and of
    /// requests to connect.
    fn wait_for_budget(&mut self, now: Now, rest: Duration) -> Step {
        let rest = rest + self.spread();
        match self.state {
            State::Away { until, is_spent: true } if now < until => Step::Nothing,
            State::Away { .. } => {
                self.state = State::Away { until: now + rest, is_spent: true };
                Step::Nothing
            }
            State::Online { .. } => {
                self.state = State::Away { until: now + rest, is_spent: true };
                let within = u32::try_from((rest + self.connect_timeout).as_secs()).unwrap_or(u32::MAX);
                Step::Leave(CheckIn { within, reason: CheckInReason::Budget })
            }
        }
    }

    /// Returns the time by which this node connects after the renewal of its budget.
    fn spread(&self) -> Duration {
        Duration::from_secs(self.phase % RENEWAL_SPREAD)
    }

    /// Returns the time until the next check-in; `None` without a plan. It follows the wall clock,
    /// so that nodes keep their phases over restarts; a wrong clock changes the phase only.
    fn rest(&self, wall: Timestamp) -> Option<(Duration, CheckInReason)> {
        let second = u64::try_from(wall.as_second()).unwrap_or(0);
        let (period, at, reason) = match self.plan {
            ConnectPlan::Always => return None,
            ConnectPlan::Every(interval) => {
                let interval = interval.as_secs().max(1);
                (interval, self.phase % interval, CheckInReason::Interval)
            }
            ConnectPlan::Daily { from, to } => {
                let (from, to) = (u64::from(from) * MINUTE, u64::from(to) * MINUTE);
                let length = if to > from { to - from } else { to + DAY - from };
                (DAY, (from + self.phase % length.max(1)) % DAY, CheckInReason::Window)
            }
        };
        let rest = (at + period - second % period) % period;
        let rest = if rest < MIN_REST.min(period / 4) { rest + period } else { rest };
        Some((Duration::from_secs(rest), reason))
    }
}

/// Returns a digest of a name (FNV-1a).
fn digest(name: &str) -> u64 {
    name.bytes().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const HOUR: Duration = Duration::from_secs(3600);
    const QUIET_NODE: Activity =
        Activity { is_quiet: true, stay_until: None, spent_for: None, has_other_link: false };
    const BUSY_NODE: Activity = Activity { is_quiet: false, ..QUIET_NODE };

    fn wall(second: u64) -> Timestamp {
        Timestamp::from_second(1_795_219_200 + i64::try_from(second).unwrap()).unwrap()
    }

    fn seconds(seconds: u64) -> Now {
        Duration::from_secs(seconds)
    }

    fn check_ins(plan: ConnectPlan) -> CheckIns {
        CheckIns::new(plan, "edge-1", Duration::from_secs(10))
    }

    /// Ticks each second until something is due; returns that and when.
    fn next(check_ins: &mut CheckIns, now: &mut u64, activity: Activity) -> Step {
        for _ in 0..200_000 {
            let step = check_ins.tick(seconds(*now), wall(*now), activity);
            if step != Step::Nothing {
                return step;
            }
            *now += 1;
        }
        Step::Nothing
    }

    #[test]
    fn node_without_a_plan_never_leaves() {
        let mut now = 0;
        assert_eq!(next(&mut check_ins(ConnectPlan::Always), &mut now, QUIET_NODE), Step::Nothing);
    }

    #[test]
    fn node_leaves_once_it_is_quiet_and_returns_in_time() {
        let mut check_ins = check_ins(ConnectPlan::Every(6 * HOUR));
        let mut now = 0;
        assert_eq!(check_ins.tick(seconds(0), wall(0), QUIET_NODE), Step::Nothing);
        assert_eq!(check_ins.tick(seconds(2), wall(2), BUSY_NODE), Step::Nothing);
        assert_eq!(check_ins.tick(seconds(4), wall(4), QUIET_NODE), Step::Nothing, "it was busy");
        now += 5;
        for _ in 0..5 {
            let Step::Leave(plan) = next(&mut check_ins, &mut now, QUIET_NODE) else { panic!() };
            let (left, until) = (now, check_ins.until().unwrap().as_secs());
            assert_eq!((plan.reason, u64::from(plan.within)), (CheckInReason::Interval, until - left + 10));
            assert!(until - left <= 6 * 3600 + 60, "{}", until - left);
            assert_eq!(next(&mut check_ins, &mut now, BUSY_NODE), Step::Connect);
            assert_eq!(now, until);
            now += 20;
        }
    }

    #[test]
    fn interval_keeps_the_phase_of_the_name_whatever_a_check_in_lasts() {
        let mut now = 1000;
        let mut check_ins = check_ins(ConnectPlan::Every(6 * HOUR));
        let mut phases = Vec::new();
        for lasts in [5, 500, 3000] {
            assert!(matches!(next(&mut check_ins, &mut now, QUIET_NODE), Step::Leave(_)));
            assert_eq!(next(&mut check_ins, &mut now, BUSY_NODE), Step::Connect);
            phases.push(wall(now).as_second() % (6 * 3600));
            now += lasts;
        }
        assert!(phases.windows(2).all(|two| two[0] == two[1]), "{phases:?}");
    }

    #[test]
    fn names_spread_over_the_interval() {
        let mut slots = [0; 10];
        for number in 0..1000 {
            let node = CheckIns::new(ConnectPlan::Every(HOUR), &format!("edge-{number}"), Duration::ZERO);
            let (rest, _) = node.rest(wall(0)).unwrap();
            slots[usize::try_from(rest.as_secs() % 3600 / 360).unwrap()] += 1;
        }
        assert!(slots.iter().all(|count| (50..200).contains(count)), "{slots:?}");
    }

    #[test]
    fn window_is_met_each_day_also_over_midnight() {
        for (from, to) in [(2 * 60, 4 * 60), (23 * 60, 60)] {
            let mut check_ins = check_ins(ConnectPlan::Daily { from, to });
            let mut now = 12 * 3600;
            for _ in 0..3 {
                let Step::Leave(plan) = next(&mut check_ins, &mut now, QUIET_NODE) else { panic!() };
                assert_eq!(plan.reason, CheckInReason::Window);
                assert_eq!(next(&mut check_ins, &mut now, BUSY_NODE), Step::Connect);
                let minute = u16::try_from(wall(now).as_second() % 86_400 / 60).unwrap();
                let is_within =
                    if from < to { (from..to).contains(&minute) } else { minute >= from || minute < to };
                assert!(is_within, "{minute}");
                now += 20;
            }
        }
    }

    #[test]
    fn request_to_stay_keeps_the_node_until_its_end() {
        let mut check_ins = check_ins(ConnectPlan::Every(HOUR));
        let asked = Activity { stay_until: Some(seconds(3600)), ..QUIET_NODE };
        let mut now = 0;
        assert!(matches!(next(&mut check_ins, &mut now, asked), Step::Leave(_)));
        assert_eq!(now, 3603);
    }

    #[test]
    fn spent_budget_ends_the_connection_at_once_until_it_renews() {
        for plan in [ConnectPlan::Always, ConnectPlan::Every(HOUR)] {
            let mut check_ins = check_ins(plan);
            let spent = |rest: u64| Activity {
                is_quiet: false,
                stay_until: Some(seconds(9 * 3600)),
                spent_for: Some(seconds(rest)),
                has_other_link: false,
            };
            let Step::Leave(absence) = check_ins.tick(seconds(0), wall(0), spent(7200)) else { panic!() };
            let until = check_ins.until().unwrap().as_secs();
            assert!((7200..7200 + RENEWAL_SPREAD).contains(&until), "{until}");
            assert_eq!((absence.reason, u64::from(absence.within)), (CheckInReason::Budget, until + 10));
            assert!(check_ins.is_spent());
            assert_eq!(check_ins.tick(seconds(3600), wall(3600), spent(3600)), Step::Nothing);
            assert_eq!(check_ins.tick(seconds(until - 1), wall(until - 1), BUSY_NODE), Step::Nothing);
            assert_eq!(check_ins.tick(seconds(until), wall(until), BUSY_NODE), Step::Connect);
            assert!(!check_ins.is_spent());
        }
    }

    /// A device without a clock boots in 1970: the budget seems to renew after a whole period.
    #[test]
    fn budget_that_renews_early_ends_the_absence_with_its_spread() {
        for (has_other_link, spread) in
            [(false, seconds(digest("edge-1") % RENEWAL_SPREAD)), (true, seconds(0))]
        {
            let mut check_ins = check_ins(ConnectPlan::Always);
            let spent = Activity { spent_for: Some(24 * HOUR), has_other_link: true, ..BUSY_NODE };
            assert!(matches!(check_ins.tick(seconds(0), Timestamp::UNIX_EPOCH, spent), Step::Leave(_)));
            assert_eq!(check_ins.tick(seconds(9), wall(9), spent), Step::Nothing);
            let renewed = Activity { has_other_link, ..BUSY_NODE };
            let first = check_ins.tick(seconds(10), wall(10), renewed);
            if has_other_link {
                assert_eq!(first, Step::Connect);
                continue;
            }
            assert_eq!(first, Step::Nothing);
            let until = seconds(10) + spread;
            assert_eq!(check_ins.tick(until - seconds(1), wall(11), BUSY_NODE), Step::Nothing);
            assert_eq!(check_ins.tick(until, wall(12), BUSY_NODE), Step::Connect);
        }
    }

    #[test]
    fn budget_that_is_spent_during_an_absence_prolongs_it() {
        let mut check_ins = check_ins(ConnectPlan::Every(HOUR));
        let mut now = 0;
        assert!(matches!(next(&mut check_ins, &mut now, QUIET_NODE), Step::Leave(_)));
        let spent = Activity { spent_for: Some(6 * HOUR), ..QUIET_NODE };
        assert_eq!(check_ins.tick(seconds(now), wall(now), spent), Step::Nothing);
        assert!(check_ins.until().unwrap() >= seconds(now) + 6 * HOUR);
    }

    #[test]
    fn sync_and_the_end_of_the_plan_connect_at_once() {
        let mut check_ins = check_ins(ConnectPlan::Every(6 * HOUR));
        let mut now = 0;
        assert!(!check_ins.connect_now(), "it is connected");
        next(&mut check_ins, &mut now, QUIET_NODE);
        assert!(check_ins.connect_now());
        assert_eq!(check_ins.until(), None);
        assert!(matches!(next(&mut check_ins, &mut now, QUIET_NODE), Step::Leave(_)));
        check_ins.set_plan(ConnectPlan::Always);
        assert_eq!(check_ins.tick(seconds(now + 1), wall(now + 1), BUSY_NODE), Step::Connect);
    }

    #[test]
    fn jump_of_the_wall_clock_does_not_prolong_an_absence() {
        let mut check_ins = check_ins(ConnectPlan::Every(6 * HOUR));
        let mut now = 0;
        next(&mut check_ins, &mut now, QUIET_NODE);
        let until = check_ins.until().unwrap();
        assert_eq!(check_ins.tick(until - seconds(1), Timestamp::UNIX_EPOCH, BUSY_NODE), Step::Nothing);
        assert_eq!(check_ins.tick(until, Timestamp::UNIX_EPOCH, BUSY_NODE), Step::Connect);
    }

    proptest! {
        #[test]
        fn next_check_in_is_within_a_period_and_a_minute(
            second in -10i64..4_000_000_000,
            interval in 10u64..700_000,
            from in 0u16..1440,
            to in 0u16..1440,
        ) {
            let wall = Timestamp::from_second(second).unwrap();
            for (plan, period) in [
                (ConnectPlan::Every(Duration::from_secs(interval)), interval),
                (ConnectPlan::Daily { from, to }, DAY),
            ] {
                let (rest, _) = check_ins(plan).rest(wall).unwrap();
                let shortest = MIN_REST.min(period / 4);
                prop_assert!((shortest..period + shortest).contains(&rest.as_secs()), "{rest:?} of {period}");
            }
        }
    }
}
