//! The form of a revision in Secrets: packs of compressed bodies, and an index with the set. Pure.
//!
//! The name of a pack has its digest, so that two replicas that store the same revision with other
//! texts, because their configurations differ, do not mix them.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use edgesync_fleet::source::{RevisionKey, RuleKey, SourceError};
use edgesync_protocol::body::Body;
use edgesync_protocol::change::Uid;
use edgesync_protocol::cloud::Loaded;
use edgesync_protocol::compression::{compress, decompress};
use edgesync_rollout::revision::Entry;
use edgesync_rollout::{Digest, Set};

/// Size of bodies above which a pack ends. A larger body has a pack of its own.
const PACK_BYTES: usize = 1 << 20;
/// Limit of the bytes in a Secret, so that its text in base64 is below 1 MiB too.
pub(super) const PART_BYTES: usize = 700 << 10;
/// Limit of the bytes in the Secrets of a revision. Each change of a rule's objects writes all of
/// them, and etcd has 2 GiB by default.
const MAX_REVISION_BYTES: usize = 4 << 20;
/// Limit of a decompressed index.
const MAX_INDEX_BYTES: usize = 32 << 20;
/// Limit of a decompressed pack.
const MAX_PACK_BYTES: u64 = 256 << 20;

/// The set of a revision, and the packs with its bodies.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Index {
    /// The set.
    pub(super) set: Arc<Set>,
    /// The packs, in the order of the set.
    packs: Vec<Pack>,
}

/// Compressed bodies that follow each other in the set.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Pack {
    /// Number of bodies.
    objects: usize,
    /// Number of Secrets.
    parts: usize,
    /// Digest of the compressed bytes.
    digest: Digest,
}

/// A revision as it is stored.
pub(super) struct Packed {
    /// The bytes of each Secret with a part of a pack, by name.
    pub(super) parts: Vec<(String, Vec<u8>)>,
    /// The bytes of the index.
    pub(super) index: Vec<u8>,
}

/// Returns the value of the label of a rule's Secrets.
pub(super) fn rule_value(rule: &RuleKey) -> String {
    Digest::of(rule.to_string().as_bytes()).to_string()
}

/// Returns the name of the Secret with the index of a revision.
pub(super) fn index_name(key: &RevisionKey) -> String {
    format!("edgesync-revision-{}-{}-{}", rule_value(&key.rule), key.number, key.digest)
}

/// Returns whether a Secret of a revision has its index.
pub(super) fn is_index(name: &str) -> bool {
    !name.contains('.')
}

/// Packs the bodies of a set, which are in its order.
///
/// # Errors
/// [`SourceError::RevisionTooLarge`], or memory is exhausted.
pub(super) fn pack(key: &RevisionKey, set: Arc<Set>, bodies: &[Loaded]) -> Result<Packed, SourceError> {
    let failed = |error: &dyn std::fmt::Display| key.error(format!("compress the bodies: {error}"));
    let mut index = Index { set, packs: Vec::new() };
    let mut parts = Vec::new();
    let mut rest = bodies;
    while !rest.is_empty() {
        let mut text = String::new();
        let mut objects = 0;
        for loaded in rest {
            let body = loaded.body.as_str();
            if objects > 0 && text.len() + body.len() > PACK_BYTES {
                break;
            }
            text.push_str(body);
            objects += 1;
        }
        rest = rest.get(objects..).unwrap_or_default();
        let bytes = compress(text.as_bytes()).map_err(|error| failed(&error))?;
        let chunks = bytes.chunks(PART_BYTES);
        let pack = Pack { objects, parts: chunks.len(), digest: Digest::of(&bytes) };
        parts.extend(pack.names(key).into_iter().zip(chunks.map(<[u8]>::to_vec)));
        index.packs.push(pack);
    }
    let text = serde_json::to_vec(&index).map_err(|error| failed(&error))?;
    let index = compress(&text).map_err(|error| failed(&error))?;
    let too_large = |size: usize, limit: usize| SourceError::RevisionTooLarge {
        revision: Box::new(key.clone()),
        objects: bodies.len(),
        size,
        limit,
    };
    let size = parts.iter().fold(index.len(), |sum, (_, part)| sum.saturating_add(part.len()));
    if size > MAX_REVISION_BYTES {
        return Err(too_large(size, MAX_REVISION_BYTES));
    }
    // The index is in one Secret.
    if index.len() > PART_BYTES {
        return Err(too_large(index.len(), PART_BYTES));
    }
    if text.len() > MAX_INDEX_BYTES {
        return Err(too_large(text.len(), MAX_INDEX_BYTES));
    }
    Ok(Packed { parts, index })
}

/// Returns the number of bytes of bodies.
pub(super) fn length_of(entries: &[(&Uid, &Entry)]) -> u64 {
    entries.iter().fold(0, |sum: u64, (_, entry)| sum.saturating_add(entry.size))
}

impl Pack {
    /// Returns the names of the Secrets, in the order of their bytes.
    pub(super) fn names(&self, key: &RevisionKey) -> Vec<String> {
        let index = index_name(key);
        (0..self.parts).map(|part| format!("{index}.{}.{part}", self.digest)).collect()
    }

    /// Returns the digest of the compressed bytes.
    pub(super) fn digest(&self) -> Digest {
        self.digest
    }

    /// Returns the bodies of the entries of this pack.
    ///
    /// # Errors
    /// The bytes are not those of the pack.
    pub(super) fn unpack(&self, bytes: &[u8], entries: &[(&Uid, &Entry)]) -> Result<Vec<Loaded>, String> {
        let length = length_of(entries);
        if Digest::of(bytes) != self.digest || length > MAX_PACK_BYTES {
            return Err("the bytes have another digest".to_owned());
        }
        let length = usize::try_from(length).map_err(|error| error.to_string())?;
        let bytes = decompress(bytes, length).map_err(|error| error.to_string())?;
        let text = String::from_utf8(bytes).map_err(|error| error.to_string())?;
        let mut rest = text.as_str();
        let mut bodies = Vec::with_capacity(entries.len());
        for (uid, entry) in entries {
            let split = usize::try_from(entry.size).ok().and_then(|size| rest.split_at_checked(size));
            let (body, left) = split.unwrap_or_default();
            if !entry.is_body(body) {
                return Err(format!("the body of object '{uid}' has another digest"));
            }
            rest = left;
            let body = Body::new(body.to_owned()).map_err(|error| format!("object '{uid}': {error}"))?;
            bodies.push(Loaded { uid: Uid::clone(uid), version: entry.version.clone(), body, patch: None });
        }
        Ok(bodies)
    }
}

impl Index {
    /// Reads the index of a revision.
    ///
    /// # Errors
    /// It is damaged, or another one.
    pub(super) fn read(bytes: &[u8], key: &RevisionKey) -> Result<Self, String> {
        let text = decompress(bytes, MAX_INDEX_BYTES).map_err(|error| error.to_string())?;
        let index: Self = serde_json::from_slice(&text).map_err(|error| error.to_string())?;
        let objects = index.packs.iter().fold(0, |sum: usize, pack| sum.saturating_add(pack.objects));
        if index.set.digest() != key.digest || objects != index.set.entries().len() {
            return Err("the set has another digest".to_owned());
        }
        Ok(index)
    }

    /// Returns the packs with the entries of each.
    pub(super) fn packs(&self) -> Vec<(&Pack, Vec<(&Uid, &Entry)>)> {
        let mut entries = self.set.entries().iter();
        self.packs.iter().map(|pack| (pack, entries.by_ref().take(pack.objects).collect())).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::{key, loaded, set};
    use super::*;
    use edgesync_object::name::{check_label_value, check_subdomain};

    fn texts(bodies: &[Loaded]) -> Vec<&str> {
        bodies.iter().map(|loaded| loaded.body.as_str()).collect()
    }

    /// Joins the parts of a pack.
    fn bytes_of(packed: &Packed, names: &[String]) -> Vec<u8> {
        let part = |name: &String| packed.parts.iter().find(|(other, _)| other == name).unwrap().1.clone();
        names.iter().flat_map(part).collect()
    }

    #[test]
    fn bodies_return_from_their_packs() {
        let small = |number: usize| (number, 2_000);
        let sizes: Vec<_> = (0..1500).map(small).chain([(1500, 3 << 20)]).collect();
        let bodies = loaded(&sizes);
        let set = Arc::new(set(&bodies));
        let key = key(3, &set);
        let bodies = key.check(&set, bodies).unwrap();
        let packed = pack(&key, set.clone(), &bodies).unwrap();
        let index = Index::read(&packed.index, &key).unwrap();
        assert_eq!(index.set, set);
        let packs = index.packs();
        // Three of 1 MiB at most, and the large body, which random text keeps large.
        assert_eq!(packs.len(), 4);
        let mut found = Vec::new();
        for (pack, entries) in &packs {
            let names = pack.names(&key);
            found.extend(pack.unpack(&bytes_of(&packed, &names), entries).unwrap());
        }
        assert_eq!(texts(&found), texts(&bodies));
        assert!(packed.parts.len() > packs.len(), "a pack has several parts");
        for (name, bytes) in &packed.parts {
            assert!(bytes.len() <= PART_BYTES);
            assert_eq!(check_subdomain(name), Ok(()));
            assert!(!is_index(name));
        }
        assert!(is_index(&index_name(&key)));
        assert_eq!(check_label_value(&rule_value(&key.rule)), Ok(()));
    }

    /// The limit is that of the compressed bytes: etcd stores those.
    #[test]
    fn revision_with_too_many_bytes_is_refused_with_numbers() {
        let random: Vec<_> = (0..6).map(|number| (number, 2 << 20)).collect();
        let bodies = loaded(&random);
        let set = Arc::new(set(&bodies));
        let refused = pack(&key(1, &set), set, &bodies).map(|packed| packed.parts.len());
        let Err(error) = refused else { panic!("must be refused: {refused:?}") };
        assert!(matches!(error, SourceError::RevisionTooLarge { objects: 6, limit: MAX_REVISION_BYTES, .. }));
        assert!(
            error.to_string().contains("6 objects have") && error.to_string().contains("4194304"),
            "{error}"
        );
        let same = "x".repeat(2 << 20);
        let mut bodies = bodies;
        for loaded in &mut bodies {
            loaded.body = Body::new(format!("\"{same}\"")).unwrap();
        }
        let set = Arc::new(super::super::tests::set(&bodies));
        assert_eq!(pack(&key(1, &set), set, &bodies).unwrap().parts.len(), 6);
    }

    #[test]
    fn damaged_packs_and_indexes_are_refused() {
        let bodies = loaded(&[(0, 100), (1, 100)]);
        let set = Arc::new(set(&bodies));
        let key = key(1, &set);
        let packed = pack(&key, set, &bodies).unwrap();
        let index = Index::read(&packed.index, &key).unwrap();
        let packs = index.packs();
        let (pack, entries) = &packs[0];
        let bytes = bytes_of(&packed, &pack.names(&key));
        for at in 0..bytes.len() {
            let mut damaged = bytes.clone();
            damaged[at] ^= 1;
            assert!(pack.unpack(&damaged, entries).is_err(), "{at}");
        }
        let swapped: Vec<_> = entries.iter().rev().copied().collect();
        assert!(pack.unpack(&bytes, &swapped).is_err());
        assert!(pack.unpack(&bytes, &entries[..1]).is_err());
        let other = RevisionKey { digest: Digest::of(b""), ..key.clone() };
        assert!(Index::read(&packed.index, &other).is_err());
        assert!(Index::read(&packed.index[1..], &key).is_err());
        assert!(Index::read(b"", &key).is_err());
    }
}
