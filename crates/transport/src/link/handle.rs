//! The handle of a link: cheap to clone, never blocks.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use tokio::sync::{mpsc, oneshot};

use super::counted::Counts;
use super::counters::{Counters, Endings, Traffic};
use super::queue::{Limits, Queue, Refused};
use super::{MAX_TOPIC, Publish};

/// Reason why a message was not queued.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PublishError {
    /// There is no connection, or its other side does not listen; nothing is queued for the next
    /// one.
    #[error("not connected")]
    NotConnected,
    /// The queue has reached its limit of messages or bytes; see [`LinkHandle::ready`].
    #[error("queue full")]
    Full,
    /// The packet would exceed the negotiated limit.
    #[error("packet of {size} bytes exceeds the negotiated limit of {limit}")]
    TooLarge {
        /// The size of the packet, in bytes.
        size: usize,
        /// The limit, in bytes.
        limit: usize,
    },
    /// The topic is empty, too long or has wildcards.
    #[error("invalid topic name {topic:?}")]
    BadTopic {
        /// The topic, cut to 64 characters.
        topic: String,
    },
}

/// A command to the task that owns the connection.
pub enum Command {
    /// Drops the current connection as unresponsive; ignored without a connection. See
    /// [`LinkHandle::give_up`].
    GiveUp,
    /// Ends the link for good, or pauses it. See [`LinkHandle::shutdown`] and
    /// [`LinkHandle::pause`].
    Shutdown(Shutdown),
    /// Connects again after a pause. See [`LinkHandle::resume`].
    Resume,
}

/// Parameters of an orderly shutdown.
pub struct Shutdown {
    pub(crate) farewell: Vec<Publish>,
    pub(crate) within: Duration,
    pub(crate) done: Option<oneshot::Sender<bool>>,
    /// Whether the link waits for [`Command::Resume`] afterwards.
    pub(crate) is_pause: bool,
    /// Whether [`Command::Resume`] has come before the end of the connection.
    pub(crate) is_resumed: bool,
}

/// State that handle and task share.
pub struct Shared {
    /// Messages to publish: handles push, the task pops. Closed while there is no connection.
    pub queue: Queue<Publish>,
    /// Negotiated limit of the current connection, in bytes.
    pub(crate) max_packet: AtomicU32,
    /// Position of the address of the current or last attempt.
    pub(crate) position: AtomicUsize,
    /// Whether the peer acknowledges with its answers: the endpoint of the cloud side does.
    pub(crate) answers_at_once: AtomicBool,
    /// Whether the connection is being closed.
    pub(crate) is_ending: AtomicBool,
    /// Counters of the link since it was started.
    pub counters: Counters,
}

impl Counts for Shared {
    fn is_prompt(&self) -> bool {
        !self.answers_at_once.load(Ordering::Relaxed)
    }

    fn is_ending(&self) -> bool {
        self.is_ending.load(Ordering::Relaxed)
    }

    fn bytes_in(&self) -> &AtomicU64 {
        &self.counters.bytes_in
    }

    fn bytes_out(&self) -> &AtomicU64 {
        &self.counters.bytes_out
    }
}

/// Messages of the current connection that are not completed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Backlog {
    /// Queued, or not written to the socket in full.
    pub unsent: u64,
    /// Not acknowledged by the other side, the unsent ones included.
    pub unacknowledged: u64,
}

/// Publishes on a link and ends it.
#[derive(Clone)]
pub struct LinkHandle {
    shared: Arc<Shared>,
    commands: mpsc::Sender<Command>,
}

/// Creates the handle of a link, the state it shares with its task, and the task's commands.
/// `max_packet` is this side's limit in bytes, until a connection negotiates a smaller one.
pub fn new(limits: Limits, max_packet: u32) -> (LinkHandle, Arc<Shared>, mpsc::Receiver<Command>) {
    let shared = Arc::new(Shared {
        queue: Queue::new(limits, false),
        max_packet: AtomicU32::new(max_packet),
        position: AtomicUsize::new(0),
        answers_at_once: AtomicBool::new(false),
        is_ending: AtomicBool::new(false),
        counters: Counters::default(),
    });
    let (commands, receiver) = mpsc::channel(4);
    (LinkHandle { shared: Arc::clone(&shared), commands }, shared, receiver)
}

/// Returns the size of a QoS 1 PUBLISH without properties, in bytes.
pub fn packet_size(topic: &str, payload: &[u8]) -> usize {
    let body = 2 + topic.len() + 2 + 1 + payload.len();
    let length_field = match body {
        0..128 => 1,
        128..16_384 => 2,
        16_384..2_097_152 => 3,
        _ => 4,
    };
    1 + length_field + body
}

fn check_topic(topic: &str) -> Result<(), PublishError> {
    if !topic.is_empty() && topic.len() <= MAX_TOPIC && !topic.contains(['+', '#', '\0']) {
        return Ok(());
    }
    Err(PublishError::BadTopic { topic: topic.chars().take(64).collect() })
}

impl LinkHandle {
    /// Queues a message with QoS 1 for the current connection.
    ///
    /// # Errors
    /// It cannot be sent now ([`PublishError::NotConnected`], [`PublishError::Full`]) or not at
    /// all.
    pub fn try_publish(&self, topic: &str, payload: Vec<u8>, retain: bool) -> Result<(), PublishError> {
        check_topic(topic)?;
        let size = packet_size(topic, &payload);
        let limit = self.max_packet() as usize;
        if size > limit {
            return Err(PublishError::TooLarge { size, limit });
        }
        let publish = Publish { topic: topic.to_owned(), payload, retain };
        self.shared.queue.push(publish, size).map_err(|refused| match refused {
            Refused::Full => PublishError::Full,
            Refused::Closed => PublishError::NotConnected,
        })
    }

    /// Waits until the queue has space.
    ///
    /// # Errors
    /// [`PublishError::NotConnected`] when there is no connection or it ends meanwhile.
    pub async fn ready(&self) -> Result<(), PublishError> {
        self.shared.queue.ready().await.map_err(|_| PublishError::NotConnected)
    }

    /// Returns the largest packet that the current connection allows, in bytes; before the first
    /// connection, the configured limit.
    #[must_use]
    pub fn max_packet(&self) -> u32 {
        self.shared.max_packet.load(Ordering::Relaxed)
    }

    /// Returns the position, among the configured addresses, of that of the current connection, or
    /// of the last attempt.
    #[must_use]
    pub fn position(&self) -> usize {
        self.shared.position.load(Ordering::Relaxed)
    }

    /// Returns the size of the largest payload for one message on `topic`, in bytes.
    #[must_use]
    pub fn max_payload(&self, topic: &str) -> usize {
        (self.max_packet() as usize).saturating_sub(packet_size(topic, &[]) + 3)
    }

    /// Returns the counters of the link.
    #[must_use]
    pub fn traffic(&self) -> Traffic {
        self.shared.counters.read()
    }

    /// Returns the messages not completed, greetings included.
    #[must_use]
    pub fn backlog(&self) -> Backlog {
        // Read in the order in which a message advances: then one may count twice, but none is
        // missed.
        let queued = self.shared.queue.depth() as u64;
        let unwritten = self.shared.counters.unwritten.load(Ordering::Relaxed);
        let unacknowledged = self.shared.counters.unacknowledged.load(Ordering::Relaxed);
        Backlog { unsent: queued + unwritten.min(unacknowledged), unacknowledged: queued + unacknowledged }
    }

    /// Returns the causes of all losses and failed attempts so far.
    #[must_use]
    pub fn endings(&self) -> Endings {
        self.shared.counters.endings()
    }

    /// Drops the connection because the other side accepts messages and answers none. The next
    /// attempt follows after the usual backoff. Does nothing without a connection.
    pub fn give_up(&self) {
        // A full channel means that the connection is being dropped already.
        let _ = self.commands.try_send(Command::GiveUp);
    }

    /// Sends the queued messages and then `farewell`, waits up to `within` for the
    /// acknowledgements, and disconnects in order. The link makes no attempt before
    /// [`LinkHandle::resume`], and reports [`Cause::Paused`](super::Cause::Paused). Returns `false`
    /// if it cannot now.
    pub fn pause(&self, farewell: Vec<Publish>, within: Duration) -> bool {
        let shutdown = Shutdown { farewell, within, done: None, is_pause: true, is_resumed: false };
        self.commands.try_send(Command::Shutdown(shutdown)).is_ok()
    }

    /// Connects at once: ends a pause, also one whose farewell is still being sent, or the delay
    /// before the next attempt. Otherwise does nothing with a connection. Returns `false` if it
    /// cannot now.
    pub fn resume(&self) -> bool {
        self.commands.try_send(Command::Resume).is_ok()
    }

    /// Sends the queued messages and then `farewell`, and waits up to `within` for the
    /// acknowledgements. Ends with a DISCONNECT, which keeps the broker from publishing the will,
    /// or with the close of the WebSocket. Received messages are dropped meanwhile. Returns whether
    /// everything was acknowledged.
    pub async fn shutdown(&self, farewell: Vec<Publish>, within: Duration) -> bool {
        let (done, acknowledged) = oneshot::channel();
        let shutdown = Shutdown { farewell, within, done: Some(done), is_pause: false, is_resumed: false };
        let command = Command::Shutdown(shutdown);
        if self.commands.send(command).await.is_err() {
            return false;
        }
        acknowledged.await.unwrap_or(false)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMITS: Limits = Limits { messages: 1, bytes: 1 };

    fn handle(max_packet: u32) -> LinkHandle {
        let (handle, shared, _) = new(LIMITS, max_packet);
        shared.queue.open();
        handle
    }

    #[test]
    fn packet_limit_is_inclusive() {
        for size in [200, 20_000, 3_000_000] {
            let handle = handle(size);
            let fixed = packet_size("a/b", &vec![0; size as usize]) - size as usize;
            let payload = vec![0; size as usize - fixed];
            assert_eq!(handle.try_publish("a/b", payload.clone(), false), Ok(()));
            let error = handle.try_publish("a/b", [&payload[..], &[0]].concat(), false);
            assert!(matches!(error, Err(PublishError::TooLarge { .. })), "{size}: {error:?}");
            assert!(handle.max_payload("a/b") <= payload.len(), "{size}");
        }
    }

    #[test]
    fn topics_with_wildcards_are_refused() {
        let long = "a".repeat(MAX_TOPIC + 1);
        for bad in ["", "a/+/b", "a/#", "a\0", &long] {
            let error = handle(1000).try_publish(bad, Vec::new(), false);
            assert!(matches!(error, Err(PublishError::BadTopic { .. })), "{bad}");
        }
    }

    #[test]
    fn publish_without_a_connection_fails() {
        let (handle, _, _commands) = new(LIMITS, 1000);
        assert_eq!(handle.try_publish("a", Vec::new(), false), Err(PublishError::NotConnected));
    }
}
