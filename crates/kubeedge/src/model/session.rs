//! One session: one message at a time waits for its acknowledgement, answers that want none overtake it.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use super::message::Draft;
use super::{Deletes, Now};

/// The first delay of a message that was never acknowledged, and the longest.
const RETRY: (Duration, Duration) = (Duration::from_millis(5), Duration::from_secs(1000));

/// A message about an object that wants an acknowledgement.
#[derive(Clone, Debug)]
pub struct Tracked {
    pub id: String,
    pub uid: String,
    pub draft: Draft,
}

impl Tracked {
    pub fn is_delete(&self) -> bool {
        self.draft.operation == "delete"
    }
}

struct Flight {
    message: Tracked,
    text: String,
    sends: u32,
    resend_at: Now,
}

pub(super) struct Session {
    pub node: String,
    pub keepalive_at: Now,
    /// Beyond the limit of nodes: accepted, and never answered.
    pub mute: bool,
    /// The last message about each object, even if it was acknowledged long ago.
    stored: BTreeMap<String, Tracked>,
    ready: VecDeque<String>,
    later: BTreeMap<String, Now>,
    failures: BTreeMap<String, u32>,
    flight: Option<Flight>,
    pub out: VecDeque<String>,
    /// Keys of lists that were approved in this session.
    pub approved: Vec<String>,
}

impl Session {
    pub(super) fn new(node: &str, now: Now, mute: bool) -> Self {
        Self {
            node: node.to_owned(),
            keepalive_at: now,
            mute,
            stored: BTreeMap::new(),
            ready: VecDeque::new(),
            later: BTreeMap::new(),
            failures: BTreeMap::new(),
            flight: None,
            out: VecDeque::new(),
            approved: Vec::new(),
        }
    }

    pub(super) fn stored(&self, uid: &str) -> Option<&Tracked> {
        self.stored.get(uid)
    }

    /// The message takes the place of one about the same object that has not left yet.
    pub(super) fn enqueue(&mut self, message: Tracked) {
        let uid = message.uid.clone();
        self.stored.insert(uid.clone(), message);
        self.later.remove(&uid);
        if !self.ready.contains(&uid) {
            self.ready.push_back(uid);
        }
    }

    /// Sends the next message if none is under way.
    pub(super) fn pump(&mut self, now: Now, resend: Duration, wall: u64, deletes: Deletes) {
        while self.flight.is_none()
            && let Some(uid) = self.ready.pop_front()
        {
            let Some(message) = self.stored.get(&uid).cloned() else { continue };
            let text = message.draft.text(&message.id, wall, deletes);
            self.out.push_back(text.clone());
            self.flight = Some(Flight { message, text, sends: 1, resend_at: now + resend });
        }
    }

    pub(super) fn tick(&mut self, now: Now, resend: Duration, sends: u32) {
        let due: Vec<_> =
            self.later.iter().filter(|(_, at)| **at <= now).map(|(uid, _)| uid.clone()).collect();
        for uid in due {
            self.later.remove(&uid);
            self.ready.push_back(uid);
        }
        let Some(flight) = self.flight.as_mut().filter(|flight| flight.resend_at <= now) else { return };
        if flight.sends < sends {
            flight.sends += 1;
            flight.resend_at = now + resend;
            self.out.push_back(flight.text.clone());
            return;
        }
        let uid = flight.message.uid.clone();
        self.flight = None;
        let failures = self.failures.entry(uid.clone()).or_default();
        *failures += 1;
        let wait = RETRY.0.saturating_mul(1 << (*failures - 1).min(20)).min(RETRY.1);
        if !self.ready.contains(&uid) {
            self.later.insert(uid, now + wait);
        }
    }

    /// Gives the message that was waited for, if this acknowledges it.
    pub(super) fn acknowledged(&mut self, parent: &str) -> Option<Tracked> {
        let flight = self.flight.take_if(|flight| flight.message.id == parent)?;
        self.failures.remove(&flight.message.uid);
        Some(flight.message)
    }

    pub(super) fn deadline(&self) -> Option<Now> {
        let resend = self.flight.as_ref().map(|flight| flight.resend_at);
        self.later.values().copied().chain(resend).min()
    }

    pub(super) fn waiting(&self) -> usize {
        self.ready.len() + self.later.len() + usize::from(self.flight.is_some())
    }
}
