//! A client that says on any topic whatever a test wants, in somebody else's name.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};

use edgesync::link::{Link, LinkEvent, LinkHandle, LinkOptions, PublishError};
use tokio::sync::mpsc::Receiver;
use tokio::time::timeout;

use super::{PATIENCE, block_on, eventually};

static CLIENTS: AtomicUsize = AtomicUsize::new(0);

/// See the module.
pub(crate) struct Forger {
    link: LinkHandle,
    events: Receiver<LinkEvent>,
}

impl Forger {
    /// Connects to a broker that lets anyone do anything.
    pub(crate) fn at(broker: SocketAddr, listens: &str) -> Self {
        let number = CLIENTS.fetch_add(1, Ordering::SeqCst);
        Self::named(&format!("forger-{}-{number}", std::process::id()), broker, listens)
    }

    /// Connects with a client id and waits until that is done.
    pub(crate) fn named(client_id: &str, broker: SocketAddr, listens: &str) -> Self {
        let mut options = LinkOptions::new(&broker.ip().to_string(), broker.port(), client_id);
        options.subscriptions = vec![listens.to_owned()];
        let (link, events) = block_on(async { Link::spawn(options) });
        let mut forger = Self { link, events };
        forger.next("the connection", |event| matches!(event, LinkEvent::Connected { .. }).then_some(()));
        forger
    }

    /// Publishes, as soon as there is room; returns when the broker has taken it.
    pub(crate) fn say(&self, topic: &str, payload: &[u8]) {
        loop {
            match self.link.try_publish(topic, payload.to_vec(), false) {
                Ok(()) => break,
                Err(PublishError::Full) => block_on(self.link.ready()).unwrap(),
                Err(error) => panic!("{error}"),
            }
        }
        eventually("the broker takes a message", PATIENCE, || {
            let traffic = self.link.traffic();
            self.link.capacity() > 0 && traffic.unacknowledged == 0
        });
    }

    /// The payload of the next message.
    pub(crate) fn hears(&mut self) -> Vec<u8> {
        self.next("a message", |event| match event {
            LinkEvent::Message { payload, .. } => Some(payload),
            _ => None,
        })
    }

    fn next<T>(&mut self, what: &str, wanted: impl Fn(LinkEvent) -> Option<T>) -> T {
        loop {
            let event = block_on(async { timeout(PATIENCE, self.events.recv()).await });
            let event = event.unwrap_or_else(|_| panic!("{what} did not come")).expect("the link has ended");
            if let Some(found) = wanted(event) {
                return found;
            }
        }
    }
}
