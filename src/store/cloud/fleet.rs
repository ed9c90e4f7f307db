//! What the cloud knows of each node as objects: its Node and its Lease; and which nodes were removed.
//!
//! Leases are renewed in batches, outside of the history: a renewal changes the row of the Lease in its place, with
//! a new version, and watches are not told.

use jiff::Timestamp;

use super::{CloudError, CloudStore};
use crate::object::{Condition, NodeReport};

/// A Lease that was renewed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LeaseRenewal {
    /// The node: the Lease is `kube-node-lease/<node>`, its holder has this name.
    pub node: String,
    /// How long it is good, in seconds.
    pub seconds: u32,
    /// When this run of the agent acquired it.
    pub acquired: Timestamp,
    /// When it was renewed.
    pub renewed: Timestamp,
    /// How often it has changed hands.
    pub transitions: u32,
}

/// What is to change in the Node of a name. It is made if there is none.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct NodeChange {
    /// The node.
    pub node: String,
    /// What it says of itself: replaces what it said before. Labels that an operator has set stay as they are.
    pub report: Option<NodeReport>,
    /// Conditions to set; others stay. One whose status stays keeps its `lastTransitionTime`.
    pub conditions: Vec<Condition>,
}

/// What is known of all nodes, at the start.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Registered {
    /// Nodes of which there is a Node object that they have reported themselves.
    pub nodes: Vec<String>,
    /// The Leases, as they were written last.
    pub leases: Vec<LeaseRenewal>,
    /// Nodes that were removed, and when.
    pub removed: Vec<(String, Timestamp)>,
}

impl CloudStore {
    /// Reads what is known of all nodes.
    ///
    /// # Errors
    /// The store's.
    pub async fn registered(&self) -> Result<Registered, CloudError> {
        todo!()
    }

    /// Writes Leases, all in one transaction, making those that there are not. The last one of a node counts.
    ///
    /// # Errors
    /// The store's.
    pub async fn renew_leases(&self, _renewals: Vec<LeaseRenewal>) -> Result<(), CloudError> {
        todo!()
    }

    /// Changes Nodes, all in one transaction. What changes nothing costs no version.
    ///
    /// # Errors
    /// The store's.
    pub async fn change_nodes(&self, _changes: Vec<NodeChange>) -> Result<(), CloudError> {
        todo!()
    }

    /// Removes a node from the fleet: its records, its Node, its Lease, what is known of its outbox; and remembers
    /// that it was removed. Tells whether there was anything of it.
    ///
    /// # Errors
    /// The store's.
    pub async fn remove_node(&self, _node: &str) -> Result<bool, CloudError> {
        todo!()
    }

    /// Forgets that a node was removed: it may come back. Tells whether it had been.
    ///
    /// # Errors
    /// The store's.
    pub async fn admit_node(&self, _node: &str) -> Result<bool, CloudError> {
        todo!()
    }
}
