//! Cache of the bodies of objects that nodes load. A body is read once for all nodes that wait for
//! it, many in one read, and shared while anything references it. One limit bounds the live bodies
//! of the process.
//!
//! No I/O: the fleet performs the reads of [`Bodies::next_read`], and delivers the answers of
//! [`Bodies::next_answer`]. One body may concern thousands of nodes, so it is handed out in steps
//! ([`Bodies::step`]).
//!
//! A body of a revision of a roll-out is read from the stored revision, in exactly its version.
//!
//! Reads are numbered, and the answer of a discarded one is ignored: an older copy that replaces
//! the source has older versions, and issues the same ones again for other contents.

use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use super::nodes::NodeId;
use crate::metrics::BodyNumbers;
use crate::source::{MAX_BODIES, Result, RevisionKey, Source};
use edgesync_object::urgency::override_windows;
use edgesync_object::{Relation, ResourceVersion};
use edgesync_protocol::body::{Body, WeakBody};
use edgesync_protocol::change::Uid;
use edgesync_protocol::cloud::Loaded;
#[cfg(test)]
use edgesync_protocol::fault::{Fault, planted};

/// Maximum number of concurrent reads of the source.
const MAX_READS: usize = 4;
/// Approximate bytes of one read; a larger object is read alone.
const READ_BYTES: usize = 4 << 20;
/// Maximum number of unanswered loads of a node, as its machine keeps it.
const MAX_LOADS: usize = 2;

/// An object that a node loads.
#[derive(Clone, Debug)]
pub(super) struct BodyRequest {
    pub(super) uid: Uid,
    /// The desired version; the body read may be newer.
    pub(super) version: ResourceVersion,
    /// The version that the node holds, if a patch against it is wanted.
    pub(super) base: Option<ResourceVersion>,
    /// Approximate size of its JSON, in bytes.
    pub(super) size: usize,
    /// The revision that has exactly this version; otherwise the newest one is read.
    pub(super) revision: Option<FromRevision>,
}

/// Where a body of a revision is read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct FromRevision {
    pub(super) key: RevisionKey,
    /// Whether the change takes effect outside of windows: the body gets the annotation for it.
    pub(super) overrides_windows: bool,
}

impl BodyRequest {
    fn key(&self) -> BodyKey {
        let exact = self
            .revision
            .as_ref()
            .map(|from| Exact { version: self.version.clone(), overrides_windows: from.overrides_windows });
        BodyKey { uid: self.uid.clone(), exact }
    }
}

/// A body: the newest one of an object, or that of a version in a revision.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct BodyKey {
    uid: Uid,
    exact: Option<Exact>,
}

/// A body of a revision.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Exact {
    version: ResourceVersion,
    overrides_windows: bool,
}

/// The answer to a load.
#[derive(Debug)]
pub(super) struct Answer {
    pub(super) node: NodeId,
    pub(super) token: u64,
    /// The bodies that were found.
    pub(super) bodies: Vec<Loaded>,
    /// The versions that patches of them start from.
    pub(super) bases: Vec<(Uid, ResourceVersion)>,
}

/// Class of a load. Large objects live as long as a slow link needs, small ones are short-lived.
/// Each class has half of the limit, so that neither waits for the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SizeClass {
    /// Objects that share a frame.
    Small,
    /// An object that is larger than a frame.
    Large,
}

/// Counts of live bodies, shared with their [`Holder`]s.
#[derive(Debug, Default)]
struct Alive {
    /// Bytes of live bodies, by [`SizeClass`].
    bytes: [AtomicUsize; 2],
    count: AtomicUsize,
    /// Objects with a body that is no longer referenced.
    freed: Mutex<Vec<BodyKey>>,
}

/// Guard attached to a body; its drop releases the bytes.
struct Holder {
    key: BodyKey,
    class: SizeClass,
    bytes: usize,
    alive: Arc<Alive>,
}

impl Drop for Holder {
    fn drop(&mut self) {
        self.alive.bytes[self.class as usize].fetch_sub(self.bytes, Ordering::Relaxed);
        self.alive.count.fetch_sub(1, Ordering::Relaxed);
        let mut freed = self.alive.freed.lock().unwrap_or_else(PoisonError::into_inner);
        freed.push(self.key.clone());
    }
}

/// A load of a node.
#[derive(Debug)]
struct Load {
    node: NodeId,
    token: u64,
    objects: Vec<BodyRequest>,
    /// Number of its objects that are being read.
    missing: usize,
    bodies: Vec<Loaded>,
    bases: Vec<(Uid, ResourceVersion)>,
    delayed: bool,
}

/// State of the bodies of one object.
#[derive(Debug, Default)]
struct Entry {
    newest: Option<(ResourceVersion, WeakBody)>,
    read: Option<Read>,
}

/// An object that is being read or queued for a read.
#[derive(Debug)]
struct Read {
    /// The read in flight; `None` while it is queued.
    in_flight: Option<ReadId>,
    /// The revision to read from; `None` for the newest version.
    revision: Option<FromRevision>,
    class: SizeClass,
    /// Bytes reserved for it.
    size: usize,
    waiting: Vec<Waiting>,
}

/// The number of a read, which is part of its answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ReadId(u64);

/// Objects to read together.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct NextRead {
    pub(super) id: ReadId,
    pub(super) uids: Vec<Uid>,
    /// The revision to read them from; `None` for their newest versions.
    pub(super) revision: Option<FromRevision>,
    /// Versions of the revision, in the order of the UIDs; empty without one.
    exact: Vec<Exact>,
}

/// A load that waits for an object.
#[derive(Debug)]
struct Waiting {
    load: u64,
    /// The minimum version. Absent if the read began after the load: then its result is the newest.
    version: Option<ResourceVersion>,
}

/// Cache, loads and reads; see the module.
#[derive(Debug)]
pub(super) struct Bodies {
    limit: usize,
    alive: Arc<Alive>,
    /// Bytes reserved for reads, by [`SizeClass`].
    reserved: [usize; 2],
    reads: usize,
    next_read: u64,
    to_read: VecDeque<BodyKey>,
    entries: HashMap<BodyKey, Entry>,
    next_load: u64,
    loads: HashMap<u64, Load>,
    by_node: HashMap<NodeId, VecDeque<u64>>,
    /// Loads that wait for memory, by [`SizeClass`].
    queues: [VecDeque<u64>; 2],
    /// Loads, each with the body read for it, or `None` if it was not found.
    served: VecDeque<(u64, Option<Loaded>)>,
    answers: VecDeque<u64>,
    counts: BodyNumbers,
}

impl Bodies {
    /// `limit`: bytes of bodies that are live or being read.
    pub(super) fn new(limit: usize) -> Self {
        Self {
            limit,
            alive: Arc::default(),
            reserved: [0; 2],
            reads: 0,
            next_read: 0,
            to_read: VecDeque::new(),
            entries: HashMap::new(),
            next_load: 0,
            loads: HashMap::new(),
            by_node: HashMap::new(),
            queues: [VecDeque::new(), VecDeque::new()],
            served: VecDeque::new(),
            answers: VecDeque::new(),
            counts: BodyNumbers::default(),
        }
    }

    pub(super) fn set_limit(&mut self, limit: usize) {
        self.limit = limit;
    }

    /// Returns the current numbers of live bodies and the counters so far.
    pub(super) fn numbers(&self) -> BodyNumbers {
        let bytes = self.alive.bytes.iter().map(|bytes| bytes.load(Ordering::Relaxed) as u64).sum();
        BodyNumbers { bytes, count: self.alive.count.load(Ordering::Relaxed) as u64, ..self.counts }
    }

    /// Queues a load of a node.
    pub(super) fn load(&mut self, node: NodeId, token: u64, class: SizeClass, objects: Vec<BodyRequest>) {
        let id = self.next_load;
        self.next_load += 1;
        let of_node = self.by_node.entry(node).or_default();
        of_node.push_back(id);
        if of_node.len() > MAX_LOADS
            && let Some(old) = of_node.pop_front()
        {
            // It belongs to an earlier session.
            self.loads.remove(&old);
        }
        let bodies = Vec::with_capacity(objects.len());
        let base = |request: &BodyRequest| Some((Arc::clone(&request.uid), request.base.clone()?));
        let bases = objects.iter().filter_map(base).collect();
        self.loads.insert(id, Load { node, token, objects, missing: 0, bodies, bases, delayed: false });
        self.queues[class as usize].push_back(id);
    }

    /// Drops the loads of a node.
    pub(super) fn forget(&mut self, node: NodeId) {
        for id in self.by_node.remove(&node).into_iter().flatten() {
            self.loads.remove(&id);
        }
    }

    /// Discards what was read before an older copy has replaced the source. Bodies in flight are
    /// read again.
    pub(super) fn begin_timeline(&mut self) {
        let keys: Vec<BodyKey> = self.entries.keys().cloned().collect();
        keys.iter().for_each(|key| self.discard_body(key));
    }

    /// Discards what was read of an object whose version may have gone back.
    pub(super) fn discard(&mut self, uid: &Uid) {
        self.discard_body(&BodyKey { uid: uid.clone(), exact: None });
    }

    fn discard_body(&mut self, key: &BodyKey) {
        #[cfg(test)]
        if planted(Fault::BodiesOfLostSource) {
            return;
        }
        let Some(entry) = self.entries.get_mut(key) else { return };
        entry.newest = None;
        let Some(read) = &mut entry.read else {
            self.entries.remove(key);
            return;
        };
        if read.in_flight.take().is_some() {
            // The next read begins after all of these loads.
            read.waiting.iter_mut().for_each(|waiting| waiting.version = None);
            self.to_read.push_back(key.clone());
        }
    }

    /// Returns the next objects to read, if any. At most [`MAX_READS`] reads are in flight.
    pub(super) fn next_read(&mut self) -> Option<NextRead> {
        if self.reads == MAX_READS || self.to_read.is_empty() {
            return None;
        }
        let id = ReadId(self.next_read);
        let (mut uids, mut exact, mut bytes) = (Vec::new(), Vec::new(), 0);
        let mut revision = None;
        while let Some(key) = self.to_read.front()
            && uids.len() < MAX_BODIES
        {
            let read = self.entries.get_mut(key).and_then(|entry| entry.read.as_mut());
            let size = read.as_ref().map_or(0, |read| read.size);
            let source = read.as_ref().and_then(|read| read.revision.clone());
            if !uids.is_empty() && (bytes + size > READ_BYTES || source != revision) {
                break;
            }
            revision = source;
            if let Some(read) = read {
                read.in_flight = Some(id);
            }
            bytes += size;
            if let Some(key) = self.to_read.pop_front() {
                uids.push(key.uid);
                exact.extend(key.exact);
            }
        }
        self.reads += 1;
        self.next_read += 1;
        Some(NextRead { id, uids, revision, exact })
    }

    /// Stores the result of a read, as far as it was not discarded.
    pub(super) fn arrived(&mut self, read: NextRead, bodies: Vec<Loaded>) {
        let NextRead { id, uids, exact, .. } = read;
        let mut exact = exact.into_iter();
        self.reads -= 1;
        let mut bodies: HashMap<Uid, Loaded> =
            bodies.into_iter().map(|loaded| (Arc::clone(&loaded.uid), loaded)).collect();
        for uid in uids {
            let exact = exact.next();
            let is_right =
                |loaded: &Loaded| exact.as_ref().is_none_or(|exact| loaded.version == exact.version);
            let loaded = bodies.remove(&uid).filter(is_right);
            self.read_done(id, BodyKey { uid, exact }, loaded);
        }
    }

    fn read_done(&mut self, id: ReadId, key: BodyKey, loaded: Option<Loaded>) {
        let Some(entry) = self.entries.get_mut(&key) else { return };
        let read = entry.read.take_if(|read| read.in_flight == Some(id));
        let Some(Read { class, size, waiting, revision, .. }) = read else { return };
        self.reserved[class as usize] -= size;
        let loaded = loaded.map(|loaded| keep(entry, &key, class, loaded, &self.alive, &mut self.counts));
        let is_newer = |minimum: &ResourceVersion| {
            loaded.as_ref().is_some_and(|loaded| loaded.version.is_older_than(minimum))
        };
        #[cfg(test)]
        let is_newer = |minimum: &ResourceVersion| is_newer(minimum) && !planted(Fault::OlderBodies);
        let (late, served): (Vec<_>, Vec<_>) =
            waiting.into_iter().partition(|waiting| waiting.version.as_ref().is_some_and(is_newer));
        if entry.newest.is_none() && late.is_empty() {
            self.entries.remove(&key);
        } else if !late.is_empty() {
            // Loaded while an older version was being read: the next read returns it.
            let waiting = late.into_iter().map(|waiting| Waiting { version: None, ..waiting }).collect();
            entry.read = Some(Read { in_flight: None, revision, class, size, waiting });
            self.reserved[class as usize] += size;
            self.to_read.push_back(key);
        }
        self.served.extend(served.into_iter().map(|waiting| (waiting.load, loaded.clone())));
    }

    /// Hands one body to one load, or admits one load that fits into the limit, in their order.
    /// Returns whether it did anything; the caller repeats it until it returns `false`, and only
    /// then calls [`Bodies::next_read`], so that shared objects are read together.
    pub(super) fn step(&mut self) -> bool {
        let Some((id, loaded)) = self.served.pop_front() else { return self.admit_next() };
        if let Some(load) = self.loads.get_mut(&id) {
            load.bodies.extend(loaded);
            load.missing -= 1;
            if load.missing == 0 {
                self.answers.push_back(id);
            }
        }
        true
    }

    /// Returns whether a load of a large object waits for memory, after [`Bodies::step`] has
    /// nothing left to do.
    pub(super) fn is_short(&self) -> bool {
        !self.queues[SizeClass::Large as usize].is_empty()
    }

    /// Returns the next complete answer.
    pub(super) fn next_answer(&mut self) -> Option<Answer> {
        loop {
            let id = self.answers.pop_front()?;
            let Some(Load { node, token, bodies, bases, .. }) = self.loads.remove(&id) else { continue };
            if let Some(of_node) = self.by_node.get_mut(&node) {
                of_node.retain(|other| *other != id);
                if of_node.is_empty() {
                    self.by_node.remove(&node);
                }
            }
            return Some(Answer { node, token, bodies, bases });
        }
    }

    fn admit_next(&mut self) -> bool {
        self.sweep();
        for class in [SizeClass::Small, SizeClass::Large] {
            if let Some(id) = self.queues[class as usize].front().copied()
                && self.admit(id, class)
            {
                self.queues[class as usize].pop_front();
                return true;
            }
        }
        false
    }

    /// Admits a load, unless it has to wait: it exceeds the free memory and other bodies are live.
    fn admit(&mut self, id: u64, class: SizeClass) -> bool {
        let Some(load) = self.loads.get_mut(&id) else { return true };
        let is_new = |request: &&BodyRequest| match self.entries.get(&request.key()) {
            Some(entry) => entry.read.is_none() && entry.held(&request.version).is_none(),
            None => true,
        };
        let needed: usize = load.objects.iter().filter(is_new).map(|request| request.size).sum();
        let alive = self.alive.bytes[class as usize].load(Ordering::Relaxed);
        let used = alive + self.reserved[class as usize];
        if needed > 0 && used > 0 && used + needed > self.limit / 2 {
            self.counts.delayed += u64::from(!std::mem::replace(&mut load.delayed, true));
            return false;
        }
        for request in std::mem::take(&mut load.objects) {
            let key = request.key();
            let BodyRequest { uid, version, size, revision, .. } = request;
            let entry = self.entries.entry(key.clone()).or_default();
            if let Some(body) = entry.held(&version) {
                self.counts.shared += 1;
                load.bodies.push(Loaded { uid, version, body, patch: None });
                continue;
            }
            load.missing += 1;
            if let Some(read) = &mut entry.read {
                self.counts.shared += 1;
                read.waiting.push(Waiting { load: id, version: read.in_flight.map(|_| version) });
                continue;
            }
            let waiting = vec![Waiting { load: id, version: None }];
            entry.read = Some(Read { in_flight: None, revision, class, size, waiting });
            self.reserved[class as usize] += size;
            self.to_read.push_back(key);
        }
        if load.missing == 0 {
            self.answers.push_back(id);
        }
        true
    }

    /// Removes objects that have no live body.
    fn sweep(&mut self) {
        let freed = std::mem::take(&mut *self.alive.freed.lock().unwrap_or_else(PoisonError::into_inner));
        for key in freed {
            let Some(entry) = self.entries.get_mut(&key) else { continue };
            entry.newest.take_if(|(_, body)| body.upgrade().is_none());
            if entry.newest.is_none() && entry.read.is_none() {
                self.entries.remove(&key);
            }
        }
    }
}

impl FromRevision {
    /// Reads bodies of the revision.
    pub(super) async fn read<S: Source>(self, source: &S, uids: Vec<Uid>) -> Result<Vec<Loaded>> {
        let mut bodies = source.revision_bodies(self.key, uids).await?;
        if self.overrides_windows {
            for loaded in &mut bodies {
                match override_windows(loaded.body.as_str()).and_then(Body::new) {
                    Ok(body) => loaded.body = body,
                    Err(error) => tracing::error!(uid = &*loaded.uid, %error, "annotating an object failed"),
                }
            }
        }
        Ok(bodies)
    }
}

impl Entry {
    /// Returns the live body of exactly this version, if there is one.
    fn held(&self, version: &ResourceVersion) -> Option<Body> {
        let (newest, body) = self.newest.as_ref()?;
        if newest.relation(version) == Relation::Equal { body.upgrade() } else { None }
    }
}

/// Registers a body that was read, or returns the live one of the same version.
fn keep(
    entry: &mut Entry,
    key: &BodyKey,
    class: SizeClass,
    mut loaded: Loaded,
    alive: &Arc<Alive>,
    counts: &mut BodyNumbers,
) -> Loaded {
    counts.read += 1;
    if let Some(body) = entry.held(&loaded.version) {
        loaded.body = body;
        return loaded;
    }
    let bytes = loaded.body.as_str().len();
    alive.bytes[class as usize].fetch_add(bytes, Ordering::Relaxed);
    alive.count.fetch_add(1, Ordering::Relaxed);
    loaded.body.accompany(Holder { key: key.clone(), class, bytes, alive: Arc::clone(alive) });
    entry.newest = Some((loaded.version.clone(), loaded.body.downgrade()));
    loaded
}

#[cfg(test)]
mod tests;
