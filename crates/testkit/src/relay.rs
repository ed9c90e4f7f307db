//! A lossy broker in front of a real one: forwards every packet, except messages that it
//! acknowledges itself and drops, in both directions.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use rumqttc::v5::mqttbytes::v5::{Packet, PubAckReason};

use super::scripted_broker::{Peer, ScriptedBroker};

#[derive(Default)]
struct Losses {
    /// Interval of lost messages; 0 for none.
    every: AtomicU64,
    seen: AtomicU64,
    up: AtomicU64,
    down: AtomicU64,
}

/// A running lossy relay.
pub struct Relay {
    broker: ScriptedBroker,
    losses: Arc<Losses>,
}

impl Relay {
    /// Starts a relay to a broker.
    pub fn start(upstream: SocketAddr) -> Self {
        let losses = Arc::new(Losses::default());
        let shared = Arc::clone(&losses);
        let broker = ScriptedBroker::start(move |_, client| {
            let server = Peer::dial(upstream);
            let (to_client, to_server) = (client.writer(), server.writer());
            let (back, forth) = (Arc::clone(&to_client), Arc::clone(&to_server));
            let losses = Arc::clone(&shared);
            let down = std::thread::spawn(move || pass(server, &back, &forth, &losses, &losses.down));
            pass(client, &to_server, &to_client, &shared, &shared.up);
            let _ = down.join();
        });
        Self { broker, losses }
    }

    /// Returns the address that it listens on.
    pub fn address(&self) -> SocketAddr {
        self.broker.address()
    }

    /// Drops one of every `messages` messages from now on; 0 for none.
    pub fn lose_every(&self, messages: u64) {
        self.losses.every.store(messages, Ordering::SeqCst);
    }

    /// Returns the numbers of messages dropped on the way up and down.
    pub fn lost(&self) -> (u64, u64) {
        (self.losses.up.load(Ordering::SeqCst), self.losses.down.load(Ordering::SeqCst))
    }
}

/// Forwards packets until one side has closed. `back` goes to the sender.
fn pass(mut from: Peer, to: &Mutex<Peer>, back: &Mutex<Peer>, losses: &Losses, lost: &AtomicU64) {
    while let Some(packet) = from.read() {
        if let Packet::Publish(publish) = &packet
            && !publish.retain
        {
            let every = losses.every.load(Ordering::SeqCst);
            if every > 0 && losses.seen.fetch_add(1, Ordering::SeqCst).is_multiple_of(every) {
                back.lock().unwrap().acknowledge(publish.pkid, PubAckReason::Success);
                lost.fetch_add(1, Ordering::SeqCst);
                continue;
            }
        }
        to.lock().unwrap().send(&packet);
    }
}
