//! The cloud's database in the simulation.

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use crate::body::Body;
use crate::change::Uid;
use crate::cloud::testing::DesiredObject;
use crate::cloud::{Issued, LedgerFacts, LoadRequest, Loaded, Record, RecordBatch};
use crate::patch::{Edition, Patch};
use crate::timing::ClockJumpDetector;
use edgesync_object::ResourceVersion;
use edgesync_object::urgency::Urgency;

use super::super::timeline::Random;
use super::effects::Effects;
use super::{config_map, object_ref};

/// One object of the cloud's store.
#[derive(Clone)]
pub struct CloudObject {
    pub version: u64,
    /// The write number, unique over all timelines.
    pub content: u64,
    pub name: String,
    pub size: usize,
    /// The seeds of the two halves of its noise.
    halves: [u64; 2],
}

/// The changes that the history reaches back.
const HISTORY: usize = 60;

impl CloudObject {
    /// Returns the object as JSON text.
    pub fn body(&self, uid: &str) -> String {
        format!(
            r#"{{"apiVersion":"v1","kind":"ConfigMap","metadata":{{"name":"{}","namespace":"default","uid":"{uid}","resourceVersion":"{}"}},"data":{{"written":"{}","x":"{}"}}}}"#,
            self.name,
            self.version,
            self.content,
            self.noise()
        )
    }
}

impl CloudObject {
    fn noise(&self) -> String {
        let [first, second] = self.halves;
        let half = self.size / 2;
        noise(first, half) + &noise(second, self.size - half)
    }
}

/// The committed state of the cloud's database.
#[derive(Clone)]
pub struct CloudDb {
    pub objects: BTreeMap<Uid, CloudObject>,
    pub facts: LedgerFacts,
    pub records: HashMap<Uid, Record>,
    pub incarnation: String,
    pub effects: Effects,
    last_version: u64,
    issued: Issued,
    uids: Random,
    lead: ClockJumpDetector,
    /// Whether a write keeps parts of the content, and patches are made.
    pub patches: bool,
    /// Earlier versions of objects, the oldest first.
    past: VecDeque<(Uid, CloudObject)>,
}

/// Returns the urgency of an object: the first word of its name.
pub(crate) fn urgency_of(name: &str) -> Urgency {
    Urgency::of_annotation(name.split('-').next())
}

impl CloudDb {
    pub fn new(random: &mut Random) -> Self {
        Self {
            objects: BTreeMap::new(),
            facts: LedgerFacts::default(),
            records: HashMap::new(),
            incarnation: format!("{:016x}", random.next()),
            effects: Effects::default(),
            last_version: 100,
            issued: Issued::default(),
            uids: Random(random.next()),
            lead: ClockJumpDetector::default(),
            patches: false,
            past: VecDeque::new(),
        }
    }

    /// Opens the database: jumps to a version that no lost copy can have issued.
    pub fn open(&mut self, base: u64) {
        let base = base.max(self.last_version + 1);
        self.issued.gaps.push((self.last_version, base));
        self.last_version = base;
        self.uids = Random(self.uids.next() ^ base);
        self.lead = ClockJumpDetector::default();
    }

    pub fn issued(&self) -> Arc<Issued> {
        Arc::new(self.issued.clone())
    }

    /// Returns the last issued version.
    pub fn last_version(&self) -> u64 {
        self.last_version
    }

    /// Begins a new incarnation, with a jump.
    pub fn renew(&mut self, base: u64, id: u64) {
        self.open(base);
        self.issued = self.issued.renewed();
        self.incarnation = format!("{id:016x}");
    }

    /// Adopts the incarnation and the versions of another copy of the same store.
    pub fn follow(&mut self, other: &Self) {
        self.incarnation.clone_from(&other.incarnation);
        (self.last_version, self.issued, self.uids) =
            (other.last_version, other.issued.clone(), other.uids.clone());
    }

    /// Returns whether the suspension of the host is detectable.
    pub fn has_jumped(&mut self, clock: u64, running: Duration) -> bool {
        self.lead.has_jumped(clock, running)
    }

    /// Resumes the process in a snapshot of its host: the database is not reopened, and the random
    /// numbers differ.
    pub fn resume(&mut self, random: u64) {
        self.uids = Random(self.uids.next() ^ random);
    }

    /// Creates the object or gives it a new version.
    pub fn write(&mut self, name: &str, size: usize) -> (Uid, ResourceVersion) {
        self.last_version += 1;
        let (version, content) = (self.last_version, self.uids.next());
        let found = self.objects.iter_mut().find(|(_, object)| object.name == name);
        let halves = [content, content ^ 1];
        if let Some((uid, object)) = found {
            if self.patches {
                self.past.push_back((uid.clone(), object.clone()));
                self.past.drain(..self.past.len().saturating_sub(HISTORY));
            }
            let kept = if self.patches { content % 4 } else { 0 };
            for (half, (seed, bit)) in object.halves.iter_mut().zip(halves.into_iter().zip([1, 2])) {
                if kept & bit == 0 {
                    *half = seed;
                }
            }
            (object.version, object.content, object.size) = (version, content, size);
            return (uid.clone(), version.into());
        }
        let uid: Uid = format!("uid-{content:016x}").into();
        self.objects.insert(uid.clone(), CloudObject { version, content, name: name.into(), size, halves });
        (uid, version.into())
    }

    pub fn delete(&mut self, name: &str) -> Option<Uid> {
        let uid = self.objects.iter().find(|(_, object)| object.name == name)?.0.clone();
        self.last_version += 1;
        self.objects.remove(&uid);
        Some(uid)
    }

    /// Returns the desired object of a UID in the current store.
    pub(crate) fn wish(&self, uid: &Uid) -> Option<DesiredObject> {
        self.objects.get(uid).map(|object| DesiredObject {
            version: object.version.into(),
            object: Arc::new(object_ref(&object.name)),
            resource: config_map(),
            size: object.size,
            urgency: urgency_of(&object.name),
        })
    }

    pub fn load(&self, objects: &[LoadRequest]) -> Vec<Loaded> {
        let load = |LoadRequest { uid, base, .. }: &LoadRequest| {
            let object = self.objects.get(uid)?;
            let (body, version) = (object.body(uid), object.version.into());
            let patch = base.as_ref().and_then(|base| self.patch(uid, base, &version, &body)).map(Arc::new);
            Some(Loaded { uid: uid.clone(), version, body: Body::new(body).unwrap(), patch })
        };
        objects.iter().filter_map(load).collect()
    }

    /// Empties the history.
    pub fn forget_past(&mut self) {
        self.past.clear();
    }

    /// Makes a patch, if the history has the base.
    fn patch(
        &self,
        uid: &Uid,
        base: &ResourceVersion,
        version: &ResourceVersion,
        body: &str,
    ) -> Option<Patch> {
        let is_it = |(of, object): &&(Uid, CloudObject)| of == uid && *base == object.version.into();
        let (_, before) = self.past.iter().find(is_it).filter(|_| self.patches)?;
        let base = Edition { version: base, text: &before.body(uid) };
        Patch::make(uid, base, Edition { version, text: body })
    }

    pub fn record(&mut self, batch: &RecordBatch) {
        if batch.reset {
            self.records.clear();
        }
        self.records.extend(batch.put.iter().cloned());
        for uid in &batch.remove {
            self.records.remove(uid);
        }
        let RecordBatch { epoch, confirmed, accepted, tally, epochs, .. } = batch.clone();
        self.facts = LedgerFacts { epoch: Some(epoch), confirmed, accepted, tally, epochs };
    }

    /// Returns the objects that the node can hold: all that it does not have to reject.
    pub fn acceptable(&self, max_object: usize) -> BTreeMap<Uid, ResourceVersion> {
        self.objects
            .iter()
            .filter(|(_, object)| !object.name.contains("..") && object.size < max_object)
            .map(|(uid, object)| (uid.clone(), object.version.into()))
            .collect()
    }

    pub fn names(&self) -> BTreeSet<String> {
        self.objects.values().map(|object| object.name.clone()).collect()
    }

    pub fn has_name(&self, name: &str) -> bool {
        self.objects.values().any(|object| object.name == name)
    }
}

/// Returns poorly compressible text.
pub fn noise(seed: u64, size: usize) -> String {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut random = Random(seed);
    let mut text = String::with_capacity(size + 10);
    while text.len() < size {
        let word = random.next();
        text.extend((0..10).map(|n| char::from(DIGITS[usize::try_from(word >> (6 * n) & 63).unwrap()])));
    }
    text.truncate(size);
    text
}
