//! Timers of a session: keepalive and timeouts.

use tokio::time::Instant;

use rumqttc::v5::Request;

use super::Session;
use crate::link::Cause;
use crate::link::mqtt::reason;
use crate::link::task::{End, Ending};

impl Session<'_> {
    /// Returns whether this side has stopped reading; then silence proves nothing about the peer.
    fn is_paused(&self) -> bool {
        self.pending.is_some() || self.out.bytes.len() >= super::AHEAD
    }

    /// Returns when a packet must be sent, or the peer be probed.
    fn ping_at(&self) -> Instant {
        if self.state.await_pingresp {
            // The answer is queued behind something large; only this side's own packets must arrive
            // in time.
            self.last_sent + self.ping_every
        } else {
            self.last_sent.min(self.last_received) + self.ping_every
        }
    }

    /// Returns the time of the next timer.
    pub(super) fn next_deadline(&self) -> Instant {
        let keepalive = self.task.protocol.options.keepalive;
        let mut next = self.ping_at();
        if !self.is_paused() {
            next = next.min(self.last_received + keepalive);
        }
        if self.pending.is_some() {
            next = next.min(self.stalled + keepalive);
        }
        if self.out.is_unsent() {
            next = next.min(self.progress + keepalive);
        }
        self.ending.as_ref().map_or(next, |ending| next.min(ending.deadline))
    }

    /// Runs the timers that are due.
    pub(super) fn on_time(&mut self, now: Instant) -> Result<(), End> {
        let keepalive = self.task.protocol.options.keepalive;
        if self.ending.as_ref().is_some_and(|ending| now >= ending.deadline) {
            return Err(Ending::end(self.ending.take(), false));
        }
        if self.pending.is_some() && now >= self.stalled + keepalive {
            return Err(Cause::ConsumerStalled { stalled: keepalive }.into());
        }
        let silent = !self.is_paused() && now >= self.last_received + keepalive;
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
