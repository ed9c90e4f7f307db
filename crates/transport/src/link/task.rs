//! The task that owns a connection, whatever it speaks: connects, runs it, waits, connects again.

use std::collections::VecDeque;
use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tokio::sync::mpsc;
use tokio::sync::mpsc::error::TrySendError;
use tokio::time::{Instant, sleep};
use uuid::Uuid;

use super::counters::add;
use super::handle::{Command, Shared, Shutdown};
use super::retry::{Retry, RetryOptions};
use super::stream::Target;
use super::{Cause, ConnectionId, LinkEvent, Publish};

/// How long the last bytes of a connection that ends in order may take.
pub const LAST_WORDS: Duration = Duration::from_secs(1);

/// What is spoken on a connection, and what is kept of it from one connection to the next.
pub trait Protocol: Sized {
    /// A connection ready for use.
    type Made;

    /// Where to connect to.
    fn target(&self) -> Target<'_>;

    /// One attempt to connect.
    fn establish(
        &mut self,
        connection: ConnectionId,
        shared: &Arc<Shared>,
    ) -> impl Future<Output = Result<Self::Made, Cause>> + Send;

    /// The largest packet both sides take, in bytes.
    fn max_packet(&self, made: &Self::Made) -> u32;

    /// Runs a connection until it ends; `first` is the first event.
    fn run(task: &mut Task<Self>, made: Self::Made, first: LinkEvent) -> impl Future<Output = End> + Send;

    /// What the end of a connection, or of an attempt, really means.
    fn explain(&mut self, cause: Cause, was_connected: bool) -> Cause;
}

/// Why the task stops for good.
pub enum Stop {
    /// It was asked to; whether everything was acknowledged is known.
    Shutdown(Shutdown, bool),
    /// Nobody listens any more, or nobody holds a handle.
    Abandoned,
}

/// How a connection, or the attempt to make one, ends.
pub enum End {
    /// The connection was lost or not made; the task retries after a pause.
    Failed(Cause),
    /// The task ends.
    Stop(Stop),
}

impl From<Cause> for End {
    fn from(cause: Cause) -> Self {
        Self::Failed(cause)
    }
}

/// An orderly end under way.
pub struct Ending {
    pub(super) shutdown: Shutdown,
    /// When the connection is closed, whatever is still unacknowledged.
    pub deadline: Instant,
    /// Whether [`Ending::farewell`] has handed out the last messages.
    pub farewell_queued: bool,
}

impl Ending {
    fn new(shutdown: Shutdown) -> Self {
        let deadline = Instant::now() + shutdown.within;
        Self { shutdown, deadline, farewell_queued: false }
    }

    /// What goes out after everything else; once.
    pub fn farewell(&mut self) -> VecDeque<Publish> {
        self.farewell_queued = true;
        std::mem::take(&mut self.shutdown.farewell).into()
    }

    /// How a connection ends with it; `acknowledged` says whether everything asked for before was.
    pub fn end(ending: Option<Self>, acknowledged: bool) -> End {
        match ending {
            Some(ending) => End::Stop(Stop::Shutdown(ending.shutdown, acknowledged)),
            None => End::Stop(Stop::Abandoned),
        }
    }
}

/// What the task keeps from one connection to the next.
pub struct Task<P> {
    /// The protocol's own state.
    pub protocol: P,
    /// Queue and counters, shared with the handles.
    pub shared: Arc<Shared>,
    /// Commands of the handles; closed when the last handle is dropped.
    pub commands: mpsc::Receiver<Command>,
    /// Events for the owner of the link. A full channel stops reading from the socket.
    pub events: mpsc::Sender<LinkEvent>,
    retry: Retry,
    /// Whether the last attempt led to a connection.
    was_connected: bool,
}

/// Keeps a link up until it is shut down or abandoned.
pub async fn run<P: Protocol>(
    protocol: P,
    retry: RetryOptions,
    shared: Arc<Shared>,
    commands: mpsc::Receiver<Command>,
    events: mpsc::Sender<LinkEvent>,
) {
    let mut task =
        Task { protocol, shared, commands, events, retry: Retry::new(retry), was_connected: false };
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

impl<P: Protocol> Task<P> {
    /// One connection from its first byte to its last.
    async fn attempt(&mut self) -> End {
        self.was_connected = false;
        let connection = Uuid::new_v4();
        let made = {
            let establish = self.protocol.establish(connection, &self.shared);
            tokio::pin!(establish);
            loop {
                tokio::select! {
                    made = &mut establish => break made,
                    command = self.commands.recv() => if let Err(stop) = unconnected(command) {
                        return End::Stop(stop);
                    },
                }
            }
        };
        let made = match made {
            Ok(made) => made,
            Err(cause) => return End::Failed(cause),
        };
        let max_packet = self.protocol.max_packet(&made);
        self.shared.max_packet.store(max_packet, Ordering::Relaxed);
        self.shared.queue.open();
        self.was_connected = true;
        self.retry.connected(std::time::Instant::now());
        add(&self.shared.counters.connected, 1);
        tracing::debug!(peer = %self.protocol.target().peer(), %connection, max_packet, "connected");

        let first = LinkEvent::Connected { connection, max_packet };
        let end = P::run(self, made, first).await;
        let queued = self.shared.queue.close_and_clear() as u64;
        self.shared.counters.unwritten.store(0, Ordering::Relaxed);
        let unacknowledged = self.shared.counters.unacknowledged.swap(0, Ordering::Relaxed);
        add(&self.shared.counters.discarded, queued + unacknowledged);
        end
    }

    /// Says why there is no connection and waits for the next attempt.
    async fn pause(&mut self, cause: Cause) -> Result<(), Stop> {
        let cause = self.protocol.explain(cause, self.was_connected);
        let now = std::time::Instant::now();
        let retry_in = match cause {
            Cause::TakenOver { .. } => self.retry.taken_over(now, random()),
            _ => self.retry.failed(now, random()),
        };
        self.shared.counters.ended(&cause, self.was_connected);
        if matches!(cause, Cause::ConsumerStalled { .. }) {
            add(&self.shared.counters.stalled, 1);
        }
        let peer = self.protocol.target().peer();
        // Whoever uses the link says what that means.
        tracing::debug!(%peer, ?retry_in, cause = cause.label(), "not connected: {cause}");
        let event = LinkEvent::Disconnected { cause, retry_in };
        self.announce(event).await?;
        let waited = sleep(retry_in);
        tokio::pin!(waited);
        loop {
            tokio::select! {
                () = &mut waited => return Ok(()),
                () = self.events.closed() => return Err(Stop::Abandoned),
                command = self.commands.recv() => unconnected(command)?,
            }
        }
    }

    /// Waits until the event is taken.
    async fn announce(&mut self, event: LinkEvent) -> Result<(), Stop> {
        let sending = self.events.send(event);
        tokio::pin!(sending);
        loop {
            tokio::select! {
                sent = &mut sending => return sent.map_err(|_| Stop::Abandoned),
                command = self.commands.recv() => unconnected(command)?,
            }
        }
    }

    /// Follows a command while there is a connection; a shutdown begins the orderly end of it.
    pub fn command(&self, command: Option<Command>, ending: &mut Option<Ending>) -> Result<(), End> {
        match command {
            None => Err(End::Stop(Stop::Abandoned)),
            Some(Command::GiveUp) => Err(End::Failed(Cause::Unanswered)),
            // The first one counts; a second asker learns that by his channel.
            Some(Command::Shutdown(_)) if ending.is_some() => Ok(()),
            Some(Command::Shutdown(shutdown)) => {
                self.shared.queue.close();
                *ending = Some(Ending::new(shutdown));
                Ok(())
            }
        }
    }

    /// Hands an event on at once if there is room, and else gives it back.
    pub fn offer(&self, event: LinkEvent) -> Option<LinkEvent> {
        match self.events.try_send(event) {
            Ok(()) => None,
            Err(TrySendError::Full(event) | TrySendError::Closed(event)) => Some(event),
        }
    }
}

/// Hands the pending event over; `false` when nobody will ever take it. Safe to cancel.
pub async fn hand_over(events: &mpsc::Sender<LinkEvent>, pending: &mut Option<LinkEvent>) -> bool {
    let Ok(permit) = events.reserve().await else { return false };
    if let Some(event) = pending.take() {
        permit.send(event);
    }
    true
}

/// What a command means while there is no connection.
fn unconnected(command: Option<Command>) -> Result<(), Stop> {
    match command {
        // It was meant for a connection that has ended by itself.
        Some(Command::GiveUp) => Ok(()),
        Some(Command::Shutdown(shutdown)) => {
            let nothing_to_say = shutdown.farewell.is_empty();
            Err(Stop::Shutdown(shutdown, nothing_to_say))
        }
        None => Err(Stop::Abandoned),
    }
}

/// A number in `[0, 1)` from the randomness of a UUID; 53 of its bits that no version field occupies.
fn random() -> f64 {
    let bits = Uuid::new_v4().as_u64_pair().1 & ((1 << 53) - 1);
    #[expect(clippy::cast_precision_loss, reason = "53 bits are exact")]
    let fraction = bits as f64 / (1_u64 << 53) as f64;
    fraction
}
