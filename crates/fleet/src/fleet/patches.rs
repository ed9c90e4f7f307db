//! Patches for nodes that load objects: one for each pair of versions, whatever the number of nodes
//! that need it. Made patches are kept within a limit of bytes, and one that is being made is
//! awaited by all.
//!
//! A patch is handed out only with the body that it results in: an older copy that replaces the
//! source issues the same versions again for other contents.
//!
//! No I/O: the fleet carries out the jobs of [`Patches::next_job`], off its loop. One pair may
//! concern thousands of nodes, so a patch is handed out in steps ([`Patches::step`]).

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use super::bodies::Answer;
use super::nodes::NodeId;
use crate::metrics::PatchNumbers;
use crate::source::Result;
use edgesync_object::ResourceVersion;
use edgesync_protocol::body::{Body, WeakBody};
use edgesync_protocol::change::Uid;
use edgesync_protocol::patch::{Edition, Patch};

/// Maximum number of concurrent jobs. Each takes a core.
const MAX_JOBS: usize = 2;
/// Maximum number of pairs of a job.
const JOB_PAIRS: usize = 64;
/// Approximate bytes of the bodies of a job; a larger one is alone.
const JOB_BYTES: usize = 1 << 20;
/// Bytes of an entry beside its patch.
const ENTRY_BYTES: usize = 256;

/// An object with two of its versions.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Key {
    uid: Uid,
    base: ResourceVersion,
    version: ResourceVersion,
}

/// A patch to make.
#[derive(Debug)]
pub(super) struct Pair {
    key: Key,
    /// The body of the newer version.
    body: Body,
}

/// The result of a pair.
#[derive(Clone, Debug)]
struct Made {
    /// `None` if the base is unknown or the patch would save too little.
    patch: Option<Arc<Patch>>,
    /// A body known to be the result of the patch.
    body: WeakBody,
}

impl Made {
    /// Returns whether the result serves this body. Most are known by identity; one that was read
    /// again is compared once.
    fn serves(&mut self, body: &Body) -> bool {
        if self.body.is(body) {
            return true;
        }
        let is_result = self.patch.as_ref().is_none_or(|patch| patch.results_in(body.as_str()));
        if is_result {
            self.body = body.downgrade();
        }
        is_result
    }
}

/// An answer that lacks patches.
#[derive(Debug)]
struct Incomplete {
    answer: Answer,
    missing: usize,
}

/// Made patches, jobs, and the answers that wait for them; see the module.
#[derive(Debug)]
pub(super) struct Patches {
    limit: usize,
    bytes: usize,
    made: HashMap<Key, Made>,
    /// The keys of `made`, the oldest first.
    order: VecDeque<Key>,
    /// The pairs that are being made or queued, each with the answers that wait for it.
    waiting: HashMap<Key, Vec<u64>>,
    queue: VecDeque<Pair>,
    jobs: usize,
    next_answer: u64,
    incomplete: HashMap<u64, Incomplete>,
    /// Answers, each with the object and the patch made for it.
    served: VecDeque<(u64, Uid, Made)>,
    answers: VecDeque<Answer>,
    counts: PatchNumbers,
}

impl Patches {
    /// `limit`: bytes of made patches in memory. With zero, none are made.
    pub(super) fn new(limit: usize) -> Self {
        Self {
            limit,
            bytes: 0,
            made: HashMap::new(),
            order: VecDeque::new(),
            waiting: HashMap::new(),
            queue: VecDeque::new(),
            jobs: 0,
            next_answer: 0,
            incomplete: HashMap::new(),
            served: VecDeque::new(),
            answers: VecDeque::new(),
            counts: PatchNumbers::default(),
        }
    }

    pub(super) fn set_limit(&mut self, limit: usize) {
        self.limit = limit;
        self.evict();
    }

    /// Returns the current numbers of patches and the counters so far.
    pub(super) fn numbers(&self) -> PatchNumbers {
        PatchNumbers { count: self.made.len() as u64, bytes: self.bytes as u64, ..self.counts }
    }

    /// Completes an answer with patches, at once or when they are made.
    pub(super) fn complete(&mut self, mut answer: Answer) {
        if self.limit == 0 || answer.bases.is_empty() {
            return self.answers.push_back(answer);
        }
        let bases: HashMap<Uid, ResourceVersion> = std::mem::take(&mut answer.bases).into_iter().collect();
        let (id, mut missing) = (self.next_answer, 0);
        self.next_answer += 1;
        for loaded in &mut answer.bodies {
            let Some(base) = bases.get(&loaded.uid).filter(|base| **base != loaded.version) else { continue };
            let (uid, base, version) = (Arc::clone(&loaded.uid), base.clone(), loaded.version.clone());
            let key = Key { uid, base, version };
            let known = self.made.get_mut(&key);
            let known = known.map(|made| made.serves(&loaded.body).then(|| made.patch.clone()));
            match known {
                Some(Some(patch)) => {
                    self.counts.shared += 1;
                    loaded.patch = patch;
                    continue;
                }
                Some(None) => self.discard(&key),
                None => {}
            }
            missing += 1;
            if let Some(waiting) = self.waiting.get_mut(&key) {
                self.counts.shared += 1;
                waiting.push(id);
                continue;
            }
            self.waiting.insert(key.clone(), vec![id]);
            self.queue.push_back(Pair { key, body: loaded.body.clone() });
        }
        match missing {
            0 => self.answers.push_back(answer),
            _ => drop(self.incomplete.insert(id, Incomplete { answer, missing })),
        }
    }

    /// Drops the answers for a node.
    pub(super) fn forget(&mut self, node: NodeId) {
        self.incomplete.retain(|_, incomplete| incomplete.answer.node != node);
        self.answers.retain(|answer| answer.node != node);
    }

    /// Returns the next pairs to make, if any.
    pub(super) fn next_job(&mut self) -> Option<Vec<Pair>> {
        if self.jobs == MAX_JOBS || self.queue.is_empty() {
            return None;
        }
        let (mut pairs, mut bytes) = (Vec::new(), 0);
        while pairs.len() < JOB_PAIRS
            && let Some(pair) = self.queue.front()
        {
            bytes += pair.body.as_str().len();
            if !pairs.is_empty() && bytes > JOB_BYTES {
                break;
            }
            pairs.extend(self.queue.pop_front());
        }
        self.jobs += 1;
        Some(pairs)
    }

    /// Stores the results of a job, in the order of its pairs. `None` if it has failed: the objects
    /// are sent whole this time, and the next need of a pair makes it.
    pub(super) fn made(&mut self, pairs: Vec<Pair>, patches: Option<Vec<Option<Patch>>>) {
        self.jobs = self.jobs.saturating_sub(1);
        let has_failed = patches.is_none();
        let patches = patches.into_iter().flatten().chain(std::iter::repeat_with(|| None));
        for (Pair { key, body }, patch) in pairs.into_iter().zip(patches) {
            let made = Made { patch: patch.map(Arc::new), body: body.downgrade() };
            match &made.patch {
                Some(_) => self.counts.made += 1,
                None => self.counts.skipped += 1,
            }
            for id in self.waiting.remove(&key).into_iter().flatten() {
                self.served.push_back((id, Arc::clone(&key.uid), made.clone()));
            }
            if has_failed {
                continue;
            }
            self.bytes += weight(&made);
            self.order.push_back(key.clone());
            self.made.insert(key, made);
        }
        self.evict();
    }

    fn discard(&mut self, key: &Key) {
        if let Some(made) = self.made.remove(key) {
            self.bytes = self.bytes.saturating_sub(weight(&made));
            self.order.retain(|other| other != key);
        }
    }

    fn evict(&mut self) {
        while self.bytes > self.limit
            && let Some(key) = self.order.pop_front()
        {
            if let Some(made) = self.made.remove(&key) {
                self.bytes = self.bytes.saturating_sub(weight(&made));
            }
        }
    }

    /// Hands one patch to one answer. Returns whether there was any.
    pub(super) fn step(&mut self) -> bool {
        let Some((id, uid, mut made)) = self.served.pop_front() else { return false };
        if let Some(incomplete) = self.incomplete.get_mut(&id) {
            let loaded = incomplete.answer.bodies.iter_mut().find(|loaded| loaded.uid == uid);
            if let Some(loaded) = loaded.filter(|loaded| made.serves(&loaded.body)) {
                loaded.patch = made.patch;
            }
            incomplete.missing -= 1;
            if incomplete.missing == 0 {
                self.answers.extend(self.incomplete.remove(&id).map(|it| it.answer));
            }
        }
        true
    }

    /// Returns the next complete answer.
    pub(super) fn next_answer(&mut self) -> Option<Answer> {
        self.answers.pop_front()
    }
}

fn weight(made: &Made) -> usize {
    ENTRY_BYTES + made.patch.as_ref().map_or(0, |patch| patch.weight())
}

/// Returns the versions that the patches of a job start from.
pub(super) fn bases_of(pairs: &[Pair]) -> Vec<(Uid, ResourceVersion)> {
    pairs.iter().map(|pair| (Arc::clone(&pair.key.uid), pair.key.base.clone())).collect()
}

/// Waits for the bases of a job, and makes its patches on a thread of its own. Returns `None` if it
/// fails.
pub(super) async fn make(
    pairs: &[Pair],
    bases: impl Future<Output = Result<Vec<(Uid, ResourceVersion, String)>>>,
) -> Option<Vec<Option<Patch>>> {
    let read = bases.await.inspect_err(|error| {
        tracing::warn!(%error, "reading earlier versions of objects failed, sending whole objects");
    });
    let bases = read.ok()?;
    if bases.is_empty() {
        return Some(Vec::new());
    }
    let mut bases: HashMap<(Uid, ResourceVersion), String> =
        bases.into_iter().map(|(uid, version, text)| ((uid, version), text)).collect();
    let mut base_of = |key: &Key| bases.remove(&(Arc::clone(&key.uid), key.base.clone()));
    let inputs: Vec<_> =
        pairs.iter().map(|pair| (pair.key.clone(), base_of(&pair.key), pair.body.clone())).collect();
    let patch = |(key, base, body): (Key, Option<String>, Body)| {
        let base = base?;
        let base = Edition { version: &key.base, text: &base };
        Patch::make(&key.uid, base, Edition { version: &key.version, text: body.as_str() })
    };
    let job = tokio::task::spawn_blocking(move || inputs.into_iter().map(patch).collect());
    job.await.ok()
}

#[cfg(test)]
mod tests;
