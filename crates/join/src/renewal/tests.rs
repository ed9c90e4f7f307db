use std::cell::Cell;

use proptest::prelude::*;

use super::*;

thread_local! {
    static NOW: Cell<i64> = const { Cell::new(0) };
}

/// Start of the certificates in these tests: 2026-11-21.
const FROM: i64 = 1_795_219_200;

fn now() -> Timestamp {
    Timestamp::from_second(NOW.get()).unwrap()
}

fn at(second: i64) -> Clock {
    NOW.set(second);
    Clock::of(now, [Timestamp::from_second(FROM).unwrap()])
}

fn schedule(lifetime: i64, random: f64) -> Schedule {
    let time = |second| Timestamp::from_second(second).unwrap();
    Schedule::between(time(FROM), time(FROM + lifetime), random)
}

const YEAR: i64 = 365 * 86_400;

proptest! {
    #[test]
    fn renewal_is_planned_between_70_and_90_percent(lifetime in 10..20 * YEAR, random in 0.0..1.0_f64) {
        let planned = schedule(lifetime, random).planned().as_second() - FROM;
        #[expect(clippy::cast_precision_loss, reason = "far below 53 bits")]
        let share = planned as f64 / lifetime as f64;
        // Truncated to whole seconds.
        prop_assert!(share < 0.9 + 1e-9 && share > 0.7 - 0.1, "{share}");
        prop_assert!(lifetime < 100_000 || share > 0.6999, "{share}");
    }

    #[test]
    fn waits_are_bounded_and_lead_to_the_attempt(
        lifetime in 60..20 * YEAR,
        random in 0.0..1.0_f64,
        failures in 0..40_u32,
        start in -YEAR..3 * YEAR,
    ) {
        let mut schedule = schedule(lifetime, random);
        (0..failures).for_each(|_| schedule.failed());
        let most = (lifetime / 10 + 1).min(3600);
        let clock = at(FROM + start);
        let wait = schedule.wait(&clock, random);
        prop_assert!(wait <= Duration::from_secs(3600));
        if start < 0 {
            prop_assert!(wait <= Duration::from_secs(60) && !schedule.is_due(&clock));
            prop_assert_eq!(schedule.validity(&clock), Validity::Unknown);
        } else if schedule.is_due(&clock) {
            prop_assert_eq!(wait.is_zero(), failures == 0);
            prop_assert!(wait <= Duration::from_secs(most.unsigned_abs()));
        } else {
            prop_assert!(!wait.is_zero());
            let left = u64::try_from(schedule.planned().as_second() - clock.now().as_second()).unwrap() + 1;
            prop_assert!(wait <= Duration::from_secs(left));
        }
    }

    #[test]
    fn renewal_follows_once_the_clock_is_right(
        jumps in prop::collection::vec(-60 * YEAR..60 * YEAR, 0..20),
        random in 0.0..1.0_f64,
    ) {
        let schedule = schedule(YEAR, random);
        for jump in jumps {
            let clock = at((FROM + jump).max(0));
            prop_assert!(schedule.wait(&clock, random) <= Duration::from_secs(3600));
            prop_assert_eq!(schedule.is_due(&clock), clock.now() >= schedule.planned());
        }
        // Hourly steps reach the day in time.
        let mut second = FROM + YEAR / 2;
        while !schedule.is_due(&at(second)) {
            let wait = schedule.wait(&at(second), random);
            prop_assert!(!wait.is_zero());
            // A wait of less than a millisecond counts as one.
            second += i64::try_from(wait.as_secs()).unwrap() + 1;
        }
        prop_assert!(second <= FROM + YEAR * 9 / 10 + 2, "{}", second);
    }
}

#[test]
fn renewals_of_a_fleet_are_spread() {
    let planned = (0..100).map(|n| schedule(YEAR, f64::from(n) / 100.0).planned().as_second());
    let planned = planned.collect::<Vec<_>>();
    assert!(planned.windows(2).all(|pair| pair[1] - pair[0] > YEAR / 1000));
}

#[test]
fn failed_attempts_repeat_with_growing_delays() {
    for (lifetime, first, most) in [(YEAR, 3600.0 / 64.0, 3600.0), (600, 60.0 / 64.0, 60.0)] {
        let mut schedule = schedule(lifetime, 0.5);
        let clock = at(FROM + 2 * lifetime);
        assert_eq!(schedule.wait(&clock, 0.5), Duration::ZERO);
        let mut waits = Vec::new();
        for _ in 0..12 {
            schedule.failed();
            let (least, longest) = (schedule.wait(&clock, 0.0), schedule.wait(&clock, 0.999_999));
            assert!(least * 2 >= longest && least < longest);
            waits.push(longest.as_secs_f64());
            assert!(schedule.is_due(&clock));
        }
        assert!((waits[0] - first).abs() < 0.01, "{waits:?}");
        assert!(waits.windows(2).all(|pair| pair[0] <= pair[1]));
        assert!((waits[11] - most).abs() < 0.01, "{waits:?}");
    }
}

#[test]
fn validity_is_unknown_with_a_clock_in_1970() {
    let schedule = schedule(1000, 0.0);
    for (second, validity) in [
        (FROM, Validity::Good),
        (FROM + 900, Validity::Good),
        (FROM + 901, Validity::Tight),
        (FROM + 999, Validity::Tight),
        (FROM + 1000, Validity::Expired),
        (FROM + 100 * YEAR, Validity::Expired),
        (FROM - 1, Validity::Unknown),
        (9, Validity::Unknown),
    ] {
        assert_eq!(schedule.validity(&at(second)), validity, "{second}");
    }
    assert_eq!(schedule.wait(&at(9), 0.5), Duration::from_secs(60));
    assert!(!schedule.is_due(&at(9)));
}
