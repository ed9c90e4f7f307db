//! What the status says of the bridge to a CloudCore.

use jiff::Timestamp;
use serde_json::{Value, json};

use crate::agent::driver::Driver;
use edgesync_kubeedge::{BridgeCounters, BridgeStatus};
use edgesync_object::time::rfc3339;

impl Driver {
    /// The section `kubeedge`; null with another link.
    pub(super) fn show_cloud_core(&self) -> Value {
        let Some(cloud_core) = self.wire.cloud_core() else { return Value::Null };
        let mut shown = show(&cloud_core.bridge.status(), &cloud_core.bridge.counters());
        shown["denied"] = json!(cloud_core.denied);
        shown
    }
}

fn show(status: &BridgeStatus, counters: &BridgeCounters) -> Value {
    let round =
        status.round.map(|(reason, compared)| json!({ "reason": reason.name(), "compared": compared }));
    let verified = status.verified.map(|(at, reason, compared, differed)| {
        json!({ "at": time(at), "reason": reason.name(), "compared": compared, "differed": differed })
    });
    json!({
        "acknowledged": counters.acknowledged,
        "unacknowledged": status.unacknowledged,
        "acknowledgedAt": status.acknowledged_at.map(time),
        "rejected": counters.rejected,
        "withheld": counters.withheld,
        "lease": {
            "resourceVersion": status.lease_version,
            "acknowledgedAt": status.lease_at.map(time),
        },
        "node": {
            "uid": status.node_uid,
            "resourceVersion": status.node_version,
            "acknowledgedAt": status.node_at.map(time),
        },
        "dynamicController": status.dynamic_controller.name(),
        "round": round,
        "verified": verified,
        "missing": status.missing,
        "missingCount": status.missing_count,
        "counters": {
            "received": counters.received,
            "repeated": counters.repeated,
            "bad": counters.bad,
            "ignored": counters.ignored,
            "unwanted": counters.unwanted,
            "unclear": counters.unclear,
            "errors": counters.errors,
            "asked": counters.asked,
            "answered": counters.answered,
            "unanswered": counters.unanswered,
            "differed": counters.differed,
            "rounds": counters.rounds,
        },
    })
}

/// A time in Unix milliseconds, as Kubernetes writes it.
fn time(millisecond: i64) -> String {
    rfc3339(Timestamp::from_millisecond(millisecond).unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;
    use edgesync_kubeedge::{DynamicController, RoundReason};

    #[test]
    fn what_is_not_known_yet_is_null() {
        let shown = show(&BridgeStatus::default(), &BridgeCounters::default());
        for known_later in ["acknowledgedAt", "round", "verified"] {
            assert_eq!(shown[known_later], Value::Null, "{known_later}");
        }
        assert_eq!(shown["node"], json!({ "uid": null, "resourceVersion": null, "acknowledgedAt": null }));
        assert_eq!(shown["dynamicController"], "unknown");
    }

    #[test]
    fn versions_and_times_are_those_that_cloud_core_has_told() {
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
        let shown = show(&status, &counters);
        assert_eq!((&shown["acknowledged"], &shown["unacknowledged"]), (&json!(9), &json!(2)));
        assert_eq!(shown["acknowledgedAt"], rfc3339(Timestamp::from_second(1_795_219_210).unwrap()));
        assert_eq!(shown["lease"]["resourceVersion"], "77");
        assert_eq!(shown["round"], json!({ "reason": "lost", "compared": 5 }));
        assert_eq!(shown["verified"]["at"], "1970-01-01T00:00:00Z");
        assert_eq!((&shown["missing"], &shown["missingCount"]), (&json!(["default/secret/a"]), &json!(3)));
        assert_eq!(shown["counters"]["repeated"], 4);
    }
}
