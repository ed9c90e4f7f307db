//! The changes of the store, in order, for the fleet within the same process.

use std::collections::{HashSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::broadcast::{self, error::RecvError};
use tokio::task::{JoinError, JoinHandle};
use tokio::time::Instant;

use super::change::FeedChange;
use super::summaries::{self, Part};
use super::{CloudError, CloudStore};
use edgesync_placement::Summary;
use edgesync_store::StoreError;

/// The most objects in one part of what there is.
const PART_ROWS: usize = 512;
/// Parts that are read at a time.
const READS: usize = 2;
/// How long a feed waits after what there is could not be read.
const PAUSE: Duration = Duration::from_secs(5);

/// What comes out of a [`Feed`].
#[derive(Clone, Debug)]
pub enum FeedItem {
    /// All that there is follows, from its beginning: at first, and after changes were lost to a
    /// receiver that was too slow.
    Begun,
    /// A part of it.
    Listed(Vec<Summary>),
    /// That was all of it.
    Complete,
    /// All that there is was told again, as [`Feed::again`] has asked for.
    Again,
    /// The next change.
    Change(FeedChange),
    /// What there is could not be read. The next call waits for a while and begins anew.
    Failed(CloudError),
    /// The store has been closed.
    Closed,
}

/// Every object that can be placed and every Node, in parts, and all changes, also those in
/// between. Whoever takes all in as it comes does not go back to an older commit's state of an
/// object, or to one that is no more.
///
/// The parts are not of one commit, so that nothing is held for as long as reading takes: an object
/// that has changed since the beginning is left out of them, because its change has been told.
#[derive(Debug)]
pub struct Feed {
    store: CloudStore,
    state: State,
    /// All is to be told again.
    again: bool,
}

#[derive(Debug)]
enum State {
    /// Nothing has been read; nothing is to be before this time.
    Start(Option<Instant>),
    Listing(Receiver, Listing),
    Following(Receiver),
    Closed,
}

type Receiver = broadcast::Receiver<FeedChange>;
type Reading<T> = JoinHandle<Result<T, CloudError>>;

/// Objects on their way.
#[derive(Debug)]
struct Listing {
    /// Which rows there are, as long as it is being asked.
    counting: Option<Reading<Vec<i64>>>,
    /// Rows to be read, the next one last.
    rows: Vec<i64>,
    /// What is being read, in order.
    reading: VecDeque<Reading<Part>>,
    /// The objects that have changed since the beginning.
    changed: HashSet<Arc<str>>,
    /// Whether all was told before.
    is_again: bool,
}

impl Feed {
    pub(super) fn new(store: CloudStore) -> Self {
        Self { store, state: State::Start(None), again: false }
    }

    /// Has all that there is told once more, beside all changes; [`FeedItem::Again`] says when that
    /// is done. What is under way is finished first.
    pub fn again(&mut self) {
        self.again = true;
    }

    /// Waits for the next item. Can be cancelled without loss.
    pub async fn next(&mut self) -> FeedItem {
        loop {
            self.begin_again();
            let change = match &mut self.state {
                State::Start(after) => {
                    if let Some(after) = *after {
                        tokio::time::sleep_until(after).await;
                    }
                    return self.begin();
                }
                // What a part has seen has been sent, but for the newest commit: changes go first.
                State::Listing(receiver, listing) => tokio::select! {
                    biased;
                    change = receiver.recv() => change,
                    part = listing.next(&self.store) => return self.read(part),
                },
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
                    tracing::warn!(changes, "fell behind the store: comparing everything");
                    self.start(None);
                }
                (Err(RecvError::Closed), state) => *state = State::Closed,
            }
        }
    }

    /// Listens to changes before it is asked what there is, so that none is missed.
    fn begin(&mut self) -> FeedItem {
        let Some(feed) = self.store.shared.feed.upgrade() else {
            self.state = State::Closed;
            return FeedItem::Closed;
        };
        self.state = State::Listing(feed.subscribe(), Listing::new(&self.store, false));
        FeedItem::Begun
    }

    /// Begins to tell all again, if that was asked for and nothing else is under way. No change is
    /// missed meanwhile.
    fn begin_again(&mut self) {
        if !self.again {
            return;
        }
        self.state = match std::mem::replace(&mut self.state, State::Closed) {
            State::Following(receiver) => {
                self.again = false;
                State::Listing(receiver, Listing::new(&self.store, true))
            }
            other => other,
        };
    }

    /// Begins anew, after a while if there is a time. What was to be told again still is.
    fn start(&mut self, after: Option<Instant>) {
        self.again |= matches!(&self.state, State::Listing(_, Listing { is_again: true, .. }));
        self.state = State::Start(after);
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
                    return if listing.is_again { FeedItem::Again } else { FeedItem::Complete };
                }
            }
        }
        self.state = State::Closed;
        FeedItem::Closed
    }
}

impl Listing {
    fn new(store: &CloudStore, is_again: bool) -> Self {
        let readers = store.readers.clone();
        let counting = tokio::spawn(async move { readers.run(summaries::rows).await });
        let (rows, reading, changed) = <_>::default();
        Self { counting: Some(counting), rows, reading, changed, is_again }
    }

    /// The next part; none if that was all. Can be cancelled without loss.
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
