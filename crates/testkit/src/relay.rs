//! A broker that loses what it has acknowledged: it stands in front of a real one, passes every packet on,
//! and acknowledges messages itself that it then forgets, in both directions.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use rumqttc::v5::mqttbytes::v5::{Packet, PubAckReason};

use super::scripted_broker::{Peer, ScriptedBroker};

#[derive(Default)]
struct Losses {
    /// One message of so many is lost; 0 for none.
    every: AtomicU64,
    seen: AtomicU64,
    up: AtomicU64,
    down: AtomicU64,
}

/// A running relay.
pub struct Relay {
    broker: ScriptedBroker,
    losses: Arc<Losses>,
}

impl Relay {
    /// Passes everything on to the broker.
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

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.broker.address()
    }

    /// Loses one message of so many from now on; 0 for none.
    pub fn lose_every(&self, messages: u64) {
        self.losses.every.store(messages, Ordering::SeqCst);
    }

    /// Messages lost on the way up and on the way down.
    pub fn lost(&self) -> (u64, u64) {
        (self.losses.up.load(Ordering::SeqCst), self.losses.down.load(Ordering::SeqCst))
    }
}

/// Passes packets on until one side is gone. `back` goes to the sender.
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
