//! What the cluster tells, as the fleet takes it: each object is in the cache before anybody hears
//! of it.

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
use edgesync_object::NodeName;

/// How long is waited after the cache could not take something.
const PAUSE: Duration = Duration::from_secs(1);

/// Who does not get what, as it was told last.
pub(super) type Problems = Arc<Mutex<Vec<Problem>>>;

/// What else there is news of.
pub(super) struct Beside {
    pub(super) incarnation: Incarnation,
    pub(super) syncs: Syncs,
    pub(super) register: MembershipStore,
    pub(super) changes: membership::Changes,
}

/// See the module.
pub struct Intake {
    feed: Feed,
    cache: Cache,
    problems: Problems,
    beside: Beside,
    /// What was told and is not in the cache yet.
    item: Option<Item>,
    /// The cache could not do something, and is not to be asked before.
    not_before: Option<Instant>,
    /// What goes out before anything else.
    ready: VecDeque<Change>,
    /// The next part of the cache that is to be told once more.
    from: Option<u64>,
    /// All is to be told once more after that.
    again: bool,
    /// The question whose answer says that all of a cluster was told that was restored.
    restored: Option<u64>,
    /// The life of the cluster that belongs to what was told.
    life: Arc<str>,
}

impl Beside {
    /// What a change of a member means for the fleet. What others revoke is put in force elsewhere.
    fn member(&self, changed: Changed) -> Option<Change> {
        let Changed::Member { node, own: false, .. } = changed else { return None };
        let node = NodeName::try_from(node).ok()?;
        let removed = self.register.membership(&node).and_then(|membership| membership.removed);
        removed.is_none().then(|| Change::Admitted(node))
    }
}

impl Intake {
    pub(super) fn new(feed: Feed, cache: Cache, problems: Problems, beside: Beside) -> Self {
        Self {
            life: beside.incarnation.id(),
            feed,
            cache,
            problems,
            beside,
            item: None,
            not_before: None,
            ready: [Change::Begun].into(),
            from: None,
            again: false,
            restored: None,
        }
    }

    /// The next part of all that there is.
    async fn tell_again(cache: &Cache, from: u64) -> Result<(Change, Option<u64>), SourceError> {
        let part = cache.part(from).await?;
        Ok((Change::Listed(part.summaries), part.next))
    }

    /// Takes the item in that waits. Nothing is lost if this is cancelled: it is taken in again,
    /// which changes nothing.
    async fn take_in(&mut self) -> Result<(), SourceError> {
        let changes = match &self.item {
            Some(Item::Listed(seen)) => {
                seen.iter().map(|seen| CacheChange::Put(seen.summary.clone(), seen.body.clone())).collect()
            }
            Some(Item::Set(seen)) => vec![CacheChange::Put(seen.summary.clone(), seen.body.clone())],
            Some(Item::Gone(summary)) => vec![CacheChange::Remove(summary.uid.clone())],
            Some(Item::Unlisted(gone)) => {
                gone.iter().map(|summary| CacheChange::Remove(summary.uid.clone())).collect()
            }
            _ => Vec::new(),
        };
        if matches!(self.item, Some(Item::Unlisted(_)))
            && self.restored.is_none()
            && self.beside.incarnation.is_another(&self.life).await?
        {
            tracing::warn!("the cluster is an older copy of itself: all of it is read anew");
            self.feed.doubt();
            self.read_anew();
        }
        if !changes.is_empty() {
            self.cache.apply(changes).await?;
        }
        if let Some(Item::CaughtUp { question, reached }) = &self.item
            && self.restored.is_some_and(|restored| restored <= *question)
        {
            // Nodes are told of the new life once all is known that is in it, and judged by it.
            self.life = self.beside.incarnation.begin_another_than(&self.life, reached).await?;
            self.restored = None;
        }
        if let Some(item) = self.item.take() {
            self.tell(item);
        }
        Ok(())
    }

    fn tell(&mut self, item: Item) {
        let change = match item {
            Item::Listed(seen) => {
                Some(Change::Listed(seen.iter().map(|seen| (*seen.summary).clone()).collect()))
            }
            Item::Set(seen) => Some(Change::Set(seen.summary)),
            Item::Gone(summary) => Some(Change::Gone(summary)),
            Item::Unlisted(gone) => {
                self.ready.extend(gone.into_iter().map(Change::Gone));
                None
            }
            Item::Complete => Some(Change::Complete),
            Item::CaughtUp { question, reached } => {
                self.beside.incarnation.saw(&reached);
                Some(Change::CaughtUp { question, reached })
            }
            Item::Restored => {
                self.life = self.beside.incarnation.id();
                self.read_anew();
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

    /// The cluster is an older copy of itself. Once all of it is known, another life begins, if
    /// none has since.
    fn read_anew(&mut self) {
        let until = self.feed.catch_up();
        self.restored = Some(until);
        self.ready.push_back(Change::Restored(until));
    }

    /// What cannot be done now is tried again, after a while.
    fn failed(&mut self, error: SourceError) -> Change {
        self.not_before = Some(Instant::now() + PAUSE);
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
                if let Err(error) = self.take_in().await {
                    return self.failed(error);
                }
                continue;
            }
            if self.from.is_none() && std::mem::take(&mut self.again) {
                self.from = Some(0);
            }
            // News of the cluster goes first: what is told again after it is as new.
            tokio::select! {
                biased;
                item = self.feed.next() => self.item = Some(item),
                changed = self.beside.changes.next() => self.ready.extend(self.beside.member(changed)),
                node = self.beside.syncs.due() => self.ready.push_back(Change::SyncsDue(node)),
                part = Self::tell_again(&self.cache, self.from.unwrap_or_default()), if self.from.is_some() => match part {
                    Ok((part, next)) => {
                        self.from = next;
                        if next.is_none() {
                            self.ready.push_back(Change::Again);
                        }
                        return part;
                    }
                    Err(error) => return self.failed(error),
                },
            }
        }
    }

    fn again(&mut self) {
        self.again = true;
    }

    fn catch_up(&mut self) -> u64 {
        self.feed.catch_up()
    }
}
