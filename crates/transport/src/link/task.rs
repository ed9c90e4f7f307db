//! The task that owns a connection, independent of its protocol: connects, runs it, backs off,
//! reconnects.

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
use super::order::Order;
use super::retry::RetryOptions;
use super::stream::Target;
use super::{Cause, ConnectionId, LinkEvent, Publish};
use crate::random::generator;
use edgesync_object::time::rounded;

/// Time limit for the last bytes of an orderly close.
pub const LAST_WORDS: Duration = Duration::from_secs(1);

/// A protocol on a connection, and its state across connections.
pub trait Protocol: Sized {
    /// A connection ready for use.
    type Made;

    /// Returns the address to connect to.
    fn target(&self) -> Target<'_>;

    /// Returns the number of addresses, at least 1.
    fn addresses(&self) -> usize {
        1
    }

    /// Returns the position of the address to try first.
    fn preferred(&self) -> usize {
        0
    }

    /// Chooses the address of the next attempt by its position.
    fn select(&mut self, _position: usize) {}

    /// Makes one attempt to connect.
    fn establish(
        &mut self,
        connection: ConnectionId,
        shared: &Arc<Shared>,
    ) -> impl Future<Output = Result<Self::Made, Cause>> + Send;

    /// Returns the negotiated packet limit in bytes.
    fn max_packet(&self, made: &Self::Made) -> u32;

    /// Returns whether the exchange is [compact](super::compact).
    fn is_compact(&self, _made: &Self::Made) -> bool {
        false
    }

    /// Runs a connection until it ends; `first` is the first event.
    fn run(task: &mut Task<Self>, made: Self::Made, first: LinkEvent) -> impl Future<Output = End> + Send;

    /// Refines the cause of a loss or of a failed attempt.
    fn explain(&mut self, cause: Cause, was_connected: bool) -> Cause;
}

/// Reason why the task stops for good.
pub enum Stop {
    /// Requested; the flag says whether everything was acknowledged.
    Shutdown(Shutdown, bool),
    /// The receiver or all handles were dropped.
    Abandoned,
}

/// Outcome of a connection, or of the attempt to make one.
pub enum End {
    /// The connection was lost or not made; the task retries after a delay.
    Failed(Cause),
    /// The task ends without another attempt.
    Stop(Stop),
}

impl From<Cause> for End {
    fn from(cause: Cause) -> Self {
        Self::Failed(cause)
    }
}

/// An orderly shutdown in progress.
pub struct Ending {
    pub(super) shutdown: Shutdown,
    /// Time at which the connection is closed regardless of unacknowledged messages.
    pub deadline: Instant,
    /// Whether [`Ending::farewell`] has returned the last messages.
    pub farewell_queued: bool,
}

impl Ending {
    fn new(shutdown: Shutdown) -> Self {
        let deadline = Instant::now() + shutdown.within;
        Self { shutdown, deadline, farewell_queued: false }
    }

    /// Returns the messages to send after all others; once.
    pub fn farewell(&mut self) -> VecDeque<Publish> {
        self.farewell_queued = true;
        std::mem::take(&mut self.shutdown.farewell).into()
    }

    /// Returns the end of a connection that shuts down; `acknowledged` says whether everything sent
    /// before was acknowledged.
    pub fn end(ending: Option<Self>, acknowledged: bool) -> End {
        match ending {
            Some(ending) => End::Stop(Stop::Shutdown(ending.shutdown, acknowledged)),
            None => End::Stop(Stop::Abandoned),
        }
    }
}

/// State of the task across connections.
pub struct Task<P> {
    /// State of the protocol.
    pub protocol: P,
    /// Queue and counters, shared with the handles.
    pub shared: Arc<Shared>,
    /// Commands of the handles; closed when the last handle is dropped.
    pub commands: mpsc::Receiver<Command>,
    /// Events for the owner of the link. While the channel is full the task stops reading from the
    /// socket.
    pub events: mpsc::Sender<LinkEvent>,
    order: Order,
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
    let order = Order::new(retry, protocol.addresses(), protocol.preferred());
    let mut task = Task { protocol, shared, commands, events, order, was_connected: false };
    let stop = loop {
        let ended = match task.attempt().await {
            End::Failed(cause) => task.pause(cause).await,
            End::Stop(stop) => Err(stop),
        };
        let Err(mut stop) = ended else { continue };
        while let Stop::Shutdown(Shutdown { is_pause: true, is_resumed, .. }, _) = stop {
            match task.rest(is_resumed).await {
                Ok(()) => break,
                Err(next) => stop = next,
            }
        }
        if !matches!(stop, Stop::Shutdown(Shutdown { is_pause: true, .. }, _)) {
            break stop;
        }
    };
    task.shared.queue.close_and_clear();
    if let Stop::Shutdown(Shutdown { done: Some(done), .. }, acknowledged) = stop {
        // The caller may have dropped its receiver.
        let _ = done.send(acknowledged);
    }
}

impl<P: Protocol> Task<P> {
    /// Runs one connection from its first byte to its last.
    async fn attempt(&mut self) -> End {
        self.was_connected = false;
        let position = self.order.current();
        self.protocol.select(position);
        self.shared.position.store(position, Ordering::Relaxed);
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
        let (max_packet, is_compact) = (self.protocol.max_packet(&made), self.protocol.is_compact(&made));
        self.shared.max_packet.store(max_packet, Ordering::Relaxed);
        self.shared.queue.open();
        self.was_connected = true;
        self.order.connected(std::time::Instant::now());
        add(&self.shared.counters.connected, 1);
        tracing::debug!(peer = %self.protocol.target().peer(), %connection, max_packet, "connected");

        let first = LinkEvent::Connected { connection, max_packet, is_compact };
        let end = P::run(self, made, first).await;
        let queued = self.shared.queue.close_and_clear() as u64;
        self.shared.counters.unwritten.store(0, Ordering::Relaxed);
        let unacknowledged = self.shared.counters.unacknowledged.swap(0, Ordering::Relaxed);
        add(&self.shared.counters.discarded, queued + unacknowledged);
        end
    }

    /// Reports the loss or failure, and waits for the next attempt.
    async fn pause(&mut self, cause: Cause) -> Result<(), Stop> {
        let cause = self.protocol.explain(cause, self.was_connected);
        let now = std::time::Instant::now();
        let random = generator().next_fraction();
        let retry_in = match cause {
            Cause::TakenOver { .. } => self.order.taken_over(now, random),
            _ => self.order.failed(now, self.was_connected, random),
        };
        self.shared.counters.ended(&cause, self.was_connected);
        if matches!(cause, Cause::ConsumerStalled { .. }) {
            add(&self.shared.counters.stalled, 1);
        }
        let peer = self.protocol.target().peer();
        // Debug only: the user of the link logs the meaning.
        tracing::debug!(%peer, retry_in = %rounded(retry_in), cause = cause.label(), "not connected: {cause}");
        let event = LinkEvent::Disconnected { cause, retry_in };
        if self.announce(event).await? {
            return Ok(());
        }
        let waited = sleep(retry_in);
        tokio::pin!(waited);
        loop {
            tokio::select! {
                () = &mut waited => return Ok(()),
                () = self.events.closed() => return Err(Stop::Abandoned),
                command = self.commands.recv() => match command {
                    Some(Command::Resume) => return Ok(()),
                    command => unconnected(command)?,
                }
            }
        }
    }

    /// Reports the pause, and waits for its end, unless it has come already.
    async fn rest(&mut self, is_resumed: bool) -> Result<(), Stop> {
        self.shared.counters.ended(&Cause::Paused, self.was_connected);
        self.was_connected = false;
        self.shared.queue.close_and_clear();
        let event = LinkEvent::Disconnected { cause: Cause::Paused, retry_in: Duration::ZERO };
        if self.announce(event).await? || is_resumed {
            return Ok(());
        }
        loop {
            tokio::select! {
                () = self.events.closed() => return Err(Stop::Abandoned),
                command = self.commands.recv() => match command {
                    Some(Command::Resume) => return Ok(()),
                    Some(Command::Shutdown(Shutdown { is_pause: true, .. })) => {}
                    command => unconnected(command)?,
                }
            }
        }
    }

    /// Waits until the event is received. Returns whether the link was resumed meanwhile.
    async fn announce(&mut self, event: LinkEvent) -> Result<bool, Stop> {
        let sending = self.events.send(event);
        tokio::pin!(sending);
        let mut is_resumed = false;
        loop {
            tokio::select! {
                sent = &mut sending => return sent.map(|()| is_resumed).map_err(|_| Stop::Abandoned),
                command = self.commands.recv() => match command {
                    Some(Command::Resume) => is_resumed = true,
                    command => unconnected(command)?,
                }
            }
        }
    }

    /// Applies a command while there is a connection; a shutdown starts the orderly close.
    pub fn command(&self, command: Option<Command>, ending: &mut Option<Ending>) -> Result<(), End> {
        match command {
            None => Err(End::Stop(Stop::Abandoned)),
            Some(Command::GiveUp) => Err(End::Failed(Cause::Unanswered)),
            Some(Command::Resume) => {
                // The owner does not repeat it after a pause that has begun.
                if let Some(ending) = ending {
                    ending.shutdown.is_resumed = true;
                }
                Ok(())
            }
            // The first request counts, and a shutdown more than a pause; a second caller sees its
            // channel close.
            Some(Command::Shutdown(shutdown)) => {
                let is_counted = match ending {
                    None => true,
                    Some(ending) => ending.shutdown.is_pause && !shutdown.is_pause,
                };
                if is_counted {
                    self.shared.queue.close();
                    *ending = Some(Ending::new(shutdown));
                } else if let Some(ending) = ending {
                    ending.shutdown.is_resumed &= !shutdown.is_pause;
                }
                Ok(())
            }
        }
    }

    /// Sends an event at once if there is space; otherwise returns it.
    pub fn offer(&self, event: LinkEvent) -> Option<LinkEvent> {
        match self.events.try_send(event) {
            Ok(()) => None,
            Err(TrySendError::Full(event) | TrySendError::Closed(event)) => Some(event),
        }
    }
}

/// Sends the pending event; `false` if the receiver was dropped. Safe to cancel.
pub async fn hand_over(events: &mpsc::Sender<LinkEvent>, pending: &mut Option<LinkEvent>) -> bool {
    let Ok(permit) = events.reserve().await else { return false };
    if let Some(event) = pending.take() {
        permit.send(event);
    }
    true
}

/// Applies a command while there is no connection.
fn unconnected(command: Option<Command>) -> Result<(), Stop> {
    match command {
        // It was meant for a connection that has already ended, or an attempt is under way.
        Some(Command::GiveUp | Command::Resume) => Ok(()),
        Some(Command::Shutdown(shutdown)) => {
            let nothing_to_say = shutdown.farewell.is_empty();
            Err(Stop::Shutdown(shutdown, nothing_to_say))
        }
        None => Err(Stop::Abandoned),
    }
}
