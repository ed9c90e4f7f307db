//! What one client is owed: messages in order, and the window of those it has not acknowledged.

use std::collections::VecDeque;

use tokio::time::Instant;

use crate::broker::registry::Outbound;

/// Echoes and retained messages that wait; the client causes them itself.
const MAX_LOCAL: usize = 64;

/// Unacknowledged messages and those made by the client's own requests.
pub(super) struct Outgoing {
    window: u16,
    unacknowledged: Vec<u16>,
    next_id: u16,
    local: VecDeque<Outbound>,
    /// When the client last acknowledged something, or the first of the unacknowledged was sent.
    pub(super) acknowledged: Instant,
}

impl Outgoing {
    pub(super) fn new(window: u16, now: Instant) -> Self {
        Self { window, unacknowledged: Vec::new(), next_id: 0, local: VecDeque::new(), acknowledged: now }
    }

    /// Whether one more message with QoS 1 may be sent.
    pub(super) fn is_open(&self) -> bool {
        self.unacknowledged.len() < usize::from(self.window)
    }

    pub(super) fn is_waiting(&self) -> bool {
        !self.unacknowledged.is_empty()
    }

    /// Gives out a packet id that is not in use; only while the window is open.
    pub(super) fn assign(&mut self, now: Instant) -> u16 {
        loop {
            self.next_id = if self.next_id == u16::MAX { 1 } else { self.next_id + 1 };
            if !self.unacknowledged.contains(&self.next_id) {
                break;
            }
        }
        if self.unacknowledged.is_empty() {
            self.acknowledged = now;
        }
        self.unacknowledged.push(self.next_id);
        self.next_id
    }

    /// Takes an acknowledgement; `false` for an id that is not in use.
    pub(super) fn acknowledge(&mut self, id: u16, now: Instant) -> bool {
        let Some(position) = self.unacknowledged.iter().position(|held| *held == id) else { return false };
        self.unacknowledged.remove(position);
        self.acknowledged = now;
        true
    }

    /// Queues a message that the client caused; `false` when it caused too many.
    pub(super) fn push_local(&mut self, outbound: Outbound) -> bool {
        let room = self.local.len() < MAX_LOCAL;
        if room {
            self.local.push_back(outbound);
        }
        room
    }

    pub(super) fn pop_local(&mut self) -> Option<Outbound> {
        self.local.pop_front()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_in_use_are_skipped_and_zero_is_never_given_out() {
        let now = Instant::now();
        let mut outgoing = Outgoing::new(3, now);
        assert_eq!([outgoing.assign(now), outgoing.assign(now)], [1, 2]);
        assert!(outgoing.acknowledge(1, now));
        assert!(!outgoing.acknowledge(1, now));
        outgoing.next_id = u16::MAX - 1;
        assert_eq!(outgoing.assign(now), u16::MAX);
        assert!(outgoing.acknowledge(u16::MAX, now));
        assert_eq!([outgoing.assign(now), outgoing.assign(now)], [1, 3], "2 is still in use");
        assert!(!outgoing.is_open());
    }
}
