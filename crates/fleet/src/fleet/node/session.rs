//! Connection and session of a node: its frames, its quota, and the rate limit of its log lines.

use edgesync_protocol::timing::Now;
use edgesync_transport::admission::LogThrottle;

/// Maximum number of log lines that one node causes in ten seconds.
const LINES: u32 = 20;

/// Connection state of a node; see the module.
pub(crate) struct Session {
    /// Current connection: a number at the embedded endpoint, otherwise the id in the presence.
    connection: Option<String>,
    /// Session id in the last Hello.
    id: Option<String>,
    /// Encoded frame that waits for capacity in the link.
    unsent: Option<Vec<u8>>,
    /// Whether a task waits for capacity in the link.
    awaits_room: bool,
    /// End of the time in which frames are dropped because the node has exceeded its quota.
    refused_until: Now,
    log: LogThrottle,
    /// Bytes of frames sent and received.
    sent: u64,
    received: u64,
}

impl Default for Session {
    fn default() -> Self {
        Self {
            connection: None,
            id: None,
            unsent: None,
            awaits_room: false,
            refused_until: Now::ZERO,
            log: LogThrottle::of(LINES),
            sent: 0,
            received: 0,
        }
    }
}

impl Session {
    /// Replaces the connection; the session id stays until the next Hello.
    pub(crate) fn connected(&mut self, connection: String) {
        self.connection = Some(connection);
    }

    /// Ends the connection, and drops its waiting frame.
    pub(crate) fn disconnected(&mut self) {
        self.connection = None;
        self.unsent = None;
    }

    pub(crate) fn connection(&self) -> Option<&str> {
        self.connection.as_deref()
    }

    pub(crate) fn is_connected(&self) -> bool {
        self.connection.is_some()
    }

    /// Stores the session id of a Hello.
    pub(crate) fn begin(&mut self, id: String) {
        self.id = Some(id);
    }

    /// Returns the session id of the last Hello, and the connection.
    pub(crate) fn into_ids(self) -> (Option<String>, Option<String>) {
        (self.id, self.connection)
    }

    // --- downstream frames

    pub(crate) fn has_unsent(&self) -> bool {
        self.unsent.is_some()
    }

    pub(crate) fn take_unsent(&mut self) -> Option<Vec<u8>> {
        self.unsent.take()
    }

    /// Keeps a frame that waits for capacity in the link.
    pub(crate) fn keep_unsent(&mut self, frame: Vec<u8>) {
        self.unsent = Some(frame);
    }

    /// Records that a task waits for capacity. Returns whether none did before.
    pub(crate) fn await_room(&mut self) -> bool {
        !std::mem::replace(&mut self.awaits_room, true)
    }

    /// Records that the waiting task has ended.
    pub(crate) fn has_room(&mut self) {
        self.awaits_room = false;
    }

    pub(crate) fn count_sent(&mut self, bytes: usize) {
        self.sent += bytes as u64;
    }

    pub(crate) fn sent(&self) -> u64 {
        self.sent
    }

    // --- upstream frames

    pub(crate) fn count_received(&mut self, bytes: usize) {
        self.received += bytes as u64;
    }

    pub(crate) fn received(&self) -> u64 {
        self.received
    }

    /// Drops all frames until the given time.
    pub(crate) fn refuse_until(&mut self, until: Now) {
        self.refused_until = until;
    }

    pub(crate) fn is_refused(&self, now: Now) -> bool {
        self.refused_until > now
    }

    /// Returns whether the rate limit permits another log line.
    pub(crate) fn may_log(&self) -> bool {
        self.log.permit_line().is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unsent_frame_is_dropped_with_its_connection() {
        let mut session = Session::default();
        session.connected("1".into());
        session.begin("s".into());
        session.keep_unsent(vec![1]);
        assert!(session.has_unsent() && session.is_connected());
        session.disconnected();
        assert_eq!((session.take_unsent(), session.connection()), (None, None));
        session.connected("2".into());
        assert_eq!(session.into_ids(), (Some("s".into()), Some("2".into())));
    }

    #[test]
    fn one_task_waits_for_capacity() {
        let mut session = Session::default();
        assert_eq!((session.await_room(), session.await_room()), (true, false));
        session.has_room();
        assert!(session.await_room());
    }

    #[test]
    fn refusal_expires() {
        let mut session = Session::default();
        assert!(!session.is_refused(Now::ZERO));
        session.refuse_until(Now::from_secs(60));
        assert!(session.is_refused(Now::from_secs(59)) && !session.is_refused(Now::from_secs(60)));
    }
}
