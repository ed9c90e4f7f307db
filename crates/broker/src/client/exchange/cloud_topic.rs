//! The message retained on the `cloud` topic, as one client has to receive it.

use std::sync::Arc;

use bytes::Bytes;
use tokio::sync::watch;

use crate::registry::{Origin, Outbound};

/// Watches the retained message. A client gets its newest version only.
pub(super) struct CloudTopic {
    name: Arc<str>,
    payload: watch::Receiver<Option<Bytes>>,
    /// Origin of the message that must be sent next.
    due: Option<Origin>,
}

impl CloudTopic {
    pub(super) fn new(name: Arc<str>, payload: watch::Receiver<Option<Bytes>>) -> Self {
        Self { name, payload, due: None }
    }

    /// Returns the name of the topic.
    pub(super) fn name(&self) -> &str {
        &self.name
    }

    /// Returns whether the message must be sent.
    pub(super) fn is_due(&self) -> bool {
        self.due.is_some()
    }

    /// Waits until the message is replaced; it is due then. Safe to cancel.
    pub(super) async fn changed(&mut self) {
        // Cannot fail: the registry holds the sender.
        let _ = self.payload.changed().await;
        self.due.get_or_insert(Origin::Cloud { retain: true });
    }

    /// Schedules the message for a new subscription.
    pub(super) fn replay(&mut self) {
        self.due = Some(Origin::Retained);
    }

    /// Returns the message if it is due. An empty payload says that it was removed; a new
    /// subscription gets no message then.
    pub(super) fn take_due(&mut self) -> Option<Outbound> {
        let origin = self.due.take()?;
        let payload = self.payload.borrow_and_update().clone();
        if payload.is_none() && origin == Origin::Retained {
            return None;
        }
        Some(Outbound { topic: Arc::clone(&self.name), payload: payload.unwrap_or_default(), origin })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn client_gets_the_newest_message_once() {
        let (sender, receiver) = watch::channel(None);
        let mut topic = CloudTopic::new("cloud".into(), receiver);
        topic.replay();
        assert_eq!(topic.take_due().map(|outbound| outbound.origin), None, "nothing is retained");
        for payload in ["1", "2"] {
            sender.send_replace(Some(Bytes::from_static(payload.as_bytes())));
        }
        topic.changed().await;
        assert!(topic.is_due());
        assert_eq!(topic.take_due().map(|outbound| outbound.payload), Some(Bytes::from_static(b"2")));
        assert!(topic.take_due().is_none());
        topic.replay();
        assert_eq!(topic.take_due().map(|outbound| outbound.origin), Some(Origin::Retained));
        sender.send_replace(None);
        topic.changed().await;
        assert_eq!(topic.take_due().map(|outbound| outbound.payload), Some(Bytes::new()));
    }
}
