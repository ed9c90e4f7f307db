//! One established connection: moves packets in both directions until it ends.

use std::collections::VecDeque;
use std::sync::atomic::Ordering;
use std::time::Duration;

use bytes::Bytes;
use rumqttc::Outgoing;
use rumqttc::v5::mqttbytes::QoS;
use rumqttc::v5::mqttbytes::v5::{self, Packet};
use rumqttc::v5::{Event, MqttState, Request};
use tokio::io::{AsyncWriteExt, ReadHalf, WriteHalf};
use tokio::time::{Instant, sleep_until, timeout};

mod timing;

use super::Mqtt;
use super::connect::Established;
use super::reason::{self, Outcome};
use super::wire::{self, FrameBuffer, SendBuffer};
use crate::link::counters::add;
use crate::link::handle::{Command, packet_size};
use crate::link::stream::Stream;
use crate::link::task::{End, Ending, LAST_WORDS, Stop, Task, hand_over};
use crate::link::{Cause, LinkEvent, MAX_INFLIGHT, Publish};

/// Limit for packets encoded ahead of the socket, in bytes; a single packet may exceed it.
const AHEAD: usize = 64 * 1024;

/// A connection in use.
pub(super) struct Session<'a> {
    task: &'a mut Task<Mqtt>,
    reader: ReadHalf<Box<dyn Stream>>,
    writer: WriteHalf<Box<dyn Stream>>,
    frames: FrameBuffer,
    state: MqttState,
    inflight: u16,
    max_packet: u32,
    ping_every: Duration,
    /// Topic of each unacknowledged publish, by packet id.
    topics: [Option<Box<str>>; MAX_INFLIGHT as usize + 1],
    /// The publish whose acknowledgement is timed; one at a time.
    timed: Option<(u16, Instant)>,
    /// Sent before the queue: greetings at the start, the farewell at the end.
    urgent: VecDeque<Publish>,
    /// Packets received and not handled, because the events channel is full.
    waiting: VecDeque<Packet>,
    /// Event not yet received by the owner; nothing is read meanwhile.
    pending: Option<LinkEvent>,
    out: SendBuffer,
    /// Time of the last received byte, or when reading resumed.
    last_received: Instant,
    /// Time at which the last packet was written into `out`.
    last_sent: Instant,
    /// Time at which the socket last accepted bytes, or `out` became non-empty.
    progress: Instant,
    /// Time since which `pending` waits.
    stalled: Instant,
    ending: Option<Ending>,
}

/// Reasons why the loop wakes up.
enum Wake {
    Command(Option<Command>),
    Time,
    Wrote(std::io::Result<usize>),
    Read(std::io::Result<usize>),
    Taken(bool),
    Abandoned,
    Queued,
}

impl<'a> Session<'a> {
    pub(super) fn new(
        task: &'a mut Task<Mqtt>,
        made: Established,
        first: LinkEvent,
        greetings: Vec<Publish>,
    ) -> Self {
        let now = Instant::now();
        let (reader, writer) = tokio::io::split(made.stream);
        Self {
            task,
            reader,
            writer,
            frames: made.frames,
            state: made.state,
            inflight: made.inflight,
            max_packet: made.max_packet,
            ping_every: made.ping_every,
            topics: [const { None }; MAX_INFLIGHT as usize + 1],
            timed: None,
            urgent: greetings.into(),
            waiting: made.early.into(),
            pending: Some(first),
            out: SendBuffer::default(),
            last_received: now,
            last_sent: now,
            progress: now,
            stalled: now,
            ending: None,
        }
    }

    /// Runs the connection until it ends.
    pub(super) async fn run(mut self) -> End {
        loop {
            match self.step().await {
                Ok(()) => {}
                Err(End::Failed(Cause::Network { peer, message })) => {
                    let reason = timeout(LAST_WORDS, self.parting_reason()).await.ok().flatten();
                    return End::Failed(reason.unwrap_or(Cause::Network { peer, message }));
                }
                Err(end) => {
                    self.close(&end).await;
                    return end;
                }
            }
        }
    }

    async fn step(&mut self) -> Result<(), End> {
        self.handle_packets()?;
        self.send_queued()?;
        if self.is_ended() {
            return Err(Ending::end(self.ending.take(), true));
        }
        match self.wait().await {
            Wake::Command(command) => self.task.command(command, &mut self.ending),
            Wake::Time => self.on_time(Instant::now()),
            Wake::Wrote(result) => self.wrote(result).map_err(End::from),
            Wake::Read(result) => self.read(result).map_err(End::from),
            Wake::Taken(true) => {
                // Reading resumes; the silence until now was this side's own.
                self.last_received = Instant::now();
                Ok(())
            }
            Wake::Queued => Ok(()),
            Wake::Taken(false) | Wake::Abandoned => Err(End::Stop(Stop::Abandoned)),
        }
    }

    async fn wait(&mut self) -> Wake {
        let until = self.next_deadline();
        let may_read = self.pending.is_none() && self.waiting.is_empty() && self.out.bytes.len() < AHEAD;
        let may_send = self.may_send();
        let unsent = self.out.is_unsent();
        tokio::select! {
            biased;
            command = self.task.commands.recv() => Wake::Command(command),
            // Before the traffic, which may never pause.
            () = sleep_until(until) => Wake::Time,
            taken = hand_over(&self.task.events, &mut self.pending), if self.pending.is_some() => Wake::Taken(taken),
            wrote = self.out.write_to(&mut self.writer), if unsent => Wake::Wrote(wrote),
            read = self.frames.fill(&mut self.reader), if may_read => Wake::Read(read),
            () = self.task.shared.queue.pushed(), if may_send => Wake::Queued,
            () = self.task.events.closed() => Wake::Abandoned,
        }
    }

    /// Handles received packets until an event cannot be sent.
    fn handle_packets(&mut self) -> Result<(), Cause> {
        if self.ending.is_some() {
            // The owner may have stopped receiving; waiting for it would end in the timeout.
            self.pending = None;
        }
        while self.pending.is_none() {
            let packet = match self.waiting.pop_front() {
                Some(packet) => packet,
                None => match self.frames.take_packet().map_err(|e| reason::of_wire(&e))? {
                    Some(packet) => packet,
                    None => return Ok(()),
                },
            };
            self.handle(packet)?;
        }
        Ok(())
    }

    fn handle(&mut self, packet: Packet) -> Result<(), Cause> {
        match &packet {
            Packet::Publish(publish) => {
                let event = self.receive(publish)?;
                if let Some(event) = event {
                    if self.ending.is_some() {
                        // Not passed on, so not acknowledged either.
                        return Ok(());
                    }
                    self.emit(event);
                }
            }
            Packet::PubAck(puback) => self.acknowledged(puback),
            Packet::PingResp(_) | Packet::Disconnect(_) => {}
            _ => return Err(Cause::Protocol { detail: "unexpected packet type".to_owned() }),
        }
        let client_id = &self.task.protocol.options.client_id;
        let answer = self.state.handle_incoming_packet(packet).map_err(|e| reason::of_state(e, client_id))?;
        if let Some(answer) = answer {
            self.encode(&answer)?;
        }
        self.state.events.clear();
        if self.state.inflight() == 0 && self.state.collision.is_some() {
            return Err(Cause::Protocol { detail: "PUBACKs out of order".to_owned() });
        }
        Ok(())
    }

    /// Converts a message into an event, unless it is for the link itself.
    fn receive(&mut self, publish: &v5::Publish) -> Result<Option<LinkEvent>, Cause> {
        if publish.qos == QoS::ExactlyOnce {
            return Err(Cause::Protocol { detail: "message with QoS 2, subscribed with QoS 1".to_owned() });
        }
        let Ok(topic) = std::str::from_utf8(&publish.topic) else {
            return Err(Cause::Protocol { detail: "topic is not UTF-8".to_owned() });
        };
        if self.task.protocol.options.own_topic.as_deref() == Some(topic) {
            if self.task.protocol.rival.found(&publish.payload) {
                add(&self.task.shared.counters.rivals, 1);
                let client_id = &self.task.protocol.options.client_id;
                tracing::warn!(%client_id, topic, "client id in use by another client");
            }
            return Ok(None);
        }
        add(&self.task.shared.counters.messages_in, 1);
        // A copy, so that a small message does not keep the whole read buffer in memory.
        let payload = publish.payload.to_vec();
        Ok(Some(LinkEvent::Message { topic: topic.to_owned(), payload, retain: publish.retain }))
    }

    fn acknowledged(&mut self, puback: &v5::PubAck) {
        // An unknown id is an error of the state machine, which gets the packet next.
        let Some(topic) = self.topics.get_mut(puback.pkid as usize).and_then(Option::take) else { return };
        let counters = &self.task.shared.counters;
        if let Some((_, since)) = self.timed.take_if(|(id, _)| *id == puback.pkid) {
            counters.answered_after(since.elapsed());
        }
        counters.unacknowledged.fetch_sub(1, Ordering::Relaxed);
        match reason::of_puback(puback) {
            Outcome::Accepted => {}
            Outcome::NoSubscriber => add(&counters.no_subscriber, 1),
            Outcome::Rejected { code, reason } => {
                add(&counters.rejected, 1);
                if self.ending.is_none() {
                    self.emit(LinkEvent::Rejected { topic: topic.into_string(), code, reason });
                }
            }
        }
    }

    /// Sends an event at once if there is space; otherwise keeps it, and reading stops.
    fn emit(&mut self, event: LinkEvent) {
        self.pending = self.task.offer(event);
        self.stalled = Instant::now();
    }

    fn may_send(&self) -> bool {
        self.out.bytes.len() < AHEAD
            && self.state.inflight() < self.inflight
            && self.state.collision.is_none()
    }

    /// Encodes queued messages as far as window and buffer allow.
    fn send_queued(&mut self) -> Result<(), Cause> {
        while self.may_send() {
            let next = self.urgent.pop_front().or_else(|| self.task.shared.queue.pop());
            match next {
                Some(publish) => self.send(publish)?,
                None => match &mut self.ending {
                    Some(ending) if !ending.farewell_queued => self.urgent = ending.farewell(),
                    _ => return Ok(()),
                },
            }
        }
        Ok(())
    }

    fn send(&mut self, publish: Publish) -> Result<(), Cause> {
        let size = packet_size(&publish.topic, &publish.payload);
        if size > self.max_packet as usize {
            // It was queued under the larger limit of an earlier connection.
            add(&self.task.shared.counters.rejected, 1);
            if self.pending.is_none() {
                let reason =
                    format!("packet of {size} bytes exceeds the negotiated limit of {}", self.max_packet);
                self.emit(LinkEvent::Rejected { topic: publish.topic, code: 0x95, reason });
            }
            return Ok(());
        }
        if self.task.protocol.options.own_topic.as_deref() == Some(publish.topic.as_str()) {
            self.task.protocol.rival.wrote(&publish.payload);
        }
        let mut message =
            v5::Publish::new(publish.topic.as_str(), QoS::AtLeastOnce, Bytes::from(publish.payload), None);
        message.retain = publish.retain;
        let client_id = &self.task.protocol.options.client_id;
        let packet = self
            .state
            .handle_outgoing_packet(Request::Publish(message))
            .map_err(|e| reason::of_state(e, client_id))?;
        for event in self.state.events.drain(..) {
            if let Event::Outgoing(Outgoing::Publish(id) | Outgoing::AwaitAck(id)) = event
                && let Some(slot) = self.topics.get_mut(id as usize)
            {
                *slot = Some(publish.topic.as_str().into());
                self.timed.get_or_insert_with(|| (id, Instant::now()));
            }
        }
        add(&self.task.shared.counters.unwritten, 1);
        add(&self.task.shared.counters.unacknowledged, 1);
        add(&self.task.shared.counters.messages_out, 1);
        packet.map_or(Ok(()), |packet| self.encode(&packet))
    }

    fn encode(&mut self, packet: &Packet) -> Result<(), Cause> {
        let now = Instant::now();
        if !self.out.is_unsent() {
            self.progress = now;
        }
        self.last_sent = now;
        wire::encode(packet, &mut self.out.bytes, self.max_packet).map_err(|e| reason::of_wire(&e))
    }

    /// Returns whether everything queued before the shutdown was sent and acknowledged.
    fn is_ended(&self) -> bool {
        self.ending.as_ref().is_some_and(|ending| ending.farewell_queued)
            && self.urgent.is_empty()
            && self.task.shared.queue.depth() == 0
            && self.state.inflight() == 0
            && self.state.collision.is_none()
    }

    /// Reads the broker's DISCONNECT after a failed write: a broker sends it before it closes.
    async fn parting_reason(&mut self) -> Option<Cause> {
        loop {
            while let Ok(Some(packet)) = self.frames.take_packet() {
                if let Packet::Disconnect(disconnect) = packet {
                    return Some(reason::of_disconnect(&disconnect, &self.task.protocol.options.client_id));
                }
            }
            match self.frames.fill(&mut self.reader).await {
                Ok(1..) => {}
                _ => return None,
            }
        }
    }

    /// Sends a DISCONNECT on an orderly end: after it the broker does not publish the will.
    async fn close(&mut self, end: &End) {
        if let End::Stop(_) = end {
            let reason = v5::DisconnectReasonCode::NormalDisconnection;
            wire::encode_disconnect(reason, &mut self.out.bytes);
            let last_words = async {
                self.writer.write_all_buf(&mut self.out.bytes).await?;
                self.writer.shutdown().await
            };
            // The peer may be gone.
            let _ = timeout(LAST_WORDS, last_words).await;
        }
    }

    fn wrote(&mut self, result: std::io::Result<usize>) -> Result<(), Cause> {
        let count = result.map_err(|error| self.task.protocol.options.target().failed(&error))?;
        let now = Instant::now();
        self.progress = now;
        if self.out.bytes.len() < AHEAD && self.out.bytes.len() + count >= AHEAD {
            self.last_received = now;
        }
        if !self.out.is_unsent() {
            self.task.shared.counters.unwritten.store(0, Ordering::Relaxed);
        }
        Ok(())
    }

    fn read(&mut self, result: std::io::Result<usize>) -> Result<(), Cause> {
        let count = result.map_err(|error| self.task.protocol.options.target().failed(&error))?;
        if count == 0 {
            return Err(Cause::Closed);
        }
        self.last_received = Instant::now();
        Ok(())
    }
}
