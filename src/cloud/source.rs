//! The seam between the fleet and whoever keeps the objects: all that a fleet asks for, and what it is told of.
//!
//! The fleet knows its [`Source`] by this trait alone. [`Embedded`] is the database of this process.

mod embedded;
#[cfg(feature = "kubernetes")]
mod kubernetes;

use std::fmt::Display;
use std::sync::Arc;
use std::time::Duration;

use crate::object::Resource;
use crate::object::schema::Schema;
use crate::placement::{KindMatch, Summary};
use crate::sync::change::Uid;
use crate::sync::cloud::{Issued, Loaded, Record, RecordBatch};

pub(super) use crate::store::cloud::{
    Effect, LeaseRenewal, MAX_BODIES, NodeChange, NodeFacts, Registered, RuleStatus, UploadBatch,
    UploadEffect, UploadOutcome,
};
pub(super) use embedded::Embedded;

/// Why a source could not do what it was asked for, in words. The fleet asks again later, whatever it was.
#[derive(Clone, Debug, thiserror::Error)]
#[error("{0}")]
pub(super) struct SourceError(String);

impl SourceError {
    pub(super) fn new(cause: impl Display) -> Self {
        Self(cause.to_string())
    }
}

pub(super) type Result<T, E = SourceError> = std::result::Result<T, E>;

/// What is told of the objects that placement cares about, of Nodes, and of rules that are objects. Rules are told before
/// what they select where all is told.
#[derive(Clone, Debug)]
pub(super) enum Change {
    /// All that there is follows: at first, and whenever changes were lost. What is not told up to [`Change::Complete`]
    /// is no more.
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
    /// What there is cannot be read now; it is tried again.
    Failed(SourceError),
}

/// What there is and what changes, in one order: between [`Change::Begun`] and [`Change::Complete`] there may be changes
/// too, and what was told once is not taken back by a part of a list that is older. This is how a watch of Kubernetes
/// with initial events tells it.
pub(super) trait Changes: Send + 'static {
    /// Waits for the next one. Can be cancelled without loss.
    fn next(&mut self) -> impl Future<Output = Change> + Send;

    /// Has all that there is told once more, beside all changes: a rule has come that may select it.
    fn again(&mut self);
}

/// Who keeps the objects of a fleet, what its nodes hold of them, and what they say of themselves. Cheap to clone.
///
/// A call that writes is answered once what it wrote is durable, and has no effect if it fails, or its whole effect:
/// the fleet makes it again.
pub(super) trait Source: Clone + Send + Sync + 'static {
    /// What tells of changes.
    type Changes: Changes;

    // --- objects

    /// Every object that can be placed and every Node, and all that changes.
    fn follow(&self) -> Self::Changes;

    /// The newest bodies of objects, of at most [`MAX_BODIES`]; those that are no more are left out.
    /// `metadata.managedFields` is left out unless asked for.
    fn bodies(
        &self,
        uids: Vec<Uid>,
        managed_fields: bool,
    ) -> impl Future<Output = Result<Vec<Loaded>>> + Send;

    /// The schema of a kind, for the statuses that nodes send.
    fn schema(&self, resource: &Resource) -> Option<Arc<Schema>>;

    /// Whether there is a kind that a rule names.
    fn serves(&self, kind: &KindMatch) -> bool;

    /// Writes what has come of a rule that is an object, if it still is.
    fn set_rule_status(&self, status: RuleStatus) -> impl Future<Output = Result<()>> + Send;

    // --- the timeline of versions

    /// The id of this timeline.
    fn incarnation(&self) -> Arc<str>;

    /// Begins another timeline: it has turned out that the objects are an older copy.
    fn new_incarnation(&self) -> impl Future<Output = Result<Arc<str>>> + Send;

    /// The versions that were given out, as far as they can be told from those of a lost timeline.
    fn issued(&self) -> Arc<Issued>;

    // --- what nodes hold

    /// All nodes that have ever reported.
    fn nodes(&self) -> impl Future<Output = Result<Vec<(String, NodeFacts)>>> + Send;

    /// What a node is recorded to hold; nothing if it has never reported.
    fn records(&self, node: &str) -> impl Future<Output = Result<Vec<(Uid, Record)>>> + Send;

    /// Records what a node has reported; of its agent the version that is known stays if none is given. Tells which
    /// reports cannot be recorded, and why: all others are.
    fn record(
        &self,
        node: &str,
        agent_version: Option<String>,
        batch: RecordBatch,
    ) -> impl Future<Output = Result<Vec<(Uid, String)>>> + Send;

    // --- what nodes are

    /// What is known of all nodes, at the start.
    fn registered(&self) -> impl Future<Output = Result<Registered>> + Send;

    /// Renews Leases; of several renewals of one node the last one counts.
    fn renew_leases(&self, renewals: Vec<LeaseRenewal>) -> impl Future<Output = Result<()>> + Send;

    /// Changes Nodes, and makes those that there are not.
    fn change_nodes(&self, changes: Vec<NodeChange>) -> impl Future<Output = Result<()>> + Send;

    /// Removes a node and all that is known of it, and remembers that it was removed. Tells whether there was anything.
    fn remove_node(&self, node: &str) -> impl Future<Output = Result<bool>> + Send;

    /// Forgets that a node was removed. Tells whether it was.
    fn admit_node(&self, node: &str) -> impl Future<Output = Result<bool>> + Send;

    // --- what nodes send

    /// Has items of a node's outbox take effect, each once; what cannot is refused, and hinders no other. Events
    /// make no namespaces.
    fn take(&self, batch: UploadBatch) -> impl Future<Output = Result<UploadOutcome>> + Send;

    /// Deletes Events that are older than `ttl`, at most `limit` of them. Tells how many.
    fn expire_events(&self, ttl: Duration, limit: usize) -> impl Future<Output = Result<u64>> + Send;
}
