//! Applies changes by other processes: replicas and the command line.

use std::time::Duration;

use super::EnrollmentService;
use super::membership::{Changed, RevocationChange};
use edgesync_object::NodeName;

/// Delay before the operator certificates are read again after a failure.
const RETRY: Duration = Duration::from_secs(1);

/// Work that follows from observed changes.
#[derive(Debug, Default, PartialEq, Eq)]
struct Due {
    /// Publish a new revocation list.
    publish: bool,
    /// Read the operator certificates again.
    operators: bool,
    /// Nodes with a newly revoked certificate. A connection does not record which certificate it
    /// presented, so the node must reconnect.
    disconnect: Vec<NodeName>,
}

impl Due {
    fn add(&mut self, changed: Changed) {
        match changed {
            // The writer has applied it already.
            Changed::Member { own: true, .. }
            | Changed::Member { revocation: RevocationChange::None, .. } => {}
            Changed::Member { node, revocation, .. } => {
                self.publish = true;
                if revocation == RevocationChange::More {
                    self.disconnect.push(node);
                }
            }
            Changed::Operators => self.operators = true,
            Changed::All => (self.publish, self.operators) = (true, true),
        }
    }
}

impl EnrollmentService {
    /// Applies changes by other processes as they are observed. Never returns.
    pub(super) async fn follow_changes(&self) {
        let mut changes = self.shared.changes.lock().await;
        let mut due = Due::default();
        loop {
            tokio::select! {
                changed = changes.next() => due.add(changed),
                () = tokio::time::sleep(RETRY), if due != Due::default() => {}
            }
            while let Some(changed) = changes.try_next() {
                due.add(changed);
            }
            due = self.apply(due).await;
        }
    }

    /// Does the work that is due. Returns the part that failed.
    async fn apply(&self, due: Due) -> Due {
        let Due { publish, operators, disconnect } = due;
        if publish {
            // A list that fails to publish is in force here, and is published later.
            let _ = self.publish().await;
            self.disconnect_rejoined(disconnect);
        }
        let mut left = Due::default();
        if operators && let Err(status) = self.read_operators().await {
            tracing::warn!("reading operator certificates failed, retrying in 1 s: {}", status.message);
            left.operators = true;
        }
        left
    }

    /// Closes the connections of nodes that still have a valid certificate: publishing closes only
    /// those of fully revoked nodes.
    fn disconnect_rejoined(&self, mut nodes: Vec<NodeName>) {
        let mut state = self.state();
        nodes.retain(|node| !state.revoked.nodes.contains(node));
        if !nodes.is_empty() {
            state.to_disconnect.extend(nodes);
            self.shared.disconnect_notify.notify_one();
        }
    }
}
