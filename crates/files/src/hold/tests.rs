//! Holds: their limits, owners and ends.

use super::*;
use crate::clock::{Clock, Reading};

const SECOND: u64 = 1_000_000;
const HOUR: u64 = 3600 * SECOND;

fn new(rule: &'static str, uid: u32, hours: u64) -> NewHold<'static> {
    NewHold { rule, uid, owner: "plant", why: "harvest", seconds: hours * 3600 }
}

fn limits() -> Limits {
    Limits::default()
}

#[test]
fn hold_ends_by_itself_or_by_its_owner() {
    let mut holds = Holds::default();
    holds.hold(0, &new("plc", 7, 2), limits()).unwrap();
    let other = holds.hold(0, &new("plc", 8, 1), limits()).unwrap();
    assert_eq!(holds.last_of("plc").unwrap().ends, 2 * HOUR);
    assert!(holds.last_of("web").is_none());
    let refused = holds.release(1, 7, &Which::Id(other.id), limits()).unwrap_err();
    assert!(refused.to_string().starts_with("hold 2 belongs to plant (8): only that user"), "{refused}");
    assert_eq!(holds.release(1, 9, &Which::Rule("plc"), limits()), Err(HoldError::NotFound));
    assert_eq!(holds.release(1, 7, &Which::Rule("plc"), limits()).unwrap().len(), 1);
    assert_eq!(holds.last_of("plc"), Some(&other));
    assert_eq!(
        holds.release(1, 0, &Which::Id(other.id), limits()).unwrap(),
        std::slice::from_ref(&other),
        "root"
    );
    holds.hold(HOUR, &new("plc", 7, 1), limits()).unwrap();
    assert!(!holds.expire(2 * HOUR - 1, limits()));
    assert!(holds.expire(2 * HOUR, limits()) && holds.all().is_empty());
}

#[test]
fn longest_time_covers_holds_that_follow_each_other() {
    let mut holds = Holds::default();
    holds.hold(0, &new("plc", 7, 12), limits()).unwrap();
    // Another user, half an hour after the end of the first hold, which was released early.
    holds.release(10 * HOUR, 7, &Which::Own, limits()).unwrap();
    let refused = holds.hold(10 * HOUR + HOUR / 2, &new("plc", 8, 14), limits()).unwrap_err().to_string();
    assert!(refused.contains("may be held for 13h30m more"), "{refused}");
    holds.hold(10 * HOUR + HOUR / 2, &new("plc", 8, 13), limits()).unwrap();
    assert!(holds.hold(23 * HOUR, &new("plc", 7, 2), limits()).is_err());
    holds.hold(23 * HOUR, &new("web", 7, 24), limits()).unwrap();
    // All of it is used up until an hour has passed without a hold.
    holds.hold(23 * HOUR, &new("plc", 7, 1), limits()).unwrap();
    assert!(holds.hold(24 * HOUR, &new("plc", 7, 1), limits()).is_err());
    assert!(holds.hold(25 * HOUR - 1, &new("plc", 7, 1), limits()).is_err());
    holds.hold(25 * HOUR, &new("plc", 7, 24), limits()).unwrap();
}

#[test]
fn shorter_configured_time_shortens_holds_in_force() {
    let mut holds = Holds::default();
    holds.hold(0, &new("plc", 7, 24), limits()).unwrap();
    let shorter = Limits { longest: Duration::from_secs(3600), ..limits() };
    assert!(holds.expire(HOUR - 1, shorter) && holds.all().len() == 1);
    assert!(holds.expire(HOUR, shorter) && holds.all().is_empty());
}

#[test]
fn ten_thousand_holds_are_refused_with_the_limit() {
    let mut holds = Holds::default();
    let made = (0..10_000).filter(|_| holds.hold(0, &new("plc", 7, 1), limits()).is_ok()).count();
    assert_eq!(made, MAX_HOLDS_OF_USER);
    let refused = holds.hold(0, &new("plc", 7, 1), limits()).unwrap_err().to_string();
    assert!(refused.starts_with("64 holds of this user are in force, the most"), "{refused}");
    let made = (0..10_000).filter(|uid| holds.hold(0, &new("plc", 100 + uid, 1), limits()).is_ok()).count();
    assert_eq!(made, MAX_HOLDS - MAX_HOLDS_OF_USER);
    assert_eq!(holds.hold(0, &new("plc", 8, 1), limits()), Err(HoldError::TooMany(MAX_HOLDS)));
}

#[test]
fn unusable_durations_and_reasons_are_refused() {
    let mut holds = Holds::default();
    for hours in [0, 25, u64::MAX / 3600] {
        let refused = holds.hold(0, &new("plc", 7, hours), limits()).unwrap_err().to_string();
        assert!(refused.contains("must be between 1s and 24h"), "{refused}");
    }
    for why in ["", " ", "a\nb", &"x".repeat(201)] {
        assert_eq!(
            holds.hold(0, &NewHold { why, ..new("plc", 7, 1) }, limits()),
            Err(HoldError::Why),
            "{why:?}"
        );
    }
    assert!(holds.all().is_empty());
}

/// A clock that was set after the boot counted the time without power, and ended a hold that was
/// made since the boot.
#[test]
fn time_without_power_before_a_hold_does_not_end_it() {
    let (minute, now) = (60_000_000_i64, 1_795_651_200_000_000_i64);
    let read = |clock: &mut Clock, boot: &str, since_boot, wall| {
        clock.observe(Reading { boot: boot.to_owned(), since_boot, wall })
    };
    let (mut clock, mut holds) = (Clock::default(), Holds::default());
    read(&mut clock, "a", 0, now);
    let new = |rule| NewHold { rule, uid: 7, owner: "plant", why: "harvest", seconds: 3600 };
    holds.hold(clock.elapsed(), &new("before"), Limits::default()).unwrap();
    // Without power for four hours, and then without a clock.
    read(&mut clock, "b", minute, minute);
    holds.hold(clock.elapsed(), &new("after"), Limits::default()).unwrap();
    let unpowered = read(&mut clock, "b", 2 * minute, now + 242 * minute).unwrap();
    holds.shift(unpowered);
    holds.expire(clock.elapsed(), Limits::default());
    let left: Vec<(&str, u64)> =
        holds.all().iter().map(|hold| (hold.rule.as_str(), hold.ends - clock.elapsed())).collect();
    assert_eq!(left, [("after", 59 * minute.unsigned_abs())]);
}
