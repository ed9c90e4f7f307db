//! The cloud answers the agent, and both hold the same.

use serde_json::Value;

use super::{Check, Examined, Finding, Look, ONE};

pub(super) const CHECK: Check = Check {
    id: "cloud",
    title: "Cloud",
    needs: &["configuration", "name-resolution", "tcp", "tls", "mqtt"],
    limit: ONE,
    look: Look::Files(look),
};

fn look(examined: &mut Examined) -> Finding {
    match &examined.status {
        Some(status) => judge(status),
        None => Finding::skipped("only an agent that runs can ask it"),
    }
}

fn judge(status: &Value) -> Finding {
    let text = |pointer: &str| status.pointer(pointer).and_then(Value::as_str).unwrap_or_default();
    let number = |pointer: &str| status.pointer(pointer).and_then(Value::as_u64).unwrap_or_default();
    let is = |pointer: &str| status.pointer(pointer).and_then(Value::as_bool).unwrap_or_default();
    let objects = number("/objects/total");
    if is("/cloud/removed") {
        let next = "run 'edgesync-cloud node admit NODE' at the cloud side, or join another fleet";
        return Finding::failed("this node was removed from the fleet", next);
    }
    if text("/cloud/state") != "connected" {
        let (seen, cause) =
            (format!("the cloud does not answer: {}", text("/cloud/state")), text("/link/cause"));
        return match text("/link/type") {
            "kubeedge" if cause.is_empty() => Finding::failed(
                seen,
                "see CloudCore's log (kubectl -n kubeedge logs deploy/cloudcore), and whether its node limit is reached",
            ),
            "kubeedge" => Finding::failed(format!("{seen}: {cause}"), "see that CloudCore runs, and its log"),
            _ => Finding::failed(
                seen,
                "see that the cloud side runs ('systemctl status edgesync-cloud') and uses the same broker and prefix",
            ),
        };
    }
    let held = number("/sync/heldBack");
    if held > 0 {
        let next = "run 'edgesync-cloud confirm-deletions NODE' at the cloud side if they are meant";
        return Finding::warning(format!("the cloud holds back {held} removals"), next);
    }
    let rejected = status.get("rejected").and_then(Value::as_array).map_or(0, Vec::len);
    if rejected > 0 {
        let seen = format!("{rejected} objects could not be taken over");
        return Finding::warning(seen, "see 'edgesync status' for the reason of each");
    }
    if is("/sync/inSync") {
        return Finding::ok(format!("in sync with {objects} objects since {}", text("/sync/inSyncSince")));
    }
    let (pending, unconfirmed) = (number("/sync/pending"), number("/sync/unconfirmed"));
    Finding::warning(
        format!("the cloud answers; {pending} objects are to come, {unconfirmed} changes are not confirmed"),
        "wait until it is done, and check again",
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::check::tests::{failed, ok, warned};
    use serde_json::json;

    #[test]
    fn what_the_agent_says_of_the_cloud_is_judged() {
        let status = |change: fn(&mut Value)| {
            let mut status = json!({
                "cloud": { "state": "connected", "removed": false },
                "sync": { "inSync": true, "inSyncSince": "t", "pending": 0, "heldBack": 0, "unconfirmed": 0 },
                "objects": { "total": 7 }, "rejected": [],
            });
            change(&mut status);
            judge(&status)
        };
        ok(status(|_| {}), "in sync with 7 objects since t");
        warned(status(|s| s["sync"]["inSync"] = json!(false)), "0 objects are to come", "wait");
        warned(status(|s| s["sync"]["heldBack"] = json!(3)), "holds back 3 removals", "confirm-deletions");
        warned(status(|s| s["rejected"] = json!([{}])), "1 objects could not", "edgesync status");
        failed(status(|s| s["cloud"]["state"] = json!("offline")), "offline", "edgesync-cloud");
        let kubeedge = |s: &mut Value| {
            s["cloud"]["state"] = json!("unreachable");
            s["link"] = json!({ "type": "kubeedge", "cause": null });
        };
        failed(status(kubeedge), "unreachable", "node limit");
        let cut = |s: &mut Value| {
            s["cloud"]["state"] = json!("unknown");
            s["link"] = json!({ "type": "kubeedge", "cause": "nothing listens" });
        };
        failed(status(cut), "nothing listens", "CloudCore runs");
        failed(status(|s| s["cloud"]["removed"] = json!(true)), "removed", "node admit");
    }
}
