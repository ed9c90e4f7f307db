//! Applies the changes of the cluster to the cache before it delivers them to the fleet.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

use super::incarnation::Incarnation;
use super::syncs::Syncs;
use crate::cache::{Cache, CacheChange};
use crate::cluster::{Feed, Item, Problem};
use edgesync_enrollment::membership::{self, Changed, MembershipStore};
use edgesync_fleet::source::{Change, Changes, SourceError};
use edgesync_placement::Selection;

/// Retry delay after an error of the cache.
const RETRY_DELAY: Duration = Duration::from_secs(1);

/// Problems of interests, as last reported.
pub(super) type Problems = Arc<Mutex<Vec<Problem>>>;

/// Other sources of changes.
pub(super) struct OtherSources {
    pub(super) incarnation: Incarnation,
    pub(super) syncs: Syncs,
    pub(super) members: MembershipStore,
    pub(super) changes: membership::Changes,
}

/// Stream of a cluster's changes for a fleet.
pub struct Intake {
    feed: Feed,
    cache: Cache,
    problems: Problems,
    others: OtherSources,
    /// The item not yet in the cache.
    item: Option<Item>,
    /// Earliest time of the next attempt after an error.
    not_before: Option<Instant>,
    /// Changes delivered before all others.
    ready: VecDeque<Change>,
    /// Start of the cache part to relist next.
    relist_from: Option<u64>,
    /// The objects of the current relist.
    relisted: Selection,
    /// Those of the next one, if another relist follows.
    requested: Option<Selection>,
    /// The catch-up that completes the relist of a restored cluster.
    restored: Option<u64>,
    /// The incarnation of the delivered changes.
    incarnation: Arc<str>,
}

impl OtherSources {
    /// Translates a membership change for the fleet. Revocations take effect elsewhere.
    fn member(&self, changed: Changed) -> Option<Change> {
        let Changed::Member { node, own: false, .. } = changed else { return None };
        let removed = self.members.membership(&node).and_then(|membership| membership.removed);
        Some(if removed.is_some() { Change::Removed(node) } else { Change::Admitted(node) })
    }
}

impl Intake {
    pub(super) fn new(feed: Feed, cache: Cache, problems: Problems, others: OtherSources) -> Self {
        Self {
            incarnation: others.incarnation.id(),
            feed,
            cache,
            problems,
            others,
            item: None,
            not_before: None,
            ready: [Change::ListStarted].into(),
            relist_from: None,
            relisted: Selection::default(),
            requested: None,
            restored: None,
        }
    }

    /// Reads the next part of a relist.
    async fn read_part(
        cache: &Cache,
        objects: &Selection,
        from: u64,
    ) -> Result<(Change, Option<u64>), SourceError> {
        let mut part = cache.part(from).await?;
        part.summaries.retain(|summary| summary.is_in(objects));
        Ok((Change::Listed(part.summaries), part.next))
    }

    /// Applies the pending item to the cache. Cancel-safe: the item is applied again, which is
    /// idempotent.
    async fn apply_pending(&mut self) -> Result<(), SourceError> {
        let changes = match &self.item {
            Some(Item::Listed(observed)) => observed
                .iter()
                .map(|observed| CacheChange::Put(observed.summary.clone(), observed.body.clone()))
                .collect(),
            Some(Item::Updated(observed)) => {
                vec![CacheChange::Put(observed.summary.clone(), observed.body.clone())]
            }
            Some(Item::Deleted(summary)) => vec![CacheChange::Remove(summary.uid.clone())],
            Some(Item::Unlisted(gone)) => {
                gone.iter().map(|summary| CacheChange::Remove(summary.uid.clone())).collect()
            }
            _ => Vec::new(),
        };
        if matches!(self.item, Some(Item::Unlisted(_)))
            && self.restored.is_none()
            && self.others.incarnation.is_replaced(&self.incarnation).await?
        {
            tracing::warn!("cluster was restored from a backup: relisting");
            self.feed.accept_older_versions();
            self.start_relist();
        }
        if !changes.is_empty() {
            self.cache.apply(changes).await?;
        }
        if let Some(Item::CaughtUp { question, reached }) = &self.item
            && self.restored.is_some_and(|restored| restored <= *question)
        {
            // The new incarnation takes effect after all of its objects are known, because nodes
            // are compared with them.
            self.incarnation =
                self.others.incarnation.begin_new_unless_changed(&self.incarnation, &reached.version).await?;
            self.restored = None;
        }
        if let Some(item) = self.item.take() {
            self.deliver(item);
        }
        Ok(())
    }

    fn deliver(&mut self, item: Item) {
        let change = match item {
            Item::Listed(observed) => {
                Some(Change::Listed(observed.iter().map(|observed| (*observed.summary).clone()).collect()))
            }
            Item::Updated(observed) => Some(Change::Set(observed.summary)),
            Item::Deleted(summary) => Some(Change::Deleted(summary)),
            Item::Unlisted(gone) => {
                self.ready.extend(gone.into_iter().map(Change::Deleted));
                None
            }
            Item::Complete => Some(Change::Complete),
            Item::CaughtUp { question, reached } => {
                self.others.incarnation.observe(&reached.version);
                Some(Change::CaughtUp { question, reached })
            }
            Item::Restored => {
                self.incarnation = self.others.incarnation.id();
                self.start_relist();
                None
            }
            Item::Unread(unread) => Some(Change::Unread(unread)),
            Item::Problems(problems) => {
                *self.problems.lock().unwrap_or_else(PoisonError::into_inner) = problems;
                None
            }
            Item::Failed(why) => Some(Change::Failed(SourceError::Unread(why))),
        };
        self.ready.extend(change);
    }

    /// Handles a restored cluster. After the catch-up a new incarnation begins, unless another
    /// replica has begun one.
    fn start_relist(&mut self) {
        let until = self.feed.catch_up();
        self.restored = Some(until);
        self.ready.push_back(Change::Restored(until));
    }

    /// Returns a failure, and delays the next attempt by [`RETRY_DELAY`].
    fn failed(&mut self, error: SourceError) -> Change {
        self.not_before = Some(Instant::now() + RETRY_DELAY);
        Change::Failed(error)
    }
}

impl Changes for Intake {
    async fn next(&mut self) -> Change {
        loop {
            if let Some(change) = self.ready.pop_front() {
                return change;
            }
            if let Some(at) = self.not_before {
                tokio::time::sleep_until(at).await;
                self.not_before = None;
            }
            if self.item.is_some() {
                if let Err(error) = self.apply_pending().await {
                    return self.failed(error);
                }
                continue;
            }
            if self.relist_from.is_none()
                && let Some(objects) = self.requested.take()
            {
                (self.relisted, self.relist_from) = (objects, Some(0));
            }
            // Changes of the cluster come first: a relist after them is as recent.
            tokio::select! {
                biased;
                item = self.feed.next() => self.item = Some(item),
                changed = self.others.changes.next() => self.ready.extend(self.others.member(changed)),
                node = self.others.syncs.due() => self.ready.push_back(Change::SyncsDue(node)),
                part = Self::read_part(&self.cache, &self.relisted, self.relist_from.unwrap_or_default()), if self.relist_from.is_some() => match part {
                    Ok((part, next)) => {
                        self.relist_from = next;
                        if next.is_none() {
                            self.ready.push_back(Change::Relisted);
                        }
                        return part;
                    }
                    Err(error) => return self.failed(error),
                },
            }
        }
    }

    fn relist(&mut self, objects: Selection) {
        self.requested.get_or_insert_default().extend(objects);
    }

    fn catch_up(&mut self) -> u64 {
        self.feed.catch_up()
    }
}
