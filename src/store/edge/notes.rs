//! Facts about the agent that are kept beside the rows: few, short, each under a key of its own in table `meta`,
//! with a checksum. A damaged one counts as missing.

use super::EdgeStore;
use crate::store::StoreError;

impl EdgeStore {
    /// A fact that was kept.
    ///
    /// # Errors
    /// The store's.
    pub async fn note(&self, _key: &'static str) -> Result<Option<String>, StoreError> {
        todo!()
    }

    /// Keeps a fact that changes often and may be lost: it is written along with a commit that happens anyway, at
    /// most every ten minutes, once an hour if there is none, and when the store closes.
    pub fn keep_note(&self, _key: &'static str, _text: String) {
        todo!()
    }
}
