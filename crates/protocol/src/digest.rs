//! A keyed digest over the objects a node holds: both sides prove equality without listing
//! anything.
//!
//! `digest = Σ hash(epoch, uid, resourceVersion) mod 2^128`. Addition makes it independent of
//! order, and one change adjusts it in constant time. The key is the store epoch, random per
//! database file, so that an attacker cannot prepare objects whose hashes cancel out.

use std::fmt;
use std::hash::Hasher;
use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};
use siphasher::sip128::{Hasher128, SipHasher24};

use edgesync_object::ResourceVersion;

/// The number of buckets of an inventory.
pub const BUCKETS: usize = 256;

/// The identity of one database file and the key of its digest.
///
/// An epoch is random and created with the file. A loss or a salvage of the file creates a new one.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Epoch(pub u128);

/// A sum of keyed hashes over (UID, version), modulo 2^128.
///
/// A digest is maintained incrementally: call [`add`](Self::add) for each version stored and
/// [`remove`](Self::remove) for each version deleted or replaced. Two digests are comparable only
/// under the same [`Epoch`]. A digest proves equality with overwhelming probability but does not
/// locate a difference; [`Buckets`] do.
///
/// ```
/// use edgesync_protocol::digest::{Digest, Epoch};
///
/// let epoch = Epoch(7);
/// let (mut node, mut cloud) = (Digest::default(), Digest::default());
/// node.add(epoch, "uid-a", &1.into());
/// node.add(epoch, "uid-b", &2.into());
/// cloud.add(epoch, "uid-b", &2.into());
/// assert_ne!(node, cloud);
///
/// cloud.add(epoch, "uid-a", &1.into());
/// assert_eq!(node, cloud);
///
/// node.remove(epoch, "uid-a", &1.into());
/// node.remove(epoch, "uid-b", &2.into());
/// assert_eq!(node, Digest::default());
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Digest(pub u128);

/// A keyed hash over the text of one message. It identifies a message that is sent in parts over
/// several sessions. Two digests are comparable only under the same [`Epoch`].
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct MessageDigest(pub u128);

impl Epoch {
    fn hasher(self) -> SipHasher24 {
        SipHasher24::new_with_key(&self.0.to_le_bytes())
    }

    /// Returns the hash of one held version, the summand of [`Digest`].
    #[must_use]
    pub fn hash(self, uid: &str, version: &ResourceVersion) -> u128 {
        let mut hasher = self.hasher();
        hasher.write(uid.as_bytes());
        // The byte 0xff occurs in no UTF-8 text: it separates ("a", "bc") from ("ab", "c").
        hasher.write_u8(0xff);
        hasher.write(version.as_str().as_bytes());
        finish(hasher)
    }

    /// Returns the digest of a message, whose text is given in any number of pieces.
    #[must_use]
    pub fn message_digest<'a>(self, pieces: impl IntoIterator<Item = &'a str>) -> MessageDigest {
        let mut hasher = self.hasher();
        // No UID begins with the byte 0xff: this hash is none of a held version.
        hasher.write(&[0xff]);
        pieces.into_iter().for_each(|piece| hasher.write(piece.as_bytes()));
        MessageDigest(finish(hasher))
    }

    /// Returns the bucket of an object: a keyed hash of its UID, so that buckets fill evenly.
    #[must_use]
    pub fn bucket(self, uid: &str) -> u8 {
        let mut hasher = self.hasher();
        hasher.write(uid.as_bytes());
        let [first, ..] = finish(hasher).to_le_bytes();
        first
    }
}

/// Returns the hash as a little-endian number, unlike `Hash128::as_u128`, which differs by
/// processor.
fn finish(hasher: SipHasher24) -> u128 {
    u128::from_le_bytes(hasher.finish128().as_bytes())
}

impl Digest {
    /// Adds one held version to the sum.
    pub fn add(&mut self, epoch: Epoch, uid: &str, version: &ResourceVersion) {
        self.0 = self.0.wrapping_add(epoch.hash(uid, version));
    }

    /// Subtracts one held version from the sum.
    pub fn remove(&mut self, epoch: Epoch, uid: &str, version: &ResourceVersion) {
        self.0 = self.0.wrapping_sub(epoch.hash(uid, version));
    }
}

/// Count and digest of held objects. Equal tallies under one epoch mean equal objects.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Tally {
    /// The number of objects.
    pub count: u64,
    /// The digest of the versions.
    pub digest: Digest,
}

impl Tally {
    /// Adds one held version to count and digest.
    pub fn add(&mut self, epoch: Epoch, uid: &str, version: &ResourceVersion) {
        self.count += 1;
        self.digest.add(epoch, uid, version);
    }

    /// Removes one held version from count and digest.
    pub fn remove(&mut self, epoch: Epoch, uid: &str, version: &ResourceVersion) {
        self.count = self.count.saturating_sub(1);
        self.digest.remove(epoch, uid, version);
    }
}

/// The digests of all buckets, each truncated to 64 bits.
///
/// They only locate differences; the full digest is compared again after a repair.
#[derive(Clone, PartialEq, Eq)]
pub struct Buckets(Box<[u64; BUCKETS]>);

impl Default for Buckets {
    fn default() -> Self {
        Self(Box::new([0; BUCKETS]))
    }
}

impl Buckets {
    /// Adds one held version to its bucket.
    pub fn add(&mut self, epoch: Epoch, uid: &str, version: &ResourceVersion) {
        let sum = &mut self.0[usize::from(epoch.bucket(uid))];
        // The low half of the hash: the truncation is intended.
        #[allow(clippy::cast_possible_truncation)]
        let hash = epoch.hash(uid, version) as u64;
        *sum = sum.wrapping_add(hash);
    }

    /// Returns whether the buckets cover the same rows as the digest. Each bucket sums the low
    /// halves of the same hashes, so the buckets sum up to the low half of the digest.
    #[must_use]
    pub fn fits(&self, digest: Digest) -> bool {
        let sum = self.0.iter().fold(0u64, |sum, bucket| sum.wrapping_add(*bucket));
        u128::from(sum) == digest.0 & u128::from(u64::MAX)
    }

    /// Returns the buckets in which the two sides differ.
    #[must_use]
    pub fn differing(&self, other: &Self) -> BucketSet {
        let mut set = BucketSet::default();
        for (number, (a, b)) in (0..=u8::MAX).zip(self.0.iter().zip(other.0.iter())) {
            if a != b {
                set.insert(number);
            }
        }
        set
    }

    fn to_bytes(&self) -> Vec<u8> {
        self.0.iter().flat_map(|sum| sum.to_le_bytes()).collect()
    }

    fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let (chunks, rest) = bytes.as_chunks::<8>();
        if chunks.len() != BUCKETS || !rest.is_empty() {
            return None;
        }
        let mut buckets = Self::default();
        for (sum, chunk) in buckets.0.iter_mut().zip(chunks) {
            *sum = u64::from_le_bytes(*chunk);
        }
        Some(buckets)
    }
}

/// A set of bucket numbers in 256 bits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BucketSet([u128; 2]);

impl BucketSet {
    /// The set of all buckets.
    pub const ALL: Self = Self([u128::MAX; 2]);

    /// Adds a bucket to the set.
    pub fn insert(&mut self, bucket: u8) {
        self.0[usize::from(bucket >> 7)] |= 1 << (bucket & 0x7f);
    }

    /// Returns whether the bucket is in the set.
    #[must_use]
    pub fn contains(&self, bucket: u8) -> bool {
        self.0[usize::from(bucket >> 7)] & (1 << (bucket & 0x7f)) != 0
    }
}

/// The error for a text that is not 32 hexadecimal digits.
#[derive(Debug, thiserror::Error)]
#[error("must be 32 hexadecimal digits")]
pub struct NotHex;

fn parse_hex(text: &str) -> Result<u128, NotHex> {
    if text.len() != 32 || !text.bytes().all(|b| b.is_ascii_hexdigit()) {
        return Err(NotHex);
    }
    u128::from_str_radix(text, 16).map_err(|_| NotHex)
}

macro_rules! hex128 {
    ($name:ident) => {
        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{:032x}", self.0)
            }
        }
        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Display::fmt(self, f)
            }
        }
        impl FromStr for $name {
            type Err = NotHex;
            fn from_str(text: &str) -> Result<Self, NotHex> {
                parse_hex(text).map(Self)
            }
        }
        impl Serialize for $name {
            fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.collect_str(self)
            }
        }
        impl<'de> Deserialize<'de> for $name {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                let text = std::borrow::Cow::<'de, str>::deserialize(deserializer)?;
                text.parse().map_err(de::Error::custom)
            }
        }
    };
}
hex128!(Epoch);
hex128!(Digest);
hex128!(MessageDigest);

impl fmt::Debug for Buckets {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let used = self.0.iter().filter(|sum| **sum != 0).count();
        write!(f, "Buckets({used} used)")
    }
}

fn serialize_base64<S: Serializer>(bytes: &[u8], serializer: S) -> Result<S::Ok, S::Error> {
    use base64::Engine as _;
    serializer.serialize_str(&base64::engine::general_purpose::STANDARD_NO_PAD.encode(bytes))
}

fn deserialize_base64<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<u8>, D::Error> {
    use base64::Engine as _;
    let text = std::borrow::Cow::<'de, str>::deserialize(deserializer)?;
    base64::engine::general_purpose::STANDARD_NO_PAD.decode(text.as_bytes()).map_err(de::Error::custom)
}

impl Serialize for Buckets {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serialize_base64(&self.to_bytes(), serializer)
    }
}

impl<'de> Deserialize<'de> for Buckets {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let bytes = deserialize_base64(deserializer)?;
        Self::from_bytes(&bytes)
            .ok_or_else(|| de::Error::custom(format!("must be {} bytes in base64", 8 * BUCKETS)))
    }
}

impl Serialize for BucketSet {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let [low, high] = self.0.map(u128::to_le_bytes);
        serialize_base64(&[low, high].concat(), serializer)
    }
}

impl<'de> Deserialize<'de> for BucketSet {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let bytes = deserialize_base64(deserializer)?;
        match bytes.as_chunks::<16>() {
            ([low, high], []) => Ok(Self([u128::from_le_bytes(*low), u128::from_le_bytes(*high)])),
            _ => Err(de::Error::custom("must be 32 bytes in base64")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn rv(n: u64) -> ResourceVersion {
        n.into()
    }

    #[test]
    fn the_order_of_changes_does_not_matter_and_removal_undoes() {
        let epoch = Epoch(7);
        let (mut a, mut b) = (Digest::default(), Digest::default());
        a.add(epoch, "x", &rv(1));
        a.add(epoch, "y", &rv(2));
        b.add(epoch, "y", &rv(2));
        b.add(epoch, "z", &rv(3));
        b.add(epoch, "x", &rv(1));
        b.remove(epoch, "z", &rv(3));
        assert_eq!(a, b);
    }

    #[test]
    fn uid_and_version_do_not_run_into_each_other() {
        let epoch = Epoch(1);
        assert_ne!(epoch.hash("a", &"bc".into()), epoch.hash("ab", &"c".into()));
        assert_ne!(epoch.hash("a", &"1".into()), Epoch(2).hash("a", &"1".into()));
    }

    #[test]
    fn a_message_has_one_digest_however_it_is_cut() {
        let text = "{\"header\":{},\"content\":\"0123456789abcdef\u{e4}\"}";
        let whole = Epoch(5).message_digest([text]);
        for (at, _) in text.char_indices() {
            let (first, rest) = text.split_at(at);
            assert_eq!(Epoch(5).message_digest([first, "", rest]), whole, "{at}");
        }
        assert_ne!(Epoch(6).message_digest([text]), whole);
        assert_ne!(Epoch(5).message_digest([&text[1..]]), whole);
        assert_ne!(Epoch(5).message_digest(["a"]).0, Epoch(5).hash("a", &"".into()));
        assert_eq!(Epoch(5).message_digest(["a"]).to_string(), "75dc4300a926d1359b7e72251be10cef");
    }

    #[test]
    fn buckets_fit_the_digest_of_the_same_rows_only() {
        let epoch = Epoch(11);
        let (mut buckets, mut digest) = (Buckets::default(), Digest::default());
        for n in 0..1000u64 {
            buckets.add(epoch, &format!("uid-{n}"), &rv(n));
            digest.add(epoch, &format!("uid-{n}"), &rv(n));
        }
        assert!(buckets.fits(digest));
        digest.remove(epoch, "uid-5", &rv(6));
        assert!(!buckets.fits(digest));
    }

    #[test]
    fn only_the_buckets_that_differ_are_named() {
        let epoch = Epoch(3);
        let (mut a, mut b) = (Buckets::default(), Buckets::default());
        for n in 0..1000u64 {
            let uid = format!("uid-{n}");
            a.add(epoch, &uid, &rv(n));
            b.add(epoch, &uid, &rv(n + u64::from(n == 17)));
        }
        let differing = a.differing(&b);
        let expected = epoch.bucket("uid-17");
        assert!((0..=u8::MAX).all(|n| differing.contains(n) == (n == expected)));
    }

    proptest! {
        #[test]
        fn every_form_survives_json(epoch: u128, low: u128, high: u128) {
            let text = serde_json::to_string(&(Epoch(epoch), BucketSet([low, high]))).unwrap();
            let back: (Epoch, BucketSet) = serde_json::from_str(&text).unwrap();
            prop_assert_eq!(back, (Epoch(epoch), BucketSet([low, high])));
        }
    }

    #[test]
    fn buckets_survive_json_and_a_wrong_length_is_refused() {
        let mut buckets = Buckets::default();
        buckets.add(Epoch(9), "u", &rv(4));
        let text = serde_json::to_string(&buckets).unwrap();
        assert_eq!(serde_json::from_str::<Buckets>(&text).unwrap(), buckets);
        assert!(serde_json::from_str::<Buckets>("\"AAAA\"").is_err());
    }
}
