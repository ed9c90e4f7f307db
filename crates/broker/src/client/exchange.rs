//! Packets of one connected client in both directions, until it ends.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use bytes::{Bytes, BytesMut};
use jiff::Timestamp;
use rumqttc::v5::mqttbytes::QoS;
use rumqttc::v5::mqttbytes::v5::{
    Disconnect, DisconnectReasonCode, Packet, PingResp, PubAck, PubAckReason, Publish,
};
use tokio::io::{ReadHalf, WriteHalf};
use tokio::sync::watch;
use tokio::time::{Instant, sleep_until};

mod cloud_topic;
mod ingest;
mod output;
mod sending;
#[cfg(test)]
mod tests;
mod timers;

use super::Ended;
use super::outgoing::Outgoing;
use super::subscriptions::Subscriptions;
use crate::access::{self, Target};
use crate::handshake::Admitted;
use crate::hub::Hub;
use crate::registry::{Eviction, Origin, Outbound, Retained, Session};
use crate::stream::ClientStream;
use crate::{Channel, DisconnectReason, FleetEvent};
use cloud_topic::CloudTopic;
use edgesync_transport::admission::LinePermit;
use edgesync_transport::link::wire::FrameBuffer;
use edgesync_transport::link::{add, compact};
use ingest::{Ingest, Receipt};
use output::Output;
use timers::{Progress, Timers};

/// A connected client: its connection, and one part for each concern.
pub(super) struct Exchange<'a> {
    hub: &'a Hub,
    session: &'a Arc<Session>,
    reader: ReadHalf<ClientStream>,
    writer: WriteHalf<ClientStream>,
    frames: FrameBuffer,
    output: Output,
    timers: Timers,
    subscriptions: Subscriptions,
    outgoing: Outgoing,
    evictions: watch::Receiver<Option<Eviction>>,
    cloud: CloudTopic,
    ingest: Ingest,
    /// Whether the client uses the compact exchange.
    is_compact: bool,
}

enum Wake {
    Evicted(Option<Eviction>),
    Time,
    Wrote(std::io::Result<usize>),
    Read(std::io::Result<usize>),
    Passed(Option<Receipt>),
    Queued,
}

impl<'a> Exchange<'a> {
    pub(super) fn new(
        hub: &'a Hub,
        session: &'a Arc<Session>,
        stream: ClientStream,
        frames: FrameBuffer,
        admitted: &Admitted,
        certificate_end: Option<Timestamp>,
    ) -> Self {
        let now = Instant::now();
        let (reader, writer) = tokio::io::split(stream);
        let mut subscriptions = Subscriptions::default();
        if admitted.is_compact {
            subscriptions.imply(&hub.options.topics, &session.node);
            session.listens.store(true, Ordering::Release);
        }
        Self {
            hub,
            session,
            reader,
            writer,
            frames,
            output: Output::new(&admitted.connack, session.max_packet, now),
            timers: Timers::new(admitted.keepalive, hub.options.slowest, certificate_end, now),
            subscriptions,
            outgoing: Outgoing::new(admitted.inflight, now),
            evictions: session.evictions(),
            cloud: CloudTopic::new(hub.options.topics.cloud().into(), hub.registry.cloud()),
            ingest: Ingest::new(&hub.inflow),
            is_compact: admitted.is_compact,
        }
    }

    /// Returns the connection and its unwritten bytes, for the DISCONNECT.
    pub(super) fn into_parts(self) -> (ClientStream, BytesMut) {
        (self.reader.unsplit(self.writer), self.output.into_bytes())
    }

    /// Runs the exchange until it ends.
    pub(super) async fn run(&mut self) -> Ended {
        loop {
            if let Err(ended) = self.step().await {
                return ended;
            }
        }
    }

    async fn step(&mut self) -> Result<(), Ended> {
        self.handle_packets()?;
        self.send_queued()?;
        match self.wait().await {
            Wake::Evicted(eviction) => Err(Ended::evicted(eviction.unwrap_or(Eviction::ShuttingDown))),
            Wake::Time => self.timers.check(self.progress(), Instant::now()),
            Wake::Wrote(result) => self.wrote(result),
            Wake::Read(result) => self.read(result),
            Wake::Passed(None) => Err(Ended::evicted(Eviction::ShuttingDown)),
            Wake::Passed(Some(receipt)) => {
                // Reading resumes; the silence until now was this side's own.
                self.timers.received(Instant::now());
                self.accepted(receipt)
            }
            Wake::Queued => Ok(()),
        }
    }

    async fn wait(&mut self) -> Wake {
        let deadline = self.timers.deadline(self.progress(), Instant::now());
        let may_read = !self.is_paused();
        let may_send = self.may_send();
        let unsent = self.output.buffer.is_unsent();
        let must_pass = self.ingest.is_waiting();
        tokio::select! {
            biased;
            seen = self.evictions.wait_for(Option::is_some) => Wake::Evicted(seen.ok().and_then(|seen| *seen)),
            // Before the traffic, which may never pause.
            () = sleep_until(deadline) => Wake::Time,
            passed = self.ingest.passed(&self.hub.inflow), if must_pass => Wake::Passed(passed),
            wrote = self.output.buffer.write_to(&mut self.writer), if unsent => Wake::Wrote(wrote),
            read = self.frames.fill(&mut self.reader), if may_read => Wake::Read(read),
            () = self.cloud.changed(), if !self.cloud.is_due() => Wake::Queued,
            () = self.session.queue.pushed(), if may_send => Wake::Queued,
        }
    }

    /// Returns whether this side has stopped reading.
    fn is_paused(&self) -> bool {
        self.ingest.is_waiting() || self.output.blocks_reading()
    }

    fn may_send(&self) -> bool {
        self.output.has_capacity() && self.outgoing.is_open()
    }

    fn progress(&self) -> Progress {
        Progress {
            is_paused: self.is_paused(),
            unsent_since: self.output.unsent_since(),
            unacknowledged: self.outgoing.awaited(),
        }
    }

    fn wrote(&mut self, result: std::io::Result<usize>) -> Result<(), Ended> {
        let count = result.map_err(|error| Ended::lost(error.to_string()))?;
        let now = Instant::now();
        if self.output.wrote(count, now) {
            self.timers.received(now);
        }
        self.report_backlog();
        Ok(())
    }

    fn read(&mut self, result: std::io::Result<usize>) -> Result<(), Ended> {
        let count = result.map_err(|error| Ended::lost(error.to_string()))?;
        if count == 0 {
            return Err(Ended::lost("closed without DISCONNECT"));
        }
        self.timers.received(Instant::now());
        Ok(())
    }

    /// Reports the backlog of the cloud's messages.
    fn report_backlog(&self) {
        let unwritten = self.output.unwritten();
        if self.session.set_backlog(unwritten, unwritten.max(self.outgoing.unacknowledged_of_cloud() as u64))
        {
            self.hub.shrunk_backlogs.push(self.session);
        }
    }

    /// Handles received packets until one has to wait.
    fn handle_packets(&mut self) -> Result<(), Ended> {
        while !self.is_paused() {
            match self.frames.take_packet().map_err(|error| Ended::wire(&error))? {
                Some(packet) => self.handle(packet)?,
                None => return Ok(()),
            }
        }
        Ok(())
    }

    fn handle(&mut self, packet: Packet) -> Result<(), Ended> {
        match packet {
            Packet::Publish(publish) => self.publish(&publish),
            Packet::PubAck(puback) => {
                if self.outgoing.acknowledge(puback.pkid, Instant::now()) {
                    self.report_backlog();
                    Ok(())
                } else {
                    Err(Ended::protocol("PUBACK for a message that was not sent"))
                }
            }
            Packet::Subscribe(subscribe) => self.subscribe(subscribe),
            Packet::Unsubscribe(unsubscribe) => self.unsubscribe(&unsubscribe),
            Packet::PingReq(_) => self.encode(&Packet::PingResp(PingResp)),
            Packet::Disconnect(disconnect) => Err(farewell(&disconnect)),
            _ => Err(Ended::protocol("unexpected packet type")),
        }
    }

    fn publish(&mut self, publish: &Publish) -> Result<(), Ended> {
        if publish.qos == QoS::ExactlyOnce {
            let why = DisconnectReason::Protocol("QoS 2 not supported".to_owned());
            return Err(Ended::with_code(why, DisconnectReasonCode::QoSNotSupported));
        }
        let alias = publish.properties.as_ref().and_then(|properties| properties.topic_alias);
        let is_up = self.is_compact && alias == Some(compact::UP) && publish.topic.is_empty();
        if alias.is_some() && !is_up {
            let why = DisconnectReason::Protocol("topic alias not supported".to_owned());
            return Err(Ended::with_code(why, DisconnectReasonCode::TopicAliasInvalid));
        }
        let up = is_up.then(|| self.hub.options.topics.up(&self.session.node));
        let Ok(topic) = up.as_deref().map_or_else(|| std::str::from_utf8(&publish.topic), Ok) else {
            let why = DisconnectReason::Protocol("topic is not UTF-8".to_owned());
            return Err(Ended::with_code(why, DisconnectReasonCode::MalformedPacket));
        };
        let id = (publish.qos == QoS::AtLeastOnce).then_some(publish.pkid);
        let node = &self.session.node;
        let Some(target) = access::may_publish(&self.hub.options.topics, node, topic) else {
            add(&self.hub.counters.unauthorized, 1);
            if let Some(LinePermit { suppressed }) = self.hub.throttles.topic.permit_line() {
                let topic: String = topic.chars().take(64).collect();
                tracing::warn!(%node, ?topic, suppressed, "publish to a foreign topic refused");
            }
            return self.acknowledge(id, PubAckReason::NotAuthorized);
        };
        let channel = match target {
            Target::Up => Channel::Up,
            Target::Presence => Channel::Presence,
        };
        if publish.retain && channel == Channel::Presence {
            let kept = self.hub.registry.retain_presence(node, &publish.payload);
            if kept != Retained::Kept {
                if let Some(LinePermit { suppressed }) = self.hub.throttles.presence.permit_line() {
                    tracing::warn!(%node, ?kept, suppressed, "presence not retained");
                }
                return self.acknowledge(id, PubAckReason::QuotaExceeded);
            }
        }
        // Copies, so that a small message does not keep the whole read buffer in memory.
        let payload = publish.payload.to_vec();
        let event = FleetEvent::Message { node: node.clone(), channel, payload };
        let echo = self.subscriptions.grant(topic, true).map(|_| Outbound {
            topic: topic.into(),
            payload: Bytes::copy_from_slice(&publish.payload),
            origin: Origin::Own { retain: publish.retain },
        });
        let receipt = Receipt { id, echo };
        match self.ingest.push(&self.hub.inflow, event, publish.payload.len(), receipt) {
            Some(receipt) => self.accepted(receipt),
            None => Ok(()),
        }
    }

    /// Acknowledges a message that the cloud has.
    fn accepted(&mut self, Receipt { id, echo }: Receipt) -> Result<(), Ended> {
        add(&self.hub.counters.messages_in, 1);
        self.acknowledge(id, PubAckReason::Success)?;
        echo.map_or(Ok(()), |echo| self.push_local(echo))
    }

    fn push_local(&mut self, outbound: Outbound) -> Result<(), Ended> {
        if self.outgoing.push_local(outbound) {
            return Ok(());
        }
        let why = DisconnectReason::Limit("too many unread messages that the client requested".to_owned());
        Err(Ended::with_code(why, DisconnectReasonCode::QuotaExceeded))
    }

    fn acknowledge(&mut self, id: Option<u16>, reason: PubAckReason) -> Result<(), Ended> {
        let Some(pkid) = id else { return Ok(()) };
        self.encode(&Packet::PubAck(PubAck { pkid, reason, properties: None }))
    }
}

fn farewell(disconnect: &Disconnect) -> Ended {
    match disconnect.reason_code {
        DisconnectReasonCode::NormalDisconnection => {
            Ended { why: DisconnectReason::ByClient, code: None, will: false }
        }
        _ => Ended::lost("client disconnected with an error"),
    }
}
