//! What a node is to hold. Whoever places objects keeps it, once for all nodes, and lends it to the machine of a node
//! with each input.

use std::sync::Arc;

use crate::digest::{Epoch, Tally};
use edgesync_object::{ObjectRef, Resource, ResourceVersion};

use super::types::Record;

/// An object that a node is to hold.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Desired {
    /// The latest version.
    pub version: ResourceVersion,
    /// Which object it is.
    pub object: Arc<ObjectRef>,
    /// The kind, with plural and scope.
    pub resource: Arc<Resource>,
    /// The size of its JSON in bytes; an estimate is good enough.
    pub size: usize,
}

impl Desired {
    /// What is recorded of a node that holds it.
    #[must_use]
    pub fn record(&self) -> Record {
        Record { version: self.version.clone(), object: self.object.clone() }
    }
}

/// Everything that one node is to hold, as it is now. It changes only as the node's machine is told by
/// [`super::CloudMachine::desire`].
pub trait DesiredState {
    /// The object with this UID, if the node is to hold it.
    fn get(&self, uid: &str) -> Option<Desired>;

    /// UID and version of each object once, in no particular order.
    fn iter(&self) -> impl Iterator<Item = (&str, ResourceVersion)>;

    /// Whether an object that is not among these may be one of them: what it is selected by cannot be read now. A node that
    /// holds it keeps it.
    fn is_unread(&self, object: &ObjectRef) -> bool {
        let _ = object;
        false
    }

    /// How many objects that are.
    fn count(&self) -> usize {
        self.iter().count()
    }

    /// Count and digest of a node that holds exactly this.
    fn tally(&self, epoch: Epoch) -> Tally {
        let mut tally = Tally::default();
        for (uid, version) in self.iter() {
            tally.add(epoch, uid, &version);
        }
        tally
    }
}
