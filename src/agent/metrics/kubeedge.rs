//! What the bridge to a CloudCore counts.

use super::states;
use crate::api::MetricsWriter;
use crate::sync::kubeedge::{BridgeCounters, BridgeStatus, DynamicController};

const CONTROLLER: [DynamicController; 3] =
    [DynamicController::Unknown, DynamicController::On, DynamicController::Silent];

/// Writes the families `edgesync_agent_kubeedge_…`.
pub(super) fn write(counters: &BridgeCounters, status: &BridgeStatus, out: &mut MetricsWriter<'_>) {
    out.counters(
        "edgesync_agent_kubeedge_messages_total",
        "Messages of CloudCore, by what became of them.",
        "outcome",
        [
            ("acknowledged", counters.acknowledged),
            ("rejected", counters.rejected),
            ("withheld", counters.withheld),
            ("repeated", counters.repeated),
            ("bad", counters.bad),
            ("ignored", counters.ignored),
            ("unwanted", counters.unwanted),
            ("unclear", counters.unclear),
            ("error", counters.errors),
        ],
    );
    out.counters(
        "edgesync_agent_kubeedge_questions_total",
        "Questions put to CloudCore, and what became of them.",
        "outcome",
        [("asked", counters.asked), ("answered", counters.answered), ("unanswered", counters.unanswered)],
    );
    out.counter(
        "edgesync_agent_kubeedge_comparisons_total",
        "Comparisons of what is held with the cloud that are over.",
        counters.rounds,
    );
    out.counter(
        "edgesync_agent_kubeedge_differing_objects_total",
        "Objects that a comparison found missing, older, or held although they are gone.",
        counters.differed,
    );
    out.gauge(
        "edgesync_agent_kubeedge_unacknowledged_messages",
        "Messages whose commit is under way.",
        status.unacknowledged as f64,
    );
    out.gauge(
        "edgesync_agent_kubeedge_missing_objects",
        "Objects asked for that CloudCore does not have.",
        status.missing_count as f64,
    );
    states(
        out,
        "edgesync_agent_kubeedge_dynamic_controller",
        "Whether the dynamic controller of CloudCore answers: 1 for the state of now.",
        "state",
        CONTROLLER.map(|state| (state.name(), state == status.dynamic_controller)),
    );
}
