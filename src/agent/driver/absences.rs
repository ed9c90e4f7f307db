//! Planned absences: passes the state of the node to its plan, and performs the plan's steps.

use std::time::Duration;

use jiff::Timestamp;
use tokio::sync::oneshot;
use tokio::time::Instant;

use super::wire::Wire;
use super::{Driver, random};
use crate::agent::check_ins::{Activity, Step};
use edgesync_admin::agent::SyncStarted;
use edgesync_object::time::rfc3339;
use edgesync_protocol::renewal::{CheckIn, CheckInReason};
use edgesync_transport::link::presence::Presence;

/// Time limit for the last messages before a planned disconnection to be acknowledged.
const FAREWELL_TIMEOUT: Duration = Duration::from_secs(10);

impl Driver {
    /// Takes the next step of the plan; called about once a second.
    pub(super) fn follow_plan(&mut self) {
        let link = self.uplink.link.backlog();
        // Objects that wait for another link, or another day, do not keep the node connected.
        let is_quiet = self.uplink.is_connected()
            && self.machine.is_settled()
            && !self.reporting.metered.is_fed(&self.machine.waiting(), Instant::now())
            && self.outbox_is_settled()
            && !self.machine.has_frame()
            && link.unacknowledged == 0;
        let spent_for = self.spent_for();
        let has_other_link = self.reporting.metered.has_changed();
        let stay_until = self.machine.stay_until();
        let activity = Activity { is_quiet, stay_until, spent_for, has_other_link };
        match self.check_ins.tick(self.now(), Timestamp::now(), activity) {
            Step::Nothing => {}
            Step::Leave(check_in) => self.leave(check_in),
            Step::Connect => self.resume_link(),
        }
    }

    /// Leaves at once when a budget is spent.
    pub(super) fn leave_if_spent(&mut self) {
        if !self.check_ins.is_spent() && self.spent_for().is_some() {
            self.follow_plan();
        }
    }

    /// Returns whether every item of the outbox is confirmed, or waits for a budget.
    pub(super) fn outbox_is_settled(&self) -> bool {
        self.machine.outbox_is_empty() || self.reporting.metered.holds_outbox()
    }

    /// Announces an absence, and disconnects once the announcement is acknowledged.
    fn leave(&mut self, check_in: CheckIn) {
        let is_spent = check_in.reason == CheckInReason::Budget;
        // Without a session nothing can be announced, and a spent budget is spent.
        if !self.machine.announce_absence(self.now(), check_in, random()) && !is_spent {
            self.check_ins.connect_now();
            return;
        }
        self.drain();
        if self.machine.absences_are_understood() == Some(false)
            && !std::mem::replace(&mut self.has_warned_of_absence, true)
        {
            tracing::warn!(
                "the cloud side knows no planned absences: it shows this node as offline between its check-ins; hint: upgrade it"
            );
        }
        let farewell = match &self.uplink.wire {
            Wire::Mqtt(topics) => vec![Presence::absence(topics, &self.settings.node)],
            Wire::KubeEdge(_) => Vec::new(),
        };
        tracing::info!(
            within_seconds = check_in.within,
            reason = check_in.reason.as_str(),
            "disconnecting as planned"
        );
        // Frames that arrive during a farewell are paid and dropped.
        let timeout = match is_spent && self.reporting.metered.has_nothing_left() {
            true => Duration::ZERO,
            false => FAREWELL_TIMEOUT,
        };
        if !self.uplink.link.pause(farewell, timeout) {
            self.check_ins.connect_now();
        }
    }

    pub(super) fn resume_link(&mut self) {
        tracing::info!("connecting for a planned check-in");
        if !self.uplink.link.resume() {
            // Its few commands are being taken: the next step repeats it.
            self.check_ins.retry();
        }
    }

    /// Connects before the next planned check-in, on request.
    pub(super) fn sync_now(&mut self, answer: oneshot::Sender<SyncStarted>) {
        if let Some(rest) = self.spent_for() {
            let spent_until = Timestamp::now().checked_add(rest).ok().map(rfc3339);
            // The requester may have disconnected.
            let _ = answer.send(SyncStarted { was_connected: self.uplink.is_connected(), spent_until });
            return;
        }
        let was_away = self.check_ins.connect_now();
        if was_away || !self.uplink.is_connected() {
            self.resume_link();
        }
        // The requester may have disconnected.
        let _ = answer.send(SyncStarted { was_connected: self.uplink.is_connected(), spent_until: None });
    }

    /// Returns the time of the next planned check-in by the clock, while the node is away.
    pub(super) fn next_check_in(&self) -> Option<Timestamp> {
        let rest = self.check_ins.until()?.saturating_sub(self.now());
        Timestamp::now().checked_add(rest).ok()
    }
}
