//! The task that owns the connection: connects, runs it, waits, connects again. Only this module and
//! those below it name `rumqttc`.
//!
//! rumqttc's packet types and its state machine (`MqttState`: packet ids, window, acknowledgements) are
//! used; its `EventLoop` is not. The reasons are in `docs/decisions/0002-own-event-loop.md`.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use tokio::sync::mpsc;
use tokio::time::sleep;
use uuid::Uuid;

mod connect;
mod reason;
mod rival;
mod session;
mod stream;
pub(crate) mod wire;

use super::counters::add;
use super::handle::{Command, Shared, Shutdown};
use super::retry::Retry;
use super::{Cause, Introduction, LinkEvent, LinkOptions};
use rival::RivalWatch;
use session::Session;

/// Why the task stops for good.
enum Stop {
    /// It was asked to; whether everything was acknowledged is known.
    Shutdown(Shutdown, bool),
    /// Nobody listens any more, or nobody holds a handle.
    Abandoned,
}

/// How a connection, or the attempt to make one, ends.
enum End {
    Failed(Cause),
    Stop(Stop),
}

impl From<Cause> for End {
    fn from(cause: Cause) -> Self {
        Self::Failed(cause)
    }
}

/// What the task keeps from one connection to the next.
struct Task {
    options: LinkOptions,
    shared: Arc<Shared>,
    commands: mpsc::Receiver<Command>,
    events: mpsc::Sender<LinkEvent>,
    rival: RivalWatch,
    retry: Retry,
    /// Whether the last attempt led to a connection.
    was_connected: bool,
}

/// Keeps a link up until it is shut down or abandoned.
pub(super) async fn run(
    options: LinkOptions,
    shared: Arc<Shared>,
    commands: mpsc::Receiver<Command>,
    events: mpsc::Sender<LinkEvent>,
) {
    let retry = Retry::new(options.retry);
    let rival = RivalWatch::default();
    let mut task = Task { options, shared, commands, events, rival, retry, was_connected: false };
    let stop = loop {
        let cause = match task.attempt().await {
            End::Failed(cause) => cause,
            End::Stop(stop) => break stop,
        };
        if let Err(stop) = task.pause(cause).await {
            break stop;
        }
    };
    task.shared.queue.close_and_clear();
    if let Stop::Shutdown(Shutdown { done: Some(done), .. }, acknowledged) = stop {
        // Whoever asked may have gone.
        let _ = done.send(acknowledged);
    }
}

impl Task {
    /// One connection from its first byte to its last.
    async fn attempt(&mut self) -> End {
        self.was_connected = false;
        let connection = Uuid::new_v4();
        let introduction = (self.options.introduce)(connection);
        self.note_own(&introduction);
        let establish = connect::establish(&self.options, &introduction, &self.shared);
        let established = tokio::select! {
            established = establish => established,
            command = self.commands.recv() => return unconnected(command),
        };
        let established = match established {
            Ok(established) => established,
            Err(cause) => return End::Failed(cause),
        };
        let max_packet = established.max_packet;
        self.shared.max_packet.store(max_packet, Ordering::Relaxed);
        self.shared.queue.open();
        self.rival.connected();
        self.was_connected = true;
        self.retry.connected(Instant::now());
        add(&self.shared.counters.connected, 1);
        tracing::info!(broker = %self.options.peer(), %connection, max_packet, "connected");

        let first = LinkEvent::Connected { connection, max_packet };
        let session = Session::new(self, established, first, introduction.greetings);
        let end = session.run().await;
        let queued = self.shared.queue.close_and_clear() as u64;
        let unacknowledged = self.shared.counters.unacknowledged.swap(0, Ordering::Relaxed);
        add(&self.shared.counters.discarded, queued + unacknowledged);
        end
    }

    fn note_own(&mut self, introduction: &Introduction) {
        let Some(own) = &self.options.own_topic else { return };
        let said = introduction.will.iter().chain(&introduction.greetings);
        for publish in said.filter(|publish| publish.topic == *own) {
            self.rival.wrote(&publish.payload);
        }
    }

    /// Says why there is no connection and waits for the next attempt.
    async fn pause(&mut self, cause: Cause) -> Result<(), Stop> {
        let cause = match cause {
            // The way mosquitto throws out the older of two clients with one id.
            Cause::Closed | Cause::Network { .. } if self.rival.seen() => {
                Cause::TakenOver { client_id: self.options.client_id.clone() }
            }
            other => other,
        };
        let now = Instant::now();
        let retry_in = match cause {
            Cause::TakenOver { .. } => self.retry.taken_over(now, random()),
            Cause::Asked => Duration::ZERO,
            _ => self.retry.failed(now, random()),
        };
        self.shared.counters.ended(&cause, self.was_connected);
        if matches!(cause, Cause::ConsumerStalled { .. }) {
            add(&self.shared.counters.stalled, 1);
        }
        tracing::warn!(broker = %self.options.peer(), ?retry_in, cause = cause.label(), "not connected: {cause}");
        let event = LinkEvent::Disconnected { cause, retry_in };
        let hurried = self.announce(event).await?;
        if hurried {
            return Ok(());
        }
        tokio::select! {
            () = sleep(retry_in) => Ok(()),
            () = self.events.closed() => Err(Stop::Abandoned),
            command = self.commands.recv() => match unconnected(command) {
                End::Stop(stop) => Err(stop),
                End::Failed(_) => Ok(()),
            },
        }
    }

    /// Waits until the event is taken; returns whether the next attempt was asked for meanwhile.
    async fn announce(&mut self, event: LinkEvent) -> Result<bool, Stop> {
        let sending = self.events.send(event);
        tokio::pin!(sending);
        let mut hurried = false;
        loop {
            tokio::select! {
                sent = &mut sending => return sent.map(|()| hurried).map_err(|_| Stop::Abandoned),
                command = self.commands.recv() => match unconnected(command) {
                    End::Stop(stop) => return Err(stop),
                    End::Failed(_) => hurried = true,
                },
            }
        }
    }
}

/// What a command means while there is no connection.
fn unconnected(command: Option<Command>) -> End {
    match command {
        Some(Command::Reconnect) => End::Failed(Cause::Asked),
        Some(Command::Shutdown(shutdown)) => {
            let nothing_to_say = shutdown.farewell.is_empty();
            End::Stop(Stop::Shutdown(shutdown, nothing_to_say))
        }
        None => End::Stop(Stop::Abandoned),
    }
}

/// A number in `[0, 1)` from the randomness of a UUID; 53 of its bits that no version field occupies.
fn random() -> f64 {
    let bits = Uuid::new_v4().as_u64_pair().1 & ((1 << 53) - 1);
    #[expect(clippy::cast_precision_loss, reason = "53 bits are exact")]
    let fraction = bits as f64 / (1_u64 << 53) as f64;
    fraction
}
