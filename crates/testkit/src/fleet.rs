//! Shared by tests of the endpoint: an endpoint on a free port, a node's link, and the next event
//! of a kind.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use edgesync_broker::{Broker, BrokerOptions, Channel, DisconnectReason, FleetEvent, FleetEvents};
use edgesync_object::NodeName;
use edgesync_transport::link::{LinkEvent, LinkOptions, Publish, RetryOptions, SessionIntro, Topics};
use tokio::sync::mpsc::Receiver;

pub use crate::timing::PATIENCE;
use crate::timing::within;

const ANY: &str = "127.0.0.1:0";

/// # Panics
/// No node can have this name.
pub fn node_name(name: &str) -> NodeName {
    NodeName::parse(name).unwrap()
}

pub async fn bind(options: BrokerOptions) -> (Broker, FleetEvents) {
    let (broker, mut events) = Broker::bind(ANY.parse().unwrap(), options).await.unwrap();
    assert!(matches!(next(&mut events).await, FleetEvent::Open { .. }));
    (broker, events)
}

pub async fn next(events: &mut FleetEvents) -> FleetEvent {
    within("an event comes", PATIENCE, events.recv()).await.expect("the endpoint has ended")
}

/// Returns the next message from a node; skips other events.
pub async fn message(events: &mut FleetEvents) -> (String, Channel, Vec<u8>) {
    loop {
        if let FleetEvent::Message { node, channel, payload } = next(events).await {
            return (node.to_string(), channel, payload);
        }
    }
}

/// Returns the next message on a node's `up` topic; skips other events.
pub async fn message_up(events: &mut FleetEvents) -> Vec<u8> {
    loop {
        if let (_, Channel::Up, payload) = message(events).await {
            return payload;
        }
    }
}

pub async fn node_connected(events: &mut FleetEvents) -> (String, u64) {
    match next(events).await {
        FleetEvent::NodeConnected { node, connection, .. } => (node.to_string(), connection),
        other => panic!("{other:?} instead of NodeConnected"),
    }
}

pub async fn disconnect_reason(events: &mut FleetEvents) -> DisconnectReason {
    loop {
        if let FleetEvent::NodeDisconnected { why, .. } = next(events).await {
            return why;
        }
    }
}

pub fn node_options(address: SocketAddr, node: &str) -> LinkOptions {
    let topics = Topics::default();
    let mut options = LinkOptions::new(&address.ip().to_string(), address.port(), node);
    options.subscriptions = vec![topics.down(node), topics.cloud()];
    options.own_topic = Some(topics.presence(node));
    options.retry = RetryOptions {
        first: Duration::from_millis(10),
        most: Duration::from_millis(50),
        ..RetryOptions::default()
    };
    let presence = topics.presence(node);
    options.introduce = Arc::new(move |connection| {
        let publish = |word: &str| Publish {
            topic: presence.clone(),
            payload: format!("{word} {connection}").into_bytes(),
            retain: true,
        };
        SessionIntro { will: Some(publish("offline")), greetings: vec![publish("online")] }
    });
    options
}

pub async fn link_event(events: &mut Receiver<LinkEvent>) -> LinkEvent {
    within("an event comes", PATIENCE, events.recv()).await.expect("the link has ended")
}

pub async fn link_connected(events: &mut Receiver<LinkEvent>) -> String {
    loop {
        if let LinkEvent::Connected { connection, .. } = link_event(events).await {
            return connection.to_string();
        }
    }
}

pub async fn link_message(events: &mut Receiver<LinkEvent>) -> (String, Vec<u8>) {
    match link_event(events).await {
        LinkEvent::Message { topic, payload, .. } => (topic, payload),
        other => panic!("{other:?} instead of Message"),
    }
}
