//! The outputs that are polled from the bridge.

use super::{Bridge, BridgeCounters, BridgeEffect, BridgeStatus, Phase, Sent, status};
use edgesync_protocol::frame::Received;
use edgesync_protocol::timing::{Now, earlier};

impl Bridge {
    /// Returns the time of the next [`Bridge::tick`].
    #[must_use]
    pub fn deadline(&self) -> Option<Now> {
        let asked = earlier(self.lease.deadline(), self.queries.deadline());
        let upstream = earlier(self.uploads.deadline(), self.rounds.deadline());
        let greeting = match self.phase {
            Phase::Greeting { until, .. } if !self.early.is_empty() => Some(until),
            _ => None,
        };
        let ending = self.endings.deadline().filter(|_| matches!(self.phase, Phase::Live));
        let phase = earlier(greeting, earlier(ending, self.keepalive_at));
        earlier(earlier(asked, upstream), phase)
    }

    /// Returns the next message for CloudCore. Call it only while the link has capacity.
    pub fn poll_message(&mut self) -> Option<Sent> {
        self.outbound.messages.pop_front()
    }

    /// Returns the next frame for the edge machine. Call it only while the machine accepts one.
    pub fn poll_frame(&mut self) -> Option<Received> {
        self.outbound.frames.pop_front()
    }

    /// Returns whether a frame for the edge machine is ready.
    #[must_use]
    pub fn has_frame(&self) -> bool {
        !self.outbound.frames.is_empty()
    }

    /// Returns the next piece of work for the store or event for operators.
    pub fn poll_effect(&mut self) -> Option<BridgeEffect> {
        self.outbound.effects.pop_front()
    }

    /// Returns the state for the status.
    #[must_use]
    pub fn status(&self) -> BridgeStatus {
        status::status(self)
    }

    /// Returns the counters since start.
    #[must_use]
    pub fn counters(&self) -> BridgeCounters {
        self.outbound.counters
    }
}
