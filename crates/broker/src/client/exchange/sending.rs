//! Sending half of an exchange: subscriptions, and the messages that match them.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use bytes::Bytes;
use rumqttc::v5::mqttbytes::QoS;
use rumqttc::v5::mqttbytes::v5::{
    DisconnectReasonCode, Packet, Publish, PublishProperties, RetainForwardRule, SubAck, Subscribe,
    SubscribeReasonCode, UnsubAck, Unsubscribe,
};
use tokio::time::Instant;

use super::{Ended, Exchange};
use crate::DisconnectReason;
use crate::access;
use crate::client::subscriptions::Answer;
use crate::registry::{Origin, Outbound};
use edgesync_transport::admission::LinePermit;
use edgesync_transport::link::wire::WireError;
use edgesync_transport::link::{add, compact};

impl Exchange<'_> {
    /// Encodes a packet into the send buffer.
    pub(super) fn encode(&mut self, packet: &Packet) -> Result<(), Ended> {
        // Answers are a few bytes long: a client with a smaller limit cannot be served.
        self.output.push_answer(packet, Instant::now()).map_err(|error| {
            Ended::with_code(DisconnectReason::Limit(error.to_string()), DisconnectReasonCode::PacketTooLarge)
        })
    }

    /// Encodes queued messages as far as window and buffer allow.
    pub(super) fn send_queued(&mut self) -> Result<(), Ended> {
        while self.may_send() {
            if let Some(outbound) = self.outgoing.pop_local() {
                self.send(&outbound)?;
            } else if let Some(outbound) = self.cloud.take_due() {
                self.send(&outbound)?;
            } else if !self.send_next()? {
                return Ok(());
            }
        }
        Ok(())
    }

    /// Sends the next queued message of the cloud, if there is one.
    fn send_next(&mut self) -> Result<bool, Ended> {
        let session = self.session;
        let Some(outbound) = session.pop() else { return Ok(false) };
        let sent = self.send(&outbound);
        self.report_backlog();
        session.popped();
        sent.map(|()| true)
    }

    /// Sends a message if a subscription matches and its size is within the client's limit.
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
        let is_down = Arc::ptr_eq(&outbound.topic, &self.session.down);
        if self.is_compact && (is_down || *outbound.topic == *self.cloud.name()) {
            let alias = if is_down { compact::DOWN } else { compact::CLOUD };
            let properties = PublishProperties { topic_alias: Some(alias), ..PublishProperties::default() };
            publish.topic = Bytes::new();
            publish.properties = Some(properties);
        }
        if grant.at_least_once {
            let bytes = outbound.payload.len() + outbound.topic.len();
            publish.pkid = self.outgoing.assign(now, bytes, is_down);
        }
        let id = publish.pkid;
        match self.output.push_message(publish, is_down, now) {
            Ok(()) => {
                add(&self.hub.counters.messages_out, 1);
                Ok(())
            }
            Err(WireError::TooLarge { size, limit }) => {
                // MQTT: to this client the message does not exist.
                self.outgoing.acknowledge(id, now);
                if let Some(LinePermit { suppressed }) = self.hub.throttles.large.permit_line() {
                    let node = &self.session.node;
                    tracing::warn!(
                        %node,
                        size_bytes = size,
                        limit_bytes = limit,
                        suppressed,
                        "message dropped: exceeds the packet limit of the client"
                    );
                }
                Ok(())
            }
            Err(error) => Err(Ended::wire(&error)),
        }
    }

    /// Updates whether the cloud may send to this client.
    fn update_listening(&self) {
        let listens = self.subscriptions.grant(&self.session.down, false).is_some();
        self.session.listens.store(listens, Ordering::Release);
    }

    pub(super) fn subscribe(&mut self, subscribe: Subscribe) -> Result<(), Ended> {
        if subscribe.pkid == 0 {
            return Err(Ended::protocol("SUBSCRIBE with packet id 0"));
        }
        if subscribe.properties.is_some_and(|properties| properties.id.is_some()) {
            let why = DisconnectReason::Protocol("subscription identifiers not supported".to_owned());
            return Err(Ended::with_code(why, DisconnectReasonCode::SubscriptionIdentifiersNotSupported));
        }
        let mut codes = Vec::with_capacity(subscribe.filters.len());
        let mut replayed = Vec::new();
        for filter in subscribe.filters {
            let path = filter.path.clone();
            let rule = filter.retain_forward_rule.clone();
            let node = &self.session.node;
            let (code, answer) = self.subscriptions.add(&self.hub.options.topics, node, filter);
            if code == SubscribeReasonCode::NotAuthorized {
                add(&self.hub.counters.unauthorized, 1);
                if let Some(LinePermit { suppressed }) = self.hub.throttles.filter.permit_line() {
                    let filter: String = path.chars().take(64).collect();
                    tracing::warn!(%node, ?filter, suppressed, "subscription to a foreign filter refused");
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

    /// Sends retained messages that match a new filter.
    fn replay(&mut self, path: &str) -> Result<(), Ended> {
        if access::matches(path, self.cloud.name()) {
            self.cloud.replay();
        }
        let topic = self.hub.options.topics.presence(&self.session.node);
        if !access::matches(path, &topic) {
            return Ok(());
        }
        match self.hub.registry.presence(&self.session.node) {
            Some(payload) => {
                self.push_local(Outbound { topic: topic.into(), payload, origin: Origin::Retained })
            }
            None => Ok(()),
        }
    }

    pub(super) fn unsubscribe(&mut self, unsubscribe: &Unsubscribe) -> Result<(), Ended> {
        if unsubscribe.pkid == 0 || unsubscribe.filters.is_empty() {
            return Err(Ended::protocol("UNSUBSCRIBE without filters or with packet id 0"));
        }
        let reasons = unsubscribe.filters.iter().map(|path| self.subscriptions.remove(path)).collect();
        self.update_listening();
        self.encode(&Packet::UnsubAck(UnsubAck { pkid: unsubscribe.pkid, reasons, properties: None }))
    }
}
