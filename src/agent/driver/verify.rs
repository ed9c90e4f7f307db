//! Proving on demand that the cloud records what is held: one more Hello, as after a new connection, and how it ends.
//! A CloudCore, which records nothing of it, is asked for everything instead.

use std::time::Duration;

use tokio::sync::oneshot;
use tokio::time::Instant;

use super::{Driver, random};
use edgesync_admin::agent::VerifiedCloud;

/// How long both sides have until they agree again.
const PATIENCE: Duration = Duration::from_secs(60);
/// How long all that is held may take to be compared with a CloudCore, object by object: less than those who ask wait.
const LONG_PATIENCE: Duration = Duration::from_secs(110);

/// A verification under way.
pub(super) struct Verification {
    waiting: Vec<oneshot::Sender<VerifiedCloud>>,
    /// Hellos said before it.
    hellos: u64,
    /// Changes applied before it.
    applied: u64,
    /// Whether the cloud had something else on record.
    differed: bool,
    until: Instant,
}

impl Driver {
    /// Says Hello again. Whoever asks meanwhile gets the same answer.
    pub(super) fn verify(&mut self, answer: oneshot::Sender<VerifiedCloud>) {
        if let Some(verification) = &mut self.verification {
            verification.waiting.push(answer);
            return;
        }
        // What was found just before is told with this Hello already.
        let health = self.store.health().borrow().clone();
        if self.storing.has_new_reset(&health) {
            self.health_changed(&health);
        }
        let mut patience = PATIENCE;
        if let Some(cloud_core) = self.wire.cloud_core_mut() {
            cloud_core.bridge.verify();
            patience = LONG_PATIENCE;
        }
        let counters = self.machine.counters();
        self.verification = Some(Verification {
            waiting: vec![answer],
            hellos: counters.hellos,
            applied: counters.applied,
            differed: false,
            until: Instant::now() + patience,
        });
        // As when the cloud returns. While commits are under way Hello waits for them, as it always does.
        self.machine.cloud_returned(self.now(), random());
    }

    /// The cloud asks for the inventory: its records differ.
    pub(super) fn records_differed(&mut self) {
        if let Some(verification) = &mut self.verification {
            verification.differed = true;
        }
    }

    /// Answers once both sides agree, or will not in time.
    pub(super) fn look_at_verification(&mut self) {
        let Some(verification) = &self.verification else { return };
        let counters = self.machine.counters();
        let agreed = counters.hellos > verification.hellos && self.machine.in_sync();
        let problem = if agreed {
            None
        } else if !self.connection.link.connected {
            Some(format!("there is no connection to {}", self.wire.peer()))
        } else if verification.until <= Instant::now() {
            Some(self.wire.doubt().to_owned())
        } else {
            return;
        };
        let answer = VerifiedCloud {
            in_sync: agreed,
            differed: verification.differed,
            applied: counters.applied.saturating_sub(verification.applied),
            problem,
        };
        let waiting = self.verification.take().map(|verification| verification.waiting);
        for asker in waiting.into_iter().flatten() {
            // Whoever asked may have gone.
            let _ = asker.send(answer.clone());
        }
    }
}
