//! Store operations on the outbox: write, page, confirm.

use tokio::sync::watch;

use super::EdgeStore;
use super::outbox::{MonotonicTime, OutboxLimits, OutboxState, OutboxWrite, row};
use super::state::State;
use edgesync_protocol::upload::{Lane, UploadItem};
use edgesync_store::StoreError;

impl EdgeStore {
    /// Writes all entries in one transaction, and returns after its commit.
    ///
    /// # Errors
    /// Fails if the store cannot be written; then it holds none of them.
    pub async fn post(&self, postings: Vec<OutboxWrite>) -> Result<(), StoreError> {
        let bytes = postings.iter().map(OutboxWrite::weight).sum();
        self.inner.writer.run(bytes, move |conn, state| state.post(conn, &postings)).await
    }

    /// Watches the outbox: notified after each commit that changed it.
    #[must_use]
    pub fn outbox(&self) -> watch::Receiver<OutboxState> {
        self.inner.shared.outbox.watch()
    }

    /// Returns items of a lane after a number, in order: up to `limit`, and about `bytes`, but at
    /// least one.
    ///
    /// # Errors
    /// Fails if the store cannot be read. Omits damaged items and those that cannot be opened,
    /// which are dropped.
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

    /// Returns the pending item of a key, as JSON text of its content.
    ///
    /// # Errors
    /// Fails if the store cannot be read. A damaged item, or one that cannot be opened, counts as
    /// missing, and is dropped.
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

    /// Records that items up to a number are confirmed. They are removed with the next commit, or
    /// after a while: a loss only resends an item.
    pub fn settle_outbox(&self, lane: Lane, upto: u64) {
        self.inner.shared.outbox.settle(lane, upto);
    }

    /// Gives the items after `sent` new numbers, above `above`.
    ///
    /// # Errors
    /// Fails if the store cannot be written.
    pub async fn renumber_outbox(&self, lane: Lane, sent: u64, above: u64) -> Result<(), StoreError> {
        self.inner.writer.run(0, move |conn, state| state.renumber_outbox(conn, lane, sent, above)).await
    }

    /// Changes the limits. Items beyond them are dropped soon.
    pub fn set_outbox_limits(&self, limits: OutboxLimits) {
        if self.inner.shared.outbox.set_limits(limits) {
            drop(self.inner.writer.post(|conn, state| state.trim_outbox(conn)));
        }
    }

    /// Corrects the times in pending Events from before `before` (milliseconds since this boot),
    /// when the wrong clock was set forward by this many milliseconds, and annotates them. Returns
    /// how many were corrected.
    ///
    /// # Errors
    /// Fails if the store cannot be written; some may have been corrected by then.
    pub async fn correct_times(&self, before: MonotonicTime, forward_ms: i64) -> Result<u64, StoreError> {
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
