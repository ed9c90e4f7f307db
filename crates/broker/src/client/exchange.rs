//! Packets of one connected client in both directions, until it ends.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use jiff::Timestamp;
use rumqttc::v5::mqttbytes::QoS;
use rumqttc::v5::mqttbytes::v5::{
    Disconnect, DisconnectReasonCode, Packet, PingResp, PubAck, PubAckReason, Publish,
};
use tokio::io::{ReadHalf, WriteHalf};
use tokio::sync::watch;
use tokio::time::{Instant, sleep_until};

mod sending;
#[cfg(test)]
mod tests;

use super::Ended;
use super::outgoing::Outgoing;
use super::subscriptions::Subscriptions;
use crate::access::{self, Target};
use crate::handshake::Admitted;
use crate::hub::Hub;
use crate::inflow::Share;
use crate::registry::{Eviction, Origin, Outbound, Retained, Session};
use crate::stream::ClientStream;
use crate::{Channel, DisconnectReason, FleetEvent};
use edgesync_transport::link::add;
use edgesync_transport::link::wire::{self, FrameBuffer, SendBuffer};

/// Limit for packets encoded ahead of the socket, in bytes; a single packet may exceed it. While as
/// many bytes of answers are queued beyond it, nothing is read either: a client that does not read
/// answers gets no further requests handled.
const AHEAD: usize = 32 * 1024;

/// Bytes that leave the send buffer before the system accepts more: it works with large pieces, of
/// 64 KiB on the loopback.
const STEP: usize = 128 * 1024;

/// A message being passed to the cloud.
struct Handover {
    /// None once it is sent.
    event: Option<FleetEvent>,
    /// Size of the payload.
    bytes: usize,
    /// Packet id to acknowledge afterwards.
    id: Option<u16>,
    /// Copy for the client itself, if it subscribed to its own topic.
    echo: Option<Outbound>,
}

/// State of a connected client.
pub(super) struct Exchange<'a> {
    hub: &'a Hub,
    session: &'a Arc<Session>,
    reader: ReadHalf<ClientStream>,
    writer: WriteHalf<ClientStream>,
    frames: FrameBuffer,
    out: SendBuffer,
    /// Bytes of answers added since the send buffer was last below [`AHEAD`].
    answers: usize,
    /// Number of bytes written so far.
    written: u64,
    /// End positions, in the same count, of the cloud's messages that are not fully written.
    ends: VecDeque<u64>,
    subscriptions: Subscriptions,
    outgoing: Outgoing,
    evictions: watch::Receiver<Option<Eviction>>,
    cloud: watch::Receiver<Option<Bytes>>,
    cloud_topic: Arc<str>,
    /// Set while the cloud's retained message must be sent, with its origin.
    cloud_due: Option<Origin>,
    handover: Option<Handover>,
    /// The connection's share of the inflow.
    share: Arc<Share>,
    keepalive: Duration,
    /// End of the client's certificate.
    until: Option<Timestamp>,
    last_received: Instant,
    progress: Instant,
}

enum Wake {
    Evicted(Option<Eviction>),
    Time,
    Wrote(std::io::Result<usize>),
    Read(std::io::Result<usize>),
    Sent(bool),
    Cloud,
    Queued,
}

impl<'a> Exchange<'a> {
    pub(super) fn new(
        hub: &'a Hub,
        session: &'a Arc<Session>,
        stream: ClientStream,
        frames: FrameBuffer,
        admitted: &Admitted,
        until: Option<Timestamp>,
    ) -> Self {
        let now = Instant::now();
        let (reader, writer) = tokio::io::split(stream);
        let mut out = SendBuffer::default();
        // Cannot fail: the packet is small, and no limit applies.
        let _ = wire::encode(&admitted.connack, &mut out.bytes, u32::MAX);
        Self {
            hub,
            session,
            reader,
            writer,
            frames,
            out,
            answers: 0,
            written: 0,
            ends: VecDeque::new(),
            subscriptions: Subscriptions::default(),
            outgoing: Outgoing::new(admitted.inflight, now),
            evictions: session.evictions(),
            cloud: hub.registry.cloud(),
            cloud_topic: hub.options.topics.cloud().into(),
            cloud_due: None,
            handover: None,
            share: hub.inflow.share(),
            keepalive: admitted.keepalive,
            until,
            last_received: now,
            progress: now,
        }
    }

    /// Returns the connection and its unwritten bytes, for the DISCONNECT.
    pub(super) fn into_parts(self) -> (ClientStream, BytesMut) {
        (self.reader.unsplit(self.writer), self.out.bytes)
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
            Wake::Time => self.on_time(Instant::now()),
            Wake::Wrote(result) => self.wrote(result),
            Wake::Read(result) => self.read(result),
            Wake::Sent(false) => Err(Ended::evicted(Eviction::ShuttingDown)),
            Wake::Sent(true) => self.handed_over(),
            Wake::Cloud => {
                self.cloud_due.get_or_insert(Origin::Cloud { retain: true });
                Ok(())
            }
            Wake::Queued => Ok(()),
        }
    }

    async fn wait(&mut self) -> Wake {
        let until = self.next_deadline();
        let may_read = !self.is_paused();
        let may_send = self.may_send();
        let unsent = self.out.is_unsent();
        let (out, handover) = (&mut self.out, &mut self.handover);
        let owes = handover.is_some();
        tokio::select! {
            biased;
            seen = self.evictions.wait_for(Option::is_some) => Wake::Evicted(seen.ok().and_then(|seen| *seen)),
            // Before the traffic, which may never pause.
            () = sleep_until(until) => Wake::Time,
            sent = hand_over(self.hub, &self.share, handover), if owes => Wake::Sent(sent),
            wrote = out.write_to(&mut self.writer), if unsent => Wake::Wrote(wrote),
            read = self.frames.fill(&mut self.reader), if may_read => Wake::Read(read),
            _ = self.cloud.changed(), if self.cloud_due.is_none() => Wake::Cloud,
            () = self.session.queue.pushed(), if may_send => Wake::Queued,
        }
    }

    /// Returns whether this side has stopped reading.
    fn is_paused(&self) -> bool {
        self.handover.is_some() || (self.out.bytes.len() >= AHEAD && self.answers >= AHEAD)
    }

    fn may_send(&self) -> bool {
        self.out.bytes.len() < AHEAD && self.outgoing.is_open()
    }

    /// Returns the silence that MQTT allows: one and a half of the keep-alive.
    fn keepalive_timeout(&self) -> Duration {
        self.keepalive + self.keepalive / 2
    }

    /// Returns the time in which a client must read `bytes` bytes.
    fn read_timeout(&self, bytes: usize) -> Duration {
        self.keepalive_timeout()
            + Duration::from_millis(bytes as u64 * 1000 / u64::from(self.hub.options.slowest))
    }

    /// Returns when the client must have read some of the unsent bytes.
    fn stalled_at(&self) -> Instant {
        self.progress + self.read_timeout(STEP)
    }

    /// Returns when the client must have acknowledged a message.
    fn overdue_at(&self) -> Option<Instant> {
        self.outgoing.awaited().map(|(since, bytes)| since + self.read_timeout(bytes))
    }

    fn next_deadline(&self) -> Instant {
        let mut next = Instant::now() + self.keepalive_timeout();
        if !self.is_paused() {
            next = next.min(self.last_received + self.keepalive_timeout());
        }
        if self.out.is_unsent() {
            next = next.min(self.stalled_at());
        }
        if let Some(overdue_at) = self.overdue_at() {
            next = next.min(overdue_at);
        }
        match self.until {
            // Computed from the wall clock each time, because it may be set while the client is
            // connected.
            Some(until) => next.min(Instant::now() + remaining(until)),
            None => next,
        }
    }

    fn on_time(&self, now: Instant) -> Result<(), Ended> {
        let keepalive_timeout = self.keepalive_timeout();
        if self.until.is_some_and(|until| remaining(until).is_zero()) {
            return Err(Ended::with_code(DisconnectReason::Expired, DisconnectReasonCode::NotAuthorized));
        }
        let why = DisconnectReason::NotReading(keepalive_timeout);
        if self.out.is_unsent() && now >= self.stalled_at() {
            return Err(Ended { why, code: None, will: true });
        }
        let is_overdue = self.overdue_at().is_some_and(|overdue_at| now >= overdue_at);
        if is_overdue && !self.is_paused() {
            return Err(Ended::with_code(why, DisconnectReasonCode::QuotaExceeded));
        }
        if !self.is_paused() && now >= self.last_received + keepalive_timeout {
            return Err(Ended::with_code(
                DisconnectReason::Silent(keepalive_timeout),
                DisconnectReasonCode::KeepAliveTimeout,
            ));
        }
        Ok(())
    }

    fn wrote(&mut self, result: std::io::Result<usize>) -> Result<(), Ended> {
        let count = result.map_err(|error| Ended::lost(error.to_string()))?;
        let now = Instant::now();
        self.progress = now;
        self.written += count as u64;
        while self.ends.pop_front_if(|end| *end <= self.written).is_some() {}
        self.report_backlog();
        if self.out.bytes.len() < AHEAD && std::mem::take(&mut self.answers) >= AHEAD {
            self.last_received = now;
        }
        Ok(())
    }

    fn read(&mut self, result: std::io::Result<usize>) -> Result<(), Ended> {
        let count = result.map_err(|error| Ended::lost(error.to_string()))?;
        if count == 0 {
            return Err(Ended::lost("closed without DISCONNECT"));
        }
        self.last_received = Instant::now();
        Ok(())
    }

    /// Reports the backlog of the cloud's messages.
    fn report_backlog(&self) {
        let unwritten = self.ends.len() as u64;
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
        if publish.properties.as_ref().is_some_and(|properties| properties.topic_alias.is_some()) {
            let why = DisconnectReason::Protocol("topic alias not supported".to_owned());
            return Err(Ended::with_code(why, DisconnectReasonCode::TopicAliasInvalid));
        }
        let Ok(topic) = std::str::from_utf8(&publish.topic) else {
            let why = DisconnectReason::Protocol("topic is not UTF-8".to_owned());
            return Err(Ended::with_code(why, DisconnectReasonCode::MalformedPacket));
        };
        let id = (publish.qos == QoS::AtLeastOnce).then_some(publish.pkid);
        let node = &self.session.node;
        let Some(target) = access::may_publish(&self.hub.options.topics, node, topic) else {
            add(&self.hub.counters.unauthorized, 1);
            if let Some(left_out) = self.hub.throttles.topic.line() {
                let topic: String = topic.chars().take(64).collect();
                tracing::warn!(%node, ?topic, left_out, "publish to a foreign topic refused");
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
                if let Some(left_out) = self.hub.throttles.presence.line() {
                    tracing::warn!(%node, ?kept, left_out, "presence not retained");
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
        let bytes = publish.payload.len();
        if let Some(reservation) = self.hub.inflow.try_reserve(bytes, &self.share) {
            reservation.send(event);
            return self.accepted(id, echo);
        }
        self.handover = Some(Handover { event: Some(event), bytes, id, echo });
        Ok(())
    }

    fn handed_over(&mut self) -> Result<(), Ended> {
        // Reading resumes; the silence until now was this side's own.
        self.last_received = Instant::now();
        match self.handover.take() {
            Some(handover) => self.accepted(handover.id, handover.echo),
            None => Ok(()),
        }
    }

    fn accepted(&mut self, id: Option<u16>, echo: Option<Outbound>) -> Result<(), Ended> {
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

/// Returns the time until `until`; zero once it has passed.
fn remaining(until: Timestamp) -> Duration {
    let remaining = until.duration_since(Timestamp::now());
    // At most a month; then the deadline is computed again.
    Duration::try_from(remaining).unwrap_or_default().min(Duration::from_secs(30 * 24 * 3600))
}

/// Passes a message to the cloud; `false` when the receiver was dropped. Safe to cancel.
async fn hand_over(hub: &Hub, share: &Arc<Share>, handover: &mut Option<Handover>) -> bool {
    let bytes = handover.as_ref().map_or(0, |handover| handover.bytes);
    let Some(reservation) = hub.inflow.reserve(bytes, share).await else { return false };
    if let Some(event) = handover.as_mut().and_then(|handover| handover.event.take()) {
        reservation.send(event);
    }
    true
}

fn farewell(disconnect: &Disconnect) -> Ended {
    let will = disconnect.reason_code != DisconnectReasonCode::NormalDisconnection;
    Ended { why: DisconnectReason::ByClient, code: None, will }
}
