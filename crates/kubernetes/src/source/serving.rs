//! Nodes served by this replica. It writes for a node only after it has claimed the node's Lease.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::watch;
use tokio::task::JoinHandle;

use super::leases::Leases;
use super::syncs::Syncs;
use edgesync_fleet::source::{Result, SourceError};
use edgesync_object::NodeName;
use edgesync_protocol::change::Uid;
use edgesync_protocol::cloud::Record;

/// First and maximum backoff between attempts to claim a Lease.
const BACKOFF: (Duration, Duration) = (Duration::from_millis(500), Duration::from_secs(10));

/// Sessions of this replica's nodes. Cheap to clone.
#[derive(Clone)]
pub(super) struct Serving {
    leases: Leases,
    syncs: Syncs,
    nodes: Arc<Mutex<HashMap<NodeName, Node>>>,
}

/// Session of a connected node. Dropping it ends the attempts to claim its Lease.
struct Node {
    /// True when its Lease is claimed.
    claimed: watch::Receiver<bool>,
    /// Desired ObjectSyncs, buffered until the claim.
    buffered: Option<HashMap<Uid, Record>>,
    claiming: JoinHandle<()>,
    /// Closed when the session ends.
    end: watch::Sender<()>,
}

impl Drop for Node {
    fn drop(&mut self) {
        self.claiming.abort();
    }
}

impl Serving {
    pub(super) fn new(leases: Leases, syncs: Syncs) -> Self {
        Self { leases, syncs, nodes: Arc::default() }
    }

    fn nodes(&self) -> MutexGuard<'_, HashMap<NodeName, Node>> {
        self.nodes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Starts a session of a node and claims its Lease in the background.
    pub(super) fn begin(&self, node: &NodeName) {
        // With the claim of this session, those of an earlier one could be written.
        self.syncs.begin(node);
        let (done, claimed) = watch::channel(false);
        let (serving, name) = (self.clone(), node.clone());
        let mut nodes = self.nodes();
        let claiming = tokio::spawn(async move {
            let mut delay = BACKOFF.0;
            while let Err(error) = serving.leases.claim(&name).await {
                tracing::debug!(node = name.as_str(), %error, "claim of a node Lease failed, retrying");
                tokio::time::sleep(delay).await;
                delay = (delay * 2).min(BACKOFF.1);
            }
            let mut nodes = serving.nodes();
            if let Some(node) =
                nodes.get_mut(&name).filter(|node| node.claimed.same_channel(&done.subscribe()))
            {
                if let Some(buffered) = node.buffered.take() {
                    serving.syncs.replace(&name, buffered.into_iter().collect());
                }
                done.send_replace(true);
            }
        });
        let end = watch::channel(()).0;
        nodes.insert(node.clone(), Node { claimed, buffered: None, claiming, end });
    }

    /// Ends the session of a node.
    pub(super) fn end(&self, node: &NodeName) {
        if self.nodes().remove(node).is_some() {
            self.syncs.forget_when_written(node);
        }
    }

    /// Runs some work for a node once its Lease is claimed, and drops it when the session ends: the
    /// claim of a later session would permit it, although another replica may have done newer work.
    ///
    /// # Errors
    /// The node is not, or no longer, served here; or the work failed.
    pub(super) async fn in_session<T>(
        &self,
        node: &NodeName,
        work: impl Future<Output = Result<T>>,
    ) -> Result<T> {
        let session = self.nodes().get(node).map(|node| (node.claimed.clone(), node.end.subscribe()));
        let is_over = || SourceError::NotServed { node: node.to_string() };
        let (mut claimed, mut end) = session.ok_or_else(is_over)?;
        claimed.wait_for(|claimed| *claimed).await.map(drop).map_err(|_| is_over())?;
        tokio::select! {
            // It sends nothing more after the end.
            biased;
            _ = end.changed() => Err(is_over()),
            done = work => done,
        }
    }

    /// Sets all desired ObjectSyncs of a node.
    pub(super) fn replace(&self, node: &NodeName, buffered: Vec<(Uid, Record)>) {
        let mut nodes = self.nodes();
        let Some(served) = nodes.get_mut(node) else { return };
        if *served.claimed.borrow() {
            return self.syncs.replace(node, buffered);
        }
        served.buffered = Some(buffered.into_iter().collect());
    }

    /// Changes some desired ObjectSyncs. Ignored before the first [`Self::replace`].
    pub(super) fn change(&self, node: &NodeName, put: Vec<(Uid, Record)>, remove: Vec<Uid>) {
        let mut nodes = self.nodes();
        let Some(served) = nodes.get_mut(node) else { return };
        if *served.claimed.borrow() {
            return self.syncs.change(node, put, remove);
        }
        if let Some(buffered) = &mut served.buffered {
            remove.iter().for_each(|uid| drop(buffered.remove(uid)));
            buffered.extend(put);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::future::pending;

    use super::super::testing::{Replica, Rig};
    use super::*;
    use crate::node_name;
    use edgesync_object::ObjectRef;

    fn serving(replica: &Replica) -> Serving {
        Serving::new(replica.leases.clone(), replica.syncs.clone())
    }

    fn is_over<T>(result: &Result<T>) -> bool {
        matches!(result, Err(SourceError::NotServed { .. }))
    }

    #[tokio::test]
    async fn work_ends_with_the_session_of_its_node() {
        let rig = Rig::start().await;
        let (serving, node) = (serving(&rig.replica("a")), node_name("edge-1"));
        assert!(is_over(&serving.in_session(&node, async { Ok(()) }).await), "there is no session");
        serving.begin(&node);
        serving.in_session(&node, async { Ok(()) }).await.unwrap();
        let forever = serving.in_session(&node, pending::<Result<()>>());
        let (result, ()) = tokio::join!(forever, async { serving.begin(&node) });
        assert!(is_over(&result), "the node has another session");
        serving.in_session(&node, async { Ok(()) }).await.unwrap();
        let forever = serving.in_session(&node, pending::<Result<()>>());
        let (result, ()) = tokio::join!(forever, async { serving.end(&node) });
        assert!(is_over(&result), "the node has left");
    }

    #[tokio::test]
    async fn session_begins_without_what_an_earlier_one_has_queued() {
        let rig = Rig::start().await;
        let replica = rig.replica("a");
        let (serving, node) = (serving(&replica), node_name("edge-1"));
        let object = ObjectRef {
            api_version: "v1".into(),
            kind: "ConfigMap".into(),
            namespace: "shop".into(),
            name: "one".into(),
        };
        let record = Record { version: 7.into(), object: Arc::new(object) };
        serving.begin(&node);
        serving.in_session(&node, async { Ok(()) }).await.unwrap();
        serving.replace(&node, vec![("u-1".into(), record.clone())]);
        assert_eq!(replica.syncs.queued(), 1);
        serving.begin(&node);
        assert_eq!(replica.syncs.queued(), 0);
        // Those of the new session wait for the claim.
        serving.replace(&node, vec![("u-1".into(), record.clone()), ("u-2".into(), record)]);
        serving.change(&node, Vec::new(), vec!["u-1".into()]);
        serving.in_session(&node, async { Ok(()) }).await.unwrap();
        assert_eq!(replica.syncs.queued(), 1);
    }
}
