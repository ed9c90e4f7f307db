//! One established connection: moves messages both ways until it ends.

use std::collections::VecDeque;
use std::time::Duration;

use bytes::Bytes;
use tokio::time::{Instant, sleep_until};
use tokio_tungstenite::tungstenite::protocol::CloseFrame;
use tokio_tungstenite::tungstenite::{Error, Message};

use super::connect::{WebSocket, of_socket};
use super::socket::{Event, PING_FRAME, Socket, TEXT_FRAME};
use super::{KubeEdge, PING, PONG, TEXT};
use edgesync_transport::link::counters::add;
use edgesync_transport::link::handle::Command;
use edgesync_transport::link::task::{End, Ending, LAST_WORDS, Stop, Task, hand_over};
use edgesync_transport::link::{Cause, LinkEvent, Publish};

/// The payload of the link's own pings, whose pongs are not reported.
const OWN_PING: &[u8] = b"edgesync";
/// The longest payload of a ping.
const MAX_PING: usize = 125;
/// The most characters shown of the peer's close reason.
const SHOWN: usize = 200;

/// A connection in use.
pub(super) struct Session<'a> {
    task: &'a mut Task<KubeEdge>,
    socket: Socket,
    /// Sent before the queue, such as the farewell at the end.
    urgent: VecDeque<Publish>,
    /// An event that the owner has not taken yet; reading pauses meanwhile.
    pending: Option<LinkEvent>,
    /// The time since which `pending` waits.
    pending_since: Instant,
    ping_at: Instant,
    /// The time of the ping whose pong is awaited.
    pinged: Option<Instant>,
    ending: Option<Ending>,
}

/// The event that ended a wait of the loop.
enum Wake {
    Command(Option<Command>),
    Time,
    Socket(Result<Event, Error>),
    Taken(bool),
    Abandoned,
    Queued,
}

impl<'a> Session<'a> {
    pub(super) fn new(task: &'a mut Task<KubeEdge>, made: WebSocket, first: LinkEvent) -> Self {
        let now = Instant::now();
        let socket = Socket::new(made, task.shared.clone());
        Self {
            task,
            socket,
            urgent: VecDeque::new(),
            pending: Some(first),
            pending_since: now,
            // At once: only a peer that has answered one ping can be detected as dead later.
            ping_at: now,
            pinged: None,
            ending: None,
        }
    }

    /// Runs until the end of the connection.
    pub(super) async fn run(mut self) -> End {
        loop {
            let deadline = self.ending.as_ref().map(|ending| ending.deadline);
            let Err(end) = self.step().await else { continue };
            if !self.socket.is_free() {
                add(&self.task.shared.counters.discarded, 1);
            }
            return match end {
                End::Stop(Stop::Shutdown(shutdown, true)) => {
                    // The answer to the close frame proves that everything before it has arrived.
                    let left = deadline.map_or(LAST_WORDS, |at| at.saturating_duration_since(Instant::now()));
                    End::Stop(Stop::Shutdown(shutdown, self.socket.close(left).await))
                }
                End::Failed(Cause::Unanswered | Cause::Parted { .. }) | End::Stop(_) => {
                    self.socket.close(LAST_WORDS).await;
                    end
                }
                End::Failed(_) => end,
            };
        }
    }

    async fn step(&mut self) -> Result<(), End> {
        if self.ending.is_some() {
            // An owner that shuts down may have stopped receiving; waiting for it would end in the
            // timeout.
            self.pending = None;
        }
        self.send_queued();
        if self.is_ended() {
            return Err(Ending::end(self.ending.take(), true));
        }
        match self.wait().await {
            Wake::Command(command) => self.task.command(command, &mut self.ending),
            Wake::Time => self.on_time(Instant::now()),
            Wake::Socket(Ok(Event::Message(message))) => self.handle(message).map_err(End::from),
            Wake::Socket(Ok(Event::End)) => Err(Cause::Closed.into()),
            Wake::Socket(Err(error)) => Err(of_socket(&self.task.protocol.options.target(), error).into()),
            Wake::Taken(true) => {
                self.socket.resume();
                Ok(())
            }
            Wake::Queued | Wake::Socket(Ok(Event::Wrote)) => Ok(()),
            Wake::Taken(false) | Wake::Abandoned => Err(End::Stop(Stop::Abandoned)),
        }
    }

    async fn wait(&mut self) -> Wake {
        let until = self.next_deadline();
        let (may_read, may_send) = (self.pending.is_none(), self.socket.is_free());
        tokio::select! {
            biased;
            command = self.task.commands.recv() => Wake::Command(command),
            // Before the traffic, which may never pause.
            () = sleep_until(until) => Wake::Time,
            taken = hand_over(&self.task.events, &mut self.pending), if !may_read => Wake::Taken(taken),
            event = self.socket.next(may_read) => Wake::Socket(event),
            () = self.task.shared.queue.pushed(), if may_send => Wake::Queued,
            () = self.task.events.closed() => Wake::Abandoned,
        }
    }

    /// Passes the next message to the socket, if it is free.
    fn send_queued(&mut self) {
        while self.socket.is_free() {
            let next = self.urgent.pop_front().or_else(|| self.task.shared.queue.pop());
            match next {
                Some(publish) => self.send(publish),
                None => match &mut self.ending {
                    Some(ending) if !ending.farewell_queued => self.urgent = ending.farewell(),
                    _ => return,
                },
            }
        }
    }

    fn send(&mut self, publish: Publish) {
        let refused = match publish.topic.as_str() {
            TEXT => {
                self.socket.send(TEXT_FRAME, publish.payload);
                None
            }
            PING if publish.payload.len() <= MAX_PING => {
                self.socket.send(PING_FRAME, publish.payload);
                None
            }
            PING => Some((0x95, format!("ping payload exceeds the limit of {MAX_PING} bytes"))),
            _ => Some((0x90, format!("unknown topic; a WebSocket has '{TEXT}' and '{PING}'"))),
        };
        let counters = &self.task.shared.counters;
        match refused {
            None => add(&counters.messages_out, 1),
            Some((code, reason)) => {
                add(&counters.rejected, 1);
                if self.pending.is_none() {
                    self.emit(LinkEvent::Rejected { topic: publish.topic, code, reason });
                }
            }
        }
    }

    fn handle(&mut self, message: Message) -> Result<(), Cause> {
        match message {
            Message::Text(text) => self.receive(TEXT, text.into()),
            Message::Binary(payload) => self.receive(TEXT, payload),
            Message::Pong(payload) => {
                self.task.protocol.answers = true;
                if payload != OWN_PING {
                    self.receive(PONG, payload);
                } else if let Some(since) = self.pinged.take() {
                    self.task.shared.counters.answered_after(since.elapsed());
                }
            }
            Message::Close(frame) => return Err(parted(frame.as_ref())),
            Message::Ping(_) | Message::Frame(_) => {}
        }
        Ok(())
    }

    fn receive(&mut self, topic: &str, payload: Bytes) {
        if self.ending.is_some() {
            return;
        }
        add(&self.task.shared.counters.messages_in, 1);
        self.emit(LinkEvent::Message { topic: topic.to_owned(), payload: payload.into(), retain: false });
    }

    /// Passes an event to the owner if it has capacity; otherwise keeps it and pauses reading.
    fn emit(&mut self, event: LinkEvent) {
        self.pending = self.task.offer(event);
        self.pending_since = Instant::now();
    }

    /// Returns whether everything queued before the end was sent.
    fn is_ended(&self) -> bool {
        self.ending.as_ref().is_some_and(|ending| ending.farewell_queued) && self.socket.is_clear()
    }

    /// Returns the time after which a peer that is silent, or accepts nothing, counts as dead.
    fn idle_timeout(&self) -> Duration {
        2 * self.task.protocol.options.keepalive
    }

    /// Returns the time of the next timer.
    fn next_deadline(&self) -> Instant {
        let idle_timeout = self.idle_timeout();
        let mut next = self.ping_at;
        if self.pending.is_some() {
            next = next.min(self.pending_since + idle_timeout);
        } else if self.task.protocol.answers {
            next = next.min(self.socket.last_received() + idle_timeout);
        }
        if let Some(since) = self.socket.stuck_since() {
            next = next.min(since + idle_timeout);
        }
        self.ending.as_ref().map_or(next, |ending| next.min(ending.deadline))
    }

    fn on_time(&mut self, now: Instant) -> Result<(), End> {
        let idle_timeout = self.idle_timeout();
        if self.ending.as_ref().is_some_and(|ending| now >= ending.deadline) {
            return Err(Ending::end(self.ending.take(), false));
        }
        if self.pending.is_some() && now >= self.pending_since + idle_timeout {
            return Err(Cause::ConsumerStalled { stalled: idle_timeout }.into());
        }
        let expects = self.pending.is_none() && self.task.protocol.answers;
        let silent = expects && now >= self.socket.last_received() + idle_timeout;
        let is_stuck = self.socket.stuck_since().is_some_and(|since| now >= since + idle_timeout);
        if silent || is_stuck {
            return Err(Cause::KeepAlive { silent: idle_timeout }.into());
        }
        if now >= self.ping_at {
            self.ping_at = now + self.task.protocol.options.keepalive;
            self.pinged.get_or_insert(now);
            self.socket.ping(OWN_PING);
        }
        Ok(())
    }
}

/// Converts a close frame into a cause.
fn parted(frame: Option<&CloseFrame>) -> Cause {
    let Some(frame) = frame else { return Cause::Closed };
    let reason_text: String = frame.reason.chars().filter(|c| !c.is_control()).take(SHOWN).collect();
    let reason = format!("{} {reason_text}", frame.code);
    Cause::Parted { reason: reason.trim_end().to_owned() }
}
