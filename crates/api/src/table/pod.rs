//! One-line summary of a Pod. Pure.

use std::collections::BTreeSet;

use jiff::Timestamp;
use serde_json::Value;

use super::fields::{NONE, UNKNOWN, at, condition, int, is_deleted, is_true, list, or, str_at, text, typed};
use edgesync_object::time;

/// The summary of a Pod.
#[derive(Default)]
struct Summary {
    status: String,
    ready: usize,
    containers: usize,
    restarts: i64,
    restarted: Option<Timestamp>,
}

/// Returns the READY column: the ready containers and all, as `1/2`.
pub(super) fn ready(pod: &Value) -> String {
    let summary = Summary::of(pod);
    format!("{}/{}", summary.ready, summary.containers)
}

/// Returns the Pod's state in one word, or the reason that blocks it.
pub(super) fn status(pod: &Value) -> String {
    or(Summary::of(pod).status, UNKNOWN)
}

/// Returns the number of container restarts, and the time since the last.
pub(super) fn restarts(pod: &Value, now: Timestamp) -> String {
    let summary = Summary::of(pod);
    match summary.restarted {
        Some(time) if summary.restarts != 0 => {
            format!("{} ({} ago)", summary.restarts, time::between(time, now))
        }
        _ => summary.restarts.to_string(),
    }
}

/// Returns `true/all` of the readiness gates.
pub(super) fn readiness_gates(pod: &Value) -> String {
    let gates = list(pod, "spec.readinessGates");
    let conditions = list(pod, "status.conditions").iter();
    let conditions = conditions.filter(|condition| str_at(condition, "status") == "True");
    let conditions: BTreeSet<&str> = conditions.map(|condition| str_at(condition, "type")).collect();
    let met = gates.iter().filter(|gate| conditions.contains(str_at(gate, "conditionType"))).count();
    if gates.is_empty() { NONE.to_owned() } else { format!("{met}/{}", gates.len()) }
}

impl Summary {
    fn of(pod: &Value) -> Self {
        let phase = str_at(pod, "status.phase");
        let mut summary = Self { status: or(text(pod, "status.reason"), phase), ..Self::default() };
        let scheduled = typed(pod, "status.conditions", "PodScheduled");
        if scheduled.is_some_and(|scheduled| str_at(scheduled, "reason") == "SchedulingGated") {
            "SchedulingGated".clone_into(&mut summary.status);
        }
        let sidecars = sidecars(pod);
        summary.containers = list(pod, "spec.containers").len() + sidecars.len();
        let initializing = summary.initialize(pod, &sidecars);
        if !initializing || condition(pod, "Initialized") == "True" {
            summary.run(pod, &sidecars);
        }
        if is_deleted(pod) {
            if str_at(pod, "status.reason") == "NodeLost" {
                "Unknown".clone_into(&mut summary.status);
            } else if !matches!(phase, "Succeeded" | "Failed") {
                "Terminating".clone_into(&mut summary.status);
            }
        }
        summary
    }

    /// Evaluates the init containers; returns whether one of them still has to finish, or to start
    /// if it is a sidecar.
    fn initialize(&mut self, pod: &Value, sidecars: &BTreeSet<&str>) -> bool {
        let total = list(pod, "spec.initContainers").len();
        for (number, container) in list(pod, "status.initContainerStatuses").iter().enumerate() {
            self.count_restarts(container);
            let terminated = at(container, "state.terminated").filter(|state| state.is_object());
            if terminated.is_some_and(|state| int(state, "exitCode") == 0) {
                continue;
            }
            if sidecars.contains(str_at(container, "name")) && is_true(container, "started") {
                self.ready += usize::from(is_true(container, "ready"));
                continue;
            }
            let waiting = str_at(container, "state.waiting.reason");
            self.status = match terminated {
                Some(state) => format!("Init:{}", why_terminated(state)),
                None if !matches!(waiting, "" | "PodInitializing") => format!("Init:{waiting}"),
                None => format!("Init:{number}/{total}"),
            };
            return true;
        }
        false
    }

    /// Evaluates the main containers. Of the init containers only sidecars count here.
    fn run(&mut self, pod: &Value, sidecars: &BTreeSet<&str>) {
        (self.restarts, self.restarted) = (0, None);
        for container in list(pod, "status.initContainerStatuses") {
            if sidecars.contains(str_at(container, "name")) {
                self.count_restarts(container);
            }
        }
        let mut running = false;
        // Reversed, so that the first container decides.
        for container in list(pod, "status.containerStatuses").iter().rev() {
            self.count_restarts(container);
            let waiting = str_at(container, "state.waiting.reason");
            if !waiting.is_empty() {
                waiting.clone_into(&mut self.status);
            } else if let Some(state) = at(container, "state.terminated").filter(|state| state.is_object()) {
                self.status = why_terminated(state);
            } else if is_true(container, "ready") && at(container, "state.running").is_some() {
                running = true;
                self.ready += 1;
            }
        }
        if running && self.status == "Completed" {
            let ready = condition(pod, "Ready") == "True";
            if ready { "Running" } else { "NotReady" }.clone_into(&mut self.status);
        }
    }

    fn count_restarts(&mut self, container: &Value) {
        self.restarts = self.restarts.saturating_add(int(container, "restartCount"));
        let finished = str_at(container, "lastState.terminated.finishedAt").parse().ok();
        self.restarted = self.restarted.max(finished);
    }
}

/// Returns the names of the sidecars: init containers that keep running.
fn sidecars(pod: &Value) -> BTreeSet<&str> {
    let is_sidecar = |container: &&Value| str_at(container, "restartPolicy") == "Always";
    list(pod, "spec.initContainers")
        .iter()
        .filter(is_sidecar)
        .map(|container| str_at(container, "name"))
        .collect()
}

/// Returns the reason for the end of a container.
fn why_terminated(state: &Value) -> String {
    let reason = text(state, "reason");
    match int(state, "signal") {
        _ if !reason.is_empty() => reason,
        0 => format!("ExitCode:{}", int(state, "exitCode")),
        signal => format!("Signal:{signal}"),
    }
}
