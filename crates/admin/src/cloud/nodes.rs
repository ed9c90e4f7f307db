//! Nodes of a fleet.

use std::collections::BTreeMap;

use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::Value;

use crate::agent::{RejectedObject, WaitingForLink};
use crate::answer::{Answer, nullable};
use edgesync_object::{Labels, ObjectRef};

/// Node states that do not depend on the sync session.
pub mod state {
    /// The node has joined but never sent a Hello.
    pub const NEVER_CONNECTED: &str = "never connected";
    /// All certificates of the node are revoked.
    pub const REVOKED: &str = "revoked";
    /// The removal of the node is in progress.
    pub const BEING_REMOVED: &str = "being removed";
    /// The node was removed from the fleet.
    pub const REMOVED: &str = "removed";
    /// The node is not connected.
    pub const OFFLINE: &str = "offline";
    /// The node is not connected as planned, until its next check-in.
    pub const AWAY: &str = "away";
    /// The node has not connected by the time of its check-in.
    pub const OVERDUE: &str = "overdue";
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct NodeList {
    pub incarnation: String,
    /// Invalid frames by cause; known by replicas only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bad_frames: Option<BTreeMap<String, u64>>,
    /// Known by replicas only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub frames_of_removed_nodes: Option<u64>,
    pub items: Vec<NodeInfo>,
}

impl Answer for NodeList {
    const NAME: &'static str = "node list";
}

/// A node, in the detail that the server has.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(untagged)]
pub enum NodeInfo {
    /// As seen by the process that serves the node.
    Served(Box<ServedNode>),
    /// As recorded in Node and Lease of a cluster.
    Recorded(Box<RecordedNode>),
    Removed(RemovedNode),
    /// The node has joined; nothing else is known.
    Joined(JoinedNode),
}

impl Answer for NodeInfo {
    const NAME: &'static str = "node";
}

/// The keys select the variant, so that an error names the key missing in that variant.
impl<'de> Deserialize<'de> for NodeInfo {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let fields = Value::deserialize(deserializer)?;
        let has = |key: &str| fields.get(key).is_some();
        let node = if fields["state"] == state::REMOVED {
            RemovedNode::deserialize(fields).map(Self::Removed)
        } else if has("counters") || has("objects") {
            Box::deserialize(fields).map(Self::Served)
        } else if has("pending") || has("servedBy") {
            Box::deserialize(fields).map(Self::Recorded)
        } else {
            JoinedNode::deserialize(fields).map(Self::Joined)
        };
        node.map_err(D::Error::custom)
    }
}

/// A node as seen by the process that serves it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ServedNode {
    pub name: String,
    pub state: String,
    /// Whether its Lease is valid; `None` if unknown.
    #[serde(deserialize_with = "nullable")]
    pub ready: Option<bool>,
    #[serde(deserialize_with = "nullable")]
    pub labels: Option<Labels>,
    #[serde(deserialize_with = "nullable")]
    pub last_renewal: Option<String>,
    #[serde(deserialize_with = "nullable")]
    pub agent_version: Option<String>,
    #[serde(deserialize_with = "nullable")]
    pub last_report: Option<String>,
    #[serde(flatten)]
    pub objects: NodeObjectCounts,
    #[serde(flatten)]
    pub traffic: NodeTraffic,
    pub counters: NodeCounters,
    #[serde(flatten)]
    pub membership: Option<Membership>,
    /// Only in the response for one node.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub refused_objects: Option<Vec<RejectedObject>>,
    /// Only in the response for one node.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub held_back_objects: Option<Vec<HeldBackObject>>,
    /// Only in the response for one node, with the embedded store.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub objects_not_in_effect: Option<Vec<ObjectNotInEffect>>,
    /// Time by which a node that is away or overdue has announced to connect.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next_check_in: Option<String>,
    /// Objects that wait for the metered link of the node, now or at the end of its last
    /// connection; absent if none does.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub waiting_for_link: Option<WaitingForLink>,
}

/// Numbers of a node's objects. Flattened into the JSON of the node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct NodeObjectCounts {
    /// Number of held objects.
    #[serde(rename = "objects")]
    pub held: u64,
    /// Number of desired objects.
    pub desired: u64,
    /// Objects to be sent or removed.
    pub pending: u64,
    pub rejected: u64,
    /// Removals held back until confirmed.
    pub held_back: u64,
    #[serde(deserialize_with = "nullable")]
    pub files_in_effect: Option<u64>,
    #[serde(deserialize_with = "nullable")]
    pub files_not_in_effect: Option<u64>,
}

/// Traffic between a node and the process that serves it. Flattened into the JSON of the node.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct NodeTraffic {
    pub confirmed_revision: u64,
    pub bytes_sent: u64,
    pub bytes_received: u64,
    #[serde(deserialize_with = "nullable")]
    pub round_trip_milliseconds: Option<f64>,
}

/// A node as recorded in Node and Lease of a cluster.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct RecordedNode {
    pub name: String,
    pub state: String,
    #[serde(deserialize_with = "nullable")]
    pub ready: Option<bool>,
    pub labels: Labels,
    #[serde(deserialize_with = "nullable")]
    pub last_renewal: Option<String>,
    #[serde(deserialize_with = "nullable")]
    pub agent_version: Option<String>,
    /// Name of the replica that serves the node.
    #[serde(deserialize_with = "nullable")]
    pub served_by: Option<String>,
    #[serde(deserialize_with = "nullable")]
    pub pending: Option<u64>,
    #[serde(deserialize_with = "nullable")]
    pub rejected: Option<u64>,
    #[serde(deserialize_with = "nullable")]
    pub held_back: Option<u64>,
    #[serde(deserialize_with = "nullable")]
    pub files_in_effect: Option<u64>,
    #[serde(deserialize_with = "nullable")]
    pub files_not_in_effect: Option<u64>,
    /// Time at which its removal began.
    #[serde(deserialize_with = "nullable")]
    pub removed: Option<String>,
    #[serde(flatten)]
    pub membership: Option<Membership>,
    /// Time by which a node that is away or overdue has announced to connect.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next_check_in: Option<String>,
}

/// A node that was removed from the fleet.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct RemovedNode {
    pub name: String,
    /// Always [`state::REMOVED`], also while its removal is in progress.
    pub state: String,
    /// Time of the removal.
    pub removed: String,
    /// Whether the node is connected and was notified; known by replicas only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub connected: Option<bool>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub objects_not_in_effect: Option<Vec<ObjectNotInEffect>>,
}

/// A node that has joined, without further data.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct JoinedNode {
    pub name: String,
    /// [`state::NEVER_CONNECTED`], or [`state::REVOKED`] if all its certificates are revoked.
    pub state: String,
    #[serde(flatten)]
    pub membership: Membership,
    /// `false` if all certificates are revoked.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ready: Option<bool>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub objects_not_in_effect: Option<Vec<ObjectNotInEffect>>,
}

/// State of a node's certificates.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Membership {
    #[serde(deserialize_with = "nullable")]
    pub certificate_ends: Option<String>,
    pub revoked: bool,
}

/// Counters of a node since the process that serves it started.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct NodeCounters {
    pub hellos: u64,
    pub objects_sent: u64,
    pub removals_sent: u64,
    pub objects_resent: u64,
    pub reports: u64,
    pub objects_reported: u64,
    pub objects_rejected: u64,
    pub inventories: u64,
    pub foreign_session: u64,
    pub over_quota: u64,
}

/// An object whose removal is held back.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HeldBackObject {
    pub uid: String,
    #[serde(deserialize_with = "nullable")]
    pub object: Option<ObjectRef>,
}

/// An object that is not in effect on a node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ObjectNotInEffect {
    pub uid: String,
    #[serde(deserialize_with = "nullable")]
    pub object: Option<ObjectRef>,
    /// Version that the node holds.
    #[serde(deserialize_with = "nullable")]
    pub held: Option<String>,
    /// Version that is in effect.
    #[serde(deserialize_with = "nullable")]
    pub in_effect: Option<String>,
    /// Version tried last; `message` says why it is not in effect.
    pub desired: String,
    pub state: String,
    pub rule: String,
    pub message: String,
    #[serde(deserialize_with = "nullable")]
    pub since: Option<String>,
}

impl NodeInfo {
    #[must_use]
    pub fn name(&self) -> &str {
        match self {
            Self::Served(node) => &node.name,
            Self::Recorded(node) => &node.name,
            Self::Removed(node) => &node.name,
            Self::Joined(node) => &node.name,
        }
    }

    #[must_use]
    pub fn state(&self) -> &str {
        match self {
            Self::Served(node) => &node.state,
            Self::Recorded(node) => &node.state,
            Self::Removed(node) => &node.state,
            Self::Joined(node) => &node.state,
        }
    }

    #[must_use]
    pub fn ready(&self) -> Option<bool> {
        match self {
            Self::Served(node) => node.ready,
            Self::Recorded(node) => node.ready,
            Self::Removed(_) => None,
            Self::Joined(node) => node.ready,
        }
    }

    #[must_use]
    pub fn labels(&self) -> Option<&Labels> {
        match self {
            Self::Served(node) => node.labels.as_ref(),
            Self::Recorded(node) => Some(&node.labels),
            Self::Removed(_) | Self::Joined(_) => None,
        }
    }

    /// Returns the number of held objects.
    #[must_use]
    pub fn objects(&self) -> Option<u64> {
        self.served().map(|node| node.objects.held)
    }

    /// Returns the time by which a node that is away or overdue has announced to connect.
    #[must_use]
    pub fn next_check_in(&self) -> Option<&str> {
        self.either(|node| node.next_check_in.as_deref(), |node| node.next_check_in.as_deref())
    }

    /// Returns the number of objects that wait for the metered link of the node.
    #[must_use]
    pub fn waiting_for_link(&self) -> Option<u64> {
        self.served()?.waiting_for_link.as_ref().map(WaitingForLink::all)
    }

    #[must_use]
    pub fn last_report(&self) -> Option<&str> {
        self.served()?.last_report.as_deref()
    }

    #[must_use]
    pub fn served_by(&self) -> Option<&str> {
        match self {
            Self::Recorded(node) => node.served_by.as_deref(),
            _ => None,
        }
    }

    #[must_use]
    pub fn pending(&self) -> Option<u64> {
        self.either(|node| Some(node.objects.pending), |node| node.pending)
    }

    #[must_use]
    pub fn rejected(&self) -> Option<u64> {
        self.either(|node| Some(node.objects.rejected), |node| node.rejected)
    }

    #[must_use]
    pub fn held_back(&self) -> Option<u64> {
        self.either(|node| Some(node.objects.held_back), |node| node.held_back)
    }

    #[must_use]
    pub fn files_in_effect(&self) -> Option<u64> {
        self.either(|node| node.objects.files_in_effect, |node| node.files_in_effect)
    }

    #[must_use]
    pub fn files_not_in_effect(&self) -> Option<u64> {
        self.either(|node| node.objects.files_not_in_effect, |node| node.files_not_in_effect)
    }

    #[must_use]
    pub fn last_renewal(&self) -> Option<&str> {
        self.either(|node| node.last_renewal.as_deref(), |node| node.last_renewal.as_deref())
    }

    #[must_use]
    pub fn agent_version(&self) -> Option<&str> {
        self.either(|node| node.agent_version.as_deref(), |node| node.agent_version.as_deref())
    }

    #[must_use]
    pub fn membership(&self) -> Option<&Membership> {
        match self {
            Self::Served(node) => node.membership.as_ref(),
            Self::Recorded(node) => node.membership.as_ref(),
            Self::Removed(_) => None,
            Self::Joined(node) => Some(&node.membership),
        }
    }

    /// Sets the state of the certificates, which a removed node does not have.
    pub fn set_membership(&mut self, membership: Membership) {
        let is_revoked = membership.revoked && self.state() != state::BEING_REMOVED;
        let (state, ready) = match self {
            Self::Served(node) => {
                node.membership = Some(membership);
                (&mut node.state, &mut node.ready)
            }
            Self::Recorded(node) => {
                node.membership = Some(membership);
                (&mut node.state, &mut node.ready)
            }
            Self::Removed(_) => return,
            Self::Joined(node) => {
                node.membership = membership;
                (&mut node.state, &mut node.ready)
            }
        };
        if is_revoked {
            // The Lease may remain valid for a moment.
            (*state, *ready) = (state::REVOKED.to_owned(), Some(false));
        }
    }

    /// Sets the objects that are not in effect. Only the embedded store keeps them, so a recorded
    /// node has none.
    pub fn set_not_in_effect(&mut self, objects: Vec<ObjectNotInEffect>) {
        match self {
            Self::Served(node) => node.objects_not_in_effect = Some(objects),
            Self::Recorded(_) => {}
            Self::Removed(node) => node.objects_not_in_effect = Some(objects),
            Self::Joined(node) => node.objects_not_in_effect = Some(objects),
        }
    }

    /// Returns the objects that are not in effect.
    #[must_use]
    pub fn not_in_effect(&self) -> &[ObjectNotInEffect] {
        let objects = match self {
            Self::Served(node) => &node.objects_not_in_effect,
            Self::Recorded(_) => return &[],
            Self::Removed(node) => &node.objects_not_in_effect,
            Self::Joined(node) => &node.objects_not_in_effect,
        };
        objects.as_deref().unwrap_or_default()
    }

    /// Returns the node as seen by the process that serves it.
    #[must_use]
    pub fn served(&self) -> Option<&ServedNode> {
        match self {
            Self::Served(node) => Some(node),
            _ => None,
        }
    }

    fn either<'a, T>(
        &'a self,
        served: impl FnOnce(&'a ServedNode) -> Option<T>,
        recorded: impl FnOnce(&'a RecordedNode) -> Option<T>,
    ) -> Option<T> {
        match self {
            Self::Served(node) => served(node),
            Self::Recorded(node) => recorded(node),
            Self::Removed(_) | Self::Joined(_) => None,
        }
    }
}
