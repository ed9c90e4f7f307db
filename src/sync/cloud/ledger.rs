//! What the cloud has recorded of one node: its ObjectSync records with their count and digest.

use std::collections::HashMap;
use std::sync::Arc;

use crate::object::ResourceVersion;
use crate::sync::change::{ObjectRef, Uid};
use crate::sync::digest::{BucketSet, Buckets, Digest, Epoch};

/// One ObjectSync: the version of an object that the node was last known to hold.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    /// The version held.
    pub version: ResourceVersion,
    /// Which object it is.
    pub object: Arc<ObjectRef>,
}

/// The ledger of a node, as it is stored.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LedgerState {
    /// The database file of the node that the records speak of; none before the first Hello.
    pub epoch: Option<Epoch>,
    /// The newest change of the node that is recorded.
    pub confirmed: u64,
    /// The incarnation of the cloud under which the node's removals were last found plausible.
    pub accepted: Option<String>,
    /// The records by UID.
    pub records: HashMap<Uid, Record>,
}

/// The ledger with its digest kept up to date.
#[derive(Debug)]
pub(super) struct Ledger {
    state: LedgerState,
    epoch: Epoch,
    digest: Digest,
}

impl Ledger {
    pub(super) fn new(state: LedgerState) -> Self {
        let epoch = state.epoch.unwrap_or_default();
        let mut ledger = Self { state, epoch, digest: Digest::default() };
        ledger.rekey(epoch);
        ledger
    }

    /// Changes the epoch, and with it the key of the digest.
    pub(super) fn rekey(&mut self, epoch: Epoch) {
        self.epoch = epoch;
        self.digest = Digest::default();
        for (uid, record) in &self.state.records {
            self.digest.add(epoch, uid, &record.version);
        }
    }

    pub(super) fn set(&mut self, uid: &Uid, record: Record) {
        self.digest.add(self.epoch, uid, &record.version);
        if let Some(old) = self.state.records.insert(uid.clone(), record) {
            self.digest.remove(self.epoch, uid, &old.version);
        }
    }

    pub(super) fn remove(&mut self, uid: &Uid) -> Option<Record> {
        let old = self.state.records.remove(uid)?;
        self.digest.remove(self.epoch, uid, &old.version);
        Some(old)
    }

    pub(super) fn clear(&mut self) {
        self.state.records.clear();
        self.digest = Digest::default();
    }

    pub(super) fn get(&self, uid: &Uid) -> Option<&Record> {
        self.state.records.get(uid)
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (&Uid, &Record)> {
        self.state.records.iter()
    }

    pub(super) fn len(&self) -> u64 {
        self.state.records.len() as u64
    }

    pub(super) fn equals(&self, count: u64, digest: Digest) -> bool {
        self.len() == count && self.digest == digest
    }

    pub(super) fn buckets(&self) -> Buckets {
        let mut buckets = Buckets::default();
        for (uid, record) in &self.state.records {
            buckets.add(self.epoch, uid, &record.version);
        }
        buckets
    }

    /// The UIDs in some buckets.
    pub(super) fn in_buckets(&self, set: BucketSet) -> impl Iterator<Item = &Uid> {
        self.state.records.keys().filter(move |uid| set.contains(self.epoch.bucket(uid)))
    }

    pub(super) fn epoch(&self) -> Epoch {
        self.epoch
    }

    /// The epoch that is stored: none before the first record.
    pub(super) fn stored_epoch(&self) -> Option<Epoch> {
        self.state.epoch
    }

    pub(super) fn store_facts(&mut self, epoch: Epoch, confirmed: u64, accepted: Option<String>) {
        self.state.epoch = Some(epoch);
        self.state.confirmed = confirmed;
        self.state.accepted = accepted;
    }

    pub(super) fn confirmed(&self) -> u64 {
        self.state.confirmed
    }

    pub(super) fn accepted(&self) -> Option<&str> {
        self.state.accepted.as_deref()
    }
}
