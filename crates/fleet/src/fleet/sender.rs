//! Sends frames to nodes within the capacity of their links, and announces this start of the cloud.

use super::nodes::NodeId;
use super::reconciler::Reconciler;
use super::requests::Response;
use super::send_queue::SendQueue;
use edgesync_broker::Downlink;
use edgesync_object::NodeName;
use edgesync_protocol::frame::{Down, HelloRequest};
use edgesync_runtime::random;
use edgesync_transport::link::PublishError;
use edgesync_transport::link::presence::CloudPresence;

/// Downlink, and the queue for its capacity; see the module.
pub(super) struct Sender {
    downlink: Downlink,
    queue: SendQueue,
    /// Id of this start of the cloud, or of its connection to an external broker.
    boot: String,
    /// Whether that id was announced on a connection to an external broker.
    was_connected: bool,
    /// Bytes of frames written so far.
    written: u64,
}

/// Result of an attempt to send the next frame of a node.
enum Sending {
    /// The frame was published or discarded.
    Sent,
    /// There is no frame, or no connection.
    Nothing,
    /// The frame waits for capacity.
    Full,
}

/// Result of [`Sender`]'s work for a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Sent {
    /// A frame was sent.
    Frame,
    /// There was nothing to send, or a wait for capacity is in progress.
    Nothing,
    /// The link is full: the caller must start [`Sender::room`].
    AwaitsRoom(NodeId),
}

impl Sender {
    pub(super) fn new(downlink: Downlink) -> Self {
        Self { downlink, queue: SendQueue::default(), boot: new_boot(), was_connected: false, written: 0 }
    }

    pub(super) fn boot(&self) -> &str {
        &self.boot
    }

    /// Returns the bytes of frames written so far.
    pub(super) fn written(&self) -> u64 {
        self.written
    }

    /// Returns whether nodes connect to an endpoint of this process.
    pub(super) fn is_embedded(&self) -> bool {
        matches!(self.downlink, Downlink::Embedded(_))
    }

    pub(super) fn announce(&self) {
        self.downlink.set_cloud(CloudPresence { boot: self.boot.clone(), online: true }.to_json());
    }

    /// Handles an opened downlink. The boot id is announced already.
    pub(super) fn opened(&mut self) {
        if self.is_embedded() {
            return;
        }
        tracing::info!("connected to the broker");
        self.was_connected = true;
    }

    /// Handles the end of a connection to an external broker, or of an attempt. Nodes that see a
    /// new boot id send a Hello again, because their last one may be lost: the next connection
    /// announces one, as its first message. A second id on one connection would only start a
    /// second session of each node.
    pub(super) fn closed(&mut self) {
        if std::mem::take(&mut self.was_connected) {
            self.boot = new_boot();
            self.announce();
        }
    }

    /// Ends the connection of a node, if the downlink permits it.
    pub(super) fn disconnect(&self, name: &NodeName) {
        if let Downlink::Embedded(broker) = &self.downlink {
            broker.disconnect(name);
        }
    }

    /// Waits for progress on links, and returns their nodes. Cancel-safe.
    pub(super) async fn moved(&self) -> Vec<NodeName> {
        self.downlink.backlog_shrunk().await
    }

    /// Passes the backlog of a node's link, if known, to its machine.
    pub(super) fn report_progress(&self, reconciler: &mut Reconciler, id: NodeId) {
        let now = reconciler.now();
        let Some(node) = reconciler.node(id) else { return };
        let Some(backlog) = self.downlink.backlog(&node.name) else { return };
        // An encoded frame that waits for capacity.
        let waiting = u64::from(node.session.has_unsent());
        node.machine.link_progress(now, backlog.unsent + waiting, backlog.unacknowledged + waiting);
    }

    /// Sends one frame if there is one and the node's link has capacity.
    pub(super) fn send_one(&mut self, reconciler: &mut Reconciler, id: NodeId) -> Sent {
        if self.downlink.is_shared() && !self.queue.is_empty() {
            // Preserves the order of the queue.
            self.queue.push_back(id);
            return Sent::Nothing;
        }
        match self.send_next(reconciler, id) {
            Sending::Sent => Sent::Frame,
            Sending::Nothing => Sent::Nothing,
            Sending::Full => {
                let is_first = match reconciler.nodes.get_mut(id) {
                    _ if self.downlink.is_shared() => {
                        self.queue.push_back(id);
                        self.queue.await_capacity()
                    }
                    Some(node) => node.session.await_room(),
                    None => false,
                };
                if is_first { Sent::AwaitsRoom(id) } else { Sent::Nothing }
            }
        }
    }

    /// Sends a frame of the next queued node while the shared queue has capacity. Returns `None` if
    /// no node waits.
    pub(super) fn serve_next(&mut self, reconciler: &mut Reconciler) -> Option<Sent> {
        let id = self.queue.next()?;
        Some(match self.send_next(reconciler, id) {
            Sending::Sent => {
                // It is queued again if it has more.
                reconciler.nodes.touch(id);
                Sent::Frame
            }
            Sending::Nothing => Sent::Nothing,
            Sending::Full => {
                self.queue.push_front(id);
                if self.queue.await_capacity() { Sent::AwaitsRoom(id) } else { Sent::Nothing }
            }
        })
    }

    /// Waits for capacity in the link of a node.
    pub(super) fn room(&self, id: NodeId, name: NodeName) -> impl Future<Output = Response> + Send + 'static {
        let downlink = self.downlink.clone();
        async move {
            let _ = downlink.ready(&name).await;
            Response::LinkReady(id)
        }
    }

    /// Handles new capacity in the link of a node.
    pub(super) fn has_room(&mut self, reconciler: &mut Reconciler, id: NodeId) {
        if self.downlink.is_shared() {
            return self.queue.has_capacity();
        }
        if let Some(node) = reconciler.nodes.get_mut(id) {
            node.session.has_room();
        }
        reconciler.nodes.touch(id);
    }

    fn send_next(&mut self, reconciler: &mut Reconciler, id: NodeId) -> Sending {
        let now = reconciler.now();
        reconciler.inform(id);
        let Reconciler { nodes, desired, work, settings, .. } = reconciler;
        let Some(node) = nodes.get_mut(id) else { return Sending::Nothing };
        let name = node.name.clone();
        let bytes = match node.session.take_unsent() {
            Some(bytes) => bytes,
            None => {
                let Some(frame) = node.machine.poll_frame(now, &desired.on(&name, work)) else {
                    return Sending::Nothing;
                };
                match frame.encode(settings.compress_above) {
                    Ok(bytes) => {
                        self.written += bytes.len() as u64;
                        node.session.count_sent(bytes.len());
                        work.frame(bytes.len());
                        tracing::debug!(
                            node = name.as_str(),
                            frame = frame.name(),
                            bytes = bytes.len(),
                            "sending frame"
                        );
                        bytes
                    }
                    Err(error) => {
                        tracing::error!(node = name.as_str(), frame = frame.name(), %error, "encoding a frame failed");
                        return Sending::Sent;
                    }
                }
            }
        };
        match self.downlink.try_publish(&name, bytes.clone()) {
            Ok(()) => Sending::Sent,
            Err(PublishError::Full) => {
                node.session.keep_unsent(bytes);
                Sending::Full
            }
            Err(PublishError::NotConnected) => {
                reconciler.disconnected(&name);
                Sending::Nothing
            }
            Err(error) => {
                tracing::error!(node = name.as_str(), %error, "sending a frame failed");
                Sending::Sent
            }
        }
    }

    /// Requests a Hello from a node if the link has capacity. A node that does not receive the
    /// request sends a Hello again by itself.
    pub(super) fn request_hello(&self, compress_above: usize, name: &NodeName, request: HelloRequest) {
        let sent = Down::HelloRequest(request)
            .encode(compress_above)
            .map_err(|error| error.to_string())
            .and_then(|bytes| self.downlink.try_publish(name, bytes).map_err(|error| error.to_string()));
        if let Err(error) = sent {
            tracing::debug!(node = name.as_str(), error, "requesting a Hello failed");
        }
    }

    #[cfg(test)]
    pub(super) fn waiting(&self) -> usize {
        self.queue.len()
    }
}

fn new_boot() -> String {
    format!("{:016x}", random())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// It used to announce one at the start, and another one on the connection that was open by
    /// then.
    #[tokio::test]
    async fn each_connection_announces_one_boot_id() {
        let (downlink, broker) = Downlink::played(8);
        let mut sender = Sender::new(downlink);
        let announced = || {
            let published = std::iter::from_fn(|| broker.queue.pop());
            let presences = published.map(|publish| serde_json::from_slice(&publish.payload).unwrap());
            presences.map(|presence: CloudPresence| presence.boot).collect::<Vec<_>>()
        };
        // The connection opens after a failed attempt, while the fleet loads.
        sender.announce();
        sender.closed();
        sender.opened();
        let first = sender.boot().to_owned();
        assert_eq!(announced(), [first.as_str()]);
        broker.queue.close_and_clear();
        sender.closed();
        let second = sender.boot().to_owned();
        assert_ne!(second, first, "for the greeting of the next connection");
        broker.queue.open();
        sender.opened();
        assert_eq!((announced(), sender.boot()), (Vec::new(), second.as_str()));
    }
}
