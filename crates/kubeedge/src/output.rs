//! What is polled from the bridge.

use super::{Bridge, BridgeCounters, BridgeEffect, BridgeStatus, Phase, Sent, status};
use edgesync_protocol::frame::Received;
use edgesync_protocol::timing::{Now, earlier};

impl Bridge {
    /// When [`Bridge::tick`] wants to be called.
    #[must_use]
    pub fn deadline(&self) -> Option<Now> {
        let asked = earlier(self.lease.deadline(), self.asking.deadline());
        let upstream = earlier(self.uploads.deadline(), self.rounds.deadline());
        let greeting = match self.phase {
            Phase::Greeting { until, .. } if !self.early.is_empty() => Some(until),
            _ => None,
        };
        let ending = self.endings.deadline().filter(|_| matches!(self.phase, Phase::Live));
        let phase = earlier(greeting, earlier(ending, self.keepalive_at));
        earlier(earlier(asked, upstream), phase)
    }

    /// The next message for CloudCore. To be called only when the link has room for it.
    pub fn poll_message(&mut self) -> Option<Sent> {
        self.outbound.messages.pop_front()
    }

    /// The next frame for the edge machine. To be called only when that wants one.
    pub fn poll_frame(&mut self) -> Option<Received> {
        self.outbound.frames.pop_front()
    }

    /// Whether a frame waits for the edge machine.
    #[must_use]
    pub fn has_frame(&self) -> bool {
        !self.outbound.frames.is_empty()
    }

    /// The next piece of work for the store, or news.
    pub fn poll_effect(&mut self) -> Option<BridgeEffect> {
        self.outbound.effects.pop_front()
    }

    /// What the status shows of it.
    #[must_use]
    pub fn status(&self) -> BridgeStatus {
        status::status(self)
    }

    /// The counters.
    #[must_use]
    pub fn counters(&self) -> BridgeCounters {
        self.outbound.counters
    }
}
