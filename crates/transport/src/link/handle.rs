//! The side of a link that everyone else holds: cheap to clone, never blocks.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use tokio::sync::{mpsc, oneshot};

use super::counted::Counts;
use super::counters::{Counters, Endings, Traffic};
use super::queue::{Limits, Queue, Refused};
use super::{MAX_TOPIC, Publish};

/// Why a message was not queued.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PublishError {
    /// There is no connection, or its other side does not listen; nothing is kept for the next one.
    #[error("not connected")]
    NotConnected,
    /// The queue's limit of messages or bytes is reached; wait until it is ready.
    #[error("the queue is full")]
    Full,
    /// The packet would be larger than both sides agreed on.
    #[error("a packet of {size} bytes is larger than the agreed {limit}")]
    TooLarge {
        /// The size of the packet, in bytes.
        size: usize,
        /// The limit, in bytes.
        limit: usize,
    },
    /// The topic is empty, too long or has wildcards.
    #[error("{topic:?} is not a topic to publish to")]
    BadTopic {
        /// The topic, cut to 64 characters.
        topic: String,
    },
}

/// A command to the task that owns the connection.
pub enum Command {
    /// Drops the current connection as unresponsive; ignored without a connection. See [`LinkHandle::give_up`].
    GiveUp,
    /// Ends the link for good. See [`LinkHandle::shutdown`].
    Shutdown(Shutdown),
}

/// How to end a link.
pub struct Shutdown {
    pub(crate) farewell: Vec<Publish>,
    pub(crate) within: Duration,
    pub(crate) done: Option<oneshot::Sender<bool>>,
}

/// What handle and task share.
pub struct Shared {
    /// Messages to publish: handles push, the task pops. Closed while there is no connection.
    pub queue: Queue<Publish>,
    /// What both sides of the current connection take, in bytes.
    pub(crate) max_packet: AtomicU32,
    /// Traffic of the link since it was started.
    pub counters: Counters,
}

impl Counts for Shared {
    const PROMPT: bool = true;

    fn bytes_in(&self) -> &AtomicU64 {
        &self.counters.bytes_in
    }

    fn bytes_out(&self) -> &AtomicU64 {
        &self.counters.bytes_out
    }
}

/// Messages of the current connection that are still under way.
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

/// Creates the handle of a link, what its task shares with it, and the task's commands. `max_packet` is this side's limit in
/// bytes, until a connection negotiates a smaller one.
pub fn new(limits: Limits, max_packet: u32) -> (LinkHandle, Arc<Shared>, mpsc::Receiver<Command>) {
    let shared = Arc::new(Shared {
        queue: Queue::new(limits, false),
        max_packet: AtomicU32::new(max_packet),
        counters: Counters::default(),
    });
    let (commands, receiver) = mpsc::channel(4);
    (LinkHandle { shared: Arc::clone(&shared), commands }, shared, receiver)
}

/// The size of a QoS 1 PUBLISH without properties, in bytes.
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
    /// It cannot be sent now ([`PublishError::NotConnected`], [`PublishError::Full`]) or not at all.
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

    /// Waits for room in the queue.
    ///
    /// # Errors
    /// [`PublishError::NotConnected`] when there is no connection or it ends meanwhile.
    pub async fn ready(&self) -> Result<(), PublishError> {
        self.shared.queue.ready().await.map_err(|_| PublishError::NotConnected)
    }

    /// The largest packet the current connection takes, in bytes; before the first one, our own limit.
    #[must_use]
    pub fn max_packet(&self) -> u32 {
        self.shared.max_packet.load(Ordering::Relaxed)
    }

    /// Bytes of payload that fit into one message on `topic`, after the packet's own fields.
    #[must_use]
    pub fn max_payload(&self, topic: &str) -> usize {
        (self.max_packet() as usize).saturating_sub(packet_size(topic, &[]) + 3)
    }

    /// What went through the link so far.
    #[must_use]
    pub fn traffic(&self) -> Traffic {
        self.shared.counters.read()
    }

    /// What is still under way, greetings included.
    #[must_use]
    pub fn backlog(&self) -> Backlog {
        // Read in the order in which a message goes on, so that it is rather counted twice than left out.
        let queued = self.shared.queue.depth() as u64;
        let unwritten = self.shared.counters.unwritten.load(Ordering::Relaxed);
        let unacknowledged = self.shared.counters.unacknowledged.load(Ordering::Relaxed);
        Backlog { unsent: queued + unwritten.min(unacknowledged), unacknowledged: queued + unacknowledged }
    }

    /// Why connections ended and attempts failed so far.
    #[must_use]
    pub fn endings(&self) -> Endings {
        self.shared.counters.endings()
    }

    /// Drops the connection because the other side takes messages and answers none: with a pause before the
    /// next attempt, as after any failure. Without a connection nothing happens.
    pub fn give_up(&self) {
        // A full channel means that the connection is being dropped already.
        let _ = self.commands.try_send(Command::GiveUp);
    }

    /// Sends what is queued and then `farewell`, waits up to `within` for the acknowledgements, and ends
    /// with a DISCONNECT that keeps the will from being published, or with the closing of the WebSocket.
    /// Received messages are no longer handed on meanwhile. Returns whether everything was acknowledged.
    pub async fn shutdown(&self, farewell: Vec<Publish>, within: Duration) -> bool {
        let (done, acknowledged) = oneshot::channel();
        let command = Command::Shutdown(Shutdown { farewell, within, done: Some(done) });
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
    fn a_packet_of_exactly_the_agreed_size_passes_and_one_byte_more_does_not() {
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
    fn topics_nobody_may_publish_to_are_refused() {
        let long = "a".repeat(MAX_TOPIC + 1);
        for bad in ["", "a/+/b", "a/#", "a\0", &long] {
            let error = handle(1000).try_publish(bad, Vec::new(), false);
            assert!(matches!(error, Err(PublishError::BadTopic { .. })), "{bad}");
        }
    }

    #[test]
    fn without_a_connection_nothing_is_queued() {
        let (handle, _, _commands) = new(LIMITS, 1000);
        assert_eq!(handle.try_publish("a", Vec::new(), false), Err(PublishError::NotConnected));
    }
}
