//! One session: one message at a time waits for its acknowledgement; answers without one overtake
//! it.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use super::message::Draft;
use super::{Deletes, Now};

/// The first and the longest delay of a message that was never acknowledged.
const RETRY: (Duration, Duration) = (Duration::from_millis(5), Duration::from_secs(1000));

/// A message about an object that requires an acknowledgement.
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

struct InFlight {
    message: Tracked,
    text: String,
    sends: u32,
    resend_at: Now,
}

pub(super) struct Session {
    pub node: String,
    pub keepalive_at: Now,
    /// Whether the session exceeds the limit of nodes: accepted, and never answered.
    pub mute: bool,
    /// The last message about each object, even if acknowledged long ago.
    stored: BTreeMap<String, Tracked>,
    ready: VecDeque<String>,
    later: BTreeMap<String, Now>,
    failures: BTreeMap<String, u32>,
    in_flight: Option<InFlight>,
    pub out: VecDeque<String>,
    /// The keys of lists approved in this session.
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
            in_flight: None,
            out: VecDeque::new(),
            approved: Vec::new(),
        }
    }

    pub(super) fn stored(&self, uid: &str) -> Option<&Tracked> {
        self.stored.get(uid)
    }

    /// Queues a message; it replaces an unsent one about the same object.
    pub(super) fn enqueue(&mut self, message: Tracked) {
        let uid = message.uid.clone();
        self.stored.insert(uid.clone(), message);
        self.later.remove(&uid);
        if !self.ready.contains(&uid) {
            self.ready.push_back(uid);
        }
    }

    /// Sends the next message unless one is in flight.
    pub(super) fn pump(&mut self, now: Now, resend: Duration, wall: u64, deletes: Deletes) {
        while self.in_flight.is_none()
            && let Some(uid) = self.ready.pop_front()
        {
            let Some(message) = self.stored.get(&uid).cloned() else { continue };
            let text = message.draft.text(&message.id, wall, deletes);
            self.out.push_back(text.clone());
            self.in_flight = Some(InFlight { message, text, sends: 1, resend_at: now + resend });
        }
    }

    pub(super) fn tick(&mut self, now: Now, resend: Duration, sends: u32) {
        let due: Vec<_> =
            self.later.iter().filter(|(_, at)| **at <= now).map(|(uid, _)| uid.clone()).collect();
        for uid in due {
            self.later.remove(&uid);
            self.ready.push_back(uid);
        }
        let Some(in_flight) = self.in_flight.as_mut().filter(|in_flight| in_flight.resend_at <= now) else {
            return;
        };
        if in_flight.sends < sends {
            in_flight.sends += 1;
            in_flight.resend_at = now + resend;
            self.out.push_back(in_flight.text.clone());
            return;
        }
        let uid = in_flight.message.uid.clone();
        self.in_flight = None;
        let failures = self.failures.entry(uid.clone()).or_default();
        *failures += 1;
        let wait = RETRY.0.saturating_mul(1 << (*failures - 1).min(20)).min(RETRY.1);
        if !self.ready.contains(&uid) {
            self.later.insert(uid, now + wait);
        }
    }

    /// Returns the message in flight if this acknowledges it.
    pub(super) fn acknowledged(&mut self, parent: &str) -> Option<Tracked> {
        let in_flight = self.in_flight.take_if(|in_flight| in_flight.message.id == parent)?;
        self.failures.remove(&in_flight.message.uid);
        Some(in_flight.message)
    }

    pub(super) fn deadline(&self) -> Option<Now> {
        let resend = self.in_flight.as_ref().map(|in_flight| in_flight.resend_at);
        self.later.values().copied().chain(resend).min()
    }

    pub(super) fn waiting(&self) -> usize {
        self.ready.len() + self.later.len() + usize::from(self.in_flight.is_some())
    }
}
