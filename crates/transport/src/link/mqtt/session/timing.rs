//! The times of a session: when to ping, when to give up.

use tokio::time::Instant;

use rumqttc::v5::Request;

use super::Session;
use crate::link::Cause;
use crate::link::mqtt::reason;
use crate::link::task::{End, Ending};

impl Session<'_> {
    /// Whether we have stopped reading of our own accord; then silence proves nothing.
    fn is_deaf(&self) -> bool {
        self.pending.is_some() || self.out.bytes.len() >= super::AHEAD
    }

    /// When we owe the broker a packet, or want to hear from it.
    fn ping_at(&self) -> Instant {
        if self.state.await_pingresp {
            // The answer is on its way behind something large; what counts is that the broker hears us.
            self.said + self.ping_every
        } else {
            self.said.min(self.heard) + self.ping_every
        }
    }

    /// When something has to be done if nothing happens before.
    pub(super) fn next_deadline(&self) -> Instant {
        let keepalive = self.task.protocol.options.keepalive;
        let mut next = self.ping_at();
        if !self.is_deaf() {
            next = next.min(self.heard + keepalive);
        }
        if self.pending.is_some() {
            next = next.min(self.stalled + keepalive);
        }
        if self.out.is_unsent() {
            next = next.min(self.progress + keepalive);
        }
        self.ending.as_ref().map_or(next, |ending| next.min(ending.deadline))
    }

    /// Does what is due.
    pub(super) fn on_time(&mut self, now: Instant) -> Result<(), End> {
        let keepalive = self.task.protocol.options.keepalive;
        if self.ending.as_ref().is_some_and(|ending| now >= ending.deadline) {
            return Err(Ending::end(self.ending.take(), false));
        }
        if self.pending.is_some() && now >= self.stalled + keepalive {
            return Err(Cause::ConsumerStalled { stalled: keepalive }.into());
        }
        let silent = !self.is_deaf() && now >= self.heard + keepalive;
        let unread = self.out.is_unsent() && now >= self.progress + keepalive;
        if silent || unread {
            return Err(Cause::KeepAlive { silent: keepalive }.into());
        }
        if now >= self.ping_at() {
            self.ping()?;
        }
        Ok(())
    }

    fn ping(&mut self) -> Result<(), Cause> {
        self.state.await_pingresp = false;
        let client_id = &self.task.protocol.options.client_id;
        let packet = self
            .state
            .handle_outgoing_packet(Request::PingReq)
            .map_err(|e| reason::of_state(e, client_id))?;
        self.state.events.clear();
        packet.map_or(Ok(()), |packet| self.encode(&packet))
    }
}
