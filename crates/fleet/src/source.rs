//! The seam between the fleet and its store. The fleet knows its [`Source`] by these traits alone,
//! one for each job:
//! - [`ObjectSource`]: the feed of objects, Nodes and rules, and the timeline of their versions;
//! - [`NodeStore`]: what is recorded of nodes;
//! - [`Replication`]: what is shared with other replicas that serve the same nodes. Only some
//!   sources have it.
//!
//! [`Embedded`] is the database of this process, `Kubernetes` a cluster that other replicas serve
//! nodes from too.

mod embedded;
mod error;

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use super::metrics::ClusterNumbers;
use crate::config::ObjectSyncs;
use edgesync_object::{LeftOut, NodeName, Resource, ResourceVersion};
use edgesync_placement::{KindMatch, Summary, Unread};
use edgesync_protocol::change::Uid;
use edgesync_protocol::cloud::{Issued, Loaded, Record, RecordBatch};
use edgesync_protocol::digest::Epoch;
use edgesync_schema::Schema;

pub use edgesync_cloud_store::{
    Effect, LeaseRenewal, MAX_BODIES, NodeChange, NodeFacts, Registered, RuleStatus, Standing, UploadBatch,
    UploadEffect, UploadOutcome, key_of,
};
pub use embedded::{Alone, Embedded};
pub use error::SourceError;

pub type Result<T, E = SourceError> = std::result::Result<T, E>;

/// What is told of the objects that placement cares about, of Nodes, and of rules that are objects.
/// Rules are told before what they select where all is told.
#[derive(Clone, Debug)]
pub enum Change {
    /// All that there is follows: at first, and whenever changes were lost. What is not told up to
    /// [`Change::Complete`] is no more.
    Begun,
    /// A part of it, of bounded length.
    Listed(Vec<Summary>),
    /// That was all.
    Complete,
    /// The object is new, or has another content.
    Set(Arc<Summary>),
    /// The object, as it was last, is no more.
    Gone(Arc<Summary>),
    /// All that there is was told once more, as [`Changes::again`] has asked for.
    Again,
    /// The source was replaced by an older copy, and all that is in it follows, up to a
    /// [`Change::CaughtUp`] with this number: what is proven of nodes is to be proven anew, and a
    /// Node that the copy does not have was not deleted by anybody.
    Restored(u64),
    /// A node that was removed is to be let in again, at whichever replica that was said.
    Admitted(NodeName),
    /// All ObjectSyncs of a node are to be told once more, see [`Replication::set_syncs`].
    SyncsDue(NodeName),
    /// All was told that there was when this was asked for, see [`Changes::catch_up`].
    CaughtUp {
        /// The last question that this answers.
        question: u64,
        /// The newest version that the source has given by now.
        reached: ResourceVersion,
    },
    /// What somebody wants and cannot be read now, in the place of what was said before: there may
    /// be more objects of it than were told.
    Unread(Vec<Unread>),
    /// What there is cannot be read now; it is tried again.
    Failed(SourceError),
}

/// What there is and what changes, in one order: between [`Change::Begun`] and [`Change::Complete`]
/// there may be changes too, and what was told once is not taken back by a part of a list that is
/// older. This is how a watch of Kubernetes with initial events tells it.
pub trait Changes: Send + 'static {
    /// Waits for the next one. Can be cancelled without loss.
    fn next(&mut self) -> impl Future<Output = Change> + Send;

    /// Has all that there is told once more, beside all changes: a rule has come that may select
    /// it.
    fn again(&mut self);

    /// Asks to be told once all has been told that there is now: by a [`Change::CaughtUp`] with
    /// this number, or a higher one. Only where there are other replicas, which may know more.
    fn catch_up(&mut self) -> u64 {
        0
    }
}

/// Why what a rule names is not selected, or not all of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RuleProblem {
    /// In one word, as conditions have it.
    pub reason: &'static str,
    /// For people.
    pub message: String,
    /// There may be objects that it selects and that are not known.
    pub hides: bool,
}

/// Objects, Nodes and rules as they change, and the timeline of their versions.
pub trait ObjectSource: Clone + Send + Sync + 'static {
    /// What tells of changes.
    type Changes: Changes;

    /// Every object that can be placed and every Node, and all that changes.
    fn follow(&self) -> Self::Changes;

    /// The newest bodies of objects, of at most [`MAX_BODIES`]; those that are no more are left
    /// out.
    fn bodies(&self, uids: Vec<Uid>, left_out: LeftOut) -> impl Future<Output = Result<Vec<Loaded>>> + Send;

    /// The schema of a kind, for the statuses that nodes send.
    fn schema(&self, resource: &Resource) -> Option<Arc<Schema>>;

    /// What is wrong with what a rule names, by its UID and its kinds.
    fn rule_problems(&self, rule: &Uid, kinds: &[KindMatch]) -> Vec<RuleProblem>;

    /// Writes what has come of a rule that is an object, if it still is.
    fn set_rule_status(&self, status: RuleStatus) -> impl Future<Output = Result<()>> + Send;

    /// The id of this timeline.
    fn incarnation(&self) -> Arc<str>;

    /// Begins another timeline: it has turned out that the objects are an older copy.
    fn new_incarnation(&self) -> impl Future<Output = Result<Arc<str>>> + Send;

    /// The versions that were given out, as far as they can be told from those of a lost timeline.
    fn issued(&self) -> Arc<Issued>;
}

/// What is recorded of nodes: what they hold, what they are, and what they send.
///
/// A call that writes is answered once what it wrote is durable, and has no effect if it fails, or
/// its whole effect: the fleet makes it again.
pub trait NodeStore: Clone + Send + Sync + 'static {
    /// What is known of all nodes, at the start.
    fn registered(&self) -> impl Future<Output = Result<Registered>> + Send;

    /// All nodes that have ever reported.
    fn nodes(&self) -> impl Future<Output = Result<Vec<(NodeName, NodeFacts)>>> + Send;

    /// What is in effect on the nodes that have told, as it is kept; of others nothing is known
    /// before they tell.
    fn standings(&self) -> impl Future<Output = Result<HashMap<NodeName, Standing>>> + Send;

    /// What a node is recorded to hold; nothing if it has never reported.
    fn records(&self, node: &NodeName) -> impl Future<Output = Result<Vec<(Uid, Record)>>> + Send;

    /// Records what a node has reported; of its agent the version that is known stays if none is
    /// given. Tells which reports cannot be recorded, and why: all others are.
    fn record(
        &self,
        node: &NodeName,
        agent_version: Option<String>,
        batch: RecordBatch,
    ) -> impl Future<Output = Result<Vec<(Uid, String)>>> + Send;

    /// Renews Leases; of several renewals of one node the last one counts.
    fn renew_leases(&self, renewals: Vec<LeaseRenewal>) -> impl Future<Output = Result<()>> + Send;

    /// Changes Nodes, and makes those that there are not.
    fn change_nodes(&self, changes: Vec<NodeChange>) -> impl Future<Output = Result<()>> + Send;

    /// Removes a node and all that is known of it, and remembers that it was removed. Tells whether
    /// there was anything. If nobody has `asked` for it, its Node was deleted: where other replicas
    /// hear of that too, one may have been asked, and the name may be free again.
    fn remove_node(&self, node: &NodeName, asked: bool) -> impl Future<Output = Result<bool>> + Send;

    /// Forgets that a node was removed. Tells whether it was.
    fn admit_node(&self, node: &NodeName) -> impl Future<Output = Result<bool>> + Send;

    /// Has items of a node's outbox take effect, each once; what cannot is refused, and hinders no
    /// other. Events make no namespaces.
    fn ingest(&self, batch: UploadBatch) -> impl Future<Output = Result<UploadOutcome>> + Send;

    /// Deletes Events that are older than `ttl`, at most `limit` of them. Tells how many.
    fn expire_events(&self, ttl: Duration, limit: usize) -> impl Future<Output = Result<u64>> + Send;
}

/// What is shared with other replicas that serve the same nodes. Where there are some, nothing is
/// recorded that a machine relies on, and each node of which there is a Node has a machine.
pub trait Replication: Clone + Send + Sync + 'static {
    /// Which ObjectSyncs of a node are told with [`Replication::set_syncs`], beside what is
    /// recorded.
    fn object_syncs(&self) -> ObjectSyncs;

    /// These are all ObjectSyncs that a node is to have from now on. They are written when there is
    /// time.
    fn set_syncs(&self, node: &NodeName, held: Vec<(Uid, Record)>);

    /// Whether a node is connected here, and welcome: replicas tell each other by that whose word
    /// counts.
    fn set_served(&self, node: &NodeName, served: bool);

    /// A node that is served here has this database file: what another one knew is not in effect
    /// there. To be told before the ObjectSyncs.
    fn set_epoch(&self, node: &NodeName, epoch: Epoch);

    /// Whether a node that was removed still is.
    fn is_removed(&self, node: &NodeName) -> bool;

    /// Has removals of a node that are held back confirmed, whichever replica serves it: up to so
    /// many, in this incarnation. Without a number that is over.
    fn confirm_deletions(
        &self,
        node: &NodeName,
        incarnation: &str,
        count: Option<u64>,
    ) -> impl Future<Output = Result<()>> + Send;

    /// What is asked of the cluster, and waits.
    fn numbers(&self) -> ClusterNumbers;

    /// Finishes what was to be written when there is time, as far as that does not take long.
    fn finish(&self) -> impl Future<Output = ()> + Send;
}

/// The store of a fleet. Cheap to clone.
pub trait Source: ObjectSource + NodeStore {
    /// How replicas share nodes.
    type Replication: Replication;

    /// What is shared with other replicas; none if this process serves all nodes.
    fn replication(&self) -> Option<&Self::Replication>;
}
