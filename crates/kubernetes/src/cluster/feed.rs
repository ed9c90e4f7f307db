//! All that is to be known of a cluster, in one order: watches come and go with what the rules want
//! and the cluster serves.
//!
//! Nothing is taken for gone because it could not be read. Only a delete that the cluster tells of,
//! and a complete list of the very watch that told of an object before, leave it out.

use std::sync::Arc;

use tokio::sync::{Notify, mpsc, watch};

use super::access::Cluster;
use super::follower::Follower;
use super::item::Item;
use super::plan::Interest;
use super::watching::Task;

/// Items that wait for who follows.
const ITEMS: usize = 16;

/// Follows a cluster as long as it is kept.
#[derive(Debug)]
pub struct Feed {
    items: mpsc::Receiver<Item>,
    questions: watch::Sender<u64>,
    doubts: Arc<Notify>,
    _follower: Task,
}

impl Feed {
    /// Follows what these interests want, [`Interest::fleet`] among them, and what the rules want
    /// that are objects of the cluster.
    #[must_use]
    pub fn new(cluster: Cluster, interests: Vec<Interest>) -> Self {
        let (to, items) = mpsc::channel(ITEMS);
        let (questions, asked) = watch::channel(0);
        let doubts = Arc::new(Notify::new());
        let follower = Follower::new(cluster, interests, to, Arc::clone(&doubts));
        let follower = tokio::spawn(async move {
            // Who follows has gone.
            let _ = follower.run(asked).await;
        });
        Self { items, questions, doubts, _follower: Task(follower) }
    }

    /// Waits for the next item. Can be cancelled without loss.
    pub async fn next(&mut self) -> Item {
        match self.items.recv().await {
            Some(item) => item,
            None => std::future::pending().await,
        }
    }

    /// Asks to be told once all has been told that there is in the cluster now. Gives the number of
    /// the question, from 1. One [`Item::CaughtUp`] answers all that were asked before the cluster
    /// was looked at.
    ///
    /// Nothing less than to list everything proves that a watch has missed nothing: it is silent
    /// where nothing happens, and where it lags. So this costs what a start costs, but at one time
    /// only, however many have asked.
    pub fn catch_up(&mut self) -> u64 {
        self.questions.send_modify(|asked| *asked += 1);
        *self.questions.borrow()
    }
    /// It has turned out that the cluster is an older copy of itself: from now on older versions
    /// are news too. Whoever says so asks to catch up as well.
    pub fn doubt(&self) {
        self.doubts.notify_one();
    }
}
