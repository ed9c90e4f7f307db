//! One way to the nodes for the cloud side, whether they connect to the endpoint or to an external broker.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::mpsc;

use super::inflow::{FleetEvents, Inflow, inflow};
use super::{Broker, Channel, FleetEvent};
use edgesync_object::NodeName;
use edgesync_transport::link::topic::{Topic, Topics};
use edgesync_transport::link::{
    Backlog, Introduce, Link, LinkEvent, LinkHandle, LinkOptions, Publish, PublishError,
};

/// The way to the nodes.
#[derive(Clone)]
pub enum Downlink {
    /// They connect to this process.
    Embedded(Broker),
    /// They and this process connect to the same broker.
    External(External),
}

/// A connection to an external broker, on the cloud's side of it.
#[derive(Clone)]
pub struct External {
    link: LinkHandle,
    topics: Topics,
    cloud: Arc<Mutex<Vec<u8>>>,
    order: Arc<Mutex<Order>>,
}

/// Which of the messages in the one queue are for whom.
#[derive(Default)]
struct Order {
    /// How many were queued so far.
    queued: u64,
    /// Their numbers, until the broker has acknowledged them.
    by_node: HashMap<NodeName, VecDeque<u64>>,
}

impl Downlink {
    /// Queues a message for a node's `down` topic.
    ///
    /// # Errors
    /// It cannot be sent now, or not at all. With an external broker success does not mean that the node is
    /// connected, and the queue is one for all nodes.
    pub fn try_publish(&self, node: &NodeName, payload: Vec<u8>) -> Result<(), PublishError> {
        match self {
            Self::Embedded(broker) => broker.try_publish(node, payload),
            Self::External(external) => external.try_publish(node, payload),
        }
    }

    /// Waits for room in the queue that a message for the node would go into.
    ///
    /// # Errors
    /// [`PublishError::NotConnected`].
    pub async fn ready(&self, node: &NodeName) -> Result<(), PublishError> {
        match self {
            Self::Embedded(broker) => broker.ready(node).await,
            Self::External(external) => external.link.ready().await,
        }
    }

    /// Messages for the node that are under way on the connection of now, to the node or to an external broker; `None`
    /// if it is not connected.
    #[must_use]
    pub fn backlog(&self, node: &NodeName) -> Option<Backlog> {
        match self {
            Self::Embedded(broker) => broker.backlog(node),
            Self::External(external) => Some(external.backlog(node)),
        }
    }

    /// Waits until [`Downlink::backlog`] has become smaller for some nodes, and names them. Not told of an external broker.
    /// Can be cancelled without loss; one caller at a time.
    pub async fn moved(&self) -> Vec<NodeName> {
        match self {
            Self::Embedded(broker) => broker.moved().await,
            Self::External(_) => std::future::pending().await,
        }
    }

    /// Whether all nodes share one queue.
    #[must_use]
    pub fn is_shared(&self) -> bool {
        matches!(self, Self::External(_))
    }

    /// Replaces the message retained on `cloud`, now and on every later connection.
    pub fn set_cloud(&self, payload: Vec<u8>) {
        match self {
            Self::Embedded(broker) => broker.set_cloud(payload),
            Self::External(external) => external.set_cloud(payload),
        }
    }

    /// Ends it in order: `farewell` is what stays retained on `cloud`.
    pub async fn shutdown(&self, farewell: Vec<u8>, within: Duration) {
        match self {
            Self::Embedded(broker) => {
                broker.set_cloud(farewell);
                broker.shutdown().await;
            }
            Self::External(external) => {
                let publish = Publish { topic: external.topics.cloud(), payload: farewell, retain: true };
                external.link.shutdown(vec![publish], within).await;
            }
        }
    }
}

impl External {
    /// The link, for its counters.
    #[must_use]
    pub fn link(&self) -> &LinkHandle {
        &self.link
    }

    fn order(&self) -> MutexGuard<'_, Order> {
        self.order.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn try_publish(&self, node: &NodeName, payload: Vec<u8>) -> Result<(), PublishError> {
        let mut order = self.order();
        self.link.try_publish(&self.topics.down(node), payload, false)?;
        order.queued += 1;
        let (queued, done) = (order.queued, self.link.backlog());
        let numbers = order.by_node.entry(node.clone()).or_default();
        let taken = queued.saturating_sub(done.unacknowledged);
        while numbers.pop_front_if(|number| *number <= taken).is_some() {}
        numbers.push_back(queued);
        Ok(())
    }

    fn backlog(&self, node: &NodeName) -> Backlog {
        let mut order = self.order();
        let (queued, done) = (order.queued, self.link.backlog());
        // What the cloud says of itself is in that queue too: then a message counts for a little longer.
        let (sent, taken) = (queued.saturating_sub(done.unsent), queued.saturating_sub(done.unacknowledged));
        let Some(numbers) = order.by_node.get_mut(node) else { return Backlog::default() };
        while numbers.pop_front_if(|number| *number <= taken).is_some() {}
        let (unsent, unacknowledged) =
            (numbers.iter().filter(|number| **number > sent).count(), numbers.len());
        if numbers.is_empty() {
            order.by_node.remove(node);
        }
        Backlog { unsent: unsent as u64, unacknowledged: unacknowledged as u64 }
    }

    fn set_cloud(&self, payload: Vec<u8>) {
        self.cloud.lock().unwrap_or_else(PoisonError::into_inner).clone_from(&payload);
        // Without a connection it is the greeting of the next one. A full queue is a burst of frames: then
        // the nodes hear from the cloud anyway, and a new greeting comes with the next connection.
        if let Err(error) = self.link.try_publish(&self.topics.cloud(), payload, true) {
            tracing::debug!(%error, "the cloud's presence was not published now");
        }
    }
}

/// Connects to an external broker in the cloud's place: subscribes to what all nodes send.
///
/// `options.introduce` makes the will; the greeting is what [`Downlink::set_cloud`] last said.
#[must_use]
pub fn external(mut options: LinkOptions, topics: &Topics) -> (Downlink, FleetEvents) {
    let cloud = Arc::new(Mutex::new(Vec::new()));
    options.subscriptions = vec![topics.every_up(), topics.every_presence()];
    options.own_topic = Some(topics.cloud());
    options.introduce = greeting(options.introduce, topics.cloud(), Arc::clone(&cloud));
    let (capacity, longest) = (options.events.max(1), options.max_packet as usize);
    let (link, heard) = Link::spawn(options);
    let (inflow, receiver) = inflow(capacity, longest);
    tokio::spawn(translate(topics.clone(), heard, inflow));
    let external = External { link, topics: topics.clone(), cloud, order: Arc::default() };
    (Downlink::External(external), receiver)
}

#[cfg(any(test, feature = "testing"))]
impl Downlink {
    /// A connection to an external broker that a test plays, with room for so many messages: they are in the queue of the
    /// second value.
    pub fn played(messages: usize) -> (Self, Arc<edgesync_transport::link::handle::Shared>) {
        let limits = edgesync_transport::link::queue::Limits { messages, bytes: usize::MAX };
        let (link, shared, _) = edgesync_transport::link::handle::new(limits, u32::MAX);
        shared.queue.open();
        let external =
            External { link, topics: Topics::default(), cloud: Arc::default(), order: Arc::default() };
        (Self::External(external), shared)
    }
}

fn greeting(introduce: Introduce, topic: String, cloud: Arc<Mutex<Vec<u8>>>) -> Introduce {
    Arc::new(move |connection| {
        let mut introduction = introduce(connection);
        let payload = cloud.lock().unwrap_or_else(PoisonError::into_inner).clone();
        if !payload.is_empty() {
            introduction.greetings.push(Publish { topic: topic.clone(), payload, retain: true });
        }
        introduction
    })
}

/// Turns what the link hears into what the fleet understands, until one of them ends.
async fn translate(topics: Topics, mut heard: mpsc::Receiver<LinkEvent>, inflow: Inflow) {
    loop {
        let event = tokio::select! {
            event = heard.recv() => event,
            () = inflow.closed() => return,
        };
        let Some(event) = event else { return };
        let event = match event {
            LinkEvent::Connected { max_packet, .. } => FleetEvent::Open { max_packet },
            LinkEvent::Disconnected { cause, retry_in } => FleetEvent::Closed { cause, retry_in },
            LinkEvent::NotTaken { topic, code, reason } => {
                tracing::warn!(topic, code, reason, "the broker did not take a message");
                continue;
            }
            LinkEvent::Message { topic, payload, .. } => {
                let of_node = match topics.parse(&topic) {
                    Some(Topic::Up(node)) => Some((node, Channel::Up)),
                    Some(Topic::Presence(node)) => Some((node, Channel::Presence)),
                    _ => None,
                };
                let of_node =
                    of_node.and_then(|(node, channel)| Some((NodeName::parse(node).ok()?, channel)));
                let Some((node, channel)) = of_node else {
                    tracing::debug!(topic, "a message on a topic of nobody");
                    continue;
                };
                FleetEvent::Message { node, channel, payload }
            }
        };
        // One connection carries all nodes: it cannot wait for one of them. To keep them apart is up to the broker.
        if !inflow.tell(event).await {
            return;
        }
    }
}
