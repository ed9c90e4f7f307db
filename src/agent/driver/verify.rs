//! Verifies on demand that the cloud's records match what is held: sends one more Hello, as after a
//! new connection, and reports the result. A CloudCore keeps no such records, so every object is
//! queried instead.

use std::time::Duration;

use tokio::sync::oneshot;
use tokio::time::Instant;

use super::uplink::Uplink;
use super::wire::Wire;
use edgesync_admin::agent::VerifiedCloud;
use edgesync_protocol::edge::EdgeMachine;

/// Time limit for both sides to agree.
const VERIFY_TIMEOUT: Duration = Duration::from_secs(60);
/// Time limit for the comparison with a CloudCore, object by object. Shorter than the client's
/// timeout.
const COMPARE_TIMEOUT: Duration = Duration::from_secs(110);

/// A verification in progress.
struct Verification {
    waiting: Vec<oneshot::Sender<VerifiedCloud>>,
    /// Hellos sent before it.
    hellos: u64,
    /// Changes applied before it.
    applied: u64,
    /// Whether the cloud's records differed.
    differed: bool,
    until: Instant,
}

/// Tracks the verification in progress, if any.
#[derive(Default)]
pub(super) struct Verifier {
    current: Option<Verification>,
}

impl Verifier {
    /// Adds a requester to the verification in progress, to share its answer. Returns the requester
    /// if there is none.
    pub(super) fn join(
        &mut self,
        answer: oneshot::Sender<VerifiedCloud>,
    ) -> Option<oneshot::Sender<VerifiedCloud>> {
        let Some(current) = &mut self.current else { return Some(answer) };
        current.waiting.push(answer);
        None
    }

    /// Begins a verification. The caller has the machine send a Hello.
    pub(super) fn begin(
        &mut self,
        answer: oneshot::Sender<VerifiedCloud>,
        machine: &EdgeMachine,
        wire: &Wire,
    ) {
        let timeout = if wire.cloud_core().is_some() { COMPARE_TIMEOUT } else { VERIFY_TIMEOUT };
        let counters = machine.counters();
        self.current = Some(Verification {
            waiting: vec![answer],
            hellos: counters.hellos,
            applied: counters.applied,
            differed: false,
            until: Instant::now() + timeout,
        });
    }

    /// Records that the cloud requests the inventory, because its records differ.
    pub(super) fn records_differed(&mut self) {
        if let Some(current) = &mut self.current {
            current.differed = true;
        }
    }

    /// Answers once both sides agree, or the link is down, or the time is up.
    pub(super) fn poll(&mut self, machine: &EdgeMachine, uplink: &Uplink) {
        let Some(current) = &self.current else { return };
        let counters = machine.counters();
        let agreed = counters.hellos > current.hellos && machine.in_sync();
        let problem = if agreed {
            None
        } else if !uplink.is_connected() {
            Some(format!("no connection to {}", uplink.wire.peer()))
        } else if current.until <= Instant::now() {
            Some(uplink.wire.timeout_message().to_owned())
        } else {
            return;
        };
        let answer = VerifiedCloud {
            in_sync: agreed,
            differed: current.differed,
            applied: counters.applied.saturating_sub(current.applied),
            problem,
        };
        let waiting = self.current.take().map(|current| current.waiting);
        for requester in waiting.into_iter().flatten() {
            // The requester may have disconnected.
            let _ = requester.send(answer.clone());
        }
    }
}
