//! A client that publishes any message on any topic, impersonating others.

use std::net::SocketAddr;

use edgesync_transport::link::{Link, LinkEvent, LinkHandle, LinkOptions, PublishError};
use tokio::sync::mpsc::Receiver;

use super::{PATIENCE, eventually};
use crate::timing::within;

/// A client that publishes on any topic.
pub struct Forger {
    link: LinkHandle,
    events: Receiver<LinkEvent>,
}

impl Forger {
    /// Connects to a broker with a client id.
    pub async fn start(client_id: &str, broker: SocketAddr, listens: &str) -> Self {
        Self::start_over(LinkOptions::new(&broker.ip().to_string(), broker.port(), client_id), listens).await
    }

    /// Connects with these options, such as TLS with a certificate.
    pub async fn start_over(mut options: LinkOptions, listens: &str) -> Self {
        options.subscriptions = vec![listens.to_owned()];
        let (link, events) = Link::spawn(options);
        let mut forger = Self { link, events };
        while !matches!(forger.next("a connection").await, LinkEvent::Connected { .. }) {}
        forger
    }

    /// Publishes a message, and waits for its acknowledgement.
    pub async fn send(&self, topic: &str, payload: &[u8]) {
        while let Err(error) = self.link.try_publish(topic, payload.to_vec(), false) {
            assert_eq!(error, PublishError::Full, "{topic}");
            self.link.ready().await.unwrap();
        }
        let sent = self.link.traffic().messages_out;
        eventually("the broker takes a message", PATIENCE, async || {
            let traffic = self.link.traffic();
            (traffic.messages_out >= sent && traffic.unacknowledged == 0).then_some(())
        })
        .await;
    }

    /// Returns the payload of the next message.
    pub async fn receive(&mut self) -> Vec<u8> {
        loop {
            if let LinkEvent::Message { payload, .. } = self.next("a message").await {
                return payload;
            }
        }
    }

    async fn next(&mut self, what: &str) -> LinkEvent {
        within(what, PATIENCE, self.events.recv()).await.expect("the link has ended")
    }
}
