//! What tests of the machine share: a desired state, and a node that begins a session.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::{
    CloudConfig, CloudEffect, CloudMachine, CloudPhase, Desired, DesiredState, Issued, LedgerFacts, Records,
};
use crate::change::Uid;
use crate::digest::{Digest, Epoch};
use crate::frame::{DEFAULT_MAX_FRAME, DEFAULT_MAX_OBJECT, Hello, Up};
use crate::timing::Now;
use edgesync_object::{ObjectRef, Resource, ResourceVersion};

/// An object that the node is to hold.
#[derive(Clone)]
pub(crate) struct Wish {
    pub(crate) version: ResourceVersion,
    pub(crate) object: Arc<ObjectRef>,
    pub(crate) resource: Arc<Resource>,
    pub(crate) size: usize,
}

/// What the node is to hold, as far as its machine was told; and of which objects that may not be all, because they cannot be
/// read.
#[derive(Clone)]
pub(crate) struct Wishes(pub(crate) BTreeMap<Uid, Wish>, pub(crate) Unread);

/// Whether an object may be one of those that cannot be read.
pub(crate) type Unread = fn(&ObjectRef) -> bool;

/// All can be read.
pub(crate) const NONE_UNREAD: Unread = |_| false;

impl Default for Wishes {
    fn default() -> Self {
        Self(BTreeMap::new(), NONE_UNREAD)
    }
}

impl Wish {
    pub(crate) fn desired(&self) -> Desired {
        let Self { version, object, resource, size } = self.clone();
        Desired { version, object, resource, size }
    }
}

impl Wishes {
    /// Has a wish and tells the machine, if there is one.
    pub(crate) fn tell(&mut self, now: Now, cloud: Option<&mut CloudMachine>, uid: &Uid, wish: Option<Wish>) {
        let before = match wish {
            Some(wish) => self.0.insert(uid.clone(), wish),
            None => self.0.remove(uid),
        };
        if let Some(cloud) = cloud {
            cloud.desire(now, uid, before.as_ref().map(Wish::desired).as_ref(), self);
        }
    }
}

impl DesiredState for Wishes {
    fn get(&self, uid: &str) -> Option<Desired> {
        self.0.get(uid).map(Wish::desired)
    }

    fn iter(&self) -> impl Iterator<Item = (&str, ResourceVersion)> {
        self.0.iter().map(|(uid, wish)| (&**uid, wish.version.clone()))
    }

    fn is_unread(&self, object: &ObjectRef) -> bool {
        (self.1)(object)
    }
}

/// A machine with the limits and times of the default configuration.
pub(super) fn machine() -> CloudMachine {
    machine_with(Records::Stored(LedgerFacts::default()))
}

/// The same with records that are kept elsewhere, or nowhere.
pub(super) fn machine_with(records: Records) -> CloudMachine {
    let config = CloudConfig::defaults();
    CloudMachine::new(Arc::new(config), "inc".into(), Arc::new(Issued::default()), records)
}

/// The Hello of a node that holds nothing.
pub(super) fn hello(session: &str) -> Up {
    hello_with(session, DEFAULT_MAX_FRAME)
}

/// The same of a node that takes frames of at most so many bytes.
pub(super) fn hello_with(session: &str, max_frame: u32) -> Up {
    Up::Hello(Hello {
        node: "edge".into(),
        agent: "test".into(),
        session: session.into(),
        epoch: Epoch(7),
        revision: 0,
        confirmed: None,
        count: 0,
        digest: Digest::default(),
        incarnation: None,
        max_frame,
        max_object: DEFAULT_MAX_OBJECT,
    })
}

/// A node that holds nothing begins a session with this Hello; its records are stored at once. The frames for it wait.
pub(super) fn welcome(cloud: &mut CloudMachine, hello: Up, wishes: &Wishes) {
    cloud.received(Now::ZERO, hello, wishes);
    while let Some(effect) = cloud.output.next_effect() {
        match effect {
            CloudEffect::Open => cloud.opened(Now::ZERO, Some(Vec::new()), wishes),
            CloudEffect::Record(batch) => cloud.recorded(Now::ZERO, batch.token, true, 0, wishes),
            _ => {}
        }
    }
    assert_eq!(cloud.phase(), CloudPhase::Live);
}
