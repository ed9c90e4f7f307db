//! What others change in the cluster, followed by a replica.
//!
//! A watch tells it. Whether the watch has missed nothing is looked at beside that: with everything that is revoked one small
//! object changes, the mark, which is read again and again. A watch that has not told of the newest mark is begun anew: its
//! connection is dead, and would be noticed much later.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use serde_json::json;
use tokio::sync::{broadcast, mpsc, watch};
use tokio::task::{JoinHandle, JoinSet};
use tokio::time::{Instant, sleep, timeout};

use super::documents::Record;
use super::member::Member;
use super::objects::{self, ClusterDocuments};
use super::table::Table;
use super::{Changed, MembershipError, MembershipStore, OperatorRecord, Result, left_out};
use crate::object_store::{Failure, Follow, News, Precondition};
use edgesync_object::{Object, ResourceVersion};

/// The name of the mark, and what the label says of it.
const MARK: &str = "edgesync-revoked";
const MARK_LABEL: &str = "mark";
/// How long is waited between two looks at the mark, and how long one may take.
const LOOK: Duration = Duration::from_millis(300);
const LOOK_TIME: Duration = Duration::from_millis(500);
/// So many looks one after another must fail until the cluster is taken for away.
const PATIENCE: u32 = 3;
/// A watch that has failed is taken for well after this time without another failure.
const CALM: Duration = Duration::from_secs(2);
/// A list that tells nothing for so long is begun anew.
const SILENCE: Duration = Duration::from_secs(5);
/// How many changes may wait for somebody who is told of them.
const TOLD: usize = 1024;

/// What the task that follows knows.
pub(super) struct Known {
    table: Mutex<Table>,
    pub(super) changes: broadcast::Sender<Changed>,
    /// Whether what is known is as new as the cluster.
    is_current: watch::Sender<bool>,
}

/// A task that ends with its handle.
pub(super) struct Task(JoinHandle<()>);

impl Drop for Task {
    fn drop(&mut self) {
        self.0.abort();
    }
}

impl MembershipStore {
    /// Follows what others change, from now on until the last handle goes. Returns once all that there is now is known. Where
    /// nobody else changes anything, nothing is followed.
    ///
    /// # Errors
    /// That could not be read.
    pub async fn follow(&self) -> Result<()> {
        let Some(documents) = &self.shared.cluster else { return Ok(()) };
        let mut follower = Follower::new(documents, &self.shared.known);
        while !follower.is_told {
            let news = follower.following.next().await;
            if let News::Failed(why) = news {
                return Err(MembershipError::Unfollowed { namespace: documents.namespace.clone(), why });
            }
            follower.hear(&news);
        }
        follower.known.is_current.send_replace(true);
        let task = Task(tokio::spawn(follower.run(look(documents))));
        *self.following() = Some(task);
        Ok(())
    }

    pub(super) fn is_followed(&self) -> bool {
        self.following().is_some()
    }

    fn following(&self) -> MutexGuard<'_, Option<Task>> {
        self.shared.following.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether what is known of what others revoke is as new as the cluster. Meanwhile what was known last is in force.
    #[must_use]
    pub fn is_current(&self) -> watch::Receiver<bool> {
        self.shared.known.is_current.subscribe()
    }

    /// Something is revoked: the mark changes. It is durable already, so that this fails does not take it back.
    pub(super) async fn mark(&self) {
        let Some(documents) = &self.shared.cluster else { return };
        let ClusterDocuments { cluster, namespace, maps, .. } = &**documents;
        let data = json!({ "changed": uuid::Uuid::new_v4().to_string() });
        let patch = json!({ "data": data });
        let marked = match cluster.merge(maps, (namespace, MARK), Precondition::default(), patch).await {
            Err(Failure::NotFound(_)) => {
                let mut mark = objects::object(MARK, namespace);
                mark.set_metadata("labels", json!({ objects::LABEL: MARK_LABEL }));
                mark.fields_mut().insert("data".to_owned(), data);
                cluster.create(maps, &mark).await
            }
            marked => marked,
        };
        match marked {
            // Another one was just made: whoever follows begins to know it.
            Ok(_) | Err(Failure::Conflict(_)) => {}
            Err(error) => {
                tracing::warn!(%error, "that something is revoked may be noticed late by other replicas");
            }
        }
    }
}

/// What a look at the mark has shown: its version, or why it could not be read.
type Look = std::result::Result<ResourceVersion, String>;

/// Looks at the mark again and again, in a task of its own: a look may take long.
fn look(documents: &Arc<ClusterDocuments>) -> (mpsc::Receiver<Look>, JoinSet<()>) {
    let documents = Arc::clone(documents);
    let (tell, told) = mpsc::channel(1);
    let mut looking = JoinSet::new();
    looking.spawn(async move {
        loop {
            sleep(LOOK).await;
            let ClusterDocuments { cluster, namespace, maps, .. } = &*documents;
            let look = match timeout(LOOK_TIME, cluster.get(maps, namespace, MARK)).await {
                Ok(Ok(mark)) => Ok(mark.map_or_else(|| 0.into(), |mark| mark.resource_version().into())),
                Ok(Err(failure)) => Err(failure.to_string()),
                Err(_) => Err("it does not answer in time".to_owned()),
            };
            if tell.send(look).await.is_err() {
                return;
            }
        }
    });
    (told, looking)
}

/// What follows.
struct Follower {
    known: Arc<Known>,
    following: Box<dyn Follow>,
    /// Begins anew.
    begin: Box<dyn Fn() -> Box<dyn Follow> + Send>,
    /// Whether a list is complete.
    is_told: bool,
    heard: Instant,
    failed: Option<Instant>,
    /// The mark as the watch has told of it last; 0 if there is none.
    seen: ResourceVersion,
    /// Another one that a look has shown: a newer one, or an older one if the cluster was restored from a copy, after which a
    /// watch tells nothing for long.
    behind: Option<ResourceVersion>,
    /// Looks that have failed, one after another.
    failures: u32,
}

impl Follower {
    fn new(documents: &Arc<ClusterDocuments>, known: &Arc<Known>) -> Self {
        let documents = Arc::clone(documents);
        let begin =
            Box::new(move || documents.cluster.follow(&documents.maps, &documents.namespace, objects::LABEL));
        Self {
            known: Arc::clone(known),
            following: begin(),
            begin,
            is_told: false,
            heard: Instant::now(),
            failed: None,
            seen: 0.into(),
            behind: None,
            failures: 0,
        }
    }

    async fn run(mut self, (mut looks, _looking): (mpsc::Receiver<Look>, JoinSet<()>)) {
        loop {
            tokio::select! {
                news = self.following.next() => self.hear(&news),
                Some(look) = looks.recv() => self.take(look),
            }
        }
    }

    /// The watch tells something.
    fn hear(&mut self, news: &News) {
        self.heard = Instant::now();
        match news {
            News::Begun => (self.is_told, self.seen) = (false, 0.into()),
            News::Complete => self.is_told = true,
            News::Listed(object) | News::Set(object) if object.name() == MARK => {
                self.seen = object.resource_version().into();
            }
            News::Gone(object) if object.name() == MARK => self.seen = 0.into(),
            News::Failed(why) => {
                self.failed = Some(Instant::now());
                self.away(why);
            }
            News::Listed(_) | News::Set(_) | News::Gone(_) => {}
        }
        self.known.know(news);
    }

    /// A look has shown the mark, or could not.
    fn take(&mut self, look: Look) {
        let mark = match look {
            Ok(mark) => mark,
            Err(why) => {
                self.failures = self.failures.saturating_add(1);
                if self.failures >= PATIENCE {
                    self.away(&why);
                }
                return;
            }
        };
        self.failures = 0;
        if !self.is_told {
            if self.heard.elapsed() > SILENCE {
                self.begin_anew();
            }
        } else if self.seen == mark {
            self.behind = None;
            if self.failed.is_none_or(|failed| failed.elapsed() > CALM)
                && !self.known.is_current.send_replace(true)
            {
                tracing::info!("what is revoked elsewhere is followed again");
            }
        } else if self.behind.as_ref() == Some(&mark) {
            tracing::debug!("the watch of what is revoked elsewhere has missed something: it begins anew");
            self.begin_anew();
        } else {
            // The watch may just be on its way.
            self.behind = Some(mark);
        }
    }

    fn begin_anew(&mut self) {
        self.following = (self.begin)();
        (self.is_told, self.heard, self.behind) = (false, Instant::now(), None);
    }

    /// What others revoke cannot be known now.
    fn away(&self, why: &str) {
        if self.known.is_current.send_replace(false) {
            tracing::warn!(
                "what is revoked elsewhere cannot be followed: what is known stays in force: {why}"
            );
        }
    }
}

impl Default for Known {
    fn default() -> Self {
        let (table, is_current) = Default::default();
        Self { table, changes: broadcast::Sender::new(TOLD), is_current }
    }
}

impl Known {
    pub(super) fn table(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn tell(&self, changed: impl IntoIterator<Item = Changed>) {
        for changed in changed {
            // Nobody may listen.
            let _ = self.changes.send(changed);
        }
    }

    fn know(&self, news: &News) {
        let changed = match news {
            News::Begun => {
                self.table().begin();
                return;
            }
            News::Complete => {
                let mut changed = self.table().complete();
                // They are not kept here: something may have changed.
                changed.push(Changed::Operators);
                return self.tell(changed);
            }
            News::Failed(_) => return,
            News::Listed(object) => {
                self.put(object, |table, member| table.list(member, &object.resource_version().into()))
            }
            News::Set(object) => {
                self.put(object, |table, member| table.set(member, &object.resource_version().into()))
            }
            News::Gone(object) => {
                self.put(object, |table, member| table.gone(&member.node, &object.resource_version().into()))
            }
        };
        self.tell(changed);
    }

    /// Something of an object is known now. One that is damaged changes nothing: what was known of the name stays.
    fn put(
        &self,
        object: &Object,
        put: impl FnOnce(&mut Table, &Member) -> Option<Changed>,
    ) -> Option<Changed> {
        if objects::is_of(object, OperatorRecord::KIND) {
            return Some(Changed::Operators);
        }
        if !objects::is_of(object, Member::KIND) {
            return None;
        }
        match objects::record(object) {
            Ok(member) => put(&mut self.table(), &member),
            Err(why) => {
                left_out(object.name(), &why);
                self.table().keep(object.name());
                None
            }
        }
    }
}
