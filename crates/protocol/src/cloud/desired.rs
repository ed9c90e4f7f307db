//! The desired state of a node. Its owner, the placement, keeps it once for all nodes and lends it
//! to each input of a machine.

use std::sync::Arc;

use crate::digest::{Epoch, Tally};
use edgesync_object::urgency::Urgency;
use edgesync_object::{ObjectRef, Resource, ResourceVersion};

use super::types::Record;

/// A desired object of a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Desired {
    /// The version that the node shall hold.
    pub version: ResourceVersion,
    /// API version, kind, namespace and name of the object.
    pub object: Arc<ObjectRef>,
    /// The kind, with plural and scope.
    pub resource: Arc<Resource>,
    /// The size of its JSON in bytes, an estimate.
    pub size: usize,
    /// The urgency: more urgent objects are sent first.
    pub urgency: Urgency,
    /// Whether only this version will do, as in the revision of a roll-out; otherwise a newer one
    /// is as good.
    pub is_exact: bool,
}

impl Desired {
    /// Returns the record of a node that holds the object in this version.
    #[must_use]
    pub fn record(&self) -> Record {
        Record { version: self.version.clone(), object: self.object.clone() }
    }
}

/// The current desired state of one node. Every change is passed to the node's machine with
/// [`super::CloudMachine::desire`].
pub trait DesiredState {
    /// Returns the desired object with this UID.
    fn get(&self, uid: &str) -> Option<Desired>;

    /// Returns UID and version of each object once, in no particular order.
    fn iter(&self) -> impl Iterator<Item = (&str, ResourceVersion)>;

    /// Returns whether an object outside this state may belong to it, because its selector is
    /// currently unreadable. A node that holds the object keeps it.
    fn is_unread(&self, object: &ObjectRef) -> bool {
        let _ = object;
        false
    }

    /// Returns the number of objects.
    fn count(&self) -> usize {
        self.iter().count()
    }

    /// Returns count and digest of a node that holds exactly these objects.
    fn tally(&self, epoch: Epoch) -> Tally {
        let mut tally = Tally::default();
        for (uid, version) in self.iter() {
            tally.add(epoch, uid, &version);
        }
        tally
    }
}
