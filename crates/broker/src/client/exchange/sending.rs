//! The sending half of an exchange: subscriptions, and the messages they let through.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use rumqttc::v5::mqttbytes::QoS;
use rumqttc::v5::mqttbytes::v5::{
    DisconnectReasonCode, Packet, Publish, RetainForwardRule, SubAck, Subscribe, SubscribeReasonCode,
    UnsubAck, Unsubscribe,
};
use tokio::time::Instant;

use super::{Ended, Exchange};
use crate::Departure;
use crate::access;
use crate::client::subscriptions::Answer;
use crate::registry::{Origin, Outbound};
use edgesync_transport::link::add;
use edgesync_transport::link::wire::{self, WireError};

impl Exchange<'_> {
    /// Appends a packet to what is written next.
    pub(super) fn encode(&mut self, packet: &Packet) -> Result<(), Ended> {
        if !self.out.is_unsent() {
            self.progress = Instant::now();
        }
        let before = self.out.bytes.len();
        match wire::encode(packet, &mut self.out.bytes, self.seat.max_packet) {
            Ok(()) => {
                self.answers += self.out.bytes.len() - before;
                Ok(())
            }
            // Answers are a few bytes long: whoever refuses them cannot be served.
            Err(error) => {
                Err(Ended::told(Departure::Limit(error.to_string()), DisconnectReasonCode::PacketTooLarge))
            }
        }
    }

    /// Encodes what waits for the client, as far as its window and the buffer allow.
    pub(super) fn send_queued(&mut self) -> Result<(), Ended> {
        while self.may_send() {
            if let Some(outbound) = self.outgoing.pop_local() {
                self.send(&outbound)?;
            } else if let Some(origin) = self.cloud_due.take() {
                self.send_cloud(origin)?;
            } else if !self.send_next()? {
                return Ok(());
            }
        }
        Ok(())
    }

    /// Sends the next message of the cloud, if there is one.
    fn send_next(&mut self) -> Result<bool, Ended> {
        let seat = self.seat;
        let Some(outbound) = seat.take() else { return Ok(false) };
        let sent = self.send(&outbound);
        self.tell_backlog();
        seat.has_taken();
        sent.map(|()| true)
    }

    fn send_cloud(&mut self, origin: Origin) -> Result<(), Ended> {
        let payload = self.cloud.borrow_and_update().clone();
        if payload.is_none() && origin == Origin::Retained {
            return Ok(());
        }
        let topic = self.cloud_topic.clone();
        self.send(&Outbound { topic, payload: payload.unwrap_or_default(), origin })
    }

    /// Sends a message if a subscription still asks for it and the client can take its size.
    fn send(&mut self, outbound: &Outbound) -> Result<(), Ended> {
        let own = matches!(outbound.origin, Origin::Own { .. });
        let Some(grant) = self.subscriptions.grant(&outbound.topic, own) else { return Ok(()) };
        let qos = if grant.at_least_once { QoS::AtLeastOnce } else { QoS::AtMostOnce };
        let mut publish = Publish::new(&*outbound.topic, qos, outbound.payload.clone(), None);
        publish.retain = match outbound.origin {
            Origin::Retained => true,
            Origin::Own { retain } | Origin::Cloud { retain } => retain && grant.keep_retain,
        };
        let now = Instant::now();
        let is_down = Arc::ptr_eq(&outbound.topic, &self.seat.down);
        if grant.at_least_once {
            let bytes = outbound.payload.len() + outbound.topic.len();
            publish.pkid = self.outgoing.assign(now, bytes, is_down);
        }
        if !self.out.is_unsent() {
            self.progress = now;
        }
        let id = publish.pkid;
        match wire::encode(&Packet::Publish(publish), &mut self.out.bytes, self.seat.max_packet) {
            Ok(()) => {
                add(&self.hub.counters.messages_out, 1);
                if is_down {
                    self.ends.push_back(self.written + self.out.bytes.len() as u64);
                }
                Ok(())
            }
            Err(WireError::TooLarge { size, limit }) => {
                // MQTT: to this client it is as if the message did not exist.
                self.outgoing.acknowledge(id, now);
                if let Some(left_out) = self.hub.quiet.large.line() {
                    let node = &self.seat.node;
                    tracing::warn!(%node, size, limit, left_out, "a message is larger than the client takes");
                }
                Ok(())
            }
            Err(error) => Err(Ended::wire(&error)),
        }
    }

    /// Whether the cloud may send to this client.
    fn update_listening(&self) {
        let listens = self.subscriptions.grant(&self.seat.down, false).is_some();
        self.seat.listens.store(listens, Ordering::Release);
    }

    pub(super) fn subscribe(&mut self, subscribe: Subscribe) -> Result<(), Ended> {
        if subscribe.pkid == 0 {
            return Err(Ended::protocol("a subscription with packet id 0"));
        }
        if subscribe.properties.is_some_and(|properties| properties.id.is_some()) {
            let why = Departure::Protocol("a subscription identifier".to_owned());
            return Err(Ended::told(why, DisconnectReasonCode::SubscriptionIdentifiersNotSupported));
        }
        let mut codes = Vec::with_capacity(subscribe.filters.len());
        let mut replayed = Vec::new();
        for filter in subscribe.filters {
            let path = filter.path.clone();
            let rule = filter.retain_forward_rule.clone();
            let node = &self.seat.node;
            let (code, answer) = self.subscriptions.add(&self.hub.options.topics, node, filter);
            if code == SubscribeReasonCode::NotAuthorized {
                add(&self.hub.counters.unauthorized, 1);
                if let Some(left_out) = self.hub.quiet.filter.line() {
                    let filter: String = path.chars().take(64).collect();
                    tracing::warn!(%node, ?filter, left_out, "not its own filter");
                }
            }
            codes.push(code);
            let replays = match (rule, answer) {
                (_, Answer::Refused) | (RetainForwardRule::Never, _) => false,
                (RetainForwardRule::OnEverySubscribe, _) => true,
                (RetainForwardRule::OnNewSubscribe, Answer::Granted { new }) => new,
            };
            if replays {
                replayed.push(path);
            }
        }
        self.update_listening();
        let suback = SubAck { pkid: subscribe.pkid, return_codes: codes, properties: None };
        self.encode(&Packet::SubAck(suback))?;
        replayed.iter().try_for_each(|path| self.replay(path))
    }

    /// Sends what is retained and matches a new filter.
    fn replay(&mut self, path: &str) -> Result<(), Ended> {
        if access::matches(path, &self.cloud_topic) {
            self.cloud_due = Some(Origin::Retained);
        }
        let topic = self.hub.options.topics.presence(&self.seat.node);
        if !access::matches(path, &topic) {
            return Ok(());
        }
        match self.hub.registry.presence(&self.seat.node) {
            Some(payload) => {
                self.push_local(Outbound { topic: topic.into(), payload, origin: Origin::Retained })
            }
            None => Ok(()),
        }
    }

    pub(super) fn unsubscribe(&mut self, unsubscribe: &Unsubscribe) -> Result<(), Ended> {
        if unsubscribe.pkid == 0 || unsubscribe.filters.is_empty() {
            return Err(Ended::protocol("an empty unsubscription or one with packet id 0"));
        }
        let reasons = unsubscribe.filters.iter().map(|path| self.subscriptions.remove(path)).collect();
        self.update_listening();
        self.encode(&Packet::UnsubAck(UnsubAck { pkid: unsubscribe.pkid, reasons, properties: None }))
    }
}
