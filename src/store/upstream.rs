//! What goes up, for those who hold the store: written, read in pages, confirmed.

use tokio::sync::watch;

use super::EdgeStore;
use super::outbox::{Clocked, OutboxLimits, OutboxState, Posting, row};
use super::state::State;
use edgesync_protocol::upload::{Lane, UploadItem};
use edgesync_store::StoreError;

impl EdgeStore {
    /// Writes all of this in one transaction, and answers after the commit.
    ///
    /// # Errors
    /// The store's; then nothing of it is in the database.
    pub async fn post(&self, postings: Vec<Posting>) -> Result<(), StoreError> {
        let bytes = postings.iter().map(Posting::weight).sum();
        self.inner.writer.run(bytes, move |conn, state| state.post(conn, &postings)).await
    }

    /// Told after each commit that changed the outbox.
    #[must_use]
    pub fn outbox(&self) -> watch::Receiver<OutboxState> {
        self.inner.shared.outbox.watch()
    }

    /// Items of a lane after a number, in order: up to `limit`, and about up to `bytes`, but one in any case.
    ///
    /// # Errors
    /// The store's. Items whose rows turn out damaged, or that cannot be opened, are left out, and are dropped.
    pub async fn outbox_page(
        &self,
        lane: Lane,
        after: u64,
        limit: usize,
        bytes: usize,
    ) -> Result<Vec<UploadItem>, StoreError> {
        let (shared, seals) = (self.inner.shared.clone(), self.inner.seals.clone());
        let read = move |conn: &_| {
            let after = after.max(shared.outbox.settled().get(lane));
            row::page(conn, &seals, lane, after, limit, bytes)
        };
        let (items, damaged) = self.inner.readers.run(read).await?;
        self.report_outbox_damage(damaged);
        Ok(items)
    }

    /// The item that waits under a key, as JSON text of its content.
    ///
    /// # Errors
    /// The store's. An item whose row turns out damaged, or that cannot be opened, is not found, and is dropped.
    pub async fn outbox_item(&self, lane: Lane, key: String) -> Result<Option<String>, StoreError> {
        let seals = self.inner.seals.clone();
        let found = self.inner.readers.run(move |conn| row::item(conn, &seals, lane, &key)).await?;
        match found {
            Some(Ok((number, content))) => {
                Ok(Some(content).filter(|_| number > self.inner.shared.outbox.settled().get(lane)))
            }
            Some(Err(id)) => {
                self.report_outbox_damage(vec![id]);
                Ok(None)
            }
            None => Ok(None),
        }
    }

    /// Notes that items up to a number are confirmed. They go with the next commit, or after a while: losing that
    /// costs an item that is sent again, nothing more.
    pub fn settle_outbox(&self, lane: Lane, upto: u64) {
        self.inner.shared.outbox.settle(lane, upto);
    }

    /// Gives the items after `sent` new numbers, above `above`.
    ///
    /// # Errors
    /// The store's.
    pub async fn renumber_outbox(&self, lane: Lane, sent: u64, above: u64) -> Result<(), StoreError> {
        self.inner.writer.run(0, move |conn, state| state.renumber_outbox(conn, lane, sent, above)).await
    }

    /// Changes what may wait. What is too much by that is dropped soon.
    pub fn set_outbox_limits(&self, limits: OutboxLimits) {
        if self.inner.shared.outbox.set_limits(limits) {
            drop(self.inner.writer.post(|conn, state| state.trim_outbox(conn)));
        }
    }

    /// The clock was wrong until `before` (milliseconds since this boot) and was then set forward by this many
    /// milliseconds: corrects the times in Events that wait and were made before that, and says so in an
    /// annotation. Returns how many were corrected.
    ///
    /// # Errors
    /// The store's; some may have been corrected then.
    pub async fn correct_times(&self, before: Clocked, forward_ms: i64) -> Result<u64, StoreError> {
        let last = self.inner.shared.outbox.last();
        let mut corrected = 0;
        for lane in Lane::ALL {
            let mut after = Some(0);
            while let Some(from) = after {
                let range = (lane, from, last.get(lane));
                let job =
                    move |conn: &_, state: &mut State| state.correct_times(conn, range, before, forward_ms);
                let count;
                (count, after) = self.inner.writer.run(0, job).await?;
                corrected += count;
            }
        }
        Ok(corrected)
    }

    fn report_outbox_damage(&self, damaged: Vec<i64>) {
        if !damaged.is_empty() {
            drop(self.inner.writer.post(move |conn, state| state.repair_outbox(conn, &damaged)));
        }
    }
}
