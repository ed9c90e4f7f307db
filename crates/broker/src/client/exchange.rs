//! The packets of one connected client, both ways, until it ends.

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
use crate::registry::{Eviction, Origin, Outbound, Retained, Seat};
use crate::wire::Wire;
use crate::{Channel, Departure, FleetEvent};
use edgesync_transport::link::add;
use edgesync_transport::link::wire::{self, FrameBuffer, SendBuffer};

/// Packets are encoded ahead of the socket up to this many bytes; a single packet may exceed it. While as much of
/// answers waits behind that, nothing is read either: who does not take answers gets no questions answered.
const AHEAD: usize = 32 * 1024;

/// The system takes nothing more before so many bytes of what it has have left: it works with large pieces, of 64 KiB on
/// the loopback.
const STEP: usize = 128 * 1024;

/// A message on its way to the cloud.
struct Handover {
    /// Gone once it is handed over.
    event: Option<FleetEvent>,
    /// Of its payload.
    bytes: usize,
    /// The packet to acknowledge then.
    id: Option<u16>,
    /// What the client gets back, because it subscribed to its own topic.
    echo: Option<Outbound>,
}

/// The state of a connected client.
pub(super) struct Exchange<'a> {
    hub: &'a Hub,
    seat: &'a Arc<Seat>,
    reader: ReadHalf<Wire>,
    writer: WriteHalf<Wire>,
    frames: FrameBuffer,
    out: SendBuffer,
    /// Bytes of answers that were added since less than [`AHEAD`] waited.
    answers: usize,
    /// Bytes written.
    written: u64,
    /// Where the cloud's messages end that are not written in full, in the same count.
    ends: VecDeque<u64>,
    subscriptions: Subscriptions,
    outgoing: Outgoing,
    evictions: watch::Receiver<Option<Eviction>>,
    cloud: watch::Receiver<Option<Bytes>>,
    cloud_topic: Arc<str>,
    /// Whether the cloud's message is owed, and as what.
    cloud_due: Option<Origin>,
    handover: Option<Handover>,
    /// What it may have on the way to the cloud.
    share: Arc<Share>,
    keepalive: Duration,
    /// The end of the client's certificate.
    until: Option<Timestamp>,
    heard: Instant,
    progress: Instant,
}

enum Wake {
    Evicted(Option<Eviction>),
    Time,
    Wrote(std::io::Result<usize>),
    Read(std::io::Result<usize>),
    Taken(bool),
    Cloud,
    Queued,
}

impl<'a> Exchange<'a> {
    pub(super) fn new(
        hub: &'a Hub,
        seat: &'a Arc<Seat>,
        stream: Wire,
        frames: FrameBuffer,
        admitted: &Admitted,
        until: Option<Timestamp>,
    ) -> Self {
        let now = Instant::now();
        let (reader, writer) = tokio::io::split(stream);
        let mut out = SendBuffer::default();
        // It is small, and without a limit to exceed it can always be written.
        let _ = wire::encode(&admitted.connack, &mut out.bytes, u32::MAX);
        Self {
            hub,
            seat,
            reader,
            writer,
            frames,
            out,
            answers: 0,
            written: 0,
            ends: VecDeque::new(),
            subscriptions: Subscriptions::default(),
            outgoing: Outgoing::new(admitted.inflight, now),
            evictions: seat.evictions(),
            cloud: hub.registry.cloud(),
            cloud_topic: hub.options.topics.cloud().into(),
            cloud_due: None,
            handover: None,
            share: hub.inflow.share(),
            keepalive: admitted.keepalive,
            until,
            heard: now,
            progress: now,
        }
    }

    /// The connection, for the last words, and what was not written yet.
    pub(super) fn into_parts(self) -> (Wire, BytesMut) {
        (self.reader.unsplit(self.writer), self.out.bytes)
    }

    /// Runs until the end.
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
            Wake::Taken(false) => Err(Ended::evicted(Eviction::ShuttingDown)),
            Wake::Taken(true) => self.handed_over(),
            Wake::Cloud => {
                self.cloud_due.get_or_insert(Origin::Cloud { retain: true });
                Ok(())
            }
            Wake::Queued => Ok(()),
        }
    }

    async fn wait(&mut self) -> Wake {
        let until = self.next_deadline();
        let may_read = !self.is_deaf();
        let may_send = self.may_send();
        let unsent = self.out.is_unsent();
        let (out, handover) = (&mut self.out, &mut self.handover);
        let owes = handover.is_some();
        tokio::select! {
            biased;
            seen = self.evictions.wait_for(Option::is_some) => Wake::Evicted(seen.ok().and_then(|seen| *seen)),
            // Before the traffic, which may never pause.
            () = sleep_until(until) => Wake::Time,
            taken = hand_over(self.hub, &self.share, handover), if owes => Wake::Taken(taken),
            wrote = out.write_to(&mut self.writer), if unsent => Wake::Wrote(wrote),
            read = self.frames.fill(&mut self.reader), if may_read => Wake::Read(read),
            _ = self.cloud.changed(), if self.cloud_due.is_none() => Wake::Cloud,
            () = self.seat.queue.pushed(), if may_send => Wake::Queued,
        }
    }

    /// Whether nothing is read, of our own accord.
    fn is_deaf(&self) -> bool {
        self.handover.is_some() || (self.out.bytes.len() >= AHEAD && self.answers >= AHEAD)
    }

    fn may_send(&self) -> bool {
        self.out.bytes.len() < AHEAD && self.outgoing.is_open()
    }

    /// MQTT gives a client one and a half of its keep-alive.
    fn patience(&self) -> Duration {
        self.keepalive + self.keepalive / 2
    }

    /// How long a client may wait, and read so many bytes.
    fn patience_for(&self, bytes: usize) -> Duration {
        self.patience() + Duration::from_millis(bytes as u64 * 1000 / u64::from(self.hub.options.slowest))
    }

    /// When the client should have taken some of what is unsent.
    fn stalled_at(&self) -> Instant {
        self.progress + self.patience_for(STEP)
    }

    /// When the client should have acknowledged a message.
    fn overdue_at(&self) -> Option<Instant> {
        self.outgoing.awaited().map(|(since, bytes)| since + self.patience_for(bytes))
    }

    fn next_deadline(&self) -> Instant {
        let mut next = Instant::now() + self.patience();
        if !self.is_deaf() {
            next = next.min(self.heard + self.patience());
        }
        if self.out.is_unsent() {
            next = next.min(self.stalled_at());
        }
        if let Some(overdue_at) = self.overdue_at() {
            next = next.min(overdue_at);
        }
        match self.until {
            // By the wall clock each time: it may be set while the client is connected.
            Some(until) => next.min(Instant::now() + left(until)),
            None => next,
        }
    }

    fn on_time(&self, now: Instant) -> Result<(), Ended> {
        let patience = self.patience();
        if self.until.is_some_and(|until| left(until).is_zero()) {
            return Err(Ended::told(Departure::Expired, DisconnectReasonCode::NotAuthorized));
        }
        let why = Departure::NotReading(patience);
        if self.out.is_unsent() && now >= self.stalled_at() {
            return Err(Ended { why, code: None, will: true });
        }
        let is_overdue = self.overdue_at().is_some_and(|overdue_at| now >= overdue_at);
        if is_overdue && !self.is_deaf() {
            return Err(Ended::told(why, DisconnectReasonCode::QuotaExceeded));
        }
        if !self.is_deaf() && now >= self.heard + patience {
            return Err(Ended::told(Departure::Silent(patience), DisconnectReasonCode::KeepAliveTimeout));
        }
        Ok(())
    }

    fn wrote(&mut self, result: std::io::Result<usize>) -> Result<(), Ended> {
        let count = result.map_err(|error| Ended::lost(error.to_string()))?;
        let now = Instant::now();
        self.progress = now;
        self.written += count as u64;
        while self.ends.pop_front_if(|end| *end <= self.written).is_some() {}
        self.tell_backlog();
        if self.out.bytes.len() < AHEAD && std::mem::take(&mut self.answers) >= AHEAD {
            self.heard = now;
        }
        Ok(())
    }

    fn read(&mut self, result: std::io::Result<usize>) -> Result<(), Ended> {
        let count = result.map_err(|error| Ended::lost(error.to_string()))?;
        if count == 0 {
            return Err(Ended::lost("closed without a disconnect"));
        }
        self.heard = Instant::now();
        Ok(())
    }

    /// Tells the cloud how far its messages are.
    fn tell_backlog(&self) {
        let unwritten = self.ends.len() as u64;
        if self.seat.set_backlog(unwritten, unwritten.max(self.outgoing.unacknowledged_of_cloud() as u64)) {
            self.hub.moved.push(self.seat);
        }
    }

    /// Handles what has been read, until something has to wait.
    fn handle_packets(&mut self) -> Result<(), Ended> {
        while !self.is_deaf() {
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
                    self.tell_backlog();
                    Ok(())
                } else {
                    Err(Ended::protocol("it acknowledged a message that it was not sent"))
                }
            }
            Packet::Subscribe(subscribe) => self.subscribe(subscribe),
            Packet::Unsubscribe(unsubscribe) => self.unsubscribe(&unsubscribe),
            Packet::PingReq(_) => self.encode(&Packet::PingResp(PingResp)),
            Packet::Disconnect(disconnect) => Err(farewell(&disconnect)),
            _ => Err(Ended::protocol("a packet that makes no sense here")),
        }
    }

    fn publish(&mut self, publish: &Publish) -> Result<(), Ended> {
        if publish.qos == QoS::ExactlyOnce {
            let why = Departure::Protocol("a message with QoS 2".to_owned());
            return Err(Ended::told(why, DisconnectReasonCode::QoSNotSupported));
        }
        if publish.properties.as_ref().is_some_and(|properties| properties.topic_alias.is_some()) {
            let why = Departure::Protocol("a topic alias".to_owned());
            return Err(Ended::told(why, DisconnectReasonCode::TopicAliasInvalid));
        }
        let Ok(topic) = std::str::from_utf8(&publish.topic) else {
            let why = Departure::Protocol("a topic that is not UTF-8".to_owned());
            return Err(Ended::told(why, DisconnectReasonCode::MalformedPacket));
        };
        let id = (publish.qos == QoS::AtLeastOnce).then_some(publish.pkid);
        let node = &self.seat.node;
        let Some(target) = access::may_publish(&self.hub.options.topics, node, topic) else {
            add(&self.hub.counters.unauthorized, 1);
            if let Some(left_out) = self.hub.quiet.topic.line() {
                let topic: String = topic.chars().take(64).collect();
                tracing::warn!(%node, ?topic, left_out, "not its own topic");
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
                if let Some(left_out) = self.hub.quiet.presence.line() {
                    tracing::warn!(%node, ?kept, left_out, "its presence is not retained");
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
        if let Some(place) = self.hub.inflow.try_reserve(bytes, &self.share) {
            place.send(event);
            return self.taken(id, echo);
        }
        self.handover = Some(Handover { event: Some(event), bytes, id, echo });
        Ok(())
    }

    fn handed_over(&mut self) -> Result<(), Ended> {
        // Reading goes on; the silence until now was our own.
        self.heard = Instant::now();
        match self.handover.take() {
            Some(handover) => self.taken(handover.id, handover.echo),
            None => Ok(()),
        }
    }

    fn taken(&mut self, id: Option<u16>, echo: Option<Outbound>) -> Result<(), Ended> {
        add(&self.hub.counters.messages_in, 1);
        self.acknowledge(id, PubAckReason::Success)?;
        echo.map_or(Ok(()), |echo| self.push_local(echo))
    }

    fn push_local(&mut self, outbound: Outbound) -> Result<(), Ended> {
        if self.outgoing.push_local(outbound) {
            return Ok(());
        }
        let why = Departure::Limit("it does not take what it asked for".to_owned());
        Err(Ended::told(why, DisconnectReasonCode::QuotaExceeded))
    }

    fn acknowledge(&mut self, id: Option<u16>, reason: PubAckReason) -> Result<(), Ended> {
        let Some(pkid) = id else { return Ok(()) };
        self.encode(&Packet::PubAck(PubAck { pkid, reason, properties: None }))
    }
}

/// How long it is until a time; nothing once it has come.
fn left(until: Timestamp) -> Duration {
    let left = until.duration_since(Timestamp::now());
    // A timer of a month, at most: then the deadline is made again.
    Duration::try_from(left).unwrap_or_default().min(Duration::from_secs(30 * 24 * 3600))
}

/// Hands a message over to the cloud; `false` when it is no longer there. Safe to cancel.
async fn hand_over(hub: &Hub, share: &Arc<Share>, handover: &mut Option<Handover>) -> bool {
    let bytes = handover.as_ref().map_or(0, |handover| handover.bytes);
    let Some(place) = hub.inflow.reserve(bytes, share).await else { return false };
    if let Some(event) = handover.as_mut().and_then(|handover| handover.event.take()) {
        place.send(event);
    }
    true
}

fn farewell(disconnect: &Disconnect) -> Ended {
    let will = disconnect.reason_code != DisconnectReasonCode::NormalDisconnection;
    Ended { why: Departure::Farewell, code: None, will }
}
