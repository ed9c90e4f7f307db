//! Events live for a while only.

use std::time::Duration;

use super::{CloudError, CloudStore};

impl CloudStore {
    /// Deletes Events that nobody has changed for longer than this, the oldest first, at most `limit` of them in
    /// one transaction. Returns how many.
    ///
    /// # Errors
    /// The store's.
    pub async fn expire_events(&self, _ttl: Duration, _limit: usize) -> Result<u64, CloudError> {
        todo!()
    }
}
