//! Items of a [`Feed`](super::Feed).

use std::sync::Arc;

use super::plan::Problem;
use super::watch_run::ObservedObject;
use edgesync_placement::{Summary, Unread};
use edgesync_protocol::cloud::Reached;

/// A change of the cluster's state, in one total order.
#[derive(Clone, Debug)]
pub enum Item {
    /// A part of the current objects.
    Listed(Vec<ObservedObject>),
    /// The initial lists are complete, except for [`Item::Unread`]. Sent only after Nodes and rule
    /// objects are listed, because they determine which other objects are desired.
    Complete,
    /// An object was added or modified.
    Updated(ObservedObject),
    /// An object was deleted, or is no longer of interest.
    Deleted(Arc<Summary>),
    /// Objects missing from a relist; only their identity is known. They are deleted, unless the
    /// cluster was restored from a backup. A restored cluster whose versions continue above all
    /// earlier ones is not detected here: see
    /// `Feed::accept_older_versions`.
    Unlisted(Vec<Arc<Summary>>),
    /// All state at the time of the request has been delivered, see
    /// [`Feed::catch_up`](super::Feed::catch_up).
    CaughtUp {
        /// The last request that this answers.
        question: u64,
        /// The newest version that the cluster's own store had assigned. A newer one stems from a
        /// lost incarnation.
        reached: Reached,
    },
    /// The cluster was restored from a backup: its newest version is older than one already
    /// delivered. A relist follows.
    Restored,
    /// Desired objects that are unreadable now, so that additions and deletions among them are
    /// unknown. Sent on each change.
    Unread(Vec<Unread>),
    /// Problems by origin. Sent on each change.
    Problems(Vec<Problem>),
    /// The API server is unavailable; retries continue.
    Failed(String),
}
