//! Outgoing messages of one client: local ones in order, and the window of unacknowledged ones.

use std::collections::VecDeque;

use tokio::time::Instant;

use crate::registry::Outbound;

/// Limit for queued echoes and retained messages, which the client causes itself.
const MAX_LOCAL: usize = 64;

/// A message in flight.
struct Sent {
    id: u16,
    bytes: usize,
    /// Whether it is a live message of the cloud.
    from_cloud: bool,
}

/// Messages in flight, and those caused by the client's own requests.
pub(super) struct Outgoing {
    window: u16,
    unacknowledged: VecDeque<Sent>,
    next_id: u16,
    local: VecDeque<Outbound>,
    /// Time of the last acknowledgement, or when the first message in flight was sent.
    acknowledged: Instant,
}

impl Outgoing {
    pub(super) fn new(window: u16, now: Instant) -> Self {
        Self {
            window,
            unacknowledged: VecDeque::new(),
            next_id: 0,
            local: VecDeque::new(),
            acknowledged: now,
        }
    }

    /// Returns whether the window allows one more QoS 1 message.
    pub(super) fn is_open(&self) -> bool {
        self.unacknowledged.len() < usize::from(self.window)
    }

    /// Returns the start of the wait for an acknowledgement, and the size of the oldest message in
    /// flight.
    pub(super) fn awaited(&self) -> Option<(Instant, usize)> {
        self.unacknowledged.front().map(|oldest| (self.acknowledged, oldest.bytes))
    }

    /// Returns the number of the cloud's messages in flight.
    pub(super) fn unacknowledged_of_cloud(&self) -> usize {
        self.unacknowledged.iter().filter(|sent| sent.from_cloud).count()
    }

    fn is_in_use(&self, id: u16) -> bool {
        self.unacknowledged.iter().any(|sent| sent.id == id)
    }

    /// Assigns an unused packet id; only while the window is open.
    pub(super) fn assign(&mut self, now: Instant, bytes: usize, from_cloud: bool) -> u16 {
        loop {
            self.next_id = if self.next_id == u16::MAX { 1 } else { self.next_id + 1 };
            if !self.is_in_use(self.next_id) {
                break;
            }
        }
        if self.unacknowledged.is_empty() {
            self.acknowledged = now;
        }
        let id = self.next_id;
        self.unacknowledged.push_back(Sent { id, bytes, from_cloud });
        id
    }

    /// Processes an acknowledgement; `false` for an unused id.
    pub(super) fn acknowledge(&mut self, id: u16, now: Instant) -> bool {
        let Some(position) = self.unacknowledged.iter().position(|sent| sent.id == id) else { return false };
        self.unacknowledged.remove(position);
        self.acknowledged = now;
        true
    }

    /// Queues a message that the client caused; `false` if the limit is reached.
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
    fn packet_ids_in_use_and_zero_are_skipped() {
        let now = Instant::now();
        let mut outgoing = Outgoing::new(3, now);
        let assign = |outgoing: &mut Outgoing| outgoing.assign(now, 1, true);
        assert_eq!([assign(&mut outgoing), assign(&mut outgoing)], [1, 2]);
        assert!(outgoing.acknowledge(1, now));
        assert!(!outgoing.acknowledge(1, now));
        outgoing.next_id = u16::MAX - 1;
        assert_eq!(assign(&mut outgoing), u16::MAX);
        assert!(outgoing.acknowledge(u16::MAX, now));
        assert_eq!([assign(&mut outgoing), assign(&mut outgoing)], [1, 3], "2 is still in use");
        assert!(!outgoing.is_open());
    }
}
