//! Verifies on demand that the cloud's records match what is held: sends one more Hello, as after a
//! new connection, and reports the result. A CloudCore keeps no such records, so every object is
//! queried instead.

use std::time::Duration;

use tokio::sync::oneshot;
use tokio::time::Instant;

use super::{Driver, random};
use edgesync_admin::agent::VerifiedCloud;

/// Time limit for both sides to agree.
const VERIFY_TIMEOUT: Duration = Duration::from_secs(60);
/// Time limit for the comparison with a CloudCore, object by object. Shorter than the client's
/// timeout.
const COMPARE_TIMEOUT: Duration = Duration::from_secs(110);

/// A verification in progress.
pub(super) struct Verification {
    waiting: Vec<oneshot::Sender<VerifiedCloud>>,
    /// Hellos sent before it.
    hellos: u64,
    /// Changes applied before it.
    applied: u64,
    /// Whether the cloud's records differed.
    differed: bool,
    until: Instant,
}

impl Driver {
    /// Sends a Hello. Requests that arrive meanwhile share its answer.
    pub(super) fn verify(&mut self, answer: oneshot::Sender<VerifiedCloud>) {
        if let Some(verification) = &mut self.verification {
            verification.waiting.push(answer);
            return;
        }
        // A reset found just before is reported with this Hello.
        let health = self.store.health().borrow().clone();
        if self.storing.has_new_reset(&health) {
            self.health_changed(&health);
        }
        let mut timeout = VERIFY_TIMEOUT;
        if let Some(cloud_core) = self.wire.cloud_core_mut() {
            cloud_core.bridge.verify();
            timeout = COMPARE_TIMEOUT;
        }
        let counters = self.machine.counters();
        self.verification = Some(Verification {
            waiting: vec![answer],
            hellos: counters.hellos,
            applied: counters.applied,
            differed: false,
            until: Instant::now() + timeout,
        });
        // As when the cloud returns. Hello waits for commits in flight, as always.
        self.machine.cloud_returned(self.now(), random());
    }

    /// Records that the cloud requests the inventory, because its records differ.
    pub(super) fn records_differed(&mut self) {
        if let Some(verification) = &mut self.verification {
            verification.differed = true;
        }
    }

    /// Answers once both sides agree, or the link is down, or the time is up.
    pub(super) fn poll_verification(&mut self) {
        let Some(verification) = &self.verification else { return };
        let counters = self.machine.counters();
        let agreed = counters.hellos > verification.hellos && self.machine.in_sync();
        let problem = if agreed {
            None
        } else if !self.connection.link.connected {
            Some(format!("no connection to {}", self.wire.peer()))
        } else if verification.until <= Instant::now() {
            Some(self.wire.timeout_message().to_owned())
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
        for requester in waiting.into_iter().flatten() {
            // The requester may have disconnected.
            let _ = requester.send(answer.clone());
        }
    }
}
