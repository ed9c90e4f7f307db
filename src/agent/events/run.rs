//! The record in the database about the agent's run: the next run reads it to determine how the
//! last one ended. Repeated unclean ends are one Event, a series, although each run knows only this
//! record. Pure.

use std::sync::Arc;

use jiff::Timestamp;

use super::correlate::{Occurrence, Stamp, Told, WINDOW};
use super::why::Why;
use super::{LastRun, Regarding};
use crate::store::Clocked;
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
        let first = Stamp { wall, at: Clocked { boot, since_boot } };
        Some(Self { id, count, first, last_since_boot, note: words.next()? })
    }

    /// Returns whether a run that begins now continues it.
    fn goes_on(&self, now: Stamp) -> bool {
        self.first.at.boot == now.at.boot
            && now.at.since_boot.checked_sub(self.last_since_boot).is_some_and(|quiet| quiet <= WINDOW)
    }
}

/// Begins a run. Returns how the last one ended, the Event that says so, and the new record.
pub(super) fn begin(note: Option<&str>, version: &str, now: Stamp, id: u128) -> (LastRun, Told, String) {
    let running = format!("{RUNNING} {} {:016x}", rfc3339(now.wall), now.at.boot);
    let plain = |text: String| {
        let occurrence = occurrence(Why::AgentStarted, text, now);
        (Told::new(id, occurrence), running.clone())
    };
    match Last::read(note) {
        Last::None => {
            let (told, note) = plain(format!("edgesync {version} has started for the first time here"));
            (LastRun::None, told, note)
        }
        Last::Stopped(when) => {
            let (told, note) = plain(format!("edgesync {version} has started; it was stopped at {when}"));
            (LastRun::Clean, told, note)
        }
        Last::Running { since, boot, event } => {
            let told = unclean(since, boot, event, version, now, id);
            let Told { id, count, first, note, .. } = &told;
            let (first_wall, first_boot) = (rfc3339_micros(first.wall), first.at.since_boot);
            let kept = now.at.since_boot;
            let note = format!("{running} {id:032x} {count} {first_wall} {first_boot} {kept} {note}");
            (LastRun::Unclean, told, note)
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
) -> Told {
    let how = match boot {
        Some(boot) if boot == now.at.boot => "the device was not rebooted meanwhile",
        Some(_) => "the device was rebooted meanwhile",
        None => "whether the device was rebooted meanwhile is not known",
    };
    let text = format!(
        "edgesync {version} has started; the run that began at {since} ended without being told to, and {how}"
    );
    match series.filter(|series| series.goes_on(now)) {
        None => Told::new(id, occurrence(Why::AgentRestartedUncleanly, text, now)),
        Some(series) => {
            let first = occurrence(Why::AgentRestartedUncleanly, series.note.to_owned(), series.first);
            let mut told = Told::new(series.id, first);
            told.count = series.count;
            told.add(text.into(), now);
            told
        }
    }
}

/// Ends a run. Returns the Event that says so, and the new record.
pub(super) fn end(version: &str, now: Stamp, id: u128) -> (Told, String) {
    let text = format!("edgesync {version} was told to stop");
    let told = Told::new(id, occurrence(Why::AgentStopped, text, now));
    (told, format!("{STOPPED} {}", rfc3339(now.wall)))
}

fn occurrence(why: Why, text: String, stamp: Stamp) -> Occurrence {
    Occurrence { why, regarding: Regarding::Node, note: Arc::from(super::object::cut(text)), stamp }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn at(boot: u64, second: u64) -> Stamp {
        let wall = Timestamp::from_second(1_800_000_000 + i64::try_from(second).unwrap()).unwrap();
        Stamp { wall, at: Clocked { boot, since_boot: second * 1000 } }
    }

    #[test]
    fn the_first_run_and_one_after_an_orderly_end_are_normal() {
        let (last, told, note) = begin(None, "1.0", at(7, 10), 1);
        assert_eq!((last, told.why), (LastRun::None, Why::AgentStarted));
        assert_eq!(note, "running 2027-01-15T08:00:10Z 0000000000000007");
        let (told, note) = end("1.0", at(7, 20), 2);
        assert_eq!((told.why, note.as_str()), (Why::AgentStopped, "stopped 2027-01-15T08:00:20Z"));
        let (last, told, _) = begin(Some(&note), "1.1", at(7, 30), 3);
        assert_eq!((last, told.why), (LastRun::Clean, Why::AgentStarted));
        assert_eq!(&*told.note, "edgesync 1.1 has started; it was stopped at 2027-01-15T08:00:20Z");
    }

    #[test]
    fn a_run_that_did_not_end_in_order_is_told_with_its_begin_and_whether_the_device_rebooted() {
        let (_, _, note) = begin(None, "1.0", at(7, 10), 1);
        let (last, told, _) = begin(Some(&note), "1.0", at(7, 500), 2);
        assert_eq!((last, told.why, told.count), (LastRun::Unclean, Why::AgentRestartedUncleanly, 1));
        assert!(told.note.contains("began at 2027-01-15T08:00:10Z"), "{}", told.note);
        assert!(told.note.ends_with("was not rebooted meanwhile"), "{}", told.note);
        let (_, told, _) = begin(Some(&note), "1.0", at(8, 5), 2);
        assert!(told.note.ends_with("was rebooted meanwhile"), "{}", told.note);
        assert!(!told.note.contains("was not"), "{}", told.note);
    }

    #[test]
    fn an_agent_that_dies_again_and_again_makes_one_event() {
        let (_, _, mut note) = begin(None, "1.0", at(7, 0), 1);
        let mut first = None;
        for run in 1_u32..=100 {
            let (_, told, next) = begin(Some(&note), "1.0", at(7, u64::from(run) * 5), 100 + u128::from(run));
            note = next;
            let first = first.get_or_insert_with(|| told.clone());
            assert_eq!((told.id, told.count, told.first), (101, run, first.first));
            assert_eq!(told.note, first.note);
            assert_eq!(told.last, at(7, u64::from(run) * 5));
        }
        let (_, told, _) = begin(Some(&note), "1.0", at(7, 500 + 361), 2);
        assert_eq!((told.id, told.count), (2, 1), "after a while it is another Event");
        let (_, told, _) = begin(Some(&note), "1.0", at(8, 501), 3);
        assert_eq!((told.id, told.count), (3, 1), "after a reboot it is another Event");
    }

    #[test]
    fn what_cannot_be_read_of_a_note_is_taken_for_unknown() {
        let (last, told, _) = begin(Some("running"), "1.0", at(7, 0), 1);
        assert_eq!(last, LastRun::Unclean);
        assert!(told.note.contains("is not known"), "{}", told.note);
        let (last, ..) = begin(Some("asleep"), "1.0", at(7, 0), 1);
        assert_eq!(last, LastRun::None);
    }

    proptest! {
        #[test]
        fn no_note_panics_and_each_gives_one_that_can_be_read(
            text in "(running |stopped )?[ -~]{0,80}|running 2027-01-15T08:00:10Z [0-9a-f]{16} [0-9a-f]{1,40} [0-9]{1,12} 2027-01-15T08:00:10Z [0-9]{1,22} [0-9]{1,22} .{0,9}",
            boot: u64,
            second in 0_u64..1 << 36,
        ) {
            let now = at(boot, second);
            let (_, told, note) = begin(Some(&text), "1.0", now, 9);
            prop_assert!(told.note.len() <= 1024);
            let (last, next, _) = begin(Some(&note), "1.0", now, 10);
            prop_assert_eq!(last, LastRun::Unclean);
            if told.why == Why::AgentRestartedUncleanly {
                prop_assert_eq!((next.id, next.count), (told.id, told.count.saturating_add(1)));
                prop_assert_eq!(&next.note, &told.note);
            }
        }
    }
}
