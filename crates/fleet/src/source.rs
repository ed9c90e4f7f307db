//! Interface between the fleet and its store. The fleet knows its [`Source`] by these traits alone,
//! one for each job:
//! - [`ObjectSource`]: the feed of objects, Nodes and rules, and the timeline of their versions;
//! - [`NodeStore`]: the records of nodes;
//! - [`RolloutStore`]: the roll-outs of rules, and the bodies of their revisions;
//! - [`Replication`]: the state shared with other replicas that serve the same nodes. Only some
//!   sources have it.
//!
//! [`Embedded`] is the database of this process; `Kubernetes` is a cluster, from which other
//! replicas may serve nodes too.

mod embedded;
mod error;

use std::collections::HashMap;
use std::future::ready;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;

use super::metrics::ClusterNumbers;
use crate::config::ObjectSyncs;
use crate::reasons::PlacementReason;
use edgesync_enrollment::membership::NodeIdentity;
use edgesync_object::{NodeName, Object, OmittedFields, Resource, ResourceVersion};
use edgesync_placement::{KindMatch, Selection, Summary, Unread};
use edgesync_protocol::change::Uid;
use edgesync_protocol::cloud::{Issued, Loaded, Reached, Record, RecordBatch};
use edgesync_protocol::digest::Epoch;
use edgesync_rollout::Set;
use edgesync_schema::Schema;

pub use edgesync_cloud_store::{
    Effect, LeaseRenewal, MAX_BODIES, NodeChange, NodeEffects, NodeFacts, Registered, RevisionError,
    RevisionKey, RolloutWrite, RuleKey, RuleStatus, Sweep, UploadBatch, UploadEffect, UploadOutcome, key_of,
};
pub use embedded::{Alone, Embedded};
pub use error::SourceError;

/// Maximum length of a refusal's message, in bytes.
pub(crate) const MAX_MESSAGE: usize = 256;

pub type Result<T, E = SourceError> = std::result::Result<T, E>;

/// Truncates the message of a refusal to [`MAX_MESSAGE`] bytes at a character boundary.
pub(crate) fn clip(mut text: String) -> String {
    text.truncate(text.floor_char_boundary(MAX_MESSAGE));
    text
}

/// Change of placeable objects, Nodes, or rules that are objects. A list contains rules before the
/// objects that they select.
#[derive(Clone, Debug)]
pub enum Change {
    /// Start of a list: initially, and whenever changes were lost. Objects not listed before
    /// [`Change::Complete`] do not exist.
    ListStarted,
    /// Part of a list, of bounded length.
    Listed(Vec<Summary>),
    /// End of a list.
    Complete,
    /// An object that is new or has changed.
    Set(Arc<Summary>),
    /// The last state of a deleted object.
    Deleted(Arc<Summary>),
    /// End of a relist requested by [`Changes::relist`].
    Relisted,
    /// The source was replaced by an older copy. Its list follows, up to a [`Change::CaughtUp`]
    /// with this number. Proofs of the nodes' state are void, and a Node missing in the copy was
    /// not deleted.
    Restored(u64),
    /// Another process has recorded the removal of a node: another replica, or the command of an
    /// operator.
    Removed(NodeName),
    /// Another process has readmitted a removed node, or freed its name.
    Admitted(NodeName),
    /// All ObjectSyncs of a node are due for a rewrite, see [`Replication::set_syncs`].
    SyncsDue(NodeName),
    /// All changes before a question were delivered, see [`Changes::catch_up`].
    CaughtUp {
        /// The last question answered.
        question: u64,
        /// The newest version that the source has issued.
        reached: Reached,
    },
    /// Desired scopes that cannot be read now; replaces the previous value. They may contain
    /// objects that were not listed.
    Unread(Vec<Unread>),
    /// The source cannot be read now; it retries.
    Failed(SourceError),
}

/// Objects and their changes, in one order. Changes may occur between [`Change::ListStarted`] and
/// [`Change::Complete`]; a listed object never reverts a newer change. Corresponds to a Kubernetes
/// watch with initial events.
pub trait Changes: Send + 'static {
    /// Waits for the next change. Cancel-safe.
    fn next(&mut self) -> impl Future<Output = Change> + Send;

    /// Requests a list of a selection, in addition to all changes: a new rule may select objects
    /// that were skipped. The list may have other objects, too; one list may answer several calls.
    fn relist(&mut self, objects: Selection);

    /// Requests a [`Change::CaughtUp`] with this number, or a higher one, after all present
    /// changes.
    fn catch_up(&mut self) -> u64;
}

/// Reason why a node is removed from the fleet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RemovalCause {
    /// An operator requests it.
    Requested,
    /// This Node of it was deleted, if it is known. Other replicas see that deletion too: one of
    /// them may have recorded the removal, and the node may have returned since.
    NodeDeleted(Option<NodeIdentity>),
    /// Another process has recorded the removal.
    Recorded,
}

/// Outcome of a removal at the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Removal {
    /// The node is removed, with all its records. The time of the removal identifies it; a name
    /// that is not known has none.
    Removed(Option<Timestamp>),
    /// Another process has removed the node before, and has readmitted it or freed its name
    /// since.
    Returned,
}

/// Outcome of a readmission at the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Admission {
    /// The node is not removed any more; another process may have readmitted it before.
    Admitted,
    /// The node has returned and was removed again since the removal in question.
    RemovedAgain,
}

/// Reason why some or all objects that a rule names are not selected.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RuleProblem {
    /// Reason of the condition `Accepted`.
    pub reason: PlacementReason,
    /// Message of the condition.
    pub message: String,
    /// Whether the rule may select objects that are not known.
    pub hides: bool,
}

/// Objects, Nodes and rules as they change, and the timeline of their versions.
pub trait ObjectSource: Clone + Send + Sync + 'static {
    /// The stream of changes.
    type Changes: Changes;

    /// Follows all placeable objects, Nodes and rules.
    fn follow(&self) -> Self::Changes;

    /// Returns the newest bodies of objects, at most [`MAX_BODIES`], without deleted ones.
    fn bodies(
        &self,
        uids: Vec<Uid>,
        left_out: OmittedFields,
    ) -> impl Future<Output = Result<Vec<Loaded>>> + Send;

    /// Returns earlier versions of objects, the bases of patches, as far as they are known: UID,
    /// version, and the text that [`ObjectSource::bodies`] returned for it.
    fn bases(
        &self,
        _wanted: Vec<(Uid, ResourceVersion)>,
        _left_out: OmittedFields,
    ) -> impl Future<Output = Result<Vec<(Uid, ResourceVersion, String)>>> + Send {
        ready(Ok(Vec::new()))
    }

    /// Returns the schema of a kind, to validate statuses that nodes send; `None` if the source
    /// validates writes itself.
    fn schema(&self, _resource: &Resource) -> Option<Arc<Schema>> {
        None
    }

    /// Returns the problems with the kinds that a rule names.
    fn rule_problems(&self, _rule: &Uid, _kinds: &[KindMatch]) -> Vec<RuleProblem> {
        Vec::new()
    }

    /// Writes the status of a rule that is an object, if it still exists. The roll-out in the
    /// stored status stays: [`RolloutStore::write_rollout`] writes it.
    fn set_rule_status(&self, status: RuleStatus) -> impl Future<Output = Result<()>> + Send;

    /// Returns the id of the current timeline.
    fn incarnation(&self) -> Arc<str>;

    /// Begins another timeline: the objects have proved to be an older copy.
    fn new_incarnation(&self) -> impl Future<Output = Result<Arc<str>>> + Send;

    /// Returns the versions issued, as far as they can be distinguished from those of a lost
    /// timeline.
    fn issued(&self) -> Arc<Issued>;
}

/// Records of nodes: the objects that they hold, their Nodes, and their uploads.
///
/// A write returns when it is durable. It is atomic: one that fails has no effect, and the fleet
/// retries it.
pub trait NodeStore: Clone + Send + Sync + 'static {
    /// Returns the state of all nodes at the start.
    fn registered(&self) -> impl Future<Output = Result<Registered>> + Send;

    /// Returns all nodes that have ever reported; none if no records are stored.
    fn nodes(&self) -> impl Future<Output = Result<Vec<(NodeName, NodeFacts)>>> + Send {
        ready(Ok(Vec::new()))
    }

    /// Returns the stored effects of the nodes that have reported them. The effects of other nodes
    /// are unknown until they report.
    fn effects_by_node(&self) -> impl Future<Output = Result<HashMap<NodeName, NodeEffects>>> + Send {
        ready(Ok(HashMap::new()))
    }

    /// Returns the recorded objects of a node; empty if it has never reported.
    fn records(&self, node: &NodeName) -> impl Future<Output = Result<Vec<(Uid, Record)>>> + Send;

    /// Records reports of a node. Keeps the known version of its agent if none is given. Returns
    /// the reports that cannot be recorded, with reasons; all others are.
    fn record(
        &self,
        node: &NodeName,
        agent_version: Option<String>,
        batch: RecordBatch,
    ) -> impl Future<Output = Result<Vec<(Uid, String)>>> + Send;

    /// Renews Leases; the last of several renewals of one node counts.
    fn renew_leases(&self, renewals: Vec<LeaseRenewal>) -> impl Future<Output = Result<()>> + Send;

    /// Updates Nodes, and creates missing ones.
    fn change_nodes(&self, changes: Vec<NodeChange>) -> impl Future<Output = Result<()>> + Send;

    /// Removes a node with all its records and the Node that it has by then, and remembers the
    /// removal.
    fn remove_node(
        &self,
        node: &NodeName,
        cause: RemovalCause,
    ) -> impl Future<Output = Result<Removal>> + Send;

    /// Deletes the record of this removal of a node, as [`Removal::Removed`] names it. A later one
    /// stays: a readmission that is repeated or late undoes no other removal.
    fn admit_node(
        &self,
        node: &NodeName,
        removal: Option<Timestamp>,
    ) -> impl Future<Output = Result<Admission>> + Send;

    /// Applies items of a node's outbox, each once. Refuses items that cannot take effect; they do
    /// not hinder others. Events create no namespaces.
    fn ingest(&self, batch: UploadBatch) -> impl Future<Output = Result<UploadOutcome>> + Send;

    /// Creates an Event of the cloud side about a node.
    fn emit_event(&self, _event: Object) -> impl Future<Output = Result<()>> + Send {
        ready(Ok(()))
    }

    /// Deletes at most `limit` Events older than `ttl`. Returns their number; 0 if the store
    /// expires them itself.
    fn expire_events(&self, _ttl: Duration, _limit: usize) -> impl Future<Output = Result<u64>> + Send {
        ready(Ok(0))
    }
}

/// Roll-outs of rules: their statuses, and the bodies of their revisions. Only the leader writes.
pub trait RolloutStore: Clone + Send + Sync + 'static {
    /// Returns whether this process moves roll-outs. Two may believe it for a while: writes are
    /// compare-and-swap.
    fn leads_rollouts(&self) -> bool {
        true
    }

    /// Returns the stored roll-outs of configured rules as JSON text, by the name of the rule.
    /// Rules that are objects have theirs in `status.rollout`.
    fn rollout_statuses(&self) -> impl Future<Output = Result<Vec<(String, String)>>> + Send;

    /// Replaces the status of a roll-out if the rule and the stored sequence are as expected.
    /// Returns whether they were. After an error it is not known: read the status again.
    fn write_rollout(&self, write: RolloutWrite) -> impl Future<Output = Result<bool>> + Send;

    /// Stores the bodies of a revision: one for each object of the set, in its version. Durable
    /// when it returns. A revision that is stored stays as it is.
    ///
    /// Bodies of the revision below ([`edgesync_rollout::revision::Origin::Below`]) have to be read
    /// with [`RolloutStore::revision_bodies`] and passed too.
    fn store_revision(
        &self,
        key: RevisionKey,
        set: Arc<Set>,
        bodies: Vec<Loaded>,
    ) -> impl Future<Output = Result<()>> + Send;

    /// Returns the set of a stored revision; `None` if it or one of its bodies is lost.
    fn revision(&self, key: RevisionKey) -> impl Future<Output = Result<Option<Arc<Set>>>> + Send;

    /// Returns bodies of a stored revision, at most [`MAX_BODIES`]. Leaves out lost ones, and
    /// objects that are not in the revision.
    fn revision_bodies(
        &self,
        key: RevisionKey,
        uids: Vec<Uid>,
    ) -> impl Future<Output = Result<Vec<Loaded>>> + Send;

    /// Deletes the revisions that are garbage by these statuses of all roll-outs. Rules without a
    /// status lose everything: call it only when all rules and their statuses are known.
    fn sweep_revisions(&self, sweep: Sweep) -> impl Future<Output = Result<()>> + Send;
}

/// State shared with other replicas that serve the same nodes. With replicas, machines rely on no
/// stored records, and each node with a Node has a machine.
pub trait Replication: Clone + Send + Sync + 'static {
    /// Returns the mode of ObjectSyncs passed to [`Replication::set_syncs`], beside the records.
    fn object_syncs(&self) -> ObjectSyncs;

    /// Replaces all ObjectSyncs of a node. They are written in the background.
    fn set_syncs(&self, _node: &NodeName, _held: Vec<(Uid, Record)>) {}

    /// Sets whether a node is connected and live here. Replicas agree by this on the one that
    /// serves the node.
    fn set_served(&self, _node: &NodeName, _served: bool) {}

    /// Sets the epoch of a node's database file. Effects reported by another file are not in
    /// effect. Called before the ObjectSyncs are set.
    fn set_epoch(&self, _node: &NodeName, _epoch: Epoch) {}

    /// Returns the recorded removal of a node, as far as this replica knows: its own writes count
    /// at once.
    fn removal(&self, node: &NodeName) -> Option<Timestamp>;

    /// Confirms held-back removals of a node, whichever replica serves it: up to `count`, in this
    /// incarnation. `None` deletes the confirmation.
    fn confirm_deletions(
        &self,
        node: &NodeName,
        incarnation: &str,
        count: Option<u64>,
    ) -> impl Future<Output = Result<()>> + Send;

    /// Returns the numbers of requests to the cluster, and of waiting ones.
    fn numbers(&self) -> ClusterNumbers {
        ClusterNumbers::default()
    }

    /// Finishes background writes, within a short time limit.
    fn finish(&self) -> impl Future<Output = ()> + Send {
        ready(())
    }
}

/// Store of a fleet. Cheap to clone.
pub trait Source: ObjectSource + NodeStore + RolloutStore {
    /// State shared between replicas.
    type Replication: Replication;

    /// Returns the state shared with other replicas; `None` if this process serves all nodes.
    fn replication(&self) -> Option<&Self::Replication>;
}
