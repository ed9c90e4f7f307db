//! The delivery history of single objects: attempts, refusals, retry times, and versions sent ahead
//! of the desired state.
//!
//! An object without an entry is in its first attempt, or has arrived.

use std::collections::HashMap;
use std::time::Duration;

use crate::change::Uid;
use crate::timing::{Now, backoff};
use edgesync_object::ResourceVersion;

use super::desired::Desired;
use super::types::Refusal;

/// An object that was lost, could not be loaded, or was refused.
#[derive(Debug, Default)]
struct Retry {
    attempts: u32,
    /// The earliest time of the next attempt; [`Now::MAX`] until this replica has caught up.
    retry_at: Now,
    refusal: Option<Refusal>,
    /// The first frame of this session that carried the object, and the version in it.
    sent: Option<(u64, ResourceVersion)>,
}

/// The delivery history of a node's objects.
#[derive(Debug, Default)]
pub(super) struct Deliveries {
    retries: HashMap<Uid, Retry>,
    /// Sent versions newer than the desired ones: the change of the desired state has not arrived
    /// here yet.
    ahead: HashMap<Uid, ResourceVersion>,
}

impl Deliveries {
    /// Begins a session: refusals outlive it, frame numbers and losses do not.
    pub(super) fn begin_session(&mut self) {
        self.retries.retain(|_, retry| retry.refusal.is_some());
        self.retries.values_mut().for_each(|retry| retry.sent = None);
    }

    /// Handles a change of the desired state: another version starts without failures.
    pub(super) fn note_change(&mut self, uid: &Uid, before: Option<&Desired>, latest: Option<&Desired>) {
        let Some(latest) = latest else {
            self.ahead.remove(uid);
            self.retries.remove(uid);
            return;
        };
        let is_ahead = |version: &ResourceVersion| !latest.is_exact && latest.version.is_older_than(version);
        if self.ahead.get(uid).is_some_and(|version| !is_ahead(version)) {
            self.ahead.remove(uid);
        }
        let is_other = before.is_none_or(|before| before.version != latest.version);
        if is_other && !self.ahead.contains_key(uid) {
            self.retries.remove(uid);
        }
    }

    /// Records that a version newer than the desired one is sent. Failures of another version do
    /// not count for it.
    pub(super) fn send_ahead(&mut self, uid: &Uid, version: &ResourceVersion) {
        self.ahead.insert(uid.clone(), version.clone());
        self.retries.remove(uid);
    }

    /// Returns the version that the node has to report: the desired one, or a newer one sent ahead
    /// of it.
    pub(super) fn target<'a>(&'a self, uid: &Uid, desired: &'a ResourceVersion) -> &'a ResourceVersion {
        self.ahead.get(uid).unwrap_or(desired)
    }

    /// Forgets the failures of an object.
    pub(super) fn forget(&mut self, uid: &Uid) {
        self.retries.remove(uid);
    }

    /// Returns how many times an object was lost or refused.
    pub(super) fn attempts(&self, uid: &Uid) -> u32 {
        self.retries.get(uid).map_or(0, |retry| retry.attempts)
    }

    /// Returns whether the object itself may cause the failures: it travels alone then.
    pub(super) fn is_suspect(&self, uid: &Uid) -> bool {
        self.retries.get(uid).is_some_and(|retry| retry.attempts > 1 || retry.refusal.is_some())
    }

    /// Returns the first frame of this session that carried this version.
    pub(super) fn first_frame(&self, uid: &Uid, version: &ResourceVersion) -> Option<u64> {
        let (frame, sent) = self.retries.get(uid)?.sent.as_ref()?;
        (sent == version).then_some(*frame)
    }

    /// Delays the next attempt until `at` without counting a failure.
    pub(super) fn delay(&mut self, uid: &Uid, at: Now) {
        self.retries.entry(uid.clone()).or_default().retry_at = at;
    }

    /// Counts a loss and schedules the next attempt. `sent` is the lost version and its frame, if
    /// it had left.
    pub(super) fn lose(&mut self, uid: &Uid, sent: Option<(u64, ResourceVersion)>, at: Now) {
        let retry = self.retries.entry(uid.clone()).or_default();
        if sent.is_some() {
            retry.sent = sent;
        }
        retry.attempts = retry.attempts.saturating_add(1);
        retry.retry_at = at;
    }

    /// Counts a refusal and schedules the next attempt between these delays. Returns whether the
    /// refusal is new.
    pub(super) fn refuse(
        &mut self,
        now: Now,
        uid: &Uid,
        refusal: Refusal,
        (min, max): (Duration, Duration),
    ) -> bool {
        let retry = self.retries.entry(uid.clone()).or_default();
        let is_new = retry.refusal.as_ref() != Some(&refusal);
        retry.refusal = Some(refusal);
        // A hash of the UID would spread the retries, but those of one node need no spread.
        retry.retry_at = now + backoff(min, max, retry.attempts, u64::MAX);
        retry.attempts = retry.attempts.saturating_add(1);
        is_new
    }

    /// Suspends the retries of an object until [`Deliveries::resume`].
    pub(super) fn suspend(&mut self, uid: &Uid) {
        if let Some(retry) = self.retries.get_mut(uid) {
            retry.retry_at = Now::MAX;
        }
    }

    /// Resumes all suspended retries.
    pub(super) fn resume(&mut self, now: Now) {
        for retry in self.retries.values_mut().filter(|retry| retry.retry_at == Now::MAX) {
            retry.retry_at = now;
        }
    }

    /// Returns whether the object must not be sent yet.
    pub(super) fn is_delayed(&self, uid: &Uid, now: Now) -> bool {
        self.retries.get(uid).is_some_and(|retry| retry.retry_at > now)
    }

    /// Returns the objects whose retry is due.
    pub(super) fn due(&self, now: Now) -> Vec<Uid> {
        let due = self.retries.iter().filter(|(_, retry)| retry.retry_at <= now);
        due.map(|(uid, _)| uid.clone()).collect()
    }

    /// Returns the earliest retry among the objects that `is_waiting` selects.
    pub(super) fn deadline(&self, is_waiting: impl Fn(&Uid) -> bool) -> Option<Now> {
        let waiting = self.retries.iter().filter(|(uid, _)| is_waiting(uid));
        waiting.map(|(_, retry)| retry.retry_at).min()
    }

    /// Returns the refusal of an object by the node.
    pub(super) fn refusal(&self, uid: &str) -> Option<&Refusal> {
        self.retries.get(uid).and_then(|retry| retry.refusal.as_ref())
    }

    /// Returns all refusals with their UIDs.
    pub(super) fn refused(&self) -> impl Iterator<Item = (&Uid, &Refusal)> {
        self.retries.iter().filter_map(|(uid, retry)| Some((uid, retry.refusal.as_ref()?)))
    }

    /// Returns whether no object has a failure, except those for which `waits` is true.
    pub(super) fn is_clean(&self, waits: impl Fn(&Uid) -> bool) -> bool {
        self.retries.keys().all(waits)
    }

    /// Returns the number of entries in memory.
    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.retries.len() + self.ahead.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::change::RejectReason;

    fn uid() -> Uid {
        "a".into()
    }

    fn refusal(version: u64) -> Refusal {
        Refusal { version: version.into(), reason: RejectReason::Invalid, message: "no".into() }
    }

    const DELAYS: (Duration, Duration) = (Duration::from_secs(300), Duration::from_secs(3600));

    #[test]
    fn refusals_back_off_and_only_news_is_new() {
        let mut deliveries = Deliveries::default();
        assert!(deliveries.refuse(Now::ZERO, &uid(), refusal(1), DELAYS));
        let first = deliveries.deadline(|_| true);
        assert!(!deliveries.refuse(Now::ZERO, &uid(), refusal(1), DELAYS));
        assert!(deliveries.deadline(|_| true) > first);
        assert!(deliveries.refuse(Now::ZERO, &uid(), refusal(2), DELAYS));
        assert!(deliveries.is_suspect(&uid()));
    }

    #[test]
    fn a_session_forgets_losses_and_keeps_refusals() {
        let mut deliveries = Deliveries::default();
        deliveries.lose(&uid(), Some((3, 1.into())), Now::ZERO);
        assert_eq!(deliveries.first_frame(&uid(), &1.into()), Some(3));
        assert_eq!(deliveries.first_frame(&uid(), &2.into()), None);
        deliveries.begin_session();
        assert!(deliveries.is_clean(|_| false));
        deliveries.lose(&uid(), Some((3, 1.into())), Now::ZERO);
        deliveries.refuse(Now::ZERO, &uid(), refusal(1), DELAYS);
        deliveries.begin_session();
        assert_eq!(deliveries.first_frame(&uid(), &1.into()), None);
        assert_eq!(deliveries.refusal("a"), Some(&refusal(1)));
    }

    #[test]
    fn suspended_retries_wait_until_they_are_resumed() {
        let mut deliveries = Deliveries::default();
        deliveries.suspend(&uid());
        assert!(deliveries.is_clean(|_| false), "what never failed has no retry to suspend");
        deliveries.lose(&uid(), None, Now::ZERO);
        deliveries.suspend(&uid());
        assert!(deliveries.due(Duration::from_secs(1_000_000)).is_empty());
        deliveries.resume(Duration::from_secs(5));
        assert!(deliveries.is_delayed(&uid(), Duration::from_secs(4)));
        assert_eq!(deliveries.due(Duration::from_secs(5)), [uid()]);
    }
}
