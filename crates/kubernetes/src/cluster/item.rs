//! What is told of a cluster.

use std::sync::Arc;

use super::plan::Problem;
use super::watching::Seen;
use edgesync_object::ResourceVersion;
use edgesync_placement::{Summary, Unread};

/// What is told of a cluster, in one order.
#[derive(Clone, Debug)]
pub enum Item {
    /// A part of what there is.
    Listed(Vec<Seen>),
    /// That was all that there was at first, but for what is [`Item::Unread`]. It is not said
    /// before the cluster has told its Nodes and the rules that are objects: without those it is
    /// not known what is wanted.
    Complete,
    /// An object is new, or has another content.
    Set(Seen),
    /// An object is no more, or wanted by nobody.
    Gone(Arc<Summary>),
    /// Objects were told that a list leaves out: only their identity is known. They are no more,
    /// unless the cluster is an older copy of itself. Where its versions go on above all that were
    /// given, nothing here shows that: see [`Feed::doubt`](super::Feed::doubt).
    Unlisted(Vec<Arc<Summary>>),
    /// All is told that there was when this was asked for, see
    /// [`Feed::catch_up`](super::Feed::catch_up).
    CaughtUp {
        /// The last question that this answers.
        question: u64,
        /// The newest version that the cluster had given. What is newer was given in a life of it
        /// that is lost.
        reached: ResourceVersion,
    },
    /// The cluster was restored from a copy: its newest version is older than one that it has told.
    /// All of it is told anew.
    Restored,
    /// What is wanted and cannot be read now: of these objects it is not known whether there are
    /// others than were told. Said whenever it changes.
    Unread(Vec<Unread>),
    /// Who does not get what, and why. Said whenever it changes.
    Problems(Vec<Problem>),
    /// The cluster does not serve now; it is tried again.
    Failed(String),
}
