//! What a node is to hold. Whoever places objects keeps it, once for all nodes, and lends it to the machine of a node
//! with each input.

use std::sync::Arc;

use crate::object::{ObjectRef, Resource, ResourceVersion};
use crate::sync::change::Uid;
use crate::sync::digest::{Epoch, Tally};

use super::types::Record;

/// An object that a node is to hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Desired<'a> {
    /// The latest version.
    pub version: &'a ResourceVersion,
    /// Which object it is.
    pub object: &'a Arc<ObjectRef>,
    /// The kind, with plural and scope.
    pub resource: &'a Arc<Resource>,
    /// The size of its JSON in bytes; an estimate is good enough.
    pub size: usize,
}

impl Desired<'_> {
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
    fn get(&self, uid: &str) -> Option<Desired<'_>>;

    /// Each object once, in no particular order.
    fn iter(&self) -> impl Iterator<Item = (&Uid, Desired<'_>)>;

    /// Count and digest of a node that holds exactly this.
    fn tally(&self, epoch: Epoch) -> Tally {
        let mut tally = Tally::default();
        for (uid, desired) in self.iter() {
            tally.add(epoch, uid, desired.version);
        }
        tally
    }
}
