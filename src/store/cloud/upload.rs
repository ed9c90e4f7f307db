//! Items of the outbox of a node take effect, each once: effect and number are stored in one transaction, by the rule
//! of [`crate::sync::upload::Taken`].

use serde_json::Value;

use super::{CloudError, CloudStore};
use crate::object::{NodeReport, Object, Resource};
use crate::sync::change::Uid;
use crate::sync::upload::{Lane, Refused, RefusedReason, Taken};

/// Items of one lane of a node, checked.
#[derive(Clone, Debug)]
pub struct UploadBatch {
    /// The node.
    pub node: String,
    /// Its outbox.
    pub outbox: String,
    /// The lane.
    pub lane: Lane,
    /// What the node knows to be confirmed.
    pub confirmed: u64,
    /// The items in their order.
    pub items: Vec<UploadEffect>,
}

/// An item.
#[derive(Clone, Debug)]
pub struct UploadEffect {
    /// Its number.
    pub seq: u64,
    /// What it is to do; or why it is refused, if that is known without looking at what is stored.
    pub effect: Result<Effect, (RefusedReason, String)>,
}

/// What an item does.
#[derive(Clone, Debug)]
pub enum Effect {
    /// The Node of the node says this of itself.
    Node(Box<NodeReport>),
    /// The status of an object, if that is still the one of this UID. Everything else of the object stays.
    Status {
        /// Its kind.
        resource: Resource,
        /// Its namespace, empty for cluster scope.
        namespace: String,
        /// Its name.
        name: String,
        /// Its UID.
        uid: Uid,
        /// The value of the field `status`.
        status: Value,
    },
    /// An Event (`events.k8s.io/v1`) is created; or, if the node has made one of that name, replaced. If the name
    /// is taken by an Event that this node has not made, the name of the node is added to it.
    Event(Box<Object>),
}

impl CloudStore {
    /// Has items take effect. Answers with the numbers after it, and with what was refused.
    ///
    /// # Errors
    /// The store's; then nothing of it has taken effect.
    pub async fn take(&self, _batch: UploadBatch) -> Result<(Taken, Vec<Refused>), CloudError> {
        todo!()
    }
}
