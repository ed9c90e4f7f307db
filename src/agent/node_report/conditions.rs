//! The conditions that only the node can determine. The caller sets their transition times.

use std::path::Path;

use jiff::Timestamp;

use super::{LOW_DISK_BYTES, Space};
use crate::store::{Health, Writing};
use edgesync_admin::agent::BudgetStatus;
use edgesync_join::renewal::Validity;
use edgesync_object::time::rfc3339;
use edgesync_protocol::node::{Condition, NodeReason};

/// Maximum bytes of a message.
const MAX_MESSAGE: usize = 512;

/// Returns the condition of the store: whether it accepts changes.
pub(in crate::agent) fn store_condition(health: &Health) -> Condition {
    let (reason, message) = match (&health.writing, &health.reset) {
        (Writing::Full, _) => {
            (NodeReason::StoreFull, "database or its disk is full; reads continue".to_owned())
        }
        (Writing::Fails { reason }, _) => {
            (NodeReason::StoreFailing, format!("database not writable, reads continue: {reason}"))
        }
        (Writing::Works, Some(reset)) => {
            let message = format!("database writable; objects lost and resent: {}", reset.cause);
            (NodeReason::StoreSalvaged, message)
        }
        (Writing::Works, None) => (NodeReason::StoreWorks, "database writable".to_owned()),
    };
    condition(reason, message)
}

/// Returns whether the database's disk, or the database within its limit, is almost full: less than
/// a tenth is free, and less than [`LOW_DISK_BYTES`]. `before` is the previous condition. For
/// hysteresis the pressure ends only with a quarter more free space. `database_bytes` is in use,
/// without free pages.
pub(in crate::agent) fn disk_condition(
    database: &Path,
    database_bytes: u64,
    max_bytes: u64,
    before: Option<&Condition>,
) -> Condition {
    let within = Space { total: max_bytes, free: max_bytes.saturating_sub(database_bytes) };
    space_condition(Space::of(database), within, before)
}

/// Returns whether the day's budget of bytes is spent. The message gives the use in quarters, and
/// beyond the budget in multiples, so that it does not change with each message sent.
pub(in crate::agent) fn traffic_condition(spent: bool, used: u64, budget: Option<u64>) -> Condition {
    let Some(budget) = budget else {
        return condition(NodeReason::NoBudget, "no budget configured".to_owned());
    };
    let total = size(budget);
    if !spent {
        let quarters = u128::from(used) * 4 / u128::from(budget.max(1));
        let share = ["less than a quarter", "a quarter", "half", "three quarters"][quarters.min(3) as usize];
        let message = format!("{share} of the daily budget of {total} (UTC) used");
        return condition(NodeReason::WithinBudget, message);
    }
    let mut message =
        format!("daily budget of {total} (UTC) spent; Leases and Events of programs are throttled");
    let times = used.checked_div(budget).unwrap_or_default();
    if times > 1 {
        message.push_str(&format!("; {times} times the budget used"));
    }
    condition(NodeReason::BudgetSpent, message)
}

/// Returns the condition while a hard budget of a metered link is spent. The message names the
/// limits, and no use that changes.
pub(in crate::agent) fn metered_condition(
    day: Option<BudgetStatus>,
    month: Option<BudgetStatus>,
) -> Condition {
    let limit = |budget: Option<BudgetStatus>, of: &str| {
        budget.map(|budget| format!("{} a {of}", size(budget.limit)))
    };
    let limits: Vec<String> = limit(day, "day").into_iter().chain(limit(month, "month")).collect();
    let message =
        format!("budget of the metered link spent ({}, UTC); away until it renews", limits.join(", "));
    condition(NodeReason::BudgetSpent, message)
}

/// Returns whether the certificate is valid. The message names its end, which changes only with a
/// renewal.
pub(in crate::agent) fn certificate_condition(validity: Validity, until: Timestamp) -> Condition {
    let until = rfc3339(until);
    let (reason, message) = match validity {
        Validity::Good => (NodeReason::Valid, format!("valid until {until}")),
        Validity::Tight => (NodeReason::ExpiresSoon, format!("expires at {until}, renewal failing")),
        Validity::Expired => (NodeReason::Expired, format!("expired at {until}, renewal failing")),
        Validity::Unknown => {
            (NodeReason::ClockNotSet, format!("valid until {until}, clock of the node not set"))
        }
    };
    condition(reason, message)
}

fn space_condition(disk: Option<Space>, within: Space, before: Option<&Condition>) -> Condition {
    let was = |reason: NodeReason| before.is_some_and(|before| before.reason == reason.fields().reason);
    let (reason, message) = if disk.is_some_and(|disk| disk.is_low(was(NodeReason::DiskAlmostFull))) {
        let least = size(disk.map_or(0, Space::minimum_free));
        (NodeReason::DiskAlmostFull, format!("less than {least} free on the database's disk"))
    } else if within.is_low(was(NodeReason::DatabaseAlmostFull)) {
        let (least, total) = (size(within.minimum_free()), size(within.total));
        (NodeReason::DatabaseAlmostFull, format!("database has less than {least} of {total} left"))
    } else if let Some(disk) = disk {
        (NodeReason::SufficientDisk, sufficient_message(disk, within, before))
    } else {
        (NodeReason::FreeSpaceUnknown, "free space of the database's disk unknown".to_owned())
    };
    condition(reason, message)
}

/// Formats bounds of the free and used space: a power of two and a quarter of the limit. Keeps the
/// previous message while its bounds hold and are at most one step too wide, so that it rarely
/// changes.
fn sufficient_message(disk: Space, within: Space, before: Option<&Condition>) -> String {
    let (minimum, total) = (size(disk.minimum_free()), size(within.total));
    let free = disk.free.checked_ilog2().map_or(0, |power| 1_u64 << power);
    let limit = u128::from(within.total);
    let used = limit.saturating_sub(u128::from(within.free));
    let quarters = (used * 4 / limit.max(1) + 1).min(4);
    let message = |free: u64, quarters: u128| {
        let (free, used) = (size(free), size((limit * quarters / 4) as u64));
        format!(
            "at least {free} free on the database's disk (minimum {minimum}); database uses at most {used} of {total}"
        )
    };
    let wider = (quarters + 1).min(4);
    let kept = [(free, wider), (free / 2, quarters), (free / 2, wider)];
    let mut kept = kept.into_iter().map(|(free, quarters)| message(free, quarters));
    let kept = kept.find(|kept| before.is_some_and(|before| before.message == *kept));
    kept.unwrap_or_else(|| message(free, quarters))
}

impl Space {
    /// Returns the minimum of free space.
    fn minimum_free(self) -> u64 {
        (self.total / 10).min(LOW_DISK_BYTES)
    }

    /// Returns whether free space is below the minimum; after a low state, below five quarters of
    /// it.
    fn is_low(self, was: bool) -> bool {
        let minimum_free = self.minimum_free();
        self.free < if was { minimum_free + minimum_free / 4 } else { minimum_free }
    }
}

fn condition(reason: NodeReason, mut message: String) -> Condition {
    message.truncate(message.floor_char_boundary(MAX_MESSAGE));
    Condition::new(reason, message)
}

/// Formats a size with at most one decimal, rounded down.
fn size(bytes: u64) -> String {
    const UNITS: [(u32, &str); 4] = [(40, "TiB"), (30, "GiB"), (20, "MiB"), (10, "KiB")];
    let Some((shift, unit)) = UNITS.into_iter().find(|(shift, _)| bytes >> shift > 0) else {
        return format!("{bytes} B");
    };
    let whole = bytes >> shift;
    match ((bytes >> (shift - 10)) & 1023) * 10 / 1024 {
        0 => format!("{whole} {unit}"),
        tenths => format!("{whole}.{tenths} {unit}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::Reset;
    use edgesync_protocol::digest::Epoch;
    use edgesync_protocol::node::ConditionStatus;
    use proptest::prelude::*;

    const MIB: u64 = 1 << 20;
    const GIB: u64 = 1 << 30;
    const ROOM: Space = Space { total: GIB, free: GIB };

    fn status_and_reason(condition: &Condition) -> (ConditionStatus, &str) {
        (condition.status, &condition.reason)
    }

    fn reset() -> Reset {
        Reset {
            number: 1,
            cause: "page 7 is damaged".to_owned(),
            epoch: Epoch(1),
            kept: 3,
            lost: 2,
            set_aside: None,
        }
    }

    #[test]
    fn the_store_is_healthy_while_it_accepts_changes() {
        let health = |writing, reset| Health { writing, reset };
        let works = store_condition(&health(Writing::Works, None));
        assert_eq!(works.condition, "edgesync.io/StoreHealthy");
        assert_eq!(status_and_reason(&works), (ConditionStatus::True, "StoreWorks"));
        let salvaged = store_condition(&health(Writing::Works, Some(reset())));
        assert_eq!(status_and_reason(&salvaged), (ConditionStatus::True, "StoreSalvaged"));
        assert!(salvaged.message.ends_with("page 7 is damaged"), "{}", salvaged.message);
        let full = store_condition(&health(Writing::Full, Some(reset())));
        assert_eq!(status_and_reason(&full), (ConditionStatus::False, "StoreFull"));
        let reason = "ä".repeat(1_000);
        let fails = store_condition(&health(Writing::Fails { reason }, None));
        assert_eq!(status_and_reason(&fails), (ConditionStatus::False, "StoreFailing"));
        assert!((500..=512).contains(&fails.message.len()), "{}", fails.message.len());
    }

    #[test]
    fn the_smaller_of_a_tenth_and_256_mib_must_be_free() {
        let on = |total, free| space_condition(Some(Space { total, free }), ROOM, None);
        assert_eq!(status_and_reason(&on(GIB, GIB / 10)), (ConditionStatus::False, "SufficientDisk"));
        assert_eq!(status_and_reason(&on(GIB, GIB / 10 - 1)), (ConditionStatus::True, "DiskAlmostFull"));
        assert_eq!(status_and_reason(&on(64 * GIB, 256 * MIB)), (ConditionStatus::False, "SufficientDisk"));
        let low = on(64 * GIB, 256 * MIB - 1);
        assert_eq!(status_and_reason(&low), (ConditionStatus::True, "DiskAlmostFull"));
        assert_eq!(low.message, "less than 256 MiB free on the database's disk");
        assert_eq!(low, on(64 * GIB, 0), "the message does not change with what is free");
    }

    #[test]
    fn message_of_sufficient_space_has_bounds_that_rarely_change() {
        let on = |free, used, before: Option<&Condition>| {
            let within = Space { total: GIB, free: GIB - used };
            space_condition(Some(Space { total: 64 * GIB, free }), within, before)
        };
        let enough = on(9 * GIB, 5 * MIB, None);
        assert_eq!(
            enough.message,
            "at least 8 GiB free on the database's disk (minimum 256 MiB); database uses at most 256 MiB of 1 GiB"
        );
        assert_eq!(enough, on(15 * GIB, 255 * MIB, None));
        // Around the bounds, the message changes once.
        let wider = on(8 * GIB - 1, 256 * MIB, Some(&enough));
        assert_eq!(
            wider.message,
            "at least 4 GiB free on the database's disk (minimum 256 MiB); database uses at most 512 MiB of 1 GiB"
        );
        assert_eq!(on(8 * GIB, 256 * MIB - 1, Some(&wider)), wider);
        assert_eq!(on(16 * GIB, 5 * MIB, Some(&wider)), on(16 * GIB, 5 * MIB, None));
    }

    #[test]
    fn the_database_may_be_almost_full_on_an_empty_disk() {
        let with = |free, before: Option<&Condition>| {
            space_condition(Some(ROOM), Space { total: 100 * MIB, free }, before)
        };
        let low = with(10 * MIB - 1, None);
        assert_eq!(status_and_reason(&low), (ConditionStatus::True, "DatabaseAlmostFull"));
        assert_eq!(low.message, "database has less than 10 MiB of 100 MiB left");
        assert_eq!(
            status_and_reason(&with(12 * MIB, Some(&low))),
            (ConditionStatus::True, "DatabaseAlmostFull")
        );
        assert_eq!(
            status_and_reason(&with(12 * MIB + MIB / 2, Some(&low))),
            (ConditionStatus::False, "SufficientDisk")
        );
        assert_eq!(status_and_reason(&with(12 * MIB, None)), (ConditionStatus::False, "SufficientDisk"));
    }

    #[test]
    fn an_unreadable_disk_is_unknown_unless_the_database_is_full() {
        let unknown = space_condition(None, ROOM, None);
        assert_eq!(status_and_reason(&unknown), (ConditionStatus::Unknown, "FreeSpaceUnknown"));
        let full = space_condition(None, Space { total: GIB, free: 0 }, None);
        assert_eq!(status_and_reason(&full), (ConditionStatus::True, "DatabaseAlmostFull"));
    }

    #[test]
    fn the_disk_of_a_missing_database_is_known() {
        let directory = tempfile::tempdir().unwrap();
        let database = directory.path().join("edgesync.db");
        let space = Space::of(&database).unwrap();
        assert!(space.total >= space.free && space.total > 0);
        let full = disk_condition(&database, GIB, GIB, None);
        assert!(full.status == ConditionStatus::True && full.condition == "edgesync.io/DiskPressure");
        let nowhere = disk_condition(&directory.path().join("no/such/edgesync.db"), 0, GIB, None);
        assert_eq!(status_and_reason(&nowhere), (ConditionStatus::Unknown, "FreeSpaceUnknown"));
    }

    #[test]
    fn the_budget_condition_rarely_changes_its_message() {
        let none = traffic_condition(false, 5, None);
        assert_eq!(status_and_reason(&none), (ConditionStatus::False, "NoBudget"));
        let within = traffic_condition(false, 5, Some(MIB));
        assert_eq!(status_and_reason(&within), (ConditionStatus::False, "WithinBudget"));
        assert_eq!(within, traffic_condition(false, MIB / 4 - 1, Some(MIB)));
        let said = |used| traffic_condition(false, used, Some(MIB)).message;
        assert!(
            said(MIB / 4 - 1).starts_with("less than a quarter of the daily budget of 1 MiB"),
            "{}",
            said(0)
        );
        assert!(said(MIB / 4).starts_with("a quarter") && said(MIB / 2).starts_with("half"));
        assert_eq!(said(MIB - 1), said(MIB * 3 / 4));
        assert!(said(MIB - 1).starts_with("three quarters"));
        let spent = traffic_condition(true, MIB, Some(MIB));
        assert_eq!(status_and_reason(&spent), (ConditionStatus::True, "BudgetSpent"));
        assert_eq!(spent, traffic_condition(true, 2 * MIB - 1, Some(MIB)));
        let far = traffic_condition(true, 3 * MIB + 5, Some(MIB));
        assert!(far.message.ends_with("; 3 times the budget used"), "{}", far.message);
        assert_eq!(far.condition, "edgesync.io/TrafficBudgetSpent");
    }

    #[test]
    fn the_certificate_condition_names_validity_and_end() {
        let until = Timestamp::from_second(1_795_000_000).unwrap();
        for (validity, status, reason) in [
            (Validity::Good, ConditionStatus::True, "Valid"),
            (Validity::Tight, ConditionStatus::False, "ExpiresSoon"),
            (Validity::Expired, ConditionStatus::False, "Expired"),
            (Validity::Unknown, ConditionStatus::Unknown, "ClockNotSet"),
        ] {
            let shown = certificate_condition(validity, until);
            assert_eq!(shown.condition, "edgesync.io/CertificateValid");
            assert_eq!(status_and_reason(&shown), (status, reason));
            assert!(shown.message.contains(&rfc3339(until)), "{}", shown.message);
        }
    }

    #[test]
    fn sizes_are_short() {
        let shown = [0, 1_023, 1_024, 1_536, 256 * MIB, 30 * GIB - 1, 5 << 40, u64::MAX].map(size);
        let expected =
            ["0 B", "1023 B", "1 KiB", "1.5 KiB", "256 MiB", "29.9 GiB", "5 TiB", "16777215.9 TiB"];
        assert_eq!(shown, expected);
    }

    proptest! {
        #[test]
        fn hysteresis_allows_one_change_within_a_quarter_of_the_limit(
            total in 1u64..1 << 45,
            frees in prop::collection::vec(0u64..100, 1..50),
        ) {
            let minimum_free = Space { total, free: 0 }.minimum_free();
            let (mut before, mut changes) = (None::<Condition>, 0);
            for free in frees {
                // From nine tenths to eleven tenths of the minimum.
                let free = minimum_free / 10 * 9 + (u128::from(minimum_free / 5) * u128::from(free) / 100) as u64;
                let now = space_condition(Some(Space { total, free }), ROOM, before.as_ref());
                changes += u32::from(before.is_some_and(|before| before.status != now.status));
                before = Some(now);
            }
            prop_assert!(changes <= 1, "{changes} changes");
        }

        #[test]
        fn conditions_never_panic(total: u64, free: u64, max: u64, used: u64, spent: bool) {
            let within = Space { total: max, free: max.saturating_sub(used) };
            let low = space_condition(Some(Space { total, free }), within, None);
            space_condition(None, within, Some(&low));
            traffic_condition(spent, used, Some(max));
        }
    }
}
