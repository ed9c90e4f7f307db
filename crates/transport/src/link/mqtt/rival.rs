//! Finds out that another client uses our client id when the broker does not say so. Pure.
//!
//! mosquitto closes the old connection without a reason when a new one takes its session over, which
//! looks like any lost connection; two agents with one name would throw each other out for ever, a little
//! slower each time. But both write the same presence topic. What this program wrote there it knows; any
//! other message found there on a later connection is another client's. The connection on which it is
//! found is kept (it is the newest one); if it then ends without a reason, that was the other client.

use std::collections::VecDeque;

/// How many of our own messages are remembered: will, greeting and farewell of a few connections. As many of attempts,
/// which are apart: in a long outage there are many of them, and what the last connection left is still there after it.
const REMEMBERED: usize = 16;

/// What is known of other writers of our own topic.
#[derive(Default)]
pub(super) struct RivalWatch {
    own: VecDeque<Vec<u8>>,
    tried: VecDeque<Vec<u8>>,
    connections: u64,
    seen: bool,
}

impl RivalWatch {
    /// A new connection stands.
    pub(super) fn connected(&mut self) {
        self.connections = self.connections.saturating_add(1);
        self.seen = false;
    }

    /// We write this to the topic, or the broker will on our behalf.
    pub(super) fn wrote(&mut self, payload: &[u8]) {
        remember(&mut self.own, payload);
    }

    /// The same if the connection that is tried now comes about, also if we never hear that it has.
    pub(super) fn tries(&mut self, payload: &[u8]) {
        remember(&mut self.tried, payload);
    }

    /// The topic holds this; returns whether it is the first sign of a rival on this connection.
    ///
    /// On the first connection a foreign message is what an earlier run of this program left.
    pub(super) fn found(&mut self, payload: &[u8]) -> bool {
        let ours = self.own.iter().chain(&self.tried).any(|own| own == payload);
        let foreign = self.connections > 1 && !payload.is_empty() && !ours;
        let first = foreign && !self.seen;
        self.seen |= foreign;
        first
    }

    /// Whether a connection that ended without a reason was taken over.
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
    fn what_an_earlier_run_left_is_no_rival() {
        let mut watch = RivalWatch::default();
        watch.connected();
        assert!(!watch.found(b"offline, run 1"));
        assert!(!watch.seen());
    }

    #[test]
    fn our_own_messages_are_no_rival_on_any_connection() {
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
    fn a_foreign_message_on_a_later_connection_is_a_rival_until_the_next_one() {
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
    fn what_the_last_connection_left_is_no_rival_after_any_number_of_attempts() {
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
    fn memory_is_bounded() {
        let mut watch = RivalWatch::default();
        for number in 0..1000_u32 {
            watch.wrote(&number.to_le_bytes());
            watch.tries(&number.to_le_bytes());
        }
        assert_eq!((watch.own.len(), watch.tried.len()), (REMEMBERED, REMEMBERED));
    }
}
