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
        ], "Messages from CloudCore, by outcome.";
        Counter edgesync_agent_kubeedge_questions_total[outcome] = [
            ("asked", counters.asked),
            ("answered", counters.answered),
            ("unanswered", counters.unanswered),
        ], "Queries to CloudCore, by outcome.";
        Counter edgesync_agent_kubeedge_comparisons_total = counters.rounds,
            "Finished comparisons of held objects with the cloud.";
        Counter edgesync_agent_kubeedge_differing_objects_total = counters.differed,
            "Objects that a comparison found missing, outdated, or held although deleted.";
        Gauge edgesync_agent_kubeedge_unacknowledged_messages = status.unacknowledged,
            "Messages with their commit under way.";
        Gauge edgesync_agent_kubeedge_missing_objects = status.missing_count,
            "Desired objects queried without success so far.";
        Gauge edgesync_agent_kubeedge_dynamic_controller[state] =
            CONTROLLER.map(|state| (state.name(), state == status.dynamic_controller)),
            "Known state of CloudCore's dynamic controller: 1 for the current one.";
    }
}
