//! What others change is put in force here: other replicas, and the command line.

use std::time::Duration;

use super::EnrollmentService;
use super::membership::{Changed, RevocationChange};

/// When it is tried again to read the certificates of operators.
const RETRY: Duration = Duration::from_secs(1);

/// What is to be done about some changes.
#[derive(Debug, Default, PartialEq, Eq)]
struct Due {
    /// A new revocation list is to be made.
    publish: bool,
    /// The certificates of operators are to be read.
    operators: bool,
    /// Nodes of which something more is revoked. Which of its certificates a connection has shown is not known, so the node
    /// comes again.
    cut: Vec<String>,
}

impl Due {
    fn add(&mut self, changed: Changed) {
        match changed {
            // Whoever has changed it has put it in force.
            Changed::Member { own: true, .. }
            | Changed::Member { revocation: RevocationChange::None, .. } => {}
            Changed::Member { node, revocation, .. } => {
                self.publish = true;
                if revocation == RevocationChange::More {
                    self.cut.push(node.to_string());
                }
            }
            Changed::Operators => self.operators = true,
            Changed::All => (self.publish, self.operators) = (true, true),
        }
    }
}

impl EnrollmentService {
    /// Puts in force what others change. Never ends.
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

    /// Does what is due. Gives what could not be done.
    async fn apply(&self, due: Due) -> Due {
        let Due { publish, operators, cut } = due;
        if publish {
            // A list that is not published is in force all the same, and is published later.
            let _ = self.publish().await;
            self.cut_rejoined(cut);
        }
        let mut left = Due::default();
        if operators && let Err(status) = self.read_operators().await {
            tracing::warn!(
                "certificates of operators cannot be read, next try in a second: {}",
                status.message
            );
            left.operators = true;
        }
        left
    }

    /// Cuts those of some nodes that are not shut out, and so were not cut yet: they have joined anew.
    fn cut_rejoined(&self, mut nodes: Vec<String>) {
        let mut state = self.state();
        nodes.retain(|node| !state.revoked.nodes.contains(node));
        if !nodes.is_empty() {
            state.to_cut.extend(nodes);
            self.shared.cut.notify_one();
        }
    }
}
