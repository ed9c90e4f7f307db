//! Conditions of a roll-out, with reasons and messages.

use jiff::Timestamp;

use super::observed::{Observed, TooLarge, WaveCounts};
use super::spec::{OnChange, Rollout};
use super::status::{Condition, Conditions, PauseReason, Reason, Revision, Status};
use super::verdict::{Exceeded, Verdict};

/// From this number of revisions in a row that were replaced early, changes come too fast.
pub(crate) const STARVED_AFTER: u32 = 3;

/// Messages of the three conditions, with counts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Messages {
    /// Of [`Conditions::progressing`].
    pub progressing: String,
    /// Of [`Conditions::paused`].
    pub paused: String,
    /// Of [`Conditions::degraded`].
    pub degraded: String,
}

/// Verdicts about the newest revision while it is rolled out.
pub(crate) struct Judged {
    /// The verdict about the last open wave; `None` if it was not judged.
    pub(crate) last: Option<Verdict>,
    /// The first open wave with too many failures.
    pub(crate) failed: Option<(usize, Exceeded)>,
}

/// Judges the open waves of the newest revision; nothing if the counts are of another one.
pub(crate) fn judged(rollout: &Rollout, status: &Status, observed: &Observed) -> Judged {
    let Some(top) = status.progressing().filter(|top| observed.is_of(top)) else {
        return Judged { last: None, failed: None };
    };
    let none = WaveCounts::default();
    let counts = |wave: usize| observed.waves.get(wave).unwrap_or(&none);
    let verdict = |wave: usize| rollout.judge(wave, counts(wave), top.good_since.is_some());
    let failed = (top.promoted..top.open).find_map(|wave| match verdict(wave) {
        Verdict::FailuresExceeded(exceeded) => Some((wave, exceeded)),
        _ => None,
    });
    Judged { last: top.open.checked_sub(1).map(verdict), failed }
}

/// Returns whether changes wait for the end of the current revision.
pub(crate) fn is_queued(rollout: &Rollout, status: &Status, observed: &Observed) -> bool {
    let differs = observed
        .planned
        .digest
        .is_some_and(|digest| status.progressing().is_some_and(|top| top.digest != digest));
    differs && (rollout.on_change == OnChange::Queue || !status.has_room())
}

fn progressing(status: &Status, judged: &Judged) -> (bool, Reason) {
    let Some(top) = status.top() else { return (true, Reason::Initializing) };
    if let Some(pause) = status.progressing().and(status.paused.as_ref()) {
        return (false, pause.reason.condition());
    }
    let Some(top) = status.progressing() else {
        let undone = status.history.last().filter(|ended| ended.number > top.number);
        let reason = match undone {
            Some(_) => Reason::Undone,
            None if status.history.is_empty() => Reason::Initialized,
            None => Reason::Complete,
        };
        return (false, reason);
    };
    if judged.failed.is_some() {
        return (false, Reason::FailuresExceeded);
    }
    match &judged.last {
        Some(Verdict::Empty) => (false, Reason::WaveEmpty),
        Some(Verdict::TooFew { .. }) => (false, Reason::NoAnswers),
        Some(Verdict::Good) if top.good_since.is_some() => (true, Reason::Soaking),
        Some(Verdict::FailuresExceeded(_)) => (false, Reason::FailuresExceeded),
        Some(Verdict::Good | Verdict::Awaiting) | None => (true, Reason::Opening),
    }
}

fn degraded(rollout: &Rollout, status: &Status, observed: &Observed, judged: &Judged) -> (bool, Reason) {
    let paused = status.paused.as_ref().map(|pause| pause.reason);
    let is_lost = |revision: &Revision| observed.lost.contains(&revision.number);
    let reasons = [
        (judged.failed.is_some() || paused == Some(PauseReason::FailuresExceeded), Reason::FailuresExceeded),
        (observed.too_large.is_some(), Reason::TooLarge),
        (observed.unstored.is_some(), Reason::NotStored),
        (status.revisions.iter().any(is_lost), Reason::BodiesLost),
        (status.replaced_in_a_row >= STARVED_AFTER, Reason::Starved),
        (!observed.overlaps.is_empty(), Reason::Overlaps),
    ];
    match reasons.into_iter().find(|(applies, _)| *applies) {
        Some((_, reason)) => (true, reason),
        None if is_queued(rollout, status, observed) => (false, Reason::Queued),
        None => (false, Reason::AsExpected),
    }
}

/// Computes the conditions; the time of a condition stays while its status does.
pub(crate) fn conditions(
    now: Timestamp,
    rollout: &Rollout,
    status: &Status,
    observed: &Observed,
    judged: &Judged,
) -> Conditions {
    let before = status.conditions.as_ref();
    let condition = |(status, reason): (bool, Reason), before: Option<&Condition>| {
        let since = before.filter(|before| before.status == status).map_or(now, |before| before.since);
        Condition { status, reason, since, message: None }
    };
    let paused = match &status.paused {
        Some(pause) => (true, pause.reason.condition()),
        None => (false, Reason::NotPaused),
    };
    let degraded_before = before.map(|before| &before.degraded);
    let mut degraded = condition(degraded(rollout, status, observed, judged), degraded_before);
    if degraded.reason == Reason::FailuresExceeded {
        // The failures that were first stay, whatever else fails and whichever replica leads.
        degraded.message = failures_before(status)
            .map(str::to_owned)
            .or_else(|| exceeded_message(rollout, judged, observed));
    }
    Conditions {
        progressing: condition(progressing(status, judged), before.map(|before| &before.progressing)),
        paused: condition(paused, before.map(|before| &before.paused)),
        degraded,
    }
}

/// Returns the recorded message about the failures that exceed their limit now.
fn failures_before(status: &Status) -> Option<&str> {
    let degraded = &status.conditions.as_ref()?.degraded;
    degraded.message.as_deref().filter(|_| degraded.reason == Reason::FailuresExceeded)
}

impl PauseReason {
    fn condition(self) -> Reason {
        match self {
            Self::Command => Reason::Paused,
            Self::FailuresExceeded => Reason::FailuresExceeded,
            Self::WavesChanged => Reason::WavesChanged,
        }
    }
}

/// Returns the messages of the conditions, with the current counts.
#[must_use]
pub fn messages(rollout: &Rollout, status: &Status, observed: &Observed) -> Messages {
    let judged = judged(rollout, status, observed);
    Messages {
        progressing: progress_message(rollout, status, observed, &judged),
        paused: pause_message(status),
        degraded: degraded_message(rollout, status, observed, &judged),
    }
}

fn progress_message(rollout: &Rollout, status: &Status, observed: &Observed, judged: &Judged) -> String {
    let Some(top) = status.top() else {
        return "waiting for the objects to settle; they become the stable revision".to_owned();
    };
    if status.progressing().is_none() {
        return format!("revision {} is stable", top.number);
    }
    let place = format!("revision {}, wave {} of {}", top.number, top.open, rollout.waves.count());
    let Some(counts) = top.open.checked_sub(1).and_then(|last| observed.waves.get(last)) else {
        return format!("revision {} is open for no wave", top.number);
    };
    let state = match &judged.last {
        Some(Verdict::Empty) => {
            "no node is in this wave; correct its selector, or set allowEmpty: true".to_owned()
        }
        Some(Verdict::TooFew { successes, required }) => {
            let held = match counts.held_only {
                0 => String::new(),
                held => format!("; {held} hold it and cannot report more (heldOnly: true counts them)"),
            };
            format!("{successes} of {} nodes have succeeded, {required} are required{held}", counts.nodes)
        }
        _ => format!(
            "{} good, {} pending, {} waiting, {} failed, {} away of {} nodes",
            counts.good + counts.held_only,
            counts.pending,
            counts.waiting + counts.excused,
            counts.failed + counts.silent,
            counts.away,
            counts.nodes
        ),
    };
    format!("{place}: {state}")
}

fn pause_message(status: &Status) -> String {
    match &status.paused {
        None => "not paused".to_owned(),
        Some(pause) => match pause.reason {
            PauseReason::Command => format!("paused by {}", pause.by),
            PauseReason::FailuresExceeded => {
                "too many nodes have failed; undo the revision, or promote or resume the roll-out".to_owned()
            }
            PauseReason::WavesChanged => {
                "all waves were changed; resume the roll-out to begin with the first one".to_owned()
            }
        },
    }
}

fn degraded_message(rollout: &Rollout, status: &Status, observed: &Observed, judged: &Judged) -> String {
    let (_, reason) = degraded(rollout, status, observed, judged);
    match (reason, observed.too_large) {
        (Reason::FailuresExceeded, _) => exceeded_message(rollout, judged, observed)
            .or_else(|| failures_before(status).map(str::to_owned))
            .unwrap_or_else(|| "too many nodes have failed".to_owned()),
        (Reason::TooLarge, Some(TooLarge { objects, max_objects, bytes, max_bytes })) => format!(
            "{objects} objects with {bytes} bytes exceed the limit of {max_objects} objects and {max_bytes} bytes; \
             nodes keep the revisions that they have"
        ),
        (Reason::NotStored, ..) => format!(
            "bodies of the next revision cannot be stored: {}; nodes keep the revisions that they have",
            observed.unstored.as_deref().unwrap_or_default()
        ),
        (Reason::BodiesLost, ..) => {
            "bodies of a revision cannot be read; its nodes keep what they hold".to_owned()
        }
        (Reason::Starved, ..) => format!(
            "{} revisions in a row were replaced before they opened a second wave; \
             change less often, shorten soak, or set onChange: Queue",
            status.replaced_in_a_row
        ),
        (Reason::Overlaps, ..) => {
            format!("older rules decide about some of the objects: {}", observed.overlaps.join(", "))
        }
        (Reason::Queued, ..) => "changes wait until the current revision has ended".to_owned(),
        _ => "as expected".to_owned(),
    }
}

/// Returns counts and the first failure of the wave in which failures exceed their limit; `None` if
/// they are not known now.
fn exceeded_message(rollout: &Rollout, judged: &Judged, observed: &Observed) -> Option<String> {
    let (wave, Exceeded { group, counts }) = judged.failed.as_ref()?;
    let key = rollout.max_failures.group_by.as_deref().unwrap_or_default();
    let of = match group {
        Some(value) => format!(" with {key}={value}"),
        None if key.is_empty() => String::new(),
        None => format!(" without the label {key}"),
    };
    let first = observed.waves.get(*wave).and_then(|counts| counts.failures.first());
    let first = first.map(|failed| format!("; {}: {}", failed.node, failed.message)).unwrap_or_default();
    Some(format!(
        "{} of {} nodes{of} in wave {} have failed, {} % may{first}",
        counts.failed,
        counts.answered + counts.awaited,
        wave + 1,
        rollout.max_failures.percent
    ))
}
