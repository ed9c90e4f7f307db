//! Feed of the store's changes, in order, for the fleet in the same process.

use std::collections::{HashSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use rusqlite::Connection;
use tokio::sync::broadcast::{self, error::RecvError};
use tokio::task::{JoinError, JoinHandle};
use tokio::time::Instant;

use super::change::FeedChange;
use super::summaries::{self, Part};
use super::{CloudError, CloudStore};
use edgesync_placement::{Selection, Summary};
use edgesync_store::StoreError;

/// Limit of the objects in one part of a listing.
const PART_ROWS: usize = 512;
/// Maximum number of parts of a listing read concurrently.
const READS: usize = 2;
/// Backoff after a failed listing.
const PAUSE: Duration = Duration::from_secs(5);

/// Item of a [`Feed`].
#[derive(Clone, Debug)]
pub enum FeedItem {
    /// A listing starts from the beginning: at first, and after the receiver lagged and lost
    /// changes.
    ListStarted,
    /// Part of a listing.
    Listed(Vec<Summary>),
    /// The listing is complete.
    Complete,
    /// The relist that [`Feed::relist`] requested is complete.
    Relisted,
    /// A change, in the order of commits; also between the parts of a listing.
    Change(FeedChange),
    /// All commits before the last call of [`Feed::catch_up`] were delivered.
    CaughtUp {
        /// The number that the call has returned.
        question: u64,
        /// The newest version of the store.
        version: u64,
    },
    /// The listing failed. The next call backs off and restarts it.
    Failed(CloudError),
    /// The store is closed.
    Closed,
}

/// Lists every object that can be placed and every Node, in parts, and follows all changes,
/// including those during the listing. A receiver that applies all items in order never moves an
/// object back to an older commit, and never restores a deleted one.
///
/// The parts come from different commits, so that no snapshot stays open for the whole listing.
/// Invariant: a part leaves out every object that has changed since the start of the listing,
/// because its change was already delivered.
#[derive(Debug)]
pub struct Feed {
    store: CloudStore,
    state: State,
    /// The objects of a requested relist.
    requested: Option<Selection>,
    /// Number of calls of [`Feed::catch_up`], and of those that are answered.
    asked: u64,
    answered: u64,
}

#[derive(Debug)]
enum State {
    /// Nothing has been read; no read starts before this time.
    Start(Option<Instant>),
    Listing(Receiver, Listing),
    Following(Receiver),
    Closed,
}

type Receiver = broadcast::Receiver<FeedChange>;
type Reading<T> = JoinHandle<Result<T, CloudError>>;

/// Progress of a listing.
#[derive(Debug)]
struct Listing {
    /// The query for the row ids, while it runs.
    counting: Option<Reading<Vec<i64>>>,
    /// Rows still to read, the next one last.
    rows: Vec<i64>,
    /// Reads in flight, in order.
    reading: VecDeque<Reading<Part>>,
    /// UIDs of objects that have changed since the start.
    changed: HashSet<Arc<str>>,
    /// The objects to list, if this is a relist.
    relisted: Option<Arc<Selection>>,
}

impl Feed {
    pub(super) fn new(store: CloudStore) -> Self {
        Self { store, state: State::Start(None), requested: None, asked: 0, answered: 0 }
    }

    /// Requests a list of these objects, interleaved with all changes; [`FeedItem::Relisted`] marks
    /// its end. A listing in progress finishes first.
    pub fn relist(&mut self, objects: Selection) {
        self.requested.get_or_insert_default().extend(objects);
    }

    /// Requests a [`FeedItem::CaughtUp`] with the returned number, or a higher one, behind all
    /// commits whose writers have their answers.
    pub fn catch_up(&mut self) -> u64 {
        self.asked += 1;
        self.asked
    }

    /// Waits for the next item. Can be cancelled without loss.
    pub async fn next(&mut self) -> FeedItem {
        loop {
            self.begin_relist();
            let change = match &mut self.state {
                State::Start(after) => {
                    if let Some(after) = *after {
                        tokio::time::sleep_until(after).await;
                    }
                    return self.begin();
                }
                // Every commit that a part shows was sent before, except the newest: changes go
                // first.
                State::Listing(receiver, listing) => tokio::select! {
                    biased;
                    change = receiver.recv() => change,
                    part = listing.next(&self.store) => return self.read(part),
                },
                // Changes are sent before the writer of their commit is answered.
                State::Following(receiver) if self.answered < self.asked && receiver.is_empty() => {
                    self.answered = self.asked;
                    return FeedItem::CaughtUp { question: self.asked, version: self.store.version() };
                }
                State::Following(receiver) => receiver.recv().await,
                State::Closed => return FeedItem::Closed,
            };
            match (change, &mut self.state) {
                (Ok(change), State::Listing(_, listing)) => {
                    listing.changed.insert(Arc::clone(&change.object.uid));
                    return FeedItem::Change(change);
                }
                (Ok(change), _) => return FeedItem::Change(change),
                (Err(RecvError::Lagged(changes)), _) => {
                    tracing::warn!(changes, "feed lagged behind the store: relisting");
                    self.start(None);
                }
                (Err(RecvError::Closed), state) => *state = State::Closed,
            }
        }
    }

    /// Subscribes to changes before it starts the listing, so that none is missed.
    fn begin(&mut self) -> FeedItem {
        let Some(feed) = self.store.shared.feed.upgrade() else {
            self.state = State::Closed;
            return FeedItem::Closed;
        };
        self.state = State::Listing(feed.subscribe(), Listing::new(&self.store, None));
        FeedItem::ListStarted
    }

    /// Starts a requested relist, if no listing is in progress. The subscription stays, so no
    /// change is missed.
    fn begin_relist(&mut self) {
        if !matches!(self.state, State::Following(_)) {
            return;
        }
        let Some(objects) = self.requested.take() else { return };
        if let State::Following(receiver) = std::mem::replace(&mut self.state, State::Closed) {
            self.state = State::Listing(receiver, Listing::new(&self.store, Some(objects)));
        }
    }

    /// Restarts the listing, after a backoff if a time is given. A requested relist stays
    /// requested.
    fn start(&mut self, after: Option<Instant>) {
        if let State::Listing(_, Listing { relisted: Some(objects), .. }) =
            std::mem::replace(&mut self.state, State::Start(after))
        {
            self.relist(Selection::clone(&objects));
        }
    }

    fn read(&mut self, part: Result<Option<Vec<Summary>>, CloudError>) -> FeedItem {
        match part {
            Ok(Some(summaries)) => return FeedItem::Listed(summaries),
            Err(CloudError::Store(StoreError::Closed)) => {}
            Err(error) => {
                self.start(Some(Instant::now() + PAUSE));
                return FeedItem::Failed(error);
            }
            Ok(None) => {
                if let State::Listing(receiver, listing) = std::mem::replace(&mut self.state, State::Closed) {
                    self.state = State::Following(receiver);
                    let is_relist = listing.relisted.is_some();
                    return if is_relist { FeedItem::Relisted } else { FeedItem::Complete };
                }
            }
        }
        self.state = State::Closed;
        FeedItem::Closed
    }
}

impl Listing {
    fn new(store: &CloudStore, relisted: Option<Selection>) -> Self {
        let (readers, relisted) = (store.readers.clone(), relisted.map(Arc::new));
        let objects = relisted.clone();
        let rows = move |conn: &Connection| match &objects {
            Some(objects) => summaries::selected_rows(conn, objects),
            None => summaries::rows(conn),
        };
        let counting = tokio::spawn(async move { readers.run(rows).await });
        let (rows, reading, changed) = <_>::default();
        Self { counting: Some(counting), rows, reading, changed, relisted }
    }

    /// Returns the next part; `None` at the end. Cancel-safe.
    async fn next(&mut self, store: &CloudStore) -> Result<Option<Vec<Summary>>, CloudError> {
        if let Some(counting) = &mut self.counting {
            self.rows = finished(counting.await)?;
            self.counting = None;
        }
        while self.reading.len() < READS && !self.rows.is_empty() {
            let rows = self.rows.split_off(self.rows.len().saturating_sub(PART_ROWS));
            let (readers, shared) = (store.readers.clone(), Arc::clone(&store.shared));
            let read = async move { readers.run(move |conn| summaries::part(conn, &shared, rows)).await };
            self.reading.push_back(tokio::spawn(read));
        }
        let Some(reading) = self.reading.front_mut() else { return Ok(None) };
        let part = finished(reading.await);
        self.reading.pop_front();
        let Part { mut summaries, left } = part?;
        self.rows.extend(left);
        summaries.retain(|summary| !self.changed.contains(&summary.uid));
        Ok(Some(summaries))
    }
}

fn finished<T>(read: Result<Result<T, CloudError>, JoinError>) -> Result<T, CloudError> {
    read.unwrap_or_else(|error| Err(StoreError::internal(error.to_string()).into()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::change::ChangeKind;
    use crate::tests::{Fixture, change, create, delete, fixture};
    use serde_json::json;
    use std::collections::BTreeSet;

    /// Lists the first part of a store with two more objects than fit into it, and waits until the
    /// second part is read. Returns the names of those two.
    async fn with_a_part_read(store: &CloudStore) -> (Feed, [String; 2]) {
        let mut names: BTreeSet<String> = (0..PART_ROWS + 2).map(|number| format!("a{number}")).collect();
        for name in &names {
            create(store, name).await;
        }
        let mut feed = store.follow();
        assert!(matches!(feed.next().await, FeedItem::ListStarted));
        let FeedItem::Listed(first) = feed.next().await else { panic!("must be the first part") };
        assert_eq!(first.len(), PART_ROWS);
        first.iter().for_each(|summary| assert!(names.remove(&*summary.name)));
        let State::Listing(_, listing) = &mut feed.state else { panic!("must have a second part") };
        let read = finished(listing.reading.pop_front().unwrap().await);
        listing.reading.push_back(tokio::spawn(std::future::ready(read)));
        (feed, names.into_iter().collect::<Vec<_>>().try_into().unwrap())
    }

    #[tokio::test]
    async fn a_part_read_before_a_change_leaves_its_object_out() {
        let Fixture { store, .. } = &fixture();
        let (mut feed, [changed, deleted]) = with_a_part_read(store).await;
        let version = change(store, &changed, json!({"k": "v"})).await.version;
        delete(store, &deleted).await.unwrap();
        let FeedItem::Change(item) = feed.next().await else { panic!("changes go first") };
        assert_eq!((&*item.object.name, item.version), (&*changed, version));
        let FeedItem::Change(item) = feed.next().await else { panic!("changes go first") };
        assert_eq!((&*item.object.name, item.kind), (&*deleted, ChangeKind::Deleted));
        let FeedItem::Listed(second) = feed.next().await else { panic!("must be the second part") };
        assert!(second.is_empty(), "older than the changes: {second:?}");
        assert!(matches!(feed.next().await, FeedItem::Complete));
    }

    #[tokio::test]
    async fn a_part_without_changes_has_its_objects() {
        let Fixture { store, .. } = &fixture();
        let (mut feed, left) = with_a_part_read(store).await;
        let FeedItem::Listed(second) = feed.next().await else { panic!("must be the second part") };
        let names: BTreeSet<String> = second.iter().map(|summary| summary.name.to_string()).collect();
        assert_eq!(names, left.into());
    }
}
