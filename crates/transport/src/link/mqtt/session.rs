//! One established connection: moves packets in both directions until it ends.

use std::collections::VecDeque;
use std::sync::atomic::Ordering;

use rumqttc::v5::StateError;
use rumqttc::v5::mqttbytes::QoS;
use rumqttc::v5::mqttbytes::v5::{self, Packet};
use tokio::io::{AsyncWriteExt, ReadHalf, WriteHalf};
use tokio::time::{Instant, sleep_until, timeout};

mod aliases;
mod timers;
mod window;

use super::Mqtt;
use super::connect::Established;
use super::reason::{self, Outcome};
use super::wire::{self, FrameBuffer, SendBuffer};
use crate::link::counters::add;
use crate::link::handle::{Command, packet_size};
use crate::link::stream::Stream;
use crate::link::task::{End, Ending, LAST_WORDS, Protocol as _, Stop, Task, hand_over};
use crate::link::{Cause, LinkEvent, Publish};
pub(in crate::link) use aliases::Aliases;
use timers::{Activity, Timers};
use window::{Acknowledged, Window};

/// Limit for packets encoded ahead of the socket, in bytes; a single packet may exceed it.
const AHEAD: usize = 64 * 1024;

/// A connection in use.
pub(super) struct Session<'a> {
    task: &'a mut Task<Mqtt>,
    reader: ReadHalf<Box<dyn Stream>>,
    writer: WriteHalf<Box<dyn Stream>>,
    frames: FrameBuffer,
    window: Window,
    aliases: Aliases,
    /// Whether the first message of a compact exchange was sent.
    has_begun: bool,
    timers: Timers,
    max_packet: u32,
    /// Sent before the queue: greetings at the start, the farewell at the end.
    urgent: VecDeque<Publish>,
    /// Packets received and not handled, because the events channel is full.
    waiting: VecDeque<Packet>,
    /// Event not yet received by the owner; nothing is read meanwhile.
    pending: Option<LinkEvent>,
    out: SendBuffer,
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
        let (reader, writer) = tokio::io::split(made.stream);
        Self {
            timers: Timers::new(task.protocol.options.keepalive, made.ping_every, Instant::now()),
            task,
            reader,
            writer,
            frames: made.frames,
            window: Window::new(made.state, made.inflight),
            has_begun: !made.aliases.is_compact(),
            aliases: made.aliases,
            max_packet: made.max_packet,
            urgent: greetings.into(),
            waiting: made.early.into(),
            pending: Some(first),
            out: SendBuffer::default(),
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
                self.timers.received(Instant::now());
                Ok(())
            }
            Wake::Queued => Ok(()),
            Wake::Taken(false) | Wake::Abandoned => Err(End::Stop(Stop::Abandoned)),
        }
    }

    async fn wait(&mut self) -> Wake {
        let deadline = self.next_deadline();
        let may_read = self.pending.is_none() && self.waiting.is_empty() && self.out.bytes.len() < AHEAD;
        let may_send = self.may_send();
        let unsent = self.out.is_unsent();
        tokio::select! {
            biased;
            command = self.task.commands.recv() => Wake::Command(command),
            // Before the traffic, which may never pause.
            () = sleep_until(deadline) => Wake::Time,
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

    fn handle(&mut self, mut packet: Packet) -> Result<(), Cause> {
        if let Packet::Publish(publish) = &mut packet {
            self.aliases.resolve(publish);
        }
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
        let answer = self.window.handle(packet).map_err(|error| self.state_error(error))?;
        if let Some(answer) = answer {
            self.encode(answer)?;
        }
        if self.window.is_stuck() {
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
        let Some(Acknowledged { topic, round_trip }) = self.window.acknowledged(puback.pkid, Instant::now())
        else {
            return;
        };
        let counters = &self.task.shared.counters;
        if let Some(round_trip) = round_trip {
            counters.answered_after(round_trip);
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
        self.timers.emitted(Instant::now());
    }

    fn may_send(&self) -> bool {
        self.out.bytes.len() < AHEAD && self.window.is_open()
    }

    /// Encodes queued messages as far as window and buffer allow.
    fn send_queued(&mut self) -> Result<(), Cause> {
        while self.may_send() {
            let next = self.urgent.pop_front().or_else(|| self.task.shared.queue.pop());
            match next {
                Some(publish) => self.send(publish)?,
                None => match &mut self.ending {
                    Some(ending) if !ending.farewell_queued => {
                        self.urgent = ending.farewell();
                        let own = self.task.protocol.options.own_topic.as_deref();
                        let is_compact = self.aliases.is_compact();
                        self.urgent.retain(|publish| !is_compact || own != Some(publish.topic.as_str()));
                    }
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
        let counters = &self.task.shared.counters;
        add(&counters.unwritten, 1);
        add(&counters.messages_out, 1);
        if !std::mem::replace(&mut self.has_begun, true) {
            let Publish { topic, payload, retain } = publish;
            let first = v5::Publish::new(topic, QoS::AtMostOnce, payload, None);
            return self.encode(Packet::Publish(v5::Publish { retain, ..first }));
        }
        add(&counters.unacknowledged, 1);
        let packet = self.window.publish(publish, Instant::now()).map_err(|error| self.state_error(error))?;
        packet.map_or(Ok(()), |packet| self.encode(packet))
    }

    fn state_error(&self, error: StateError) -> Cause {
        reason::of_state(error, &self.task.protocol.options.client_id)
    }

    fn encode(&mut self, mut packet: Packet) -> Result<(), Cause> {
        if let Packet::Publish(publish) = &mut packet {
            self.aliases.shorten(publish, self.max_packet);
        }
        self.timers.sent(Instant::now(), !self.out.is_unsent());
        wire::encode(&packet, &mut self.out.bytes, self.max_packet).map_err(|e| reason::of_wire(&e))
    }

    /// Returns the state that the timers depend on.
    fn activity(&self) -> Activity {
        Activity {
            is_paused: self.pending.is_some() || self.out.bytes.len() >= AHEAD,
            is_stalled: self.pending.is_some(),
            is_unsent: self.out.is_unsent(),
            awaits_pong: self.window.awaits_pong(),
        }
    }

    fn next_deadline(&self) -> Instant {
        let next = self.timers.deadline(self.activity());
        self.ending.as_ref().map_or(next, |ending| next.min(ending.deadline))
    }

    /// Runs the timers that are due.
    fn on_time(&mut self, now: Instant) -> Result<(), End> {
        if self.ending.as_ref().is_some_and(|ending| now >= ending.deadline) {
            return Err(Ending::end(self.ending.take(), false));
        }
        if self.timers.check(self.activity(), now)? {
            let ping = self.window.ping().map_err(|error| self.state_error(error))?;
            ping.map_or(Ok(()), |ping| self.encode(ping))?;
        }
        Ok(())
    }

    /// Returns whether everything queued before the shutdown was sent and acknowledged.
    fn is_ended(&self) -> bool {
        self.ending.as_ref().is_some_and(|ending| ending.farewell_queued)
            && self.urgent.is_empty()
            && self.task.shared.queue.depth() == 0
            && self.window.is_empty()
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
            self.task.shared.is_ending.store(true, Ordering::Relaxed);
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
        let count = result.map_err(|error| self.task.protocol.target().failed(&error))?;
        let now = Instant::now();
        self.timers.wrote(now);
        if self.out.bytes.len() < AHEAD && self.out.bytes.len() + count >= AHEAD {
            self.timers.received(now);
        }
        if !self.out.is_unsent() {
            self.task.shared.counters.unwritten.store(0, Ordering::Relaxed);
        }
        Ok(())
    }

    fn read(&mut self, result: std::io::Result<usize>) -> Result<(), Cause> {
        let count = result.map_err(|error| self.task.protocol.target().failed(&error))?;
        if count == 0 {
            return Err(Cause::Closed);
        }
        self.timers.received(Instant::now());
        Ok(())
    }
}
