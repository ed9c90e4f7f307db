//! Cache of revisions: indexes, unpacked packs, and revisions with lost bodies. Pure.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use tokio::sync::OnceCell;

use super::pack::Index;
use edgesync_fleet::source::RevisionKey;
use edgesync_protocol::cloud::Loaded;
use edgesync_rollout::Digest;

/// Limit of the indexes in memory. An index has some 200 bytes per object.
const MAX_INDEXES: usize = 64;
/// Limit of the bytes of unpacked bodies in memory. A single pack may exceed it.
const MAX_UNPACKED_BYTES: u64 = 16 << 20;
/// Bytes that a pack counts at least.
const MIN_UNPACKED_BYTES: u64 = 4 << 10;

/// The bodies of a pack, filled by the first caller that needs them: others wait for its read.
pub(super) type Unpacked = Arc<OnceCell<Arc<[Loaded]>>>;

/// Parts of revisions that were read. They never change in the cluster, but may be deleted there.
#[derive(Debug, Default)]
pub(super) struct Cache {
    indexes: HashMap<RevisionKey, Arc<Index>>,
    packs: HashMap<(RevisionKey, Digest), CachedPack>,
    /// Sum of the bytes of `packs`.
    bytes: u64,
    /// Number of uses of packs.
    uses: u64,
    /// Revisions with bodies that could not be read, although their Secrets may exist.
    damaged: HashSet<RevisionKey>,
}

#[derive(Debug)]
struct CachedPack {
    unpacked: Unpacked,
    bytes: u64,
    /// Number of its last use.
    used: u64,
}

impl Cache {
    pub(super) fn index(&self, key: &RevisionKey) -> Option<Arc<Index>> {
        self.indexes.get(key).cloned()
    }

    pub(super) fn insert_index(&mut self, key: &RevisionKey, index: Arc<Index>) {
        if self.indexes.len() >= MAX_INDEXES {
            self.indexes.clear();
        }
        self.indexes.insert(key.clone(), index);
    }

    /// Returns the bodies of a pack of so many bytes, which may not be read yet. Drops the packs
    /// that were not used for the longest time.
    pub(super) fn unpacked(&mut self, key: &RevisionKey, pack: Digest, bytes: u64) -> Unpacked {
        self.uses += 1;
        let name = (key.clone(), pack);
        if let Some(cached) = self.packs.get_mut(&name) {
            cached.used = self.uses;
            return Arc::clone(&cached.unpacked);
        }
        let bytes = bytes.max(MIN_UNPACKED_BYTES);
        while self.bytes.saturating_add(bytes) > MAX_UNPACKED_BYTES {
            let oldest = self.packs.iter().min_by_key(|(_, cached)| cached.used);
            let Some(oldest) = oldest.map(|(name, _)| name.clone()) else { break };
            if let Some(cached) = self.packs.remove(&oldest) {
                self.bytes = self.bytes.saturating_sub(cached.bytes);
            }
        }
        let unpacked = Unpacked::default();
        let cached = CachedPack { unpacked: Arc::clone(&unpacked), bytes, used: self.uses };
        self.packs.insert(name, cached);
        self.bytes = self.bytes.saturating_add(bytes);
        unpacked
    }

    /// Remembers that bodies of a revision could not be read, and forgets its index.
    pub(super) fn set_damaged(&mut self, key: &RevisionKey) {
        self.indexes.remove(key);
        if self.damaged.len() >= MAX_INDEXES {
            self.damaged.clear();
        }
        self.damaged.insert(key.clone());
    }

    pub(super) fn is_damaged(&self, key: &RevisionKey) -> bool {
        self.damaged.contains(key)
    }

    /// Remembers that all bodies of a revision were read.
    pub(super) fn set_complete(&mut self, key: &RevisionKey) {
        self.damaged.remove(key);
    }

    /// Forgets all other revisions.
    pub(super) fn retain(&mut self, is_kept: impl Fn(&RevisionKey) -> bool) {
        self.indexes.retain(|key, _| is_kept(key));
        self.damaged.retain(|key| is_kept(key));
        self.packs.retain(|(key, _), _| is_kept(key));
        self.bytes = self.packs.values().fold(0, |sum: u64, cached| sum.saturating_add(cached.bytes));
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::{key, loaded, set};
    use super::*;

    const MIB: u64 = 1 << 20;

    #[test]
    fn packs_unused_for_the_longest_time_are_dropped() {
        let bodies = loaded(&[(0, 100)]);
        let (first, second) = (key(1, &set(&bodies)), key(2, &set(&bodies)));
        let mut cache = Cache::default();
        let digest = |number: u64| Digest::of(&number.to_le_bytes());
        let fill = |cell: &Unpacked| cell.set(bodies.clone().into()).unwrap();
        for number in 0..16 {
            fill(&cache.unpacked(&first, digest(number), MIB));
        }
        // A pack of another revision may have the same bytes, and other versions.
        assert!(!cache.unpacked(&second, digest(1), MIB).initialized());
        assert!(cache.unpacked(&first, digest(1), MIB).initialized(), "0 was the oldest");
        fill(&cache.unpacked(&second, digest(1), MIB));
        assert!(!cache.unpacked(&first, digest(0), MIB).initialized());
        assert!(!cache.unpacked(&first, digest(2), MIB).initialized(), "it made room for 0");
        assert!(cache.unpacked(&first, digest(1), MIB).initialized());
        assert_eq!((cache.packs.len(), cache.bytes), (16, MAX_UNPACKED_BYTES));

        let large = cache.unpacked(&first, digest(99), MAX_UNPACKED_BYTES + 1);
        fill(&large);
        assert!(cache.unpacked(&first, digest(99), MAX_UNPACKED_BYTES + 1).initialized());
        assert_eq!(cache.packs.len(), 1);
        cache.retain(|key| *key == second);
        assert_eq!((cache.packs.len(), cache.bytes), (0, 0));
    }

    #[test]
    fn small_packs_are_bounded_in_number() {
        let key = key(1, &set(&loaded(&[(0, 100)])));
        let mut cache = Cache::default();
        for number in 0..5_000_u64 {
            cache.unpacked(&key, Digest::of(&number.to_le_bytes()), 1);
        }
        assert_eq!(cache.packs.len() as u64, MAX_UNPACKED_BYTES / MIN_UNPACKED_BYTES);
    }
}
