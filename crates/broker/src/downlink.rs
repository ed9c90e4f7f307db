//! The cloud side's way to its nodes: the embedded endpoint or an external broker.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::mpsc;

use super::inflow::{FleetEvents, Inflow, inflow};
use super::node_queues::NodeQueues;
use super::{Broker, Channel, FleetEvent};
use edgesync_object::NodeName;
use edgesync_transport::link::topic::{Topic, Topics};
use edgesync_transport::link::{
    Backlog, Introduce, Link, LinkEvent, LinkHandle, LinkOptions, Publish, PublishError,
};

/// The way to the nodes.
#[derive(Clone)]
pub enum Downlink {
    /// Nodes connect to this process.
    Embedded(Broker),
    /// Nodes and this process connect to the same broker.
    External(External),
}

/// The cloud side's connection to an external broker.
#[derive(Clone)]
pub struct External {
    link: LinkHandle,
    topics: Topics,
    cloud: Arc<Mutex<Vec<u8>>>,
    order: Arc<Mutex<Order>>,
}

/// Positions of each node's messages in the shared queue.
#[derive(Default)]
struct Order {
    /// Number of messages queued so far.
    queued: u64,
    /// Positions per node, until the broker has acknowledged them.
    by_node: HashMap<NodeName, VecDeque<u64>>,
}

impl Downlink {
    /// Queues a message for a node's `down` topic.
    ///
    /// # Errors
    /// The message cannot be sent now, or not at all. With an external broker success does not mean
    /// that the node is connected, and all nodes share one queue.
    pub fn try_publish(&self, node: &NodeName, payload: Vec<u8>) -> Result<(), PublishError> {
        match self {
            Self::Embedded(broker) => broker.try_publish(node, payload),
            Self::External(external) => external.try_publish(node, payload),
        }
    }

    /// Waits until the queue for the node has space.
    ///
    /// # Errors
    /// [`PublishError::NotConnected`] if there is no connection, or it ends meanwhile.
    pub async fn ready(&self, node: &NodeName) -> Result<(), PublishError> {
        match self {
            Self::Embedded(broker) => broker.ready(node).await,
            Self::External(external) => external.link.ready().await,
        }
    }

    /// Returns the messages for the node that are not completed on the current connection, to the
    /// node or to an external broker; `None` if it is not connected.
    #[must_use]
    pub fn backlog(&self, node: &NodeName) -> Option<Backlog> {
        match self {
            Self::Embedded(broker) => broker.backlog(node),
            Self::External(external) => Some(external.backlog(node)),
        }
    }

    /// Waits until [`Downlink::backlog`] has become smaller for some nodes, and returns their
    /// names; never returns with an external broker. Safe to cancel; for one caller.
    pub async fn backlog_shrunk(&self) -> Vec<NodeName> {
        match self {
            Self::Embedded(broker) => broker.backlog_shrunk().await,
            Self::External(_) => std::future::pending().await,
        }
    }

    /// Returns whether all nodes share one queue.
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

    /// Shuts down; `farewell` stays retained on `cloud`.
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
    /// Returns the link, for its counters.
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
        // The queue also holds the cloud's presence: then a message counts as queued for a little
        // longer.
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
        // Without a connection it becomes the greeting of the next one. A full queue means a burst
        // of frames, from which the nodes notice the cloud anyway, and the next connection has a
        // new greeting.
        if let Err(error) = self.link.try_publish(&self.topics.cloud(), payload, true) {
            tracing::debug!(%error, "publish of the cloud presence failed");
        }
    }
}

/// Connects to an external broker and subscribes to the messages of all nodes.
///
/// `options.introduce` creates the will; the greeting is the last payload of
/// [`Downlink::set_cloud`].
#[must_use]
pub fn external(mut options: LinkOptions, topics: &Topics) -> (Downlink, FleetEvents) {
    let cloud = Arc::new(Mutex::new(Vec::new()));
    options.subscriptions = vec![topics.every_up(), topics.every_presence()];
    options.own_topic = Some(topics.cloud());
    options.introduce = greeting(options.introduce, topics.cloud(), Arc::clone(&cloud));
    let (capacity, longest) = (options.events.max(1), options.max_packet as usize);
    let (link, events) = Link::spawn(options);
    let (inflow, receiver) = inflow(capacity, longest);
    tokio::spawn(translate(topics.clone(), events, inflow));
    let external = External { link, topics: topics.clone(), cloud, order: Arc::default() };
    (Downlink::External(external), receiver)
}

#[cfg(any(test, feature = "testing"))]
impl Downlink {
    /// Creates a downlink over a broker that a test plays, with space for `messages` messages; they
    /// are in the queue of the second value.
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
        let mut intro = introduce(connection);
        let payload = cloud.lock().unwrap_or_else(PoisonError::into_inner).clone();
        if !payload.is_empty() {
            intro.greetings.push(Publish { topic: topic.clone(), payload, retain: true });
        }
        intro
    })
}

/// Converts link events into fleet events until one of the two ends.
async fn translate(topics: Topics, mut events: mpsc::Receiver<LinkEvent>, inflow: Inflow) {
    let queues = NodeQueues::new(inflow.clone());
    loop {
        let event = tokio::select! {
            event = events.recv() => event,
            () = inflow.closed() => return,
        };
        let Some(event) = event else { return };
        let event = match event {
            LinkEvent::Connected { max_packet, .. } => FleetEvent::Open { max_packet },
            LinkEvent::Disconnected { cause, retry_in } => {
                queues.clear();
                FleetEvent::Closed { cause, retry_in }
            }
            LinkEvent::Rejected { topic, code, reason } => {
                tracing::warn!(topic, code, reason, "publish refused by the broker");
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
                    tracing::debug!(topic, "message on an unknown topic");
                    continue;
                };
                let bytes = payload.len();
                queues.send(node.clone(), FleetEvent::Message { node, channel, payload }, bytes);
                continue;
            }
        };
        if !inflow.send_uncounted(event).await {
            return;
        }
    }
}
