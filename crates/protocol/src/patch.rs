//! Patches: the update of an object as the difference from the version that the node holds.
//!
//! Both sides patch the same bytes: the text of `content` in the message that brought a version to
//! the node. A patch names its base by version and digest, and the length and the digest of its
//! result. The node checks all four, so a patch can fail, but not store another text. A patch that
//! does not fit changes nothing, and the cloud sends the whole object.
//!
//! One patch serves all nodes that hold its base: nothing in it depends on a node.

mod wire;

use std::fmt;
use std::hash::Hasher as _;
use std::sync::OnceLock;

use serde::{Deserialize, Serialize};
use siphasher::sip128::{Hasher128, SipHasher24};

use edgesync_object::{ResourceVersion, Uid};

use super::body::Body;
use super::compression::{self, NotDecompressed};
#[cfg(any(test, feature = "simulation"))]
use super::fault::{Fault, planted};
pub(crate) use wire::{Reader, put_number, put_session};

/// The longest base and result of a patch, in bytes.
const MAX_PATCHED: usize = 8 << 20;
/// The length of a result in bytes above which the memory of the node limits the patch: it holds
/// base, result and patch.
const LARGE: usize = 256 << 10;
/// The divisor of that length that a patch may have at most.
const LARGE_SHARE: usize = 8;
/// A patch is at most this share of the compressed object, in percent: a smaller gain is not worth
/// the risk that the base does not fit.
const MAX_SHARE: usize = 75;

/// An update of one object, as the difference from a base version.
pub struct Patch {
    uid: Uid,
    base: ResourceVersion,
    version: ResourceVersion,
    /// A part of the digest of the base: it shows a wrong base before the patch is decoded.
    base_digest: u32,
    /// The digest of the result, the proof of the whole.
    digest: u128,
    /// The length of the result in bytes.
    length: usize,
    /// The difference, compressed.
    data: Box<[u8]>,
    /// The bytes that a message with the whole object would need, for counters. Not sent.
    whole: usize,
    /// The text that is cut into parts, if the patch does not fit a frame.
    text: OnceLock<Body>,
}

impl fmt::Debug for Patch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { uid, base, version, length, data, .. } = self;
        write!(f, "patch of {uid} from {base} to {version}: {} for {length} bytes", data.len())
    }
}

/// The reason why a node could not apply a patch. The cloud sends the whole object for each.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub enum PatchProblem {
    /// The node does not hold the object, or cannot read it.
    NotHeld,
    /// The node holds another version than the base.
    OtherVersion,
    /// The node holds the version of the base with another text.
    OtherBase,
    /// The patch cannot be decoded against its base.
    Damaged,
    /// The result has another length than the patch states.
    OtherLength,
    /// The result has another digest than the patch states, or is not the object that it names.
    OtherResult,
    /// A reason unknown to this version.
    #[serde(other)]
    Other,
}

/// A patch that a node could not apply, one entry of a report.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Unpatched {
    /// The UID of the object.
    pub uid: Uid,
    /// The base version of the patch.
    pub base: ResourceVersion,
    /// The reason, for programs.
    pub reason: PatchProblem,
}

/// One side of a patch: a version of an object and its text.
#[derive(Clone, Copy, Debug)]
pub struct Edition<'a> {
    /// The version of the object.
    pub version: &'a ResourceVersion,
    /// The text of the object, as the node stores it.
    pub text: &'a str,
}

impl Patch {
    /// Makes a patch. Returns `None` if it would save too little, or the texts are too long.
    ///
    /// Takes some milliseconds for each megabyte, and memory for tables of up to 8 MiB.
    #[must_use]
    pub fn make(uid: &Uid, base: Edition<'_>, new: Edition<'_>) -> Option<Self> {
        let length = new.text.len();
        if base.text.len() > MAX_PATCHED || length > MAX_PATCHED || base.version == new.version {
            return None;
        }
        let data = compression::compress_against(base.text.as_bytes(), new.text.as_bytes()).ok()?;
        if length > LARGE && data.len() > length / LARGE_SHARE {
            return None;
        }
        let compressed = compression::compress(new.text.as_bytes()).ok()?;
        let patch = Self {
            uid: uid.clone(),
            base: base.version.clone(),
            version: new.version.clone(),
            base_digest: short(digest(base.text)),
            digest: digest(new.text),
            length,
            data: data.into(),
            whole: compressed.len().min(length),
            text: OnceLock::new(),
        };
        (patch.encoded_len() * 100 <= patch.whole * MAX_SHARE).then_some(patch)
    }

    /// Returns the UID of the object.
    #[must_use]
    pub fn uid(&self) -> &Uid {
        &self.uid
    }

    /// Returns the version that the patch starts from.
    #[must_use]
    pub fn base(&self) -> &ResourceVersion {
        &self.base
    }

    /// Returns the version that the patch leads to.
    #[must_use]
    pub fn version(&self) -> &ResourceVersion {
        &self.version
    }

    /// Returns the length of the result in bytes.
    #[must_use]
    pub fn length(&self) -> usize {
        self.length
    }

    /// Returns whether this text is the result of the patch.
    #[must_use]
    pub fn results_in(&self, text: &str) -> bool {
        text.len() == self.length && digest(text) == self.digest
    }

    /// Returns the bytes of memory that the patch takes, with the text for parts.
    #[must_use]
    pub fn weight(&self) -> usize {
        size_of::<Self>() + self.data.len() * 3
    }

    /// Returns the bytes that the patch saves on the line.
    pub(crate) fn saved(&self) -> u64 {
        self.whole.saturating_sub(self.encoded_len()) as u64
    }

    /// Returns the older version that the node may give up newer ones for: the patch names the
    /// version held, as `supersedes` does.
    pub(crate) fn supersedes(&self) -> Option<&ResourceVersion> {
        self.version.is_older_than(&self.base).then_some(&self.base)
    }

    /// Returns the text of the result, if `base` is the text of the base.
    pub(crate) fn apply(&self, base: &str) -> Result<String, PatchProblem> {
        let is_base = short(digest(base)) == self.base_digest;
        #[cfg(any(test, feature = "simulation"))]
        let is_base = is_base || planted(Fault::PatchAnyBase);
        if !is_base {
            return Err(PatchProblem::OtherBase);
        }
        let length = self.length;
        #[cfg(any(test, feature = "simulation"))]
        let length = if planted(Fault::PatchUnbounded) { MAX_PATCHED } else { length };
        let bytes = compression::decompress_against(base.as_bytes(), &self.data, length);
        let bytes = bytes.map_err(|error| match error {
            NotDecompressed::OtherLength => PatchProblem::OtherLength,
            NotDecompressed::Damaged => PatchProblem::Damaged,
        })?;
        let text = String::from_utf8(bytes).map_err(|_| PatchProblem::OtherResult)?;
        let is_proven = digest(&text) == self.digest;
        #[cfg(any(test, feature = "simulation"))]
        let is_proven = is_proven || planted(Fault::PatchUnproven);
        if is_proven { Ok(text) } else { Err(PatchProblem::OtherResult) }
    }
}

/// A kind of damage that a patch may suffer on its way.
#[cfg(test)]
#[derive(Clone, Copy, Debug)]
pub(crate) enum Damage {
    Data,
    Length,
    BaseDigest,
    Digest,
}

#[cfg(test)]
impl Patch {
    /// Returns a damaged copy.
    pub(crate) fn damaged(&self, damage: Damage, random: u64) -> Self {
        let mut bytes = Vec::new();
        self.put(&mut bytes);
        let Ok(mut copy) = Self::read(&mut Reader(&bytes)) else { panic!("must be a patch") };
        match damage {
            Damage::Data => {
                let at = usize::try_from(random).unwrap() % copy.data.len();
                copy.data[at] ^= 1 << (random % 7);
            }
            Damage::Length => copy.length -= 1,
            Damage::BaseDigest => copy.base_digest ^= 1,
            Damage::Digest => copy.digest ^= 1,
        }
        copy
    }

    /// Returns the encoded entry.
    pub(crate) fn bytes(&self) -> Vec<u8> {
        let mut bytes = Vec::new();
        self.put(&mut bytes);
        bytes
    }
}

/// Returns the digest of a text. Its key is fixed, so that one patch serves all nodes: it detects
/// wrong texts, and proves nothing about who made them.
fn digest(text: &str) -> u128 {
    let mut hasher = SipHasher24::new();
    hasher.write(text.as_bytes());
    u128::from_le_bytes(hasher.finish128().as_bytes())
}

/// Returns the part of a digest that shows a wrong base.
fn short(digest: u128) -> u32 {
    let [a, b, c, d, ..] = digest.to_le_bytes();
    u32::from_le_bytes([a, b, c, d])
}

#[cfg(test)]
mod tests;
