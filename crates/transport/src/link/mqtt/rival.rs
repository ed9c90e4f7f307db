//! Detects another client with this client's id when the broker does not report it. Pure.
//!
//! Mosquitto closes the older connection without a reason when a newer one takes its session over,
//! which looks like any other loss. Two agents with one name would disconnect each other for ever,
//! a little slower each time. But both write the same presence topic: a message found there on a
//! later connection that this program did not write is from another client. The connection on which
//! it is found is kept, because it is the newest. If it then ends without a reason, the other
//! client took it over.

use std::collections::VecDeque;

/// Number of own messages remembered: will, greeting and farewell of a few connections. The same
/// number for attempts, kept apart: a long outage has many of them, and the messages of the last
/// connection are still retained after it.
const REMEMBERED: usize = 16;

/// Messages on the own topic, and whether one of them is foreign.
#[derive(Default)]
pub(super) struct RivalWatch {
    own: VecDeque<Vec<u8>>,
    tried: VecDeque<Vec<u8>>,
    connections: u64,
    seen: bool,
}

impl RivalWatch {
    /// Records that a new connection is established.
    pub(super) fn connected(&mut self) {
        self.connections = self.connections.saturating_add(1);
        self.seen = false;
    }

    /// Records a message that this client writes to the topic, or the broker on its behalf.
    pub(super) fn wrote(&mut self, payload: &[u8]) {
        remember(&mut self.own, payload);
    }

    /// Records a message of a connection attempt, which the broker may publish even if this side
    /// never sees it succeed.
    pub(super) fn tries(&mut self, payload: &[u8]) {
        remember(&mut self.tried, payload);
    }

    /// Checks a message found on the topic; returns whether it is the first sign of a rival on this
    /// connection.
    ///
    /// On the first connection a foreign message is from an earlier run of this program.
    pub(super) fn found(&mut self, payload: &[u8]) -> bool {
        let ours = self.own.iter().chain(&self.tried).any(|own| own == payload);
        let foreign = self.connections > 1 && !payload.is_empty() && !ours;
        let first = foreign && !self.seen;
        self.seen |= foreign;
        first
    }

    /// Returns whether a loss without a reason means that the session was taken over.
    pub(super) fn seen(&self) -> bool {
        self.seen
    }
}

fn remember(messages: &mut VecDeque<Vec<u8>>, payload: &[u8]) {
    if messages.iter().any(|own| own == payload) {
        return;
    }
    if messages.len() == REMEMBERED {
        messages.pop_front();
    }
    messages.push_back(payload.to_owned());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn message_of_an_earlier_run_is_no_rival() {
        let mut watch = RivalWatch::default();
        watch.connected();
        assert!(!watch.found(b"offline, run 1"));
        assert!(!watch.seen());
    }

    #[test]
    fn own_messages_are_no_rival_on_any_connection() {
        let mut watch = RivalWatch::default();
        for connection in 0..5_u8 {
            watch.wrote(&[b'w', connection]);
            watch.wrote(&[b'g', connection]);
            watch.connected();
            assert!(!watch.found(&[b'w', connection.saturating_sub(1)]));
            assert!(!watch.found(&[b'g', connection]));
            assert!(!watch.found(b""));
        }
    }

    #[test]
    fn foreign_message_on_a_later_connection_is_a_rival() {
        let mut watch = RivalWatch::default();
        watch.connected();
        watch.connected();
        assert!(watch.found(b"other"));
        assert!(!watch.found(b"other"), "only the first sign counts");
        assert!(watch.seen());
        watch.connected();
        assert!(!watch.seen());
    }

    #[test]
    fn old_messages_are_no_rival_after_any_number_of_attempts() {
        let mut watch = RivalWatch::default();
        watch.wrote(b"will");
        watch.connected();
        for number in 0..1000_u32 {
            watch.tries(&number.to_le_bytes());
        }
        watch.connected();
        assert!(!watch.found(b"will"));
        assert!(!watch.found(&999_u32.to_le_bytes()), "an attempt whose CONNECT arrived");
        assert!(watch.found(b"other"));
    }

    #[test]
    fn remembered_messages_are_bounded() {
        let mut watch = RivalWatch::default();
        for number in 0..1000_u32 {
            watch.wrote(&number.to_le_bytes());
            watch.tries(&number.to_le_bytes());
        }
        assert_eq!((watch.own.len(), watch.tried.len()), (REMEMBERED, REMEMBERED));
    }
}
