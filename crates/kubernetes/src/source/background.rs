//! Background tasks of a replica: the writer of ObjectSyncs, leader election with the leader's
//! work, and the check of the incarnation.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::watch;
use tokio::task::JoinSet;

use super::incarnation::Incarnation;
use super::leader::Leader;
use super::lease_expiry::{self, LeaseExpiryCheck};
use super::syncs::Syncs;

/// Interval between checks of the cluster's incarnation.
const INCARNATION_CHECK_INTERVAL: Duration = Duration::from_secs(5);

/// The background tasks, and the leadership that one of them holds. Aborts them on drop.
pub(super) struct Background {
    leader: Leader,
    /// Set to true when this replica shuts down.
    stopping: watch::Sender<bool>,
    tasks: Mutex<JoinSet<()>>,
}

impl Background {
    pub(super) fn new(leader: Leader) -> Self {
        Self { leader, stopping: watch::channel(false).0, tasks: Mutex::default() }
    }

    /// Returns whether this replica is the leader.
    pub(super) fn is_leader(&self) -> bool {
        self.leader.is_leader()
    }

    /// Waits until this replica gains or loses leadership; returns whether it leads now.
    pub(super) async fn leadership_changed(&self) -> bool {
        self.leader.changed(self.is_leader()).await
    }

    /// Starts the tasks. `new_check` creates the check for expired Leases at each start of this
    /// replica's leadership.
    pub(super) fn start(
        &self,
        syncs: Syncs,
        incarnation: Incarnation,
        new_check: impl Fn() -> LeaseExpiryCheck + Send + 'static,
    ) {
        let mut tasks = self.tasks.lock().unwrap_or_else(PoisonError::into_inner);
        tasks.spawn(async move { syncs.run().await });
        let (leader, mut stopping) = (self.leader.clone(), self.stopping.subscribe());
        tasks.spawn(async move {
            let stopped = async {
                // A closed channel also means stop.
                let _ = stopping.wait_for(|stopping| *stopping).await;
            };
            leader.run(stopped).await;
        });
        tasks.spawn(async move {
            loop {
                tokio::time::sleep(INCARNATION_CHECK_INTERVAL).await;
                if let Err(error) = incarnation.refresh().await {
                    tracing::debug!(%error, "incarnation check failed");
                }
            }
        });
        let leader = self.leader.clone();
        tasks.spawn(async move {
            loop {
                while !leader.changed(leader.is_leader()).await {}
                check_while_leading(&leader, new_check()).await;
            }
        });
    }

    /// Stops leader election and waits until the Lease is released, so that a successor need not
    /// wait for it to expire.
    pub(super) async fn resign(&self) {
        self.stopping.send_replace(true);
        while self.leader.is_leader() && self.leader.changed(true).await {}
    }
}

/// Checks the Leases of all nodes while this replica leads.
async fn check_while_leading(leader: &Leader, mut check: LeaseExpiryCheck) {
    while leader.is_leader() {
        match check.run().await {
            Ok(0) => {}
            Ok(silent) => tracing::warn!(silent, "node Leases expired"),
            Err(error) => tracing::debug!(%error, "check of node Leases failed"),
        }
        tokio::time::sleep(lease_expiry::INTERVAL).await;
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::{NAMESPACE, Rig};
    use super::*;

    #[tokio::test]
    async fn a_replica_that_resigns_leaves_the_lease_to_another_one() {
        let rig = Rig::start().await;
        let incarnation = Incarnation::open(rig.requests(), NAMESPACE).await.unwrap();
        let start = |name: &str| {
            let background = Background::new(Leader::new(rig.requests(), NAMESPACE, name));
            let (requests, replica) = (rig.requests(), rig.replica(name));
            let (syncs, leases, nodes) = (replica.syncs, replica.leases, replica.nodes);
            background.start(syncs, incarnation.clone(), move || {
                LeaseExpiryCheck::new(&requests, &leases, nodes.clone())
            });
            background
        };
        let first = start("a");
        assert!(first.leadership_changed().await && first.is_leader());
        first.resign().await;
        assert!(!first.is_leader());
        assert!(start("b").leadership_changed().await);
    }
}
