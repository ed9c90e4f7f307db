//! Why a message for a node was not queued.

/// See the module.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DownlinkError {
    /// The node (or the external broker) is not connected, or the node does not listen.
    #[error("not connected")]
    NotConnected,
    /// The limit of waiting messages or bytes is reached.
    #[error("the queue is full")]
    Full,
    /// The packet would be larger than its receiver takes.
    #[error("a packet of {size} bytes is larger than the agreed {limit}")]
    TooLarge {
        /// The size of the packet, in bytes.
        size: usize,
        /// The limit, in bytes.
        limit: usize,
    },
    /// The node's name makes no topic.
    #[error("no topic for the node: {0}")]
    BadNode(String),
}
