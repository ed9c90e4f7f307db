//! The shared outputs of the bridge's parts: configuration, queues of messages, frames and effects,
//! and message ids.

use std::collections::VecDeque;

use super::message::{Draft, MessageId};
use super::types::{BridgeConfig, BridgeCounters, BridgeEffect, BridgeNotice, Moment, Sent};
use edgesync_object::random::Random;
use edgesync_protocol::frame::{HelloRequest, Received};

/// Queues and configuration that all parts of the bridge share.
#[derive(Debug)]
pub(super) struct Outbound {
    pub(super) config: BridgeConfig,
    pub(super) at: Moment,
    /// The session of the machine after its Welcome.
    pub(super) session: Option<String>,
    pub(super) messages: VecDeque<Sent>,
    pub(super) frames: VecDeque<Received>,
    pub(super) effects: VecDeque<BridgeEffect>,
    pub(super) counters: BridgeCounters,
    random: Random,
    pings: u64,
}

impl Outbound {
    pub(super) fn new(config: BridgeConfig) -> Self {
        Self {
            config,
            at: Moment::default(),
            session: None,
            messages: VecDeque::new(),
            frames: VecDeque::new(),
            effects: VecDeque::new(),
            counters: BridgeCounters::default(),
            random: Random::seeded(0),
            pings: 0,
        }
    }

    pub(super) fn begin(&mut self, at: Moment, random: u64) {
        self.at = at;
        // Keeps all earlier randomness: connections do not repeat ids.
        self.random.stir(random);
    }

    /// Ends the connection. Notices are kept.
    pub(super) fn end(&mut self) {
        self.session = None;
        self.messages.clear();
        self.frames.clear();
        self.effects.retain(|effect| matches!(effect, BridgeEffect::Notice(_)));
    }

    fn id(&mut self) -> MessageId {
        let random = (u128::from(self.random.next_u64()) << 64) | u128::from(self.random.next_u64());
        // UUID version 4, variant 1.
        (random & !(0xf000 << 64) & !(0b11 << 62)) | (0x4000 << 64) | (0b10 << 62)
    }

    /// Returns a random number.
    pub(super) fn draw(&mut self) -> u64 {
        self.random.next_u64()
    }

    /// Queues a message and returns its id, which its answer names as the parent.
    pub(super) fn send(&mut self, draft: &Draft<'_>) -> MessageId {
        let id = self.id();
        let text = draft.to_text(id, self.at.wall);
        self.messages.push_back(Sent::Text { name: draft.name, text });
        id
    }

    /// Queues a ping and returns its number.
    pub(super) fn ping(&mut self) -> u64 {
        self.pings += 1;
        self.messages.push_back(Sent::Ping(self.pings));
        self.pings
    }

    pub(super) fn notice(&mut self, notice: BridgeNotice) {
        self.effects.push_back(BridgeEffect::Notice(notice));
    }

    /// Requests a new Hello from the machine.
    pub(super) fn request_hello(&mut self, reason: &str) {
        let Some(session) = self.session.clone() else { return };
        self.frames.push_back(Received::HelloRequest(HelloRequest {
            session,
            reason: reason.to_owned(),
            retry_after_seconds: 0,
            removed: false,
        }));
    }
}
