//! Gate of a rule: whether its changes may take effect now, and why they wait otherwise. Pure; the
//! helper adds what only the device can tell, a file that exists and a program that decides.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::calendar::{Opening, opening};
use super::fault::{Fault, planted};
use super::hold::Holds;
use super::rule::Rule;
use edgesync_object::Labels;
use edgesync_object::urgency::{OVERRIDE_WINDOW, URGENCY_ANNOTATION};
use serde_json::Value;

/// Longest wait until the gate is looked at again, in microseconds.
const MAX_POLL: i64 = 600_000_000;
/// Wait until a file, a program or a hold is looked at again, in microseconds: none of them tells
/// of its end.
const POLL: i64 = 30_000_000;

/// Reason why a change waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum WaitReason {
    /// No window of the rule is open, or the clock is not known.
    Window,
    /// The file of `unless` exists.
    Busy,
    /// The program of `condition` does not permit it.
    Condition,
    /// A program on the device holds the rule.
    Hold,
}

impl WaitReason {
    /// Returns the name used in JSON and messages.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Window => "Window",
            Self::Busy => "Busy",
            Self::Condition => "Condition",
            Self::Hold => "Hold",
        }
    }
}

/// A closed gate.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Closed {
    /// Reason for which it is closed.
    pub reason: WaitReason,
    /// When it may open, in microseconds since 1970; `None` if unknown.
    pub until: Option<i64>,
    /// Explanation for people.
    pub message: String,
}

impl Closed {
    /// Returns the time until the gate is looked at again, in microseconds.
    pub(crate) fn poll_after(&self, now: i64) -> i64 {
        match (self.reason, self.until) {
            (WaitReason::Window, Some(until)) => until.saturating_sub(now).clamp(1_000_000, MAX_POLL),
            (WaitReason::Hold, Some(until)) => until.saturating_sub(now).clamp(1_000_000, POLL),
            _ => POLL,
        }
    }
}

/// Facts about the device that decide on all rules.
#[derive(Clone, Copy, Debug)]
pub struct Facts<'a> {
    /// Holds in force.
    pub holds: &'a Holds,
    /// Time of the holds, see [`Clock::elapsed`](super::clock::Clock::elapsed).
    pub elapsed: u64,
    /// Whether the wall clock can be right.
    pub is_clock_known: bool,
    /// The wall clock in microseconds since 1970.
    pub now: i64,
}

/// Decides by holds and windows whether changes of a rule wait. `override_windows` is whether they
/// are urgent and the rule permits that: holds bind them, windows do not.
#[must_use]
pub fn decide(rule: &Rule, facts: Facts<'_>, override_windows: bool) -> Option<Closed> {
    let ignores = planted(Fault::HoldIgnored) || (override_windows && planted(Fault::HoldOverridden));
    if let Some(hold) = facts.holds.last_of(&rule.name).filter(|_| !ignores) {
        let left = i64::try_from(hold.ends.saturating_sub(facts.elapsed)).unwrap_or(i64::MAX);
        // An unknown clock cannot tell when that is.
        let until = facts.is_clock_known.then(|| facts.now.saturating_add(left));
        let message = format!("held by {}: {}", hold.shown_owner(), hold.why);
        return Some(Closed { reason: WaitReason::Hold, until, message });
    }
    if rule.apply.is_empty() || override_windows {
        return None;
    }
    let reason = WaitReason::Window;
    let is_known = facts.is_clock_known || planted(Fault::UnknownClockTrusted);
    let now = Timestamp::from_microsecond(facts.now).ok().filter(|_| is_known);
    let Some(now) = now else {
        let message = "windows are closed while the clock is not known".to_owned();
        return Some(Closed { reason, until: None, message });
    };
    if let Some(why) = &rule.unknown_zone {
        return Some(Closed { reason, until: None, message: why.clone() });
    }
    match opening(&rule.apply, now) {
        Opening::Open(_) => None,
        Opening::Closed(next) => {
            let message = match next {
                Some(next) => format!("window opens at {next}"),
                None => "no window opens within a week".to_owned(),
            };
            Some(Closed { reason, until: next.map(Timestamp::as_microsecond), message })
        }
    }
}

/// Returns whether an object's author asks for its change outside of windows.
pub(crate) fn is_urgent(object: &Value) -> bool {
    let annotations = &object["metadata"]["annotations"];
    let annotations = serde_json::from_value::<Labels>(annotations.clone()).unwrap_or_default();
    annotations.get(URGENCY_ANNOTATION).is_some_and(|value| value == OVERRIDE_WINDOW)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::calendar::Window;
    use crate::hold::{Limits, NewHold};
    use jiff::tz::TimeZone;
    use serde_json::json;

    fn rule() -> Rule {
        let apply = vec![Window::parse("02:00-04:00", TimeZone::UTC).unwrap()];
        Rule { name: "plc".to_owned(), apply, ..Rule::default() }
    }

    fn at(text: &str) -> i64 {
        text.parse::<Timestamp>().unwrap().as_microsecond()
    }

    #[test]
    fn a_closed_gate_is_looked_at_when_it_may_open() {
        let second = 1_000_000;
        let after = |reason, seconds: Option<i64>| {
            let until = seconds.map(|seconds| seconds * second);
            Closed { reason, until, message: String::new() }.poll_after(5 * second)
        };
        for reason in [WaitReason::Hold, WaitReason::Window] {
            assert_eq!(after(reason, Some(15)), 10 * second);
            assert_eq!(after(reason, Some(2)), second, "the clock was set back");
            assert_eq!(after(reason, None), POLL);
        }
        // A hold may be released, and nothing says that a program is idle again.
        assert_eq!(after(WaitReason::Hold, Some(9000)), POLL);
        assert_eq!(after(WaitReason::Window, Some(9000)), MAX_POLL);
        assert_eq!(after(WaitReason::Busy, Some(15)), POLL);
    }

    #[test]
    fn windows_and_holds_close_the_gate_and_urgency_opens_windows_alone() {
        let (rule, mut holds) = (rule(), Holds::default());
        let (open, closed) = (at("2026-11-26T03:00:00Z"), at("2026-11-26T05:00:00Z"));
        let decide = |holds: &Holds, now, is_clock_known, urgent| {
            decide(&rule, Facts { holds, elapsed: 5, is_clock_known, now }, urgent)
        };
        assert_eq!(decide(&holds, open, true, false), None);
        let waits = decide(&holds, closed, true, false).unwrap();
        assert_eq!((waits.reason, waits.until), (WaitReason::Window, Some(at("2026-11-27T02:00:00Z"))));
        assert_eq!(decide(&holds, closed, true, true), None);
        let unknown = decide(&holds, open, false, false).unwrap();
        assert_eq!((unknown.reason, unknown.until), (WaitReason::Window, None));
        assert!(unknown.message.contains("clock is not known"));
        let new = NewHold { rule: "plc", uid: 7, owner: "plant", why: "harvest", seconds: 60 };
        holds.hold(5, &new, Limits::default()).unwrap();
        for urgent in [false, true] {
            let held = decide(&holds, open, true, urgent).unwrap();
            assert_eq!((held.reason, held.until), (WaitReason::Hold, Some(open + 60_000_000)));
            assert_eq!(held.message, "held by plant (7): harvest");
        }
        let held = decide(&holds, 0, false, false).unwrap();
        assert_eq!((held.reason, held.until), (WaitReason::Hold, None), "1970 is no time for people");
    }

    #[test]
    fn window_in_an_unknown_zone_stays_closed() {
        let rule = Rule { unknown_zone: Some("no such zone".to_owned()), ..rule() };
        let (holds, now) = (Holds::default(), at("2026-11-26T03:00:00Z"));
        let facts = Facts { holds: &holds, elapsed: 5, is_clock_known: true, now };
        let closed = decide(&rule, facts, false).unwrap();
        assert_eq!((closed.reason, closed.until), (WaitReason::Window, None));
        assert_eq!(closed.message, "no such zone");
        assert_eq!(decide(&rule, facts, true), None, "urgent changes override windows");
    }

    #[test]
    fn urgency_is_an_annotation_with_one_value() {
        let object =
            |value: Value| json!({ "metadata": { "annotations": { "edgesync.io/urgency": value } } });
        assert!(is_urgent(&object(json!("override-window"))));
        for other in [object(json!("high")), object(json!(true)), json!({}), json!([])] {
            assert!(!is_urgent(&other), "{other}");
        }
    }
}
