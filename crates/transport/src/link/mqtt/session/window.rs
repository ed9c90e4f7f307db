//! Publishes in flight on one connection: their topics, and the measured round trip. The packet ids
//! and acknowledgements are those of rumqttc's state machine.

use std::time::Duration;

use bytes::Bytes;
use rumqttc::Outgoing;
use rumqttc::v5::mqttbytes::QoS;
use rumqttc::v5::mqttbytes::v5::{self, Packet};
use rumqttc::v5::{Event, MqttState, Request, StateError};
use tokio::time::Instant;

use crate::link::{MAX_INFLIGHT, Publish};

/// The state machine of a connection, with the topics of its publishes.
pub(super) struct Window {
    state: MqttState,
    /// Maximum number of publishes in flight.
    limit: u16,
    /// Topic of each unacknowledged publish, by packet id.
    topics: [Option<Box<str>>; MAX_INFLIGHT as usize + 1],
    /// The publish whose acknowledgement is timed; one at a time.
    timed: Option<(u16, Instant)>,
}

/// A publish that a PUBACK has removed from the window.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Acknowledged {
    pub(super) topic: Box<str>,
    /// Time since it was sent, if it was measured.
    pub(super) round_trip: Option<Duration>,
}

impl Window {
    pub(super) fn new(state: MqttState, limit: u16) -> Self {
        Self { state, limit, topics: [const { None }; MAX_INFLIGHT as usize + 1], timed: None }
    }

    /// Returns whether another publish may be sent.
    pub(super) fn is_open(&self) -> bool {
        self.state.inflight() < self.limit && self.state.collision.is_none()
    }

    /// Returns whether everything sent is acknowledged.
    pub(super) fn is_empty(&self) -> bool {
        self.state.inflight() == 0 && self.state.collision.is_none()
    }

    /// Returns whether a publish waits for a packet id that no acknowledgement will free.
    pub(super) fn is_stuck(&self) -> bool {
        self.state.inflight() == 0 && self.state.collision.is_some()
    }

    /// Returns whether a ping is not answered yet.
    pub(super) fn awaits_pong(&self) -> bool {
        self.state.await_pingresp
    }

    /// Assigns a packet id; only while the window is open. Returns the packet to send, unless it
    /// waits for its id.
    pub(super) fn publish(&mut self, publish: Publish, now: Instant) -> Result<Option<Packet>, StateError> {
        let Publish { topic, payload, retain } = publish;
        let mut message = v5::Publish::new(topic.as_str(), QoS::AtLeastOnce, Bytes::from(payload), None);
        message.retain = retain;
        let packet = self.state.handle_outgoing_packet(Request::Publish(message))?;
        for event in self.state.events.drain(..) {
            if let Event::Outgoing(Outgoing::Publish(id) | Outgoing::AwaitAck(id)) = event
                && let Some(known) = self.topics.get_mut(id as usize)
            {
                *known = Some(topic.as_str().into());
                self.timed.get_or_insert((id, now));
            }
        }
        Ok(packet)
    }

    /// Returns the publish with this packet id, once. An unknown id is an error of
    /// [`Window::handle`], which gets the packet next.
    pub(super) fn acknowledged(&mut self, id: u16, now: Instant) -> Option<Acknowledged> {
        let topic = self.topics.get_mut(id as usize).and_then(Option::take)?;
        let timed = self.timed.take_if(|(timed, _)| *timed == id);
        Some(Acknowledged { topic, round_trip: timed.map(|(_, since)| now.saturating_duration_since(since)) })
    }

    /// Handles a received packet. Returns the packet to send.
    pub(super) fn handle(&mut self, packet: Packet) -> Result<Option<Packet>, StateError> {
        let answer = self.state.handle_incoming_packet(packet)?;
        self.state.events.clear();
        Ok(answer)
    }

    /// Returns a ping to send, whether or not the last one was answered.
    pub(super) fn ping(&mut self) -> Result<Option<Packet>, StateError> {
        self.state.await_pingresp = false;
        let packet = self.state.handle_outgoing_packet(Request::PingReq)?;
        self.state.events.clear();
        Ok(packet)
    }
}

#[cfg(test)]
mod tests {
    use rumqttc::v5::mqttbytes::v5::{PubAck, PubAckReason};

    use super::*;

    fn send(window: &mut Window, topic: &str, now: Instant) -> u16 {
        let publish = Publish { topic: topic.to_owned(), payload: Vec::new(), retain: false };
        match window.publish(publish, now) {
            Ok(Some(Packet::Publish(publish))) => publish.pkid,
            other => panic!("{other:?}"),
        }
    }

    fn puback(pkid: u16) -> Packet {
        Packet::PubAck(PubAck { pkid, reason: PubAckReason::Success, properties: None })
    }

    #[test]
    fn window_closes_at_its_limit_and_opens_with_acknowledgements() {
        let now = Instant::now();
        let mut window = Window::new(MqttState::new(8, false), 2);
        assert!(window.is_open() && window.is_empty());
        let [first, second] = ["a", "b"].map(|topic| send(&mut window, topic, now));
        assert!(!window.is_open());
        for id in [first, second] {
            assert!(window.acknowledged(id, now).is_some());
            assert!(window.handle(puback(id)).is_ok());
        }
        assert!(window.is_open() && window.is_empty() && !window.is_stuck());
    }

    #[test]
    fn acknowledgement_has_its_topic_and_one_round_trip_at_a_time() {
        let now = Instant::now();
        let second = Duration::from_secs(1);
        let mut window = Window::new(MqttState::new(8, false), 8);
        let [a, b] = ["a", "b"].map(|topic| send(&mut window, topic, now));
        let acknowledged = |topic: &str, round_trip| Some(Acknowledged { topic: topic.into(), round_trip });
        assert_eq!(window.acknowledged(a, now + second), acknowledged("a", Some(second)));
        assert_eq!(window.acknowledged(b, now + second), acknowledged("b", None));
        assert_eq!(window.acknowledged(b, now + second), None);
        assert!(window.handle(puback(a)).is_ok() && window.handle(puback(b)).is_ok());
        let c = send(&mut window, "c", now + second);
        assert_eq!(window.acknowledged(c, now + 3 * second), acknowledged("c", Some(2 * second)));
    }

    #[test]
    fn unknown_acknowledgement_is_an_error_of_the_state_machine() {
        let mut window = Window::new(MqttState::new(8, false), 8);
        assert_eq!(window.acknowledged(7, Instant::now()), None);
        assert!(window.handle(puback(7)).is_err());
    }

    #[test]
    fn ping_is_awaited_until_the_next_one() {
        let mut window = Window::new(MqttState::new(8, false), 8);
        for _ in 0..2 {
            assert!(matches!(window.ping(), Ok(Some(Packet::PingReq(_)))));
            assert!(window.awaits_pong());
        }
    }
}
