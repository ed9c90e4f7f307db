//! The frame with patches: binary, because base64 costs a third more and JSON more than most
//! patches have.
//!
//! Its first byte distinguishes it from JSON and from zstd. Only a node whose Hello has `patches`
//! gets it.

use std::sync::Arc;

use edgesync_object::Budget;

use super::{FrameError, MAX_WORD};
use crate::patch::{Patch, Reader, put_number, put_session};

/// The first byte of the frame.
pub(super) const MARK: u8 = 1;

/// Updates of objects as the difference from the versions that the node holds.
///
/// The node applies them in one transaction and answers with one [`Report`](super::Report) that
/// repeats `receipt`. A patch that it cannot apply is named there, and the others are applied.
#[derive(Debug)]
pub struct Patches {
    /// The session of the Hello.
    pub session: String,
    /// The number that the answering report repeats.
    pub receipt: u64,
    /// The patches, each of another object.
    pub patches: Vec<Arc<Patch>>,
}

impl Patches {
    pub(super) fn encode(&self) -> Vec<u8> {
        let length: usize = self.patches.iter().map(|patch| patch.encoded_len()).sum();
        let mut bytes = Vec::with_capacity(length + 32);
        bytes.push(MARK);
        put_session(&mut bytes, &self.session);
        put_number(&mut bytes, self.receipt);
        self.patches.iter().for_each(|patch| patch.put(&mut bytes));
        bytes
    }

    pub(super) fn decode(bytes: &[u8], budget: &mut Budget) -> Result<Self, FrameError> {
        budget.take_bytes(bytes.len())?;
        let malformed = |problem: &'static str| FrameError::Patches(problem);
        let mut reader = Reader(bytes.get(1..).unwrap_or_default());
        let session = reader.session().map_err(malformed)?;
        if session.len() > MAX_WORD {
            return Err(malformed("session too long"));
        }
        let receipt = reader.number().map_err(malformed)?;
        let mut patches = Vec::new();
        while !reader.is_empty() {
            budget.take_items(1)?;
            patches.push(Arc::new(Patch::read(&mut reader).map_err(malformed)?));
        }
        Ok(Self { session, receipt, patches })
    }
}
