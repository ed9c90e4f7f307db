//! The hard budgets of a metered link: bytes on the line per day and per month. Pure: times are
//! parameters.
//!
//! Bytes are reserved before they may be used. The store has the used bytes with the reserved ones,
//! so that a killed agent forgets nothing: its next run counts the whole reservation as used.

use std::time::Duration;

use jiff::Timestamp;
use jiff::tz::TimeZone;

use super::{SECONDS_A_DAY, date};
use edgesync_admin::agent::BudgetStatus;
use edgesync_protocol::timing::Now;
use edgesync_transport::link;

/// Version mark of the persisted text.
const MARK: &str = "metered 1";
/// Bytes kept for announcing an absence and for what is on its way when the budget ends.
const RESERVE: u64 = 6 << 10;
/// Bytes of a new connection: TCP and TLS with certificates of both sides.
const CONNECTION: u64 = 8 << 10;
/// Bytes below which nothing of the outbox is sent. One frame may still end beyond the budget.
const OUTBOX: u64 = RESERVE + (10 << 10);
/// Bounds of a reservation. The least one has room for a frame of the largest object that is not
/// sent in parts; the most is what a killed agent counts too much.
const MIN_STEP: u64 = 40 << 10;
const MAX_STEP: u64 = 16 << 20;
/// A reservation while no object waits for a credit: a connection with a few reports.
const IDLE_STEP: u64 = 12 << 10;
/// A reservation is this part of the smaller budget, within its bounds.
const STEP_SHARE: u64 = 64;
/// The most that a frame with objects takes of a credit.
const LARGEST_FRAME: u64 = 16_384 + 512;
/// Estimate of the headers of IP and TCP: for each started segment and its acknowledgement.
const SEGMENT: u64 = 1400;
const SEGMENT_HEADERS: u64 = 104;
/// The running time after which a period ends although the clock shows a time before it.
const DAY: Duration = Duration::from_secs(86_400);
const MONTH: Duration = Duration::from_secs(31 * 86_400);

/// The limits of both periods, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(in crate::agent) struct Limits {
    pub(in crate::agent) day: Option<u64>,
    pub(in crate::agent) month: Option<u64>,
}

/// A day or a month.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Period {
    /// Days since 1970-01-01, or months since year 0.
    number: i64,
    used: u64,
    /// Its running time in earlier runs.
    ran: Duration,
    /// Running time of this run at its begin; zero if it began in an earlier run.
    since: Now,
}

impl Period {
    /// Begins the next period if the clock has reached it. A clock that was set back renews
    /// nothing, unless the agent has run for a whole period since, in one run or several.
    fn update(&mut self, number: i64, length: Duration, now: Now) -> bool {
        let is_next = number > self.number;
        let is_over = number < self.number && self.running(now) >= length;
        if is_next || is_over {
            *self = Self { number, used: 0, ran: Duration::ZERO, since: now };
        }
        is_next || is_over
    }

    /// Returns the running time since its begin.
    fn running(&self, now: Now) -> Duration {
        self.ran.saturating_add(now.saturating_sub(self.since))
    }
}

/// The use of the budgets.
#[derive(Debug)]
pub(in crate::agent) struct HardBudgets {
    limits: Limits,
    day: Period,
    month: Period,
    /// Running time at the last update.
    now: Now,
    /// The link's counters at the last update.
    read: [u64; 2],
    /// Bytes counted in this run.
    counted: u64,
    /// The value of `counted` up to which bytes are reserved.
    reserved: u64,
}

/// A reservation to store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::agent) struct Reservation {
    /// The text to store before the bytes may be used.
    pub(in crate::agent) text: String,
    /// The count up to which bytes are reserved then.
    upto: u64,
    periods: (i64, i64),
}

impl HardBudgets {
    /// Continues from a persisted text. An unreadable one counts as absent.
    pub(in crate::agent) fn new(limits: Limits, persisted: Option<&str>, now: Timestamp) -> Self {
        let period =
            |(number, used, ran)| Period { number, used, ran: Duration::from_secs(ran), since: Now::ZERO };
        let fresh = ((date(now), 0, 0), (month(now), 0, 0));
        let (day, month) = persisted.and_then(parse).unwrap_or(fresh);
        let mut budgets = Self {
            limits,
            day: period(day),
            month: period(month),
            now: Now::ZERO,
            read: [0; 2],
            counted: 0,
            reserved: 0,
        };
        budgets.update_periods(now, Now::ZERO);
        budgets
    }

    pub(in crate::agent) fn set_limits(&mut self, limits: Limits) {
        self.limits = limits;
    }

    /// Updates the link's counters: bytes of TCP since its start. They count if `is_metered`.
    /// Returns whether a period has begun.
    pub(in crate::agent) fn count(
        &mut self,
        link: &link::Traffic,
        is_metered: bool,
        wall: Timestamp,
        now: Now,
    ) -> bool {
        let has_begun = self.update_periods(wall, now);
        let counted = [link.bytes_out, link.bytes_in];
        for (read, counted) in self.read.iter_mut().zip(counted) {
            // A restarted link counts from zero.
            let bytes = counted.checked_sub(*read).unwrap_or(counted);
            *read = counted;
            if is_metered {
                let bytes = on_the_line(bytes);
                self.counted = self.counted.saturating_add(bytes);
                self.day.used = self.day.used.saturating_add(bytes);
                self.month.used = self.month.used.saturating_add(bytes);
            }
        }
        has_begun
    }

    fn update_periods(&mut self, wall: Timestamp, now: Now) -> bool {
        self.now = now;
        let day = self.day.update(date(wall), DAY, now);
        let month = self.month.update(month(wall), MONTH, now);
        if day || month {
            // The stored reservation is of an earlier period.
            self.reserved = self.counted;
        }
        day || month
    }

    /// Returns the bytes left in the smaller budget; `None` without a limit.
    fn left(&self) -> Option<u64> {
        let left = |limit: Option<u64>, period: &Period| limit.map(|limit| limit.saturating_sub(period.used));
        let (day, month) = (left(self.limits.day, &self.day), left(self.limits.month, &self.month));
        day.into_iter().chain(month).min()
    }

    /// Returns the reservation to store now, if there should be one. `is_wanted`: the cloud side
    /// waits for a credit.
    pub(in crate::agent) fn next_reservation(&self, is_wanted: bool) -> Option<Reservation> {
        let left = self.left()?;
        let limit = self.limits.day.into_iter().chain(self.limits.month).min()?;
        let step = match is_wanted {
            true => (limit / STEP_SHARE).clamp(MIN_STEP, MAX_STEP),
            false => IDLE_STEP,
        };
        let step = step.min(left);
        let reserved = self.reserved.saturating_sub(self.counted);
        let least = if is_wanted { step - step / 8 } else { step / 2 };
        (reserved < least).then(|| Reservation {
            text: self.text(step),
            upto: self.counted.saturating_add(step),
            periods: (self.day.number, self.month.number),
        })
    }

    /// Records that a reservation is stored.
    pub(in crate::agent) fn reserved(&mut self, reservation: &Reservation) {
        if reservation.periods == (self.day.number, self.month.number) {
            self.reserved = reservation.upto;
        }
    }

    /// Returns the bytes of frames with objects that the cloud side may send; `None` without a
    /// limit. A quarter of what is reserved is for acknowledgements and reports.
    pub(in crate::agent) fn credit(&self) -> Option<u64> {
        let left = self.left()?.min(self.reserved.saturating_sub(self.counted));
        Some(left.saturating_sub(RESERVE) / 4 * 3)
    }

    /// Returns whether a budget is spent, but for what the end of a connection needs; without a
    /// connection, also if none can be made.
    pub(in crate::agent) fn is_spent(&self, is_connected: bool) -> bool {
        let least = if is_connected { RESERVE } else { RESERVE + CONNECTION };
        self.left().is_some_and(|left| left < least)
    }

    /// Returns whether a frame of the node fits: so many bytes, beside those that are queued and
    /// those that the end of a connection needs.
    pub(in crate::agent) fn has_room(&self, bytes: u64) -> bool {
        self.left().is_none_or(|left| on_the_line(bytes).saturating_add(RESERVE) <= left)
    }

    /// Returns whether not one byte is left.
    pub(in crate::agent) fn has_nothing_left(&self) -> bool {
        self.left() == Some(0)
    }

    /// Returns whether the cloud side can get a credit for the largest frame.
    pub(in crate::agent) fn can_grant_frame(&self) -> bool {
        self.left().is_none_or(|left| left.saturating_sub(RESERVE) / 4 * 3 >= LARGEST_FRAME)
    }

    /// Returns whether the outbox has to wait.
    pub(in crate::agent) fn holds_outbox(&self) -> bool {
        self.left().is_some_and(|left| left < OUTBOX)
    }

    /// Returns the time until all spent budgets have renewed. With `is_exhausted`, the one with the
    /// least left counts as spent.
    pub(in crate::agent) fn renewal(&self, wall: Timestamp, now: Now, is_exhausted: bool) -> Duration {
        let least = self.left().filter(|_| is_exhausted).unwrap_or_default();
        let is_spent = |limit: Option<u64>, period: &Period| {
            limit.is_some_and(|limit| {
                let left = limit.saturating_sub(period.used);
                left <= least || left < RESERVE + CONNECTION
            })
        };
        let rest = |period: &Period, number: i64, next: i64, length: Duration| match number < period.number {
            true => length.saturating_sub(period.running(now)),
            false => Duration::from_secs(u64::try_from(next.saturating_sub(wall.as_second())).unwrap_or(0)),
        };
        let mut until = Duration::ZERO;
        if is_spent(self.limits.day, &self.day) {
            let next = (date(wall) + 1) * SECONDS_A_DAY;
            until = until.max(rest(&self.day, date(wall), next, DAY));
        }
        if is_spent(self.limits.month, &self.month) {
            until = until.max(rest(&self.month, month(wall), next_month(wall), MONTH));
        }
        until
    }

    /// Serializes the use without reservations, for an orderly end.
    pub(in crate::agent) fn keep(&self) -> String {
        self.text(0)
    }

    fn text(&self, reserved: u64) -> String {
        [&self.day, &self.month].iter().fold(MARK.to_owned(), |text, period| {
            let used = period.used.saturating_add(reserved);
            format!("{text} {} {used} {}", period.number, period.running(self.now).as_secs())
        })
    }

    /// Returns the budgets for the status: of the day and of the month.
    pub(in crate::agent) fn show(&self) -> [Option<BudgetStatus>; 2] {
        let show = |limit: Option<u64>, period: &Period| {
            limit.map(|limit| BudgetStatus { limit, used: period.used })
        };
        [show(self.limits.day, &self.day), show(self.limits.month, &self.month)]
    }
}

/// Adds an estimate of the headers of IP and TCP to the bytes of TCP.
fn on_the_line(bytes: u64) -> u64 {
    bytes.saturating_add(bytes.div_ceil(SEGMENT).saturating_mul(SEGMENT_HEADERS))
}

/// A period's number, its used bytes, and its running time in seconds.
type Stored = (i64, u64, u64);

/// Parses the output of [`HardBudgets::text`]: day and month.
fn parse(text: &str) -> Option<(Stored, Stored)> {
    let mut words = text.strip_prefix(MARK)?.strip_prefix(' ')?.split(' ');
    let mut stored =
        || Some((words.next()?.parse().ok()?, words.next()?.parse().ok()?, words.next()?.parse().ok()?));
    let read = (stored()?, stored()?);
    words.next().is_none().then_some(read)
}

/// Returns the month (UTC), counted from year 0.
fn month(wall: Timestamp) -> i64 {
    let date = wall.to_zoned(TimeZone::UTC).date();
    i64::from(date.year()) * 12 + i64::from(date.month()) - 1
}

/// Returns the begin of the next month, in Unix seconds.
fn next_month(wall: Timestamp) -> i64 {
    let first = wall.to_zoned(TimeZone::UTC).date().last_of_month().tomorrow();
    let midnight = first.and_then(|first| first.to_zoned(TimeZone::UTC));
    midnight.map_or(i64::MAX, |midnight| midnight.timestamp().as_second())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const KIB: u64 = 1 << 10;
    const HOUR: Duration = Duration::from_secs(3600);

    fn at(text: &str) -> Timestamp {
        text.parse().unwrap()
    }

    fn noon() -> Timestamp {
        at("2026-11-27T12:00:00Z")
    }

    fn daily(kib: u64) -> Limits {
        Limits { day: Some(kib * KIB), month: None }
    }

    fn traffic(bytes: u64) -> link::Traffic {
        link::Traffic { bytes_in: bytes, ..link::Traffic::default() }
    }

    /// Reserves as the agent does, with a store that works.
    fn reserve(budgets: &mut HardBudgets) -> Option<String> {
        let reservation = budgets.next_reservation(true)?;
        budgets.reserved(&reservation);
        Some(reservation.text)
    }

    #[test]
    fn credit_needs_a_reservation_and_leaves_a_reserve() {
        let mut budgets = HardBudgets::new(daily(200), None, noon());
        assert_eq!(budgets.credit(), Some(0));
        reserve(&mut budgets).unwrap();
        assert_eq!(budgets.credit(), Some((MIN_STEP - RESERVE) / 4 * 3));
        assert!(budgets.credit().unwrap() > 17 * KIB, "a frame fits");
        assert!(!budgets.count(&traffic(14_000), true, noon(), Now::ZERO));
        let used = 14_000 + 10 * SEGMENT_HEADERS;
        assert_eq!(budgets.credit(), Some((MIN_STEP - used - RESERVE) / 4 * 3));
        assert_eq!(budgets.show()[0], Some(BudgetStatus { limit: 200 * KIB, used }));
        budgets.set_limits(Limits::default());
        assert_eq!((budgets.credit(), budgets.is_spent(false)), (None, false));
    }

    #[test]
    fn killed_agent_counts_its_reservation_as_used() {
        let mut budgets = HardBudgets::new(daily(200), None, noon());
        let stored = reserve(&mut budgets).unwrap();
        budgets.count(&traffic(30_000), true, noon(), Now::ZERO);
        let next = HardBudgets::new(daily(200), Some(&stored), noon());
        assert_eq!(next.day.used, MIN_STEP);
        let next = HardBudgets::new(daily(200), Some(&budgets.keep()), noon());
        assert_eq!(next.day.used, budgets.day.used, "an orderly end counts nothing too much");
    }

    #[test]
    fn bytes_of_other_links_do_not_count() {
        let mut budgets = HardBudgets::new(daily(200), None, noon());
        budgets.count(&traffic(90_000), false, noon(), Now::ZERO);
        assert_eq!(budgets.day.used, 0);
        budgets.count(&traffic(90_001), true, noon(), Now::ZERO);
        assert_eq!(budgets.day.used, 1 + SEGMENT_HEADERS);
    }

    #[test]
    fn spent_budgets_renew_with_their_periods() {
        let limits = Limits { day: Some(100 * KIB), month: Some(150 * KIB) };
        let mut budgets = HardBudgets::new(limits, None, noon());
        budgets.count(&traffic(94 * KIB), true, noon(), Now::ZERO);
        assert!(budgets.is_spent(true) && budgets.holds_outbox());
        assert_eq!(budgets.renewal(noon(), Now::ZERO, false), 12 * HOUR);
        let next_day = at("2026-11-28T00:00:00Z");
        assert!(budgets.count(&traffic(94 * KIB), true, next_day, 12 * HOUR));
        assert!(!budgets.is_spent(false));
        budgets.count(&traffic(140 * KIB), true, next_day, 12 * HOUR);
        assert!(budgets.is_spent(true), "the month is spent");
        assert_eq!(budgets.renewal(next_day, 12 * HOUR, false), 72 * HOUR);
        assert!(budgets.count(&traffic(140 * KIB), true, at("2026-12-01T00:00:00Z"), 84 * HOUR));
        assert!(!budgets.is_spent(false));
    }

    #[test]
    fn clock_that_is_set_back_renews_nothing() {
        let mut budgets = HardBudgets::new(daily(100), None, noon());
        budgets.count(&traffic(99 * KIB), true, noon(), Now::ZERO);
        let stored = budgets.keep();
        for wall in ["2026-11-26T12:00:00Z", "1970-01-01T00:00:09Z", "2026-11-27T23:59:59Z"] {
            assert!(!budgets.count(&traffic(99 * KIB), true, at(wall), HOUR), "{wall}");
            assert!(budgets.is_spent(true));
            assert!(HardBudgets::new(daily(100), Some(&stored), at(wall)).is_spent(true));
        }
        // Its date may be wrong for good.
        assert_eq!(budgets.renewal(at("2026-11-26T12:00:00Z"), 2 * HOUR, false), 22 * HOUR);
        assert!(budgets.count(&traffic(99 * KIB), true, at("2026-11-26T13:00:00Z"), 24 * HOUR));
        assert!(!budgets.is_spent(true));
    }

    #[test]
    fn running_time_of_a_period_adds_up_over_runs() {
        let mut budgets = HardBudgets::new(daily(100), None, at("2036-02-07T06:28:16Z"));
        budgets.count(&traffic(99 * KIB), true, noon(), HOUR);
        for run in 1..24 {
            assert!(budgets.is_spent(true), "run {run}");
            budgets = HardBudgets::new(daily(100), Some(&budgets.keep()), noon());
            assert_eq!(budgets.renewal(noon(), Now::ZERO, false), (24 - run) * HOUR);
            budgets.count(&traffic(0), true, noon(), HOUR);
        }
        assert!(!budgets.is_spent(false));
        assert_eq!(budgets.day.number, date(noon()));
    }

    #[test]
    fn frame_of_the_node_fits_beside_the_reserve() {
        let mut budgets = HardBudgets::new(daily(100), None, noon());
        assert!(budgets.has_room(80 * KIB) && budgets.can_grant_frame());
        budgets.count(&traffic(72 * KIB), true, noon(), Now::ZERO);
        assert!(budgets.has_room(13 * KIB) && !budgets.has_room(16 * KIB));
        assert!(!budgets.can_grant_frame() && !budgets.is_spent(true));
        budgets.set_limits(Limits::default());
        assert!(budgets.has_room(1 << 40) && budgets.can_grant_frame());
    }

    #[test]
    fn reservation_is_small_until_objects_wait_for_a_credit() {
        let mut budgets = HardBudgets::new(daily(200), None, noon());
        let idle = budgets.next_reservation(false).unwrap();
        assert_eq!(idle.upto, IDLE_STEP);
        budgets.reserved(&idle);
        assert_eq!(budgets.next_reservation(false), None);
        assert_eq!(budgets.next_reservation(true).unwrap().upto, MIN_STEP);
    }

    #[test]
    fn new_period_needs_another_reservation() {
        let mut budgets = HardBudgets::new(daily(200), None, noon());
        let late = budgets.next_reservation(true).unwrap();
        reserve(&mut budgets).unwrap();
        budgets.count(&traffic(0), true, at("2026-11-28T00:00:00Z"), 12 * HOUR);
        assert_eq!(budgets.credit(), Some(0));
        budgets.reserved(&late);
        assert_eq!(budgets.credit(), Some(0), "it was stored for the day before");
        assert!(reserve(&mut budgets).is_some_and(|text| text.contains(&format!(" {MIN_STEP} "))));
    }

    #[test]
    fn other_texts_count_as_absent() {
        for text in [
            "",
            "metered 1",
            "metered 1 1 2 3 4",
            "metered 1 1 2 3 4 5 6 7",
            "metered 2 1 2 3 4 5 6",
            "metered 1 a 2 3 4 5 6",
        ] {
            assert_eq!(parse(text), None, "{text}");
        }
        assert_eq!(parse("metered 1 20784 5 60 24322 6 70"), Some(((20784, 5, 60), (24322, 6, 70))));
    }

    proptest! {
        /// Kills at any time forget nothing that was covered by a credit.
        #[test]
        fn stored_use_is_never_less_than_the_use(
            steps in prop::collection::vec((0u64..40, any::<bool>()), 1..60),
        ) {
            let mut budgets = HardBudgets::new(daily(400), None, noon());
            let (mut stored, mut sent, mut used) = (None::<String>, 0, 0);
            for (share, is_killed) in steps {
                if is_killed {
                    budgets = HardBudgets::new(daily(400), stored.as_deref(), noon());
                    sent = 0;
                }
                if let Some(text) = reserve(&mut budgets) {
                    stored = Some(text);
                }
                let bytes = budgets.credit().unwrap() * share / 40;
                sent += bytes;
                used += bytes;
                budgets.count(&traffic(sent), true, noon(), Now::ZERO);
                prop_assert!(budgets.day.used >= used, "{} of {used}", budgets.day.used);
                let kept = stored.as_deref().and_then(parse).map_or(0, |(day, _)| day.1);
                prop_assert!(kept >= used, "{kept} of {used}");
                prop_assert!(used <= 400 * KIB);
            }
        }
    }
}
