//! MQTT v5 on the connections of a link. Only this module and those below it name `rumqttc`.
//!
//! Uses rumqttc's packet types and its state machine (`MqttState`: packet ids, window,
//! acknowledgements), not its `EventLoop`; see `docs/decisions/0002-own-event-loop.md`.

use std::sync::Arc;
use std::sync::atomic::Ordering;

mod connect;
mod reason;
mod rival;
mod session;
pub mod wire;

use super::handle::Shared;
use super::stream::Target;
use super::task::{End, Protocol, Task};
use super::{Cause, ConnectionId, LinkEvent, LinkOptions, Publish, SessionIntro};
use connect::Established;
use rival::RivalWatch;
use session::Session;

/// State kept across connections.
pub(super) struct Mqtt {
    options: LinkOptions,
    /// Position of the endpoint of the current attempt.
    position: usize,
    rival: RivalWatch,
    /// Position of the endpoint with which the last exchange was compact.
    compact_at: Option<usize>,
}

impl Mqtt {
    pub(super) fn new(options: LinkOptions) -> Self {
        Self { options, position: 0, rival: RivalWatch::default(), compact_at: None }
    }

    /// Passes the messages of a session intro for the own topic to the rival watch.
    fn note_own(&mut self, intro: &SessionIntro, note: fn(&mut RivalWatch, &[u8])) {
        let Some(own) = &self.options.own_topic else { return };
        let messages = intro.will.iter().chain(&intro.greetings);
        for publish in messages.filter(|publish| publish.topic == *own) {
            note(&mut self.rival, &publish.payload);
        }
    }
}

impl Protocol for Mqtt {
    type Made = (Established, Vec<Publish>);

    fn target(&self) -> Target<'_> {
        self.options.target(self.position)
    }

    fn addresses(&self) -> usize {
        self.options.endpoints.len()
    }

    fn preferred(&self) -> usize {
        self.options.preferred()
    }

    fn select(&mut self, position: usize) {
        self.position = position;
    }

    async fn establish(
        &mut self,
        connection: ConnectionId,
        shared: &Arc<Shared>,
    ) -> Result<Self::Made, Cause> {
        let mut intro = (self.options.introduce)(connection);
        // An attempt that fails, or meets another broker, is followed by one with a will.
        let is_endpoint = self.compact_at.take() == Some(self.position);
        if is_endpoint {
            intro.will = None;
        }
        shared.answers_at_once.store(is_endpoint, Ordering::Relaxed);
        self.note_own(&intro, RivalWatch::tries);
        let established = connect::establish(&self.options, self.position, &intro, shared).await?;
        if established.aliases.is_compact() {
            self.compact_at = Some(self.position);
            shared.answers_at_once.store(true, Ordering::Relaxed);
            intro.greetings.clear();
        }
        self.note_own(&intro, RivalWatch::wrote);
        self.rival.connected();
        Ok((established, intro.greetings))
    }

    fn is_compact(&self, (established, _): &Self::Made) -> bool {
        established.aliases.is_compact()
    }

    fn max_packet(&self, (established, _): &Self::Made) -> u32 {
        established.max_packet
    }

    async fn run(task: &mut Task<Self>, (established, greetings): Self::Made, first: LinkEvent) -> End {
        Session::new(task, established, first, greetings).run().await
    }

    fn explain(&mut self, cause: Cause, _was_connected: bool) -> Cause {
        match cause {
            // Mosquitto disconnects the older of two clients with one id in this way.
            Cause::Closed | Cause::Network { .. } if self.rival.seen() => {
                Cause::TakenOver { client_id: self.options.client_id.clone() }
            }
            other => other,
        }
    }
}
