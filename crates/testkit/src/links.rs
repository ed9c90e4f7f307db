//! Shared by tests of links and endpoints: options that retry at once, and the next event of a
//! kind.

use std::net::SocketAddr;
use std::time::Duration;

use edgesync_transport::link::{Cause, LinkEvent, LinkOptions, RetryOptions};
use tokio::sync::mpsc::Receiver;

pub use crate::timing::PATIENCE;
use crate::timing::within;

/// Options of a client named `node-1`, subscribed to `t/down`.
pub fn options(address: SocketAddr) -> LinkOptions {
    let mut options = LinkOptions::new(&address.ip().to_string(), address.port(), "node-1");
    options.subscriptions = vec!["t/down".to_owned()];
    options.retry = RetryOptions {
        first: Duration::from_millis(10),
        most: Duration::from_millis(50),
        ..RetryOptions::default()
    };
    options
}

pub async fn next(events: &mut Receiver<LinkEvent>) -> LinkEvent {
    within("an event comes", PATIENCE, events.recv()).await.expect("the link has ended")
}

pub async fn connected(events: &mut Receiver<LinkEvent>) -> u32 {
    match next(events).await {
        LinkEvent::Connected { max_packet, .. } => max_packet,
        other => panic!("{other:?} instead of Connected"),
    }
}

pub async fn cause(events: &mut Receiver<LinkEvent>) -> Cause {
    match next(events).await {
        LinkEvent::Disconnected { cause, .. } => cause,
        other => panic!("{other:?} instead of Disconnected"),
    }
}

pub async fn message(events: &mut Receiver<LinkEvent>) -> (String, Vec<u8>) {
    match next(events).await {
        LinkEvent::Message { topic, payload, .. } => (topic, payload),
        other => panic!("{other:?} instead of Message"),
    }
}

/// Skips failures up to the next connection.
pub async fn reconnected(events: &mut Receiver<LinkEvent>) {
    loop {
        match next(events).await {
            LinkEvent::Connected { .. } => return,
            LinkEvent::Disconnected { .. } => {}
            other => panic!("{other:?} instead of Connected"),
        }
    }
}
