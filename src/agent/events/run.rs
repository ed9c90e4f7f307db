//! The record in the database about the agent's run: the next run reads it to determine how the
//! last one ended. Repeated unclean ends are one Event, a series, although each run knows only this
//! record. Pure.

use std::sync::Arc;

use jiff::Timestamp;

use super::correlate::{EventState, Occurrence, Stamp, WINDOW};
use super::reason::EventReason;
use super::{LastRun, Regarding};
use crate::store::MonotonicTime;
use edgesync_object::time::{rfc3339, rfc3339_micros};

const RUNNING: &str = "running";
const STOPPED: &str = "stopped";

/// The record as read: `stopped <time>`, or `running <since> <boot>` and, if this run began
/// uncleanly, `<id> <count> <first> <first since boot> <last since boot> <note>` of the Event about
/// that.
#[derive(Debug)]
enum Last<'a> {
    None,
    Stopped(&'a str),
    Running { since: &'a str, boot: Option<u64>, event: Option<Series<'a>> },
}

/// The Event about unclean restarts.
#[derive(Debug)]
struct Series<'a> {
    id: u128,
    count: u32,
    first: Stamp,
    last_since_boot: u64,
    note: &'a str,
}

impl<'a> Last<'a> {
    fn read(note: Option<&'a str>) -> Self {
        let note = note.unwrap_or_default();
        let (state, rest) = note.split_once(' ').unwrap_or((note, ""));
        match state {
            STOPPED => Self::Stopped(rest),
            RUNNING => {
                let mut words = rest.splitn(3, ' ');
                let since = words.next().unwrap_or_default();
                let boot = words.next().and_then(|boot| u64::from_str_radix(boot, 16).ok());
                let event = boot.zip(words.next()).and_then(|(boot, text)| Series::read(boot, text));
                Self::Running { since, boot, event }
            }
            _ => Self::None,
        }
    }
}

impl<'a> Series<'a> {
    fn read(boot: u64, text: &'a str) -> Option<Self> {
        let mut words = text.splitn(6, ' ');
        let id = u128::from_str_radix(words.next()?, 16).ok()?;
        let count = words.next()?.parse().ok()?;
        let wall: Timestamp = words.next()?.parse().ok()?;
        let since_boot = words.next()?.parse().ok()?;
        let last_since_boot = words.next()?.parse().ok()?;
        let first = Stamp { wall, at: MonotonicTime { boot, since_boot } };
        Some(Self { id, count, first, last_since_boot, note: words.next()? })
    }

    /// Returns whether a run that begins now continues it.
    fn continues(&self, now: Stamp) -> bool {
        self.first.at.boot == now.at.boot
            && now.at.since_boot.checked_sub(self.last_since_boot).is_some_and(|quiet| quiet <= WINDOW)
    }
}

/// Begins a run. Returns how the last one ended, the Event that says so, and the new record.
pub(super) fn begin(
    note: Option<&str>,
    version: &str,
    now: Stamp,
    id: u128,
) -> (LastRun, EventState, String) {
    let running = format!("{RUNNING} {} {:016x}", rfc3339(now.wall), now.at.boot);
    let plain = |text: String| {
        let occurrence = occurrence(EventReason::AgentStarted, text, now);
        (EventState::new(id, occurrence), running.clone())
    };
    match Last::read(note) {
        Last::None => {
            let (state, note) = plain(format!("edgesync {version} started for the first time"));
            (LastRun::None, state, note)
        }
        Last::Stopped(when) => {
            let (state, note) = plain(format!("edgesync {version} started; last stopped at {when}"));
            (LastRun::Clean, state, note)
        }
        Last::Running { since, boot, event } => {
            let state = unclean(since, boot, event, version, now, id);
            let EventState { id, count, first, note, .. } = &state;
            let (first_wall, first_boot) = (rfc3339_micros(first.wall), first.at.since_boot);
            let kept = now.at.since_boot;
            let note = format!("{running} {id:032x} {count} {first_wall} {first_boot} {kept} {note}");
            (LastRun::Unclean, state, note)
        }
    }
}

fn unclean(
    since: &str,
    boot: Option<u64>,
    series: Option<Series<'_>>,
    version: &str,
    now: Stamp,
    id: u128,
) -> EventState {
    let how = match boot {
        Some(boot) if boot == now.at.boot => "device not rebooted since",
        Some(_) => "device rebooted since",
        None => "device possibly rebooted since",
    };
    let text = format!("edgesync {version} started; the run since {since} ended uncleanly, {how}");
    match series.filter(|series| series.continues(now)) {
        None => EventState::new(id, occurrence(EventReason::AgentRestartedUncleanly, text, now)),
        Some(series) => {
            let first =
                occurrence(EventReason::AgentRestartedUncleanly, series.note.to_owned(), series.first);
            let mut state = EventState::new(series.id, first);
            state.count = series.count;
            state.add(text.into(), now);
            state
        }
    }
}

/// Ends a run. Returns the Event that says so, and the new record.
pub(super) fn end(version: &str, now: Stamp, id: u128) -> (EventState, String) {
    let text = format!("edgesync {version} stopped on request");
    let state = EventState::new(id, occurrence(EventReason::AgentStopped, text, now));
    (state, format!("{STOPPED} {}", rfc3339(now.wall)))
}

fn occurrence(reason: EventReason, text: String, stamp: Stamp) -> Occurrence {
    Occurrence { reason, regarding: Regarding::Node, note: Arc::from(super::object::truncate(text)), stamp }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn at(boot: u64, second: u64) -> Stamp {
        let wall = Timestamp::from_second(1_800_000_000 + i64::try_from(second).unwrap()).unwrap();
        Stamp { wall, at: MonotonicTime { boot, since_boot: second * 1000 } }
    }

    #[test]
    fn a_first_run_and_one_after_a_clean_end_are_normal() {
        let (last, state, note) = begin(None, "1.0", at(7, 10), 1);
        assert_eq!((last, state.reason), (LastRun::None, EventReason::AgentStarted));
        assert_eq!(note, "running 2027-01-15T08:00:10Z 0000000000000007");
        let (state, note) = end("1.0", at(7, 20), 2);
        assert_eq!(
            (state.reason, note.as_str()),
            (EventReason::AgentStopped, "stopped 2027-01-15T08:00:20Z")
        );
        let (last, state, _) = begin(Some(&note), "1.1", at(7, 30), 3);
        assert_eq!((last, state.reason), (LastRun::Clean, EventReason::AgentStarted));
        assert_eq!(&*state.note, "edgesync 1.1 started; last stopped at 2027-01-15T08:00:20Z");
    }

    #[test]
    fn an_unclean_end_is_reported_with_begin_and_reboot() {
        let (_, _, note) = begin(None, "1.0", at(7, 10), 1);
        let (last, state, _) = begin(Some(&note), "1.0", at(7, 500), 2);
        assert_eq!(
            (last, state.reason, state.count),
            (LastRun::Unclean, EventReason::AgentRestartedUncleanly, 1)
        );
        assert!(state.note.contains("the run since 2027-01-15T08:00:10Z"), "{}", state.note);
        assert!(state.note.ends_with("device not rebooted since"), "{}", state.note);
        let (_, state, _) = begin(Some(&note), "1.0", at(8, 5), 2);
        assert!(state.note.ends_with("device rebooted since"), "{}", state.note);
        assert!(!state.note.contains("not rebooted"), "{}", state.note);
    }

    #[test]
    fn a_repeatedly_crashing_agent_emits_one_event() {
        let (_, _, mut note) = begin(None, "1.0", at(7, 0), 1);
        let mut first = None;
        for run in 1_u32..=100 {
            let (_, state, next) =
                begin(Some(&note), "1.0", at(7, u64::from(run) * 5), 100 + u128::from(run));
            note = next;
            let first = first.get_or_insert_with(|| state.clone());
            assert_eq!((state.id, state.count, state.first), (101, run, first.first));
            assert_eq!(state.note, first.note);
            assert_eq!(state.last, at(7, u64::from(run) * 5));
        }
        let (_, state, _) = begin(Some(&note), "1.0", at(7, 500 + 361), 2);
        assert_eq!((state.id, state.count), (2, 1), "after a while it is another Event");
        let (_, state, _) = begin(Some(&note), "1.0", at(8, 501), 3);
        assert_eq!((state.id, state.count), (3, 1), "after a reboot it is another Event");
    }

    #[test]
    fn unreadable_parts_of_a_record_count_as_unknown() {
        let (last, state, _) = begin(Some("running"), "1.0", at(7, 0), 1);
        assert_eq!(last, LastRun::Unclean);
        assert!(state.note.contains("possibly rebooted"), "{}", state.note);
        let (last, ..) = begin(Some("asleep"), "1.0", at(7, 0), 1);
        assert_eq!(last, LastRun::None);
    }

    proptest! {
        #[test]
        fn records_never_panic_and_their_successors_are_readable(
            text in "(running |stopped )?[ -~]{0,80}|running 2027-01-15T08:00:10Z [0-9a-f]{16} [0-9a-f]{1,40} [0-9]{1,12} 2027-01-15T08:00:10Z [0-9]{1,22} [0-9]{1,22} .{0,9}",
            boot: u64,
            second in 0_u64..1 << 36,
        ) {
            let now = at(boot, second);
            let (_, state, note) = begin(Some(&text), "1.0", now, 9);
            prop_assert!(state.note.len() <= 1024);
            let (last, next, _) = begin(Some(&note), "1.0", now, 10);
            prop_assert_eq!(last, LastRun::Unclean);
            if state.reason == EventReason::AgentRestartedUncleanly {
                prop_assert_eq!((next.id, next.count), (state.id, state.count.saturating_add(1)));
                prop_assert_eq!(&next.note, &state.note);
            }
        }
    }
}
