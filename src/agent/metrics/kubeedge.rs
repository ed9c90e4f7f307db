//! The metrics of the bridge to a CloudCore.

use edgesync_api::{MetricsWriter, families};
use edgesync_kubeedge::{BridgeCounters, BridgeStatus, DynamicController};

const CONTROLLER: [DynamicController; 3] =
    [DynamicController::Unknown, DynamicController::On, DynamicController::Silent];

/// Writes the families `edgesync_agent_kubeedge_…`.
pub(super) fn write(counters: &BridgeCounters, status: &BridgeStatus, out: &mut MetricsWriter<'_>) {
    families! { out;
        Counter edgesync_agent_kubeedge_messages_total[outcome] = [
            ("acknowledged", counters.acknowledged),
            ("rejected", counters.rejected),
            ("withheld", counters.withheld),
            ("repeated", counters.repeated),
            ("bad", counters.bad),
            ("ignored", counters.ignored),
            ("unwanted", counters.unwanted),
            ("unclear", counters.unclear),
            ("error", counters.errors),
        ], "Messages of CloudCore, by what became of them.";
        Counter edgesync_agent_kubeedge_questions_total[outcome] = [
            ("asked", counters.asked),
            ("answered", counters.answered),
            ("unanswered", counters.unanswered),
        ], "Questions put to CloudCore, and what became of them.";
        Counter edgesync_agent_kubeedge_comparisons_total = counters.rounds,
            "Comparisons of what is held with the cloud that are over.";
        Counter edgesync_agent_kubeedge_differing_objects_total = counters.differed,
            "Objects that a comparison found missing, older, or held although they are gone.";
        Gauge edgesync_agent_kubeedge_unacknowledged_messages = status.unacknowledged,
            "Messages whose commit is under way.";
        Gauge edgesync_agent_kubeedge_missing_objects = status.missing_count,
            "Objects asked for that CloudCore does not have.";
        Gauge edgesync_agent_kubeedge_dynamic_controller[state] =
            CONTROLLER.map(|state| (state.name(), state == status.dynamic_controller)),
            "Whether the dynamic controller of CloudCore answers: 1 for the state of now.";
    }
}
