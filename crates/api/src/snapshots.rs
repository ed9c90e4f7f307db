//! Lists that go on in a later request: the snapshots behind `continue` tokens, and what the tokens say.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde::{Deserialize, Serialize};
use tokio::time::Instant;

use super::storage::Cursor;
use edgesync_object::Status;
use edgesync_object::status::{Details, Reason, Result};

/// What a `continue` token says. Clients get it as opaque text.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Token {
    /// The snapshot; `None` to go on in the newest state.
    #[serde(rename = "s", skip_serializing_if = "Option::is_none", default)]
    pub(super) snapshot: Option<u128>,
    /// Where to go on.
    #[serde(rename = "c")]
    pub(super) cursor: String,
    /// The kind and namespace that it was given for.
    #[serde(rename = "p")]
    pub(super) place: String,
    /// How many objects have been given before.
    #[serde(rename = "n", default)]
    pub(super) given: u64,
}

impl Token {
    /// The text for clients.
    pub(super) fn encode(&self) -> String {
        URL_SAFE_NO_PAD.encode(serde_json::to_vec(self).unwrap_or_default())
    }

    /// Reads the text of a client.
    ///
    /// # Errors
    /// 400 for a text that is no token, or one for another list.
    pub(super) fn decode(text: &str, place: &str) -> Result<Self> {
        let bytes = URL_SAFE_NO_PAD.decode(text).ok();
        let token = bytes.and_then(|bytes| serde_json::from_slice::<Self>(&bytes).ok());
        let token = token.ok_or_else(|| {
            Status::bad_request("continue key is not valid: it is not one that this server gave")
        })?;
        if token.place != place {
            return Err(Status::bad_request("continue key is not valid: it was given for another list"));
        }
        Ok(token)
    }

    /// The place where a token belongs.
    pub(super) fn place(plural: &str, group: &str, namespace: Option<&str>) -> String {
        format!("{group}/{plural}/{}", namespace.unwrap_or_default())
    }

    pub(super) fn cursor(&self) -> Cursor {
        Cursor(self.cursor.clone())
    }

    /// What a client is told whose snapshot is gone: with a token to go on in the newest state.
    pub(super) fn expired(&self) -> Status {
        let fresh = Self { snapshot: None, ..self.clone() };
        let message = "The provided continue parameter is too old to display a consistent list result. Start a new list \
            without it, or use the token in this answer: what was created, changed or deleted since the first part may \
            then be seen or missed.";
        let details = Details { continue_token: fresh.encode(), ..Details::default() };
        Status::new(Reason::Expired, message).with(details)
    }
}

/// How many snapshots wait for their client, and how long.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct SnapshotLimits {
    /// Snapshots.
    pub(super) count: usize,
    /// Time since the last request.
    pub(super) idle: Duration,
    /// Time since the first request: an open snapshot keeps the log of the database from being reused.
    pub(super) age: Duration,
}

/// Snapshots that wait for the next request of their clients.
pub(super) struct Snapshots<S> {
    limits: SnapshotLimits,
    waiting: Mutex<HashMap<u128, Waiting<S>>>,
}

struct Waiting<S> {
    held: Held<S>,
    since: Instant,
}

/// A snapshot in use.
pub(super) struct Held<S> {
    pub(super) snapshot: S,
    opened: Instant,
}

impl<S> Held<S> {
    /// A snapshot that was just opened.
    pub(super) fn new(snapshot: S) -> Self {
        Self { snapshot, opened: Instant::now() }
    }
}

impl<S> Snapshots<S> {
    pub(super) fn new(limits: SnapshotLimits) -> Self {
        Self { limits, waiting: Mutex::new(HashMap::new()) }
    }

    /// Takes the snapshot of a token, if it still waits.
    pub(super) fn take(&self, id: u128) -> Option<Held<S>> {
        let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        self.drop_old(&mut waiting);
        waiting.remove(&id).map(|waiting| waiting.held)
    }

    /// Keeps a snapshot for the next request; the one that has waited longest goes if there are too many.
    pub(super) fn keep(&self, id: u128, held: Held<S>) {
        let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        self.drop_old(&mut waiting);
        while waiting.len() >= self.limits.count.max(1) {
            let oldest = waiting.iter().min_by_key(|(_, waiting)| waiting.since).map(|(id, _)| *id);
            let Some(oldest) = oldest else { break };
            waiting.remove(&oldest);
        }
        waiting.insert(id, Waiting { held, since: Instant::now() });
    }

    /// Lets go of what has waited too long. Called now and then, also when nobody lists.
    pub(super) fn sweep(&self) {
        let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        self.drop_old(&mut waiting);
    }

    fn drop_old(&self, waiting: &mut HashMap<u128, Waiting<S>>) {
        let limits = &self.limits;
        waiting.retain(|_, entry| {
            entry.since.elapsed() < limits.idle && entry.held.opened.elapsed() < limits.age
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn limits(count: usize, idle: Duration) -> SnapshotLimits {
        SnapshotLimits { count, idle, age: Duration::from_secs(60) }
    }

    #[test]
    fn a_snapshot_can_be_taken_once_and_kept_again() {
        let snapshots = Snapshots::new(limits(2, Duration::from_secs(60)));
        let id = 7;
        snapshots.keep(id, Held::new(7));
        let held = snapshots.take(id).unwrap();
        assert!(held.snapshot == 7 && snapshots.take(id).is_none());
        snapshots.keep(id, held);
        assert!(snapshots.take(id).is_some());
    }

    #[test]
    fn the_one_that_waited_longest_makes_room() {
        let snapshots = Snapshots::new(limits(2, Duration::from_secs(60)));
        let ids = [1, 2, 3];
        for (number, id) in ids.into_iter().enumerate() {
            snapshots.keep(id, Held::new(number));
        }
        let there: Vec<bool> = ids.into_iter().map(|id| snapshots.take(id).is_some()).collect();
        assert_eq!(there, [false, true, true]);
    }

    #[test]
    fn who_comes_too_late_finds_nothing_and_gets_a_token_for_the_rest() {
        let snapshots = Snapshots::new(limits(2, Duration::ZERO));
        let id = 7;
        snapshots.keep(id, Held::new(()));
        snapshots.sweep();
        assert!(snapshots.take(id).is_none());
        let token = Token { snapshot: Some(id), cursor: "c".into(), place: "/pods/".into(), given: 5 };
        let status = token.expired();
        assert_eq!(status.code, 410);
        let fresh = Token::decode(&status.details.unwrap().continue_token, "/pods/").unwrap();
        assert_eq!((fresh.snapshot, fresh.cursor), (None, "c".to_owned()));
    }

    #[test]
    fn tokens_come_back_and_others_are_refused() {
        let token = Token { snapshot: None, cursor: "a/ä".into(), place: "apps/x/n".into(), given: 0 };
        assert_eq!(Token::decode(&token.encode(), "apps/x/n"), Ok(token.clone()));
        assert_eq!(Token::decode(&token.encode(), "apps/x/m").unwrap_err().code, 400);
        for bad in ["x", "%%", "e30", "bnVsbA", ""] {
            assert_eq!(Token::decode(bad, "apps/x/n").unwrap_err().code, 400, "{bad}");
        }
    }
}
