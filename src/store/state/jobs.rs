//! The writer's jobs for local objects, outbox, metadata, and the message in parts.

use rusqlite::Connection;

use super::State;
use crate::store::LocalKind;
use crate::store::local::{self, LocalOutcome, LocalWrite};
use crate::store::metadata::{MetadataWriter, Occasion};
use crate::store::outbox::{self, EVENT_PREFIX, MonotonicTime, OutboxPut, OutboxWrite};
use crate::store::parts::{self, AppliedMessage};
use edgesync_protocol::frame::PartialMessage;
use edgesync_protocol::parts::assemble;
use edgesync_protocol::upload::Lane;
use edgesync_store::StoreError;

impl State {
    /// Runs the job of [`crate::store::EdgeStore::apply_parts`].
    pub(in crate::store) fn apply_parts(
        &mut self,
        conn: &Connection,
        message: &PartialMessage,
        rest: &str,
        max_object: usize,
    ) -> Result<Option<AppliedMessage>, StoreError> {
        let text = parts::whole(conn, &self.seals, message, rest)?;
        // The object takes their pages.
        parts::clear(conn)?;
        let epoch = self.stored.totals.epoch;
        match text.and_then(|text| assemble(&text, message.digest, epoch, max_object)) {
            None => Ok(None),
            Some(Ok(change)) => {
                let commit = self.apply(conn, std::slice::from_ref(&change))?;
                Ok(Some(AppliedMessage { commit, change: Some(change) }))
            }
            Some(Err(rejected)) => {
                let mut commit = self.apply(conn, &[])?;
                commit.applied.rejected.push(rejected);
                Ok(Some(AppliedMessage { commit, change: None }))
            }
        }
    }

    /// Runs the job of [`crate::store::EdgeStore::write_local`].
    pub(in crate::store) fn write_local(
        &mut self,
        conn: &Connection,
        write: &LocalWrite,
        at: MonotonicTime,
    ) -> Result<LocalOutcome, StoreError> {
        let object = write.object();
        let key = outbox::event_key(&object.namespace, &object.name);
        self.with_rollback(|state| state.write_and_upload(conn, write, Some((Lane::Bulk, key.clone(), at))))
    }

    /// Runs the job of [`crate::store::EdgeStore::post`].
    pub(in crate::store) fn post(
        &mut self,
        conn: &Connection,
        postings: &[OutboxWrite],
    ) -> Result<(), StoreError> {
        self.with_rollback(|state| postings.iter().try_for_each(|posting| state.post_one(conn, posting)))
    }

    fn post_one(&mut self, conn: &Connection, posting: &OutboxWrite) -> Result<(), StoreError> {
        match posting {
            OutboxWrite::Upload(put) => {
                let sealed = outbox::seal(&self.seals, &self.stored.resources, put)?;
                self.stored.outbox.put(conn, self.shared.outbox.rules(), put, sealed.as_deref())
            }
            OutboxWrite::Metadata(key, text) => MetadataWriter::post(conn, &self.shared.metadata, key, text),
            OutboxWrite::Event { lane, key, at, object } => {
                let write = LocalWrite::Put(object.clone());
                if let Err(refusal) = self.write_and_upload(conn, &write, Some((*lane, key.clone(), *at)))? {
                    tracing::debug!(?refusal, "Event of the agent refused");
                }
                Ok(())
            }
        }
    }

    /// Writes a Lease or an Event; `upload` also puts an Event into a lane of the outbox.
    fn write_and_upload(
        &mut self,
        conn: &Connection,
        write: &LocalWrite,
        upload: Option<(Lane, String, MonotonicTime)>,
    ) -> Result<LocalOutcome, StoreError> {
        let mut dropped = 0;
        let outcome = self.stored.local.write(conn, &mut self.recorder, write, &mut dropped)?;
        self.shared.events_dropped.fetch_add(dropped, std::sync::atomic::Ordering::Relaxed);
        let stays = matches!(write, LocalWrite::Remove(..)) || outcome.is_err();
        let object = write.object();
        if let (Some((lane, key, at)), LocalKind::Event, false) = (upload, object.kind, stays) {
            let rules = self.shared.outbox.rules();
            self.stored.outbox.put(conn, rules, &OutboxPut::event(lane, key, at, object), None)?;
        }
        Ok(outcome)
    }

    /// Drops the given local rows that are really damaged.
    pub(in crate::store) fn repair_local(
        &mut self,
        conn: &Connection,
        suspects: &[i64],
    ) -> Result<(), StoreError> {
        self.stored.local.drop_damaged(conn, &mut self.recorder, suspects)
    }

    /// Drops the given outbox rows that are really damaged or cannot be opened. Returns how many
    /// they were.
    pub(in crate::store) fn repair_outbox(
        &mut self,
        conn: &Connection,
        suspects: &[i64],
    ) -> Result<u64, StoreError> {
        self.with_rollback(|state| state.stored.outbox.drop_damaged(conn, &state.seals, suspects))
    }

    /// Runs the job of [`crate::store::EdgeStore::renumber_outbox`].
    pub(in crate::store) fn renumber_outbox(
        &mut self,
        conn: &Connection,
        lane: Lane,
        sent: u64,
        above: u64,
    ) -> Result<(), StoreError> {
        self.with_rollback(|state| spilling(conn, || state.stored.outbox.renumber(conn, lane, sent, above)))
    }

    /// Drops what exceeds the new limits.
    pub(in crate::store) fn trim_outbox(&mut self, conn: &Connection) -> Result<(), StoreError> {
        let rules = self.shared.outbox.rules();
        self.with_rollback(|state| spilling(conn, || state.stored.outbox.trim(conn, rules, u32::MAX)))
    }

    /// Runs a part of [`crate::store::EdgeStore::correct_times`]. Returns how many were corrected,
    /// and where to continue.
    pub(in crate::store) fn correct_times(
        &mut self,
        conn: &Connection,
        range: (Lane, u64, u64),
        before: MonotonicTime,
        forward_ms: i64,
    ) -> Result<(u64, Option<u64>), StoreError> {
        let rules = self.shared.outbox.rules();
        self.with_rollback(|state| {
            let mut keys = Vec::new();
            let note = |key: &str| {
                keys.push(key.to_owned());
                Ok(())
            };
            let next = state.stored.outbox.correct_times(conn, rules, range, (before, forward_ms), note)?;
            for key in &keys {
                state.correct_local(conn, key, forward_ms)?;
            }
            Ok((keys.len() as u64, next))
        })
    }

    /// Corrects the times in the node's copy of an Event, if it still exists.
    fn correct_local(&mut self, conn: &Connection, key: &str, forward_ms: i64) -> Result<(), StoreError> {
        let name = key.strip_prefix(EVENT_PREFIX).and_then(|rest| rest.split_once('/'));
        let Some((namespace, name)) = name else { return Ok(()) };
        let (Some(mut event), _) = local::by_name(conn, LocalKind::Event, namespace, name)? else {
            return Ok(());
        };
        let now = jiff::Timestamp::now();
        let Some(body) = outbox::shift_event(&event.body, forward_ms, now) else { return Ok(()) };
        event.body = body;
        self.write_and_upload(conn, &LocalWrite::Put(event), None).map(|_| ())
    }

    /// Runs a part of a transaction that may be rolled back alone: the outbox's totals are restored
    /// with it.
    pub(super) fn with_rollback<T>(
        &mut self,
        run: impl FnOnce(&mut Self) -> Result<T, StoreError>,
    ) -> Result<T, StoreError> {
        let counts = self.stored.outbox.counts();
        run(self).inspect_err(|_| self.stored.outbox.restore(counts))
    }

    /// Adds confirmations and metadata to a transaction, at its end.
    pub(super) fn add_deferred(&mut self, conn: &Connection) -> Result<(), StoreError> {
        if self.additions.are_allowed() {
            let settled = self.shared.outbox.settled();
            let has_additions = self.stored.outbox.has_confirmed(settled)
                || self.metadata_writer.is_due(&self.shared.metadata, Occasion::Commit);
            self.additions.set_included(has_additions);
            self.stored.outbox.clear(conn, settled)?;
            self.metadata_writer.write(conn, &self.shared.metadata, Occasion::Commit)?;
        }
        self.stored.outbox.write_last_if_bare(conn)
    }

    /// Marks the additions as durable.
    pub(super) fn commit_deferred(&mut self) {
        self.additions.set_included(false);
        self.stored.outbox.commit();
        self.metadata_writer.committed(&self.shared.metadata);
        self.shared.outbox.publish(&self.stored.outbox);
    }

    /// Returns whether confirmed rows of the outbox wait for removal.
    pub(super) fn has_confirmed_uploads(&self) -> bool {
        self.stored.outbox.has_confirmed(self.shared.outbox.settled())
    }

    /// Writes pending confirmations and metadata, in separate transactions.
    pub(super) fn flush_deferred(&mut self, conn: &Connection, occasion: Occasion) -> Result<(), StoreError> {
        while self.has_confirmed_uploads() || self.metadata_writer.is_due(&self.shared.metadata, occasion) {
            let done = self.flush_some(conn, occasion);
            if done.is_err() {
                self.stored.outbox.revert();
                self.metadata_writer.rolled_back();
                return done;
            }
            self.commit_deferred();
        }
        Ok(())
    }

    fn flush_some(&mut self, conn: &Connection, occasion: Occasion) -> Result<(), StoreError> {
        let settled = self.shared.outbox.settled();
        let tx = conn.unchecked_transaction()?;
        self.stored.outbox.clear(&tx, settled)?;
        self.metadata_writer.write(&tx, &self.shared.metadata, occasion)?;
        self.stored.outbox.write_last_if_bare(&tx)?;
        Ok(tx.commit()?)
    }
}

/// Runs a change of many rows, whose pages may spill to disk before the commit.
fn spilling<T>(conn: &Connection, run: impl FnOnce() -> Result<T, StoreError>) -> Result<T, StoreError> {
    conn.pragma_update(None, "cache_spill", true)?;
    let result = run();
    conn.pragma_update(None, "cache_spill", false)?;
    result
}
