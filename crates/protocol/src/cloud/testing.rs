//! Test helpers for the machine: a desired state, and a node that begins a session.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::{
    CloudConfig, CloudEffect, CloudMachine, CloudPhase, Desired, DesiredState, Issued, LedgerFacts, Records,
};
use crate::change::Uid;
use crate::frame::{DEFAULT_MAX_FRAME, Hello, Up};
use crate::timing::Now;
use edgesync_object::urgency::Urgency;
use edgesync_object::{ObjectRef, Resource, ResourceVersion};

/// A desired object of the node.
#[derive(Clone)]
pub(crate) struct DesiredObject {
    pub(crate) version: ResourceVersion,
    pub(crate) object: Arc<ObjectRef>,
    pub(crate) resource: Arc<Resource>,
    pub(crate) size: usize,
    pub(crate) urgency: Urgency,
}

/// The desired state of the node as its machine knows it, and a filter for objects that are
/// unreadable.
#[derive(Clone)]
pub(crate) struct DesiredObjects(pub(crate) BTreeMap<Uid, DesiredObject>, pub(crate) Unread);

/// Returns whether an object may be among the unreadable ones.
pub(crate) type Unread = fn(&ObjectRef) -> bool;

/// All objects are readable.
pub(crate) const NONE_UNREAD: Unread = |_| false;

impl Default for DesiredObjects {
    fn default() -> Self {
        Self(BTreeMap::new(), NONE_UNREAD)
    }
}

impl DesiredObject {
    pub(crate) fn desired(&self) -> Desired {
        let Self { version, object, resource, size, urgency } = self.clone();
        Desired { version, object, resource, size, urgency, is_exact: false }
    }
}

impl DesiredObjects {
    /// Sets or removes a desired object and passes the change to the machine.
    pub(crate) fn tell(
        &mut self,
        now: Now,
        cloud: Option<&mut CloudMachine>,
        uid: &Uid,
        wish: Option<DesiredObject>,
    ) {
        let before = match wish {
            Some(wish) => self.0.insert(uid.clone(), wish),
            None => self.0.remove(uid),
        };
        if let Some(cloud) = cloud {
            cloud.desire(now, uid, before.as_ref().map(DesiredObject::desired).as_ref(), self);
        }
    }
}

impl DesiredState for DesiredObjects {
    fn get(&self, uid: &str) -> Option<Desired> {
        self.0.get(uid).map(DesiredObject::desired)
    }

    fn iter(&self) -> impl Iterator<Item = (&str, ResourceVersion)> {
        self.0.iter().map(|(uid, wish)| (&**uid, wish.version.clone()))
    }

    fn is_unread(&self, object: &ObjectRef) -> bool {
        (self.1)(object)
    }
}

/// Returns a machine with the limits and times of the default configuration.
pub(super) fn machine() -> CloudMachine {
    machine_with(Records::Stored(LedgerFacts::default()))
}

/// Returns such a machine with the given location of its records.
pub(super) fn machine_with(records: Records) -> CloudMachine {
    let config = CloudConfig::defaults();
    CloudMachine::new(Arc::new(config), "inc".into(), Arc::new(Issued::default()), records)
}

/// Returns the Hello of a node that holds nothing.
pub(super) fn hello(session: &str) -> Up {
    hello_with(session, DEFAULT_MAX_FRAME)
}

/// Returns such a Hello with this frame limit.
pub(super) fn hello_with(session: &str, max_frame: u32) -> Up {
    Up::Hello(Hello { max_frame, ..Hello::of_empty_node("edge", session) })
}

/// Completes the handshake of a node that holds nothing; its records are stored at once. The frames
/// for it stay queued.
pub(super) fn welcome(cloud: &mut CloudMachine, hello: Up, wishes: &DesiredObjects) {
    cloud.received(Now::ZERO, hello, wishes);
    while let Some(effect) = cloud.output.next_effect() {
        match effect {
            CloudEffect::ReadRecords => cloud.opened(Now::ZERO, Some(Vec::new()), wishes),
            CloudEffect::Record(batch) => cloud.recorded(Now::ZERO, batch.token, true, 0, wishes),
            _ => {}
        }
    }
    assert_eq!(cloud.phase(), CloudPhase::Live);
}
