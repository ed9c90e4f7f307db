//! Builds the status of the bridge to a CloudCore.

use std::collections::BTreeMap;

use jiff::Timestamp;

use crate::agent::driver::wire::CloudCore;
use edgesync_admin::agent::{BridgeCounts, BridgeLease, BridgeNode, CloudCoreStatus, Round, VerifiedRound};
use edgesync_kubeedge::{BridgeCounters, BridgeStatus};
use edgesync_object::time::rfc3339;

/// Returns the section `kubeedge`.
pub(super) fn status(cloud_core: &CloudCore) -> CloudCoreStatus {
    show(cloud_core.bridge.status(), &cloud_core.bridge.counters(), cloud_core.denied.clone())
}

fn show(
    status: BridgeStatus,
    counters: &BridgeCounters,
    denied: BTreeMap<String, String>,
) -> CloudCoreStatus {
    let round = status.round.map(|(reason, compared)| Round { reason: reason.name().to_owned(), compared });
    let verified = status.verified.map(|(at, reason, compared, differed)| VerifiedRound {
        at: time(at),
        reason: reason.name().to_owned(),
        compared,
        differed,
    });
    CloudCoreStatus {
        acknowledged: counters.acknowledged,
        unacknowledged: status.unacknowledged,
        acknowledged_at: status.acknowledged_at.map(time),
        rejected: counters.rejected,
        withheld: counters.withheld,
        lease: BridgeLease {
            resource_version: status.lease_version,
            acknowledged_at: status.lease_at.map(time),
        },
        node: BridgeNode {
            uid: status.node_uid,
            resource_version: status.node_version,
            acknowledged_at: status.node_at.map(time),
        },
        dynamic_controller: status.dynamic_controller.name().to_owned(),
        round,
        verified,
        missing: status.missing,
        missing_count: status.missing_count,
        counters: BridgeCounts {
            received: counters.received,
            repeated: counters.repeated,
            bad: counters.bad,
            ignored: counters.ignored,
            unwanted: counters.unwanted,
            unclear: counters.unclear,
            errors: counters.errors,
            asked: counters.asked,
            answered: counters.answered,
            unanswered: counters.unanswered,
            differed: counters.differed,
            rounds: counters.rounds,
        },
        denied,
    }
}

/// Formats Unix milliseconds as Kubernetes does.
fn time(millisecond: i64) -> String {
    rfc3339(Timestamp::from_millisecond(millisecond).unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;
    use edgesync_kubeedge::{DynamicController, RoundReason};
    use serde_json::{Value, json};

    fn shown(status: BridgeStatus, counters: &BridgeCounters) -> Value {
        json!(show(status, counters, BTreeMap::new()))
    }

    #[test]
    fn unknown_values_are_null() {
        let shown = shown(BridgeStatus::default(), &BridgeCounters::default());
        for known_later in ["acknowledgedAt", "round", "verified"] {
            assert_eq!(shown[known_later], Value::Null, "{known_later}");
        }
        assert_eq!(shown["node"], json!({ "uid": null, "resourceVersion": null, "acknowledgedAt": null }));
        assert_eq!(shown["dynamicController"], "unknown");
    }

    #[test]
    fn versions_and_times_are_those_of_cloud_core() {
        let status = BridgeStatus {
            unacknowledged: 2,
            acknowledged_at: Some(1_795_219_210_000),
            lease_version: Some("77".into()),
            lease_at: Some(1_795_219_211_000),
            dynamic_controller: DynamicController::Silent,
            round: Some((RoundReason::Lost, 5)),
            verified: Some((0, RoundReason::Routine, 10, 1)),
            missing: vec!["default/secret/a".into()],
            missing_count: 3,
            ..BridgeStatus::default()
        };
        let counters = BridgeCounters { acknowledged: 9, repeated: 4, ..BridgeCounters::default() };
        let shown = shown(status, &counters);
        assert_eq!((&shown["acknowledged"], &shown["unacknowledged"]), (&json!(9), &json!(2)));
        assert_eq!(shown["acknowledgedAt"], rfc3339(Timestamp::from_second(1_795_219_210).unwrap()));
        assert_eq!(shown["lease"]["resourceVersion"], "77");
        assert_eq!(shown["round"], json!({ "reason": "lost", "compared": 5 }));
        assert_eq!(shown["verified"]["at"], "1970-01-01T00:00:00Z");
        assert_eq!((&shown["missing"], &shown["missingCount"]), (&json!(["default/secret/a"]), &json!(3)));
        assert_eq!(shown["counters"]["repeated"], 4);
    }
}
