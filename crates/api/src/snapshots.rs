//! Snapshots behind `continue` tokens, and the tokens themselves.

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

/// The contents of a `continue` token. Opaque to clients.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Token {
    /// The snapshot; `None` to continue in the newest state.
    #[serde(rename = "s", skip_serializing_if = "Option::is_none", default)]
    pub(super) snapshot: Option<u128>,
    /// The position to continue at.
    #[serde(rename = "c")]
    pub(super) cursor: String,
    /// The kind and namespace of the list that the token belongs to.
    #[serde(rename = "p")]
    pub(super) list_id: String,
    /// Objects returned in earlier pages.
    #[serde(rename = "n", default)]
    pub(super) returned: u64,
}

impl Token {
    /// Encodes the token as opaque text.
    pub(super) fn encode(&self) -> String {
        URL_SAFE_NO_PAD.encode(serde_json::to_vec(self).unwrap_or_default())
    }

    /// Decodes the text of a client.
    ///
    /// # Errors
    /// 400 for a text that is no token, or a token of another list.
    pub(super) fn decode(text: &str, list_id: &str) -> Result<Self> {
        let bytes = URL_SAFE_NO_PAD.decode(text).ok();
        let token = bytes.and_then(|bytes| serde_json::from_slice::<Self>(&bytes).ok());
        let token = token.ok_or_else(|| {
            Status::bad_request("continue key is not valid: it was not issued by this server")
        })?;
        if token.list_id != list_id {
            return Err(Status::bad_request("continue key is not valid: it was issued for another list"));
        }
        Ok(token)
    }

    /// Identifies a list: its kind and namespace.
    pub(super) fn list_id(plural: &str, group: &str, namespace: Option<&str>) -> String {
        format!("{group}/{plural}/{}", namespace.unwrap_or_default())
    }

    pub(super) fn cursor(&self) -> Cursor {
        Cursor(self.cursor.clone())
    }

    /// Returns the 410 for an expired snapshot, with a token that continues in the newest state.
    pub(super) fn expired(&self) -> Status {
        let fresh = Self { snapshot: None, ..self.clone() };
        let message = "The provided continue parameter is too old to display a consistent list result. You can start a new \
            list without the continue parameter, or use the continue token in this response to retrieve the remainder of \
            the results. Continuing with the provided token results in an inconsistent list - objects that were created, \
            modified, or deleted between the time the first chunk was returned and now may show up in the list.";
        let details = Details { continue_token: fresh.encode(), ..Details::default() };
        Status::new(Reason::Expired, message).with(details)
    }
}

/// How many snapshots are held between requests, and for how long.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct SnapshotLimits {
    /// Maximum number of snapshots held.
    pub(super) count: usize,
    /// Maximum time since the last request.
    pub(super) idle: Duration,
    /// Maximum time since the first request: an open snapshot keeps the database from reusing
    /// its write-ahead log.
    pub(super) age: Duration,
}

/// Snapshots held for the next request of their clients.
pub(super) struct Snapshots<S> {
    limits: SnapshotLimits,
    idle: Mutex<HashMap<u128, Idle<S>>>,
}

struct Idle<S> {
    held: OpenSnapshot<S>,
    since: Instant,
}

/// A snapshot with the time it was opened.
pub(super) struct OpenSnapshot<S> {
    pub(super) snapshot: S,
    opened: Instant,
}

impl<S> OpenSnapshot<S> {
    /// Wraps a snapshot that was just opened.
    pub(super) fn new(snapshot: S) -> Self {
        Self { snapshot, opened: Instant::now() }
    }
}

impl<S> Snapshots<S> {
    pub(super) fn new(limits: SnapshotLimits) -> Self {
        Self { limits, idle: Mutex::new(HashMap::new()) }
    }

    /// Takes the snapshot of a token, if it is still held.
    pub(super) fn take(&self, id: u128) -> Option<OpenSnapshot<S>> {
        let mut idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner);
        self.drop_expired(&mut idle);
        idle.remove(&id).map(|idle| idle.held)
    }

    /// Holds a snapshot for the next request. At the limit the one idle for longest is evicted.
    pub(super) fn keep(&self, id: u128, held: OpenSnapshot<S>) {
        let mut idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner);
        self.drop_expired(&mut idle);
        while idle.len() >= self.limits.count.max(1) {
            let oldest = idle.iter().min_by_key(|(_, idle)| idle.since).map(|(id, _)| *id);
            let Some(oldest) = oldest else { break };
            idle.remove(&oldest);
        }
        idle.insert(id, Idle { held, since: Instant::now() });
    }

    /// Drops expired snapshots. Called periodically, also without list requests.
    pub(super) fn sweep(&self) {
        let mut idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner);
        self.drop_expired(&mut idle);
    }

    fn drop_expired(&self, idle: &mut HashMap<u128, Idle<S>>) {
        let limits = &self.limits;
        idle.retain(|_, entry| {
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
    fn snapshot_is_taken_once_and_can_be_held_again() {
        let snapshots = Snapshots::new(limits(2, Duration::from_secs(60)));
        let id = 7;
        snapshots.keep(id, OpenSnapshot::new(7));
        let held = snapshots.take(id).unwrap();
        assert!(held.snapshot == 7 && snapshots.take(id).is_none());
        snapshots.keep(id, held);
        assert!(snapshots.take(id).is_some());
    }

    #[test]
    fn snapshot_idle_for_longest_is_evicted() {
        let snapshots = Snapshots::new(limits(2, Duration::from_secs(60)));
        let ids = [1, 2, 3];
        for (number, id) in ids.into_iter().enumerate() {
            snapshots.keep(id, OpenSnapshot::new(number));
        }
        let there: Vec<bool> = ids.into_iter().map(|id| snapshots.take(id).is_some()).collect();
        assert_eq!(there, [false, true, true]);
    }

    #[test]
    fn expired_snapshot_gives_a_token_for_the_rest() {
        let snapshots = Snapshots::new(limits(2, Duration::ZERO));
        let id = 7;
        snapshots.keep(id, OpenSnapshot::new(()));
        snapshots.sweep();
        assert!(snapshots.take(id).is_none());
        let token = Token { snapshot: Some(id), cursor: "c".into(), list_id: "/pods/".into(), returned: 5 };
        let status = token.expired();
        assert_eq!(status.code, 410);
        let fresh = Token::decode(&status.details.unwrap().continue_token, "/pods/").unwrap();
        assert_eq!((fresh.snapshot, fresh.cursor), (None, "c".to_owned()));
    }

    #[test]
    fn tokens_round_trip_and_others_are_refused() {
        let token = Token { snapshot: None, cursor: "a/ä".into(), list_id: "apps/x/n".into(), returned: 0 };
        assert_eq!(Token::decode(&token.encode(), "apps/x/n"), Ok(token.clone()));
        assert_eq!(Token::decode(&token.encode(), "apps/x/m").unwrap_err().code, 400);
        for bad in ["x", "%%", "e30", "bnVsbA", ""] {
            assert_eq!(Token::decode(bad, "apps/x/n").unwrap_err().code, 400, "{bad}");
        }
    }
}
